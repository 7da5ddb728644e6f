"""The first-level index, both ways, against the definition of matching."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import IncompatibleEntryError
from jbi_pubsub.lookup import index as index_module
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define, fits
from jbi_pubsub.lookup.index import EntryIndex, TemplateIndex

DEVICE = define("Device", {"building": str, "floor": str})
PRINTER = define("Printer", {"colour": str, "duplex": str}, DEVICE)
PRINTER_NEW = define("Printer", {"colour": str, "paper": str}, DEVICE)  # another generation
COMMENT = define("Comment", {"text": str})
FORGED = EntryClass("Forged", ("building",), (("Forged", "0"), DEVICE.lineage[0]))  # claims more than it has
CLASSES = (DEVICE, PRINTER, PRINTER_NEW, COMMENT, FORGED)

VALUES = st.sampled_from([None, "a", "b"])


def reps(*classes: EntryClass) -> st.SearchStrategy[EntryRep]:
    return st.sampled_from(classes).flatmap(
        lambda cls: st.tuples(*[VALUES] * len(cls.fields)).map(lambda values: EntryRep(cls, values))
    )


ENTRIES = st.lists(reps(*CLASSES), max_size=4).map(tuple)
KEYS = st.sampled_from([f"key-{i}" for i in range(12)])


def entry(cls: EntryClass, **values: str) -> EntryRep:
    return EntryRep(cls, tuple(values.get(name) for name in cls.fields))


def match(templates: tuple[EntryRep, ...], entries: tuple[EntryRep, ...]) -> bool:
    """The definition (Jini LU.2.1): each template is matched by at least one entry."""
    return all(any(fits(template, each) for each in entries) for template in templates)


def ask(index: EntryIndex[str], templates: tuple[EntryRep, ...]) -> list[str] | None:
    try:
        return sorted(index.find(templates))
    except IncompatibleEntryError:
        return None


def search(index: EntryIndex[str], templates: tuple[EntryRep, ...]) -> list[str] | str | None:
    try:
        found = index.search(templates)
    except IncompatibleEntryError:
        return None
    if found is None:
        return "not yet"
    keys, unsure = found
    return sorted(key for key in keys if index.fits(key, unsure))


def expected(held: dict[str, tuple[EntryRep, ...]], templates: tuple[EntryRep, ...]) -> list[str] | None:
    lineages = {known for entries in held.values() for each in entries for known in each.cls.lineage}
    names = {name for name, _ in lineages}
    if any(t.cls.lineage[0] not in lineages and t.cls.name in names for t in templates):
        return None
    return sorted(key for key, entries in held.items() if match(templates, entries))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, ENTRIES),
        st.tuples(st.just("remove"), KEYS, st.just(())),
        st.tuples(st.just("find"), st.just(""), st.lists(reps(*CLASSES), max_size=3).map(tuple)),
        st.tuples(st.just("search"), st.just(""), st.lists(reps(*CLASSES), max_size=3).map(tuple)),
        st.tuples(st.just("grow"), st.just(""), st.just(())),
    ),
    max_size=60,
)


@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    steps=STEPS,
    eager=st.sampled_from([1, 4, 10_000]),
    tables=st.sampled_from([1, 3, 256]),
    small=st.sampled_from([0, 8]),
    slices=st.sampled_from([0, 1, 1000]),
)
def test_items_by_template_are_what_the_definition_says(steps, eager, tables, small, slices):
    """Given any history of items, however few or many tables were built, are growing or were evicted, a lookup finds
    what a scan does, or says that it can't yet."""
    held: dict[str, tuple[EntryRep, ...]] = {}
    index: EntryIndex[str] = EntryIndex()
    few = {"SCAN": 0, "LOOKS": 1, "EAGERNESS": eager, "MAX_TABLES": tables, "SMALL": small, "MAX_COMBINATIONS": 4}
    few |= {"SLICE": slices, "PATIENCE": slices}
    with mock.patch.multiple(index_module, **few):
        for what, key, reps_given in steps:
            if what == "add":
                index.add(key, reps_given)
                held[key] = reps_given
            elif what == "remove" and key in held:
                index.remove(key)
                del held[key]
            elif what == "find":
                assert ask(index, reps_given) == expected(held, reps_given)
                assert ask(index, reps_given) == expected(held, reps_given)  # the first may have built a table
            elif what == "search":
                while (found := search(index, reps_given)) == "not yet":
                    assert index.status().growing
                    index.grow(1)
                assert found == expected(held, reps_given)
            elif what == "grow":
                growing = index.status().growing
                assert index.grow(1) == bool(index.status().growing)
                assert index.status().growing <= growing
    assert len(index) == len(held)
    for key in held:
        index.remove(key)
    assert index.status().tables == index.status().postings == 0, "nothing is left of items that are gone"
    assert not index.grow()


def test_a_table_over_several_parts_is_of_no_use_before_it_is_whole():
    """Given a table that grows for two templates together, nobody gets what it has so far for all there is."""
    index: EntryIndex[str] = EntryIndex()
    for number in range(60):
        index.add(f"k{number}", (entry(PRINTER, colour="red" if number % 2 else "blue"), entry(COMMENT, text="x")))
        index.add(f"o{number}", (entry(PRINTER, colour="red"), entry(COMMENT, text="y")))
    asked = (entry(PRINTER, colour="red"), entry(COMMENT, text="x"))
    with mock.patch.multiple(index_module, SCAN=0, LOOKS=1, SLICE=0):
        states = set()
        while (found := index.search(asked)) is None:
            index.grow(1)
            states.add((index.status().tables, index.status().growing))
        assert set(found[0]) == {f"k{number}" for number in range(1, 60, 2)}
        assert (3, 1) in states


def test_a_table_that_nobody_waits_for_is_built_by_those_who_ask():
    """Given a growing table that a lookup can do without, a few more lookups finish it."""
    index: EntryIndex[str] = EntryIndex()
    for number in range(5000):
        index.add(f"k{number}", (entry(PRINTER, building=f"v{number % 20}", floor=f"f{number % 30}"),))
    index.find((entry(PRINTER, building="v1"),))
    asked = (entry(PRINTER, building="v1", floor="f1"),)
    for _ in range(100):
        found = index.search(asked)
        assert found is None or len(found[0]) == 84
    assert index.status().growing == 0
    rented = index.status().rented
    assert len(index.find(asked)) == 84
    assert index.status().rented == rented


def test_whoever_asks_first_is_told_to_wait_and_nobody_works_long_for_it():
    """Given many items and no table, when a template is asked for, no call looks at more than a slice of them."""
    index: EntryIndex[str] = EntryIndex()
    looked = 0
    fields = [f"v{number % 3}" for number in range(20)]

    class Counting(str):
        __slots__ = ()

        def __hash__(self) -> int:  # of each entry's value, where it is put into a table
            nonlocal looked
            looked += 1
            return super().__hash__()

    for number in range(5000):
        index.add(f"k{number}", (entry(PRINTER, building=Counting(fields[number % 20]), floor=str(number)),))
    template = entry(PRINTER, building="v1", floor="7")
    slices = 0
    while True:
        looked = 0
        found = index.search((template,))
        if found is not None:
            break
        assert looked == 0
        index.grow()
        assert looked <= 2 * index_module.SLICE  # looked for and put in
        index.add(f"new-{slices}", (entry(PRINTER, building="v1", floor="7"),))
        index.remove(f"k{slices}")
        slices += 1
    assert slices >= 5
    assert set(found[0]) == {f"new-{number}" for number in range(slices)} | ({"k7"} if slices <= 7 else set())


@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), KEYS, st.lists(reps(DEVICE, PRINTER, COMMENT), max_size=2).map(tuple)),
            st.tuples(st.just("remove"), KEYS, st.just(())),
            st.tuples(st.just("find"), st.just(""), ENTRIES | st.lists(reps(PRINTER), max_size=3).map(tuple)),
        ),
        max_size=60,
    ),
    shapes=st.sampled_from([1, 2, 64]),
    small=st.sampled_from([0, 8]),
)
def test_templates_by_item_are_what_the_definition_says(steps, shapes, small):
    """Given any history of templates, with tables for all shapes or for few, an item finds what a scan does, once."""
    held: dict[str, tuple[EntryRep, ...]] = {}
    index: TemplateIndex[str] = TemplateIndex(max_shapes=shapes)
    with mock.patch.multiple(index_module, SCAN=2, SMALL=small):
        for what, key, reps_given in steps:
            if what == "add":
                index.add(key, reps_given)
                held[key] = reps_given
            elif what == "remove" and key in held:
                index.remove(key)
                del held[key]
            elif what == "find":
                naive = sorted(key for key, templates in held.items() if match(templates, reps_given))
                assert sorted(index.find(reps_given)) == naive
    for key in held:
        index.remove(key)
    assert (index.status().tables, index.status().postings, index.status().loose) == (0, 0, 0)


def test_rare_masks_share_tables_and_a_frequent_one_takes_the_place_of_a_rare_one():
    """Given room for one table, when many templates of another mask come, they get it, and all are still found."""
    index: TemplateIndex[str] = TemplateIndex(max_shapes=1)
    index.add("rare", (entry(PRINTER, building="a", colour="a"),))
    for number in range(40):
        index.add(f"often-{number}", (entry(PRINTER, floor=str(number), duplex="a"),))
    status = index.status()
    assert (status.tables, status.evicted, status.loose) == (1, 1, 1)
    assert index.find((entry(PRINTER, building="a", colour="a", floor="7", duplex="a"),)) == ["often-7", "rare"]


def test_what_shares_a_table_is_verified():
    """Given room for one table, a loose template is found by one of its fields, but only if all of them hold."""
    index: TemplateIndex[str] = TemplateIndex(max_shapes=1)
    index.add("first", (entry(PRINTER, building="a"),))
    index.add("loose", (entry(PRINTER, floor="b", colour="c"), entry(PRINTER, duplex="d")))
    index.add("plain", (entry(PRINTER),))
    assert index.find((entry(PRINTER, floor="b", colour="x", duplex="d"),)) == ["plain"]
    assert sorted(index.find((entry(PRINTER, floor="b", colour="c", duplex="d"),))) == ["loose", "plain"]


def test_a_key_is_found_once_though_several_of_its_entries_match():
    index: EntryIndex[str] = EntryIndex()
    index.add("twice", (entry(PRINTER, floor="1", colour="a"), entry(PRINTER, floor="1", colour="b")))
    assert list(index.find((entry(PRINTER, floor="1"),))) == ["twice"]


def test_a_table_that_becomes_free_goes_to_the_most_frequent_loose_shape():
    index: TemplateIndex[str] = TemplateIndex(max_shapes=1)
    index.add("first", (entry(PRINTER, building="a"),))
    index.add("second", (entry(PRINTER, floor="b"),))
    assert index.status().loose == 1
    index.remove("first")
    assert (index.status().tables, index.status().loose) == (1, 0)
    assert index.find((entry(PRINTER, floor="b"),)) == ["second"]


def test_the_cost_of_an_item_is_the_number_of_shapes_not_of_templates():
    """Given 5,000 templates of one shape, an item looks at one projection, and verifies nothing."""
    index: TemplateIndex[str] = TemplateIndex()
    for number in range(5000):
        index.add(str(number), (entry(PRINTER, floor=str(number)), entry(COMMENT, text="x")))
    assert (index.status().tables, index.status().loose) == (1, 0)
    assert index.find((entry(PRINTER, floor="77"), entry(COMMENT, text="x"))) == ["77"]


def test_a_mask_gets_a_table_when_it_has_cost_enough_and_the_least_used_one_goes():
    """Given a budget for one table, when another mask is asked, it takes the place of the first one."""
    index: EntryIndex[str] = EntryIndex(bytes_per_key=0, bytes_floor=0)
    for number in range(100):
        index.add(str(number), (entry(PRINTER, floor=str(number), building=str(number % 2)),))
    by_floor, by_building = (entry(PRINTER, floor="7"),), (entry(PRINTER, building="1"),)
    assert list(index.find(by_floor)) == ["7"]
    assert index.status().tables == 1
    for _ in range(20):
        assert len(index.find(by_building)) == 50
    assert (index.status().tables, index.status().built, index.status().evicted) == (1, 2, 1)


def test_tables_that_are_used_alike_do_not_push_each_other_out():
    """Given a budget for one table and two masks asked in turn, one has the table and the other does without."""
    index: EntryIndex[str] = EntryIndex(bytes_per_key=0, bytes_floor=0)
    for number in range(100):
        index.add(str(number), (entry(PRINTER, floor=str(number), building=str(number % 2)),))
    for _ in range(50):
        assert list(index.find((entry(PRINTER, floor="7"),))) == ["7"]
        assert len(index.find((entry(PRINTER, building="1"),))) == 50
    assert index.status().built <= 2


def test_a_lookup_without_a_table_looks_only_where_a_smaller_table_points():
    """Given a table over the floor, a lookup by floor and colour verifies one candidate: that pays for no table."""
    index: EntryIndex[str] = EntryIndex()
    for number in range(1000):
        index.add(str(number), (entry(PRINTER, floor=str(number), colour="a"),))
    index.find((entry(PRINTER, floor="1"),))
    assert list(index.find((entry(PRINTER, floor="7", colour="a"),))) == ["7"]
    assert (index.status().tables, index.status().rented) == (1, 1)


def test_two_templates_that_agree_on_nothing_get_a_table_of_their_own():
    """Given half of the items with one type and half with the other, asking for both soon costs one step."""
    index: EntryIndex[str] = EntryIndex()
    for number in range(1000):
        index.add(str(number), (entry(COMMENT, text="even" if number % 2 else "odd"),))
    both = (entry(COMMENT, text="even"), entry(COMMENT, text="odd"))
    for _ in range(20):
        assert list(index.find(both)) == []
    assert index.status().tables == 2, "one for the text, one for the pair"
    index.add("both", both)
    assert list(index.find(both)) == ["both"]


def test_another_generation_of_a_class_is_an_error_not_an_empty_answer():
    index: EntryIndex[str] = EntryIndex()
    index.add("old", (entry(PRINTER, colour="a"),))
    with pytest.raises(IncompatibleEntryError) as raised:
        index.find((entry(PRINTER_NEW, colour="a"),))
    assert raised.value.facts["registered_fingerprint"] == PRINTER.fingerprint
    index.add("new", (entry(PRINTER_NEW, colour="a"),))
    assert list(index.find((entry(PRINTER_NEW, colour="a"),))) == ["new"], "generations live side by side"


def test_an_item_with_very_many_equal_class_entries_is_matched_without_a_combination_each():
    """Given 200 entries of one class and a template of three, there are 1.3 million combinations: none is made."""
    index: TemplateIndex[str] = TemplateIndex()
    index.add("wanted", tuple(entry(COMMENT, text=str(n)) for n in (3, 5, 7)))
    index.add("missing", tuple(entry(COMMENT, text=str(n)) for n in (3, 5, 999)))
    assert index.find(tuple(entry(COMMENT, text=str(n)) for n in range(200))) == ["wanted"]
