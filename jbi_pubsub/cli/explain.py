"""`jbi explain`: why an object would be delivered to a subscription, or not."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.services import SubscriptionsProxy
from jbi_pubsub.protocol.status.explained import holds, levels, verdict

from .options import EXISTING_FILE, JsonArguments, argument, command, option
from .show import Column, printable, show_table
from .status import losses
from .subscriptions import asked, subscription_servers

Row = tuple[object, ...]
Facts = dict[str, Any]

NOTHING: Final = b"<nothing/>"
"""A document to ask with whether a subscription is registered."""

WIDTHS: Final = (9, 36, 28)
WIDTHS_OF_TWO: Final = (12, 3, 58)
"""Widths of a table whose middle column has conditions, or words of three letters: 80 with the spaces between."""

MAX_VALUE: Final = 40
"""Characters of a value in the table; all of it is in --json."""


class _Explain(JsonArguments):
    uid: str = argument()
    metadata: Path | None = option("Metadata of the object.", type=EXISTING_FILE)
    payload: Path | None = option("Its payload.", type=EXISTING_FILE)
    object_id: str | None = option("Id of a recent object, instead of --metadata.", "--object")


@command(None, _Explain)
def explain(given: _Explain) -> None:
    """Explain why an object would be delivered to a subscription, or not.

    The begin of the subscription's id is enough. For each server that has it, it shows whether the document has the
    registered type and invariants, whether the template matches, each condition of the predicate with the values found,
    the filter's selection, the objects that wait for the subscriber, and the decisions of policies.

    \b
    jbi explain subscription-... --metadata fig1.xml
    jbi explain 3f8a --object 5d1c...-17
    """
    if not given.uid.strip() or (given.object_id is not None and not given.object_id.strip()):
        what = "object" if given.uid.strip() else "subscription"
        raise ConfigurationError(f"the id of the {what} is empty", hint=f"Give the id of one {what}")
    if bool(given.metadata) == bool(given.object_id) or (given.payload and given.object_id):
        raise ConfigurationError("give either --metadata, with or without --payload, or --object")
    document = given.metadata.read_bytes() if given.metadata else b""
    body = given.payload.read_bytes() if given.payload else b""

    servers = subscription_servers(given.settings.load())
    if given.object_id:
        found = _of_object(servers, given.uid, given.object_id)
    else:
        answers = asked(servers, lambda proxy: proxy.explain(given.uid, document, body))
        found = [_at(ref, facts) for ref, facts in answers]
    if not found:
        raise UnknownUidError(
            f"no subscription {given.uid} at any delegate or peer publisher",
            hint="It comes there with the first registration that its template matches, and goes with its subscriber",
        )
    names = sorted({facts["subscription"] for facts in found})
    if len(names) > 1:
        raise UnknownUidError(f"several subscriptions begin with {given.uid!r}: {', '.join(names)}")
    what = given.object_id or (given.metadata.name if given.metadata else "")
    given.show(found, lambda: _show_all(found, what))


def _at(ref: ServiceRef, facts: Facts) -> Facts:
    return {"server": ", ".join(ref.endpoints), **facts}


def _of_object(servers: Iterable[SubscriptionsProxy], uid: str, object_id: str) -> list[Facts]:
    """The answers of those that have both. Raises UnknownUidError, which says which of the two nobody has."""
    subscription = False

    def ask(proxy: SubscriptionsProxy) -> Facts:
        nonlocal subscription
        proxy.explain(uid, NOTHING, b"")  # it raises when the subscription does not stand there
        subscription = True
        return proxy.explain_object(uid, object_id)

    found = [_at(ref, facts) for ref, facts in asked(servers, ask)]
    if subscription and not found:
        raise UnknownUidError(
            f"no object {object_id} is known any more at the servers of subscription {uid}",
            hint="An object is known for some seconds after it was published; explain its document with --metadata",
        )
    return found


def _show_all(found: Sequence[Facts], what: str) -> None:
    for number, facts in enumerate(found):
        if number:
            click.echo()
        _show(facts, what)


def _show(facts: Facts, what: str) -> None:
    """One server's answer."""
    whole = ("whole", "", f"{what} is {verdict(facts)}, at {facts['server']}")
    _show_folded(("level", "", "because"), [whole, *levels(facts)])
    click.echo()
    if facts["conditions"]:
        _show_folded(("holds", "condition", "found"), _conditions(facts["conditions"]))
        click.echo()
    _show_folded(("term", "", "of the subscription"), _terms(facts))


def _show_folded(heads: Sequence[str], rows: Iterable[Row]) -> None:
    """A table in which all can be read: in a terminal a cell that is too wide goes on in the next line."""
    shown = list(rows)
    if sys.stdout.isatty():
        shown = [line for row in shown for line in folded(row)]
    show_table([Column(head) for head in heads], shown)


def folded(row: Row) -> Iterator[Row]:
    """The lines of a row, the first of its three columns WIDTHS[0] characters wide, and so on."""
    wide = WIDTHS if len(str(row[1])) > WIDTHS_OF_TWO[1] else WIDTHS_OF_TWO
    cells = [textwrap.wrap(printable(cell), width) or [""] for cell, width in zip(row, wide, strict=True)]
    for line in itertools.zip_longest(*cells, fillvalue=""):
        yield tuple(line)


def _conditions(conditions: list[dict[str, Any]]) -> Iterator[Row]:
    for condition in conditions:
        said = {"and": "all of: ", "or": "one of: ", "not": "not: "}.get(condition["joint"], "")
        text = "  " * condition["level"] + said + condition["text"]
        yield holds(condition["holds"]), text, "; ".join(map(_found, condition["found"]))


def _found(found: dict[str, Any]) -> str:
    if not found["count"]:
        return "nothing"
    values = [" ".join(value.split()) for value in found["values"]]
    shown = ", ".join(repr(value if len(value) <= MAX_VALUE else value[:MAX_VALUE] + "...") for value in values)
    more = found["count"] - len(values)
    return f"{shown} and {more} more" if more else shown


def _terms(facts: dict[str, Any]) -> Iterator[Row]:
    terms = facts["terms"]
    told = {
        "id": facts["subscription"],
        "template": "; ".join(terms["template"]),
        "predicate": terms["predicate"],
        "filter": terms["filter"],
        "recipients": ", ".join(terms["recipients"]),
        "delivery": ", ".join(["queue"] * terms["direct"] + ["mail"] * bool(terms["recipients"])),
        "policy": f"{terms['policy']} {terms['bound']}",
        **_quality(terms),
        **{name: terms[name] for name in ("matched", "suppressed", "unfiltered", "failed", "delivered", "mailed")},
        "lost": losses(terms["lost"]),
        "last failure": terms["last_failure"],
        "set aside": terms.get("set_aside", ""),
        "not met": "; ".join(map(_unmet, terms.get("unmet", ()))),
    }
    yield from ((name, "", value) for name, value in told.items() if value != "")


def _unmet(term: dict[str, Any]) -> str:
    return f"{term['field']} {term['required']:g} is required, {term['offered']:g} offered by {term['registration']}"


def _quality(terms: dict[str, Any]) -> dict[str, object]:
    """Decisions of policies for it, where quality of service is on."""
    qos = terms.get("qos", {})
    told = {
        "importance": qos.get("importance"),
        "deadline": f"{qos['deadline']:g} s" if qos.get("deadline") else None,
        "shape": ", ".join(qos.get("shapes", ())),
        "max_size": f"{qos['max_size']} B" if qos.get("max_size") else None,
        "max_rate": qos.get("max_rate"),
        "replace": qos.get("replace"),
    }
    return {name: value for name, value in told.items() if value}
