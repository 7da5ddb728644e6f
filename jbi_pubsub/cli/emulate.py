"""`jbi emulate`: networks that lose, delay and reorder datagrams, on this machine."""

from __future__ import annotations

import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import FILE, JsonArguments, argument, command, flag, option
from .servers import SIGNAL_SECONDS, stop_on_signal, tell_ready
from .show import Column, counted, show_table, sized

if TYPE_CHECKING:
    from jbi_pubsub.network.emulator import NetworkEmulator
    from jbi_pubsub.network.topology import ScriptedChange


class _Emulate(JsonArguments):
    file: Path = argument(type=FILE)
    check: bool = flag("Show the members and their networks, without running.")
    seed: int | None = option("Seed for the losses; default: the file's.", type=click.IntRange(0))
    seconds: float | None = option("End after that many seconds.", type=click.FloatRange(0))
    every: float = option("Seconds between two reports.", type=click.FloatRange(0.1), shown=10.0)


@command(None, _Emulate)
def emulate(given: _Emulate) -> None:
    """Emulate networks between nodes of this machine, as a file says, until SIGTERM or Ctrl-C.

    Each node has a multicast group or UDP port of its own on each network. The emulator forwards datagrams to all
    others, with a rate, losses, delays, reordering, duplicates, outages and a script of changes. `--check` shows the
    settings of each node's network.

    \b
    jbi emulate figure16.toml --check
    jbi emulate figure16.toml
    jbi emulate figure16.toml --seed 7 --seconds 60 --json
    """
    from jbi_pubsub.network import topology  # here: `jbi --help` starts faster without
    from jbi_pubsub.network.emulator import NetworkEmulator

    found = topology.read(given.file)
    if given.check:
        rows = topology.rows(found)
        columns = [Column(name, long=name in ("network", "terms")) for name in topology.MemberRow._fields]
        given.show([row._asdict() for row in rows], lambda: show_table(columns, rows))
        return
    stop = stop_on_signal()
    changes: deque[ScriptedChange] = deque()
    with NetworkEmulator(found, seed=given.seed, changed=changes.append) as running:
        _run(given, list(found.segment), running, stop, changes)


def _run(
    given: _Emulate,
    names: list[str],
    running: NetworkEmulator,
    stop: threading.Event,
    changes: deque[ScriptedChange],
) -> None:
    seed = running.status()["seed"]
    facts = {"ready": "emulation", "segments": names, "seed": seed}
    tell_ready(given.as_json, facts, f"emulates {', '.join(names)} with seed {seed}")
    told, is_over = 0.0, False
    while not is_over:
        is_over = stop.wait(SIGNAL_SECONDS) or (given.seconds is not None and running.seconds >= given.seconds)
        while changes:
            _tell_change(given, changes.popleft())
        if running.seconds - told >= given.every:
            told = running.seconds
            _tell_counts(given, "passed", running.status())
    _tell_counts(given, "ended", running.status())


def _tell_change(given: _Emulate, change: ScriptedChange) -> None:
    from jbi_pubsub.network.topology import told

    where = f"{change.segment}, {change.member}" if change.member else change.segment
    given.tell(
        {"change": change.at, "segment": change.segment, "member": change.member, **change.terms()},
        f"{change.at:8.1f} s  {where}: {told(change)}",
    )
    sys.stdout.flush()


def _tell_counts(given: _Emulate, event: str, status: dict[str, Any]) -> None:
    """A line for each segment, or all in one for programs."""
    if given.as_json:
        given.tell({"event": event, **status}, "")
    for name, counts in () if given.as_json else status["segments"].items():
        if "connections" in counts:
            ways = ", ".join(f"{sized(counts[f'bytes_{way}'])} {way}" for way in ("up", "down"))
            said = f"{counted(counts['connections'], 'connection')}, {ways}"
        else:
            words = ("delivered", "lost", "doubled", "no_room", "unsent", "strange")
            rest = [f"{counts[word]} {word.replace('_', ' ')}" for word in words if counts[word] or word == "delivered"]
            said = f"{counted(counts['received'], 'datagram')} ({sized(counts['bytes'])}): {', '.join(rest)}"
        click.echo(f"{status['seconds']:8.1f} s  {name}: {said}")
    sys.stdout.flush()
