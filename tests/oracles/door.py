"""A `jbi` on the PATH that is forked from a process which has imported the library: half a second less each."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

KNOCK: Final = """#!{python} -IS
import json, os, signal, socket, sys
passed = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, passed)
door = socket.socket(socket.AF_UNIX)
door.connect({address!r})
socket.send_fds(door, [b"x"], [0, 1, 2])
door.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
pid = int.from_bytes(door.recv(4), "big")
def pass_on(number, _):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
for each in passed:
    signal.signal(each, pass_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
code = door.recv(1)[0]
if code > 128 + 64:  # a signal
    if 256 - code != signal.SIGKILL:
        signal.signal(256 - code, signal.SIG_DFL)
    os.kill(os.getpid(), 256 - code)
os._exit(code)
"""
"""What it is: hands to the door what a process gets from who starts it, passes signals on, and ends as the other."""
COMMAND: Final = "import os, sys; os.chdir({!r}); sys.argv[:] = {!r}; from jbi_pubsub.cli import main; main()"


class Door:
    """Starts a process, by `fork`, for each who knocks. Threads, until it is closed."""

    def __init__(self, folder: Path, fork: Callable[..., Any]) -> None:
        self._fork = fork
        self._jbi = str(Path(sys.executable).with_name("jbi"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "door"))
        self._listener.listen(64)
        (folder / "jbi").write_text(KNOCK.format(python=sys.executable, address=str(folder / "door")))
        (folder / "jbi").chmod(0o755)
        self._threads = [threading.Thread(target=self._open, name="door")]
        self._threads[0].start()

    def close(self) -> None:
        """Nobody comes any more, and who came has ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop(0).join()
        self._listener.close()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                came, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(came,), name="door"))
                self._threads[-1].start()

    def _serve(self, came: socket.socket) -> None:
        with came, came.makefile() as said, contextlib.suppress(BrokenPipeError):
            _, handles, _, _ = socket.recv_fds(came, 1, 3)
            arguments, folder, environment = json.loads(said.readline())
            streams = [Connection(handle) for handle in handles]
            process = self._fork(streams, environment, COMMAND.format(folder, [self._jbi, *arguments]))
            for stream in streams:
                stream.close()
            came.sendall(process.pid.to_bytes(4, "big"))
            process.join()
            came.sendall(bytes([process.exitcode % 256]))
