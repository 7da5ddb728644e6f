"""The deployments of `deploy/*.toml`, as docs/node.md describes them, with the places and names of this test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.cli.app import run
from jbi_pubsub.cli.node import started
from jbi_pubsub.cli.settings import CommandSettings
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.node.identity import is_held
from jbi_pubsub.node.service import NodeService

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
TYPE = "mil.af.rl.jbi.Intel_Imagery"
POLICY = """
[[access]]
user = "*.example.org"
action = "*"
allow = true
"""


@pytest.fixture
def deployed(tmp_path: Path, world: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., NodeService]]:
    """deployed("tactical", "127.0.0.2", of) starts the node of that file at an address, its own being `of`; all are
    stopped at the end."""
    monkeypatch.chdir(tmp_path)
    assert run(["certs", "init"]) == 0
    for name in ("anna.example.org", "eve.example.net"):
        assert run(["certs", "issue", name]) == 0
    (tmp_path / "policy.toml").write_text(POLICY)
    with ExitStack() as stack:
        group = f"239.192.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"

        def start(pattern: str, address: str = "127.0.0.1", name: str = "", server: str = "127.0.0.1") -> NodeService:
            party = f"{name or pattern}.example.org"
            if not (tmp_path / "certs" / party).is_dir():
                every = [word for each in ("127.0.0.1", address) for word in ("--address", each)]
                assert run(["certs", "issue", party, *every]) == 0
            text = (DEPLOY / f"{pattern}.toml").read_text()
            for theirs, ours in {
                "/etc/jbi/tls": str(tmp_path / "certs" / party), "/etc/jbi": str(tmp_path),
                "/var/lib/jbi": str(tmp_path / party), "jbi.example.org:4160": server, "jbi.example.org": address,
                "239.74.66.73": group, '"wlan0"': '"lo"',
                "10.20.0.3": address, '"patrol-1"': f'"{name}"', "port = 4170": "port = 0",
            }.items():  # fmt: skip
                text = text.replace(theirs, ours)
            file = tmp_path / f"{party}.toml"
            file.write_text(text)
            config = started(CommandSettings(str(file), {"lookup.port": 0, "lookup.groups": [world]}))
            archive = msgspec.structs.replace(config.archive, workers=0, reserve=0.0, memory=64 << 20)
            service = NodeService(msgspec.structs.replace(config, archive=archive))
            stack.callback(lambda: service.stop(0.5) if is_held(service.folder.path) else None)
            service.start()
            return service

        yield start


def client(service: NodeService, world: str, who: str = "anna.example.org") -> Config:
    """Of an application on the same computer, or at a server's."""
    assert service.lookup is not None
    own = Config()
    lookup = msgspec.structs.replace(
        own.lookup, locators=(f"127.0.0.1:{service.lookup.address.rpartition(':')[2]}",), groups=(world,),
        multicast=False, timeout=20.0,
    )  # fmt: skip
    tls = msgspec.structs.replace(own.tls, folder=str(Path("certs") / who))
    return msgspec.structs.replace(own, lookup=lookup, tls=tls)


def published(service: NodeService, config: Config, figures: Any, payload: bytes, **terms: Any) -> None:
    with PublisherAdapterLight(config) as publisher:
        at = publisher.connect_to_delegate("node", service.name)
        uid = publisher.register_publisher(at, figures.schema, figures.figure_1, **terms)
        publisher.publish(uid, figures.figure_1, payload)
        publisher.flush()


def datagram_sockets() -> list[str]:
    """Of this process, of which those of tests before are none."""
    mine = {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
    rows = [row for name in ("udp", "udp6") for row in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
    return [row for row in rows if f"socket:[{row.split()[9]}]" in mine]


@pytest.mark.row("G-124")
def test_an_enterprise_serves_clients_over_tcp_alone(
    deployed: Callable[..., NodeService], world: str, figures: Any
) -> None:
    # Given the server of an enterprise, and clients with certificates
    before = datagram_sockets()
    service = deployed("enterprise")
    anna = client(service, world)
    with SubscriberAdapter(anna) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE)
        # When one publishes, expect that the other gets it, and that no datagram socket is open
        published(service, anna, figures, b"wired")
        assert bytes(subscriber.receive(uid, 60.0).payload) == b"wired"
        assert datagram_sockets() == before
    # And that the policy does not know strangers
    with pytest.raises(JbiError):
        published(service, client(service, world, "eve.example.net"), figures, b"x")


@pytest.mark.row("G-04", "G-05")
def test_tactical_computers_share_while_they_meet_and_go_on_alone(
    deployed: Callable[..., NodeService], world: str, figures: Any, eventually: Any
) -> None:
    # Given two computers with nodes that know nothing of each other, and an application on the first
    one, other = (deployed("tactical", f"127.0.0.{2 + n}", f"patrol-{n}") for n in range(2))
    here = client(one, world)
    with SubscriberAdapter(here) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE)
        # When they meet, expect what is published on the second one to come
        eventually(lambda: other.delegate.community.connected() == 2)
        published(other, client(other, world), figures, b"met")
        assert bytes(subscriber.receive(uid, 30.0).payload) == b"met"
        # When the second one is gone, expect the first to go on
        other.stop(0.0)
        published(one, here, figures, b"alone")
        assert bytes(subscriber.receive(uid, 60.0).payload) == b"alone"


@pytest.mark.row("G-12")
def test_computers_on_a_radio_share_what_their_applications_want(
    deployed: Callable[..., NodeService], world: str, figures: Any, eventually: Any
) -> None:
    # Given two computers that share nothing but a network of datagrams and its key
    one, other = (deployed("radio", name=f"patrol-{n}") for n in range(2))
    with SubscriberAdapter(client(one, world)) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE)
        # When somebody publishes on the second, and somebody wants it on the first
        publisher = PublisherAdapterLight(client(other, world))
        at = publisher.connect_to_delegate("node", other.name)
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
        subscriber.wait_matched(uid, timeout=60.0)
        eventually(lambda: other.networks().own == 1, timeout=30.0)
        publisher.publish(registration, figures.figure_1, b"over the air")
        # Expect it there, and that no lookup service knows the other computer
        assert bytes(subscriber.receive(uid, 60.0).payload) == b"over the air"
        assert one.delegate.community.connected() == other.delegate.community.connected() == 1
        publisher.close()


@pytest.mark.row("G-103", "G-125")
def test_what_a_hybrid_node_kept_on_its_way_is_found_at_the_server_when_it_is_in_reach(
    deployed: Callable[..., NodeService], world: str, figures: Any, eventually: Any
) -> None:
    # Given a server, whose address is known, and which is out of reach
    server = deployed("enterprise")
    assert server.lookup is not None
    address = server.lookup.address
    server.stop(0.0)
    patrol = deployed("hybrid", "127.0.0.2", "patrol-1", address)
    # When something is kept on the way
    published(patrol, client(patrol, world), figures, b"kept", persist=True)
    # And the server is in reach, at its address
    port = int(address.rpartition(":")[2])
    config = msgspec.structs.replace(server.config, lookup=msgspec.structs.replace(server.config.lookup, port=port))
    again = NodeService(config)
    try:
        again.start()
        anna = client(again, world)
        # Expect applications there to find it
        with SubscriberAdapter(anna) as subscriber:
            eventually(lambda: patrol.delegate.community.connected() == 2)
            found = [bytes(obj.payload) for obj in subscriber.query(type_name=TYPE)]
            assert found == [b"kept"]
            # And what is published on the patrol from now on
            uid = subscriber.register_subscriber(type_name=TYPE)
            published(patrol, client(patrol, world), figures, b"live")
            assert bytes(subscriber.receive(uid, 60.0).payload) == b"live"
    finally:
        again.stop(0.5)
