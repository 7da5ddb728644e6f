"""Service templates, and items and templates told as entries alone."""

from __future__ import annotations

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep, define, fits
from jbi_pubsub.lookup.item import ServiceEvent, ServiceItem, ServiceTemplate, item_facets, template_facets

COMMENT = define("Comment", {"text": str})
NAMES = st.sampled_from(["", "a", "b", "c"])
REPS = st.builds(EntryRep, st.just(COMMENT), st.tuples(st.sampled_from([None, "a", "b"])))
PROXY = ServiceRef("", "p", ())


def item(service_id: str = "a", types: tuple[str, ...] = ("b", "c"), *texts: str) -> ServiceItem:
    return ServiceItem(service_id, types, PROXY, tuple(EntryRep(COMMENT, (text,)) for text in texts))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (ServiceTemplate(), True),
        (ServiceTemplate("a", ("c",), (EntryRep(COMMENT, ("x",)),)), True),
        (ServiceTemplate("b"), False),
        (ServiceTemplate(types=("b", "d")), False),
        (ServiceTemplate(entries=(EntryRep(COMMENT, ("x",)), EntryRep(COMMENT, ("y",)))), False),
        (ServiceTemplate(entries=(EntryRep(COMMENT, ("x",)), EntryRep(COMMENT, (None,)))), True),
    ],
)
def test_id_types_and_entries_are_anded_and_empty_ones_are_wildcards(template, expected):
    """Jini LU.2.1"""
    assert template.matches(item("a", ("b", "c"), "x")) is expected


@settings(derandomize=True, max_examples=examples(300))
@given(
    st.builds(
        ServiceTemplate,
        NAMES,
        st.lists(NAMES, max_size=2).map(tuple),
        st.lists(REPS, max_size=2).map(tuple),
    ),
    st.builds(
        ServiceItem,
        NAMES.filter(bool),
        st.lists(NAMES, max_size=3).map(tuple),
        st.just(PROXY),
        st.lists(REPS, max_size=2).map(tuple),
    ),
)
def test_the_facets_say_the_same_as_the_definition(template, given_item):
    """What indices see (entries alone) matches exactly when the template does: an id is no type, a type no entry."""
    facets = item_facets(given_item)
    assert template.matches(given_item) == all(any(fits(t, e) for e in facets) for t in template_facets(template))


def test_values_cross_the_wire_unchanged_and_unknown_fields_are_refused():
    event = ServiceEvent("e", 2**40, "id", 2, item("a", ("b",), "x"), "handback")
    encoded = msgspec.msgpack.encode(event)
    assert msgspec.msgpack.decode(encoded, type=ServiceEvent) == event
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"service_id": "", "more": 1}, ServiceTemplate)
