"""The pages of archives: a query over all of them by type, XPath and time, and one object of its results.

Archives are asked as this process. Deleting is there with [web] admin, and the archives decide. What objects say is
shown as text.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request
from msgspec import UNSET
from nicegui import ui

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.services import HistoryProxy

from .administration import ConfirmedActions
from .clientpage import prefixes_of
from .console import SEARCH_MOST, Console, action, add_action, later, region, said, show_rows, table, tell, words
from .federation import Server, disseminators
from .objects import looked_at
from .picture import counted

SHOWN: Final = 100
"""Results of a query that are shown."""
QUERY_SECONDS: Final = 10.0
FIELDS: Final = {
    "type": "Type (none: all)", "predicate": "Predicate (XPath)", "prefixes": "Prefixes: p=uri, q=uri",
    "since": "From: 2h, or 2026-11-01T00:00Z", "until": "Until",
}  # fmt: skip
ORDERS: Final = {"newest": "newest first", "oldest": "oldest first"}
NO_ARCHIVE: Final = "No server here has an archive: [archive] folder of a delegate's configuration makes one."


def build(console: Console) -> None:
    """Register the pages."""

    @console.page("/archive")
    def _(request: Request) -> None:
        _QueryPage(console, dict(request.query_params))

    @console.page("/object")
    def _(id: str = "") -> None:  # noqa: A002  # the query's word
        _ObjectPage(console, id[:SEARCH_MOST])


class _QueryPage:
    """One tab's. The address of the page has the query, so that it can be kept and come back to."""

    def __init__(self, console: Console, given: dict[str, str]) -> None:
        self._console = console
        with ui.element("div").classes("jbi-form"):
            self._fields: dict[str, Any] = {
                name: ui.input(label, value=given.get(name, "")).props("maxlength=2000").classes("jbi-grow")
                for name, label in FIELDS.items()
            }
            known = disseminators(console.observer.snapshot())
            types = {t.name.rpartition(" ")[0] for _, facts in known for t in facts.types if t.of == 1}
            self._fields["type"].set_autocomplete(sorted(types))
            order = given.get("order", "")
            self._fields["order"] = ui.select(ORDERS, value=order if order in ORDERS else "newest", label="Order")
            self._button = action("Search the archives", on_click=self._search)
        for field in self._fields.values():
            field.on("keydown.enter", self._search)
        self._told = words("p", "" if _archives(console) else NO_ARCHIVE, "jbi-note").props("role=status")
        with later() as self._parts:
            self._rows = table(
                (("time", "Published"), ("type", "Type"), ("size", "#Payload"), ("metadata", "Metadata"),
                 ("go", "Go to")), empty="None", whole=("time",), searched=False,
            )  # fmt: skip
            add_action(
                self._rows, "go",
                """<a class="jbi-link" :href="'/object?id=' + encodeURIComponent(props.row.key)"
                   :aria-label="'Object ' + props.row.key">Look</a>""",
            )  # fmt: skip
        if given:
            ui.timer(0.1, self._search, once=True)

    async def _search(self) -> None:
        asked = {name: text for name, field in self._fields.items() if (text := (field.value or "").strip())}
        ui.navigate.history.replace(f"/archive?{urlencode(asked)}")
        kind, prefixes = asked.pop("type", ""), asked.pop("prefixes", "")
        self._button.disable()
        try:
            conditions = {**asked, "namespaces": prefixes_of(prefixes), "limit": SHOWN + 1, "timeout": QUERY_SECONDS}
            found, partial = await self._console.call(self._console.objects.stored, kind, conditions)
        except JbiError as exc:
            self._parts.set_visibility(False)
            tell(self._told, said(exc))
            return
        finally:
            self._button.enable()
        show_rows(self._rows, [
            {"key": each.object_id, "time": moment(each.published), "type": each.type, "size": f"{each.size:,} B",
             "metadata": each.brief} for each in found[:SHOWN]
        ])  # fmt: skip
        self._parts.set_visibility(True)
        more = f"The first {SHOWN} objects; a narrower time shows others" if len(found) > SHOWN else ""
        silent = f"; archives that did not answer to the end: {', '.join(partial)}" if partial else ""
        tell(self._told, (more or counted(len(found), "object")) + silent, calm=not partial)


class _ObjectPage:
    """One tab's page of one archived object."""

    def __init__(self, console: Console, object_id: str) -> None:
        self._console, self._id = console, object_id
        words("p", object_id, "jbi-name")
        self._told = words("p", "Asking the archives.", "jbi-note").props("role=status")
        with later() as self._parts:
            self._texts = {}
            for title in ("Facts", "Metadata", "Payload"):
                with region(title):
                    self._texts[title] = words("pre", "", "jbi-code").props(f'tabindex=0 aria-label="{title}"')
            action("Download the payload", on_click=self._download)
            if console.admin:
                ui.button("Delete it", on_click=self._delete).props("no-caps color=negative text-color=paper")
                self._doing = ConfirmedActions(console)
        ui.timer(0.1, self._look, once=True)

    async def _look(self) -> None:
        try:
            obj = await self._console.call(self._console.objects.get, self._id, QUERY_SECONDS)
        except JbiError as exc:
            tell(self._told, said(exc))
            return
        seen = looked_at(obj, time.time())
        self._texts["Facts"].text = (
            f"type: {seen.type}\npublished: {moment(seen.published)}\nregistration: {obj.platform.registration}\n"
            f"number in its registration: {seen.sequence:,}\nplace in the archive: {obj.platform.place}\n"
            f"payload: {seen.size:,} bytes"
        )
        self._texts["Metadata"].text, self._texts["Payload"].text = seen.metadata, seen.payload
        tell(self._told, "")
        self._parts.set_visibility(True)

    async def _download(self) -> None:
        try:
            obj = await self._console.call(self._console.objects.get, self._id, QUERY_SECONDS)
            ui.download.content(obj.payload, f"{self._id}.bin", "application/octet-stream")
        except JbiError as exc:
            tell(self._told, said(exc))

    async def _delete(self) -> None:
        if await self._doing.do(f"Delete {self._id} from all archives, for good?", "Deleted {} times.", self._deleted):
            self._parts.set_visibility(False)
            tell(self._told, "It was deleted.", calm=True)

    def _deleted(self) -> int:
        """Number of archives that had it. Raises what one that refuses says."""
        count = 0
        for server in _archives(self._console):
            with self._console.proxy(HistoryProxy, server.ref) as proxy:
                count += proxy.delete(QueryRequest(object_ids=(self._id,)), QUERY_SECONDS).count
        return count


def _archives(console: Console) -> list[Server]:
    """Servers that have one."""
    return [s for s, facts in disseminators(console.observer.snapshot()) if facts.archive is not UNSET]


def moment(seconds: float) -> str:
    """A time since the epoch as queries take it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
