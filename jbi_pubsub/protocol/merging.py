"""Results of several archives as one sequence: by time of publication, each object once. Pure.

Rules:
- Each archive gives its own results in their order, by position. Of one archive alone that is the order. Of several the
  one comes next that was published first (newest first: last) among those that are next of their archives.
- So nothing comes before each archive that goes on has said what it has next.
- A copy of an object in another archive has the same time of publication: it comes soon, and is known by its id.
- The newest of each key can be told only when all archives have said what theirs are.
- Whoever withholds some of an archive's answers asks without `limit` and `latest_by`, and chooses of what is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import MetadataError, OversizeError
from jbi_pubsub.core.info_object import InfoObject, LargeObject
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath.predicate import FOREIGN_ERRORS, compiled_xpath
from jbi_pubsub.protocol.requests import QueryRequest

IDS_REMEMBERED: Final = 65_536
"""Results behind which a copy is still known as one."""

KEYS_MOST: Final = 100_000
"""Newest objects that are held until all archives have told theirs."""
CHOSEN_BYTES: Final = 64 << 20
"""Their bytes where a server holds them."""

KeyOf = Callable[[InfoObject], str]


class Merge:
    """Results of `parts` archives, merged. Not safe for several threads."""

    def __init__(
        self, parts: int, *, newest_first: bool = False, limit: int = 0, key: KeyOf | None = None,
        may_repeat: bool = False,
    ) -> None:  # fmt: skip
        """`limit` 0 for none; `key` of an object, of each of which the newest alone is wanted: "" for what has none.
        Without, where one archive has done it. `may_repeat`: also a single archive may give an object twice."""
        self._heads: list[InfoObject | None] = [None] * parts
        self._ended = [False] * parts
        self._newest_first = newest_first
        self._limit = limit
        self._key = key
        self._newest: dict[tuple[str, str, str], InfoObject] = {}
        self.held = 0
        """Bytes of these."""
        self._laid: deque[InfoObject] = deque()
        """The newest of each key in their order, when all archives have told theirs."""
        self._ids: Cache[str, None] | None = Cache(IDS_REMEMBERED) if parts > 1 or may_repeat else None
        self.given = 0

    def wants(self) -> list[int]:
        """The archives that have to say what they have next, or that they have ended, before anything comes."""
        return [part for part, head in enumerate(self._heads) if head is None and not self._ended[part]]

    def offer(self, part: int, obj: InfoObject) -> None:
        """Give what an archive that is wanted has next. Raises OversizeError."""
        if self._key is None:
            self._heads[part] = obj
        elif key := self._key(obj):
            self._keep_newest((obj.type.name, obj.type.version, key), obj)

    def end(self, part: int) -> None:
        """Note that an archive has no more."""
        self._ended[part] = True

    def next(self) -> InfoObject | None:
        """The next object, when no archive is wanted. None: `is_over`, or an archive is wanted again."""
        if self._newest and all(self._ended):
            self._laid.extend(sorted(self._newest.values(), key=_age, reverse=self._newest_first))
            self._newest = {}
        while not self.is_over and not self.wants():
            obj = self._laid.popleft() if self._laid else self._first()
            if self._is_new(obj):
                self.given += 1
                return obj
        return None

    @property
    def is_full(self) -> bool:
        """Whether as many have come as were wanted."""
        return bool(self._limit) and self.given >= self._limit

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more."""
        if self.is_full:
            return True
        return all(self._ended) and not (self._newest or self._laid or self.holds_some)

    @property
    def holds_some(self) -> bool:
        """Whether an archive has said what it has next."""
        return any(head is not None for head in self._heads)

    def _first(self) -> InfoObject:
        """The head that is next; its archive is wanted from now on."""
        there = [(obj.platform.published, part) for part, obj in enumerate(self._heads) if obj is not None]
        _, part = max(there, key=lambda head: (head[0], -head[1])) if self._newest_first else min(there)
        obj, self._heads[part] = self._heads[part], None
        assert obj is not None
        return obj

    def _is_new(self, obj: InfoObject) -> bool:
        if self._ids is None:
            return True
        if obj.object_id in self._ids:
            return False
        self._ids[obj.object_id] = None
        return True

    def _keep_newest(self, key: tuple[str, str, str], obj: InfoObject) -> None:
        known = self._newest.get(key)
        if known is None and len(self._newest) >= KEYS_MOST:
            raise OversizeError(
                f"the newest of each key: more than {KEYS_MOST:,} keys in several archives",
                hint="Ask for a part of the objects, by a predicate or a time",
            )
        if known is None or _age(obj) > _age(known):
            self._newest[key] = obj
            self.held += _size(obj) - (_size(known) if known is not None else 0)


def everything(request: QueryRequest) -> QueryRequest:
    """The question for all that `chosen` chooses of."""
    return msgspec.structs.replace(request, limit=0, latest_by="")


def chosen(objects: Iterable[InfoObject], request: QueryRequest) -> Iterator[InfoObject]:
    """The objects of one sequence that a request wants: the newest of each key, as many as its limit. Raises
    OversizeError."""
    merge = Merge(1, newest_first=request.order == "newest", limit=request.limit, key=key_of(request))
    for obj in objects:
        merge.offer(0, obj)
        if merge.held > CHOSEN_BYTES:
            raise OversizeError(
                f"the newest of each key: more than {CHOSEN_BYTES >> 20} MB from another platform",
                hint="Ask for a part of the objects, by a predicate or a time",
            )
        if (found := merge.next()) is not None:
            yield found
        if merge.is_full:
            return
    merge.end(0)
    while (found := merge.next()) is not None:
        yield found


def key_of(request: QueryRequest) -> KeyOf | None:
    """Reader of the key of `latest_by` from an object; it gives "" for what has none."""
    if not request.latest_by:
        return None
    find = compiled_xpath(f"string({request.latest_by})", dict(request.namespaces))

    def key(obj: InfoObject) -> str:
        try:
            return str(find(parse_metadata(obj.metadata)))
        except (*FOREIGN_ERRORS, MetadataError):
            return ""

    return key


def _age(obj: InfoObject) -> tuple[float, int]:
    return obj.platform.published, obj.platform.sequence


def _size(obj: InfoObject) -> int:
    return len(obj.metadata) + (0 if isinstance(obj, LargeObject) else len(obj.payload))
