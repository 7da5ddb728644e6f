"""What the metrics port of a delegate or peer publisher shows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.metrics import Sample, expiries

TOTALS: Final = (
    ("published", "Objects taken from publishers"),
    ("refused", "Publications refused"),
    ("unmatched", "Objects that matched no subscription"),
    ("matched", "Objects times subscriptions that they matched"),
    ("suppressed", "Objects of whose payload a filter selected nothing, not delivered"),
    ("delivered", "Objects delivered"),
    ("signed", "Objects whose signature was looked at and holds"),
    ("bad_signature", "Objects that are not signed, or whose signature does not hold"),
    ("mailed", "Objects times recipients sent by mail"),
    ("replayed", "Objects times subscriptions that came late and caught up with them"),
    ("found_late", "Objects that matched no subscription when they came, and one afterwards"),
)
"""The counters of a status that hold all there ever was, whoever has gone since, and what they mean."""

ACCESS_REFUSED: Final = "Refused by the access policy, by action"


def samples_of(status: Mapping[str, Any], refused: Mapping[str, int]) -> Iterator[Sample]:
    """Of a status; `refused`: how often access to what was refused, by action."""
    yield Sample("publishers", "gauge", "Connected publishers", len(status["publishers"]))
    yield Sample("subscribers", "gauge", "Connected subscriber processes", len(status["sessions"]))
    yield Sample("subscriptions", "gauge", "Subscriptions", len(status["subscriptions"]))
    yield Sample("leases", "gauge", "Leases held here", status["leases"])
    yield Sample("kept_bytes", "gauge", "Bytes kept for subscriptions that come late", status["kept"]["bytes"])
    yield Sample("catching_up", "gauge", "Subscriptions that are catching up", status["catching_up"])
    yield Sample("queued_bytes", "gauge", "Bytes waiting in subscriber queues", status["queued_bytes"])
    for name, meaning in TOTALS:
        yield Sample(name, "counter", meaning, status[name])
    yield from expiries(status["tls"])
    yield Sample("in_flight", "gauge", "Objects sent and not acknowledged", status["in_flight"])
    meaning = "From leaving the queue to the acknowledgement, of the slowest subscriber process lately"
    yield Sample("delay_seconds", "gauge", meaning, status["delay_ms"] / 1000)
    mail, subscriptions = status["mail"], status["subscriptions"]
    yield Sample("mails_waiting", "gauge", "Mails waiting", mail["queued"])
    yield Sample("mails_waiting_bytes", "gauge", "Bytes of the mails waiting", mail["bytes"])
    yield Sample("mail_oldest_seconds", "gauge", "For how long the first of the mails has waited", mail["oldest"])
    yield Sample("reminders", "counter", "Reminders of leases that end, times recipients", mail["reminders"])
    yield Sample("reminders_lost", "counter", "Such that could not be sent", mail["reminders_lost"])
    yield Sample("mail_connections", "gauge", "Connections to the mail server", mail["connections"])
    suspended = sum(len(s["mail_suspended"]) for s in subscriptions)
    yield Sample("mail_suspended", "gauge", "Recipients whose mail is suspended", suspended)
    for action, count in refused.items():
        yield Sample("access_refused", "counter", ACCESS_REFUSED, count, (("action", action),))
    for cause in Cause:
        value = status["lost"].get(cause, 0)
        yield Sample("lost", "counter", "Objects lost, by cause", value, (("cause", cause.value),))
    for registration in status["registrations"]:
        labels = (("registration", registration["uid"]), ("type", registration["type"]))
        for name in ("published", "refused", "unmatched"):
            yield Sample(f"registration_{name}", "counter", f"Objects {name}", registration[name], labels)
    for session in status["sessions"]:
        queued = sum(session["queued"].values())
        labels = (("session", session["session"]), ("subscriber", session["name"]))  # anybody may have the name
        yield Sample("queued", "gauge", "Objects waiting", queued, labels)
