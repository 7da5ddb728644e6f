"""The mail server: connections to it, what it answers, and whether it is there. The only aiosmtplib."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import aiosmtplib

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.wire.address import is_loopback
from jbi_pubsub.pad.mail.outbox import Refused

log = logging.getLogger("jbi_pubsub.mail")
T = TypeVar("T")

AWAY_SECONDS: Final = 1.0
"""A mail server that has answered within so many seconds is not called away for one failure: it may be flapping."""

AWAY_AGAIN_SECONDS: Final = 3600.0
"""A mail server that stays away is said again so often, as long as mail waits for it."""

AGAIN: Final = 451
"""As if the server had said so (RFC 5321 4.2.3): for recipients to whom a mail of their own could not be sent any more
when it could to others."""

LOGIN: Final = 530
"""We have to log in, or begin TLS, before mail is taken (RFC 4954 6, RFC 3207 4): nothing is said of this mail."""

TOO_MUCH: Final = 552
"""As an answer to MAIL, or of a mail: too large (RFC 1870). To one of several recipients: too many of them, and to be
taken as temporary (RFC 5321 4.5.3.1.10)."""

QUIT_SECONDS: Final = 1.0
"""For the server's good-bye."""

CANCEL_AGAIN_SECONDS: Final = 0.1
"""For a try to end that has been cancelled."""


def check_password(settings: MailSection, *, insecure: bool) -> None:
    """Raises ConfigurationError where user and password would go over a network in clear text."""
    if settings.username and settings.start_tls == "never" and not (insecure or is_loopback(settings.host)):
        raise ConfigurationError(
            f"the password for the mail server {settings.host} would go in clear text",
            hint="Set mail.start_tls = required, or tls.insecure = true on a network you trust",
            key="mail.start_tls",
        )


class _NotConnectedError(Exception):
    """The server could not be reached, or did not let us in: nobody's mail was refused."""


class MailAnswer(NamedTuple):
    """Answer of the server to one mail: whom it refused, or why it was not reached. `blamed`, `is_whole`: see
    MailQueue.settle."""

    refused: Refused = MappingProxyType({})
    unreachable: str = ""
    blamed: bool = True
    is_whole: bool = False


class Reachability:
    """Whether the mail server answers, as far as its operator is told."""

    def __init__(self) -> None:
        self.away = ""
        """Why it can't be reached, as long as it can't."""
        self._answered = -math.inf
        """When it answered last."""
        self._told = 0.0

    def note(self, unreachable: str, now: float, *, is_needed: bool) -> str:
        """Note that it has answered, or not. Words for what is to be told of that: "is away", "is still away" where it
        `is_needed`, "answers again", or "" for nothing."""
        before = self.away
        if not unreachable:
            self._answered, self.away = now, ""
            return "answers again" if before else ""
        if now - self._answered > AWAY_SECONDS:
            self.away = unreachable
        is_due = not before or (is_needed and now - self._told >= AWAY_AGAIN_SECONDS)
        if not self.away or not is_due:
            return ""
        self._told = now
        return "is still away" if before else "is away"


class MailServer:
    """Connections to the mail server, used again last in first out, so that those too many become idle and are closed.

    Of the loop's thread alone. There are never more than sends at once.
    """

    def __init__(self, settings: MailSection) -> None:
        self._settings = settings
        self.address: Final = f"{settings.host}:{settings.port}"
        self.reachability: Final = Reachability()
        self._idle: list[tuple[float, aiosmtplib.SMTP]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._name: str | None = None
        self.open = 0
        """Connections, as status pages show it."""

    async def attempt_each(self, recipients: Sequence[str], message: Callable[[str], bytes]) -> MailAnswer:
        """A mail for each, with his own links. Who has got his keeps it, whatever becomes of the others; those who
        have not after [mail] try_seconds come later, so that other subscriptions get the connection."""
        deadline = time.monotonic() + self._settings.try_seconds
        refused: dict[str, tuple[int, str]] = {}
        left = dict.fromkeys(recipients)  # who is named twice gets it once
        tried = False
        while left:
            address = next(iter(left))
            if time.monotonic() > deadline:
                return MailAnswer({**refused, **dict.fromkeys(left, (AGAIN, "its turn was over"))})
            try:
                answer = await self.attempt((address,), message(address))
            except asyncio.CancelledError:
                if not tried:
                    raise
                answer = MailAnswer(unreachable="stopped")
            if answer.unreachable and not tried:
                return answer
            if answer.unreachable:
                return MailAnswer({**refused, **dict.fromkeys(left, (AGAIN, answer.unreachable))})
            if not answer.blamed:
                return MailAnswer({**refused, **dict.fromkeys(left, answer.refused[address])}, blamed=False)
            refused |= answer.refused
            tried = True
            del left[address]
        return MailAnswer(refused)

    async def attempt(self, everybody: tuple[str, ...], message: bytes) -> MailAnswer:
        """Send a mail to all of them; the answer, within [mail] try_seconds."""
        try:
            return MailAnswer(await _within(self._settings.try_seconds, self.send(everybody, message)))
        except aiosmtplib.SMTPRecipientsRefused as exc:
            return MailAnswer({r.recipient: _said(r) for r in exc.recipients})
        except aiosmtplib.SMTPSenderRefused as exc:
            if exc.code == LOGIN:
                return MailAnswer(unreachable=_why(exc))
            return MailAnswer(dict.fromkeys(everybody, _said(exc)), blamed=False, is_whole=exc.code == TOO_MUCH)
        except aiosmtplib.SMTPDataError as exc:
            return MailAnswer(dict.fromkeys(everybody, _said(exc)), is_whole=True)
        except (_NotConnectedError, aiosmtplib.SMTPException, OSError, ValueError) as exc:
            return MailAnswer(unreachable=_why(exc))

    async def send(self, recipients: tuple[str, ...], message: bytes) -> Refused:
        """Send a mail; who was refused, and how. Raises _NotConnectedError and aiosmtplib's errors."""
        while self._idle:
            _, client = self._idle.pop()
            try:
                return await self._send(client, recipients, message)
            except (aiosmtplib.SMTPServerDisconnected, ConnectionError):
                continue  # the server has closed it meanwhile: no failure of the mail's
            except aiosmtplib.SMTPSenderRefused as exc:
                if exc.code not in (aiosmtplib.SMTPStatus.domain_unavailable, LOGIN):
                    raise  # 421: closes the connection, RFC 5321 3.8; LOGIN: ours is over
        return await self._send(await self._connect(), recipients, message)

    async def _send(self, client: aiosmtplib.SMTP, recipients: tuple[str, ...], message: bytes) -> Refused:
        usable = False
        try:
            refused, _ = await client.sendmail(self._settings.sender, list(recipients), message)
            usable = True
        except (aiosmtplib.SMTPResponseException, aiosmtplib.SMTPRecipientsRefused) as exc:
            usable = getattr(exc, "code", 0) != LOGIN  # an answer, and the envelope is reset
            raise
        finally:
            if usable and client.is_connected:
                self._idle.append((time.monotonic(), client))
            else:
                self._drop(client)
        said = {address: _said(answer) for address, answer in refused.items()}
        return {a: (AGAIN if code == TOO_MUCH else code, text) for a, (code, text) in said.items()}

    async def _connect(self) -> aiosmtplib.SMTP:
        settings = self._settings
        secure = settings.start_tls == "required"
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            local_hostname=self._name,
            timeout=settings.timeout,
            start_tls=secure,
            username=settings.username or None,
            password=settings.password or None,
            tls_context=self._tls if secure else None,
        )
        try:
            await client.connect()
        except (aiosmtplib.SMTPException, OSError, ValueError) as exc:
            raise _NotConnectedError(_why(exc)) from exc
        self._name = client.local_hostname  # asking the resolver for it once is enough
        self.open += 1
        return client

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _drop(self, client: aiosmtplib.SMTP) -> None:
        client.close()
        self.open -= 1

    def close_idle(self, now: float) -> float:
        """Say good-bye on connections that have been idle for too long; when the next one will have been."""
        while self._idle and self._idle[0][0] + self._settings.idle_seconds <= now:
            task = asyncio.get_running_loop().create_task(self._leave(self._idle.pop(0)[1]))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        return self._idle[0][0] + self._settings.idle_seconds if self._idle else math.inf

    async def close(self) -> None:
        """All of them."""
        self.close_idle(math.inf)
        await asyncio.gather(*self._leaving)

    async def _leave(self, client: aiosmtplib.SMTP) -> None:
        try:
            async with asyncio.timeout(QUIT_SECONDS):
                await client.quit()
        except (aiosmtplib.SMTPException, OSError) as exc:
            log.debug("no answer to QUIT from the mail server: %s", exc)
        finally:
            self._drop(client)


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises TimeoutError when it has not ended after so many seconds.

    Cancels until it ends: of a cancellation that comes together with an answer, asyncio.wait_for, which waits for
    answers in there, gives the answer and forgets the cancellation (Python 3.11); the next answer may take for ever."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_AGAIN_SECONDS)
        if not task.cancelled():
            task.exception()  # who is cancelled has no use for it
    if task.cancelled():
        raise TimeoutError
    return task.result()


def _said(answer: aiosmtplib.SMTPResponse | aiosmtplib.SMTPResponseException) -> tuple[int, str]:
    """Code and text of an answer."""
    return answer.code, _printable(answer.message)


def _why(exc: Exception) -> str:
    """Why nobody was reached, in the server's words where it has said any."""
    if isinstance(exc, aiosmtplib.SMTPResponseException):
        return _printable(f"{exc.code} {exc.message}")
    return _printable(str(exc) or type(exc).__name__)


def _printable(text: str) -> str:
    """A server's words as logs, status pages and our disk can take them: bytes that are no UTF-8 come as surrogates."""
    return "".join(c if c.isprintable() else " " for c in text[:500])
