"""Decoders: made one at a time, each once."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jbi_pubsub
from jbi_pubsub.core import values
from jbi_pubsub.core.values import decoder_of, from_json

ROOMS = ("lookup", "pad", "codegen", "spark", "examples")


class Point(msgspec.Struct):
    x: int


def test_a_decoder_is_made_once_and_no_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given threads that need decoders for the first time, of types in common and of their own
    making, most, made = 0, 0, list[Any]()
    real = msgspec.msgpack.Decoder

    def slowly(kind: Any) -> Any:
        nonlocal making, most
        making += 1
        most = max(most, making)
        threading.Event().wait(0.002)
        made.append(kind)
        making -= 1
        return real(kind)

    monkeypatch.setattr(values, "_decoders", {})
    monkeypatch.setattr(values.msgspec.msgpack, "Decoder", slowly)
    kinds: list[Any] = [dict[str, Point], list[Point], tuple[Point, ...], Point]
    threads = [threading.Thread(target=lambda kind=kind: decoder_of(kind)) for kind in kinds * 4]
    # When all ask at once
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Expect one at a time to be made, and none again
    assert most == 1
    before = len(made)
    assert decoder_of(Point).decode(msgspec.msgpack.encode(Point(7))) == Point(7)
    assert len(made) == before


def test_json_is_read_as_a_type() -> None:
    assert from_json(Point, b'{"x": 3}') == Point(3)
    with pytest.raises(msgspec.ValidationError):
        from_json(Point, b'{"x": "3"}')


RACE = """
import sys, threading
import msgspec
from jbi_pubsub.core.values import converted, decoder_of
sys.setswitchinterval(1e-6)
SOURCE = '''
class Inner(msgspec.Struct, frozen=True):
    a: "int"
    c: "tuple[int, ...]"
class Outer(msgspec.Struct, frozen=True):
    x: "Inner"
    z: "dict[str, Inner]"
'''
for turn in range(200):
    names = {"msgspec": msgspec, "__name__": "__main__"}
    exec(SOURCE, names)
    globals().update(Inner=names["Inner"])
    data = msgspec.msgpack.encode({"x": {"a": 1, "c": [1]}, "z": {}})
    barrier = threading.Barrier(4)
    def work():
        barrier.wait()
        if sys.argv[1] == "decode":
            assert decoder_of(names["Outer"]).decode(data).x.a == 1
        else:
            assert converted({"x": {"a": 1, "c": [1]}, "z": {}}, names["Outer"]).x.a == 1
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("done")
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["decode", "convert"])
def test_threads_that_decode_a_type_for_the_first_time_do_not_end_the_process(how: str) -> None:
    # Given types that no thread has decoded; When four decode each at once, expect the process to live
    made = subprocess.run([sys.executable, "-c", RACE, how], capture_output=True, text=True, timeout=120)
    assert (made.returncode, made.stdout) == (0, "done\n"), made.stderr


def test_nothing_of_ours_decodes_a_type_without_that() -> None:
    # Given all modules; Expect decoders of types to be made at import, or here
    root = Path(jbi_pubsub.__file__).parent
    rooms = [root, *(Path(importlib.import_module(f"jbi_pubsub.{room}").__file__ or "").parent for room in ROOMS)]
    sources = {path.resolve() for room in rooms for path in room.rglob("*.py")}
    assert len(sources) > 100
    free = re.compile(
        r"^(?:    .*)?msgspec\.(?:msgpack|json)\.(?:decode\(.*type=|Decoder\()|msgspec\.convert\(", re.MULTILINE
    )
    found = {path.name for path in sources if free.search(path.read_text())}
    assert found == {"values.py", "config.py"}  # settings, of plain types, before there are threads
