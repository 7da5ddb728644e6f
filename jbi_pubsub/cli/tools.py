"""`jbi study`, `jbi completion`: tools that need no server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import msgspec
from click.shell_completion import get_completion_class
from rich.progress import Progress, TaskID

from jbi_pubsub.spark import ENGINES, match_study

from .near import NearNames
from .settings import json_option, try_folder
from .show import console, show_json, show_rows


@click.group(cls=NearNames)
def study() -> None:
    """Bulk studies on Spark, with the lookup service's semantics."""


@study.command()
@click.option("--registrations", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--templates", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("study-match"), show_default=True,
    callback=try_folder, help="Folder for Parquet and the report.",
)  # fmt: skip
@click.option("--engine", type=click.Choice(list(ENGINES)), default="auto", show_default=True)
@json_option
def match(registrations: int, templates: int, seed: int, out: Path, engine: str, as_json: bool) -> None:
    """Match a generated population of registrations with templates; Parquet, HTML report, a table.

    \b
    jbi study match
    jbi study match --registrations 1000000 --templates 100000 --engine spark --out big
    """
    with Progress(console=console(), transient=True, disable=not sys.stdout.isatty()) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None)
            progress.update(tasks[stage], completed=done, total=total or None)

        report = match_study(
            registrations=registrations, templates=templates, seed=seed, out=out, engine=engine, progress=tell
        )
    if as_json:
        show_json(json.loads(msgspec.json.encode(report)))
    else:
        show_rows(("", ""), report.rows(), title="first-level match study")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    source <(jbi completion bash)
    """
    from .app import jbi

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(jbi, {}, "jbi", "_JBI_COMPLETE").source())
