"""The operations of the gateway, and what they say: the rows of operations.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import msgspec

from jbi_pubsub.capi.connection import MAX_NAME, NodeDetails
from jbi_pubsub.capi.objects import MAX_TYPE, VERSION
from jbi_pubsub.core.arguments import LARGEST
from jbi_pubsub.core.descriptors import MAX_DESCRIPTION
from jbi_pubsub.core.descriptors import MAX_NAME as MAX_PROPERTY_NAME
from jbi_pubsub.core.history import MAX_POSITION

from .operations import (
    BASE64,
    CLOUDEVENT,
    EVENTS,
    MULTIPART,
    NAME,
    NOT_ANY,
    Operation,
    OperationAnswer,
    OperationParameter,
    Where,
)

# -- forms ----------------------------------------------------------------------------------------------------------


_ZEROS: Final = r"(?!0[0-9]+\.[0-9]+$)(?![0-9]+\.0[0-9]+$)"
_TYPE_FORM: Final = {"pattern": f"^{NAME}", "maxLength": MAX_TYPE}
_VERSION_FORM: Final = {"pattern": f"^{VERSION}$"}
_DAY: Final = (
    r"(?:(?:19[7-9][0-9]|[2-4][0-9]{3})-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)|(?:19(?:[79][26]|8[048])|[2-4][0-9](?:0[48]|[2468][048]|[13579][26]))-02-29)"
)
_TIME: Final = (
    rf"(?:[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?[smhdw])+|{_DAY}"
    r"(?:T(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9]))?"
)
_PLACE: Final = "[0-9]{1,18}(?:@[0-9a-f]{32})?"
_TIME_FORM: Final = {"pattern": f"^(?:{_TIME})$"}

TypeText = Annotated[str, msgspec.Meta(extra_json_schema=_TYPE_FORM)]
"""As the Common API takes them, whose own exceptions say what is wrong."""
VersionText = Annotated[str, msgspec.Meta(extra_json_schema=_VERSION_FORM)]


class Published(msgspec.Struct, frozen=True):
    """Ids of the objects, in their order."""

    ids: tuple[str, ...]


class ObjectSaid(msgspec.Struct, frozen=True, kw_only=True):
    """An information object. Metadata that are not UTF-8 come as metadata_base64; a payload above 4 MiB is null, and
    fetched by getPayload where an archive has it."""

    id: str
    type: str
    version: str
    metadata: str | None
    metadata_base64: str | None
    payload_base64: str | None
    payload_length: int
    """As published: a filter may have left less."""
    is_selection: bool
    """The payload is what a payload filter has left."""
    registration: str
    sequence: int
    published: str
    position: int
    """In the archive that it came from; 0: it came by itself."""
    place: str
    """That, and which archive it is: for `start`."""


class LossSaid(msgspec.Struct, frozen=True):
    """Objects that did not come: why, and how many (0: not known)."""

    cause: str
    count: int
    detail: str


class Subscribed(msgspec.Struct, frozen=True):
    """A subscription to be read by nextObjects."""

    subscription: str
    next: str


class Next(msgspec.Struct, frozen=True):
    """Events that have come; `last` is what `after` of the next request takes."""

    objects: tuple[ObjectSaid, ...]
    lost: tuple[LossSaid, ...]
    last: int


class Found(msgspec.Struct, frozen=True):
    """Results. `more`: there are, behind the last one's position. `partial` names archives that did not answer to the
    end, `left_out` what was asked for (type and version) if there are types of it that may not be read."""

    objects: tuple[ObjectSaid, ...]
    more: bool
    partial: tuple[str, ...]
    left_out: tuple[str, ...]


class Counted(msgspec.Struct, frozen=True):
    """Number of objects; `partial` names archives that could not say."""

    count: int
    partial: tuple[str, ...]


class TypeSaid(msgspec.Struct, frozen=True):
    """A type of information objects."""

    type: str
    version: str


class TypesSaid(msgspec.Struct, frozen=True):
    """Those that are published now."""

    types: tuple[TypeSaid, ...]


# -- requests of the Common API -------------------------------------------------------------------------------------


class ConnectionAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`descriptor` is a connection document; "": any node."""

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{NAME}", "maxLength": MAX_NAME})]
    descriptor: str = ""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An XML document: credentials, a predicate, an attribute."""

    document: str


class SequenceAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kind` is publisher, subscriber or query."""

    kind: Literal["publisher", "subscriber", "query"]
    type: TypeText
    version: VersionText


class QueryAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`distributed`: of all archives, within `timeout` ms; else of the connection's node."""

    distributed: bool = False
    timeout: Annotated[float, msgspec.Meta(gt=0, le=LARGEST)] = 30_000.0


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of a metadata repository: `kind` is type, attribute, or property (of the type; `name`, `value_base64`)."""

    kind: Literal["type", "attribute", "property"]
    type: TypeText
    version: VersionText = "1.0"
    schema: str = ""
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION)] = ""
    parent_type: str = ""
    parent_version: VersionText = "1.0"
    name: Annotated[str, msgspec.Meta(max_length=MAX_PROPERTY_NAME)] = ""
    value_base64: Annotated[str, msgspec.Meta(pattern=BASE64)] = ""


# -- answers of the Common API --------------------------------------------------------------------------------------


class ConnectionSaid(msgspec.Struct, frozen=True):
    """A connection; whoever knows it may use it."""

    connection: str


class SequenceSaid(msgspec.Struct, frozen=True):
    """A sequence; `state` is 0 new, 1 active, 2 paused, 3 destroyed."""

    sequence: str
    type: str
    version: str
    state: int


class Attribute(msgspec.Struct, frozen=True):
    """An attribute that is set."""

    name: str
    version: str
    document: str


class Attributes(msgspec.Struct, frozen=True):
    """All that are set."""

    attributes: tuple[Attribute, ...]


class CapiObject(msgspec.Struct, frozen=True):
    """An information object, with what the platform says of it as XML. Metadata that are no text come as
    metadata_base64."""

    id: str
    type: str
    version: str
    metadata: str | None
    metadata_base64: str | None
    payload_base64: str
    extended_metadata: str


class CapiObjects(msgspec.Struct, frozen=True):
    """None: there are no more."""

    objects: tuple[CapiObject, ...]


class Id(msgspec.Struct, frozen=True):
    """Id of an object."""

    id: str


class MissingAnswers(msgspec.Struct, frozen=True):
    """The archives (addresses) that a query is without so far, each with the reason."""

    missing: tuple[str, ...]


class ResultCount(msgspec.Struct, frozen=True):
    """Number of results of a query."""

    count: int


class Descriptors(msgspec.Struct, frozen=True):
    """Those that a repository has."""

    descriptors: tuple[Descriptor, ...]


# ruff: noqa: E501  # a row is a line
# -- the rows -------------------------------------------------------------------------------------------------------


def _in(where: Where, name: str, text: str, **more: Any) -> OperationParameter:
    return OperationParameter(name, text, where, **more)


_TYPE: Final = _in(
    "path",
    "type",
    "Name of the type, percent-encoded; * for any where nothing is published",
    required=True,
    pattern=f"^{NAME}",
    form={"maxLength": 400},
)
_VERSION: Final = _in(
    "path",
    "version",
    "Its version, MAJOR.MINOR; * for any",
    required=True,
    pattern=f"^{_ZEROS}{NAME}",
    form={"maxLength": 60},
)
_ONE_TYPE: Final = _in(
    "path",
    "type",
    "Name of the type, percent-encoded",
    required=True,
    pattern=f"^{NOT_ANY}{NAME}",
    form={"maxLength": 400},
)
_ONE_VERSION: Final = _in(
    "path",
    "version",
    "Its version, MAJOR.MINOR",
    required=True,
    pattern=f"^{NOT_ANY}{_ZEROS}{NAME}",
    form={"maxLength": 60},
)
_NS: Final = OperationParameter(
    "ns",
    "prefix=uri, for predicate, payload_filter and latest_by",
    many=True,
    form={"pattern": "^[A-Za-z_][A-Za-z0-9_.-]*=[!-~]+$", "maxLength": 1_000},
)
_PREDICATE: Final = OperationParameter("predicate", "XPath 1.0 over the metadata")
_FILTER: Final = OperationParameter("payload_filter", "XPath 1.0: which part of an XML payload is wanted")
_EMPTY: Final = OperationParameter(
    "suppress_empty", "Leave out objects of whose payload nothing is left", kind="boolean"
)
_UNFILTERED: Final = OperationParameter(
    "unfiltered",
    "XML beyond what is filtered: withhold (it is told as lost), or deliver it whole",
    one_of=("withhold", "deliver"),
)
_VIEW: Final = OperationParameter(
    "view", "What a predicate sees: metadata, or combined with what the platform says", one_of=("metadata", "combined")
)
_LATEST: Final = OperationParameter("latest_by", "XPath of a key: of each key the newest object alone")
_SECONDS: Final[dict[str, Any]] = {"kind": "number", "least": 0, "most": 300}
_SUBSCRIBING: Final = (
    _TYPE, _VERSION, _PREDICATE, _FILTER, _NS, _EMPTY, _UNFILTERED, _VIEW,
    OperationParameter(
        "start", "Where it begins, at delegates with an archive: now, all, last, a time (2026-11-01T00:00Z, 2h) or the "
        "place of an object; without it from now on, whether there is an archive or not",
        form={"pattern": f"^(?:now|all|last|{_PLACE}|{_TIME})$"},
    ), _LATEST,
)  # fmt: skip
_PAYLOADS: Final = _FILTER, _EMPTY, _UNFILTERED
_ASKING: Final = (
    _TYPE, _VERSION, _PREDICATE, _NS, _VIEW, _LATEST,
    OperationParameter("since", "Published at this time or later: 2026-11-01T00:00Z, or 2h ago", form=_TIME_FORM),
    OperationParameter("until", "Published at this time or earlier", form=_TIME_FORM),
    OperationParameter("received", "since and until are times of receipt", kind="boolean"),
    OperationParameter("after", "Behind the `place` of an object, in its archive (with order=newest: older objects); a position alone will do", form={"pattern": f"^{_PLACE}$"}),
    OperationParameter("up_to", "Positions not above this one", kind="integer", least=0, most=MAX_POSITION),
    OperationParameter("at", "Address of a delegate: its archive alone is asked, or those of several", many=True, form={"maxLength": 300}),
    OperationParameter("publisher", "Name that the publisher goes by", form={"maxLength": 1_024}),
    OperationParameter("least_payload", "Bytes of the payload at least", kind="integer", least=0, most=2**53),
    OperationParameter("most_payload", "Bytes of the payload at most", kind="integer", least=0, most=2**53),
)  # fmt: skip

_MODE: Final = OperationParameter("mode", "Of the CloudEvent; structured without", one_of=("structured", "binary"))
_TAKING: Final = "Seconds that it may take; 30 without"

_EXT: Final = (
    Operation(
        "publishObjects", "POST", "/v1/types/{type}/{version}/objects", "ext",
        "Publish objects: a part metadata begins one, a part payload belongs to it",
        (OperationAnswer(202, "Checked, and on their way to the delegate", Published),
         OperationAnswer(201, "The delegate has them (with wait)", Published)),
        (_ONE_TYPE, _ONE_VERSION,
         OperationParameter("validate", "Whether metadata must be valid by the type's schema, true without; false allows a type "
                   "without one", kind="boolean"),
         OperationParameter("persist", "Whether they are archived; else the delegate's rules say", kind="boolean"),
         OperationParameter("wait", "Seconds to wait until the delegate has them", **_SECONDS)),
        MULTIPART,
    ),
    Operation(
        "publishEvent", "POST", "/v1/events", "ext",
        "Publish a CloudEvent in structured mode, or in binary mode (headers ce-*, and any Content-Type) as an object of the "
        "type that it names",
        (OperationAnswer(202, "Checked, and on its way to the delegate", Published),
         OperationAnswer(201, "The delegate has it (with wait)", Published)),
        (replace(_ONE_VERSION, text="Of the type; 1.0 without", where="query", required=False),
         OperationParameter("validate", "Whether the metadata made of it must be valid by the type's schema; false without", kind="boolean"),
         OperationParameter("persist", "Whether it is archived; else the delegate's rules say", kind="boolean"),
         OperationParameter("wait", "Seconds to wait until the delegate has it", **_SECONDS)),
        CLOUDEVENT,
    ),
    Operation(
        "subscribe", "GET", "/v1/types/{type}/{version}/subscribe", "ext",
        "A stream of events: open (Subscribed's subscription), object (ObjectSaid), lost (LossSaid)",
        (OperationAnswer(200, "Server-sent events; their id is the position in the archive, where there is one",
                media=EVENTS),),
        (*_SUBSCRIBING, OperationParameter("events", "Objects come as CloudEvents in structured mode", kind="boolean"), _in("header", "Last-Event-ID", "Go on behind this event", form={"maxLength": 100})),
        is_waiting=True,
    ),
    Operation(
        "openSubscription", "POST", "/v1/types/{type}/{version}/subscriptions", "ext",
        "Subscribe, to be read by nextObjects; it ends when nobody reads it for 30 s",
        (OperationAnswer(201, "The subscription is registered", Subscribed),), _SUBSCRIBING,
    ),
    Operation(
        "nextObjects", "GET", "/v1/subscriptions/{subscription}/next", "ext", "The next objects, as soon as there are any",
        (OperationAnswer(200, "None, if none came in time", Next),),
        (_in("path", "subscription", "As openSubscription said", required=True),
         OperationParameter("after", "`last` of the answer before: what was lost on the way comes again", kind="integer", least=0, most=MAX_POSITION),
         OperationParameter("count", "Objects at most; 1 without", kind="integer", least=1, most=256),
         OperationParameter("timeout", "Seconds to wait; 20 without", **_SECONDS)),
        is_waiting=True,
    ),
    Operation(
        "nextEvent", "GET", "/v1/subscriptions/{subscription}/event", "ext",
        "The next object as a CloudEvent; the header JBI-Last is for after, JBI-Lost has the cause and number of lost objects",
        (OperationAnswer(200, "The event", media=CLOUDEVENT), OperationAnswer(204, "None came in time, or objects were lost")),
        (_in("path", "subscription", "As openSubscription said", required=True), _MODE,
         OperationParameter("after", "JBI-Last of the answer before: what was lost on the way comes again", kind="integer", least=0, most=MAX_POSITION),
         OperationParameter("timeout", "Seconds to wait; 20 without", **_SECONDS)),
        is_waiting=True,
    ),
    Operation(
        "endSubscription", "DELETE", "/v1/subscriptions/{subscription}", "ext", "End it",
        (OperationAnswer(204, "It has ended"),), (_in("path", "subscription", "As openSubscription said", required=True),),
    ),
    Operation(
        "queryObjects", "GET", "/v1/types/{type}/{version}/query", "ext", "Archived objects that match, a page of them",
        (OperationAnswer(200, "In the order that was asked for", Found),),
        (*_ASKING, *_PAYLOADS, OperationParameter("timeout", _TAKING, **{**_SECONDS, "least": 1}), OperationParameter("order", "oldest (without) or newest first", one_of=("oldest", "newest")),
         OperationParameter("limit", "Objects at most; 100 without", kind="integer", least=1, most=1_000)),
    ),
    Operation(
        "countObjects", "GET", "/v1/types/{type}/{version}/count", "ext", "How many archived objects match; payloads are not looked at",
        (OperationAnswer(200, "A copy in another archive counts as well", Counted),),
        (*_ASKING, OperationParameter("timeout", _TAKING, kind="number", least=1, most=60)),  # nothing ends it before
    ),
    Operation(
        "getObject", "GET", "/v1/objects/{object}", "ext", "An archived object",
        (OperationAnswer(200, "It", ObjectSaid),), (_in("path", "object", "Its id", required=True),),
    ),
    Operation(
        "getPayload", "GET", "/v1/objects/{object}/payload", "ext", "The payload of an archived object",
        (OperationAnswer(200, "Its bytes", media="application/octet-stream"),), (_in("path", "object", "Its id", required=True),),
    ),
    Operation(
        "getEvent", "GET", "/v1/objects/{object}/event", "ext", "An archived object as a CloudEvent",
        (OperationAnswer(200, "The event", media=CLOUDEVENT),), (_in("path", "object", "Its id", required=True), _MODE),
    ),
    Operation("listTypes", "GET", "/v1/types", "ext", "Types that are published now", (OperationAnswer(200, "By name", TypesSaid),)),
    Operation(
        "getDocument", "GET", "/v1/openapi.json", "ext", "This document", (OperationAnswer(200, "OpenAPI 3.1", dict),)
    ),
)  # fmt: skip

_C: Final = _in("path", "connection", "As createConnection said", required=True)
_S: Final = _in("path", "sequence", "As createSequence said", required=True)
_DONE: Final = (OperationAnswer(204, "Done"),)
_OF: Final = (
    OperationParameter("kind", "type, attribute or property", required=True, one_of=("type", "attribute", "property")),
    OperationParameter("type", "Name of the type or attribute", required=True, form=_TYPE_FORM),
    OperationParameter("version", "Its version", required=True, form=_VERSION_FORM), OperationParameter("name", "Of a property", form={"maxLength": MAX_PROPERTY_NAME}),
)  # fmt: skip


def _call(name: str, method: str, path: str, text: str, *parameters: OperationParameter, **more: Any) -> Operation:
    answer = more.pop("answer", None)
    status = 201 if name in ("createConnection", "createSequence") else 200
    answers = _DONE if answer is None else (OperationAnswer(status, answer.__doc__.split("\n")[0], answer),)
    return Operation(name, method, f"/v1/capi{path}", "capi", text, answers, parameters, **more)


_CAPI: Final = (
    _call("createConnection", "POST", "/connections", "createConnection; it ends when nobody uses it for 120 s", body=ConnectionAsked, answer=ConnectionSaid),
    _call("destroyConnection", "DELETE", "/connections/{connection}", "destroyConnection", _C),
    _call("authenticate", "POST", "/connections/{connection}/authenticate", "authenticate", _C, body=Document),
    _call("connect", "POST", "/connections/{connection}/connect", "connect", _C),
    _call("disconnect", "POST", "/connections/{connection}/disconnect", "disconnect", _C),
    _call("getNodeDetails", "GET", "/connections/{connection}/node", "getNodeDetails", _C, answer=NodeDetails),
    _call("createSequence", "POST", "/connections/{connection}/sequences", "createPublisherSequence, createSubscriberSequence, createQuerySequence", _C, body=SequenceAsked, answer=SequenceSaid),
    _call("destroySequence", "DELETE", "/connections/{connection}/sequences/{sequence}", "destroySequence", _C, _S),
    _call("getSequenceState", "GET", "/sequences/{sequence}", "getSequenceState, getType, getVersion", _S, answer=SequenceSaid),
    _call("activateSequence", "POST", "/sequences/{sequence}/activate", "activateSequence", _S),
    _call("pauseSequence", "POST", "/sequences/{sequence}/pause", "pauseSequence", _S),
    _call("resumeSequence", "POST", "/sequences/{sequence}/resume", "resumeSequence", _S),
    _call("getSequenceAttributes", "GET", "/sequences/{sequence}/attributes", "getSequenceAttributes", _S, answer=Attributes),
    _call("getSequenceAttribute", "GET", "/sequences/{sequence}/attributes/{name}/{version}", "getSequenceAttribute", _S, _in("path", "name", "Of the attribute", required=True), _in("path", "version", "Of the attribute", required=True), answer=Attribute),
    _call("setSequenceAttribute", "PUT", "/sequences/{sequence}/attributes/{name}/{version}", "setSequenceAttribute", _S, _in("path", "name", "Of the attribute", required=True), _in("path", "version", "Of the attribute", required=True), body=Document),
    _call("setSequencePredicate", "PUT", "/sequences/{sequence}/predicate", "setSequencePredicate", _S, body=Document),
    _call("publishInfoObject", "POST", "/sequences/{sequence}/objects", "publishInfoObject: one object, of the type and version given or else the sequence's", _S, OperationParameter("type", "Of the object", form=_TYPE_FORM), OperationParameter("version", "Of the object", form=_VERSION_FORM), body=MULTIPART, answer=Id),
    _call("getNext", "GET", "/sequences/{sequence}/next", "getNext: one object of a subscriber sequence, count of a query's; a long poll", _S, OperationParameter("timeout", "ms", kind="number", least=0, most=300_000, required=True), OperationParameter("count", "Of a query sequence; 1 without", kind="integer", least=1, most=256), answer=CapiObjects, is_waiting=True),
    _call("executeQuery", "POST", "/sequences/{sequence}/execute", "executeQuery, executeDistributedQuery", _S, body=QueryAsked),
    _call("cancelQuery", "POST", "/sequences/{sequence}/cancel", "cancelQuery", _S),
    _call("getResultCount", "GET", "/sequences/{sequence}/count", "getResultCount", _S, answer=ResultCount),
    _call("getMissingAnswers", "GET", "/sequences/{sequence}/missing", "getMissingAnswers", _S, answer=MissingAnswers),
    _call("addDescriptor", "POST", "/connections/{connection}/repository", "MetadataRepository.add", _C, body=Descriptor),
    _call("updateDescriptor", "PUT", "/connections/{connection}/repository", "MetadataRepository.update", _C, body=Descriptor),
    _call("removeDescriptor", "DELETE", "/connections/{connection}/repository/one", "MetadataRepository.remove", _C, *_OF),
    _call("getDescriptor", "GET", "/connections/{connection}/repository/one", "MetadataRepository.get", _C, *_OF, answer=Descriptor),
    _call("listDescriptors", "GET", "/connections/{connection}/repository", "MetadataRepository.list", _C, OperationParameter("type", "Of this type the properties", form=_TYPE_FORM), OperationParameter("version", "Its version", pattern=_VERSION_FORM["pattern"]), answer=Descriptors),
)  # fmt: skip

OPERATIONS: Final = (*_EXT, *_CAPI)
