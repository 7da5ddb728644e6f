"""Series of what managers of quality of service tell, as a table, CSV or JSON (`jbi status --series NAME`)."""

from __future__ import annotations

import csv
import fnmatch
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError, ProtocolError
from jbi_pubsub.core.values import converted
from jbi_pubsub.protocol.status.quality import SeriesStatus

from .near import told
from .show import Column, Table, View, printable, show_json, show_tables

SERIES: Final = (
    Column("series", long=True, name=True), Column("at", spare=1), Column("last", right=True),
    Column("mean", right=True), Column("deviation", right=True, spare=1), Column("trend", right=True, spare=2),
    Column("points", right=True, spare=4), Column("server", long=True, name=True, spare=3),
)  # fmt: skip
FORMULA: Final = ("=", "+", "-", "@")
"""Characters that make a table calculation take a name for a formula."""


Found = list[tuple[str, str, SeriesStatus]]
"""Server, name and series."""


def show_series(servers: Sequence[Mapping[str, Any]], wanted: str, view: View, *, as_csv: bool, as_json: bool) -> None:
    """Show what these statuses have of the series `wanted`, a name or a pattern with * and ?. Raises
    ConfigurationError, ProtocolError for a server that tells what is none."""
    everything = [each for facts in servers for each in _series_of(facts)]
    if not everything:
        raise ConfigurationError(
            "no server that answers has series", hint='They come with [qos] mode = "on", after some seconds'
        )
    found = [each for each in everything if fnmatch.fnmatchcase(each[1], wanted)]
    if not found:
        raise ConfigurationError(f"--series: {told('series', wanted, {name for _, name, _ in everything})}")
    if as_csv:
        click.echo(_csv(found), nl=False)
    elif as_json:
        show_json(_facts(found))
    else:
        show_tables([Table(SERIES, [_row(*each) for each in found])], view)


def _series_of(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, SeriesStatus]]:
    qos = facts.get("qos")
    if not isinstance(qos, Mapping):
        return
    server = str(facts["address"])
    try:
        series = converted(qos.get("series", {}), dict[str, SeriesStatus])
    except msgspec.ValidationError as exc:
        raise ProtocolError(f"{server} gives series that this version does not understand: {str(exc)[:200]}") from exc
    for name in sorted(series):
        yield server, name, series[name]


def _row(server: str, name: str, series: SeriesStatus) -> tuple[object, ...]:
    unit = "/s" if series.per_second else ""
    statistics = (series.last, series.mean, series.deviation, series.trend)
    shown = ("-" if value is msgspec.UNSET else _number(value) + unit for value in statistics)
    return name, time.strftime("%H:%M:%S", time.localtime(series.at)), *shown, len(series.points), server


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _csv(found: Found) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("server", "series", "time", "value"))
    for server, name, series in found:
        cells = [f"'{cell}" if cell.startswith(FORMULA) else cell for cell in map(printable, (server, name))]
        writer.writerows((*cells, f"{at:.3f}", value) for at, value in series.points)
    return out.getvalue()


def _facts(found: Found) -> list[dict[str, Any]]:
    """By server."""
    by_server: dict[str, dict[str, Any]] = {}
    for server, name, series in found:
        unknown = dict.fromkeys(("mean", "deviation", "trend"))
        by_server.setdefault(server, {})[name] = {**unknown, **msgspec.to_builtins(series)}
    return [{"address": server, "series": series} for server, series in by_server.items()]
