"""CloudEvents 1.0 (https://github.com/cloudevents/spec): events as information objects, and objects as events, in the
binary and structured modes of the HTTP protocol binding. Knows no network.

Rule: an event's `type` is the name of the object's type, its data are the payload, and its context attributes are the
metadata: a document `<cloudevent>` with an element for each. An object with such metadata is that event again. Any
other object is an event whose data are the payload, with its metadata as base64 in `jbimetadata`; without a payload its
data are the metadata.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from lxml import etree

from jbi_pubsub.core.errors import ArgumentError, JbiError, MetadataError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import parse_metadata

from .operations import CLOUDEVENT, EVENT_TIME, REQUIRED, CodingError, charset_of
from .replies import Reply

ROOT: Final = "cloudevent"
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
ATTRIBUTES_MOST: Final = 50
TEXT_MOST: Final = 8 << 10
"""Characters of an attribute."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,39}")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_TIME: Final = re.compile(EVENT_TIME)
_JSON: Final = re.compile(r"[^/;]+/(?:[^/;]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_HEADER_SAFE: Final = "!#$&'()*+,/:;=?@[]\\^`{|}<>"


def is_structured(headers: Mapping[str, str]) -> bool:
    """Whether a request has an event as JSON, or a batch of them."""
    return headers.get("content-type", "").strip().lower().startswith("application/cloudevents")


def event_in(body: bytes, headers: Mapping[str, str]) -> tuple[str, bytes, bytes]:
    """Type, metadata and payload of the event in a request. Raises ArgumentError, MetadataError."""
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == CLOUDEVENT:
        attributes, data = _structured(body)
    elif media.startswith("application/cloudevents"):
        raise _bad(f"{media[:60]!r} is not accepted", f"One event in a request: binary mode, or {CLOUDEVENT}")
    else:
        attributes = {name[3:]: _decoded(value) for name, value in headers.items() if name.startswith("ce-")}
        if "datacontenttype" in attributes:
            raise _bad("there is a header ce-datacontenttype", "In binary mode it is Content-Type")
        if media:
            attributes["datacontenttype"] = headers["content-type"]
        data = body
    _check(attributes)
    if attributes["type"] == "*":
        raise _bad("the type is *", "* is any type, where nothing is published")
    root = etree.Element(ROOT)
    for name, text in attributes.items():
        etree.SubElement(root, name).text = text
    return attributes["type"], etree.tostring(root), data


def event_of(obj: InfoObject) -> tuple[dict[str, str], bytes | None]:
    """Context attributes and data of an object's event; None: it has no data."""
    payload = obj.payload
    attributes = _kept(obj.metadata)
    if attributes is not None:
        return attributes, payload or None
    attributes = {
        "specversion": "1.0", "id": obj.object_id, "type": obj.type.name,
        "source": f"urn:jbi-pubsub:registration:{quote(obj.platform.registration, safe='')}",
        "time": datetime.fromtimestamp(obj.platform.published, UTC).isoformat(),
        "jbiversion": obj.type.version,
    }  # fmt: skip
    if not payload:
        return {**attributes, "datacontenttype": "application/xml"}, obj.metadata
    encoded = base64.b64encode(obj.metadata).decode()
    return {**attributes, "datacontenttype": "application/octet-stream", "jbimetadata": encoded}, payload


def structured(obj: InfoObject) -> bytes:
    """The event of an object, as JSON."""
    attributes, data = event_of(obj)
    said: dict[str, Any] = dict(attributes)
    kind = attributes.get("datacontenttype", "")
    if data is not None:
        try:
            if _JSON.fullmatch(kind):
                msgspec.json.decode(data)
                said["data"] = msgspec.Raw(data)
            elif kind and not kind.startswith("application/octet-stream"):
                said["data"] = data.decode(charset_of(kind) or "utf-8")
            else:
                said["data_base64"] = base64.b64encode(data).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CodingError):
            said["data_base64"] = base64.b64encode(data).decode()
    return msgspec.json.encode(said)


def event_reply(obj: InfoObject, mode: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    """The event of an object as an answer; `mode` is binary or structured."""
    if mode != "binary":
        return Reply(200, structured(obj), headers, CLOUDEVENT.encode())
    attributes, data = event_of(obj)
    kind = attributes.pop("datacontenttype", "application/octet-stream")
    encoded = tuple(
        (f"ce-{name}".encode(), quote(text, safe=_HEADER_SAFE).encode()) for name, text in attributes.items()
    )
    return Reply(200, data or b"", (*headers, *encoded), quote(kind, safe=" " + _HEADER_SAFE + chr(34)).encode())


def _structured(body: bytes) -> tuple[dict[str, str], bytes]:
    try:
        given = _MEMBERS.decode(body)
        values = {name: msgspec.json.decode(raw) for name, raw in given.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _bad(f"the body is not an event: {exc}"[:300], "A JSON object") from exc
    if "data" in given and values.get("data_base64") is not None:
        raise _bad("there are data and data_base64", "One of them")
    data, encoded = bytes(given.get("data", b"")), values.pop("data_base64", None)
    text = values.pop("data", None)
    attributes: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1.0 is an integer for JSON Schema
        if name in REQUIRED and not isinstance(value, str):
            raise _bad(f"{name} is not text", f"An event needs {', '.join(REQUIRED)}")
        if isinstance(value, bool):
            attributes[name] = str(value).lower()
        elif isinstance(value, int) and -(2**31) <= value < 2**31:
            attributes[name] = str(value)
        elif isinstance(value, str):
            attributes[name] = value
        elif value is not None:
            raise _bad(f"{name[:40]!r} is not text, boolean or integer of 32 bits", "Other values belong to data")
    if encoded is not None:
        try:
            return attributes, base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError, TypeError) as exc:
            raise _bad("data_base64 is not base64", "RFC 4648") from exc
    kind = attributes.setdefault("datacontenttype", "application/json") if data else ""
    if data and not _JSON.fullmatch(kind):
        if not isinstance(text, str):
            raise MetadataError(f"data are {kind[:60]!r}, and no text", hint="A JSON string, or data_base64")
        try:
            data = text.encode(charset_of(kind) or "utf-8")
        except UnicodeEncodeError as exc:
            raise _bad(f"data are not {kind[:60]!r}: {exc.reason}", "Text in UTF-8, or data_base64") from exc
        except CodingError as exc:
            raise exc.error from exc
    return attributes, data


def _check(attributes: Mapping[str, str]) -> None:
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        raise _bad(f"the event has no {missing[0]}", f"An event needs {', '.join(REQUIRED)}")
    if attributes["specversion"] != "1.0":
        raise _bad(f"specversion {attributes['specversion'][:20]!r}", "1.0")
    if len(attributes) > ATTRIBUTES_MOST:
        raise _bad(f"{len(attributes)} attributes are too many", f"{ATTRIBUTES_MOST} at most")
    for name, text in attributes.items():
        if not _NAME.fullmatch(name):
            raise _bad(
                f"{name[:40]!r} is not a name of an attribute", "A small letter, then small letters and digits; 40"
            )
        if not text or len(text) > TEXT_MOST or _FORBIDDEN.search(text):
            raise _bad(f"{name} is empty, too long, or has control characters", f"{TEXT_MOST} characters at most")
    if "time" in attributes and not _TIME.fullmatch(attributes["time"]):
        raise _bad(f"time {attributes['time'][:40]!r}", "RFC 3339: 2026-11-01T00:00:00Z")


def _decoded(value: str) -> str:
    """A header's value: quotes first, then one round of percent-encoding (HTTP protocol binding, section 3.1.3.2)."""
    plain = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), value)
    try:
        return unquote(plain.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError as exc:
        raise _bad("a header is not UTF-8 when it is decoded", "Percent-encode characters beyond ASCII") from exc


def _kept(metadata: bytes) -> dict[str, str] | None:
    """The context attributes, if the metadata are those of an event."""
    if not metadata.startswith(b"<cloudevent"):
        return None
    try:
        root = parse_metadata(metadata)
        attributes = {str(each.tag): each.text or "" for each in root}
        _check(attributes)
    except JbiError:
        return None
    return attributes if root.tag == ROOT and len(attributes) == len(root) else None


def _bad(message: str, hint: str) -> ArgumentError:
    return ArgumentError(message, hint=hint, argument="event")
