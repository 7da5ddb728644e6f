"""Federations of simulations as people see them, in the console, `jbi top` and `jbi status`: a row for each federation
execution, and for each of its federates. Knows no browser and no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET

from jbi_pubsub.protocol.status.federations import FederateStatus, FederationStatus, RtiStatus

from .federation import Server

TABLES: Final = {
    "Federations": (
        "federation", "at", "#federates", "#objects", "#calls", "#callbacks", "#unsent", "#resigned", "state",
    ),
    "Federates": (
        "federate", "of", "type", "#time", "#lookahead", "#objects", "#updates", "#reflected", "#sent", "#received",
        "#waiting", "state",
    ),
}  # fmt: skip
"""Heads of the columns; those of numbers begin with #."""
POINTS_MOST: Final = 3
"""Synchronization points that are named."""


def rows_of(rtis: Sequence[Server]) -> dict[str, list[tuple[str, ...]]]:
    """Rows of TABLES. One that does not answer is shown as it was last seen, and says so."""
    known = [(each, each.facts) for each in rtis if isinstance(each.facts, RtiStatus)]
    found = [(*row[:-1], server.error or row[-1]) for server, facts in known for row in federation_rows(facts)]
    found += [("", server.title, *("",) * 6, server.error or "not asked yet") for server in rtis if not server.facts]
    federates = [row for server, facts in known if not server.error for row in federate_rows(facts)]
    return {"Federations": sorted(found), "Federates": federates}


def federation_rows(rti: RtiStatus) -> Iterator[tuple[str, ...]]:
    """The federation executions of an RTI, or the one behind a link."""
    if rti.link is not UNSET:
        state = rti.link.trouble or f"link to {rti.link.federation}"
        yield rti.link.name, rti.address, f"{rti.link.federates:,}", *("",) * 5, str(state)
    for each in rti.federations:
        counts = len(each.federates), each.objects, each.calls, each.callbacks, each.unsent, sum(each.resigned.values())
        yield each.name, rti.address, *(f"{number:,}" for number in counts), _state(each)


def _state(federation: FederationStatus) -> str:
    found = [f"{what} {federation[what]}" for what in ("saving", "restoring") if federation[what]]
    found += [f"point {label}" for label in federation.points[:POINTS_MOST]]
    more = len(federation.points) - POINTS_MOST
    return ", ".join([*found, f"{more:,} more"] if more > 0 else found)


def federate_rows(rti: RtiStatus) -> Iterator[tuple[str, ...]]:
    """The federates of all of its federation executions."""
    for federation in rti.federations:
        for each in federation.members:
            times = (f"{time:g}" if time is not None else "-" for time in (each.time, each.lookahead))
            counts = (each.objects, each.updates, each.reflections, each.interactions_sent, each.interactions_received,
                      each.received_waiting + each.stamped_waiting)  # fmt: skip
            numbers = (f"{number:,}" for number in counts)
            yield each.name, federation.name, each.type, *times, *numbers, _doing(each)


def _doing(federate: FederateStatus) -> str:
    regulates = "regulates" if federate.lookahead is not None else ""
    states = regulates, "constrained" if federate.constrained else "", "advances" if federate.advancing else ""
    return ", ".join(filter(None, states))
