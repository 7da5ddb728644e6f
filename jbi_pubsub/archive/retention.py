"""Retention in an archive: the rules of `[[keep]]`, decided from the newest object back. Pure: `now` is an argument.

Rules:
- Of the rules the first that names an object's type holds; an object that none names stays.
- Beyond any of a rule's bounds an object goes: older than `age`, not among the newest `count` of its type and version,
  beyond their newest `bytes`. Of one older than `payload_age` the payload alone goes. (`count = 0` keeps nothing unless
  a publisher says so: what is there is there for that reason, and stays.)
- Whatever the bounds say, the newest object of each key (`latest_by`) stays, and with `until_durables` what a durable
  subscription has not had. A rule with one of these two and without bounds gives up all that they do not hold; one
  without anything keeps all.
- What a whole volume holds of a type is decided at once where its `Holding` says enough; else object by object. Either
  way in the order of positions, newest first, all of them: how many there are newer is what counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from jbi_pubsub.core.history import MAX_POSITION, KeepRule

Fate = Literal["", "payload_age", "age", "count", "bytes", "latest_by", "until_durables"]
"""Why an object goes, or with "payload_age" its payload; "": it stays."""
STAYS: Final = ""
PAYLOAD: Final = "payload_age"
MAX_KEYS: Final = 1_000_000
"""Keys of one rule with `latest_by`; what has none of the newest so many keys stays."""


class Holding(msgspec.Struct, frozen=True):
    """Objects of a type and version in a volume. Times are of receipt."""

    type: str
    version: str
    objects: int
    size: int
    payload: int
    """Bytes, as those of its items."""
    oldest: float
    newest: float
    first: int
    last: int
    """Positions."""


class Item(msgspec.Struct, frozen=True):
    """An object. `size`: bytes of its metadata and payload, as published or what is left of them, wherever they lie;
    `payload`: those of the payload that lie in the volume. `key`: its text at the rule's `latest_by`, "" for none."""

    position: int
    received: float
    type: str
    version: str
    size: int
    payload: int
    key: str = ""
    registration: str = ""


class _Count:
    """Count of what was seen of a rule's type and version."""

    def __init__(self) -> None:
        self.objects = self.bytes = 0
        self.keys: set[bytes] = set()
        """Digests of the keys that there were: a key may be as long as a document."""


class Retention:
    """One run over all of an archive, from the newest object back. One thread."""

    def __init__(self, rules: Sequence[KeepRule], now: float, had: int = MAX_POSITION) -> None:
        """`now`: seconds since the epoch. `had`: the position up to which durable subscriptions have had all."""
        self._rules = rules
        self._now = now
        self._had = had
        self._counts: dict[tuple[str, str], _Count] = {}
        self._rule_of: dict[str, KeepRule | None] = {}

    def rule(self, type_name: str) -> KeepRule | None:
        """The one that holds for a type."""
        if type_name not in self._rule_of:
            names = (rule for rule in self._rules if any(fnmatchcase(type_name, glob) for glob in rule.types))
            self._rule_of[type_name] = next(names, None)
        return self._rule_of[type_name]

    def whole(self, holding: Holding) -> Fate | None:
        """Fate of all that a volume holds of a type; None: that has to be asked one by one."""
        rule = self.rule(holding.type)
        if rule is None:
            return STAYS
        if rule.latest_by or (rule.until_durables and holding.first <= self._had < holding.last):
            return None
        count = self._count(holding.type, holding.version)
        is_held = rule.until_durables and holding.last > self._had
        fates = {
            self._fate(rule, holding.newest, count.objects + 1, count.bytes + 1, is_held=is_held),
            self._fate(
                rule, holding.oldest, count.objects + holding.objects, count.bytes + holding.size, is_held=is_held
            ),
        }
        if len(fates) > 1:
            return None
        count.objects += holding.objects
        count.bytes += holding.size
        return fates.pop()

    def one(self, item: Item) -> Fate:
        """Fate of an object."""
        rule = self.rule(item.type)
        if rule is None:
            return STAYS
        count = self._count(item.type, item.version)
        count.objects += 1
        count.bytes += item.size
        is_held = rule.until_durables and item.position > self._had
        if rule.latest_by and item.key:
            key = hashlib.blake2b(item.key.encode(), digest_size=16).digest()
            if key not in count.keys:
                is_held = True
                if len(count.keys) < MAX_KEYS:
                    count.keys.add(key)
        return self._fate(rule, item.received, count.objects, count.bytes, is_held=is_held)

    def _count(self, type_name: str, version: str) -> _Count:
        return self._counts.setdefault((type_name, version), _Count())

    def _fate(self, rule: KeepRule, received: float, objects: int, size: int, *, is_held: bool) -> Fate:
        """Fate of an object received then, as the one of that number with so many bytes from the newest back."""
        if is_held:
            return STAYS
        if rule.age is not None and received < self._now - rule.age:
            return "age"
        if rule.count and objects > rule.count:
            return "count"
        if rule.bytes is not None and size > rule.bytes:
            return "bytes"
        if rule.payload_age is not None and received < self._now - rule.payload_age:
            return "payload_age"
        if rule.age is None and rule.count is None and rule.bytes is None and rule.payload_age is None:
            return "latest_by" if rule.latest_by else "until_durables" if rule.until_durables else STAYS
        return STAYS


def is_worth(objects: int, going: int, size: int, size_going: int) -> bool:
    """Whether a volume is made anew for what goes of it: where half or more of it does."""
    return going > 0 and (2 * going >= objects or 2 * size_going >= size)


def holdings(items: Iterable[Item]) -> tuple[Holding, ...]:
    """Holdings of a volume of these, by type."""
    found: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        found.setdefault((item.type, item.version), []).append(item)
    return tuple(
        Holding(
            name,
            version,
            len(these),
            sum(each.size for each in these),
            sum(each.payload for each in these),
            min(each.received for each in these),
            max(each.received for each in these),
            min(each.position for each in these),
            max(each.position for each in these),
        )
        for (name, version), these in found.items()
    )
