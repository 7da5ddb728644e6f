"""An application that answers queries of others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from jbi_pubsub.capi import CapiException, ObjectUnavailableException, PlatformFailureException, TimeoutException


class Provider:
    """Has images of the priorities 1 to 3, and says what it was asked."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.asked: list[tuple[str, str, str]] = []

    def queryReceived(self, type: str, version: str, predicate: str) -> Iterator[Any]:  # noqa: A002
        self.asked.append((type, version, predicate))
        for n in (1, 2, 3):
            yield self.connection.createInfoObject("t", "1.0", b"x" * n, f"<image><priority>{n}</priority></image>")
        yield self.connection.createInfoObject("another", "1.0", b"", "<image><priority>2</priority></image>")


def asked(connection: Any, predicate: str = "", *, everybody: bool = True) -> list[str]:
    """The metadata of what a query finds."""
    sequence = connection.createQuerySequence("t", "1.0")
    if predicate:
        sequence.setSequencePredicate(predicate)
    sequence.activateSequence()
    if everybody:
        sequence.executeDistributedQuery(20_000)
    else:
        sequence.executeQuery()
    found = [io.getMetadata() for io in sequence.getNext(100, 20_000)]
    connection.destroySequence(sequence)
    return found


@pytest.mark.row("G-76")
def test_a_provider_answers_who_asks_everybody_and_nobody_else(
    connection: Any, node: Any, predicate: Any, eventually: Any
) -> None:
    # Given something in the archive, and a provider at another connection
    archived = connection.createPublisherSequence("t", "1.0")
    archived.setPersistenceAttribute(True)
    archived.activateSequence()
    archived.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<image><priority>2</priority></image>"))
    connection.destroySequence(archived)
    other = node.connected("provider")
    provider = Provider(other)
    # When
    other.registerQueryProvider(provider)
    image = "<image><priority>{}</priority></image>".format
    # Expect
    eventually(lambda: len(asked(connection)) == 4)
    assert sorted(asked(connection, predicate("//image[priority>1]"))) == [image(2), image(2), image(3)]
    assert asked(connection, predicate("/og:metadata/og:baseObject[og:PayloadLength=3]")) == [image(3)]
    assert provider.asked[-1] == ("t", "1.0", "/og:metadata/og:baseObject[og:PayloadLength=3]")
    assert asked(connection, everybody=False) == [image(2)]
    # When it is taken back, or its connection ends
    other.registerQueryProvider(None)
    # Expect
    eventually(lambda: asked(connection) == [image(2)])
    other.registerQueryProvider(provider)
    eventually(lambda: len(asked(connection)) == 4)
    other.disconnect()
    eventually(lambda: asked(connection) == [image(2)])


def test_a_provider_that_fails_costs_nobody_else_his_answer(connection: Any, node: Any, eventually: Any) -> None:
    # Given
    archived = connection.createPublisherSequence("t", "1.0")
    archived.setPersistenceAttribute(True)
    archived.activateSequence()
    archived.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    connection.destroySequence(archived)
    called: list[str] = []

    class Broken:
        def queryReceived(self, *asked: str) -> Any:
            called.append(asked[0])
            raise ValueError("a bug in the application")

    connection.registerQueryProvider(Broken())
    # When, Expect
    eventually(lambda: asked(connection) == ["<a/>"] and called)


def test_a_provider_that_hangs_costs_nobody_else_his_answer(connection: Any, node: Any, eventually: Any) -> None:
    # Given an object in the archive, and a provider that hangs
    archived = connection.createPublisherSequence("t", "1.0")
    archived.setPersistenceAttribute(True)
    archived.activateSequence()
    archived.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    connection.destroySequence(archived)
    called, over = threading.Event(), threading.Event()

    class Hanging:
        def queryReceived(self, *asked: str) -> Any:  # noqa: ARG002  # the protocol's parameters
            called.set()
            over.wait(60.0)
            return []

    node.connected("hanging").registerQueryProvider(Hanging())
    query = connection.createQuerySequence("t", "1.0")
    query.activateSequence()
    told: list[object] = []

    class Told:
        infoObjectAvailable = queryIncomplete = queryFinished = told.append

    def is_asked() -> bool:
        told.clear()
        query.executeDistributedQuery(1_000, Told())
        eventually(lambda: told and isinstance(told[-1], str))
        return called.is_set()

    # When everybody is asked, expect what the archive has, and the provider to be named
    eventually(is_asked)
    assert told[0].getMetadata() == "<a/>"  # type: ignore[attr-defined]
    assert told[1:] == [query.getMissingAnswers(), "finished"]
    assert len(query.getMissingAnswers()) == 1
    query.executeDistributedQuery(1_000)
    assert [io.getMetadata() for io in query.getNext(10, 20_000)] == ["<a/>"]
    assert query.getNext(10, 20_000) == []
    assert len(query.getMissingAnswers()) == 1
    over.set()


def test_a_provider_that_gives_others_objects_for_ever_ends_with_the_query(
    connection: Any, node: Any, eventually: Any
) -> None:
    # Given a provider that never comes to an end, and never to what was asked
    over: list[int] = []

    class Endless:
        def queryReceived(self, *_asked: str) -> Iterator[Any]:
            try:
                while True:
                    yield other.createInfoObject("another", "1.0", b"", "<a/>")
            finally:
                over.append(1)

    other = node.connected("endless")
    other.registerQueryProvider(Endless())
    sequence = connection.createQuerySequence("t", "1.0")
    sequence.activateSequence()

    def is_asked() -> bool:
        try:
            sequence.executeDistributedQuery(200)
        except ObjectUnavailableException:  # the lookup service has not told of it yet
            return False
        return True

    eventually(is_asked)
    # When the query's time is over, Expect that it is left
    with pytest.raises(TimeoutException):
        sequence.getNext(1, 20_000)
    eventually(lambda: over)


@pytest.mark.parametrize("ends", ["registerQueryProvider", "disconnect"])
def test_a_provider_may_end_itself_and_its_connection_while_it_is_asked(
    connection: Any, node: Any, eventually: Any, ends: str
) -> None:
    # Given
    other = node.connected("provider")
    done: list[object] = []

    class Leaving:
        def queryReceived(self, *_asked: str) -> list[Any]:
            try:
                done.append(getattr(other, ends)(*(None,) * (ends == "registerQueryProvider")))
            except RuntimeError as exc:
                done.append(exc)
            return []

    other.registerQueryProvider(Leaving())
    sequence = connection.createQuerySequence("t", "1.0")
    sequence.activateSequence()

    def is_asked() -> bool:
        with suppress(CapiException):
            sequence.executeDistributedQuery(200)
        return bool(done)

    # When it is asked, Expect that it has left
    eventually(is_asked)
    assert done == [None]
    assert other._provider is None
    assert other._lights == {} or ends == "registerQueryProvider"


@pytest.mark.parametrize("provider", [5, object(), "text"])
def test_what_is_no_provider_is_refused(connection: Any, provider: Any) -> None:
    with pytest.raises(TypeError):
        connection.registerQueryProvider(provider)


@pytest.mark.parametrize("has_callback", [False, True])
def test_a_query_that_is_not_complete_says_so(
    connection: Any, node: Any, publisher: Any, eventually: Any, caplog: Any, has_callback: bool
) -> None:
    # Given an archive with an object, and at its address another one than is listed
    kept = connection.createPublisherSequence("t", "1.0")
    kept.setPersistenceAttribute(True)
    kept.activateSequence()
    kept.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    connection.destroySequence(kept)
    node.servers[0].delegate.history.queries.source.incarnations = ("another",)
    told: list[object] = []

    class Told:
        def infoObjectAvailable(self, io: Any) -> None:
            told.append(io.getMetadata())

        def queryIncomplete(self, missing: list[str]) -> Any:
            told.append(len(missing))
            return self.of_no_use()

        async def of_no_use(self) -> None: ...

        def queryFinished(self, state: str) -> None:
            told.append(state)

    query = connection.createQuerySequence("t", "1.0")
    query.activateSequence()
    # When it is asked, expect what it has, then no end that looks like one
    if has_callback:
        query.executeQuery(Told())
        eventually(lambda: told == ["<a/>", 1, "finished"])
        # Expect a method that does nothing to be told of, and the end to come all the same
        eventually(lambda: "returned a coroutine" in caplog.text)
        return
    query.executeQuery()
    assert len(query.getNext(10, 20_000)) == 1
    with pytest.raises(PlatformFailureException, match="has not told all"):
        query.getNext(10, 20_000)
    with pytest.raises(PlatformFailureException, match="has not told all"):
        query.getResultCount()
    assert len(query.getMissingAnswers()) == 1
    # When everybody is asked, expect the end, and the one that is missing to be named
    query.executeDistributedQuery(20_000)
    assert len(query.getNext(10, 20_000)) == 1
    assert query.getNext(10, 20_000) == []
    assert [each.partition(": ")[0] for each in query.getMissingAnswers()] == [node.servers[0].address]
