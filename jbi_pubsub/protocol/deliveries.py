"""Items on the data connection from a delegate to a subscriber."""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from jbi_pubsub.core.history import Position

ITEM: Final = struct.Struct("!BI")

OBJECT, LOSS, CHUNK, LAST_CHUNK, SHARED, END = 1, 2, 3, 4, 5, 6
PLACED, FINISHED = 7, 8
QUALITY: Final = 9
"""Kinds of items on a delivery connection, each with a subscription number. A large object comes as CHUNK ...
LAST_CHUNK; between them come items of other subscriptions, none of its own. SHARED has, instead of a number, how many
subscriptions the object is for, then their numbers (32 bits each), then the object: it goes over the link once. END
with number 0 is the last one: who delivers stops in order, and has told what was lost; with another number that
subscription has ended here, against the will of its subscriber, who has been told its losses; with ASK_AGAIN what was
refused may be allowed now. PLACED: an object behind its position (POSITION); of a queue that is placed, which is said
when it opens, all objects are, and each chunk begins with the position, too. FINISHED: a query's end
(replies.Finished), the last of that number. QUALITY: what a subscription that wishes has got instead of what it had."""

POSITION: Final = struct.Struct("!Q")

ASK_AGAIN: Final = 0xFFFF_FFFF
"""No subscription's number."""

COUNT_MOST: Final = 2**53
"""The largest loss that is told as a number: a hostile publisher may skip any number of objects, again and again."""

SHARED_MOST: Final = 10_000
"""Subscriptions of one SHARED item: its numbers take 40 kB then."""

Micros = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Millionths of a second, twelve days at most."""


class Heard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Note of the subscriber's acknowledgements, by subscription numbers. `consumed`: how many objects its application
    has taken in all, results of queries, too. `delays`, under quality of service and once a second: how long one object
    has waited there for the application, and by how much that varies (RFC 3550's jitter)."""

    consumed: dict[int, int] = {}
    delays: dict[int, tuple[Micros, Micros]] = {}
    acknowledged: dict[int, tuple[Position, ...]] = {}
    """Positions, by durable subscription with explicit acknowledgement, of the objects that the application has
    acknowledged since the last note that was sent."""


NOTHING_HEARD: Final = Heard()
