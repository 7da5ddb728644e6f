"""Conditions of a subscription, checked and compiled: whatever it says that can be wrong is refused here, by the
subscriber before anybody is asked, and by the delegate again."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, get_args

from jbi_pubsub.core import combined
from jbi_pubsub.core.errors import ConfigurationError, OversizeError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.quality import checked_wish
from jbi_pubsub.core.xpath import PayloadFilter, Predicate, compile_filter, compile_predicate
from jbi_pubsub.core.xpath.language.analysis import MAX_CONJUNCTS
from jbi_pubsub.core.xpath.predicate import XPATH, compiler_of
from jbi_pubsub.core.xpath.view import inside
from jbi_pubsub.protocol.requests import (
    DIGEST_ATTRIBUTE,
    MAX_OWNER,
    MAX_TEXT,
    Policy,
    SubscriptionRequest,
    View,
    check_namespaces,
    check_recipients,
    check_request,
    check_unfiltered,
)
from jbi_pubsub.protocol.wanted import Demand

MAX_BOUND: Final = 10_000_000

MAX_BLOCK_SECONDS: Final = 60.0
"""Longest that one subscriber may hold a publisher up, under policy `block`."""

MANY_ATTRIBUTE: Final = "stands_for_many"
"""Attribute of the subscription of a bridge to what is wanted by many on its other side, where each is asked again."""
_ATTRIBUTES: Final = (DIGEST_ATTRIBUTE, MANY_ATTRIBUTE)

_NEAR: Final = 0.8
"""Bound of difflib's ratio: three letters of a name of 19 may be others, or five be missing."""

MAX_DIGEST_SECONDS: Final = 86_400.0
"""A day: what is gathered longer takes room that other mail needs."""


class CompiledConditions(NamedTuple):
    """Compiled conditions of a subscription."""

    predicate: Predicate | None
    """On the metadata."""
    combined: Predicate | None
    """On the combined view, instead of one on the metadata (see core/combined.py)."""
    payload_filter: PayloadFilter | None
    digest_seconds: float
    """Seconds for which objects are gathered for one mail; 0.0 sends each by itself."""


def compile_conditions(request: SubscriptionRequest, most: int = MAX_CONJUNCTS) -> CompiledConditions:
    """Check and compile; `most`: conjuncts of the predicate's plan. Raises PredicateError (naming the argument),
    AddressError, ConfigurationError."""
    if not request.direct and not request.recipients:
        raise ConfigurationError("a subscription needs a queue, e-mail recipients, or both")
    if request.view not in get_args(View):
        raise ConfigurationError(f"unknown view {request.view!r}", hint=f"Use {' or '.join(get_args(View))}")
    check_unfiltered(request.unfiltered)
    if not set(request.demands) <= set(get_args(Demand)):
        raise ConfigurationError(f"demands: {request.demands!r}"[:200], hint=f"There are {', '.join(get_args(Demand))}")
    if len(request.unlike) > MAX_OWNER:
        raise ConfigurationError(f"unlike has {len(request.unlike)} characters, the limit is {MAX_OWNER}")
    if request.policy not in get_args(Policy):
        raise ConfigurationError(f"unknown queue policy {request.policy!r}", hint=f"Use {', '.join(get_args(Policy))}")
    if not (math.isfinite(request.block_seconds) and 0 <= request.block_seconds <= MAX_BLOCK_SECONDS):
        raise ConfigurationError(f"block_seconds {request.block_seconds} is not in 0..{MAX_BLOCK_SECONDS:g}")
    if max(len(request.uid), *(len(k) + len(v) for k, v in (*request.attributes, ("", "")))) > MAX_TEXT:
        raise OversizeError(f"a subscription's id or attribute has more than {MAX_TEXT} characters")
    _check_attributes(request.attributes)
    checked_wish(request.qos)  # first: what is of no type of ours has no size
    check_request(request)
    _check_start(request)
    if not 1 <= request.bound <= MAX_BOUND:
        raise ConfigurationError(f"queue bound {request.bound} is not in 1..{MAX_BOUND}", bound=request.bound)
    check_recipients(request.recipients)
    check_namespaces(request.namespaces)
    spaces = dict(request.namespaces)
    predicate = payload_filter = None
    if request.language != XPATH:
        compiler_of(request.language)  # also of one that says nothing in it
    if request.predicate:
        predicate = compile_predicate(request.predicate, namespaces=spaces, language=request.language, most=most)
    if request.payload_filter:
        payload_filter = compile_filter(request.payload_filter, namespaces=spaces)
    digest = _digest_seconds(request)
    if request.view == "combined" and predicate is not None:
        within = inside(request.predicate, spaces, combined.TOP) if request.language == XPATH else None
        if within is None:
            return CompiledConditions(None, predicate, payload_filter, digest)
        predicate = compile_predicate(within, namespaces=spaces)
    return CompiledConditions(predicate, None, payload_filter, digest)


def _check_start(request: SubscriptionRequest) -> None:
    """Raises ConfigurationError, PredicateError."""
    start = request.start
    if request.ack != "auto" and not request.durable:
        raise ConfigurationError(f"ack {request.ack!r} is for durable subscriptions", hint="Give it a name")
    if start.kind == "new" and not request.durable:
        return
    if request.recipients or not request.direct:
        what = "a subscription that begins in the past, or is durable, needs a queue, and no e-mail"
        raise ConfigurationError(what, hint="Mail is of what is published from now on: leave `start` out, or ask twice")
    if request.language != "xpath":
        what = f"a subscription that begins in the past, or is durable, is in XPath, not in {request.language[:40]!r}"
        raise ConfigurationError(what, hint="Leave the language out")
    if start.latest_by:
        if start.kind != "last":
            raise ConfigurationError('latest_by is for start "last" alone')
        compile_predicate(start.latest_by, namespaces=dict(request.namespaces), argument="latest_by")


def _check_attributes(attributes: tuple[tuple[str, str], ...]) -> None:
    """Names that are not known are others' to use; but one that is nearly a known one is a mistake, and would be
    without effect. Raises ConfigurationError."""
    for name, _ in attributes:
        known = near_name(name.casefold(), _ATTRIBUTES, _NEAR)
        if known and name not in _ATTRIBUTES:
            raise ConfigurationError(f"no attribute {name!r}", hint=f"Did you mean {known!r}?")


def _digest_seconds(request: SubscriptionRequest) -> float:
    value = dict(request.attributes).get(DIGEST_ATTRIBUTE, "0")
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_DIGEST_SECONDS:
        raise ConfigurationError(f"attribute {DIGEST_ATTRIBUTE} = {value!r} is not in 0..{MAX_DIGEST_SECONDS:g}")
    if seconds and not request.recipients:
        raise ConfigurationError(f"attribute {DIGEST_ATTRIBUTE} is for e-mail", hint="Name recipients")
    return seconds
