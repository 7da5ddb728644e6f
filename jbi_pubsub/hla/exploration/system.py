"""Federations, their federates, and bridges, as one value, and everything that can happen to it next.

A move is one of: a federate calls what comes next in its script; a federate, or a surrogate, is told what is first in
its queue; an entry of a bridge's link goes; a bridge asks its RTI. All else follows from these at once.

Of moves that can't matter to anybody else only one is tried (partial-order reduction): a federate that waits for
nothing but to be told something is told it; what a surrogate makes nothing of is gone; an RTI is asked only when its
answer says something new (what it asks for stays so until it is asked).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from immutables import Map

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.hla import rti
from jbi_pubsub.hla.bridge import bridge as spans
from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.bridge.state import Bridge, Call, Plan
from jbi_pubsub.hla.bridge.translation import identity
from jbi_pubsub.hla.exceptions import InvalidLogicalTime, RestoreInProgress, RtiError, SaveInProgress
from jbi_pubsub.hla.execution import Callback, Execution, FederationModel, Notice, RtiOptions
from jbi_pubsub.hla.fom import Fom, parsed
from jbi_pubsub.hla.proxy import modules_of

from . import witness
from .script import FEDERATIONS, Act, FederateName, FederateScript, Group, InstanceName, filled

DATA: Final = Path(__file__).parent / "data"
"""Tables of explorations; and explored.xml, the object model of simulations in which nothing but protocols is looked
at."""

Move = tuple[Any, ...]
"""("step", federate), ("hear", federate), ("tell", bridge, side), ("go", bridge, due)."""


class ChartEvent(NamedTuple):
    """For a chart: who tells whom what."""

    source: str
    target: str
    text: str


class ExploredBridge(NamedTuple):
    """A bridge."""

    sides: tuple[int, int]
    """Its federations."""
    plan: Plan
    surrogates: tuple[int, int]
    """Their handles."""


class Scene(NamedTuple):
    """Constants of a system."""

    models: tuple[FederationModel, ...]
    """By federation."""
    federates: tuple[tuple[int, str, int], ...]
    """Federation, name, handle."""
    spans: tuple[ExploredBridge, ...]
    routes: tuple[Map[int, tuple[int, int]], ...]
    """By federation and handle: (-1, federate) or (bridge, side)."""
    script: FederateScript
    waits: frozenset[str] = frozenset()
    """Callbacks that somebody waits for."""

    def route(self, federation: int, execution: Execution, handle: int) -> tuple[int, int] | None:
        """(-1, federate) or (bridge, side); also of a federate that has joined anew."""
        known = self.routes[federation].get(handle)
        if known is None and handle in execution.members.joined:
            name = execution.members.joined[handle].name
            return next(((-1, place) for place, each in enumerate(self.federates) if each[1] == name), None)
        return known


class System(NamedTuple):
    """State of a system, which changes."""

    executions: tuple[Execution, ...]
    inboxes: tuple[tuple[Callback, ...], ...]
    """Inboxes of federates."""
    programs: tuple[tuple[Group, ...], ...]
    todos: tuple[tuple[Group, ...], ...]
    """Acts of federates since they were told something."""
    heard: tuple[Map[Act, bool], ...]
    """Acts that they wait for."""
    bridges: tuple[Bridge, ...]
    told: tuple[tuple[tuple[Callback, ...], tuple[Callback, ...]], ...]
    """Inboxes of surrogates, by bridge and side."""
    outcomes: Map[tuple[int, str, str], str] = Map()
    """Outcomes of saves, restores and points, by federation, kind and label."""
    memories: tuple[witness.Memory, ...] = ()
    """Memories of what federates were told and have done."""


class Anomaly(NamedTuple):
    """Something that must not be."""

    what: str
    """DOUBLE_OWNER, IN_THE_PAST, ILLEGAL_CALL, BARRIER, or one of those of witness.py."""
    detail: str


@lru_cache(maxsize=1)
def fom() -> Fom:
    """The object model."""
    return parsed(*modules_of([DATA / "explored.xml"]))


class SceneMove:
    """One move: changed in place, and closed to the system after it."""

    def __init__(self, setup: Scene, system: System, events: list[ChartEvent] | None = None) -> None:
        self.setup, self.events = setup, events
        self._before = system
        self.executions = list(system.executions)
        self.inboxes = list(system.inboxes)
        self.programs, self.todos, self.heard = list(system.programs), list(system.todos), list(system.heard)
        self.bridges = list(system.bridges)
        self.told = [list(pair) for pair in system.told]
        self.outcomes, self.memories = system.outcomes, list(system.memories)
        self.found: list[Anomaly] = []

    def system(self) -> System:
        """After it."""
        return System(
            tuple(self.executions), tuple(self.inboxes), tuple(self.programs), tuple(self.todos), tuple(self.heard),
            tuple(self.bridges), tuple([(pair[0], pair[1]) for pair in self.told]), self.outcomes,
            tuple(self.memories),
        )  # fmt: skip

    def say(self, source: str, target: str, text: str) -> None:
        """For the chart."""
        if self.events is not None:
            self.events.append(ChartEvent(source, target, text))

    def say_call(self, source: str, target: str, name: str, arguments: tuple[Any, ...]) -> None:
        """For the chart: a service, or a callback."""
        if self.events is not None:  # nobody looks at most of the moves: then there is nothing to write
            self.events.append(ChartEvent(source, target, _shown(name, arguments)))

    # -- federates -----------------------------------------------------------------------------------------------

    def call(self, federation: int, federate: int, service: str, arguments: tuple[Any, ...]) -> Any:
        """A service. Raises RtiError."""
        step = rti.call(self.setup.models[federation], self.executions[federation], federate, service, *arguments)
        self.executions[federation] = step.execution
        for each in step.told:
            self._queue(federation, each)
        return step.answer

    def _queue(self, federation: int, told: Notice) -> None:
        route = self.setup.route(federation, self.executions[federation], told.federate)
        if route is None:
            return
        bridge, place = route
        if bridge < 0:
            self.inboxes[place] = (*self.inboxes[place], told.callback)
        elif told.callback.name in spans.HEARD:
            self.told[bridge][place] = (*self.told[bridge][place], told.callback)

    def act(self, place: int, group: Group) -> None:
        """Do what a federate does in one go. Raises SaveInProgress, RestoreInProgress; other refusals are its own."""
        federation, name, _ = self.setup.federates[place]
        for act in group:
            arguments = tuple(self._known(federation, each) for each in act.arguments)
            if act.name == rti.JOIN:
                arguments = (name,)
            self.say_call(name, f"RTI {FEDERATIONS[federation]}", act.name, arguments)
            try:
                self.call(federation, self._handle(place), act.name, arguments)
            except (SaveInProgress, RestoreInProgress):
                raise
            except RtiError as exc:
                self.say(f"RTI {FEDERATIONS[federation]}", name, f"refused: {type(exc).__name__}")
            else:
                self._note(place, act.name, arguments)

    def _handle(self, place: int) -> int:
        """Handle of a federate; 0: it is not joined."""
        federation, name, _ = self.setup.federates[place]
        return self.executions[federation].members.names.get(name, 0)

    def _note(self, place: int, service: str, arguments: tuple[Any, ...]) -> None:
        """A federate has called a service, and remembers it."""
        if service == "resign_federation_execution":
            self.inboxes[place], self.todos[place] = (), ()
            self.memories[place] = Map({key: said for key, said in self.memories[place].items() if key[0] == "sent"})
            return
        here = self.executions[self.setup.federates[place][0]]
        cls, name = (arguments or (0,))[0], ""
        if service == "update_attribute_values":
            cls, name = here.instances.by_handle[cls].cls, witness.plain(here.instances.by_handle[cls].name)
        receivers: tuple[int, ...] = ()
        if service in ("update_attribute_values", "send_interaction"):
            routes = [
                self.setup.route(federation, each, federate)
                for federation, each in enumerate(self.executions)
                for federate in witness.receivers(each, service, arguments, cls)
            ]
            receivers = tuple(route[1] for route in routes if route and route[0] < 0 and route[1] != place)
        witness.done(self.memories, place, service, arguments, receivers, name)

    def _known(self, federation: int, value: Any) -> Any:
        if isinstance(value, FederateName):
            members = self.executions[federation].members.names
            return next((members[each] for each in sorted(members) if each.startswith(value.name)), 0)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self._known(federation, each) for each in value)
        if isinstance(value, InstanceName):
            names = self.executions[federation].instances.by_name
            return next((names[each] for each in sorted(names) if each.rpartition(":")[2] == value.name), 0)
        return value

    def hear(self, place: int) -> None:
        """A federate is told the first of its queue."""
        callback, *rest = self.inboxes[place]
        self.inboxes[place] = tuple(rest)
        federation, name, _ = self.setup.federates[place]
        self.say_call(f"RTI {FEDERATIONS[federation]}", name, callback.name, callback.arguments)
        self.found.extend(
            Anomaly(what, f"{name}: {detail}") for what, detail in witness.told(self.memories, place, callback)
        )
        if callback.name in witness.ENDS:
            kind, outcome = witness.ENDS[callback.name]
            self.outcomes = self.outcomes.set((federation, kind, callback.arguments[0]), outcome)
        if callback.name in self.setup.waits:
            for width in range(len(callback.arguments) + 1):
                key = Act(callback.name, callback.arguments[:width], is_told=True)
                self.heard[place] = self.heard[place].set(key, True)
        for reaction in self.setup.script.reactions:
            wanted = reaction.told
            if (
                reaction.who in ("*", name) and wanted.name == callback.name
                and callback.arguments[: len(wanted.arguments)] == wanted.arguments
            ):  # fmt: skip
                self.todos[place] = (*self.todos[place], filled(reaction.acts, callback.arguments))
        self.skip_told(place)

    def skip_told(self, place: int) -> None:
        """Skip what it waited for and has been told."""
        program = self.programs[place]
        while program and program[0][0].is_told and program[0][0] in self.heard[place]:
            self.heard[place] = self.heard[place].delete(program[0][0])
            program = program[1:]
        self.programs[place] = program

    # -- bridges -------------------------------------------------------------------------------------------------

    def tell(self, number: int, side: int) -> None:
        """A surrogate is told the first of its queue."""
        callback, *rest = self.told[number][side]
        self.told[number][side] = tuple(rest)
        plan = self.setup.spans[number].plan
        federation = self.setup.spans[number].sides[side]
        self.say_call(f"RTI {FEDERATIONS[federation]}", self._name(number, side), callback.name, callback.arguments)
        self.run(number, *spans.heard(plan, self.bridges[number], side, callback))

    def go(self, number: int, due: spans.Due) -> None:
        """An entry of a link goes."""
        plan, bridge = self.setup.spans[number].plan, self.bridges[number]
        if due.what != "poll" and self.events is not None:
            link = bridge.links[due.side]
            entry = (link.control if due.what == "control" else link.data)[due.place]
            label = entry.key[2] if entry.key is not None else ""
            kind = f"{entry.key[0]} " if entry.key is not None else ""
            self.say(self._name(number, due.side), self._name(number, 1 - due.side), f"{kind}{entry.kind} {label}")
        self.run(number, *spans.forwarded(plan, bridge, due))

    def _name(self, number: int, side: int) -> str:
        """Name of a surrogate: s_G is joined to F, and stands for all beyond."""
        there = FEDERATIONS[self.setup.spans[number].sides[1 - side]]
        return f"s_{there} in {FEDERATIONS[self.setup.spans[number].sides[side]]}"

    def run(self, number: int, bridge: Bridge, calls: tuple[Call, ...]) -> None:
        """Make calls, and those that come of them."""
        plan = self.setup.spans[number].plan
        before = bridge.counters
        waiting = list(calls)
        while waiting:
            call = waiting.pop(0)
            federation = self.setup.spans[number].sides[call.side]
            handle = self.setup.spans[number].surrogates[call.side]
            self.say_call(self._name(number, call.side), f"RTI {FEDERATIONS[federation]}", call.service, call.arguments)
            try:
                answer = self.call(federation, handle, call.service, call.arguments)
            except RtiError as exc:
                self.say(f"RTI {FEDERATIONS[federation]}", self._name(number, call.side),
                         f"refused: {type(exc).__name__}")  # fmt: skip
                if isinstance(exc, InvalidLogicalTime):
                    self.found.append(Anomaly("IN_THE_PAST", f"{call.service}: {exc.message}"))
                bridge, more = spans.refused(plan, bridge, call, exc)
                if bridge.counters.get("refused", 0) > before.get("refused", 0):
                    self.found.append(Anomaly("ILLEGAL_CALL", f"{call.service}: {type(exc).__name__}"))
                    before = bridge.counters
            else:
                bridge, more = spans.answered(plan, bridge, call, answer)
            waiting[:0] = more
        if bridge.counters.get("barrier_violation"):
            self.found.append(Anomaly("BARRIER", "what may only happen later reached the far side"))
        if any(f"late.{side}" in bridge.counters for side in (0, 1)):
            self.found.append(Anomaly("IN_THE_PAST", "a message came too late for its time on the far side"))
        self.bridges[number] = bridge._replace(counters=Map())


def _shown(name: str, arguments: tuple[Any, ...]) -> str:
    said = ", ".join(repr(each) for each in arguments if each not in (b"", None, ()))
    return f"{name}({said[:60]})"


# -- what can happen next -------------------------------------------------------------------------------------------


def moves(setup: Scene, system: System) -> list[Move]:
    """Moves that can happen; of those that matter to nobody else one."""
    found: list[Move] = []
    for place, inbox in enumerate(system.inboxes):
        program, todo = system.programs[place], system.todos[place]
        if inbox and not todo:
            if not program or program[0][0].is_told:
                return [("hear", place)]
            found.append(("hear", place))
        if todo or (program and not program[0][0].is_told):
            found.append(("step", place))
    for number, bridge in enumerate(system.bridges):
        found.extend(("tell", number, side) for side in (0, 1) if system.told[number][side])
        plan = setup.spans[number].plan
        found.extend(
            ("go", number, due)
            for due in spans.due(plan, bridge)
            if due.what != "poll" or _says_something(setup, system, number, due)
        )
    return found


def _says_something(setup: Scene, system: System, number: int, due: spans.Due) -> bool:
    """Whether the bridge would make something of the answer, or of a refusal, if it were told at once."""
    joint, bridge, side = setup.spans[number], system.bridges[number], due.side
    if any(each.name.endswith("_status_response") for each in system.told[number][side]):
        return False
    model, execution = setup.models[joint.sides[side]], system.executions[joint.sides[side]]
    (call,) = spans.forwarded(joint.plan, bridge, due)[1]
    try:
        step = rti.call(model, execution, joint.surrogates[side], call.service, *call.arguments)
    except RtiError:
        return True
    made = [spans.heard(joint.plan, bridge, side, each.callback) for each in step.told]
    return any(each != (bridge, ()) for each in made or [spans.answered(joint.plan, bridge, call, step.answer)])


def after(
    setup: Scene, system: System, move: Move, events: list[ChartEvent] | None = None
) -> tuple[System, list[Anomaly]] | None:
    """Result of a move; None: it can't be made now."""
    doing = SceneMove(setup, system, events)
    kind, place = move[0], move[1]
    if kind == "hear":
        doing.hear(place)
    elif kind == "tell":
        doing.tell(place, move[2])
    elif kind == "go":
        doing.go(place, move[2])
    else:
        queue = doing.todos if system.todos[place] else doing.programs
        group, *rest = queue[place]
        queue[place] = tuple(rest)
        try:
            doing.act(place, group)
        except (SaveInProgress, RestoreInProgress):
            return None
        doing.skip_told(place)
    made = doing.system()
    if any(one.owned is not other.owned for one, other in zip(made.executions, system.executions, strict=True)):
        doing.found.extend(_double_owners(setup, made))
    return made, doing.found


def _double_owners(setup: Scene, system: System) -> Iterator[Anomaly]:
    """Instance attributes that two ordinary federates own; an instance is known by its name in all federations."""
    owners: dict[tuple[str, int], str] = {}
    for federation, execution in enumerate(system.executions):
        for handle, owned in execution.owned.owners.items():
            instances = execution.instances
            name = (instances.by_handle.get(handle) or instances.leaving[handle]).name.rpartition(":")[2]
            for attribute, federate in owned.items():
                route = setup.route(federation, execution, federate)
                if route is not None and route[0] < 0:
                    who = setup.federates[route[1]][1]
                    other = owners.setdefault((name, attribute), who)
                    if other != who:
                        yield Anomaly("DOUBLE_OWNER", f"{other} and {who} own {attribute} of {name}")


# -- making one -----------------------------------------------------------------------------------------------------


def planned(policy: Solutions, **more: Any) -> Plan:
    """A plan of bridges here, whatever their federations are called; `more`: other fields of it."""
    return Plan(("", ""), policy, identity(fom()), lookahead=0.5)._replace(**more)


def built(
    sizes: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
    plan: Plan,
    script: FederateScript,
    *,
    options: RtiOptions = RtiOptions(),  # noqa: B008  # a value
    late: bool = False,
) -> tuple[Scene, System]:
    """Federations of so many federates, bridges between some, everything that comes before `---` of the script done;
    `late`: before the bridges begin. Raises ConfigurationError."""
    model = FederationModel(fom(), options)
    federates: list[tuple[int, str, int]] = []
    executions = []
    for federation, size in enumerate(sizes):
        execution = rti.created(FEDERATIONS[federation])
        for number in range(size):
            name, handle = f"{FEDERATIONS[federation].lower()}{number}", 0
            acts = (group[0].name for who, group in (*script.first, *script.programs) if who == name)
            if next(acts, "") != rti.JOIN:  # else it joins when its script says so
                execution, handle, _ = rti.call(model, execution, 0, rti.JOIN, name)
            federates.append((federation, name, handle))
        executions.append(execution)
    places = {name: place for place, (_, name, _) in enumerate(federates)}
    for who, _ in (*script.first, *script.programs):
        if who not in places:
            raise ConfigurationError(f"the script has a federate {who}", hint=f"There are {', '.join(sorted(places))}")
    waits = frozenset(act.name for _, group in script.programs for act in group if act.is_told)
    routes = tuple(
        Map({handle: (-1, places[name]) for each, name, handle in federates if each == federation and handle})
        for federation in range(len(sizes))
    )
    setup = Scene((model,) * len(sizes), tuple(federates), (), routes, script, waits)
    nothing = ((),) * len(federates)
    system = System(tuple(executions), nothing, nothing, nothing, (Map(),) * len(federates), (), ())
    system = system._replace(memories=(Map(),) * len(federates))
    if not late:
        setup, system = _bridged(setup, system, edges, plan)
    for who, group in script.first:
        doing = SceneMove(setup, system)
        doing.act(places[who], group)
        system = rested(setup, doing.system())
    if late:
        setup, system = _bridged(setup, system, edges, plan)
    programs = tuple(tuple(group for who, group in script.programs if who == name) for _, name, _ in federates)
    return setup, system._replace(programs=programs)


def _bridged(setup: Scene, system: System, edges: tuple[tuple[int, int], ...], plan: Plan) -> tuple[Scene, System]:
    """The bridges join, one after the other, and declare what they want."""
    for number, sides in enumerate(edges):
        names = (FEDERATIONS[sides[0]], FEDERATIONS[sides[1]])
        executions, routes, handles = list(system.executions), list(setup.routes), []
        told: list[tuple[Callback, ...]] = []
        for side, federation in enumerate(sides):
            step = rti.call(
                setup.models[federation], executions[federation], 0, rti.JOIN, f"s_{names[1 - side]}.{number}"
            )
            executions[federation] = step.execution
            routes[federation] = routes[federation].set(step.answer, (number, side))
            handles.append(step.answer)
            told.append(tuple(each.callback for each in step.told if each.federate == step.answer))
        joint = ExploredBridge(sides, plan._replace(names=names), (handles[0], handles[1]))
        setup = setup._replace(spans=(*setup.spans, joint), routes=tuple(routes))
        system = system._replace(
            executions=tuple(executions), bridges=(*system.bridges, Bridge()), told=(*system.told, (told[0], told[1]))
        )
        doing = SceneMove(setup, system)
        doing.run(number, *spans.declared(joint.plan, Bridge()))
        system = rested(setup, doing.system())
    return setup, system


def rested(setup: Scene, system: System) -> System:
    """Everything that can happen has, in one order."""
    for _ in range(100_000):
        for move in moves(setup, system):
            step = after(setup, system, move)
            if step is not None:
                system = step[0]
                break
        else:
            return system
    raise ConfigurationError("the federations do not come to rest", hint="Bridges in a circle call for ever")
