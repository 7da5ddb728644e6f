"""The first-level index, both ways, against the definition of matching."""

from __future__ import annotations

from itertools import combinations
from unittest import mock

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import IncompatibleEntryError
from jbi_pubsub.lookup import posting as posting_module
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
    ),
    max_size=60,
)
SIZES = st.fixed_dictionaries(
    {"SMALL": st.sampled_from([0, 8]), "CROWD": st.sampled_from([1, 3, 512]), "SHIFT": st.sampled_from([1, 12])}
)


def sized(sizes: dict[str, int]) -> mock._patch:
    """Postings with other bounds: a few slots are many then."""
    return mock.patch.multiple(posting_module, _OFFSET=(1 << sizes["SHIFT"]) - 1, **sizes)


@settings(derandomize=True, deadline=None, max_examples=examples(250))
@given(steps=STEPS, sizes=SIZES)
def test_items_by_template_are_what_the_definition_says(steps, sizes):
    """Given any history of items, with few or many slots in a posting, a lookup finds what a scan does; and an item
    that gets other entries keeps its slot."""
    held: dict[str, tuple[EntryRep, ...]] = {}
    index: EntryIndex[str] = EntryIndex()
    with sized(sizes):
        for what, key, reps_given in steps:
            slots = {key: slot for slot, key in index.find(()).ascending(0)}
            if what == "add":
                index.add(key, reps_given)
                held[key] = reps_given
            elif what == "remove" and key in held:
                index.remove(key)
                del held[key]
            elif what == "find":
                assert ask(index, reps_given) == expected(held, reps_given)
            now = {key: slot for slot, key in index.find(()).ascending(0)}
            assert now.keys() == held.keys()
            assert all(now[key] == slot for key, slot in slots.items() if key in now)
        for key in held:
            assert key in index.find(held[key])
            index.remove(key)
    assert len(index) == len(index.find(())) == 0
    assert index._families == {}, "nothing is left of items that are gone"


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(
    sets=st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=4),
    gone=st.sets(st.integers(0, 40)),
    first=st.integers(0, 41),
    sizes=SIZES,
)
def test_a_posting_is_a_set(sets, gone, first, sizes):
    """However few or many slots it has, and whichever are taken out again."""
    with sized(sizes):
        made: list[posting_module.Posting] = []
        for slots in sets:
            posting: posting_module.Posting = ()
            for slot in [*slots, *sorted(gone), *slots]:
                posting = posting_module.with_slot(posting, (slot,), 41)
            for slot in [*gone, *gone]:
                posting = posting_module.without_slot(posting, slot)
            made.append(posting)
        left = [slots - gone for slots in sets]
        assert [set(posting) for posting in made] == left
        assert [len(posting) for posting in made] == [len(slots) for slots in left]
        assert [[slot for slot in range(41) if slot in posting] for posting in made] == [sorted(each) for each in left]
        both, any_of = posting_module.intersection(made), posting_module.union(made)
        for got, wanted in ((both, set.intersection(*left)), (any_of, set().union(*left))):
            assert (set(got), len(got)) == (wanted, len(wanted))
            assert list(posting_module.ascending(got, first)) == sorted(slot for slot in wanted if slot >= first)


def test_two_halves_with_nothing_in_common_are_not_walked_over():
    """Given 20,000 items of which each half has a value of its own, asking for both looks at no single item."""
    index: EntryIndex[str] = EntryIndex()
    for number in range(20_000):
        floor, building = ("even", "x") if number % 2 else ("x", "odd")
        index.add(f"k{number}", (entry(PRINTER, floor=floor, building=building),))
    steps = 0

    class Counting(dict[int, int]):
        def get(self, *key: int) -> int:
            nonlocal steps
            steps += 1
            return super().get(*key)

    for by_value in index._families[PRINTER.name][PRINTER.fingerprint].lanes[1].fields:
        for posting in by_value.values():
            posting.bits = Counting(posting.bits)
    assert len(index.find((entry(PRINTER, floor="even", building="odd"),))) == 0
    assert 0 < steps <= 20_000 / 2**posting_module.SHIFT + 1


def test_fields_of_two_entries_of_one_item_are_not_mixed_up():
    """Given an item with two entries of a class, a template with the floor of one and the colour of the other does not
    match; what comes behind a class of one field that claims the same ancestor does not either."""
    index: EntryIndex[str] = EntryIndex()
    index.add("two", (entry(PRINTER, floor="1", colour="a"), entry(PRINTER, floor="2", colour="b")))
    index.add("one", (entry(PRINTER, floor="2", colour="a"),))
    assert list(index.find((entry(PRINTER, floor="2", colour="a"),))) == ["one"]
    assert list(index.find((entry(PRINTER, floor="1"), entry(PRINTER, floor="2")))) == ["two"]
    index.add("forged", (entry(FORGED, building="a"), entry(DEVICE, building="b", floor="c")))
    assert list(index.find((entry(DEVICE, building="a", floor="c"),))) == []
    assert list(index.find((entry(DEVICE, building="b", floor="c"),))) == ["forged"]


def test_an_item_with_many_entries_leaves_no_work_behind():
    """Given an item with 200 entries of a class that has gone, a lookup looks at no lane of its any more."""
    index: EntryIndex[str] = EntryIndex()
    index.add("many", tuple(entry(PRINTER, floor=str(n)) for n in range(200)))
    index.add("one", (entry(PRINTER, floor="7", colour="a"),))
    index.remove("many")
    assert len(index._families[PRINTER.name][PRINTER.fingerprint].lanes) == 2
    assert list(index.find((entry(PRINTER, floor="7"),))) == ["one"]


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=examples(250))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), KEYS, st.lists(reps(DEVICE, PRINTER, COMMENT), max_size=2).map(tuple)),
            st.tuples(st.just("remove"), KEYS, st.just(())),
            st.tuples(st.just("find"), st.just(""), ENTRIES | st.lists(reps(PRINTER), max_size=3).map(tuple)),
        ),
        max_size=60,
    ),
    small=st.sampled_from([0, 8]),
)
def test_templates_by_item_are_what_the_definition_says(steps, small):
    """Given any history of templates, an item finds what a scan does, each once."""
    held: dict[str, tuple[EntryRep, ...]] = {}
    index: TemplateIndex[str] = TemplateIndex()
    with mock.patch.object(posting_module, "SMALL", small):
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
    assert (index._readers, index._root.forks, index._root.keys) == ({}, {}, ()), "nothing is left"


def test_a_key_is_found_once_though_several_of_its_entries_match():
    index: EntryIndex[str] = EntryIndex()
    index.add("twice", (entry(PRINTER, floor="1", colour="a"), entry(PRINTER, floor="1", colour="b")))
    assert list(index.find((entry(PRINTER, floor="1"),))) == ["twice"]


def test_the_cost_of_an_item_is_the_number_of_masks_not_of_templates():
    """Given 5,000 templates of one mask, an item takes one step, and a second one where the first leads."""
    index: TemplateIndex[str] = TemplateIndex()
    for number in range(5000):
        index.add(str(number), (entry(PRINTER, floor=str(number)), entry(COMMENT, text="x")))
    masks = index._root.forks
    assert [(name, len(by_mask)) for (name, _), by_mask in masks.items()] == [("Printer", 1)]
    assert index.find((entry(PRINTER, floor="77"), entry(COMMENT, text="x"))) == ["77"]


def test_another_generation_of_a_class_is_an_error_not_an_empty_answer():
    index: EntryIndex[str] = EntryIndex()
    index.add("old", (entry(PRINTER, colour="a"),))
    with pytest.raises(IncompatibleEntryError) as raised:
        index.find((entry(PRINTER_NEW, colour="a"),))
    assert raised.value.facts["registered_fingerprint"] == PRINTER.fingerprint
    index.add("new", (entry(PRINTER_NEW, colour="a"),))
    assert list(index.find((entry(PRINTER_NEW, colour="a"),))) == ["new"], "generations live side by side"


def test_registrations_of_many_shapes_stay_heard_whatever_leaves():
    """Given templates of 64 masks of a class and one of another class with a type, when the ones that were there first
    leave, those that came behind are still found, and can be taken out."""
    index: TemplateIndex[str] = TemplateIndex()
    wide = define("Wide", {f"f{number}": str for number in range(8)})
    kind = define("\0type", {"name": str})
    typed = EntryRep(kind, ("T",))
    masks = [mask for count in (1, 2, 3) for mask in combinations(range(8), count)][:64]
    index.add("other class", (typed, entry(COMMENT, text="b")))
    for mask in masks:
        index.add(str(mask), (typed, EntryRep(wide, tuple("no" if i in mask else None for i in range(8)))))
    came = (typed, EntryRep(wide, ("1",) * 8))
    anything = (typed, EntryRep(wide, (None,) * 8))
    index.add("w1", anything)
    index.remove("other class")
    index.add("w2", anything)
    assert sorted(index.find(came)) == ["w1", "w2"]
    index.remove(str(masks[0]))
    assert sorted(index.find(came)) == ["w1", "w2"]
    for key in ("w1", "w2", *map(str, masks[1:])):
        index.remove(key)
    assert len(index) == 0
    assert index.find(came) == []


def test_an_item_with_very_many_equal_class_entries_is_matched_without_a_combination_each():
    """Given 200 entries of one class and a template of three, there are 1.3 million combinations: none is made."""
    index: TemplateIndex[str] = TemplateIndex()
    index.add("wanted", tuple(entry(COMMENT, text=str(n)) for n in (3, 5, 7)))
    index.add("missing", tuple(entry(COMMENT, text=str(n)) for n in (3, 5, 999)))
    assert index.find(tuple(entry(COMMENT, text=str(n)) for n in range(200))) == ["wanted"]
