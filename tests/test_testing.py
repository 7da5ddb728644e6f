"""A federation for tests keeps to itself, and leaves nothing. docs/testing.md runs in test_pages.py."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub import Config
from jbi_pubsub.core.config import LookupSection, PadSection
from jbi_pubsub.testing import LocalFederation

TOP = Path(__file__).parent.parent


def test_two_federations_do_not_see_each_other(figures: Any, left_over: Any) -> None:
    # Given two in one process, with settings that would have them meet
    config = Config(lookup=LookupSection(port=4160, locators=("127.0.0.1:4160",)), pad=PadSection(port=4161))
    with LocalFederation(config) as one, LocalFederation(config) as other:
        for federation in (one, other):
            federation.delegate("alpha", "rome")
        subscriber, stranger = one.subscriber(), other.subscriber()
        wanted, not_there = (each.register_subscriber(type_name="Intel_Imagery") for each in (subscriber, stranger))
        # When somebody publishes in the first one, by a delegate and as a peer
        light, peer = one.publisher(), one.peer()
        by_delegate = figures.register(light)
        by_itself = peer.register_publisher(figures.schema, figures.figure_1)
        assert subscriber.wait_matched(wanted, 2) == 2
        light.publish(by_delegate, figures.figure_1, b"1")
        light.flush()
        peer.publish(by_itself, figures.figure_1, b"2")
        peer.flush()
        # Expect both objects there, and nothing in the second
        assert {subscriber.receive(wanted).payload for _ in range(2)} == {b"1", b"2"}
        assert stranger.matching(not_there).registrations == 0
    # Expect nothing left of either
    assert left_over.names() == []


def test_a_second_lookup_service_is_known_to_those_that_come_later() -> None:
    # Given a federation with two lookup services and a delegate
    with LocalFederation() as federation:
        federation.lookup()
        federation.delegate()
        # Expect it at both, and both in the settings
        assert federation.config.lookup.locators == tuple(each.address for each in federation.lookups)
        publisher = federation.publisher()
        assert publisher.connect_to_delegate("alpha", "rome")


def test_it_ends_though_a_test_fails_in_it() -> None:
    # Given a federation with something beside it
    ended: list[str] = []
    federation = LocalFederation()
    federation.stack.callback(ended.append, "beside it")
    # When a test in it fails, expect the failure, and its end
    with pytest.raises(pytest.fail.Exception, match="as said"), federation:
        pytest.fail("as said")
    assert ended == ["beside it"]


NOTHING_YET = """

import sys
LOADED = [name for name in sys.modules if name.startswith("jbi_pubsub.")]
def test_a_run_without_a_federation_has_imported_the_fixture_alone():
    assert LOADED == ["jbi_pubsub.pytest_plugin"]
"""


def test_an_installed_package_gives_pytest_the_fixture_of_the_page(tmp_path: Path) -> None:
    # Given the package installed, as setup.cfg says, and a folder with the test of docs/testing.md and nothing else
    settings = configparser.ConfigParser()
    settings.read(TOP / "setup.cfg")
    site, folder = tmp_path / "site", tmp_path / "folder"
    installed = site / "jbi_pubsub-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: jbi-pubsub\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[pytest11]" + settings["options.entry_points"]["pytest11"])
    page = (TOP / "docs" / "testing.md").read_text()
    [example] = re.findall(r"<!-- run by: [^\n]*\n```python\n(.*?)```", page, re.DOTALL)
    folder.mkdir()
    (folder / "test_reading.py").write_text(example + NOTHING_YET)
    # When pytest runs there
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", "-q", "-W", "error"],
        cwd=folder, env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{TOP}"}, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Expect that the test of the page has its federation, and nothing of it was imported before
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
