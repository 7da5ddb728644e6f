"""Nodes with access rules on a network: their own way between network and delegate is nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority
from cryptography import x509

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.config import Config, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.publisher.relay import RelayPublisher

from .conftest import NodesOnNetworks, of
from .test_networks import TYPE, Publisher

RULES = """
[[access]]
address = "127.0.0.0/8"
action = ["connect", "publish", "subscribe", "query", "persist", "status"]
"""


def _with_rules(config: Config, folder: Path) -> Config:
    file = folder / "policy.toml"
    file.write_text(RULES)
    file.chmod(0o600)
    return msgspec.structs.replace(config, policy=PolicySection(file=str(file)))


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "tls"])
def test_nodes_with_rules_exchange_objects_though_nobody_may_bridge(
    nodes: NodesOnNetworks,
    figures: Any,
    fixtures: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
    is_sealed: bool,
) -> None:
    # Given two nodes, one with an archive, whose rules let nobody bridge
    config = _with_rules(fixtures.test_config(), tmp_path)
    if is_sealed:
        authority = Authority(tmp_path / "certs")
        config = msgspec.structs.replace(
            config, tls=authority.issue("party", names=(x509.IPAddress(ip_address("127.0.0.1")),))
        )
    alpha, bravo = nodes.start("alpha", config=config, archive=True), nodes.start("bravo", config=config)
    publisher = Publisher(alpha, figures, persist=True)
    # When objects are published at one, expect them at the other
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 5)
        came = [int(bytes(subscriber.receive(subscription, timeout=30.0).payload)) for _ in range(5)]
        assert came == [1, 2, 3, 4, 5]
        # And a query at the other to find them
        eventually(lambda: len(list(subscriber.query(TYPE, timeout=20.0))) == 5, timeout=20.0)
    publisher.adapter.close()
    assert not bravo.networks().troubles
    # And expect anybody else who wants to bridge to be refused at both, also one who says that he is the node
    schema = SchemaBundle(
        figures.schema.name, ((figures.schema.name, figures.schema.read_bytes()),), type=TypeName("x")
    )
    request = PublisherRequest(schema, ())
    for node in (alpha, bravo):
        client = msgspec.structs.replace(of(node).client, user="the node")
        with RelayPublisher(msgspec.structs.replace(of(node), client=client), name="bridge-x", bridge="x") as relay:
            at = relay.connect_to_delegate("node", node.name)
            with pytest.raises(AccessDeniedError, match="bridge"):
                relay.register_relayed(at, "registration-x", TypeName("x"), request, ("far",))
