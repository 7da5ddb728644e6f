"""`jbi bridge check` of a bridge between federations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jbi_pubsub.cli.app import run
from tests.hla.bridge.test_translation import AIR, WEATHER

FILE = """
[side.air]
kind = "hla"
federation = "Air"
fom = ["air.xml"]
[side.weather]
kind = "hla"
federation = "Weather"
fom = ["weather.xml"]
[[direction]]
from = "air"
to = "weather"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A bridge between two models; one of them has clouds."""
    (tmp_path / "air.xml").write_text(AIR)
    (tmp_path / "weather.xml").write_text(WEATHER)
    path = tmp_path / "bridge.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["Aircraft", "HLAobjectRoot.Aircraft", "Radio", "Cloud"])
def test_a_class_of_either_side_is_shown(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bridge", "check", str(file), "--type", name, "--json"]) == 0
    directions = json.loads(capsys.readouterr().out)["directions"]
    assert directions[0]["elements"] or name == "Cloud"


def test_a_class_that_no_side_has_is_said_to_be_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given a name that no model has; When it is asked for; Expect an error, with the name that was meant
    assert run(["bridge", "check", str(file), "--type", "Aircaft"]) != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "no side has a class 'Aircaft'" in said.err
    assert "Did you mean Aircraft?" in said.err
    # but not where a model is known only when its RTI is asked
    file.write_text(FILE.replace('fom = ["air.xml"]', ""))
    assert run(["bridge", "check", str(file), "--type", "Aircaft"]) == 0
