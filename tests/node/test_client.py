"""The test client: panels on one connection, and scripts of them."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from jbi_pubsub.capi import CapiException
from jbi_pubsub.cli.app import run as jbi
from jbi_pubsub.core.config import ArchiveSection, Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, JbiError, UnknownUidError
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.web import panels as room
from jbi_pubsub.web.panels import Event, Panels, run
from jbi_pubsub.web.script import ConnectionPanel, PublisherPanel, QueryPanel, Script, SubscriberPanel, read

from .conftest import of

REPORT = "<report><n>1</n></report>"
SCRIPT = """
[connection]
name = "trial"

[[subscriber]]
name = "all"
type = "report"
expect = 100

[[subscriber]]
name = "none"
type = "report"
predicate = "/og:metadata/report[n > 5]"
expect = 0

[[publisher]]
name = "bulk"
type = "report"
metadata_file = "report.xml"
payload = "x"
publishers = 5
count = 20
delay_ms = 100
valid = false
persistent = true

[[query]]
name = "kept"
type = "report"
predicate = "/og:metadata/report[n < 5]"
expect = 100
"""


@pytest.fixture
def service(settings: Config, node: Callable[..., NodeService], tmp_path: Path) -> NodeService:
    """A node with an archive."""
    archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0, reserve=0.0)
    return node(msgspec.structs.replace(settings, archive=archive))


@pytest.fixture
def panels(service: NodeService) -> Iterator[Panels]:
    """A test client that is connected."""
    made = Panels(of(service))
    made.connect(ConnectionPanel())
    yield made
    made.disconnect()


@pytest.mark.row("G-28", "G-29")
@pytest.mark.processes
def test_a_script_publishes_in_bulk_and_its_counters_are_those_of_its_log(
    service: NodeService, tmp_path: Path, start: Callable[..., Any]
) -> None:
    # Given a script of 5 publishers x 20 objects x 100 ms, two subscribers and a query
    script, log = tmp_path / "script.toml", tmp_path / "log"
    script.write_text(SCRIPT)
    (tmp_path / "report.xml").write_text(REPORT)
    assert service.lookup is not None
    common = ("--no-multicast", "--locator", service.lookup.address, "client", str(script))
    # When it is run as a process
    done = start(*common, "--log", str(log), "--json")
    out, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    told = json.loads(out)
    # Expect 100 objects, in 2 to 3 s from the first to the last
    assert told["panels"]["bulk"] == {"opened": 5, "published": 100, "finished": 5}
    assert told["panels"]["all"] == {"opened": 1, "received": 100}
    assert told["panels"]["none"] == {"opened": 1}
    assert told["panels"]["kept"] == {"opened": 1, "result": 100, "finished": 1}
    events = [msgspec.json.decode(line, type=Event) for line in log.read_bytes().splitlines()]
    at = [each.at for each in events if each.what == "published"]
    assert 1.8 < max(at) - min(at) < 3.5
    # Expect the log to say the same: each object once, by its id
    counted: dict[str, Counter[str]] = {}
    for each in events:
        counted.setdefault(each.panel, Counter())[each.what] += each.count
    assert {name: dict(count) for name, count in counted.items() if name} == told["panels"]
    ids = [{each.id for each in events if each.what == what} for what in ("published", "received", "result")]
    assert [len(each) for each in ids] == [100, 100, 100]
    assert ids[0] == ids[1] == ids[2]
    assert service.delegate.status()["published"] == 100


def test_a_panel_is_not_started_before_all_of_its_publishers_are_there(
    panels: Panels, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a panel of five publishers, of which the third one is slow to come
    connection, made, comes = panels._connection, [], threading.Event()
    assert connection is not None
    create = connection.createPublisherSequence

    def slow(*given: Any) -> Any:
        made.append(given)
        assert len(made) != 3 or comes.wait(30.0)
        return create(*given)

    monkeypatch.setattr(connection, "createPublisherSequence", slow)
    panel = PublisherPanel(name="p", type="report", metadata=REPORT, publishers=5, count=2, valid=False)
    adding = threading.Thread(target=panels.add, args=(panel,))
    adding.start()
    eventually(lambda: len(made) == 3)
    # When it is started or removed too early, expect that to be said
    assert panels.opening() == {"p"}
    for too_early in (panels.start, panels.remove):
        with pytest.raises(ConfigurationError, match="p is not open yet"):
            too_early("p")
    # and all of them to publish afterwards
    comes.set()
    adding.join()
    assert panels.opening() == set()
    panels.start("p")
    eventually(lambda: panels.counts()["p"].get("published") == 10)


@pytest.mark.row("G-30")
@pytest.mark.parametrize(
    ("panel", "attribute", "said"),
    [
        (PublisherPanel(type="t", well_formed=False), "Validation", "WellFormed>false"),
        (PublisherPanel(type="t", valid=False), "Validation", "Schema>false"),
        (PublisherPanel(type="t", reliable=False, valid=False), "ReliableDelivery", "reliable>false"),
        (PublisherPanel(type="t", expiration_ms=1500, valid=False), "ReliableDelivery", "1500"),
        (PublisherPanel(type="t", persistent=True, valid=False), "Persistence", "true"),
        (PublisherPanel(type="t", compress=True, valid=False), "Compression", "true"),
        (PublisherPanel(type="t", local=True, valid=False), "Local", "true"),
        (PublisherPanel(type="t", in_order=True, valid=False), "Order", "true"),
        (PublisherPanel(type="t", invariants="<a/>", valid=False), "Invariants", "a/"),
        (SubscriberPanel(type="t", valid=False), "Validation", "Schema>false"),
        (SubscriberPanel(type="t", local=True), "Local", "true"),
        (SubscriberPanel(type="t", own=False), "OwnPublications", "false"),
        (SubscriberPanel(type="t", in_order=True), "Order", "true"),
        (SubscriberPanel(type="t", durable="d1"), "Durable", "d1"),
        (SubscriberPanel(type="t", latest_by="//n"), "Latest", "//n"),
        (SubscriberPanel(type="t", prefixes={"p": "urn:x"}), "NamespacePrefixes", "urn:x"),
        (QueryPanel(type="t", latest_by="//n"), "Latest", "//n"),
        (QueryPanel(type="t", prefixes={"p": "urn:x"}), "NamespacePrefixes", "urn:x"),
    ],
    ids=lambda each: each if isinstance(each, str) and each[:1].isupper() else None,
)
def test_each_option_is_the_sequences_attribute(panel: Any, attribute: str, said: str) -> None:
    # Given a sequence that notes what is set; Expect the attribute of that option, and no other
    from jbi_pubsub.capi.publisher_sequence import PublisherSequence
    from jbi_pubsub.capi.query_sequence import QuerySequence
    from jbi_pubsub.capi.sequences import SubscriberSequence
    from jbi_pubsub.core.info_object import TypeName

    kinds = {PublisherPanel: PublisherSequence, SubscriberPanel: SubscriberSequence, QueryPanel: QuerySequence}
    sequence: Any = kinds[type(panel)](Nobody(), TypeName("t", "1.0"))
    panel.set(sequence)
    found = {each.name: each.document for each in sequence.getSequenceAttributes()}
    assert said.lower() in found[attribute].lower().replace(" ", "")
    extra = {"Validation"} if getattr(panel, "valid", None) is False else set()
    assert set(found) == {attribute} | extra


class Nobody:
    """A connection that is never used."""

    durables: ClassVar[dict[str, Any]] = {}
    owner = ""


@pytest.mark.row("G-31")
def test_panels_stay_until_they_are_removed_and_others_go_on(panels: Panels, eventually: Any) -> None:
    # Given two subscribers and a publisher that goes on for long
    one, other = (panels.add(SubscriberPanel(type="report")) for _ in range(2))
    name = panels.add(PublisherPanel(type="report", metadata=REPORT, valid=False, count=10_000, delay_ms=5))
    panels.start(name)
    with pytest.raises(ConfigurationError, match="not done yet"):
        panels.start(name)
    eventually(lambda: min(panels.counts()[each].get("received", 0) for each in (one, other)) > 3)
    # When one is removed; Expect the other to go on
    panels.remove(one)
    before, after = (panels.counts()[each]["received"] for each in (one, other))
    eventually(lambda: panels.counts()[other]["received"] > after + 5)
    assert panels.counts()[one]["received"] == before
    # When the publisher is removed in the middle; Expect it to end, and the counters to stay
    panels.remove(name)
    assert not panels.is_busy()
    published = panels.counts()[name]["published"]
    eventually(lambda: panels.counts()[other]["received"] == published)
    assert list(panels.panels()) == [other]
    with pytest.raises(UnknownUidError, match="no panel"):
        panels.remove(name)


def test_counters_of_panels_that_are_gone_are_bounded(panels: Panels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "COUNTED_MOST", 2)
    for n in range(5):
        panels.remove(panels.add(SubscriberPanel(type="report", name=f"s{n}")))
    stays = panels.add(SubscriberPanel(type="report"))
    assert list(panels.counts()) == ["", "s3", "s4", stays]


def test_what_goes_wrong_is_said_and_leaves_nothing(
    panels: Panels, service: NodeService, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    with pytest.raises(ConfigurationError, match="connected already"):
        panels.connect(ConnectionPanel())
    for bad in (
        PublisherPanel(type="report", version="one"),
        SubscriberPanel(type="report", predicate="///"),
        SubscriberPanel(type="report", predicate="a\x00"),
        SubscriberPanel(type="", version="1.0"),
    ):
        with pytest.raises(CapiException):
            panels.add(bad)
    assert panels.panels() == {}
    # Expect objects that are refused to be counted with why, and the others to go
    name = panels.add(PublisherPanel(type="report", metadata="<no", valid=False, count=2))
    panels.start(name)
    asked = panels.add(QueryPanel(type="unheard.of"))
    panels.start(asked)
    eventually(lambda: not panels.is_busy())
    assert panels.counts()[name]["refused"] == 2
    assert panels.counts()[asked]["failed"] == 1
    with pytest.raises(ConfigurationError, match="already"):
        panels.add(SubscriberPanel(type="report", name=name))
    monkeypatch.setattr(room, "PANELS_MOST", 0)
    with pytest.raises(BackPressureError):
        panels.add(SubscriberPanel(type="report"))
    # Expect a second client, and one that is not connected, to be told
    lonely = Panels(of(service))
    lonely.disconnect()
    with pytest.raises(ConfigurationError, match="not connected"):
        lonely.add(SubscriberPanel(type="report"))
    with pytest.raises(JbiError, match="no where"):
        lonely.connect(ConnectionPanel(delegate=("no where",), timeout_ms=300))
    assert not lonely.is_connected


def test_a_script_that_is_not_as_it_expects_says_so(service: NodeService) -> None:
    script = Script(
        publisher=(PublisherPanel(type="report", metadata=REPORT, valid=False, name="p"),),
        subscriber=(SubscriberPanel(type="report", name="s", expect=2),),
        timeout=1.0,
    )
    said = run(Panels(of(service)), script, threading.Event())
    assert said == ["it was not done within 1 s", "s: 1 objects came, 2 were expected"]
    few = msgspec.structs.replace(
        script, subscriber=(SubscriberPanel(type="report", name="s", expect=0),), timeout=20.0
    )
    assert run(Panels(of(service)), few, threading.Event()) == ["s: 1 objects came, 0 were expected"]


@pytest.mark.processes
@pytest.mark.parametrize("expect", [40, None], ids=["while it waits", "before it asks"])
def test_a_script_whose_node_dies_tells_what_it_has_counted(
    expect: int | None, settings: Config, start: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a node as a process, and a script that publishes, and asks in the end
    flags = ("--no-multicast", "--set", "lookup.port=0", "--set", "archive.workers=0", "--set", "archive.reserve=0")
    process = start(*flags, "node", "start", "--folder", str(tmp_path / "n"), "--name", "mortal", "--json")
    lookup = msgspec.structs.replace(settings.lookup, locators=(process.fact()["lookup"],))
    queue = msgspec.structs.replace(settings.queue, publish_seconds=1.0)
    made = Panels(msgspec.structs.replace(settings, lookup=lookup, queue=queue))
    script = Script(
        publisher=(PublisherPanel(type="report", metadata=REPORT, valid=False, name="p", count=40, delay_ms=20),),
        subscriber=(SubscriberPanel(type="report", name="s", expect=expect),),
        query=(QueryPanel(type="report", name="q", expect=40),),
        timeout=4.0,
    )

    def kill() -> None:
        if made.total("received") >= 3:
            with suppress(ProcessLookupError):  # it is dead
                process.signal(signal.SIGKILL)

    # When it dies in the middle
    failures = run(made, script, threading.Event(), kill)
    # Expect what was counted, a word of what was lost, and of what did not come
    assert made.counts()["p"]["published"] >= 3
    assert any(each.endswith("they are lost") for each in failures), failures
    unmet = "s: {} objects came" if expect is not None else "q: 0 objects came"
    assert any(each.startswith(unmet.format(made.counts()["s"]["received"])) for each in failures), failures


@pytest.mark.processes
def test_a_script_that_is_interrupted_ends_at_once(
    service: NodeService, tmp_path: Path, start: Callable[..., Any], eventually: Any
) -> None:
    (tmp_path / "s.toml").write_text(SCRIPT.replace("count = 20", "count = 10000").replace("report.xml", "r"))
    (tmp_path / "r").write_text(REPORT)
    assert service.lookup is not None
    process = start("--no-multicast", "--locator", service.lookup.address, "client", str(tmp_path / "s.toml"))
    eventually(lambda: service.delegate.status()["published"] > 10, timeout=30.0)
    process.signal(signal.SIGINT)
    assert process.wait() == 1
    assert "it was interrupted" in process.stderr()


@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 1000])
def test_a_log_that_takes_no_more_ends_a_script_and_is_told(
    count: int, service: NodeService, tmp_path: Path, start: Callable[..., Any]
) -> None:
    # Given a script with a log on a full disk, which says so at its first or at its last event
    (tmp_path / "s.toml").write_text(
        f"[[publisher]]\ntype = 'report'\nmetadata = '<r/>'\nvalid = false\ncount = {count}"
    )
    assert service.lookup is not None
    process = start(
        "--no-multicast", "--locator", service.lookup.address, "client", str(tmp_path / "s.toml"), "--log", "/dev/full"
    )
    # Expect a line that says which file, and no success
    assert process.wait() == 1
    assert process.stderr().splitlines() == [
        "jbi: /dev/full: No space left on device. The log has not all that has happened"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no panel"),
        ("[[publisher]]", "`type`"),
        ("[[publisher]]\ntype = 't'\npublisher = 3", "Did you mean publishers?"),
        ("[[publisher]]\ntype = 't'\npublishers = 65", "<= 64"),
        ("[[publisher]]\ntype = 't'\ncount = 0", ">= 1"),
        ("[[publisher]]\ntype = 't'\ndelay_ms = -1", ">= 0"),
        ("[[publisher]]\ntype = 't'\nmetadata = '<a/>'\nmetadata_file = 'a'", "metadata and metadata_file"),
        ("[[publisher]]\ntype = 't'\nmetadata_file = 'none.xml'", "none.xml"),
        ("[[publisher]]\ntype = 't'\npayload_file = 'none'", "is not a file"),
        ("[[subscriber]]\ntype = 't'\npersistent = true", "persistent"),
        ("[[subscriber]]\ntype = 't'\nname = 'a'\n[[query]]\ntype = 't'\nname = 'a'", "two panels have one name"),
        ("[conection]", "Did you mean connection?"),
        ("[connection]\ndelegate = ['a', 'b', 'c']", "delegate"),
        ("timeout = 0", "timeout"),
        ("[[", "script"),
        ("a = " + "[" * 5000, "script"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_script_that_is_none_is_told_in_one_line(
    text: str, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    code = jbi(["client", str(file)])
    said = capfd.readouterr()
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    assert told in said.err
    with pytest.raises(ConfigurationError):
        read(file)


def test_a_script_can_be_checked_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SCRIPT.replace('metadata_file = "report.xml"\n', ""))
    assert jbi(["client", str(file), "--check"]) == 0
    assert capfd.readouterr().out == f"{file}: 4 panels\n"
    assert jbi(["client", str(tmp_path / "none.toml")]) == 2
    assert "No such file" in capfd.readouterr().err
