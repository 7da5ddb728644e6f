"""`jbi client`: a script of publishers, subscribers and queries against a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from jbi_pubsub.core.errors import StorageError

from .options import FILE, JsonArguments, argument, command, flag, option
from .servers import stop_on_signal
from .settings import blamed
from .show import Column, printable, show_table, telling

if TYPE_CHECKING:
    from jbi_pubsub.web.panels import Event

COLUMNS = ("opened", "published", "received", "lost", "result", "refused", "failed")


class _Client(JsonArguments):
    file: Path = argument(type=FILE)
    log_file: Path | None = option("Write a JSON line for each event to this file.", "--log", type=FILE)
    only_check: bool = flag("Check the script, without a connection.", "--check")


@command(None, _Client)
def client(given: _Client) -> int:
    """Publish, subscribe and query as a script says, and count the results.

    Exit code 1: something is not as the script expects.

    \b
    jbi client script.toml
    jbi client script.toml --log events.jsonl --json
    jbi client script.toml --check
    """
    from jbi_pubsub.web.panels import Panels, run  # here: `jbi --help` starts faster without
    from jbi_pubsub.web.script import read

    script = read(given.file)
    if given.only_check:
        panels = [*script.publisher, *script.subscriber, *script.query]
        click.echo(f"{printable(str(given.file))}: {len(panels)} panels")
        return 0
    stop = stop_on_signal()
    total = sum(each.publishers * each.count for each in script.publisher)
    began = time.monotonic()
    with _events(given.log_file, stop) as note:
        made = Panels(given.settings.load(), note)
        with telling("published", hidden=given.as_json) as tell:
            failures = run(made, script, stop, lambda: tell("published", made.total("published"), total))
    counts = made.counts()
    counts.pop("", None)
    plain = {"seconds": round(time.monotonic() - began, 3), "panels": counts, "failures": failures}
    given.show(plain, lambda: _show(counts, failures))
    return 1 if failures else 0


@contextmanager
def _events(file: Path | None, stop: threading.Event) -> Iterator[Callable[[Event], None]]:
    """A writer of events to a file, if there is one; an event that can't be written stops all. Raises StorageError."""
    with blamed(str(file), hint="--log names a file to write"):
        out = file.open("wb") if file is not None else None
    fault: OSError | None = None

    def note(event: Event) -> None:
        nonlocal fault
        if out is not None and fault is None:
            try:
                out.write(msgspec.json.encode(event) + b"\n")
            except OSError as exc:
                fault = exc
                stop.set()

    try:
        yield note
    finally:
        if out is not None:
            try:
                out.close()
            except OSError as exc:
                fault = fault or exc
    if fault is not None:
        raise StorageError(f"{file}: {fault.strerror or fault}", hint="The log has not all that has happened")


def _show(counts: Mapping[str, Mapping[str, int]], failures: Sequence[str]) -> None:
    columns = [Column("panel", name=True, long=True), *(Column(name, right=True) for name in COLUMNS)]
    rows = [(name, *(count.get(each, 0) for each in COLUMNS)) for name, count in counts.items()]
    show_table(columns, rows)
    for each in failures:
        click.echo(f"jbi: {printable(each)}", err=True)
