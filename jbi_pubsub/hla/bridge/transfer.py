"""Ownership over a bridge: at most one federate of both sides owns an instance attribute.

Of a pair of attributes one side is home: there a federate owns it, or nobody does. On the other side the surrogate owns
it, for home. A transfer makes the other side home: the surrogate at home acquires the attribute first, and only when it
has it the other surrogate gives its own to who wants it. So for a while both surrogates own it, and never two federates
(Bridging the HLA, section 5.4; `allow-naive` gives it away first).

    wanted on the far side  -> release request, or request to confirm, to the surrogate there -> acquire -> home
    home: acquired          -> granted -> divested on the far side, which is home now
    home: unavailable       -> denied  -> the far surrogate does not divest any more
    wanted no more, if the RTI says so (add) -> withdraw -> the surrogate at home does not want it any more
    granted, wanted no more -> home gets it back: unowned there
    divested at home        -> offer   -> the far surrogate offers it, and confirms when it has it

Entries about an instance go in its stream: a grant does not overtake values that were sent before it.
"""

from __future__ import annotations

from typing import Any, Final

from immutables import Map

from jbi_pubsub.hla.execution import put_entry

from . import passage
from .state import Entry, Turn

# -- what a surrogate hears -----------------------------------------------------------------------------------------


def wanted(
    turn: Turn, side: int, instance: int, attributes: tuple[int, ...], tag: bytes = b"", *, why: str = "release"
) -> None:
    """A federate of a side wants attributes that the surrogate there owns. `why`: it is asked to "release" them, or to
    "confirm" that it divests them."""
    policy = turn.plan.policy.ownership
    if policy == "deny":
        turn.count("denied", len(attributes))
        turn.call(side, "attribute_ownership_release_denied", instance, attributes)
        return
    if policy == "allow-naive" and why == "release":
        turn.call(side, "attribute_ownership_divestiture_if_wanted", instance, attributes,
                  about=("divested", instance, attributes))  # fmt: skip
    key = (side, instance)
    claims = turn.bridge.claims.get(key, Map())
    new = tuple(each for each in attributes if each not in claims)
    if new:
        turn.set(claims=turn.bridge.claims.set(key, claims.update(dict.fromkeys(new, why))))
        turn.put(side, Entry("acquire", (instance, new, tag, why), stream=(side, instance)))


def wanted_no_more(turn: Turn, side: int, instance: int, attributes: tuple[int, ...]) -> None:
    """No federate of a side wants these of the surrogate there any more."""
    claims = turn.bridge.claims.get((side, instance), Map())
    mine = tuple(each for each in attributes if each in claims)
    if mine:
        _unclaim(turn, side, instance, mine)
        turn.put(side, Entry("withdraw", (instance, mine), stream=(side, instance)))


def acquired(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], tag: bytes) -> None:
    """The surrogate on a side owns these now: the other side can have them. `tag`: of who gave them."""
    twin = turn.twin(side, instance)
    turn.set_twin(side, instance, held=tuple(sorted({*twin.held, *attributes})))
    turn.put(side, Entry("granted", (instance, attributes, tag), stream=(side, instance)))


def unavailable(turn: Turn, side: int, instance: int, attributes: tuple[int, ...]) -> None:
    """The surrogate on a side can't have these attributes."""
    turn.put(side, Entry("denied", (instance, attributes), stream=(side, instance)))


def offered(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], tag: bytes) -> None:
    """Somebody divests them, or nobody owns them."""
    policy = turn.plan.policy
    if policy.ownership != "deny":
        turn.put(side, Entry("offer", (instance, attributes, tag), stream=(side, instance)))
    if policy.unowned == "add":
        passage.ask_owned(turn, side, instance, attributes, "offer", b"")


# -- what the far side does -----------------------------------------------------------------------------------------


def forwarded(turn: Turn, side: int, entry: Entry) -> None:
    """Do on the other side what came over the link from a side, where the instance has a twin."""
    instance, attributes = entry.arguments[:2]
    twin = turn.twin(side, instance)
    there = turn.plan.translation.attributes(side, twin.cls, attributes)
    if twin.twin and there:
        ACTS[entry.kind](turn, side, entry, twin.twin, there)


def _acquire(turn: Turn, side: int, entry: Entry, twin: int, there: tuple[int, ...]) -> None:
    tag, why = entry.arguments[2:]
    home = 1 - side
    if why == "confirm":
        turn.call(home, "attribute_ownership_acquisition_if_available", twin, there, entry=entry)
    else:
        turn.call(home, "attribute_ownership_acquisition", twin, there, tag, entry=entry)


def _withdraw(turn: Turn, side: int, entry: Entry, twin: int, there: tuple[int, ...]) -> None:
    turn.call(1 - side, "cancel_attribute_ownership_acquisition", twin, there, entry=entry)


def _granted(turn: Turn, side: int, entry: Entry, twin: int, there: tuple[int, ...]) -> None:
    """Let go of attributes on the other side, `there`, that the surrogate on `side` has acquired."""
    far = 1 - side
    claims = turn.bridge.claims.get((far, twin), Map())
    by_why: dict[str, list[int]] = {}
    for each in there:
        by_why.setdefault(claims.get(each, "release"), []).append(each)
    _unclaim(turn, far, twin, there)
    for why in sorted(by_why):
        some: tuple[Any, ...] = (twin, tuple(by_why[why]))
        if why == "confirm":
            turn.call(far, "confirm_divestiture", *some, entry.arguments[2], entry=entry, about=("confirmed", *some))
        else:
            held = turn.twin(far, twin).held
            if not set(some[1]) & set(held):  # given away already
                continue
            turn.call(far, "attribute_ownership_divestiture_if_wanted", *some, about=("divested", *some))


def _unclaim(turn: Turn, side: int, instance: int, attributes: tuple[int, ...]) -> None:
    claims = turn.bridge.claims.get((side, instance), Map())
    for each in attributes:
        claims = claims.delete(each) if each in claims else claims
    turn.set(claims=put_entry(turn.bridge.claims, (side, instance), claims))


def divested(turn: Turn, side: int, instance: int, attributes: tuple[int, ...], gone: tuple[int, ...]) -> None:
    """A surrogate has given away `gone` of these; the rest nobody wants: it is home's again, and nobody's there."""
    twin = turn.twin(side, instance)
    turn.set_twin(side, instance, held=tuple(each for each in twin.held if each not in gone))
    left = tuple(each for each in attributes if each not in gone)
    if left and turn.plan.policy.ownership != "allow-naive":
        _give_back(turn, side, instance, left)


def _give_back(turn: Turn, side: int, instance: int, attributes: tuple[int, ...]) -> None:
    twin = turn.twin(side, instance)
    home = turn.twin(1 - side, twin.twin)
    there = tuple(each for each in turn.plan.translation.attributes(side, twin.cls, attributes) if each in home.held)
    if there:
        turn.count("given_back", len(there))
        turn.set_twin(1 - side, twin.twin, held=tuple(each for each in home.held if each not in there))
        turn.call(1 - side, "unconditional_attribute_ownership_divestiture", twin.twin, there)


def not_confirmed(turn: Turn, side: int, instance: int, attributes: tuple[int, ...]) -> None:
    """Nobody waits for it any more."""
    turn.call(side, "cancel_negotiated_attribute_ownership_divestiture", instance, attributes)
    _give_back(turn, side, instance, attributes)


def _denied(turn: Turn, side: int, entry: Entry, twin: int, there: tuple[int, ...]) -> None:  # noqa: ARG001
    far = 1 - side
    _unclaim(turn, far, twin, there)
    turn.call(far, "cancel_negotiated_attribute_ownership_divestiture", twin, there)


def _offer(turn: Turn, side: int, entry: Entry, twin: int, there: tuple[int, ...]) -> None:
    held = turn.twin(1 - side, twin).held
    mine = tuple(each for each in there if each in held)
    if mine:
        turn.call(1 - side, "negotiated_attribute_ownership_divestiture", twin, mine, entry.arguments[2], entry=entry)


def could_not_acquire(turn: Turn, side: int, entry: Entry) -> None:
    """The surrogate at home may not have them."""
    instance, attributes, _, why = entry.arguments
    _unclaim(turn, side, instance, attributes)
    turn.count("denied", len(attributes))
    if why == "confirm":
        turn.call(side, "cancel_negotiated_attribute_ownership_divestiture", instance, attributes)
    else:
        turn.call(side, "attribute_ownership_release_denied", instance, attributes)


ACTS: Final = {"acquire": _acquire, "withdraw": _withdraw, "granted": _granted, "denied": _denied, "offer": _offer}
