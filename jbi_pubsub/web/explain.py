"""The page that explains: a subscription and an object, and why it gets it or not; the same answer as `jbi explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from nicegui import ui
from nicegui.events import GenericEventArguments

from jbi_pubsub.core.errors import JbiError, ProtocolError, UnknownUidError
from jbi_pubsub.protocol.services import SubscriptionsProxy
from jbi_pubsub.protocol.status.delegate import ListedSubscription
from jbi_pubsub.protocol.status.explained import holds, levels, verdict

from .console import Console, action, region, said, show_rows, table, words
from .federation import harmless

CHOICES: Final = 50
"""Subscriptions that are offered."""
INDENT: Final = "\u2003"
"""For each level of a condition."""


class ServerExplanation(NamedTuple):
    """Explanation by the server `at`: rows for each level, and for each condition of the predicate."""

    at: str
    subscription: str
    verdict: str
    levels: list[dict[str, Any]]
    conditions: list[dict[str, Any]]


def build(console: Console) -> None:
    """Register the page."""

    @console.page("/explain")
    def _(subscription: str = "", object: str = "") -> None:  # noqa: A002  # the query's words
        _page(console, subscription[:200], object[:200])


def _page(console: Console, uid: str, object_id: str) -> None:
    words("p", "This page shows why an object is delivered to a subscription, or not. Each level lists its "
          "conditions, with the values found.", "jbi-note")  # fmt: skip
    with ui.element("div").classes("jbi-form"):
        chosen = ui.select({}, label="Subscription", with_input=True, new_value_mode=None).classes("jbi-grow")
        typed = ui.input("or its id, or the beginning of it", value=uid).props("maxlength=200").classes("jbi-grow")
    ExplainForm(console, lambda: (typed.value or "").strip() or chosen.value or "", object_id)

    async def offer(search: str = "") -> None:
        servers = [s.id for s in console.observer.snapshot().servers if s.kind in ("delegate", "peer")]
        _, rows, _ = await console.call(
            lambda: console.observer.subscriptions(servers, search=search[:200], count=CHOICES)
        )
        options = {row.uid: _called(row) for _, row in rows}
        if chosen.value and chosen.value not in options:
            options[chosen.value] = chosen.value
        chosen.set_options(options)

    async def typing(event: GenericEventArguments) -> None:
        await offer(str(event.args or ""))

    chosen.on("input-value", typing, throttle=0.5)
    chosen.on_value_change(lambda e: typed.set_value(e.value or ""))
    ui.timer(0.1, offer, once=True)


class ExplainForm:
    """Fields for an object, and the explanation for the subscription that `wanted` names."""

    def __init__(self, console: Console, wanted: Callable[[], str], object_id: str = "") -> None:
        self._console, self._wanted = console, wanted
        with ui.element("div").classes("jbi-form"):
            self._which = ui.radio(
                {"metadata": "a document", "id": "an object that was published"},
                value="id" if object_id else "metadata",
            )
            self._which.props('inline aria-label="What object"')
        self._by_id = ui.input("Object id (known for some seconds after publication)", value=object_id)
        self._by_id.props("maxlength=200").bind_visibility_from(self._which, "value", value="id")
        with ui.element("div").classes("jbi-pair").bind_visibility_from(self._which, "value", value="metadata"):
            self._metadata, self._payload = (
                ui.textarea(label).props("outlined autogrow maxlength=1000000").classes("jbi-code")
                for label in ("Metadata (XML)", "Payload (may be empty)")
            )
        self._button = action("Explain", on_click=self._explain)
        self._status = words("p", "", "jbi-problem").props("role=status")
        self._answers = ui.element("div")

    async def _explain(self) -> None:
        wanted, is_by_id = self._wanted(), self._which.value == "id"
        self._status.text = "" if wanted else "No subscription is chosen."
        self._answers.clear()
        if not wanted:
            return
        object_id = (self._by_id.value or "").strip()
        documents = (self._metadata.value or "").encode(), (self._payload.value or "").encode()

        def ask(proxy: SubscriptionsProxy) -> dict[str, Any]:
            return proxy.explain_object(wanted, object_id) if is_by_id else proxy.explain(wanted, *documents)

        self._button.disable()
        try:
            found, errors = await self._console.call(_asked, self._console, ask)
        finally:
            self._button.enable()
        unknown = (
            ""
            if found
            else f"No delegate or peer publisher knows subscription {wanted}"
            + (", or that object is not known any more." if is_by_id else ".")
        )
        self._status.text = "; ".join(errors) or unknown
        with self._answers:
            for answer in found:
                _show(answer)


def readable(entry: str) -> str:
    """An entry of a template, as a server tells it, in words: type mil.Report 1.0; publisher = 418th."""
    name, bracket, rest = entry.partition("(")
    fields = rest.removesuffix(")").split(", ") if bracket else []
    if name.endswith("InformationType"):
        return "type " + " ".join(field.partition("=")[2] for field in fields)
    return " and ".join(field.replace("=", " = ", 1) for field in fields if field) or f"any {name.rpartition('#')[2]}"


def _called(row: ListedSubscription) -> str:
    template = "; ".join(map(readable, row.template)) or "every type"
    return f"{row.name or 'e-mail'}: {row.uid.rpartition('-')[2][:12]}, {template}"[:120]


def _asked(
    console: Console, ask: Callable[[SubscriptionsProxy], dict[str, Any]]
) -> tuple[list[ServerExplanation], list[str]]:
    """The answers of those who know, and what went wrong with others."""
    found, errors = list[ServerExplanation](), list[str]()
    for server in console.observer.snapshot().servers:
        if server.facts is None or server.kind not in ("delegate", "peer"):
            continue
        try:
            with console.subscriptions(server) as proxy:
                found.append(answer_of(server.title, harmless(ask(proxy))))
        except UnknownUidError:
            continue
        except JbiError as exc:
            errors.append(f"{server.title}: {said(exc)}")
    return found, errors


def answer_of(at: str, facts: Mapping[str, Any]) -> ServerExplanation:
    """Answer of a server, for the page. Raises ProtocolError for what no server of ours answers."""
    try:
        uid = str(facts["subscription"])
        return ServerExplanation(at, uid, verdict(facts), level_rows(facts), condition_rows(facts))
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise ProtocolError(
            f"{at} gives an explanation that this version does not understand: {type(exc).__name__}"
        ) from exc


def _show(answer: ServerExplanation) -> None:
    with region(answer.verdict.capitalize(), "jbi-answer"):
        words("p", f"{answer.at}: subscription {answer.subscription}", "jbi-note")
        shown = table(
            (("level", "Level"), ("holds", "Holds"), ("why", "Because")),
            empty="No publisher is registered here now",
            whole=("level",),
            searched=False,
        )
        show_rows(shown, answer.levels)
        if answer.conditions:
            words("h3", "The predicate")
            told = table((("holds", "Holds"), ("text", "Condition"), ("found", "Found")), empty="", searched=False)
            show_rows(told, answer.conditions)


def level_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Verdict of each level, as rows."""
    return [
        {"key": number, "level": level, "holds": held, "why": why}
        for number, (level, held, why) in enumerate(levels(facts))
    ]


def condition_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each condition of the predicate with the values found, as rows."""
    rows = []
    for number, condition in enumerate(facts["conditions"]):
        joint = {"and": "all of: ", "or": "one of: ", "not": "not: "}.get(condition["joint"], "")
        found = "; ".join(", ".join(map(repr, each["values"])) or "nothing" for each in condition["found"])
        text = f"{INDENT * min(8, condition['level'])}{joint}{condition['text']}"
        rows.append({"key": number, "holds": holds(condition["holds"]), "text": text, "found": found})
    return rows
