"""A federation as a platform of a bridge (see bridge.platform): what it simulates is published as information objects,
and information objects become interactions.

    federate -> RTI -> surrogate -> document -> platform          platform -> rule -> surrogate -> RTI -> federates

The surrogate is an ordinary federate that neither regulates nor is constrained by time: what is published is what is
known now. It takes part in saves, restores and synchronization points as one that has nothing to save and is always
ready. When the RTI is away it comes again when that is there; objects for the federation wait meanwhile where they are.

Its name is made of the names of bridge and side, so a save knows the gateway again after a restart. Of two gateways of
one name the second waits until the first has left.
"""

from __future__ import annotations

import fnmatch
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from immutables import Map

from jbi_pubsub.bridge.file import settings_of, side_of, told
from jbi_pubsub.bridge.plain import PlainPlatform
from jbi_pubsub.bridge.platform import ObjectReceiver
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, JbiError, OversizeError, ProtocolError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject, TypeName, object_id_of
from jbi_pubsub.core.info_object import Platform as Stamp
from jbi_pubsub.core.xpath import compile_filter
from jbi_pubsub.protocol.entries import PLATFORM_NAME, bridge_name

from . import datatypes
from .bridge.file import FederationPlace
from .bridge.state import Call
from .bridge.surrogate import Surrogate
from .documents import FederationEvent, Shown, metadata, payload, shown
from .exceptions import (
    ErrorReadingFom,
    FederateNameAlreadyInUse,
    InconsistentFom,
    NameNotFound,
    RestoreInProgress,
    RtiError,
    SaveInProgress,
)
from .execution import Callback, Values
from .federate import FederateAmbassador
from .fom import Class, Fom
from .interactions import InteractionMaker, Take, maker_of

log = logging.getLogger("jbi_pubsub.hla")

TYPES_MOST: Final = 5_000
"""Classes that are published."""
TAKEN_MOST: Final = 500
AGAIN_SECONDS: Final = 1.0
"""Until a federation that is away is looked for again."""
PAUSE: Final = 0.02
"""While a federation is saved, until it is tried again."""
STANDBY_SECONDS: Final = 90.0
"""A name that is in use for longer is that of a gateway at work, not of one that has died: no lease takes so long."""
SAVES_MOST: Final = 100
"""Saves of which it is known which instances there were."""
_MANAGER: Final = re.compile(r"HLA(object|interaction)Root(\.HLAmanager(\..*)?)?")
"""The roots, and what each RTI has of its own."""


class GatewaySide(FederationPlace, frozen=True, kw_only=True):
    """The same, beside one of kind "jbi"."""

    prefix: str = ""
    """Prefix of the types that its classes are published as; "": the federation's name."""
    classes: tuple[str, ...] = ("*",)
    """Globs of the object classes that are published, without HLAobjectRoot."""
    interactions: tuple[str, ...] = ("*",)
    """And of interaction classes, without HLAinteractionRoot."""
    take: tuple[Take, ...] = ()
    payload_most: Annotated[int, msgspec.Meta(ge=1)] = 4 << 20
    """Bytes of payload and metadata of an object that becomes an interaction; larger ones are left out."""


def checked(path: Path, name: str, table: Mapping[str, Any], base: Config) -> tuple[GatewaySide, Config]:
    """A side of a bridge's file, and its settings. Raises ConfigurationError, which names file and side."""
    side: GatewaySide = side_of(path, name, table, GatewaySide)
    config = settings_of(path, name, side, base)
    with told(path, f"side.{name}"):
        side.check_federation()
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
    return FederationPlatform(name, side, config, bridge_name(bridge), path.parent)


class _Classes(NamedTuple):
    """Classes of a federation while it is joined."""

    objects: Map[int, Shown]
    interactions: Map[int, Shown]
    takes: tuple[InteractionMaker, ...]


class GatewayAmbassador(FederateAmbassador):
    """The word of the federation: events of what goes to the other side, and consent to what is agreed on. For one
    thread."""

    def __init__(self, tell: Callable[[Shown, FederationEvent], None], call: Callable[..., None]) -> None:
        """`tell` gets the events, `call` calls services."""
        self._tell, self._call = tell, call
        self.known: _Classes | None = None
        """None: the surrogate is not joined, or has not declared anything."""
        self._instances: dict[int, tuple[int, str]] = {}
        """Class and name."""
        self._saved: dict[str, dict[int, tuple[int, str]]] = {}
        self._is_settled = False

    def hear(self, callback: Callback) -> None:
        """Act on a callback of the RTI; whatever else it names is none of ours."""
        if callback.name in _HEARD:
            getattr(self, callback.name)(*callback.arguments)

    def join(self) -> None:
        """The surrogate has joined: it knows no instances, now and at earlier saves."""
        self._instances, self._saved = {}, {}

    def begin(self, known: _Classes) -> None:
        """The surrogate has declared these classes."""
        self.known, self._is_settled = known, False

    def discover_object_instance(self, instance: int, cls: int, name: str) -> None:
        self._instances[instance] = cls, name
        known = self.known
        if not self._is_settled and known is not None and cls in known.objects:
            self._call("request_attribute_value_update", instance, tuple(sorted(known.objects[cls].members)), b"")

    def reflect_attribute_values(
        self, instance: int, values: Values, tag: bytes, time: float | None, retraction: int
    ) -> None:
        self._tell_of(instance, FederationEvent(values, time=time, tag=tag))

    def remove_object_instance(self, instance: int, tag: bytes, time: float | None, retraction: int) -> None:
        self._tell_of(instance, FederationEvent(time=time, tag=tag, is_removed=True))
        self._instances.pop(instance, None)

    def _tell_of(self, instance: int, event: FederationEvent) -> None:
        cls, name = self._instances.get(instance, (0, ""))
        if self.known is not None and cls in self.known.objects:
            self._tell(self.known.objects[cls], event._replace(name=name))

    def receive_interaction(
        self, cls: int, parameters: Values, tag: bytes, time: float | None, retraction: int
    ) -> None:
        if self.known is not None and cls in self.known.interactions:
            self._tell(self.known.interactions[cls], FederationEvent(parameters, time=time, tag=tag))

    def federation_save_status_response(self, own: str, others: tuple[str, ...]) -> None:
        self._is_settled = True

    def initiate_federate_save(self, label: str, time: float | None) -> None:
        self._saved[label] = dict(self._instances)
        for old in list(self._saved)[:-SAVES_MOST]:
            del self._saved[old]
        self._call("federate_save_begun")
        self._call("federate_save_complete")

    def initiate_federate_restore(self, label: str, name: str, handle: int) -> None:
        self._call("federate_restore_complete")

    def federation_restored(self, label: str) -> None:
        if label not in self._saved:
            raise ProtocolError(f"the federation is as it was at {label!r}, which is not known here")  # join anew
        self._instances = dict(self._saved[label])

    def announce_synchronization_point(self, label: str, tag: bytes) -> None:
        self._call("synchronization_point_achieved", label)


_HEARD: Final = frozenset(
    name for name in vars(GatewayAmbassador) if name in vars(FederateAmbassador) and not name.startswith("_")
)


class FederationPlatform(PlainPlatform):
    """See the module."""

    def __init__(self, name: str, side: GatewaySide, config: Config, bridge: str, folder: Path) -> None:
        super().__init__("hla", name, bridge, folder)
        self._side = side
        self._surrogate = Surrogate(config, side.federation)
        self._ambassador = GatewayAmbassador(self._tell, self._call)
        self._arrived: ObjectReceiver | None = None
        self._counts = dict.fromkeys(("taken", "told", "filtered", "refused"), 0)
        self._trouble = ""
        self._calling = threading.Lock()
        """One call at a time: objects for the federation come on threads of their own."""
        self._something, self._stopping = threading.Event(), threading.Event()
        self._is_joined = self._is_due = False
        """Due: what is published and taken is to be declared."""
        self._in_use_since = math.inf
        """When another federate was first seen to have its name (time.monotonic)."""
        own = f"{bridge}:{name}"
        self._thread = threading.Thread(target=self._run, args=(own,), name=f"bridge-hla-{name}", daemon=True)
        self._thread.start()

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: ObjectReceiver) -> None:
        """Have objects told, from now on."""
        self._arrived = arrived
        self._something.set()

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        self._arrived = None

    def _run(self, own: str) -> None:
        while not self._stopping.is_set():
            with guarded(self._thread.name):
                try:
                    if not self._is_joined:
                        self._come(own)
                    self._something.clear()
                    if self._surrogate.has_learned() or self._is_due:
                        self._declare()
                    callbacks = self._surrogate.take(TAKEN_MOST)
                    for callback in callbacks:
                        self._ambassador.hear(callback)
                        self._is_due |= callback.name == "federation_restored"  # with the declarations of that time
                    if not callbacks:
                        self._something.wait(AGAIN_SECONDS)
                except JbiError as exc:
                    self._away(exc)

    def _away(self, exc: JbiError) -> None:
        is_in_use = isinstance(exc, FederateNameAlreadyInUse)
        self._in_use_since = min(self._in_use_since, time.monotonic()) if is_in_use else math.inf
        self._say(exc.message)
        self._is_joined = False
        with self._lock:
            self._ambassador.known = None
        with self._calling:
            self._surrogate.leave()
        self._stopping.wait(AGAIN_SECONDS)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s: %s", self.name, trouble)
        with self._lock:
            self._trouble = trouble

    def _come(self, own: str) -> None:
        """Join. Raises JbiError."""
        self._surrogate.come(own, self._something.set)
        self._ambassador.join()
        self._is_joined = self._is_due = True
        self._in_use_since = math.inf

    def _declare(self) -> None:
        """Declare what is published and taken. While the federation is saved or restored it stays due. Where additions
        to the object model do not fit the file, all is as it was. Raises JbiError."""
        surrogate = self._surrogate
        self._is_due = True
        try:
            model = surrogate.model(self.name)
            known = self._understood(model.fom, model.types)
        except (ConfigurationError, NameNotFound, ErrorReadingFom, InconsistentFom) as exc:
            if self._ambassador.known is None:
                raise
            self._is_due = False
            self._say(f"what has been added to the object model does not go: {exc.message}")
            return
        calls = [Call(0, "publish_interaction_class", (take.cls,)) for take in known.takes]
        # subclasses first: an instance is discovered as of the class that is subscribed to at that moment
        calls += [Call(0, "subscribe_interaction_class", (cls,)) for cls in sorted(known.interactions, reverse=True)]
        calls += [
            Call(0, "subscribe_object_class_attributes", (cls, tuple(sorted(known.objects[cls].members))))
            for cls in sorted(known.objects, reverse=True)
        ]
        for answer in surrogate.do([*calls, Call(0, "query_federation_save_status")]):
            if isinstance(answer, SaveInProgress | RestoreInProgress):
                return  # its end is told
            if isinstance(answer, JbiError):
                raise answer
        self._is_due = False
        if self._ambassador.known is None:
            log.info("%s: joined %s", self.name, self._side.federation)
        with self._lock:
            self._ambassador.begin(known)
            self._trouble = ""
            types = [TypeName(each.type) for each in (*known.objects.values(), *known.interactions.values())]
            self._published = {each: self._registration_of(each, each.name) for each in types}
        self._changed()

    def _understood(self, fom: Fom, types: datatypes.Types) -> _Classes:
        """Classes that go, by the file and the model. Raises ConfigurationError, ErrorReadingFom, NameNotFound."""
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
        takes = tuple(maker_of(fom, types, take) for take in side.take)
        return _Classes(Map(objects), Map(interactions), takes)

    def _tell(self, cls: Shown, event: FederationEvent) -> None:
        """As an information object, to the other side."""
        document, data = metadata(cls, event), payload(cls, event)
        type_ = TypeName(cls.type)
        uid = self._published[type_].uid
        number = self._numbers.next()
        self._count("told")
        stamp = Stamp(time.time(), uid, number, len(document), len(data), 0, ())
        arrived = self._arrived
        if arrived is not None:
            arrived.arrived(InfoObject(object_id_of(uid, number), type_, document, data, stamp))

    def _call(self, service: str, *arguments: Any) -> None:
        """Call a service; a refusal since it is too late is of no interest."""
        with self._calling:
            [answer] = self._surrogate.do([Call(0, service, arguments)])
        if isinstance(answer, RtiError):
            log.debug("%s: %s refused: %s", self.name, service, answer)
        elif isinstance(answer, JbiError):
            raise answer

    # -- objects to there -----------------------------------------------------------------------------------------

    def register(self, *_given: Any, **_more: Any) -> None:
        """A federation has no registrations."""

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """As above."""
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float, waited: float = 0.0) -> None:
        """An object as an interaction, by the first rule that fits; without one it is left out, and where another
        gateway of the name is at work. Raises BackPressureError while the federation is away or is saved, RtiError when
        it refuses."""
        deadline = time.monotonic() + timeout
        while True:
            known = self._ambassador.known
            if time.monotonic() - self._in_use_since > STANDBY_SECONDS:
                self._count("filtered")
                return
            if known is not None:
                take = next((take for take in known.takes if take.fits.match(obj.type.name)), None)
                if take is None:
                    self._count("filtered")
                    return
                if self._sent(take, self._parameters(take, obj)):
                    return
            if self._stopping.wait(PAUSE) or time.monotonic() >= deadline:
                raise BackPressureError(f"the federation {self._side.federation} takes nothing now")

    def unfinished(self, uid: str) -> int:
        """None: an interaction that is sent is taken."""
        return 0

    def _parameters(self, take: InteractionMaker, obj: InfoObject) -> Values:
        """Parameters of the interaction. Raises OversizeError, MetadataError for an object that does not fit."""
        try:
            if len(obj.metadata) + len(obj.payload) > self._side.payload_most:
                raise OversizeError(f"an object of {obj.type.name} is larger than {self._side.payload_most:,} bytes")
            return take.parameters(obj)
        except JbiError:
            self._count("refused")
            raise

    def _sent(self, take: InteractionMaker, parameters: Values) -> bool:
        """False: not now. Raises RtiError."""
        try:
            with self._calling:
                [answer] = self._surrogate.do([Call(0, "send_interaction", (take.cls, parameters, b"", None))])
        except JbiError as exc:
            log.debug("%s: %s", self.name, exc)  # it is away, which the thread finds out as well
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

    # -- the rest -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            return {
                "kind": "hla",
                "connected": self._ambassador.known is not None,
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


def _wanted(classes: Sequence[Class], globs: Sequence[str]) -> list[Class]:
    pattern = re.compile("|".join(map(fnmatch.translate, globs)) or "(?!)")
    return [
        cls for cls in classes
        if not _MANAGER.fullmatch(cls.name) and pattern.match(cls.name.partition(".")[2])
    ]  # fmt: skip
