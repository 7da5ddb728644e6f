"""The last objects of a type, for who looks at them: an ordinary subscription, bounded, that ends with its last viewer.
Knows no browser."""

from __future__ import annotations

import codecs
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from lxml import etree

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, OversizeError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid

from .map import Location, places

KEPT: Final = 20
"""Objects of a type that are kept."""
TYPES_MOST: Final = 8
"""Types looked at at once, by all tabs."""
PAYLOAD_SHOWN: Final = 2_000
"""Characters of a payload."""
METADATA_SHOWN: Final = 200_000
"""Characters of metadata."""
LEAVES_MOST: Final = 30
BRIEF: Final = 300
"""Characters of metadata in a list."""


@dataclass(frozen=True, slots=True)
class ObjectView:
    """An object that has come. `age`: seconds from its publication to its arrival here, by the clocks of both hosts."""

    object_id: str
    sequence: int
    type: str
    age: float
    arrived: float
    metadata: str
    payload: str
    size: int
    places: tuple[Location, ...]
    published: float
    brief: str
    """Leaves of the metadata, "name: text", as many as fit in BRIEF."""


@dataclass(eq=False, slots=True)
class _Watch:
    uid: SubscriptionUid | None = None
    viewers: int = 0
    seen: deque[ObjectView] = field(default_factory=lambda: deque(maxlen=KEPT))
    came: int = 0


class Objects:
    """Shared by all tabs. Any thread; `_lock` covers the watches. Calls of `watch` and `leave` block."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        """One watch begins or ends at a time; nobody waits for it who reads."""
        self._adapter: SubscriberAdapter | None = None
        self._watches: dict[tuple[str, str], _Watch] = {}
        self._queries = 0
        """Those under way; of `_changing`."""

    def watch(self, name: str, version: str, terms: Mapping[str, Any] | None = None, *, registration: str = "") -> None:
        """One more looks at that type, or, by `terms`, as `register_subscriber` takes them, at what (name, version) is
        an id of then; of one `registration` alone, if it is named. Raises OversizeError, and what a subscription is
        refused with."""
        with self._changing:
            with self._lock:
                watch = self._watches.get((name, version))
                if watch is not None:
                    watch.viewers += 1
                    return
                if len(self._watches) >= TYPES_MOST:
                    raise OversizeError(f"{TYPES_MOST} types are looked at already", hint="Close another page first")
            watch = _Watch(viewers=1)
            if self._adapter is None:
                self._adapter = SubscriberAdapter(self._config, name="console")
            asked = terms if terms is not None else {"type_name": name, "version": version or None}

            def arrived(_: object, obj: InfoObject) -> None:
                if registration in ("", obj.platform.registration):
                    self._arrived(watch, obj)

            watch.uid = self._adapter.register_subscriber(**asked, policy="drop_oldest", bound=KEPT, listener=arrived)
            with self._lock:
                self._watches[name, version] = watch

    def leave(self, name: str, version: str) -> None:
        """One less; the last one ends the subscription, and that of the last type the session."""
        with self._changing:
            with self._lock:
                watch = self._watches.get((name, version))
                if watch is None:
                    return
                watch.viewers -= 1
                if watch.viewers:
                    return
                del self._watches[name, version]
                last = not self._watches and not self._queries
            assert self._adapter is not None
            assert watch.uid is not None
            if last:
                self._end()
            else:
                self._adapter.cancel_subscription(watch.uid)

    def last(self, name: str, version: str) -> tuple[list[ObjectView], int]:
        """The last objects, newest first, and how many have come."""
        with self._lock:
            watch = self._watches.get((name, version))
            return (list(watch.seen)[::-1], watch.came) if watch is not None else ([], 0)

    def stored(self, name: str, conditions: Mapping[str, Any]) -> tuple[list[ObjectView], tuple[str, ...]]:
        """Archived objects of a type ("": any) under conditions, as `open_query` takes them, and which archives did not
        answer. Raises as a query."""
        with self._asking() as adapter, adapter.open_query(name or None, **conditions) as query:
            now = time.time()
            return [looked_at(obj, now) for obj in query], query.partial

    def get(self, object_id: str, seconds: float) -> InfoObject:
        """An archived object, wherever it is. Raises as the adapter's `get`."""
        with self._asking() as adapter:
            return adapter.get(object_id, seconds)

    @contextmanager
    def _asking(self) -> Iterator[SubscriberAdapter]:
        """The adapter for a query, which goes with the last of its users."""
        with self._changing:
            adapter = self._adapter = self._adapter or SubscriberAdapter(self._config, name="console")
            self._queries += 1
        try:
            yield adapter
        finally:
            with self._changing:
                self._queries -= 1
                if not self._watches and not self._queries:
                    self._end()

    def close(self) -> None:
        """End all."""
        with self._changing:
            with self._lock:
                self._watches.clear()
            self._end()

    def _end(self) -> None:
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close()

    def _arrived(self, watch: _Watch, obj: InfoObject) -> None:
        seen = looked_at(obj, time.time())
        with self._lock:
            watch.seen.append(seen)
            watch.came += 1


def looked_at(obj: InfoObject, now: float) -> ObjectView:
    """An object as it is shown; `now` is in seconds of the epoch."""
    where: tuple[Location, ...] = ()
    brief = ""
    try:
        root = parse_metadata(obj.metadata)
        leaves = islice((e for e in root.iter("*") if len(e) == 0 and (e.text or "").strip()), LEAVES_MOST)
        brief = ", ".join(f"{etree.QName(e).localname}: {' '.join((e.text or '').split())}" for e in leaves)
        where = tuple(places(root))
        etree.indent(root)
        metadata = etree.tostring(root, encoding="unicode")
    except JbiError as exc:
        metadata = f"({exc.message})"
    size = obj.platform.payload_length
    return ObjectView(
        object_id=obj.object_id,
        sequence=obj.platform.sequence,
        type=str(obj.type),
        age=now - obj.platform.published,
        arrived=now,
        metadata=shown(metadata, METADATA_SHOWN),
        payload=payload_shown(_begun(obj)),
        size=size,
        places=where,
        published=obj.platform.published,
        brief=shown(brief, BRIEF),
    )


def _begun(obj: InfoObject) -> bytes:
    """As much of a payload as is looked at."""
    with obj.payload_file as file:
        return file.read(PAYLOAD_SHOWN + 1)


def payload_shown(payload: bytes) -> str:
    """Its beginning, as text if it is one, else as hexadecimal."""
    if not payload:
        return "(none)"
    try:
        whole = len(payload) <= PAYLOAD_SHOWN
        head = codecs.getincrementaldecoder("utf-8")().decode(
            payload[:PAYLOAD_SHOWN], whole
        )  # a cut letter is left out
        return shown(head, PAYLOAD_SHOWN)
    except UnicodeDecodeError:
        return f"{payload[:256].hex(' ')}{' …' if len(payload) > 256 else ''}"


def shown(text: str, most: int) -> str:
    """Without control characters but for lines and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text[:most])
