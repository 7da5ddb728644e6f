"""A mail server that is away is said to whoever runs the delegate: when that begins and ends, and when it stops."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.examples.mailbox import AnyPort
from jbi_pubsub.pad.mail import smtp
from jbi_pubsub.protocol.services import fetch_status

TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """A port that is nobody else's, where nobody listens yet."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


@pytest.fixture
def federation(federation: Any, held: socket.socket) -> Any:
    """The federation, whose mail server has that port."""
    mail = msgspec.structs.replace(federation.config.mail, port=held.getsockname()[1], timeout=0.5, retries=1000)
    federation.config = msgspec.structs.replace(federation.config, mail=mail)
    return federation


class Late(AnyPort):
    """A mail server that takes everything, from when it starts on, at a port that was held for it."""

    def __init__(self, held: socket.socket) -> None:
        super().__init__(self, hostname="127.0.0.1", port=held.getsockname()[1])
        self._held = held

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._held)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: ARG002, N802  # aiosmtpd's
        return "250 OK"


@pytest.fixture
def stderr_of_a_delegate(federation: Any, figures: Any, start: Callable[..., Any]) -> Callable[..., tuple[Any, int]]:
    """stderr_of_a_delegate(option, ...): a delegate's process with three mails for a server that is away."""

    def begin(*options: str) -> tuple[Any, int]:
        port = federation.config.mail.port
        flags = ("--no-multicast", "--locator", federation.lookups[0].address)
        mail = ("--set", f"mail.port={port}", "--set", "mail.timeout=0.5", "--set", "mail.retry_seconds=0.05")
        pad = start(*flags, *mail, "pad", "alpha", "rome", "--drain", "0.3", *options, "--json")
        pad.fact()
        subscriber, publisher = federation.subscriber(), federation.light()
        registration = figures.register(publisher)
        uid = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
        assert subscriber.wait_matched(uid) == 1
        for _ in range(3):
            publisher.publish(registration, figures.figure_1)
        publisher.flush()
        return pad, port

    return begin


@pytest.mark.processes
def test_a_mail_server_that_is_away_is_said_when_it_begins_and_when_the_delegate_stops(
    stderr_of_a_delegate: Callable[..., tuple[Any, int]], eventually: Callable[..., Any]
) -> None:
    # Given a delegate that keeps no mail; When the mail server is away; Expect that to be said, once
    pad, port = stderr_of_a_delegate()
    begins = f"the mail server 127.0.0.1:{port} is away: "
    eventually(lambda: begins in pad.stderr(), what=pad.stderr)
    assert "are lost at a stop without [pad] state" in pad.stderr()
    # When it is stopped; Expect how many mails are lost, why, and what would have kept them
    before = pad.stderr()
    pad.signal(signal.SIGINT)
    assert pad.wait() == 0
    said = pad.stderr().removeprefix(before)
    assert pad.stderr().count("wait for it, and") == 1
    assert "jbi: stopped with 3 objects undelivered, 3 of them by mail" in said
    assert f"jbi: {begins}" in said
    assert "--state FILE" in said


@pytest.mark.processes
def test_mail_that_is_kept_is_said_when_the_delegate_stops(
    stderr_of_a_delegate: Callable[..., tuple[Any, int]], eventually: Callable[..., Any], tmp_path: Any
) -> None:
    # Given a delegate that keeps its mail; When it is stopped; Expect it to say how much waits, and where
    pad, _ = stderr_of_a_delegate("--state", str(tmp_path / "state.db"))
    eventually(lambda: "and survive a stop" in pad.stderr(), what=pad.stderr)
    pad.signal(signal.SIGINT)
    assert pad.wait() == 0
    assert f"jbi: 3 mails waited in {tmp_path / 'state.db'}.mails, to go out after the next start" in pad.stderr()
    assert "undelivered" not in pad.stderr()


@pytest.mark.processes
def test_mail_from_before_is_said_when_the_delegate_starts_and_not_when_it_has_gone_out(
    stderr_of_a_delegate: Callable[..., tuple[Any, int]],
    start: Callable[..., Any],
    federation: Any,
    eventually: Callable[..., Any],
    tmp_path: Path,
    held: socket.socket,
) -> None:
    # Given mail in a delegate's state that a SIGTERM has left there
    state = str(tmp_path / "state.db")
    pad, port = stderr_of_a_delegate("--state", state)
    eventually(lambda: "and survive a stop" in pad.stderr(), what=pad.stderr)
    pad.signal(signal.SIGTERM)
    assert pad.wait() == 0
    assert f"jbi: 3 mails waited in {state}.mails, to go out after the next start" in pad.stderr()
    # When the delegate starts again, and the mail server with it; Expect the mail to be said, and to go out
    controller = Late(held)
    controller.start()
    at = ("--no-multicast", "--locator", federation.lookups[0].address, "--set", f"mail.port={port}")
    again = start(*at, "pad", "alpha", "rome", "--state", state, "--drain", "0.3", "--json")
    address = again.fact()["address"]
    ref = ServiceRef("", "", (address,))
    eventually(lambda: fetch_status(ref, Security(), timeout=60.0)["mailed"] == 3)
    assert f"3 mails wait in {state}.mails from before, the first since 2" in again.stderr()
    controller.stop()
    # When it is stopped; Expect nothing of mail
    again.signal(signal.SIGTERM)
    assert again.wait() == 0
    assert "waited" not in again.stderr()


def test_a_mail_server_that_stays_away_is_said_again_from_time_to_time_while_mail_waits(
    federation: Any,
    figures: Any,
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given that an hour is a twentieth of a second, and mail that waits for a server that is away
    monkeypatch.setattr(smtp, "AWAY_AGAIN_SECONDS", 0.05)
    pad, subscriber, publisher = federation.pad(), federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    # Expect it to be said that it is away, and then that it still is, with what waits and for how long
    eventually(lambda: len([r for r in caplog.records if "is still away: " in r.getMessage()]) == 2)
    said = [r.getMessage() for r in caplog.records if r.name == "jbi_pubsub.mail"]
    assert ["is away: " in line for line in said] == [True, False, False]
    assert said[1].endswith("; 1 mails wait for it, and are lost at a stop without [pad] state")
    assert pad.status()["mail"]["oldest"] > 0.05


def test_a_mail_server_that_comes_back_is_said(
    publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture,
    held: socket.socket,
) -> None:  # fmt: skip
    # Given mail that waits for a server that is away
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(uid) == 1
    publishing.publish(registration, figures.figure_1)
    eventually(lambda: publishing.status()["mail"]["away"])
    # When it is there; Expect the mail to go out, and both to be said
    controller = Late(held)
    controller.start()
    eventually(lambda: publishing.status()["mailed"] == 1)
    eventually(lambda: publishing.status()["mail"]["away"] == "")
    controller.stop()
    said = [r.getMessage() for r in caplog.records if r.name == "jbi_pubsub.mail" and "mail server" in r.getMessage()]
    assert ["is away: " in line for line in said] == [True, False]
    assert said[1].endswith("answers again; 0 mails wait")
