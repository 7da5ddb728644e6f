"""Plots of measurements and simulations, as SVG and one page, through the studies' door to matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.examples.example import ExampleOutcome, OutcomeTable
from jbi_pubsub.spark import page, plots
from jbi_pubsub.spark.page import Kind, ResultTable
from jbi_pubsub.spark.plots import Plot

from .show import as_json


def ready(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:  # noqa: ARG001  # click's
    """Callback of an option that asks for plots: better told before minutes of measuring. Raises StudyError."""
    if path is not None:
        plots.present()
    return path


def write_page(file: Path, title: str, lead: str, outcome: ExampleOutcome, footer: str) -> None:
    """One HTML file. Raises StudyError without matplotlib, ConfigurationError if it can't be written."""
    _write({file: _page(title, lead, outcome, [(plot, plots.drawn(plot)[0]) for plot in outcome.plots], footer)})


def write_folder(folder: Path, title: str, lead: str, outcome: ExampleOutcome, footer: str) -> list[Path]:
    """The same as index.html in a folder, with an SVG of each plot, and data.json; the files. Raises as
    `write_page`."""
    drawn = [(plot, plots.drawn(plot)[0]) for plot in outcome.plots]
    files = {folder / f"{plot.name}.svg": svg for plot, svg in drawn}
    files[folder / "index.html"] = _page(title, lead, outcome, drawn, footer)
    files[folder / "data.json"] = as_json(msgspec.to_builtins(outcome), indent=1)
    _write(files)
    return list(files)


def _page(title: str, lead: str, outcome: ExampleOutcome, drawn: Sequence[tuple[Plot, str]], footer: str) -> str:
    facts = [("ok" if kept else "WRONG", says) for says, kept in outcome.promises]
    tables = [_table(number, told) for number, told in enumerate(outcome.tables)]
    return page.laid_out(title, lead, facts, tables, drawn, footer)


def _table(number: int, told: OutcomeTable) -> ResultTable:
    columns: list[tuple[str, Kind]] = []
    for at, head in enumerate(told.columns):
        cells = [row[at] for row in told.rows]
        are_numbers = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        is_whole = all(isinstance(cell, int) for cell in cells)
        columns.append((head, "text" if not are_numbers else "integer" if is_whole else "number"))
    return ResultTable(name=f"table-{number}", title=told.title, columns=tuple(columns), rows=tuple(told.rows))


def _write(files: dict[Path, str]) -> None:
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as exc:
        raise ConfigurationError(f"plots: {exc.filename}: {exc.strerror or exc}", hint="Give another place") from exc
