"""`jbi demo collaboratory`: two simulations that scientists of three domains watch and steer, and talk about.

Each domain has a lookup service, a delegate and a trader. Bridges, which bring what is wanted alone, go from austin to
newark and to boulder, over links that take some milliseconds. A plate is heated in austin; in boulder water drives oil
to the wells at the corners of a reservoir. anna in newark finds both by the traders and watches them by constraints, as
a class of students does; bob in austin steers the plate, and carol in boulder follows him. dave watches the plate in
austin, leaves, and goes on in newark.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from jbi_pubsub import Config, Domain
from jbi_pubsub.bridge.file import OpenBridge, described
from jbi_pubsub.core import extras
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.core.node_sections import DomainSection
from jbi_pubsub.domains.client import Client
from jbi_pubsub.domains.event import MONITORING, STEERING, StructuredEvent
from jbi_pubsub.network.emulation import Link

from .example import ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from .federation import PATIENCE, Federation

NUMBERS: Final = {"newark": 1, "austin": 2, "boulder": 3}
CENTRE: Final = "austin"
"""The domain that the bridges of all others end in."""
DELAY: Final = 0.02
"""Seconds that a link takes, each way."""
STUDENTS: Final = 20
"""Number of those who watch the same, in one domain."""
STEPS: Final = 100
PERIOD: Final = 0.05
"""Seconds between two events of a simulation."""
SIZE: Final = 16
"""Rows and columns of the plate."""
WELLS: Final = 9
"""Rows and columns of the reservoir."""
IS_KEPT: Final = not extras.missing("archive")
"""Whether a delegate can have an archive: without, nobody can leave and come back."""
SHADES: Final = ".:-=+*#%@"

Values = dict[str, Any]


def run(options: ExampleOptions) -> ExampleOutcome:
    """The servers are processes, the bridges and everybody who works there are in this one."""
    steps = STEPS // 3 if options.quick else STEPS
    with TemporaryDirectory(prefix="jbi-demo-") as folder, ExitStack() as stack:
        places = _places(Path(folder), stack)
        options.tell("three domains are ready, each with a lookup service, a delegate and a trader")
        bridges = [_bridge(Path(folder), places, name, stack) for name in NUMBERS if name != CENTRE]
        domains = {name: stack.enter_context(Domain(place.config, name=name)) for name, place in places.items()}
        dave = _Traveller(Path(folder, "dave.journal"), stack)
        work = _Work(domains, places[CENTRE], bridges)
        work.look()
        options.tell(f"anna in newark, and {STUDENTS} students, watch what traders of other domains have found")
        if IS_KEPT:
            dave.watch(places[CENTRE].config)
        work.begin()
        plate = work.steer(steps // 3)
        dave.leave()
        options.tell("bob has set the heater; carol, who follows bob, and anna see it")
        work.talk()
        if IS_KEPT:
            dave.watch(places["newark"].config)
            options.tell("dave, who watched in austin, goes on in newark")
        options.tell("; ".join(f"{each.name}: {each.body['text']}" for each in work.heard))
        work.end(steps)
        if IS_KEPT:
            work.travelled(dave)
        options.tell("the simulations have ended")
        pictures = OutcomeTable("The plate", ("before", "steered"), list(zip(plate, work.plate.picture(), strict=True)))
        return ExampleOutcome(
            (work.table(), work.links(), pictures), tuple(map(Promise, work.promises, work.promises.values()))
        )


# -- the simulations --------------------------------------------------------------------------------------------


class _Plate:
    """Heat equation on a square: heated at its left edge, cold at all others."""

    def __init__(self) -> None:
        self.heater, self._residual = 100.0, 0.0
        self._cells = [[0.0] * SIZE for _ in range(SIZE)]

    def picture(self) -> list[str]:
        rows = [[self.heater, *row[1:]] for row in self._cells[::2]]
        return ["".join(SHADES[min(8, int(cell / 12))] for cell in row) for row in rows]

    def compute(self) -> None:
        for _ in range(20):
            old = [[self.heater, *row[1:]] for row in self._cells]
            for y, x in product(range(1, SIZE - 1), repeat=2):
                around = old[y - 1][x] + old[y + 1][x] + old[y][x - 1] + old[y][x + 1]
                self._cells[y][x] = old[y][x] + 0.2 * (around - 4 * old[y][x])
        self._residual = max(abs(new - was) for rows in zip(self._cells, old, strict=True)
                             for new, was in list(zip(*rows, strict=True))[1:])  # fmt: skip

    def values(self) -> Values:
        return {"heater": self.heater, "residual": self._residual}


class _Reservoir:
    """Water that is injected in the middle of a square drives oil to the wells at its corners: pressures by relaxation,
    saturations upwind."""

    def __init__(self) -> None:
        self.rate, last, middle = 1.0, WELLS - 1, WELLS // 2
        places = list(product(range(WELLS), repeat=2))
        self._beside = {(y, x): [each for each in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
                                 if min(each) >= 0 and max(each) <= last] for y, x in places}  # fmt: skip
        self._middle, self._corners = (middle, middle), [(0, 0), (0, last), (last, 0), (last, last)]
        self._pressure, self._water = dict.fromkeys(places, 0.0), dict.fromkeys(places, 0.0)

    def compute(self) -> None:
        source = {self._middle: self.rate, **dict.fromkeys(self._corners, -self.rate / 4)}
        for _ in range(30):
            for cell, beside in self._beside.items():
                flows = sum(self._pressure[each] for each in beside) + source.get(cell, 0.0)
                self._pressure[cell] = flows / len(beside)
        share = {cell: _share(water) for cell, water in self._water.items()}
        for cell, beside in self._beside.items():
            inward = {each: self._pressure[each] - self._pressure[cell] for each in beside}
            flow = sum(rate * share[each if rate > 0 else cell] for each, rate in inward.items())
            well = source.get(cell, 0.0)
            self._water[cell] = min(1.0, max(0.0, self._water[cell] + flow + well * (1.0 if well > 0 else share[cell])))

    def values(self) -> Values:
        return {"rate": self.rate, "cut": sum(_share(self._water[each]) for each in self._corners) / 4}


class _ModelRun:
    """A simulation that computes a step for each event, once it may `go`, and knows what it has told."""

    def __init__(self, name: str, model: _Plate | _Reservoir) -> None:
        self.name, self.model = name, model
        self.go = threading.Event()
        self.told: list[tuple[float, Values]] = []
        self.step = 0

    def state(self) -> Values:
        if self.go.is_set():
            self.step += 1
            self.model.compute()
        values = {"step": self.step, **self.model.values()}
        self.told.append((time.monotonic(), values))
        return values


def _share(water: float) -> float:
    """Share of water in what flows, where so much of the pores is water (Buckley and Leverett)."""
    return water**2 / (water**2 + (1 - water) ** 2)


# -- the scientists ---------------------------------------------------------------------------------------------


class _Watcher:
    """Somebody who watches a simulation by a constraint, and what should come to him: that for which it is true."""

    def __init__(self, client: Client, at: str, of: _ModelRun, value: str, least: float, links: int) -> None:
        self.at, self.of, self._value, self._least = at, of, value, least
        self.came: list[tuple[float, Values]] = []
        (found,) = client.find(f"name == '{of.name}'")
        constraint = f"{value} > {least}"
        client.watch(found, constraint, lambda event: self.came.append((time.monotonic(), dict(event.body))))
        self.said = client.name, at, of.name, constraint, links

    @property
    def steps(self) -> list[int]:
        return [values["step"] for _, values in self.came]

    @property
    def is_right(self) -> bool:
        return self.steps == [values["step"] for _, values in self.of.told if values[self._value] > self._least]

    @property
    def latency(self) -> float:
        at = {values["step"]: when for when, values in self.of.told}
        return 1_000 * median(when - at[values["step"]] for when, values in self.came)


class _Traveller:
    """Somebody who watches the plate, in one domain and then in another one."""

    def __init__(self, journal: Path, stack: ExitStack) -> None:
        self.steps: list[Any] = []
        self._journal, self._stack = journal, stack.enter_context(ExitStack())

    def watch(self, config: Config) -> None:
        client = self._stack.enter_context(Domain(config, name="dave")).client("dave", journal=self._journal)
        constraint = "step > 0 and heater > 0"
        client.watch("heat", constraint, lambda event: self.steps.append(event.body["step"]), durable=True)

    def leave(self) -> None:
        self._stack.close()


class _Work:
    """Everybody, and what they have seen."""

    def __init__(self, domains: dict[str, Domain], centre: Federation, bridges: list[OpenBridge]) -> None:
        self._domains, self._centre, self._bridges = domains, centre, bridges
        self.plate = _Plate()
        self._heat, self._oil = _ModelRun("heat", self.plate), _ModelRun("oil", _Reservoir())
        self._applications = []
        for each, at, parameter in ((self._heat, "austin", "heater"), (self._oil, "boulder", "rate")):
            made = domains[at].application(each.name, each.state, period=PERIOD)
            made.steer(
                parameter, set=partial(setattr, each.model, parameter), get=partial(getattr, each.model, parameter)
            )
            self._applications.append(made)
        self.heard: list[StructuredEvent] = []
        self._anna = domains["newark"].client("anna", self.heard.append)
        self._bob = domains["austin"].client("bob", self.heard.append)
        self._carol = domains["boulder"].client("carol")
        self._watchers: list[_Watcher] = []
        self._followed: list[StructuredEvent] = []
        self.promises: dict[str, bool] = {}

    def look(self) -> None:
        """Applications are found, by traders of other domains, too, and watched."""
        self._centre.until(lambda: self._find("heat") and self._find("oil"), "the traders to find them")
        found = self._find("heat") == NUMBERS["austin"] and self._find("oil") == NUMBERS["boulder"]
        self.promises["anna has found the applications of other domains by their traders"] = found
        students = [self._domains["newark"].client(f"student {number}") for number in range(1, STUDENTS + 1)]
        self._watchers = [
            _Watcher(self._bob, "austin", self._heat, "step", 0, 0),
            _Watcher(self._anna, "newark", self._heat, "residual", 0.2, 1),
            _Watcher(self._anna, "newark", self._oil, "cut", 0.1, 2),
            *(_Watcher(each, "newark", self._heat, "step", 0, 1) for each in students),
        ]
        self._carol.follow("bob", self._followed.append)

    def begin(self) -> None:
        """The simulations begin, as soon as what is wanted of them is subscribed to in their domains."""
        stand = "austin newark residual,austin newark cut,boulder austin cut,austin boulder step"
        ways = [each.rsplit(" ", 1) for each in stand.split(",")]
        self._centre.until(lambda: all(self._stands(*each) for each in ways), "the bridges")
        for each in self._applications:
            each.enter("computing")
        self._heat.go.set()
        self._oil.go.set()
        self._bob.get("heat", "heater")  # his first command: from then on they are known in boulder
        self._centre.until(lambda: self._stands("austin boulder", "client"), "carol's domain to follow bob")

    def steer(self, after: int) -> list[str]:
        """bob steers the one simulation, anna the other; the plate as it was before."""
        self._centre.until(lambda: self._heat.step >= after, "the plate")
        before = self.plate.picture()
        self._bob.set("heat", "heater", 40.0)
        at = time.monotonic()
        self._anna.set("oil", "rate", 3.0)
        answers = self._anna.get("heat", "heater"), self._bob.get("oil", "rate")
        self.promises["commands from other domains are answered"] = answers == (40.0, 3.0)
        anna = self._watchers[1].came
        self._centre.until(lambda: anna and anna[-1][1]["heater"] == 40.0, "anna to see it")
        heaters = {values["heater"] for when, values in [*self._heat.told, anna[-1]] if when > at}
        self.promises["what bob has set shows in all events after the answer, and at anna's"] = heaters == {40.0}
        self._centre.until(lambda: any(event.name == "set" for event in self._followed), "carol to see it")
        types = {each.type for each in self._followed}
        self.promises["carol, who follows bob, has what bob does and watches"] = types == {"Steering", "Monitoring"}
        return before

    def talk(self) -> None:
        """anna and bob talk."""
        self._anna.talk("bob", "why is it colder?")
        self._centre.until(lambda: len(self.heard) == 1, "bob to hear anna")
        self._bob.talk("anna", "I have turned the heater down")
        self._centre.until(lambda: len(self.heard) == 2, "anna to hear bob")
        self.promises["anna and bob have heard each other"] = [each.name for each in self.heard] == ["anna", "bob"]

    def end(self, steps: int) -> None:
        """The simulations leave after so many steps, and everything comes."""
        self._centre.until(lambda: min(self._heat.step, self._oil.step) >= steps, "the simulations")
        self._centre.until(lambda: all(len(each.came) >= 3 for each in self._watchers), "what is watched")
        for each in self._applications:
            each.close()
        self._centre.until(lambda: not self._find("oil"), "the traders to miss what has left")
        self.promises["what has left is not found"] = not self._find("oil")
        deadline = time.monotonic() + PATIENCE / 4
        self._centre.until(lambda: self._is_right() or time.monotonic() > deadline, "what is watched")
        time.sleep(0.5)  # what comes twice would show itself
        self.promises["every event that a constraint is true for came once and in order"] = self._is_right()
        watched = self._wanted("austin newark")
        distinct = {(each.of.name, step) for each in self._watchers if each.at == "newark" for step in each.steps}
        self.promises["what crossed to newark crossed once, for all there"] = watched["crossed"] == len(distinct)
        said = any(each["behind"] == STUDENTS for each in watched["members"]) and watched["saved"] > 0
        self.promises[f"the bridge says that {STUDENTS} students are one, and how many copies that saves"] = said

    def travelled(self, dave: _Traveller) -> None:
        """Dave gets what he was to have."""
        told = [values["step"] for _, values in self._heat.told if values["step"]]
        deadline = time.monotonic() + PATIENCE / 4
        self._centre.until(lambda: dave.steps == told or time.monotonic() > deadline, "what dave has missed")
        promise = "dave, who left austin, has in newark every event once and in order"
        self.promises[promise] = dave.steps == told

    def table(self) -> OutcomeTable:
        rows = [(*each.said, len(each.came), f"{each.latency:.1f}") for each in self._watchers[:4]]
        title = f"Who watches (the students are {STUDENTS}; this is the first)"
        return OutcomeTable(title, ("who", "in", "watches", "where", "links", "events", "ms (median)"), rows)

    def links(self) -> OutcomeTable:
        ways = [(way, self._wanted(way)) for way in ("austin newark", "boulder austin", "austin boulder")]
        rows = [(way, sum(each["behind"] for each in of["members"]), of["crossed"], of["saved"]) for way, of in ways]
        return OutcomeTable("Monitoring events on the links", ("way", "wanted by", "crossed", "saved, about"), rows)

    def _is_right(self) -> bool:
        return all(each.is_right for each in self._watchers)

    def _find(self, application: str) -> int:
        """Number of the domain in which anna finds an application, 0 when she does not."""
        found = self._anna.find(f"name == '{application}'")
        return int(str(found[0].properties["domain"])) if found else 0

    def _stands(self, way: str, word: str) -> bool:
        return any(word in (self._wanted(way, each)["subscribed"] or "") for each in (MONITORING, STEERING))

    def _wanted(self, way: str, type_: str = MONITORING) -> dict[str, Any]:
        """Says a bridge of the events of a type on "SOURCE TARGET"."""
        ways = (each for bridge in self._bridges for each in bridge.status()["directions"])
        found = next(each["wanted"].get(type_) for each in ways if f"{each['from']} {each['to']}" == way)
        return found or {"subscribed": None, "members": (), "crossed": 0, "saved": 0}


def _places(folder: Path, stack: ExitStack) -> dict[str, Federation]:
    """The domains' servers, all at once; the centre's delegate keeps events, where it can."""
    archive = ArchiveSection(reserve=0.0)
    configs = {
        name: Config(archive=archive, domain=DomainSection(number=number, name=name))
        for name, number in NUMBERS.items()
    }
    (folder / "policy.toml").write_text('[[keep]]\ntype = "discover.*"\nrelayed = false\n')
    kept = ("--set", f"policy.file={folder / 'policy.toml'}"), ("--archive", str(folder / "archive"))
    places = {name: stack.enter_context(Federation(config)) for name, config in configs.items()}

    def trade(name: str) -> None:
        others = ",".join(each.locator for other, each in places.items() if other != name)
        own = ("--set", f"domain.number={NUMBERS[name]}", "--set", f"domain.traders={others}")
        places[name].server("trader", *own, "trader", "serve", "--port", "0")

    def serve(name: str) -> None:
        own, flags = kept if IS_KEPT and name == CENTRE else ((), ())
        places[name].lookup().server(name, *own, "pad", name, "lab", *flags)

    with ThreadPoolExecutor(len(places)) as starting:
        list(starting.map(serve, places))
        list(starting.map(trade, places))
    return places


def _bridge(folder: Path, places: dict[str, Federation], name: str, stack: ExitStack) -> OpenBridge:
    """A bridge between the centre and another domain, which is behind a link."""
    link = stack.enter_context(Link(f"127.0.3.{1 + NUMBERS[name] * 2}"))
    link.shape(delay=DELAY)
    there = link.behind(places[name].config, str(places[name].ready[name]["address"]))
    file = folder / f"{name}.toml"
    sides = {CENTRE: places[CENTRE].locator, name: there.lookup.locators[0]}
    text = f'name = "{CENTRE}-{name}"\npoll = 0.5\n'
    text += "".join(f'[side.{side}]\nlocators = ["{at}"]\ndelegate = ["{side}", "lab"]\n' for side, at in sides.items())
    for source, target in ((CENTRE, name), (name, CENTRE)):
        text += f'[[direction]]\nfrom = "{source}"\nto = "{target}"\ntypes = ["discover.*"]\nwanted = true\n'
    file.write_text(text)
    bridge = described(file).opened(places[CENTRE].config)
    stack.callback(bridge.close)
    bridge.start()
    return bridge
