"""Memory of a federate in an exploration: what it was told and has done, and what one RTI would never have told it.

- TWICE: a point, save, restore or instance begins that has begun, or is over that has not; a message is told again.
- LOST: a message is told to somebody never, who subscribed to it when it was sent.
- EARLY: a message is told before the end of a point that its sender had been told of before he sent it.
- LATE: a message is told behind the end of a point that its sender has achieved after he sent it.
- DISORDER: two messages of one sender, of one instance or both interactions, are told in the other order.
- STALE: in the end somebody has another value than the one that was sent last.
- SOON: a point is over for somebody while another one has not achieved it.
- UNDONE: a message is told that was sent after a save that has been restored since.

A message is one with a tag, which is its name, and without a time stamp; a point is known by its tag as well. What a
federate was told after a save it does not know when that is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from immutables import Map

from jbi_pubsub.hla.execution import Callback, Execution

Memory = Map[tuple[Any, ...], Any]
"""Memory of a federate: ("pending", kind, label or handle), ("over", tag), ("achieved", tag), ("sent", tag),
("told", tag), ("value", instance, attribute), ("newest", instance, attribute), ("kept", label), ("undone", tag)."""

_BEGINS: Final = {
    "announce_synchronization_point": "sync",
    "initiate_federate_save": "save",
    "initiate_federate_restore": "restore",
    "discover_object_instance": "instance",
}
ENDS: Final = {
    "federation_saved": ("save", "saved"),
    "federation_not_saved": ("save", "not saved"),
    "federation_restored": ("restore", "restored"),
    "federation_not_restored": ("restore", "not restored"),
    "federation_synchronized": ("sync", "synchronized"),
    "synchronization_point_withdrawn": ("sync", "withdrawn"),
}
"""Callbacks of ends of what is agreed on: of which kind, and how."""
_MESSAGES: Final = {"reflect_attribute_values": "update_attribute_values", "receive_interaction": "send_interaction"}

Found = Iterator[tuple[str, str]]
"""Faults: the rule that is broken, and its story."""


def plain(name: str) -> str:
    """A name without the federation that a bridge has put before it."""
    return name.rpartition(":")[2]


def told(memories: list[Memory], place: int, callback: Callback) -> Found:
    """A federate is told something: `memories` is changed."""
    name, arguments = callback.name, callback.arguments
    mine = memories[place]
    if name in _BEGINS:
        kind = _BEGINS[name]
        key = ("pending", kind, arguments[0])
        if key in mine:
            yield "TWICE", f"{name} {arguments[0]}"
        if kind == "save":
            mine = mine.set(("kept", arguments[0]), mine)
        said = plain(arguments[2]) if kind == "instance" else arguments[1] if kind == "sync" else ""
        memories[place] = mine.set(key, said)
    elif name in ENDS:
        yield from _end(memories, place, callback, ENDS[name][0])
    elif name == "remove_object_instance":
        yield from _end(memories, place, callback, "instance")
    elif name in _MESSAGES:
        yield from _message(memories, place, callback)


def _end(memories: list[Memory], place: int, callback: Callback, kind: str) -> Found:
    name, label = callback.name, callback.arguments[0]
    mine, key = memories[place], ("pending", kind, label)
    if key not in mine:
        if name not in ("federation_not_saved", "remove_object_instance"):  # at a time; of what it never discovered
            yield "TWICE", f"{name} {label}"
        return
    tag, mine = mine[key], mine.delete(key)
    if name == "federation_synchronized" and tag:
        mine = mine.set(("over", tag), True)
        for memory in memories:
            if ("achieved", tag) not in memory and any(
                each[:2] == ("pending", "sync") and memory[each] == tag for each in memory
            ):
                yield "SOON", f"{label}"
                break
    elif name == "federation_restored" and (before := mine.get(("kept", label))) is not None:
        undone = {("undone", each[1]): True for each in mine if each[0] == "sent" and each not in before}
        mine = before.update({**{each: mine[each] for each in mine if each[0] == "kept"}, **undone})
    memories[place] = mine


def _message(memories: list[Memory], place: int, callback: Callback) -> Found:
    at, content, tag, time, *_ = callback.arguments
    mine = memories[place]
    if callback.name == "reflect_attribute_values":
        name = mine.get(("pending", "instance", at), "")
        for attribute, value in content:
            mine = mine.set(("value", name, attribute), value)
    sender = next((each for each in memories if ("sent", tag) in each), None)
    if sender is None and any(("undone", tag) in each for each in memories):
        yield "UNDONE", f"{tag!r}"
    if tag and time is None and sender is not None:
        if ("told", tag) in mine:
            yield "TWICE", f"{callback.name} {tag!r}"
        stream, number, over, achieved, _ = sender["sent", tag]
        over_here = {each[1] for each in mine if each[0] == "over"}
        pending = {mine[each] for each in mine if each[:2] == ("pending", "sync")}
        if over & pending:
            yield "EARLY", f"{tag!r} before the end of {min(over & pending)!r}"
        after = {each for each in over_here - achieved if ("achieved", each) in sender}
        if after:
            yield "LATE", f"{tag!r} after the end of {min(after)!r}"
        for key in sender:
            if key[0] == "sent" and sender[key][0] == stream and sender[key][1] > number and ("told", key[1]) in mine:
                yield "DISORDER", f"{tag!r} after {key[1]!r}"
        mine = mine.set(("told", tag), True)
    memories[place] = mine


def done(
    memories: list[Memory], place: int, service: str, arguments: tuple[Any, ...], receivers: tuple[int, ...], name: str
) -> None:
    """A federate has called a service. `receivers`: who subscribes to the message that it is; `name`: of the instance
    whose values it has."""
    mine = memories[place]
    if service == "synchronization_point_achieved":
        if tag := mine.get(("pending", "sync", arguments[0])):
            memories[place] = mine.set(("achieved", tag), True)
    elif service == "local_delete_object_instance":
        memories[place] = mine.delete(("pending", "instance", arguments[0]))
    elif service in _MESSAGES.values():
        if name:
            for attribute, value in arguments[1]:
                key = ("newest", name, attribute)
                for other, memory in enumerate(memories):
                    memories[other] = memory.delete(key) if key in memory else memory
                memories[place] = memories[place].set(key, value)
        tag = arguments[2] if len(arguments) == 3 else b""
        if tag:
            mine = memories[place]
            over = frozenset(each[1] for each in mine if each[0] == "over")
            achieved = frozenset(each[1] for each in mine if each[0] == "achieved")
            number = sum(each[0] == "sent" for each in mine)
            memories[place] = mine.set(("sent", tag), (name, number, over, achieved, receivers))


def missing(memories: tuple[Memory, ...], present: frozenset[int]) -> Found:
    """Nothing happens any more: what those who are still there should have been told."""
    for place, memory in enumerate(memories):
        for key, content in memory.items():
            if key[0] == "sent":
                lost = [each for each in content[-1] if each in present and ("told", key[1]) not in memories[each]]
                if lost:
                    yield "LOST", f"{key[1]!r}"
            elif key[0] == "newest":
                seen = ("value", *key[1:])
                if any(memories[each].get(seen, content) != content for each in present if each != place):
                    yield "STALE", f"{key[1]}"


def receivers(execution: Execution, service: str, arguments: tuple[Any, ...], cls: int) -> Iterator[int]:
    """Federates, by their handles, that subscribe to a message, as far as they are not constrained: those are told
    when they ask for time. `cls`: the class of it or of its instance."""
    declared = execution.declared
    for federate in execution.members.joined:
        if execution.clock.pace(federate).is_constrained:
            continue
        if service == "send_interaction":
            wants = cls in declared.hears.get(federate, ())
        else:
            wanted = declared.subscribed.get(federate, Map()).get(cls, ())
            wants = any(attribute in wanted for attribute, _ in arguments[1])
        if wants:
            yield federate
