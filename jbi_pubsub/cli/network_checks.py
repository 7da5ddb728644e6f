"""The check of `jbi doctor` of nodes' networks, as each node that is found tells of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from jbi_pubsub.core.sealing import SealFault
from jbi_pubsub.core.values import converted
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus

from .parties import Answer, Checkup, Finding, number_of
from .show import counted, lasted

ALONE_SECONDS: Final = 60.0
"""Seconds for which nobody is missed on a network after a node was started."""
LOSS_MUCH: Final = 20.0
"""Percent of a node's datagrams that do not come: with more, repairs are much of what goes."""
PEERS_NAMED: Final = 5
"""Lossy nodes of a network that are named."""


def networks(checkup: Checkup) -> Iterator[Finding]:
    """Whether the nodes found hear others on each of their networks, without trouble, twins and much loss."""
    found = checkup.found()
    count = 0
    for answer in found.servers:
        facts = answer.value
        if answer.error is not None or not facts.get("networks"):
            continue
        count += 1
        try:
            told = converted(facts["networks"], NetworksStatus)
        except (msgspec.ValidationError, RecursionError):
            text = f"{answer.called} describes its networks in a way that this version does not understand"
            yield Finding("networks", "warning", text, "pip install --upgrade jbi-pubsub there, and start it again")
            continue
        name = f"node {facts.get('location', '')} at {answer.at}"
        yield from _of_node(name, str(facts.get("node", "")), told)
        for link in told.links:
            yield _of_link(name, answer, link, told)
    if not count:
        yield Finding("networks", "skipped", found.problem or "no node with networks found")


def _of_node(name: str, node: str, told: NetworksStatus) -> Iterator[Finding]:
    if told.twin:
        advice = (
            "The folder of one of the two is a copy of the other's: stop it (jbi node stop), delete identity.json in "
            "its [node] folder, and start it again"
        )
        yield Finding("networks", "failure", f"{name}: another node uses its id", advice)
    elif node and told.id and told.id != node:
        text = f"{name}: another node has its id {node[:8]}, so in the networks it is {told.id[:8]}"
        yield Finding("networks", "warning", text, "Start it again, so that it is so everywhere: jbi node stop, start")
    for trouble in told.troubles[:PEERS_NAMED]:
        yield Finding("networks", "warning", f"{name}: {trouble}", "See its log: jbi node log")


def _of_link(name: str, answer: Answer, link: NetworkStatus, told: NetworksStatus) -> Finding:
    network = f"{name}: network {link.name}"
    if link.trouble:
        advice = f"See ip -br address, and [network.{link.name}] of its configuration; jbi node networks"
        return Finding("networks", "warning", f"{network}: {link.trouble}", advice)
    uptime = number_of(answer.value, "uptime")
    if not link.neighbours and uptime > ALONE_SECONDS:
        text = f"{network} ({link.place}): no other node is heard, up for {lasted(uptime)}"
        return Finding("networks", "warning", text, _lonely(link, told))
    peers = sorted((each for each in told.peers if each.network == link.name), key=lambda each: -each.loss)
    lossy = [each for each in peers if each.loss > LOSS_MUCH]
    if lossy:
        named = ", ".join(map(_shown_loss, lossy[:PEERS_NAMED]))
        more = f", and {counted(len(lossy) - PEERS_NAMED, 'more node')}" if len(lossy) > PEERS_NAMED else ""
        advice = (
            f"They send faster than comes here: [network.{link.name}] rate = BYTES A SECOND there, or receive_buffer "
            "here (sudo sysctl -w net.core.rmem_max=8388608)"
        )
        return Finding("networks", "warning", f"{network} loses of {named}{more}", advice)
    worst = f", {peers[0].loss:.1f} % lost at most" if peers and peers[0].loss else ""
    return Finding("networks", "ok", f"{network}: {counted(link.neighbours, 'node')} heard{worst}")


def _lonely(link: NetworkStatus, told: NetworksStatus) -> str:
    """Advice for a network on which nobody is heard."""
    refused = next((cause for cause in SealFault if cause in told.faults), None)
    if refused is not None:
        return (
            f"What comes is refused ({refused}): all nodes of a network need the same file as [network.{link.name}] "
            "key, or certificates of one authority"
        )
    if link.plugin == "udp":
        return (
            f"Look at another node: the same [network.{link.name}] group and port there, and UDP let through "
            "(sudo ufw allow PORT/udp); where multicast does not go, name the node in peers"
        )
    return f"Look at another node, and name it in [network.{link.name}] peers"


def _shown_loss(peer: PeerStatus) -> str:
    return f"{peer.name or peer.id[:8]} {peer.loss:.0f} %"
