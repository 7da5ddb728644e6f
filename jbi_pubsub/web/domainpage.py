"""The page of the domain: its servers, its links to other domains with the members behind what is brought, and what is
offered in it. What others say is shown as text."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from jbi_pubsub.core.errors import JbiError

from .console import LOOK_SECONDS, Console, headed, later, numbered, region, said, show_rows, table, words
from .domainview import TABLES, DomainView, rows_of

ANSWER_SECONDS: Final = 2.0
"""For a lookup service to answer, where none has yet."""
ROWS: Final = 25
"""Rows of a page of a table."""
NOTES: Final = {
    "Links": "Members are the subscriptions on the far side, where only objects that match one are sent. Saved are the "
    "copies that were not sent, because one copy of an object serves all members.",
    "Members": "The members of the one subscription that a link has to a type: their predicates, and the number of "
    "members with each. The first line has the highest importance that a member requests, and the objects sent.",
}


def build(console: Console) -> None:
    """Register the page."""
    seen = DomainView(console.config, console.observer)
    console.closing.append(seen.close)
    console.page("/domains")(lambda: _DomainPage(console, seen))


class _DomainPage:
    """One tab's."""

    def __init__(self, console: Console, seen: DomainView) -> None:
        self._console, self._seen = console, seen
        self._title = words("p", "", "jbi-name")
        self._problem = words("p", "", "jbi-problem").props("role=status")
        self._parts, self._tables = later(), {}
        with self._parts:
            for title, heads in TABLES.items():
                with region(title):
                    if title in NOTES:
                        words("p", NOTES[title], "jbi-note")
                    self._tables[title] = table(headed(heads), empty="None", rows=ROWS)
        ui.timer(LOOK_SECONDS, self._look)

    async def _look(self) -> None:
        try:
            found = await self._console.call(self._seen.look, ANSWER_SECONDS)
        except JbiError as exc:
            self._problem.text = said(exc)
            return
        self._title.text, self._problem.text = found.title, "; ".join(found.troubles)
        for title, rows in rows_of(found).items():
            show_rows(self._tables[title], numbered(TABLES[title], rows))
        self._parts.set_visibility(True)
