"""`jbi doctor networks`: what is wrong with nodes' networks is found, named, and answered with what to do."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from jbi_pubsub.cli.network_checks import networks
from jbi_pubsub.cli.parties import Answer, Checkup, Finding, FoundParties
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.sealing import SealFault
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus


def link(**facts: Any) -> NetworkStatus:
    return NetworkStatus(**{"name": "lab", "plugin": "udp", "place": "239.1.1.1 port 4162 on lo", **facts})


def peer(name: str, loss: float) -> PeerStatus:
    return PeerStatus(id=name[0] * 32, name=name, network="lab", loss=loss)


def found(told: Any, uptime: float = 300.0) -> list[Finding]:
    """Findings on a node that tells this of its networks."""
    facts = {"kind": "delegate", "name": "node", "location": "alpha", "uptime": uptime, "node": "a" * 32}
    if told is not None:
        facts["networks"] = msgspec.to_builtins(told)
    parties: Future[FoundParties] = Future()
    away = Answer("10.0.0.1:1", None, WireError("gone"), 0.1)
    parties.set_result(FoundParties(servers=[Answer("127.0.0.1:9", facts, None, 0.1), away]))
    return list(networks(Checkup(Config(), {}, parties)))


def test_a_network_on_which_others_are_heard_is_well() -> None:
    told = NetworksStatus(links=[link(neighbours=2, peers=2)], peers=[peer("bravo", 2.5), peer("charlie", 20.0)])
    text = "node alpha at 127.0.0.1:9: network lab: 2 nodes heard, 20.0 % lost at most"
    assert found(told) == [Finding("networks", "ok", text)]


@pytest.mark.parametrize(
    ("told", "state", "says", "advice"),
    [
        (
            NetworksStatus(links=[link()]), "warning",
            "network lab (239.1.1.1 port 4162 on lo): no other node is heard, up for 5m00s",
            "[network.lab] group and port",
        ),
        (
            NetworksStatus(links=[link()], faults={SealFault.FORGED: 7}), "warning", "no other node is heard",
            "the same file as [network.lab] key",
        ),
        (NetworksStatus(links=[link(plugin="tcp")]), "warning", "no other node is heard", "[network.lab] peers"),
        (
            NetworksStatus(links=[link(neighbours=1, trouble="eth7: No such device")]), "warning",
            "network lab: eth7: No such device", "ip -br address",
        ),
        (
            NetworksStatus(links=[link(neighbours=7)], peers=[peer(f"{n}ode", 21.0 + n) for n in range(7)]), "warning",
            "loses of 6ode 27 %, 5ode 26 %, 4ode 25 %, 3ode 24 %, 2ode 23 %, and 2 more nodes", "[network.lab] rate =",
        ),
    ],
    ids=["nobody", "another key", "nobody by tcp", "trouble", "loss"],
)  # fmt: skip
def test_what_is_wrong_with_a_network_is_told_with_what_to_do(
    told: NetworksStatus, state: str, says: str, advice: str
) -> None:
    [finding] = found(told)
    assert (finding.check, finding.state) == ("networks", state)
    assert says in finding.found
    assert advice in finding.advice


def test_a_node_that_was_just_started_misses_nobody() -> None:
    [finding] = found(NetworksStatus(links=[link()]), uptime=20.0)
    assert (finding.state, finding.found.endswith("network lab: 0 nodes heard")) == ("ok", True)


def test_a_twin_is_a_failure_and_what_the_bridge_can_not_do_a_warning() -> None:
    twin, trouble, ok = found(NetworksStatus(links=[link(neighbours=1)], twin=True, troubles=["no schema of x"]))
    assert (twin.state, trouble.state, ok.state) == ("failure", "warning", "ok")
    assert "another node uses its id" in twin.found
    assert "identity.json" in twin.advice
    assert trouble.found == "node alpha at 127.0.0.1:9: no schema of x"
    # When it goes on under another id; Expect to be told to start it again
    renewed, _ = found(NetworksStatus(links=[link(neighbours=1)], id="b" * 32))
    assert (renewed.state, "has its id aaaaaaaa, so in the networks it is bbbbbbbb" in renewed.found) == (
        "warning",
        True,
    )
    assert "jbi node stop" in renewed.advice


def test_without_networks_nothing_is_said_of_them_and_nonsense_is_no_fault_of_ours() -> None:
    assert found(None) == [Finding("networks", "skipped", "no node with networks found")]
    [finding] = found({"links": [{"sent": -1}]})
    assert (finding.state, "that this version does not understand" in finding.found) == ("warning", True)
