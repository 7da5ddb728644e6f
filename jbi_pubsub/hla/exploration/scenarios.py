"""The problems of bridges (Bridging the HLA, section 5), each as a script that has it, and the solutions of section 6
for each: 24 cells, of which some are none, since no solution of that kind exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.execution import RtiOptions

from .script import FEDERATIONS, FederateScript, read
from .search import STATES_MOST, Exploration, explore
from .system import Scene, System, built, fom, planned

SOLUTIONS: Final = ("add", "smart", "restrict", "ignore")


class Scenario(NamedTuple):
    """A script, and what it needs."""

    name: str
    problem: str
    about: str
    text: str
    couples: bool = False
    """Time advances on both sides together."""
    late: bool = False
    """Whether what comes before `---` happens before the bridges join."""
    one_at_a_time: bool = False

    @property
    def script(self) -> FederateScript:
        """Read."""
        return read(self.text)


_THING: Final = fom().object_class("Thing")
_X: Final = fom().attribute(_THING, "x")
_CALL: Final = fom().interaction_class("Call")

_SAVES: Final = "* <- initiate_federate_save: federate_save_begun(); federate_save_complete()\n"
_RESTORES: Final = "* <- initiate_federate_restore: federate_restore_complete()\n"
_ACHIEVES: Final = "* <- announce_synchronization_point: synchronization_point_achieved($1)\n"
_DECLARED: Final = "".join(
    f"{who}: {service}_object_class_attributes({_THING}, ({_X},))\n"
    for who in ("f0", "g0", "f1")
    for service in ("publish", "subscribe")
)
_CALLS: Final = "".join(
    f"{who}: {service}_interaction_class({_CALL})\n" for who in ("f0", "g0") for service in ("publish", "subscribe")
)
_OTHERS: Final = "".join(
    f"{who} <- initiate_federate_save: federate_save_begun(); federate_save_complete()\n"
    for who in ("f0", "f1", "g1", "h0")
)
_SEEN: Final = f"""f0: publish_object_class_attributes({_THING}, ({_X},))
g0: subscribe_object_class_attributes({_THING}, ({_X},))
f0: register_object_instance({_THING}, "a")
"""
_OWNED: Final = f'{_DECLARED}f0: register_object_instance({_THING}, "a")\n'

SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("save", "consensus", "a federate asks for a save", f'{_SAVES}f0: request_federation_save("L")'),
        Scenario(
            "restore", "consensus", "what was saved is restored, asked for on the other side",
            f'{_SAVES}{_RESTORES}f0: request_federation_save("L")\n---\ng0: request_federation_restore("L")',
        ),
        Scenario(
            "sync", "consensus", "a federate registers a synchronization point",
            f'{_ACHIEVES}f0: register_federation_synchronization_point("A", b"")',
        ),
        Scenario(
            "saves", "consensus", "two saves are asked for at once, one on each side",
            f'{_SAVES}f0: request_federation_save("K")\ng0: request_federation_save("L")',
        ),
        Scenario(
            "fails", "consensus", "a federate can't save, and says so when others have saved",
            f"""{_OTHERS}g0 <- initiate_federate_save: federate_save_begun()
f0: request_federation_save("L")
g0 <- initiate_federate_save()
g0: federate_save_not_complete()
""",
        ),
        Scenario(
            "leaves", "consensus", "a federate resigns while there is a point, and another one comes again",
            f"""{_ACHIEVES}
f0: register_federation_synchronization_point("A", b"A")
g0: resign_federation_execution("no_action")
""",
        ),
        Scenario(
            "joins", "consensus", "a federate joins while there is a point",
            f"""{_ACHIEVES}
f0: register_federation_synchronization_point("A", b"A")
g0: join_federation_execution()
""",
        ),
        Scenario(
            "order", "barrier", "messages are sent before a point and behind it",
            f"""{_ACHIEVES}{_CALLS}---
f0: send_interaction({_CALL}, (), b"1")
f0: register_federation_synchronization_point("A", b"A")
f0 <- federation_synchronized("A")
f0: send_interaction({_CALL}, (), b"2")
g0 <- federation_synchronized("A")
g0: send_interaction({_CALL}, (), b"3")
""",
        ),
        Scenario(
            "undone", "state", "values and a deletion behind a save, which is restored",
            f"""{_SAVES}{_RESTORES}{_SEEN}f0: update_attribute_values(@a, (({_X}, b"1"),), b"1")
f0: request_federation_save("L")
---
f0: update_attribute_values(@a, (({_X}, b"2"),), b"2")
f0: delete_object_instance(@a)
f0: request_federation_restore("L")
f0 <- federation_restored("L")
f0: update_attribute_values(@a, (({_X}, b"3"),), b"3")
""",
        ),
        Scenario(
            "time", "consensus", "both sides advance, and send to each other in time-stamp order",
            f"""
f0: publish_interaction_class({_CALL})
g0: publish_interaction_class({_CALL})
f0: subscribe_interaction_class({_CALL})
g0: subscribe_interaction_class({_CALL})
f0: enable_time_regulation(1.0)
g0: enable_time_regulation(1.0)
f0: enable_time_constrained()
g0: enable_time_constrained()
---
f0: send_interaction({_CALL}, (), b"1", 3.0)
f0: time_advance_request(2.0)
f0 <- time_advance_grant(2.0)
f0: time_advance_request(4.0)
f0 <- time_advance_grant(4.0)
g0: time_advance_request(3.0)
g0 <- time_advance_grant(3.0)
g0: send_interaction({_CALL}, (), b"2", 4.5)
g0: time_advance_request(4.0)
g0 <- time_advance_grant(4.0)
""",
            couples=True,
        ),
        Scenario(
            "barrier", "barrier", "a point is registered as soon as another one is over",
            f"""{_ACHIEVES}
f0: register_federation_synchronization_point("A", b"")
f0 <- federation_synchronized("A")
f0: register_federation_synchronization_point("B", b"")
""",
            one_at_a_time=True,
        ),
        Scenario(
            "failure", "failure", "both sides register a point under the same label",
            f"""{_ACHIEVES}
f0: register_federation_synchronization_point("A", b"")
g0: register_federation_synchronization_point("A", b"")
""",
        ),
        Scenario(
            "addressing", "addressing", "a point for some federates: the surrogate is one of them",
            f"""{_ACHIEVES}
f0: register_federation_synchronization_point("A", b"", (&f0, &s_))
""",
        ),
        Scenario(
            "sets", "addressing", "a point for a named set, which has members on both sides",
            f"""{_ACHIEVES}
f0: join_set("S")
g0: join_set("S")
---
f0: register_synchronization_point_for_set("A", b"", "S")
""",
        ),
        Scenario(
            "ownership", "state", "two want an attribute at once, one on each side",
            f"""{_OWNED}---
g0: attribute_ownership_acquisition(@a, ({_X},), b"")
f1: attribute_ownership_acquisition(@a, ({_X},), b"")
* <- request_attribute_ownership_release: attribute_ownership_divestiture_if_wanted($1, $2)
""",
        ),
        Scenario(
            "divestiture", "state", "an attribute is given up, and whoever is offered it takes it",
            f"""{_OWNED}---
f0: unconditional_attribute_ownership_divestiture(@a, ({_X},))
* <- request_attribute_ownership_assumption: attribute_ownership_acquisition_if_available($1, $2)
""",
        ),
        Scenario(
            "unowned", "state", "the value of an attribute is wanted that nobody owns",
            f"""{_OWNED}f0: update_attribute_values(@a, (({_X}, b"1"),), b"")
f0: unconditional_attribute_ownership_divestiture(@a, ({_X},))
---
g0: request_attribute_value_update(@a, ({_X},), b"")
""",
        ),
        Scenario(
            "late", "information", "the bridge joins when there is an object and a point",
            f"""{_OWNED}f0: register_federation_synchronization_point("A", b"")
---
* <- announce_synchronization_point: synchronization_point_achieved($1)
f0 <- provide_attribute_value_update: update_attribute_values($1, (({_X}, b"1"),), b"")
f0: synchronization_point_achieved("A")
f1: synchronization_point_achieved("A")
""",
            late=True,
        ),
    )
}  # fmt: skip


class Cell(NamedTuple):
    """A solution for a problem; without a policy there is none, and `about` says why."""

    problem: str
    solution: str
    policy: Solutions | None
    scenarios: tuple[str, ...]
    about: str
    wrong: tuple[tuple[str, str], ...] = ()
    """Scenarios in which something is wrong by design, and what."""

    def expected(self, scenario: str) -> str:
        """The verdict."""
        return dict(self.wrong).get(scenario, "ok")


_AGREEMENTS: Final = ("save", "fails", "restore", "sync", "saves", "leaves", "joins", "time")

CELLS: Final = (
    Cell("consensus", "add", Solutions(consensus="add"), _AGREEMENTS,
         "RTIs tell surrogates that they are the last ones", (("joins", "SOON"),)),
    Cell("consensus", "smart", Solutions(), _AGREEMENTS, "surrogates ask whether they are the last ones",
         (("joins", "SOON"),)),
    Cell("consensus", "restrict", Solutions(consensus="restrict"),
         ("save", "sync"), "each federation agrees by itself"),
    Cell("consensus", "ignore", Solutions(consensus="ignore"), ("save", "sync"), "surrogates consent at once"),
    Cell("barrier", "add", None, (), "no service of an RTI can hold what its federates do in another federation"),
    Cell("barrier", "smart", Solutions(), ("barrier", "order"), "what comes too early waits in the bridge"),
    Cell("barrier", "restrict", None, (), "no rule for federates prevents the race (section 6.3)"),
    Cell("barrier", "ignore", Solutions(barrier="ignore"), ("barrier",), "what comes too early goes, and is counted",
         (("barrier", "BARRIER"),)),
    Cell("failure", "add", Solutions(consensus="add", failure="add"), ("failure",), "who asked is told"),
    Cell("failure", "smart", Solutions(), ("failure",), "the far one is renamed"),
    Cell("failure", "restrict", Solutions(failure="restrict"),
         ("failure",), "labels without their federation stay here"),
    Cell("failure", "ignore", Solutions(failure="ignore"), ("failure",), "the surrogate consents for the far side"),
    Cell("addressing", "add", Solutions(consensus="add", addressing="add"),
         ("sets",), "sets have members on both sides"),
    Cell("addressing", "smart", None, (), "a bridge can't know whom a federate means on the far side"),
    Cell("addressing", "restrict", Solutions(), ("sets",), "sets are a matter of one federation"),
    Cell("addressing", "ignore", Solutions(), ("addressing",), "none or all of the far side"),
    Cell("state", "add", Solutions(consensus="add", ownership="allow-add", unowned="add"),
         ("ownership", "divestiture", "unowned", "undone"),
         "one side gives before the other takes; RTIs know what is unowned"),
    Cell("state", "smart", Solutions(), ("ownership", "divestiture", "unowned", "undone"),
         "one side gives before the other takes; the bridge has last values"),
    Cell("state", "restrict", Solutions(ownership="deny", unowned="ignore"), ("ownership", "divestiture"),
         "nothing changes sides"),
    Cell("state", "ignore", Solutions(ownership="allow-naive", unowned="ignore"), ("ownership", "unowned"),
         "what is wanted is given away at once", (("ownership", "DOUBLE_OWNER"),)),
    Cell("information", "add", None, (), "the standard's services are enough"),
    Cell("information", "smart", Solutions(), ("late",), "the bridge asks for values"),
    Cell("information", "restrict", Solutions(info="restrict"), ("late",), "the bridge has to join first"),
    Cell("information", "ignore", Solutions(info="ignore"), ("late",), "what was before is not known"),
)  # fmt: skip


def line(count: int) -> tuple[tuple[int, int], ...]:
    """Bridges between federations in a row."""
    return tuple((each, each + 1) for each in range(count - 1))


def prepared(
    scenario: Scenario, policy: Solutions, sizes: tuple[int, ...], bridges: tuple[tuple[int, int], ...] | None = None
) -> tuple[Scene, System]:
    """Ready to be explored; between the federations, in a row by default. Raises ConfigurationError."""
    return built(
        sizes,
        line(len(sizes)) if bridges is None else bridges,
        planned(policy, couples=scenario.couples),
        scenario.script,
        options=RtiOptions(one_at_a_time=scenario.one_at_a_time, adds=True),
        late=scenario.late,
    )


class Explored(NamedTuple):
    """A scenario of a cell."""

    cell: Cell
    scenario: Scenario
    sizes: tuple[int, ...]
    setup: Scene
    system: System
    result: Exploration


def matrix(sizes: tuple[int, ...], *, most: int = STATES_MOST) -> Iterator[Explored]:
    """All cells, one scenario after the other; those with federates that are not there are left out."""
    there = {
        f"{name.lower()}{number}" for name, size in zip(FEDERATIONS, sizes, strict=False) for number in range(size)
    }
    for cell in CELLS:
        for name in cell.scenarios:
            scenario = SCENARIOS[name]
            script = scenario.script
            if cell.policy is None or not {who for who, _ in (*script.first, *script.programs)} <= there:
                continue
            setup, system = prepared(scenario, cell.policy, sizes)
            yield Explored(cell, scenario, sizes, setup, system, explore(setup, system, most=most))
