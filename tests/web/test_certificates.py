"""Certificates of HTTP servers: renewed while they run, and no good when they start."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import Config, TlsSection, WebSection
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.node_sections import GatewaySection
from jbi_pubsub.core.wire import credentials
from jbi_pubsub.trust.authority import Authority
from jbi_pubsub.web.gateway import Gateway
from jbi_pubsub.web.server import HttpServer, WebServer

YEAR = 365 * 86_400.0

both = pytest.mark.parametrize("kind", [WebServer, Gateway])


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """An authority's folder."""
    Authority.init(tmp_path / "certs", "test", now=time.time())
    return tmp_path / "certs"


def issue(certs: Path, name: str, role: Any = "server", *, now: float) -> None:
    with Authority.opened(certs) as authority:
        authority.issue(name, role, ["127.0.0.1"] if role == "server" else (), now=now)


@pytest.fixture
def config(fixtures: Any, certs: Path) -> Callable[[str], Config]:
    """The configuration of a party."""

    def made(name: str) -> Config:
        return msgspec.structs.replace(
            fixtures.test_config(), tls=TlsSection(folder=str(certs / name)), web=WebSection(port=0),
            gateway=GatewaySection(port=0),
        )  # fmt: skip

    return made


def shown(server: HttpServer, certs: Path, name: str) -> int:
    """Serial number of the certificate that it shows to a browser that asks for `name`; an address is not said."""
    context = ssl.create_default_context(cafile=str(certs / "authority" / "ca.pem"))
    with (
        socket.create_connection(("127.0.0.1", server.port), 20.0) as sock,
        context.wrap_socket(sock, server_hostname=name) as line,
    ):
        return int((line.getpeercert() or {})["serialNumber"], 16)


@both
def test_a_renewed_certificate_is_shown_without_a_restart(
    kind: type[WebServer | Gateway],
    config: Callable[[str], Config],
    certs: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
) -> None:
    # Given a server with a certificate, which browsers see
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.1)
    issue(certs, "site", now=time.time())
    server = kind(config("site"))
    server.start()
    try:
        before = shown(server, certs, "127.0.0.1")
        # When it is renewed; Expect the new one to be shown, whether the browser says a name or none
        with Authority.opened(certs) as authority:
            renewed = authority.renew("site", now=time.time()).certificate.serial
        assert renewed != before
        for name in ("127.0.0.1", "site"):
            eventually(lambda name=name: shown(server, certs, name) == renewed)
        # When the files are of another key; Expect that certificate
        issue(certs, "next", now=time.time())
        for file in ("certificate.pem", "key.pem"):
            (certs / "site" / file).write_bytes((certs / "next" / file).read_bytes())
        eventually(lambda: shown(server, certs, "127.0.0.1") != renewed)
        renewed = shown(server, certs, "next")
        # When the file is damaged; Expect that to be said, and the certificate to be shown still
        (certs / "site" / "certificate.pem").write_text("damaged")
        eventually(lambda: shown(server, certs, "next") == renewed and "files stay in force" in caplog.text)
    finally:
        server.stop()


@both
def test_a_certificate_that_is_no_good_is_no_start(
    kind: type[WebServer | Gateway], config: Callable[[str], Config], certs: Path
) -> None:
    # Given certificates that have expired, are not for servers, or are revoked
    issue(certs, "old", now=time.time() - YEAR)
    issue(certs, "client", "client", now=time.time())
    issue(certs, "lost", now=time.time())
    with Authority.opened(certs) as authority:
        authority.revoke("lost", now=time.time())
    # When a server starts with one; Expect the reason
    for name, why in (("old", "expired"), ("client", "purpose"), ("lost", "revoked")):
        with pytest.raises(ConfigurationError, match=why):
            kind(config(name))
