"""`jbi client`: a script of publishers, subscribers and queries against a node."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError, StorageError

from .servers import stop_on_signal
from .settings import Settings, json_option, pass_settings
from .show import Column, printable, show_json, show_table

if TYPE_CHECKING:
    from jbi_pubsub.web.panels import Event

COLUMNS = ("opened", "published", "received", "lost", "result", "refused", "failed")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--log", "log_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write each event there, a JSON line each.")  # fmt: skip
@click.option("--check", "only_check", is_flag=True, help="Check the script; nobody is connected to.")
@json_option
@pass_settings
@click.pass_context
def client(
    context: click.Context, settings: Settings, file: Path, log_file: Path | None, only_check: bool, as_json: bool
) -> None:
    """Publish, subscribe and ask as a script says, and count what came of it.

    Exit code 1: something is not as the script expects.

    \b
    jbi client script.toml
    jbi client script.toml --log events.jsonl --json
    jbi client script.toml --check
    """
    from rich.progress import Progress  # here: `jbi --help` starts faster without

    from jbi_pubsub.web.panels import Panels, read, run

    from .show import console

    script = read(file)
    if only_check:
        panels = [*script.publisher, *script.subscriber, *script.query]
        click.echo(f"{printable(str(file))}: {len(panels)} panels")
        return
    stop = stop_on_signal()
    total = sum(each.publishers * each.count for each in script.publisher)
    try:
        out = log_file.open("wb") if log_file is not None else None
    except OSError as exc:
        raise ConfigurationError(f"{log_file}: {exc.strerror or exc}", hint="--log names a file to write") from exc

    fault: OSError | None = None

    def note(event: Event) -> None:
        nonlocal fault
        if out is not None and fault is None:
            try:
                out.write(msgspec.json.encode(event) + b"\n")
            except OSError as exc:
                fault = exc
                stop.set()

    began = time.monotonic()
    made = Panels(settings.load(), note)
    try:
        with Progress(console=console(), transient=True, disable=as_json or not sys.stdout.isatty()) as progress:
            task = progress.add_task("published", total=total or None)
            failures = run(made, script, stop, lambda: progress.update(task, completed=made.total("published")))
    finally:
        if out is not None:
            try:
                out.close()
            except OSError as exc:
                fault = fault or exc
    if fault is not None:
        raise StorageError(f"{log_file}: {fault.strerror or fault}", hint="The log has not all that has happened")
    seconds = time.monotonic() - began
    counts = made.counts()
    counts.pop("", None)
    if as_json:
        show_json({"seconds": round(seconds, 3), "panels": counts, "failures": failures})
    else:
        columns = [Column("panel", name=True, long=True), *(Column(name, right=True) for name in COLUMNS)]
        rows = [(printable(name), *(count.get(each, 0) for each in COLUMNS)) for name, count in counts.items()]
        show_table(columns, rows)
        for each in failures:
            click.echo(f"jbi: {printable(each)}", err=True)
    context.exit(1 if failures else 0)
