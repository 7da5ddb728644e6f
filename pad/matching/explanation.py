"""Why an object would be delivered to a subscription, or not: each level by itself, as plain data.

Rules:
- First the document: whether it is what a registration publishes, of its type and with its invariants. What is not
  never reaches the first level, whatever the template says.
- Then the template, each condition of the predicate with the values found, the filter, the queue.
- What is asked here leaves no trace in counters, and disturbs no matching.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from jbi_pubsub.core.combined import OWN_BYTES, combined
from jbi_pubsub.core.errors import ConfigurationError, OversizeError, UnknownUidError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.spool import MEMORY_BYTES
from jbi_pubsub.core.xml import LOOK_BYTES, Element, give_back, looks_like_xml, parse_payload, read_metadata
from jbi_pubsub.core.xpath import Predicate, examine
from jbi_pubsub.core.xpath.predicate import NO_NAMESPACES, XPATH
from jbi_pubsub.lookup.entry import EntryRep, matches
from jbi_pubsub.pad.matching.dissemination import NOWHERE, Judgement, is_shaped, takes
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.delegate import SessionStatus, SubscriptionStatus

MAX_CANDIDATES: Final = 10
"""Ids listed when the beginning of one fits several."""


class Standing(NamedTuple):
    """A registration as it stands, and the entries that templates are held against (the type's is the first). `may`:
    whether the subscriber may have objects of it; `predicate`: what the subscription is matched by there; `set_aside`:
    why it is not evaluated there, "" if it is."""

    judgement: Judgement
    entries: tuple[EntryRep, ...]
    may: bool
    predicate: Predicate | None
    set_aside: str = ""


class _Asked:
    """An object and a subscription, as the second level sees them: for a predicate on the combined view each
    registration has a document of its own."""

    def __init__(
        self, subscription: Subscription, registered: Mapping[str, Standing], parcel: Parcel, *, is_published: bool
    ) -> None:
        self.metadata: Final = bytes(parcel.head.metadata)
        self.root: Final = read_metadata(self.metadata)
        self._subscription, self._registered = subscription, registered
        self._parcel, self._is_published = parcel, is_published
        self._holds: dict[str, bool] = {}

    def own(self, uid: str) -> Parcel:
        """The object; one that was not published as that registration would publish it now."""
        if self._is_published or uid not in self._registered:
            return self._parcel
        kind = self._registered[uid].judgement.gate.type
        head = replace(self._parcel.head, registration=uid, type_name=kind.name, type_version=kind.version)
        return replace(self._parcel, head=head)

    def holds(self, uid: str) -> bool:
        """Whether the predicate does, for an object of that registration."""
        key = uid if self._subscription.combined is not None else ""
        if key not in self._holds:
            predicate, root, size = self._question(uid)
            self._holds[key] = predicate is None or (root is not None and predicate.decide(root, size) is True)
        return self._holds[key]

    def told(self, uid: str) -> dict[str, object]:
        """The second level, with each condition."""
        predicate, root, size = self._question(uid)
        if predicate is None:
            return {"predicate": "", "predicate_true": True, "predicate_failure": "", "conditions": []}
        holds = root is not None and predicate.decide(root, size) is True
        return {
            "predicate": predicate.expression,
            "predicate_true": holds,
            "predicate_failure": predicate.last_error if root is not None else "the metadata are no XML to ask it of",
            "conditions": msgspec.to_builtins(examine(predicate, root, size)) if root is not None else [],
        }

    def _question(self, uid: str) -> tuple[Predicate | None, Element | None, int]:
        """A copy of the predicate, the document and its size."""
        size, view = len(self.metadata), self._subscription.combined
        if view is None:
            predicate = self._subscription.predicate
            return predicate.copy() if predicate is not None else None, self.root, size
        origin = self._registered[uid].judgement.origin if uid in self._registered else NOWHERE
        return view.copy(), combined(self.own(uid).head, origin), size + OWN_BYTES


def explain(
    subscription: Subscription,
    registered: Mapping[str, Standing],
    parcel: Parcel,
    queue: Mapping[str, object],
    *,
    is_published: bool = False,
) -> dict[str, Any]:
    """Why an object would be delivered to a subscription, or not; `delivered` is None where its shaping decides.

    `registered` are the registrations by uid; `queue` is shown as it is. An object that was not published is judged
    for each of them as that would publish it now; conditions on the combined view are those of the first that it is
    delivered from, or that comes nearest. Raises StorageError.
    """
    asked = _Asked(subscription, registered, parcel, is_published=is_published)
    first, matching, fitting = dict[str, dict[str, Any]](), list[str](), list[str]()
    for uid, standing in registered.items():
        level = first[uid] = _first_level(subscription, standing, asked.metadata, asked.root)
        if level["matches"]:
            matching.append(uid)
            if asked.holds(uid):
                level["misses"] = _withheld(subscription, standing, asked.root, len(asked.metadata))
                level["matches"] = not level["misses"]
                fitting += [uid] if level["matches"] else []
    nearest = next(iter((*fitting, *matching, *registered)), "")
    cut, withheld, left = _filtered(subscription, parcel)
    suppressed = withheld or bool(cut["selected"] == 0 and subscription.request.suppress_empty)
    sizes = [_size(subscription, asked.own(uid), left) for uid in fitting]
    size = max(sizes, key=_freedom, default={})
    return {
        "subscription": subscription.uid,
        "first_level": first,
        **asked.told(nearest),
        **cut,
        "suppressed": suppressed,
        "size": size,
        "delivered": size.get("holds", True) if fitting and not suppressed else False,
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


def _withheld(subscription: Subscription, standing: Standing, root: Element | None, size: int) -> list[str]:
    """Objections of access rules, without saying what they are, and of the budget for what is evaluated."""
    if not standing.may:
        return ["access policy: the subscriber may not have this type"]
    if standing.predicate is not None and standing.predicate is not subscription.predicate:
        holds = root is not None and standing.predicate.copy().decide(root, size) is True
        if not holds:
            return [f"access policy: withheld by {subscription.narrowed_by}"]
    return [f"the subscription is not evaluated here: {standing.set_aside}"] if standing.set_aside else []


def _first_level(
    subscription: Subscription, standing: Standing, metadata: bytes, root: Element | None
) -> dict[str, Any]:
    """Whether the document could be published by a registration, and whether the template matches that."""
    judgement = standing.judgement
    type_name = judgement.gate.type
    why = judgement.misfit(metadata, root)
    misses = _misses(subscription.request.entries, standing.entries)
    judged = [(judgement.gate, [standing.entries])] if judgement.validates else []
    if not takes(subscription, judgement.origin):
        misses.append("the subscription does not want what its publisher publishes (unlike, local)")
    return {
        "type": type_name.name,
        "version": type_name.version,
        "matches": not why and not misses,
        "document": why or "fits",
        "misses": misses,
        "impossible": contradictions(subscription.request, judged),
    }


def _filtered(subscription: Subscription, parcel: Parcel) -> tuple[dict[str, object], bool, int]:
    """The filter's findings, whether it is withheld for being beyond what that is applied to, and the bytes that are
    left of the payload."""
    whole = parcel.payload_size
    if subscription.payload_filter is None:
        return {"filter": "", "filter_failure": "", "payload_is_xml": None, "selected": None}, False, whole
    wanted = subscription.payload_filter.copy()
    said: dict[str, object] = {"filter": wanted.expression, "payload_is_xml": True, "selected": None}
    try:
        parsed = parse_payload(_looked_at(parcel))
    except OversizeError as exc:
        choice = subscription.request.unfiltered
        done = "is lost (oversize)" if choice == "withhold" else "comes whole"
        return {**said, "filter_failure": f"{exc.message}: it {done}"}, choice == "withhold", whole
    left = whole
    if parsed is None:
        said["payload_is_xml"] = False
    else:
        selection = wanted.apply(parsed, whole)
        said["selected"], left = selection.count, len(selection.payload)
    del parsed
    give_back(whole)
    return {**said, "filter_failure": wanted.last_error}, False, left


def _looked_at(parcel: Parcel) -> bytes:
    """The payload, or its beginning where that is no XML. Raises OversizeError, StorageError."""
    if (spooled := parcel.spooled) is not None and not looks_like_xml(start := spooled.read(0, LOOK_BYTES)):
        return start
    return bytes(parcel.payload)


def _size(subscription: Subscription, parcel: Parcel, left: int) -> dict[str, Any]:
    """Whether what is `left` of a payload, with the metadata, is within the subscription's max_size; {}: there is none
    that drops. None where a shape may make it small enough."""
    if (spooled := parcel.spooled) is not None and len(spooled) > MEMORY_BYTES and is_shaped(subscription):
        return {"bytes": len(spooled), "max_size": MEMORY_BYTES, "holds": False}
    settings = subscription.contract.of(parcel) if subscription.contract is not None else None
    if settings is None or settings.max_size is None or settings.oversize != "drop":
        return {}
    size = len(parcel.head.metadata) + left
    too_large = None if settings.shapes and left else False
    return {"bytes": size, "max_size": settings.max_size, "holds": size <= settings.max_size or too_large}


def _freedom(size: Mapping[str, Any]) -> int:
    """The lowest first: what is too large, what may be, what is not."""
    return (False, None, True).index(size.get("holds", True))


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
