"""Samples of RTIs and bridges between federations for their metrics port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jbi_pubsub.core.metrics import Sample

Facts = Mapping[str, Any]

_OF_FEDERATIONS: Final = (
    ("objects", "gauge", "Object instances"),
    ("calls", "counter", "Calls of services"),
    ("callbacks", "counter", "Callbacks"),
    ("unsent", "gauge", "Bytes that wait for federates"),
)
_OF_WAYS: Final = (
    ("waiting", "gauge", "Entries that wait in a bridge, by the side they come from"),
    ("relayed", "counter", "Updates and interactions that a bridge has sent on"),
    ("filtered", "counter", "Updates, interactions and values that a bridge has left out"),
    ("lost", "counter", "Messages that were in a bridge when it left"),
)


def of_rti(status: Facts) -> Iterator[Sample]:
    """Samples of its federation executions."""
    for each in status["federations"]:
        name = (("federation", each["name"]),)
        yield Sample("hla_federates", "gauge", "Joined federates", len(each["federates"]), name)
        for key, kind, meaning in _OF_FEDERATIONS:
            yield Sample(f"hla_{key}", "counter" if kind == "counter" else "gauge", meaning, each[key], name)
        yield Sample("hla_points", "gauge", "Synchronization points that are pending", len(each["points"]), name)
        saves = bool(each["saving"] or each["restoring"])
        yield Sample("hla_saving", "gauge", "1: a save or restore goes on", float(saves), name)
        for why, count in each["resigned"].items():
            meaning = "Federates that the RTI has resigned, by reason"
            yield Sample("hla_resigned", "counter", meaning, count, (*name, ("why", why)))


def of_bridge(name: str, status: Facts) -> Iterator[Sample]:
    """Samples of its directions, and of all that it counts."""
    own = (("bridge", name),)
    yield Sample("hla_bridge_up", "gauge", "1: joined to both federations", float(status["state"] == "up"), own)
    stuck = sum(each["deadlocked"] for each in status["pending"])
    yield Sample("hla_bridge_pending", "gauge", "Saves, restores and points under way", len(status["pending"]), own)
    yield Sample("hla_bridge_deadlocked", "gauge", "Those of them that never end", stuck, own)
    for way in status["directions"]:
        ends = (*own, ("from", way["from"]), ("to", way["to"]))
        for key, kind, meaning in _OF_WAYS:
            yield Sample(f"hla_bridge_{key}", "counter" if kind == "counter" else "gauge", meaning, way[key], ends)
    for what, count in status["counters"].items():
        meaning = "Whatever else a bridge counts: requests, completions, buffered, suppressed, renamed, and so on"
        yield Sample("hla_bridge_events", "counter", meaning, count, (*own, ("what", what)))
