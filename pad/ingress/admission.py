"""Admission of what a publisher's connection brings, apart from judging it: with quality of service.

Rules:
- The thread of a publisher's connection admits what comes, and a batch is acknowledged when it is admitted; it never
  waits. What comes of the objects is decided when it is their turn (see WorkTurns): at once, on the same thread, when
  nothing else is to be done.
- Objects of a registration go through a *lane*, in order. An object is *done* when its deliveries are queued and its
  mail and its record in the archive are on disk, or it was refused; until then its publisher keeps it. A registration
  has a *credit* of objects that are admitted and not done: its publisher holds back that registration, and no other.
- How far registrations are done is told with acknowledgements; by the thread `report-<server>` where none is due.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from jbi_pubsub.core.config import QosSection
from jbi_pubsub.core.errors import ErrorReport, JbiError, ProtocolError, StorageError, UnknownUidError, report
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES
from jbi_pubsub.pad.ingress.deferred import Entry, LaneBatch
from jbi_pubsub.pad.ingress.lane import RegistrationLane, UnsyncedBatch
from jbi_pubsub.pad.ingress.persistence import Refused
from jbi_pubsub.pad.ingress.pipeline import Pipeline
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import WorkTurns
from jbi_pubsub.protocol.replies import Refusals, Registered, Taken

log = logging.getLogger("jbi_pubsub.pad")

SYNC_SECONDS: Final = 10.0
"""Longest that objects are not done because a disk does not answer at all."""

REPORT_SECONDS: Final = 0.001
"""Time that a report waits for more to go with it."""
REPORT_AGAIN: Final = 0.02
"""Until it is tried again with a socket or a disk that was not ready."""
REFUSALS_AT_ONCE: Final = 16
"""In one acknowledgement: a small frame goes without waiting."""


def reported(parcel: Parcel, why: JbiError) -> tuple[str, ErrorReport]:
    """The report to its publisher of an object that was refused."""
    object_id = parcel.head.object_id
    log.info("refused object %s: %s", object_id, why, extra={"object": object_id})
    return object_id, report(why)


class Admission:
    """All lanes of one publisher's connection, and what it is told. `_lock` covers what is counted."""

    def __init__(
        self,
        turns: WorkTurns,
        pipeline: Pipeline,
        reports: ReportThread,
        settings: QosSection,
        granted: Callable[[Registration], Registered],
    ) -> None:
        """`granted`: what a publisher is told of a registration's credit."""
        self._granted = granted
        self._strict_told: bool | None = None
        """Whether its publisher was told on this connection that the most important goes first; None: not yet."""
        self.turns = turns
        self.pipeline = pipeline
        self.receiver: Receiver | None = None
        """The receiver of its data connections."""
        self._settings = settings
        self._reports = reports
        self._lock = threading.Lock()
        self._lanes: dict[int, RegistrationLane] = {}
        self._refused: deque[tuple[str, ErrorReport]] = deque()
        self._news: dict[int, RegistrationLane] = {}
        """Lanes of which more is done than was told."""
        self._unsynced: dict[int, RegistrationLane] = {}
        self.is_taking = False
        """A batch is being admitted: its acknowledgement tells all."""

    def receive(self, take: Callable[[list[memoryview]], None]) -> Receiver:
        """The receiver of its connection, whose batches `take` is given."""
        self.receiver = Receiver(take, self.note, opened=self.tell_again)
        return self.receiver

    def take(self, registrations: Mapping[int, Registration], number: int, run: Sequence[Parcel]) -> None:
        """Admit consecutive objects of a registration. Raises ProtocolError when they are more than its credit."""
        registration = registrations.get(number)
        if registration is None:
            why = UnknownUidError("publication for no registration of this publisher", number=number)
            self.refuse([(parcel, why) for parcel in run])
            return
        lane = self._lanes.get(number)
        if lane is None or lane.registration is not registration:
            lane = self._open(number, registration)
        self._check_credit(lane, run)
        refused: Refused = []
        admitted = self.pipeline.admit(registration, run, refused, waits=False)
        if refused:
            self.refuse(refused)
        entries = run if len(admitted) == len(run) else _marked(run, admitted)
        with self._lock:
            lane.progress.admitted += len(entries)
            lane.progress.bytes += sum([parcel.size for parcel in admitted])
        lane.put(entries)
        self.turns.submit(lane.task)

    def _open(self, number: int, registration: Registration) -> RegistrationLane:
        granted = self._granted(registration)
        credit = granted.credit, granted.credit_bytes
        lane = RegistrationLane(number, registration, self.turns, self.pipeline, credit, self)
        with self._lock:
            for each in [each for each, other in self._lanes.items() if other.registration.has_ended]:
                del self._lanes[each]
            self._lanes[number] = lane
        return lane

    def _check_credit(self, lane: RegistrationLane, run: Sequence[Parcel]) -> None:
        progress, credit, most_bytes = lane.progress, self._settings.credit, self._settings.credit_bytes
        count = progress.admitted + len(run)
        if count > credit or progress.bytes > max(most_bytes, MAX_ITEM_BYTES):
            why = ProtocolError(
                f"registration {lane.registration.uid} has sent {count} objects that are not done, and"
                f" {progress.bytes} bytes before them: its credit is {credit}, and {most_bytes}"
            )
            log.warning("a publisher breaks the protocol, and is disconnected: %s", why)
            raise why

    def refuse(self, refused: Refused) -> None:
        """Tell the publisher of objects that were not taken."""
        self.tell([reported(parcel, why) for parcel, why in refused])

    def tell(self, told: Sequence[tuple[str, ErrorReport]]) -> None:
        """The same with the ids of objects, or of registrations."""
        if told:
            with self._lock:
                self._refused.extend(told)
            self._tell()

    def finish(self, lane: RegistrationLane, judged: LaneBatch, mail: int, refused: Refused) -> None:
        """Objects of a lane are done, when the mail up to that number is on disk (0: there is none), and those that are
        archived."""
        if refused:
            self.refuse(refused)
        unsynced = self._when_archived(judged, mail) if self.pipeline.persistence.archives else None
        with self._lock:
            if unsynced is None and (
                lane.progress.unsynced or (mail and not self.pipeline.persistence.is_synced(mail))
            ):
                unsynced = UnsyncedBatch(judged, mail, is_archived=True)
            if unsynced is not None:
                lane.progress.unsynced.append(unsynced)
                self._unsynced[lane.number] = lane
            else:
                self._done(lane, judged)
            is_settled = not self._unsynced
        if is_settled:
            self._tell()
        else:
            self._reports.wanted(self)

    def _when_archived(self, judged: LaneBatch, mail: int) -> UnsyncedBatch | None:
        """None: none of them is."""
        unsynced = UnsyncedBatch(judged, mail)
        told = partial(self._archived, unsynced)
        return unsynced if self.pipeline.persistence.when_archived(judged.entries, told) else None

    def _archived(self, unsynced: UnsyncedBatch, why: StorageError | None) -> None:
        """They are on disk, or never will be: then their publisher is told before they are done."""
        if why is not None:
            self.refuse([(each, why) for each in unsynced.judged.entries if isinstance(each, Parcel) and each.position])
        with self._lock:
            unsynced.is_archived = True
        self._reports.wanted(self)

    def _done(self, lane: RegistrationLane, judged: LaneBatch) -> None:
        """Under the lock."""
        lane.progress.finish(judged)
        self._news[lane.number] = lane

    def _tell(self) -> None:
        if not self.is_taking:
            self._reports.wanted(self)

    # -- what the publisher is told ------------------------------------------------------------------------------

    def note(self) -> bytes:
        """The news for an acknowledgement. That something is done is told behind that it was refused."""
        refusals: Refusals = ()
        has_more = False
        with self._lock:
            if self._refused:
                refusals = tuple([self._refused.popleft() for _ in range(min(REFUSALS_AT_ONCE, len(self._refused)))])
                has_more = bool(self._refused)
            news = {} if has_more else self._news
            if news:
                self._news = {}
        if has_more:
            self._reports.wanted(self)
        if not refusals and not news:
            return b""
        done = {number: lane.progress.done for number, lane in news.items()}
        strict = self.turns.is_strict
        told, self._strict_told = self._strict_told, strict
        return msgspec.msgpack.encode(Taken(refusals, done, _changed(news), None if strict is told else strict))

    def tell_again(self) -> None:
        """Another connection: the one before may have swallowed what was told."""
        with self._lock:
            self._news = {number: lane for number, lane in self._lanes.items() if lane.progress.done}
            for lane in self._lanes.values():
                lane.progress.told = 0
            self._strict_told = None

    def report(self) -> bool:
        """Tell what is new, without waiting for disk or socket; False: there is more to tell, later."""
        now = time.monotonic()
        with self._lock:
            for lane in list(self._unsynced.values()):
                self._settle(lane, now)
            is_settled, has_news = not self._unsynced, bool(self._news or self._refused)
        if not has_news or self.receiver is None:
            return is_settled
        return self.receiver.report_unless_full() and is_settled

    def _settle(self, lane: RegistrationLane, now: float) -> None:
        """Under the lock: what of it is on disk by now. Mail is not waited for for ever, the archive is: what it has
        promised stands."""
        unsynced = lane.progress.unsynced
        while unsynced:
            first = unsynced[0]
            if not first.is_archived:
                return
            if not self.pipeline.persistence.is_synced(first.mail):
                if now - first.since < SYNC_SECONDS:
                    return
                log.error("the disk of the mail queue has not answered for %g s", SYNC_SECONDS)
            unsynced.popleft()
            self._done(lane, first.judged)
        self._unsynced.pop(lane.number, None)


def _changed(lanes: Mapping[int, RegistrationLane]) -> dict[int, int]:
    """The importance of those that were more or less important when they were told last."""
    found = {}
    for number, lane in lanes.items():
        contract = lane.registration.contract
        if contract is not None and contract.settings.importance != lane.progress.told:
            found[number] = lane.progress.told = contract.settings.importance
    return found


def _marked(run: Sequence[Parcel], admitted: Sequence[Parcel]) -> list[Entry]:
    """A run in its order, of those that were not admitted their numbers."""
    good = set(map(id, admitted))
    return [parcel if id(parcel) in good else parcel.head.sequence for parcel in run]


class ReportThread:
    """The thread that tells publishers what is done, where no acknowledgement does. `_changed` covers all state."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._wanted: dict[Admission, None] = {}
        self._later: dict[Admission, float] = {}
        """Those whose socket or disk was not ready, and when they are tried again (monotonic seconds)."""
        self._is_stopping = False
        self._is_working = False
        self._thread: threading.Thread | None = None
        self._name = f"report-{name}"

    def wanted(self, admission: Admission) -> None:
        """Report for that connection, which has something to tell."""
        with self._changed:
            if self._is_stopping or admission in self._wanted:
                return
            self._wanted[admission] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif len(self._wanted) == 1:
                self._changed.notify_all()  # who waits in `flush` is no help

    def flush(self, timeout: float) -> None:
        """Wait until all that was done by now is told, as far as it can be."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while (self._wanted or self._later or self._is_working) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.02))

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while not self._is_stopping:
            with guarded(self._name):
                self._report()
                continue
            with self._changed:
                self._changed.wait(REPORT_AGAIN)

    def _report(self) -> None:
        with self._changed:
            while not self._wanted and not self._is_stopping:
                left = min(self._later.values(), default=math.inf) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 60.0))
            self._is_working = True
        time.sleep(REPORT_SECONDS)
        with self._changed:
            now = time.monotonic()
            told = {**self._wanted, **dict.fromkeys(each for each, due in self._later.items() if due <= now)}
            self._wanted.clear()
            for admission in told:
                self._later.pop(admission, None)
        try:
            again = [admission for admission in told if not admission.report()]
        finally:
            self._is_working = False
        with self._changed:
            self._later |= dict.fromkeys(again, time.monotonic() + REPORT_AGAIN)
