"""Publishes at a delegate what was published on another platform: the publisher's side of a bridge.

Registrations keep the ids that they have there, objects their ids, numbers, times and signatures; they say by which
platforms they came. Everything else is a publisher's: queue, leases, coming back to a delegate that was away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Final

from msgspec.structs import replace

from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, UnknownUidError
from jbi_pubsub.core.info_object import InfoObject, TypeName, left_out, packed
from jbi_pubsub.protocol.entries import Origin
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.protocol.wanted import Wanted

from .interest import InterestWatch
from .light import DelegateUid, PublisherAdapterLight
from .publication import LocalPublication, PublisherTerms, RegistrationUid

FLUSH_SECONDS: Final = 0.2
"""For a delegate to have what was published: it is asked again."""


class RelayedPublication(LocalPublication):
    """A registration of another platform. Its schema is not opened here: the delegate checks what comes."""

    def __init__(
        self, uid: str, type_: TypeName, request: PublisherRequest, origin: Origin, unfinished: Callable[[int], int]
    ) -> None:
        """`origin`: that of the request; `unfinished(number)`: the number of the first object of the registration that
        the delegate has not done; 0: it has all."""
        self.uid = RegistrationUid(uid)
        self.info_type = UntypedGate(type_)
        self.sequence = max(0, (origin.first or 0) - 1)
        """Number of the last object that was queued, or is not to be."""
        self.number = 1
        self._unfinished = unfinished
        self.lock = threading.Lock()
        # what has waited here for too long is given up by the delegate, which tells it: a gap of ours says nothing
        self.terms = PublisherTerms(request.validate, request.well_formed, owner=request.owner)
        self._request = request
        self._origin = origin
        self._signer = None  # the key is the publisher's: who relays it has none
        self.signs = request.signing is not None

    def request(self) -> PublisherRequest:
        """Request to the delegate: of one that we come back to, which object comes next."""
        if self._origin.first is None or not self.sequence:
            return self._request
        if self._origin.is_sparse:  # of numbers in between nobody knows whether they were wanted
            return replace(self._request, origin=replace(self._origin, first=self._origin.first or 1))
        first = self._unfinished(self.number) or self.sequence + 1
        return replace(self._request, origin=replace(self._origin, first=first))


class RelayPublisher(PublisherAdapterLight):
    """A PublisherAdapterLight with registrations of other platforms. Safe for several threads."""

    def __init__(self, config: Config, *, name: str, bridge: str) -> None:
        """`bridge`: the id that others know the bridge by."""
        super().__init__(config, name=name)
        self._secret: Final = token_hex(16)
        self._bridge = bridge
        self._watches: list[InterestWatch] = []

    def watch_interest(
        self, at: Callable[[], DelegateUid], changed: Callable[[Wanted], None], *, members: bool = False
    ) -> None:
        """Have `changed` called, on a thread of ours, with what subscriptions at a delegate want of what is relayed,
        now and when it has changed, with `members` with who wants it. `at` says which one, and raises JbiError while
        there is none."""
        place = lambda: self._connection(at()).ref()  # noqa: E731  # handed on
        watch = InterestWatch(place, self._config, self._bridge, changed, members=members)
        with self._lock:
            self._watches.append(watch)
        watch.start()

    def _leave(self, timeout: float) -> None:
        for watch in self._watches:
            watch.stop()
        super()._leave(timeout)

    def register_relayed(
        self, delegate: DelegateUid, uid: str, type_: TypeName, request: PublisherRequest, via: tuple[str, ...], *,
        first: int | None = None, is_sparse: bool = False,
    ) -> None:  # fmt: skip
        """Register what is published elsewhere under `uid`. `request`: its schema, Entries and key, whether it is
        validated, and its expiration, counted from when an object has come; `via`: the platforms that it has passed;
        `first`, `is_sparse`: see Origin. Raises AccessDeniedError (also where the original stands, or another bridge's,
        or what follows that is missing), SchemaError, TypeConflictError, WireError."""
        connection = self._connection(delegate)
        origin = Origin(via, self._bridge, first, is_sparse)
        relayed = replace(
            request, validate=request.validate and not request.schema.is_none, well_formed=request.validate,
            secret=self._secret, owner=self._bridge, origin=origin,
        )  # fmt: skip
        publication = RelayedPublication(uid, type_, relayed, origin, connection.queue.first)
        connection.registrations.register(publication)
        with self._lock:
            self._publications[publication.uid] = publication, connection

    def relay(self, uid: str, obj: InfoObject, platform: str, timeout: float, waited: float = 0.0) -> bool:
        """Publish an object, which has come from `platform` so many seconds ago, unless it or a later one was: objects
        of a registration keep their order. Waits up to `timeout` seconds for room. Raises UnknownUidError,
        BackPressureError, WireError (the delegate does not take the registration)."""
        publication, connection = self._publication(RegistrationUid(uid))
        number = obj.platform.sequence
        with publication.lock:
            if number <= publication.sequence:
                return False
            parcel = packed(obj, platform)
            parcel.since = time.monotonic() - waited
            connection.publish(publication, [parcel], timeout)
            publication.sequence = number
        return True

    def unfinished(self, uid: str) -> int:
        """Objects of a registration that no delegate has acknowledged; none of one that there is not."""
        try:
            publication, connection = self._publication(RegistrationUid(uid))
        except UnknownUidError:
            return 0
        return connection.queue.unfinished(publication.number)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:
        """Have its subscribers told, behind what was published, that so many objects with numbers up to `up_to` were
        left out, or `lost` (see `left_out`). Raises as `relay`."""
        publication, connection = self._publication(RegistrationUid(uid))
        with publication.lock:
            if up_to > publication.sequence:
                connection.publish(publication, [left_out(uid, up_to, count, lost=lost)], timeout)
                publication.sequence = up_to

    def unregister_relayed(self, uid: str, *, waits: bool) -> bool:
        """Undo register_relayed, whether the delegate can be told now or not; with `waits` not before it has what was
        published: False, it has not. Raises UnknownUidError."""
        publication, connection = self._publication(RegistrationUid(uid))
        if waits:
            try:
                connection.flush(FLUSH_SECONDS, publication)
            except BackPressureError:
                return False
        connection.registrations.give_up(publication)
        with self._lock:
            self._publications.pop(publication.uid, None)
        return True
