"""The federation object model: object classes with attributes, interaction classes with parameters.

Read from modules in the OMT XML of IEEE 1516.2-2010, of any namespace. Of a module are read: object classes,
attributes, interaction classes, parameters, their nesting, `order`, `transportation`, `dataType` and dimensions; and
update rates. Data types are checked (`rules`), and have no effect: an RTI here carries values as opaque bytes to all
who subscribe. Sharing, switches and notes are passed over. The roots HLAobjectRoot (with HLAprivilegeToDeleteObject)
and HLAinteractionRoot are there in any case.

Modules are merged (clause 4.1.4 of IEEE 1516-2010): a class may stand in several, as itself or without members; where
two say different things of it, they are refused, but for members that a module of IEEE 1516.2-2025 adds. Handles are
positions, counted from 1 in the order of names, so they are the same for all who have read the same modules, in
whichever order. What modules add with which a federate joins later has the handles behind those that there are, so
these stay: what is counted as one addition, and in which order they came, is the same for all.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Final, Literal, NamedTuple, NoReturn, TypeVar

from immutables import Map

from jbi_pubsub.core.near import near_hint, near_name
from jbi_pubsub.core.xml import Element

from . import datatypes
from .encoding import Encoding
from .exceptions import (
    AttributeNotDefined,
    ErrorReadingFom,
    InconsistentFom,
    InvalidDimensionHandle,
    InvalidInteractionClassHandle,
    InvalidObjectClassHandle,
    InvalidUpdateRateDesignator,
    NameNotFound,
    RtiError,
)
from .omt import children, is_of_2025, local_name, root_of, text_of
from .proxy import Layers, Module
from .rules import check

Order = Literal["receive", "timestamp"]
T = TypeVar("T")

RELIABLE: Final = 1
BEST_EFFORT: Final = 2
"""Handles of the transportation types: what goes by best effort may be lost on its way to a federate that is slow."""

OBJECT_ROOT: Final = "HLAobjectRoot"
INTERACTION_ROOT: Final = "HLAinteractionRoot"
PRIVILEGE: Final = "HLAprivilegeToDeleteObject"

CLASSES_MOST: Final = 20_000
DIMENSION_MOST: Final = 2**53
"""The upper bound of a dimension that has none in the model."""
MEMBERS_MOST: Final = 200_000
"""Attributes and parameters of all classes."""
DEPTH_MOST: Final = 64
KEPT_BYTES: Final = 1 << 20
"""Modules of one model that may be kept with it."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,254}")


class ClassMember(NamedTuple):
    """An attribute of an object class, or a parameter of an interaction class."""

    name: str
    data_type: str = ""
    """Its name; "": the model says none."""
    order: Order = "receive"
    """In which its values are delivered when they are sent with a time; of a parameter its class's counts."""
    transportation: int = RELIABLE
    """One of the handles of transportation types."""
    dimensions: tuple[str, ...] = ()
    """Names of those in which it can have regions; sorted."""


_UNSAID: Final = ClassMember(PRIVILEGE, order="timestamp")
"""HLAprivilegeToDeleteObject as the standard's own module has it, for models that do not speak of it."""


class Dimension(NamedTuple):
    """A dimension of regions."""

    name: str
    upper: int
    """Coordinates are from 0 and below that."""


class Class(NamedTuple):
    """An object class or an interaction class."""

    handle: int
    name: str
    """With those above it: HLAobjectRoot.Aircraft."""
    above: tuple[int, ...]
    """Itself and the classes above it, from itself to the root."""
    members: tuple[int, ...]
    """Handles of its attributes or parameters, those of classes above it too; sorted."""
    order: Order = "receive"
    """Order of an interaction class."""
    transportation: int = RELIABLE
    """As of an attribute; of an interaction class."""
    dimensions: tuple[str, ...] = ()
    """As of an attribute; of an interaction class."""


class Fom(NamedTuple):
    """A federation object model. Handles count from 1: the class with handle h is `objects[h - 1]`."""

    objects: tuple[Class, ...]
    attributes: tuple[ClassMember, ...]
    interactions: tuple[Class, ...]
    parameters: tuple[ClassMember, ...]
    names: Map[str, int]
    """Handles: "o:" and the name of an object class, "i:" and that of an interaction class, "d:" of a dimension."""
    privilege: int
    """Handle of HLAprivilegeToDeleteObject."""
    digest: str
    """The same for models that say the same."""
    layers: Layers = ()
    """The modules that it was read from, by name: those of its creation, and each addition."""
    rates: Map[str, float] = Map()
    """Update rates by name: so many a second at most; 0.0: all."""
    dimensions: tuple[Dimension, ...] = ()

    def object_class(self, name: str) -> int:
        """Handle of an object class by its name, with or without HLAobjectRoot. Raises NameNotFound."""
        return self._class("o:", OBJECT_ROOT, name, "object class")

    def interaction_class(self, name: str) -> int:
        """Handle of an interaction class by its name, with or without HLAinteractionRoot. Raises NameNotFound."""
        return self._class("i:", INTERACTION_ROOT, name, "interaction class")

    def attribute(self, cls: int, name: str) -> int:
        """Handle of an attribute of an object class, by name. Raises NameNotFound."""
        return _member(self.objects[cls - 1], self.attributes, name, "attribute")

    def parameter(self, cls: int, name: str) -> int:
        """Handle of a parameter of an interaction class, by name. Raises NameNotFound."""
        return _member(self.interactions[cls - 1], self.parameters, name, "parameter")

    def dimension(self, name: str) -> int:
        """Handle of a dimension by its name. Raises NameNotFound."""
        return self._class("d:", "", name, "dimension")

    def codec(self, data_type: str) -> Encoding:
        """Encoding of a data type of the model, or of the standard: `fom.codec("SpatialStruct").decode(value)`. Raises
        NameNotFound, ErrorReadingFom for one whose encoding is not known."""
        return types_of(*self.modules).layout(data_type)

    @property
    def modules(self) -> tuple[Module, ...]:
        """All that it was read from, by name."""
        return tuple(module for layer in self.layers for module in layer)

    def _class(self, kind: str, root: str, name: str, what: str) -> int:
        found = self.names.get(kind + name) or self.names.get(f"{kind}{root}.{name}")
        if found is None:
            known = sorted(each[2:] for each in self.names if each.startswith(kind))
            raise NameNotFound(f"no {what} {name[:200]!r} in the object model", hint=_meant(name, known))
        return found


def _member(cls: Class, members: tuple[ClassMember, ...], name: str, what: str) -> int:
    for handle in cls.members:
        if members[handle - 1].name == name:
            return handle
    known = sorted(members[handle - 1].name for handle in cls.members)
    raise NameNotFound(f"{cls.name} has no {what} {name[:200]!r}", hint=_meant(name, known))


def _meant(name: str, known: list[str]) -> str:
    """Hint at the known name that was meant, also without the classes above it or in other letters."""
    forms = {each.rpartition(".")[2].lower(): each for each in known} | {each.lower(): each for each in known}
    near = near_name(name.lower(), forms, 0.7)
    return f"Did you mean {forms[near]}?" if near else near_hint(name, known)


def object_class(fom: Fom, cls: int) -> Class:
    """Raises InvalidObjectClassHandle."""
    return _class_at(fom.objects, cls, "object class", InvalidObjectClassHandle)


def interaction_class(fom: Fom, cls: int) -> Class:
    """Raises InvalidInteractionClassHandle."""
    return _class_at(fom.interactions, cls, "interaction class", InvalidInteractionClassHandle)


def dimension_at(fom: Fom, dimension: int) -> Dimension:
    """Raises InvalidDimensionHandle."""
    return _class_at(fom.dimensions, dimension, "dimension", InvalidDimensionHandle)


def _class_at(classes: tuple[T, ...], handle: int, what: str, error: type[RtiError]) -> T:
    if not 0 < handle <= len(classes):
        hint = f"Take get_{what.replace(' ', '_')}_handle"
        raise error(f"no {what} has the handle {handle}", hint=hint, handle=handle)
    return classes[handle - 1]


def update_rate(fom: Fom, name: str) -> float:
    """The number a second at most; 0.0: all (clause 10.13). Raises InvalidUpdateRateDesignator."""
    if name not in fom.rates:
        hint = near_hint(name, sorted(fom.rates))
        raise InvalidUpdateRateDesignator(f"no update rate {name[:200]!r} in the object model", hint=hint)
    return fom.rates[name]


def checked_attributes(known: Class, attributes: tuple[int, ...]) -> tuple[int, ...]:
    """Sorted, each once. Raises AttributeNotDefined."""
    if len(attributes) == 1 and attributes[0] in known.members:
        return attributes
    wanted = set(attributes)
    if not wanted <= _members(known.members):
        wrong = min(wanted - _members(known.members))
        raise AttributeNotDefined(
            f"{known.name} has no attribute with the handle {wrong}", hint="Take get_attribute_handle", handle=wrong
        )
    return tuple(sorted(wanted))


types_of = lru_cache(maxsize=8)(datatypes.parsed)
"""Data types of modules; an RTI reads them for its management object model alone."""


@lru_cache(maxsize=1024)
def _members(members: tuple[int, ...]) -> frozenset[int]:
    return frozenset(members)


class _Said(NamedTuple):
    """A module's words on a class."""

    members: dict[str, ClassMember]
    order: Order | None
    where: str
    transportation: int = RELIABLE
    is_adding: bool = False
    """A module of IEEE 1516.2-2025, which may add members to a class."""
    dimensions: tuple[str, ...] = ()
    layer: int = 0
    """The addition with which it came; 0: it was there at the creation."""
    since: Map[str, int] = Map()
    """The same of its members; without those of the creation."""


class _Source(NamedTuple):
    """A module that is read."""

    module: str
    is_adding: bool
    layer: int


_Sayings = dict[str, list[_Said]]
_Roots = list[tuple[int, str, Element]]
"""Layer, name and content of each module."""


def parsed(*modules: tuple[str, bytes], added: Sequence[Sequence[tuple[str, bytes]]] = ()) -> Fom:
    """The model that modules make together, in whichever order; each with its name, for messages. `added`: the modules
    of each addition, in the order of these. Raises ErrorReadingFom, InconsistentFom."""
    layers = tuple(tuple(sorted(Module(*module) for module in each)) for each in (modules, *added))
    is_small = sum(len(module.data) for each in layers for module in each) <= KEPT_BYTES
    return _parsed_once(layers) if is_small else _parsed(layers)


def _parsed(layers: Layers) -> Fom:
    objects: _Sayings = {OBJECT_ROOT: [_Said({}, None, "the standard")]}
    interactions: _Sayings = {INTERACTION_ROOT: [_Said({}, None, "the standard")]}
    roots = [(layer, name, root_of(name, data)) for layer, each in enumerate(layers) for name, data in each]
    for layer, name, root in roots:
        _read_module(_Source(name, is_of_2025(root), layer), root, objects, interactions)
    check([(name, root) for _, name, root in roots])
    sayings = [each for said in (*objects.values(), *interactions.values()) for each in said]
    dimensions = _dimensions(roots, sayings)
    return _made(_agreed(objects), _agreed(interactions), dimensions, _rates(roots))._replace(layers=layers)


_parsed_once = lru_cache(maxsize=8)(_parsed)
"""Small models: an RTI, its federates and bridges of one process read the same one."""


def _rates(roots: _Roots) -> dict[str, float]:
    """The update rates of all modules (IEEE 1516.2-2010, 4.10)."""
    found: dict[str, float] = {}
    tables = [(module, table) for _, module, root in roots for table in children(root, "updateRates")]
    for module, row in [(module, row) for module, table in tables for row in children(table, "updateRate")]:
        name, said = text_of(row, "name"), text_of(row, "rate")
        what = f"{module}:{row.sourceline}: the update rate {name[:100]!r}"
        if not name or not re.fullmatch(r"\d{1,9}(\.\d{0,9})?", said):
            raise ErrorReadingFom(f"{what} is {said[:100]!r}", hint="Name it, and give a number a second")
        if found.setdefault(name, float(said)) != float(said):
            raise InconsistentFom(f"{what} is another one in another module", hint="Say the same in both")
    return found


def _read_module(source: _Source, root: Element, objects: _Sayings, interactions: _Sayings) -> None:
    if local_name(root) != "objectModel":
        raise ErrorReadingFom(
            f"{source.module} is not a module: its root is {local_name(root)}, not objectModel",
            hint="Give a file in OMT XML",
            file=source.module,
        )
    for part, kind, member, said in (
        ("objects", "objectClass", "attribute", objects),
        ("interactions", "interactionClass", "parameter", interactions),
    ):
        for table in children(root, part):
            for each in children(table, kind):
                _read_class(source, each, (kind, member), "", said)


def _read_class(source: _Source, element: Element, kinds: tuple[str, str], above: str, said: _Sayings) -> None:
    (module, is_adding, layer), (kind, member) = source, kinds
    where = f"{module}:{element.sourceline}"
    name = above + ("." if above else "") + _name_of(element, where)
    if name.count(".") >= DEPTH_MOST or len(said) >= CLASSES_MOST:
        raise ErrorReadingFom(
            f"{where}: more than {CLASSES_MOST:,} classes, or classes nested more than {DEPTH_MOST} deep",
            hint="Split the model",
        )
    if not above and name not in said:
        raise ErrorReadingFom(
            f"{where}: {name} is at the top level",
            hint=f"Nest it in {next(iter(said))}, as all classes are",
            file=module,
        )
    members = {}
    for each in children(element, member):
        place = f"{module}:{each.sourceline}"
        order = _order(each, place) or "receive"
        one = ClassMember(
            _name_of(each, place), text_of(each, "dataType"), order, _transportation(each), _dimensions_of(each)
        )
        if one.name in members:
            raise InconsistentFom(f"{place}: {name} has {one.name} twice", hint="Leave one", file=module)
        members[one.name] = one
    made = _Said(members, _order(element, where), where, _transportation(element), is_adding, _dimensions_of(element),
                 layer)  # fmt: skip
    said.setdefault(name, []).append(made)
    for each in children(element, kind):
        _read_class(source, each, kinds, name, said)


def _agreed(said: _Sayings) -> dict[str, _Said]:
    """The modules' words on each class, together. The root has its privilege whoever leaves it out, and what the others
    of its attributes are is a question apart: the standard's own module speaks of the privilege alone."""
    found = {}
    for name in sorted(said):
        since = {PRIVILEGE: 0} if name == OBJECT_ROOT else {}
        for each in said[name]:
            since = dict.fromkeys(each.members, each.layer) | since
        privileges = [each._replace(members={PRIVILEGE: each.members.pop(PRIVILEGE)}) for each in said[name]
                      if name == OBJECT_ROOT and PRIVILEGE in each.members]  # fmt: skip
        found[name] = _same(name, said[name])
        if name == OBJECT_ROOT:
            privilege = _same(name, privileges).members if privileges else {PRIVILEGE: _UNSAID}
            found[name] = found[name]._replace(members=found[name].members | privilege)
        layer = min(each.layer for each in said[name])
        found[name] = found[name]._replace(layer=layer, since=Map(filter(itemgetter(1), since.items())))
    return found


def _same(name: str, said: list[_Said]) -> _Said:
    """Modules speak of a class as the others do, or without members (clause 4.1.4). Those of 2025 may add some."""
    first, *others = sorted([each for each in said if each.members] or said, key=attrgetter("is_adding"))
    for each in others:
        differs = {one for one, _ in first.members.items() ^ each.members.items()}
        if differs and (not each.is_adding or differs & first.members.keys() & each.members.keys()):
            _refuse(name, first, each, differs)
        first = first._replace(members=first.members | each.members)
        if first.order is None:
            first = first._replace(order=each.order)
        elif "." in name and each.order not in (None, first.order):  # what a root's is makes no difference
            _refuse(name, first, each, {"order"})
    dimensions = tuple(sorted({name for each in said for name in each.dimensions}))
    return first._replace(transportation=max(each.transportation for each in said), dimensions=dimensions)


def _refuse(name: str, one: _Said, other: _Said, differs: set[str]) -> NoReturn:
    raise InconsistentFom(
        f"{one.where} and {other.where} say different things of {name}: {', '.join(sorted(differs)[:5])}",
        hint="Say the same in both, or leave the members out in one",
    )


def _made(
    objects: dict[str, _Said],
    interactions: dict[str, _Said],
    dimensions: tuple[Dimension, ...],
    rates: dict[str, float],
) -> Fom:
    if sum(len(each.members) for said in (objects, interactions) for each in said.values()) > MEMBERS_MOST:
        raise ErrorReadingFom(f"more than {MEMBERS_MOST:,} attributes and parameters", hint="Split the model")
    object_classes, attributes = _numbered(objects)
    interaction_classes, parameters = _numbered(interactions)
    names = Map(
        {f"o:{each.name}": each.handle for each in object_classes}
        | {f"i:{each.name}": each.handle for each in interaction_classes}
    )
    privilege = next(n for n, each in enumerate(attributes, 1) if each.name == PRIVILEGE)
    names = names.update({f"d:{each.name}": handle for handle, each in enumerate(dimensions, 1)})
    said = [ClassMember(PRIVILEGE) if each is _UNSAID else each for each in attributes]  # saves are of that digest
    told = repr((object_classes, tuple(said), interaction_classes, parameters, *sorted(rates.items()), dimensions))
    digest = hashlib.sha256(told.encode()).hexdigest()[:32]
    return Fom(object_classes, attributes, interaction_classes, parameters, names, privilege, digest,
               rates=Map(rates), dimensions=dimensions)  # fmt: skip


def _dimensions(roots: _Roots, sayings: list[_Said]) -> tuple[Dimension, ...]:
    """Dimensions of all modules, and those that are named here, and the standard's or of a module that is not there."""
    found: dict[str, int] = {}
    layers: dict[str, int] = {}
    for each in sorted(sayings, key=attrgetter("layer")):
        for names in (each.dimensions, *(member.dimensions for member in each.members.values())):
            layers = dict.fromkeys(names, each.layer) | layers
    for layer, module, root in roots:
        for row in (row for table in children(root, "dimensions") for row in children(table, "dimension")):
            name, said = text_of(row, "name"), text_of(row, "upperBound")
            upper = min(int(said), DIMENSION_MOST) if said.isdecimal() else DIMENSION_MOST
            layers[name] = min(layer, layers.get(name, layer))
            if found.setdefault(name, upper) != upper:
                where = f"{module}:{row.sourceline}"
                raise InconsistentFom(f"{where}: {name} has another upper bound elsewhere", hint="Say the same in both")
    ordered = sorted(layers, key=lambda name: (layers[name], name))
    return tuple(Dimension(name, found.get(name, DIMENSION_MOST)) for name in ordered)


def _numbered(said: dict[str, _Said]) -> tuple[tuple[Class, ...], tuple[ClassMember, ...]]:
    """Classes and members with their handles; a class above another one comes before it."""
    ordered = sorted(
        (each.since.get(member, 0), name, member) for name, each in said.items() for member in each.members
    )
    members = tuple(said[name].members[member] for _, name, member in ordered)
    own: dict[str, list[int]] = defaultdict(list)
    for number, (_, name, _) in enumerate(ordered, 1):
        own[name].append(number)
    classes: dict[str, Class] = {}
    for handle, name in enumerate(sorted(said, key=lambda name: (said[name].layer, name)), 1):
        parent = classes.get(name.rpartition(".")[0])
        inherited = parent.members if parent else ()
        taken = {members[each - 1].name for each in inherited}
        if twice := sorted(taken.intersection(said[name].members)):
            raise InconsistentFom(
                f"{said[name].where}: {name} has {twice[0]}, which a class above it has", hint="Leave one"
            )
        above = (handle, *(parent.above if parent else ()))
        members_of = tuple(sorted((*inherited, *own[name])))
        classes[name] = Class(handle, name, above, members_of, said[name].order or "receive",
                              said[name].transportation, said[name].dimensions)  # fmt: skip
    return tuple(classes.values()), members


def _name_of(element: Element, where: str) -> str:
    name = text_of(element, "name")
    if not _NAME.fullmatch(name):
        raise ErrorReadingFom(
            f"{where}: {name[:100]!r} is not a name of a {local_name(element)}",
            hint="A name is a letter, then letters, digits, _ and -, 255 at most",
        )
    return name


def _dimensions_of(element: Element) -> tuple[str, ...]:
    rows = (row for table in children(element, "dimensions") for row in children(table, "dimension"))
    return tuple(sorted({(each.text or "").strip()[:255] for each in rows} - {"", "NA", "N/A"}))


def _transportation(element: Element) -> int:
    return BEST_EFFORT if text_of(element, "transportation") == "HLAbestEffort" else RELIABLE


def _order(element: Element, where: str) -> Order | None:
    said = text_of(element, "order")
    if said.lower() in ("", "na"):
        return None
    if said.lower() not in ("receive", "timestamp"):
        raise ErrorReadingFom(f"{where}: no such order: {said[:100]!r}", hint="There are Receive and TimeStamp")
    return "receive" if said.lower() == "receive" else "timestamp"
