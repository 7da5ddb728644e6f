"""The documentation says what is so: README programs run; settings, errors, losses, metrics, commands and frames are
documented, all of them and as they are. Code blocks run in test_pages.py."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import select
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub import Cause, Config, JbiError, PublisherAdapter, PublisherAdapterLight
from jbi_pubsub.cli.app import HOMES, run
from jbi_pubsub.core import errors
from jbi_pubsub.core.info_object import Head
from jbi_pubsub.core.wire import ServiceRef, stream
from jbi_pubsub.core.wire.ref import PROTOCOL
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.protocol import deliveries, publications
from jbi_pubsub.protocol.services import fetch_status

TOP = Path(__file__).parent.parent
README = (TOP / "README.md").read_text()


def program(name: str) -> str:
    """The README's program behind the comment `<!-- test: name -->`."""
    found = re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def watchers(address: str) -> int:
    """Event registrations at a lookup service."""
    status = fetch_status(ServiceRef("", "status", (address,)), Config().security(), timeout=60.0)
    return int(status["event_registrations"])


@pytest.mark.processes
def test_the_readme_programs_exchange_an_object(start: Callable[..., Any], eventually: Callable[..., Any]) -> None:
    # Given the servers that the README starts
    lookup = start("--no-multicast", "lookup", "--port", "0", "--json").fact()
    start("--no-multicast", "--locator", lookup["address"], "pad", "alpha", "rome", "--json").fact()
    environment = {"JBI_CONFIG": os.environ["JBI_CONFIG"], "JBI_LOOKUP_LOCATORS": lookup["address"]}
    # When its subscriber runs, and, as soon as it is known, its publisher, once
    subscriber = subprocess.Popen(
        [sys.executable, "-u", "-c", program("subscriber")], cwd=TOP, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert subscriber.stdout is not None
    try:
        # it watches for its type; and for other lookup services, as the delegate does
        eventually(lambda: watchers(lookup["address"]) == 3)
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


@pytest.mark.parametrize("page", ["errors", "losses", "metrics"])
def test_pages_made_from_the_code_are_up_to_date(page: str) -> None:
    # Given a page that is made from the code; metrics from a running lookup service and delegate
    # When it is made anew, expect the page that is there: `make reference`
    assert (TOP / "docs" / f"{page}.md").read_text() == reference()["PAGES"][page]()


def test_every_error_and_loss_has_its_cure() -> None:
    # Given all errors and causes, expect what people have to say about each
    made = reference()
    assert set(errors_by_code()) - set(made["CURES"]) == set()
    assert set(Cause) - set(made["REMEDIES"]) == set()


def test_every_command_is_in_the_reference() -> None:
    # Given the page of commands, which is made when the site is, expect each command and each option with its help
    page = reference()["commands_page"]()
    assert [name for name in HOMES if f"\n## jbi {name}\n" not in page] == []
    assert "| `--digest SECONDS` | With --email: gather objects in one mail." in page
    assert "\n### jbi lookup admin groups\n" in page
    assert "<!-- made: commands -->" in (TOP / "docs" / "commands.md").read_text()
    # and every command to answer as before: click remembers the names of help's option that were asked for first
    assert run(["types", "check", "-h"]) == 0


def test_the_xpath_page_says_what_lxml_says() -> None:
    # Given the page's document and its tables of predicates with their truth
    page = (TOP / "docs" / "xpath.md").read_text()
    (document,) = re.findall(r"```xml\n(.*?)```", page, re.DOTALL)
    rows = re.findall(r"^\| `(.+)` \| (true|false) \|", page, re.MULTILINE)
    assert len(rows) > 20
    # When each is compiled and evaluated, expect what the page says
    root = etree.fromstring(document)
    said = dict(rows)
    assert {predicate: str(compile_predicate(predicate).evaluate(root)).lower() for predicate in said} == said


def test_the_comparison_has_the_measured_figures() -> None:
    # Given the rows of figures of the comparison, expect each figure in the measurements
    page = (TOP / "docs" / "comparison.md").read_text()
    measured = " ".join((TOP / "docs" / "measurements.md").read_text().split())
    table = page[page.index("| objects/s at N") : page.index("- With **one**")]
    figures = re.findall(r"\d+,\d{3}|\d{2,3}(?= \|)", "".join(table.splitlines(keepends=True)[2:]))
    assert len(figures) > 15
    assert [figure for figure in figures if figure not in measured] == []


@pytest.mark.row("G-41")
def test_the_wire_page_reads_a_real_exchange(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given everything that an object's way puts on sockets, by direction, and the page's lines to read that
    written = recorded(monkeypatch)
    federation.pad()
    light, subscriber = federation.light(), federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="Intel_Imagery")
    registration = figures.register(light)
    object_id = light.publish(registration, figures.figure_1, b"what it is about")
    assert subscriber.receive(subscription) is not None
    page = (TOP / "docs" / "wire.md").read_text()
    reading: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1], reading)
    # When they read both directions of the data connections, whose preamble is as the page says
    preamble = b"JBI\n" + bytes([PROTOCOL]) + b"D"

    def frames() -> list[list[tuple[int, bytes]]]:
        opened = [ends for ends, data in list(written.items()) if data.startswith(preamble)]
        sent = [bytes(written[ends])[len(preamble) :] for ends in opened]
        answered = [bytes(written[there, here]) for here, there in opened]
        return [[frame for one in streams for frame in reading["frames"](one)] for streams in (sent, answered)]

    wanted = b"what it is about"
    eventually(lambda: all(any(wanted in body for kind, body in found if kind == 4) for found in frames()))
    # Expect the object as it was published, and as it was delivered
    for found, at in zip(frames(), (9, 5), strict=True):
        assert {kind for kind, _ in found} <= set(range(1, 6))
        numbered = [each for kind, body in found if kind == 4 for each in reading["items"](body)]
        ((head, payload),) = [reading["whole"](item, at) for _, item in numbered if wanted in item]
        assert head["own_id"] or f"{head['registration'].rpartition('-')[2]}{head['sequence']:012x}" == object_id
        assert (head["type_name"], head["sequence"]) == ("mil.af.rl.jbi.Intel_Imagery", 1)
        assert (head["metadata"], payload) == (figures.figure_1, b"what it is about")


def test_the_wire_page_names_all_kinds() -> None:
    # Given the kinds of frames and items, and the fields of an object's head; Expect each in a row of the page
    page = (TOP / "docs" / "wire.md").read_text()
    kinds = {
        stream: "HELLO WELCOME REFUSED ITEMS ACK BYE DEFLATED",
        publications: "WHOLE CHUNK LAST_CHUNK",
        deliveries: "OBJECT LOSS CHUNK LAST_CHUNK SHARED END",
    }
    rows = [f"| {getattr(module, kind)} | {kind} |" for module, names in kinds.items() for kind in names.split()]
    assert [row for row in rows if row not in page] == []
    fields = [f"| {place} | {name} |" for place, name in enumerate(Head.__struct_fields__)]
    assert [row for row in fields if row not in page] == []


def test_links_to_files_lead_somewhere() -> None:
    # Given all links of README.md and of the pages to files of the repository
    links = {
        (page, target)
        for page in (TOP / "README.md", *(TOP / "docs").glob("*.md"))
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    }
    assert len(links) > 50
    # Expect a file there
    assert {(page, target) for page, target in links if not (page.parent / target).exists()} == set()


def reference() -> dict[str, Any]:
    """docs/make_reference.py."""
    return runpy.run_path(str(TOP / "docs" / "make_reference.py"))


def errors_by_code() -> dict[str, type[JbiError]]:
    """All error classes of the library."""
    return {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, JbiError)}


def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Any, Any], bytearray]:
    """What sockets write from here on, by the addresses of both ends."""
    written: dict[tuple[Any, Any], bytearray] = defaultdict(bytearray)

    def record(name: str) -> Callable[..., Any]:
        write = getattr(socket.socket, name)

        def call(sock: socket.socket, data: Any, *rest: Any) -> Any:
            inet = sock.family == socket.AF_INET
            ends = (sock.getsockname(), sock.getpeername()) if inet else (None, None)
            count = write(sock, data, *rest)
            written[ends] += (b"".join(data) if name == "sendmsg" else bytes(data))[:count]
            return count

        return call

    for name in ("send", "sendall", "sendmsg"):
        monkeypatch.setattr(socket.socket, name, record(name))
    return written


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


def test_the_table_of_rooms_says_what_the_rooms_say() -> None:
    assert reference()["rooms_table"]() in (TOP / "CONTRIBUTING.md").read_text(), "python docs/make_reference.py rooms"


def test_each_decision_has_its_date_and_what_was_refused() -> None:
    # Given the page of decisions; Expect them numbered through
    _, *decisions = re.split(r"(?m)^## ", (TOP / "docs" / "decisions.md").read_text())
    assert [each.partition(".")[0] for each in decisions] == [str(at + 1) for at in range(len(decisions))]
    # and each with a date, and the alternative
    for each in decisions:
        assert re.search(r"(?m)^\*20\d\d-\d\d-\d\d\.\* ", each), each
        assert "\nRefused: " in each, each


def test_the_glossary_is_in_order() -> None:
    words = re.findall(r"(?m)^\| (?!word|---)([^|]+) \| [A-Z1]", (TOP / "docs" / "glossary.md").read_text())
    assert len(words) > 30
    assert words == sorted(words, key=str.casefold)


def test_the_page_of_states_is_as_the_tables_are() -> None:
    assert (TOP / "docs" / "states.md").read_text() == reference()["states_page"](), "make reference"


def test_each_lock_of_the_page_is_where_the_page_says() -> None:
    listed = re.findall(r"(?m)^\| \d+ \| `([^:]+):(?:\w+\.)?(\w+)` \|$", (TOP / "docs" / "locks.md").read_text())
    assert len(listed) > 50
    gone = [f"{file}:{name}" for file, name in listed if not re.search(rf"\b{name}\b", (TOP / file).read_text())]
    assert gone == [], "docs/make_locks.py"


def test_the_walks_of_the_design_go_through_files_that_are_there() -> None:
    page = (TOP / "docs" / "design.md").read_text()
    walks = page[page.index("## The two walks") : page.index("## How it works")]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", walks))
    assert len(named) > 25
    assert {file for file in named if not (TOP / "jbi_pubsub" / file).is_file()} == set()
