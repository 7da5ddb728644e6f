"""How much is done for an object: calls are counted, which no busy machine changes. A limit that is exceeded says that
each object costs more than before: look at benchmarks/node.py, and at `make profile`, before it is raised."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from jbi_pubsub.core.info_object import Head, Parcel, object_id_of, pack
from jbi_pubsub.pad.egress.session import Deliveries

TYPE = "mil.af.rl.jbi.Intel_Imagery"
OBJECTS = 200
WAKING = {"enqueue", "wake", "ring", "make_ready", "may_send"}
"""Whether a thread that sends is woken for an object, which a busy machine does change."""


@contextmanager
def counted(of: str = "jbi_pubsub") -> Iterator[Counter[str]]:
    """Calls of our own functions by this thread, by name; `of`: those of a package."""
    calls: Counter[str] = Counter()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith(of):
            calls[frame.f_code.co_name] += 1

    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def moved(document: str, count: int) -> list[str]:
    """A document at so many places."""
    return [document.replace("<lat>33.34<", f"<lat>33.{300_000 + at:06d}<") for at in range(count)]


@pytest.fixture
def document(figures: Any) -> str:
    """The metadata of figure 1."""
    return figures.figure_1.decode() if isinstance(figures.figure_1, bytes) else str(figures.figure_1)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(lambda text: text[text.index("<metadata") :], id="without a declaration"),
        pytest.param(lambda text: text, id="with one"),
        pytest.param(lambda text: text.replace('"UTF-8"', '"utf-8" standalone="yes"'), id="with another one"),
        pytest.param(lambda text: text.replace("<metadata", "<!-- Заметка --><metadata", 1), id="in all letters"),
    ],
)
def test_publishing_by_the_common_api_is_five_calls_more_than_by_the_adapter(
    node: Any, connection: Any, document: str, figures: Any, written: Callable[[str], str]
) -> None:
    # Given a sequence that has published
    adapter = node.federation.light()
    adapter.register_publisher(adapter.connect_to_delegate(), figures.schema, document)
    sequence = connection.createPublisherSequence(TYPE, "1.0")
    sequence.setInvariantsAttribute(document)
    sequence.activateSequence()
    documents = moved(written(document), 2 * OBJECTS)
    for each in documents[:OBJECTS]:
        sequence.publishInfoObject(connection.createInfoObject(TYPE, "1.0", b"x", each))
    # When it publishes again
    with counted("jbi_pubsub.capi") as calls:
        for each in documents[OBJECTS:]:
            sequence.publishInfoObject(connection.createInfoObject(TYPE, "1.0", b"x", each))
    # Expect these, and nothing checked or translated besides
    expected = ("createInfoObject", "quickly_made", "_is_utf8", "__init__", "publishInfoObject")
    assert calls == dict.fromkeys(expected, OBJECTS)


@pytest.mark.row("G-136")
@pytest.mark.parametrize(
    ("view", "predicate", "parsed", "most"),
    [
        pytest.param(None, "//lat>33", 0, 70, id="metadata: none is parsed"),
        pytest.param(
            "combined", "//lat>33 and //og:PayloadLength>5", 1, 117, id="combined view: once for all that ask"
        ),
    ],
)
def test_what_a_delegate_does_for_an_object_of_a_known_structure(
    federation: Any, figures: Any, document: str, view: Any, predicate: str, parsed: int, most: int
) -> None:
    # Given twenty subscriptions, of which two match, and a registration that has published
    federation.lookup()
    server, subscriber, light = federation.pad(), federation.subscriber(), federation.light()
    uid = light.register_publisher(light.connect_to_delegate(), figures.schema, document)
    for wanted in (predicate, predicate, *(f"//lat>{80 + number}" for number in range(18))):
        listener = lambda _uid, _obj: None  # noqa: E731
        subscriber.register_subscriber(type_name=TYPE, predicate=wanted, view=view, listener=listener)
    light.wait_for_subscribers(uid, 20, 20.0)
    registration = server.delegate.tables.registrations[uid]
    parcels = [
        pack(Head(object_id_of(uid, at), uid, at, 1.0, TYPE, "1.0", metadata.encode(), 9), b"any bytes")
        for at, metadata in enumerate(moved(document, 2 * OBJECTS), start=1)
    ]

    def take(parcels: list[Parcel]) -> int:
        size = 0
        for parcel in parcels:
            deliveries = Deliveries()
            assert server.delegate.publishers.publish(registration, [parcel], deliveries) == []
            size += deliveries.size
            deliveries.offer()
        return size // parcels[0].size

    take(parcels[:OBJECTS])
    # When as many more are published
    with counted() as calls:
        deliveries = take(parcels[OBJECTS:])
    # Expect two deliveries of each, so many parsed (one of a hundred may be looked at again), and so many calls
    assert deliveries == 2 * OBJECTS
    assert calls["parse_metadata"] <= (parsed + 0.01) * OBJECTS
    done = sum(count for name, count in calls.items() if name not in WAKING)
    assert done <= most * OBJECTS, calls.most_common(20)
