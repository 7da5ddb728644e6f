"""A node as clients, administrators and strangers meet it: processes and sockets, from the first object to kill -9."""

from __future__ import annotations

import http.client
import json
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.capi import (
    Connection,
    ConnectionException,
    ConnectionManager,
    InfoObject,
    PermissionDeniedException,
    PlatformFailureException,
    TimeoutException,
    bindings,
)
from jbi_pubsub.core.config import ClientSection, Config, LookupSection
from jbi_pubsub.examples.mailbox import mailbox
from tests.conftest import Process

pytestmark = pytest.mark.processes

FLAGS = (
    "--no-multicast", "--set", "lookup.port=0", "--set", "archive.workers=0", "--set", "archive.reserve=0",
    "--set", "lease.lookup=5",
)  # fmt: skip
SCHEMA = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="report" type="xs:string"/></xs:schema>'
)

PREDICATE = (
    "<predicate><predicateName/><predicateType>XPath</predicateType>"
    "<predicateInstance>{}</predicateInstance></predicate>"
)


def clients_of(group: str, *nodes: dict[str, Any], **client: Any) -> Config:
    """What clients of nodes are configured with: the nodes' addresses, and nothing else."""
    locators = tuple(each["lookup"] for each in nodes)
    lookup = LookupSection(groups=(group,), port=0, multicast=False, locators=locators, timeout=20.0)
    return Config(lookup=lookup, client=ClientSection(**client))


class Place:
    """A node as a process, a gateway beside it, and a mail server."""

    def __init__(self, folder: Path, group: str, stack: ExitStack) -> None:
        self.mails: list[Any] = []
        self._stack = stack
        port = stack.enter_context(mailbox(lambda _to, message: self.mails.append(message)))
        start = ("node", "start", "--folder", str(folder), "--name", "tent", "--json")
        self.folder = str(folder)
        self.process = self.run(*FLAGS, "--set", f"mail.port={port}", *start)
        self.ready = self.process.fact()
        self.config = clients_of(group, self.ready)
        self.at = ("--no-multicast", "--locator", self.ready["lookup"])
        self.gateway = self.run(*self.at, "gateway", "--port", "0", "--json").fact()["url"].removeprefix("http://")

    def run(self, *arguments: str) -> Process:
        """A command, that is killed at the end."""
        made = Process(*arguments)
        self._stack.callback(lambda: made.end(kill=True))
        return made

    def jbi(self, *arguments: str, code: int = 0) -> str:
        """What a client's command says, when it has ended with that exit code."""
        process = self.run(*self.at, *arguments)
        out, errors = process.communicate(60.0)
        assert process.returncode == code, out + errors
        return out if code == 0 else errors

    def ask(self, method: str, path: str) -> Any:
        """One request to the gateway."""
        connection = http.client.HTTPConnection(self.gateway, timeout=60)
        connection.request(method, path)
        answer = connection.getresponse().read()
        connection.close()
        return json.loads(answer)


@pytest.fixture(scope="module")
def place(_forks: None, world: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path_factory.mktemp("node") / "tent", world, stack)


@pytest.fixture
def connected() -> Iterator[Callable[..., Connection]]:
    """connected(config): a connection of the Common API, ended afterwards."""
    made: list[Connection] = []

    def connect(config: Config, name: str = "client") -> Connection:
        made.append(ConnectionManager(config).createConnection(name))
        made[-1].connect()
        return made[-1]

    yield connect
    for each in reversed(made):
        each.destroy()


# -- one object -----------------------------------------------------------------------------------------------------


@pytest.mark.row("G-03", "X-01", "X-07")
def test_an_object_has_one_id_however_it_comes(
    place: Place, connected: Callable[..., Connection], eventually: Callable[..., Any]
) -> None:
    # Given who waits for a type: by the Common API, HTTP, the command line, and e-mail; and one of another version
    connection = connected(place.config)
    by_api, other = (connection.createSubscriberSequence("report", version) for version in ("1.0", "1.1"))
    for sequence in (by_api, other):
        sequence.activateSequence()
    polled = place.ask("POST", "/v1/types/report/1.0/subscriptions")["next"]
    by_command = place.run(*place.at, "subscribe", "--type", "report", "--count", "1", "--json")
    place.jbi("subscribe", "--type", "report", "--email", "ops@example.org")
    # When an application publishes one with the plain adapters, to be kept
    with PublisherAdapterLight(place.config, name="camera") as publisher:
        registration = publisher.register_publisher(
            publisher.connect_to_delegate("node", "tent"), type_name="report", validate=False, persist=True
        )
        publisher.wait_for_subscribers(registration, 4)
        published = publisher.publish(registration, b"<report><n>1</n></report>", b"\x00payload")
        publisher.flush()
    # Expect it everywhere, under its id, as it is
    found = by_api.getNext(20_000)
    assert (found.getInfoObjectID(), found.getPayload()) == (published, b"\x00payload")
    (over_http,) = place.ask("GET", f"{polled}?timeout=20")["objects"]
    assert (over_http["id"], over_http["metadata"]) == (published, "<report><n>1</n></report>")
    assert by_command.fact()["object"] == published
    (mail,) = eventually(lambda: place.mails)
    assert published in mail.as_string()
    # and in the archive, whoever asks
    query = connection.createQuerySequence("report", "1.0")
    query.activateSequence()
    query.executeQuery()
    assert [io.getInfoObjectID() for io in query.getNext(10, 20_000)] == [published]
    query.executeDistributedQuery(20_000)
    assert [io.getInfoObjectID() for io in query.getNext(10, 20_000)] == [published]
    assert [each["id"] for each in place.ask("GET", "/v1/types/report/1.0/query")["objects"]] == [published]
    assert json.loads(place.jbi("query", "--type", "report", "--json").splitlines()[0])["object"] == published
    # and nothing of it where another version was asked for
    with pytest.raises(TimeoutException):
        other.getNext(100)


@pytest.mark.row("G-162")
def test_predicates_know_the_node_by_the_id_that_it_tells_its_clients(
    place: Place, connected: Callable[..., Connection]
) -> None:
    # Given subscribers to what this node has sent, from where it is, and to what another has
    connection = connected(place.config)
    details = connection.getNodeDetails()
    here, elsewhere = (connection.createSubscriberSequence("where", "1.0") for _ in range(2))
    for sequence, test in ((here, "="), (elsewhere, "!=")):
        condition = f"//og:NodeID {test} '{details.id}' and //og:NodeAddress = '127.0.0.1'"
        sequence.setSequencePredicate(PREDICATE.format(condition))
        sequence.activateSequence()
    # When something is published there, Expect it at the first alone
    publisher = connection.createPublisherSequence("where", "1.0")
    publisher.activateSequence()
    published = publisher.publishInfoObject(connection.createInfoObject("where", "1.0", b"", "<a/>"))
    assert here.getNext(20_000).getInfoObjectID() == published
    with pytest.raises(TimeoutException):
        elsewhere.getNext(100)


@pytest.mark.row("G-141")
def test_a_client_that_hangs_delays_nobody(place: Place, connected: Callable[..., Connection]) -> None:
    # Given a client whose callback never returns, one whose process has stopped, and one that takes what comes
    connection = connected(place.config)
    asleep, awake = (connection.createSubscriberSequence("busy", "1.0") for _ in range(2))
    slept, go = threading.Event(), threading.Event()

    class Sleeper:
        def infoObjectAvailable(self, io: InfoObject) -> None:  # noqa: ARG002, N802  # the API's
            slept.set()
            go.wait(60.0)

    asleep.setSequenceCallback(Sleeper())
    for sequence in (asleep, awake):
        sequence.activateSequence()
    stopped = place.run(*place.at, "subscribe", "--type", "busy", "--json")
    publisher = connection.createPublisherSequence("busy", "1.0")
    publisher.activateSequence()

    def publish(size: int) -> str:
        return publisher.publishInfoObject(connection.createInfoObject("busy", "1.0", b"x" * size, "<a/>"))

    connection._lights[False][0].wait_for_subscribers(publisher._registrations[0], 3)
    first = publish(1)
    assert awake.getNext(20_000).getInfoObjectID() == stopped.fact()["object"] == first
    assert slept.wait(60.0)
    stopped.signal(signal.SIGSTOP)
    # When far more is published than buffers hold, Expect it there as if nobody hung, in order
    ids = [publish(100_000) for _ in range(300)]
    assert [awake.getNext(20_000).getInfoObjectID() for _ in ids] == ids
    stopped.end(kill=True)
    go.set()


# -- administration -------------------------------------------------------------------------------------------------


@pytest.mark.row("G-23", "G-32", "G-169")
def test_an_administrator_does_all_of_it_from_the_command_line(
    place: Place, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a type that is added, and an application that publishes it
    (tmp_path / "order.xsd").write_text(SCHEMA.replace("report", "order"))
    (tmp_path / "marks.json").write_text('{"root": "order", "invariant": []}')
    place.jbi("types", "add", str(tmp_path / "order.xsd"), "--marks", str(tmp_path / "marks.json"), "--name", "order")
    assert "order" in place.jbi("types", "list")
    folder = ("--folder", place.folder)
    with PublisherAdapterLight(place.config, name="clerk") as publisher:
        at = publisher.connect_to_delegate("node", "tent")
        registration = publisher.register_publisher(at, type_name="order", persist=True)
        for text in ("keep", "drop"):
            publisher.publish(registration, f"<order>{text}</order>".encode())
        publisher.flush()
        # When clients and local publishers are listed, expect it; in a repository, that its type is in use
        assert ("publisher", "clerk") in [
            (each["role"], each["client"]) for each in json.loads(place.jbi("node", "clients", *folder, "--json"))
        ]
        listed = json.loads(place.jbi("node", "sequences", *folder, "--json"))["registrations"]
        assert registration in [each["uid"] for each in listed]
        assert "is in use: 1 registration here" in place.jbi("types", "remove", "order/1.0", code=1)
    # When an object is deleted, Expect the others to be there
    place.jbi("archive", "delete", "--type", "order", "--predicate", "/order = 'drop'", "--yes")
    kept = [json.loads(line)["metadata"] for line in place.jbi("query", "--type", "order", "--json").splitlines()]
    assert kept == ["<order>keep</order>"]
    # When all of them are, expect the type to be nobody's, and removed
    place.jbi("archive", "delete", "--type", "order", "--yes")
    eventually(lambda: place.run(*place.at, "types", "remove", "order/1.0").wait() == 0)
    assert "order" not in place.jbi("types", "list")


@pytest.mark.row("G-135", "G-198")
def test_a_disk_that_fails_is_told_to_the_client_and_to_syslog(
    place: Place, tmp_path: Path, connected: Callable[..., Connection], world: str, eventually: Callable[..., Any]
) -> None:
    # Given a node that tells syslog, and a client whose publications are kept
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(tmp_path / "log"))
        syslog.settimeout(30.0)
        start = ("node", "start", "--folder", str(tmp_path / "n"), "--name", "full", "--json")
        process = place.run(*FLAGS, "--set", f"log.syslog={tmp_path / 'log'}", *start)
        ready = process.fact()
        connection = connected(clients_of(world, ready))
        publisher = connection.createPublisherSequence("t", "1.0")
        publisher.setPersistenceAttribute(True)
        publisher.activateSequence()
        io = connection.createInfoObject("t", "1.0", b"x" * 10_000, "<a/>")
        publisher.publishInfoObject(io)
        # When its disk takes no more
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4_096, 4_096))
        # Expect the client told by a call soon, and when it ends; and syslog
        with pytest.raises(PlatformFailureException, match=r"was refused: .*archive"):
            eventually(lambda: not publisher.publishInfoObject(io))
        publisher.publishInfoObject(io)
        with pytest.raises(PlatformFailureException, match=r"was refused: .*archive"):
            connection.destroySequence(publisher)
        assert publisher.getSequenceState() == 3
        said = iter(lambda: syslog.recv(4096), b"")
        assert any(b"ERROR jbi_pubsub.archive: no object is kept until" in each for each in said)


@pytest.mark.row("G-36")
def test_the_log_is_followed_while_its_level_changes(place: Place) -> None:
    # Given somebody who follows the log of a node
    folder = ("--folder", place.folder)
    following = place.run(*place.at, "node", "log", "--follow", *folder)
    # When its level is set, expect that in it, and what is logged from then on
    assert place.jbi("node", "set", "log.level", "debug", *folder) == "log.level is debug\n"
    lines = iter(following.stdout.readline, "")
    assert any("has set log.level = debug" in line for line in lines)
    place.jbi("node", "clients", *folder)
    assert any("DEBUG" in line for line in lines)
    assert place.jbi("node", "set", "log.level", "info", *folder) == "log.level is info\n"


def test_whoever_says_he_is_administers_where_there_are_no_rules_and_watches_by_subscribing(
    place: Place, connected: Callable[..., Connection]
) -> None:
    # Given a node without rules, and somebody with any name and password
    (manager, folder) = ConnectionManager(place.config), ("--folder", place.folder)
    administrator = manager.createConnection("watch")
    credentials = bindings.Credentials(user="Administrator", password="whatever")  # of nobody
    administrator.authenticate(bindings.write(credentials))
    administrator.connect()
    events = administrator.createSubscriberSequence("jbi.Event", "1.0")
    events.setSequencePredicate(PREDICATE.format("//of='sequence' and //type='watched 1.0'"))
    measured = administrator.createSubscriberSequence("jbi.Measurement", "1.0")
    measured.setSequencePredicate(PREDICATE.format("//component='node tent' and //series='memory' and //value &gt; 1"))
    for sequence in (events, measured):
        sequence.activateSequence()
    assert administrator.subscriber().wait_matched(events._at[1], 1, 60.0) == 1
    place.jbi("node", "set", "node.statistics_seconds", "0.2", *folder)
    # When a sequence comes and goes, Expect both told, and how much the node takes
    client = connected(place.config)
    publisher = client.createPublisherSequence("watched", "1.0")
    publisher.activateSequence()
    client.destroySequence(publisher)
    for what in ("created", "removed"):
        assert f"<what>{what}</what>" in events.getNext(20_000).getMetadata()
    assert "<series>memory</series>" in measured.getNext(20_000).getMetadata()
    place.jbi("node", "set", "node.statistics_seconds", "10", *folder)
    manager.destroyConnection(administrator)


# -- with certificates ----------------------------------------------------------------------------------------------


def test_a_certificate_is_a_credential_and_says_who_may(
    place: Place, tmp_path: Path, world: str, eventually: Callable[..., Any]
) -> None:
    # Given a node with TLS, whose rules know alice, and another who has a certificate as well
    authority = str(tmp_path / "certs")
    place.jbi("certs", "init", authority)
    place.jbi("certs", "issue", "tent", "--address", "127.0.0.1", "--folder", authority)
    for name in ("alice", "bob"):
        place.jbi("certs", "issue", name, "--folder", authority)
    rules = tmp_path / "policy.toml"
    rules.write_text(
        '[[access]]\nuser = ["alice", "tent"]\naction = "*"\n[[access]]\nuser = "bob"\naction = ["connect", "status"]\n'
    )
    tls = ("--set", f"tls.folder={authority}/tent", "--set", f"policy.file={rules}", "--set", "node.archive=false")
    node = place.run(*FLAGS, *tls, "node", "start", "--folder", str(tmp_path / "n"), "--name", "safe", "--json")
    manager = ConnectionManager(clients_of(world, node.fact()))

    def connected(name: str) -> Connection:
        made = manager.createConnection(name)
        made.authenticate(bindings.write(bindings.Credentials(certificate=f"{authority}/{name}")))
        made.connect()
        return made

    # When they connect with their certificates, Expect alice to publish and subscribe, and bob to be refused that
    alice = connected("alice")
    sequences = alice.createPublisherSequence("t", "1.0"), alice.createSubscriberSequence("t", "1.0")
    for sequence in sequences:
        sequence.activateSequence()
    published = sequences[0].publishInfoObject(alice.createInfoObject("t", "1.0", b"", "<a/>"))
    assert sequences[1].getNext(20_000).getInfoObjectID() == published
    bob = connected("bob")
    assert bob.getNodeDetails().location == "safe"
    with pytest.raises(PermissionDeniedException):
        bob.createPublisherSequence("t", "1.0").activateSequence()
    # and who has none to get nowhere
    stranger = manager.createConnection("stranger", bindings.write(bindings.ConnectionDescriptor(timeout=500)))
    with pytest.raises(ConnectionException):
        stranger.connect()
    for each in (alice, bob, stranger):
        manager.destroyConnection(each)
