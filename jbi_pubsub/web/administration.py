"""The page that changes something: there with [web] admin alone, and then the servers themselves decide whether this
process may (`administer`). Each action asks first, and says what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

from nicegui import ui

from jbi_pubsub.core.errors import JbiError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarProxy
from jbi_pubsub.protocol.services import AdminProxy

from .console import LOOK_SECONDS, Console, action, region, said, words
from .federation import Server
from .objects import shown

log = logging.getLogger("jbi_pubsub.web")

DRAIN_SECONDS: Final = 10.0
"""For what waits to go out, until it is said how much is left."""
FITTING: Final = 50
"""Subscriptions in which an id is looked for."""
TOLD_MOST: Final = 20
"""Lines that say what happened."""
LOGGED_MOST: Final = 500
"""Characters of an action in the log."""


def build(console: Console) -> None:
    """Register the page."""

    @console.page("/administration")
    def _(cancel: str = "") -> None:
        _page(console, cancel[:200])


class ConfirmedActions:
    """One action after the other, each confirmed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_asking = False
        with ui.dialog().props('persistent aria-label="Confirm"') as self._dialog, ui.card():
            self._question = words("p")
            with ui.row():
                ui.button("No, leave it", on_click=lambda: self._dialog.submit(False)).props("flat no-caps autofocus")
                ui.button("Yes, do it", on_click=lambda: self._dialog.submit(True)).props(
                    "no-caps color=negative text-color=paper"
                )
        with region("What happened"):
            self._log = ui.element("ol").classes("jbi-log").props("role=log aria-live=polite")

    async def do(self, question: str, done: str, what: Callable[..., Any], *arguments: Any) -> bool:
        """Ask, do it, say what came of it: `done` with the result. While something is asked, what else is wanted is
        not: the answer would be another question's."""
        if self._is_asking:
            return False
        self._is_asking, self._question.text = True, question
        try:
            if not await self._dialog:
                return False
        finally:
            self._is_asking = False
        try:
            result = await self._console.call(what, *arguments)
        except JbiError as exc:
            self.tell(f"Not done: {said(exc)}")
            return False
        text = done.format(result)
        session = self._console.session
        log.warning("%s: %s", (session.user if session is not None else "") or "console", shown(text, LOGGED_MOST))
        self.tell(text)
        return True

    def tell(self, text: str) -> None:
        """The newest line first."""
        with self._log:
            words("li", f"{time.strftime('%H:%M:%S')} {text}").move(target_index=0)
        for old in list(self._log)[TOLD_MOST:]:
            old.delete()


def _page(console: Console, uid: str) -> None:
    lookups, delegates = region("Lookup services"), region("Delegates")
    with region("Subscriptions"):
        with ui.element("div").classes("jbi-form"):
            which = (
                ui.input("Id of a subscription, or its beginning", value=uid).props("maxlength=200").classes("jbi-grow")
            )
            cancel = action("Cancel it")
        words("p", "Its subscriber gets a loss notice, and no more objects until it subscribes again.",
              "jbi-note")  # fmt: skip
    doing = ConfirmedActions(console)
    shown: dict[str, Any] = {}

    async def cancelled() -> None:
        wanted = (which.value or "").strip()
        if not wanted:
            return
        try:
            whole = await console.call(_whole, console, wanted)
        except JbiError as exc:
            doing.tell(f"Not done: {said(exc)}")
            return
        await doing.do(f"Cancel {whole} at all delegates?", "Cancelled {} times.", _cancel, console, whole)

    cancel.on_click(cancelled)

    def look() -> None:
        servers = {s.id: s for s in console.observer.snapshot().servers if s.facts is not None}
        for gone in shown.keys() - servers.keys():
            shown.pop(gone)[0].delete()
        for server in servers.values():
            if server.kind not in ("lookup", "delegate"):
                continue
            if server.id not in shown:
                with lookups if server.kind == "lookup" else delegates:
                    make = _lookup if server.kind == "lookup" else _delegate
                    shown[server.id] = make(console, doing, server)
            shown[server.id][1](server)

    look()
    ui.timer(LOOK_SECONDS, look)


Shown = tuple[ui.element, Callable[[Server], None]]
"""Element that shows a server, and the function that brings it up to date."""


def _lookup(console: Console, doing: ConfirmedActions, server: Server) -> Shown:
    assert server.lookup is not None
    ref, title = server.ref, server.title
    with ui.element("div").classes("jbi-form") as made:
        words("span", f"lookup {title}", "jbi-name")
        state = words("span")
        groups = ui.input("Groups (none: public)", value=", ".join(server.lookup.groups))
        locators = ui.input("Joins (host:port)", value=", ".join(server.lookup.locators))
        for field in (groups, locators):
            field.props('maxlength=1000 hint="Commas between"').classes("jbi-grow")

        async def set_groups() -> None:
            names = listed(groups.value) or ("",)
            called = ", ".join(name or "public" for name in names)
            await doing.do(f"Let {title} serve {called}?", f"{title} serves {{}}.", _groups, console, ref, names)

        async def set_locators() -> None:
            given = listed(locators.value)
            question = f"Let {title} join {', '.join(given) or 'nobody by address'}?"
            await doing.do(question, f"{title} joins {{}}.", _locators, console, ref, given)

        ui.button("Set groups", on_click=set_groups).props("no-caps flat")
        ui.button("Set locators", on_click=set_locators).props("no-caps flat")

    def look(now: Server) -> None:
        if (facts := now.lookup) is not None:  # what is typed stays: this is what holds
            serves = ", ".join(name or "the public group" for name in facts.groups) or "no group"
            state.text = f"serves {serves}, joins {', '.join(facts.locators) or 'nobody by address'}"

    return made, look


def _delegate(console: Console, doing: ConfirmedActions, server: Server) -> Shown:
    ref, title = server.ref, server.title
    with ui.element("div").classes("jbi-form") as made:
        words("span", f"delegate {title}", "jbi-name")
        state = words("span")

        async def drained() -> None:
            question = f"Drain {title}? Until it resumes, it takes no new publishers, and publishers do not find it."
            await doing.do(question, f"{title} is draining; {{:,}} objects still wait.", _drain, console, ref)

        async def resumed() -> None:
            await doing.do(f"Let {title} take publishers again?", f"{title} takes publishers.", _resume, console, ref)

        drain = ui.button("Drain", on_click=drained).props("no-caps flat")
        resume = ui.button("Resume", on_click=resumed).props("no-caps flat")

    def look(now: Server) -> None:
        if (facts := now.delegate) is not None:
            draining = "draining" if facts.draining else "takes publishers"
            state.text = f"{draining}, {facts.queued + facts.in_flight:,} objects wait"
            drain.set_visibility(not facts.draining)
            resume.set_visibility(facts.draining)

    return made, look


def listed(text: str | None) -> tuple[str, ...]:
    """Texts between commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _whole(console: Console, given: str) -> str:
    """The id that begins so, with or without its kind: tables show twelve characters. Raises UnknownUidError when none
    does, or several."""
    servers = [s.id for s in console.observer.snapshot().servers if s.kind == "delegate" and s.facts is not None]
    _, rows, _ = console.observer.subscriptions(servers, search=given, count=FITTING)
    uids = sorted({row.uid for _, row in rows})
    fits = [uid for uid in uids if uid.startswith(given) or uid.rpartition("-")[2].startswith(given)]
    if given in fits:
        return given
    if len(fits) != 1:
        why = (
            f"{len(fits)} subscriptions begin with {given}: give more of the id" if fits else f"no subscription {given}"
        )
        raise UnknownUidError(why, uid=given)
    return fits[0]


def _cancel(console: Console, uid: str) -> int:
    """At how many places it was cancelled. Raises what the last server refused with, when it was nowhere."""
    count, refusal = 0, None
    for server in console.observer.snapshot().servers:
        if server.kind == "delegate" and server.facts is not None:
            try:
                with console.proxy(AdminProxy, server.ref) as proxy:
                    count += proxy.cancel(uid)
            except JbiError as exc:
                refusal = exc
    if not count and refusal is not None:
        raise refusal
    return count


def _drain(console: Console, ref: ServiceRef) -> int:
    with console.proxy(AdminProxy, ref) as proxy:
        return proxy.drain(DRAIN_SECONDS)


def _resume(console: Console, ref: ServiceRef) -> None:
    with console.proxy(AdminProxy, ref) as proxy:
        proxy.resume()


def _groups(console: Console, ref: ServiceRef, names: Sequence[str]) -> str:
    with _registrar(console, ref) as proxy:
        return ", ".join(name or "public" for name in proxy.set_groups(names).groups)


def _locators(console: Console, ref: ServiceRef, given: Sequence[str]) -> str:
    with _registrar(console, ref) as proxy:
        return ", ".join(proxy.set_locators(given).locators) or "nobody by address"


def _registrar(console: Console, ref: ServiceRef) -> closing[RegistrarProxy]:
    own = ServiceRef(ref.service_id, EXPORTED, ref.endpoints, (), ref.certificate)
    return console.proxy(RegistrarProxy, own)
