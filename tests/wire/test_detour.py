"""Endpoints of elsewhere that are reached by others of here, under their own names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, UnknownUidError, WireError
from jbi_pubsub.core.wire import ServiceRef, detour
from jbi_pubsub.core.wire.control import ControlClient, ControlServer, exported
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint, Login, Security

pytestmark = pytest.mark.processes


class _Calls:
    @exported
    def answer(self, caller: Caller) -> int:  # noqa: ARG002  # all calls have one
        """What is asked for."""
        return 42


@pytest.fixture
def server() -> Iterator[Endpoint]:
    """A server with one call."""
    control = ControlServer({"calls": _Calls()})
    made = Endpoint("127.0.0.1", 0, name="server", security=Security(), control=control.serve, data=control.serve)
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    yield
    detour.leave()


def asked(*endpoints: str, security: Security | None = None) -> Any:
    """The answer of a server at one of the endpoints."""
    client = ControlClient(ServiceRef("", "calls", endpoints), security or Security(), timeout=5.0)
    try:
        return client.call("answer", int)
    finally:
        client.close()


def test_an_endpoint_of_elsewhere_is_reached_by_one_of_here(server: Endpoint) -> None:
    detour.take("node tent-3", lambda: {"10.9.8.7:4170": server.address, "[fe80::1]:4170": server.address})
    for endpoint in ("10.9.8.7:4170", "jbi://10.9.8.7:4170", "[FE80::1]:4170"):
        assert asked(endpoint) == 42


def test_what_has_the_same_name_here_is_not_meant(server: Endpoint) -> None:
    # Given a detour to another network, and a server here whose address may stand there for somebody else
    detour.take("node tent-3", lambda: {"10.9.8.7:4170": server.address})
    # Expect neither it nor a Unix socket to be reached, but the next endpoint
    for endpoint in (server.address, "unix:///run/jbi/x.sock"):
        with pytest.raises(WireError, match="is not reached through the network of nodes, only node tent-3 itself is"):
            asked(endpoint)
        assert asked(endpoint, "10.9.8.7:4170") == 42
    with pytest.raises(ProtocolError, match="is not HOST:PORT"):
        asked("nowhere")
    # and to be reached when the detour was left
    detour.leave()
    assert asked(server.address) == 42


def test_no_password_is_shown_on_the_way_without_tls(server: Endpoint) -> None:
    # Given a server of elsewhere that is at an address of loopback there
    login = Login("alice", "secret")
    assert Security(login=login).may_show_password("127.0.0.1:4170")
    detour.take("node tent-3", lambda: {"127.0.0.1:4170": server.address})
    # Expect that the way to it is not taken for one within this host
    with pytest.raises(ConfigurationError, match="refusing to show the password"):
        asked("127.0.0.1:4170", security=Security(login=login))
    assert Security(login=login, insecure=True).may_show_password("127.0.0.1:4170")


def test_ways_are_asked_for_anew(server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a detour whose ways change, and are asked for here
    monkeypatch.setattr(detour, "RENEWED_SECONDS", 0.0)
    ways: dict[str, str] = {}

    def ask() -> dict[str, str]:
        assert asked(server.address) == 42
        if not ways:
            raise UnknownUidError("no node tent-3 is heard", hint="Wait")
        return ways

    detour.take("node tent-3", ask)
    with pytest.raises(WireError, match="no way to node tent-3: no node tent-3 is heard"):
        asked("10.9.8.7:4170")
    ways["10.9.8.7:4170"] = server.address
    assert asked("10.9.8.7:4170") == 42
