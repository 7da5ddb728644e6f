"""`jbi demo node`: a client of the Common API and a node, one process that is everything, which is stopped under it.

The client is that of docs/capi.md. It publishes images into the node's archive, subscribes to some, and asks for those
of before; then the node stops, the client publishes on, and what it has published comes when the node is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jbi_pubsub import Config
from jbi_pubsub.capi import Connection, ConnectionManager, PublisherSequence, SubscriberSequence, TimeoutException
from jbi_pubsub.core import extras
from jbi_pubsub.core.config import ArchiveSection

from .example import ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from .federation import PATIENCE, Federation

NAME: Final = "tent-3"
TYPE: Final = "image"
BEFORE: Final = 20
"""Images that are published before the node stops."""
AWAY: Final = 5
"""Those that are while it is away."""
LARGE: Final = 1_000
"""Bytes: every second image has more."""
PREDICATE: Final = f"""<predicate><predicateName>large</predicateName><predicateType>XPath</predicateType>
<predicateInstance>//og:PayloadLength &gt; {LARGE}</predicateInstance></predicate>"""
QUIET: Final = 500
"""Milliseconds in which what comes twice would show itself."""


def run(options: ExampleOptions) -> ExampleOutcome:
    """The client; the node is a process of its own."""
    is_kept = not extras.missing("archive")
    config = Config(archive=ArchiveSection(reserve=0.0))
    with TemporaryDirectory(prefix="jbi-demo-") as folder, Federation(config) as here:
        flags = ("--folder", str(Path(folder) / "node"), "--name", NAME)
        own = () if is_kept else ("--set", "node.archive=false")
        first = here.node(NAME, *flags, own=own)
        options.tell(f"node {NAME} is ready: lookup service, delegate, types{', archive' if is_kept else ''}")
        manager = ConnectionManager(here.config)
        connection = manager.createConnection("sample client")
        connection.connect()
        publisher = connection.createPublisherSequence(TYPE, "1.0")
        publisher.setPersistenceAttribute(is_kept)
        publisher.activateSequence()
        subscriber = connection.createSubscriberSequence(TYPE, "1.0")
        subscriber.setSequencePredicate(PREDICATE)
        subscriber.activateSequence()
        published = [_publish(connection, publisher, number) for number in range(BEFORE)]
        came = list(_taken(subscriber, BEFORE // 2))
        options.tell(f"{len(came)} of {len(published)} images are what the client has subscribed to")
        here.end(NAME)
        options.tell("the node has stopped; the client publishes on")
        published += [_publish(connection, publisher, number) for number in range(BEFORE, BEFORE + AWAY)]
        again = here.node(NAME, *flags, "--port", str(first["lookup"].rpartition(":")[2]), own=own)
        late = list(_taken(subscriber, len(published) // 2 - len(came)))
        options.tell("it is back, and so are the client's sequences")
        connection.destroySequence(publisher)
        found = 0
        if is_kept:
            query = connection.createQuerySequence(TYPE, "1.0")
            query.activateSequence()
            query.executeQuery()
            found = query.getResultCount()
        manager.destroyConnection(connection)
    large = [uid for number, uid in enumerate(published) if number % 2]
    rows = (
        ("published before it stopped", BEFORE), ("came of these", len(came)), ("published while it was away", AWAY),
        ("came of these when it was back", len(late)), *((("in its archive", found),) if is_kept else ()),
    )  # fmt: skip
    promises = [
        Promise("exactly the images of the client's predicate came, in their order", [*came, *late] == large),
        Promise("what was published while the node was away came when it was back", len(late) > 0),
        Promise("the node is the same one in a later epoch", _is_later(again, first)),
    ]
    if is_kept:
        promises.append(Promise("all of them are in its archive", found == len(published)))
    table = OutcomeTable(f"a client of the Common API, and node {NAME}", ("images", "number"), rows)
    return ExampleOutcome((table,), tuple(promises))


def _is_later(again: dict[str, Any], first: dict[str, Any]) -> bool:
    """Whether two nodes that have said that they are ready are one, started again."""
    return bool(again["id"] == first["id"] and again["epoch"] > first["epoch"])


def _publish(connection: Connection, publisher: PublisherSequence, number: int) -> str:
    """The id of a new image; every second one is large."""
    metadata = f"<image><name>Image {number}</name></image>"
    return publisher.publishInfoObject(connection.createInfoObject(TYPE, "1.0", b"x" * (LARGE + number % 2), metadata))


def _taken(subscriber: SubscriberSequence, count: int) -> Iterator[str]:
    """The ids of so many images, and of whatever comes soon behind them."""
    timeout = PATIENCE * 1_000
    while True:
        try:
            yield subscriber.getNext(timeout).getInfoObjectID()
        except TimeoutException:
            return
        count -= 1
        if count <= 0:
            timeout = QUIET
