"""The value of one federation execution, and what its services do to it.

Everything is immutable: ints, strs, bytes, floats, tuples, and maps that share what they have in common
(immutables.Map). So an execution is copied for nothing, hashed cheaply, saved as it is, and a service that refuses has
changed nothing. A service is a function

    service(call, *arguments) -> answer

which changes the execution of a ServiceCall, and knows no thread, socket or clock. Handles are ints above 0; one
counter gives those of federates, object instances and retractions.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeVar

from immutables import Map

from .backlog import Backlog
from .exceptions import ObjectInstanceNotKnown
from .fom import Class, Fom, Order

Handles = tuple[int, ...]
Attributes = Map[int, Handles]
"""By object class: sorted handles of attributes."""
Values = tuple[tuple[int, bytes], ...]
"""Handles of attributes or parameters, and what they are encoded as."""
Asked = Literal["TAR", "TARA", "NMR", "NMRA", "FQR", "constrained"]

RTI: Final = -1
"""The RTI itself, as owner and sender of its management object model (mom.py)."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def put_entry(table: Map[K, T], key: K, value: T | None) -> Map[K, T]:
    """The table with that value, without what is empty, false or none."""
    if value:
        return table.set(key, value)
    return table.delete(key) if key in table else table


def only_first(table: Map[tuple[int, int], T], first: int) -> Map[tuple[int, int], T]:
    """The part of the table that begins so."""
    return Map({key: value for key, value in table.items() if key[0] == first})


def without_first(table: Map[tuple[int, int], T], first: int) -> Map[tuple[int, int], T]:
    """The table without what begins so."""
    for key in only_first(table, first):
        table = table.delete(key)
    return table


class Callback(NamedTuple):
    """Callback to a federate: its name by the standard, in Python style, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()
    is_best_effort: bool = False
    """Whether it may be lost on its way to a federate that is slow."""
    rates: tuple[float, ...] = ()
    """Update rates of the reflected values; 0.0: all are wanted. (): of each."""

    def is_about(self, instances: Container[int]) -> bool:
        """Whether it has values of one of some instances, or removes it."""
        return self.name != "receive_interaction" and self.arguments[0] in instances


CONVEYED: Final = {"reflect_attribute_values": 5, "receive_interaction": 5, "remove_object_instance": 4}
"""Callbacks that a federate has sent, and how many arguments they have; a further one is its handle."""


class Notice(NamedTuple):
    """A callback on its way to a federate."""

    federate: int
    callback: Callback


class RtiOptions(NamedTuple):
    """Choices of an RTI that the standard leaves open."""

    one_at_a_time: bool = False
    """A synchronization point can't be registered beside a pending one (Bridging the HLA, section 5.1)."""
    adds: bool = False
    """The services of extensions.py exist."""
    discloses: bool = True
    """Whether the last that has not reported is told so only if it is a surrogate; else whoever it is."""


class FederationModel(NamedTuple):
    """Constants for the life of a federation execution."""

    fom: Fom
    options: RtiOptions = RtiOptions()


# -- federation management --------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A joined federate."""

    name: str
    action: str
    """One of RESIGN_ACTIONS: what is done when it dies."""
    is_surrogate: bool = False
    """Whether it has disclosed that it is a bridge's."""
    kind: str = ""
    """Its type, as it says."""


class Members(NamedTuple):
    """Federates that are joined."""

    joined: Map[int, Member] = Map()
    names: Map[str, int] = Map()


class Point(NamedTuple):
    """A pending synchronization point."""

    tag: bytes
    for_all: bool
    """Whether those who join meanwhile are members too."""
    achieved: Map[int, bool]
    """Outcomes of its members."""
    registrant: int = 0
    failed: bool = False
    """Whether somebody has not succeeded there."""


class Points(NamedTuple):
    """The synchronization points that are pending."""

    pending: Map[str, Point] = Map()
    sets: Map[str, Map[int, bool]] = Map()
    """Members of named sets."""


class Saving(NamedTuple):
    """A save or a restore that is going on, and what was saved."""

    label: str = ""
    """Label of what is going on; "": nothing is."""
    is_restore: bool = False
    states: Map[int, str] = Map()
    """instructed, saving, waiting, failed; of those who are asked."""
    resigned: bool = False
    """One who was asked has left."""
    scheduled: tuple[str, float] | None = None
    """Label and time of a save that waits for its time."""
    kept: Map[str, Execution] = Map()
    """By label, without what these had kept themselves."""
    order: tuple[str, ...] = ()
    """Labels, the oldest first."""


# -- declaration management -------------------------------------------------------------------------------------------


class Declared(NamedTuple):
    """Declarations of federates."""

    published: Map[int, Attributes] = Map()
    subscribed: Map[int, Attributes] = Map()
    sends: Map[int, Handles] = Map()
    """Interaction classes that a federate publishes."""
    hears: Map[int, Handles] = Map()
    """Interaction classes that a federate subscribes to."""
    advised: Map[int, tuple[str, ...]] = Map()
    """Advisories that a federate gets."""
    conveyed: Map[int, bool] = Map()
    """Federates who are told by whom something was sent."""
    passive: Map[int, Map[tuple[str, int, int, int], bool]] = Map()
    """Subscriptions of which nobody is advised: "o", a class, an attribute and a region (0: without), or "i", an
    interaction class, 0 and a region."""
    rates: Map[int, Map[tuple[int, int, int], float]] = Map()
    """Update rates, by object class, attribute and region, where a federate has subscribed with one."""

    def without(self, federate: int) -> Declared:
        """After it has left."""
        return Declared._make(table.delete(federate) if federate in table else table for table in self)

    def publishes(self, federate: int, cls: int) -> Handles:
        """Attributes of a class that a federate publishes."""
        return self.published.get(federate, Map()).get(cls, ())


# -- object management ------------------------------------------------------------------------------------------------


class Instance(NamedTuple):
    """An object instance."""

    cls: int
    name: str
    known: Map[int, int] = Map()
    """As an instance of which class each federate knows it."""


class Instances(NamedTuple):
    """The object instances of a federation."""

    by_handle: Map[int, Instance] = Map()
    by_name: Map[str, int] = Map()
    orders: Map[tuple[int, int], Order] = Map()
    """Order of an instance's attributes, where its owner has changed it."""
    sent: Map[tuple[int, int], Order] = Map()
    """Order of a federate's interactions of a class, where it has changed it."""
    transports: Map[tuple[int, int], int] = Map()
    """Transportation of an instance's attribute, where its owner has changed it."""
    sends: Map[tuple[int, int], int] = Map()
    """The same of a federate's interactions of a class."""
    reserved: Map[str, int] = Map()
    """Names that a federate has reserved."""
    leaving: Map[int, Instance] = Map()
    """Instances that are deleted at a time to come, as those know them who wait for that: they get values of them, send
    those of what they own, and may ask for their names."""

    def forgotten_by(self, federate: int) -> Instances:
        """After it has left."""
        by_handle = self.by_handle
        for handle, instance in self.by_handle.items():
            if federate in instance.known:
                by_handle = by_handle.set(handle, instance._replace(known=instance.known.delete(federate)))
        reserved = Map({name: owner for name, owner in self.reserved.items() if owner != federate})
        sent, sends = without_first(self.sent, federate), without_first(self.sends, federate)
        return self._replace(by_handle=by_handle, sent=sent, sends=sends, reserved=reserved)


# -- ownership management ---------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Claim of a federate that waits for an attribute."""

    federate: int
    tag: bytes
    if_available: bool = False


class Owned(NamedTuple):
    """Owners, by instance and attribute. An attribute of which nothing is said here is unowned."""

    owners: Map[int, Map[int, int]] = Map()
    divesting: Map[int, Map[int, bytes]] = Map()
    """Tags of negotiated divestitures."""
    claims: Map[int, Map[int, tuple[Claim, ...]]] = Map()
    """In the order in which they came."""
    declared: Map[int, Map[int, bool]] = Map()
    """Attributes that a surrogate owns, and nobody on the other side."""

    def owner(self, instance: int, attribute: int) -> int:
        """0: it is unowned."""
        return self.owners.get(instance, Map()).get(attribute, 0)

    def given(self, instance: int, attributes: Iterable[int], federate: int) -> Owned:
        """A federate owns attributes of an instance that it has registered."""
        return self._replace(owners=self.owners.set(instance, Map(dict.fromkeys(attributes, federate))))

    def without(self, instance: int, waiting: Container[int] = ()) -> Owned:
        """After an instance has been deleted; who waits for that owns what it has until then."""
        gone = Owned._make(table.delete(instance) if instance in table else table for table in self)
        had = self.owners.get(instance, Map()).items()
        return gone._replace(owners=put_entry(gone.owners, instance, Map({e: of for e, of in had if of in waiting})))


# -- time management --------------------------------------------------------------------------------------------------


class Pace(NamedTuple):
    """The time of a federate."""

    time: float = 0.0
    is_exclusive: bool = False
    """Whether it was granted its time by TAR or NMR."""
    lookahead: float | None = None
    """None: it does not regulate."""
    floor: float = 0.0
    """Time that it has promised with a larger lookahead that it had."""
    is_constrained: bool = False
    asked: tuple[Asked, float] | None = None
    """Time that it waits to be granted; "constrained": to be safe, from when on it is constrained."""
    is_asynchronous: bool = False
    watched: tuple[float, ...] | None = None
    """Bounds that it was told last, when it watches."""


class Message(NamedTuple):
    """Message that waits for a constrained federate."""

    time: float
    retraction: int
    callback: Callback


class DeletedInstance(NamedTuple):
    """An instance that was deleted at a time to come, and all that is said of it elsewhere."""

    handle: int
    instance: Instance
    owners: Map[int, int]
    divesting: Map[int, bytes] = Map()
    claims: Map[int, tuple[Claim, ...]] = Map()
    declared: Map[int, bool] = Map()
    orders: Map[tuple[int, int], Order] = Map()
    transports: Map[tuple[int, int], int] = Map()
    used: Map[Use, Boxes] = Map()


class Sent(NamedTuple):
    """Message that may still be retracted."""

    time: float
    retraction: int
    receivers: Handles
    deleted: DeletedInstance | None = None


class Clock(NamedTuple):
    """The time of a federation. Who is not here is at 0.0, and neither regulates nor is constrained."""

    paces: Map[int, Pace] = Map()
    waiting: Map[int, Backlog[Message]] = Map()
    """For constrained federates."""
    held: Map[int, tuple[Callback, ...]] = Map()
    """In receive order, for constrained federates that ask for no time."""
    sent: Map[int, Backlog[Sent]] = Map()
    """By sender."""

    def without(self, federate: int) -> Clock:
        """After it has left."""
        return Clock._make(table.delete(federate) if federate in table else table for table in self)

    def pace(self, federate: int) -> Pace:
        """Pace of a federate."""
        return self.paces.get(federate, AT_ZERO)

    def least(self, federate: int) -> float:
        """The least time stamp that waits for a federate; infinity: none does."""
        waits = self.waiting.get(federate)
        return waits[0][0].time if waits else math.inf


AT_ZERO: Final = Pace()


# -- data distribution management -------------------------------------------------------------------------------------

Box = tuple[tuple[int, int, int], ...]
"""Ranges of a region: dimension, lower bound, upper bound (outside). In other dimensions it is as wide as they are."""
Boxes = Map[int, Box]
"""By region; 0: the default region, which has no bounds."""
Use = tuple[str, int, int, int]
"""Where regions count: "update", a federate, an instance and an attribute; "subscribed", a federate, a class and an
attribute; "hears", a federate, an interaction class and 0."""


class Region(NamedTuple):
    """A region of a federate: its ranges as they were set last, and as they count."""

    bounds: Box
    committed: Box
    uses: Map[Use, bool] = Map()


class Regions(NamedTuple):
    """The regions of a federation. A use that is not here has the default region alone."""

    made: Map[int, Map[int, Region]] = Map()
    """By federate and handle."""
    used: Map[Use, Boxes] = Map()

    def put(self, use: Use, boxes: Boxes) -> Regions:
        """With these regions in a use."""
        own, before = self.made.get(use[1], Map()), self.used.get(use, Map())
        if set(boxes) == {0}:
            boxes = Map()
        for each in (set(before) ^ set(boxes)) - {0}:
            uses = own[each].uses
            own = own.set(each, own[each]._replace(uses=uses.set(use, True) if each in boxes else uses.delete(use)))
        return Regions(put_entry(self.made, use[1], own), put_entry(self.used, use, boxes))

    def without(self, federate: int) -> Regions:
        """After it has left."""
        used = self.used
        for region in self.made.get(federate, Map()).values():
            for use in region.uses:
                used = put_entry(used, use, Map())
        return Regions(put_entry(self.made, federate, Map()), used)


# -- management object model -----------------------------------------------------------------------------------------


class Managed(NamedTuple):
    """The management object model, as far as a save keeps it."""

    instances: Map[int, int] = Map()
    """Its object instances, by the federate that they are of; 0: of the federation."""
    periods: Map[int, int] = Map()
    """Seconds between two updates of what is told of a federate; 0: none."""
    reporting: Map[int, bool] = Map()
    """Federates whose exceptions are reported."""
    provides: bool = False
    """Whether owners are asked for values when somebody discovers an instance (HLAautoProvide)."""


# -- the whole --------------------------------------------------------------------------------------------------------


class Execution(NamedTuple):
    """One federation execution."""

    name: str
    members: Members = Members()
    saving: Saving = Saving()
    points: Points = Points()
    declared: Declared = Declared()
    instances: Instances = Instances()
    owned: Owned = Owned()
    clock: Clock = Clock()
    handles: int = 0
    """The last handle that was given."""
    regions: Regions = Regions()
    managed: Managed = Managed()

    def gone_for(self, federate: int, instance: int) -> Execution:
        """After a federate has been told of a removal for which it waited, or has left."""
        leaving = self.instances.leaving
        found = leaving.get(instance)
        if found is None or federate not in found.known:
            return self
        left = found._replace(known=found.known.delete(federate))
        instances = self.instances._replace(
            leaving=leaving.set(instance, left) if left.known else leaving.delete(instance)
        )
        return self._replace(instances=instances, owned=self.owned.without(instance, left.known))


KINDS: Final = (
    Execution, Callback, Claim, Clock, Declared, DeletedInstance, Instance, Instances, Managed, Member, Members,
    Message, Owned, Pace, Point, Points, Region, Regions, Saving, Sent,
)  # fmt: skip
"""The kinds of values that an execution is made of."""


class ServiceStep(NamedTuple):
    """Result of a service: the execution after it, its answer, and what is told, in the order in which each federate
    gets it."""

    execution: Execution
    answer: Any = None
    told: tuple[Notice, ...] = ()


class ServiceCall:
    """A service that a federate calls, on its way: changed in place, and closed to a Step."""

    __slots__ = ("execution", "federate", "model", "moved", "told")

    def __init__(self, model: FederationModel, execution: Execution, federate: int) -> None:
        self.model, self.execution, self.federate = model, execution, federate
        self.told: list[Notice] = []
        self.moved: list[int] = []
        """Instances of which attributes have another owner or region: others may discover them now."""

    def step(self, answer: Any) -> ServiceStep:
        """The service is done."""
        return ServiceStep(self.execution, answer, tuple(self.told))

    def tell(self, federate: int, name: str, *arguments: Any) -> None:
        """A callback for a federate."""
        self.told.append(Notice(federate, Callback(name, arguments)))

    def change(self, part: str, **fields: Any) -> None:
        """Fields of a part of the execution."""
        self.execution = self.execution._replace(**{part: getattr(self.execution, part)._replace(**fields)})

    def next_handle(self) -> int:
        """A handle that nothing else has."""
        handle = self.execution.handles + 1
        self.execution = self.execution._replace(handles=handle)
        return handle

    def next_name(self, stem: str, taken: Container[str]) -> tuple[int, str]:
        """A handle, and a name made of it that is not taken: others may give such names, too."""
        handle = self.next_handle()
        while f"{stem}-{handle}" in taken:
            handle = self.next_handle()
        return handle, f"{stem}-{handle}"

    @property
    def pace(self) -> Pace:
        """The federate's time."""
        return self.execution.clock.paces.get(self.federate, AT_ZERO)

    def set_pace(self, pace: Pace) -> None:
        """The federate's time is another one."""
        clock = self.execution.clock
        self.set_clock(clock._replace(paces=clock.paces.set(self.federate, pace)))

    def set_clock(self, clock: Clock) -> None:
        """The whole clock: what each message and each advance changes goes without the detours of `change`."""
        self.execution = self.execution._replace(clock=clock)

    def known(self, instance: int, *, may_leave: bool = False) -> Instance:
        """An instance that the federate knows; `may_leave`: or of which it waits for the removal. Raises
        ObjectInstanceNotKnown."""
        instances = self.execution.instances
        found = instances.by_handle.get(instance) or (instances.leaving.get(instance) if may_leave else None)
        if found is None or self.federate not in found.known:
            raise ObjectInstanceNotKnown(
                f"the federate knows no object instance {instance}",
                hint="Register it, or wait for discover_object_instance",
                handle=instance,
            )
        return found

    def known_class(self, instance: int, *, may_leave: bool = False) -> Class:
        """The class at which the federate knows an instance. Raises ObjectInstanceNotKnown."""
        return self.model.fom.objects[self.known(instance, may_leave=may_leave).known[self.federate] - 1]

    def begin_save(self, label: str, time: float | None) -> None:
        """Everybody is told to save."""
        joined = sorted(self.execution.members.joined)
        states = Map(dict.fromkeys(joined, "instructed"))
        self.change("saving", label=label, is_restore=False, resigned=False, scheduled=None, states=states)
        for each in joined:
            self.tell(each, "initiate_federate_save", label, time)
