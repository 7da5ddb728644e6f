"""The examples, run as a user would: they end by themselves, and what they promise comes true."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from lxml import etree

from jbi_pubsub import Config, Services
from jbi_pubsub.cli import app
from jbi_pubsub.cli import examples as command
from jbi_pubsub.core.errors import ConfigurationError, DemoError
from jbi_pubsub.examples import airborne, caution, imagery, sensors, uav
from jbi_pubsub.examples.example import (
    DATA,
    EXAMPLES,
    WRITES,
    ExampleOptions,
    ExampleOutcome,
    OutcomeTable,
    Promise,
    find,
)
from jbi_pubsub.examples.federation import Federation
from jbi_pubsub.examples.tasking import SENSOR_TASKING, Tasking, task
from jbi_pubsub.examples.uav import GeographicPoint

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "examples.md").read_text()
COMMANDS = {line.split()[0]: line.split() for line in re.findall(r"^\$ jbi demo ([a-z].*)$", PAGE, re.MULTILINE)}
"""Those of the page, by the name of the example."""


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`jbi demo ...` as a process, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "jbi_pubsub", "demo", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JBI_PAD_MAX_REGISTRATIONS": "1"},  # the user's own settings are for another federation
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for each example is in it."""
    return tmp_path_factory.mktemp("examples")


def check(out: str, err: str, code: int | None) -> None:
    """Whether an example has done what it is for."""
    assert code == 0, out + err
    # matplotlib may have to say that it looks for its fonts, and a client that its node is away for a while, or late
    late = r"no delegate answers|a delegate answers again|has its new terms at"
    told = [line for line in err.splitlines() if not re.search(late, line)]
    assert not [line for line in told if "jbi" in line], err
    assert "Traceback" not in err
    promises = re.findall(r"^(ok|WRONG) +(.*)$", out, re.MULTILINE)
    assert len(promises) >= 3
    assert {verdict for verdict, _ in promises} == {"ok"}
    assert f"{len(promises)} of {len(promises)} promises came true" in out


@pytest.mark.row("J-98", "J-99", "H-09", "D-01", "D-02", "D-03")
@pytest.mark.processes
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_keeps_its_promises(name: str, folder: Path) -> None:
    # Given an example as the page has it, expect it to end by itself, with all that it promises
    process = begin(folder / name, *COMMANDS[name], "--quick")
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    check(out, err, process.returncode)
    # Expect the file that it says it has written
    for file in re.findall(r"^ *[0-9.]+ s  map: (.*)$", out, re.MULTILINE):
        assert (folder / name / file).stat().st_size > 4_000
    assert ("map: " in out or "no map: " in out) == (name in WRITES)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_keeps_its_promises_in_full(name: str, tmp_path: Path) -> None:
    # Given an example as users get it: of the airborne one, 500 KB over 7,200 bit/s within 10 s
    process = begin(tmp_path, name)
    out, err = process.communicate(timeout=120)
    check(out, err, process.returncode)


def played(name: str, folder: Path) -> tuple[list[Any], list[str]]:
    """What a notebook shows when it is run from the top to the end, and what it says; it is in the repository without
    outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(TOP / "examples" / name, as_version=4)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jupyter's own, about its transport
        NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["data"] for output in outputs if "data" in output], [output.get("text", "") for output in outputs]


@pytest.mark.processes
def test_the_notebook_makes_a_frame_of_what_was_received(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the notebook needs pandas")
    pytest.importorskip("matplotlib", reason="the notebook needs the extra plot")
    shown, told = played("received_objects.ipynb", tmp_path)

    # Expect as many objects as places lie there by plain arithmetic, as a table and as a picture
    places = [imagery.rounded(place) for place in imagery.scattered(400)]
    assert str(sum(place.latitude > 33 for place in places)) in [data.get("text/plain") for data in shown]
    assert sum("<table" in data.get("text/html", "") for data in shown) == 2
    assert sum("image/png" in data for data in shown) == 1
    # Expect no warning of ours in it
    assert not [text for text in told if "jbi_pubsub" in text]


@pytest.mark.processes
def test_the_notebook_of_asyncio_awaits_in_its_cells(tmp_path: Path) -> None:
    shown, told = played("asyncio_readings.ipynb", tmp_path)
    # Expect the readings above 25 of those from 21 to 30, then those of a publisher in the same cell
    values = [data["text/plain"] for data in shown if data["text/plain"].startswith("[")]
    assert values == [str([str(value) for value in range(26, 31)]), "[26, 27, 28]"]
    assert not [text for text in told if "jbi_pubsub" in text]


# -- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """demo("--list") is the exit code and what was said."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = app.run(["demo", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_broken_promise_is_told_and_is_the_exit_code(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an example that does not keep one of two promises
    made = ExampleOutcome(
        (OutcomeTable("What", ("it", "is"), [("so", 1)]),), (Promise("this", True), Promise("that", False))
    )
    monkeypatch.setattr(command, "find", lambda _name: lambda _options: made)
    # Expect it to be named
    code, out, _ = demo("caution")
    assert code == 1
    assert "WRONG  that" in out
    assert "1 of 2 promises came true" in out
    # Expect the same for programs
    code, out, _ = demo("caution", "--json")
    assert (code, json.loads(out)["right"]) == (1, False)


def test_an_example_without_promises_has_kept_none() -> None:
    assert not ExampleOutcome((), ()).right


def test_the_examples_are_listed(demo: Any) -> None:
    code, out, _ = demo("--list")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()[1:]] == list(EXAMPLES)
    assert all(callable(find(name)) for name in EXAMPLES)
    assert set(EXAMPLES) >= WRITES


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("airbone",), "did you mean airborne?"),
        (("nothing-like-it",), "there are: airborne, alerts"),
        (("airborne", "--keep"), "--keep is of the demo without a name"),
        (("airborne", "--out", "x.png"), "airborne writes no file"),
        (("--quick",), "are of an example"),
        (("imagery", "--out", "/"), "is a directory"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], told: str, demo: Any) -> None:
    code, out, err = demo(*arguments)
    assert (code, out) == (2, "")
    assert told in err


# -- the map --------------------------------------------------------------------------------------------------------


def streams() -> tuple[imagery.Stream, imagery.Stream]:
    """Two, with a point inside and one outside."""
    inside, outside = GeographicPoint(34.0, 68.0), GeographicPoint(34.0, -68.0)
    return imagery.Stream("imagery", [inside, outside], [inside]), imagery.Stream("telemetry", [inside], [inside])


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_map_is_drawn(suffix: str, begins: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the map needs the extra plot")
    said: list[str] = []
    file = tmp_path / f"map{suffix}"
    imagery.draw(streams(), ExampleOptions(said.append, output=file))
    assert said == [f"map: {file}"]
    assert file.read_bytes().startswith(begins)


def test_without_matplotlib_there_is_no_map_and_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said: list[str] = []
    imagery.draw(streams(), ExampleOptions(said.append, output=tmp_path / "map.png"))
    assert said == ["no map: matplotlib is not installed (pip install 'jbi-pubsub[plot]')"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["nowhere/map.png", "map.xyz"])
def test_a_map_that_cant_be_written_is_told(file: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the map needs the extra plot")
    with pytest.raises(DemoError, match=r"--out takes \.png"):
        imagery.draw(streams(), ExampleOptions(print, output=tmp_path / file))


def test_places_read_back_as_they_were_written_in_every_hemisphere() -> None:
    for place in (
        GeographicPoint(34.5, 69.2),
        GeographicPoint(-34.5, 69.2),
        GeographicPoint(34.5, -69.2),
        GeographicPoint(-34.5, -69.2),
    ):
        assert GeographicPoint.of(uav.telemetry("OWL", uav.VehicleState(place, 0)), uav.PLACE) == place
        assert GeographicPoint.of(imagery.moved(imagery.FIGURE.read_bytes(), place), imagery.PLACE) == place


# -- the parts --------------------------------------------------------------------------------------------------------


def test_an_order_is_by_its_schema_and_one_percent_of_it_is_wanted() -> None:
    # Given the order that is published
    order = airborne.tasking_order(500_000)
    # Expect its size, the same bytes each time, and a document of the schema
    assert order == airborne.tasking_order(500_000)
    assert 500_000 <= len(order) <= 505_000
    root = etree.fromstring(order)
    etree.XMLSchema(etree.parse(DATA / "airborne" / "ATO.xsd")).assertValid(root)
    # Expect that a hundredth is wanted
    [wanted] = root.xpath(airborne.WANTED)
    assert 0.005 < len(etree.tostring(wanted)) / len(order) < 0.015


def test_a_step_is_fused_when_every_sensor_has_reported_it() -> None:
    # Given three sensors of an area, one of which is ahead of the others
    fusion = sensors.Fusion({"north": 3})
    ahead = [sensors.Report("a", "north", step, 3.0, 0.0) for step in (0, 1)]
    others = [sensors.Report(name, "north", 0, 0.0, 0.0) for name in ("b", "c")]
    # Expect nothing before the last has reported, then the mean of all three
    assert [fusion.add(report) for report in (*ahead, others[0])] == [[], [], []]
    [track] = fusion.add(others[1])
    assert (track.step, track.reports, track.east, track.north) == (0, 3, 1.0, 0.0)
    # Expect the scatter on an axis: the squares of 2, 1 and 1 metres, over 3 reports and 2 axes
    assert track.scatter == pytest.approx(1.0)


def test_an_observation_is_of_the_nearest_target_and_of_none_far_away() -> None:
    database = caution.targets_database()
    first, second = caution.targets()[:2]
    assert (
        caution.assess(database, GeographicPoint(first.at.latitude + 0.003, first.at.longitude), picture(0.1)).target
        == first
    )  # type: ignore[union-attr]  # there is one
    assert (
        caution.assess(database, GeographicPoint(second.at.latitude, second.at.longitude), picture(0.3)).damage
        == "severe"
    )  # type: ignore[union-attr]  # there is one
    assert caution.assess(database, GeographicPoint(first.at.latitude, first.at.longitude + 0.03), picture(0.1)) is None


def picture(share: float) -> bytes:
    return caution.picture(random.Random(1), share)


@pytest.mark.parametrize("payload", [b"", b"no picture", b"P6\n1 1\n255\n000", b"P5\n1 1\n"])
def test_what_is_no_picture_is_told(payload: bytes) -> None:
    with pytest.raises(DemoError, match="not a PGM picture"):
        caution.burnt(payload)


@pytest.mark.row("J-99")
def test_a_tasking_service_is_found_by_entry_and_answers(federation: Any, eventually: Any) -> None:
    # Given two services of two areas
    obeyed: list[str] = []

    def obey(mode: str) -> int:
        obeyed.append(mode)
        return 7

    config: Config = federation.config
    with Services(config) as engine:
        with Services(config) as host:
            host.offer(SENSOR_TASKING, {"area": "north", "kind": "radar", "sensors": 7}, calls=Tasking(obey))
            host.offer(SENSOR_TASKING, {"area": "south", "kind": "radar", "sensors": 9}, calls=Tasking(lambda _mode: 0))
            # Expect them by what their entries have in common, one by what is its own, none by what no entry says
            found = engine.find(SENSOR_TASKING, "kind == 'radar'", preference="min sensors")
            assert [each.properties["area"] for each in found] == ["north", "south"]
            (north,) = engine.find(SENSOR_TASKING, "area == 'north'")
            assert engine.find(SENSOR_TASKING, "area == 'west'") == []
            # Expect that the service does what it is told, and says so when it can't
            assert task(engine, north, "fine") == 7
            assert obeyed == ["fine"]
            with pytest.raises(ConfigurationError, match="no mode 'loud'"):
                task(engine, north, "loud")
        # Expect nothing to be left
        eventually(lambda: engine.find(SENSOR_TASKING) == [])


@pytest.mark.processes
def test_processes_end_with_the_federation_whatever_happens_in_it() -> None:
    # Given a federation in which something goes wrong
    before = set(psutil.Process().children())

    def fails() -> None:
        with Federation().lookup() as here:
            assert len(set(psutil.Process().children()) - before) == 1
            raise KeyError(here.locator)

    with pytest.raises(KeyError):
        fails()
    # Expect nothing to be left
    assert set(psutil.Process().children()) - before == set()


@pytest.mark.processes
def test_an_interrupt_while_processes_end_leaves_none_of_them(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service and a delegate, which ends first, and Ctrl-C while it is waited for
    before = set(psutil.Process().children())
    here = Federation().lookup().delegate("alpha", "rome")
    waited = subprocess.Popen.wait

    def interrupted(process: Any, timeout: float | None = None) -> int:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return waited(process, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            here.stop()
    # Expect nothing to be left
    eventually(lambda: set(psutil.Process().children()) - before == set())


@pytest.mark.processes
def test_a_process_that_fails_is_named_with_what_it_has_said() -> None:
    # Given a port that is taken
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # Expect a lookup service there to be told as what it is
        with pytest.raises(DemoError, match=rf"lookup has ended: jbi: .*{port}"), Federation() as here:
            here.lookup(port)


# -- the page -------------------------------------------------------------------------------------------------------


def test_the_page_shows_every_example() -> None:
    # Given the page; Expect a section and a command for each example, in this order, and its promises as they are
    assert re.findall(r"^## `jbi demo (\w+)`", PAGE, re.MULTILINE) == list(COMMANDS) == list(EXAMPLES)
    width = max(map(len, EXAMPLES))
    assert all(f"{name:{width}}  {sentence}" in PAGE for name, sentence in EXAMPLES.items())
    assert "WRONG" not in PAGE
