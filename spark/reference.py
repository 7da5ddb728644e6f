"""First-level matching in this process: an engine for small studies, and the definition itself as its oracle.

Both take entries and templates of any classes, as they come off the wire; neither knows Spark or the population.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

import msgspec

from jbi_pubsub.lookup.entry import EntryClass, EntryRep, matches

_Key = Callable[[tuple[str | None, ...]], object]


class Group(msgspec.Struct, frozen=True):
    """Equal templates: `gid` is the lowest of their numbers `tids` (ascending), whatever engine grouped them."""

    gid: int
    template: EntryRep
    tids: tuple[int, ...]


class _Probe(msgspec.Struct, frozen=True):
    """The templates of one shape: how to cut their key out of an entry's values, and the groups by that key."""

    sample: EntryRep
    key: _Key
    gids: dict[object, int]


class Matcher:
    """Templates grouped by shape (class, set of fixed fields), one hash probe per shape and entry.

    Results equal `jbi_pubsub.lookup.entry.matches` for every pair. Not changed after construction.
    """

    def __init__(self, templates: Iterable[tuple[int, EntryRep]]) -> None:
        """Index the templates, given with their numbers."""
        numbers: dict[tuple[tuple[str, str], tuple[str | None, ...]], tuple[EntryRep, list[int]]] = {}
        for tid, template in templates:
            numbers.setdefault((template.cls.lineage[0], template.values), (template, []))[1].append(tid)
        self.groups = tuple(Group(min(tids), template, tuple(sorted(tids))) for template, tids in numbers.values())
        self._probes = _probes(self.groups)
        self._plans: dict[tuple[tuple[str, str], ...], tuple[_Probe, ...]] = {}

    def match(self, entry: EntryRep) -> list[int]:
        """Ascending `gid`s of the groups whose template matches `entry`.

        Raises IncompatibleEntryError when a template's class has the name, but not the fields, of the entry's.
        """
        plan = self._plans.get(entry.cls.lineage)
        if plan is None:
            plan = self._plans[entry.cls.lineage] = self._plan(entry)
        values = entry.values
        # An unset field of the entry puts None into the key, which no template's key holds: no match, as LU.2.1 says.
        found = (probe.gids.get(probe.key(values)) for probe in plan)
        return sorted(gid for gid in found if gid is not None)

    def _plan(self, entry: EntryRep) -> tuple[_Probe, ...]:
        plan = [probe for name, _ in entry.cls.lineage for probe in self._probes.get(name, ())]
        for probe in plan:
            matches(probe.sample, entry)  # raises when the two classes were generated from different schemas
        return tuple(plan)


def match_by_definition(
    registrations: Iterable[tuple[int, EntryRep]], templates: Iterable[tuple[int, EntryRep]]
) -> set[tuple[int, int]]:
    """(registration, template) number of every pair for which `entry.matches` holds, by trying every pair."""
    asked = list(templates)
    return {(rid, tid) for rid, entry in registrations for tid, template in asked if matches(template, entry)}


def _probes(groups: Iterable[Group]) -> dict[str, list[_Probe]]:
    """Probes by the name of the template's class."""
    shapes: dict[tuple[EntryClass, tuple[int, ...]], _Probe] = {}
    by_name: dict[str, list[_Probe]] = {}
    for group in groups:
        cls, values = group.template.cls, group.template.values
        fixed = tuple(n for n, value in enumerate(values) if value is not None)
        probe = shapes.get((cls, fixed))
        if probe is None:
            probe = shapes[cls, fixed] = _Probe(group.template, _key(fixed), {})
            by_name.setdefault(cls.name, []).append(probe)
        probe.gids[probe.key(values)] = group.gid
    return by_name


def _key(fixed: tuple[int, ...]) -> _Key:
    if not fixed:
        return lambda _values: ()
    return itemgetter(*fixed)
