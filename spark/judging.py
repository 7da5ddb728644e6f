"""Both levels of matching for publications in bulk, as a delegate decides them: the lookup service's index for
templates, the product's PredicateIndex for predicates, PayloadFilter for payloads. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

import msgspec

from jbi_pubsub.core.errors import JbiError, OversizeError
from jbi_pubsub.core.xml import Element, parse_metadata, parse_payload
from jbi_pubsub.core.xpath import PayloadFilter, Predicate, PredicateIndex, compile_filter, compile_predicate, select
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.index import TemplateIndex

from .dataset import Contracts, Publication, Reject, Subscription

MAX_REJECTS: Final = 1_000
"""Rejects of a task that are kept with their reason; all are counted."""


class Wanted(msgspec.Struct, frozen=True, eq=False):
    """A subscription, compiled."""

    number: int
    subscription: Subscription
    predicate: Predicate | None
    filter: PayloadFilter | None


class Topic(msgspec.Struct, eq=False):
    """Registrations with equal entries: the subscriptions that their objects are judged for, and their predicates."""

    candidates: tuple[Wanted, ...]
    index: PredicateIndex[int]
    evaluated: bool
    """Whether a document has to be looked at at all."""


class Seen(msgspec.Struct, eq=False, gc=False):
    """A publication that was judged: its topic and registration, its document, and whom it matches, ascending."""

    publication: Publication
    topic: Topic
    root: Element
    matched: list[int]

    @property
    def size(self) -> int:
        """Bytes of metadata and payload."""
        return len(self.publication.metadata) + self.publication.payload_bytes


class Judge:
    """Decides for publications of the registrations of some contracts. One thread at a time.

    `rejects` are the subscriptions that no delegate would take.
    """

    def __init__(self, contracts: Contracts) -> None:
        self.wanted: list[Wanted | None] = []
        self.rejects: list[Reject] = []
        self._entries = {each.registration: each.entries for each in contracts.registrations}
        self._topics: dict[tuple[EntryRep, ...], Topic] = {}
        self._templates: TemplateIndex[int] = TemplateIndex()
        for number, subscription in enumerate(contracts.subscriptions):
            self.wanted.append(self._compiled(number, subscription))

    def _compiled(self, number: int, given: Subscription) -> Wanted | None:
        try:
            predicate = wanted = None
            if given.predicate:
                predicate = compile_predicate(
                    given.predicate, namespaces=given.namespaces, language=given.language or "xpath"
                )
            if given.filter:
                wanted = compile_filter(given.filter, namespaces=given.namespaces)
            self._templates.add(number, given.template)
        except JbiError as error:
            self.rejects.append(Reject("subscriptions", given.subscription, str(error)[:500]))
            return None
        return Wanted(number, given, predicate, wanted)

    def topic(self, registration: str) -> Topic:
        """Of a registration; one that the contracts don't know has no entries, and only subscriptions without a
        template match it."""
        entries = self._entries.get(registration, ())
        found = self._topics.get(entries)
        if found is None:
            found = self._topics[entries] = self._made(entries)
        return found

    def _made(self, entries: tuple[EntryRep, ...]) -> Topic:
        index: PredicateIndex[int] = PredicateIndex()
        candidates = [each for n in sorted(self._templates.find(entries)) if (each := self.wanted[n]) is not None]
        for each in candidates:
            index.add(each.number, each.predicate)
        return Topic(tuple(candidates), index, any(each.predicate is not None for each in candidates))

    def judge(self, publication: Publication) -> Seen:
        """What becomes of it. Raises MetadataError or OversizeError, as a delegate refuses it."""
        topic = self.topic(publication.publisher)
        root = parse_metadata(publication.metadata)
        matched = topic.index.match(root, len(publication.metadata))
        matched.sort()
        return Seen(publication, topic, root, matched)

    def cut(self, seen: Seen) -> dict[int, int]:
        """Bytes of the payload that each matched subscription gets, by its number, without those whose filter selects
        nothing and who want nothing then. As a delegate cuts: a payload that is no XML goes as it is, and so does here
        one that was not kept."""
        whole = seen.publication.payload_bytes
        sizes = dict.fromkeys(seen.matched, whole)
        filters: dict[PayloadFilter, list[int]] = {}
        for number in seen.matched:
            wanted = self.wanted[number]
            if wanted is not None and wanted.filter is not None:
                filters.setdefault(wanted.filter, []).append(number)
        payload = seen.publication.payload
        document = parse_payload(payload) if filters and payload else None
        if document is not None:
            for each, selection in select(filters, document, whole).items():
                for number in filters[each]:
                    sizes[number] = len(selection.payload)
                    wanted = self.wanted[number]
                    if not selection.count and wanted is not None and wanted.subscription.suppress_empty:
                        del sizes[number]
        return sizes


Sums = dict[tuple[str, str], list[int]]
"""What studies count: by what and of which, (number, bytes, XOR of hashes). Adding the sums of parts gives the sums of
the whole, in any order: so the parts may be judged anywhere."""


def add(sums: Sums, what: str, key: str, number: int = 1, size: int = 0, mixed: int = 0) -> None:
    """Add to one of the sums."""
    found = sums.get((what, key))
    if found is None:
        sums[what, key] = [number, size, mixed]
    else:
        found[0] += number
        found[1] += size
        found[2] ^= mixed


See = Callable[[Judge, Seen, Sums], None]
"""What a study counts of one publication. A function of a module, for it goes to other processes by its name."""


@lru_cache(maxsize=2)
def judge_of(packed: bytes) -> Judge:
    """The judge of packed contracts: made once in a process, however many tasks it gets."""
    return Judge(_unpack(packed))


_unpack: Final = msgspec.msgpack.Decoder(Contracts).decode


def pack(contracts: Contracts) -> bytes:
    """Contracts as they are sent to other processes."""
    return msgspec.msgpack.encode(contracts)


def judged(
    packed: bytes, see: See, publications: Iterable[Publication], rejects: list[Reject]
) -> Iterator[Sums]:
    """The sums of publications, in one piece. To `rejects` what a delegate would refuse, MAX_REJECTS at most; all are
    counted as ("rejected", "")."""
    judge, sums = judge_of(packed), Sums()
    for publication in publications:
        try:
            seen = judge.judge(publication)
        except (JbiError, OversizeError) as error:
            add(sums, "rejected", "")
            if len(rejects) < MAX_REJECTS:
                rejects.append(Reject("publications", publication.object_id, str(error)[:500]))
            continue
        add(sums, "publications", publication.publisher, 1, seen.size)
        see(judge, seen, sums)
    yield sums
