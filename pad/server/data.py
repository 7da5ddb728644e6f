"""Data connections of a delegate: deliveries to subscribers, and what publishers send, in chunks if it is large."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ErrorReport, ProtocolError, UnknownUidError
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.info_object import Parcel, Part
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.core.wire.deflate import Allowance
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.core.wire.receiver import Receiver, Settle
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, Tokens, listen, refuse, welcome
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.delegate.sessions import PART_SECONDS
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.admission import Admission, ReportThread, reported
from jbi_pubsub.pad.ingress.persistence import Refused
from jbi_pubsub.pad.ingress.pipeline import RUN_BYTES, RUN_MOST
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.server.presence import DelegatePresence
from jbi_pubsub.protocol.publications import ABANDONED, CHUNK, LAST_CHUNK, MAX_COMING, PUBLICATION
from jbi_pubsub.protocol.replies import Registered, Taken

CREDIT_SHARE: Final = 4
"""All registrations together are granted about a quarter of the memory for waiting objects, in bytes."""
CREDIT_LEAST: Final = 1 << 16
"""Each has so many at least."""

Coming = dict[int, Gathering]
"""Objects that come in chunks on a connection, by numbers of registrations."""


class DataConnections:
    """The data connections: each is opened by a token that a control call has given."""

    def __init__(
        self, config: Config, delegate: Delegate, presence: DelegatePresence, stages: Stages, name: str
    ) -> None:
        self._config = config
        self._delegate = delegate
        self._presence = presence
        self._tasks = stages.quality.tasks if stages.quality is not None else None
        self._reports = ReportThread(name)
        self._looks = stages.signatures is not None
        self._tokens = Tokens()
        self.compressed: Final = Allowance(config.link.max_compressed)
        self.spool: Final = config.link.spooling()
        """Where large payloads are."""
        self._publications: dict[str, tuple[Receiver, Coming]] = {}
        """By connection of a publisher."""

    def issue_token(self, kind: str, uid: str) -> str:
        """For a data connection."""
        return self._tokens.issue((kind, uid))

    def forget(self, connection_id: str) -> None:
        """End the data connection of a publisher that has left."""
        receiver, coming = self._publications.pop(connection_id, (None, {}))
        if receiver is not None:
            receiver.stop()
        coming.clear()

    def forget_ended(self) -> None:
        """The same for all that are gone."""
        for connection_id in list(self._publications):
            if connection_id not in self._delegate.tables.connections:
                self.forget(connection_id)

    def stop(self, seconds: float) -> None:
        """Take no publications any more. What is admitted is done within so many seconds, and told; what is not,
        publishers send to another one."""
        if self._tasks is not None:
            self._tasks.drain(seconds)
            self._reports.flush(PART_SECONDS)
        for receiver, _ in list(self._publications.values()):
            receiver.stop()
        self._reports.stop()

    def serve(self, sock: socket.socket, caller: Caller, endpoint: Endpoint) -> None:
        line = StreamSocket(sock)
        hello = listen(line)
        kind, uid = self._tokens.redeem(hello.token) or ("", "")
        caller.place.kept = bool(kind)
        if kind == "deliver":
            self._deliver(sock, line, uid, hello, endpoint)
        elif kind == "publish":
            self._take_publications(line, uid, hello)
        else:
            refuse(line, "unknown or used token")

    def _deliver(self, sock: socket.socket, line: StreamSocket, uid: str, hello: Hello, endpoint: Endpoint) -> None:
        try:
            session = self._delegate.tables.session(uid)
        except UnknownUidError as exc:
            refuse(line, str(exc))
            return
        self._delegate.tables.attached(uid)
        welcome(line, 0, self.compressed.grant(hello.compression))
        session.attach(sock, hello.position, endpoint.connections.hand_over(sock), line.compression)

    def _take_publications(self, line: StreamSocket, connection_id: str, hello: Hello) -> None:
        receiver, _ = self._publications.setdefault(connection_id, self._receiver(connection_id))
        try:
            self._delegate.tables.connection(connection_id)  # now that whoever ends it finds the receiver
        except UnknownUidError as exc:
            self.forget(connection_id)
            refuse(line, str(exc))
            return
        self._delegate.tables.attached(connection_id)
        compression = self.compressed.grant(hello.compression)
        receiver.run(line, lambda position: welcome(line, position, compression))

    def _receiver(self, connection_id: str) -> tuple[Receiver, Coming]:
        """The receiver of a publisher's data connections, one after the other, and large objects that come."""
        coming: Coming = defaultdict(self._gathering)
        if self._tasks is not None:
            admission = Admission(self._tasks, self._delegate.pipeline, self._reports, self._config.qos, self.granted)
            return admission.receive(lambda items: self._admit(connection_id, items, coming, admission)), coming
        refused: list[tuple[str, ErrorReport]] = []
        receiver = Receiver(
            lambda items: self._publish(connection_id, items, coming, refused), lambda: _encode_refusals(refused)
        )
        return receiver, coming

    def _gathering(self) -> Gathering:
        """A large object begins to come. With quality of service its connection does not wait for room."""
        seconds = self._config.queue.block_seconds if self._tasks is None else 0.0
        looks = self._looks
        return Gathering(self.spool, self._config.client.max_payload, seconds, is_looked_at=looks)

    def _publish(
        self,
        connection_id: str,
        items: list[memoryview],
        coming: Coming,
        refused: list[tuple[str, ErrorReport]],
    ) -> Settle | None:
        """Disseminate a batch. A refused object is reported with the acknowledgement; the others go on. What waits for
        the disk before it is acknowledged: then the publisher forgets it.

        `coming` holds the chunks of large objects by registration number, `refused` what is to be reported.
        """
        connection = self._delegate.tables.connection(connection_id)
        registrations = connection.registrations
        refused += self._delegate.publishers.refusals(connection)
        deliveries = Deliveries()
        pipeline = self._delegate.pipeline
        taken: list[Parcel] = []
        comes_again = False
        for number, run in _runs(items, coming):
            self._presence.refuse_when_stopping()
            try:
                refusals = self._judge(registrations, number, run, deliveries)
                refused += [reported(parcel, why) for parcel, why in refusals]
            finally:  # what was taken is delivered, also when something behind it ends the connection
                pipeline.distribution.deliver(deliveries)
            if pipeline.persistence.archives:
                taken += (kept := [parcel for parcel in run if parcel.position])
                comes_again |= len(kept) < len(run) and number in registrations and registrations[number].persist
        if not taken and not comes_again:
            pipeline.persistence.sync()
            return None

        def settle() -> None:
            lost = pipeline.persistence.sync(taken, comes_again=comes_again)
            refused.extend([reported(parcel, why) for parcel, why in lost])

        return settle

    def _admit(self, connection_id: str, items: list[memoryview], coming: Coming, admission: Admission) -> None:
        """The same with quality of service: it is acknowledged when it is admitted, and judged by turns."""
        connection = self._delegate.tables.connection(connection_id)
        admission.tell(self._delegate.publishers.refusals(connection))
        admission.is_taking = True
        try:
            for number, run in _runs(items, coming, self._delegate.tables.clock()):
                self._presence.refuse_when_stopping()
                admission.take(connection.registrations, number, run)
        finally:
            admission.is_taking = False

    def granted(self, registration: Registration) -> Registered:
        """The terms that the publisher of a registration is told."""
        if self._tasks is None:
            return Registered()
        settings = (registration.contract or Contract()).settings
        qos, pad = self._config.qos, self._config.pad
        share = pad.max_queued_bytes // CREDIT_SHARE // max(1, len(self._delegate.tables.registrations))
        return Registered(
            qos.credit,
            settings.importance,
            settings.version,
            min(qos.credit_bytes, max(CREDIT_LEAST, share)),
            self._tasks.is_strict,
        )

    def _judge(
        self, registrations: Mapping[int, Registration], number: int, run: Sequence[Parcel], deliveries: Deliveries
    ) -> Refused:
        """Judge a run; what was refused of it."""
        registration = registrations.get(number)
        if registration is None:
            why = UnknownUidError("publication for no registration of this publisher", number=number)
            return [(parcel, why) for parcel in run]
        return self._delegate.publishers.publish(registration, run, deliveries)


def _runs(items: Sequence[memoryview], coming: Coming, now: float = 0.0) -> Iterator[tuple[int, list[Parcel]]]:
    """A batch as runs: the number of a registration, and consecutive objects of it, each `since` it was published if
    `now` says when the batch has come, or it tells its age. Raises ProtocolError behind those before the bad item."""
    run: list[Parcel] = []
    last = size = 0
    for item in items:
        try:
            number, age, data = _whole(item, coming)
            since = (now or time.monotonic()) - age / 1000 if now or age else 0.0
            if isinstance(data, Gathering):
                parcel: Parcel | None = data.parcel(since)
            else:
                parcel = Parcel.received(data, since) if data is not None else None
        except ProtocolError:
            if run:
                yield last, run
            raise
        if parcel is None:
            continue
        if run and (number != last or len(run) == RUN_MOST or size > RUN_BYTES):
            yield last, run
            run, size = [], 0
        run.append(parcel)
        last = number
        size += parcel.size
    if run:
        yield last, run


def _whole(item: memoryview, coming: Coming) -> tuple[int, int, Part | Gathering | None]:
    """The number of a registration, an age in ms, and the bytes of an object if the item completes one. Raises
    ProtocolError.

    A small one is copied, so that it does not hold the whole batch that it came in for as long as it waits.
    """
    if len(item) < PUBLICATION.size:
        raise ProtocolError("truncated publication")
    kind, number, age = PUBLICATION.unpack_from(item)
    body = item[PUBLICATION.size :]
    if kind == ABANDONED:
        coming.pop(number, None)
        return number, age, None
    if kind not in (CHUNK, LAST_CHUNK):
        return number, age, bytes(body) if body.nbytes < memoryview(item.obj).nbytes // 2 else body
    coming[number].add(body)
    if len(coming) > MAX_COMING:
        raise ProtocolError(f"more than {MAX_COMING} large objects at once")
    return number, age, coming.pop(number) if kind == LAST_CHUNK else None


def _encode_refusals(refusals: list[tuple[str, ErrorReport]]) -> bytes:
    if not refusals:
        return b""
    told = tuple(refusals)
    del refusals[: len(told)]  # more may come meanwhile
    return msgspec.msgpack.encode(Taken(told))
