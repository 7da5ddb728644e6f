"""A registration of this node, as it is told to others, and what is said of its objects."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from jbi_pubsub.core.info_object import InfoObject, packed
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath.predicate import compiled_xpath
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode, Holders
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.protocol.sending import SendingMode

from .bodies import VERSION, LeftOutBody, SequenceBody, digest, encoded

HELD_SECONDS: Final = 10.0
"""Time that objects are held while no other node is heard, at least: a new node is heard of within two announcements.
Those of a new registration are held as long, as who waits for it may be told late."""
WANTED_SECONDS: Final = 1.0
"""Time that others are held, at least: who wants them is heard of within two announcements, or on the way."""
HELD_MOST: Final = 1_000
"""Objects of a registration that are held."""
HELD_BYTES: Final = 1 << 20
LEFT_OUT_SECONDS: Final = 60.0
Say = Callable[[NodeMessage, float], None]
_MODES: Final[dict[SendingMode, tuple[DatagramMode, Holders]]] = {
    "reliable": (DatagramMode.RELIABLE, Holders.ALL),
    "unreliable": (DatagramMode.UNRELIABLE, Holders.ALL),
    "durable": (DatagramMode.DURABLE, Holders.ALL),
    "sender": (DatagramMode.RELIABLE, Holders.ORIGIN),
    "connected": (DatagramMode.RELIABLE, Holders.UNTIL_SEEN),
}


class _HeldObject(NamedTuple):
    """An object that nobody was there for yet, or so many that are left out behind such a one. Times are monotonic
    seconds."""

    since: float
    """When it came here, or they were left out."""
    until: float
    number: int
    """Its number, or that of the last one."""
    objects: int = 1
    lost: int = 0
    """Those of them that were lost on their way here."""
    message: NodeMessage | None = None
    expires: float = math.inf
    """When its life ends, as its publisher says."""


class OwnSequence:
    """A registration of ours, and how its objects are said. Any thread.

    What is not said is left out, which is told with its number before what follows; a number that never came here is a
    loss, and told as none. What nobody is there for is held for a while, as who wants it may not have been heard of
    yet, and of durable ones the newest of each key as long as it lives. What is left out behind it waits with it, so
    that all goes in order."""

    def __init__(self, body: SequenceBody, say: Say) -> None:
        """`say`: Network.say."""
        self._say = say
        self._begun = time.monotonic()
        self._level = body.importance or 0
        """Importance of all its objects, and of what is told of them: of another one they would overtake each other."""
        self._lock = threading.Lock()
        """Held while something is said: what is held goes before what comes."""
        self.last = 0
        """Number of the last object that was said or left out."""
        self._left = 0
        """Objects left out and not told yet; `_lost`: those of them that were lost, `_left_to`: number of the last one,
        `_left_since`: when it came."""
        self._lost, self._left_to, self._left_since = 0, 0, 0.0
        self._held: deque[_HeldObject] = deque()
        self._bytes = 0
        """Size of the objects that are held."""
        self.change(body)

    def change(self, body: SequenceBody) -> None:
        """Be said so from now on."""
        self.body = body
        key = body.sending.key
        self._key = compiled_xpath(f"string({key})", {}) if key else None

    def life(self, obj: InfoObject, waited: float) -> float:
        """Seconds that an object has left which has waited that long; inf where nobody says for how long it lives."""
        attributes = obj.platform.attributes
        said = (self.body.expiration, attributes.timeout if attributes is not None else 0.0)
        return min(filter(None, said), default=math.inf) - waited

    def message(self, obj: InfoObject, source: str, life: float, seconds: float, *, is_reliable: bool) -> NodeMessage:
        """An object of the platform `source`. `life`: see above, and `seconds` where that is inf; `is_reliable`:
        somebody demands it."""
        body, (mode, holders) = self.body, _MODES[self.body.sending.mode]
        mode = DatagramMode.RELIABLE if is_reliable and mode == DatagramMode.UNRELIABLE else mode
        parcel = packed(obj, source).in_memory()
        message = NodeMessage(
            DatagramKind.PUBLICATION, mode, b"".join(parcel.parts),
            expiration=_milliseconds(life if life < math.inf else seconds), level=self._level,
            holders=holders,
        )  # fmt: skip
        if self._key is None:
            return message
        value = str(self._key(parse_metadata(obj.metadata)))
        return message._replace(durability=digest(f"{body.uid} {value}".encode()), update=obj.platform.sequence)

    def hold(
        self, number: int, message: NodeMessage, now: float, life: float, seconds: float, *, is_alone: bool
    ) -> None:
        """Keep an object that nobody wants, as far as is known by now: who does is told within so many seconds, or some
        more. `life`: see above; `is_alone`: no other node is there."""
        least = HELD_SECONDS if is_alone or now - self._begun < HELD_SECONDS else WANTED_SECONDS
        until = now + (message.expiration / 1000 if message.durability else min(max(seconds, least), life))
        with self._lock:
            if message.durability:
                self._replace(message.durability)
            self._held.append(_HeldObject(now, until, number, message=message, expires=now + life))
            self._bytes += len(message.body)
            while len(self._held) > HELD_MOST or self._bytes > HELD_BYTES:
                self._give_up()

    def _replace(self, key: bytes) -> None:
        """Leave out what is held of a key, as one with what is left out before it."""
        held = list(self._held)
        self._held.clear()
        for each in held:
            if each.message is not None and each.message.durability == key:
                self._bytes -= len(each.message.body)
                each = _HeldObject(each.since, 0.0, each.number)
            if each.message is None and self._held and self._held[-1].message is None:
                each = _with(each, self._held.pop())
            self._held.append(each)

    def look(self, now: float, *, is_wanted: bool) -> None:
        """Say what is held, if somebody wants it by now, and keep nothing of which the time is over. Raises
        BackPressureError."""
        if is_wanted:
            self.go(now, 0.0)
        else:
            with self._lock:
                self._give_up_late(now)

    def go(self, now: float, timeout: float, number: int = 0, message: NodeMessage | None = None) -> None:
        """Say what is held, and then an object. Raises BackPressureError: nothing of it is lost by that."""
        with self._lock:
            while self._held:
                number_held, held = self._held[0].number, self._held[0].message
                if held is not None and self._held[0].until > now:
                    left = self._held[0].expires - now
                    aged = held._replace(expiration=_milliseconds(left)) if left < math.inf else held
                    self._one(number_held, aged, now, timeout)
                    self._held.popleft()
                    self._bytes -= len(held.body)
                else:
                    self._give_up()
            if message is not None:
                self._one(number, message, now, timeout)

    def leave_out(self, count: int, up_to: int, now: float, timeout: float, *, lost: bool = False) -> None:
        """So many objects up to a number do not go, or were `lost`, which is told behind what is held. Raises
        BackPressureError."""
        with self._lock:
            if up_to > self._left_to:  # or it is said again, as there was no room
                left = _HeldObject(now, 0.0, up_to, count, count * lost)
                if self._held and self._held[-1].message is None:  # one with those before, however many there are
                    left = _with(left, self._held.pop())
                self._held.append(left)
            self._give_up_late(now)
            if not self._held:
                self._tell_left(now, timeout)

    def _give_up_late(self, now: float) -> None:
        while self._held and self._held[0].until <= now:
            self._give_up()

    def _give_up(self) -> None:
        """Leave out the first of what is held."""
        gone = self._held.popleft()
        self._left, self._lost = self._left + gone.objects, self._lost + gone.lost
        self._left_to, self._left_since = gone.number, gone.since
        self._bytes -= len(gone.message.body) if gone.message is not None else 0

    def _one(self, number: int, message: NodeMessage, now: float, timeout: float) -> None:
        self._tell_left(now, timeout)
        self._say(message, timeout)
        self.last = number

    def _tell_left(self, now: float, timeout: float) -> None:
        if not self._left:
            return
        up_to = self._left_to
        age = max(0, int((now - self._left_since) * 1000))
        data = encoded(LeftOutBody(VERSION, self.body.uid, self._left, up_to, age, self._lost))
        life = int(max(self.body.expiration, LEFT_OUT_SECONDS) * 1000)  # behind what it tells of, however short that is
        told = NodeMessage(DatagramKind.SEQUENCE, DatagramMode.RELIABLE, data, expiration=life, level=self._level)
        self._say(told, timeout)
        self.last, self._left, self._lost = max(self.last, up_to), 0, 0


def _with(left: _HeldObject, before: _HeldObject) -> _HeldObject:
    """Objects that are left out, as one with those before them."""
    return left._replace(objects=left.objects + before.objects, lost=left.lost + before.lost)


def _milliseconds(seconds: float) -> int:
    """A life as a message says it."""
    return max(1, int(seconds * 1000))
