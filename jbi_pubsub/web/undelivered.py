"""Objects of a sequence of the Common API on their way to its clients: what one that has gone did not get is for the
next one."""

from __future__ import annotations

import base64
import threading
import time
from typing import Final

from jbi_pubsub.capi import (
    CapiException,
    InfoObject,
    InvalidMetadataException,
    QuerySequence,
    SubscriberSequence,
    TimeoutException,
)
from jbi_pubsub.capi.sequences import ACTIVE

from .listing import CapiObject

TURN_SECONDS: Final = 0.1
"""The longest that objects are awaited before it is looked whether the client is still there."""


class UndeliveredObjects:
    """Objects of one sequence that were taken for a client that had gone. Any thread; one at a time takes."""

    def __init__(self, sequence: SubscriberSequence | QuerySequence) -> None:
        self._sequence = sequence
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._objects: list[CapiObject] = []

    def take(self, count: int, timeout: float, gone: threading.Event) -> tuple[CapiObject, ...]:
        """The next objects within `timeout` ms, those first that are here; none when the client has `gone`. Raises as
        getNext of the sequence."""
        until = time.monotonic() + timeout / 1000
        while not self._turn.acquire(timeout=max(0.0, min(until - time.monotonic(), TURN_SECONDS))):
            if gone.is_set() or time.monotonic() >= until:
                raise self._late(timeout)
        try:
            is_active = self._sequence.getSequenceState() == ACTIVE
            come = [] if (self._objects and is_active) or gone.is_set() else self._come(count, until, timeout, gone)
            with self._lock:
                self._objects += come
                taken = 0 if gone.is_set() else count
                found, self._objects = tuple(self._objects[:taken]), self._objects[taken:]
            return found
        finally:
            self._turn.release()

    def put_back(self, objects: tuple[CapiObject, ...]) -> None:
        """Those were taken last, and have reached nobody."""
        with self._lock:
            self._objects[:0] = objects

    def _come(self, count: int, until: float, timeout: float, gone: threading.Event) -> list[CapiObject]:
        found: list[CapiObject] = []
        while True:
            left = max(0.0, until - time.monotonic())
            is_last = left <= TURN_SECONDS or gone.is_set()
            try:
                come = self._next(count - len(found), min(left, TURN_SECONDS) * 1000)
                found += map(_said, come)
            except TimeoutException as exc:
                if is_last and not (found or gone.is_set()):
                    raise self._late(timeout) from exc
            except CapiException:
                if not found:  # else the next call is told
                    raise
                return found
            else:
                if isinstance(self._sequence, SubscriberSequence) or not come or len(found) == count:
                    return found
            if is_last:
                return found

    def _next(self, count: int, timeout: float) -> list[InfoObject]:
        if isinstance(self._sequence, SubscriberSequence):
            return [self._sequence.getNext(timeout)]
        return self._sequence.getNext(count, timeout)

    def _late(self, timeout: float) -> TimeoutException:
        of = f"{self._sequence.getType()} {self._sequence.getVersion()}"
        return TimeoutException(f"no object of {of} came within {timeout:g} ms")


def _said(io: InfoObject) -> CapiObject:
    try:
        metadata, encoded = io.getMetadata(), None
    except InvalidMetadataException:
        metadata, encoded = None, base64.b64encode(io.getMetadataBytes()).decode()
    payload = base64.b64encode(io.getPayload()).decode()
    return CapiObject(
        io.getInfoObjectID(), io.getType(), io.getVersion(), metadata, encoded, payload, io.getExtendedMetadata()
    )
