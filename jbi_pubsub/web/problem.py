"""Errors as HTTP tells them: application/problem+json (RFC 9457), with the code of our class, one to one."""

from __future__ import annotations

import inspect
from typing import Final

import msgspec

from jbi_pubsub.core.errors import ErrorReport, Fact, JbiError, rebuild

PROBLEM: Final = "application/problem+json"
RETRY_SECONDS: Final = 1
"""Seconds that a client is to wait that was told 429 or 503."""

_STATUS: Final = {
    "error": 500, "configuration": 422, "argument": 400, "policy": 500, "adapter_state": 409, "access_denied": 403,
    "qos_denied": 409, "port_in_use": 500, "storage": 507, "oversize": 413, "schema": 422, "type_conflict": 409,
    "metadata": 422, "invariant": 422, "signature": 422, "predicate": 422, "address": 422, "unknown_uid": 404,
    "delegate_not_found": 503, "lookup_not_found": 503, "lease": 503, "lease_denied": 409, "unknown_lease": 410,
    "entry": 422, "incompatible_entry": 409, "study": 500, "wire": 502, "protocol": 502, "wire_timeout": 504,
    "back_pressure": 429, "demo": 500, "child": 503,
    "capi": 500, "capi_permission_denied": 403, "capi_unsupported_version": 400, "capi_version_number": 400,
    "capi_invalid_payload": 400, "capi_invalid_metadata": 422, "capi_object_size": 413, "capi_paused_sequence": 409,
    "capi_sequence_state": 409, "capi_invalid_predicate": 422, "capi_predicate_language": 422,
    "capi_unrecognized_object_type": 422, "capi_object_unavailable": 404, "capi_timeout": 504,
    "capi_connection": 409, "capi_node_away": 502, "capi_platform_failure": 500,
}  # fmt: skip
"""By code; of one that is not here that of its base."""

_TITLES: Final = {"argument": "Invalid request", "unknown_uid": "Unknown resource"}
"""By code, where the gateway means more by it than the library."""


class Problem(msgspec.Struct, frozen=True):
    """Problem of a request, and how to mend it. `code` names our class of error, `facts` the same as plain values."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    facts: dict[str, Fact] = {}


def status_of(kind: type[JbiError]) -> int:
    """The HTTP status of an error's class."""
    return next(_STATUS[base.code] for base in kind.__mro__ if issubclass(base, JbiError) and base.code in _STATUS)


def problem(error: JbiError, status: int | None = None, title: str = "") -> Problem:
    """The error as it is told; `title` instead of that of its class."""
    kind = type(error)
    return Problem(
        f"urn:jbi:error:{kind.code}", title or _title(kind), status or status_of(kind), error.message, kind.code,
        error.hint,
        {name: fact for name, fact in error.facts.items() if isinstance(fact, str | int | float | bool | None)},
    )  # fmt: skip


def error_of(told: Problem) -> JbiError:
    """The error that a problem stands for, of the same class: for clients in Python."""
    return rebuild(ErrorReport(told.code, told.detail, told.hint, told.facts))


def codes() -> list[tuple[str, int, str]]:
    """Code, status and title of each class of error that the gateway can tell, sorted."""
    kinds, waiting = set[type[JbiError]](), [JbiError]
    while waiting:
        kind = waiting.pop()
        if kind not in kinds:
            kinds.add(kind)
            waiting += kind.__subclasses__()
    named = {kind.code: kind for kind in kinds if kind.code in _STATUS}
    return [(code, status_of(named[code]), _title(named[code])) for code in sorted(named)]


def _title(kind: type[JbiError]) -> str:
    if kind.code in _TITLES:
        return _TITLES[kind.code]
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")
