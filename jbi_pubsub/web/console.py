"""Parts of all pages: the observer, who may administer, threads for calls that block, and the frame around a page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from fastapi import FastAPI
from nicegui import Client, ui
from nicegui.elements.mixins.text_element import TextElement
from starlette.responses import PlainTextResponse, Response

from jbi_pubsub import __version__
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS, SubscriptionsProxy

from .drawing import Drawing
from .federation import ANSWER_SECONDS, Observer, Server
from .gate import Gate, Session
from .logins import LOGOUT
from .objects import Objects

log = logging.getLogger("jbi_pubsub.web")

T = TypeVar("T")


class _Closing(Protocol):
    def close(self) -> object: ...


P = TypeVar("P", bound=_Closing)

TABS_MOST: Final = 32
"""Tabs of all browsers at once."""
CALLS: Final = 4
"""Blocking calls to servers at once, of all tabs."""
LOOK_SECONDS: Final = 1.0
"""Between two looks of a page."""

PAGES: Final = (
    ("Overview", "/"), ("Servers", "/servers"), ("Subscriptions", "/subscriptions"), ("Plots", "/plots"),
    ("Networks", "/networks"), ("Domains", "/domains"), ("Federations", "/federations"),
    ("Objects", "/objects"), ("Archive", "/archive"), ("Explain", "/explain"), ("Administration", "/administration"),
    ("Node", "/node"), ("Client", "/client"),
)  # fmt: skip
_TITLES: Final = {**{path: title for title, path in PAGES}, "/object": "Object", "/subscription": "Subscription"}
"""Titles of all pages by their paths, those that no menu has as well."""
ADMIN_PAGES: Final = ("Administration", "Node", "Client")
"""Pages that need --admin."""
NEEDS_ADMIN: Final = (
    "This page changes the federation. It needs a console that was started by `jbi web --admin`, and a user who may "
    "administer."
)
SEARCH_MOST: Final = 200
"""Characters of a search."""
_HEADS: Final = WeakKeyDictionary[Client, ui.element]()
"""Head of the page of each tab, in which lists put their search."""


class NodeClient(Protocol):
    """Calls of a page to its node: see node/admin.py, which this room knows nothing of. Each raises JbiError."""

    def details(self) -> Any: ...  # as there, all of them
    def clients(self) -> list[dict[str, Any]]: ...
    def sequences(self) -> dict[str, Any]: ...
    def snooped(self, uid: str) -> Any: ...
    def log(self, after: int, most: int) -> Sequence[Any]: ...
    def set(self, key: str, value: str) -> str: ...
    def shutdown(self, drain: float) -> None: ...
    def close(self) -> None: ...


Connect = Callable[[str, Security], NodeClient]
"""The calls of the node at a host:port."""


class Console:
    """One for the process."""

    def __init__(self, config: Config, observer: Observer, gate: Gate, nodes: Connect | None = None) -> None:
        """`nodes`: how to call one; None: there is no page of them."""
        self.config = config
        self.nodes = nodes if config.web.admin else None
        self.observer = observer
        self.gate = gate
        self.objects = Objects(config)
        self.closing: list[Callable[[], None]] = []
        """Functions that end what pages have begun."""
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="jbi-web-call")

    def close(self) -> None:
        """End the threads and subscriptions of pages."""
        self._calls.shutdown(wait=False, cancel_futures=True)
        for end in self.closing:
            with guarded("closing a page"):
                end()
        self.objects.close()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that blocks away from the event loop. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._calls, function, *arguments)

    def proxy(self, kind: Callable[..., P], ref: ServiceRef) -> closing[P]:
        """Calls of a server, of that kind, for a `with`: each has ANSWER_SECONDS."""
        return closing(kind(ref, self.config.security(), timeout=ANSWER_SECONDS))

    def subscriptions(self, server: Server) -> closing[SubscriptionsProxy]:
        """Calls about the subscriptions of a server."""
        ref = msgspec.structs.replace(server.ref, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        return self.proxy(SubscriptionsProxy, ref)

    @property
    def session(self) -> Session | None:
        """That of the browser whose page is made or used now."""
        return self.gate.session(ui.context.client.request.headers.get("cookie", ""))

    @property
    def admin(self) -> bool:
        """Whether that browser may change something, as far as this console decides."""
        session = self.session
        return self.config.web.admin and session is not None and session.is_admin

    def page(self, path: str) -> Callable[[Callable[..., object]], None]:
        """Register what makes the main part of a page. One tab too many is told so, and a page that needs --admin says
        so without."""
        title = _TITLES[path]

        def register(make: Callable[..., object]) -> None:
            @ui.page(path)
            @wraps(make)
            def made(*arguments: Any, **query: Any) -> Response | None:
                if len(Client.instances) > TABS_MOST:
                    return PlainTextResponse(f"This console has {TABS_MOST} tabs open. Close some.\n", 503)
                with self._frame(title):
                    if title in ADMIN_PAGES and not self.admin:
                        words("p", NEEDS_ADMIN)
                    else:
                        make(*arguments, **query)
                return None

        return register

    @contextmanager
    def _frame(self, title: str) -> Iterator[None]:
        """Header, navigation and main part of a page."""
        session = self.session
        ui.page_title(f"{title} - jbi-pubsub")
        dark = ui.dark_mode(session.dark if session is not None else None)

        def turn() -> None:
            chosen = {None: True, True: False, False: None}[dark.value]
            dark.value = chosen
            colours.text = _COLOURS[chosen]
            if session is not None:
                session.dark = chosen

        # a q-page is a <main>, in which header and menu are no part of the page's content
        for element in ui.context.client.layout.descendants():
            if element.tag == "q-page":
                element.tag = "div"
        with ui.element("header").classes("jbi-header"):
            words("span", "jbi-pubsub", "brand")
            menu = ui.button("Menu").props("flat dense no-caps aria-expanded=false aria-controls=jbi-pages")
            menu.classes("jbi-menu")
            with ui.element("nav").props('id=jbi-pages aria-label="Pages"') as pages:
                for name, path in PAGES:
                    if name in ADMIN_PAGES and not self.admin:
                        continue
                    link = ui.link(name, path)
                    if name == title:
                        link.props("aria-current=page")
                with ui.element("form").props(f"method=post action={LOGOUT}"):
                    user = f" {session.user[:20]}" if session is not None and session.user else ""
                    ui.button(f"Log out{user}").props("flat dense no-caps type=submit")
            colours = ui.button(_COLOURS[dark.value], on_click=turn).props('flat dense no-caps aria-label="Colours"')

        def unfold() -> None:
            pages.classes(toggle="jbi-open")
            menu.props(f"aria-expanded={str('jbi-open' in pages.classes).lower()}")

        menu.on_click(unfold)
        main = ui.element("main").classes("jbi-main").props("tabindex=-1")
        ui.skip_link(target=main)
        with main:
            with ui.element("div").classes("jbi-form jbi-head") as head:
                words("h1", title, "jbi-grow")
            _HEADS[ui.context.client] = head
            yield
        with ui.element("footer").classes("jbi-note jbi-footer"):
            words("span", f"jbi-pubsub {__version__}. The same facts for programs: jbi top --json. "
                  "Documentation: docs/console.md, docs/losses.md.")  # fmt: skip


_COLOURS: Final = {None: "◐ system", True: "◐ dark", False: "◐ light"}


def words(tag: str, text: str = "", classes: str = "") -> TextElement:
    """An element with a text, which is never markup."""
    return TextElement(tag=tag, text=text).classes(classes)


def tell(place: TextElement, text: str, *, calm: bool = False) -> None:
    """Show a problem; `calm`: it is none, and looks like a note."""
    kinds = ("jbi-note", "jbi-problem") if calm else ("jbi-problem", "jbi-note")
    place.classes(add=kinds[0], remove=kinds[1]).set_text(text)


def region(title: str, classes: str = "") -> ui.element:
    """A part of a page with a heading."""
    made = ui.element("section").classes(f"jbi-region {classes}").props(f'aria-label="{title}"')
    with made:
        words("h2", title)
    return made


def later() -> ui.element:
    """A part of a page that is shown by `set_visibility`, once all that it is made of has come: nothing that somebody
    reads already is moved by it."""
    made = ui.element("div")
    made.set_visibility(False)
    return made


class Canvas(ui.element, component="drawing.js"):
    """Shows a Drawing; only what is new goes to the browser."""

    def __init__(self) -> None:
        super().__init__()
        self._props["drawing"] = Drawing(100, 10, "").data()

    def show(self, drawing: Drawing) -> None:
        """This from now on."""
        data = drawing.data()
        if data != self._props["drawing"]:
            self._props["drawing"] = data
            self.update()


def action(text: str, **options: Any) -> ui.button:
    """The main button of a form."""
    return ui.button(text, **options).props("no-caps unelevated text-color=paper")


_SORT: Final = """(a, b) => {
  const units = {d: 86400, h: 3600, m: 60, k: 1e3, M: 1e6};
  const value = text => [...String(text ?? '').replaceAll(',', '').matchAll(/(\\d+(?:\\.\\d+)?)([dhmkM](?![a-z]))?/g)]
    .reduce((sum, found) => sum + found[1] * (units[found[2]] ?? 1), 0);
  return value(a) - value(b);
}"""
"""Order of figures as the console writes them: 1,234, 12k/s, 1h02m; of several the sum."""


_HEAD: Final = """<q-th :props="props" :tabindex="props.col.sortable ? 0 : -1"
  @keydown.enter="props.sort(props.col)">{{ props.col.label }}</q-th>"""
"""Head of a column, which the keyboard reaches."""


def search_field() -> ui.input:
    """Field that searches all lists of a page, in its head. Each list that searches by itself listens to it."""
    head = _HEADS[ui.context.client]
    if made := [each for each in head if isinstance(each, ui.input)]:
        return made[0]
    with head:
        field = ui.input("Search", placeholder="in all lists of this page")
    return field.props(f'dense debounce=300 maxlength={SEARCH_MOST} clearable type=search aria-label="Search"')


def table(
    columns: Sequence[tuple[str, str]],
    *,
    empty: str,
    whole: Sequence[str] = (),
    lines: Sequence[str] = (),
    rows: int = 0,
    searched: bool = True,
) -> ui.table:
    """A table of (name, head) columns: rows are dicts with a `key`. Heads that begin with # are of numbers; the columns
    `whole` are in one line each, `lines` keep theirs. On a narrow screen a row is a card. `rows` a page, 0 for all.
    With `searched` each head sorts, and the page's search leaves out the rows in which its text does not occur."""
    classes = {**dict.fromkeys(whole, "jbi-whole"), **dict.fromkeys(lines, "jbi-lines")}
    made = ui.table(
        columns=[
            {"name": name, "label": head.lstrip("#"), "field": name, "align": "right" if head[0] == "#" else "left",
             "classes": classes.get(name, ""), "sortable": searched, **({":sort": _SORT} if head[0] == "#" else {})}
            for name, head in columns
        ],
        rows=[],
        row_key="key",
        pagination=rows or None,
    )  # fmt: skip
    made.props(f':grid="Quasar.Screen.lt.md" flat dense wrap-cells no-data-label="{empty}" no-results-label="No match"')
    if searched:
        made.add_slot("header-cell", _HEAD)
        search_field().on_value_change(lambda e: made.set_filter(e.value or ""))
    return made.classes("jbi-table")


def offer(made: ui.select, options: dict[str, str], other: str | None = None) -> None:
    """Offer these, if they are others: what is chosen stays where it is one of them, else it is the `other`."""
    if made.options != options:
        made.set_options(options, value=made.value if made.value in options else other)


def headed(heads: Sequence[str]) -> list[tuple[str, str]]:
    """Columns by their heads; those of numbers begin with #."""
    return [(head, f"{'#' * (head[0] == '#')}{head.lstrip('#').capitalize()}") for head in heads]


def numbered(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Rows of such columns."""
    return [dict(zip(("key", *heads), (n, *row), strict=True)) for n, row in enumerate(rows)]


def add_action(made: ui.table, name: str, markup: str) -> None:
    """Show markup instead of a text in a column of each row, also where rows are cards: Vue's markup, in which
    `props.row` is the row. It is ours; what rows say comes into it by bindings alone."""
    made.add_slot(f"body-cell-{name}", f'<q-td :props="props">{markup}</q-td>')
    made.add_slot(
        "item",
        f"""<div class="q-table__grid-item"><div class="q-table__grid-item-card">
          <div v-for="col in props.cols.filter(c => c.name !== '{name}')" :key="col.name"
               class="q-table__grid-item-row">
            <div class="q-table__grid-item-title">{{{{ col.label }}}}</div>
            <div class="q-table__grid-item-value">{{{{ col.value }}}}</div>
          </div>{markup}</div></div>""",
    )


def show_rows(made: ui.table, rows: list[dict[str, Any]]) -> None:
    """These from now on, if they are others."""
    if made.rows != rows:
        made.rows = rows


def said(exc: JbiError) -> str:
    """An error, for people: what, and how to mend it."""
    return f"{exc.message}. {exc.hint}" if exc.hint else exc.message


def mount(application: FastAPI) -> None:
    """Mount NiceGUI with what all pages need. Once in a process."""
    ui.add_head_html(f"<style>{(Path(__file__).parent / 'console.css').read_text('utf-8')}</style>", shared=True)
    ui.run_with(
        application, title="jbi-pubsub", language="en-US", dark=None, favicon="📡", tailwind=False,
        reconnect_timeout=3.0, gzip_middleware_factory=None, show_welcome_message=False, binding_refresh_interval=None,
    )  # fmt: skip
