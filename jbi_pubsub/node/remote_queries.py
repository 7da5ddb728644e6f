"""Queries over a node's networks: asked of all nodes that answer, and answered for others.

Rules:
- A node's answers end with its last word, which says how many objects it has said: they may come behind it.
- What other nodes ask is answered by so many threads; what comes beyond that waits, and is refused beyond QUEUED_MOST.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
"""Objects that have come and that nobody has taken: what comes beyond that is not taken, and told as lacking."""
FOUND_BYTES: Final = 256 << 20
"""Their size, as well."""
KEY_SECONDS: Final = 2.0
"""For what a registration signs with, behind its first object."""
ROOM_SECONDS: Final = 30.0
"""For room in the network for an answer."""


class NetworkAnswers:
    """Answers of other nodes to a query (see protocol.remote.RemoteAnswers)."""

    def __init__(self, waited_for: frozenset[bytes], seconds: float, closed: Callable[[], None]) -> None:
        """`waited_for`: ids of the nodes that answer; `closed` is called when nothing more is waited for."""
        self._changed = threading.Condition()
        self._waited_for = set(waited_for)
        self._until = time.monotonic() + seconds
        self._closed = closed
        self._counts: Counter[tuple[bytes, int]] = Counter()
        """Objects of each node, by its starts, that have come and are not counted by its last word; below 0: they are
        to come."""
        self._found: deque[InfoObject] = deque()
        self._bytes = 0
        """Size of these."""
        self._ids: set[str] = set()
        self._ended: set[tuple[bytes, int]] = set()
        self._is_cancelled = False
        self._keys: Cache[str, SigningKey] = Cache(KEYS_MOST)
        self._lacks: dict[str, None] = {}

    def came(self, origin: bytes, epoch: int, body: ResultBody) -> None:
        """A result of a node, of that start: each answers anew. Raises ProtocolError for what is no object."""
        obj = Parcel.received(body.data).unpacked() if body.data else None
        with self._changed:
            if origin not in self._waited_for:
                return
            if body.signing is not None:
                self._keys[signed_uid(body.signing.anchor, body.signing.key)] = body.signing
            start = (origin, epoch)
            if obj is not None:
                self._counts[start] += 1
                self._take(obj)
            if body.is_last:
                self._ended.add(start)
                self._counts[start] -= body.count
                if body.lacks:
                    self._lacks[body.lacks] = None
            if start in self._ended and self._counts[start] >= 0:
                self._waited_for.discard(origin)
            self._changed.notify_all()

    def _take(self, obj: InfoObject) -> None:
        if obj.object_id in self._ids:
            return
        if len(self._found) >= FOUND_MOST or (self._bytes + _size(obj) > FOUND_BYTES and self._found):
            self._lacks[f"more than {FOUND_MOST} objects, or {FOUND_BYTES >> 20} MB, waited to be read"] = None
            return
        self._ids.add(obj.object_id)
        self._found.append(obj)
        self._bytes += _size(obj)

    def left(self, alive: frozenset[bytes]) -> None:
        """Those that are not there any more are not waited for."""
        with self._changed:
            gone = self._waited_for - alive
            if gone:
                self._waited_for -= gone
                self._lacks[f"{len(gone)} nodes have left"] = None
                self._changed.notify_all()

    def __iter__(self) -> Iterator[InfoObject]:
        try:
            while True:
                with self._changed:
                    while not (self._found or self._is_cancelled or not self._waited_for):
                        if not self._changed.wait(max(0.0, self._until - time.monotonic())):
                            self._lacks[f"{len(self._waited_for)} nodes have not answered in time"] = None
                            return
                    if self._is_cancelled or not self._found:
                        return
                    obj = self._found.popleft()
                    self._bytes -= _size(obj)
                yield obj
        finally:
            self._closed()

    @property
    def lacks(self) -> str:
        """See RemoteAnswers."""
        return "; ".join(self._lacks)

    def signing_key(self, uid: str) -> SigningKey | None:
        """See RemoteAnswers. It may come behind the first object that it is for."""
        with self._changed:
            self._changed.wait_for(
                lambda: uid in self._keys or self._is_cancelled or not self._waited_for, timeout=KEY_SECONDS
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
        """`say`: Network.say; `seconds`: for which a query waits that says nothing else; `answers`: whether others'
        are answered."""
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

        answers = NetworkAnswers(nodes, seconds, closed)
        if not nodes:
            return answers
        with self._lock:
            if len(self._asked) >= ASKED_MOST:
                raise BackPressureError(
                    f"{ASKED_MOST} queries are open in the network", hint="Read or cancel some first"
                )
            self._asked[number] = answers
        body = encoded(QueryBody(VERSION, number, msgspec.structs.replace(request, timeout=seconds)))
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
                        self._tell(origin, ResultBody(VERSION, body.id, b"".join(packed(obj).in_memory().parts)))
                        count += 1
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
