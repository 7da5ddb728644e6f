"""What an archive on disk says of the combined view, against lxml: with an index, behind it and without."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from differential import NAMESPACES, document, expression, is_taken
from extent import examples
from kept import TRACK, Reader, until
from lxml import etree

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.combined import NAMESPACE, Provenance, combined
from jbi_pubsub.core.history import HistoryQuery, Scope, Source
from jbi_pubsub.core.info_object import Head, pack
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.predicate import compile_predicate

SPACES = tuple({**NAMESPACES, "og": NAMESPACE}.items())
ORIGINS = {"r-1": Provenance("one", "n-1", ("10.0.0.1", "10.0.0.2")), "r-2": Provenance("two", "n-2")}
PLATFORM = (
    "//og:PayloadLength > 200",
    "/og:metadata/og:baseObject[og:PublisherID = 'one']/og:PayloadLength > 300",
    "//og:PayloadLength = 7",
    "//og:PayloadLength != 7",
    "//og:PayloadLength = '7'",
    "//og:PayloadLength > 'seven'",
    "not(//og:PayloadLength > 200)",
    "not(//og:baseObject)",
    "//og:baseObject[not(og:NodeID)]",
    "//og:NodeAddress = '10.0.0.2'",
    "not(//og:NodeAddress = '10.0.0.1')",
    "//og:NodeAddress[. = '10.0.0.2']",
    "//og:baseObject/og:InfoObjectID",
    "/og:metadata/og:nothing",
    "not(/og:metadata/og:nothing)",
    "//og:MetadataLength < 100",
    "count(/og:metadata/*) = 1",
    "contains(/og:metadata, 'one')",
    "/*/*/* > 5",
    "/*[og:baseObject]",
)


def _objects(chance: random.Random, count: int) -> list[Head]:
    heads = []
    for n in range(1, count + 1):
        uid = f"r-{n % 2 + 1}"
        data = b"" if not n % 50 else b"<open" if not n % 51 else document(chance)
        heads.append(Head("", uid, n, float(n), TRACK.name, TRACK.version, data, n))
    return heads


def _asked(chance: random.Random) -> list[str]:
    """On the platform's part, on the publisher's, and on both."""
    plain: list[str] = []
    while len(plain) < examples(20):
        text = expression(chance)
        if is_taken(text):
            plain.append(text)
    below = ["/og:metadata" + text for text in plain if text.startswith("/") and not text.startswith("//")]
    both = [f"({one}) {chance.choice(('and', 'or'))} ({chance.choice(PLATFORM)})" for one in plain[:8]]
    asked = [*PLATFORM, *plain, *below, *both]
    return [text for text in asked if is_taken(text, dict(SPACES))]


@pytest.mark.long
@pytest.mark.parametrize("objects", [120, pytest.param(400, marks=pytest.mark.slow)])
def test_no_answer_on_the_view_differs_from_lxml(
    objects: int, opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given objects of two publishers, with odd metadata and none, in packs and in files of the log
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.02)
    chance = random.Random(11)
    heads = _objects(chance, objects)
    archive = opened(workers=0, volume=20_000, columns=12)
    for uid in ORIGINS:
        archive.register(Source(uid, TRACK))
    archive.append([(n, pack(head, b"p" * n)) for n, head in enumerate(heads, 1)], 1_000.0)
    archive.sync(objects)
    scope = Scope(TRACK, prefixes=SPACES, origins=tuple((origin, (uid,)) for uid, origin in ORIGINS.items()))
    asked = _asked(chance)
    true = exact = 0
    for is_indexed in (False, True):
        if is_indexed:
            until(lambda: archive.status()["indexed"] == objects)
        for text in asked:
            # When the archive is asked
            where = chance.choice(("", "", "//n > 3"))
            query = HistoryQuery(scopes=(msgspec.structs.replace(scope, combined=text, predicate=where),))
            reader = Reader(archive, query)
            found = reader.all()
            # Expect what lxml says of the view of each
            holds = compile_predicate(text, namespaces=dict(SPACES)).matches
            lets = compile_predicate(where).matches if where else None
            expected = [
                n
                for n, head in enumerate(heads, 1)
                if holds(view := combined(head, ORIGINS[head.registration]))
                and (lets is None or (len(view) > 1 and lets(_alone(view[-1]))))
            ]
            assert found == expected, (text, where, is_indexed)
            progress = reader.results.progress()
            true += len(expected)
            exact += progress.candidates - progress.verified
            counting = Reader(archive, query, count_only=True)
            counting.all()
            assert counting.results.progress().matched == len(expected), text
            archive.explain(query)
    # Expect the index to have decided some of it, and not to compare nothing with nothing
    assert true > 10 * objects
    assert exact > objects // 2


def _alone(root: Element) -> Element:
    return etree.fromstring(etree.tostring(root, with_tail=False))
