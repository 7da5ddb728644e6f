"""A delegate is killed and started again while its archive is asked: answers are complete, or say what is missing."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import JbiError, UnknownUidError

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"
AT_ALPHA, AT_BETA = 150, 50
STARTING = 1.5
"""Seconds within which a delegate starts, mostly: moments are chosen from these, and twice as many."""


def _publish(field: Any, figures: Any, name: str, count: int) -> list[str]:
    with field.light() as light:
        at = light.connect_to_delegate(name, "rome")
        registration = light.register_publisher(at, figures.schema, figures.figure_1, persist=True)
        ids = [light.publish(registration, figures.figure_1, b"p" * 100) for _ in range(count)]
        light.flush(60.0)
    return ids


@pytest.mark.parametrize("restarts", [2, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])])
def test_a_query_has_everything_or_says_what_is_missing(
    field: Any, figures: Any, tmp_path: Path, restarts: int, eventually: Callable[..., Any]
) -> None:
    chance = random.Random(restarts)
    # Given two delegates with archives, of which lookup services know for longer than a start takes
    field.leases(lookup=30.0)
    lookup = field.lookup()
    field.lookups(lookup.address)
    alpha = field.pad(more=("--archive", str(tmp_path / "alpha")))
    field.pad("beta", more=("--archive", str(tmp_path / "beta")))
    ids = _publish(field, figures, "alpha", AT_ALPHA) + _publish(field, figures, "beta", AT_BETA)
    subscriber = field.adapter()

    def query() -> tuple[int, tuple[str, ...]]:
        with subscriber.open_query(TYPE, timeout=30.0) as opened:
            return len({obj.object_id for obj in opened}), opened.partial

    def count() -> tuple[int, tuple[str, ...]]:
        counted = subscriber.count(TYPE, timeout=30.0)
        return int(counted), counted.partial

    def get() -> tuple[int, tuple[str, ...]]:
        wanted = chance.choice(ids)
        assert subscriber.get(wanted, 30.0).object_id == wanted
        return len(ids), ()

    def asked() -> tuple[str, object]:
        ask = chance.choice((query, query, count, get))
        try:
            found, partial = ask()
        except UnknownUidError as exc:
            return "wrong", f"{ask.__name__}: {exc}"
        except JbiError:
            return "refused", ""
        if found == len(ids):
            return "whole", partial
        return ("partial" if partial and found < len(ids) else "wrong"), f"{ask.__name__}: {found}, {partial}"

    assert asked()[0] == "whole"
    told = []
    with ThreadPoolExecutor(1) as others:
        for _ in range(restarts):
            # When one is killed and started again at its port, while the lookup service hears of it late, and somebody
            # asks at any moment
            alpha.signal(signal.SIGKILL)
            lookup.signal(signal.SIGSTOP)
            threading.Timer(2 * STARTING * chance.random(), lookup.signal, (signal.SIGCONT,)).start()
            again = others.submit(field.pad, port=alpha.port, more=("--archive", str(tmp_path / "alpha")))
            while not again.done():
                time.sleep(STARTING * chance.random() / 2)
                told.append(asked())
            alpha = again.result()
    # Expect each answer to have all that was acknowledged, or to name what is missing, or to be an error
    assert [what for how, what in told if how == "wrong"] == []
    assert len(told) >= restarts
    # Expect all of it at the end, with nothing missing
    eventually(lambda: query() == (len(ids), ()))
