"""Publishing for HTTP clients: registrations are made when they are needed, one for each type, kind of checking and set
of invariant values."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ArgumentError,
    BackPressureError,
    InvariantError,
    JbiError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight, RegistrationUid

REGISTRATIONS_MOST: Final = 16
"""Sets of invariant values of a type; the one used longest ago ends for another."""
TYPES_MOST: Final = 256
"""Types with registrations, likewise."""
OPENING_SECONDS: Final = 2.0
"""For another registration to be made first."""
TURN_SECONDS: Final = 1.0
"""The longest that an acknowledgement is awaited at a time."""
REFUSALS_MOST: Final = 1_000
"""Refusals of a delegate that are remembered until somebody asks."""


class RegistrationTerms(NamedTuple):
    """Terms that tell registrations apart."""

    type: TypeName
    validate: bool
    persist: bool | None


class GatewayPublisher:
    """Any thread. `_lock` covers the tables, `_opening` is held while something is opened."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._adapter: PublisherAdapterLight | None = None
        self._delegate: DelegateUid | None = None
        self._ends = False
        self._known: OrderedDict[RegistrationTerms, tuple[RegistrationUid, ...]] = OrderedDict()
        self._refused: Cache[str, JbiError] = Cache(REFUSALS_MOST)

    def publish(
        self,
        terms: RegistrationTerms,
        objects: Sequence[tuple[bytes, bytes]],
        before: Sequence[str] = (),
        *,
        opens: bool = True,
    ) -> list[str]:
        """Publish those behind the ones that were published `before`; the ids of all. Never waits for room. Unless it
        `opens` registrations, it ends before an object that needs one, and waits for nothing. Raises what registering
        and publishing raise; the fact `published` says how many went before."""
        ids = list(before)
        try:
            for metadata, payload in objects[len(ids) :]:
                object_id = self._publish(terms, metadata, payload)
                if not object_id:
                    if not opens:
                        break
                    object_id = self._publish_new(terms, metadata, payload)
                ids.append(object_id)
        except JbiError as exc:
            exc.facts["published"] = len(ids)
            if isinstance(exc, WireError) and isinstance(exc.__cause__, AccessDeniedError):  # rules were changed
                raise AccessDeniedError(exc.message, hint=exc.hint, **{**exc.__cause__.facts, **exc.facts}) from exc
            raise
        return ids

    def flush(self, ids: Sequence[str], seconds: float) -> None:
        """Wait until the delegate has taken them. Raises BackPressureError when the time is over, or the gateway ends,
        and the delegate's error when it has refused one."""
        adapter = self._open()
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            try:
                adapter.flush(max(0.0, min(left, TURN_SECONDS)))
                break
            except BackPressureError as exc:
                if left <= TURN_SECONDS or self._ends:
                    raise BackPressureError(f"not all taken by the delegate within {seconds:g} s") from exc
        with self._lock:
            errors = [error for object_id in ids if (error := self._refused.pop(object_id, None)) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Hand over what is queued, and leave."""
        with self._lock:
            self._ends = True
            adapter, self._adapter = self._adapter, None
            self._known.clear()
        if adapter is not None:
            adapter.close()

    def _publish(self, terms: RegistrationTerms, metadata: bytes, payload: bytes) -> str:
        """The id; "" when no registration takes it."""
        for registration in self._known.get(terms, ()):
            try:
                return self._open().publish(registration, metadata, payload, timeout=0.0)
            except (InvariantError, UnknownUidError):  # the latter: it has ended for another at the same moment
                continue
        return ""

    def _open(self) -> PublisherAdapterLight:
        with self._lock:
            if self._ends:
                raise WireError("the gateway ends", hint="Come again")
            if self._adapter is None:
                self._adapter = PublisherAdapterLight(self._config, name="gateway", refused=self._note)
            return self._adapter

    def _publish_new(self, terms: RegistrationTerms, metadata: bytes, payload: bytes) -> str:
        """The id, under a registration of its own, unless somebody has made it meanwhile."""
        if not self._opening.acquire(timeout=OPENING_SECONDS):  # the delegate is away: not all threads are to wait
            raise BackPressureError("another registration is being made", hint="Come again")
        ended: list[RegistrationUid] = []
        try:
            object_id = self._publish(terms, metadata, payload)
            if not object_id:
                made = self._registered(terms, metadata)
                ended = self._keep(terms, made)
                object_id = self._open().publish(made, metadata, payload, timeout=0.0)
        finally:
            self._opening.release()
        for registration in ended:
            self._open().unregister_publisher(registration)
        return object_id

    def _registered(self, terms: RegistrationTerms, metadata: bytes) -> RegistrationUid:
        adapter = self._open()
        if self._delegate is None:
            self._delegate = adapter.connect_to_delegate(*self._config.gateway.delegate)
        register = partial(
            adapter.register_publisher, self._delegate, type_name=terms.type.name, version=terms.type.version,
            validate=terms.validate, persist=terms.persist,
        )  # fmt: skip
        try:
            return register()
        except ArgumentError as exc:
            if exc.facts.get("argument") != "invariants":
                raise
            return register(invariants=metadata)

    def _keep(self, terms: RegistrationTerms, made: RegistrationUid) -> list[RegistrationUid]:
        """Those that have to end for it."""
        with self._lock:
            all_of = (made, *self._known.pop(terms, ()))
            self._known[terms] = all_of[:REGISTRATIONS_MOST]
            ended = [*all_of[REGISTRATIONS_MOST:]]
            while len(self._known) > TYPES_MOST:
                ended += self._known.popitem(last=False)[1]
            return ended

    def _note(self, object_id: str, error: JbiError) -> None:
        with self._lock:
            self._refused[object_id] = error
