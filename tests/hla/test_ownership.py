"""Ownership management: at most one owner, whoever asks for what, in whichever order."""

from __future__ import annotations

from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.hla import exceptions as exc


@pytest.fixture
def trio(rig: Any) -> Any:
    """An aircraft of a; b and c publish its class and know it. `it.at` is the place."""
    it = rig("a", "b", "c")
    for each in "bc":
        it.call(each, "publish_object_class_attributes", it.aircraft, (it.position, it.callsign))
    it.object = it.aircraft_of("a", "b", "c")
    it.at = (it.object, (it.position,))
    return it


def owner(it: Any, attribute: int) -> str:
    found = it.execution.owned.owner(it.object, attribute)
    return next((name for name, handle in it.handles.items() if handle == found), "")


@pytest.mark.row("H-19", "H-22")
def test_what_is_divested_unconditionally_is_nobodys_and_offered(trio: Any) -> None:
    trio.call("a", "unconditional_attribute_ownership_divestiture", *trio.at)
    assert owner(trio, trio.position) == ""
    offer = [("request_attribute_ownership_assumption", *trio.at, b"")]
    assert trio.heard("b") == trio.heard("c") == offer
    trio.call("b", "query_attribute_ownership", trio.object, trio.position)
    assert trio.heard("b") == [("inform_attribute_ownership", trio.object, trio.position, False)]
    # When one asks for it; Expect it to have it at once
    trio.call("b", "attribute_ownership_acquisition", *trio.at, b"mine")
    assert trio.heard("b") == [("attribute_ownership_acquisition_notification", *trio.at, b"mine")]
    assert trio.call("b", "is_attribute_owned_by_federate", trio.object, trio.position) is True


def test_of_two_who_want_what_its_owner_leaves_the_first_has_it(trio: Any) -> None:
    trio.call("b", "attribute_ownership_acquisition", *trio.at, b"first")
    trio.call("c", "attribute_ownership_acquisition", *trio.at, b"second")
    trio.call("a", "unconditional_attribute_ownership_divestiture", *trio.at)
    assert owner(trio, trio.position) == "b"
    assert trio.heard("b")[0] == ("attribute_ownership_acquisition_notification", *trio.at, b"first")
    assert trio.heard("c") == []


@pytest.mark.row("H-20")
def test_who_divests_by_negotiation_stays_the_owner_until_it_confirms(trio: Any) -> None:
    # When the owner would give an attribute away; Expect it to be offered, and the owner to go on
    trio.call("a", "negotiated_attribute_ownership_divestiture", *trio.at, b"who?")
    assert trio.heard("b") == [("request_attribute_ownership_assumption", *trio.at, b"who?")]
    trio.call("a", "update_attribute_values", trio.object, ((trio.position, b"1"),))
    with pytest.raises(exc.NoAcquisitionPending):
        trio.call("a", "confirm_divestiture", *trio.at)
    with pytest.raises(exc.AttributeAlreadyBeingDivested):
        trio.call("a", "negotiated_attribute_ownership_divestiture", *trio.at)
    # When two want it; Expect the owner to be asked once, and the first to get it
    trio.call("b", "attribute_ownership_acquisition", *trio.at)
    trio.call("c", "attribute_ownership_acquisition", *trio.at)
    assert trio.heard("a") == [("request_divestiture_confirmation", *trio.at)]
    assert owner(trio, trio.position) == "a"
    trio.forget()
    trio.call("a", "confirm_divestiture", *trio.at, b"yours")
    assert owner(trio, trio.position) == "b"
    assert trio.heard("b") == [
        ("attribute_ownership_acquisition_notification", *trio.at, b"yours"),
        ("request_attribute_ownership_release", *trio.at, b""),  # for c, who waits on
    ]


@pytest.mark.row("H-20")
def test_a_divestiture_can_be_cancelled(trio: Any) -> None:
    with pytest.raises(exc.AttributeDivestitureWasNotRequested):
        trio.call("a", "cancel_negotiated_attribute_ownership_divestiture", *trio.at)
    trio.call("a", "negotiated_attribute_ownership_divestiture", *trio.at)
    trio.call("b", "attribute_ownership_acquisition_if_available", *trio.at)
    trio.forget()
    trio.call("a", "cancel_negotiated_attribute_ownership_divestiture", *trio.at)
    assert trio.heard("b") == [("attribute_ownership_unavailable", *trio.at)]
    with pytest.raises(exc.AttributeDivestitureWasNotRequested):
        trio.call("a", "confirm_divestiture", *trio.at)


@pytest.mark.row("H-21")
def test_an_owner_that_divests_nothing_is_asked_to_release(trio: Any) -> None:
    trio.call("b", "attribute_ownership_acquisition", *trio.at, b"please")
    assert trio.heard("a") == [("request_attribute_ownership_release", *trio.at, b"please")]
    trio.call("a", "attribute_ownership_release_denied", *trio.at)
    assert owner(trio, trio.position) == "a"
    # When it gives up what is wanted of two attributes; Expect the one that is
    both = (trio.position, trio.callsign)
    assert trio.call("a", "attribute_ownership_divestiture_if_wanted", trio.object, both) == (trio.position,)
    assert owner(trio, trio.position) == "b"
    assert owner(trio, trio.callsign) == "a"


@pytest.mark.row("H-21")
def test_what_somebody_owns_is_not_available(trio: Any) -> None:
    trio.call("b", "attribute_ownership_acquisition_if_available", *trio.at)
    assert trio.heard("b") == [("attribute_ownership_unavailable", *trio.at)]
    assert trio.heard("a") == []
    trio.call("b", "attribute_ownership_acquisition", *trio.at)
    with pytest.raises(exc.AttributeAlreadyBeingAcquired):
        trio.call("b", "attribute_ownership_acquisition_if_available", *trio.at)


@pytest.mark.row("H-21")
def test_who_waits_may_cancel_and_is_told_so(trio: Any) -> None:
    with pytest.raises(exc.AttributeAcquisitionWasNotRequested):
        trio.call("b", "cancel_attribute_ownership_acquisition", *trio.at)
    trio.call("b", "attribute_ownership_acquisition", *trio.at)
    trio.call("b", "cancel_attribute_ownership_acquisition", *trio.at)
    assert trio.heard("b") == [("confirm_attribute_ownership_acquisition_cancellation", *trio.at)]
    assert trio.call("a", "attribute_ownership_divestiture_if_wanted", *trio.at) == ()
    with pytest.raises(exc.AttributeAlreadyOwned):
        trio.call("a", "cancel_attribute_ownership_acquisition", *trio.at)


def test_who_publishes_nothing_owns_nothing(trio: Any) -> None:
    trio.join("d")
    trio.call("d", "subscribe_object_class_attributes", trio.aircraft, (trio.position,))
    with pytest.raises(exc.ObjectClassNotPublished):
        trio.call("d", "attribute_ownership_acquisition", *trio.at)
    trio.call("d", "publish_object_class_attributes", trio.aircraft, (trio.callsign,))
    with pytest.raises(exc.AttributeNotPublished):
        trio.call("d", "attribute_ownership_acquisition", *trio.at)
    for each in ("attribute_ownership_acquisition", "attribute_ownership_acquisition_if_available"):
        with pytest.raises(exc.FederateOwnsAttributes):
            trio.call("a", each, *trio.at)
    # and who publishes no more loses what it owns, to the first who wants it
    trio.call("b", "attribute_ownership_acquisition", *trio.at)
    trio.call("a", "unpublish_object_class", trio.aircraft)
    assert (owner(trio, trio.position), owner(trio, trio.callsign)) == ("b", "")
    trio.call("c", "unpublish_object_class", trio.aircraft)
    assert trio.execution.owned.claims == type(trio.execution.owned.claims)()


def test_who_dies_neither_owns_nor_waits(trio: Any) -> None:
    trio.call("b", "attribute_ownership_acquisition", *trio.at)
    with pytest.raises(exc.OwnershipAcquisitionPending):
        trio.call("b", "resign_federation_execution", "no_action")
    trio.call("b", "resign_federation_execution", "cancel_pending_ownership_acquisitions")
    assert not trio.execution.owned.claims
    trio.call("a", "resign_federation_execution", "unconditionally_divest_attributes")
    assert owner(trio, trio.position) == ""
    trio.call("c", "attribute_ownership_acquisition", *trio.at)
    assert owner(trio, trio.position) == "c"


# -- whatever is called ---------------------------------------------------------------------------------------------

CALLS = (
    "unconditional_attribute_ownership_divestiture", "negotiated_attribute_ownership_divestiture",
    "confirm_divestiture", "attribute_ownership_acquisition", "attribute_ownership_acquisition_if_available",
    "attribute_ownership_divestiture_if_wanted", "cancel_negotiated_attribute_ownership_divestiture",
    "cancel_attribute_ownership_acquisition",
)  # fmt: skip


@pytest.mark.row("H-17")
@settings(max_examples=examples(150), deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(CALLS), st.integers(1, 3)), min_size=1, max_size=40
    )
)
def test_what_federates_are_told_says_who_owns_what(calls: list[tuple[str, str, int]]) -> None:
    # Given three federates that believe to own what they are told they own, and nothing that they gave away
    from .conftest import Rig

    it = Rig("a", "b", "c")
    for each in "bc":
        it.call(each, "publish_object_class_attributes", it.aircraft, (it.position, it.callsign))
    instance = it.aircraft_of("a", "b", "c")
    places = (it.position, it.callsign)
    owns: dict[str, set[int]] = {"a": set(places), "b": set(), "c": set()}
    waits: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}
    for name, service, which in calls:
        attributes = tuple(sorted(place for bit, place in enumerate(places) if which & 1 << bit))
        before = it.execution
        try:
            answer = it.call(name, service, instance, attributes)
        except exc.RtiError:
            assert it.execution is before
            continue
        # When a call was good, expect what it gave away to be given away
        if service in ("unconditional_attribute_ownership_divestiture", "confirm_divestiture"):
            owns[name] -= set(attributes)
        elif service == "attribute_ownership_divestiture_if_wanted":
            owns[name] -= set(answer)
        elif service.startswith("attribute_ownership_acquisition"):
            waits[name] |= set(attributes)
        for federate in "abc":
            for what, *arguments in it.heard(federate):
                if what == "attribute_ownership_acquisition_notification":
                    assert not owns[federate] & set(arguments[1])
                    assert set(arguments[1]) <= waits[federate]
                    owns[federate] |= set(arguments[1])
                    waits[federate] -= set(arguments[1])
                elif what in (
                    "attribute_ownership_unavailable",
                    "confirm_attribute_ownership_acquisition_cancellation",
                ):
                    waits[federate] -= set(arguments[1])
                elif what in ("request_divestiture_confirmation", "request_attribute_ownership_release"):
                    assert set(arguments[1]) <= owns[federate]
        # Expect the RTI to say the same, each attribute to be one federate's at most, and nobody to wait for what is
        # nobody's
        for place in places:
            mine = [each for each in "abc" if place in owns[each]]
            assert len(mine) <= 1
            handle = it.execution.owned.owner(instance, place)
            assert handle == (it.handles[mine[0]] if mine else 0)
            if not mine:
                assert not any(place in waits[each] for each in "abc")
