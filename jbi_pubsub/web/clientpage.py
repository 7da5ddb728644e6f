"""The page of the test client: panels on one connection of this console's process, shared by all tabs. They stay until
they are removed, whoever looks. There with [web] admin alone: it publishes.

Fields are those of the panels themselves (panels.py), but for files: a page has none of this host read.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final, get_args

import msgspec
from nicegui import ui
from nicegui.events import GenericEventArguments

from jbi_pubsub.capi.connection import Share
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.values import converted

from .console import LOOK_SECONDS, Console, action, add_action, region, said, show_rows, table, words
from .guests import GuestSubscriber
from .objects import shown
from .panels import Event, Panels
from .script import ROLES, ConnectionPanel, PublisherPanel, QueryPanel, SubscriberPanel

LOG: Final = 50
"""Events that are shown."""
ROWS: Final = 25
COUNTS: Final = ("opened", "published", "received", "lost", "result", "refused", "failed")
LONG: Final = ("metadata", "payload", "invariants")
"""Fields of several lines."""
LEFT_OUT: Final = ("metadata_file", "payload_file", "expect")
"""Fields of scripts alone."""
_CHOICES: Final = {"": "as the platform has it", "yes": "yes", "no": "no"}


def build(console: Console) -> None:
    """Register the page."""
    events: deque[Event] = deque(maxlen=LOG)
    panels = Panels(console.config, events.append, share=Share(GuestSubscriber))
    console.closing.append(panels.disconnect)
    console.page("/client")(lambda: _ClientPage(console, panels, events))


class Form:
    """Fields for a struct, and the struct that they say."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self._fields: dict[str, Any] = {}
        with ui.element("div").classes("jbi-form"):
            for each in msgspec.structs.fields(kind):
                if each.name not in LEFT_OUT:
                    self._fields[each.name] = self._field(each)

    def _field(self, each: msgspec.structs.FieldInfo) -> Any:
        label = each.name.replace("_", " ")
        if bool in get_args(each.type):
            return ui.select(_CHOICES, value="", label=label)
        if each.name in LONG:
            return ui.textarea(label).props("maxlength=1000000 rows=3").classes("jbi-code jbi-grow")
        start = (
            "" if each.default is msgspec.NODEFAULT or not isinstance(each.default, str | int) else str(each.default)
        )
        made = ui.input(label, value=start, password=each.name == "password").props("maxlength=2000")
        return made.classes("jbi-grow") if each.name in ("predicate", "prefixes", "type") else made

    def value(self) -> Any:
        """Raises ConfigurationError."""
        given: dict[str, Any] = {}
        for each in msgspec.structs.fields(self._kind):
            text = str(self._fields[each.name].value or "") if each.name in self._fields else ""
            if text:
                given[each.name] = _meant(each, text)
        try:
            return converted(given, self._kind)
        except msgspec.ValidationError as exc:
            raise ConfigurationError(str(exc)[:300]) from exc


def _meant(each: msgspec.structs.FieldInfo, text: str) -> Any:
    """Value that somebody has typed, or chosen. Raises ConfigurationError."""
    if bool in get_args(each.type):
        return text == "yes"
    if each.name == "prefixes":
        return prefixes_of(text)
    if each.name == "delegate":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if each.type is str or str in get_args(each.type) or each.name == "version":
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{each.name.replace('_', ' ')}: {text[:40]!r} is not a number") from None


def prefixes_of(text: str) -> dict[str, str]:
    """Namespaces by their prefixes, as somebody has typed them. Raises ConfigurationError."""
    return dict(_pair(part) for part in text.split(",") if part.strip())


def _pair(text: str) -> tuple[str, str]:
    prefix, equals, uri = text.strip().partition("=")
    if not (prefix and equals and uri):
        raise ConfigurationError(f"prefixes: {text[:40]!r}", hint="They are prefix=uri, with commas between")
    return prefix, uri


class _ClientPage:
    """One tab's, of the test client of the process and what has happened last."""

    def __init__(self, console: Console, panels: Panels, events: deque[Event]) -> None:
        self.console, self.panels, self.events = console, panels, events
        self.state = words("p", "", "jbi-note").props("role=status")
        self.problem = words("p", "", "jbi-problem").props("role=alert")
        with region("Connection"):
            self.connecting = Form(ConnectionPanel)
            with ui.element("div").classes("jbi-form"):
                action("Connect", on_click=self._connect)
                ui.button("Disconnect", on_click=self._disconnect).props("no-caps flat")
        with region("Panels"):
            self.rows = table(
                (("name", "Panel"), ("role", "Role"), ("type", "Type"),
                 *((each, f"#{each.capitalize()}") for each in COUNTS), ("act", "Do")),
                empty="There is no panel", rows=ROWS,
            )  # fmt: skip
            add_action(
                self.rows, "act",
                """<q-btn flat dense no-caps color="primary" label="Start" :aria-label="'Start ' + props.row.key"
                   v-if="props.row.starts" @click="() => $parent.$emit('start', props.row.key)" />
                   <q-btn flat dense no-caps color="primary" label="Remove" :aria-label="'Remove ' + props.row.key"
                   v-if="props.row.there" @click="() => $parent.$emit('remove', props.row.key)" />""",
            )  # fmt: skip
        for kind in (PublisherPanel, SubscriberPanel, QueryPanel):
            self._build_form(kind)
        with region("What happened"):
            self.log = words("pre", "", "jbi-code").props('tabindex=0 role=log aria-label="Events"')
        self.rows.on("start", self._start)
        self.rows.on("remove", self._remove)
        self._look()
        ui.timer(LOOK_SECONDS, self._look)

    def _build_form(self, kind: type[Any]) -> None:
        role = ROLES[kind]
        with region(f"New {role}"):
            form = Form(kind)

            async def add() -> None:
                await self._done(lambda: self.panels.add(form.value()))

            action(f"Add {role}", on_click=add)

    def _look(self) -> None:
        opening, panels, counts = self.panels.opening(), self.panels.panels(), self.panels.counts()
        self.state.text = "Connected." if self.panels.is_connected else "Not connected."
        show_rows(self.rows, [
            {"key": name, "name": shown(name, 60), "role": ROLES[type(panels[name])] if name in panels else "removed",
             "type": shown(f"{panels[name].type} {panels[name].version}", 200) if name in panels else "",
             "there": (is_open := name in panels and name not in opening),
             "starts": is_open and not isinstance(panels[name], SubscriberPanel),
             **{each: f"{count.get(each, 0):,}" for each in COUNTS}}
            for name, count in counts.items() if name
        ])  # fmt: skip
        self.log.text = "\n".join(map(line, list(self.events)[::-1]))

    async def _done(self, what: Any) -> None:
        """Do it away from the loop, and say what went wrong."""
        try:
            await self.console.call(what)
        except JbiError as exc:
            self.problem.text = shown(said(exc), 500)
        else:
            self.problem.text = ""
        self._look()

    async def _connect(self) -> None:
        await self._done(lambda: self.panels.connect(self.connecting.value()))

    async def _disconnect(self) -> None:
        await self._done(self.panels.disconnect)

    async def _start(self, event: GenericEventArguments) -> None:
        await self._done(lambda: self.panels.start(str(event.args)))

    async def _remove(self, event: GenericEventArguments) -> None:
        await self._done(lambda: self.panels.remove(str(event.args)))


def line(event: Event) -> str:
    """An event, for people."""
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    return shown(" ".join(each for each in (at, event.panel, event.what, event.id, event.detail) if each), 300)
