"""Why an object would be delivered to a subscription, or not: each level by itself, as plain data.

Rules:
- First the document: whether it is what a registration publishes, of its type and with its invariants. What is not
  never reaches the first level, whatever the template says.
- Then the template, each condition of the predicate with the values found, the filter, the queue.
- What is asked here leaves no trace in counters, and disturbs no matching.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from jbi_pubsub.core.combined import OWN_BYTES, Provenance, combined
from jbi_pubsub.core.errors import ConfigurationError, MetadataError, OversizeError, UnknownUidError
from jbi_pubsub.core.info_object import Head, Parcel, TypeName
from jbi_pubsub.core.xml import Element, give_back, parse_metadata, parse_payload
from jbi_pubsub.core.xpath import Predicate, examine
from jbi_pubsub.core.xpath.predicate import NO_NAMESPACES, XPATH
from jbi_pubsub.lookup.entry import EntryRep, matches
from jbi_pubsub.pad.matching.dissemination import NOWHERE, takes
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.delegate import SessionStatus, SubscriptionStatus

MAX_CANDIDATES: Final = 10
"""Ids listed when the beginning of one fits several."""


class Standing(NamedTuple):
    """A registration as it stands: its type, the entries that templates are held against (the type's is the first),
    and whether its metadata are validated. `may`: whether the subscriber may have objects of it; `predicate`: what the
    subscription is matched by there."""

    gate: InformationTypeGate
    entries: tuple[EntryRep, ...]
    validates: bool
    may: bool
    predicate: Predicate | None
    origin: Provenance = NOWHERE


def explain(
    subscription: Subscription,
    registered: Mapping[str, Standing],
    metadata: bytes,
    payload: bytes,
    queue: Mapping[str, object],
    head: Head | None = None,
) -> dict[str, Any]:
    """Why an object with `metadata` and `payload` would be delivered to a subscription, or not.

    `registered` are the registrations by uid; `queue` is shown as it is. `head` is the object's, if it was published;
    else a combined view shows it as the first registration would publish it now. Raises MetadataError for metadata that
    don't parse, OversizeError.
    """
    request = subscription.request
    root = parse_metadata(metadata)
    second = _second_level(subscription, root, len(metadata))
    if subscription.combined is not None:
        view = _view(registered, metadata, payload, head)
        second = _second_level(subscription, view, len(metadata) + OWN_BYTES)
    first = {}
    for uid, standing in registered.items():
        access = _withheld(subscription, standing, root, len(metadata)) if second["predicate_true"] else []
        first[uid] = _first_level(subscription, standing, root, access)
    cut, withheld = _filtered(subscription, payload)
    suppressed = withheld or bool(cut["selected"] == 0 and request.suppress_empty)
    return {
        "subscription": subscription.uid,
        "first_level": first,
        **second,
        **cut,
        "suppressed": suppressed,
        "delivered": bool(
            second["predicate_true"] and any(level["matches"] for level in first.values()) and not suppressed
        ),
        "queue": dict(queue),
        "terms": subscription.status(SubscriptionStatus),
    }


def contradictions(
    request: SubscriptionRequest, registered: Collection[tuple[InformationTypeGate, Collection[Sequence[EntryRep]]]]
) -> tuple[str, ...]:
    """Why a request contradicts the schemas of all these types, in whose documents its XPaths find nothing, or the
    invariants of all their registrations; () if it does not."""
    if request.language != XPATH or request.view != "metadata":
        return ()
    own, found = dict(request.namespaces), {}
    replace = "" if request.qos.replace in (None, "type", "registration") else request.qos.replace
    for name, expression, namespaces in (
        ("", request.predicate, own),
        ("latest_by ", request.start.latest_by, own),
        ("replace ", replace, NO_NAMESPACES),
    ):
        said = [
            gate.impossible(expression, namespaces, () if name else entries) if expression else ()
            for gate, entries in registered
        ]
        if said and all(said):
            found.update(dict.fromkeys(f"{name}{each}" for lines in said for each in lines))
    return tuple(found)


def find_subscription(wanted: str, known: Iterable[str]) -> str:
    """The id that `wanted` is, or is the beginning of, with or without the kind before it.

    Raises UnknownUidError when none is, ConfigurationError with the candidates when several are.
    """
    candidates = set(known)
    if wanted in candidates:
        return wanted
    fitting = sorted(uid for uid in candidates if wanted and (uid.startswith(wanted) or _bare(uid).startswith(wanted)))
    if not fitting:
        raise UnknownUidError(f"no subscription {wanted} here", uid=wanted)
    if len(fitting) > 1:
        shown = ", ".join(fitting[:MAX_CANDIDATES]) + (", ..." if len(fitting) > MAX_CANDIDATES else "")
        raise ConfigurationError(
            f"{len(fitting)} subscriptions begin with {wanted!r}: {shown}", hint="Write more of the id", uid=wanted
        )
    return fitting[0]


def recall(object_id: str, kept: Callable[[str], Parcel | None]) -> Parcel:
    """The object of that id, while `kept` still has it. Raises UnknownUidError."""
    parcel = kept(object_id)
    if parcel is None:
        raise UnknownUidError(
            f"no object {object_id} is known here any more",
            hint="An object is known for some seconds after it was published; explain its document instead",
            uid=object_id,
        )
    return parcel


def queue_of(session: SessionStatus, uid: str) -> dict[str, object]:
    """The part of a subscriber session's status that concerns one subscription of it."""
    return {
        "connected": session.connected,
        "queued": session.queued.get(uid, 0),
        "in_flight": session.in_flight,
    }


def _bare(uid: str) -> str:
    return uid.removeprefix("subscription-")


def _withheld(subscription: Subscription, standing: Standing, root: Element, size: int) -> list[str]:
    """Objections of access rules, without saying what they are."""
    if not standing.may:
        return ["access policy: the subscriber may not have this type"]
    if standing.predicate is None or standing.predicate is subscription.predicate:
        return []
    holds = standing.predicate.copy().decide(root, size) is True
    return [] if holds else [f"access policy: withheld by {subscription.narrowed_by}"]


def _first_level(subscription: Subscription, standing: Standing, root: Element, access: list[str]) -> dict[str, object]:
    """Whether the document could be published by a registration, and whether the template matches that; `access`: what
    rules have against it."""
    type_name = standing.gate.type
    why = _misfit(standing, root)
    misses = _misses(subscription.request.entries, standing.entries) + access
    judged = [(standing.gate, [standing.entries])] if standing.validates else []
    if not takes(subscription, standing.origin):
        misses.append("the subscription does not want what its publisher publishes (unlike, local)")
    return {
        "type": type_name.name,
        "version": type_name.version,
        "matches": not why and not misses,
        "document": why or "fits",
        "misses": misses,
        "impossible": contradictions(subscription.request, judged),
    }


def _misfit(standing: Standing, root: Element) -> str:
    """Why the document is none that the registration may publish; "" if it is one."""
    gate = standing.gate
    try:
        if standing.validates:
            gate.validate(root)
        gate.check_invariants(root, standing.entries[1:])
    except MetadataError as exc:
        return exc.message
    return ""


def _view(registered: Mapping[str, Standing], metadata: bytes, payload: bytes, head: Head | None) -> Element:
    """The combined view of an object."""
    first = next(iter(registered), "")
    uid = head.registration if head is not None else first
    standing = registered.get(uid)
    if head is None:
        kind = standing.gate.type if standing is not None else TypeName("")
        head = Head("", uid, 0, time.time(), kind.name, kind.version, metadata, len(payload))
    return combined(head, standing.origin if standing is not None else NOWHERE)


def _second_level(subscription: Subscription, root: Element, size: int) -> dict[str, object]:
    predicate = subscription.combined or subscription.predicate
    if predicate is None:
        return {"predicate": "", "predicate_true": True, "predicate_failure": "", "conditions": []}
    predicate = predicate.copy()
    holds = predicate.decide(root, size)
    return {
        "predicate": predicate.expression,
        "predicate_true": holds is True,
        "predicate_failure": predicate.last_error,
        "conditions": msgspec.to_builtins(examine(predicate, root, size)),
    }


def _filtered(subscription: Subscription, payload: bytes) -> tuple[dict[str, object], bool]:
    """The filter's findings, and whether it is withheld for being beyond what that is applied to."""
    if subscription.payload_filter is None:
        return {"filter": "", "filter_failure": "", "payload_is_xml": None, "selected": None}, False
    wanted = subscription.payload_filter.copy()
    said: dict[str, object] = {"filter": wanted.expression, "payload_is_xml": True, "selected": None}
    try:
        parsed = parse_payload(payload)
    except OversizeError as exc:
        choice = subscription.request.unfiltered
        done = "is lost (oversize)" if choice == "withhold" else "comes whole"
        return {**said, "filter_failure": f"{exc.message}: it {done}"}, choice == "withhold"
    if parsed is None:
        said["payload_is_xml"] = False
    else:
        said["selected"] = wanted.apply(parsed, len(payload)).count
    del parsed
    give_back(len(payload))
    return {**said, "filter_failure": wanted.last_error}, False


def _misses(templates: tuple[EntryRep, ...], entries: tuple[EntryRep, ...]) -> list[str]:
    """Fields of a template that no entry has: "Class.field: wants x, has y"; [] if everything matches."""
    return [
        miss
        for template in templates
        if not any(matches(template, e) for e in entries)
        for miss in _miss(template, entries)
    ]


def _miss(template: EntryRep, entries: tuple[EntryRep, ...]) -> list[str]:
    same = [e for e in entries if template.cls.name in (name for name, _ in e.cls.lineage)]
    if not same:
        return [f"{template.cls.name}: the registration has no such entry"]
    return [
        f"{template.cls.name}.{name}: wants {wanted!r}, has {', '.join(repr(e.as_dict()[name]) for e in same)}"
        for name, wanted in template.as_dict().items()
        if wanted is not None and all(e.as_dict()[name] != wanted for e in same)
    ] or [f"{template.cls.name}: no single entry has all the wanted values"]
