"""A federation as a platform of a bridge (see bridge.platform): what it simulates is published as information objects,
and information objects become interactions.

    federate -> RTI -> surrogate -> document -> platform          platform -> rule -> surrogate -> RTI -> federates

The surrogate is an ordinary federate that neither regulates nor is constrained by time: what is published is what is
known now. It takes part in saves, restores and synchronization points as one that has nothing to save and is always
ready. When the RTI is away it comes again when that is there; objects for the federation wait meanwhile where they are.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from immutables import Map

from jbi_pubsub.bridge.elements import Codec
from jbi_pubsub.bridge.file import Place, settings_of, side_of, told
from jbi_pubsub.bridge.platform import Answered, Arrived, Published
from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    BackPressureError,
    ConfigurationError,
    JbiError,
    MetadataError,
    OversizeError,
    ProtocolError,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, SchemaBundle, TypeName, object_id_of
from jbi_pubsub.core.info_object import Platform as Stamp
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import PayloadFilter, compile_filter
from jbi_pubsub.protocol.entries import PLATFORM_NAME
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import QueryRequest

from . import datatypes
from .bridge.state import Call
from .bridge.surrogate import Surrogate
from .documents import Event, Shown, encoded, metadata, payload, shown
from .exceptions import RestoreInProgress, RtiError, SaveInProgress
from .execution import Callback
from .fom import Class, Fom

log = logging.getLogger("jbi_pubsub.hla")

TYPES_MOST: Final = 5_000
"""Classes that are published."""
TAKEN_MOST: Final = 500
FIND_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 1.0
"""Until a federation that is away is looked for again."""
PAUSE: Final = 0.02
"""While a federation is saved, until it is tried again."""
SAVES_MOST: Final = 100
"""Saves of which it is known which instances there were."""
_MANAGER: Final = re.compile(r"HLA(object|interaction)Root(\.HLAmanager(\..*)?)?")
"""The roots, and what each RTI has of its own."""


class Take(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[side.NAME.take]]`: information objects that become interactions. The first that fits counts."""

    interaction: str
    """Name of the interaction class, with or without HLAinteractionRoot."""
    types: tuple[str, ...] = ("*",)
    """Globs of the types' names."""
    parameter: dict[str, str] = {}
    """XPath on the metadata, by parameter: the text of the first that it selects; without one the parameter is left
    out."""
    metadata: str = ""
    """The parameter that gets the metadata as they are; "": none."""
    payload: str = ""
    """The one that gets the payload."""
    id: str = ""
    """The one that gets the object's id, as text."""


class Federation(Place, frozen=True, kw_only=True):
    """`[side.NAME]` of kind "hla" beside one of kind "jbi"."""

    kind: str = "hla"
    federation: str
    """Name of the federation execution."""
    prefix: str = ""
    """Of the types that its classes are published as; "": the federation's name."""
    classes: tuple[str, ...] = ("*",)
    """Globs of the object classes that are published, without HLAobjectRoot."""
    interactions: tuple[str, ...] = ("*",)
    """And of interaction classes, without HLAinteractionRoot."""
    take: tuple[Take, ...] = ()
    payload_most: Annotated[int, msgspec.Meta(ge=1)] = 4 << 20
    """Bytes of payload and metadata of an object that becomes an interaction; larger ones are left out."""


def checked(path: Path, name: str, table: Mapping[str, Any], base: Config) -> tuple[Federation, Config]:
    """A side of a bridge's file, and its settings. Raises ConfigurationError, which names file and side."""
    side: Federation = side_of(path, name, table, Federation)
    config = settings_of(path, name, side, base)
    with told(path, f"side.{name}"):
        if not side.federation or len(side.federation) > 255:
            raise ConfigurationError("federation is the name of a federation execution", hint='federation = "Air"')
        prefix = side.prefix or side.federation
        if not PLATFORM_NAME.fullmatch(prefix):
            raise ConfigurationError(
                f"types can't begin with {prefix[:100]!r}", hint='Set prefix: letters, digits, ".", "_" and "-"'
            )
        for take in side.take:
            for parameter, path_ in take.parameter.items():
                compile_filter(path_, argument=f"take.parameter.{parameter}")
    return side, config


def opened(path: Path, name: str, table: Mapping[str, Any], base: Config, bridge: str) -> FederationPlatform:
    """The side as a platform; nobody need be there. Raises ConfigurationError."""
    side, config = checked(path, name, table, base)
    return FederationPlatform(name, side, config, bridge)


class _Known(NamedTuple):
    """What is known of a federation while it is joined."""

    objects: Map[int, Shown]
    interactions: Map[int, Shown]
    takes: tuple[_Taking, ...]


class _Taking(NamedTuple):
    """A rule, in the words of the model."""

    fits: re.Pattern[str]
    cls: int
    paths: tuple[tuple[int, PayloadFilter, Codec | None], ...]
    metadata: int
    payload: int
    id: int
    id_codec: Codec | None


class FederationPlatform:
    """See the module."""

    def __init__(self, name: str, side: Federation, config: Config, bridge: str) -> None:
        self._name, self._side = name, side
        self._own = f"{bridge}:{name}"
        self._surrogate = Surrogate(config, side.federation)
        self._changed: Callable[[], None] = lambda: None
        self._arrived: Arrived | None = None
        self._is_listening = True
        self._lock = threading.Lock()  # covers what follows
        self._known: _Known | None = None
        self._published: dict[str, Published] = {}
        self._numbers: dict[str, int] = {}
        self._counts = dict.fromkeys(("taken", "told", "filtered", "refused"), 0)
        self._trouble = ""
        self._instances: dict[int, tuple[int, str]] = {}
        """Class and name; of the thread alone, as what follows."""
        self._kept: dict[str, dict[int, tuple[int, str]]] = {}
        self._is_settled = False
        self._calling = threading.Lock()
        """One call at a time: objects for the federation come on threads of their own."""
        self._something, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"bridge-hla-{name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """What it is called in `via`."""
        return self._name

    # -- what is there --------------------------------------------------------------------------------------------

    def published(self) -> Sequence[Published]:
        """A registration for each class."""
        with self._lock:
            return list(self._published.values())

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that has changed."""
        self._changed = changed

    def schema(self, published: Published) -> SchemaBundle:
        """None: what a value looks like is its federate's."""
        return bundle_without(published.type)

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: Arrived) -> None:  # noqa: ARG002  # the file names classes
        """Have objects told, from now on."""
        self._arrived = arrived
        self._something.set()

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        self._is_listening = False

    def _run(self) -> None:
        while not self._stopping.is_set():
            with guarded(self._thread.name):
                try:
                    if self._known is None:
                        self._come()
                    self._something.clear()
                    callbacks = self._surrogate.take(TAKEN_MOST)
                    for callback in callbacks:
                        self._hear(callback)
                    if not callbacks:
                        self._something.wait(AGAIN_SECONDS)
                except JbiError as exc:
                    self._away(exc)

    def _away(self, exc: JbiError) -> None:
        if exc.message != self._trouble:
            log.warning("%s: %s", self._name, exc.message)
        with self._lock:
            self._known, self._trouble = None, exc.message
        with self._calling:
            self._surrogate.leave()
        self._stopping.wait(AGAIN_SECONDS)

    def _come(self) -> None:
        """Join, and declare what is published and taken. Raises JbiError."""
        surrogate = self._surrogate
        surrogate.come(self._own, self._something.set, FIND_SECONDS)
        model = surrogate.model(self._name)
        known = self._understood(model.fom, model.types)
        self._instances, self._is_settled = {}, False
        calls = [Call(0, "publish_interaction_class", (take.cls,)) for take in known.takes]
        # subclasses first: an instance is discovered as of the class that is subscribed to at that moment
        calls += [Call(0, "subscribe_interaction_class", (cls,)) for cls in sorted(known.interactions, reverse=True)]
        calls += [
            Call(0, "subscribe_object_class_attributes", (cls, tuple(sorted(known.objects[cls].members))))
            for cls in sorted(known.objects, reverse=True)
        ]
        for answer in surrogate.do([*calls, Call(0, "query_federation_save_status")]):
            if isinstance(answer, JbiError):
                raise answer
        with self._lock:
            self._known, self._trouble = known, ""
            self._published = {}
            for each in (*known.objects.values(), *known.interactions.values()):
                uid = self._uid(each.type)
                self._published[each.type] = Published(uid, TypeName(each.type))
                self._numbers.setdefault(uid, 0)
        log.info("%s: joined %s as %s", self._name, self._side.federation, self._own)
        self._changed()

    def _uid(self, type_: str) -> str:
        """Of bridges side by side one relays a class."""
        text = f"jbi-pubsub hla 1:{self._name}\0{type_}"
        return f"registration-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _understood(self, fom: Fom, types: datatypes.Types) -> _Known:
        """What goes, by the file and the model. Raises ConfigurationError, ErrorReadingFom, NameNotFound."""
        side = self._side
        prefix = side.prefix or side.federation
        objects = {
            cls.handle: found for cls in _wanted(fom.objects, side.classes)
            if (found := shown(fom, types, prefix, cls, is_object=True)).members
        }  # fmt: skip
        interactions = {
            cls.handle: shown(fom, types, prefix, cls, is_object=False)
            for cls in _wanted(fom.interactions, side.interactions)
        }
        names = [each.type for each in (*objects.values(), *interactions.values())]
        if len(names) > TYPES_MOST or len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1}) if len(names) <= TYPES_MOST else []
            raise ConfigurationError(
                f"{len(names):,} classes, of at most {TYPES_MOST:,}" if not twice else
                f"an object class and an interaction class are both called {twice[0]}",
                hint="Name fewer of them: classes and interactions of the side in the bridge's file",
            )  # fmt: skip
        takes = tuple(_taking(fom, types, take) for take in side.take)
        return _Known(Map(objects), Map(interactions), takes)

    # -- what the federation tells, on the thread -------------------------------------------------------------------

    def _hear(self, callback: Callback) -> None:
        act = _HEARD.get(callback.name)
        if act is not None:
            act(self, *callback.arguments)

    def _discovered(self, instance: int, cls: int, name: str) -> None:
        self._instances[instance] = cls, name
        known = self._known
        if not self._is_settled and known is not None and cls in known.objects:
            self._call("request_attribute_value_update", instance, tuple(sorted(known.objects[cls].members)), b"")

    def _reflected(
        self, instance: int, values: Any, tag: bytes, time_: float | None, retraction: int  # noqa: ARG002  # the standard's
    ) -> None:  # fmt: skip
        self._tell_of(instance, Event(values, time=time_, tag=tag))

    def _removed(self, instance: int, tag: bytes, time_: float | None, retraction: int) -> None:  # noqa: ARG002  # as above
        self._tell_of(instance, Event(time=time_, tag=tag, is_removed=True))
        self._instances.pop(instance, None)

    def _tell_of(self, instance: int, event: Event) -> None:
        cls, name = self._instances.get(instance, (0, ""))
        known = self._known
        if known is not None and cls in known.objects:
            self._tell(known.objects[cls], event._replace(name=name))

    def _received(
        self, cls: int, values: Any, tag: bytes, time_: float | None, retraction: int  # noqa: ARG002  # as above
    ) -> None:  # fmt: skip
        known = self._known
        if known is not None and cls in known.interactions:
            self._tell(known.interactions[cls], Event(values, time=time_, tag=tag))

    def _tell(self, cls: Shown, event: Event) -> None:
        """As an information object, to the other side."""
        document, data = metadata(cls, event), payload(cls, event)
        with self._lock:
            uid = self._published[cls.type].uid
            number = self._numbers[uid] = max(self._numbers[uid] + 1, time.time_ns() // 1000)
            self._counts["told"] += 1
        stamp = Stamp(time.time(), uid, number, len(document), len(data), 0, ())
        if self._arrived is not None and self._is_listening:
            self._arrived.arrived(InfoObject(object_id_of(uid, number), TypeName(cls.type), document, data, stamp))

    def _settled(self, own: str, others: tuple[str, ...]) -> None:  # noqa: ARG002  # the standard's
        self._is_settled = True

    def _saves(self, label: str, time_: float | None) -> None:  # noqa: ARG002  # as above
        self._kept[label] = dict(self._instances)
        for old in list(self._kept)[:-SAVES_MOST]:
            del self._kept[old]
        self._call("federate_save_begun")
        self._call("federate_save_complete")

    def _restores(self, label: str, name: str, handle: int) -> None:  # noqa: ARG002  # as above
        self._call("federate_restore_complete")

    def _restored(self, label: str) -> None:
        if label not in self._kept:
            raise ProtocolError(f"the federation is as it was at {label!r}, which is not known here")  # join anew
        self._instances = dict(self._kept[label])

    def _announced(self, label: str, tag: bytes) -> None:  # noqa: ARG002  # as above
        self._call("synchronization_point_achieved", label)

    def _call(self, service: str, *arguments: Any) -> None:
        """What is refused since it is too late is of no interest."""
        with self._calling:
            [answer] = self._surrogate.do([Call(0, service, arguments)])
        if isinstance(answer, RtiError):
            log.debug("%s: %s refused: %s", self._name, service, answer)
        elif isinstance(answer, JbiError):
            raise answer

    # -- objects to there -----------------------------------------------------------------------------------------

    def register(
        self, published: Published, type_: TypeName, bundle: SchemaBundle, via: tuple[str, ...], *, validate: bool
    ) -> None:
        """A federation has no registrations."""

    def unregister(self, uid: str, *, waits: bool) -> bool:  # noqa: ARG002  # the protocol's
        """As above."""
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:  # noqa: ARG002  # as above
        """An object as an interaction, by the first rule that fits; without one it is left out. Raises
        BackPressureError while the federation is away or is saved, RtiError when it refuses."""
        deadline = time.monotonic() + timeout
        while True:
            known = self._known
            if known is not None:
                take = next((take for take in known.takes if take.fits.match(obj.type.name)), None)
                if take is None:
                    self._count("filtered")
                    return
                if self._sent(take, self._parameters(take, obj)):
                    return
            if self._stopping.wait(PAUSE) or time.monotonic() >= deadline:
                raise BackPressureError(f"the federation {self._side.federation} takes nothing now")

    def unfinished(self, uid: str) -> int:  # noqa: ARG002  # as above
        """None: an interaction that is sent is taken."""
        return 0

    def _parameters(self, take: _Taking, obj: InfoObject) -> tuple[tuple[int, bytes], ...]:
        """Of the interaction. Raises OversizeError, MetadataError for an object that does not fit."""
        if len(obj.metadata) + len(obj.payload) > self._side.payload_most:
            self._count("refused")
            raise OversizeError(f"an object of {obj.type.name} is larger than {self._side.payload_most:,} bytes")
        found: dict[int, bytes] = {}
        try:
            root = parse_metadata(obj.metadata)
            for handle, path, codec in take.paths:
                text = _text(path, root)
                if text is not None:
                    found[handle] = encoded(codec, text)
            if take.id:
                found[take.id] = encoded(take.id_codec, obj.object_id)
        except (JbiError, ValueError) as exc:
            self._count("refused")
            raise MetadataError(f"an object of {obj.type.name} can't be an interaction: {exc}") from exc
        if take.metadata:
            found[take.metadata] = obj.metadata
        if take.payload:
            found[take.payload] = bytes(obj.payload)
        return tuple(sorted(found.items()))

    def _sent(self, take: _Taking, parameters: tuple[tuple[int, bytes], ...]) -> bool:
        """False: not now. Raises RtiError."""
        try:
            with self._calling:
                [answer] = self._surrogate.do([Call(0, "send_interaction", (take.cls, parameters, b"", None))])
        except JbiError as exc:
            log.debug("%s: %s", self._name, exc)  # it is away, which the thread finds out as well
            return False
        if isinstance(answer, SaveInProgress | RestoreInProgress):
            return False
        if isinstance(answer, JbiError):
            self._count("refused")
            raise answer
        self._count("taken")
        return True

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """There is nobody to be told."""

    # -- the rest -------------------------------------------------------------------------------------------------

    def query(self, request: QueryRequest) -> RemoteAnswers:  # noqa: ARG002  # the protocol's
        """A federation has no past that could be asked for."""
        return Answered(None)

    def provide(self, foreign: RemoteArchive) -> None:
        """Nobody asks."""

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            return {
                "kind": "hla",
                "connected": self._known is not None,
                "federation": self._side.federation,
                "published": len(self._published),
                **self._counts,
                "trouble": self._trouble,
            }

    def close(self) -> None:
        """Leave."""
        self.stop_listening()
        self._stopping.set()
        self._something.set()
        self._thread.join(30.0)
        self._surrogate.leave()
        self._surrogate.disconnect()


_HEARD: Final[dict[str, Callable[..., None]]] = {
    "discover_object_instance": FederationPlatform._discovered,
    "reflect_attribute_values": FederationPlatform._reflected,
    "remove_object_instance": FederationPlatform._removed,
    "receive_interaction": FederationPlatform._received,
    "federation_save_status_response": FederationPlatform._settled,
    "initiate_federate_save": FederationPlatform._saves,
    "initiate_federate_restore": FederationPlatform._restores,
    "federation_restored": FederationPlatform._restored,
    "announce_synchronization_point": FederationPlatform._announced,
}


def _wanted(classes: Sequence[Class], globs: Sequence[str]) -> list[Class]:
    pattern = re.compile("|".join(map(fnmatch.translate, globs)) or "(?!)")
    return [
        cls for cls in classes
        if not _MANAGER.fullmatch(cls.name) and pattern.match(cls.name.partition(".")[2])
    ]  # fmt: skip


def _taking(fom: Fom, types: datatypes.Types, take: Take) -> _Taking:
    """Raises NameNotFound."""
    cls = fom.interaction_class(take.interaction)

    def found(name: str) -> tuple[int, Codec | None]:
        if not name:
            return 0, None
        handle = fom.parameter(cls, name)
        known = types.get(fom.parameters[handle - 1].data_type)
        return handle, known.codec if known is not None and known.codec.kind != "octets" else None

    paths = []
    for name, path in take.parameter.items():
        handle, codec = found(name)
        paths.append((handle, compile_filter(path), codec))
    fits = re.compile("|".join(map(fnmatch.translate, take.types)) or "(?!)")
    return _Taking(fits, cls, tuple(paths), found(take.metadata)[0], found(take.payload)[0], *found(take.id))


def _text(path: PayloadFilter, root: Any) -> str | None:
    """Of the first that it selects; None: it selects nothing."""
    selection = path.apply(root)
    if not selection.count:
        return None
    first = parse_metadata(selection.payload, limit=len(selection.payload) + 1)[0]
    return "".join(first.itertext())
