"""Object instances, their values and interactions on their way over a bridge.

An instance that a surrogate discovers is registered by the other one, and from then on the two are twins: what is told
of the one is done to the other. Entries of one instance keep their order; those of different ones need not, as what
different federates send has none. What has no mapping is left out and counted.

The last values of what came from a side are remembered where unowned attributes are answered for (Bridging the HLA,
section 6.2): that, and which instances are twins, is all that a bridge knows of what an RTI knows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from immutables import Map

from jbi_pubsub.hla.execution import Values
from jbi_pubsub.hla.fom import Order

from .state import NOTHING, Entry, Turn, Twin

RETRACTIONS_MOST: Final = 10_000
"""Messages that can still be retracted over the bridge; of more the lowest handles are forgotten."""


# -- what a surrogate hears -----------------------------------------------------------------------------------------


def discovered(turn: Turn, side: int, instance: int, cls: int, name: str) -> None:
    """There is an instance."""
    plan = turn.plan
    was_there = not turn.bridge.settled[side]
    turn.count(f"before_us.{side}", was_there)
    turn.set(objects=turn.bridge.objects.set((side, instance), Twin(cls, was_there=was_there)))
    there = plan.translation.object_class(side, cls)
    if not there:
        turn.count(f"filtered.{side}")
        return
    if plan.policy.failure == "restrict" and not name.startswith(f"{plan.names[side]}:"):
        turn.count(f"suppressed.{side}")
        return
    turn.put(side, Entry("discover", (instance, there, name), stream=(side, instance)))


def reflected(
    turn: Turn, side: int, instance: int, values: Values, tag: bytes, time: float | None, retraction: int
) -> None:
    """Values of an instance."""
    twin = turn.twin(side, instance)
    there, left = turn.plan.translation.values(side, twin.cls, values)
    turn.count(f"filtered.{side}", left)
    if there:
        arguments = (instance, there, tag, time, retraction)
        turn.put(side, Entry("update", arguments, stream=(side, instance), time=time if retraction else None))


def received(turn: Turn, side: int, cls: int, parameters: Values, tag: bytes, time: float | None, number: int) -> None:
    """An interaction; `number`: its retraction handle."""
    there, some, left = turn.plan.translation.interaction(side, cls, parameters)
    turn.count(f"filtered.{side}", left)
    if not there:
        turn.count(f"filtered.{side}")
        return
    turn.put(
        side, Entry("interaction", (there, some, tag, time, number), stream=(side,), time=time if number else None)
    )


def removed(turn: Turn, side: int, instance: int, tag: bytes, time: float | None, number: int) -> None:
    """An instance is no more; `number`: the retraction handle of that."""
    twin = turn.twin(side, instance)
    if twin.cls:
        stamp = time if number else None
        turn.put(side, Entry("remove", (instance, tag, time, number), stream=(side, instance), time=stamp))


def retracted(turn: Turn, side: int, retraction: int) -> None:
    """A message is taken back, while it is in the link or behind it."""
    link = turn.bridge.links[side]
    left = tuple(each for each in link.data if each.time is None or each.arguments[-1] != retraction)
    if len(left) < len(link.data):
        turn.set_link(side, link._replace(data=left))
    elif (there := turn.bridge.retractions.get((side, retraction))) is not None:
        turn.call(1 - side, "retract", there)
        turn.set(deleted=Map({key: of for key, of in turn.bridge.deleted.items() if key != (side, retraction)}))
    else:
        turn.count(f"retraction_lost.{side}")


def asked_for_values(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], tag: bytes) -> None:
    """A federate of a side wants values of an instance that the surrogate there owns."""
    turn.put(side, Entry("provide", (instance, attributes, tag), stream=(side, instance)))


def informed(turn: Turn, side: int, instance: int, attribute: int, is_owned: bool) -> None:
    """Whether an attribute is owned that the bridge asked about."""
    key = (side, instance, attribute)
    why, tag = turn.bridge.asked.get(key, ("", b""))
    if not why:
        return
    turn.set(asked=turn.bridge.asked.delete(key))
    if why == "offer":
        if not is_owned:
            _declare(turn, side, instance, (attribute,), is_unowned=True)
    elif is_owned:
        turn.call(side, "request_attribute_value_update", instance, (attribute,), tag)
    else:
        known = turn.bridge.values.get((side, instance), NOTHING).get(attribute)
        if known is None:
            turn.count(f"no_value.{side}")
        else:
            reflected(turn, side, instance, ((attribute, known),), tag, None, 0)


def _declare(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], *, is_unowned: bool) -> None:
    """Nobody owns these, or somebody does again; they are those of this side. The other side is told when there is a
    twin."""
    known = set(turn.bridge.unowned.get((side, instance), ()))
    known = known | set(attributes) if is_unowned else known - set(attributes)
    turn.set(unowned=turn.bridge.unowned.set((side, instance), tuple(sorted(known))))
    _tell_unowned(turn, side, instance, attributes, is_unowned=is_unowned)


def _tell_unowned(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], *, is_unowned: bool) -> None:
    """Tell the other RTI, of what the surrogate there owns."""
    twin = turn.twin(side, instance)
    far = turn.twin(1 - side, twin.twin)
    there = tuple(each for each in turn.plan.translation.attributes(side, twin.cls, attributes) if each in far.held)
    if twin.twin and there:
        turn.call(1 - side, "declare_unowned", twin.twin, there, is_unowned)


def ask_owned(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], why: str, tag: bytes) -> None:
    """Whether attributes are owned; `informed` hears it."""
    for each in attributes:
        key = (side, instance, each)
        if key not in turn.bridge.asked:
            turn.set(asked=turn.bridge.asked.set(key, (why, tag)))
            turn.call(side, "query_attribute_ownership", instance, each)


# -- what the far side does -----------------------------------------------------------------------------------------


def _register(turn: Turn, side: int, entry: Entry) -> None:
    _, cls, name = entry.arguments
    turn.call(1 - side, "register_object_instance", cls, name, entry=entry)


def registered(turn: Turn, side: int, entry: Entry, handle: int) -> None:
    """The instance of `side` has a twin."""
    instance, cls, _ = entry.arguments
    far = 1 - side
    published = dict(turn.plan.translation.published(far)).get(cls, ())
    turn.set_twin(side, instance, twin=handle)
    turn.set(objects=turn.bridge.objects.set((far, handle), Twin(cls, instance, published)))
    mine = turn.twin(side, instance)
    if unowned := turn.bridge.unowned.get((side, instance)):
        _tell_unowned(turn, side, instance, unowned, is_unowned=True)
    if mine.was_there and turn.plan.policy.info == "smart":
        wanted = turn.plan.translation.attributes_back(side, mine.cls, published)
        if wanted:
            turn.call(side, "request_attribute_value_update", instance, wanted, b"")


def name_in_use(turn: Turn, side: int, entry: Entry) -> None:
    """An instance of the far side has that name."""
    instance, cls, name = entry.arguments
    prefix = f"{turn.plan.names[side]}:"
    if turn.plan.policy.failure == "smart" and not name.startswith(prefix):
        turn.count(f"renamed.{side}")
        renamed = entry._replace(arguments=(instance, cls, prefix + name))
        turn.call(1 - side, "register_object_instance", cls, prefix + name, entry=renamed)
    else:
        turn.count(f"failure_ignored.{side}")


def _update(turn: Turn, side: int, entry: Entry) -> None:
    instance, values, tag, *_ = entry.arguments
    twin = turn.twin(side, instance)
    far = turn.twin(1 - side, twin.twin)
    mine = tuple(each for each in values if each[0] in far.held)
    turn.count(f"filtered.{side}" if not twin.twin else f"not_owned.{side}", len(values) - len(mine))
    if not mine:
        return
    again = turn.bridge.unowned.get((side, instance), ())
    back = turn.plan.translation.attributes_back(side, twin.cls, [each for each, _ in mine])
    if found := tuple(each for each in back if each in again):
        _declare(turn, side, instance, found, is_unowned=False)
    turn.count(f"relayed.{side}")
    known = turn.plan.translation.foms[1 - side].attributes
    time = _time(turn, side, entry, [known[each - 1].order for each, _ in mine])
    turn.call(1 - side, "update_attribute_values", twin.twin, mine, tag, time, entry=entry)


def remember(turn: Turn, side: int, instance: int, values: Values) -> None:
    """The last values of an instance, as they are on its own side; where they are given for what nobody owns."""
    if turn.plan.policy.unowned == "smart":
        key = (side, instance)
        turn.set(values=turn.bridge.values.set(key, turn.bridge.values.get(key, Map()).update(dict(values))))


def _send(turn: Turn, side: int, entry: Entry) -> None:
    cls, parameters, tag, *_ = entry.arguments
    turn.count(f"relayed.{side}")
    time = _time(turn, side, entry, [turn.plan.translation.foms[1 - side].interactions[cls - 1].order])
    turn.call(1 - side, "send_interaction", cls, parameters, tag, time, entry=entry)


def _time(turn: Turn, side: int, entry: Entry, orders: Iterable[Order]) -> float | None:
    """None: what would be late there goes as it comes, and what came in receive order does where these orders would
    have it wait for its time."""
    time: float | None = entry.arguments[-2]
    far = 1 - side
    pace = turn.bridge.paces[far]
    if time is None or pace.state == "off" or not turn.plan.couples:
        return time
    if entry.time is None:
        return None if "timestamp" in orders else time
    if pace.state != "enabling" and time < pace.promised:
        turn.count(f"late.{side}")
        return None
    at = bisect_left(pace.sent, time)
    if pace.sent[at : at + 1] != (time,):
        turn.set_pace(far, sent=(*pace.sent[:at], time, *pace.sent[at:]))
    return time


def sent(turn: Turn, side: int, entry: Entry, retraction: int) -> None:
    """Note that a message has gone; `retraction` is its handle on the far side, 0: it has none."""
    mine = entry.arguments[-1]
    if not mine or not retraction:
        return
    table = turn.bridge.retractions.set((side, mine), retraction)
    if len(table) > RETRACTIONS_MOST:
        table = table.delete(min(table, key=lambda key: key[1]))
    turn.set(retractions=table)


def _remove(turn: Turn, side: int, entry: Entry) -> None:
    instance, tag, _, number = entry.arguments
    twin, stamp, far = turn.twin(side, instance), _time(turn, side, entry, ()), 1 - side
    if twin.twin and stamp is not None:  # in its order there as well
        privilege = turn.plan.translation.foms[far].privilege
        turn.call(far, "change_attribute_order_type", twin.twin, (privilege,), "timestamp" if number else "receive")
    if not number or stamp is None:  # else it may be taken back
        forgotten(turn, side, instance)
    if twin.twin:
        turn.call(1 - side, "delete_object_instance", twin.twin, tag, stamp, entry=entry)


def deleted(turn: Turn, side: int, entry: Entry, retraction: int) -> None:
    """The instance is no more there, until its deletion is taken back, as long as it can be."""
    instance, _, time, number = entry.arguments
    sent(turn, side, entry, retraction)
    if number and retraction:
        turn.set(deleted=turn.bridge.deleted.set((side, number), (instance, time)))
    else:
        forgotten(turn, side, instance)


def gone_for_good(turn: Turn, side: int, galt: float) -> None:
    """Nothing below that time is sent or taken back on a side any more."""
    for key, (instance, time) in turn.bridge.deleted.items():
        if key[0] == side and time < galt:
            turn.set(deleted=turn.bridge.deleted.delete(key))
            forgotten(turn, side, instance)


def forgotten(turn: Turn, side: int, instance: int) -> None:
    """The twins are no more."""
    twin = turn.twin(side, instance)
    bridge = turn.bridge
    for key in ((side, instance), (1 - side, twin.twin)):
        for table in ("objects", "values", "claims", "unowned"):
            known = getattr(bridge, table)
            if key in known:
                bridge = bridge._replace(**{table: known.delete(key)})
    turn.bridge = bridge


def _provide(turn: Turn, side: int, entry: Entry) -> None:
    """A federate of `side` wants values of what is the other side's."""
    instance, attributes, tag = entry.arguments
    twin = turn.twin(side, instance)
    there = turn.plan.translation.attributes(side, twin.cls, attributes)
    turn.count(f"no_value.{side}", len(attributes) - len(there))
    if not twin.twin or not there:
        return
    if turn.plan.policy.unowned == "smart":
        ask_owned(turn, 1 - side, twin.twin, there, "provide", tag)
    else:
        turn.call(1 - side, "request_attribute_value_update", twin.twin, there, tag)


ACTS: Final = {"discover": _register, "update": _update, "interaction": _send, "remove": _remove, "provide": _provide}
