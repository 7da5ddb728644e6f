"""A delegate that can't be opened leaves nothing behind: no port, no thread or job, no file held."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, PortInUseError, StorageError
from jbi_pubsub.pad.server.server import DisseminationServer


@pytest.fixture
def taken() -> Any:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def _config(federation: Any, tmp_path: Path, **metrics: int) -> Config:
    config: Config = federation.config
    return msgspec.structs.replace(
        config,
        pad=msgspec.structs.replace(config.pad, state=str(tmp_path / "pad.db")),
        metrics=msgspec.structs.replace(config.metrics, **metrics),
        qos=msgspec.structs.replace(config.qos, mode="on"),
    )


def _open(config: Config) -> DisseminationServer:
    return DisseminationServer(config, TypeRepository(), characteristics=("alpha", "rome"))


def _fails(config: Config, error: type[JbiError], left_over: Any) -> None:
    with pytest.raises(error):
        _open(config)
    assert [name for name in left_over.names() if not name.startswith("lookup")] == []  # the lookup service's own


def test_a_delegate_whose_metrics_port_is_taken(federation: Any, tmp_path: Path, taken: int, left_over: Any) -> None:
    # Given a port that is taken, expect the delegate that is to show its metrics there not to be opened
    _fails(_config(federation, tmp_path, port=taken), PortInUseError, left_over)
    # Expect its files, which one process at a time may have, to be free for the next one
    server = _open(_config(federation, tmp_path))
    server.start()
    server.stop(0.1)


def test_a_delegate_whose_mail_file_is_damaged(federation: Any, tmp_path: Path, left_over: Any) -> None:
    config = _config(federation, tmp_path)
    mails = tmp_path / "pad.db.mails"
    mails.write_bytes(b"this is not a database, and long enough to show it" * 100)
    _fails(config, StorageError, left_over)
    mails.unlink()
    server = _open(config)
    server.start()
    server.stop(0.1)
