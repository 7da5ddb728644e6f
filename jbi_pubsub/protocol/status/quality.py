"""Quality of service in a delegate's status: what is in force, and what became of it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from jbi_pubsub.core.status import (
    Count,
    MaybeCount,
    MaybeMeasure,
    Measure,
    Moment,
    Status,
    counter,
    gauge,
)

POINTS_MOST: Final = 1_000
"""Points of one series; a server tells as many as [qos] monitor_window has seconds."""
Value = Annotated[float, Meta(ge=-1e18, le=1e18)]
"""No infinity, no number that is none."""


class Delays(Status, frozen=True):
    """Seconds from having an object until it goes out (`p50` of a half of them), and to the application (`end_`)."""

    p50: MaybeMeasure = UNSET
    p95: MaybeMeasure = UNSET
    p99: MaybeMeasure = UNSET
    end_p50: MaybeMeasure = UNSET
    end_p95: MaybeMeasure = UNSET
    end_p99: MaybeMeasure = UNSET
    jitter: MaybeMeasure = UNSET
    end_jitter: MaybeMeasure = UNSET
    rate: MaybeMeasure = UNSET
    """Objects a second over the last ten."""
    deviation: MaybeMeasure = UNSET
    trend: float | UnsetType = UNSET
    """Growth of the rate in a second."""


class ContractStatus(Delays, frozen=True):
    """Contract in force for a subscription, and its results."""

    importance: Count = 0
    """1 to 5."""
    deadline: Measure | None = None
    """Seconds."""
    shapes: list[str] = []
    max_size: Count | None = None
    """Bytes of a payload."""
    max_rate: str | None = None
    replace: str = ""
    """The key of which only the newest object is kept."""
    version: Count = 0
    """That of the policies."""
    received: MaybeCount = UNSET
    dropped: MaybeCount = UNSET
    bytes: MaybeCount = UNSET


class TypeQuality(Delays, frozen=True):
    """Objects of one type, over all contracts."""

    name: str = ""
    sources: list[str] = []
    """Some who publish it."""
    received: Annotated[MaybeCount, counter("Objects sent to a link or mail server, by type")] = UNSET
    dropped: Annotated[MaybeCount, counter("Objects of the type that were lost")] = UNSET
    bytes: MaybeCount = UNSET
    last: Moment | UnsetType | None = UNSET
    """When an object went out last."""
    rates: list[Measure] | UnsetType = UNSET
    """Objects a second, of the last seconds."""


class BinStatus(Status, frozen=True):
    """Tasks of one importance and cost."""

    importance: Count = 0
    bin: Count = 0
    depth: Annotated[Count, gauge("Waiting tasks, by importance and cost", "bin_depth")] = 0
    served: Count = 0
    cpu: Annotated[Measure, counter("Processor time that tasks of the bin have taken", "bin_cpu_seconds")] = 0.0


class WorkStatus(Status, frozen=True):
    """Tasks of one kind: how many, their seconds, and the estimate for one."""

    served: Count = 0
    cpu: Measure = 0.0
    each: Measure = 0.0


class TasksStatus(Status, frozen=True):
    """The processor's part."""

    strategy: str = ""
    weights: list[float] = []
    """Shares of the levels."""
    bins: list[BinStatus] = []
    waiting: Count = 0
    parked: Count = 0
    """Tasks that wait for something else."""
    at_once: Count = 0
    """Tasks done without a hand-over."""
    kinds: dict[str, WorkStatus] = {}
    fault: str = ""
    """Tasks that fail."""


class LinkUsage(Status, frozen=True):
    """A link: sizes in bytes, rates in bytes a second, times in ms."""

    name: str = ""
    limit: Annotated[Measure | None, gauge("Bytes a second that the link is allowed", "link_limit")] = None
    estimate: Annotated[Measure | None, gauge("Bytes a second that were measured for the link", "link_estimate")] = None
    used: Measure = 0.0
    busy: Measure = 0.0
    """Used part of the rate."""
    sent: Annotated[Count, counter("Bytes sent over the link", "link_bytes")] = 0
    sent_by_level: list[Count] = []
    waiting_by_level: list[Count] = []
    """Destinations with something to send, by importance 1 to 5."""
    destinations: Count = 0
    pending: Count = 0
    """Bytes under way."""
    rtt_ms: Measure = 0.0
    rtt_min_ms: Measure = 0.0
    quantum: Count = 0


class LinkStatus(LinkUsage, frozen=True):
    """A link, with what the system says of its connections."""

    backlog: Annotated[Count, gauge("Bytes that wait for the link")] = 0
    retransmits: Count = 0
    unsent: Count = 0
    """Bytes that the system holds."""
    tcp_rtt_ms: Measure = 0.0
    """The longest of its round trips."""


class PolicyInForce(Status, frozen=True):
    """The policies in force."""

    policies: Count = 0
    """Number of policies."""
    version: Annotated[Count, gauge("Version of the policies in force", "policy_version")] = 0
    digest: str = ""
    strategy: str = ""
    shaping: bool = False
    classes: Count = 0
    """Kinds of contracts that policies tell apart."""
    contracts: dict[str, Count] = {}
    """Number of contracts, by importance."""
    source: str = ""
    """file, manager, nobody, and so on."""
    following: str = ""
    """The policy manager that is followed."""
    fault: Annotated[str, gauge("1: the policy file is invalid, and an older one in force", "policy_fault")] = ""


class ShapingStatus(Status, frozen=True):
    """Payloads that were shaped."""

    on: bool = True
    shaped: Annotated[Count, counter("Payloads that were shaped")] = 0
    unshaped: Annotated[Count, counter("Payloads that could not be shaped as the policy says")] = 0
    saved: Annotated[Count, counter("Bytes saved by shapes", "shaping_saved_bytes")] = 0
    seconds: Annotated[Measure, counter("Processor time of shaping", "shaping_seconds")] = 0.0


class SeriesStatus(Status, frozen=True, kw_only=True):
    """The last seconds of a number of this status."""

    at: Moment
    """When it was taken last."""
    last: Value
    per_second: bool = False
    """The points are of the rate of what only grows."""
    mean: Value | UnsetType = UNSET
    deviation: Value | UnsetType = UNSET
    trend: Value | UnsetType = UNSET
    points: Annotated[list[tuple[Moment, Value]], Meta(max_length=POINTS_MOST)] = []


class QualityStatus(Status, frozen=True):
    """Quality of service, with [qos] mode "on"."""

    component: str = ""
    policy: PolicyInForce = PolicyInForce()
    tasks: TasksStatus = TasksStatus()
    links: list[LinkStatus] = []
    shaping: ShapingStatus = ShapingStatus()
    types: list[TypeQuality] = []
    series: dict[str, SeriesStatus] | UnsetType = UNSET
