"""Scopes of a query: of which types and registrations of an archive a caller may have what.

What may be seen is decided when a query opens: of each type what the access rules let through.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, get_args

import msgspec

from jbi_pubsub.core.access import AccessPolicy, Action, Subject, demand, denied
from jbi_pubsub.core.combined import Provenance
from jbi_pubsub.core.errors import ConfigurationError, PredicateError
from jbi_pubsub.core.history import MAX_POSITION, HistoryQuery, Scope
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.core.xpath.narrowing import Condition, joined
from jbi_pubsub.lookup.item import BOUNDS, ServiceTemplate
from jbi_pubsub.pad.matching.dissemination import takes
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.pad.past.archiving import entries_of, provenance_of
from jbi_pubsub.pad.past.durable import fits
from jbi_pubsub.pad.past.store_protocol import Keeping
from jbi_pubsub.protocol.requests import QueryRequest, Start, View, check_namespaces

OBJECT_IDS_MOST: Final = 10_000
REGISTRATIONS_MOST: Final = 10_000
TEXT_MOST: Final = 1_024
"""Characters of the name of a type or registration."""
QUERY_BOUNDS: Final = msgspec.structs.replace(BOUNDS, item_bytes=1 << 20)
"""Bytes of a query: 10,000 ids of objects are half of it."""


class QueryPlan(NamedTuple):
    """A caller's query as it is allowed."""

    request: QueryRequest
    caller: Caller | None
    query: HistoryQuery
    """The query that an archive is asked."""
    left_out: tuple[str, ...] = ()
    """Types that are left out, in the caller's own words."""

    @property
    def conditions(self) -> set[tuple[TypeName, Condition]]:
        """Conditions on what may be seen of which types."""
        return conditions_of(self.query.scopes)


class ArchiveScopes:
    """Scopes of the queries of one archive. Any thread."""

    def __init__(self, keeping: Keeping, access: AccessPolicy) -> None:
        self._keeping = keeping
        self._access = access

    def plan(self, request: QueryRequest, caller: Caller | None, *, apart: bool = False) -> QueryPlan:
        """That query for this caller, over all that is on disk by now; `apart` as in `scopes_of`. Raises
        AccessDeniedError, PredicateError, ConfigurationError, EntryError, StorageError."""
        check_allowed(self._access, request, caller)
        is_before = not request.after and request.up_to < MAX_POSITION  # its place is the one above the last position
        self.check_place(request.up_to + 1 if is_before else request.after, request.archive)
        up_to = min(request.up_to, self._keeping.synced)
        scopes, left_out, is_narrowed = self.scopes_of(request, caller, "query", apart=apart)
        if left_out and not scopes and caller is not None:
            raise denied(caller, "query", Subject(request.type, request.version))
        query = HistoryQuery(
            scopes=scopes, after=min(request.after, up_to), up_to=up_to, since=request.since, until=request.until,
            by_receipt=request.by_receipt, least_payload=request.least_payload, most_payload=request.most_payload,
            object_ids=request.object_ids, latest_by=request.latest_by, order=request.order, limit=request.limit,
            is_narrowed=is_narrowed,
        )  # fmt: skip
        return QueryPlan(request, caller, query, left_out)

    def scopes_of(
        self, request: QueryRequest, caller: Caller | None, action: Action, *, apart: bool = False
    ) -> tuple[tuple[Scope, ...], tuple[str, ...], bool]:
        """The types that the caller may read something of, with what; what is left out, in his own words, as he is not
        told which types there are that he may not read; and whether rules hide anything. `apart`: what they let him
        have stands beside what he asks for."""
        scopes: list[Scope] = []
        left_out: tuple[str, ...] = ()
        is_narrowed = False
        for type_, uids in self._types_of(request).items():
            is_combined = request.view == "combined" and bool(request.predicate)
            condition: Condition = ("", ()) if is_combined else (request.predicate, request.namespaces)
            rule: Condition = ("", ())
            if caller is not None:
                decision = self._access.allow(caller, action, Subject(type_.name, type_.version))
                if not decision:
                    self._access.record(caller, action, Subject(type_.name, type_.version), decision)
                    left_out, is_narrowed = (str(TypeName(request.type or "*", request.version or "*")),), True
                    continue
                if decision.where:
                    is_narrowed = True
                    rule = decision.where, decision.namespaces
                    both = _narrowed(condition, rule)
                    condition, rule = (condition, rule) if apart else (both, ("", ()))
            scope = Scope(type_, *condition, tuple(uids) if uids is not None else None)
            if apart:
                scope = msgspec.structs.replace(scope, where=rule[0], bound=rule[1])
            if is_combined:
                scope = msgspec.structs.replace(
                    scope, combined=request.predicate, prefixes=request.namespaces, origins=self._origins(type_, uids)
                )
            scopes.append(scope)
        return tuple(scopes), left_out, is_narrowed

    def _origins(self, type_: TypeName, uids: Sequence[str] | None) -> tuple[tuple[Provenance, tuple[str, ...]], ...]:
        """Publishers of a type, each with its registrations, of these or of all."""
        wanted = frozenset(uids) if uids is not None else None
        found: dict[Provenance, list[str]] = {}
        for source in self._keeping.sources():
            if source.type == type_ and (wanted is None or source.uid in wanted):
                found.setdefault(provenance_of(source), []).append(source.uid)
        return tuple((origin, tuple(those)) for origin, those in found.items())

    def _types_of(self, request: QueryRequest) -> dict[TypeName, list[str] | None]:
        """The types that have something of what is asked for, and of which registrations; None: of all."""
        wanted, uids = request.entries, set(request.registrations) if request.registrations is not None else None
        all_of = uids is None and not (wanted or request.publisher)
        found: dict[TypeName, list[str] | None] = {}
        for source in self._keeping.sources():
            type_ = source.type
            if request.type not in ("", type_.name) or request.version not in ("", type_.version):
                continue
            if request.publisher not in ("", source.publisher):
                continue
            if all_of:
                found[type_] = None
            elif (uids is None or source.uid in uids) and (not wanted or fits(wanted, entries_of(source.entries))):
                known = found.setdefault(type_, [])
                assert known is not None
                known.append(source.uid)
        return found

    def without_unwanted(self, scopes: Sequence[Scope], subscription: Subscription) -> tuple[Scope, ...]:
        """Without registrations that a subscription does not want anything of."""
        refused = {s.uid for s in self._keeping.sources() if not takes(subscription, provenance_of(s))}
        if not refused:
            return tuple(scopes)
        found: list[Scope] = []
        for scope in scopes:
            uids = scope.registrations
            if uids is None:
                uids = tuple(s.uid for s in self._keeping.sources() if s.type == scope.type)
            if left := tuple(uid for uid in uids if uid not in refused):
                found.append(msgspec.structs.replace(scope, registrations=left))
        return tuple(found)

    def is_elsewhere(self, start: Start) -> bool:
        """Whether it is behind a position that this archive has not given: that of another one, or of what this one
        was before it was put back from a copy."""
        has_place = start.kind == "after" and start.after < MAX_POSITION
        return has_place and start.after > self._reached(start.archive)

    def _reached(self, archive: str) -> int:
        """The last position that is this archive's of those that one gave; "": of whatever archive."""
        keeping = self._keeping
        return min(keeping.end, keeping.incarnations.get(archive, 0) if archive else MAX_POSITION)

    def check_place(self, position: int, archive: str) -> None:
        """Raises ConfigurationError for a place in another archive."""
        if archive and position > self._reached(archive):
            raise ConfigurationError(
                f"position {position} is not one of this archive", hint="Name a time, or a place in this one"
            )


def check_allowed(access: AccessPolicy, request: QueryRequest, caller: Caller | None) -> None:
    """Raises AccessDeniedError, and as `check_query`."""
    check_query(request)
    if caller is not None:
        subject = Subject(request.type, request.version, some=not (request.type and request.version))
        demand(access, caller, ("connect", Subject()))
        demand(access, caller, ("query", subject))


def conditions_of(scopes: Iterable[Scope]) -> set[tuple[TypeName, Condition]]:
    """Conditions on what may be seen of which types, whatever is asked of the combined view: that does not change."""
    return {(scope.type, (scope.predicate, scope.namespaces)) for scope in scopes}


def check_query(request: QueryRequest) -> None:
    """Raises ConfigurationError, PredicateError, EntryError, OversizeError."""
    if request.since > request.until:
        raise ConfigurationError(f"since ({request.since:.3f}) is after until ({request.until:.3f})")
    if request.least_payload > request.most_payload:
        raise ConfigurationError("least_payload is more than most_payload")
    if not (math.isfinite(request.timeout) and request.timeout >= 0):
        raise ConfigurationError(f"timeout {request.timeout} is not a number of seconds")
    if request.language != "xpath":
        raise ConfigurationError(
            f"archives are asked in XPath, not in {request.language[:40]!r}", hint="Leave the language out"
        )
    for what, many, most in (
        ("object ids", request.object_ids, OBJECT_IDS_MOST),
        ("registrations", request.registrations, REGISTRATIONS_MOST),
    ):
        if many is not None and (len(many) > most or any(len(each) > TEXT_MOST for each in many)):
            raise ConfigurationError(f"more than {most} {what}, or one of more than {TEXT_MOST} characters")
    if max(len(request.type), len(request.version), len(request.publisher)) > TEXT_MOST:
        raise ConfigurationError(f"the name of a type, version or publisher of more than {TEXT_MOST} characters")
    BOUNDS.check_parts("a query", ServiceTemplate(entries=request.entries))
    QUERY_BOUNDS.check_size("a query", request)
    check_namespaces(request.namespaces)
    spaces = dict(request.namespaces)
    if request.predicate:
        compile_predicate(request.predicate, namespaces=spaces)
    if request.view not in get_args(View):
        raise ConfigurationError(f"unknown view {request.view!r}", hint=f"Use {' or '.join(get_args(View))}")
    if request.latest_by:
        compile_predicate(request.latest_by, namespaces=spaces, argument="latest_by")


def _narrowed(condition: Condition, where: Condition) -> Condition:
    """With what an access rule lets through. Raises PredicateError, which does not say what the rules are."""
    if not condition[0]:
        return where
    both = joined([condition, where], "and")
    try:
        compile_predicate(both[0], namespaces=dict(both[1]))
    except PredicateError as exc:
        raise PredicateError(
            "the predicate is too long or too costly together with what the access policy adds",
            hint="Make it simpler",
            argument="predicate",
        ) from exc
    return both
