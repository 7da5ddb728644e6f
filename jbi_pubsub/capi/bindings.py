"""The XML documents of the API as values: what a sequence attribute, a connection or credentials say, without writing
XML by hand, and without a further library.

`write(value)` is its document, `read(kind, document)` the value of one. A value is checked when it is made from a
document, and its document is valid by the schema that lies in `schemas/`: elements in the order of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from lxml import etree

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xml import Element, parse_metadata, to_bytes

from .errors import InvalidMetadataException

NAMESPACE: Final = "http://gdc4s.com/oim/gemini"
"""Namespace of all documents, and what the prefix `og` stands for unless it is given another meaning."""
SCHEMAS: Final = Path(__file__).parent / "schemas"
"""Where their schemas lie: attributes.xsd, connection.xsd, credentials.xsd, extended_metadata.xsd, predicate.xsd."""
MAX_BYTES: Final = 64 << 10
"""Bytes of a document."""
YEAR_MS: Final = 31_536_000_000

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
DateTime = Annotated[str, msgspec.Meta(pattern=r"^\s*\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?\s*$")]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=YEAR_MS)]
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_CAMEL: Final = re.compile(r"_(.)")

T = TypeVar("T", bound="Document")


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of one element. `element` is its name; a field's element is the field's name in camelCase."""

    element: ClassVar[str] = ""


class ValidationAttribute(Document, frozen=True, kw_only=True):
    """Whether metadata must be well-formed, and valid by the schema that is registered for their type."""

    element: ClassVar[str] = "validationAttribute"
    validate_xml_is_well_formed: bool
    validate_xml_against_schema: bool


class ReliableDeliveryAttribute(Document, frozen=True, kw_only=True):
    """Whether what was under way when the node went away is sent again; `expiration`: ms after which an object that
    still waits is given up, 0: never."""

    element: ClassVar[str] = "reliableDeliveryAttribute"
    reliable: bool
    expiration: Milliseconds = 0


class PersistenceAttribute(Document, frozen=True, kw_only=True):
    """Whether publications are archived."""

    element: ClassVar[str] = "persistenceAttribute"
    persist: bool


class CompressionAttribute(Document, frozen=True, kw_only=True):
    """Whether publications are compressed on their way to the node."""

    element: ClassVar[str] = "compressionAttribute"
    compress: bool


class NamespaceMapping(Document, frozen=True, kw_only=True):
    """A prefix, and the namespace that it stands for."""

    element: ClassVar[str] = "mapping"
    prefix: Text
    uri: Text


class NamespacePrefixesAttribute(Document, frozen=True, kw_only=True):
    """Namespaces that prefixes stand for in the predicate of a sequence."""

    element: ClassVar[str] = "namespacePrefixesAttribute"
    mapping: Annotated[tuple[NamespaceMapping, ...], msgspec.Meta(max_length=100)] = ()


class LocalAttribute(Document, frozen=True, kw_only=True):
    """Whether publications stay at the node, and whether a subscriber wants those of its own node alone."""

    element: ClassVar[str] = "localAttribute"
    local_only: bool


class OwnPublicationsAttribute(Document, frozen=True, kw_only=True):
    """Whether a subscriber gets what its own connection publishes."""

    element: ClassVar[str] = "ownPublicationsAttribute"
    receive_own: bool


class OrderAttribute(Document, frozen=True, kw_only=True):
    """Whether the objects of a publisher have to come in order."""

    element: ClassVar[str] = "orderAttribute"
    in_order: bool


class DurableAttribute(Document, frozen=True, kw_only=True):
    """The name under which a subscription is remembered while its client is away."""

    element: ClassVar[str] = "durableAttribute"
    id: Text


class LatestAttribute(Document, frozen=True, kw_only=True):
    """XPath of a key: of each key the newest object alone."""

    element: ClassVar[str] = "latestAttribute"
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=32_768)]


class InvariantsAttribute(Document, frozen=True, kw_only=True):
    """A metadata document, as text, whose invariant elements hold for all publications of a sequence."""

    element: ClassVar[str] = "invariantsAttribute"
    metadata: Annotated[str, msgspec.Meta(min_length=1)]


class ConnectionDescriptor(Document, frozen=True, kw_only=True):
    """Where to connect. Without `locator` and `group` the configuration of the process says where lookup services are;
    `name` and `location` are of the node (delegate), any without. `timeout`: ms for finding it."""

    element: ClassVar[str] = "connectionDescriptor"
    locator: Annotated[tuple[Text, ...], msgspec.Meta(max_length=100)] = ()
    group: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()
    name: str | None = None
    location: str | None = None
    timeout: Milliseconds | None = None


class Credentials(Document, frozen=True, kw_only=True):
    """Client's identity: a name, which is a claim, or proven by a password; or the folder of a certificate as
    `jbi certs` makes it, which proves it."""

    element: ClassVar[str] = "credentials"
    user: Text | None = None
    password: Text | None = None
    role: Text | None = None
    certificate: Text | None = None

    def __repr__(self) -> str:
        return f"<Credentials of {self.user or self.certificate!r}>"


class InfoObjectType(Document, frozen=True, kw_only=True):
    """The type of an object."""

    element: ClassVar[str] = "InfoObjectType"
    Name: str
    MajorVersion: str
    MinorVersion: str


class NodeAddresses(Document, frozen=True, kw_only=True):
    """Hosts under which the node is reached that an object was published at."""

    element: ClassVar[str] = "NodeAddresses"
    NodeAddress: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()


class BaseObject(Document, frozen=True, kw_only=True):
    """Facts of the platform on an object: lengths in bytes, times as text with their zone (XML Schema's dateTime)."""

    element: ClassVar[str] = "baseObject"
    InfoObjectType: InfoObjectType
    PublicationTime: DateTime
    InfoObjectID: str
    PublisherID: str
    MetadataLength: Annotated[int, msgspec.Meta(ge=0)]
    PayloadLength: Annotated[int, msgspec.Meta(ge=0)]
    NodeID: str | None = None
    NodeAddresses: NodeAddresses | None = None


class ExtendedMetadata(Document, frozen=True, kw_only=True):
    """The platform's part of an object's metadata, as `InfoObject.getExtendedMetadata` gives it."""

    element: ClassVar[str] = "metadata"
    baseObject: BaseObject


def write(value: Document) -> str:
    """The document of a value. Raises InvalidMetadataException for text with a character that XML has not."""
    try:
        return etree.tostring(_element(value), encoding="unicode")
    except ValueError as exc:
        raise InvalidMetadataException(
            f"<{value.element}>: {exc}", hint="No control characters but tab and line ends"
        ) from exc


def read(kind: type[T], document: str) -> T:
    """The value of a document. Raises InvalidMetadataException: malformed, another element, an element that is unknown,
    missing or repeated, a value of the wrong kind."""
    what = f"<{kind.element}> document"
    try:
        root = parse_metadata(
            to_bytes(document), what=what, limit=MAX_BYTES + (1 << 20) * (kind is InvariantsAttribute)
        )
    except JbiError as exc:
        raise InvalidMetadataException(exc.message, hint=exc.hint, **exc.facts) from exc
    if root.tag != f"{{{NAMESPACE}}}{kind.element}":
        raise InvalidMetadataException(
            f"{what}: its element is {str(root.tag)[:100]}", hint=f'It is <{kind.element} xmlns="{NAMESPACE}">'
        )
    try:
        return converted(_plain(root, kind), kind)
    except msgspec.ValidationError as exc:
        raise InvalidMetadataException(f"{what}: {exc}", hint=f"It is {_shape(kind)}") from exc


def own_text(element: Element) -> str:
    """An element's own text, without comments and what is in other elements."""
    return "".join([element.text or "", *(child.tail or "" for child in element)])


def element_of(field: str) -> str:
    """The name of a field's element."""
    return _CAMEL.sub(lambda found: found[1].upper(), field)


def _element(value: Document) -> Element:
    root = etree.Element(f"{{{NAMESPACE}}}{value.element}", nsmap={None: NAMESPACE})
    for field, kind in _fields(type(value)).items():
        given = getattr(value, field)
        for each in given if _of_list(kind) else (() if given is None else (given,)):
            if isinstance(each, Document):
                root.append(_element(each))
            else:
                text = str(each).lower() if isinstance(each, bool) else str(each)
                etree.SubElement(root, f"{{{NAMESPACE}}}{element_of(field)}").text = text
    return root


def _plain(root: Element, kind: type[Document]) -> dict[str, Any]:
    """Content of an element, as plain data. Raises InvalidMetadataException."""
    fields = {f"{{{NAMESPACE}}}{element_of(field)}": (field, of) for field, of in _fields(kind).items()}
    expected = list(fields)
    found: dict[str, Any] = {}
    if root.attrib:
        raise InvalidMetadataException(f"<{kind.element}>: unexpected attribute {next(iter(root.attrib))!s:.60}")
    if own_text(root).strip():
        raise InvalidMetadataException(f"<{kind.element}>: text between its elements", hint=f"It is {_shape(kind)}")
    last = 0
    for child in root.iterchildren("*"):
        if (known := fields.get(str(child.tag))) is None:
            raise InvalidMetadataException(
                f"<{kind.element}>: unexpected element {str(child.tag)[:100]}", hint=f"It is {_shape(kind)}"
            )
        field, of = known
        place = expected.index(str(child.tag))
        item = _of_list(of)
        if place < last or (field in found and item is None):
            raise InvalidMetadataException(
                f"<{kind.element}>: <{element_of(field)}> again, or out of order", hint=f"It is {_shape(kind)}"
            )
        last = place
        value = _value(child, item or of)
        if item is None:
            found[field] = value
        else:
            found.setdefault(field, []).append(value)
    return found


def _value(element: Element, kind: Any) -> Any:
    """Raises InvalidMetadataException."""
    plain = next((each for each in _unions(kind) if isinstance(each, type)), str)
    if issubclass(plain, Document):
        return _plain(element, plain)
    name = str(element.tag).rpartition("}")[2]
    if next(element.iterchildren("*"), None) is not None or element.attrib:
        raise InvalidMetadataException(f"<{name}>: a value alone is expected", hint="No elements, no attributes")
    text = own_text(element)
    if plain is bool:
        if text.strip() not in _BOOLEANS:
            raise InvalidMetadataException(f"<{name}>: {text[:60]!r} is not true or false")
        return _BOOLEANS[text.strip()]
    if plain is int:
        if not re.fullmatch(r"\+?[0-9]{1,18}", text.strip()):
            raise InvalidMetadataException(f"<{name}>: {text[:60]!r} is not a whole number from 0 on")
        return int(text)
    return text


def _fields(kind: type[Document]) -> dict[str, Any]:
    """Fields and their types, in order."""
    hints = get_type_hints(kind, include_extras=False)
    return {field: hints[field] for field in kind.__struct_fields__}


def _unions(kind: Any) -> Sequence[Any]:
    return [each for each in get_args(kind) if each is not type(None)] if get_args(kind) else [kind]


def _of_list(kind: Any) -> Any:
    """Type of a tuple's members; None for what is no tuple."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _shape(kind: type[Document]) -> str:
    return f"<{kind.element}>{''.join(_shapes(kind))}</{kind.element}>, in the namespace {NAMESPACE}"


def _shapes(kind: type[Document]) -> Iterator[str]:
    for field, of in _fields(kind).items():
        yield f"<{element_of(field)}>" + ("..." if _of_list(of) else "")
