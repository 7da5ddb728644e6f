"""Knowledge of an index about a type, beside its tables: paths, what there is of them, kinds of objects. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from jbi_pubsub.archive.leaves import SIZES, DocumentRow, TypePaths
from jbi_pubsub.archive.plan import Restriction, Within, restriction
from jbi_pubsub.archive.query import CompiledScope
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.values import decoder_of

MAX_KINDS: Final = 4096
MAX_KIND_PATHS: Final = 1 << 17
"""Different sets of repeated paths in the objects of a type, and paths in all these sets."""
MAX_RESTRICTIONS: Final = 64
"""Remembered of a type."""

PLAIN, OPEN, ANY = 0, 1, 2
"""Kinds of objects: no path is repeated; nothing is known; any path may be repeated. Others have a set each."""
LARGE: Final = -len(SIZES)
"""Beside the paths of a set: how many of SIZES the document is beyond, negative; this is all of them."""
NUMBERS, TEXTS, MORE, NOT_HELD = 1, 2, 4, 8
"""Kinds of values at a path: columns of numbers, of texts; values in the second table; some that are not held."""


class _TypeState(msgspec.Struct, array_like=True):
    """Knowledge about a type, as it is kept."""

    paths: list[tuple[tuple[str, ...], bool]]
    flags: bytes
    kinds: list[list[int]]
    has_open: bool
    has_any: bool


_decoder = decoder_of(_TypeState)


class TypeIndex:
    """A type, its paths, and what there is of them. One thread at a time."""

    def __init__(self, number: int, known: bytes | None = None) -> None:
        """`known`: what another one has made. Raises msgspec.DecodeError."""
        state = _decoder.decode(known) if known else _TypeState([], b"", [[]] * 3, False, False)
        self.number = number
        self.paths = TypePaths(state.paths)
        self.flags = bytearray(state.flags)
        self.kinds = [frozenset(each) for each in state.kinds]
        self.has_open, self.has_any = state.has_open, state.has_any
        self.kind_paths = sum(map(len, self.kinds))
        self.kind_of = {each: place for place, each in enumerate(self.kinds) if place > ANY}
        self.kind_of[frozenset()] = PLAIN
        self.counts: Counter[int] = Counter()
        self.seen = 0
        self.frequent = {place for place, flag in enumerate(self.flags) if flag & (NUMBERS | TEXTS)}
        self.restrictions: Cache[object, tuple[int, Restriction]] = Cache(MAX_RESTRICTIONS)

    @property
    def learned(self) -> object:
        """Changes when there is something to be kept."""
        return self.paths.version, len(self.kinds), self.has_open, self.has_any, bytes(self.flags)

    def known(self) -> bytes:
        """As it is kept."""
        kinds = [sorted(each) for each in self.kinds]
        return msgspec.msgpack.encode(
            _TypeState(self.paths.known(), bytes(self.flags), kinds, self.has_open, self.has_any)
        )

    def kind(self, row: DocumentRow) -> int:
        """The kind of an object."""
        if row.is_open:
            self.has_open = True
            return OPEN
        if not row.repeated and not row.size:
            return PLAIN
        repeated = frozenset((*row.repeated, -row.size)) if row.size else frozenset(row.repeated)
        known = self.kind_of.get(repeated)
        if known is None:
            if len(self.kinds) >= MAX_KINDS or self.kind_paths + len(repeated) > MAX_KIND_PATHS:
                self.has_any = True
                return ANY
            self.kind_paths += len(repeated)
            known = self.kind_of[repeated] = len(self.kinds)
            self.kinds.append(repeated)
        return known

    def kinds_with(self, paths: Iterable[int]) -> list[int]:
        """The kinds in which one of these may be repeated."""
        wanted = frozenset(paths)
        found = [place for place, each in enumerate(self.kinds) if not each.isdisjoint(wanted)]
        return [ANY, *found] if wanted and self.has_any else found

    def restriction(self, asked: CompiledScope) -> Restriction:
        """Restriction of the objects that there are by a predicate: by that on the combined view, if there is one."""
        predicate = asked.combined or asked.predicate
        if predicate is None:
            return restriction(None, self.paths)
        is_within = asked.combined is not None
        key = predicate.identity, is_within
        known = self.restrictions.get(key)
        if known is None or known[0] != self.paths.version:
            made = restriction(predicate, Within(self.paths) if is_within else self.paths)
            known = self.restrictions[key] = self.paths.version, made
        return known[1]
