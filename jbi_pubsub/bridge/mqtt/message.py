"""Messages of MQTT and information objects, one made of the other. Pure."""

from __future__ import annotations

import hashlib
import math
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.sax.saxutils import escape

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, InfoObject, Parcel, TypeName, packed
from jbi_pubsub.core.xml import NO_XML, parse_metadata
from jbi_pubsub.protocol.entries import HOPS_MOST, PLATFORM_NAME

from .client import library
from .side import NO_TEXT, SESSION_MOST, MqttTopic

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

ENVELOPE: Final = "application/vnd.jbi.object"
METADATA_MOST: Final = 32 << 10
"""Bytes of metadata that go as a user property; its length is 16 bits (section 1.5.7)."""
TYPE_MOST: Final = 256
"""Characters of the name of a type that a message brings."""
RETAINED_MOST: Final = 10_000
"""Topics of which it is known what was there last."""


class MessageContent(NamedTuple):
    """Content of a message that stands for an object. `via`: the platforms that it has come through."""

    type: TypeName
    metadata: bytes
    payload: bytes
    via: tuple[str, ...]


def content_of(message: MQTTMessage, on: str, topic: MqttTopic, max_payload: int) -> MessageContent:
    """Raises MetadataError, OversizeError, ProtocolError."""
    if len(message.payload) > max_payload:
        raise OversizeError(f"it has {len(message.payload)} bytes, the limit is {max_payload}")
    properties = _user_properties(message)
    said = dict(reversed(properties))  # the first of each name
    content = _text(getattr(message.properties, "ContentType", ""))
    if content == ENVELOPE:
        head = (parcel := Parcel.received(message.payload)).head
        metadata, payload = bytes(head.metadata), bytes(parcel.payload)
        said = {"jbi-type": head.type_name, "jbi-version": head.type_version, "jbi-via": " ".join(head.via)}
    else:
        payload = bytes(message.payload)
        metadata = _given(said) or _described(message, on, content, properties)
    parse_metadata(metadata)
    type_ = TypeName(topic.type, topic.version)
    if not topic.type:
        type_ = TypeName(said.get("jbi-type", "")[:TYPE_MOST], said.get("jbi-version", DEFAULT_VERSION)[:TYPE_MOST])
        if not type_.name or not (type_.name + type_.version).isprintable():
            raise ProtocolError("it says no type (jbi-type), nor does its topic in the bridge's file")
        if any(each != each.strip() for each in (type_.name, type_.version)):
            raise ProtocolError(f"its type is {str(type_)!r}: a name or version has no space at its ends")
    return MessageContent(type_, metadata, payload, _via(said.get("jbi-via", "")))


class RetainedMessages:
    """Digests of topics, and of what came there last. One thread at a time."""

    def __init__(self) -> None:
        self._seen: Cache[bytes, bytes] = Cache(RETAINED_MOST)

    def is_repeated(self, message: MQTTMessage, topic: str) -> bool:
        """Whether it was retained, and is what was there last."""
        properties = message.properties
        said = [getattr(properties, each, "") for each in ("ContentType", "UserProperty")]
        what = hashlib.blake2b(message.payload, digest_size=16)
        what.update(repr(said).encode())
        digest, key = what.digest(), hashlib.blake2b(topic.encode(), digest_size=16).digest()
        before = self._seen.get(key)
        self._seen[key] = digest
        return message.retain and digest == before


def message_of(obj: InfoObject, source: str, expiration: float = 0.0, waited: float = 0.0) -> tuple[bytes, Any]:
    """Payload and properties for an object, which may wait for so many seconds (0.0: for ever), or less if it says so,
    and has `waited` so many of them."""
    paho = library()
    properties = paho.properties(paho.packets.PUBLISH)
    timeout = obj.platform.attributes.timeout if obj.platform.attributes is not None else 0.0
    if seconds := min(filter(None, (expiration, timeout)), default=0.0):
        properties.MessageExpiryInterval = min(math.ceil(max(1.0, seconds - waited)), SESSION_MOST)
    if len(obj.metadata) > METADATA_MOST or NO_TEXT.search(obj.type.name + obj.type.version):
        properties.ContentType = ENVELOPE
        return b"".join(packed(obj, source).in_memory().parts), properties
    platform = obj.platform
    properties.UserProperty = [
        ("jbi-id", obj.object_id),
        ("jbi-type", obj.type.name),
        ("jbi-version", obj.type.version),
        ("jbi-registration", platform.registration),
        ("jbi-sequence", str(platform.sequence)),
        ("jbi-published", f"{platform.published:.6f}"),
        ("jbi-via", " ".join((*platform.via, source))),
        _metadata(obj.metadata),
    ]
    return obj.payload, properties


def _metadata(metadata: bytes) -> tuple[str, str]:
    """As a property: text, or base64 of what a text of MQTT had better not have (section 1.5.4), line ends among it."""
    try:
        text = metadata.decode()
    except UnicodeDecodeError:
        text = "\n"
    if text.startswith("<?xml") or NO_TEXT.search(text):
        return "jbi-metadata-base64", b64encode(metadata).decode()
    return "jbi-metadata", text


def topic_of(message: MQTTMessage) -> str:
    """Raises ProtocolError."""
    try:
        return message.topic
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"its topic is not text: {exc}") from exc


def _user_properties(message: MQTTMessage) -> list[tuple[str, str]]:
    """In their order; names may stand there several times."""
    return [(_text(name), _text(value)) for name, value in getattr(message.properties, "UserProperty", ())]


def reason_of(properties: Any) -> str:
    """The broker's own words."""
    return _text(getattr(properties, "ReasonString", ""))[:200]


def _given(said: dict[str, str]) -> bytes | None:
    """Metadata that a message brings. Raises ProtocolError."""
    if (coded := said.get("jbi-metadata-base64")) is not None:
        try:
            return b64decode(coded, validate=True)
        except ValueError as exc:
            raise ProtocolError(f"jbi-metadata-base64 is none: {exc}") from exc
    text = said.get("jbi-metadata")
    return None if text is None else text.encode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _via(text: str) -> tuple[str, ...]:
    """Names of platforms, as a message says them. Raises ProtocolError."""
    names = tuple(text.split(" ", HOPS_MOST + 1)) if text else ()
    if len(names) > HOPS_MOST or not all(map(PLATFORM_NAME.fullmatch, names)):
        raise ProtocolError("jbi-via names no platforms")
    return names


def _described(message: MQTTMessage, topic: str, content: str, properties: list[tuple[str, str]]) -> bytes:
    """Metadata for a message that has none."""

    def clean(text: str) -> str:
        return escape(NO_XML.sub("\ufffd", text), {'"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})

    own = "".join(f'<property name="{clean(name)}">{clean(value)}</property>' for name, value in properties)
    correlation = getattr(message.properties, "CorrelationData", b"")
    told = {
        "topic": topic,
        "content": content,
        "retained": "true" if message.retain else "false",
        "format": "text" if getattr(message.properties, "PayloadFormatIndicator", 0) else "",
        "expiry": str(getattr(message.properties, "MessageExpiryInterval", "")),
        "response": _text(getattr(message.properties, "ResponseTopic", "")),
        "correlation": b64encode(correlation).decode() if isinstance(correlation, bytes | bytearray) else "",
    }
    parts = "".join(f"<{name}>{clean(text)}</{name}>" for name, text in told.items() if text)
    return f"<message>{parts}{own}</message>".encode()
