"""Quality of service as data: what policies decide for a contract, what applications wish, what they get. Pure.

Importance and preferences are those of QED, section II (settings S = (v, i, P)). `policy/` resolves them, `qos/`
enforces them; here, because every room between the two ends of a contract speaks of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, QosDeniedError
from jbi_pubsub.core.info_object import ObjectAttributes, with_name
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xpath import compile_predicate

from .near import near_name

if TYPE_CHECKING:
    from jbi_pubsub.core.info_object import Parcel

Importance = Annotated[int, msgspec.Meta(ge=1, le=5)]
"""1 is the least, 5 the most important."""
LEVELS: Final = 5
DEFAULT_IMPORTANCE: Final = 3

StrategyName = Literal["weighted_fair", "strict"]
WEIGHTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Weights of importance 1 to 5 under weighted_fair, unless a policy file says otherwise."""


class Strategy(msgspec.Struct, frozen=True):
    """Strategy by which levels share what is short: `strict` serves the highest first, `weighted_fair` by weights.
    `cpu` and `link`: weights of importance 1 to 5, more than 0."""

    name: StrategyName = "weighted_fair"
    cpu: tuple[float, ...] = WEIGHTS
    link: tuple[float, ...] = WEIGHTS


class PayloadShape(msgspec.Struct, frozen=True):
    """A transformation of payloads by name, for example ("scale", (0.5,)); what there is: SHAPES."""

    name: str
    arguments: tuple[float, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{argument:g}" for argument in self.arguments)])


class ShapeRule(msgspec.Struct, frozen=True):
    """The arguments of a shape: names, least and most of each; whole numbers where `whole`. `picture`: it is for
    pictures, and needs Pillow."""

    arguments: tuple[tuple[str, float, float], ...] = ()
    whole: bool = True
    picture: bool = False


SHAPES: Final = {
    "scale": ShapeRule((("factor", 0.01, 1.0),), whole=False, picture=True),
    "quality": ShapeRule((("percent", 1, 95),), picture=True),
    "thumbnail": ShapeRule((("width", 1, 10_000), ("height", 1, 10_000)), picture=True),
    "grey": ShapeRule(picture=True),
    "drop_payload": ShapeRule(),
    "truncate": ShapeRule((("bytes", 0, 1 << 30),)),
}
"""Shapers that there are (qos/shaping.py does them), for those who check policies."""


def shape_of(said: object) -> PayloadShape:
    """A shape as people write it, "scale 0.5". Raises ValueError, which says what there is."""
    words = said.split() if isinstance(said, str) else []
    rule = SHAPES.get(words[0]) if words else None
    if rule is None:
        near = near_name(words[0], SHAPES) if words else ""
        hint = f"Did you mean {near!r}?" if near else f"There is {', '.join(SHAPES)}"
        raise ValueError(f"{str(said)[:50]!r} is not a shape. {hint}")
    if len(words) - 1 != len(rule.arguments):
        usage = " ".join([words[0], *(name.upper() for name, _, _ in rule.arguments)])
        raise ValueError(f"{str(said)[:50]!r} is written {usage!r}")
    arguments = []
    for word, (name, least, most) in zip(words[1:], rule.arguments, strict=True):
        try:
            value = float(int(word) if rule.whole else float(word))
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            kind = "whole number" if rule.whole else "number"
            raise ValueError(f"{name} of {words[0]} is a {kind} from {least:g} to {most:g}, not {word[:50]!r}")
        arguments.append(value)
    return PayloadShape(words[0], tuple(arguments))


class Rate(msgspec.Struct, frozen=True):
    """So many bytes, or objects, a second."""

    amount: float
    unit: Literal["bytes", "objects"] = "bytes"


class LinkTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A bottleneck that several destinations share. Rates are bytes a second.

    `rate`: None is measured; `min_share`: parts of the rate that importance 1 to 5 are guaranteed, also under strict, 1
    in sum at most; `each`: the most for one destination; `overhead`: bytes that the network adds to each 1,448 (52: the
    headers of a TCP segment); `reserve`: part of the rate that is left to control calls.
    """

    name: str
    rate: float | None = None
    min_share: tuple[float, ...] = (0.0,) * LEVELS
    each: float | None = None
    overhead: int = 0
    reserve: float = 0.03


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of policies for an information space as a whole; `shaping` False: no payload is shaped."""

    strategy: Strategy = Strategy()
    shaping: bool = True
    links: tuple[LinkTerms, ...] = ()


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that conditions may ask of a link and this process; None: not known, and then no condition about it holds.

    `bandwidth` (limit or estimate of the link) in bytes a second, `backlog` bytes that wait for it, `queue` objects and
    `queue_bytes` bytes that wait in all, `memory` bytes of this process, `cpu` its share of one core, `loss` the part
    of objects that was lost lately.
    """

    bandwidth: float | None = None
    backlog: float | None = None
    queue: float | None = None
    queue_bytes: float | None = None
    memory: float | None = None
    cpu: float | None = None
    loss: float | None = None


QueuePolicy = Literal["drop_least", "drop_oldest", "drop_newest", "block"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in force for a contract.

    `deadline`: seconds after publication; `max_size` in bytes of metadata and payload, and what becomes of larger
    objects; `replace`: "" nothing, "registration", "type", or an XPath to a text: a newer object of the same key takes
    an older one's place; `queue`: what happens when the subscription's queue is full, None: what its subscriber said;
    `link`: name of the LinkTerms that its destination is behind, "" for none; `version` of the policies that it comes
    from.
    """

    importance: Importance = DEFAULT_IMPORTANCE
    deadline: float | None = None
    shapes: tuple[PayloadShape, ...] = ()
    max_rate: Rate | None = None
    max_size: int | None = None
    oversize: Literal["shape", "drop"] = "drop"
    replace: str = ""
    queue: QueuePolicy | None = None
    link: str = ""
    version: int = 0


DEFAULT: Final = Settings()
"""Where no policy says anything."""


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wish of an application for its contract, as Settings; None: nothing. Shapes are written "scale 0.5", rates are
    bytes a second. `require`: names of fields without which it does not want the contract. `attributes` say of the
    contract what policies may be about."""

    importance: Importance | None = None
    deadline: float | None = None
    shape: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)] | None = None
    max_rate: float | None = None
    max_size: int | None = None
    replace: str | None = None
    require: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)] = ()
    attributes: Annotated[dict[str, str], msgspec.Meta(max_length=32)] = msgspec.field(default_factory=dict)


WISHES: Final = ("importance", "deadline", "shape", "max_rate", "max_size", "replace")
"""Fields that a wish may ask for, and require."""
QUANTITY_MOST: Final = 1e15
"""Limit of bytes, seconds, bytes a second: more is none of this world, and sums of it would be no numbers any more."""
RATE_LEAST: Final = 0.001
"""A second: less lets nothing through that anybody would wait for."""
ATTRIBUTES_MOST: Final = 32
"""Most attributes of a contract."""
TEXT_MOST: Final = 200
"""Characters of an attribute's name or value, a shape, or what is to be replaced by."""


def checked_attributes(said: ObjectAttributes | None) -> ObjectAttributes | None:
    """Attributes of an object that is published here. Raises ConfigurationError for what is out of range."""
    if said is not None:
        try:
            converted(msgspec.to_builtins(said), ObjectAttributes)
        except msgspec.ValidationError as exc:
            raise ConfigurationError(
                f"attributes of an object: {with_name(str(exc), ObjectAttributes)}",
                hint="priority 1 (least) to 5, or 0; timeout in seconds; reliable True or False",
            ) from exc
    return said


def checked_wish(wish: Wish) -> tuple[PayloadShape, ...]:
    """Its shapes, read. Raises ConfigurationError for a wish that makes no sense, PredicateError
    for such an XPath: wishes come from strangers."""
    if wish == Wish():
        return ()
    try:
        converted(msgspec.to_builtins(wish), Wish)  # an application's own, which Python does not look at
    except (msgspec.ValidationError, TypeError) as exc:
        raise ConfigurationError(
            f"wish: {exc}",
            hint="Numbers: max_rate in bytes a second, max_size in bytes, deadline in seconds; units are for files",
        ) from exc
    limits = (("deadline", wish.deadline), ("max_rate", wish.max_rate), ("max_size", wish.max_size))
    for name, value in limits:
        if value is not None and not 0 < value < math.inf:
            raise ConfigurationError(f"wish: {name} {value} is not above 0", hint=f"Leave {name} out for none")
    if wish.max_rate is not None and not RATE_LEAST <= wish.max_rate <= QUANTITY_MOST:
        what = f"{RATE_LEAST:g} to {QUANTITY_MOST:g} bytes a second"
        raise ConfigurationError(f"wish: max_rate {wish.max_rate:g} is not {what}", hint="Leave max_rate out for none")
    for name in wish.require:
        if name not in WISHES:
            raise ConfigurationError(f"wish: require {name[:TEXT_MOST]!r}", hint=f"There is {', '.join(WISHES)}")
        if getattr(wish, name) is None:
            raise ConfigurationError(f"wish: {name} is required, but not wished for", hint=f"Say {name}=...")
    texts = [*wish.attributes, *wish.attributes.values(), *(wish.shape or ()), wish.replace or ""]
    if len(wish.attributes) > ATTRIBUTES_MOST or len(wish.shape or ()) > 8 or any(len(t) > TEXT_MOST for t in texts):
        raise ConfigurationError(
            "wish: too much of it",
            hint=f"{ATTRIBUTES_MOST} attributes and 8 shapes at most, each text of {TEXT_MOST} characters at most",
        )
    if wish.importance is not None and not 1 <= wish.importance <= LEVELS:
        raise ConfigurationError(f"wish: importance {wish.importance} is not in 1..{LEVELS}")
    if wish.replace and wish.replace not in ("registration", "type"):
        compile_predicate(wish.replace, argument="wish: replace")
    try:
        return tuple(map(shape_of, wish.shape or ()))
    except ValueError as exc:
        raise ConfigurationError(f"wish: {exc}") from exc


class Reduced(msgspec.Struct, frozen=True):
    """A field of a wish that is not granted as it was: by which policy, "" by the rule that is always there."""

    field: str
    policy: str = ""


class Unmet(msgspec.Struct, frozen=True):
    """A field that a subscription requires, and that a publisher offers more of: objects may be older, come faster or
    be larger than that. `registration` is the publisher's."""

    field: str
    required: float
    offered: float
    registration: str


OFFERED: Final = ("deadline", "max_rate", "max_size")
"""Fields that a publisher's wish is an offer of: it promises to stay below."""
UNMET_MOST: Final = 20
"""Most unmet terms of a subscription told at once."""


def unmet(required: Wish, offered: Wish, registration: str) -> list[Unmet]:
    """Parts of a publisher's offer that are not enough. Who says nothing of a field offers nothing, and breaks no word:
    what is required is enforced all the same."""
    found = []
    for name in OFFERED:
        want, have = getattr(required, name), getattr(offered, name)
        if name in required.require and have is not None and have > want:
            found.append(Unmet(name, want, have, registration))
    return found


class GrantedQos(msgspec.Struct, frozen=True):
    """Terms that a contract has got. `unmet`: for a subscription, of which publishers that it gets objects of the offer
    is less than what it requires."""

    settings: Settings = DEFAULT
    reduced: tuple[Reduced, ...] = ()
    unmet: tuple[Unmet, ...] = ()


class PolicyChanged(msgspec.Struct, frozen=True):
    """Answer of a server that has changed a value of its policy file: which version of the policies is in force now,
    and whether it is another one."""

    version: int
    changed: bool
    file: str


class Metering(Protocol):
    """Is told what a contract gets (qos/meter.py). Any thread."""

    def took(self, type_name: str, size: int, waited: float) -> None:
        """An object goes out, of so many bytes, after so many seconds."""
        ...

    def lost(self, type_name: str, count: int = 1) -> None:
        """Objects are lost."""
        ...

    def reached(self, seconds: float, jitter: float) -> None:
        """One that went out lately took so long from there to its application, which varies by so much."""
        ...

    def status(self, now: float) -> dict[str, Any]:
        """Plain data. `now`: of the monotonic clock."""
        ...


def demanded(wish: Wish, granted: GrantedQos) -> GrantedQos:
    """Quality that was granted. Raises QosDeniedError when a field that is required is not."""
    for each in granted.reduced:
        if each.field in wish.require:
            who = f"by policy {each.policy!r}" if each.policy else "without a policy that allows it"
            raise QosDeniedError(
                f"{each.field} {getattr(wish, each.field)!r} is required, and not granted {who}",
                hint="Wish for less, or do not require it; `jbi policy explain` says what is granted",
                field=each.field,
                policy=each.policy,
            )
    return granted


def unmanaged(wish: Wish) -> GrantedQos:
    """Quality that a wish gets where none is managed: nothing, and it is told so. Raises ConfigurationError,
    QosDeniedError."""
    checked_wish(wish)
    less = tuple(Reduced(name) for name in WISHES if getattr(wish, name) is not None)
    return demanded(wish, GrantedQos(DEFAULT, less))


@dataclass(eq=False, slots=True)
class Contract:
    """A registration, a subscription or a query, with what policies have decided for it: `settings` are replaced as a
    whole when anything changes, so readers take no lock. `by_object` decides where policies ask for an object's size or
    metadata; None for nearly all. `meter` is told what it gets."""

    settings: Settings = DEFAULT
    by_object: Callable[[Parcel], Settings] | None = None
    meter: Metering | None = None

    def of(self, parcel: Parcel) -> Settings:
        """The settings for one object, no more important than its publisher says."""
        settings = self.settings if self.by_object is None else self.by_object(parcel)
        if parcel.head.attributes is None:
            return settings
        importance = parcel.head.lowered(settings.importance)
        if importance == settings.importance:
            return settings
        return msgspec.structs.replace(settings, importance=importance)

    @property
    def level(self) -> int:
        """Its importance from 0 (least) to 4, as arrays are indexed."""
        return self.settings.importance - 1
