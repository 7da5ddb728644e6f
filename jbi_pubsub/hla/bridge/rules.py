"""Rules in the file of a bridge between federations, for classes and what they have, one direction at a time."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from jbi_pubsub.bridge.elements import ElementRule
from jbi_pubsub.core.toml import TomlTable

Rest = Literal["same", "hide"]
"""Fate of what no rule names: it goes as what is called the same on the other side, or it does not."""


class FieldRule(TomlTable, frozen=True):
    """`attribute.NAME.field."A.B" = {...}`: of a field of a record, or within one."""

    unit: tuple[str, str] | None = None
    """Units here and there."""
    step: float | None = None
    """The grid that is left of a number, in the unit there."""
    origin: float = 0.0
    """Origin of that grid."""
    length: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Characters of a text that are left."""
    table: dict[str, str | int | float] | None = None
    """Values there, by value here; others are left out."""

    @property
    def said(self) -> ElementRule:
        """The same, as elements have it."""
        return ElementRule(self.unit or (), self.step, self.origin, self.length, self.table)


class MemberRule(FieldRule, frozen=True):
    """`attribute.NAME = {...}` of a class, `parameter.NAME = {...}` of an interaction."""

    name: str = ""
    """Name there; "": the same."""
    hide: bool = False
    """Whether it stays here."""
    type: str | tuple[str, str] = ""
    """Data types here and there, or one for both; "": what the object models say."""
    field: dict[str, FieldRule] = msgspec.field(default_factory=dict)
    """Rules of what is within a record, by path."""


class NamedRule(TomlTable, frozen=True, rename={"target": "to"}):
    """A rule of a class of objects or interactions. It counts for classes below that one too, as far as these have no
    rule of their own."""

    name: str
    """Here."""
    target: str = ""
    """Name there; "": the same."""
    hide: bool = False
    """Neither it nor its objects are known there."""
    rest: Rest | None = None
    """Fate of attributes or parameters that no rule names; None: as the direction says."""
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    """Updates a second that go; more are left out."""
    burst: Annotated[float, msgspec.Meta(ge=1, le=1e9)] | None = None
    """As many at once after a pause; None: a second's."""


class ClassRule(NamedRule, frozen=True):
    """`[[direction.class]]`."""

    elements: dict[str, MemberRule] = msgspec.field(default_factory=dict, name="attribute")
    """Rules of what the class has."""


class InteractionRule(NamedRule, frozen=True):
    """`[[direction.interaction]]`."""

    elements: dict[str, MemberRule] = msgspec.field(default_factory=dict, name="parameter")
    """Rules of what the class has."""


class Way(
    TomlTable, frozen=True, rename={"source": "from", "target": "to", "classes": "class", "interactions": "interaction"}
):
    """`[[direction]]`."""

    source: str
    target: str
    rest: Rest = "same"
    """Fate of classes that no rule names, and of their attributes and parameters."""
    classes: tuple[ClassRule, ...] = ()
    interactions: tuple[InteractionRule, ...] = ()
