"""`jbi web` as a command: what it says when it can't start, TLS, and the commands of its documentation."""

from __future__ import annotations

import http.client
import importlib.util
import re
import shlex
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from jbi_pubsub.cli.app import run
from jbi_pubsub.core.config import TlsSection, WebSection
from jbi_pubsub.web.server import WebServer

PAGE = (Path(__file__).parent.parent.parent / "docs" / "console.md").read_text()


def _block(name: str) -> list[str]:
    found = re.search(rf"<!-- test: {name} -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1).strip().splitlines()


def _said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code, and the one line on stderr; nothing is on stdout."""
    code = run(list(arguments))
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.strip().splitlines()
    return code, line


def test_what_it_cannot_do_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, line = _said(capsys, "web", "--port", port)
    assert code == 1
    assert f"port {port} on 127.0.0.1 is taken" in line
    for flags in ((), ("--insecure",)):
        code, line = _said(capsys, *flags, "web", "--host", "0.0.0.0", "--port", "0")
        assert code == 2
        assert "refusing to listen on 0.0.0.0 without TLS" in line
        assert "jbi certs" in line
        assert "--insecure" not in line  # it does not help here
    code, line = _said(capsys, "--set", "web.hots=x", "web")
    assert code == 2
    assert "Did you mean web.host?" in line
    # Without the extra
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "nicegui" else found(name))
    code, line = _said(capsys, "web")
    assert code == 2
    assert "pip install 'jbi-pubsub[web]'" in line


@pytest.mark.processes
def test_the_commands_of_its_page_run(start: Callable[..., Any], world: str) -> None:
    # Given a lookup service at some port instead of 4160
    address = start("--no-multicast", "--group", world, "lookup", "--port", "0", "--json").fact()["address"]
    begun = []
    for line in _block("start"):
        [jbi, *arguments] = shlex.split(line.replace("127.0.0.1:4160", address))
        assert jbi == "jbi"
        port = [] if "--port" in arguments else ["--port", "0"]
        begun.append((start("--no-multicast", "--group", world, *arguments, *port, "--json"), "--admin" in arguments))
    # Expect each to say where it is, to end in order, and to leave nothing behind
    for process, admin in begun:
        facts = process.fact()
        assert facts["ready"] == "web"
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/enter\?token=[\w-]{43}", facts["url"])
        assert facts["admin"] is admin
        process.signal(signal.SIGTERM if admin else signal.SIGINT)
    for process, _ in begun:
        assert process.communicate(30.0) == ("", "")
        assert process.returncode == 0
    assert not Path(".nicegui").exists()


def test_the_extra_of_its_page_is_there() -> None:
    [line] = _block("install")
    assert line == "pip install 'jbi-pubsub[web]'"
    setup = (Path(__file__).parent.parent.parent / "setup.cfg").read_text()
    assert "nicegui" in setup.split("\nweb =\n")[1].split("\n\n")[0].split(" =\n")[0]


def test_with_tls_it_shows_its_certificate_and_listens_anywhere(fixtures: Any, tmp_path: Path) -> None:
    # Given a certificate of a deployment's authority
    authority = trustme.CA()
    issued = authority.issue_cert("console.example.org")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key", "ca")}
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    config = msgspec.structs.replace(
        fixtures.test_config(), tls=TlsSection(**files), web=WebSection(host="0.0.0.0", port=0)
    )
    server = WebServer(config)
    server.start()
    try:
        # Expect https, with that certificate, without one of the browser's; a cookie for https alone
        context = ssl.create_default_context()
        authority.configure_trust(context)
        assert server.url.startswith(f"https://127.0.0.1:{server.port}/enter")
        with socket.create_connection(("127.0.0.1", server.port), 10.0) as sock:
            line = context.wrap_socket(sock, server_hostname="console.example.org")
            path = server.url.removeprefix(server.address)
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = http.client.HTTPResponse(line)
            answer.begin()
            assert answer.status == 200
            assert "; Secure" in str(answer.headers["Set-Cookie"])
            answer.read()
            line.unwrap().close()  # both ends say goodbye
    finally:
        server.stop()
