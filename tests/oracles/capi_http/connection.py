"""See the package. Calls go to the gateway; callbacks are told by a thread that asks for what is next."""

from __future__ import annotations

import base64
import os
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "clients"))
from api import Api, ApiError

TURN = 200
"""ms that a callback's thread asks for at a time."""
CODES = (
    "permission_denied", "unsupported_version", "version_number", "invalid_payload", "invalid_metadata", "object_size",
    "paused_sequence", "sequence_state", "invalid_predicate", "predicate_language", "unrecognized_object_type",
    "object_unavailable", "timeout", "connection", "platform_failure",
)  # fmt: skip


class CapiException(Exception):
    pass


KINDS = {
    f"capi_{code}": type("".join(map(str.title, code.split("_"))) + "Exception", (CapiException,), {}) for code in CODES
}
globals().update({kind.__name__: kind for kind in KINDS.values()})


class Calls:
    """What an object of the API has: calls under the names of the document."""

    def __init__(self, api: Api, **ids: str) -> None:
        self.api, self.ids = api, ids

    def call(self, name: str, /, **given: Any) -> Any:
        try:
            return getattr(self.api, name)(**self.ids, **given)
        except ApiError as exc:
            kind = KINDS.get(exc.problem["code"])
            if kind is None:
                raise
            raise kind(str(exc)) from None


class ConnectionManager:
    def __init__(self) -> None:
        self.api = Api(os.environ["GATEWAY"])

    def createConnection(self, name: str, descriptor: str) -> Connection:
        said = Calls(self.api).call("createConnection", body={"name": name, "descriptor": descriptor})
        return Connection(self.api, connection=said["connection"])

    def destroyConnection(self, connection: Connection) -> None:
        connection.call("destroyConnection")


class Connection(Calls):
    def connect(self) -> None:
        self.call("connect")

    def disconnect(self) -> None:
        self.call("disconnect")

    def authenticate(self, credentials: str) -> None:
        self.call("authenticate", body={"document": credentials})

    def createPublisherSequence(self, type: str, version: str) -> Sequence:  # noqa: A002
        return self._sequence("publisher", type, version)

    def createSubscriberSequence(self, type: str, version: str) -> Sequence:  # noqa: A002
        return self._sequence("subscriber", type, version)

    def createQuerySequence(self, type: str, version: str) -> Sequence:  # noqa: A002
        return self._sequence("query", type, version)

    def _sequence(self, kind: str, type_: str, version: str) -> Sequence:
        said = self.call("createSequence", body={"kind": kind, "type": type_, "version": version})
        made = Sequence(self.api, sequence=said["sequence"])
        made.kind = kind
        return made

    def destroySequence(self, sequence: Sequence) -> None:
        self.call("destroySequence", **sequence.ids)

    def createInfoObject(self, type: str, version: str, payload: Any, metadata: Any) -> InfoObject:  # noqa: A002
        if payload is not None and not isinstance(payload, bytes):
            raise KINDS["capi_invalid_payload"]
        if metadata is not None and not isinstance(metadata, str):
            raise KINDS["capi_invalid_metadata"]
        encoded = base64.b64encode(payload or b"").decode()
        return InfoObject({"type": type, "version": version, "payload_base64": encoded, "metadata": metadata or ""})

    def getMetadataRepository(self) -> MetadataRepository:
        return MetadataRepository(self.api, **self.ids)


class InfoObject:
    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said

    def getInfoObjectID(self) -> str:
        return str(self.said.get("id", ""))

    def getType(self) -> str:
        return str(self.said["type"])

    def getVersion(self) -> str:
        return str(self.said["version"])

    def getMetadata(self) -> str:
        return str(self.said["metadata"])

    def getPayload(self) -> bytes:
        return base64.b64decode(self.said["payload_base64"])

    def getExtendedMetadata(self) -> str:
        return str(self.said.get("extended_metadata", ""))


class Sequence(Calls):
    kind = ""
    callback: Any = None

    def activateSequence(self) -> None:
        self.call("activateSequence")
        if self.kind == "subscriber" and self.callback is not None:
            threading.Thread(target=self._tell, daemon=True).start()

    def pauseSequence(self) -> None:
        self.call("pauseSequence")

    def resumeSequence(self) -> None:
        self.call("resumeSequence")

    def getSequenceState(self) -> int:
        return int(self.call("getSequenceState")["state"])

    def setSequenceAttribute(self, name: str, version: str, document: str) -> None:
        self.call("setSequenceAttribute", name=name, version=version, body={"document": document})

    def setSequencePredicate(self, document: str) -> None:
        self.call("setSequencePredicate", body={"document": document})

    def setSequenceCallback(self, callback: Any) -> None:
        self.callback = callback

    def publishInfoObject(self, io: InfoObject) -> str:
        said = self.call(
            "publishInfoObject",
            objects=[(io.getMetadata().encode(), io.getPayload())],
            type=io.getType(),
            version=io.getVersion(),
        )
        io.said["id"] = said["id"]
        return str(said["id"])

    def getNext(self, *given: int) -> Any:
        if self.callback is not None:
            raise KINDS["capi_sequence_state"]
        if self.kind == "subscriber":
            return self._next(timeout=given[0])[0]
        return self._next(count=given[0], timeout=given[1])

    def _next(self, **given: int) -> list[InfoObject]:
        return [InfoObject(each) for each in self.call("getNext", **given)["objects"]]

    def executeQuery(self, callback: Any = None) -> None:
        self._ask(callback, {})

    def executeDistributedQuery(self, timeout: float, callback: Any = None) -> None:
        self._ask(callback, {"distributed": True, "timeout": timeout})

    def _ask(self, callback: Any, body: dict[str, Any]) -> None:
        self.call("executeQuery", body=body)
        self.callback = callback
        if callback is not None:
            threading.Thread(target=self._tell_results, daemon=True).start()

    def cancelQuery(self) -> None:
        self.call("cancelQuery")

    def getResultCount(self) -> int:
        return int(self.call("getResultCount")["count"])

    def _tell(self) -> None:
        while True:
            try:
                for io in self._next(timeout=TURN):
                    self.callback.infoObjectAvailable(io)
            except (KINDS["capi_timeout"], KINDS["capi_paused_sequence"]):
                continue
            except CapiException:
                return  # destroyed

    def _tell_results(self) -> None:
        while found := self._next(count=10, timeout=60_000):
            for io in found:
                self.callback.infoObjectAvailable(io)
        self.callback.queryFinished("finished")


class Descriptor:
    kind = ""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {"kind": self.kind, "type": ""}

    def __getattr__(self, name: str) -> Any:
        """getX and setX of what the document's Descriptor has."""
        fields = {
            "Type": "type", "Name": "type" if self.kind == "attribute" else "name", "Version": "version",
            "MetadataXMLSchema": "schema", "XMLSchema": "schema", "Description": "description",
        }  # fmt: skip
        if name[3:] not in fields:
            raise AttributeError(name)
        field = fields[name[3:]]
        return (lambda: self.said.get(field, "")) if name[:3] == "get" else lambda v: self.said.__setitem__(field, v)

    def setValue(self, value: bytes) -> None:
        self.said["value_base64"] = base64.b64encode(value).decode()

    def getValue(self) -> bytes:
        return base64.b64decode(self.said["value_base64"])


class InfoObjectDescriptor(Descriptor):
    kind = "type"


class AttributeDescriptor(Descriptor):
    kind = "attribute"


class PropertyDescriptor(Descriptor):
    kind = "property"


class MetadataRepository(Calls):
    def add(self, descriptor: Descriptor) -> None:
        self.call("addDescriptor", body=descriptor.said)

    def update(self, descriptor: Descriptor) -> None:
        self.call("updateDescriptor", body=descriptor.said)

    def remove(self, descriptor: Descriptor) -> None:
        self.call("removeDescriptor", **_key(descriptor))

    def get(self, descriptor: Descriptor) -> Descriptor:
        return _described(self.call("getDescriptor", **_key(descriptor)))

    def list(self, of: Descriptor | None = None) -> list[Descriptor]:
        given = {"type": of.said["type"], "version": of.said["version"]} if of is not None else {}
        return [_described(each) for each in self.call("listDescriptors", **given)["descriptors"]]


def _key(descriptor: Descriptor) -> dict[str, Any]:
    return {name: descriptor.said[name] for name in ("kind", "type", "version", "name") if name in descriptor.said}


def _described(said: dict[str, Any]) -> Descriptor:
    kinds = (InfoObjectDescriptor, AttributeDescriptor, PropertyDescriptor)
    made = next(kind for kind in kinds if kind.kind == said["kind"])()
    made.said = said
    return made
