"""Clients of the Common API and nodes that die: real processes, SIGKILL, no code of the client's."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config
from jbi_pubsub.capi import (
    CapiException,
    ConnectionManager,
    InfoObjectDescriptor,
    NodeAwayException,
    PlatformFailureException,
    TimeoutException,
)
from jbi_pubsub.core.config import LeaseSection, LookupSection


class Told:
    def __init__(self) -> None:
        self.all: list[str] = []

    def connectionLost(self, reason: str) -> None:
        self.all.append("lost" if reason else "?")

    def connectionRestored(self) -> None:
        self.all.append("restored")


SCHEMA = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="x"/></xs:schema>'
FLAGS = (
    "--no-multicast", "--set", "archive.workers=0", "--set", "archive.reserve=0", "--set", "lease.lookup=2",
)  # fmt: skip


def of(group: str, *nodes: dict[str, Any]) -> Config:
    """What clients of nodes are configured with: where each one's lookup service is, and nothing else."""
    locators = tuple(each["lookup"] for each in nodes)
    lookup = LookupSection(groups=(group,), port=0, multicast=False, locators=locators, timeout=20.0, probe=0.3)
    return Config(lookup=lookup, lease=LeaseSection(publisher=10.0, subscriber=10.0, lookup=10.0))


@pytest.mark.row("G-77", "G-146")
@pytest.mark.processes
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_node_dies_and_its_clients_go_on_at_another_and_do_not_wait_for_its_lease(
    start: Callable[..., Any], world: str, tmp_path: Path, eventually: Callable[..., Any], how: str
) -> None:
    # Given two nodes that know each other, each with a lookup service of its own, and a client that publishes at one
    flags, nodes, ready = (*FLAGS, "--set", "lookup.port=0"), {}, list[dict[str, Any]]()
    for name in ("first", "second"):
        known = ("--locator", ready[0]["lookup"]) if ready else ()
        nodes[name] = start(*flags, *known, "node", "start", "--folder", str(tmp_path / name), "--name", name, "--json")
        ready.append(nodes[name].fact())
    config = of(world, *ready)
    client = msgspec.structs.replace(config.client, owner=str(tmp_path / "secret"))
    manager, told = ConnectionManager(msgspec.structs.replace(config, client=client)), Told()
    connection = manager.createConnection("client")
    connection.connect()
    connection.setConnectionCallback(told)
    subscriber = connection.createSubscriberSequence("t", "1.0")
    if how == "killed":
        subscriber.setDurableAttribute("vehicle 7")
    subscriber.activateSequence()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setPersistenceAttribute(how == "killed")
    publisher.activateSequence()
    published: list[tuple[float, str]] = []
    done = threading.Event()

    def publish() -> None:
        while not done.is_set():
            object_id = publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
            published.append((time.monotonic(), object_id))
            time.sleep(0.005)

    found: list[tuple[float, str]] = []
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)

        def get(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until or len(found) < len(published):
                found.append((time.monotonic(), subscriber.getNext(20_000).getInfoObjectID()))

        get(0.3)
        # When its node ends, and its lookup service with it, in the middle of all that
        nodes[connection.getNodeDetails().location].signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
        ended = time.monotonic()
        get(2.0)
        done.set()
        publishing.result(30.0)
        get(0.0)
    # Expect all, none twice, in order, what was published then long before its time is over; and the client told
    assert [each for _, each in found] == [each for _, each in published]
    late = next(at for at, _ in found if at > ended + 0.05)
    assert max(came - at for (came, _), (at, _) in zip(found, published, strict=True)) < 18.0
    assert late - ended < 18.0
    eventually(lambda: told.all == ["lost", "restored"])
    manager.destroyConnection(connection)


@pytest.mark.row("G-145")
@pytest.mark.processes
def test_a_node_that_is_killed_and_started_again_has_its_clients_back(
    start: Callable[..., Any], world: str, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a node, and a client with a durable sequence
    command = ("node", "start", "--folder", str(tmp_path / "node"), "--name", "one", "--json")
    node = start(*FLAGS, "--set", "lookup.port=0", *command)
    ready = node.fact()
    config = of(world, ready)
    config = msgspec.structs.replace(
        config, client=msgspec.structs.replace(config.client, owner=str(tmp_path / "secret"))
    )
    manager, told = ConnectionManager(config), Told()
    connection = manager.createConnection("client")
    connection.connect()
    connection.setConnectionCallback(told)
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.setDurableAttribute("vehicle 7")
    subscriber.activateSequence()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setPersistenceAttribute(True)
    publisher.activateSequence()

    def publish() -> str:
        return publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))

    ids = [publish() for _ in range(50)]
    # When it is killed with objects under way, and comes back where it was
    node.end(kill=True)
    eventually(lambda: told.all == ["lost"])
    ids += [publish() for _ in range(50)]
    start(*FLAGS, "--set", f"lookup.port={ready['lookup'].rpartition(':')[2]}", *command).fact()
    ids += [publish() for _ in range(50)]
    # Expect each object once, in order, and the client told
    assert [subscriber.getNext(30_000).getInfoObjectID() for _ in ids] == ids
    eventually(lambda: told.all == ["lost", "restored"])
    connection.destroySequence(subscriber)
    manager.destroyConnection(connection)


@pytest.mark.row("G-47")
@pytest.mark.processes
def test_while_the_node_is_away_each_call_ends_in_time_and_says_so(
    start: Callable[..., Any], world: str, tmp_path: Path
) -> None:
    # Given open sequences at a node that is killed, and clients that wait for less than a second
    node = start(
        *FLAGS, "--set", "lookup.port=0", "node", "start", "--folder", str(tmp_path / "n"), "--name", "one", "--json"
    )
    config = of(world, node.fact())
    config = msgspec.structs.replace(
        config,
        lookup=msgspec.structs.replace(config.lookup, timeout=0.7),
        queue=msgspec.structs.replace(config.queue, publish_seconds=0.5),
    )
    manager = ConnectionManager(config)
    connection, idle = (manager.createConnection(name) for name in ("client", "idle"))
    connection.connect()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setPersistenceAttribute(True)
    subscriber = connection.createSubscriberSequence("t", "1.0")
    query = connection.createQuerySequence("t", "1.0")
    for sequence in (publisher, subscriber, query):
        sequence.activateSequence()
    io = connection.createInfoObject("t", "1.0", b"", "<a/>")
    publisher.publishInfoObject(io)
    assert subscriber.getNext(20_000).getMetadata() == "<a/>"
    query.executeQuery()
    described, repository = InfoObjectDescriptor(), connection.getMetadataRepository()
    described.setType("x")
    described.setVersion("1.0")
    described.setMetadataXMLSchema(SCHEMA)
    node.end(kill=True)
    # When each call is made, Expect it to end in time: with the exception for that, or as if nothing were
    calls: dict[str, tuple[Callable[[], object], type[Exception] | None]] = {
        "connect": (idle.connect, NodeAwayException),
        "activate a publisher": (connection.createPublisherSequence("u", "1.0").activateSequence, NodeAwayException),
        "activate a subscriber": (
            connection.createSubscriberSequence("t", "1.0").activateSequence,
            NodeAwayException,
        ),
        "activate a query": (connection.createQuerySequence("t", "1.0").activateSequence, None),
        "publishInfoObject": (lambda: publisher.publishInfoObject(io), None),
        "pauseSequence": (subscriber.pauseSequence, None),
        "resumeSequence": (subscriber.resumeSequence, None),
        "getNext": (lambda: subscriber.getNext(10), TimeoutException),
        "getResultCount": (query.getResultCount, NodeAwayException),
        "cancelQuery": (query.cancelQuery, None),
        "executeQuery": (query.executeQuery, NodeAwayException),
        "executeDistributedQuery": (lambda: query.executeDistributedQuery(1_000), NodeAwayException),
        "getNodeDetails": (connection.getNodeDetails, NodeAwayException),
        "list": (repository.list, NodeAwayException),
        **{
            name: (partial(getattr(repository, name), described), NodeAwayException)
            for name in ("add", "get", "update", "remove")
        },
        "destroy a query": (lambda: connection.destroySequence(query), None),
        "destroy a subscriber": (lambda: connection.destroySequence(subscriber), None),
        "destroy a publisher": (lambda: connection.destroySequence(publisher), PlatformFailureException),
        "disconnect": (connection.disconnect, PlatformFailureException),
        "destroyConnection": (lambda: manager.destroyConnection(connection), None),
    }
    for name, (call, expected) in calls.items():
        began, said = time.monotonic(), None
        try:
            call()
        except CapiException as exc:
            said = type(exc)
        assert said is expected, name
        assert time.monotonic() - began < 30.0, name


@pytest.mark.row("G-21")
@pytest.mark.processes
def test_the_api_brings_no_server_with_it() -> None:
    code = (
        "import sys, jbi_pubsub.capi\n"
        "light = {'jbi_pubsub.trust', 'jbi_pubsub.trust.settings'}\n"
        "rooms = {name.split('.')[1] for name in sys.modules.keys() - light if name.startswith('jbi_pubsub.')}\n"
        "print(sorted(rooms - {'core', 'lookup', 'protocol', 'codegen', 'publisher', 'subscriber', 'capi'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"
