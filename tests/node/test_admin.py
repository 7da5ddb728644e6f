"""What an administrator sees, does and is told; and that nobody else does."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lxml import etree

from jbi_pubsub import PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import ClientSection, Config, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, OversizeError, StorageError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.node_sections import LogSection
from jbi_pubsub.core.ticker import jobs
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.node import log as node_log
from jbi_pubsub.node.admin import EVENTS_WAITING, NodeCalls, NodeProxy, NodeReports, Statistics, event_document
from jbi_pubsub.node.log import NodeLog
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.pad.model.events import Happening
from jbi_pubsub.policy import users
from jbi_pubsub.policy.users import Account, write_accounts
from jbi_pubsub.protocol.status.delegate import DelegateOverview, PublishedType
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus

from .conftest import of

TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.fixture
def proxy() -> Iterator[Callable[..., NodeProxy]]:
    """proxy(service) calls it as a client; proxy(service, "alice") as who has that password."""
    made: list[NodeProxy] = []

    def begin(service: NodeService, security: Security | None = None) -> NodeProxy:
        made.append(NodeProxy(service.delegate.addresses[0], security or Security()))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def told(document: bytes) -> dict[str, str]:
    """An event or measurement by its elements."""
    return {each.tag: each.text or "" for each in etree.fromstring(document)}


@pytest.mark.row("G-78")
def test_connections_and_sequences_are_told_as_objects(
    node: Callable[..., NodeService], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given who has subscribed to what happens at a node
    service = node()
    client = of(service)
    with SubscriberAdapter(client) as subscriber:
        subscription = subscriber.register_subscriber(type_name="jbi.Event", predicate="//role='publisher'")
        assert subscriber.wait_matched(subscription, 1, 60.0) == 1
        # When a publisher with a hostile name comes, registers, and leaves
        with PublisherAdapterLight(client, name="<b>&\x1b[2J") as publisher:
            at = publisher.connect_to_delegate("node", "home")
            registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
            # and registers again, as it does when another certificate answers for it
            publication, connection = publisher._publications[registration]
            there = connection._link.attached()
            there.proxy.register(there.opened.uid, publication.request(), registration, publication.number)
        events = [told(subscriber.receive(subscription, timeout=60.0).metadata) for _ in range(5)]
    # Expect that told, in order, as valid documents
    assert [(e["of"], e["what"]) for e in events] == [
        ("connection", "created"), ("sequence", "created"), ("sequence", "updated"), ("sequence", "removed"),
        ("connection", "removed"),
    ]  # fmt: skip
    assert {e["component"] for e in events} == {"home"}
    assert {e["client"] for e in events} == {"<b>& [2J"}
    assert {(e["id"], e["type"]) for e in events if e["of"] == "sequence"} == {(registration, f"{TYPE} 1.0")}


def test_a_subscription_by_the_last_part_of_a_name_is_looked_on_at_by_that(
    node: Callable[..., NodeService], proxy: Callable[..., NodeProxy]
) -> None:
    # Given subscriptions to a type that nobody publishes yet, by its whole name and by the last part
    service = node()
    client = of(service)
    with SubscriberAdapter(client) as subscriber, PublisherAdapterLight(client) as publisher:
        uids = [
            subscriber.register_subscriber(type_name=name, version="1.0", whole_name=is_whole)
            for name, is_whole in (("other.Note", True), ("Note", False))
        ]
        # When somebody publishes it, and somebody looks on at them
        at = publisher.connect_to_delegate("node", "home")
        publisher.register_publisher(at, type_name="other.Note", version="1.0", validate=False)
        for uid in uids:
            subscriber.wait_matched(uid, 1, 60.0)
        terms = [proxy(service).snooped(uid).terms for uid in uids]
    # Expect the objects of that type, not of all
    assert [(each["type_name"], each["version"]) for each in terms] == [("other.Note", "1.0"), ("Note", "1.0")]


@pytest.mark.row("G-78")
def test_statistics_are_told_as_often_as_is_set(
    node: Callable[..., NodeService], settings: Config, proxy: Callable[..., NodeProxy]
) -> None:
    # Given a node that measures every hour
    hourly = msgspec.structs.replace(settings.node, statistics_seconds=3600.0)
    service = node(msgspec.structs.replace(settings, node=hourly))
    # When it is to do so five times a second from now on, expect series of it soon
    assert proxy(service).set("node.statistics_seconds", "0.2") == "0.2"
    with SubscriberAdapter(of(service)) as subscriber:
        subscription = subscriber.register_subscriber(
            type_name="jbi.Measurement", predicate="//component='node home' and //series='memory'"
        )
        first = told(subscriber.receive(subscription, timeout=60.0).metadata)
        second = told(subscriber.receive(subscription, timeout=60.0).metadata)
    assert float(first["value"]) > 1 << 20
    assert 0.1 < float(second["at"]) - float(first["at"]) < 10.0


def test_reports_that_have_ended_measure_nothing_however_often_they_are_to(node: Callable[..., NodeService]) -> None:
    # Given reports of a node, and such as have ended
    service = node()
    ended = NodeReports(service.config, service.delegate.delegate, "home", None, service.delegate.overview)
    ended.start()
    ended.stop()
    standing = [job for job in jobs() if job.name == "telling statistics"]
    # When an administrator's call comes late
    ended.every(3600.0)
    # Expect nobody to be there who would measure
    assert [job for job in jobs() if job.name == "telling statistics"] == standing


def test_series_of_types_that_are_gone_are_not_kept() -> None:
    # Given statistics of two types, of which one goes; Expect that no more is kept than there is
    now = [0.0]
    statistics = Statistics(lambda: now[0])
    for second, names in enumerate([("a", "b"), ("a", "b"), ("b",), ("b",)]):
        now[0] = float(second)
        counts = {"of": 1, "registrations": 1, "published": 10 * second, "unmatched": 0, "subscriptions": 0}
        types = [PublishedType(name=name, **counts) for name in names]
        series = statistics.take(DelegateOverview(kind="delegate", address="", uptime=0.0, types=types))
    assert [name for name in series if name.startswith("types.")] == ["types.b.published"]
    assert series["types.b.published"]["last"] == 10.0


def test_series_of_networks_and_of_the_nodes_that_are_heard_there() -> None:
    # Given statistics of a network over which datagrams go, on which another node is heard, which leaves
    now = [0.0]
    statistics = Statistics(lambda: now[0])
    bravo = PeerStatus(id="b" * 32, name="bravo", network="lab", heard=0.5, loss=30.0, registrations=2)
    for second, peers in enumerate([[bravo], [bravo], [bravo], []]):
        now[0] = float(second)
        link = NetworkStatus(
            name="lab", sent=20 * second, received=5 * second, repaired=2 * second, waiting=99, rate=1e6
        )
        told = NetworksStatus(links=[link], peers=peers, nodes=len(peers))
        series = statistics.take(DelegateOverview(kind="delegate", address="", uptime=0.0, networks=told))
        if second == 2:
            # Expect what goes in a second, and what is so now
            last = {name: each["last"] for name, each in series.items() if "." in name}
            assert last == {
                "network.lab.sent": 20.0, "network.lab.received": 5.0, "network.lab.repairs": 2.0,
                "network.lab.loss": 30.0, "network.lab.rate": 1e6, "network.lab.waiting": 99.0,
                "peer.bbbbbbbb.loss": 30.0, "peer.bbbbbbbb.heard": 0.5, "peer.bbbbbbbb.registrations": 2.0,
            }  # fmt: skip
            assert series["peers"]["last"] == 1.0
    # and nothing of a node that has left
    assert [name for name in series if name.startswith("peer.")] == []
    assert series["network.lab.loss"]["last"] == 0.0


def test_a_document_of_an_event_holds_whatever_others_say() -> None:
    hostile = "]]>\x00\x1b<script>&\ud800" + "x" * 1000
    document = event_document(hostile, 1.0, Happening("connection", "created", "publisher", hostile, hostile, hostile))
    found = told(document)
    assert found["client"].startswith("]]>  <script>& x")
    assert len(found["client"]) == 300


@pytest.mark.row("G-142")
def test_details_say_what_a_client_has_to_know(
    node: Callable[..., NodeService], proxy: Callable[..., NodeProxy]
) -> None:
    # Given a node; When a client asks, expect who it is, where, and its bounds
    service = node()
    found = proxy(service).details()
    assert (found.id, found.name, found.epoch) == (service.identity.id, "home", service.identity.epoch)
    assert (found.addresses, found.lookup) == (service.delegate.addresses, service.lookup.address)
    assert (found.compression, found.archive, found.types) == (True, False, True)
    assert min(found.max_metadata, found.max_payload, found.max_sessions, found.max_subscriptions) > 0


@pytest.mark.row("G-126")
def test_what_details_say_of_sizes_is_taken_whole_and_one_byte_more_is_not(
    node: Callable[..., NodeService], proxy: Callable[..., NodeProxy], settings: Config
) -> None:
    # Given a node with a limit of its own, and an application that has none
    service = node(msgspec.structs.replace(settings, client=ClientSection(max_payload=3_000_000)))
    most = proxy(service).details().max_payload
    config = msgspec.structs.replace(of(service), client=ClientSection())
    refused: list[JbiError] = []
    with (
        SubscriberAdapter(config) as subscriber,
        PublisherAdapterLight(config, refused=lambda _uid, why: refused.append(why)) as publisher,
    ):
        uid = subscriber.register_subscriber(type_name="recording")
        at = publisher.connect_to_delegate("node", "home")
        registration = publisher.register_publisher(at, type_name="recording", validate=False)
        # When it publishes a recording at once, as large as details say, and one byte more
        publisher.publish(registration, None, bytes(most))
        publisher.publish(registration, None, bytes(most + 1))
        publisher.flush()
        assert [type(each) for each in refused] == [OversizeError]
        # Expect the one, in chunks, and the other refused; and the same cut into pieces whole, in their order
        assert len(subscriber.receive(uid, 60.0).payload) == most
        publisher.publish_many(registration, ((None, bytes([n]) * 400) for n in range(100)))
        came = [subscriber.receive(uid, 60.0) for _ in range(100)]
        assert [obj.payload for obj in came] == [bytes([n]) * 400 for n in range(100)]
        assert subscriber.receive(uid, 0.1) is None


def test_clients_and_sequences_are_listed(
    node: Callable[..., NodeService], proxy: Callable[..., NodeProxy], figures: Any
) -> None:
    # Given a publisher with a registration
    service = node()
    with PublisherAdapterLight(of(service), name="camera") as publisher:
        at = publisher.connect_to_delegate("node", "home")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
        # Expect both
        (client,) = proxy(service).clients()
        assert (client["role"], client["client"], client["sequences"]) == ("publisher", "camera", 1)
        assert client["address"].startswith("127.0.0.1:")
        assert registration in [each["uid"] for each in proxy(service).sequences()["registrations"]]


def test_events_that_nobody_can_be_told_in_time_are_bounded_and_counted(
    node: Callable[..., NodeService], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a node's reports that do not get to run, and three times what may wait
    reports = node()._reports
    reports.stop()
    happening = Happening("connection", "created", "publisher", "x", "y", "")
    for _ in range(3 * EVENTS_WAITING):
        reports._note(happening)
    # Expect the bound, the count, and one line in the log
    assert (len(reports._happened), reports.lost) == (EVENTS_WAITING, 2 * EVENTS_WAITING)
    reports._tell()
    reports._tell()
    assert caplog.text.count("20000 events were not published") == 1


# -- rights -------------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[Any, ...]] = {
    "details": (), "peer_names": (), "peer_address": ("bravo", "delegate"), "clients": (), "networks": (),
    "type_conflicts": (), "settle_type": (TypeName("a"), "bravo"),
    "sequences": (), "log": (0, 10), "set": ("log.level", "debug"), "shutdown": (0.0,),
}  # fmt: skip


def test_the_table_has_every_call() -> None:
    assert set(CALLS) == {name for name, call in vars(NodeCalls).items() if name[0] != "_" and callable(call)}


@pytest.mark.parametrize("call", CALLS)
def test_who_may_nothing_is_refused_each_call(
    node: Callable[..., NodeService], settings: Config, proxy: Callable[..., NodeProxy], tmp_path: Path, call: str
) -> None:
    # Given a node whose policy allows nothing; Expect a refusal, and a node that goes on
    rules = tmp_path / "policy.toml"
    rules.write_text("[[access]]\nallow = true\nuser = 'nobody'\naction = '*'\n")
    service = node(msgspec.structs.replace(settings, policy=PolicySection(file=str(rules))))
    with pytest.raises(AccessDeniedError):
        getattr(proxy(service), call)(*CALLS[call])


RULES = """
[[access]]
allow = true
user = ["alice", "root"]
action = ["connect", "publish", "subscribe", "query", "status"]

[[access]]
allow = true
user = "root"
action = "administer"
"""


@pytest.mark.row("G-78")
def test_only_administrators_look_on_and_with_rules_a_node_finds_itself(
    node: Callable[..., NodeService],
    settings: Config,
    proxy: Callable[..., NodeProxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    # Given a node with rules and users: alice may subscribe to whatever there is, root administers
    monkeypatch.setattr(users, "COST", 4)
    (tmp_path / "policy.toml").write_text(RULES)
    write_accounts(tmp_path / "users", {name: Account.of(name, name) for name in ("alice", "root")})
    policy = PolicySection(file=str(tmp_path / "policy.toml"), users=str(tmp_path / "users"))
    service = node(msgspec.structs.replace(settings, policy=policy))

    def client(name: str) -> Config:
        return msgspec.structs.replace(of(service), client=ClientSection(user=name, password=name))

    # When each lists clients, and subscribes to events, expect root's alone to work
    assert proxy(service, client("root").security()).clients() == []
    with pytest.raises(AccessDeniedError):
        proxy(service, client("alice").security()).clients()
    with SubscriberAdapter(client("root")) as subscriber:
        subscription = subscriber.register_subscriber(type_name="jbi.Event")
        assert subscriber.wait_matched(subscription, 1, 60.0) == 1
    with SubscriberAdapter(client("alice")) as subscriber:
        subscription = subscriber.register_subscriber(type_name="jbi.Event")
        assert isinstance(eventually(lambda: subscriber.refusal(subscription)), AccessDeniedError)
        assert subscriber.wait_matched(subscription, 1, 0.0) == 0


# -- the log ------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_log() -> Iterator[Callable[..., NodeLog]]:
    """own_log(level="info") makes the log of this process a node's."""
    made: list[NodeLog] = []

    def begin(**section: Any) -> NodeLog:
        made.append(NodeLog(LogSection(**section)))
        return made[-1]

    yield begin
    for each in made:
        each.close()


log = logging.getLogger("jbi_pubsub.test")


@pytest.mark.row("G-36")
def test_a_level_changes_while_it_runs(
    node: Callable[..., NodeService],
    settings: Config,
    own_log: Callable[..., NodeLog],
    proxy: Callable[..., NodeProxy],
    tmp_path: Path,
) -> None:
    # Given a node that logs errors, into a file
    file = tmp_path / "log"
    service = NodeService(settings, log=own_log(level="error", file=str(file)))
    service.start()
    try:
        log.info("before")
        # When an administrator wants all, expect what comes, in the file and over the wire
        calls = proxy(service)
        assert calls.set("log.level", "debug") == "debug"
        log.debug("after \x1b[31m")
        lines = [each.text for each in calls.log(0, 1000)]
        assert not any("before" in each for each in lines)
        assert any("after \\x1b[31m" in each for each in lines)
        assert "after \\x1b[31m" in file.read_text()
        assert "before" not in file.read_text()
        # and what was seen is not told again
        last = calls.log(0, 1000)[-1].number
        log.warning("more")
        assert "more" in calls.log(last, 1000)[0].text
    finally:
        service.stop(0.0)


@pytest.mark.parametrize(
    ("key", "value", "told_of"),
    [
        ("log.level", "loud", "It takes debug"),
        ("log.file", "x", "the log's file stays"),
        ("log.syslog", "not a host:port", "is not HOST:PORT"),
        ("log.journald", "true", "there is no systemd journal"),
        ("queue.bound", "5", "is taken when a node starts"),
        ("queue.bound", "-5", "queue.bound"),
        ("nothing.here", "1", "unknown setting"),
        ("", "", "unknown setting"),
        ("node.statistics_seconds", "nan", "statistics_seconds"),
        ("x" * 5000, "y" * 5000, "unknown setting"),
    ],
)
def test_what_cannot_be_set_is_told(
    settings: Config,
    own_log: Callable[..., NodeLog],
    proxy: Callable[..., NodeProxy],
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    value: str,
    told_of: str,
) -> None:
    monkeypatch.setattr(node_log, "JOURNAL", "/nowhere")
    service = NodeService(settings, log=own_log())
    service.start()
    try:
        with pytest.raises(ConfigurationError, match=told_of):
            proxy(service).set(key, value)
    finally:
        service.stop(0.0)


@pytest.mark.row("G-36", "G-135")
def test_errors_of_the_platform_reach_syslog(own_log: Callable[..., NodeLog], tmp_path: Path) -> None:
    # Given a syslog of this host
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(tmp_path / "log"))
        syslog.settimeout(60.0)
        own_log(syslog=str(tmp_path / "log"))
        # When a warning and an error are logged, expect the error there, as RFC 3164 has it
        log.warning("not worth it")
        log.error("the disk is full: %s\nsecond line", StorageError("disk"))
        said = syslog.recv(4096).decode()
        assert said.startswith("<27>jbi-node[")
        assert said.endswith("ERROR jbi_pubsub.test: the disk is full: disk second line")


def test_an_output_that_is_away_is_counted_and_nobody_waits(own_log: Callable[..., NodeLog], tmp_path: Path) -> None:
    # Given a syslog that does not listen, and a file whose disk is full
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    own = own_log(syslog=str(tmp_path / "nobody"), file="/dev/full")
    # When an error is logged, expect both losses counted, and no exception
    log.error("lost")
    assert own.status()["lost"] == 2


@pytest.mark.parametrize("host", ["\x00", "ü" * 70 + ":514", "a..b:514"])
def test_a_syslog_that_no_host_can_be_is_counted(own_log: Callable[..., NodeLog], host: str) -> None:
    # Given; When an error is logged, expect no exception where it was
    own = own_log(syslog=host)
    log.error("lost")
    assert own.status()["lost"] == 1


def test_a_syslogs_host_is_asked_for_once(own_log: Callable[..., NodeLog], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a syslog by name, and one that nobody knows now: each time it is asked for takes its time
    asked: list[str] = []
    found = socket.getaddrinfo("127.0.0.1", 514, type=socket.SOCK_DGRAM)

    def ask(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        if host == "away":
            raise socket.gaierror("temporary failure")
        return found

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    for host, lost in (("here", 0), ("away", 3)):
        own = own_log(syslog=f"{host}:514")
        # When errors are logged
        for _ in range(3):
            log.error("lost")
        # Expect one question
        assert asked.count(host) == 1
        assert own.status()["lost"] >= lost


def test_the_journal_is_told_in_its_own_form() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "", None, None)
    assert node_log._journal(record, "a\nPRIORITY=0") == (
        b"PRIORITY=3\nSYSLOG_IDENTIFIER=jbi-node\nMESSAGE=a PRIORITY=0\n"
    )


def test_the_log_is_what_it_was_when_it_ends(tmp_path: Path) -> None:
    logger = logging.getLogger("jbi_pubsub")
    before = logger.level, logger.propagate, list(logger.handlers)
    NodeLog(LogSection(level="debug", file=str(tmp_path / "log"))).close()
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


# -- as processes -------------------------------------------------------------------------------------------------


@pytest.mark.row("G-23", "G-32")
@pytest.mark.processes
def test_from_the_command_line(
    start: Callable[..., Any], tmp_path: Path, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a node, somebody who publishes, and the command line
    flags = ("--no-multicast", "--set", "lookup.port=0", "--set", "node.archive=false")
    running = start(*flags, "node", "start", "--folder", str(tmp_path / "n"), "--name", "home", "--json")
    ready = running.fact()
    folder = ("--folder", str(tmp_path / "n"))
    (tmp_path / "fig1.xml").write_bytes(figures.figure_1)

    def jbi(*arguments: str) -> str:
        process = start("--no-multicast", *arguments)
        out = process.stdout.read()
        assert process.wait() == 0, process.stderr()
        return str(out)

    assert json.loads(jbi("node", "details", *folder, "--json"))["id"] == ready["id"]
    client = ("--no-multicast", "--locator", ready["lookup"])
    publisher = start(
        *client, "publish", "--delegate", "node", "home", "--schema", str(figures.schema),
        "--metadata", str(tmp_path / "fig1.xml"), "--count", "2000", "--interval", "0.05", "--json",
    )  # fmt: skip
    found = eventually(
        lambda: [
            r for r in json.loads(jbi("node", "sequences", *folder, "--json"))["registrations"] if TYPE in r["type"]
        ]
    )
    # When it is looked on at, by the first letters of its id, expect its objects
    seen = start("--no-multicast", "node", "snoop", found[0]["uid"][:20], *folder, "--count", "2", "--json")
    objects = [json.loads(seen.stdout.readline()) for _ in range(2)]
    assert {each["registration"] for each in objects} == {found[0]["uid"]}
    assert seen.wait() == 0
    assert f"watching {found[0]['uid']}" in seen.stderr()
    # and who it is beside what is subscribed to; the facts of a node as people read them
    watching = start(*client, "subscribe", "--type", TYPE, "--json")
    watching.fact()
    rows = [line.split("\t") for line in jbi("node", "sequences", *folder).splitlines()]
    assert [row[2] for row in rows if row[1] == "subscriber"] == [f"subscriber-{watching.pid}"]
    watching.end(kill=True)
    facts = dict(line.split("\t") for line in jbi("node", "details", *folder).splitlines())
    assert (facts["addresses"], facts["compression"], facts["archive"]) == (ready["address"], "yes", "no")
    lookup = start("node", "details", "--at", ready["lookup"])
    assert lookup.wait() == 1
    assert "not of its lookup service" in lookup.stderr()
    # and its client in the list, the log with what was set, and a name that is none told with the nearest
    assert "publisher" in jbi("node", "clients", *folder)
    assert jbi("node", "set", "log.level", "debug", *folder) == "log.level is debug\n"
    assert "has set log.level = debug" in jbi("node", "log", *folder)
    wrong = start("node", "snoop", "registration-zzz", *folder)
    assert wrong.wait() == 1
    assert "no sequence registration-zzz" in wrong.stderr()
    # When it is shut down by its address, expect that it ends well
    assert "stops" in jbi("node", "stop", "--at", ready["address"], "--drain", "0")
    assert running.wait() == 0
    publisher.end(kill=True)
