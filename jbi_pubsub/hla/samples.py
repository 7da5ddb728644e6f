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
    ("dropped", "counter", "Best-effort updates and interactions that slow federates did not get"),
    ("reduced", "counter", "Best-effort values above the update rates of subscriptions, which were left out"),
    ("unsent", "gauge", "Bytes that wait for federates"),
)
_OF_WAYS: Final = (
    ("waiting", "gauge", "Entries that wait in a bridge, by their origin"),
    ("relayed", "counter", "Updates and interactions forwarded by a bridge"),
    ("filtered", "counter", "Updates, interactions and values left out by a bridge"),
    ("lost", "counter", "Messages in a bridge when it resigned"),
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
        yield Sample("hla_saving", "gauge", "1: a save or restore is in progress", float(saves), name)
        for why, count in each["resigned"].items():
            meaning = "Federates that the RTI has resigned, by reason"
            yield Sample("hla_resigned", "counter", meaning, count, (*name, ("why", why)))


def of_bridge(name: str, status: Facts) -> Iterator[Sample]:
    """Samples of its directions, and of all that it counts."""
    own = (("bridge", name),)
    yield Sample("hla_bridge_up", "gauge", "1: joined to both federations", float(status["state"] == "up"), own)
    stuck = sum(each["deadlocked"] for each in status["pending"])
    yield Sample("hla_bridge_pending", "gauge", "Saves, restores and points in progress", len(status["pending"]), own)
    yield Sample("hla_bridge_deadlocked", "gauge", "Saves, restores and points in a deadlock", stuck, own)
    for way in status["directions"]:
        ends = (*own, ("from", way["from"]), ("to", way["to"]))
        for key, kind, meaning in _OF_WAYS:
            yield Sample(f"hla_bridge_{key}", "counter" if kind == "counter" else "gauge", meaning, way[key], ends)
    for what, count in status["counters"].items():
        meaning = "Other events of a bridge: requests, completions, buffered, suppressed, renamed and others"
        yield Sample("hla_bridge_events", "counter", meaning, count, (*own, ("what", what)))
