"""A study's page: one HTML file that needs nothing else, reads in light and dark, sorts its tables, and prints."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isnan
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jbi_pubsub.spark import plots

if TYPE_CHECKING:
    from jbi_pubsub.spark.plots import Plot

ROWS_MOST: Final = 200
"""Rows of a table in the page; the rest is in its CSV."""

LONG: Final = 24
"""Characters of a text that may take several lines, but not one word each."""

TEXT_MOST: Final = 300
"""Characters of a text in the page; the rest is in its CSV."""

_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:76rem}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.2rem;margin:2rem 0 .4rem}p{max-width:44rem}
.wide{overflow:auto;max-height:36rem}.wide:focus-visible{outline:2px solid}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .55rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td{max-width:26rem}td.long{overflow-wrap:anywhere;min-width:13rem}
.facts td{max-width:44rem;overflow-wrap:anywhere}thead~tbody td:not(.n):first-child{min-width:9rem}
td.n,th.n{text-align:right;white-space:nowrap}thead th{position:sticky;top:0;background:Canvas;vertical-align:bottom}
thead button{all:unset;cursor:pointer;font-weight:600}thead button:focus-visible{outline:2px solid}
[aria-sort=descending] button::after{content:" \\25be"}[aria-sort=ascending] button::after{content:" \\25b4"}
tbody tr:nth-child(even){background:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,32rem),1fr));gap:1rem;margin-top:1rem}
figure{margin:0;max-width:46rem;overflow-x:auto}figure svg{width:100%;min-width:30rem;height:auto}
.facts th{font-weight:400;opacity:.8}footer{margin-top:2rem;font-size:.85rem;opacity:.8;overflow-wrap:anywhere}
@media print{body{max-width:none;padding:0;font-size:10px}.wide{overflow:visible;max-height:none}
.plots{display:block}figure{margin:.5rem 0;overflow:visible}figure svg{min-width:0}
td,th,thead~tbody td:not(.n):first-child,td.long{padding:.1rem .25rem;min-width:0}td{overflow-wrap:anywhere}
th.n{white-space:normal}thead th{position:static}figure,tr{break-inside:avoid}}
"""

_SCRIPT: Final = """
for(const button of document.querySelectorAll("thead button"))button.addEventListener("click",()=>{
const head=button.closest("th"),table=head.closest("table"),at=[...head.parentNode.children].indexOf(head);
const down=head.getAttribute("aria-sort")!=="descending",numeric=head.classList.contains("n");
const of=row=>{const cell=row.children[at];return numeric?Number(cell.dataset.v):cell.textContent};
const rows=[...table.tBodies[0].rows].sort((a,b)=>{const x=of(a),y=of(b);return(x<y?-1:x>y?1:0)*(down?-1:1)});
for(const other of head.parentNode.children)other.removeAttribute("aria-sort");
head.setAttribute("aria-sort",down?"descending":"ascending");table.tBodies[0].append(...rows)});
"""


Kind = Literal["text", "integer", "number"]
Value = str | int | float
Columns = tuple[tuple[str, Kind], ...]


def texts(*names: str) -> Columns:
    """Columns of texts."""
    return tuple((name, "text") for name in names)


def integers(*names: str) -> Columns:
    """Columns of whole numbers."""
    return tuple((name, "integer") for name in names)


def numbers(*names: str) -> Columns:
    """Columns of numbers."""
    return tuple((name, "number") for name in names)


class ResultTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows with their columns: name and kind of each; a number that is not there is NaN. `note` says what they mean."""

    name: str
    title: str
    columns: Columns
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


def laid_out(
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str]],
    tables: Sequence[ResultTable],
    drawn: Sequence[tuple[Plot, str]],
    footer: str,
    *,
    refresh: int = 0,
) -> str:
    """A page of facts, plots with their SVG, and tables, in this order; texts are plain."""
    shown = "".join(f"<tr><th scope=row>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts)
    figures = "".join(
        f'<figure role="img" aria-label="{escape(p.title)}">{plots.for_page(svg)}</figure>' for p, svg in drawn
    )
    figures = f'<div class="plots">{figures}</div>' if drawn else ""
    told = "".join(map(_table, tables))
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{again}<title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1><p>{escape(lead)}</p>"
        f'<table class="facts"><tbody>{shown}</tbody></table>'
        f"{figures}{told}<footer>{escape(footer)}</footer><script>{_SCRIPT}</script></body></html>\n"
    )


def _table(table: ResultTable) -> str:
    heads = "".join(f"<th scope=col{_class(kind)}><button>{escape(name)}</button></th>" for name, kind in table.columns)
    first = table.rows[:ROWS_MOST]
    rows = "".join(
        "<tr>" + "".join(_cell(value, kind) for value, (_, kind) in zip(row, table.columns, strict=True)) + "</tr>"
        for row in first
    )
    left = [f"the first {ROWS_MOST} of {len(table.rows):,} rows"] if len(table.rows) > ROWS_MOST else []
    if any(isinstance(value, str) and len(value) > TEXT_MOST for row in first for value in row):
        left.append(f"of texts the first {TEXT_MOST} characters")
    more = f"<p>Here are {' and '.join(left)}; all is in tables/{escape(table.name)}.csv.</p>" if left else ""
    title = escape(table.title)
    return (
        f"<h2>{title}</h2>" + (f"<p>{escape(table.note)}</p>" if table.note else "")
        + (f'<div class="wide" tabindex=0 role=region aria-label="{title}">'
           f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>" if rows else "<p>None.</p>")
        + more
    )  # fmt: skip


def _cell(value: Value, kind: Kind) -> str:
    if isinstance(value, str):
        shown = value if len(value) <= TEXT_MOST else f"{value[:TEXT_MOST]}..."
        long = ' class="long"' if len(shown) > LONG else ""
        return f"<td{long}>{escape(shown)}</td>"
    if isnan(value):
        return '<td class="n" data-v="-Infinity">-</td>'
    told = f"{value:,}" if kind == "integer" else f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.4g}"
    return f'<td class="n" data-v="{value}">{told}</td>'


def _class(kind: Kind) -> str:
    return "" if kind == "text" else ' class="n"'
