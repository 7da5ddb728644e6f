"""Samples of a delegate or peer publisher for its metrics port. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.metrics import Sample, expiries

Kind = Literal["counter", "gauge"]

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


_QOS_TYPES: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("received", "counter", "Objects that went to their link or mail server, by type"),
    ("dropped", "counter", "Objects of the type that were lost"),
)
_QOS_LINKS: Final[tuple[tuple[str, str, Kind, str], ...]] = (
    ("sent", "link_bytes", "counter", "Bytes that went over the link"),
    ("limit", "link_limit", "gauge", "Bytes a second that the link may take"),
    ("estimate", "link_estimate", "gauge", "Bytes a second that the link was measured to take"),
)
_QOS_SHAPING: Final = (
    ("shaped", "shaped", "Payloads that were shaped"),
    ("unshaped", "unshaped", "Payloads that could not be shaped as their contract says"),
    ("saved", "shaping_saved_bytes", "Bytes that shapes have saved"),
    ("seconds", "shaping_seconds", "Processor time of shaping"),
)
_ARCHIVE: Final[tuple[tuple[str, str, Kind, str], ...]] = (
    ("position", "position", "gauge", "Position of the last archived object"),
    ("volumes", "volumes", "gauge", "Files of the archive's log, and packs"),
    ("spare_bytes", "spare_bytes", "gauge", "Bytes of the archive's disk that are free beyond its reserve"),
    ("consumers", "durables", "gauge", "Durable subscriptions"),
    ("refused", "refused", "counter", "Objects that were not kept, or not on disk, and refused"),
)
_EXPIRED: Final = ("age", "count", "bytes", "payload_age", "latest_by", "until_durables", "full")
_ENDED: Final = ("finished", "cancelled", "failed", "timed_out")
_QUANTILES: Final = (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99"))


def samples_of(status: Mapping[str, Any], refused: Mapping[str, int]) -> Iterator[Sample]:
    """Samples of a status; `refused`: how often access to what was refused, by action."""
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
    if "qos" in status:
        yield from _qos_samples(status["qos"], status["lost"])
    if "archive" in status:
        yield from _archive_samples(status["archive"])
    for registration in status["registrations"]:
        labels = (("registration", registration["uid"]), ("type", registration["type"]))
        for name in ("published", "refused", "unmatched"):
            yield Sample(f"registration_{name}", "counter", f"Objects {name}", registration[name], labels)
    for session in status["sessions"]:
        queued = sum(session["queued"].values())
        labels = (("session", session["session"]), ("subscriber", session["name"]))  # anybody may have the name
        yield Sample("queued", "gauge", "Objects waiting", queued, labels)


def _archive_samples(archive: Mapping[str, Any]) -> Iterator[Sample]:
    for name, shown, kind, meaning in _ARCHIVE:
        yield Sample(f"archive_{shown}", kind, meaning, archive.get(name, 0))
    behind = max(0, archive["position"] - archive.get("indexed", 0))
    yield Sample("archive_backlog", "gauge", "Positions that the archive's index is behind", behind)
    for name in ("metadata", "payload", "index"):
        size = archive.get(f"{name}_bytes", 0)
        yield Sample("archive_bytes", "gauge", "Bytes of the archive, by what they are", size, (("of", name),))
    yield Sample("archive_full", "gauge", "1: there is no room in the archive", int(bool(archive.get("full"))))
    wrong = len(archive.get("troubles", ())) + bool(archive.get("index_trouble"))
    yield Sample("archive_troubles", "gauge", "What is damaged or can't be used (jbi archive check)", wrong)
    counters = archive.get("counters", {})
    meaning = "Objects passed on without being kept, for want of room"
    yield Sample("archive_not_archived", "counter", meaning, counters.get("not_archived", 0))
    for reason in _EXPIRED:
        count = counters.get(f"expired_{reason}", 0)
        yield Sample(
            "archive_expired", "counter", "Objects that were given up, by reason", count, (("reason", reason),)
        )
    starts = archive.get("worker", {}).get("starts", 0)
    yield Sample("archive_worker_starts", "counter", "Starts of the process that indexes and answers", starts)
    queries = archive["queries"]
    yield Sample("archive_queries_open", "gauge", "Open queries", queries["open"])
    yield Sample("archive_replays", "gauge", "Subscriptions that catch up with the past", queries["replays"])
    yield Sample("archive_results", "counter", "Objects that queries and replays have found", queries["results"])
    for state in _ENDED:
        count = queries["ended"].get(state, 0)
        yield Sample("archive_queries", "counter", "Queries that have ended, by how", count, (("state", state),))


def _qos_samples(qos: Mapping[str, Any], lost: Mapping[str, int]) -> Iterator[Sample]:
    """Samples of the status of quality of service, as far as its managers tell."""
    if policy := qos.get("policy"):
        yield Sample("qos_policy_version", "gauge", "Version of the policies in force", policy.get("version", 0))
        meaning = "Whether the policy file is wrong, and an older one in force"
        yield Sample("qos_policy_fault", "gauge", meaning, int(bool(policy.get("fault"))))
    for each in qos.get("tasks", {}).get("bins", ()):
        labels = (("importance", str(each["importance"])), ("bin", str(each["bin"])))
        yield Sample("qos_bin_depth", "gauge", "Tasks that wait, by importance and cost", each["depth"], labels)
        meaning = "Processor time that tasks of the bin have taken"
        yield Sample("qos_bin_cpu_seconds", "counter", meaning, each["cpu"], labels)
    for link in qos.get("links", ()):
        label = ("link", str(link["name"]))
        for name, shown, kind, meaning in _QOS_LINKS:
            yield Sample(f"qos_{shown}", kind, meaning, link.get(name) or 0.0, (label,))
        meaning = "Destinations with something to send over the link, by importance"
        for importance, waiting in enumerate(link.get("waiting_by_level", ()), 1):
            labels = (label, ("importance", str(importance)))
            yield Sample("qos_waiting", "gauge", meaning, waiting, labels)
        yield Sample("qos_backlog", "gauge", "Bytes that wait for the link", link.get("backlog", 0), (label,))
    for each in qos.get("types", ()):
        label = ("type", str(each["name"]))
        for name, kind, meaning in _QOS_TYPES:
            yield Sample(f"qos_{name}", kind, meaning, each.get(name, 0), (label,))
        for name, quantile in _QUANTILES:
            if name in each:
                meaning = "From the delegate's having an object until it goes to its link, of the last seconds"
                yield Sample("qos_delay_seconds", "gauge", meaning, each[name], (label, ("quantile", quantile)))
    for name, shown, meaning in _QOS_SHAPING:
        yield Sample(f"qos_{shown}", "counter", meaning, qos["shaping"][name])
    for cause, shown in ((Cause.DEADLINE, "expired"), (Cause.REPLACED, "replaced")):
        yield Sample(f"qos_{shown}", "counter", f"Objects lost by cause {cause.value}", lost.get(cause, 0))
