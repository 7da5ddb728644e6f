"""Knowledge of the documents of one information type: their stencils, made as they come.

Rules:
- All registrations of a type share it, and so do publishers and a delegate in one process (`known_documents`).
- A stencil is made of documents that did not fit one, after PATIENCE_FIRST of them; making it takes as long as parsing
  and checking 50 to 500. With a type that never fits its stencils, it comes to nothing beside the parsing.
- What predicates read is learned from documents that have to be parsed for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from jbi_pubsub.core.cache import InUse
from jbi_pubsub.core.documents.plain import plain
from jbi_pubsub.core.documents.shape import ANY, ANY_TEXT, DifferError, DocumentShape, Grammar, Particle, Texts, seen
from jbi_pubsub.core.documents.stencil import NOTHING, Stencil, Traced, WantedParts
from jbi_pubsub.core.xml import parse_metadata

MAX_STENCILS: Final = 4
"""Most stencils of a type."""
MAX_SOURCE_BYTES: Final = 64 << 10
"""Larger documents get no stencil: a bound on memory, and on the time that a hostile source costs with one document."""
MAX_SAMPLES: Final = 8
"""Documents of which one stencil is made, beside the last one."""
MAX_KINDS: Final = 2 * MAX_STENCILS
"""Kinds that a document is held against when stencils are made."""
MAX_SAMPLE_BYTES: Final = 16 << 10
"""Most bytes of each of them: they are held until there are enough."""
PATIENCE_FIRST: Final = 50
"""Documents that are parsed before a stencil is made."""
PATIENCE_TO_READ: Final = 8
"""Documents that are parsed for predicates before a stencil is made that tells what they read."""
PATIENCE_MOST: Final = 1 << 20


class AnyDocument:
    """Grammar of documents that are not validated: anything goes, and nothing is invariant."""

    def texts(self, path: Sequence[str]) -> Texts | None:  # noqa: ARG002 - of any leaf
        """Any."""
        return ANY_TEXT

    def attribute(self, path: Sequence[str], name: str) -> Texts | None:  # noqa: ARG002 - of any element
        """Any."""
        return ANY_TEXT

    def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:  # noqa: ARG002 - as above
        """Any."""
        return ANY

    def is_invariant(self, path: Sequence[str]) -> bool:  # noqa: ARG002 - of no element
        """Nothing is."""
        return False


class KnownDocuments:
    """See the module. Several threads may use it: what they may overwrite for one another is only how soon a stencil is
    made; one at a time makes them."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self.stencils: tuple[Stencil, ...] = ()
        self._making = threading.Lock()
        self._samples: deque[bytes] = deque(maxlen=MAX_SAMPLES)
        self._wanted = NOTHING
        self._parsed = 0
        self._patience, self._patience_to_read = PATIENCE_FIRST, PATIENCE_TO_READ
        self._tried = False

    def trace(self, metadata: bytes) -> Traced | None:
        """The document, if it is like known ones."""
        stencils = self.stencils
        written = plain(metadata) if stencils else None
        if written is None:
            return None
        for stencil in stencils:
            traced = stencil.trace(metadata, written)
            if traced is not None:
                stencil.fitted += 1
                if stencil.unread >= self._patience_to_read:
                    self._read_more(stencil.missing)
                return traced
        return None

    def parsed(self, metadata: bytes) -> None:
        """A document that is like none had to be parsed, and is good."""
        self._parsed += 1
        if self._parsed < self._patience:
            if len(metadata) <= MAX_SAMPLE_BYTES:
                self._samples.append(metadata)
        elif len(metadata) <= MAX_SOURCE_BYTES and self._making.acquire(blocking=False):
            try:
                self._learn(metadata)
            finally:
                self._making.release()

    def _learn(self, last: bytes) -> None:
        """Make stencils of the last documents; wait longer for the next time if the last try was of little use."""
        fitted = sum(stencil.fitted for stencil in self.stencils)
        is_useful = not self._tried or fitted >= self._parsed
        self._patience = PATIENCE_FIRST if is_useful else min(2 * self._patience, PATIENCE_MOST)
        samples = [last, *self._samples]
        self._samples.clear()
        weight = self._parsed / len(samples)
        self._tried, self._parsed = True, 0
        self.learn(samples, weight)

    def learn(self, samples: Iterable[bytes], weight: float = 1.0) -> None:
        """Make stencils of good documents, each of which stands for `weight` of its kind. Of more kinds than there is
        room for the commonest have one."""
        known = {id(stencil.shape): stencil for stencil in self.stencils}
        kinds = [(stencil.shape, float(stencil.fitted)) for stencil in self.stencils]
        for sample in samples:
            try:
                _merge(seen(sample, parse_metadata(sample), self._grammar), weight, kinds)
            except (DifferError, RecursionError):
                continue
        kinds.sort(key=lambda kind: -kind[1])
        made: list[Stencil] = []
        for shape, _ in kinds[:MAX_STENCILS]:
            try:
                made.append(known.get(id(shape)) or Stencil(shape, self._wanted))
            except (OverflowError, RecursionError):
                continue  # it would be too large, or too deep
        for stencil in made:
            stencil.fitted = 0
        self.stencils = tuple(made)

    def _read_more(self, missing: WantedParts) -> None:
        """Have more told of documents that are known."""
        if not self._making.acquire(blocking=False):
            return
        try:
            self._patience_to_read = min(2 * self._patience_to_read, PATIENCE_MOST)
            self._wanted |= missing
            self.stencils = tuple(map(self._wanting, self.stencils))
        finally:
            self._making.release()

    def _wanting(self, stencil: Stencil) -> Stencil:
        try:
            return stencil.wanting(self._wanted)
        except (OverflowError, RecursionError):
            stencil.unread = 0
            return stencil


def _merge(made: DocumentShape, weight: float, kinds: list[tuple[DocumentShape, float]]) -> None:
    """Put the shape of a document among those there are."""
    for place, (shape, before) in enumerate(kinds[:MAX_KINDS]):
        try:
            kinds[place] = shape.merged(made), before + weight
        except DifferError:
            continue
        return
    kinds.append((made, weight))


_by_type: InUse[Hashable, KnownDocuments] = InUse()


def known_documents(key: Hashable, grammar: Grammar) -> KnownDocuments:
    """Knowledge of the documents of one type in this process, for as long as somebody holds it."""
    return _by_type.one(key, KnownDocuments(grammar))
