"""An explanation as people read it, at the command and in the console: see pad/matching/explanation.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jbi_pubsub.protocol.entries import InformationType

Row = tuple[str, str, str]


def verdict(facts: Mapping[str, Any]) -> str:
    """Whether it is delivered, as the last word of a heading."""
    return {True: "delivered", False: "not delivered"}.get(facts["delivered"], "perhaps delivered")


def levels(facts: Mapping[str, Any]) -> Iterator[Row]:
    """Each level, whether it lets the object through, and why."""
    if not facts["first_level"]:
        yield "first", "no", "no publisher is registered here now"
    if facts.get("registration") == "":
        yield "first", "-", "the object's own registration has ended; others, as if it were theirs:"
    for registration, level in facts["first_level"].items():
        why = [f"the document: {level['document']}"] if level["document"] != "fits" else []
        why += [f"the template: {miss}" for miss in level["misses"]]
        if any(miss.startswith(InformationType.entry_name) for miss in level["misses"]):
            why = ["the template asks for another type"]  # whose schema says nothing of the document
        name = f"{level['type']} {level['version']}, {registration.removeprefix('registration-')[:8]}"
        yield "first", holds(level["matches"]), f"{name}: {'; '.join(why) or 'matches'}"
    if facts["predicate"]:
        yield "predicate", holds(facts["predicate_true"]), facts["predicate_failure"] or "see below"
    matched = [level for level in facts["first_level"].values() if not level["misses"]]
    for line in dict.fromkeys(line for level in matched for line in level["impossible"]):
        yield "schema", "no", line
    if facts["filter"]:
        selects = "not XML: passes unchanged" if facts["selected"] is None else facts["selected"]
        suppressed = ", and the subscription asks for no empty ones" if facts["suppressed"] else ""
        yield "filter", holds(not facts["suppressed"]), facts["filter_failure"] or f"selects {selects}{suppressed}"
    if size := facts.get("size"):
        small = {True: "", False: ": it is lost (oversize)"}.get(
            size["holds"], ": lost (oversize), if no shape makes it smaller"
        )
        said = "perhaps" if size["holds"] is None else holds(size["holds"])
        yield "size", said, f"{size['bytes']} bytes, max_size {size['max_size']}{small}"
    if queue := facts["queue"]:
        state = "connected" if queue["connected"] else "not connected now"
        waiting = f"{queue['queued']} wait, {queue['in_flight']} on the way"
        yield "queue", holds(queue["connected"]), f"{state}, {waiting}"


def holds(answer: bool | None) -> str:
    """Whether something holds; None: its evaluation has failed."""
    return "failed" if answer is None else "yes" if answer else "no"
