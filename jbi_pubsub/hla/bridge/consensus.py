"""Agreements of federations over a bridge: synchronization points, saves and restores.

States of one of them, on each side:

    "" -> asked (by the surrogate) -> announced -> consented (by the surrogate) -> over
                 blocked: something else goes on there, and it is asked again

- It is announced on one side: it is requested on the other, once; never back where it came from.
- All others of a side have consented: its surrogate can know that by its RTI's own queries (smart) or by being told
  that it is the last one (add), and says it to the other side, where the other surrogate consents. A side that is over
  before its surrogate was the last one says it as well.
- By the standard's services alone and without queries (naive) a side can be done only when it is over, for which its
  surrogate has to consent, for which the other side has to be done: both wait for each other (section 4.3).
- Of two saves with different labels that begin at once the one with the smaller (label, federation) stays; the other
  one is aborted where it began.
- What waited in the links when both sides saved belongs to the save; what is under way when both are restored is
  discarded, and that comes back.
"""

from __future__ import annotations

from typing import Any, Final

from immutables import Map

from .state import EVERYTHING, NOTHING, Bridge, Entry, Key, Link, Part, Round, Turn, changed

KEPT_MOST: Final = 100
"""Saves of which the bridge knows what was under way."""

_STANDING: Final = ("announced", "consented")


def key_of(turn: Turn, side: int, kind: str, label: str, states: tuple[str, ...] = _STANDING) -> Key | None:
    """Key of the round that a side calls by a label, and that is in one of these states there; None: there is none. Of
    several the one that began first, as those of a side are over one after the other."""
    found = [
        key for key, one in turn.bridge.rounds.items()
        if key[0] == kind and one.parts[side].label == label and one.parts[side].state in states
    ]  # fmt: skip
    return min(found, key=lambda key: (key[3], key)) if found else None


# -- what a surrogate hears -----------------------------------------------------------------------------------------


def announced(turn: Turn, side: int, label: str, tag: bytes = b"", name: str = "", *, kind: str = "sync") -> None:
    """Note that a point, save or restore has begun on a side."""
    policy = turn.plan.policy
    ours = ("accepted",) if kind == "sync" else ("", "asked", "blocked")
    key = key_of(turn, side, kind, label, ours)
    if kind != "sync":
        turn.set_busy(side, label)
        _resolve(turn, side, kind, label)
    if key is None:
        key = _begun(turn, side, kind, label, tag, name)
    else:
        turn.set_part(key, side, state="announced")
    if kind == "save":
        turn.call(side, "federate_save_begun")
    _keep(turn, key)
    if policy.consensus in ("restrict", "ignore"):
        consent(turn, key, side)
    _take_over(turn, key, side)


def _take_over(turn: Turn, key: Key, side: int) -> None:
    """Do on a side what the other side has said."""
    part = turn.part(key, side)
    if part.far == "done":
        consent(turn, key, side)
    elif part.far == "failed":
        consent(turn, key, side, ok=False)
    elif part.far == "aborted":
        turn.call(side, f"abort_federation_{key[0]}", about=("aborted",))
    elif part.far == "withdrawn":
        _withdraw(turn, key, side, "WITHDRAWN")


def _begun(turn: Turn, side: int, kind: str, label: str, tag: bytes, name: str) -> Key:
    """Nobody on the other side has asked for it: it is asked for there."""
    plan = turn.plan
    origin = side if kind == "sync" else 0
    number = max((key[3] + 1 for key in turn.bridge.rounds if key[:3] == (kind, origin, label)), default=0)
    key = (kind, origin, label, number)
    parts = changed((Part(label), Part(label)), side, Part(label, "announced"))
    turn.set(rounds=turn.bridge.rounds.set(key, Round(parts, tag, name)))
    if plan.policy.consensus == "restrict":
        turn.count("suppressed")
        turn.set_part(key, 1 - side, state="over")
    elif plan.policy.failure == "restrict" and kind == "sync" and not label.startswith(f"{plan.names[side]}:"):
        turn.count("suppressed")
        _refuse(turn, key, side, "POLICY")
    else:
        turn.count(f"requests.{kind}")
        turn.put(side, Entry("request", (tag, name), key))
    return key


def _refuse(turn: Turn, key: Key, side: int, reason: str) -> None:
    """Give up the other side, where it can't be: whoever asked is told, where the RTI can tell him; else it stays here
    alone."""
    turn.set_part(key, 1 - side, state="over", ok=False)
    if turn.plan.policy.failure == "add" or (reason == "POLICY" and turn.plan.policy.consensus == "add"):
        turn.call(side, "report_registration_failure", turn.part(key, side).label, reason)
    else:
        turn.count("failure_ignored")
        consent(turn, key, side)


def last_one(turn: Turn, side: int, kind: str, label: str, *, ok: bool) -> None:
    """All others there have reported; without `ok` one of them has failed, and the other side is told the same."""
    key = key_of(turn, side, kind, label)
    if key is not None:
        others_done(turn, key, side, ok=ok)


def more_to_come(turn: Turn, side: int, kind: str, label: str) -> None:
    """Somebody has joined a side that has said that all have consented: it takes that back."""
    key = key_of(turn, side, kind, label)
    if key is not None and turn.part(key, side).sent and turn.part(key, 1 - side).state != "over":
        turn.set_part(key, side, sent=False)
        turn.count("taken_back")
        _put_behind(turn, side, Entry("reopened", (), key))


def others_done(turn: Turn, key: Key, side: int, *, ok: bool = True) -> None:
    """All others of a side have consented, or `ok` is false: one could not."""
    if not turn.part(key, side).sent and turn.part(key, 1 - side).state != "over":
        turn.set_part(key, side, sent=True)
        turn.count(f"completions.{key[0]}")
        _put_behind(turn, side, Entry("completed" if ok else "failed", (), key))


def _put_behind(turn: Turn, side: int, entry: Entry) -> None:
    """Into a link, of a point behind the messages that were sent before: before its end they are told there as well."""
    is_behind = entry.key is not None and entry.key[0] == "sync" and turn.plan.policy.barrier == "smart"
    turn.put(side, entry._replace(stream=EVERYTHING) if is_behind else entry)


def over(turn: Turn, side: int, kind: str, label: str, reason: str = "", *, ok: bool) -> None:
    """Note that a point, save or restore is over on a side. `reason`: why it has failed."""
    if kind != "sync":
        turn.set_busy(side, "")
    key = key_of(turn, side, kind, label)
    if key is not None:
        if kind == "restore" and ok and key[2] in turn.bridge.kept and turn.part(key, 1 - side).state in _STANDING:
            _take(turn, key[2])
        forwards = turn.plan.forwards or turn.part(key, side).state != "consented"
        if not ok:
            if kind == "save":
                _drop(turn, label)
            if reason == "ABORTED" and turn.part(key, 1 - side).state != "over":
                turn.put(side, Entry("aborted", (), key))  # also where all have consented here
            else:
                others_done(turn, key, side, ok=False)
        elif forwards:
            others_done(turn, key, side)
        turn.set_part(key, side, state="over", ok=ok)
        _forget(turn, key)
    _ask_again(turn, side)


def withdrawn(turn: Turn, side: int, label: str, reason: str) -> None:
    """A point is none any more: nor is it on the other side."""
    key = key_of(turn, side, "sync", label)
    if key is not None:
        turn.set_part(key, side, state="over", ok=False)
        if turn.part(key, 1 - side).state != "over":
            turn.set_part(key, 1 - side, far="withdrawn")
            _withdraw(turn, key, 1 - side, reason)
        _forget(turn, key)
    _ask_again(turn, side)


def _withdraw(turn: Turn, key: Key, side: int, reason: str) -> None:
    """As far as it is known there by now."""
    part = turn.part(key, side)
    if part.state in _STANDING:
        turn.set_part(key, side, state="consented")
        turn.call(side, "report_registration_failure", part.label, reason)
    elif part.state in ("", "blocked"):
        turn.set_part(key, side, state="over", ok=False)


def _forget(turn: Turn, key: Key) -> None:
    found = turn.bridge.rounds[key]
    if all(part.state == "over" or (part.state in ("", "blocked") and not other.ok and other.state == "over")
           for part, other in (found.parts, found.parts[::-1])):  # fmt: skip
        links = [
            Link(*(tuple(each for each in queue if each.key != key) for queue in link)) for link in turn.bridge.links
        ]
        turn.set(rounds=turn.bridge.rounds.delete(key), links=(links[0], links[1]))


# -- what the far side does -----------------------------------------------------------------------------------------


def requested(turn: Turn, side: int, entry: Entry) -> None:
    """Have the surrogate on the other side ask for what came over the link from a side."""
    key, far = entry.key, 1 - side
    if key is None or key not in turn.bridge.rounds:
        return
    kind, part = key[0], turn.part(key, far)
    if part.state not in ("", "blocked"):
        turn.count("suppressed")  # it began on both sides at once, and is one
        return
    turn.set_part(key, far, state="asked")
    if kind != "sync":
        turn.call(far, f"request_federation_{kind}", part.label, entry=entry)
        return
    tag, name = entry.arguments
    if name:
        turn.call(far, "register_synchronization_point_for_set", part.label, tag, name, entry=entry)
    else:
        turn.call(far, "register_federation_synchronization_point", part.label, tag, entry=entry)


def completed(turn: Turn, side: int, entry: Entry) -> None:
    """All of a side have consented, says the link from there; or one could not, or somebody has given it up."""
    key, far = entry.key, 1 - side
    if key is None or key not in turn.bridge.rounds:
        turn.count("suppressed")  # it is over on both sides
        return
    part = turn.part(key, far)
    if part.state == "" and turn.plan.policy.barrier != "smart":
        turn.count("barrier_violation")  # it is not known there, and nobody remembers it
        return
    part = turn.set_part(key, far, far="done" if entry.kind == "completed" else entry.kind)
    if part.state == "announced" or (part.state == "consented" and entry.kind == "aborted"):
        _take_over(turn, key, far)


def reopened(turn: Turn, side: int, entry: Entry) -> None:
    """Not all of a side have consented after all."""
    key, far = entry.key, 1 - side
    if key is None or key not in turn.bridge.rounds or turn.part(key, far).state == "over":
        turn.count("raced")
        return
    part = turn.part(key, far)
    is_consented = part.state == "consented"
    turn.set_part(key, far, far="", state="announced" if is_consented else part.state)
    if is_consented:
        turn.call(far, "synchronization_point_not_achieved", part.label, about=("reopened", key))


def consent(turn: Turn, key: Key, side: int, *, ok: bool = True) -> None:
    """The surrogate reports, for all of the other side; without `ok` that somebody there could not."""
    part = turn.part(key, side)
    if part.state == "announced":
        turn.set_part(key, side, state="consented")
        if key[0] == "sync":
            turn.call(side, "synchronization_point_achieved", part.label, *(() if ok else (False,)))
        else:
            turn.call(side, f"federate_{key[0]}_complete" if ok else f"federate_{key[0]}_not_complete")


def save_failed(turn: Turn, label: str) -> None:
    """The bridge's own part of a save can't be kept: neither side has saved."""
    _drop(turn, label)
    for side in (0, 1):
        key = key_of(turn, side, "save", label)
        if key is not None:
            consent(turn, key, side, ok=False)


# -- where the far side can't ---------------------------------------------------------------------------------------


def registration_succeeded(turn: Turn, side: int, label: str) -> None:
    """The point that the surrogate registered on a side is one: what is announced next under that label."""
    key = key_of(turn, side, "sync", label, ("asked",))
    if key is not None:
        turn.set_part(key, side, state="accepted")


def registration_failed(turn: Turn, side: int, label: str, reason: str) -> None:
    """The point that the surrogate wanted on a side is none there."""
    key = key_of(turn, side, "sync", label, ("asked",))
    if key is None:
        return
    near, policy = 1 - side, turn.plan.policy
    found = turn.bridge.rounds[key]
    rivals = [each for each in _rivals(turn, side) if reason == "BUSY" or each[2] == key[2]]
    if reason == "BUSY" or (policy.failure == "add" and reason == "LABEL_NOT_UNIQUE" and rivals):
        _wait_or_give_way(turn, key, side, rivals, reason)
    elif policy.failure == "smart" and reason == "LABEL_NOT_UNIQUE" and label == key[2]:
        renamed = f"{turn.plan.names[near]}:{label}"
        turn.set_part(key, side, label=renamed)
        turn.count("renamed")
        turn.call(side, "register_federation_synchronization_point", renamed, found.tag)
    elif policy.failure == "naive":
        turn.count("unanswered")
        turn.set_part(key, side, state="over", ok=False)
    else:
        _refuse(turn, key, near, reason)


def _rivals(turn: Turn, side: int) -> list[Key]:
    """Points that began on a side, and that the other one does not have, or not yet."""
    return [
        key for key, found in turn.bridge.rounds.items()
        if key[0] == "sync" and key[1] == side and found.parts[side].state in _STANDING
        and (found.parts[1 - side].state in ("", "asked", "blocked") or not found.parts[1 - side].ok)
    ]  # fmt: skip


def _wait_or_give_way(turn: Turn, key: Key, side: int, rivals: list[Key], reason: str) -> None:
    """A point that began over there waits for its turn there; one that is waited for in the same way on the other side
    gives way if it is the greater one."""
    names = turn.plan.names
    waiting = [each for each in rivals if turn.part(each, 1 - side).ok]
    if any((rival[2], names[rival[1]]) < (key[2], names[key[1]]) for rival in waiting):
        turn.count("gave_way")
        _refuse(turn, key, 1 - side, reason)
    else:
        turn.set_part(key, side, state="blocked")
        turn.count("buffered")


def restore_refused(turn: Turn, side: int, label: str) -> None:
    """The far side can't go back: then nobody does."""
    key = key_of(turn, side, "restore", label, ("asked",))
    if key is not None:
        turn.set_part(key, side, state="over", ok=False)
        if turn.plan.policy.failure == "ignore":
            turn.count("failure_ignored")
            consent(turn, key, 1 - side)
        elif turn.plan.policy.failure == "naive":
            turn.count("unanswered")
        else:
            consent(turn, key, 1 - side, ok=False)


def refused(turn: Turn, key: Key, side: int) -> None:
    """Note that what goes on on a side has refused the request of the surrogate there, which is made again."""
    turn.count("buffered")
    turn.set_part(key, side, state="blocked")
    if not turn.bridge.busy[side]:
        turn.set_busy(side, "?")
    elif turn.bridge.busy[side] != "?":
        _resolve(turn, side, key[0], turn.bridge.busy[side])


def _resolve(turn: Turn, side: int, kind: str, label: str) -> None:
    """A save or restore goes on there: those that wait for its end, and are smaller, do not."""
    names = turn.plan.names
    rival = (label, names[side])
    for key in sorted(turn.bridge.rounds):
        part = turn.part(key, side)
        if key[0] == kind and key[2] != label and part.state == "blocked" and (key[2], names[1 - side]) < rival:
            turn.count("aborted")
            turn.call(side, f"abort_federation_{kind}", about=("aborted",))
            return


def _ask_again(turn: Turn, side: int) -> None:
    """Something is over there: what was blocked is asked for once more."""
    for key in sorted(turn.bridge.rounds):
        found = turn.bridge.rounds[key]
        if found.parts[side].state == "blocked" and found.parts[1 - side].state != "over":
            turn.put(1 - side, Entry("request", (found.tag, found.name), key))


# -- asking the RTIs ------------------------------------------------------------------------------------------------


def polls(bridge: Bridge) -> list[tuple[int, Key]]:
    """Sides and rounds about which an RTI can be asked: whether all others of the side have consented. Of points no RTI
    says anything while its federation is saved or restored."""
    found = []
    for key in sorted(bridge.rounds):
        parts = bridge.rounds[key].parts
        for side, (part, other) in enumerate((parts, parts[::-1])):
            is_open = part.state == "announced" and not part.sent and other.state != "over"
            if is_open and not (key[0] == "sync" and bridge.busy[side]):
                found.append((side, key))
    return found


def asked(turn: Turn, side: int, key: Key) -> None:
    """Ask."""
    if key[0] == "sync":
        turn.call(side, "query_synchronization_point", turn.part(key, side).label, about=("poll", key))
    else:
        turn.call(side, f"query_federation_{key[0]}_status")


def told_status(turn: Turn, side: int, kind: str, own: str, others: tuple[str, ...]) -> None:
    """In which states the surrogate and the others of a side are."""
    for found_side, key in polls(turn.bridge) if own != "none" else ():
        if found_side == side and key[0] == kind and set(others) <= {"waiting", "failed", "achieved"}:
            others_done(turn, key, side, ok="failed" not in others)


# -- what a save has ------------------------------------------------------------------------------------------------


def _keep(turn: Turn, key: Key) -> None:
    """Both sides save: what is under way belongs to it. Both are to be restored: it has to be known."""
    kind, _, label, _ = key
    if kind == "sync" or any(part.state not in _STANDING for part in turn.bridge.rounds[key].parts):
        return
    bridge = turn.bridge
    if kind == "save":
        order = (*(each for each in bridge.order if each != label), label)
        kept = bridge.kept.set(label, _under_way(bridge))
        for old in order[:-KEPT_MOST]:
            kept = kept.delete(old)
        turn.set(kept=kept, order=order[-KEPT_MOST:])
    elif label not in bridge.kept:
        turn.count("unknown_save")
        for side in (0, 1):
            consent(turn, key, side, ok=False)


def _take(turn: Turn, label: str) -> None:
    """The first side is restored: what was under way comes back, and what is now is discarded."""
    bridge = turn.bridge
    found = bridge.kept[label]
    own: Any = {each: bridge.rounds[each] for each in bridge.rounds if each[0] != "sync"}
    turn.set(
        links=(_mixed(found.links[0], bridge.links[0]), _mixed(found.links[1], bridge.links[1])),
        rounds=found.rounds.update(own),
        objects=found.objects,
        values=found.values,
        asked=found.asked,
        unowned=found.unowned,
        claims=found.claims,
        retractions=found.retractions,
        deleted=found.deleted,
        paces=tuple(pace._replace(stale=True) for pace in found.paces),
    )
    turn.count("discarded", sum(each.key is None for link in bridge.links for each in link.data))


def _under_way(bridge: Bridge) -> Bridge:
    """Without what the save itself is, and what is for people."""
    rounds = Map({key: found for key, found in bridge.rounds.items() if key[0] == "sync"})
    links = tuple(
        link._replace(control=tuple(each for each in link.control if each.key is None or each.key[0] == "sync"))
        for link in bridge.links
    )
    return bridge._replace(
        links=(links[0], links[1]), rounds=rounds, busy=("", ""), kept=NOTHING, order=(), counters=NOTHING
    )


def _drop(turn: Turn, label: str) -> None:
    """Forget what was under way at a save that is none."""
    bridge = turn.bridge
    if label in bridge.kept:
        turn.set(kept=bridge.kept.delete(label), order=tuple(each for each in bridge.order if each != label))


def _mixed(kept: Link, now: Link) -> Link:
    """Link as it was kept, behind what belongs to the restore itself."""
    own = tuple(each for each in now.control if each.key is not None and each.key[0] != "sync")
    return Link((*own, *kept.control), kept.data)
