"""A screen that refreshes without flicker, and is put back as it was: for `--watch` and `jbi top`.

What is drawn goes out in one write, over the old picture, and only what is left of it is emptied: nothing is blank in
between. It is the terminal's other screen (xterm's 1049), so that the screen before comes back. Keys are read one
by one, without echo; Ctrl-C and Ctrl-Z stay what they are. However a command ends, by an error and by SIGTERM too, and
while it is stopped, the terminal is as it was. In the background nothing is drawn.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any, Final, Self

from .show import cut, places

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_REVERSE, _PLAIN = "\x1b[7m", "\x1b[0m"
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know these (synchronized output) show at once what is between; others pass over them."""
_NAMED: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[Z": "left", "\t": "right",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b": "escape",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
"""A key as a terminal sends it: a character, or a sequence (ECMA-48, 5.4; with O: keys in application mode)."""
_KEY_BYTES: Final = 64
"""Read at once; a key that is held down sends some."""
LOGGED_MOST: Final = 100
"""Log records that are kept until the screen is left."""


def is_screen() -> bool:
    """Whether stdout is a terminal that knows more than lines."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """The terminal's other screen while the `with` lasts; of the main thread."""

    def __init__(self, *, keys: bool = False) -> None:
        self._keys = sys.stdin.fileno() if keys and sys.stdin.isatty() else None
        self._settings: list[Any] = []
        self._pressed: deque[str] = deque()
        self._held = _DeferredRecords()
        self._handlers: list[logging.Handler] = []
        self._taken = False
        self.was_away = False
        """Whether what is shown has to be drawn again: we were stopped, or the terminal has another size."""
        self._before: dict[signal.Signals, Any] = {}
        self._woken, self._wake = os.pipe()  # by a handler: a wait ends
        os.set_blocking(self._wake, False)

    def __enter__(self) -> Self:
        if self._keys is not None:
            self._settings = termios.tcgetattr(self._keys)
        for number, handler in (
            (signal.SIGTSTP, self._stop), (signal.SIGCONT, self._go_on), (signal.SIGWINCH, self._sized),
        ):  # fmt: skip
            self._before[number] = signal.signal(number, handler)
        root = logging.getLogger()
        self._handlers, root.handlers = root.handlers, [self._held]
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        logging.getLogger().handlers = self._handlers
        for record in self._held.records:
            for handler in self._handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._wake)

    @property
    def width(self) -> int:
        """Places in a line, now."""
        return shutil.get_terminal_size().columns

    @property
    def height(self) -> int:
        """Lines, now."""
        return shutil.get_terminal_size().lines

    def show(self, lines: Sequence[str], *, bars: Collection[int] = ()) -> None:
        """These lines, of printable text, instead of the old ones: as many as there is room for, cut at the edge.
        Those whose numbers are in `bars` stand out."""
        self._take()
        if not self._taken:
            return
        self.was_away = False
        width, height = self.width, self.height
        if len(lines) > height:
            more = len(lines) - height + 1
            lines = [*lines[: height - 1], f"({more} more lines: a higher terminal shows them)"]
        drawn = []
        for number, line in enumerate(lines):
            text = cut(line, width)
            rest = "" if places(text) >= width else _REST_OF_LINE  # in the last place it would take the last character
            drawn.append(f"{_REVERSE}{text:{width}}{_PLAIN}" if number in bars else text + rest)
        below = f"\r\n{_BELOW}" if len(lines) < height else ""
        self._write(_BEGIN_UPDATE + _HOME + "\r\n".join(drawn) + below + _END_UPDATE)

    def wait(self, seconds: float) -> str:
        """The next key within `seconds`: its character, or "up", "down", "left", "right", "page up", "page down",
        "escape". "" for none; a new size of the terminal, or going on after a stop, ends the wait as well."""
        if self._pressed:
            return self._pressed.popleft()
        sources = [self._woken] if self._keys is None else [self._woken, self._keys]
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        if self._woken in ready:
            os.read(self._woken, _KEY_BYTES)
            self.was_away = True
            return ""
        if not ready:
            return ""
        assert self._keys is not None
        pressed = os.read(self._keys, _KEY_BYTES).decode(errors="replace")
        if not pressed:
            raise KeyboardInterrupt  # the terminal is gone
        self._pressed.extend(keys_in(pressed))
        return self._pressed.popleft()

    def _take(self) -> None:
        if self._taken or not _is_in_foreground():
            return
        self._taken = True  # first: whatever comes now is put back
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._write(_ENTER)

    def _give_back(self) -> None:
        if not self._taken:
            return
        self._taken = False
        self._write(_LEAVE)
        if self._keys is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._settings)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # here we stand still, until SIGCONT; without a shell to go on in, not at all
        signal.signal(number, self._stop)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self._take()
        self._sized(number, frame)

    def _sized(self, _number: int, _frame: FrameType | None) -> None:
        try:
            os.write(self._wake, b".")
        except BlockingIOError:
            return  # it is woken already, many times

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class _DeferredRecords(logging.Handler):
    """Handler of records that would stand across the screen: they are told behind it, the last LOGGED_MOST."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=LOGGED_MOST)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def keys_in(text: str) -> list[str]:
    """The keys that a terminal has sent, by their characters or names."""
    return [_NAMED.get(key.replace("\x1bO", "\x1b["), key) for key in _KEY.findall(text)]


def _is_in_foreground() -> bool:
    """Whether the terminal is ours now: who writes its settings from the background is stopped."""
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except OSError:
        return True  # not our terminal by the system's books: nobody else's either
