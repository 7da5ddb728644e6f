"""One process that is everything: started, found, used and stopped as one."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec
import pytest

from jbi_pubsub import PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.cli.status import Servers, tables
from jbi_pubsub.codegen.repository import repository_of
from jbi_pubsub.core.config import Config, PadSection
from jbi_pubsub.core.errors import ConfigurationError, JbiError, PortInUseError, StorageError
from jbi_pubsub.core.node_sections import GatewaySection, NetworkSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.address import split_endpoint
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.node.identity import IDENTITY, LOCK, RUNNING, Identity, NodeFolder, NodeProcess, is_held, running
from jbi_pubsub.node.service import NodeEntry, NodeService, Parts
from jbi_pubsub.protocol.services import STATUS, fetch_status
from jbi_pubsub.web.federation import Observer
from tests.conftest import eventually

from .conftest import of

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def test_a_node_is_a_lookup_service_a_delegate_and_types_in_one(node: Callable[..., NodeService], figures: Any) -> None:
    # Given a node
    service = node()
    client = of(service)
    # When somebody subscribes and somebody publishes who know its lookup service alone
    with SubscriberAdapter(client) as subscriber, PublisherAdapterLight(client) as publisher:
        subscription = subscriber.register_subscriber(type_name=TYPE, predicate="//lat>33.2")
        at = publisher.connect_to_delegate("node", "home")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
        publisher.publish(registration, figures.figure_1, b"payload")
        # Expect the object, and what was published in the status of the one delegate
        assert bytes(subscriber.receive(subscription, timeout=60.0).payload) == b"payload"
    assert service.delegate.status()["published"] == 1


@pytest.mark.row("G-18")
@pytest.mark.parametrize("fails", ["", "gateway", "reports", "delegate", "networks", "lookup"])
def test_parts_stop_in_one_order_whatever_fails(settings: Config, fails: str) -> None:
    # Given a node of stubs that note what is done to them, of which one fails when it stops
    done: list[str] = []

    class Stub:
        address, addresses = "127.0.0.1:1", ("127.0.0.1:1",)

        def __init__(self, name: str) -> None:
            self.name = name

        def start(self) -> None:
            done.append(f"start {self.name}")

        def status(self) -> dict[str, Any]:
            return {}

        def show_networks(self, told: Any) -> None:
            pass

        def adopt(self, *_: Any) -> None:
            pass

        def stop_listening(self) -> None:
            pass

        def stop(self, *_: Any) -> int:
            done.append(f"stop {self.name}")
            if self.name == fails:
                raise RuntimeError("as the test wants it")
            return 0

    parts = Parts(
        lookup=lambda *_: Stub("lookup"),
        types=repository_of,
        dissemination=lambda *_: Stub("delegate"),
        reports=lambda *_: Stub("reports"),
        gateways=(lambda _: Stub("gateway"),),
        networks=lambda *_: Stub("networks"),
    )
    settings = msgspec.structs.replace(settings, network={"lab": NetworkSection(plugin="local")})
    # When it is started and stopped
    service = NodeService(settings, parts)
    service.start()
    service.stop()
    # Expect one order, the lookup service first and last, and the folder free
    assert done == [
        *(f"start {each}" for each in ("lookup", "delegate", "reports", "networks", "gateway")),
        *(f"stop {each}" for each in ("gateway", "reports", "delegate", "networks", "lookup")),
    ]
    assert not is_held(service.folder.path)


def test_a_start_that_fails_leaves_nothing_behind(
    settings: Config, node: Callable[..., NodeService], tmp_path: Path
) -> None:
    # Given a node, and another one for the same port
    port = split_endpoint(node().delegate.address)[1]
    other = msgspec.structs.replace(
        settings,
        pad=PadSection(port=port),
        node=msgspec.structs.replace(settings.node, folder=str(tmp_path / "other")),
    )
    # When that one is made
    with pytest.raises(JbiError, match="can't listen"):
        NodeService(other)
    # Expect its folder, and its lookup service's files, for the next one
    assert not is_held(tmp_path / "other")
    node(msgspec.structs.replace(other, pad=PadSection()))


def test_a_gateway_that_cannot_be_made_leaves_nothing_behind(settings: Config, tmp_path: Path) -> None:
    # Given a node whose gateway can't be made
    def broken(_: Config) -> Any:
        raise ConfigurationError("as the test wants it")

    before = set(threading.enumerate())
    # When it is made, expect that error alone, and no thread, port or folder that stays
    with pytest.raises(ConfigurationError, match="as the test wants it"):
        NodeService(settings, Parts(gateways=(broken,)))
    assert not [t.name for t in threading.enumerate() if t not in before and not t.name.startswith("ticker")]
    assert not is_held(tmp_path / "node")


def test_a_node_serves_http_when_it_is_told_to(settings: Config, node: Callable[..., NodeService]) -> None:
    # Given a node with [node] gateway
    pytest.importorskip("uvicorn")
    wanted = msgspec.structs.replace(
        settings,
        node=msgspec.structs.replace(settings.node, gateway=True),
        gateway=GatewaySection(port=0),
    )
    service = node(wanted)
    (url,) = service.gateways
    # When an object is published over HTTP
    body = b"<report><n>1</n></report>"
    posted = Request(  # our own gateway
        f"{url}/v1/types/report/1.0/objects?validate=false&wait=20", body, {"Content-Type": "application/xml"}
    )
    with urlopen(posted, timeout=60) as said:
        # Expect it to have passed the one delegate
        assert said.status == 201
    assert service.delegate.status()["published"] == 1
    # When another node wants the same port; Expect one sentence that says whose it is, and nothing that stays
    other = msgspec.structs.replace(
        wanted,
        node=msgspec.structs.replace(wanted.node, folder=settings.node.folder + "2"),
        gateway=GatewaySection(port=int(url.rpartition(":")[2])),
    )
    with pytest.raises(PortInUseError, match="is taken") as told:
        NodeService(other)
    assert "[gateway] port" in told.value.hint
    assert not is_held(Path(other.node.folder))
    # When the node stops; Expect nobody at the port
    service.stop(0.0)
    with pytest.raises(URLError):
        urlopen(f"{url}/v1/types", timeout=5)


def test_one_folder_is_one_nodes(settings: Config, node: Callable[..., NodeService]) -> None:
    # Given a node; When another one is started on its folder, expect that it is told so
    node()
    with pytest.raises(StorageError, match="is the folder of a node that runs"):
        NodeService(settings)


def _started(path: Path) -> Identity:
    """Who a node is that has a folder for a moment."""
    folder = NodeFolder(path)
    folder.close()
    return folder.identity


@pytest.mark.row("G-54", "G-191")
def test_an_id_outlives_restarts_and_epochs_grow_with_them(tmp_path: Path) -> None:
    # Given a folder that a node had three times
    told = [_started(tmp_path / "f") for _ in range(3)]
    # Expect one id, and a later epoch for each start
    assert len({each.id for each in told}) == 1
    assert told[0].epoch < told[1].epoch < told[2].epoch


@pytest.mark.parametrize(
    ("clock", "epochs"),
    [((1_000, 2_000, 500), [1_000, 2_000, 2_001]), ((1e20, 500, 500), [0xF000_0000 + n for n in range(3)])],
)
def test_an_epoch_is_later_than_all_before_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: tuple[float, ...], epochs: list[int]
) -> None:
    # Given a folder that a node had at these times; Expect each epoch to be later than the one before
    told = []
    for now in clock:
        monkeypatch.setattr(time, "time", lambda now=now: now)
        told.append(_started(tmp_path).epoch)
    assert told == epochs


def test_a_folder_that_is_put_back_goes_on_behind_the_starts_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a folder's copy, and a start after it was made
    _started(tmp_path / "f")
    shutil.copytree(tmp_path / "f", tmp_path / "copy")
    before = _started(tmp_path / "f")
    # When a node has the copy, seconds later
    monkeypatch.setattr(time, "time", lambda: before.epoch + 3.0)
    # Expect the same node, in a later epoch
    assert _started(tmp_path / "copy") == Identity(before.id, before.epoch + 3)


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"null", b'{"id":"../../etc","epoch":1}', b'{"id":"' + b"0" * 32 + b'","epoch":-1}', b"[" * 9999],
)
def test_a_damaged_identity_is_kept_beside_and_told(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a folder whose identity is no longer one
    folder = NodeFolder(tmp_path)
    before = folder.identity.id
    folder.close()
    (tmp_path / IDENTITY).write_bytes(damage)
    # When a node has it next
    folder = NodeFolder(tmp_path)
    folder.close()
    # Expect a new one, the old file, and a line in the log
    assert folder.identity.id != before
    assert (tmp_path / f"{IDENTITY}.damaged").read_bytes() == damage
    assert "has a new id" in caplog.text


def test_objects_say_the_node_that_they_were_published_at_by_its_id_for_good(
    node: Callable[..., NodeService], settings: Config, figures: Any
) -> None:
    # Given a node that has run before, and has a new address now
    first = NodeService(settings)
    first.stop(0.0)
    service = node()
    client = of(service)
    with SubscriberAdapter(client) as subscriber, PublisherAdapterLight(client) as publisher:
        # When somebody asks for what is published at the node of that id
        asked = f"//og:NodeID = '{first.identity.id}'"
        subscription = subscriber.register_subscriber(type_name=TYPE, predicate=asked, view="combined")
        at = publisher.connect_to_delegate("node", "home")
        publisher.publish(publisher.register_publisher(at, figures.schema, figures.figure_1), figures.figure_1, b"x")
        # Expect it
        assert subscriber.receive(subscription, timeout=60.0) is not None


def test_a_node_shows_as_one_in_the_status(node: Callable[..., NodeService]) -> None:
    # Given a node; When people look, expect it by its name, and its id for scripts
    service = node()
    servers = Servers(of(service), ())
    try:
        found = eventually(lambda: None if len(asked := servers.ask()) < 2 else asked)
    finally:
        servers.close()
    shown = {table.columns[0].head: [tuple(map(str, row)) for row in table.rows] for table in tables(found)}
    assert ("node", "home", service.delegate.address) in [row[:3] for row in shown["kind"]]
    assert [row[0] for row in shown["objects at"]] == ["node home"]
    assert "also at" not in shown  # there is nothing of it that only some people ask for
    assert [facts.get("node", "") for facts in found] == ["", service.identity.id]
    # And in `jbi top` and the console
    observer = Observer(of(service), addresses=[service.delegate.address], every=0.1)
    observer.start()
    try:
        eventually(lambda: [server.title for server in observer.snapshot().servers] == ["node home"])
    finally:
        observer.stop()


def test_a_lost_identity_is_made_anew(tmp_path: Path) -> None:
    # Given a folder whose identity is gone; Expect another one
    folder = NodeFolder(tmp_path)
    before = folder.identity.id
    folder.close()
    (tmp_path / IDENTITY).unlink()
    folder = NodeFolder(tmp_path)
    folder.close()
    assert folder.identity.id != before


def test_what_a_killed_node_has_said_is_gone_with_the_next_one(tmp_path: Path) -> None:
    # Given a folder whose node was killed, and told of a process that is another's by now
    folder = NodeFolder(tmp_path)
    told = NodeProcess(1, folder.identity.id, "old", 1, "127.0.0.1:1", "")
    folder.tell(told)
    assert running(tmp_path) == told
    os.close(folder._lock)
    # When the next one has it, and has said nothing yet, expect that nobody is told of that process
    folder = NodeFolder(tmp_path)
    assert (is_held(tmp_path), running(tmp_path)) == (True, None)
    folder.close()


def test_the_delegate_of_a_killed_node_is_not_listed_beside_that_of_the_next_one(
    node: Callable[..., NodeService], tmp_path: Path
) -> None:
    # Given a node that was killed: what it had listed stands in its folder, and what publishers registered there
    first = node()
    state = tmp_path / "node" / "registrations.db"

    def listed(service: NodeService, template: ServiceTemplate) -> list[ServiceItem]:
        with PublisherAdapterLight(of(service)) as client:
            return client._joined().lookup(template, timeout=20.0)

    delegate, anything = ServiceTemplate(entries=(NodeEntry().rep(),)), ServiceTemplate()
    (before,) = eventually(lambda: listed(first, delegate))
    with PublisherAdapterLight(of(first)) as publisher:
        publisher.register_publisher(publisher.connect_to_delegate(), type_name="acme.Track", validate=False)
        eventually(lambda: sum(each.proxy.endpoints == before.proxy.endpoints for each in listed(first, anything)) > 1)
        kept = {each: each.read_bytes() for each in state.parent.glob("registrations.db*")}
    first.stop(0.0)
    for each, data in kept.items():
        each.write_bytes(data)
    # When it is started again, expect nobody to be led to the one of before, which would not answer
    again = node()
    (found,) = eventually(lambda: listed(again, delegate), timeout=20.0)
    assert found.service_id != before.service_id
    assert {each.proxy.endpoints for each in listed(again, anything)} & {before.proxy.endpoints} == set()


@pytest.mark.parametrize("pid", [-1, 0, 1 << 31, "x", None])
def test_a_process_that_is_none_is_not_believed(tmp_path: Path, pid: object) -> None:
    # Given a folder where somebody has written that the node is many processes
    folder = NodeFolder(tmp_path)
    told = {"pid": pid, "id": "", "name": "n", "epoch": 1, "address": "", "lookup": ""}
    (tmp_path / RUNNING).write_bytes(msgspec.json.encode(told))
    # Expect that `jbi node stop` ends none of them
    assert running(tmp_path) is None
    folder.close()


@pytest.mark.parametrize("file", [RUNNING, IDENTITY])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, file: str) -> None:
    folder = NodeFolder(tmp_path)
    (tmp_path / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / file)
    if file == RUNNING:
        assert running(tmp_path) is None
    else:
        os.close(folder._lock)
        with pytest.raises(StorageError, match="not a file"):
            NodeFolder(tmp_path)


def test_who_looks_whether_a_node_runs_keeps_none_from_starting(tmp_path: Path) -> None:
    # Given somebody who looks at the folder right now
    NodeFolder(tmp_path).close()
    look = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    done = threading.Timer(0.1, os.close, [look])
    done.start()
    # When a node starts, expect that it has the folder
    NodeFolder(tmp_path).close()
    done.join()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    # Given a file where the folder is to be; Expect our error
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Name one that this user can write"):
        NodeFolder(tmp_path / "file")


@pytest.mark.row("G-140")
def test_clients_reach_it_over_several_addresses(
    node: Callable[..., NodeService], settings: Config, figures: Any
) -> None:
    # Given a node that listens on two addresses, which is how it is registered
    service = node(msgspec.structs.replace(settings, pad=PadSection(hosts=("127.0.0.2",))))
    first, second = service.delegate.addresses
    assert (split_endpoint(first)[0], split_endpoint(second)[0]) == ("127.0.0.1", "127.0.0.2")
    assert service.delegate.endpoints.ref("delegate", ()).endpoints == (first, second)
    # When a publisher and a subscriber come over the second one alone
    client = of(service)
    service.delegate.endpoints.first._listener.shutdown(socket.SHUT_RDWR)
    with SubscriberAdapter(client) as subscriber, PublisherAdapterLight(client) as publisher:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        at = publisher.connect_to_delegate("node", "home")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
        publisher.publish(registration, figures.figure_1)
        # Expect that calls and data go that way
        assert subscriber.receive(subscription, timeout=60.0) is not None
    assert fetch_status(ServiceRef("", STATUS, (second,)), Security(), timeout=60.0)["published"] == 1


@pytest.mark.parametrize("name", ["\n", "x" * 101, "\x1b[2J"])
def test_a_name_is_one_that_can_be_shown(settings: Config, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        NodeService(msgspec.structs.replace(settings, node=msgspec.structs.replace(settings.node, name=name)))


@pytest.mark.row("G-124")
def test_without_mdns_fifty_clients_and_no_datagram_socket(
    node: Callable[..., NodeService], settings: Config, figures: Any
) -> None:
    # Given a node that serves fifty publishers, over TCP alone
    service = node()
    client = of(service)
    with ExitStack() as clients:
        for number in range(50):
            publisher = clients.enter_context(PublisherAdapterLight(client, name=f"client {number}"))
            publisher.connect_to_delegate("node", "home")
        assert len(service.clients()) == 50
        # Expect no UDP socket in this process, which is theirs as well
        mine = {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
        for table in ("udp", "udp6"):
            rows = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
            assert [row for row in rows if f"socket:[{row.split()[9]}]" in mine] == []
