"""E-mail delivery (paper section 2.4(5)). The only aiosmtplib.

Rules:
- One mail an object and subscription, to all its recipients; the message is built once per object and payload.
- SMTP 4xx and an unreachable server: tried again with growing pauses, a bounded number of times. 5xx: lost at once.
  A partial refusal returns normally from the server: each recipient's own answer counts.
- The queue is bounded and never blocks a dissemination thread: a full queue is a loss like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from typing import Final

import aiosmtplib

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.xml import looks_like_xml
from jbi_pubsub.pad.subscription import Subscription

log = logging.getLogger("jbi_pubsub.mail")

LONGEST_PAUSE: Final = 60.0
"""Seconds; pauses double up to here."""

READABLE_METADATA: Final = 16 << 10
"""Bytes of the metadata that stand in the body; the attachment always has all of them."""


@dataclass(slots=True)
class _Task:
    subscription: Subscription
    recipients: tuple[str, ...]
    message: bytes
    object_id: str
    tries: int = 0
    due: float = 0.0


class MailDispatcher:
    """Sends mail from one thread over one reused connection. `offer` may be called from any thread."""

    def __init__(self, settings: MailSection, *, name: str, lost: Callable[[Subscription, Cause, int, str], None]):
        """`lost(subscription, cause, recipients, why)` is called on our thread for each mail given up."""
        self._settings = settings
        self._lost = lost
        self._changed = threading.Condition()  # covers _tasks, _busy and _stopping
        self._tasks: list[_Task] = []
        self._busy = False
        self._stopping = False
        self._client: aiosmtplib.SMTP | None = None
        self._thread = threading.Thread(target=self._run, name=f"mail-{name}", daemon=True)
        self._thread.start()

    def offer(self, subscription: Subscription, message: bytes, object_id: str) -> Cause | None:
        """Queue a message built by `compose`; the cause when it can't be taken."""
        if len(message) > self._settings.max_bytes:
            return Cause.OVERSIZE
        with self._changed:
            if self._stopping or len(self._tasks) >= self._settings.queue_bound:
                return Cause.QUEUE_OVERFLOW
            self._tasks.append(_Task(subscription, subscription.request.recipients, message, object_id))
            self._changed.notify_all()
        return None

    def cancel(self, subscription: Subscription) -> int:
        """Forget what waits for the subscription; how many mails that were."""
        with self._changed:
            before = len(self._tasks)
            self._tasks = [t for t in self._tasks if t.subscription is not subscription]
            return before - len(self._tasks)

    def drain(self, timeout: float) -> int:
        """Wait until the queue is empty; how many mails are left after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while (self._tasks or self._busy) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return len(self._tasks) + self._busy

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; what still waits is lost (shutdown)."""
        with self._changed:
            self._stopping = True
            left, self._tasks = self._tasks, []
            self._changed.notify_all()
        for task in left:
            self._lost(task.subscription, Cause.SHUTDOWN, len(task.recipients), "delegate stopped")
        self._thread.join(timeout)

    def status(self) -> dict[str, object]:
        """Plain data."""
        with self._changed:
            return {"queued": len(self._tasks), "server": f"{self._settings.host}:{self._settings.port}"}

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while (task := self._next()) is not None:
                runner.run(self._send(task))
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
            runner.run(self._disconnect())

    def _next(self) -> _Task | None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                task = min(self._tasks, key=lambda t: t.due, default=None)
                if task is not None and task.due <= now:
                    self._tasks.remove(task)
                    self._busy = True
                    return task
                self._changed.wait(task.due - now if task else 60.0)
            return None

    async def _send(self, task: _Task) -> None:
        try:
            client = await self._connected()
            refused, _ = await client.sendmail(self._settings.sender, list(task.recipients), task.message)
        except aiosmtplib.SMTPRecipientsRefused as exc:
            self._sort(task, {r.recipient: (r.code, r.message) for r in exc.recipients})
        except aiosmtplib.SMTPResponseException as exc:
            await self._disconnect()
            self._sort(task, dict.fromkeys(task.recipients, (exc.code, exc.message)))
        except (aiosmtplib.SMTPException, OSError) as exc:
            await self._disconnect()
            self._again(task, str(exc) or type(exc).__name__)
        else:
            task.subscription.mailed += len(task.recipients) - len(refused)
            self._sort(task, {address: (r.code, r.message) for address, r in refused.items()})

    def _sort(self, task: _Task, refused: dict[str, tuple[int, str]]) -> None:
        """5xx is final, 4xx is tried again, for each recipient by itself (RFC 5321 4.2.1)."""
        final = [f"{address}: {code} {text}" for address, (code, text) in refused.items() if code >= 500]
        if final:
            log.warning("mail for %s refused: %s", task.subscription.uid, "; ".join(final))
            self._lost(task.subscription, Cause.MAIL_REFUSED, len(final), "; ".join(final)[:500])
        later = tuple(address for address, (code, _) in refused.items() if code < 500)
        if later:
            task.recipients = later
            self._again(task, "; ".join(f"{a}: {refused[a][0]} {refused[a][1]}" for a in later))

    def _again(self, task: _Task, why: str) -> None:
        task.tries += 1
        if task.tries > self._settings.retries:
            log.warning("mail for %s given up after %d tries: %s", task.subscription.uid, task.tries, why)
            self._lost(task.subscription, Cause.MAIL_UNREACHABLE, len(task.recipients), why[:500])
            return
        pause = min(self._settings.retry_seconds * 2 ** (task.tries - 1), LONGEST_PAUSE)
        task.due = time.monotonic() + pause
        with self._changed:
            stopping = self._stopping
            if not stopping:
                self._tasks.append(task)
        if stopping:
            self._lost(task.subscription, Cause.SHUTDOWN, len(task.recipients), why[:500])

    async def _connected(self) -> aiosmtplib.SMTP:
        if self._client is not None and self._client.is_connected:
            return self._client
        settings = self._settings
        secure = settings.start_tls == "required"
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            timeout=settings.timeout,
            start_tls=secure,
            username=settings.username or None,
            password=settings.password or None,
            tls_context=ssl.create_default_context() if secure else None,
        )
        await client.connect()
        self._client = client
        return client

    async def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def compose(obj: InfoObject, payload: bytes, subscription: str, sender: str) -> bytes:
    """The mail for an object: type in the subject, metadata readable, metadata and payload attached.

    `payload` is what the subscription's filter left. Headers by RFC 5322, 2919 (List-Id), 3834 (Auto-Submitted).
    """
    domain = Address(addr_spec=sender).domain or "localhost"
    digest = hashlib.sha256(obj.object_id.encode() + subscription.encode()).hexdigest()[:16]
    message = EmailMessage(policy=SMTP_POLICY)
    message["From"] = sender
    message["To"] = "undisclosed-recipients:;"
    message["Subject"] = _header(f"{obj.type.name} {obj.platform.registration} #{obj.platform.sequence}")
    message["Message-ID"] = f"<{_header(obj.object_id)}.{digest}@{domain}>"
    message["List-Id"] = f"<{_header(subscription)}.subscription.{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-JBI-Object-Id"] = _header(obj.object_id)
    message["X-JBI-Type"] = _header(str(obj.type))
    readable = obj.metadata[:READABLE_METADATA].decode("utf-8", errors="replace")
    message.set_content(f"{obj.type}\n\n{readable}\n")
    message.add_attachment(obj.metadata, maintype="application", subtype="xml", filename="metadata.xml")
    if payload:
        xml = looks_like_xml(payload)
        message.add_attachment(
            payload,
            maintype="application",
            subtype="xml" if xml else "octet-stream",
            filename="payload.xml" if xml else "payload.bin",
        )
    return message.as_bytes()


def _header(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "<>" else "_" for c in text)[:200]
