"""Services that the standard does not have: what a bridge's surrogates can be told where an RTI was told to."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.hla import exceptions as exc
from jbi_pubsub.hla.execution import RtiOptions
from tests.hla.conftest import Rig

ADDED = RtiOptions(adds=True)


@pytest.fixture
def three(rig: type[Rig]) -> Rig:
    """Two federates, and s, which has disclosed that it is a surrogate."""
    made = rig("a", "b", "s", options=ADDED)
    made.call("s", "disclose_surrogate")
    made.forget()
    return made


@pytest.mark.row("H-26")
@pytest.mark.parametrize(
    ("service", "arguments"),
    [
        ("disclose_surrogate", ()),
        ("report_registration_failure", ("L", "why")),
        ("join_set", ("set",)),
        ("leave_set", ("set",)),
        ("register_synchronization_point_for_set", ("L", b"", "set")),
        ("query_federation_state", ()),
        ("declare_unowned", (1, (1,))),
    ],
)
def test_what_an_rti_was_not_told_to_have_is_refused_by_name(rig: type[Rig], service: str, arguments: Any) -> None:
    plain = rig("a")
    with pytest.raises(exc.ServiceNotEnabled, match=service) as refused:
        plain.call("a", service, *arguments)
    assert "--adds" in refused.value.hint


# -- who is the last --------------------------------------------------------------------------------------------------


def save(rig: Rig, *names: str, complete: bool = True) -> None:
    for name in names:
        rig.call(name, "federate_save_begun")
        rig.call(name, "federate_save_complete" if complete else "federate_save_not_complete")


@pytest.mark.row("H-40")
def test_a_surrogate_that_is_the_last_to_save_is_told_so_once(three: Rig) -> None:
    three.call("a", "request_federation_save", "S")
    three.forget()
    # Given one of two that has reported, expect nobody to be told; both, the surrogate
    save(three, "a")
    assert three.heard("s") == []
    save(three, "b")
    assert three.heard("s") == [("only_one_not_yet", "save", "S", True)]
    # and when it begins itself, not again
    three.call("s", "federate_save_begun")
    assert three.heard("s") == []


def test_it_is_told_whether_the_others_could(three: Rig) -> None:
    three.call("a", "request_federation_save", "S")
    three.forget()
    save(three, "a")
    save(three, "b", complete=False)
    assert three.heard("s") == [("only_one_not_yet", "save", "S", False)]


def test_who_leaves_could_not(three: Rig) -> None:
    three.call("a", "request_federation_save", "S")
    three.forget()
    save(three, "a")
    three.call("b", "resign_federation_execution", "no_action")
    assert three.heard("s") == [("only_one_not_yet", "save", "S", False)]
    # and who asks hears the same
    three.call("s", "query_federation_save_status")
    assert three.heard("s") == [("federation_save_status_response", "instructed", ("failed", "waiting"))]


@pytest.mark.row("H-43")
def test_an_ordinary_federate_is_not_told_that_it_is_the_last(three: Rig) -> None:
    three.call("a", "request_federation_save", "S")
    three.forget()
    save(three, "s", "b")
    assert "only_one_not_yet" not in [each[0] for each in three.heard("a")]


@pytest.mark.row("H-41", "H-43")
def test_without_disclosure_whoever_is_the_last_is_told(rig: type[Rig]) -> None:
    both = rig("a", "b", options=RtiOptions(adds=True, discloses=False))
    both.call("a", "register_federation_synchronization_point", "L", b"")
    both.forget()
    both.call("a", "synchronization_point_achieved", "L")
    assert both.heard("b") == [("only_one_not_yet", "sync", "L", True)]


def test_a_surrogate_that_comes_when_it_is_the_last_is_told(rig: type[Rig]) -> None:
    late = rig("a", "s", options=ADDED)
    late.call("a", "register_federation_synchronization_point", "L", b"")
    late.call("a", "synchronization_point_achieved", "L")
    late.forget()
    late.call("s", "disclose_surrogate")
    assert late.heard("s") == [("only_one_not_yet", "sync", "L", True)]


def test_a_surrogate_alone_is_the_last(rig: type[Rig]) -> None:
    # Given a surrogate in a federation of nobody else; When a point is announced; Expect it to be told that it is the
    # last: whoever is left on the other side waits for nobody here
    alone = rig("s", options=ADDED)
    alone.call("s", "disclose_surrogate")
    alone.call("s", "register_federation_synchronization_point", "L", b"")
    assert ("only_one_not_yet", "sync", "L", True) in alone.heard("s")
    # and when somebody joins who is not there yet, that it is not the last any more
    alone.join("late")
    assert alone.heard("s") == [("no_longer_only_one", "sync", "L")]
    alone.call("late", "synchronization_point_achieved", "L")
    assert alone.heard("s") == [("only_one_not_yet", "sync", "L", True)]


def test_a_surrogate_takes_back_that_it_has_achieved_a_point(three: Rig) -> None:
    # Given a point that a surrogate has achieved for its other side; When somebody joins there
    three.call("a", "register_federation_synchronization_point", "L", b"")
    three.call("s", "synchronization_point_achieved", "L")
    three.call("s", "synchronization_point_not_achieved", "L")
    # Expect all to wait for the surrogate
    for each in "ab":
        three.call(each, "synchronization_point_achieved", "L")
    assert ("federation_synchronized", "L") not in three.heard("a")
    assert three.heard("s")[-1] == ("only_one_not_yet", "sync", "L", True)
    three.call("s", "synchronization_point_achieved", "L")
    assert three.heard("a") == [("federation_synchronized", "L")]
    # and what is over not to be taken back
    with pytest.raises(exc.SynchronizationPointLabelNotAnnounced):
        three.call("s", "synchronization_point_not_achieved", "L")


@pytest.mark.parametrize("how", ["cancels", "resigns", "of two"])
def test_a_surrogate_is_told_that_nobody_wants_an_attribute_of_it_any_more(rig: type[Rig], how: str) -> None:
    # Given a surrogate that was asked to release an attribute
    it = rig("s", "a", "b", options=ADDED)
    it.call("s", "disclose_surrogate")
    for name in "sab":
        it.call(name, "publish_object_class_attributes", it.aircraft, (it.callsign,))
        it.call(name, "subscribe_object_class_attributes", it.aircraft, (it.callsign,))
    thing = it.call("s", "register_object_instance", it.aircraft, "thing")
    it.call("a", "attribute_ownership_acquisition", thing, (it.callsign,), b"")
    if how == "of two":
        it.call("b", "attribute_ownership_acquisition", thing, (it.callsign,), b"")
    it.forget()
    # When who wants it does not any more
    if how == "resigns":
        it.call("a", "resign_federation_execution", "cancel_then_delete_then_divest")
    else:
        it.call("a", "cancel_attribute_ownership_acquisition", thing, (it.callsign,))
    # Expect the surrogate to be told, once nobody does
    told = ("attribute_ownership_acquisition_withdrawn", thing, (it.callsign,))
    assert it.heard("s") == ([] if how == "of two" else [told])
    if how == "of two":
        it.call("b", "cancel_attribute_ownership_acquisition", thing, (it.callsign,))
        assert it.heard("s") == [told]


# -- points -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("H-10")
def test_in_which_states_others_are_can_be_asked_without_who_and_how_many(rig: type[Rig]) -> None:
    # (of any RTI: the standard has it for saves)
    plain = rig("a", "b", "c")
    plain.call("a", "register_federation_synchronization_point", "L", b"")
    assert plain.call("a", "query_synchronization_point", "L") == ("moving",)
    plain.call("b", "synchronization_point_achieved", "L")
    assert plain.call("a", "query_synchronization_point", "L") == ("achieved", "moving")
    plain.call("c", "synchronization_point_achieved", "L")
    assert plain.call("a", "query_synchronization_point", "L") == ("achieved",)
    plain.call("a", "synchronization_point_achieved", "L")
    with pytest.raises(exc.SynchronizationPointLabelNotAnnounced):
        plain.call("a", "query_synchronization_point", "L")


@pytest.mark.row("H-51")
def test_a_point_that_the_other_side_refuses_is_none(three: Rig) -> None:
    three.call("a", "register_federation_synchronization_point", "L", b"")
    three.forget()
    three.call("s", "report_registration_failure", "L", "LABEL_NOT_UNIQUE")
    # Expect the registrant to hear that it has failed, all members that it is withdrawn, and the label to be free
    assert three.heard("a") == [
        ("synchronization_point_registration_failed", "L", "LABEL_NOT_UNIQUE"),
        ("synchronization_point_withdrawn", "L", "LABEL_NOT_UNIQUE"),
    ]
    assert three.heard("b") == [("synchronization_point_withdrawn", "L", "LABEL_NOT_UNIQUE")]
    with pytest.raises(exc.SynchronizationPointLabelNotAnnounced):
        three.call("a", "synchronization_point_achieved", "L")
    with pytest.raises(exc.SynchronizationPointLabelNotAnnounced):
        three.call("s", "report_registration_failure", "L", "again")
    three.call("b", "register_federation_synchronization_point", "L", b"")
    assert ("synchronization_point_registration_succeeded", "L") in three.heard("b")


@pytest.mark.row("H-56")
def test_a_point_for_a_set_is_for_its_members_of_that_moment_and_for_surrogates(three: Rig) -> None:
    three.join("c")
    three.call("a", "join_set", "pilots")
    three.call("b", "join_set", "pilots")
    three.call("b", "leave_set", "pilots")
    three.call("b", "leave_set", "unknown")  # it is none of it
    three.forget()
    three.call("c", "register_synchronization_point_for_set", "L", b"t", "pilots")
    three.call("b", "join_set", "pilots")
    assert three.heard("a") == [("announce_synchronization_point", "L", b"t")]
    assert three.heard("s") == [("announce_synchronization_point_to_set", "L", b"t", "pilots")]
    assert three.heard("b") == []
    assert three.heard("c") == [("synchronization_point_registration_succeeded", "L")]
    three.call("a", "synchronization_point_achieved", "L")
    three.call("s", "synchronization_point_achieved", "L")
    assert ("federation_synchronized", "L") in three.heard("a")


def test_a_set_without_a_name_is_refused_and_who_leaves_is_none_of_it(three: Rig) -> None:
    with pytest.raises(exc.InvalidArgument, match="a set has a name"):
        three.call("a", "join_set", "")
    three.call("a", "join_set", "pilots")
    three.call("a", "resign_federation_execution", "no_action")
    three.forget()
    three.call("b", "register_synchronization_point_for_set", "L", b"", "pilots")
    assert three.heard("s") == [
        ("announce_synchronization_point_to_set", "L", b"", "pilots"), ("only_one_not_yet", "sync", "L", True),
    ]  # fmt: skip
    assert three.heard("a") == []


def test_a_point_for_a_set_of_nobody_is_over_at_once(three: Rig) -> None:
    three.call("s", "resign_federation_execution", "no_action")
    three.forget()
    for _ in range(2):  # its label is free again
        three.call("a", "register_synchronization_point_for_set", "L", b"", "unknown")
    assert three.heard("a") == [("synchronization_point_registration_succeeded", "L")] * 2


# -- what there is ----------------------------------------------------------------------------------------------------


@pytest.mark.row("H-62")
def test_what_is_owned_and_pending_can_be_asked(three: Rig) -> None:
    aircraft = three.aircraft_of("a", "s")
    three.call("a", "unconditional_attribute_ownership_divestiture", aircraft, (three.callsign,))
    three.call("a", "register_federation_synchronization_point", "L", b"")
    owned, points, saving = three.call("s", "query_federation_state")
    privilege = three.model.fom.privilege
    assert (owned, points, saving) == (((aircraft, privilege), (aircraft, three.position)), ("L",), "")
    # b does not know the instance
    assert three.call("b", "query_federation_state") == ((), ("L",), "")
    three.call("a", "request_federation_save", "S")
    assert three.call("a", "query_federation_state")[2] == "S"


@pytest.mark.row("H-22")
def test_what_nobody_owns_beyond_counts_as_unowned_here(three: Rig) -> None:
    # Given a surrogate that owns an instance for the other side, where nobody owns the callsign
    aircraft = three.aircraft_of("s", "b")
    three.call("s", "declare_unowned", aircraft, (three.callsign,), True)
    # Expect a federate to be told that nobody owns it, and nobody to be asked for its value
    three.call("b", "query_attribute_ownership", aircraft, three.callsign)
    assert three.heard("b") == [("inform_attribute_ownership", aircraft, three.callsign, False)]
    three.call("b", "request_attribute_value_update", aircraft, (three.callsign, three.position), b"")
    assert three.heard("s") == [("provide_attribute_value_update", aircraft, (three.position,), b"")]
    assert (aircraft, three.callsign) not in three.call("s", "query_federation_state")[0]
    # and who wants it, to make the surrogate be asked
    three.call("b", "publish_object_class_attributes", three.aircraft, (three.callsign,))
    three.call("b", "attribute_ownership_acquisition", aircraft, (three.callsign,), b"")
    assert three.heard("s") == [("request_attribute_ownership_release", aircraft, (three.callsign,), b"")]
    # When somebody owns it again; Expect it to be as any other
    three.call("s", "declare_unowned", aircraft, (three.callsign,), False)
    three.call("b", "query_attribute_ownership", aircraft, three.callsign)
    assert three.heard("b") == [("inform_attribute_ownership", aircraft, three.callsign, True)]
    # and when it goes from the surrogate to a federate
    three.call("s", "declare_unowned", aircraft, (three.callsign,), True)
    three.call("s", "attribute_ownership_divestiture_if_wanted", aircraft, (three.callsign,))
    three.call("s", "query_attribute_ownership", aircraft, three.callsign)
    assert three.heard("s") == [("inform_attribute_ownership", aircraft, three.callsign, True)]


def test_only_an_owner_can_say_so(three: Rig) -> None:
    aircraft = three.aircraft_of("a", "s")
    with pytest.raises(exc.AttributeNotOwned):
        three.call("s", "declare_unowned", aircraft, (three.callsign,), True)
    with pytest.raises(exc.AttributeNotDefined):
        three.call("a", "declare_unowned", aircraft, (99,), True)
    with pytest.raises(exc.ObjectInstanceNotKnown):
        three.call("b", "declare_unowned", aircraft, (three.callsign,), True)
