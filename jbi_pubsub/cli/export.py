"""`jbi study export`: a data set of a running federation: registrations, subscriptions, a tap of what is published.

Contracts are what the lookup services and the servers say, at the beginning, at the end, and now and then between. The
tap is a subscription like any other: it takes part in nothing that others get, and what it could not take is counted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, JbiError
from jbi_pubsub.core.spool import MEMORY_BYTES
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE, PUBLISHER_TYPE, InformationType, SigningKeyEntry
from jbi_pubsub.protocol.services import fetch_status, fetch_terms
from jbi_pubsub.protocol.status.terms import Terms
from jbi_pubsub.spark import dataset, report
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, Reject, SubscriptionRow, Writer
from jbi_pubsub.spark.judging import MAX_REJECTS
from jbi_pubsub.spark.studies.study import contracts_in

from .settings import looking
from .show import Tell

if TYPE_CHECKING:
    from jbi_pubsub.core.info_object import InfoObject
    from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid

NAME: Final = "jbi study"
"""Name of who taps."""
ANSWER_SECONDS: Final = 10.0
"""For a page of a server's contracts."""
SERVER_SECONDS: Final = 60.0
"""For all contracts of a server."""
TOLD_BYTES: Final = 1 << 30
"""Bytes of contracts that servers tell: a million of a kilobyte each."""
PART_SECONDS: Final = 10.0
"""Time after which what came is on disk, whatever happens to us."""
DEFAULT_SECONDS: Final = 60.0
"""Duration of the tap, without a number of publications and unless told otherwise."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at the contracts at least, where an object is of a registration that nobody knew."""
LOOK_PART: Final = 10
"""Looks take at most such a part of the time."""
TURN_SECONDS: Final = 0.2
"""Between two looks at the clock, while nothing comes."""


class TapRequest(NamedTuple):
    """A data set to be written, and the bounds of its tap: it ends at the first of these, and with the process
    `parent`, which has started us for itself. Publications (0: without bound) and bytes count those of a data set that
    is gone on with."""

    folder: Path
    publications: int
    seconds: float
    size: int
    payloads: bool
    resume: bool
    parent: int = 0


def export(config: Config, wanted: TapRequest, progress: Tell) -> tuple[dict[str, object], bool]:
    """Write the data set; what to tell of it, and whether Ctrl-C made it end early, or the end of `parent`.

    Raises LookupNotFoundError, AccessDeniedError (contracts are for administrators), ConfigurationError, StudyError.
    """
    from jbi_pubsub.subscriber import SubscriberAdapter

    folder, resume = wanted.folder, wanted.resume
    report.parquet_present()
    dataset.check_out(folder)
    known = contracts_in(folder, []) if resume and (folder / "subscriptions").is_dir() else Contracts()
    began = time.time()
    with (
        SubscriberAdapter(config, name=NAME) as adapter,
        _interrupted() as interruption,
        closing(JoinManager(config, name=NAME)) as community,
        ExitStack() as stack,
    ):
        with looking(config):
            tap = adapter.register_subscriber()
        federation = _Federation(config, community)
        standing = _Standing(federation, known)
        # nothing is replaced before
        writer = stack.enter_context(Writer(folder, source=dataset.EXPORTED, resume=resume))
        writer.put(standing.contracts)
        adapter.wait_matched(tap, federation.publishing, ANSWER_SECONDS)
        _take(adapter, tap, writer, wanted, standing, progress, interruption)
        standing.look()
        contracts = standing.contracts
        lost = sum(adapter.losses(tap).values())
        writer.facts = {
            "since": writer.facts.get("since", round(began, 3)),
            "until": round(time.time(), 3),
            "lost": _number(writer.facts.get("lost")) + lost,
            "unanswered": sorted(federation.unanswered),
        }
        writer.finish(contracts, list(federation.rejects.values()))
    counts = {name: len(getattr(contracts, name)) for name in dataset.CONTRACTS}
    written = {**counts, "publications": writer.count, "rejects": len(federation.rejects), **writer.facts}
    return {**written, "out": str(folder)}, interruption.is_set()


def _number(kept: object) -> int:
    return kept if isinstance(kept, int) else 0  # a manifest is a file, which anybody may have edited


def _take(
    adapter: SubscriberAdapter,
    tap: SubscriptionUid,
    writer: Writer,
    wanted: TapRequest,
    standing: _Standing,
    progress: Tell,
    interruption: threading.Event,
) -> None:
    """Objects as they come, until one of the bounds; of an interruption also what is in our queue by then."""
    most, parent = wanted.publications, wanted.parent
    end = time.monotonic() + wanted.seconds
    part_end, part_at = time.monotonic() + PART_SECONDS, writer.count
    while (not most or writer.count < most) and writer.size < wanted.size:
        now = time.monotonic()
        if parent and os.getppid() != parent:
            interruption.set()
        if now >= end or (interruption.is_set() and not adapter.queue_size(tap)):
            return
        came = adapter.receive(tap, min(TURN_SECONDS, end - now))
        if came is not None:
            writer.add(publication_of(came, payloads=wanted.payloads))
            standing.meet(came.platform.registration)
        standing.tend(writer)
        progress("publications", writer.count, most)
        if now >= part_end or writer.count - part_at >= dataset.ROW_GROUP:
            writer.close_part()
            part_end, part_at = now + PART_SECONDS, writer.count


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C meanwhile, wherever we are: no part is left half-written. A second one ends us."""
    event = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the handler's form
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def publication_of(came: InfoObject, *, payloads: bool) -> PublicationRow:
    """The row of an object."""
    at = came.platform
    return PublicationRow(
        came.object_id, came.type.name, came.type.version, at.published, at.registration, came.metadata,
        at.payload_length, came.payload if payloads and came.payload_size <= MEMORY_BYTES else None,
    )  # fmt: skip


class _RegistrationRow(msgspec.Struct, frozen=True):
    """Registration in a delegate's status."""

    uid: str
    publisher: str = ""
    owner: str = ""


class _Federation:
    """Contracts, as lookup services and servers tell them."""

    def __init__(self, config: Config, community: JoinManager) -> None:
        self._config, self._community = config, community
        self._room = TOLD_BYTES
        self.publishing = 0
        """Servers that have registrations."""
        self.unanswered: set[str] = set()
        self.rejects: dict[str, Reject] = {}
        """Contracts that make no sense, by their id."""

    def contracts(self) -> Contracts:
        """All registrations and subscriptions, as they stand now."""
        items = self._community.lookup(ServiceTemplate(), EVERYTHING)
        names = {item.service_id: _delegate_name(item) for item in items if PAD_TYPE in item.types}
        published = [item for item in items if PUBLISHER_TYPE in item.types]
        refs = {
            item.proxy.service_id: item.proxy for item in items if {PAD_TYPE, PUBLISHER_TYPE}.intersection(item.types)
        }
        self.publishing = len({item.proxy.service_id for item in published})
        self._room = TOLD_BYTES
        told = {server: list(self._terms(ref)) for server, ref in refs.items()}
        rows = {row.uid: row for ref in refs.values() for row in self._rows(ref)}
        registrations = [registration_of(item, names, rows) for item in published[: dataset.MAX_CONTRACTS]]
        return Contracts(
            self._sound("registrations", registrations), self._sound("subscriptions", subscriptions_of(told))
        )

    def _sound(self, table: str, contracts: Iterable[Any]) -> tuple[Any, ...]:
        """Without those that make no sense: they are not contracts."""
        rejects: list[Reject] = []
        found = tuple(dataset.sound(contracts, table, rejects))
        self.rejects |= {each.row: each for each in rejects[:MAX_REJECTS]}
        return found

    def _rows(self, ref: ServiceRef) -> list[_RegistrationRow]:
        """Registrations at a server, as far as its status tells of them: names of publishers, but for peer publishers,
        which have none but their address, and owners."""
        try:
            rows = fetch_status(ref, self._config.security(), timeout=ANSWER_SECONDS).get("registrations")
            return converted(rows, list[_RegistrationRow])
        except (JbiError, msgspec.ValidationError, RecursionError):
            self.unanswered.add(", ".join(ref.endpoints))
            return []

    def _terms(self, ref: ServiceRef) -> Iterator[Terms]:
        """Terms of one server, without taps. One that does not answer, or does not come to an end, is noted: the lease
        of the first may just not have run out yet."""
        where, end = ", ".join(ref.endpoints), time.monotonic() + SERVER_SECONDS
        try:
            for number, each in enumerate(fetch_terms(ref, self._config.security(), timeout=ANSWER_SECONDS)):
                self._room -= len(msgspec.msgpack.encode(each))
                if number == dataset.MAX_CONTRACTS or self._room < 0 or time.monotonic() > end:
                    self.unanswered.add(f"{where} (told more than we take, {number:,} were taken)")
                    return
                if not is_tap(each):
                    yield each
        except AccessDeniedError as error:
            raise AccessDeniedError(
                f"{where} does not show its subscriptions: {error.message}",
                hint="Export as a user that may `administer` (docs/access.md)",
            ) from error
        except JbiError:
            self.unanswered.add(where)


class _Standing:
    """Contracts of all looks at a federation: what comes and goes between two looks is not among them."""

    def __init__(self, federation: _Federation, known: Contracts) -> None:
        self._federation = federation
        self.contracts = known
        self.look()

    def look(self) -> None:
        """Look, and add what is new."""
        began = time.monotonic()
        self.contracts = merged(self.contracts, self._federation.contracts())
        self._known = {each.registration for each in self.contracts.registrations}
        self._is_missing = False
        ended = time.monotonic()
        self._soonest = ended + max(LOOK_SECONDS, (ended - began) * LOOK_PART)
        self._latest = ended + PART_SECONDS

    def meet(self, registration: str) -> None:
        """Take note of the registration of an object."""
        self._is_missing |= registration not in self._known

    def tend(self, writer: Writer) -> None:
        """Look where it is time, and write down what is new."""
        now = time.monotonic()
        if now < self._soonest or not (self._is_missing or now >= self._latest):
            return
        before = self.contracts
        self.look()
        if self.contracts != before:
            writer.put(self.contracts)


def is_tap(terms: Terms) -> bool:
    """Whether it is an export's, of ours or of another that is running, or ended and is still waited for."""
    return terms.subscriber == NAME and not (terms.entries or terms.predicate or terms.payload_filter)


def _delegate_name(item: ServiceItem) -> str:
    for entry in item.entries:
        if entry.cls.name == "jbi.PublisherAdapterDelegate":
            return "@".join(value or "" for value in entry.values)
    return item.service_id


def registration_of(
    item: ServiceItem, delegates: Mapping[str, str], told: Mapping[str, _RegistrationRow]
) -> RegistrationRow:
    """The row of a registration. Its signing key is left out: nobody's template is about it."""
    entries = tuple(entry for entry in item.entries if entry.cls.name != SigningKeyEntry.entry_name)
    types = [entry.as_dict() for entry in entries if entry.cls.name == InformationType.entry_name]
    type_ = types[0] if types else {}
    row = told.get(item.service_id, _RegistrationRow(item.service_id))
    return RegistrationRow(
        registration=item.service_id,
        publisher=row.publisher,
        delegate=delegates.get(item.proxy.service_id, f"peer {', '.join(item.proxy.endpoints)}"),
        type=type_.get("name") or "",
        version=type_.get("version") or "",
        owner=row.owner,
        entries=entries,
    )


def subscriptions_of(told: Mapping[str, Sequence[Terms]]) -> tuple[SubscriptionRow, ...]:
    """Rows of the subscriptions that servers tell of, each once. What one session holds is of one process, and an id is
    of one process at whatever server it is: so processes of one name are told apart."""
    leader: dict[str, str] = {}

    def lead(uid: str) -> str:
        while leader[uid] != uid:
            leader[uid] = uid = leader[leader[uid]]
        return uid

    found: dict[str, Terms] = {}
    sessions: dict[tuple[str, str], str] = {}
    for server, terms in told.items():
        for each in terms:
            before = found.get(each.uid)
            if before is None or (each.direct and not before.subscriber):
                found[each.uid] = each
            leader.setdefault(each.uid, each.uid)
            if each.session:
                first = sessions.setdefault((server, each.session), each.uid)
                leader[lead(each.uid)] = lead(first)
    processes: dict[str, str] = {}
    taken: dict[str, int] = {}
    for uid, each in found.items():
        if each.session and lead(uid) not in processes:
            taken[each.subscriber] = taken.get(each.subscriber, 0) + 1
            again = taken[each.subscriber]
            processes[lead(uid)] = each.subscriber if again == 1 else f"{each.subscriber} #{again}"
    return tuple(_subscription(each, processes.get(lead(uid), "")) for uid, each in found.items())


def _subscription(terms: Terms, subscriber: str) -> SubscriptionRow:
    return SubscriptionRow(
        subscription=terms.uid,
        subscriber=subscriber,
        template=terms.entries,
        predicate=terms.predicate,
        filter=terms.payload_filter,
        namespaces=dict(terms.namespaces),
        language=terms.language,
        suppress_empty=terms.suppress_empty,
        recipients=terms.recipients,
        direct=terms.direct,
        view=terms.view,
        unfiltered=terms.unfiltered,
        unlike=terms.leaves.unlike,
        local=terms.leaves.local,
    )


def merged(before: Contracts, now: Contracts) -> Contracts:
    """Both; of what is in both, what it is now."""
    registrations = {r.registration: r for r in (*before.registrations, *now.registrations)}
    subscriptions = {s.subscription: s for s in (*before.subscriptions, *now.subscriptions)}
    return Contracts(tuple(registrations.values()), tuple(subscriptions.values()))


def shown(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines for people."""
    rows = [(name, f"{facts[name]:,}") for name in ("registrations", "subscriptions", "publications")]
    if facts["rejects"]:
        rows.append(("rejects", f"{facts['rejects']:,} invalid contracts"))
    if facts["lost"]:
        rows.append(("lost", f"{facts['lost']:,}: they came faster than they could be taken"))
    if facts["unanswered"]:
        rows.append(
            ("no answer from", f"{'; '.join(facts['unanswered'])}; contracts that only these servers have are missing")
        )
    return [*rows, ("data set", str(facts["out"]))]
