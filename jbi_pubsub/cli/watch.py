"""`jbi study watch`: a study of what is being published, window by window, of arriving files or a live tap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import click
import msgspec
from rich.live import Live
from rich.table import Table as Rich

from jbi_pubsub.core.child import end
from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark import dataset, plots, report, session, watching
from jbi_pubsub.spark.dataset import Contracts
from jbi_pubsub.spark.result import Result, StudyRun, finish
from jbi_pubsub.spark.studies.study import contracts_in

from .cluster import ClusterArguments
from .options import FOLDER, JsonArguments, argument, command, flag, option
from .settings import CommandSettings, try_folder
from .show import console, printable, show_facts

TAP_SECONDS: Final = 30.0
"""For the contracts of a federation to be there."""
TAP_ENDS: Final = 20.0
"""For a tap to write what it has, when it is to end."""
TAP_FOR: Final = "315360000"
"""Seconds: as long as we."""
_TURN: Final = 0.1


class _StudyWatch(ClusterArguments, JsonArguments, first=True):
    folder: Path | None = argument(type=FOLDER, required=False)
    live: bool = flag("Tap the federation into --data.")
    data: Path | None = option("Data set with registrations and subscriptions.", type=FOLDER, metavar="DATA")
    publisher: str = option("Registration of all documents.", default="", metavar="ID")
    window: int = option("Seconds of a window.", type=click.IntRange(1, 86_400), shown=60)
    delay: int = option("Seconds to wait for late publications.", type=click.IntRange(0, 86_400), shown=60)
    every: float = option("Seconds of a batch.", type=click.FloatRange(0.1, 3600), shown=2.0)
    seconds: float | None = option("End after that many seconds.", type=click.FloatRange(0, min_open=True))
    until_idle: float | None = option(
        "End when nothing has come for that many seconds.", type=click.FloatRange(0, min_open=True)
    )
    out: Path = option(
        "Folder for state, page and result.", type=FOLDER, shown=Path("study-watch"),
        callback=try_folder
    )  # fmt: skip

    def asked(self, where: Path, data: Path) -> watching.WatchSettings:
        """The settings of a watch over `where`, by the contracts of `data`. Raises ConfigurationError."""
        files = where / "publications" if (where / "publications").is_dir() else where
        if not files.is_dir():
            raise ConfigurationError(f"{files} is not a folder", hint="Make it, and let files arrive there by renaming")
        if not all((data / name).is_dir() for name in dataset.CONTRACTS):
            raise ConfigurationError(
                f"{data} has no contracts to judge by",
                hint="--data DATA names a data set (jbi study export or generate)",
            )
        xml = any(files.glob("*.xml"))
        if xml and any(files.glob("*.parquet")):
            raise ConfigurationError(f"{files} has both Parquet and XML", hint="Watch two folders")
        return watching.WatchSettings(
            folder=str(files.resolve()), xml=xml, publisher=self.publisher, window=self.window, delay=self.delay
        )


@command(None, _StudyWatch)
def watch(given: _StudyWatch) -> int:
    """Count deliveries of arriving publications, window by window.

    FOLDER is a data set that grows, or a folder of Parquet files or XML documents (then --data has the registrations
    and subscriptions). The same command continues where it ended; Ctrl-C ends it (exit code 130).

    \b
    jbi study watch data
    jbi study watch arriving --data data --window 10 --until-idle 60
    jbi study watch --live --data tapped
    """
    if given.is_submitted():
        return 0
    if given.live == (given.folder is not None):
        raise ConfigurationError("what is to be watched?", hint="Give a folder, or --live, and not both")
    report.parquet_present()
    plots.present()
    where = given.folder or given.data or given.out / "tapped"
    data = given.data or where
    code = 0
    watched: watching.Watch | None = None
    try:
        with _tapping(given.settings, data) if given.live else nullcontext(lambda: None) as look:
            watched = watching.Watch(given.out, given.asked(where, data), contracts_of(data))
            _watched(watched, given, look)
    except KeyboardInterrupt:
        if watched is None:
            raise
        code = 130
    found = watched.shown()
    finish(watched.folder, found, StudyRun(input=watched.state.settings.folder, engine="spark"))
    rows = [*found.facts, ("report", str(given.out / "report.html"))]
    plain = {"study": "watch", "numbers": found.numbers, "out": str(given.out)}
    given.show(plain, lambda: show_facts(rows, title="watched"))
    return code


def contracts_of(data: Path) -> Callable[[], Contracts]:
    """The contracts of a data set, read again when their files have changed."""
    seen: list[tuple[object, Contracts]] = []

    def read() -> Contracts:
        paths = [path for name in dataset.CONTRACTS for path in sorted((data / name).glob("*.parquet"))]
        stamp = [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
        if not seen or seen[0][0] != stamp:
            seen[:] = [(stamp, contracts_in(data, []))]
        return seen[0][1]

    return read


def _watched(watched: watching.Watch, given: _StudyWatch, look: Callable[[], None]) -> None:
    """Until its end. `look` raises when nothing can come any more."""
    in_terminal = sys.stdout.isatty() and not given.as_json
    end = time.monotonic() + given.seconds if given.seconds is not None else float("inf")
    last = -1
    with (
        Live(console=console(), refresh_per_second=2) if in_terminal else nullcontext() as shown,
        session.open_session("jbi study watch", master=given.master, extra=given.conf) as spark,
    ):
        begun = time.monotonic()

        def turn() -> bool:
            nonlocal last
            if watched.batches != last:
                last = watched.batches
                if isinstance(shown, Live):
                    shown.update(_table(watched.shown()))
                elif last:
                    _line(watched, as_json=given.as_json)
            look()
            now = time.monotonic()
            return now < end and (given.until_idle is None or now < max(begun, watched.changed) + given.until_idle)

        watched.run(spark, given.every, turn)


def _line(watched: watching.Watch, *, as_json: bool) -> None:
    found = watched.shown()
    if as_json:
        click.echo(msgspec.json.encode({"batch": watched.state.batch, **found.numbers}).decode())
    else:
        click.echo("  ".join(f"{name} {value:,.0f}" for name, value in found.numbers.items()))


def _table(found: Result) -> Rich:
    """The windows, for a terminal; subscriptions' names are others' text."""
    whole = Rich.grid()
    facts = Rich.grid(padding=(0, 2))
    for what, value in found.facts:
        facts.add_row(what, printable(value))
    whole.add_row(facts)
    for table in found.tables:
        made = Rich(title=table.title, title_justify="left")
        for name, kind in table.columns:
            made.add_column(name, justify="left" if kind == "text" else "right")
        for row in table.rows[:8]:
            made.add_row(*(printable(v) if isinstance(v, str) else f"{v:,}" for v in row))
        whole.add_row(made)
    return whole


@contextmanager
def _tapping(configured: CommandSettings, data: Path) -> Iterator[Callable[[], None]]:
    """A tap of its own process, as by `jbi study export`, that writes to a data set meanwhile."""
    words = [*configured.words(), "study", "export", "--seconds", TAP_FOR, "--resume", "--out", str(data), "--json"]
    words += ["--parent", str(os.getpid())]  # else it would go on without us, up to its gigabyte
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        tap = subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", "jbi_pubsub", *words], stdout=subprocess.DEVNULL, stderr=said
        )

        def look() -> None:
            if tap.poll() is not None:
                said.seek(0)
                lines = [printable(line) for line in said.read().splitlines() if line.strip()]
                raise StudyError(
                    f"the tap has ended: {lines[-1] if lines else 'without a word'}"[:500],
                    hint="See `jbi status`, and jbi study export --help",
                )

        interrupted = False
        try:
            until = time.monotonic() + TAP_SECONDS
            while not all(any((data / name).glob("*.parquet")) for name in dataset.CONTRACTS):
                look()
                if time.monotonic() > until:
                    raise StudyError(f"the tap has not begun within {TAP_SECONDS:g} s", hint="See `jbi status`")
                time.sleep(_TURN)
            (data / "publications").mkdir(exist_ok=True)
            yield look
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            # a terminal's Ctrl-C has told it already, and a second one would end it at once
            end(tap, (0, TAP_ENDS / 4) if interrupted else (signal.SIGINT, TAP_ENDS), (signal.SIGINT, TAP_ENDS))
