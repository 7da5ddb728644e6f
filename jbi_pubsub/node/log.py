"""Where a node's log goes: a file or stderr, the last lines in memory, errors to syslog and to the journal.

Nothing here waits or raises: what an output does not take is counted, and shown in `status`. Level and outputs may be
changed while the node runs, but for the file.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.node_sections import LogSection
from jbi_pubsub.core.wire.address import split_endpoint

LINES: Final = 1_000
"""Lines of the log that are kept for who asks."""
LINE_MOST: Final = 2_000
"""Characters of one of them, and of what syslog and the journal are told."""
JOURNAL: Final = "/run/systemd/journal/socket"
"""Socket of journald's native protocol (systemd, JOURNAL_NATIVE_PROTOCOL)."""
IDENTIFIER: Final = "jbi-node"
ASK_SECONDS: Final = 60.0
"""Until the address of a host is asked for again that nobody knew."""
DAEMON: Final = 3
"""Facility of syslog (RFC 5424, section 6.2.1)."""
SYSLOG_PORT: Final = 514
LOGGER: Final = "jbi_pubsub"
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def severity(level: int) -> int:
    """Severity of syslog (RFC 5424, section 6.2.1)."""
    return 2 if level >= logging.CRITICAL else 3 if level >= logging.ERROR else 4 if level >= logging.WARNING else 6


class _LineFormatter(logging.Formatter):
    """A line a record, without what a terminal would obey: peers have a say in what is logged."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class _MemoryHandler(logging.Handler):
    """The last lines, numbered from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.lines: deque[tuple[int, str]] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self.count += 1
            self.lines.append((self.count, line[:LINE_MOST]))


class _DatagramHandler(logging.Handler):
    """Errors, each a datagram to a local socket or a host."""

    def __init__(self, address: str, encode: Callable[[logging.LogRecord, str], bytes]) -> None:
        super().__init__(logging.ERROR)
        self.lost = 0
        self._encode = encode
        self._host = None if address.startswith("/") else split_endpoint(address, default_port=SYSLOG_PORT)
        self._out: tuple[socket.socket, Any] | None = None
        if self._host is None:
            self._out = _socket(socket.AF_UNIX), address
        self._ask_at = -ASK_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        try:
            out, to = self._out or self._found()
            out.sendto(self._encode(record, self.format(record)[:LINE_MOST]), to)
        except (OSError, ValueError, TypeError):
            # nobody listens, it does not keep up, or that is no name of a host (the last two); telling the log of it
            # would come here again
            self.lost += 1

    def _found(self) -> tuple[socket.socket, Any]:
        """The host, by its name, which may take its time: asked for once, and if nobody knows it not at each line."""
        assert self._host is not None
        if time.monotonic() < self._ask_at + ASK_SECONDS:
            raise OSError("asked a moment ago")
        self._ask_at = time.monotonic()
        family, *_, to = socket.getaddrinfo(*self._host, type=socket.SOCK_DGRAM)[0]
        self._out = made = _socket(family), to
        return made

    def close(self) -> None:
        if self._out is not None:
            self._out[0].close()
        super().close()


def _socket(family: int) -> socket.socket:
    """For datagrams; it never waits."""
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _syslog(record: logging.LogRecord, text: str) -> bytes:
    """RFC 3164's form, which every syslog takes."""
    line = text.replace("\n", " ")
    return f"<{DAEMON * 8 + severity(record.levelno)}>{IDENTIFIER}[{os.getpid()}]: {line}".encode()


def _journal(record: logging.LogRecord, text: str) -> bytes:
    line = text.replace("\n", " ")
    return f"PRIORITY={severity(record.levelno)}\nSYSLOG_IDENTIFIER={IDENTIFIER}\nMESSAGE={line}\n".encode()


class _FileHandler(logging.handlers.RotatingFileHandler):
    """A file that does not grow for ever; what a full disk does not take is counted."""

    lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # logging's name
        self.lost += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what the disk has not taken until now it does not take
            super().close()


class NodeLog:
    """The log of this process, from now until `close`."""

    def __init__(self, section: LogSection) -> None:
        """Raises ConfigurationError, StorageError."""
        self.section = section
        self._lock = threading.Lock()  # covers section and _told
        self._logger = logging.getLogger(LOGGER)
        self._was = self._logger.level, self._logger.propagate
        self._memory = _MemoryHandler()
        self._told: list[_DatagramHandler] = []
        try:
            self._out: logging.Handler = (
                _FileHandler(section.file, maxBytes=section.file_bytes, backupCount=2, encoding="utf-8")
                if section.file
                else logging.StreamHandler(sys.stderr)
            )
        except (OSError, ValueError) as exc:  # ValueError: a zero byte
            raise StorageError(
                f"[log] file {section.file}: {getattr(exc, 'strerror', None) or exc}",
                hint="Name one that can be written",
            ) from exc
        for handler in (self._out, self._memory):
            handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            self._logger.addHandler(handler)
        self._logger.propagate = False
        try:
            self._apply(section)
        except ConfigurationError:
            self.close()
            raise

    def set(self, section: LogSection) -> None:
        """Another level, other outputs. Raises ConfigurationError: those of before stay."""
        if (section.file, section.file_bytes) != (self.section.file, self.section.file_bytes):
            raise ConfigurationError(
                "the log's file stays while a node runs", hint="Set [log] file, and start it again"
            )
        with self._lock:
            self._apply(section)

    def _apply(self, section: LogSection) -> None:
        made: list[_DatagramHandler] = []
        if section.syslog:
            made.append(_DatagramHandler(section.syslog, _syslog))
        if section.journald:
            if not Path(JOURNAL).is_socket():
                raise ConfigurationError(f"there is no systemd journal here: no {JOURNAL}", key="log.journald")
            made.append(_DatagramHandler(JOURNAL, _journal))
        for handler in made:
            handler.setFormatter(_LineFormatter("%(levelname)s %(name)s: %(message)s"))
            self._logger.addHandler(handler)
        for handler in self._told:
            self._logger.removeHandler(handler)
            handler.close()
        self._told = made
        self._logger.setLevel(LEVELS[section.level])
        self.section = section

    def lines(self, after: int, most: int) -> tuple[tuple[int, str], ...]:
        """The last `most` lines with a number above `after`."""
        with self._memory.lock or threading.RLock():
            return tuple([line for line in self._memory.lines if line[0] > after][-max(0, most) :])

    def status(self) -> dict[str, object]:
        """Plain data."""
        lost = sum(each.lost for each in self._told) + getattr(self._out, "lost", 0)
        return {**msgspec.structs.asdict(self.section), "lost": lost}

    def close(self) -> None:
        """The log is what it was."""
        for handler in (self._out, self._memory, *self._told):
            self._logger.removeHandler(handler)
            handler.close()
        self._logger.setLevel(self._was[0])
        self._logger.propagate = self._was[1]
