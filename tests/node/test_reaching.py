"""Commands that reach a node which only the networks of the node of this host come to."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority
from click.shell_completion import ShellComplete
from cryptography import x509

from jbi_pubsub.cli.app import jbi, run
from jbi_pubsub.core.config import PolicySection
from jbi_pubsub.core.errors import UnknownUidError
from jbi_pubsub.core.wire import detour
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.node.admin import NodeProxy
from jbi_pubsub.node.identity import NodeProcess, running
from jbi_pubsub.node.reaching import named, near_node
from jbi_pubsub.node.service import NodeService

from .conftest import NodesOnNetworks

DATA = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"
TYPE = "mil.af.rl.jbi.Intel_Imagery"
SCHEMA = ("--schema", str(DATA / "Intel_Imagery.xsd"), "--metadata", str(DATA / "fig1.xml"))
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """said("node", "status") runs it in this process: exit code, stdout, stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        assert not detour.is_taken(), "the command has left it"
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    yield command
    detour.leave()


def by(node: NodeService) -> Sequence[str]:
    """Options of a command on the host of a node, which knows no lookup service but that node's."""
    assert node.lookup is not None
    address, lookup, identity = node.delegate.addresses[0], node.lookup.address, node.identity
    node.folder.tell(NodeProcess(os.getpid(), identity.id, node.name, identity.epoch, address, lookup))
    return "--no-multicast", "--locator", lookup, "--set", f"node.folder={node.folder.path}"


@pytest.fixture
def pair(nodes: NodesOnNetworks, eventually: Any) -> Callable[..., tuple[NodeService, NodeService]]:
    """pair() starts the nodes alpha and bravo, and waits until they hear each other."""

    def made(**far: Any) -> tuple[NodeService, NodeService]:
        alpha, bravo = nodes.start("alpha"), nodes.start("bravo", **far)
        eventually(lambda: alpha.peer_names() == ("bravo",) and bravo.peer_names() == ("alpha",))
        return alpha, bravo

    return made


@pytest.mark.row("G-170")
def test_a_node_is_administered_through_another_one(pair: Any, said: Said, nodes: NodesOnNetworks) -> None:
    # Given two nodes that lose a fifth of what they say to each other; at one of them only the other's name is known
    alpha, bravo = pair()
    nodes.loss = 0.2
    here = (*by(alpha), "--node", "bravo")
    # Expect status, details and clients of the other one
    code, out, err = said(*here, "node", "status", "--json")
    assert (code, json.loads(out)["id"]) == (0, bravo.identity.id), err
    assert json.loads(said(*here, "node", "details", "--json")[1])["name"] == "bravo"
    code, out, err = said(*here, "node", "clients", "--json")
    assert (code, {each["id"] for each in json.loads(out)}) == (0, {each.id for each in bravo.clients()}), err
    assert alpha.networks().tunnels["doors"] == 2
    # what is set there to be set there alone
    code, out, err = said(*here, "node", "set", "node.statistics_seconds", "7")
    assert (code, out) == (0, "node.statistics_seconds is 7\n"), err
    # and it to be shut down
    ended: list[float] = []
    bravo._ended = ended.append
    assert said(*here, "node", "stop")[0] == 0
    assert len(ended) == 1


def test_a_node_is_reached_over_one_between(nodes: NodesOnNetworks, said: Said, eventually: Any) -> None:
    # Given two networks that lose, and nodes that share none, but one that is on both
    alpha, bravo = nodes.start("alpha", ("lab",)), nodes.start("bravo", ("field",))
    nodes.start("relay", ("lab", "field"))
    eventually(lambda: "bravo" in alpha.peer_names() and "alpha" in bravo.peer_names())
    nodes.loss = 0.1
    # Expect one to reach the other
    code, out, err = said(*by(alpha), "--node", "bravo", "node", "status", "--json")
    assert (code, json.loads(out)["id"]) == (0, bravo.identity.id), err


def test_commands_that_look_see_what_the_far_lookup_service_knows(pair: Any, said: Said) -> None:
    alpha, bravo = pair()
    here = (*by(alpha), "--node", "bravo")
    code, out, err = said(*here, "services", "--json")
    assert code == 0, err
    assert bravo.delegate.server_id in out  # type: ignore[attr-defined]
    assert alpha.delegate.server_id not in out  # type: ignore[attr-defined]
    (seen,) = json.loads(said(*here, "status", "--json")[1])
    assert seen["address"] == bravo.delegate.addresses[0]


def test_objects_are_published_queried_and_subscribed_to_there(pair: Any, said: Said, nodes: NodesOnNetworks) -> None:
    alpha, _ = pair(archive=True)
    nodes.loss = 0.1
    here = (*by(alpha), "--node", "bravo")
    code, out, err = said(*here, "publish", *SCHEMA, "--count", "3", "--persist")
    assert (code, out[:19]) == (0, "published 3 objects"), err
    assert json.loads(said(*here, "query", "--count-only", "--json")[1])["count"] == 3
    code, out, err = said(*here, "subscribe", "--type", TYPE, "--start", "all", "--count", "3")
    assert (code, out.count(TYPE)) == (0, 3), err


def rules(folder: Path, text: str) -> PolicySection:
    """A policy with these rules, and whatever the node itself needs."""
    file = folder / "policy.toml"
    file.write_text(text)
    return PolicySection(file=str(file))


def test_only_who_may_peer_goes_through_a_node(
    nodes: NodesOnNetworks, fixtures: Any, said: Said, eventually: Any, tmp_path: Path
) -> None:
    # Given a near node where all may do everything, but go through it
    policy = rules(
        tmp_path,
        """
[[access]]
allow = false
action = "peer"

[[access]]
allow = true
action = "*"
""",
    )
    alpha = nodes.start("alpha", config=msgspec.structs.replace(fixtures.test_config(), policy=policy))
    nodes.start("bravo")
    eventually(lambda: alpha.peer_names() == ("bravo",))
    code, out, err = said(*by(alpha), "--node", "bravo", "node", "status")
    assert (code, out, "may not peer bravo" in err) == (1, "", True), err
    assert said(*by(alpha), "node", "details")[0] == 0


def test_the_far_node_decides_and_takes_nobody_for_one_of_its_host(
    nodes: NodesOnNetworks, fixtures: Any, said: Said, eventually: Any, tmp_path: Path
) -> None:
    # Given a far node where those of its own host may everything, and those who come by other nodes may look
    policy = rules(
        tmp_path,
        """
[[access]]
allow = true
address = "127.0.0.0/8"
action = "*"

[[access]]
allow = true
address = "node-*"
action = ["connect", "status"]
""",
    )
    alpha = nodes.start("alpha")
    bravo = nodes.start("bravo", config=msgspec.structs.replace(fixtures.test_config(), policy=policy))
    eventually(lambda: alpha.peer_names() == ("bravo",))
    here = (*by(alpha), "--node", "bravo")
    assert said(*here, "status", "--json")[0] == 0
    code, out, err = said(*here, "node", "clients")
    caller = f"node-{alpha.identity.id[:8]}:"
    assert (code, out) == (1, ""), err
    assert caller in err
    assert "may not administer" in err
    assert said(*by(bravo), "node", "clients")[0] == 0


def test_what_a_node_does_not_serve_to_others_is_refused(pair: Any, said: Said) -> None:
    alpha, _ = pair(reachable=("lookup",))
    code, out, err = said(*by(alpha), "--node", "bravo", "node", "status")
    assert (code, out) == (1, "")
    assert "no way to the delegate of node" in err
    assert "it serves no 'delegate' to other nodes" in err


def test_a_node_without_a_lookup_service_is_reached_itself(
    nodes: NodesOnNetworks, fixtures: Any, said: Said, eventually: Any
) -> None:
    alpha = nodes.start("alpha")
    bravo = nodes.start("bravo", reachable=("delegate",))
    eventually(lambda: alpha.peer_names() == ("bravo",))
    here = (*by(alpha), "--set", "lookup.timeout=0.5", "--node", "bravo")
    assert json.loads(said(*here, "node", "status", "--json")[1])["id"] == bravo.identity.id
    code, _, err = said(*here, "services")
    assert code == 1, err


def test_who_mistypes_a_name_is_told_the_nearest(pair: Any, said: Said) -> None:
    alpha, _ = pair()
    for words in (("node", "status"), ("services",), ("publish", *SCHEMA)):
        code, out, err = said(*by(alpha), "--node", "bravp", *words)
        assert (code, out, "no node bravp; did you mean bravo?" in err) == (1, "", True), err
    code, _, err = said(*by(alpha), "--node", "0123456789abcdef", "status")
    assert (code, "no node 0123456789abcdef is heard" in err) == (1, True), err


def test_of_two_nodes_with_one_name_the_id_says_which(nodes: NodesOnNetworks, said: Said, eventually: Any) -> None:
    alpha, first = nodes.start("alpha"), nodes.start("bravo")
    second = nodes.start("charlie")
    peers = {bytes.fromhex(each.identity.id): NodePeer("bravo", (), (), 1, 0, 0.0, 0.0) for each in (first, second)}
    with pytest.raises(UnknownUidError, match="2 nodes are called bravo") as told:
        named(peers, "bravo")
    assert first.identity.id[:8] in told.value.hint
    assert named(peers, first.identity.id[:8].upper()).hex() == first.identity.id
    # and an id is good for a command as well
    eventually(lambda: len(alpha.peer_names()) == 2)
    code, out, err = said(*by(alpha), "--node", second.identity.id[:8], "node", "details", "--json")
    assert (code, json.loads(out)["name"]) == (0, "charlie"), err


def test_tls_is_between_the_two_ends(
    nodes: NodesOnNetworks, fixtures: Any, said: Said, eventually: Any, tmp_path: Path
) -> None:
    # Given nodes with certificates, and rules at the far one about who somebody is
    authority = Authority(tmp_path / "certificates")
    policy = rules(
        tmp_path,
        """
[[access]]
allow = true
user = ["alice", "far"]
action = "*"
""",
    )
    address = x509.IPAddress(ip_address("127.0.0.1"))
    near, far = (
        msgspec.structs.replace(fixtures.test_config(), tls=authority.issue(name, names=(address,)))
        for name in ("near", "far")
    )
    alpha = nodes.start("alpha", config=near)
    bravo = nodes.start("bravo", config=msgspec.structs.replace(far, policy=policy))
    eventually(lambda: alpha.peer_names() == ("bravo",))
    # Expect alice to be alice there, and bob to be refused
    for name, expected in (("alice", 0), ("bob", 1)):
        tls = authority.issue(name)
        files = [f"tls.{key}={getattr(tls, key)}" for key in ("certificate", "key", "ca")]
        options = [word for each in files for word in ("--set", each)]
        code, out, err = said(*by(alpha), *options, "--node", "bravo", "node", "details", "--json")
        assert code == expected, err
        assert (json.loads(out)["id"] if out else err) == (bravo.identity.id if not expected else err)
        assert expected == 0 or "bob may not connect" in err


def test_no_password_goes_through_the_network_in_clear(pair: Any, said: Said) -> None:
    alpha, _ = pair()
    who = ("--set", "client.user=alice", "--set", "client.password=secret")
    code, out, err = said(*by(alpha), *who, "--node", "bravo", "node", "status")
    assert (code, out) == (2, "")
    assert "refusing to show the password of alice" in err


def test_a_shell_completes_names_that_only_the_near_node_hears(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, _ = pair()
    by(alpha)
    monkeypatch.setenv("JBI_NODE_FOLDER", str(alpha.folder.path))
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", "127.0.0.1:1")
    complete = ShellComplete(jbi, {}, "jbi", "_JBI_COMPLETE")
    assert [item.value for item in complete.get_completions(["--node"], "br")] == ["bravo"]


def test_ways_to_a_node_that_was_started_anew_are_found_again(
    nodes: NodesOnNetworks, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given ways to a node, as who goes on to ask for them gets them
    taken: list[Callable[[], dict[str, str]]] = []
    monkeypatch.setattr(detour, "take", lambda _, ask: taken.append(ask))
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    eventually(lambda: alpha.peer_names() == ("bravo",))
    by(alpha)
    near = near_node(alpha.config)
    assert near is not None
    delegate, lookup = near.reach("bravo")
    [ask] = taken
    assert set(ask()) == {*delegate, *lookup} == {*bravo.delegate.addresses, bravo.lookup.address}  # type: ignore[union-attr]
    # When it has left, expect to be told
    bravo.stop(0.0)
    eventually(lambda: alpha.peer_names() == ())
    with pytest.raises(UnknownUidError, match="no node bravo is heard"):
        ask()
    # and when it is back, elsewhere, to come there
    again = nodes.start("bravo")
    eventually(lambda: alpha.peer_names() == ("bravo",))
    [address] = again.delegate.addresses
    assert address not in delegate
    with closing(NodeProxy(ask()[address], alpha.config.security())) as calls:
        assert calls.details().epoch > bravo.identity.epoch


def _port() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.processes
@pytest.mark.row("G-170")
def test_processes_reach_a_node_over_udp(
    start: Callable[..., Any], said: Said, eventually: Any, tmp_path: Path
) -> None:
    # Given two nodes as processes of their own, that hear each other by multicast on loopback
    group = f"239.66.{os.getpid() >> 8 & 127}.{os.getpid() & 255}"
    network = ("--set", f"network.lab.group={group}", "--set", f"network.lab.port={_port()}")
    flags = ("--no-multicast", "--set", "lookup.port=0", "--set", "node.archive=false", *network)
    flags = (*flags, "--set", "network.lab.interfaces=lo", "--set", "node.announce_seconds=0.3")
    near, far = (
        start(*flags, "node", "start", "--folder", str(tmp_path / name), "--name", name, "--json").fact()
        for name in ("tent-1", "tent-3")
    )
    here = ("--no-multicast", "--locator", near["lookup"], "--set", f"node.folder={tmp_path / 'tent-1'}")
    eventually(lambda: "tent-3" in said(*here, "node", "peers")[1])
    # When commands are processes too, which know the near node alone; expect the far one's status and services
    told = start(*here, "--node", "tent-3", "node", "status", "--json").fact()
    assert (told["id"], told["name"]) == (far["id"], "tent-3")
    code, out, err = said(*here, "--node", "tent-3", "services", "--json")
    assert (code, far["address"] in out, near["address"] in out) == (0, True, False), err
    # its level to be set, and its log to say so
    code, out, err = said(*here, "--node", "tent-3", "node", "set", "log.level", "debug")
    assert (code, out) == (0, "log.level is debug\n"), err
    assert "has set log.level = debug" in said(*here, "--node", "tent-3", "node", "log")[1]
    assert "has set log.level" not in said(*here, "node", "log")[1]
    # and itself to be stopped
    assert said(*here, "--node", "tent-3", "node", "stop")[0] == 0
    eventually(lambda: running(tmp_path / "tent-3") is None)
