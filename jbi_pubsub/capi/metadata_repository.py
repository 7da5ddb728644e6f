"""The metadata repository of the Common API: the type repository of the node that a connection is at.

Types and attributes pair a name and version with an XML schema, properties are bytes attached to a type. Descriptors
are filled by their setters, and given to `add`, `get`, `update` and `remove`, which read of them what names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import msgspec

from jbi_pubsub.codegen.bundle import parse_schema, read_bundle
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.descriptors import MAX_DESCRIPTION, MAX_NAME, MAX_PROPERTY_BYTES, Descriptor, Key, Kind
from jbi_pubsub.core.errors import SchemaError, TypeConflictError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.xml import XSD
from jbi_pubsub.protocol.services import TypesProxy

from .errors import (
    InvalidMetadataException,
    ObjectSizeException,
    ObjectUnavailableException,
    VersionNumberException,
    call,
)
from .objects import type_of


class _Described:
    """Parts that types and attributes share."""

    kind: Kind

    def __init__(self) -> None:
        self._name = self._version = self._schema = self._description = ""
        self._state = ""

    @call
    def getDescription(self) -> str:
        """Description for people."""
        return self._description

    @call
    def setDescription(self, text: str) -> None:
        """Raises ObjectSizeException."""
        if len(text) > MAX_DESCRIPTION:
            raise ObjectSizeException(f"a description of {len(text)} characters", hint=f"It takes {MAX_DESCRIPTION}")
        self._description = text

    @call
    def getVersion(self) -> str:
        """MAJOR.MINOR."""
        return self._version

    @call
    def setVersion(self, version: str) -> None:
        """Raises VersionNumberException."""
        type_of("any", version)
        self._version = version

    @call
    def getState(self) -> str:
        """`active` or `deprecated`; "" before it came from the repository."""
        return self._state

    def key(self) -> Key:
        """Key that names it. Raises VersionNumberException, UnrecognizedObjectTypeException for what is not set."""
        return self.kind, type_of(self._name, self._version)


class InfoObjectDescriptor(_Described):
    """An information object type: name, version, the XML schema of its metadata, and the type that it is a kind of."""

    kind = "type"

    def __init__(self) -> None:
        super().__init__()
        self._parent: TypeName | None = None

    @call
    def getType(self) -> str:
        """The type's name."""
        return self._name

    @call
    def setType(self, type: str) -> None:  # noqa: A002  # the API's word
        """Raises UnrecognizedObjectTypeException for what is no name."""
        type_of(type, "1.0")
        self._name = type

    @call
    def getMetadataXMLSchema(self) -> str:
        """Its schema."""
        return self._schema

    @call
    def setMetadataXMLSchema(self, schema: str) -> None:
        """One document. Elements are invariant as it marks them; one without marks has nothing invariant."""
        self._schema = schema

    @call
    def getParentType(self) -> str:
        """The name of the type that it is a kind of, "" for none."""
        return self._parent.name if self._parent is not None else ""

    @call
    def getParentVersion(self) -> str:
        """Its version."""
        return self._parent.version if self._parent is not None else ""

    @call
    def setParentType(self, type: str, version: str = "1.0") -> None:  # noqa: A002  # the API's word
        """Raises VersionNumberException, UnrecognizedObjectTypeException."""
        self._parent = type_of(type, version)


class AttributeDescriptor(_Described):
    """An attribute: name, version and the XML schema of its values."""

    kind = "attribute"

    @call
    def getName(self) -> str:
        """The attribute's name."""
        return self._name

    @call
    def setName(self, name: str) -> None:
        """Raises UnrecognizedObjectTypeException for what is no name."""
        type_of(name, "1.0")
        self._name = name

    @call
    def getXMLSchema(self) -> str:
        """Its schema."""
        return self._schema

    @call
    def setXMLSchema(self, schema: str) -> None:
        """One document, which declares one element."""
        self._schema = schema


class PropertyDescriptor:
    """Bytes attached to an information object type under a name."""

    def __init__(self) -> None:
        self._type = self._version = self._name = ""
        self._value = b""

    @call
    def getType(self) -> str:
        """Name of the type that it is attached to."""
        return self._type

    @call
    def setType(self, type: str) -> None:  # noqa: A002  # the API's word
        """Raises UnrecognizedObjectTypeException."""
        type_of(type, "1.0")
        self._type = type

    @call
    def getVersion(self) -> str:
        """The type's version."""
        return self._version

    @call
    def setVersion(self, version: str) -> None:
        """Raises VersionNumberException."""
        type_of("any", version)
        self._version = version

    @call
    def getName(self) -> str:
        """The property's name."""
        return self._name

    @call
    def setName(self, name: str) -> None:
        """Raises ObjectSizeException."""
        if not 1 <= len(name) <= MAX_NAME:
            raise ObjectSizeException(f"a name of {len(name)} characters", hint=f"It takes 1 to {MAX_NAME}")
        self._name = name

    @call
    def getValue(self) -> bytes:
        """Its bytes."""
        return self._value

    @call
    def setValue(self, value: bytes) -> None:
        """Raises ObjectSizeException."""
        if len(value) > MAX_PROPERTY_BYTES:
            raise ObjectSizeException(f"a property of {len(value)} bytes", hint=f"It takes {MAX_PROPERTY_BYTES}")
        self._value = value

    def key(self) -> Key:
        """Key that names its type. Raises VersionNumberException, UnrecognizedObjectTypeException."""
        return "type", type_of(self._type, self._version)


AnyDescriptor = InfoObjectDescriptor | AttributeDescriptor | PropertyDescriptor


class MetadataRepository:
    """See the module. Each call asks the node that the connection is at then. Raises PermissionDeniedException,
    ConnectionException, PlatformFailureException (it has no type repository, or its disk fails)."""

    def __init__(self, config: Config, where: Callable[[], ServiceRef]) -> None:
        self._config = config
        self._where = where

    @call
    def add(self, descriptor: AnyDescriptor) -> None:
        """Add a type, an attribute, or a property to a type. One that is there with the same schema is left as it is;
        a property is there once. Raises InvalidMetadataException for a schema that is none, VersionNumberException when
        it is there with another one, ObjectUnavailableException for an unknown parent, or type of a property."""
        key = descriptor.key()
        with self._proxy() as types:
            if isinstance(descriptor, PropertyDescriptor):
                if any(each.name == descriptor.getName() for each in types.show(key)[1]):
                    raise VersionNumberException(
                        f"{key[1]} has a property {descriptor.getName()!r}", hint="Use update() to replace it"
                    )
                types.set_property(key, _named(descriptor), descriptor.getValue())
                return
            parent = descriptor._parent if isinstance(descriptor, InfoObjectDescriptor) else None
            with _schema_errors():
                types.add(key[0], _bundle(key, descriptor._schema), parent, descriptor.getDescription())

    @call
    def get(self, descriptor: AnyDescriptor) -> AnyDescriptor:
        """Get it as the repository has it, as a new descriptor. Raises ObjectUnavailableException."""
        key = descriptor.key()
        with self._proxy() as types:
            if isinstance(descriptor, PropertyDescriptor):
                return _property(key[1], _named(descriptor), types.property(key, descriptor.getName()))
            held = types.held(key)
        if held is None:
            raise ObjectUnavailableException(
                f"no {key[0]} {key[1]} in the repository", hint="list() has those there are"
            )
        found = _described(held.descriptor)
        found._schema = dict(held.bundle.documents)[held.bundle.main].decode(errors="replace")
        return found

    @call
    def update(self, descriptor: AnyDescriptor) -> None:
        """Replace the description of a type or attribute, or the bytes of a property. Raises VersionNumberException for
        another schema or parent, for which there are versions, ObjectUnavailableException for what is not there."""
        key = descriptor.key()
        with self._proxy() as types:
            if isinstance(descriptor, PropertyDescriptor):
                types.property(key, _named(descriptor))
                types.set_property(key, descriptor.getName(), descriptor.getValue())
                return
            known, _ = types.show(key)
            parent = descriptor._parent if isinstance(descriptor, InfoObjectDescriptor) else None
            if parent is not None and parent != known.parent:
                raise VersionNumberException(f"{key[1]} has parent {known.parent}", hint="Give it another version")
            if descriptor._schema:
                with _schema_errors():  # which says so if it is another one
                    types.add(key[0], _bundle(key, descriptor._schema), known.parent, known.description)
            types.describe(key, descriptor.getDescription())

    @call
    def remove(self, descriptor: AnyDescriptor) -> None:
        """Remove it. Raises ObjectUnavailableException for what is not there, PlatformFailureException for a type that
        is published, archived, or another's parent."""
        key = descriptor.key()
        with self._proxy() as types:
            if isinstance(descriptor, PropertyDescriptor):
                types.property(key, _named(descriptor))
                types.set_property(key, descriptor.getName(), None)
            else:
                types.remove(key)

    @call
    def list(self, of: InfoObjectDescriptor | None = None) -> list[AnyDescriptor]:
        """All types and attributes, by name and version, without their schemas; or the properties of one type, without
        their bytes. `get` has the rest. Raises ObjectUnavailableException."""
        with self._proxy() as types:
            if of is not None:
                key = of.key()
                return [_property(key[1], each.name, b"") for each in types.show(key)[1]]
            return [_described(each) for kind in ("type", "attribute") for each in types.all(kind)]

    def _proxy(self) -> closing[TypesProxy]:
        return closing(TypesProxy(self._where(), self._config.security(), timeout=self._config.lookup.timeout))


def _bundle(key: Key, schema: str) -> SchemaBundle:
    """Bundle of the one document. What says nothing of what is invariant has nothing that is: a client of the API does
    not know of it."""
    data = schema.encode()
    kind, type_ = key
    if not schema.strip():
        raise InvalidMetadataException(f"{kind} {type_} has no schema", hint="Set it before it is added")
    root = parse_schema("schema", data)
    elements = [str(each.get("name")) for each in root.iterchildren(f"{{{XSD}}}element")]
    has_marks = "urn:jbi:codegen:1" in schema or any(
        str(each.text).strip() in ("variant", "invariant") for each in root.iter() if not isinstance(each.tag, str)
    )
    if kind == "type" and has_marks:
        return read_bundle(data, name=type_.name, version=type_.version)
    if len(elements) != 1:
        raise InvalidMetadataException(
            f"the schema of {type_} declares {len(elements)} elements, and does not say which is that of a document",
            hint="Declare one element at the top, and types for all else",
        )
    space = root.get("targetNamespace")
    name = f"{{{space}}}{elements[0]}" if space else elements[0]
    if kind == "attribute":
        return read_bundle(data, root=name, name=type_.name, version=type_.version)
    marks = msgspec.json.encode({"root": name, "invariant": []})
    return read_bundle(data, marks=marks, name=type_.name, version=type_.version)


@contextmanager
def _schema_errors() -> Iterator[None]:
    try:
        yield
    except TypeConflictError as exc:
        raise VersionNumberException(exc.message, hint="Give it another version", **exc.facts) from exc
    except SchemaError as exc:
        raise InvalidMetadataException(exc.message, hint=exc.hint, **exc.facts) from exc


def _named(descriptor: PropertyDescriptor) -> str:
    name = descriptor.getName()
    if not name:
        raise ObjectUnavailableException("the property has no name", hint="Call setName() first")
    return name


def _property(type_: TypeName, name: str, value: bytes) -> PropertyDescriptor:
    found = PropertyDescriptor()
    found._type, found._version, found._name, found._value = type_.name, type_.version, name, value
    return found


def _described(told: Descriptor) -> InfoObjectDescriptor | AttributeDescriptor:
    found: InfoObjectDescriptor | AttributeDescriptor
    if told.kind == "type":
        found = InfoObjectDescriptor()
        found._parent = told.parent
    else:
        found = AttributeDescriptor()
    found._name, found._version = told.type.name, told.type.version
    found._description, found._state = told.description, told.state
    return found
