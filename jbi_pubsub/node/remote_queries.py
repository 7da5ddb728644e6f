"""Queries over a node's networks: asked of all nodes that answer, and answered for others.

Rules:
- A node's answers are numbered, and end with its last word, which says how many they are: they come in any order.
- What other nodes ask is answered by so many threads; what comes beyond that waits, and is refused beyond QUEUED_MOST.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import attrgetter
from secrets import token_bytes
from typing import Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import BackPressureError, JbiError, UnknownUidError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, Parcel, packed
from jbi_pubsub.core.signing import SigningKey, signed_uid
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.protocol.merging import Merge
from jbi_pubsub.protocol.remote import KEYS_MOST, RemoteArchive, with_keys
from jbi_pubsub.protocol.requests import QueryRequest

from .bodies import VERSION, QueryBody, ResultBody, encoded

log = logging.getLogger("jbi_pubsub.node")

ANSWERERS: Final = 8
QUEUED_MOST: Final = 256
"""Queries of other nodes that wait to be answered."""
ASKED_MOST: Final = 1_000
"""Queries of ours at a time."""
FOUND_MOST: Final = 10_000
"""Objects that have come and that nobody has taken: of a node that says more, the rest is told as lacking."""
FOUND_BYTES: Final = 256 << 20
"""Their size, as well."""
PATIENCE: Final = 0.75
"""Share of a query's time in which results wait for a node that says nothing. It is given up then, so that they come
before who asks gives up himself."""
LONGEST_SECONDS: Final = 3_600.0
"""Time of a query that names none: a slow link may need it, and whoever says nothing is given up long before."""
KEY_SECONDS: Final = 2.0
"""For what a registration signs with, behind its first object."""
ROOM_SECONDS: Final = 30.0
"""For room in the network for an answer."""


class _NodeAnswer:
    """Answer of one node: results by their numbers, as they come in any order."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        """When the time began in which it is to say something."""
        self._epoch = -1
        self.due = 1
        """Number of the next one that is taken."""
        self._count: int | None = None
        """Number of its results; None: it has not said."""
        self._results: dict[int, InfoObject] = {}
        self.size = 0
        """Bytes of these."""

    def __len__(self) -> int:
        return len(self._results)

    def begins(self, epoch: int) -> bool:
        """Whether what comes is of its latest start: each answers anew."""
        if epoch > self._epoch:
            self._epoch, self.due, self._count, self._results, self.size = epoch, 1, None, {}, 0
        return epoch == self._epoch

    def add(self, number: int, obj: InfoObject) -> None:
        """Note a result."""
        if number >= self.due and number not in self._results:
            self._results[number] = obj
            self.size += _size(obj)

    def end(self, count: int) -> None:
        """Note how many there are."""
        self._count = count

    def give_up(self) -> None:
        """Take what has come for all of it."""
        self._results = dict(enumerate((obj for _, obj in sorted(self._results.items())), self.due))
        self._count = self.next - 1

    @property
    def is_whole(self) -> bool:
        """Whether all has come."""
        return self._count is not None and self.next > self._count

    @property
    def is_over(self) -> bool:
        """Whether all has come, and was taken."""
        return self.is_whole and not self._results

    @property
    def next(self) -> int:
        """Number of a result that comes behind all of these."""
        return self.due + len(self._results)

    @property
    def head(self) -> InfoObject | None:
        """Its next object, if that has come."""
        return self._results.get(self.due)

    def pop(self) -> InfoObject:
        """Take its next object."""
        obj = self._results.pop(self.due)
        self.due += 1
        self.size -= _size(obj)
        return obj


class NetworkAnswers:
    """Answers of other nodes to a query (see protocol.remote.RemoteAnswers), by time of publication."""

    def __init__(
        self,
        nodes: frozenset[bytes],
        seconds: float,
        closed: Callable[[], None],
        *,
        newest_first: bool = False,
        is_patient: bool = False,
    ) -> None:
        """`nodes`: ids of those that answer; `seconds`: for each to answer, or to say something if `is_patient`;
        `closed` is called when nothing more is waited for."""
        self._changed = threading.Condition()
        self._nodes = {each: _NodeAnswer() for each in nodes}
        self._seconds = seconds
        self._is_patient = is_patient
        self._closed = closed
        self._merge = Merge(len(nodes), newest_first=newest_first, may_repeat=True)
        self._is_cancelled = False
        self._keys: Cache[str, SigningKey] = Cache(KEYS_MOST)
        self._lacks: dict[str, None] = {}

    def came(self, origin: bytes, epoch: int, body: ResultBody) -> None:
        """A result of a node, of that start. Raises ProtocolError for what is no object."""
        obj = Parcel.received(body.data).unpacked() if body.data else None
        with self._changed:
            node = self._nodes.get(origin)
            if node is None or node.is_whole or not node.begins(epoch):
                return
            if self._is_patient:
                node.since = time.monotonic()
            if body.signing is not None:
                self._keys[signed_uid(body.signing.anchor, body.signing.key)] = body.signing
            number = body.count or node.next  # an earlier version does not number results
            if obj is not None and (number == node.due or self._has_room(obj)):
                node.add(number, obj)
            elif obj is not None:
                node.give_up()
                self._lacks[f"more than {FOUND_MOST} objects, or {FOUND_BYTES >> 20} MB, waited to be read"] = None
            elif body.is_last:
                node.end(body.count)
                if body.lacks:
                    self._lacks[body.lacks] = None
            self._changed.notify_all()

    def _has_room(self, obj: InfoObject) -> bool:
        count, size = (sum(map(of, self._nodes.values())) for of in (len, attrgetter("size")))
        return count < FOUND_MOST and size + _size(obj) <= FOUND_BYTES

    def left(self, alive: frozenset[bytes]) -> None:
        """Those that are not there any more are not waited for."""
        with self._changed:
            self._give_up([node for origin, node in self._nodes.items() if origin not in alive], "have left")

    def _give_up(self, nodes: Iterable[_NodeAnswer], why: str) -> None:
        """Under the lock."""
        gone = [node for node in nodes if not node.is_whole]
        for node in gone:
            node.give_up()
        if gone:
            self._lacks[f"{len(gone)} nodes {why}"] = None
            self._changed.notify_all()

    def __iter__(self) -> Iterator[InfoObject]:
        try:
            while (obj := self._next()) is not None:
                yield obj
        finally:
            self._closed()

    def _next(self) -> InfoObject | None:
        with self._changed:
            while not (self._is_cancelled or self._merge.is_over):
                silent = self._offer()
                since = time.monotonic() - self._seconds * (PATIENCE if self._merge.holds_some else 1.0)
                if late := [node for node in silent if node.since <= since]:
                    self._give_up(late, "have not answered in time")
                elif silent:
                    self._changed.wait(min(node.since for node in silent) - since)
                elif (obj := self._merge.next()) is not None:
                    return obj
        return None

    def _offer(self) -> list[_NodeAnswer]:
        """Under the lock: let it be known what nodes have next that are waited for; those that have not said it."""
        nodes, silent = list(self._nodes.values()), []
        for part in self._merge.wants():
            if nodes[part].head is not None:
                self._merge.offer(part, nodes[part].pop())
            elif nodes[part].is_over:
                self._merge.end(part)
            else:
                silent.append(nodes[part])
        return silent

    @property
    def lacks(self) -> str:
        """See RemoteAnswers."""
        return "; ".join(self._lacks)

    def signing_key(self, uid: str) -> SigningKey | None:
        """See RemoteAnswers. It may come behind the first object that it is for."""
        with self._changed:
            self._changed.wait_for(
                lambda: uid in self._keys or self._is_cancelled or all(node.is_whole for node in self._nodes.values()),
                timeout=KEY_SECONDS,
            )
            return self._keys.get(uid)

    def cancel(self) -> None:
        """See RemoteAnswers."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()
        self._closed()


class NetworkQueries:
    """See the module. Any thread."""

    def __init__(self, say: Callable[[NodeMessage, float], None], seconds: float, *, answers: bool) -> None:
        """`say`: Network.say; `seconds`: that a query which names no time waits for a node that says nothing;
        `answers`: whether others' are answered."""
        self._say, self._seconds = say, seconds
        self._lock = threading.Lock()
        self._asked: dict[bytes, NetworkAnswers] = {}
        self._alive: frozenset[bytes] = frozenset()
        """Nodes that are there."""
        self._queued = 0
        self.foreign: RemoteArchive | None = None
        self._pool = ThreadPoolExecutor(ANSWERERS, "infosphere-query") if answers else None

    def ask(self, request: QueryRequest, nodes: frozenset[bytes]) -> NetworkAnswers:
        """Ask some nodes. Raises BackPressureError."""
        number, seconds = token_bytes(16), request.timeout or self._seconds

        def closed() -> None:
            with self._lock:
                self._asked.pop(number, None)

        answers = NetworkAnswers(
            nodes, seconds, closed, newest_first=request.order == "newest", is_patient=not request.timeout
        )
        if not nodes:
            return answers
        with self._lock:
            if len(self._asked) >= ASKED_MOST:
                raise BackPressureError(
                    f"{ASKED_MOST} queries are open in the network", hint="Read or cancel some first"
                )
            self._asked[number] = answers
        told = msgspec.structs.replace(request, timeout=request.timeout or LONGEST_SECONDS)
        body = encoded(QueryBody(VERSION, number, told))
        try:
            self._say(NodeMessage(
                DatagramKind.QUERY, DatagramMode.RELIABLE, body, expiration=int(seconds * 1000)
            ), seconds)  # fmt: skip
        except BackPressureError:
            closed()
            raise
        return answers

    def came(self, origin: bytes, epoch: int, body: ResultBody) -> None:
        """A result of a node, of that start. Raises ProtocolError."""
        answers = self._asked.get(body.id)
        if answers is not None:
            answers.came(origin, epoch, body)

    def left(self, alive: frozenset[bytes]) -> None:
        """These nodes are there, and no others: who has left is not waited for, and answered no more."""
        with self._lock:
            asked = list(self._asked.values())
            self._alive = alive
        for each in asked:
            each.left(alive)

    def asked(self, origin: bytes, body: QueryBody) -> None:
        """A node asks."""
        foreign = self.foreign
        with self._lock:
            if self._pool is None or foreign is None:
                return
            is_too_much = self._queued >= QUEUED_MOST
            if not is_too_much:
                self._queued += 1
                self._pool.submit(self._answer, foreign, origin, body)
        if is_too_much:
            self._tell_end(origin, body, 0, "a node has too many queries to answer")

    def close(self) -> None:
        """Answer no more."""
        with self._lock:
            asked = list(self._asked.values())
            pool, self._pool = self._pool, None
        for each in asked:
            each.cancel()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _tell(self, to: bytes, body: ResultBody) -> None:
        life = int((self._seconds + ROOM_SECONDS) * 1000)
        message = NodeMessage(DatagramKind.RESULT, DatagramMode.RELIABLE, encoded(body), expiration=life, to=to)
        self._say(message, ROOM_SECONDS)

    def _answer(self, foreign: RemoteArchive, origin: bytes, body: QueryBody) -> None:
        """Answer a node's query; on a thread of the pool."""
        lacks, count, was_there = "", 0, False
        with guarded("infosphere query"):
            try:
                answers = foreign.answers(body.request)
                with ExitStack() as stack:
                    stack.callback(answers.cancel)
                    for obj, key in with_keys(answers, answers):
                        if was_there and origin not in self._alive:
                            raise UnknownUidError("the node that asks has left")
                        was_there = origin in self._alive
                        if key is not None:  # first, and small: what waits for it waits for no long time
                            self._tell(origin, ResultBody(VERSION, body.id, signing=key))
                        count += 1
                        data = b"".join(packed(obj).in_memory().parts)
                        self._tell(origin, ResultBody(VERSION, body.id, data, count=count))
                    lacks = answers.lacks
            except JbiError as exc:
                lacks = exc.message
        with self._lock:
            self._queued -= 1
        with guarded("infosphere query"):
            self._tell_end(origin, body, count, lacks)

    def _tell_end(self, to: bytes, body: QueryBody, count: int, lacks: str) -> None:
        """Where the network has no room for it, who asked hears that we have not answered when his time is over."""
        try:
            self._tell(to, ResultBody(VERSION, body.id, is_last=True, count=count, lacks=lacks[:4_096]))
        except BackPressureError as exc:
            log.warning("the end of an answer to node %s is not told: %s", to.hex()[:8], exc.message)


def _size(obj: InfoObject) -> int:
    return len(obj.metadata) + obj.payload_size
