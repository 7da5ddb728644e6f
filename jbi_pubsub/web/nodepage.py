"""The page of one node: what `jbi node`, `types` and `users` do, in a browser.

There with [web] admin alone, and then the node itself decides whether this process may `administer`: what it refuses is
said, and nothing of it is shown. All that it tells are others' words, and shown as text. What changes something asks
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
from nicegui import ui
from nicegui.events import GenericEventArguments

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, ProtocolError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.policy.users import Account, check_name, read_accounts, write_accounts
from jbi_pubsub.protocol.services import TypesProxy

from .administration import ConfirmedActions
from .console import Console, NodeClient, action, add_action, later, offer, region, said, show_rows, table, tell, words
from .objects import shown

LOOK_SECONDS: Final = 2.0
"""Between two looks at the node."""
ROWS: Final = 25
"""Rows of a page of a table."""
LINES: Final = 40
"""Lines of the log that are shown."""
TEXT_MOST: Final = 200
"""Characters of what the node tells in one place."""
NO_NODE: Final = (
    "No node runs in this federation; a delegate alone is not a node. The command jbi node start starts one."
)
NO_USERS: Final = "No password file: [policy] users of this console's configuration names it"
SETTINGS: Final = (
    "log.level", "log.syslog", "log.journald", "log.file_bytes", "node.statistics_seconds",
)  # fmt: skip
"""Settings that may change while a node runs."""


def build(console: Console) -> None:
    """Register the page."""
    console.page("/node")(lambda: _Page(console))


def _button(rows: ui.table, column: str, event: str, label: str) -> None:
    """A button in each row, which says its key."""
    add_action(
        rows, column,
        f"""<q-btn flat dense no-caps color="primary" label="{label}" :aria-label="'{label} ' + props.row.key"
           @click="() => $parent.$emit('{event}', props.row.key)" />""",
    )  # fmt: skip


def text(value: object) -> str:
    """Text that a node tells, in one place of the page."""
    return shown(str(value), TEXT_MOST)


class _Page:
    """One tab's. `_ref`, `_title`: the node that is chosen; another one, when that is gone."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._ref: ServiceRef | None = None
        self._title = ""
        self._looks_on = ""
        with ui.element("div").classes("jbi-form"):
            self.which = ui.select({}, label="Node").classes("jbi-grow")
        self.problem = words("p", "", "jbi-problem").props("role=status")
        with later() as self.parts:
            self._build_parts()
            self.doing = ConfirmedActions(console)
        self.sequences.on("look", self._look_on)
        self.which.on_value_change(self._chosen)
        ui.context.client.on_delete(self._leave)
        ui.timer(LOOK_SECONDS, self._look)

    def _build_parts(self) -> None:
        """All that a node has."""
        with region("Facts and statistics"):
            self.facts = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Facts"')
        with region("Connections"):
            self.clients = table(
                (("id", "Id"), ("role", "Role"), ("client", "Client"), ("user", "User"), ("address", "Address"),
                 ("sequences", "#Sequences")), empty="Nobody is connected", whole=("id",), rows=ROWS,
            )  # fmt: skip
        with region("Sequences"):
            self.sequences = table(
                (("id", "Id"), ("role", "Role"), ("of", "Type or template"), ("published", "#Published"),
                 ("delivered", "#Delivered"), ("lost", "#Lost"), ("look", "Watch")),
                empty="No sequence", whole=("id",), rows=ROWS,
            )  # fmt: skip
            _button(self.sequences, "look", "look", "Watch")
            self.looking = words("p", "Watch a sequence to see its objects: published or received.", "jbi-note")
            self.seen = table(
                (("id", "Id"), ("type", "Type"), ("size", "#Payload"), ("metadata", "Metadata")),
                empty="No object has come yet", whole=("id",), lines=("metadata",),
            )  # fmt: skip
        self._build_kept()
        self._build_settings()

    def _build_kept(self) -> None:
        """Types, users, and the way to stored objects."""
        with region("Types"):
            self.types = table(
                (("name", "Type"), ("state", "State"), ("by", "Added by"), ("remove", "Remove")),
                empty="The node has no types of its own", rows=ROWS,
            )  # fmt: skip
            _button(self.types, "remove", "remove", "Remove")
            schema = ui.textarea("Schema (XSD) of a new type").props("maxlength=1000000").classes("jbi-code")
            action("Add it", on_click=lambda: self._add_type(schema.value or ""))
        with region("Stored objects"):
            ui.link("Search the archives, and delete", "/archive")
        with region("Users"):
            self.users = table((("name", "User"), ("drop", "Remove")), empty=NO_USERS, rows=ROWS)
            _button(self.users, "drop", "drop", "Remove")
            with ui.element("div").classes("jbi-form"):
                self.user = ui.input("Name").props("maxlength=100 autocomplete=off")
                self.password = ui.input("Password", password=True).props("maxlength=1000 autocomplete=new-password")
                action("Add, or change the password", on_click=self._add_user)
        self.types.on("remove", self._remove_type)
        self.users.on("drop", self._remove_user)

    def _build_settings(self) -> None:
        with region("Settings"):
            with ui.element("div").classes("jbi-form"):
                self.key = ui.select(list(SETTINGS), value=SETTINGS[0], label="Setting")
                self.value = ui.input("Value", value="info").props("maxlength=200")
                action("Set it", on_click=self._set)
            words("p", "A change holds until the node starts again. For other settings, edit its jbi.toml.", "jbi-note")
        with region("Log"):
            self.log = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Log"')
        with region("End"):
            ui.button("Shut the node down", on_click=self._shut_down).props("no-caps color=negative text-color=paper")

    # -- looking ------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        servers = {s.id: s for s in self.console.observer.snapshot().servers if s.delegate and s.delegate.node}
        titles = {key: server.title for key, server in servers.items()}
        offer(self.which, titles, next(iter(titles), None))
        chosen = servers.get(self.which.value)
        self._ref, self._title = (chosen.ref, chosen.title) if chosen is not None else (None, "")
        self.which.set_visibility(chosen is not None)
        if chosen is None or self._ref is None:
            self.parts.set_visibility(False)
            tell(self.problem, NO_NODE, calm=True)
            return
        told, problem, is_node = NodeAnswer(), "", True
        try:
            told = await self.console.call(self._asked, self._ref)
            told.rates.update({f"{name} a second": f"{rate:.1f}" for name, rate in chosen.rates.items()})
        except ProtocolError as exc:
            problem, is_node = f"{chosen.title} is not a node of this version: {exc.message}", False
        except JbiError as exc:
            problem = said(exc)
        tell(self.problem, problem)
        self.parts.set_visibility(is_node)
        self._show(told)

    def _asked(self, ref: ServiceRef) -> NodeAnswer:
        with self._calls(ref) as calls:
            clients, found, details = calls.clients(), calls.sequences(), msgspec.to_builtins(calls.details())
            try:
                lines = [line.text for line in calls.log(0, LINES)]
            except ConfigurationError as exc:  # it lives in an application
                lines = [exc.message]
        try:
            with self.console.proxy(TypesProxy, ref) as proxy:
                types = [(str(d.type), str(d.state), d.by) for d in proxy.all("type")]
        except ConfigurationError:  # it has no type repository
            types = []
        return NodeAnswer(details, clients, found, {}, lines, types, _accounts(self.console.config))

    def _show(self, told: NodeAnswer) -> None:
        facts = {**told.details, **told.rates, **told.sequences.get("counts", {})}
        self.facts.text = "\n".join(f"{name.replace('_', ' ')}: {text(_plain(facts[name]))}" for name in facts)
        show_rows(self.clients, [
            {"key": str(n), **{name: text(each.get(name, "")) for name in ("id", "role", "client", "user", "address",
                                                                          "sequences")}}
            for n, each in enumerate(told.clients)
        ])  # fmt: skip
        show_rows(self.sequences, list(sequence_rows(told.sequences)))
        show_rows(self.types, [{"key": n, "name": text(n), "state": s, "by": text(by)} for n, s, by in told.types])
        show_rows(self.users, [{"key": name, "name": text(name)} for name in told.users])
        self.log.text = "\n".join(map(text, told.log))
        if self._looks_on:
            seen, came = self.console.objects.last(self._looks_on, "")
            self.looking.text = f"{self._looks_on}: {came:,} objects have come, the last {len(seen)} are shown"
            show_rows(self.seen, [_object_row(each) for each in seen])

    # -- acting -------------------------------------------------------------------------------------------------

    async def _do(self, question: str, done: str, what: Callable[[ServiceRef], object]) -> None:
        """By the node that is chosen now, once somebody has said yes."""
        ref = self._ref
        if ref is None:
            self.doing.tell("Not done: no node is chosen")
            return
        await self.doing.do(f"At {self._title}: {question}", done, what, ref)
        await self._look()

    async def _remove_type(self, event: GenericEventArguments) -> None:
        name, _, version = str(event.args).rpartition(" ")
        key: Any = ("type", TypeName(name, version))

        def remove(ref: ServiceRef) -> str:
            with self.console.proxy(TypesProxy, ref) as proxy:
                return "is gone" if proxy.remove(key) else "is deprecated: it is in use"

        await self._do(f"Remove type {name} {version}?", f"Type {name} {version} {{}}.", remove)

    async def _add_type(self, schema: str) -> None:
        data = schema.encode()
        bundle = SchemaBundle("schema.xsd", (("schema.xsd", data),))

        def add(ref: ServiceRef) -> TypeName:
            with self.console.proxy(TypesProxy, ref) as proxy:
                return proxy.add("type", bundle, None, "").type

        await self._do(f"Add a type by these {len(data):,} bytes of schema?", "Type {} is there.", add)

    async def _add_user(self) -> None:
        name, password = self.user.value or "", self.password.value or ""
        try:
            check_name(name)
        except ConfigurationError as exc:
            self.doing.tell(f"Not done: {said(exc)}")
            return
        await self._users(f"Add user {name} with that password?", f"{name} is a user.", lambda all_: all_.update(
            {name: Account.of(name, password)}
        ))  # fmt: skip
        self.password.value = ""

    async def _remove_user(self, event: GenericEventArguments) -> None:
        name = str(event.args)

        def drop(accounts: dict[str, Account]) -> None:
            if accounts.pop(name, None) is None:
                raise UnknownUidError(f"there is no user {name[:100]}")

        await self._users(
            f"Remove user {name}? Their registrations and subscriptions end.", f"{name} is removed.", drop
        )

    async def _users(self, question: str, done: str, change: Callable[[dict[str, Account]], None]) -> None:
        def changed(ref: ServiceRef) -> None:
            with self._calls(ref) as calls:
                calls.clients()  # who may not administer keeps no users either
            path = _password_file(self.console.config)
            if path is None:
                raise ConfigurationError(NO_USERS)
            accounts = read_accounts(path) if path.exists() else {}
            change(accounts)
            write_accounts(path, accounts)

        await self._do(question, done, changed)

    async def _set(self) -> None:
        key, value = str(self.key.value), str(self.value.value or "")

        def change(ref: ServiceRef) -> str:
            with self._calls(ref) as calls:
                return calls.set(key, value)

        await self._do(f"Set {key} to {value!r}?", f"{key} is {{}}.", change)

    async def _shut_down(self) -> None:
        def end(ref: ServiceRef) -> None:
            with self._calls(ref) as calls:
                calls.shutdown(5.0)

        await self._do("Shut this node down, for all of its clients?", "It stops.", end)

    async def _look_on(self, event: GenericEventArguments) -> None:
        ref, uid = self._ref, str(event.args)
        if ref is None:
            return

        def begin() -> str:
            with self._calls(ref) as calls:
                wanted = calls.snooped(uid)
            self.console.objects.watch(uid, "", wanted.terms, registration=wanted.registration)
            return (
                "; its template has more conditions: all objects of its type and predicate are shown"
                if wanted.says_more
                else ""
            )

        try:
            await self._leave()
            more = await self.console.call(begin)
        except JbiError as exc:
            self.doing.tell(f"Not watched: {said(exc)}")
            return
        self._looks_on = uid
        self.doing.tell(f"Watching {uid}{more}")
        if ui.context.client.is_deleted:  # the page was left meanwhile
            await self._leave()

    async def _leave(self) -> None:
        uid, self._looks_on = self._looks_on, ""
        if uid:
            await self.console.call(self.console.objects.leave, uid, "")

    async def _chosen(self) -> None:
        await self._leave()
        await self._look()

    # -- calls, which block -------------------------------------------------------------------------------------

    def _calls(self, ref: ServiceRef) -> closing[NodeClient]:
        assert self.console.nodes is not None
        return closing(self.console.nodes(ref.endpoints[0], self.console.config.security()))


def _password_file(config: Config) -> Path | None:
    place = config.policy.users
    return Path(place) if place and "://" not in place else None


def _accounts(config: Config) -> list[str]:
    path = _password_file(config)
    try:
        return sorted(read_accounts(path)) if path is not None and path.exists() else []
    except JbiError as exc:
        return [exc.message]


class NodeAnswer(msgspec.Struct, frozen=True):
    """Facts that a node has told; none, while it refuses or is away."""

    details: dict[str, Any] = {}
    clients: list[dict[str, Any]] = []
    sequences: dict[str, Any] = {}
    rates: dict[str, str] = {}
    log: list[str] = []
    types: list[tuple[str, str, str]] = []
    users: list[str] = []


def sequence_rows(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Registrations and subscriptions, as the table has them."""
    for each in found.get("registrations", ()):
        yield {
            "key": str(each["uid"]), "id": text(each["uid"]), "role": "publisher", "of": text(each["type"]),
            "published": text(each["published"]), "delivered": "", "lost": "",
        }  # fmt: skip
    for each in found.get("subscriptions", ()):
        yield {
            "key": str(each["uid"]), "id": text(each["uid"]), "role": "subscriber",
            "of": text(_plain(each["template"])), "published": "",
            "delivered": text(each["delivered"]), "lost": text(_sum(each.get("lost", 0))),
        }  # fmt: skip


def _object_row(seen: Any) -> dict[str, Any]:
    return {
        "key": seen.object_id, "id": seen.object_id, "type": text(seen.type), "size": f"{seen.size:,} B",
        "metadata": seen.metadata[:2_000],
    }  # fmt: skip


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _sum(lost: object) -> object:
    return sum(lost.values()) if isinstance(lost, dict) else lost
