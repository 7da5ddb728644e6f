"""Commands where nothing is there: no lookup service, no result; durable subscriptions that nobody wants any more."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority

from jbi_pubsub.core.config import ArchiveSection, TlsSection
from jbi_pubsub.core.errors import LookupNotFoundError
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer


@pytest.fixture
def archive(federation: Any, tmp_path: Path) -> None:
    """A delegate with one."""
    section = ArchiveSection(folder=str(tmp_path / "archive"))
    federation.config = msgspec.structs.replace(federation.config, archive=section)
    federation.pad("alpha", "rome")


def test_who_does_not_want_to_wait_is_told_of_refused_connections(federation: Any) -> None:
    # Given a client that waits a minute, but a moment where nobody listens; Expect that moment
    section = msgspec.structs.replace(federation.config.lookup, locators=("127.0.0.1:1",), timeout=60.0, refused=0.1)
    community = JoinManager(msgspec.structs.replace(federation.config, lookup=section), name="test")
    federation.stack.callback(community.close)
    begun = time.monotonic()
    with pytest.raises(LookupNotFoundError, match="Connection refused"):
        community.lookup(ServiceTemplate())
    assert time.monotonic() - begun < 30.0


@pytest.mark.parametrize(
    ("name", "told", "cure"),
    [
        ("elsewhere", "shows a certificate for .*elsewhere, not for", "server_names"),
        ("", "TLS: the certificate shown is not valid", r"Check \[tls\] at both ends"),
    ],
)
def test_a_lookup_service_that_tls_keeps_away_is_told_with_its_cure(
    name: str, told: str, cure: str, federation: Any, tmp_path: Path
) -> None:
    # Given a lookup service with a certificate for another name, or of another authority
    authority = Authority(tmp_path / "ours")
    parties = (authority if name else Authority(tmp_path / "theirs")).issue(name or "localhost"), authority.issue("us")
    theirs, ours = (TlsSection(certificate=each.certificate, key=each.key, ca=each.ca) for each in parties)
    section = msgspec.structs.replace(federation.config.lookup, port=0, locators=())
    server = LookupServer(msgspec.structs.replace(federation.config, lookup=section, tls=theirs), Registrar())
    server.start()
    federation.stack.callback(server.stop)
    # When it is looked for, expect why it is not heard, and what to do
    asked = msgspec.structs.replace(section, locators=(server.address,), timeout=3.0)
    community = JoinManager(msgspec.structs.replace(federation.config, lookup=asked, tls=ours), name="test")
    federation.stack.callback(community.close)
    with pytest.raises(LookupNotFoundError, match=f"{told}.*{cure}"):
        community.lookup(ServiceTemplate())


@pytest.mark.parametrize(
    "arguments",
    [
        ("services",),
        ("query", "--type", "x"),
        ("subscribe", "--type", "x", "--timeout", "0.5"),
        ("--node", "tent-3", "status"),
        ("--node", "tent-3", "node", "status"),
        ("--node", "tent-3", "node", "stop"),
        ("--node", "tent-3", "subscribe", "--type", "x", "--timeout", "0.5"),
        ("domain", "status"),
        ("top", "--once"),
        ("trader", "types"),
        ("trader", "query", "x", "--timeout", "50"),
    ],
    ids=" ".join,
)
def test_refused_connections_are_told_soon(
    arguments: tuple[str, ...], said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given commands that look, and one whose --timeout is shorter than the wait for a lookup service
    monkeypatch.setattr("jbi_pubsub.cli.app.REFUSED_SECONDS", 0.2)
    monkeypatch.setattr("jbi_pubsub.cli.settings.FOUND_SECONDS", 0.2)
    monkeypatch.setattr("jbi_pubsub.cli.trader.FOUND_SECONDS", 0.2)
    answer = said("--no-multicast", "--locator", "127.0.0.1:1", "--set", "lookup.timeout=60", *arguments)
    assert answer.code == 1
    waited = re.search(r"within ([\d.]+) s", answer.err)
    assert waited is not None
    assert float(waited[1]) < 30.0
    assert "Connection refused" in answer.err


@pytest.mark.usefixtures("archive")
def test_a_query_that_contradicts_the_schema_is_told_why(
    federation: Any, figures: Any, said: Callable[..., Any], flags: list[str]
) -> None:
    # Given an archive with an object; When its type has no such element, expect the nearest, and else nothing
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    publisher.publish(registration, figures.figure_1)
    publisher.flush(20)
    answer = said(*flags, "query", "--type", "Intel_Imagery", "--predicate", "//latt > 3", "--json")
    why = "jbi: //latt can't match: there is no element latt below the document; did you mean lat?"
    assert (answer.code, answer.out, answer.err.splitlines()) == (0, "", [why])
    answer = said(*flags, "query", "--type", "Intel_Imagery", "--predicate", "//lat > 89", "--json")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


@pytest.mark.usefixtures("archive")
def test_a_durable_subscription_that_another_process_has_is_told_once(
    federation: Any, said: Callable[..., Any], flags: list[str], eventually: Callable[..., Any]
) -> None:
    # Given a durable subscription that a process has open
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="Intel_Imagery", durable="fusion-1")
    assert subscriber.wait_matched(uid) == 1
    # When it is opened again; Expect an error at once, in one line that says what to do
    begun = time.monotonic()
    answer = said(
        *flags, "subscribe", "--type", "Intel_Imagery", "--durable", "fusion-1", "--count", "1", "--timeout", "300"
    )
    assert (answer.code, answer.out) == (1, "")
    assert time.monotonic() - begun < 60.0
    (told,) = [line for line in answer.err.splitlines() if "none so far" not in line]
    assert told.startswith("jbi: durable subscription 'fusion-1' is open in another process, 'subscriber-")
    assert told.endswith("'. Close it there first, or take another name")


@pytest.mark.usefixtures("archive")
def test_a_durable_subscription_is_ended_by_its_name(
    federation: Any, said: Callable[..., Any], flags: list[str], eventually: Callable[..., Any]
) -> None:
    # Given a durable subscription that a process has open
    subscriber = federation.subscriber()
    subscriber.register_subscriber(type_name="Intel_Imagery", durable="fusion-1")

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(said(*flags, "subscriptions", "--json").out)
        return found

    ending = ("subscriptions", "end", "fusion-1", "--json")
    eventually(listed)
    # When it is ended, expect to be asked, and to be told that it is open
    answer = said(*flags, *ending)
    assert (answer.code, "Say --yes" in answer.err) == (2, True)
    answer = said(*flags, *ending, "--yes")
    assert (answer.code, "'fusion-1' is open in a process of" in answer.err) == (1, True)
    # When the process has ended, expect the archive to forget it, once
    subscriber.close()
    eventually(lambda: not listed()[0]["open"])
    answer = said(*flags, *ending, "--yes")
    assert (answer.code, json.loads(answer.out)) == (0, {"durable": "fusion-1", "archives": 1})
    assert listed() == []
    answer = said(*flags, *ending, "--yes")
    assert (answer.code, "no archive knows a durable subscription 'fusion-1'" in answer.err) == (1, True)
