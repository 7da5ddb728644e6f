"""Objects that were sent and that the delegate has not done yet: admission apart from judging, with quality of service.

Rules:
- The thread of a publisher's connection admits what comes, and a batch is acknowledged when it is admitted. What comes
  of the objects is decided when it is their turn (`Turns`), which is at once, on the same thread, when nothing else is
  to be done.
- Objects of a registration go through a *lane*, in order. An object is *done* when its deliveries are queued and its
  mail and its record in the archive are on disk, or it was refused; until then its publisher keeps it. A registration
  has a *credit* of objects that are admitted and not done: its publisher holds back that registration, and no other.
- Whoever judges never waits, nor does the thread of the connection. Where an object would have to, for memory or the
  room of another stage, for those who come late, for a subscriber under policy `block`, its lane is parked, with its
  registration, and tried again.
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

from jbi_pubsub.core.errors import (
    BackPressureError,
    ErrorReport,
    JbiError,
    OversizeError,
    ProtocolError,
    StorageError,
    UnknownUidError,
    report,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import Contract, Rate
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES, Receiver
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.deferred import AGAIN_FIRST, Batch, Entry, Handing, Rests, Run
from jbi_pubsub.pad.ingress.pipeline import RUN_BYTES, RUN_MOST, Pipeline, Refused, fault_of
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import Turns
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

RUN_SECONDS: Final = 0.1
"""Share of its rate that a registration is given in one step, in seconds, but for one object that takes more."""
PACE_SECONDS: Final = 1.0
"""Longest time that a lane that waits for its rate is not looked at: policies may change it meanwhile."""
AT_ONCE: Final = 1e-6
"""Burst of a rate that nothing was used of, in seconds: nothing is saved up."""
RATES_MOST: Final = 8
"""Different rates of one registration that are known; with one more they all begin anew."""
LOOKED_AFTER: Final = 10
"""Objects of a step after which it is looked at whether they take much longer than it was thought."""
STEP_LONG: Final = 0.02
"""Seconds after which a step ends, though more was to be judged in it: something more important may wait."""
PUBLISHED_LEAST: Final = 128
"""Objects until it is said what one takes: the first ones load and compile, and of cheap ones few are measured."""


def reported(parcel: Parcel, why: JbiError) -> tuple[str, ErrorReport]:
    """The report to its publisher of an object that was refused."""
    object_id = parcel.head.object_id
    log.info("refused object %s: %s", object_id, why, extra={"object": object_id})
    return object_id, report(why)


class Unsynced:
    """Objects of one step that are done when all is on disk that has to be."""

    __slots__ = ("is_archived", "judged", "mail", "since")

    def __init__(self, judged: Batch, mail: int, *, is_archived: bool = False) -> None:
        self.judged = judged
        self.mail = mail
        """Number of their last mail; 0: none."""
        self.since = time.monotonic()
        self.is_archived = is_archived
        """Those that are kept are on disk, or were refused."""


class Lane(Handing):
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
        """Importance that its publisher was told on this connection; 0: not yet."""
        self.unsynced: deque[Unsynced] = deque()
        """Judged, and what is to be on disk is not yet."""
        super().__init__(intake.pipeline)
        self._intake = intake
        self._waiting: deque[Entry] = deque()
        self._contract = registration.contract or Contract()
        self._in_hand: Run | None = None
        """The run whose deliveries are blocked."""
        credit = intake.credit_of(registration)
        self.rests = Rests(intake.turns, intake.pipeline, registration, credit, self._done, intake.refuse)
        self._buckets: dict[Rate, TokenBucket] = {}
        """A bucket for each max_rate that policies have for its objects."""
        self._is_asked = self._pipeline.has_stages
        """Whether other stages are asked, for each object, if they have room."""
        self.task = intake.turns.task("judge", self)
        registration.seconds = self.seconds

    def seconds(self) -> float:
        """Time to judge one object, for all subscriptions; 0.0: not known. Any thread."""
        if self.registration.published < PUBLISHED_LEAST:
            return 0.0
        return self._intake.turns.seconds(self.task) + self.rests.seconds

    def put(self, entries: Sequence[Entry]) -> None:
        """Behind the others."""
        self._waiting.extend(entries)

    # -- work of a task ------------------------------------------------------------------------------------------

    def importance(self) -> int:
        """The importance of the next object."""
        contract = self._contract
        if contract.by_object is not None and self._waiting and isinstance(first := self._waiting[0], Parcel):
            return contract.of(first).importance
        return contract.settings.importance

    def size(self) -> int:
        """The size of the next object's metadata, in bytes: what judging it costs is in proportion to that."""
        if self._waiting:
            return _size(self._waiting[0])
        return 1 if self._blocked is not None or self.rests.is_too_much else 0

    def step(self, most: int) -> tuple[int, int, float]:
        """Judge some objects."""
        if self._blocked is not None:
            if not self._is_unblocked():
                return 0, 0, self._backoff.pause()
            self._close()
        if self.rests.is_too_much:
            return 0, 0, self.rests.step()
        if not self._waiting:
            return 0, 0, 0.0
        first, contract = self._waiting[0], self._contract
        is_looked_at = self._is_asked or contract.settings.max_rate is not None or contract.by_object is not None
        if isinstance(first, Parcel) and (is_looked_at or not self._pipeline.is_clear(self.registration, first.size)):
            pause = self._pause(first, time.monotonic())
            if pause:
                return 0, 0, pause
        rate = self._rate()
        batch, refused, mail = self._judge(self._next_run(most, rate))
        if rate is not None:  # what comes too fast waits, and its publisher is out of credit
            now = time.monotonic()
            self._bucket_of(rate, now).take(_amount(rate, len(batch.entries), batch.whole), now)
        return len(batch.entries), batch.size, self._hand_over(batch, refused, mail)

    def _pause(self, parcel: Parcel, now: float) -> float:
        """Seconds until an object may be judged; 0.0: now, or never, which it is told."""
        if self.registration.has_ended:
            return 0.0  # nothing holds back what nobody will get
        rate = self._contract.of(parcel).max_rate
        if rate is not None and (wait := self._bucket_of(rate, now).ready_in(now)):
            return min(wait, PACE_SECONDS)
        if pause := self._pipeline.settling(self.registration, parcel):
            return pause
        if self._pipeline.has_room(self.importance()):
            try:
                pause = self._pipeline.room_in(self.registration, parcel)
            except (BackPressureError, OversizeError, StorageError) as exc:
                return self._refuse_first(parcel, exc)
            if not pause:
                self._has_room()
                return 0.0
        self._since = min(self._since, now)
        if now - self._since < self._pipeline.patience:
            return pause or self._backoff.pause()
        return self._refuse_first(parcel, self._pipeline.no_stage() if pause else self._pipeline.no_room())

    def _refuse_first(self, parcel: Parcel, why: JbiError) -> float:
        """There is no room for the next object."""
        self._has_room()
        self._waiting.popleft()
        self.registration.refused += 1
        self._finish(Batch([parcel], 1, parcel.size), 0, [(parcel, why)])
        return AGAIN_FIRST

    def _next_run(self, most: int, rate: Rate | None) -> Batch:
        """The batch to judge in one step: all of one importance, and of that rate."""
        waiting, by_object = self._waiting, self._contract.by_object
        importance = self.importance() if by_object is not None else 0
        enough = rate.amount * RUN_SECONDS if rate is not None else math.inf
        entries: list[Entry] = []
        size = whole = 0
        while waiting and len(entries) < RUN_MOST and whole < RUN_BYTES:
            entry = waiting[0]
            more, large = (len(entry.head.metadata) or 1, entry.size) if isinstance(entry, Parcel) else (1, 0)
            if entries and (
                size + more > most
                or (self._is_asked and not self._is_room_for(entry))
                or (rate is not None and _amount(rate, len(entries), whole) >= enough)
                or (by_object is not None and (self.importance() != importance or self._rate() != rate))
            ):
                break
            entries.append(waiting.popleft())
            size += more
            whole += large
        return Batch(entries, size, whole)

    def _is_room_for(self, entry: Entry) -> bool:
        """Whether one more can go with those before it; else it is asked about when it is the first."""
        try:
            return not isinstance(entry, Parcel) or not self._pipeline.room_in(self.registration, entry)
        except (BackPressureError, OversizeError, StorageError):
            return False

    def _rate(self) -> Rate | None:
        """The max_rate of the next object."""
        contract = self._contract
        if contract.by_object is not None and isinstance(first := self._waiting[0], Parcel):
            return contract.of(first).max_rate
        return contract.settings.max_rate

    def _bucket_of(self, rate: Rate, now: float) -> TokenBucket:
        bucket = self._buckets.get(rate)
        if bucket is None:
            if len(self._buckets) >= RATES_MOST:
                self._buckets.clear()
            bucket = self._buckets[rate] = TokenBucket(rate.amount, AT_ONCE, now)
        return bucket

    def _judge(self, batch: Batch) -> tuple[Batch, Refused, int]:
        """The part of it that was judged, which of these were refused, and the number of their last mail (0: none)."""
        refused: Refused = []
        mails, began = self._pipeline.mails, time.perf_counter()
        deliveries = Deliveries()
        entries = batch.entries
        for start in range(0, len(entries), LOOKED_AFTER):
            self._judge_some(entries[start : start + LOOKED_AFTER], deliveries, refused)
            if time.perf_counter() - began > STEP_LONG and start + LOOKED_AFTER < len(entries):
                batch = self._put_back(batch, start + LOOKED_AFTER)
                break
        try:
            self._is_handed_out(deliveries)
        except Exception as exc:  # noqa: BLE001  # noted; whatever it is, the objects behind it go on
            self._refuse_all(batch.entries, refused, fault_of(exc))
        after = self._pipeline.mails
        return batch, refused, after if after != mails else 0

    def _judge_some(self, entries: Sequence[Entry], deliveries: Deliveries, refused: Refused) -> None:
        run = [entry for entry in entries if isinstance(entry, Parcel)]
        if not run:
            return
        try:
            self._pipeline.judge(self.registration, run, deliveries, refused, self.rests)
        except UnknownUidError as exc:
            refused += [(parcel, exc) for parcel in run]
        except Exception as exc:  # noqa: BLE001  # noted, as above
            self._refuse_all(run, refused, fault_of(exc))

    def _refuse_all(self, entries: Sequence[Entry], refused: Refused, why: JbiError) -> None:
        known = {id(parcel) for parcel, _ in refused}
        refused += [(entry, why) for entry in entries if isinstance(entry, Parcel) and id(entry) not in known]

    def _put_back(self, batch: Batch, count: int) -> Batch:
        """All but so many of a batch wait again, before the others; those that do not."""
        self._waiting.extendleft(reversed(batch.entries[count:]))
        entries = batch.entries[:count]
        whole = sum([entry.size for entry in entries if isinstance(entry, Parcel)])
        return Batch(entries, sum(map(_size, entries)), whole)

    def _hand_over(self, batch: Batch, refused: Refused, mail: int) -> float:
        """They are done, or are when what is left of them is; seconds until the next ones may be judged."""
        if self._blocked is None and self.rests.run is None:  # nearly always
            self._finish(batch, mail, refused)
            return 0.0
        self._intake.refuse(refused)
        self._in_hand, self._left = self.rests.put(batch, mail), self.rests.taken()
        if self._blocked is not None:
            return self._backoff.pause()
        self._close()
        return 0.0

    def _finish(self, batch: Batch, mail: int, refused: Refused) -> None:
        """They are done, behind those before them."""
        if not self.rests.runs:
            self._intake.finish(self, batch, mail, refused)
            return
        self._intake.refuse(refused)
        self.rests.close(self.rests.put(batch, mail))

    def _close(self) -> None:
        """Close the run in hand: it is handed out."""
        run, self._in_hand = self._in_hand, None
        assert run is not None
        self.rests.put_all(self._left)
        self.rests.close(run)

    def _done(self, batch: Batch, mail: int) -> None:
        self._intake.finish(self, batch, mail, [])


def _size(entry: Entry) -> int:
    return len(entry.head.metadata) or 1 if isinstance(entry, Parcel) else 1


def _amount(rate: Rate, count: int, size: int) -> int:
    """Amount of a rate that so many objects, of so many bytes, take."""
    return count if rate.unit == "objects" else size


class Intake:
    """All lanes of one publisher's connection, and what it is told. `_lock` covers what is counted."""

    def __init__(
        self,
        turns: Turns,
        pipeline: Pipeline,
        reports: Reports,
        credit: int,
        credit_bytes: int,
        granted: Callable[[Registration], Registered],
    ) -> None:
        """`credit` and `credit_bytes` of each registration: see [qos]; `granted`: what a publisher is told of them."""
        self._granted = granted
        self._strict_told: bool | None = None
        """Whether its publisher was told on this connection that the most important goes first; None: not yet."""
        self.turns = turns
        self.pipeline = pipeline
        self.receiver: Receiver | None = None
        """The receiver of its data connections."""
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
        """Note that the batch is admitted, and is acknowledged now."""
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

    def credit_of(self, registration: Registration) -> tuple[int, int]:
        """In objects and bytes."""
        granted = self._granted(registration)
        return granted.credit, granted.credit_bytes

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
        self.tell([reported(parcel, why) for parcel, why in refused])

    def tell(self, told: Sequence[tuple[str, ErrorReport]]) -> None:
        """The same with the ids of objects, or of registrations."""
        if told:
            with self._lock:
                self._refused.extend(told)
            self._tell()

    def finish(self, lane: Lane, judged: Batch, mail: int, refused: Refused) -> None:
        """Objects of a lane are done, when the mail up to that number is on disk (0: there is none), and those that are
        archived."""
        if refused:
            self.refuse(refused)
        unsynced = self._when_archived(judged, mail) if self.pipeline.archives else None
        with self._lock:
            if unsynced is None and (lane.unsynced or (mail and not self.pipeline.is_synced(mail))):
                unsynced = Unsynced(judged, mail, is_archived=True)
            if unsynced is not None:
                lane.unsynced.append(unsynced)
                self._unsynced[lane.number] = lane
            else:
                self._done(lane, judged)
            is_settled = not self._unsynced
        if is_settled:
            self._tell()
        else:
            self._reports.wanted(self)

    def _when_archived(self, judged: Batch, mail: int) -> Unsynced | None:
        """None: none of them is."""
        unsynced = Unsynced(judged, mail)
        return unsynced if self.pipeline.when_archived(judged.entries, partial(self._archived, unsynced)) else None

    def _archived(self, unsynced: Unsynced, why: StorageError | None) -> None:
        """They are on disk, or never will be: then their publisher is told before they are done."""
        if why is not None:
            self.refuse([(each, why) for each in unsynced.judged.entries if isinstance(each, Parcel) and each.position])
        with self._lock:
            unsynced.is_archived = True
        self._reports.wanted(self)

    def _done(self, lane: Lane, judged: Batch) -> None:
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
        done = {number: lane.done for number, lane in news.items()}
        strict = self.turns.is_strict
        told, self._strict_told = self._strict_told, strict
        return msgspec.msgpack.encode(Taken(refusals, done, _changed(news), None if strict is told else strict))

    def tell_again(self) -> None:
        """Another connection: the one before may have swallowed what was told."""
        with self._lock:
            self._news = {number: lane for number, lane in self._lanes.items() if lane.done}
            for lane in self._lanes.values():
                lane.told = 0
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

    def _settle(self, lane: Lane, now: float) -> None:
        """Under the lock: what of it is on disk by now. Mail is not waited for for ever, the archive is: what it has
        promised stands."""
        while lane.unsynced:
            first = lane.unsynced[0]
            if not first.is_archived:
                return
            if not self.pipeline.is_synced(first.mail):
                if now - first.since < SYNC_SECONDS:
                    return
                log.error("the disk of the mail queue has not answered for %g s", SYNC_SECONDS)
            lane.unsynced.popleft()
            self._done(lane, first.judged)
        self._unsynced.pop(lane.number, None)


def _changed(lanes: Mapping[int, Lane]) -> dict[int, int]:
    """The importance of those that were more or less important when they were told last."""
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
        """Report for that intake, which has something to tell."""
        with self._changed:
            if self._is_stopping or intake in self._wanted:
                return
            self._wanted[intake] = None
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
