"""The type of a sequence is the one of that very name: never another one whose name ends so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.capi import TimeoutException, UnrecognizedObjectTypeException


def test_a_sequence_gets_the_type_that_it_names_and_no_other(
    node: Any, connection: Any, publisher: Callable[..., Any]
) -> None:
    # Given a type whose name ends as that of a sequence, before and after the sequence's own
    ours = connection.createSubscriberSequence("Note", "1.0")
    first, other = publisher("a.Note"), node.federation.subscriber()
    ours.activateSequence()
    senders = [first, publisher("Note"), publisher("b.Note")]
    standing = other.register_subscriber()
    # When all are published
    for number, sequence in enumerate(senders):
        name = sequence.getType()
        sequence.publishInfoObject(connection.createInfoObject(name, "1.0", None, f"<n>{number}</n>"))
    assert {other.receive(standing).type.name for _ in senders} == {"a.Note", "Note", "b.Note"}
    # Expect its own alone
    assert ours.getNext(20_000).getType() == "Note"
    with pytest.raises(TimeoutException):
        ours.getNext(300)


def test_a_query_has_the_type_that_it_names_and_no_other(connection: Any) -> None:
    # Given an archived type whose name ends as that of a query sequence
    other = connection.createPublisherSequence("a.Note", "1.0")
    other.setPersistenceAttribute(True)
    other.setValidationAttribute(True, False)
    other.activateSequence()
    other.publishInfoObject(connection.createInfoObject("a.Note", "1.0", None, "<n/>"))
    connection.destroySequence(other)
    ours = connection.createQuerySequence("Note", "1.0")
    ours.activateSequence()
    # When it is asked; Expect that there is no such type
    with pytest.raises(UnrecognizedObjectTypeException):
        ours.executeQuery()
    with pytest.raises(UnrecognizedObjectTypeException):
        ours.executeDistributedQuery(5_000)
