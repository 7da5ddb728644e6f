"""Both levels of matching for publications in bulk, as a delegate decides them: the lookup service's index for
templates, the product's PredicateIndex for predicates, PayloadFilter for payloads. Nothing is decided here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.errors import JbiError, OversizeError, StudyError
from jbi_pubsub.core.xml import Element, parse_metadata, parse_payload
from jbi_pubsub.core.xpath import PayloadFilter, Predicate, PredicateIndex, compile_filter, compile_predicate, select
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.lookup.index import TemplateIndex
from jbi_pubsub.protocol.entries import RelayedEntry
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, Reject, SubscriptionRow, fault, sayable

MAX_REJECTS: Final = 1_000
"""Rejects of a pass that are kept with their reason, the first by row and reason; all are counted."""
MAX_SUMS: Final = 4_000_000
"""Sums of a task: some 2 GB. Of what is made up to have more, nothing is to be learnt."""
LARGEST_OWN: Final = 200
"""Candidates up to which a topic has an index of its own, as a registration has one in a delegate: 4 ms to make. Of
larger ones those of the same entry classes share one: hundreds of topics would hold the same predicates again."""
MOST_KEPT: Final = 20_000_000
"""Candidates of all topics that are kept, 200 MB: then they are made again as they come."""


class RowMatcher(msgspec.Struct, frozen=True, eq=False):
    """A subscription, compiled."""

    number: int
    subscription: SubscriptionRow
    predicate: Predicate | None
    filter: PayloadFilter | None

    def takes(self, owner: str, is_relayed: bool) -> bool:
        """Whether it wants objects of such a registration, whatever is in them."""
        said = self.subscription
        return not (said.unlike and said.unlike == owner) and not (said.local and is_relayed)

    @property
    def process(self) -> str:
        """Process that it belongs to: what several subscriptions of a process want goes there once."""
        return self.subscription.subscriber or self.subscription.subscription


class Delivery(NamedTuple):
    """Delivery of a publication to one subscription: `payload` is what its filter has left, None for the whole."""

    wanted: RowMatcher
    payload: bytes | None


class JudgingTopic(msgspec.Struct, eq=False):
    """Registrations with equal entries: the subscriptions that their objects are judged for, and their predicates.

    `index` has the predicates of all candidates, made when first needed. Where they `share` one, `chosen` has a byte
    for each subscription, 1 for the candidates with a predicate; `always` are those without.
    """

    candidates: tuple[RowMatcher, ...]
    index: PredicateIndex[int] | None = None
    shared: PredicateIndex[int] | None = None
    chosen: bytearray = bytearray()
    always: tuple[int, ...] = ()


class MatchedRow(msgspec.Struct, eq=False, gc=False):
    """A publication that was judged: its topic and registration, its document, and whom it matches, ascending."""

    publication: PublicationRow
    topic: JudgingTopic
    root: Element
    matched: list[int]
    withheld: int = 0
    """Subscriptions that do not get it as their filter can't be applied to its payload; `deliveries` finds that out."""

    @property
    def size(self) -> int:
        """Bytes of metadata and payload."""
        return self.size_with(None)

    def size_with(self, payload: bytes | None) -> int:
        """The same with what a filter has left; None: the whole."""
        return len(self.publication.metadata) + (self.publication.payload_bytes if payload is None else len(payload))


class Judge:
    """Decides for publications of the registrations of some contracts. One thread at a time.

    `rejects` are the subscriptions that no delegate would take, and those that only a delegate can judge for.
    """

    def __init__(self, contracts: Contracts | Packed) -> None:
        packed = contracts if isinstance(contracts, Packed) else _packed(contracts)
        self.wanted: dict[int, RowMatcher] = {}
        """By number: those that a delegate would take."""
        self._subscriptions = len(packed.subscriptions)
        self.rejects: list[Reject] = []
        self._terms, self._registrations = packed.terms, packed.registrations
        self._topics: dict[int, JudgingTopic] = {}
        self._kept = 0
        # By the classes of entries the index that topics share, and whose predicates are in it.
        self._shared: dict[tuple[EntryClass, ...], tuple[PredicateIndex[int], set[int]]] = {}
        self._always: set[int] = set()
        # In these lxml may have a part, whose time for an object is bounded: so what else is in the index matters.
        self._alone: set[int] = set()
        self._templates: TemplateIndex[int] = TemplateIndex()
        for number, subscription in enumerate(packed.subscriptions):
            self._compile(number, subscription)

    def _compile(self, number: int, given: SubscriptionRow) -> None:
        try:
            predicate = wanted = None
            if given.view != "metadata":
                raise StudyError("its predicate is on the combined view, of which a data set has only a part")
            if given.predicate:
                predicate = compile_predicate(
                    given.predicate, namespaces=given.namespaces, language=given.language or "xpath"
                )
            if given.filter:
                wanted = compile_filter(given.filter, namespaces=given.namespaces)
            self._templates.add(number, given.template)
        except JbiError as error:
            self.rejects.append(Reject("subscriptions", given.subscription, str(error)[:500]))
            return
        if predicate is None:
            self._always.add(number)
        elif predicate.evaluates:
            self._alone.add(number)
        self.wanted[number] = RowMatcher(number, given, predicate, wanted)

    def knows(self, registration: str) -> bool:
        """Whether a registration is among the contracts."""
        return registration in self._registrations

    def topic(self, registration: str) -> JudgingTopic:
        """Topic of a registration; one that the contracts don't know has no entries, and only subscriptions without a
        template match it."""
        number = self._registrations.get(registration, NOBODY)
        found = self._topics.get(number)
        if found is None:
            found = self._made(*self._terms[number])
            self._kept += len(found.candidates)
            if self._kept > MOST_KEPT:
                self._topics.clear()
                self._kept = len(found.candidates)
            self._topics[number] = found
        return found

    def _made(self, entries: tuple[EntryRep, ...], owner: str) -> JudgingTopic:
        is_relayed = any(entry.cls.name == RelayedEntry.entry_name for entry in entries)
        candidates = [self.wanted[number] for number in sorted(self._templates.find(entries))]
        topic = JudgingTopic(tuple([each for each in candidates if each.takes(owner, is_relayed)]))
        numbers = [each.number for each in topic.candidates]
        if len(numbers) <= LARGEST_OWN or not self._alone.isdisjoint(numbers):
            return topic
        classes = tuple(entry.cls for entry in entries)
        topic.shared, known = self._shared.setdefault(classes, (PredicateIndex(), set()))
        topic.chosen = bytearray(self._subscriptions)
        topic.always = tuple(self._always.intersection(numbers))
        for number in numbers:
            topic.chosen[number] = 1
        for number in topic.always:
            topic.chosen[number] = 0
        for number in {*numbers} - self._always - known:
            topic.shared.add(number, self.wanted[number].predicate)
            known.add(number)
        return topic

    def judge(self, publication: PublicationRow) -> MatchedRow:
        """Judge a publication. Raises MetadataError or OversizeError, as a delegate refuses it, and StudyError for a
        row that makes no sense."""
        if wrong := fault(publication):
            raise StudyError(wrong)
        topic = self.topic(publication.publisher)
        root = parse_metadata(publication.metadata)
        matched = _matched(topic, root, len(publication.metadata))
        matched.sort()
        return MatchedRow(publication, topic, root, matched)

    def deliveries(self, seen: MatchedRow) -> list[Delivery]:
        """Deliveries, with the payload that is left, ascending: without those whose filter selects nothing and who want
        nothing then. As a delegate cuts: a payload that is no XML goes as it is, and so does here one that was not
        kept (`has_unknown`); XML beyond what is filtered goes to those with a filter who want it `unfiltered`."""
        matched = [self.wanted[number] for number in seen.matched]
        filters = {wanted.filter for wanted in matched if wanted.filter is not None}
        payload = seen.publication.payload
        try:
            document = parse_payload(payload) if filters and payload else None
        except OversizeError:
            left = [each for each in matched if each.filter is None or each.subscription.unfiltered == "deliver"]
            seen.withheld = len(matched) - len(left)
            return [Delivery(wanted, None) for wanted in left]
        if document is None:
            return [Delivery(wanted, None) for wanted in matched]
        cuts = select(filters, document, len(payload or b""))
        found: list[Delivery] = []
        for wanted in matched:
            cut = cuts[wanted.filter] if wanted.filter is not None else None
            if cut is None or cut.count or not wanted.subscription.suppress_empty:
                found.append(Delivery(wanted, cut.payload if cut is not None else None))
        return found


def has_unknown(seen: MatchedRow, delivery: Delivery) -> bool:
    """Whether its filter could not be applied, as the payload was not kept."""
    publication = seen.publication
    return delivery.wanted.filter is not None and publication.payload is None and publication.payload_bytes > 0


def contents(deliveries: Iterable[Delivery]) -> dict[str, set[bytes | None]]:
    """Payloads that go to each process: equal payloads once."""
    found: dict[str, set[bytes | None]] = {}
    for wanted, payload in deliveries:
        found.setdefault(wanted.process, set()).add(payload)
    return found


def _matched(topic: JudgingTopic, root: Element, size: int) -> list[int]:
    if topic.shared is not None:
        before = topic.shared.by_lxml()
        found = topic.shared.match(root, size)
        if topic.shared.by_lxml() == before:
            return [*filter(topic.chosen.__getitem__, found), *topic.always]
        # Several nodes at a path: lxml was asked, with candidates of others in its time. Decide as a delegate would.
    if topic.index is None:
        topic.index = PredicateIndex()
        for each in topic.candidates:
            topic.index.add(each.number, each.predicate)
    return topic.index.match(root, size)


Sums = dict[tuple[str, str], list[int]]
"""Sums that studies count: by what and of which, [number, bytes, sum of hashes of 31 bits]. Adding the sums of parts
gives the sums of the whole, in any order: so the parts may be judged anywhere."""

MANY: Final = "\0"
"""Stands for the values of something that has more than one."""


class TaskSums:
    """Counts of the publications of a task. All that it comes to are sums."""

    def __init__(self) -> None:
        self.sums: Sums = {}
        self._kept: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._values: dict[tuple[str, str], str] = {}

    def add(self, what: str, key: str, number: int = 1, size: int = 0, mixed: int = 0) -> None:
        """Add to one of the sums."""
        found = self.sums.get((what, key))
        if found is None:
            self.sums[what, key] = [number, size, mixed]
        else:
            found[0] += number
            found[1] += size
            found[2] += mixed

    def keep(self, what: str, group: str, rank: int, text: str, most: int) -> None:
        """Keep the `most` texts of lowest rank, which is 0 at least, in a group. The lowest of all are among the lowest
        of each task, so who they are does not depend on the tasks."""
        kept = self._kept.setdefault((what, group), [])
        if (len(kept) < most or (rank, text) < kept[-1]) and (rank, text) not in kept:
            insort(kept, (rank, text))
            del kept[most:]

    def value(self, what: str, key: str, value: str) -> None:
        """Count a value of something; of several they are counted together."""
        known = self._values.setdefault((what, key), value)
        if known != value:
            self._values[what, key] = MANY
            if known != MANY:
                self.add(what, f"{key}{MANY}{MANY}", *self.sums.pop((what, f"{key}{MANY}{known}")))
        self.add(what, f"{key}{MANY}{self._values[what, key]}")

    def closed(self) -> Sums:
        """The sums, with what was kept among them."""
        for (what, group), kept in self._kept.items():
            for rank, text in kept:
                self.sums[what, f"{group}{MANY}{rank:018x}{MANY}{text}"] = [1, 0, 0]
        self._kept.clear()
        return self.sums


See = Callable[[Judge, MatchedRow, TaskSums], None]
"""Function by which a study counts one publication: of a module, for it goes to other processes by its name."""


NOBODY: Final = 0
"""Where the terms of a registration stand that nobody knows."""


class Packed(msgspec.Struct, frozen=True):
    """Contracts as processes that judge need them: equal terms of registrations, entries and owner, once."""

    terms: tuple[tuple[tuple[EntryRep, ...], str], ...]
    registrations: dict[str, int]
    subscriptions: tuple[SubscriptionRow, ...]


def _packed(contracts: Contracts) -> Packed:
    numbers: dict[tuple[tuple[EntryRep, ...], str], int] = {((), ""): NOBODY}
    places = {
        each.registration: numbers.setdefault((each.entries, each.owner), len(numbers))
        for each in contracts.registrations
    }
    return Packed(tuple(numbers), places, contracts.subscriptions)


@lru_cache(maxsize=2)
def judge_of(packed: bytes) -> Judge:
    """The judge of packed contracts: made once in a process, however many tasks it gets."""
    return Judge(_unpack(packed))


_unpack: Final = msgspec.msgpack.Decoder(Packed).decode


def pack(contracts: Contracts) -> bytes:
    """Contracts as they are sent to other processes."""
    return msgspec.msgpack.encode(_packed(contracts))


def judged(packed: bytes, see: See, publications: Iterable[PublicationRow], rejects: list[Reject]) -> Sums:
    """The sums of publications. To `rejects` what a delegate would refuse, not much more than MAX_REJECTS; all are
    counted as ("rejected", ""). Raises StudyError for more than MAX_SUMS."""
    judge, tally = judge_of(packed), TaskSums()
    for publication in publications:
        try:
            seen = judge.judge(publication)
        except JbiError as error:
            tally.add("rejected", "")
            rejects.append(Reject("publications", sayable(publication.object_id, 200), sayable(str(error), 500)))
            if len(rejects) > 2 * MAX_REJECTS:
                rejects[:] = tidy(rejects)
            continue
        tally.add("publications", publication.publisher, 1, seen.size)
        if not judge.knows(publication.publisher):
            tally.add("unregistered", "")
        see(judge, seen, tally)
        if len(tally.sums) > MAX_SUMS:
            raise StudyError(
                f"more than {MAX_SUMS:,} different things to count, at publication {publication.object_id[:100]}",
                hint="Look for publications that each have a publisher of their own",
            )
    return tally.closed()


def tidy(rejects: Iterable[Reject]) -> list[Reject]:
    """The first MAX_REJECTS, in an order that does not depend on who found them."""
    return sorted(set(rejects), key=lambda each: (each.table, each.row, each.reason))[:MAX_REJECTS]
