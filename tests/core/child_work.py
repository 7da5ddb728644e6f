"""What the tests of child processes run in them."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

from jbi_pubsub.core.errors import SchemaError


def echo(data: bytes) -> bytes:
    print("nobody reads this")  # noqa: T201  # that is what is tried
    return data


def environment(_data: bytes) -> bytes:
    return "\n".join(f"{name}={value}" for name, value in os.environ.items()).encode()


def spin(_data: bytes) -> bytes:
    while True:
        pass


def grow(_data: bytes) -> bytes:
    kept = []
    while True:
        kept.append(bytes(1 << 20))


def rest(data: bytes) -> bytes:
    time.sleep(float(data))
    return b"rested"


def crash(_data: bytes) -> bytes:
    os.abort()


def fail(_data: bytes) -> bytes:
    raise ValueError("that was not expected")


def refuse(_data: bytes) -> bytes:
    raise SchemaError("no good", hint="Mend it", line=3)


def pid(data: bytes) -> bytes:
    """Write the child's process id where the test looks for it, then go on for ever."""
    Path(data.decode()).write_text(f"{os.getpid()} ", encoding="ascii")
    threading.Event().wait()
    return b""


def full(_data: bytes) -> bytes:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
