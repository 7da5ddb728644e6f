"""Defects that are planted in the bridge and in the RTI, one at a time: each has to be found by the explorer, by the
oracle (one RTI against several), or by the scenarios of the room.

    make defects                      # the table: each defect, and who found it first
    make defects ARGS="barrier"       # those whose names have it

A defect is a text of the source and another one in its place. It is tried in a copy of the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import jbi_pubsub

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGE: Final = Path(jbi_pubsub.__file__).resolve().parent
BRIDGE: Final = "tests/hla/bridge"
FINDERS: Final = {
    "explorer": (f"{BRIDGE}/test_exploration.py",),
    "oracle": (f"{BRIDGE}/test_oracle.py",),
    "scenarios": (
        f"{BRIDGE}/test_translation.py",
        *(f"tests/hla/test_{each}.py" for each in ("federation", "objects", "ownership", "extensions", "timing")),
    ),
}
"""Test files of each who may find a defect, in their turn."""
SECONDS_MOST: Final = 120
"""Time of a finder: a defect by which nothing comes to an end is found, too."""
STORIES: Final = "150"
"""Stories of the oracle: as few as let every service succeed once."""


class Defect(NamedTuple):
    """A patch of one place."""

    name: str
    file: str
    """Below jbi_pubsub/hla."""
    old: str
    new: str


CONSENSUS, PASSAGE, TRANSFER = "bridge/consensus.py", "bridge/passage.py", "bridge/transfer.py"
CORE, STATE, PACE = "bridge/bridge.py", "bridge/state.py", "bridge/pace.py"

DEFECTS: Final = tuple(
    Defect(*each)
    for each in (
        # agreements
        ("a failure goes over the bridge as a success", CONSENSUS,
         'Entry("completed" if ok else "failed", (), key)', 'Entry("completed", (), key)'),
        ("a surrogate does not begin to save", CONSENSUS, 'if kind == "save":\n        turn.call(side,',
         'if kind == "none":\n        turn.call(side,'),
        ("a surrogate consents again and again", CONSENSUS,
         'turn.set_part(key, side, state="consented")\n        label', "label"),
        ("who is still saving counts as done", CONSENSUS, '<= {"waiting", "failed", "achieved"}',
         '<= {"waiting", "failed", "achieved", "saving"}'),
        ("who is still on the way counts as arrived", CORE, 'set(answer) <= {"achieved"}', "answer is not None"),
        ("a federate that could not save is overheard", CONSENSUS, 'ok="failed" not in others', "ok=True"),
        ("a save that failed counts as a good one", CORE, '"federation_not_saved": _over("save", ok=False)',
         '"federation_not_saved": _over("save", ok=True)'),
        ("of two saves at once the greater one stays", CONSENSUS, "(key[2], names[1 - side]) < rival",
         "(key[2], names[1 - side]) > rival"),
        ("what was refused is not asked for again", CONSENSUS, 'if found.parts[side].state == "blocked" and',
         'if found.parts[side].state == "never" and'),
        ("a point that is under way is lost by a save", CONSENSUS,
         'if each.key is None or each.key[0] == "sync"))', "if each.key is None))"),
        ("a restore keeps messages of the line it has left", CONSENSUS,
         "Link((*own, *kept.control), kept.data)", "Link((*own, *kept.control), (*kept.data, *now.data))"),
        ("a restore keeps values of the line it has left", CONSENSUS, "            values=found.values,\n", ""),
        ("a restore keeps instances of the line it has left", CONSENSUS, "            objects=found.objects,\n", ""),
        ("a restore loses what was under way", CONSENSUS, "Link((*own, *kept.control), kept.data)",
         "Link((*own, *kept.control), ())"),
        ("a save keeps nothing of what is under way", CONSENSUS, "bridge.kept.set(label, _under_way(bridge))",
         "bridge.kept.set(label, Bridge())"),
        ("a point loses its tag", CONSENSUS, "part.label, tag, entry=entry)", 'part.label, b"", entry=entry)'),
        ("a renamed point loses its tag", CONSENSUS, "renamed, found.tag)", 'renamed, b"")'),
        ("of two points that wait for each other both give way", CONSENSUS,
         "(rival[2], names[rival[1]]) < (key[2], names[key[1]])", "rival"),
        ("what is over on both sides is never forgotten", CONSENSUS,
         "        turn.set(rounds=turn.bridge.rounds.delete(key), links=(links[0], links[1]))",
         "        turn.set(links=(links[0], links[1]))"),
        # order
        ("nothing waits at the barrier", STATE,
         'after = self.over_here_alone(side) if entry.kind != "completed" else ()', "after = ()"),
        ("the barrier opens as soon as it is known there", CORE, '.parts[1 - side].state != "over" for key',
         '.parts[1 - side].state == "" for key'),
        ("what is put back goes behind the rest", STATE, "(entry, *getattr(link, queue))",
         "(*getattr(link, queue), entry)"),
        ("messages of an instance overtake each other", CORE, "        seen.add(entry.stream)\n", ""),
        ("what comes during a save is lost", CORE, "    else:\n        turn.put_back(near, entry)\n",
         '    else:\n        turn.count("lost")\n'),
        # objects
        ("values from before the bridge are not asked for", PASSAGE, "was_there = not turn.bridge.settled[side]",
         "was_there = False"),
        ("a value loses its tag", PASSAGE, "arguments = (instance, there, tag, time, retraction)",
         'arguments = (instance, there, b"", time, retraction)'),
        ("a value is passed on twice", PASSAGE,
         "    twin = turn.twin(side, instance)\n    far = turn.twin(1 - side, twin.twin)\n    mine = tuple(each for each in values",
         "    twin = turn.twin(side, instance)\n    far = turn.twin(1 - side, twin.twin)\n    if twin.twin:\n"
         "        turn.call(1 - side, \"update_attribute_values\", twin.twin, values, tag)\n"
         "    mine = tuple(each for each in values"),
        ("an interaction is passed on twice", PASSAGE,
         '    cls, parameters, tag, time, _ = entry.arguments\n',
         '    cls, parameters, tag, time, _ = entry.arguments\n'
         '    turn.call(1 - side, "send_interaction", cls, parameters, tag)\n'),
        ("what is not owned is updated all the same", PASSAGE, "values if each[0] in far.held)", "values)"),
        ("last values are not remembered", CORE, "    passage.remember(turn, side, instance, values)\n", ""),
        ("last values are the first ones", PASSAGE,
         "turn.bridge.values.get(key, Map()).update(dict(values))", "turn.bridge.values.get(key, Map(values))"),
        ("a deletion stays on its side", PASSAGE, "    if twin.twin:\n        turn.call(1 - side, \"delete_object",
         "    if not twin.twin:\n        turn.call(1 - side, \"delete_object"),
        ("a retraction stays on its side", PASSAGE, '        turn.call(1 - side, "retract", there)\n', "        pass\n"),
        ("a request for values loses its tag", PASSAGE, 'Entry("provide", (instance, attributes, tag)',
         'Entry("provide", (instance, attributes, b"")'),
        ("a surrogate does not know that it may delete", PASSAGE, "{*published, fom.privilege}", "{*published}"),
        ("a name that is taken is given up", PASSAGE, 'if turn.plan.policy.failure == "smart" and not name',
         'if turn.plan.policy.failure == "never" and not name'),
        # ownership
        ("an attribute is given away before it is had", TRANSFER, 'policy == "allow-naive" and why == "release"',
         'why == "release"'),
        ("what a surrogate has acquired it does not know of", TRANSFER,
         "held=tuple(sorted({*twin.held, *attributes})))", "held=twin.held)"),
        ("what nobody wants any more is not given back", TRANSFER, "    if left and turn.plan", "    if () and turn.plan"),
        ("a claim that is met stays a claim", TRANSFER,
         "    _unclaim(turn, far, twin, there)\n    for why in sorted(by_why):", "    for why in sorted(by_why):"),
        ("a claim that is refused stays a claim", TRANSFER,
         '    _unclaim(turn, side, instance, attributes)\n    turn.count("denied"', '    turn.count("denied"'),
        ("an offer that nobody takes stays one", TRANSFER,
         '    turn.call(far, "cancel_negotiated_attribute_ownership_divestiture", twin, there)\n', ""),
        ("who is only offered an attribute is asked to release it", TRANSFER, 'if why == "confirm":\n        turn.call(home,',
         'if why == "never":\n        turn.call(home,'),
        ("an acquisition loses its tag", TRANSFER, "twin, there, tag, entry=entry)", 'twin, there, b"", entry=entry)'),
        # time
        ("time does not wait for messages in the bridge", PACE, "min(waiting, default=math.inf)", "math.inf"),
        ("a surrogate goes as far as it may promise", PACE, "    time = safe - lookahead\n", "    return safe\n"),
        ("a surrogate that is granted asks for no more", PACE,
         'has advanced."""\n    turn.set_pace(side, state="granted", time=time)\n    promise(turn, side)',
         'has advanced."""\n    turn.set_pace(side, state="granted", time=time)'),
        ("after a save time stands still", PACE, "        promise(turn, side)\n\n\ndef least", "\n\ndef least"),
        # the RTI
        ("RTI: the first who arrives is all", "federation.py", "if not all(point.achieved.values())",
         "if not any(point.achieved.values())"),
        ("RTI: a point waits for who has left", "federation.py", "achieved=point.achieved.delete(federate)))",
         "achieved=point.achieved))"),
        ("RTI: a save is good although somebody has left", "federation.py",
         "delete(call.federate), resigned=True)", "delete(call.federate))"),
        ("RTI: a save is good although somebody has failed", "federation.py",
         'else "REPORTED_FAILURE" if "failed" in saving.states.values() else ""', 'else ""'),
        ("RTI: who joins is not told of points", "federation.py",
         '            call.tell(handle, "announce_synchronization_point", label, point.tag)\n', ""),
        ("RTI: a status does not say who has left", "federation.py", "    if states and saving.resigned:",
         "    if states and not states:"),
        ("RTI: a save forgets who is asked to save", "federation.py",
         "    call.change(\"saving\", states=call.execution.saving.states.set(call.federate, state))\n    _end",
         "    call.change(\"saving\", states=call.execution.saving.states.delete(call.federate))\n    _end"),
        ("RTI: who else claims an attribute is forgotten", "transfers.py",
         "self.stay(attribute, federate, tuple(each for each in claims if each.federate != federate))",
         "pass"),
        ("RTI: the last who claims an attribute gets it", "transfers.py", "claims[0].federate, claims[0].tag",
         "claims[-1].federate, claims[-1].tag"),
        ("RTI: what somebody owns again is unowned still", "transfers.py",
         "            self.declared = self.declared.delete(attribute)\n", "            pass\n"),
        ("RTI: who divests is offered it", "transfers.py", "if each in may and self.owners.get(each) != federate:",
         "if each in may:"),
        ("RTI: who sends is told, too", "objects.py", "        if federate == call.federate:\n            continue\n", ""),
        ("RTI: an instance is discovered twice", "objects.py", "if call.federate in instance.known or cls not in above",
         "if cls not in above"),
        ("RTI: who is the last is told too early", "extensions.py", "if len(missing) != 1 or len(reported) < 2",
         "if not missing or len(reported) < 2"),
        ("RTI: a point that is withdrawn stays", "extensions.py",
         '    call.change("points", pending=call.execution.points.pending.delete(label))\n', ""),
        ("RTI: who is the last is not told of failures", "extensions.py",
         'others = "failed" not in saving.states.values() and not saving.resigned', "others = True"),
        ("RTI: the bound of others is not told", "clock.py", '            call.tell(federate, "lower_bound", galt)\n', ""),
    )
)  # fmt: skip


def patched(defect: Defect) -> str:
    """The file with the defect. Fails where its text is not there once."""
    text = (PACKAGE / "hla" / defect.file).read_text()
    count = text.count(defect.old)
    assert count == 1, f"{defect.name}: its text is {count} times in {defect.file}: mend the table"
    return text.replace(defect.old, defect.new)


def found_by(defect: Defect, folder: Path) -> str:
    """Who finds a defect first; "": nobody does."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy)
    (copy / "hla" / defect.file).write_text(patched(defect))
    given = {**os.environ, "PYTHONPATH": str(folder), "STORIES": STORIES, "PYTHONDONTWRITEBYTECODE": "1"}
    for finder, files in FINDERS.items():
        # without the folder in which it runs on the path, where the package is as it should be
        command = [sys.executable, "-P", "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", *files]
        try:
            done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=SECONDS_MOST)
        except subprocess.TimeoutExpired:
            return finder
        if done.returncode == 1:
            return finder
        assert done.returncode == 0, done.stdout + done.stderr
    return ""


def test_each_defect_is_a_patch_of_one_place() -> None:
    assert len(DEFECTS) >= 30
    assert len({each.name for each in DEFECTS}) == len(DEFECTS)
    for each in DEFECTS:
        compile(patched(each), each.file, "exec")


@pytest.mark.slow
@pytest.mark.processes
def test_without_a_defect_nothing_is_found(tmp_path: Path) -> None:
    assert found_by(Defect("none", CORE, "RACES: Final", "RACES: Final"), tmp_path) == ""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("defect", DEFECTS, ids=[each.name for each in DEFECTS])
def test_a_planted_defect_is_found(defect: Defect, tmp_path: Path) -> None:
    assert found_by(defect, tmp_path)


def main(names: list[str]) -> int:
    """The table, of those whose names have one of these. Exit code 1 if one is not found."""
    found: dict[str, int] = {}
    for each in DEFECTS:
        if not names or any(name in each.name for name in names):
            with tempfile.TemporaryDirectory() as folder:
                by = found_by(each, Path(folder)) or "NOT FOUND"
            found[by] = found.get(by, 0) + 1
            print(f"{by:10} {each.file.rpartition('/')[2]:13} {each.name}", flush=True)
    print(", ".join(f"{by}: {number}" for by, number in sorted(found.items())))
    return 1 if "NOT FOUND" in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
