"""Things that federations know by other names, in other units and encodings, or not at all: the bridge's view of two
object models, compiled from the rules of its file.

Pure; made once, and constant. `side` is always the one where something comes from, 0 or 1.

Rules:
- A class goes to the class that its rule names, else to where a rule of a class above it leads, else to what is called
  the same. One that goes nowhere is known to the bridge as the nearest class above it that does.
- Rules of attributes count for classes below, also when these are called otherwise there: what is hidden in a class is
  hidden in all below it. A class that is hidden below one that is not is asked for all the same, so that its objects
  are known as what they are, and left out.
- What is not in the other model is not there; what a rule names has to be, and two of ours can't be one of theirs.
- Encodings and units are those of the data types of the models, unless the rule says them. Of what has other ones there
  values are changed also without a rule.
- HLAmanager, and what stands below it, is each RTI's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from immutables import Map

from jbi_pubsub.bridge.elements import ElementChange, ElementRule, change_of, changed, codec_of
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.hla.datatypes import DataType, Types
from jbi_pubsub.hla.execution import Values
from jbi_pubsub.hla.fom import INTERACTION_ROOT, OBJECT_ROOT, Class, ClassMember, Fom

from .fields import FieldChanges, says
from .rules import ClassRule, InteractionRule, MemberRule, Rest, Way

MANAGER: Final = ("HLAobjectRoot.HLAmanager", "HLAinteractionRoot.HLAmanager")


class SideModel(NamedTuple):
    """Model of a federation."""

    name: str
    """Name of the side, for messages."""
    fom: Fom
    types: Types = Types({}, {})


class Limit(NamedTuple):
    """Limit of a rate: as many a second, and as many at once. `key`: the class whose rule says so, for all below it."""

    key: int
    rate: float
    burst: float


class Mapped(NamedTuple):
    """An attribute or parameter on its way."""

    target: int
    change: ElementChange | None = None
    says: str = ""
    """Description of the change, for people."""


class Course(NamedTuple):
    """A class on its way."""

    target: int
    """The class there; 0: it is hidden, and asked for to be left out."""
    members: Map[int, Mapped]
    back: Map[int, int]
    """Members there, and what they are here."""
    limit: Limit | None = None


Courses = Map[int, Course]
NOWHERE: Final = Course(0, Map(), Map())
"""Course of a class that does not go at all."""


class Translation(NamedTuple):
    """See the module."""

    foms: tuple[Fom, Fom]
    objects: tuple[Courses, Courses]
    """Courses of each side, by the handle of a class there."""
    interactions: tuple[Courses, Courses]

    # -- what surrogates declare ---------------------------------------------------------------------------------

    def subscribed(self, side: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Object classes and attributes that the surrogate on a side subscribes to, subclasses first: an instance that
        is there is discovered as one of the class that is subscribed to at that moment, and stays so."""
        return tuple((cls, tuple(sorted(one.members))) for cls, one in sorted(self.objects[side].items(), reverse=True))

    def published(self, side: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Object classes and attributes that the surrogate on a side publishes: those of the other side come as."""
        found: dict[int, set[int]] = {}
        for one in self.objects[1 - side].values():
            if one.target:
                found.setdefault(one.target, set()).update(one.back)
        return tuple((cls, tuple(sorted(found[cls]))) for cls in sorted(found))

    def heard(self, side: int) -> tuple[int, ...]:
        """Interaction classes that the surrogate on a side subscribes to, subclasses first."""
        return tuple(sorted(self.interactions[side], reverse=True))

    def sent(self, side: int) -> tuple[int, ...]:
        """Interaction classes that it publishes."""
        return tuple(sorted({one.target for one in self.interactions[1 - side].values() if one.target}))

    # -- what goes -----------------------------------------------------------------------------------------------

    def object_class(self, side: int, cls: int) -> int:
        """The class there; 0: it has none."""
        return self.objects[side].get(cls, NOWHERE).target

    def attributes(self, side: int, cls: int, attributes: Iterable[int]) -> tuple[int, ...]:
        """Those of a class, as they are there; what has no mapping is left out."""
        one = self.objects[side].get(cls, NOWHERE)
        return tuple(sorted(one.members[each].target for each in attributes if one.target and each in one.members))

    def attributes_back(self, side: int, cls: int, attributes: Iterable[int]) -> tuple[int, ...]:
        """Those of the other side, as they are in a class of this side."""
        back = self.objects[side].get(cls, NOWHERE).back
        return tuple(sorted(back[each] for each in attributes if each in back))

    def values(self, side: int, cls: int, values: Values) -> tuple[Values, int]:
        """Attribute values as they are there, and how many were left out: hidden, without a mapping, or values that
        can't be decoded or do not fit."""
        return _values(self.objects[side].get(cls, NOWHERE), values)

    def interaction(self, side: int, cls: int, parameters: Values) -> tuple[int, Values, int]:
        """The class there, 0 for none, its parameters, and how many were left out."""
        one = self.interactions[side].get(cls, NOWHERE)
        return (one.target, *_values(one, parameters))

    def limit(self, side: int, cls: int, *, of_interaction: bool = False) -> Limit | None:
        """Limit of updates of a class."""
        return (self.interactions if of_interaction else self.objects)[side].get(cls, NOWHERE).limit


def _values(one: Course, values: Values) -> tuple[Values, int]:
    if not one.target:
        return (), len(values)
    found = []
    for member, data in values:
        mapped = one.members.get(member)
        if mapped is not None and (there := changed(mapped.change, data)) is not None:
            found.append((mapped.target, there))
    return tuple(sorted(found)), len(values) - len(found)


def identity(fom: Fom) -> Translation:
    """Translation of two federations of one model, where all goes as it is."""
    one, other = SideModel("0", fom), SideModel("1", fom)
    return translation(one, other, Way("0", "1"), Way("1", "0"))


def translation(one: SideModel, other: SideModel, forth: Way | None, back: Way | None) -> Translation:
    """From the models and the rules of both directions, None for one that does not go at all. Raises
    ConfigurationError, which says what is wrong with which rule; ErrorReadingFom."""
    ways = ((one, other, forth), (other, one, back))
    objects = tuple(_Compiling(here, there, way, False).courses() if way else Map() for here, there, way in ways)
    interactions = tuple(_Compiling(here, there, way, True).courses() if way else Map() for here, there, way in ways)
    return Translation((one.fom, other.fom), (objects[0], objects[1]), (interactions[0], interactions[1]))


class _Compiling:
    """Compiler of the object classes, or the interaction classes, of one direction."""

    def __init__(self, here: SideModel, there: SideModel, way: Way, of_interactions: bool) -> None:
        self._here, self._there, self._way = here, there, way
        self._kind = "interaction class" if of_interactions else "object class"
        self._member = "parameter" if of_interactions else "attribute"
        self._root = INTERACTION_ROOT if of_interactions else OBJECT_ROOT
        self._classes = here.fom.interactions if of_interactions else here.fom.objects
        self._members = here.fom.parameters if of_interactions else here.fom.attributes
        self._classes_there = there.fom.interactions if of_interactions else there.fom.objects
        self._members_there = there.fom.parameters if of_interactions else there.fom.attributes
        self._rules = self._ruled(way.interactions if of_interactions else way.classes)
        self._by_member = self._element_rules()

    def courses(self) -> Courses:
        """By class."""
        found: dict[int, Course] = {}
        for cls in self._classes:  # sorted by name: a class above comes first
            if cls.name == self._root or cls.name.startswith(MANAGER):
                continue
            course = self._course(cls)
            if course is not None:
                found[cls.handle] = course
            elif self._is_hidden(cls) and (above := self._nearest(cls.above[1:], found)) is not None:
                found[cls.handle] = above._replace(target=0, back=Map(), limit=None)
        return Map({
            handle: one for handle, one in found.items()
            if one.target or self._nearest(self._classes[handle - 1].above[1:], found) is not None
        })  # fmt: skip

    # -- classes -------------------------------------------------------------------------------------------------

    def _ruled(self, said: Sequence[ClassRule | InteractionRule]) -> dict[int, ClassRule | InteractionRule]:
        rules: dict[int, ClassRule | InteractionRule] = {}
        for rule in said:
            handle = self._class(self._here, self._classes, rule.name)
            if handle in rules:
                raise self._wrong(rule.name, "has two rules", "Make one of them")
            if rule.burst is not None and rule.rate is None:
                raise self._wrong(rule.name, "has a burst without a rate", "rate = 10.0 is ten a second")
            if rule.hide and (rule.target or rule.rate is not None or rule.elements):
                raise self._wrong(rule.name, "is hidden, and has rules for what goes", "Leave one of them out")
            rules[handle] = rule
        return rules

    def _class(self, model: SideModel, classes: Sequence[Class], name: str) -> int:
        for cls in classes:
            if name in (cls.name, cls.name.removeprefix(f"{self._root}.")):
                return cls.handle
        known = [cls.name.removeprefix(f"{self._root}.") for cls in classes if cls.name != self._root]
        raise ConfigurationError(f"side {model.name} has no {self._kind} {name[:200]!r}", hint=near_hint(name, known))

    def _course(self, cls: Class) -> Course | None:
        """None: it goes nowhere."""
        _, rule = self._ruling(cls)
        target = 0 if self._is_hidden(cls) else self._target(cls)
        if not target:
            return None
        members: dict[int, Mapped] = {}
        taken: dict[int, int] = {}
        for handle in cls.members:
            mapped = self._mapped(cls, handle, self._classes_there[target - 1], self._rest(rule))
            if mapped is None:
                continue
            if mapped.target in taken:
                names = [self._members[each - 1].name for each in (taken[mapped.target], handle)]
                there = self._members_there[mapped.target - 1].name
                raise self._wrong(cls.name, f"has {' and '.join(names)}, which both are {there} there", "Hide one")
            members[handle], taken[mapped.target] = mapped, handle
        return Course(target, Map(members), Map(taken), self._limit(cls))

    def _target(self, cls: Class) -> int:
        """Handle of the class there; 0: none."""
        handle, rule = self._ruling(cls)
        if rule is None:
            return self._same(self._short(cls)) if self._way.rest == "same" else 0
        below = cls.name.removeprefix(self._classes[handle - 1].name)
        name = rule.target or self._short(self._classes[handle - 1])
        return self._same(name + below) if below else self._class(self._there, self._classes_there, name)

    def _same(self, name: str) -> int:
        names = (name, f"{self._root}.{name}")
        return next((cls.handle for cls in self._classes_there if cls.name in names), 0)

    def _short(self, cls: Class) -> str:
        return cls.name.removeprefix(f"{self._root}.")

    def _ruling(self, cls: Class) -> tuple[int, ClassRule | InteractionRule | None]:
        """The nearest class that has a rule, and the rule."""
        handle = next((each for each in cls.above if each in self._rules), 0)
        return handle, self._rules.get(handle)

    def _is_hidden(self, cls: Class) -> bool:
        _, rule = self._ruling(cls)
        return rule is not None and rule.hide

    def _rest(self, rule: ClassRule | InteractionRule | None) -> Rest:
        return rule.rest if rule is not None and rule.rest is not None else self._way.rest

    def _limit(self, cls: Class) -> Limit | None:
        handle, rule = self._ruling(cls)
        if rule is None or rule.rate is None:
            return None
        return Limit(handle, rule.rate, rule.burst or max(1.0, rule.rate))

    def _nearest(self, above: Sequence[int], found: dict[int, Course]) -> Course | None:
        return next((found[handle] for handle in above if handle in found and found[handle].target), None)

    # -- what classes have ---------------------------------------------------------------------------------------

    def _element_rules(self) -> dict[tuple[int, int], MemberRule]:
        """By class whose rule it stands in, and member."""
        found = {}
        for handle, rule in self._rules.items():
            cls = self._classes[handle - 1]
            own = {self._members[each - 1].name: each for each in cls.members}
            for name, element in rule.elements.items():
                if name not in own:
                    raise self._wrong(rule.name, f"has no {self._member} {name[:200]!r}", near_hint(name, sorted(own)))
                found[handle, own[name]] = element
        return found

    def _mapped(self, cls: Class, handle: int, there: Class, rest: Rest) -> Mapped | None:
        """None: it does not go. The right to delete goes with its class."""
        if self._member == "attribute" and handle == self._here.fom.privilege:
            return Mapped(self._there.fom.privilege)
        rule = next((self._by_member[each, handle] for each in cls.above if (each, handle) in self._by_member), None)
        if (rule is None and rest == "hide") or (rule is not None and rule.hide):
            return None
        member = self._members[handle - 1]
        name = rule.name if rule is not None and rule.name else member.name
        known = {self._members_there[each - 1].name: each for each in there.members}
        target = known.get(name)
        if target is None:
            if (cls.handle, handle) not in self._by_member:  # not said of this very class
                return None
            why = f"{member.name}: {there.name} of side {self._there.name} has no {self._member} {name[:200]!r}"
            raise self._wrong(cls.name, why, near_hint(name, sorted(known)))
        try:
            change, says = self._change(rule or MemberRule(), member, self._members_there[target - 1])
        except JbiError as exc:
            hint = f"{exc.hint}. Or leave it out: {self._member}.{member.name} = {{ hide = true }}"
            raise self._wrong(cls.name, f"{member.name}: {exc.message}", hint.removeprefix(". ")) from exc
        return Mapped(target, change, says)

    def _change(self, rule: MemberRule, here: ClassMember, there: ClassMember) -> tuple[ElementChange | None, str]:
        types = (rule.type, rule.type) if isinstance(rule.type, str) else rule.type
        source = _type_of(types[0], self._here.types, here)
        target = _type_of(types[1], self._there.types, there)
        said = rule.said
        if source and target and source.codec.kind == target.codec.kind == "structure" and said == ElementRule():
            fields = FieldChanges({path: each.said for path, each in rule.field.items()})
            return fields.change(source, target), "; ".join(fields.says)
        if rule.field:
            raise ConfigurationError("rules for fields of a value that is not a record", hint="Remove them")
        if not said.unit and source and target and source.unit and target.unit and rule.table is None:
            said = said._replace(unit=(source.unit, target.unit))
        change = change_of(said, source and source.codec, target and target.codec)
        return change, says(said, change) if change is not None else ""

    def _wrong(self, name: str, why: str, hint: str) -> ConfigurationError:
        return ConfigurationError(f"{self._kind} {name[:200]} of side {self._here.name} {why}", hint=hint)


def _type_of(name: str, types: Types, member: ClassMember) -> DataType | None:
    """The data type that a rule names, one of the model's or the standard's; else the member's own."""
    if not name:
        return types.get(member.data_type)
    return types.get(name) or DataType(codec_of(name))
