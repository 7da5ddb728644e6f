"""Fields of records and arrays on their way to another federation: each in its unit and encoding there, and coarser
where a rule says so. What is changed is a value's scalars; a record and an array are on both sides what they are here.

Compiled once from the encodings of both sides and the rules by the paths of fields, as `WorldLocation.X`; a path goes
through arrays, to each of their elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jbi_pubsub.bridge.elements import Codec, ElementChange, ElementRule, change_of, value_there
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.hla.datatypes import DataType
from jbi_pubsub.hla.encoding import ElementArray, Encoding, FixedRecord, Padding, Scalar, VariantRecord

Step = Callable[[Any], Any]


class FieldChanges:
    """Compiler of the changes of one attribute or parameter."""

    def __init__(self, rules: Mapping[str, ElementRule]) -> None:
        self._rules, self._left = rules, set(rules)
        self.says: list[str] = []
        """Descriptions, for people, by the paths of the fields."""
        self._paths: set[str] = set()

    def change(self, here: DataType, there: DataType) -> ElementChange | None:
        """None: nothing is to be done. Raises ConfigurationError."""
        assert here.layout is not None and there.layout is not None  # noqa: PT018  # of structures they are known
        step = self._step(here.layout, there.layout, "")
        if self._left:
            path = min(self._left)
            raise ConfigurationError(f"{here.codec.name} has no number or text {path[:200]!r} within",
                                     hint=near_hint(path, sorted(self._paths)))  # fmt: skip
        if step is None and here.codec.form == there.codec.form:
            return None
        decode, act = here.layout.decode, step or _same
        return ElementChange(Codec(here.codec.name, "structure", here.codec.form, lambda data: act(decode(data)),
                                   here.codec.encode), there.codec)  # fmt: skip

    def _step(self, here: Encoding, there: Encoding, path: str) -> Step | None:
        """Change of a value; None: it stays as it is."""
        if isinstance(here, Scalar) and isinstance(there, Scalar):
            return self._scalar((here.codec, there.codec), (here.unit, there.unit), path)
        if isinstance(here, ElementArray) and isinstance(there, ElementArray) and type(here) is type(there):
            if here.coding and there.coding:
                return self._scalar((_text(here), _text(there)), ("", ""), path)
            of = None if here.is_octets or here.coding else self._step(here.of, there.of, path)
            return None if of is None else lambda value: [of(each) for each in value]
        mine, others = _parts(here), _parts(there)
        if type(here) is not type(there) or mine.keys() != others.keys():
            raise ConfigurationError(
                f"{path or here.name} is something else there", hint='type = "bytes" has the bytes go as they are'
            )
        steps = {name: self._step(of, others[name], f"{path}.{name}" if path else name) for name, of in mine.items()}
        acts = {name: step for name, step in steps.items() if step is not None}
        if not acts:
            return None
        return lambda value: {name: acts.get(name, _same)(each) for name, each in value.items()}

    def _scalar(self, codecs: tuple[Codec, Codec], units: tuple[str, str], path: str) -> Step | None:
        """Change of a number, an enumerator or a text. Encodings and units are those here and there."""
        self._paths.add(path)
        self._left.discard(path)
        rule = self._rules.get(path, ElementRule())
        if not rule.unit and rule.table is None and all(units):
            rule = rule._replace(unit=units)
        try:
            change = change_of(rule, *codecs)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{path}: {exc.message}", hint=exc.hint) from exc
        if change is None:
            return None
        self.says.append(f"{path}: {says(rule, change)}")
        if change.source.kind == "enumeration" and change.table is None:
            return lambda value: value_there(change, _enumerator(value))
        return lambda value: value_there(change, value)


def _text(of: ElementArray) -> Codec:
    """Codec of an array of characters."""
    return Codec(of.name, "text", (of.coding,), of.decode, of.encode)


def _enumerator(value: Any) -> str:
    """The value, which is an enumerator; a number without a name here may be another one there. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"no enumerator {value!r}")
    return value


def _same(value: Any) -> Any:
    return value


def _parts(of: Encoding) -> dict[str, Encoding]:
    """Fields of a record, and the discriminant and alternatives of a variant one."""
    if isinstance(of, FixedRecord):
        return {name: each for name, each in of.fields if not isinstance(each, Padding)}
    if isinstance(of, VariantRecord):
        alternatives = (*of.alternatives.values(), of.other)
        return {of.discriminant: of.of} | {name: each for name, each in alternatives if each is not None}
    return {}


def says(rule: ElementRule, change: ElementChange) -> str:
    """Description of a change: units, encodings, what is left."""
    parts = [" to ".join(rule.unit)] if change.line is not None else []
    if change.source.form != change.target.form:
        parts.append(f"{change.source.name} to {change.target.name}")
    if rule.step is not None:
        parts.append(f"steps of {rule.step:g}" + (f" from {rule.origin:g}" if rule.origin else ""))
    if rule.length is not None:
        parts.append(f"{rule.length} characters")
    if rule.table is not None:
        parts.append("by a table: " + ", ".join(f"{key} is {value}" for key, value in sorted(rule.table.items())))
    return "; ".join(parts)
