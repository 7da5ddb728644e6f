"""What publishers have sent and the delegate has not done yet: admission apart from judging, with quality of service.

Rules:
- The thread of a publisher's connection admits what comes, and a batch is acknowledged when it is admitted. What comes
  of the objects is decided when it is their turn (`Turns`), which is at once, on the same thread, when nothing else is
  to be done.
- Objects of a registration go through a *lane*, in order. An object is *done* when its deliveries are queued and its
  mail is on disk, or it was refused; until then its publisher keeps it. A registration has a *credit* of objects that
  are admitted and not done: its publisher holds back that registration, and no other.
- Whoever judges never waits. Where an object would have to, for memory, for those who come late, for a subscriber under
  policy `block`, its lane is parked, with its registration, and tried again.
- How far registrations are done is told with acknowledgements; by the thread `report-<server>` where none is due.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.errors import ErrorReport, JbiError, ProtocolError, UnknownUidError, report
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES, Receiver
from jbi_pubsub.pad.delivery import Deliveries
from jbi_pubsub.pad.pipeline import RUN_BYTES, RUN_MOST, Pipeline, Refused, fault_of
from jbi_pubsub.pad.proxy import Refusals, Taken
from jbi_pubsub.pad.quality import Turns
from jbi_pubsub.pad.registration import Registration

log = logging.getLogger("jbi_pubsub.pad")

AGAIN_FIRST: Final = 0.005
AGAIN_MOST: Final = 0.1
"""Seconds until a lane that had to wait is tried again: it doubles."""
SYNC_SECONDS: Final = 10.0
"""Longest that objects are not done because a disk does not answer at all."""

REPORT_SECONDS: Final = 0.001
"""How long a report waits for more to go with it."""
REPORT_AGAIN: Final = 0.02
"""Until it is tried again with a socket or a disk that was not ready."""
REFUSALS_AT_ONCE: Final = 16
"""In one acknowledgement: a small frame goes without waiting."""

Entry = Parcel | int
"""An object that was admitted, or the number of one that was refused or known already."""


class Run(NamedTuple):
    """Consecutive ones of a lane, what judging them costs in proportion to (bytes of metadata, at least 1 each), and
    their bytes."""

    entries: list[Entry]
    size: int
    whole: int


NO_RUN: Final = Run([], 0, 0)


def reported(parcel: Parcel, why: JbiError) -> tuple[str, ErrorReport]:
    """What its publisher is told of an object that was refused."""
    object_id = parcel.head.object_id
    log.info("refused object %s: %s", object_id, why, extra={"object": object_id})
    return object_id, report(why)


class Lane:
    """One registration's objects between admission and done: work of a task (see Turns). Its intake's lock covers what
    both threads change, admission and judging; the rest is of whoever has the baton."""

    def __init__(self, number: int, registration: Registration, intake: Intake) -> None:
        self.number = number
        self.registration = registration
        self.admitted = self.size_admitted = 0
        """Objects that are not done, and their bytes."""
        self.done = 0
        """The number up to which all are done."""
        self.told = 0
        """How important its publisher was told on this connection that it is; 0: not yet."""
        self.unsynced: deque[tuple[int, float, Run]] = deque()
        """Judged, with mail that is not on disk: its number there, and since when (monotonic seconds)."""
        self._intake = intake
        self._pipeline = intake.pipeline
        self._waiting: deque[Entry] = deque()
        self._contract = registration.contract or Contract()
        self._blocked: Deliveries | None = None
        """What subscribers under policy `block` have no room for."""
        self._in_hand: tuple[Run, int] = NO_RUN, 0
        """Of which objects that is, and the number of their last mail."""
        self._since = math.inf
        """When it began to wait for memory or subscribers."""
        self._again = AGAIN_FIRST
        self._may_go = 0.0
        """When the next object may be judged by the registration's max_rate (monotonic seconds); 0.0: it has none."""
        self.task = intake.turns.task("judge", self)

    def put(self, entries: Sequence[Entry]) -> None:
        """Behind the others."""
        self._waiting.extend(entries)

    # -- work of a task ------------------------------------------------------------------------------------------

    def importance(self) -> int:
        """Of the next object."""
        contract = self._contract
        if contract.by_object is not None and self._waiting and isinstance(first := self._waiting[0], Parcel):
            return contract.of(first).importance
        return contract.settings.importance

    def size(self) -> int:
        """Of the next object's metadata, in bytes: what judging it costs is in proportion to that."""
        if self._waiting:
            first = self._waiting[0]
            return len(first.head.metadata) or 1 if isinstance(first, Parcel) else 1
        return 1 if self._blocked is not None else 0

    def step(self, most: int) -> tuple[int, int, float]:
        """Judge some objects."""
        if self._blocked is not None and not self._is_unblocked():
            return 0, 0, self._wait_again()
        if not self._waiting:
            return 0, 0, 0.0
        first = self._waiting[0]
        if isinstance(first, Parcel) and (self._may_go or not self._pipeline.is_clear(self.registration, first.size)):
            pause = self._pause(first, time.monotonic())
            if pause:
                return 0, 0, pause
        run = self._next_run(most)
        return len(run.entries), run.size, self._judge(run)

    def _is_unblocked(self) -> bool:
        """Whether subscribers under policy `block` have room by now for what is in hand, or have lost it."""
        assert self._blocked is not None
        self._blocked = self._pipeline.deliver_without_waiting(self._blocked, time.monotonic() - self._since)
        if self._blocked is not None:
            return False
        self._has_room()
        self._finish(*self._in_hand, [])
        return True

    def _pause(self, parcel: Parcel, now: float) -> float:
        """Seconds until an object may be judged; 0.0: now, or never, which it is told."""
        if now < self._may_go:
            return self._may_go - now
        if pause := self._pipeline.settling(self.registration, parcel):
            return pause
        if self._pipeline.has_room(self.importance()):
            self._has_room()
            return 0.0
        self._since = min(self._since, now)
        if now - self._since < self._pipeline.patience:
            return self._wait_again()
        self._has_room()
        self._waiting.popleft()
        self.registration.refused += 1
        self._finish(Run([parcel], 1, parcel.size), 0, [(parcel, self._pipeline.no_room())])
        return AGAIN_FIRST

    def _wait_again(self) -> float:
        self._again = min(2 * self._again, AGAIN_MOST)
        return self._again

    def _has_room(self) -> None:
        self._since, self._again = math.inf, AGAIN_FIRST

    def _next_run(self, most: int) -> Run:
        """What is judged in one step: all of one importance."""
        waiting, by_object = self._waiting, self._contract.by_object
        importance = self.importance() if by_object is not None else 0
        entries: list[Entry] = []
        size = whole = 0
        while waiting and len(entries) < RUN_MOST and whole < RUN_BYTES:
            entry = waiting[0]
            more, large = (len(entry.head.metadata) or 1, entry.size) if isinstance(entry, Parcel) else (1, 0)
            if entries and (size + more > most or (by_object is not None and self.importance() != importance)):
                break
            entries.append(waiting.popleft())
            size += more
            whole += large
        return Run(entries, size, whole)

    def _judge(self, judged: Run) -> float:
        """Seconds until the next ones may be judged."""
        run = [entry for entry in judged.entries if isinstance(entry, Parcel)]
        refused: Refused = []
        mails = self._pipeline.mails
        if run:
            deliveries = Deliveries()
            try:
                self._pipeline.judge(self.registration, run, deliveries, refused)
                self._blocked = self._pipeline.deliver_without_waiting(deliveries)
            except UnknownUidError as exc:
                refused += [(parcel, exc) for parcel in run]
            except Exception as exc:  # noqa: BLE001  # noted; whatever it is, the objects behind it go on
                known = {id(parcel) for parcel, _ in refused}
                why = fault_of(exc)
                refused += [(parcel, why) for parcel in run if id(parcel) not in known]
        after = self._pipeline.mails
        mail = after if after != mails else 0
        if self._blocked is None:
            self._finish(judged, mail, refused)
            return self._pace(run) if self._contract.settings.max_rate is not None or self._may_go else 0.0
        self._in_hand, self._since = (judged, mail), time.monotonic()
        self._intake.refuse(refused)
        return self._wait_again()

    def _pace(self, run: Sequence[Parcel]) -> float:
        """By the registration's max_rate: what comes too fast waits, and its publisher is out of credit."""
        rate = self._contract.settings.max_rate
        if rate is None:
            self._may_go = 0.0
            return 0.0
        amount = len(run) if rate.unit == "objects" else sum(parcel.size for parcel in run)
        now = time.monotonic()
        self._may_go = max(now, self._may_go) + amount / rate.amount
        return self._may_go - now

    def _finish(self, judged: Run, mail: int, refused: Refused) -> None:
        self._in_hand = NO_RUN, 0
        self._intake.finish(self, judged, mail, refused)


class Intake:
    """All lanes of one publisher's connection, and what it is told. `_lock` covers what is counted."""

    def __init__(self, turns: Turns, pipeline: Pipeline, reports: Reports, credit: int, credit_bytes: int) -> None:
        """`credit` and `credit_bytes` of each registration: see [qos]."""
        self.turns = turns
        self.pipeline = pipeline
        self.receiver: Receiver | None = None
        """Of its data connections."""
        self._credit = credit
        self._credit_bytes = credit_bytes
        self._reports = reports
        self._lock = threading.Lock()
        self._lanes: dict[int, Lane] = {}
        self._refused: deque[tuple[str, ErrorReport]] = deque()
        self._news: dict[int, Lane] = {}
        """Lanes of which more is done than was told."""
        self._unsynced: dict[int, Lane] = {}
        self._is_taking = False
        """A batch is being admitted: its acknowledgement tells all."""

    def begin(self) -> None:
        """A batch has come."""
        self._is_taking = True

    def end(self) -> None:
        """It is admitted, and is acknowledged now."""
        self._is_taking = False

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
            lane.admitted += len(entries)
            lane.size_admitted += sum([parcel.size for parcel in admitted])
        lane.put(entries)
        self.turns.submit(lane.task)

    def _open(self, number: int, registration: Registration) -> Lane:
        lane = Lane(number, registration, self)
        with self._lock:
            for each in [each for each, other in self._lanes.items() if other.registration.has_ended]:
                del self._lanes[each]
            self._lanes[number] = lane
        return lane

    def _check_credit(self, lane: Lane, run: Sequence[Parcel]) -> None:
        count = lane.admitted + len(run)
        if count > self._credit or lane.size_admitted > max(self._credit_bytes, MAX_ITEM_BYTES):
            why = ProtocolError(
                f"registration {lane.registration.uid} has sent {count} objects that are not done, and"
                f" {lane.size_admitted} bytes before them: its credit is {self._credit}, and {self._credit_bytes}"
            )
            log.warning("a publisher breaks the protocol, and is cut off: %s", why)
            raise why

    def refuse(self, refused: Refused) -> None:
        """Tell the publisher of objects that were not taken."""
        told = [reported(parcel, why) for parcel, why in refused]
        if told:
            with self._lock:
                self._refused.extend(told)
            self._tell()

    def finish(self, lane: Lane, judged: Run, mail: int, refused: Refused) -> None:
        """Objects of a lane are done, when the mail up to that number is on disk (0: there is none)."""
        if refused:
            self.refuse(refused)
        with self._lock:
            if lane.unsynced or (mail and not self.pipeline.is_synced(mail)):
                lane.unsynced.append((mail, time.monotonic(), judged))
                self._unsynced[lane.number] = lane
            else:
                self._done(lane, judged)
            is_settled = not self._unsynced
        if is_settled:
            self._tell()
        else:
            self._reports.wanted(self)

    def _done(self, lane: Lane, judged: Run) -> None:
        """Under the lock. Numbers of a lane rise, but where a publisher comes again with what it sent before."""
        last = judged.entries[-1]
        lane.done = max(lane.done, last.head.sequence if isinstance(last, Parcel) else last)
        lane.size_admitted -= judged.whole
        lane.admitted -= len(judged.entries)
        self._news[lane.number] = lane

    def _tell(self) -> None:
        if not self._is_taking:
            self._reports.wanted(self)

    # -- what the publisher is told ------------------------------------------------------------------------------

    def note(self) -> bytes:
        """Of an acknowledgement: what is new. That something is done is told behind that it was refused."""
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
        done = {number: lane.done for number, lane in news.items()}
        return msgspec.msgpack.encode(Taken(refusals, done, _changed(news)))

    def tell_again(self) -> None:
        """Another connection: the one before may have swallowed what was told."""
        with self._lock:
            self._news = {number: lane for number, lane in self._lanes.items() if lane.done}
            for lane in self._lanes.values():
                lane.told = 0

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

    def _settle(self, lane: Lane, now: float) -> None:
        """Under the lock: what of its mail is on disk by now."""
        while lane.unsynced:
            mail, since, judged = lane.unsynced[0]
            if not self.pipeline.is_synced(mail):
                if now - since < SYNC_SECONDS:
                    return
                log.error("the disk of the mail queue has not answered for %g s", SYNC_SECONDS)
            lane.unsynced.popleft()
            self._done(lane, judged)
        self._unsynced.pop(lane.number, None)


def _changed(lanes: Mapping[int, Lane]) -> dict[int, int]:
    """How important those are that were more or less so when they were told last."""
    found = {}
    for number, lane in lanes.items():
        contract = lane.registration.contract
        if contract is not None and contract.settings.importance != lane.told:
            found[number] = lane.told = contract.settings.importance
    return found


def _marked(run: Sequence[Parcel], admitted: Sequence[Parcel]) -> list[Entry]:
    """A run in its order, of those that were not admitted their numbers."""
    good = set(map(id, admitted))
    return [parcel if id(parcel) in good else parcel.head.sequence for parcel in run]


class Reports:
    """The thread that tells publishers what is done, where no acknowledgement does. `_changed` covers all state."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._wanted: dict[Intake, None] = {}
        self._later: dict[Intake, float] = {}
        """Those whose socket or disk was not ready, and when they are tried again (monotonic seconds)."""
        self._is_stopping = False
        self._is_working = False
        self._thread: threading.Thread | None = None
        self._name = f"report-{name}"

    def wanted(self, intake: Intake) -> None:
        """It has something to tell."""
        with self._changed:
            if self._is_stopping or intake in self._wanted:
                return
            self._wanted[intake] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif len(self._wanted) == 1:
                self._changed.notify()

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
            intakes = {**self._wanted, **dict.fromkeys(each for each, due in self._later.items() if due <= now)}
            self._wanted.clear()
            for intake in intakes:
                self._later.pop(intake, None)
        try:
            again = [intake for intake in intakes if not intake.report()]
        finally:
            self._is_working = False
        with self._changed:
            self._later |= dict.fromkeys(again, time.monotonic() + REPORT_AGAIN)
