"""Discovery by mDNS stays on the interfaces it is given."""

from __future__ import annotations

import socket
import uuid
from typing import Any

import msgspec
import psutil
import pytest

from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE


@pytest.fixture
def multicast(federation: Any) -> Any:
    """A federation that has no locators, only mDNS on loopback, in a group of its own."""
    alone = msgspec.structs.replace(
        federation.config.lookup,
        locators=(),
        multicast=True,
        interfaces=("127.0.0.1",),
        groups=(f"test-{uuid.uuid4().hex[:8]}",),
    )
    federation.config = msgspec.structs.replace(federation.config, lookup=alone)
    return federation


@pytest.mark.row("C-03")
def test_everybody_finds_the_lookup_service_over_mdns_on_loopback(multicast: Any) -> None:
    # Given a lookup service, and a delegate, that know no locator
    config = multicast.config
    server = multicast.lookup()
    multicast.config = config  # without the locator of that server
    multicast.pad()
    community = JoinManager(config, name="finder")
    multicast.stack.callback(community.close)

    # Expect that the delegate registers, and is found
    found = community.watch(ServiceTemplate(types=(PAD_TYPE,))).wait(1, 15.0)
    assert len(found) == 1
    assert len(community.sessions()) == 1
    assert server.status()["items"] == 1


@pytest.mark.row("C-03")
def test_no_socket_is_bound_beyond_loopback(multicast: Any) -> None:
    # Given a lookup service that announces itself on loopback, and a client that has found it so
    config = multicast.config
    multicast.lookup()
    community = JoinManager(config, name="finder")
    multicast.stack.callback(community.close)
    cache = community.watch(ServiceTemplate())
    assert community.wait_watching(cache, 15.0) == 1

    # Expect that no socket of this process is bound to, or connected with, anything but loopback; the one that hears
    # multicast is bound to the mDNS port of every address (as on any host: binding it elsewhere would deafen it) and
    # never sends, the ones that send are bound to loopback
    strangers = [
        connection
        for connection in psutil.Process().net_connections()
        if not (connection.type == socket.SOCK_DGRAM and connection.laddr.port == 5353 and not connection.raddr)
        for address in (connection.laddr, connection.raddr)
        if address and not address.ip.startswith(("127.", "::1"))
    ]
    assert strangers == []
