"""Remedies for losses: the page docs/losses.md has them, and the console shows them where objects are lost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# ruff: noqa: E501  # a row is a line

REMEDIES: Final[Mapping[str, str]] = {
    "queue_overflow": "Read faster, raise `bound`, narrow the predicate, or use policy `block` where publishers may wait.",
    "bad_signature": "Find the publisher: the object is not signed by its key. `[tls] verify` sets the action.",
    "block_timeout": "As for `queue_overflow`; `[queue] block_seconds` is the time that publishers wait.",
    "subscriber_dead": "A longer `[lease] subscriber` survives longer outages.",
    "delegate_dead": "None needed: the subscriber subscribes again automatically. The objects of the delegate are lost.",
    "cancelled": "None: the application cancelled the subscription.",
    "sequence_gap": "Find a publisher or bridge that drops objects.",
    "late": "None; it happens when a publisher has changed its delegate while the old one was disconnected.",
    "missed": "A larger `[pad] keep_seconds` and `keep_bytes`.",
    "deadline": "A longer deadline, higher importance, or fewer objects: a narrower predicate, a smaller shape.",
    "replaced": "None: the subscription requests only the newest per key. Leave `replace` out to get every object.",
    "rate": "A higher `max_rate`, or a narrower predicate.",
    "expired": "A longer `expiration`; a `[[keep]]` rule with `until_durables`, or a longer `age`.",
    "invalid": "Let publishers check their metadata: `validate` and `well_formed` in [client].",
    "other_archive": "The objects can't be restored from this archive; look for copies. The objects that it has are delivered again.",
    "listener_failed": "Find the exception in the log, and correct the listener. A durable subscription with explicit acknowledgement gets the object again the next time.",
    "filtered": "An operator has configured it: see the bridge's file (`jbi bridge check FILE` shows its effect on a type).",
    "oversize": "Cut the payload with a filter, or deliver to a queue instead of by e-mail. If a filter can't be applied, `unfiltered` delivers the object whole ([filters](matching.md#payload-filters)).",
    "mail_refused": "Read the server's answer in `jbi subscriptions`; correct the address.",
    "mail_unreachable": "Check `[mail]` host and port; more `retries` survive longer outages.",
    "mail_suspended": "Correct the address, cancel the subscription and subscribe again.",
    "refused": "Read the reason in the notice's `detail`; the subscriber tries again every minute.",
    "storage": "Free space on the delegate's disk, for large payloads also on the subscriber's (`[link] spool_folder`, `spool_bytes`).",
    "shutdown": "A longer `jbi pad --drain`.",
}
"""By cause of loss, as Markdown."""


def remedy(cause: str) -> str:
    """The remedy for losses by a cause as plain text; "" for a cause that this version does not know."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", REMEDIES.get(cause, "")).replace("`", "")
