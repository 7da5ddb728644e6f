"""Samples of a delegate or peer publisher for its metrics port: most of them are what the metadata of its status say.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import UNSET

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.metrics import Sample, expiries, refusals, samples_of
from jbi_pubsub.protocol.status.archive import ArchiveStatus
from jbi_pubsub.protocol.status.delegate import CountsStatus, DelegateStatus
from jbi_pubsub.protocol.status.networks import NetworksStatus
from jbi_pubsub.protocol.status.quality import QualityStatus

_EXPIRED: Final = ("age", "count", "bytes", "payload_age", "latest_by", "until_durables", "full")
_ENDED: Final = ("finished", "cancelled", "failed", "timed_out")
_QUANTILES: Final = (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99"))


def delegate_samples(status: DelegateStatus, refused: Mapping[str, int]) -> Iterator[Sample]:
    """Samples of a status; `refused`: how often access to what was refused, by action."""
    counts = {name: len(getattr(status, name)) for name in CountsStatus.__struct_fields__}
    for part in (status, CountsStatus(**counts), status.kept, status.mail):
        yield from samples_of(part)
    yield from expiries(status.tls)
    meaning = "Time from the queue to the acknowledgement, of the slowest subscriber process recently"
    yield Sample("delay_seconds", "gauge", meaning, status.delay_ms / 1000)
    suspended = sum(len(s.mail_suspended) for s in status.subscriptions)
    yield Sample("mail_suspended", "gauge", "Recipients whose mail is suspended", suspended)
    yield from refusals(refused)
    for cause in Cause:
        value = status.lost.get(cause, 0)
        yield Sample("lost", "counter", "Objects lost, by cause", value, (("cause", cause.value),))
    if status.qos is not UNSET:
        yield from _qos_samples(status.qos, status.lost)
    if status.archive is not UNSET:
        yield from _archive_samples(status.archive)
    if status.networks is not UNSET:
        yield from _network_samples(status.networks)
    for registration in status.registrations:
        yield from samples_of(registration, labels=(("registration", registration.uid), ("type", registration.type)))
    for session in status.sessions:
        queued = sum(session.queued.values())
        labels = (("session", session.session), ("subscriber", session.name))  # anybody may have the name
        yield Sample("queued", "gauge", "Objects waiting", queued, labels)


def _archive_samples(archive: ArchiveStatus) -> Iterator[Sample]:
    for part in (archive, archive.worker, archive.queries):
        yield from samples_of(part)
    behind = max(0, archive.position - archive.indexed)
    yield Sample("archive_backlog", "gauge", "Positions that the archive's index is behind", behind)
    for name in ("metadata", "payload", "index"):
        size = getattr(archive, f"{name}_bytes")
        yield Sample("archive_bytes", "gauge", "Bytes of the archive, by kind", size, (("of", name),))
    wrong = len(archive.troubles) + bool(archive.index_trouble)
    yield Sample("archive_troubles", "gauge", "Damaged or unusable parts (jbi archive check)", wrong)
    meaning = "Objects delivered without being kept, because the archive is full"
    yield Sample("archive_not_archived", "counter", meaning, archive.counters.get("not_archived", 0))
    for reason in _EXPIRED:
        count = archive.counters.get(f"expired_{reason}", 0)
        labels = (("reason", reason),)
        yield Sample("archive_expired", "counter", "Objects removed, by reason", count, labels)
    for state in _ENDED:
        count = archive.queries.ended.get(state, 0)
        yield Sample("archive_queries", "counter", "Finished queries, by their end state", count, (("state", state),))


def _network_samples(networks: NetworksStatus) -> Iterator[Sample]:
    yield from samples_of(networks, "networks_")
    for link in networks.links:
        label = ("network", link.name)
        yield from samples_of(link, "network_", (label,))
        for cause, count in link.faults.items():
            meaning = "Datagrams of the network that were refused, by cause"
            yield Sample("network_refused", "counter", meaning, count, (label, ("cause", cause)))
    for cause, count in networks.faults.items():
        yield Sample("networks_faults", "counter", "Invalid messages of other nodes, by cause",
                     count, (("cause", cause),))  # fmt: skip
    for peer in networks.peers:
        labels = (("network", peer.network), ("peer", peer.name), ("id", peer.id))  # anybody may have the name
        yield from samples_of(peer, "peer_", labels)


def _qos_samples(qos: QualityStatus, lost: Mapping[str, int]) -> Iterator[Sample]:
    """Samples of the status of quality of service."""
    for part in (qos.policy, qos.shaping):
        yield from samples_of(part, "qos_")
    for each in qos.tasks.bins:
        yield from samples_of(each, "qos_", (("importance", str(each.importance)), ("bin", str(each.bin))))
    for link in qos.links:
        label = ("link", link.name)
        yield from samples_of(link, "qos_", (label,))
        meaning = "Destinations with objects to send over the link, by importance"
        for importance, waiting in enumerate(link.waiting_by_level, 1):
            yield Sample("qos_waiting", "gauge", meaning, waiting, (label, ("importance", str(importance))))
    for kind in qos.types:
        label = ("type", kind.name)
        yield from samples_of(kind, "qos_", (label,))
        for name, quantile in _QUANTILES:
            if name in kind:
                meaning = "Time from an object's arrival at the delegate to its link, of the last seconds"
                yield Sample("qos_delay_seconds", "gauge", meaning, kind[name], (label, ("quantile", quantile)))
    for cause, shown in ((Cause.DEADLINE, "expired"), (Cause.REPLACED, "replaced")):
        yield Sample(f"qos_{shown}", "counter", f"Objects lost by cause {cause.value}", lost.get(cause, 0))
