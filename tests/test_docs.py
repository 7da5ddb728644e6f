"""The documentation says what is so: README programs run, every setting is documented."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.pad.proxy import fetch_status

TOP = Path(__file__).parent.parent
README = (TOP / "README.md").read_text()


def program(name: str) -> str:
    """The README's program behind the comment `<!-- test: name -->`."""
    found = re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def watchers(address: str) -> int:
    """Event registrations at a lookup service."""
    status = fetch_status(ServiceRef("", "status", (address,)), Config().security(), timeout=5.0)
    return int(status["event_registrations"])


@pytest.mark.processes
def test_the_readme_programs_exchange_an_object(start: Callable[..., Any], eventually: Callable[..., Any]) -> None:
    # Given the servers that the README starts
    lookup = start("--no-multicast", "lookup", "--port", "0", "--json").fact()
    start("--no-multicast", "--locator", lookup["address"], "pad", "alpha", "rome", "--json").fact()
    environment = {"JBI_CONFIG": os.environ["JBI_CONFIG"], "JBI_LOOKUP_LOCATORS": lookup["address"]}
    # When its subscriber runs, and, as soon as it is known, its publisher, once
    watching = watchers(lookup["address"])
    subscriber = subprocess.Popen(
        [sys.executable, "-u", "-c", program("subscriber")], cwd=TOP, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert subscriber.stdout is not None
    try:
        eventually(lambda: watchers(lookup["address"]) >= watching + 2)  # for other lookup services, and for its type
        published = subprocess.run([sys.executable, "-c", program("publisher")], cwd=TOP, env=environment, check=False)
        assert published.returncode == 0
        line = subscriber.stdout.readline() if select.select([subscriber.stdout], [], [], 10.0)[0] else ""
    finally:
        subscriber.kill()
        subscriber.wait()
        subscriber.stdout.close()
    # Expect the image of figure 1
    assert line.startswith("mil.af.rl.jbi.Intel_Imagery 1 ")


def test_the_examples_are_the_readme_programs() -> None:
    # Given each example, expect every call of the README's program in it, comments apart
    for name in ("publisher", "subscriber"):
        example = [line.strip() for line in (TOP / "examples" / f"{name}.py").read_text().splitlines()]
        calls = [line.split("  #")[0].strip() for line in program(name).splitlines() if line.startswith("    ")]
        assert [call for call in calls if call not in example] == []


def test_every_setting_is_documented() -> None:
    made = runpy.run_path(str(TOP / "docs" / "make_configuration.py"))["page"]()
    assert (TOP / "docs" / "configuration.md").read_text() == made
    assert not re.search(r"\|\s+\|$", made, re.MULTILINE), "a setting has no meaning"


def test_what_the_readme_says_of_peer_publishers_is_so() -> None:
    # Given what a peer publisher is said to lack, and to have besides
    told = " ".join(README.split())
    light, peer = (
        inspect.signature(adapter.register_publisher) for adapter in (PublisherAdapterLight, PublisherAdapter)
    )
    assert "it has no `connect_to_delegate`, its `register_publisher` takes no `delegate`" in told
    assert not hasattr(PublisherAdapter, "connect_to_delegate")
    assert set(light.parameters) - set(peer.parameters) == {"delegate"}
    assert "its `flush` says how many objects still wait" in told
    returned = [
        inspect.signature(adapter.flush).return_annotation for adapter in (PublisherAdapterLight, PublisherAdapter)
    ]
    assert returned == ["None", "int"]
