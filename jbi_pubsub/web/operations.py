"""Operations of the gateway, as a table: the same rows are the OpenAPI document, and read requests. Knows no network.

Theory of operation: an operation names its method, path, parameters, body and answers. `find` picks it by method and
path, `read` gives its parameters' values from path, query and headers, and `document` prints all of it as OpenAPI 3.1
(https://spec.openapis.org/oas/v3.1.0), which is the IDL: tags `capi`, the calls of the Common API, and `ext`.
"""

from __future__ import annotations

import codecs
import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from jbi_pubsub.core.errors import ArgumentError, MetadataError, OversizeError
from jbi_pubsub.core.info_object import NAME_LETTER
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.xml import to_bytes

from .problem import PROBLEM, Problem, codes

Kind = Literal["string", "integer", "number", "boolean"]
Where = Literal["path", "query", "header"]
MULTIPART: Final = "multipart/form-data"
JSON: Final = "application/json"
CLOUDEVENT: Final = "application/cloudevents+json"
EVENTS: Final = "text/event-stream"
FIELDS_MOST: Final = 100
"""Parameters of a request."""
TEXT_MOST: Final = 8 << 10
"""Characters of one: as many as an expression may have, and several fit into the head of a request."""


_NUMBER: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class OperationParameter:
    """One value of a request. `least` and `most` are of numbers; `many`: it may come several times. `one_of` and
    `pattern` (of ECMA-262 and Python alike) are of texts, and hold here; what `form` says beside them, as JSON Schema
    has it, is looked at by whoever is called, with its own error."""

    name: str
    text: str
    where: Where = "query"
    kind: Kind = "string"
    required: bool = False
    many: bool = False
    least: float | None = None
    most: float | None = None
    one_of: tuple[str, ...] = ()
    pattern: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)

    @property
    def argument(self) -> str:
        """Name of the handler's argument."""
        return self.name.lower().replace("-", "_")

    def value(self, text: str) -> Any:
        """The text as a value of its kind. Raises ArgumentError."""
        if self.kind == "string":
            if len(text) > (most := self.form.get("maxLength", TEXT_MOST)):
                raise self._bad(text, f"{most} characters at most")
            if self.one_of and text not in self.one_of:
                raise self._bad(text, f"{', '.join(self.one_of[:-1])} or {self.one_of[-1]}")
            if self.pattern and not re.fullmatch(self.pattern, text):
                raise self._bad(text, f"what is like {self.pattern}")
            return text
        if self.kind == "boolean":
            if text in ("true", "false"):
                return text == "true"
            raise self._bad(text, "true or false")
        if not _NUMBER.fullmatch(text) or (self.kind == "integer" and not text.lstrip("-").isdecimal()):
            raise self._bad(text, f"a{'n' * (self.kind == 'integer')} {self.kind}")
        number = int(text) if self.kind == "integer" else float(text)
        least, most = self.least, self.most
        if (least is not None and number < least) or (most is not None and number > most):
            raise self._bad(text, f"{least or 0:g} at least" if most is None else f"{least or 0:g} to {most:g}")
        return number

    def _bad(self, text: str, wanted: str) -> ArgumentError:
        return ArgumentError(f"{self.name}: {text[:60]!r}", hint=f"It takes {wanted}", argument=self.name)

    def schema(self) -> dict[str, Any]:
        """As OpenAPI has it."""
        of: dict[str, Any] = {"type": self.kind, **self.form}
        if self.kind == "string" and self.where != "path":
            of.setdefault("maxLength", TEXT_MOST)
        if self.one_of:
            of["enum"] = list(self.one_of)
        if self.pattern:
            of["pattern"] = self.pattern
        if self.least is not None:
            of["minimum"] = self.least
        if self.most is not None:
            of["maximum"] = self.most
        of = {"type": "array", "items": of} if self.many else of
        return {
            "name": self.name, "in": self.where, "required": self.required, "description": self.text, "schema": of,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperationAnswer:
    """Answer to a request if all is well: a struct or dict as JSON, or bytes of another media type."""

    status: int
    text: str
    of: type | None = None
    media: str = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """One row. `body`: MULTIPART (metadata and payload of objects), a struct (JSON), or none."""

    name: str
    method: str
    path: str
    tag: Literal["capi", "ext"]
    text: str
    answers: tuple[OperationAnswer, ...]
    parameters: tuple[OperationParameter, ...] = ()
    body: Any = None
    is_waiting: bool = False
    """Whether a GET follows or takes what comes: then there is no HEAD, which must not."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods of requests for it: HEAD is GET without the body of the answer (RFC 9110, section 9.3.2)."""
        return (self.method, "HEAD") if self.method == "GET" and not self.is_waiting else (self.method,)

    @property
    def segments(self) -> tuple[str, ...]:
        """Segments of its path."""
        return tuple(self.path.strip("/").split("/"))


class OperationTable:
    """All operations."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self._by_length: dict[int, list[Operation]] = {}
        for operation in operations:
            self._by_length.setdefault(len(operation.segments), []).append(operation)

    def find(self, method: str, raw_path: str) -> tuple[Operation | None, dict[str, str], tuple[str, ...]]:
        """The operation, the values in the path, and the methods that the path has; a name may hold %2F."""
        given = raw_path.strip("/").split("/")
        methods: list[str] = []
        for operation in self._by_length.get(len(given), ()):
            values: dict[str, str] = {}
            for wanted, there in zip(operation.segments, given, strict=True):
                if wanted[0] == "{" and there:
                    values[wanted[1:-1]] = unquote(there)
                elif wanted != there:
                    break
            else:
                if method in operation.methods:
                    return operation, values, ()
                methods += operation.methods
        return None, {}, tuple(methods)

    def document(self, version: str) -> dict[str, Any]:
        """OpenAPI 3.1."""
        structs = {answer.of for op in self.operations for answer in op.answers if answer.of not in (None, dict)}
        structs |= {op.body for op in self.operations if op.body not in (None, MULTIPART, CLOUDEVENT)}
        named = sorted({*structs, Problem}, key=lambda kind: kind.__name__)
        _, components = msgspec.json.schema_components(named, ref_template="#/components/schemas/{name}")
        for each in components.values():  # of msgspec some versions leave the margin of a docstring, others do not
            each["description"] = inspect.cleandoc(each["description"])
        components["Problem"]["properties"]["code"]["enum"] = [code for code, _, _ in codes()]
        waiting = ", ".join(op.name for op in self.operations if op.is_waiting)
        paths: dict[str, Any] = {}
        for op in self.operations:
            paths.setdefault(op.path, {})[op.method.lower()] = _described(op)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "jbi-pubsub gateway",
                "version": version,
                "description": "Publish, subscribe to and query information objects over HTTP. Errors are problem+json"
                " (RFC 9457), their codes those of the library, one to one: x-errors. Where there is GET there is HEAD,"
                f" except for {waiting}, which answer it with 405.",
            },
            "tags": [
                {"name": "capi", "description": "The calls of the Common API; sequences are resources"},
                {
                    "name": "ext",
                    "description": "In addition: objects, subscriptions, and queries without sequences",
                },
            ],
            "security": [{}, {"token": []}, {"user": []}],
            "paths": paths,
            "components": {
                "schemas": dict(sorted(components.items())),
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "user": {"type": "http", "scheme": "basic"},
                },
            },
            "x-errors": [{"code": code, "status": status, "title": title} for code, status, title in codes()],
        }


def read(operation: Operation, path: Mapping[str, str], query: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """The values of its parameters, by their arguments' names. Raises ArgumentError, OversizeError."""
    known = {each.name: each for each in operation.parameters if each.where == "query"}
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MOST, errors="strict") if query else []
    except (ValueError, UnicodeDecodeError) as exc:
        raise ArgumentError(f"the query can't be read: {exc}"[:200], hint="name=value&..., percent-encoded") from exc
    found: dict[str, Any] = {}
    for name, text in given:
        parameter = known.get(name)
        if parameter is None:
            raise ArgumentError(
                f"{operation.name} has no parameter {name[:60]!r}", hint=near_hint(name, known), argument=name[:60]
            )
        if parameter.many:
            found.setdefault(parameter.argument, []).append(parameter.value(text))
        elif parameter.argument in found:
            raise ArgumentError(f"{name} is given twice", argument=name)
        else:
            found[parameter.argument] = parameter.value(text)
    for parameter in operation.parameters:
        if parameter.where == "path":
            found[parameter.argument] = parameter.value(path[parameter.name])
        elif parameter.where == "header" and (text := headers.get(parameter.name.lower(), "")):
            found[parameter.argument] = parameter.value(text)
        elif parameter.required and parameter.argument not in found:
            raise ArgumentError(f"{operation.name} needs {parameter.name}", argument=parameter.name)
    return found


class CodingError(Exception):
    """A charset or coding of content that the gateway does not read: 415, not 400."""

    def __init__(self, name: str, given: str, hint: str) -> None:
        super().__init__(given)
        self.error = ArgumentError(f"{name} {given[:60]} is not supported", hint=hint, argument=name)


_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*(["']?)([^\s;"',]{1,40})\1""", re.IGNORECASE)
_CHARSETS: Final = re.compile(r"utf-?8|utf-16(le|be)?|(us-)?ascii|iso-8859-\d{1,2}|windows-125\d", re.IGNORECASE)
_DECLARED: Final = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]{0,39})["']""")
_KIND: Final = re.compile(rb"^content-type:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_NAME: Final = re.compile(rb'^content-disposition:[^\r\n]*?[;\s]name="([^"\r\n]*)"', re.IGNORECASE | re.MULTILINE)
_CODING: Final = re.compile(rb"^content-transfer-encoding:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_AS_IT_IS: Final = (b"7bit", b"8bit", b"binary")
OBJECTS_MOST: Final = 1_000
"""In one request."""


def charset_of(kind: str) -> str:
    """Charset that a media type names, "" for none. Raises CodingError for one that is not read."""
    if (said := _CHARSET.search(kind)) is None:
        return ""
    with suppress(LookupError):  # as iso-8859-99
        if _CHARSETS.fullmatch(said[2]) and codecs.lookup(said[2]):
            return said[2]
    raise CodingError("charset", said[2], "Send it in UTF-8")


def in_charset(body: bytes, kind: str) -> bytes:
    """An XML document in the charset that a Content-Type says, which counts more than what it declares itself, and less
    than a byte order mark (RFC 7303, section 3): in UTF-8, or as it is, if it declares that charset. Raises
    MetadataError, CodingError."""
    said = _CHARSET.search(kind)
    if said is None or body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return body
    declared = _DECLARED.match(body)
    if said[2].lower() == (declared[1].decode().lower() if declared else "utf-8"):
        return body
    try:
        return to_bytes(body.decode(charset_of(kind)))
    except UnicodeDecodeError as exc:
        raise MetadataError(
            f"the metadata are not in {said[2]}, as Content-Type says: {exc.reason} at byte {exc.start}",
            hint="Leave charset out where the document declares its encoding",
        ) from exc


def objects_in(body: bytes, kind: str) -> list[tuple[bytes, bytes]]:
    """Metadata and payload of the objects in a multipart body (RFC 7578): a part `metadata` begins one, a part
    `payload` belongs to the one that was begun; of a single object either comes first. Of an XML media type
    the body is the metadata of one. Raises ArgumentError, OversizeError, and as `in_charset`."""
    media = kind.partition(";")[0].strip().lower()
    if media in ("application/xml", "text/xml"):
        if not body:
            raise ArgumentError("there is no object in the body", hint="It takes an XML document, the metadata")
        return [(in_charset(body, kind), b"")]
    found = _BOUNDARY.search(kind) if media == MULTIPART else None
    if found is None:
        raise ArgumentError(
            f"objects are {MULTIPART} with its boundary, not {media[:60]!r}",
            hint="Parts metadata and payload; or application/xml for metadata alone",
        )
    mark = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    pieces = (b"\r\n" + body).split(mark, 2 * OBJECTS_MOST + 2)
    if len(pieces) > 2 * OBJECTS_MOST + 2:
        raise OversizeError(f"more than {2 * OBJECTS_MOST} parts are too many", hint=f"{OBJECTS_MOST} objects at most")
    if len(pieces) < 2 or pieces[-1][:2] != b"--":
        raise ArgumentError("the multipart body does not end with its boundary", hint="It was cut, or is none")
    objects: list[tuple[bytes | None, bytes | None]] = []
    for number, piece in enumerate(pieces[1:-1], 1):
        head, blank, data = piece.partition(b"\r\n\r\n")
        name = _NAME.search(head) if blank else None
        if name is None or name[1] not in (b"metadata", b"payload"):
            raise ArgumentError(
                f"part {number} is neither metadata nor payload", hint='Content-Disposition: form-data; name="metadata"'
            )
        if (coded := _CODING.search(head)) and (coding := coded[1].strip()).lower() not in _AS_IT_IS:
            raise CodingError("Content-Transfer-Encoding", coding.decode("latin-1"), "Send the part as it is")
        if name[1] == b"metadata":
            of = _KIND.search(head)
            objects.append((in_charset(data, of[1].decode("latin-1")) if of else data, None))
        elif objects and objects[-1][1] is None:
            objects[-1] = objects[-1][0], data
        else:
            objects.append((None, data))
    if len(objects) == 2 and objects[0][0] is None and objects[1][1] is None:
        objects = [(objects[1][0], objects[0][1])]
    if not objects:
        raise ArgumentError("there is no object in the body", hint="Parts metadata and payload")
    if len(objects) > 1 and any(metadata is None for metadata, _ in objects):
        raise ArgumentError(
            "one of several objects begins with its payload", hint="Send the part metadata of each before its payload"
        )
    return [(metadata or b"", payload or b"") for metadata, payload in objects]


REQUIRED: Final = ("specversion", "id", "source", "type")
"""Attributes that an event has."""
NAME: Final = f"[^ {NAME_LETTER}(?:[^{NAME_LETTER}*[^ {NAME_LETTER})?$"
"""The pattern of a name: no space at its ends."""
NOT_ANY: Final = r"(?!\*$)"
BASE64: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
EVENT_TIME: Final = (
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)"
    r"(?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
"""RFC 3339."""
_LINE: Final = r"^[^\u0000-\u001f\u007f-\u009f\ufdd0-\ufdef\ufffe\uffff]+$"
_ATTRIBUTE: Final = {"type": "string", "pattern": _LINE, "maxLength": 8 << 10}
EVENT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": list(REQUIRED),
    "maxProperties": 50,
    "properties": {
        "specversion": {"const": "1.0"}, "id": _ATTRIBUTE, "source": _ATTRIBUTE,
        "type": {"allOf": [_ATTRIBUTE, {"pattern": f"^{NOT_ANY}{NAME}", "maxLength": 400}]},
        "time": {"type": ["string", "null"], "pattern": f"^{EVENT_TIME}$"},
        "data": {}, "data_base64": {"type": ["string", "null"], "pattern": BASE64},
    },
    "propertyNames": {"pattern": "^(?:data_base64|[a-z][a-z0-9]{0,39})$"},
    "not": {"required": ["data", "data_base64"], "properties": {"data_base64": {"type": "string"}}},
    "additionalProperties": {
        "anyOf": [
            _ATTRIBUTE, {"type": ["boolean", "null"]}, {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
        ]
    },
}  # fmt: skip
"""An event in structured mode (CloudEvents JSON format, section 3)."""


def _described(op: Operation) -> dict[str, Any]:
    said: dict[str, Any] = {"operationId": op.name, "tags": [op.tag], "summary": op.text}
    if op.parameters:
        said["parameters"] = [each.schema() for each in op.parameters]
    if op.body == MULTIPART:
        part = {"type": "string", "contentMediaType": "application/octet-stream"}
        said["requestBody"] = {
            "required": True,
            "content": {
                MULTIPART: {
                    "schema": {
                        "type": "object",
                        "description": "Of one object either part may come first, of several the metadata of each",
                        "properties": {"metadata": {**part, "contentMediaType": "application/xml"}, "payload": part},
                        "minProperties": 1,
                        "additionalProperties": False,
                    }
                },
                "application/xml": {"schema": {"type": "string"}},  # no minLength: tools measure the text of <data/>
            },
        }
    elif op.body == CLOUDEVENT:
        said["requestBody"] = {"required": True, "content": {CLOUDEVENT: {"schema": EVENT_SCHEMA}}}
    elif op.body is not None:
        said["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(op.body)}}}
    said["responses"] = {str(answer.status): _answer(answer) for answer in op.answers} | {
        "default": {"description": "An error", "content": {PROBLEM: {"schema": _ref(Problem)}}}
    }
    return said


def _answer(answer: OperationAnswer) -> dict[str, Any]:
    said: dict[str, Any] = {"description": answer.text}
    if answer.of is not None:
        said["content"] = {answer.media: {"schema": {"type": "object"} if answer.of is dict else _ref(answer.of)}}
    elif answer.media == CLOUDEVENT:  # binary mode has the media type of the data
        said["content"] = {CLOUDEVENT: {"schema": {"type": "object", "required": list(REQUIRED)}}, "*/*": {}}
    elif answer.media == EVENTS:  # each event, as its fields
        fields = {"event": {"enum": ["open", "object", "lost"]}, "id": {"type": "string"}, "data": {"type": "string"}}
        said["content"] = {EVENTS: {"schema": {"type": "object", "properties": fields, "required": ["event", "data"]}}}
    elif answer.media != JSON:
        said["content"] = {answer.media: {"schema": {"type": "string"}}}
    return said


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
