"""Every call in every state: what may be called when, and that a call which may not changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.capi import (
    Connection,
    ConnectionException,
    InfoObject,
    PausedSequenceException,
    PublisherSequence,
    QuerySequence,
    SequenceState,
    SequenceStateException,
    SubscriberSequence,
    TimeoutException,
)

VALIDATION = (
    '<validationAttribute xmlns="http://gdc4s.com/oim/gemini">'
    "<validateXmlIsWellFormed>true</validateXmlIsWellFormed>"
    "<validateXmlAgainstSchema>false</validateXmlAgainstSchema></validationAttribute>"
)
PREDICATE = "<predicate><predicateType>XPath</predicateType><predicateInstance>//a</predicateInstance></predicate>"

OK = None
STATE, PAUSE, TIME = SequenceStateException, PausedSequenceException, TimeoutException
Outcome = type[Exception] | None
Row = tuple[Callable[..., object], Outcome, Outcome, Outcome, Outcome]


class Callback:
    def infoObjectAvailable(self, io: InfoObject) -> None:
        """Nothing comes."""


# call: what it does                                                      new    active paused destroyed
EVERY: dict[str, Row] = {
    "activateSequence": (lambda s: s.activateSequence(), OK, STATE, STATE, STATE),
    "pauseSequence": (lambda s: s.pauseSequence(), STATE, OK, STATE, STATE),
    "resumeSequence": (lambda s: s.resumeSequence(), STATE, STATE, OK, STATE),
    "getSequenceState": (lambda s: s.getSequenceState(), OK, OK, OK, OK),
    "getType": (lambda s: s.getType(), OK, OK, OK, OK),
    "getVersion": (lambda s: s.getVersion(), OK, OK, OK, OK),
    "setSequenceAttribute": (
        lambda s: s.setSequenceAttribute("Validation", "1.0", VALIDATION), OK, STATE, STATE, STATE,
    ),
    "getSequenceAttribute": (lambda s: s.getSequenceAttribute("Validation", "1.0"), OK, OK, OK, STATE),
    "getSequenceAttributes": (lambda s: s.getSequenceAttributes(), OK, OK, OK, STATE),
    "setValidationAttribute": (lambda s: s.setValidationAttribute(False, False), OK, STATE, STATE, STATE),
}  # fmt: skip
PUBLISHER: dict[str, Row] = EVERY | {
    "publishInfoObject": (lambda s, io: s.publishInfoObject(io), STATE, OK, PAUSE, STATE),
    "setReliableDeliveryAttribute": (lambda s: s.setReliableDeliveryAttribute(True, 5), OK, STATE, STATE, STATE),
    "setPersistenceAttribute": (lambda s: s.setPersistenceAttribute(True), OK, STATE, STATE, STATE),
    "setCompressionAttribute": (lambda s: s.setCompressionAttribute(True), OK, STATE, STATE, STATE),
    "setLocalAttribute": (lambda s: s.setLocalAttribute(True), OK, STATE, STATE, STATE),
    "setOrderAttribute": (lambda s: s.setOrderAttribute(True), OK, STATE, STATE, STATE),
    "setInvariantsAttribute": (lambda s: s.setInvariantsAttribute("<a/>"), OK, STATE, STATE, STATE),
}
SUBSCRIBER: dict[str, Row] = EVERY | {
    "setSequenceCallback": (lambda s: s.setSequenceCallback(Callback()), OK, STATE, STATE, STATE),
    "setSequencePredicate": (lambda s: s.setSequencePredicate(PREDICATE), OK, STATE, OK, STATE),
    "getNext": (lambda s: s.getNext(1), STATE, TIME, PAUSE, STATE),
    "setNamespacePrefixes": (lambda s: s.setNamespacePrefixes({"a": "urn:a"}), OK, STATE, STATE, STATE),
    "setLocalAttribute": (lambda s: s.setLocalAttribute(True), OK, STATE, STATE, STATE),
    "setOwnPublicationsAttribute": (lambda s: s.setOwnPublicationsAttribute(False), OK, STATE, STATE, STATE),
    "setOrderAttribute": (lambda s: s.setOrderAttribute(True), OK, STATE, STATE, STATE),
    "setDurableAttribute": (lambda s: s.setDurableAttribute("mine"), OK, STATE, STATE, STATE),
    "setLatestAttribute": (lambda s: s.setLatestAttribute("//id"), OK, STATE, STATE, STATE),
}
QUERY: dict[str, Row] = EVERY | {
    "setSequencePredicate": (lambda s: s.setSequencePredicate(PREDICATE), OK, OK, OK, STATE),
    "executeQuery": (lambda s: s.executeQuery(), STATE, OK, PAUSE, STATE),
    "executeDistributedQuery": (lambda s: s.executeDistributedQuery(5_000), STATE, OK, PAUSE, STATE),
    "getNext": (lambda s: s.getNext(1, 1), STATE, STATE, PAUSE, STATE),
    "cancelQuery": (lambda s: s.cancelQuery(), STATE, STATE, STATE, STATE),
    "getResultCount": (lambda s: s.getResultCount(), STATE, STATE, PAUSE, STATE),
    "getMissingAnswers": (lambda s: s.getMissingAnswers(), STATE, STATE, STATE, STATE),
    "setNamespacePrefixes": (lambda s: s.setNamespacePrefixes({"a": "urn:a"}), OK, STATE, STATE, STATE),
    "setLatestAttribute": (lambda s: s.setLatestAttribute("//id"), OK, STATE, STATE, STATE),
}
ASKED: dict[str, Row] = {  # with a query that has results
    "executeQuery": (lambda s: s.executeQuery(), STATE, STATE, PAUSE, STATE),
    "executeDistributedQuery": (lambda s: s.executeDistributedQuery(5_000), STATE, STATE, PAUSE, STATE),
    "getNext": (lambda s: s.getNext(1, 5_000), STATE, OK, PAUSE, STATE),
    "cancelQuery": (lambda s: s.cancelQuery(), STATE, OK, OK, STATE),
    "getResultCount": (lambda s: s.getResultCount(), STATE, OK, PAUSE, STATE),
    "getMissingAnswers": (lambda s: s.getMissingAnswers(), STATE, OK, OK, STATE),
}

CONNECTION: dict[str, Row] = {  # new, connected, disconnected, destroyed
    "authenticate": (
        lambda c: c.authenticate('<credentials xmlns="http://gdc4s.com/oim/gemini"><user>me</user></credentials>'),
        OK, ConnectionException, OK, ConnectionException,
    ),
    "connect": (lambda c: c.connect(), OK, ConnectionException, OK, ConnectionException),
    "disconnect": (lambda c: c.disconnect(), ConnectionException, OK, ConnectionException, ConnectionException),
    "setConnectionCallback": (lambda c: c.setConnectionCallback(None), OK, OK, OK, ConnectionException),
    **{
        name: (call, ConnectionException, OK, ConnectionException, ConnectionException)
        for name, call in {
            "createPublisherSequence": lambda c: c.createPublisherSequence("t", "1.0"),
            "createSubscriberSequence": lambda c: c.createSubscriberSequence("t", "1.0"),
            "createQuerySequence": lambda c: c.createQuerySequence("t", "1.0"),
            "createInfoObject": lambda c: c.createInfoObject("t", "1.0", b"", None),
            "destroySequence": lambda c, s: c.destroySequence(s),
            "getMetadataRepository": lambda c: c.getMetadataRepository(),
            "getNodeDetails": lambda c: c.getNodeDetails(),
            "registerQueryProvider": lambda c: c.registerQueryProvider(None),
        }.items()
    },
}  # fmt: skip
NOT_CALLS = {"publisher", "subscriber", "node_addresses", "forget", "destroy", "refused", "published"}
"""What sequences and connections have for each other."""


def calls_of(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"} - NOT_CALLS


@pytest.mark.row("Q-37")
@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (PublisherSequence, PUBLISHER),
        (SubscriberSequence, SUBSCRIBER),
        (QuerySequence, QUERY),
        (Connection, CONNECTION),
    ],
)
def test_the_table_has_every_call(kind: type, table: dict[str, Row]) -> None:
    assert calls_of(kind) == set(table)


def brought_to(connection: Connection, kind: type, state: SequenceState) -> Any:
    """A new sequence of that kind in that state, with one attribute set."""
    make = {
        PublisherSequence: connection.createPublisherSequence,
        SubscriberSequence: connection.createSubscriberSequence,
        QuerySequence: connection.createQuerySequence,
    }[kind]
    sequence: Any = make("t", "1.0")
    sequence.setValidationAttribute(True, False)
    if state in (SequenceState.ACTIVE, SequenceState.PAUSED):
        sequence.activateSequence()
    if state is SequenceState.PAUSED:
        sequence.pauseSequence()
    if state is SequenceState.DESTROYED:
        connection.destroySequence(sequence)
    return sequence


def told_of(sequence: Any) -> tuple[object, ...]:
    """What a call that is refused must leave alone."""
    at, query = getattr(sequence, "_at", None), getattr(sequence, "_query", None)
    return sequence._state, sequence._attributes.all(), getattr(sequence, "_predicate", ""), at, query


@pytest.mark.row("G-47")
@pytest.mark.parametrize("state", list(SequenceState))
@pytest.mark.parametrize(
    ("kind", "table"), [(PublisherSequence, PUBLISHER), (SubscriberSequence, SUBSCRIBER), (QuerySequence, QUERY)]
)
def test_every_call_in_every_state_of_a_sequence(
    connection: Connection, publisher: Any, kind: type, table: dict[str, Row], state: SequenceState
) -> None:
    archived = connection.createPublisherSequence("t", "1.0")
    archived.setValidationAttribute(True, False)
    archived.setPersistenceAttribute(True)
    archived.activateSequence()
    io = connection.createInfoObject("t", "1.0", b"", "<a/>")
    archived.publishInfoObject(io)
    connection.destroySequence(archived)
    for name, (call, *outcomes) in table.items():
        # Given
        sequence = brought_to(connection, kind, state)
        before = told_of(sequence)
        expected = outcomes[state]
        arguments = (sequence, io) if name == "publishInfoObject" else (sequence,)
        # When, Expect
        if expected is None:
            call(*arguments)
        else:
            with pytest.raises(expected) as raised:
                call(*arguments)
            assert type(raised.value) is expected, name
            assert told_of(sequence) == before, name
        if state is not SequenceState.DESTROYED:
            connection.destroySequence(sequence)


@pytest.mark.parametrize("state", [SequenceState.ACTIVE, SequenceState.PAUSED, SequenceState.DESTROYED])
def test_every_call_of_a_sequence_that_has_asked(connection: Connection, state: SequenceState) -> None:
    archived = connection.createPublisherSequence("t", "1.0")
    archived.setValidationAttribute(True, False)
    archived.setPersistenceAttribute(True)
    archived.activateSequence()
    for _ in range(3):
        archived.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    connection.destroySequence(archived)
    for name, (call, *outcomes) in ASKED.items():
        # Given
        sequence = brought_to(connection, QuerySequence, SequenceState.ACTIVE)
        sequence.executeQuery()
        if state is SequenceState.PAUSED:
            sequence.pauseSequence()
        if state is SequenceState.DESTROYED:
            connection.destroySequence(sequence)
        expected = outcomes[state]
        # When, Expect
        if expected is None:
            call(sequence)
        else:
            with pytest.raises(expected) as raised:
                call(sequence)
            assert type(raised.value) is expected, name
            assert sequence.getSequenceState() is state, name


def test_every_call_in_every_state_of_a_connection(node: Any) -> None:
    states: dict[str, list[str]] = {
        "new": [], "connected": ["connect"], "disconnected": ["connect", "disconnect"], "destroyed": ["destroy"],
    }  # fmt: skip
    other = node.connected("other")
    for number, steps in enumerate(states.values()):
        for name, (call, *outcomes) in CONNECTION.items():
            # Given
            connection = node.created()
            for step in steps:
                getattr(connection, step)()
            before = connection._state
            own = connection if before == "connected" else other
            arguments = (connection, own.createPublisherSequence("t", "1.0")) if name == "destroySequence" else ()
            # When, Expect
            if outcomes[number] is None:
                call(*(arguments or (connection,)))
            else:
                with pytest.raises(outcomes[number]) as raised:
                    call(*(arguments or (connection,)))
                assert type(raised.value) is outcomes[number], name
                assert connection._state == before, name
