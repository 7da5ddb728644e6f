"""Persistence over a node's networks: others keep what is published here, this node keeps what is published elsewhere,
and what is deleted goes everywhere.

The elections are in `volunteers`, the way into the archive in `keeping`, what was deleted in `deletions`. Here are the
messages, and the times.

Rules:
- Of each registration the last word is said; what there is no room for in the network is said later.
- Who begins to keep a registration asks all nodes for what they have of it.
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec

from jbi_pubsub.core.errors import BackPressureError, JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, Parcel, packed
from jbi_pubsub.core.node_sections import NodeSection
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.protocol.entries import InformationType, SigningKeyEntry, local_name
from jbi_pubsub.protocol.requests import QueryRequest

from .bodies import AssistanceBody, DeletionBody, OfferBody, SequenceBody, decoded_assistance
from .deletions import NodeDeletions
from .infosphere import Infosphere
from .keeping import DelegateStore, VolunteerKeeping
from .volunteers import PersistenceCoordinator, PersistenceVolunteer, VolunteerState

log = logging.getLogger("jbi_pubsub.node")

KINDS: Final = (DatagramKind.ASSISTANCE, DatagramKind.OFFER, DatagramKind.ACCEPTED, DatagramKind.DELETION)
"""Kinds of messages that are told here."""
STORES: Final = "stores"
"""Role of a node that keeps what others ask for."""
LOOK_SECONDS: Final = 0.5
"""Between two looks at who is there."""
WORD_LIFE: Final = 3_600_000
"""Milliseconds of a word on who keeps what; the network says it again before."""
OFFER_LIFE: Final = 10_000
CANCEL_LIFE: Final = 10_000
FETCH_AGAIN: Final = 10.0
"""Seconds until nodes are asked again that have not answered, so many times at most:"""
FETCHES_MOST: Final = 3
FETCHERS: Final = 2
HEARD_SECONDS: Final = 15.0
"""Until all nodes are heard that are there: who has come meanwhile is asked as well."""
UNKNOWN_SECONDS: Final = 60.0
"""For a registration that others ask for to be said, or to come back when its node was started anew."""


@dataclass(slots=True)
class _Kept:
    """A registration that is kept here, since when, and the nodes that were there when they were asked for it."""

    body: SequenceBody
    since: float
    asked: frozenset[bytes] = frozenset()

    def is_new(self, now: float) -> bool:
        """Whether nodes may be there that are not heard yet."""
        return now - self.since < HEARD_SECONDS


class NodePersistence:
    """See the module. Any thread; `hear` and `came` on the network's delivery thread."""

    def __init__(
        self,
        me: bytes,
        epoch: int,
        section: NodeSection,
        side: Infosphere,
        store: DelegateStore | None,
        deletions: NodeDeletions | None,
    ) -> None:
        """`side`: registrations, and the network that they are told over; `store`: the archive, and `deletions` those
        that others are told; None where there is none."""
        self._section, self._side, self._deletions = section, side, deletions
        self._keeping = VolunteerKeeping(store) if store is not None else None
        self._unnoticed = section.node_timeout + section.offer_seconds
        """Seconds until the death of one who keeps is told; what comes meanwhile waits for who comes in."""
        self._base = epoch << 30
        """Below the numbers of what we say, so that they grow over restarts."""
        self._lock = threading.Lock()
        self._coordinator = PersistenceCoordinator(section.volunteers, section.node_timeout, self._base)
        chance = random.Random()  # noqa: S311  # delays, no secrets
        self._volunteer = PersistenceVolunteer(me, section.offer_seconds, chance.uniform)
        self._words: dict[str, AssistanceBody] = {}
        """The last one of each registration, until it is said."""
        self._ended: dict[str, float] = {}
        """Registrations of ours that have ended, and when their last words are over (monotonic seconds)."""
        self._begun: dict[str, _Kept] = {}
        """Registrations of others that are kept here."""
        self._fetchers = ThreadPoolExecutor(FETCHERS, "volunteer-fetch")
        self._stopping = threading.Event()
        self._job = Job("node persistence", LOOK_SECONDS, self._step, slow=True)

    def start(self) -> None:
        """Begin."""
        if self._keeping is not None:
            self._keeping.start()
        self._job.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._job.stop()
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        if self._keeping is not None:
            self._keeping.stop()
        if self._deletions is not None:
            self._deletions.close()

    def deleted(self, ids: Sequence[str]) -> None:
        """Objects were deleted at our archive: they are to be nowhere any more. Raises StorageError."""
        if self._stopping.is_set():
            log.warning("%s objects are deleted on this node only: the node leaves its networks", len(ids))
        elif self._deletions is not None:
            self._deletions.add(ids)
            self._job.wake()

    def keeping(self) -> Collection[str]:
        """Registrations of others that are kept here."""
        return list(self._begun)

    def lacking(self) -> int:
        """Number of registrations of ours that fewer others keep than are to."""
        with self._lock:
            return sum(self._coordinator.needed(uid) > 0 for uid in self._coordinator.uids())

    # -- what others say ------------------------------------------------------------------------------------------

    def hear(self, message: NodeMessage) -> None:
        """Another node says something of this, one of KINDS. Raises ProtocolError for what makes no sense."""
        body = decoded_assistance(message.body)
        if isinstance(body, OfferBody):
            with self._lock:
                word = self._coordinator.offered(message.origin, body.uid, time.monotonic())
                if word is not None:
                    self._words[body.uid] = word
            self._speak()
        elif self._keeping is None:
            return
        elif isinstance(body, DeletionBody):
            self._keeping.delete(body.ids)
        elif self._section.volunteer:
            now = time.monotonic()
            with self._lock:
                self._volunteer.told(message.origin, message.epoch, body, now)
                due = self._volunteer.due()
            self._begin_or_end(body.uid)
            if due < now + LOOK_SECONDS:
                self._job.wake(max(0.0, due - now))

    def came(self, message: NodeMessage) -> None:
        """An object of another node has come. Raises ProtocolError for what is none."""
        if self._keeping is None or not self._section.volunteer:
            return
        parcel = Parcel.received(message.body)
        uid = parcel.head.registration
        coordinator, state = self._volunteer.state(uid)
        if coordinator not in (b"", message.origin):
            return
        if uid in self._begun:
            self._keeping.came(uid, parcel)
            return
        body = self._side.remote(uid)
        if state is not VolunteerState.OVER or body is None or body.is_persistent:
            self._keeping.wait(uid, parcel, time.monotonic())

    # -- keeping --------------------------------------------------------------------------------------------------

    def _begin_or_end(self, uid: str) -> None:
        """A registration is kept from now on, with what waits for that, and what others have; or it is not."""
        assert self._keeping is not None
        with self._lock:
            _, state = self._volunteer.state(uid)
            body = self._side.remote(uid)
            begins = state is VolunteerState.KEEPING and uid not in self._begun and body is not None
            if begins and body is not None:
                self._begun[uid] = _Kept(body, time.monotonic())
            elif state is not VolunteerState.KEEPING:
                self._begun.pop(uid, None)
        if begins and body is not None:
            log.info("keeping registration %s of another node", uid)
            described = InformationType(
                name=body.type.name, version=body.type.version, local=local_name(body.type.name)
            )
            self._keeping.begin(uid, (described.rep(), *body.entries, *SigningKeyEntry.reps(body.signing)))
            self._fetch_soon(uid)
        elif state is VolunteerState.SILENT:
            self._keeping.end(uid, time.monotonic() - self._unnoticed)
        elif state is VolunteerState.OVER:
            self._keeping.end(uid)

    def _fetch_soon(self, uid: str, tries: int = FETCHES_MOST) -> None:
        """Ask others for what they have of a registration that we keep."""
        kept = self._begun.get(uid)
        if kept is not None and not self._stopping.is_set():
            kept.asked = frozenset(self._side.present())
            self._fetchers.submit(self._fetch, uid, kept.body, tries)

    def _fetch(self, uid: str, body: SequenceBody, tries: int) -> None:
        if uid not in self._begun or self._keeping is None:
            return
        lacks = ""
        with guarded("volunteer fetch"):
            try:
                request = QueryRequest(type=body.type.name, version=body.type.version, registrations=(uid,))
                answers = self._side.query(request)
                for obj in answers:
                    self._keeping.keep(uid, packed(_as_said(obj)).in_memory())
                    if self._stopping.is_set():
                        answers.cancel()
                lacks = answers.lacks
            except JbiError as exc:
                lacks = exc.message
        if not lacks or self._stopping.is_set():
            return
        if tries <= 1:
            log.warning("some older objects of registration %s are missing here: %s", uid, lacks)
        elif not self._stopping.wait(FETCH_AGAIN):
            self._fetch_soon(uid, tries - 1)

    # -- times ----------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        """See what is there, offer, and say what is to be said; seconds until the next time."""
        now = time.monotonic()
        wanted, present = frozenset(self._side.persistent()), self._side.present()
        with self._lock:
            self._look(wanted, present, now)
            offers = list(self._volunteer.offers(now))
        if self._keeping is not None:
            self._look_after(self._keeping, now)
        for to, offer in offers:
            body = msgspec.msgpack.encode(offer)
            self._say(NodeMessage(DatagramKind.OFFER, DatagramMode.RELIABLE, body, expiration=OFFER_LIFE, to=to))
        self._speak()
        self._cancel_ended(now)
        self._tell_deletions()
        return max(0.0, min(LOOK_SECONDS, self._volunteer.due() - time.monotonic()))

    def _look(self, wanted: frozenset[str], present: Collection[bytes], now: float) -> None:
        """Under the lock: see which registrations of ours are to be kept, and by whom they are."""
        self._words |= {word.uid: word for word in self._coordinator.look(present, now)}
        for uid in wanted - self._coordinator.uids():
            self._words[uid] = self._coordinator.ask(uid)
            self._ended.pop(uid, None)
        for uid in self._coordinator.uids() - wanted:
            if (word := self._coordinator.end(uid)) is not None:
                self._words[uid] = word
                self._ended[uid] = now + UNKNOWN_SECONDS

    def _look_after(self, keeping: VolunteerKeeping, now: float) -> None:
        """See which registrations of others have come, or are over, and which lack something."""
        for uid in keeping.undecided():
            body = self._side.remote(uid)
            _, state = self._volunteer.state(uid)
            if state is VolunteerState.SILENT:
                keeping.end(uid, now - self._unnoticed)
            elif state is VolunteerState.OVER and body is not None and not body.is_persistent:
                keeping.end(uid)
        for uid in self._volunteer.silent_since(now - UNKNOWN_SECONDS):
            if self._side.remote(uid) is None:
                with self._lock:
                    self._volunteer.over(uid)
        for uid in {*self._volunteer.kept(), *self._begun}:
            self._begin_or_end(uid)
        present = frozenset(self._side.present())
        late = {uid for uid, each in list(self._begun.items()) if each.is_new(now) and not present <= each.asked}
        for uid in late | keeping.lacking():
            self._fetch_soon(uid)

    def _tell_deletions(self) -> None:
        """Say those that are due, as far as there is room."""
        if self._deletions is None:
            return
        for each in self._deletions.due():
            if not self._say(NodeMessage(
                DatagramKind.DELETION, DatagramMode.DURABLE, each.body, expiration=each.life, durability=each.key,
                update=self._base + (not each.body),
            )):  # fmt: skip
                break
            self._deletions.said(each)

    def _cancel_ended(self, now: float) -> None:
        """Let the network forget what was said of registrations that are over."""
        for uid in [uid for uid, over in self._ended.items() if over <= now]:
            if not self._say(NodeMessage(
                DatagramKind.ACCEPTED, DatagramMode.DURABLE, b"", expiration=CANCEL_LIFE, durability=_key(uid),
                update=self._coordinator.next_number(),
            )):  # fmt: skip
                break
            del self._ended[uid]

    def _speak(self) -> None:
        """Say the last words."""
        with self._lock:
            words, self._words = self._words, {}
        for uid, word in words.items():
            is_said = self._say(NodeMessage(
                DatagramKind.ASSISTANCE if word.is_request else DatagramKind.ACCEPTED, DatagramMode.DURABLE,
                msgspec.msgpack.encode(word), expiration=WORD_LIFE, durability=_key(uid), update=word.number,
            ))  # fmt: skip
            if not is_said:
                with self._lock:
                    self._words.setdefault(uid, word)

    def _say(self, message: NodeMessage) -> bool:
        """Whether there was room for it."""
        try:
            self._side.say(message, 0.0)
        except BackPressureError:
            return False
        return True


def _key(uid: str) -> bytes:
    return hashlib.blake2b(b"kept " + uid.encode(), digest_size=16).digest()


def _as_said(obj: InfoObject) -> InfoObject:
    """An object as its node said it: without the platform that has answered with it."""
    via = obj.platform.via
    if len(via) < 2:
        return obj
    return msgspec.structs.replace(obj, platform=msgspec.structs.replace(obj.platform, via=via[:-1], hops=len(via) - 1))
