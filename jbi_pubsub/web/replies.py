"""Answers of HTTP servers, small or large, and errors as answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import JbiError

from .gate import Send
from .operations import JSON
from .problem import PROBLEM, RETRY_SECONDS, problem

PART: Final = 256 << 10
"""Bytes of a large answer that are written at a time."""
SAFE: Final = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'; sandbox"))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is written at once."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    kind: bytes = JSON.encode()

    async def write(self, send: Send) -> None:
        """Hand it to the connection, in parts of PART bytes."""
        length = (b"content-length", str(len(self.body)).encode())
        own = [(b"content-type", self.kind)] if self.status != 204 else []
        headers = [*own, length, (b"cache-control", b"no-store"), *SAFE, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for begin in range(0, len(self.body) - PART, PART):
            await send({"type": "http.response.body", "body": self.body[begin : begin + PART], "more_body": True})
            await asyncio.sleep(0)  # for the transport to write it: only then it is known whether the client takes it
        last = (max(1, len(self.body)) - 1) // PART * PART
        await send({"type": "http.response.body", "body": self.body[last:]})


def json_reply(status: int, value: Any) -> Reply:
    """A struct as an answer."""
    return Reply(status, msgspec.json.encode(value))


def problem_reply(
    error: JbiError, status: int | None = None, headers: Iterable[tuple[str, str]] = (), title: str = ""
) -> Reply:
    """An error as an answer, with `status` and `title` instead of those of its class."""
    told = problem(error, status, title)
    if told.status in (429, 503):
        headers = (*headers, ("retry-after", str(RETRY_SECONDS)))
    encoded = tuple((name.encode(), value.encode()) for name, value in headers)
    return Reply(told.status, msgspec.json.encode(told), encoded, PROBLEM.encode())


class RefusedError(Exception):
    """An error with a status, and maybe a title, of its own."""

    def __init__(
        self, status: int, error: JbiError, headers: Iterable[tuple[str, str]] = (), *, title: str = ""
    ) -> None:
        super().__init__(str(error))
        self.reply = problem_reply(error, status, headers, title)


class GoneError(Exception):
    """The client has gone: nobody is to be told anything."""
