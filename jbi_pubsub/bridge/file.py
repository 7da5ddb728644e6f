"""The file of a bridge: its sides, its directions, and what is done to objects on their way. What can't be used is told
before anything is opened.

A bridge between systems that are no platforms, whose sides are both of some other kind, is the plug-in `bridge.KIND`:
called with path and document of the file, it gives a `BridgeDescription`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec

from jbi_pubsub.core import plugins, toml
from jbi_pubsub.core.config import Config, load
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.toml import TomlDocument, TomlError, TomlTable
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.protocol.entries import PLATFORM_NAME

from .listed import DirectionTerms, Passing
from .mirror import Direction, Mirror
from .platform import BridgePlatform, JbiPlatform
from .transformation import Rule, Transformation, literal

NAME_MOST: Final = 48
"""Characters of a bridge's name: a random end makes it the id of one process."""


_OF_ELEMENTS: Final = frozenset(("unit", "step", "origin", "length", "table", "attribute", "parameter", "hide"))
"""Keys of what is done to values."""


class SidePlace(TomlTable, frozen=True):
    """Where a side is: the settings of this process count, but for what is said here."""

    config: str = ""
    """Another configuration file for this side, from this file's folder."""
    locators: tuple[str, ...] = ()
    """Its lookup services, HOST:PORT: then it is not looked for others by mDNS."""
    groups: tuple[str, ...] = ()
    """Their groups."""


class JbiSide(SidePlace, frozen=True):
    """`[side.NAME]` of kind "jbi"."""

    kind: str = "jbi"
    delegate: Annotated[tuple[str, ...], msgspec.Meta(max_length=2)] = ()
    """Name and location of the delegate that takes what comes from the other side; () for any."""
    durable: bool = False
    """Whether what is published there while no bridge of this name runs, or was not taken by the other side, goes when
    one runs again. It needs an archive there."""


class DirectionTable(TomlTable, frozen=True, rename={"source": "from", "target": "to"}):
    """`[[direction]]`."""

    source: str
    target: str
    types: tuple[str, ...] = ("*",)
    """Globs of the names of the types that go."""
    without: tuple[str, ...] = ()
    """And of those that do not, all the same."""
    validate: bool = True
    """Whether the other side checks metadata by their schema once more."""
    wanted: bool = False
    """Whether what the other side wants is brought alone."""
    passes: tuple[Passing, ...] = ()
    """Wishes of publishers that hold on the other side, too."""
    rule: tuple[Rule, ...] = ()


class BridgeFile(TomlTable, frozen=True):
    """The whole. Without directions all goes both ways."""

    side: dict[str, dict[str, Any]]
    name: str = "bridge"
    poll: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 2.0
    """Seconds after which it is looked for what nobody tells of, and tried again what could not be done."""
    direction: tuple[DirectionTable, ...] = ()

    @property
    def ways(self) -> tuple[DirectionTable, ...]:
        """The directions."""
        one, other = self.side
        return self.direction or (DirectionTable(one, other), DirectionTable(other, one))


class ExplanationTable(NamedTuple):
    """A table of what a bridge does, for people."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


class BridgeExplanation(NamedTuple):
    """Explanation of what a bridge does."""

    plain: dict[str, Any]
    """Plain data."""
    tables: tuple[ExplanationTable, ...]


class OpenBridge(Protocol):
    """A bridge; whoever opens it closes it."""

    def start(self) -> None:
        """Begin. Raises JbiError."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain data; "directions" are dicts with "from", "to", "relayed", "filtered", "lost"."""
        ...

    def close(self) -> None:
        """Leave in order."""
        ...


class Kind(Protocol):
    """Sides of a kind that rooms above this one have."""

    def checked(self, path: Path, name: str, table: Mapping[str, Any], base: Config) -> Any:
        """Raises ConfigurationError, which names file and side."""
        ...

    def opened(self, path: Path, name: str, table: Mapping[str, Any], base: Config, bridge: str) -> BridgePlatform:
        """Nobody need be there. Raises ConfigurationError."""
        ...


class BridgeDescription(Protocol):
    """A bridge as its file describes it."""

    @property
    def sides(self) -> tuple[str, ...]:
        """Their names."""
        ...

    def check(self, base: Config) -> None:
        """As far as that can be said without opening anything. Raises ConfigurationError."""
        ...

    def explained(self, type_name: str | None) -> BridgeExplanation:
        """Explanation of what it does, with one type or with all. Raises ConfigurationError."""
        ...

    def opened(self, base: Config) -> OpenBridge:
        """Not started yet; nobody need be there. Raises JbiError."""
        ...


def described(path: Path) -> BridgeDescription:
    """The description in a file. Raises ConfigurationError, which names file and key."""
    document = parsed(path)
    sides = document.get("side")
    for side in sides.values() if isinstance(sides, dict) else ():
        kind = side.get("kind") if isinstance(side, dict) else None
        made = plugins.find("bridge", kind) if isinstance(kind, str) else None
        if made is not None:
            found: BridgeDescription = made(path, document)
            return found
    return Platforms(path, read(path))


def read(path: Path) -> BridgeFile:
    """The file of a bridge between platforms. Raises ConfigurationError, which names file and key."""
    try:
        file = toml.typed(parsed(path), BridgeFile)
    except TomlError as exc:
        raise _unfit(path, exc) from exc
    check_frame(path, (file.name, *file.side), [(way.source, way.target) for way in file.direction])
    for way in file.ways:
        transformation_of(path, way)
        if way.wanted:
            _check_selective(path, way.source, file.side[way.source])
    return file


def _check_selective(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for a side that can't leave out what nobody wants."""
    kind, topics = table.get("kind", "jbi"), table.get("topic", ())
    if kind == "mqtt" and all(isinstance(one, dict) and one.get("type") for one in topics):
        return
    if kind != "jbi":
        raise ConfigurationError(
            f"bridge file {path}: wanted = true in the direction from {name}: that can't be asked for some types alone",
            hint="Leave it out; topics of a broker can, if each has a type",
        )


def parsed(path: Path) -> TomlDocument:
    """Raises ConfigurationError."""
    try:
        return toml.read(path)
    except OSError as exc:
        raise ConfigurationError(f"bridge file {path}: {exc.strerror}", hint="See docs/bridge.md for one") from exc
    except TomlError as exc:
        raise _unfit(path, exc) from exc


def _unfit(path: Path, exc: TomlError, kind: type[msgspec.Struct] = Rule, of: str = "") -> ConfigurationError:
    """The error about a file, or about a table `of` it that is to be one of that kind."""
    known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
    hint = exc.hint or (f"It has {known}" if of else "See docs/bridge.md for one")
    if exc.key in _OF_ELEMENTS and not of:
        hint = f"Metadata are never modified: {exc.key} is for sides of kind hla alone. A rule has {known}"
    return ConfigurationError(f"bridge file {f'{path}: {of}: {exc}' if of else exc.told(path)}", hint=hint)


NO_KINDS: Final[Mapping[str, Kind]] = {}


class Platforms(NamedTuple):
    """A bridge between platforms (see Described)."""

    path: Path
    file: BridgeFile
    kinds: Mapping[str, Kind] = NO_KINDS
    """Kinds of sides, beside those that are known here."""

    @property
    def sides(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.file.side)

    def check(self, base: Config) -> None:
        """As far as that can be said without opening them. Raises ConfigurationError."""
        for name, table in self.file.side.items():
            kind = _kind(self.path, name, table)
            if kind in self.kinds:
                self.kinds[kind].checked(self.path, name, table, base)
            elif kind == "jbi":
                settings_of(self.path, name, side_of(self.path, name, table, JbiSide), base)
            elif kind == "mqtt":
                from .mqtt import MqttSide, check_side  # here: an extra, which others need not have

                side = side_of(self.path, name, table, MqttSide)
                with told(self.path, f"side.{name}"):
                    check_side(side, self.path.parent)
            elif plugins.find("platform", kind) is None:
                raise _unknown_kind(self.path, name, kind)

    def explained(self, type_name: str | None) -> BridgeExplanation:
        """Explanation of what becomes of types."""
        rows = [row for way in self.file.ways for row in self._rows(way, type_name)]
        names = ("from", "to", "types", "where", "name")
        plain = {"name": self.file.name, "directions": [dict(zip(names, row, strict=True)) for row in rows]}
        return BridgeExplanation(
            plain, (ExplanationTable("", ("from", "to", "types", "only where", "called there"), rows),)
        )

    def _rows(self, way: DirectionTable, type_name: str | None) -> list[tuple[str, ...]]:
        ends = way.source, way.target
        if type_name is not None:
            transformation = transformation_of(self.path, way)
            type_ = TypeName(type_name)
            if not transformation.wants(type_):
                return [(*ends, "does not go", "", "")]
            rule = transformation.rule_of(type_name)
            return [(*ends, type_name, rule.where if rule else "", transformation.named(type_).name)]
        rows = [(*ends, " ".join(rule.types), rule.where, rule.name) for rule in way.rule]
        without = f", without {' '.join(way.without)}" if way.without else ""
        return [*rows, (*ends, f"{' '.join(way.types)}{without}", "", "")]

    def opened(self, base: Config) -> Mirror:
        """A bridge that is not started yet; nobody need be there. `base`: the settings of this process. Raises
        ConfigurationError, PortInUseError."""
        bridge = f"{self.file.name}-{token_hex(4)}"
        sides: dict[str, BridgePlatform] = {}
        try:
            for name, table in self.file.side.items():
                sides[name] = self._side(name, table, base, bridge)
            ways = []
            for way in self.file.ways:
                types = tuple(dict.fromkeys(way.types)) if literal(way.types) else ()  # each has a subscription
                terms = DirectionTerms(types, self.file.poll, way.validate, passes=way.passes, wanted=way.wanted)
                source, target = sides[way.source], sides[way.target]
                ways.append(Direction(source, target, transformation_of(self.path, way), bridge=bridge, terms=terms))
        except BaseException:
            for side in sides.values():
                side.close()
            raise
        one, other = sides.values()
        return Mirror((one, other), tuple(ways), name=self.file.name)

    def _side(self, name: str, table: Mapping[str, Any], base: Config, bridge: str) -> BridgePlatform:
        kind = _kind(self.path, name, table)
        lasting = bridge.rpartition("-")[0]  # the bridge's name, over all its processes
        if kind in self.kinds:
            return self.kinds[kind].opened(self.path, name, table, base, bridge)
        if kind == "jbi":
            side: JbiSide = side_of(self.path, name, table, JbiSide)
            delegate, location, *_ = (*side.delegate, None, None)
            settings, durable = settings_of(self.path, name, side, base), f"bridge-{lasting}" if side.durable else ""
            return JbiPlatform(name, settings, (delegate, location), bridge, durable=durable)
        if kind == "mqtt":
            from .mqtt import MqttPlatform, MqttSide  # here, for the same reason

            with told(self.path, f"side.{name}"):
                return MqttPlatform(name, side_of(self.path, name, table, MqttSide), lasting, folder=self.path.parent)
        made = plugins.find("platform", kind)
        if made is None:
            raise _unknown_kind(self.path, name, kind)
        platform: BridgePlatform = made(name, dict(table), bridge)
        return platform


def check_frame(path: Path, names: tuple[str, ...], ways: Iterable[tuple[str, str]]) -> None:
    """The names of a bridge and of its sides, and between which of them there are directions. Raises
    ConfigurationError."""
    _, *sides = names
    if len(sides) != 2:
        raise ConfigurationError(f"bridge file {path}: {len(sides)} sides", hint="A bridge has two: [side.NAME]")
    if any(not PLATFORM_NAME.fullmatch(name) or len(name) > NAME_MOST for name in names):
        raise ConfigurationError(
            f"bridge file {path}: names have 1 to {NAME_MOST} letters, digits, '.', '_' and '-'",
            hint=f"These do not all: {', '.join(map(repr, names))[:300]}",
        )
    seen = set()
    for source, target in ways:
        if {source, target} != set(sides) or (source, target) in seen:
            raise ConfigurationError(
                f"bridge file {path}: a direction from {source[:64]!r} to {target[:64]!r}",
                hint=f"There is one from {' to '.join(sides)} at most, and one back",
            )
        seen.add((source, target))


def transformation_of(path: Path, way: DirectionTable) -> Transformation:
    """Transformation of a direction. Raises ConfigurationError, with the file and the direction."""
    with told(path, f"from {way.source} to {way.target}"):
        return Transformation(way.types, way.without, way.rule)


def _kind(path: Path, name: str, table: Mapping[str, Any]) -> str:
    kind = table.get("kind", "jbi")
    if not isinstance(kind, str):
        raise ConfigurationError(f"bridge file {path}: side.{name}.kind is not text", hint='For example kind = "jbi"')
    return kind


def _unknown_kind(path: Path, name: str, kind: str) -> ConfigurationError:
    known = ("jbi", "mqtt", *plugins.names("bridge"), *plugins.names("platform"))
    return ConfigurationError(
        f"bridge file {path}: side.{name} is of kind {kind[:64]!r}, which there is not",
        hint=near_hint(kind, known),
    )


def side_of(path: Path, name: str, table: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return toml.typed(table, kind)
    except TomlError as exc:
        raise _unfit(path, exc, kind, f"side.{name}") from exc


def settings_of(path: Path, name: str, side: SidePlace, base: Config) -> Config:
    """Those of a side. Raises ConfigurationError."""
    own: dict[str, Any] = {"groups": side.groups} if side.groups else {}
    if side.locators:
        own |= {"locators": side.locators, "multicast": False}  # by mDNS both sides would find each other's
    with told(path, f"side.{name}"):
        for locator in side.locators:
            check_endpoint(locator)
        config = load(file=path.parent / side.config, environment={})[0] if side.config else base
        made = msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, **own))
        made.security()
    return made


@contextmanager
def told(path: Path, key: str) -> Iterator[None]:
    """Raise a JbiError of the block as a ConfigurationError with the file and a key of it."""
    try:
        yield
    except JbiError as exc:
        raise ConfigurationError(f"bridge file {path}: {key}: {exc.message}", hint=exc.hint) from exc
