"""The file of a bridge, and the blocks of docs/bridge.md that need a broker."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub import Config
from jbi_pubsub.bridge.file import JbiSide, described, settings_of
from jbi_pubsub.cli.app import run as jbi
from jbi_pubsub.core import plugins
from jbi_pubsub.core.errors import ConfigurationError

PAGE = Path(__file__).parents[2] / "docs" / "bridge.md"

GOOD = """
[side.a]
[side.b]
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.processes
def test_the_bridge_to_a_broker_of_the_page_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given the file that the page shows
    (text,) = [text for text in blocks("toml") if 'kind = "mqtt"' in text]
    file = tmp_path / "field.toml"
    file.write_text(text.replace(":4160", ":9").replace(":1883", ":9"))
    # When it is checked, expect both directions
    assert jbi(["bridge", "check", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(way["from"], way["to"]) for way in said["directions"]] == [("alpha", "field"), ("field", "alpha")]
    # And that it opens, waits for whoever is not there, and closes
    mirror = described(file).opened(Config())
    mirror.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing required field `side`"),
        ("[side.a]", "1 sides"),
        (GOOD + "[side.c]", "3 sides"),
        ('[side."a b"]\n[side.b]', "names have 1 to"),
        (GOOD + "poll = 0", "unknown field|poll"),
        ("poll = 0\n" + GOOD, "poll"),
        ("nmae = 'x'\n" + GOOD, "Did you mean name"),
        (GOOD + "[[direction]]\nfrom = 'a'\nto = 'a'", "a direction from 'a' to 'a'"),
        (GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\n[[direction]]\nfrom = 'a'\nto = 'b'", "a direction from"),
        (GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\ntype = ['x']", r"bridge.toml:\d+:1: .*Did you mean types"),
        (GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\n[[direction.rule]]\ntypes = ['x']\nwhere = '//lat >'", "operand"),
        (
            GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\n[[direction.rule]]\ntypes = ['*']\nname = 'x'",
            "is for one type",
        ),
        (
            GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\n"
            "rule = [{types = ['x'], name = 'z'}, {types = ['y'], name = 'z'}]",
            "called the same",
        ),
        ("[side.a]\nkind = 'mqt'\n[side.b]", "Did you mean mqtt"),
        ("[side.a]\nkind = 3\n[side.b]", "kind is not text"),
        ("[side.a]\nlocator = ['x']\n[side.b]", "Did you mean locators"),
        ("[side.a]\nlocators = ['127.0.0.1']\n[side.b]", "side.a: '127.0.0.1' is not HOST:PORT"),
        ("[side.a]\nconfig = 'nowhere.toml'\n[side.b]", "nowhere.toml"),
        ("[side.a]\ndelegate = ['x', 'y', 'z']\n[side.b]", "side.a"),
        ("[side.a]\nkind = 'mqtt'\n[side.b]", "side.a"),
        (
            "[side.a]\nkind = 'x'\n[side.b]\n[[direction]]\nfrom = 'a'\nto = 'b'\nwanted = true",
            "can't be asked for some",
        ),
        ("[side", "bridge file"),
        ("a = " + "[" * 20_000, "too many brackets"),
        (".".join("a" * 12_000) + " = 1", "more than 32 names with dots between"),
        ("#" * (9 << 20), "more than 8 MB"),
        (GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\nrule = 5", r"bridge.toml:\d+:1: .*rule"),
        (GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\nrule = [{types = [], name = 'y'}]", "is for one type"),
        (
            GOOD + '[[direction]]\nfrom = "a"\nto = "b"\nrule = [{types = ["x"], name = "a\\nb"}]',
            "not a name and version",
        ),
        (
            GOOD + f"[[direction]]\nfrom = 'a'\nto = 'b'\nrule = [{{types = ['x'], name = '{'y' * 501}'}}]",
            "not a name and",
        ),
        (
            GOOD + "[[direction]]\nfrom = 'a'\nto = 'b'\n[[direction.rule]]\ntypes = ['x']\nunit = ['ft', 'm']",
            "Metadata are never modified: unit is for sides of kind hla alone",
        ),
        ("[side.a]\nlocators = ['nope']\n[side.b]", "side.a: 'nope' is not HOST:PORT"),
        ("[side.a]\nlocators = ['h:99999']\n[side.b]", "not HOST:PORT"),
        ('[side.a]\nconfig = "a\\u0000b"\n[side.b]', "side.a: configuration file"),
    ],
)
def test_a_file_that_is_none_is_told_with_what_was_meant(text: str, why: str, tmp_path: Path) -> None:
    # Given such a file
    file = tmp_path / "bridge.toml"
    file.write_text(text)
    # When it is checked, expect the file, what is wrong and what was meant
    with pytest.raises(ConfigurationError) as raised:
        described(file).check(Config())
    assert re.search(why, str(raised.value))
    assert str(file.name) in str(raised.value)


def test_a_side_that_names_its_lookup_services_looks_for_no_others() -> None:
    # Given a process that looks by mDNS, and sides with and without locators
    base = Config()
    assert base.lookup.multicast
    named = settings_of(Path("bridge.toml"), "a", JbiSide(locators=("127.0.0.1:4161",)), base)
    plain = settings_of(Path("bridge.toml"), "b", JbiSide(), base)
    # Expect that the one asks those alone
    assert (named.lookup.locators, named.lookup.multicast) == (("127.0.0.1:4161",), False)
    assert plain.lookup.multicast


def test_the_command_runs_until_it_is_ended_and_says_what_it_did(
    tmp_path: Path, start: Callable[..., Any], federation: Any, eventually: Any
) -> None:
    # Given a bridge file to a platform, and one that is not there
    (at,) = federation.config.lookup.locators
    group = federation.config.lookup.groups[0]
    file = tmp_path / "bridge.toml"
    file.write_text(f'[side.a]\nlocators = ["{at}"]\ngroups = ["{group}"]\n[side.b]\nlocators = ["127.0.0.1:9"]\n')
    # When it runs, and is ended
    process = start("bridge", str(file), "--json")
    assert process.fact() == {"ready": "bridge", "sides": ["a", "b"]}
    process.signal(signal.SIGTERM)
    # Expect what it has done, and a good end
    said = process.fact()
    assert said["ended"] == "bridge"
    assert [way["relayed"] for way in said["directions"]] == [0, 0]
    assert process.wait() == 0


def test_what_is_no_command_and_no_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    # Given neither, expect the nearest name and exit code 2
    assert jbi(["bridge", "chek"]) == 2
    assert "Did you mean 'check'?" in capsys.readouterr().err
    assert jbi(["bridge", "nowhere.toml"]) == 2
    assert "nowhere.toml: No such file" in capsys.readouterr().err


@pytest.mark.row("X-08")
def test_another_kind_of_platform_is_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a plug-in for a further kind
    made: list[Any] = []

    class Side:
        name = "a"

        def close(self) -> None:
            made.append("closed")

        stop_listening = close

    def side(name: str, table: dict[str, Any], bridge: str) -> Side:
        made.append((name, table, bridge.partition("-")[0]))
        return Side()

    monkeypatch.setattr(plugins, "find", lambda kind, name: side if (kind, name) == ("platform", "acme") else None)
    file = tmp_path / "bridge.toml"
    file.write_text('name = "n"\n[side.a]\nkind = "acme"\nat = 7\n[side.b]\nkind = "acme"\n')
    # When a bridge has such sides, expect them made of their tables, and closed
    described(file).check(Config())
    described(file).opened(Config()).close()
    assert made[:2] == [("a", {"kind": "acme", "at": 7}, "n"), ("b", {"kind": "acme"}, "n")]
    assert made[2:] == ["closed"] * 4


@pytest.mark.processes
def test_a_type_that_a_direction_names_twice_is_subscribed_to_once(tmp_path: Path) -> None:
    # Given such a file, and sides that are nowhere
    file = tmp_path / "bridge.toml"
    sides = "".join(f'[side.{name}]\nlocators = ["127.0.0.1:9"]\n' for name in "ab")
    file.write_text(sides + '[[direction]]\nfrom = "a"\nto = "b"\ntypes = ["t", "u", "t"]\n')
    # When it is opened, expect a subscription for each
    mirror = described(file).opened(Config())
    asked: list[Sequence[str]] = []
    mirror.sides[0].subscribe = lambda types, _arrived: asked.append(types)  # type: ignore[assignment, method-assign]
    mirror.directions[0].look()
    mirror.close()
    assert asked == [("t", "u")]


def test_without_the_library_of_a_broker_it_says_which_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt", None)
    file = tmp_path / "bridge.toml"
    file.write_text("[side.a]\nkind = 'mqtt'\nbroker = '127.0.0.1:1'\n[side.b]\n")
    assert jbi(["bridge", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "paho-mqtt" in line
    assert "pip install 'jbi-pubsub[mqtt]'" in line
