"""Answers of an archive on disk against lxml's, 100,000 of them in `make check`: over packs, files of the log, what is
in the index and what is not yet, while it is made anew, and after a restart."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from archived import calculation, first_of_several
from differential import NAMESPACES, document, expression, is_taken
from kept import TRACK, Reader, until
from lxml import etree

from jbi_pubsub.archive.desk import Desk
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Head, pack
from jbi_pubsub.core.xpath.predicate import compile_predicate

FIRST, DOCUMENTS = 350, 500


@pytest.mark.row("G-14", "C-06")
@pytest.mark.long
@pytest.mark.parametrize("predicates", [6, pytest.param(25, marks=pytest.mark.slow)])  # in each of the four states
def test_no_answer_differs_from_lxml(
    predicates: int, opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("jbi_pubsub.archive.engine.TICK", 0.02)
    sources = [document(chance) for _ in range(DOCUMENTS)]
    roots = [etree.fromstring(source) for source in sources]
    counted = {"answers": 0, "true": 0, "exact": 0, "read": 0}

    def publish(first: int, last: int) -> None:
        for start in range(first, last, 25):
            run = [
                (n, pack(Head("", "r-1", n, float(n), TRACK.name, TRACK.version, sources[n - 1], 1), b"p"))
                for n in range(start, min(start + 25, last))
            ]
            archive.append(run, 1_000.0)
            archive.sync(run[-1][0])

    def compare(is_meant: Callable[[], bool]) -> None:
        """By predicates of their own, most of them asked in the state that is meant."""
        in_state = 0
        for _ in range(predicates):
            text = next(
                t
                for t in iter(
                    lambda: chance.choices((expression, first_of_several, calculation), (4, 1, 1))[0](chance), ""
                )
                if is_taken(t)
            )
            holds = compile_predicate(text, namespaces=NAMESPACES).matches
            expected = [n for n, root in enumerate(roots, 1) if holds(root)]
            order = chance.choice(("oldest", "newest"))
            in_state += is_meant()
            reader = Reader(archive, HistoryQuery(scopes=(Scope(TRACK, text, tuple(NAMESPACES.items())),), order=order))
            assert reader.all() == expected[:: 1 if order == "oldest" else -1], (text, order)
            progress = reader.results.progress()
            assert progress.state == "finished", progress
            counted["answers"] += DOCUMENTS
            counted["true"] += len(expected)
            counted["exact"] += progress.candidates - progress.verified
            counted["read"] += progress.verified
        assert in_state > 0.8 * predicates

    # Given objects in packs, in files of the log, and behind the index
    archive = opened(workers=0, volume=20_000, columns=12)
    publish(1, FIRST + 1)
    until(lambda: archive.status()["indexed"] == FIRST and archive.status()["packs"] > 1)
    with monkeypatch.context() as patch:
        patch.setattr(Desk, "_take_in", lambda *_: 0.05)
        publish(FIRST + 1, DOCUMENTS + 1)
        compare(lambda: archive.status()["indexed"] == FIRST)
    # When all are in the index
    until(lambda: archive.status()["indexed"] == DOCUMENTS)
    compare(lambda: archive.status()["indexed"] == DOCUMENTS)
    # When it is made anew, a few objects at a time, and begun again where it is ready
    for rows in ("INDEX_ROWS", "INDEX_ROWS_BESIDE"):
        monkeypatch.setattr(f"jbi_pubsub.archive.desk.{rows}", 20)

    def is_behind() -> bool:
        if archive.status()["indexed"] >= DOCUMENTS:
            archive.rebuild()
        return archive.status()["indexed"] < DOCUMENTS

    compare(is_behind)
    # When the archive is opened again without its index
    archive.close()
    (file,) = (archive.folder.path / "index").glob("*.duckdb")
    file.unlink()
    archive = opened(workers=0, volume=20_000, columns=12)
    compare(lambda: True)
    # Expect each answer to be lxml's, and not to compare nothing with nothing
    assert counted["answers"] == 4 * predicates * DOCUMENTS
    assert counted["true"] > counted["answers"] / 20
    assert counted["exact"] > counted["answers"] / 100
    assert counted["read"] > counted["answers"] / 10
