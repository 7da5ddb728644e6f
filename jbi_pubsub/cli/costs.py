"""Costs of an object and of a delivery at a delegate, measured: the product's own delegate in this process, with the
objects, registrations and subscriptions of a data set, and subscribers that take what it sends over socket pairs.

Counted is the processor time of the threads that are the delegate's, not of the subscribers'. Not in it: TLS, networks,
validation by a schema (a data set has none), mail, access rules, signatures.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, groupby, islice
from typing import Any, Final

import msgspec

from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, StudyError, WireError
from jbi_pubsub.core.info_object import Head, Parcel, SchemaBundle, TypeName, object_id_of, pack
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream_socket import StreamSocket
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.protocol.deliveries import ITEM, LAST_CHUNK, OBJECT, Heard
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest
from jbi_pubsub.spark import passes
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, fault
from jbi_pubsub.spark.studies.capacity import Costs
from jbi_pubsub.spark.studies.study import Data

OBJECTS: Final = 2_000
"""Objects of a data set that are measured, or as many as have BYTES."""
BYTES: Final = 256 << 20
ROUNDS: Final = 20
"""The objects in so many parts, each measured by itself: their spread is the result's."""
SUBSCRIPTIONS: Final = 10_000
SESSIONS: Final = 32
"""Subscribers' connections; those of a data set share them."""
RUN: Final = 50
"""Consecutive objects of a registration that a delegate takes together."""
SETTLE_BYTES: Final = 4 << 20
"""After so much it is waited for what was delivered to be taken: queues never fill."""
SETTLE_SECONDS: Final = 10.0
"""For what was delivered to be taken."""


def measure(data: Data) -> Costs:
    """Run it: some seconds. Raises StudyError for a data set without objects or subscriptions, and where what is
    delivered is not taken: then nothing has been measured."""
    sample = list(_sample(data.publications))
    if not sample or not data.contracts.subscriptions:
        raise StudyError(
            "nothing to measure costs by: the data set has no objects, or no subscriptions",
            hint="Export with a tap, or give --subscriptions to the import",
        )
    with ExitStack() as stack:
        bench = _Bench(data.contracts, sample, stack)
        size = max(1, len(sample) // ROUNDS)
        parts = [sample[at : at + size] for at in range(0, len(sample), size)]
        bench.round(parts[0])  # what is learnt of shapes of documents is learnt here
        return Costs(tuple(filter(None, (bench.round(part) for part in parts))), bench.refused)


def _sample(where: str) -> Iterator[PublicationRow]:
    from pathlib import Path

    size = 0
    files = (passes.publications_in(path) for path, _ in passes.parquet_files(Path(where)))
    for each in islice(filter(_is_sound, chain.from_iterable(files)), OBJECTS):
        size += len(each.metadata) + each.payload_bytes
        if size > BYTES:
            return
        yield each


def _is_sound(each: PublicationRow) -> bool:
    """Whether a publisher could have published it; the study counts the others as rejects."""
    try:
        parse_metadata(each.metadata)
    except JbiError:
        return False
    return not fault(each)


class _Gate(UntypedGate):
    """A type whose schema nobody has, but the digest of it: every document is of it."""

    def __init__(self, bundle: SchemaBundle) -> None:
        super().__init__(bundle.type)
        self.bundle, self.digest = bundle, bundle.main


class _Bench:
    """The delegate, with publishers and subscribers there. It is its own repository of types and announcer."""

    def __init__(self, contracts: Contracts, sample: Sequence[PublicationRow], stack: ExitStack) -> None:
        self.refused = 0
        """Subscriptions that the delegate would not take."""
        reference = ServiceRef("", "subscriptions", ("127.0.0.1:1",))
        self._delegate = Delegate(
            "0" * 32, config=Config(), types=self, announcer=self, subscriptions_ref=reference, clock=time.monotonic
        )
        stack.callback(self._delegate.close)
        before = set(threading.enumerate())
        self._delegate.start()
        [thread] = [each for each in threading.enumerate() if each not in before and each.name.startswith("deliver-")]
        self._clock = time.pthread_getcpuclockid(thread.ident or 0)
        self._registrations = self._publishers(contracts, sample)
        self._subscribers(contracts, stack)

    def round(self, part: Sequence[PublicationRow]) -> tuple[float, float, int, int] | None:
        """Publish some objects: seconds to judge them and to deliver them, their number, their deliveries."""
        before = self._matched()
        judging = delivering = out = 0.0
        hub = time.clock_gettime(self._clock)
        for uid, same in groupby(sorted(part, key=lambda each: each.publisher), lambda each: each.publisher):
            registration = self._registrations[uid]
            publications = list(same)
            for at in range(0, len(publications), RUN):
                run = [_parcel(registration, n, each) for n, each in enumerate(publications[at : at + RUN], 1)]
                deliveries, begin = Deliveries(), time.thread_time()
                self._delegate.publishers.publish(registration, run, deliveries)
                judged = time.thread_time()
                self._delegate.pipeline.distribution.deliver(deliveries)
                judging, delivering = judging + judged - begin, delivering + time.thread_time() - judged
                out += sum(len(each.metadata) + each.payload_bytes for each in publications[at : at + RUN])
                if out > SETTLE_BYTES:
                    self._settle()
                    out = 0
        self._settle()
        delivering += time.clock_gettime(self._clock) - hub
        return judging, delivering, len(part), self._matched() - before

    def _settle(self) -> None:
        if left := self._delegate.drain(SETTLE_SECONDS):
            raise StudyError(
                f"{left:,} objects were not taken within {SETTLE_SECONDS:g} s: costs can't be measured here",
                hint="Try again when this machine does less",
            )

    def _matched(self) -> int:
        return self._delegate.status().matched

    def _publishers(self, contracts: Contracts, sample: Sequence[PublicationRow]) -> dict[str, Registration]:
        known = {each.registration: each for each in contracts.registrations}
        connection = self._delegate.publishers.connect("publisher", 3600.0)[0].connection_id
        found: dict[str, Registration] = {}
        for number, uid in enumerate(sorted({each.publisher for each in sample}), 1):
            given = known.get(uid)
            entries = given.entries if given is not None else ()
            described = [e.as_dict() for e in entries if e.cls.name == InformationType.entry_name]
            digest = (described[0].get("schema") if described else "") or "none"
            type_ = TypeName(given.type if given is not None else uid, (given.version if given else "") or "1.0")
            own = tuple(e for e in entries if e.cls.name != InformationType.entry_name)
            secret = f"{number:032d}"
            request = PublisherRequest(SchemaBundle(digest, (), type=type_), own, validate=False, secret=secret)
            found[uid] = self._delegate.registrations.register(
                connection, request, uid=owned_uid("registration", secret), number=number
            )
        return found

    def _subscribers(self, contracts: Contracts, stack: ExitStack) -> None:
        sessions: dict[int, str] = {}
        for number, each in enumerate(contracts.subscriptions[:SUBSCRIPTIONS]):
            place = hash(each.subscriber or each.subscription) % SESSIONS
            if place not in sessions:
                sessions[place] = self._attached(stack)
            request = SubscriptionRequest(
                f"{number}", each.template, each.predicate, each.filter, tuple(each.namespaces.items()),
                each.language, each.suppress_empty, bound=1_000_000,
            )  # fmt: skip
            try:
                self._delegate.subscribers.subscribe(sessions[place], request, 3600.0)
            except JbiError:
                self.refused += 1

    def _attached(self, stack: ExitStack) -> str:
        """A session whose subscriber takes all that comes."""
        session, _ = self._delegate.sessions.open("subscriber", 3600.0)
        ours, theirs = socket.socketpair()
        counts: dict[int, int] = {}

        def take(items: list[memoryview]) -> None:
            for item in items:
                kind, number = ITEM.unpack_from(item)
                if kind in (OBJECT, LAST_CHUNK):
                    counts[number] = counts.get(number, 0) + 1

        receiver = Receiver(take, lambda: msgspec.msgpack.encode(Heard(counts)))

        def read() -> None:
            with suppress(WireError, OSError):
                receiver.run(StreamSocket(theirs))

        reading = threading.Thread(target=read, name=f"jbi-study-{session[-8:]}", daemon=True)

        def end() -> None:
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            reading.join(SETTLE_SECONDS)
            theirs.close()
            ours.close()

        stack.callback(end)
        self._delegate.tables.attached(session)
        self._delegate.tables.session(session).attach(ours, 0, ours.close)
        reading.start()
        return session

    # -- as the repository of types, and announcer: nobody else is told

    def open(self, bundle: SchemaBundle, *, caller: str = "") -> Any:  # noqa: ARG002  # the protocol's parameter
        return _Gate(bundle)

    def find(self, type: TypeName) -> None: ...  # noqa: A002  # the protocol's parameter

    def forget(self, type: TypeName) -> None: ...  # noqa: A002  # as above

    def join(self, item: ServiceItem, secret: str = "") -> None: ...

    def leave(self, *service_ids: str) -> None: ...


def _parcel(registration: Registration, number: int, each: PublicationRow) -> Parcel:
    """As it comes over the wire; a payload that was not kept is as many zeros."""
    payload = each.payload if each.payload is not None else bytes(each.payload_bytes)
    uid, kind, sequence = registration.uid, registration.gate.type, registration.sequence + number
    head = Head(
        object_id_of(uid, sequence), uid, sequence, max(0.0, each.time or 0.0), kind.name, kind.version, each.metadata,
        len(payload),
    )  # fmt: skip
    return Parcel.received(b"".join(pack(head, payload).parts))
