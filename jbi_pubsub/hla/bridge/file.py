"""The file of a bridge between two federations: its sides, the cells of its policy, time, and what goes in each
direction. What can't be used is told before anything is opened, with what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from jbi_pubsub.bridge.file import BridgeExplanation, ExplanationTable, SidePlace, check_frame, settings_of, told
from jbi_pubsub.core import toml
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.toml import TomlError, TomlTable
from jbi_pubsub.hla import datatypes
from jbi_pubsub.hla.fom import PRIVILEGE, Class, ClassMember, parsed
from jbi_pubsub.hla.proxy import modules_of

from . import policy
from .policy import Solutions
from .rules import ClassRule, InteractionRule, Way
from .translation import Course, Courses, SideModel, Translation, translation


class FederationPlace(SidePlace, frozen=True, kw_only=True):
    """`[side.NAME]` of kind "hla"."""

    kind: str = "hla"
    federation: str
    """Name of the federation execution."""

    def check_federation(self) -> None:
        """Raises ConfigurationError."""
        if not self.federation or len(self.federation) > 255:
            raise ConfigurationError("federation is the name of a federation execution", hint='federation = "Air"')


class HlaSide(FederationPlace, frozen=True, kw_only=True):
    """The same, beside another one of kind "hla"."""

    fom: tuple[str, ...] = ()
    """Modules of its object model, from this file's folder; (): the RTI says which it has."""


class Time(TomlTable, frozen=True):
    """`[time]`."""

    couple: bool = False
    """Whether time advances on both sides together."""
    lookahead: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 1e-3
    """Lookahead of the surrogates, in seconds of logical time."""


class FlowSection(TomlTable, frozen=True):
    """`[flow]`."""

    queue: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    """Entries that wait in the bridge for one side; when there are more, no more are taken from the other one."""


class HlaFile(TomlTable, frozen=True):
    """The whole. Without directions all goes both ways."""

    side: dict[str, HlaSide]
    name: str = "bridge"
    poll: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 2.0
    """Seconds after which what is away is tried again."""
    saves: str = ""
    """Folder for what is under way in the bridge when both federations save, from this file's; "": it is kept in memory
    alone."""
    policy: dict[str, Any] = msgspec.field(default_factory=dict)
    time: Time = Time()
    flow: FlowSection = FlowSection()
    direction: tuple[Way, ...] = ()

    def way(self, source: str, target: str) -> Way | None:
        """The direction; None: nothing goes so."""
        if not self.direction:
            return Way(source, target)
        return next((way for way in self.direction if (way.source, way.target) == (source, target)), None)


def federations(path: Path, document: Mapping[str, Any]) -> Federations:
    """The file of a bridge between federations. Raises ConfigurationError, which names file and key."""
    try:
        file = toml.typed(document, HlaFile)
    except TomlError as exc:
        hint = exc.hint or "See docs/hla-bridge.md for one"
        raise ConfigurationError(f"bridge file {exc.told(path)}", hint=hint) from exc
    _check(path, file)
    with told(path, "policy"):
        cells = policy.read(file.policy)
        policy.check_time(file.time.couple, file.time.lookahead)
    return Federations(path, file, cells)


def _check(path: Path, file: HlaFile) -> None:
    check_frame(path, (file.name, *file.side), [(way.source, way.target) for way in file.direction])
    for name, side in file.side.items():
        with told(path, f"side.{name}"):
            side.check_federation()
    one, other = file.side.values()
    if (one.federation, one.config, one.locators, one.groups) == (
        other.federation, other.config, other.locators, other.groups
    ):  # fmt: skip
        raise ConfigurationError(
            f"bridge file {path}: both sides are the federation {one.federation}", hint="A bridge joins two federations"
        )


class Federations(NamedTuple):
    """A bridge between federations (see bridge.file.Described)."""

    path: Path
    file: HlaFile
    policy: Solutions

    @property
    def sides(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.file.side)

    def check(self, base: Config) -> None:
        """Settings, object models and rules. Raises ConfigurationError."""
        for name, side in self.file.side.items():
            settings_of(self.path, name, side, base)
        self.translation()

    # -- models --------------------------------------------------------------------------------------------------

    def model(self, name: str) -> SideModel | None:
        """Model of a side, from the modules that the file names; None: it names none. Raises ConfigurationError."""
        modules = [self.path.parent / module for module in self.file.side[name].fom]
        if not modules:
            return None
        with told(self.path, f"side.{name}"):
            found = modules_of(modules)
            return SideModel(name, parsed(*found), datatypes.parsed(*found))

    def translation(self) -> Translation | None:
        """Translation with the models of the file; None: it does not name them. Raises ConfigurationError."""
        models = {name: model for name in self.file.side if (model := self.model(name)) is not None}
        return self.translated(models) if len(models) == 2 else None

    def translated(self, models: Mapping[str, SideModel]) -> Translation:
        """Translation with the models that RTIs have. Raises ConfigurationError."""
        (one, other), (first, second) = models.values(), models
        with told(self.path, "direction"):
            return translation(one, other, self.file.way(first, second), self.file.way(second, first))

    # -- what it does --------------------------------------------------------------------------------------------

    def explained(self, type_name: str | None) -> BridgeExplanation:
        """Sides, cells, and what goes; of one class with `type_name`. Raises ConfigurationError."""
        cells: list[tuple[str, ...]] = list(policy.explained(self.policy))
        plain: dict[str, Any] = {
            "name": self.file.name,
            "sides": {name: side.federation for name, side in self.file.side.items()},
            "policy": {cell: {"value": value, "meaning": meaning} for cell, value, meaning in cells},
            "time": msgspec.to_builtins(self.file.time),
        }
        couples = self.file.time.couple
        rows = [*cells, ("time", "couple" if couples else "", policy.TIME[couples])]
        tables = [ExplanationTable("", ("problem", "solution", "meaning"), rows)]
        translated = self.translation()
        if translated is not None and type_name is not None:
            _check_class(type_name, translated)
        plain["directions"] = []
        for side, (source, target) in enumerate((self.sides, self.sides[::-1])):
            rows = list(self._rows(translated, side, type_name))
            columns = ("here", "there", "what is done")
            tables.append(ExplanationTable(f"{source} to {target}", columns, rows))
            entries = [dict(zip(("here", "there", "done"), row, strict=True)) for row in rows]
            plain["directions"].append({"from": source, "to": target, "elements": entries})
        return BridgeExplanation(plain, tuple(tables))

    def _rows(self, translated: Translation | None, side: int, name: str | None) -> Iterator[tuple[str, ...]]:
        """Rows of what goes in the direction from a side."""
        way = self.file.way(*(self.sides if side == 0 else self.sides[::-1]))
        if way is None:
            yield "*", "", "nothing goes"
            return
        if translated is None:
            yield from _as_written(way)
            yield "*", "", "not checked: a model is known when its RTI is asked"
            return
        here, there = translated.foms[side], translated.foms[1 - side]
        objects = _Shown(here.objects, there.objects, here.attributes, there.attributes)
        interactions = _Shown(here.interactions, there.interactions, here.parameters, there.parameters)
        yield from objects.rows(translated.objects[side], name)
        yield from interactions.rows(translated.interactions[side], name)


def _check_class(name: str, translated: Translation) -> None:
    """That a side has a class of that name. Raises ConfigurationError."""
    classes = [cls.name for fom in translated.foms for cls in (*fom.objects[1:], *fom.interactions[1:])]
    known = {cls.partition(".")[2] for cls in classes}
    if name not in known and name not in classes:
        raise ConfigurationError(f"no side has a class {name[:200]!r}", hint=near_hint(name, sorted(known)))


class _Shown(NamedTuple):
    """Names of classes and of what they have, on both sides."""

    classes: tuple[Class, ...]
    classes_there: tuple[Class, ...]
    members: tuple[ClassMember, ...]
    members_there: tuple[ClassMember, ...]

    def rows(self, courses: Courses, only: str | None) -> Iterator[tuple[str, ...]]:
        """Rows of each class, and of all that it has."""
        for cls in self.classes[1:]:
            short = cls.name.partition(".")[2]
            if only in (None, short, cls.name):
                yield from self._of_class(cls, short, courses.get(cls.handle))

    def _of_class(self, cls: Class, short: str, course: Course | None) -> Iterator[tuple[str, ...]]:
        if course is None or not course.target:
            yield short, "", "does not go" if course is None else "left out"
            return
        rate = f"{course.limit.rate:g} a second" if course.limit is not None else ""
        yield short, self.classes_there[course.target - 1].name.partition(".")[2], rate
        for handle in cls.members:
            mapped = course.members.get(handle)
            name = f"  .{self.members[handle - 1].name}"
            if name == f"  .{PRIVILEGE}":
                continue  # it goes along with the ownership of the others
            if mapped is None:
                yield name, "", "left out"
            else:
                yield name, f"  .{self.members_there[mapped.target - 1].name}", mapped.says


def _as_written(way: Way) -> Iterator[tuple[str, ...]]:
    """Rules, where no model says what they mean."""
    rules: tuple[ClassRule | InteractionRule, ...] = (*way.classes, *way.interactions)
    for rule in rules:
        rate = f"{rule.rate:g} a second" if rule.rate is not None else ""
        yield rule.name, "" if rule.hide else rule.target or rule.name, "left out" if rule.hide else rate
        for name, element in rule.elements.items():
            said = {key: value for key, value in msgspec.to_builtins(element).items() if key in _DONE and value}
            done = "; ".join(f"{key} = {value}" for key, value in said.items())
            yield (
                f"  .{name}",
                "" if element.hide else f"  .{element.name or name}",
                "left out" if element.hide else done,
            )


_DONE: Final = ("type", "unit", "step", "origin", "length", "table", "field")
