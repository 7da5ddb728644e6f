"""The in-process matcher equals the definition, for entries and templates of any classes."""

from __future__ import annotations

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import IncompatibleEntryError
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define
from jbi_pubsub.spark.generators import Population
from jbi_pubsub.spark.reference import Matcher, match_by_definition

BASE = define("t.Base", {"a": str, "b": str})
WIDE = define("t.Wide", {"c": str}, BASE)
OTHER = define("t.Other", {"c": str}, BASE)
BARE = define("t.Bare", {})


@st.composite
def reps(draw: st.DrawFn) -> EntryRep:
    cls: EntryClass = draw(st.sampled_from([BASE, WIDE, OTHER, BARE]))
    return EntryRep(cls, tuple(draw(st.sampled_from([None, "", "x", "y"])) for _ in cls.fields))


def pairs(matcher: Matcher, entries: list[tuple[int, EntryRep]]) -> set[tuple[int, int]]:
    members = {group.gid: group.tids for group in matcher.groups}
    return {(rid, tid) for rid, entry in entries for gid in matcher.match(entry) for tid in members[gid]}


@settings(derandomize=True, max_examples=examples(200), deadline=None)
@given(st.lists(reps(), max_size=12), st.lists(reps(), max_size=12))
def test_matcher_finds_exactly_the_pairs_of_the_definition(entries: list[EntryRep], templates: list[EntryRep]) -> None:
    registrations, asked = list(enumerate(entries)), list(enumerate(templates))

    assert pairs(Matcher(asked), registrations) == match_by_definition(registrations, asked)


def test_matcher_equals_the_definition_on_the_population() -> None:
    population = Population(registrations=300, templates=600, seed=5)
    entries, templates = list(population.registration_rows()), list(population.template_rows())

    found = pairs(Matcher(templates), entries)

    assert found == match_by_definition(entries, templates)
    assert len(found) > 100


def test_an_unset_field_equals_no_value_but_a_wildcard_matches_it() -> None:
    entry = EntryRep(BASE, (None, "x"))

    matcher = Matcher(
        [(0, EntryRep(BASE, ("x", None))), (1, EntryRep(BASE, (None, "x"))), (2, EntryRep(BASE, (None,) * 2))]
    )

    assert matcher.match(entry) == [1, 2]


def test_equal_templates_are_one_group_named_by_its_lowest_number() -> None:
    wanted = EntryRep(BASE, ("x", None))

    matcher = Matcher([(9, wanted), (4, EntryRep(BASE, ("y", None))), (2, wanted)])

    assert {(group.gid, group.tids) for group in matcher.groups} == {(2, (2, 9)), (4, (4,))}


def test_a_template_of_another_schema_is_an_error_not_a_silent_no_match() -> None:
    older = define("t.Base", {"a": str})
    matcher = Matcher([(0, EntryRep(older, ("x",)))])

    assert matcher.match(EntryRep(BARE, ())) == []
    with pytest.raises(IncompatibleEntryError):
        matcher.match(EntryRep(WIDE, ("x", "x", "x")))
