"""Structured events (paper 4(1)): header, quality of service, a body that constraints can ask of, and a remainder that
nobody looks into, as metadata and payload of an information object. Pure. core/constraint/to_xpath.py has the form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.core.constraint.expression import WORDS
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import ObjectAttributes
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xml import parse_metadata

from .service_type import PROPERTY_NAME, PropertyValue

SCHEMA: Final = Path(__file__).parent / "data" / "event.xsd"
"""XML Schema of all these types."""
MONITORING: Final = "discover.Monitoring"
STEERING: Final = "discover.Steering"
COLLABORATION: Final = "discover.Collaboration"
CONSUMED: Final = "discover.Consumed"
"""Type of what a client says that it has consumed."""
_UNSAID: Final = msgspec.structs.asdict(ObjectAttributes())
PROPERTIES_MOST: Final = 1_000
"""Properties of a body, or of a quality of service."""


@dataclass(frozen=True)
class StructuredEvent:
    """An event: `domain` is the application's name (of a collaboration its group), `type` the interaction, `name` the
    instance; `qos` holds for it alone: `priority`, `timeout` and `reliable` are for servers, see ObjectAttributes;
    `remainder` is any data."""

    domain: str
    type: str
    name: str = ""
    body: Mapping[str, PropertyValue] = field(default_factory=dict)
    qos: Mapping[str, PropertyValue] = field(default_factory=dict)
    remainder: bytes = b""

    def metadata(self) -> bytes:
        """As XML. Raises MetadataError for a name that no constraint can say, and a value that is no property's."""
        event = etree.Element("event")
        header = etree.SubElement(event, "header")
        try:
            for part in ("domain", "type", "name"):
                etree.SubElement(header, part).text = getattr(self, part)
            if self.qos:
                _write(etree.SubElement(event, "qos"), self.qos)
            _write(etree.SubElement(event, "body"), self.body)
        except ValueError as exc:  # lxml: control characters
            raise MetadataError(f"event of {self.domain[:80]}: {exc}", hint="XML has no control characters") from exc
        found: bytes = etree.tostring(event)
        return found

    def attributes(self) -> ObjectAttributes | None:
        """Part of `qos` that servers honour: priority, timeout and reliable; None where it says nothing of these.
        Raises MetadataError for other values than they have."""
        said = {name: self.qos[name] for name in ObjectAttributes.__struct_fields__ if name in self.qos}
        if not said:
            return None
        try:
            if any(said.get(name) == 0 for name in ("priority", "timeout")):  # 0 is what an object has that says none
                raise msgspec.ValidationError("0")
            return converted(list({**_UNSAID, **said}.values()), ObjectAttributes)
        except msgspec.ValidationError as exc:
            raise MetadataError(
                f"event of {self.domain[:80]}: its qos is {said!r:.200}",
                hint="priority is 1 (least) to 5, timeout seconds, more than 0, reliable a truth value",
            ) from exc

    @classmethod
    def read(cls, metadata: bytes, remainder: bytes = b"") -> StructuredEvent:
        """The event of an object's metadata and payload. Raises MetadataError."""
        event = parse_metadata(metadata)
        header, body = event.find("header"), event.find("body")
        if header is None or body is None:
            raise MetadataError("an event lacks its header or body", hint="docs/domains.md has its form")
        qos = event.find("qos")
        domain, type_, name = (header.findtext(part, "") for part in ("domain", "type", "name"))
        return cls(domain, type_, name, _read(body), _read(qos) if qos is not None else {}, remainder)


def _write(parent: etree._Element, values: Mapping[str, PropertyValue]) -> None:
    if len(values) > PROPERTIES_MOST:
        raise MetadataError(f"an event with {len(values):,} properties", hint=f"At most {PROPERTIES_MOST:,}")
    for name, value in values.items():
        if not PROPERTY_NAME.fullmatch(name) or name in WORDS:
            raise MetadataError(f"property {name[:80]!r} has a name that no constraint can say")
        made = etree.SubElement(parent, name)
        if isinstance(value, bool):
            made.set("boolean", str(value).lower())
        elif isinstance(value, int | float) and math.isfinite(value):
            made.set("number", repr(value))
        elif isinstance(value, str):
            made.set("string", value)
        elif isinstance(value, tuple) and all(isinstance(each, str) for each in value):
            made.set("sequence", "string")
            for each in value:
                etree.SubElement(made, "item").text = each
        else:
            raise MetadataError(
                f"property {name} is {value!r:.80}", hint="Numbers, texts, truth values, tuples of texts"
            )


def _read(parent: etree._Element) -> dict[str, PropertyValue]:
    if len(parent) > PROPERTIES_MOST:
        raise MetadataError(f"an event with {len(parent):,} properties", hint=f"At most {PROPERTIES_MOST:,}")
    return {str(each.tag): value for each in parent.iterchildren("*") if (value := _value(each)) is not None}


def _value(of: etree._Element) -> PropertyValue | None:
    """Value of a property; None: it is a complex one, which only its application reads."""
    number, string, boolean = of.get("number"), of.get("string"), of.get("boolean")
    if number is not None:
        return _number(number)
    if string is not None:
        return string
    if boolean is not None:
        return boolean == "true"
    return tuple(each.text or "" for each in of.iterchildren("item")) if of.get("sequence") is not None else None


def _number(text: str) -> int | float:
    try:
        return int(text) if text.lstrip("-").isdigit() and len(text) < 20 else float(text)
    except ValueError as exc:
        raise MetadataError(f"a property is the number {text[:80]!r}") from exc


def quoted(text: str) -> str:
    """A text as constraints have it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
