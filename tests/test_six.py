"""Everything at ::1: each server that listens, those who connect to it, and the commands that name it."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from jbi_pubsub.core.config import MetricsSection, WebSection
from jbi_pubsub.core.errors import PortInUseError
from jbi_pubsub.core.node_sections import GatewaySection, NodeSection
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.web.gateway import Gateway
from jbi_pubsub.web.server import WebServer

SIX: Final = "::1"


@pytest.fixture(autouse=True)
def _has_six() -> None:
    try:
        socket.create_server((SIX, 0), family=socket.AF_INET6).close()
    except OSError as exc:
        pytest.skip(f"this host has no IPv6: {exc}")


@pytest.fixture
def six(federation: Any) -> Any:
    """A federation whose lookup service, and all parties from now on, are at ::1 alone."""
    federation.lookups.clear()
    federation.lookup(host=SIX)
    federation.config = msgspec.structs.replace(
        federation.config,
        pad=msgspec.structs.replace(federation.config.pad, host=SIX),
        metrics=MetricsSection(host=SIX, port=0),
    )
    assert all(each.startswith("[::1]:") for each in federation.config.lookup.locators)
    return federation


def test_objects_come_from_publishers_of_both_kinds(six: Any, figures: Any) -> None:
    # Given a delegate, a publisher that uses it, one that is its own delegate, and a subscriber
    pad = six.pad("alpha", "rome")
    assert pad.address.startswith("[::1]:")
    light, peer, subscriber = six.light(), six.peer(), six.subscriber()
    uids = {light: figures.register(light), peer: peer.register_publisher(figures.schema, figures.figure_1)}
    subscription = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(subscription, 2, 20.0) == 2

    # When both publish, expect both objects
    for publisher, uid in uids.items():
        publisher.publish(uid, figures.figure_1, type(publisher).__name__.encode())
    objects = subscriber.objects(subscription, 20.0)
    assert {next(objects).payload for _ in range(2)} == {b"PublisherAdapter", b"PublisherAdapterLight"}

    # Expect its metrics there, for those who name the address, too
    with urllib.request.urlopen(f"http://[::1]:{pad.metrics.port}/metrics", timeout=20.0) as answer:
        assert b"jbi_" in answer.read()


@pytest.fixture
def served(six: Any) -> Iterator[Callable[[Any], Any]]:
    """Starts a gateway or a console; it stops at the end."""
    with ExitStack() as stack:

        def start(server: Any) -> Any:
            stack.callback(server.stop)
            server.start()
            return server

        yield start


def asked(address: str, path: str) -> tuple[int, bytes]:
    """Status and body at http://[::1]:PORT, with the header that says so."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=20.0)
    try:
        connection.request("GET", path, headers={"Host": f"{host}:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_gateway_and_the_console_answer(six: Any, served: Callable[[Any], Any]) -> None:
    # Given a delegate, a gateway and a console
    six.pad("alpha", "rome")
    gateway = served(Gateway(msgspec.structs.replace(six.config, gateway=GatewaySection(host=SIX, port=0))))
    console = served(WebServer(msgspec.structs.replace(six.config, web=WebSection(host=SIX, port=0))))

    # Expect both to be at the address that they say
    for server in (gateway, console):
        assert server.address == f"http://[::1]:{server.port}"
    assert asked(gateway.address, "/v1/types")[0] == 200
    status, body = asked(console.address, "/")
    assert status == 401
    assert b"Open the address that `jbi web` has printed" in body


def test_a_node_has_all_its_parts_there(six: Any, figures: Any, tmp_path: Path) -> None:
    # Given a node whose parts are all at ::1
    node = NodeSection(folder=str(tmp_path / "node"), name="home", archive=False, statistics_seconds=0.0)
    config = msgspec.structs.replace(
        six.config, node=node, lookup=msgspec.structs.replace(six.config.lookup, host=SIX, locators=()),
        gateway=GatewaySection(host=SIX, port=0), web=WebSection(host=SIX, port=0),
    )  # fmt: skip
    service = NodeService(config)
    service.start()
    try:
        assert service.lookup.address.startswith("[::1]:")
        config = msgspec.structs.replace(
            config, lookup=msgspec.structs.replace(config.lookup, locators=(service.lookup.address,))
        )

        # When somebody publishes there, expect it to come
        light, subscriber = six.light(config), six.subscriber(config)
        uid = light.register_publisher(light.connect_to_delegate("node", "home"), figures.schema, figures.figure_1)
        subscription = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
        assert subscriber.wait_matched(subscription, 1, 20.0) == 1
        light.publish(uid, figures.figure_1, b"there")
        assert next(subscriber.objects(subscription, 20.0)).payload == b"there"
    finally:
        service.stop()


@pytest.mark.processes
def test_commands_name_it_and_say_it(start: Callable[..., Any]) -> None:
    # Given a lookup service and a delegate as processes
    lookup = start("lookup", "--host", SIX, "--port", "0", "--json").fact()["address"]
    assert lookup.startswith("[::1]:")
    pad = start("--locator", lookup, "pad", "alpha", "rome", "--host", SIX, "--json").fact()["address"]
    assert pad.startswith("[::1]:")

    # When their status is asked for, expect both to answer, and to be found
    for address in (lookup, pad):
        out, err = start("status", address, "--json").communicate()
        assert json.loads(out), err
    out, err = start("--locator", lookup, "services", "--json").communicate()
    assert pad in out, err

    # When the checkup asks, expect it to find them
    out, err = start("--locator", lookup, "doctor").communicate()
    assert f"{lookup}" in out, err


def test_a_place_that_is_taken_is_said_so(six: Any) -> None:
    pad = six.pad("alpha", "rome")
    port = int(pad.address.rpartition(":")[2])
    taken = msgspec.structs.replace(six.config, pad=msgspec.structs.replace(six.config.pad, port=port))
    with pytest.raises(PortInUseError, match=rf"can't listen on \[::1\]:{port}"):
        six.pad("bravo", "rome", taken)


@pytest.mark.processes
def test_an_advice_can_be_followed(start: Callable[..., Any]) -> None:
    out, _ = start("--locator", "[2001:db8::9]:4160", "--set", "lookup.timeout=0.2", "doctor").communicate()
    assert "--host 2001:db8::9" in out
