"""Words of this node that hold until it says otherwise: they are said, said again while they hold, and taken back.

Rules:
- Of each the last one is said; what there is no room for in the network is said later.
- What stands is said anew each AGAIN_SECONDS: so whoever had no room for it, or has forgotten it, hears of it, and what
  is never said again is over. Where nodes may hear that can't ask, it is said more often.
- The end of something is kept for those who are away, of so many things; then it is taken back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage

from .bodies import SchemaBody, SequenceBody, SettledBody, WantedBody, encoded

log = logging.getLogger("jbi_pubsub.node")

WORD_LIFE: Final = 3_600_000
"""Milliseconds that a word lives that its node says no more."""
ENDED_LIFE: Final = 24 * WORD_LIFE
"""The same of the end of a registration: nodes that were away for less hear of it."""
ENDED_MOST: Final = 2_000
"""Ends that are kept."""
CANCEL_LIFE: Final = 10_000
AGAIN_SECONDS: Final = 1_200.0
SILENT_SECONDS: Final = 300.0
"""The same where nodes may hear that say nothing."""
AGAIN_MOST: Final = 100
"""Words that are said again at a time."""

Word = SequenceBody | SchemaBody | WantedBody | SettledBody


class OwnWords:
    """See the module. Any thread."""

    def __init__(
        self, say: Callable[[NodeMessage, float], None], seconds: float, *, silent_receivers: bool = False
    ) -> None:
        """`say`: see Network.say; `seconds`: for room in the network; `silent_receivers`: nodes may hear that say
        nothing."""
        self._say, self._seconds, self._silent_receivers = say, seconds, silent_receivers
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while words are said: those of one thing go in order."""
        self._standing: OrderedDict[bytes, tuple[float, Word]] = OrderedDict()
        """Since when (monotonic seconds); the one that was said the longest ago first."""
        self._ended: OrderedDict[bytes, float] = OrderedDict()
        """Ends that are kept, and until when."""
        self._due: OrderedDict[bytes, tuple[Word | None, int]] = OrderedDict()
        """Words to say, and how long they live; None takes back."""
        self._update = 0

    def stand(self, key: bytes, word: Word) -> None:
        """Say something that holds."""
        with self._lock:
            self._put(key, word)
            self._ended.pop(key, None)
        self.speak()

    def schema(self, key: bytes) -> SchemaBundle | None:
        """A schema that we say."""
        with self._lock:
            _, word = self._standing.get(key, (0.0, None))
        return word.bundle if isinstance(word, SchemaBody) else None

    def end(self, key: bytes, word: Word | None = None) -> None:
        """Say the last word on something that holds no more, or take it back."""
        with self._lock:
            self._standing.pop(key, None)
            self._due[key] = word, ENDED_LIFE if word is not None else CANCEL_LIFE
            if word is not None:
                self._ended[key] = time.monotonic() + ENDED_LIFE / 1000
        self.speak()

    def speak(self) -> None:
        """Say what is due, as far as there is room."""
        with self._turn:
            with self._lock:
                self._look(time.monotonic())
            while True:
                with self._lock:
                    key, found = next(iter(self._due.items()), (b"", None))
                    if found is None:
                        return
                    self._update += 1
                    update = self._update
                word, life = found
                body = encoded(msgspec.structs.replace(word, update=update)) if word is not None else b""
                try:
                    self._say(NodeMessage(
                        DatagramKind.SEQUENCE, DatagramMode.DURABLE, body, expiration=life, durability=key,
                        update=update,
                    ), self._seconds)  # fmt: skip
                except BackPressureError as exc:
                    log.debug("%d messages to other nodes wait: %s", len(self._due), exc)
                    return
                with self._lock:
                    if self._due.get(key) is found:
                        del self._due[key]

    def _put(self, key: bytes, word: Word) -> None:
        self._standing[key] = time.monotonic(), word
        self._standing.move_to_end(key)
        self._due[key] = word, WORD_LIFE

    def _look(self, now: float) -> None:
        """See what is to be said again, and which ends are to be taken back."""
        before = now - (SILENT_SECONDS if self._silent_receivers else AGAIN_SECONDS)
        for key, (since, word) in list(islice(self._standing.items(), AGAIN_MOST)):
            if since <= before and key not in self._due:
                self._put(key, word)
        while self._ended:
            key, until = next(iter(self._ended.items()))
            if until > now and len(self._ended) <= ENDED_MOST:
                break
            del self._ended[key]
            if key not in self._due:
                self._due[key] = None, CANCEL_LIFE
