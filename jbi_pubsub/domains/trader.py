"""The trader: offers of services, found by a constraint over their properties (OMG Trading Object Service 1.0; paper
4(2)). Pure: offers are items of lookup services, told by whoever watches those.

What a constraint says of equal values is looked up in an index, and the rest is evaluated for what that leaves.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Annotated, Final, Literal

import msgspec

from jbi_pubsub.core.constraint import Constraint, Preference
from jbi_pubsub.core.errors import EntryError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.index import EntryIndex
from jbi_pubsub.lookup.item import ServiceItem

from .service_type import NAME_MOST, PropertyValue, ServiceType, offered

OFFERS_MOST: Final = 1_000
"""Offers that one query returns."""
SEARCHED: Final = 100_000
MATCHED: Final = 10_000
TIMEOUT_MOST: Final = 60.0
"""Seconds that a query may take."""
Name = Annotated[str, msgspec.Meta(max_length=NAME_MOST)]


class OfferQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query for offers of a service type and its subtypes (the standard's Lookup::query and its policies)."""

    type: Name
    constraint: Annotated[str, msgspec.Meta(max_length=32_768)] = ""
    """In the constraint language; "" for all."""
    preference: Annotated[str, msgspec.Meta(max_length=32_768)] = ""
    """"max e", "min e", "with c", "random" or "first": which offers come first."""
    properties: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)] | None = None
    """Names of those whose values are wanted; None for all."""
    exact_type: bool = False
    """No subtypes."""
    searched: Annotated[int, msgspec.Meta(ge=1)] = SEARCHED
    """Offers that are looked at, at most."""
    matched: Annotated[int, msgspec.Meta(ge=1)] = MATCHED
    """Offers that are put in order, at most."""
    returned: Annotated[int, msgspec.Meta(ge=0, le=OFFERS_MOST)] = 100
    """Offers that are returned, at most."""
    follow: Literal["local_only", "if_no_local", "always"] = "if_no_local"
    """Whether linked traders are asked, too."""
    hops: Annotated[int, msgspec.Meta(ge=0, le=16)] = 4
    """Links behind one another that the query may go."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MOST)] = 5.0
    """Seconds, for all traders together."""
    id: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """By which a trader knows that it was asked already."""


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service as it is offered: how to reach it, and its properties."""

    id: str
    type: str
    reference: ServiceRef
    properties: dict[str, str | int | float | bool | tuple[str, ...]] = {}  # msgspec copies it


class OfferAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer to a query: offers in order of preference, and what may be missing."""

    offers: tuple[Offer, ...] = ()
    partial: tuple[str, ...] = ()
    """Traders that did not answer, and limits that were reached; () when nothing is missing."""


@dataclass(frozen=True, slots=True)
class _Offered:
    item: ServiceItem
    type: ServiceType
    values: Mapping[str, PropertyValue]


class Trader:
    """Offers by id, and by their equal values. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: dict[str, _Offered] = {}
        self._index: EntryIndex[str] = EntryIndex()
        self._types: dict[str, dict[ServiceType, int]] = {}
        """Types by name, each with the number of its offers; of one name there may be several, from hosts that do not
        know of each other."""

    def __len__(self) -> int:
        return len(self._offers)

    def put(self, item: ServiceItem) -> None:
        """An item has come, or is another one. Raises EntryError for an offer that contradicts itself."""
        said = offered(item.entries)
        if said is not None:
            said[0].check_reference(item.proxy)
        with self._lock:
            self._drop(item.service_id)
            if said is None:
                return
            kept = self._offers[item.service_id] = _Offered(item, *said)
            self._index.add(item.service_id, [entry for entry in item.entries if entry.cls == kept.type.identity])
            for each in kept.type.lineage:
                counts = self._types.setdefault(each.name, {})
                counts[each] = counts.get(each, 0) + 1

    def remove(self, offer_id: str) -> None:
        """An item has left, if it was an offer."""
        with self._lock:
            self._drop(offer_id)

    def _drop(self, offer_id: str) -> None:
        gone = self._offers.pop(offer_id, None)
        if gone is None:
            return
        self._index.remove(offer_id)
        for each in gone.type.lineage:
            counts = self._types[each.name]
            counts[each] -= 1
            if not counts[each]:
                del counts[each]
            if not counts:
                del self._types[each.name]

    def offer(self, offer_id: str) -> Offer:
        """One offer. Raises UnknownUidError."""
        with self._lock:
            found = self._offers.get(offer_id)
        if found is None:
            raise UnknownUidError(f"no offer {offer_id[:80]}", uid=offer_id[:80])
        return _shown(found)

    def types(self, is_permitted: Callable[[ServiceItem], bool] = lambda _: True) -> list[tuple[ServiceType, int]]:
        """Service types of the offers that whoever asks may know of, by name, and the number of these offers."""
        with self._lock:
            offers = list(self._offers.values())
        counts = Counter(type_ for each in offers if is_permitted(each.item) for type_ in each.type.lineage)
        return sorted(counts.items(), key=lambda counted: counted[0].name)

    def type(self, name: str) -> ServiceType | None:
        """The service type of that name, if something of it is offered."""
        with self._lock:
            return next(iter(self._types.get(name, ())), None)

    def query(self, query: OfferQuery, is_permitted: Callable[[ServiceItem], bool] = lambda _: True) -> OfferAnswer:
        """The offers that match, of those that whoever asks may know of. Raises PredicateError."""
        constraint, preference = _constraint(query.constraint), Preference(query.preference)
        permitted = (each for each in self._candidates(query, constraint) if is_permitted(each.item))
        candidates = islice(permitted, query.searched + 1)
        found: list[_Offered] = []
        partial: list[str] = []
        for number, each in enumerate(candidates):
            if number == query.searched:
                partial.append(f"only {query.searched:,} offers were looked at")
            elif constraint.matches(each.values):
                found.append(each)
                if len(found) > query.matched:
                    partial.append(f"only {query.matched:,} matching offers were put in order")
                    found.pop()
                    break
        chosen = preference.ordered(found, lambda each: each.values)[: query.returned]
        if len(found) > len(chosen):
            partial.append(f"{len(found):,} offers match; {len(chosen):,} are returned")
        return with_properties(query, OfferAnswer(tuple(map(_shown, chosen)), tuple(partial)))

    def _candidates(self, query: OfferQuery, constraint: Constraint) -> Iterator[_Offered]:
        with self._lock:
            ids: list[str] = []
            for type_ in self._types.get(query.type, ()):
                template = _template(type_, constraint.equalities)
                if template is not None and self._index.has_class(type_.identity.lineage[0]):
                    ids += self._index.find([template])
            found = [self._offers[each] for each in ids]
        return (each for each in found if not query.exact_type or each.type.name == query.type)


def with_properties(query: OfferQuery, answer: OfferAnswer) -> OfferAnswer:
    """An answer with the values that are wanted alone; others order it until it is whole."""
    if query.properties is None:
        return answer
    wanted = set(query.properties)
    offers = (
        msgspec.structs.replace(each, properties={k: v for k, v in each.properties.items() if k in wanted})
        for each in answer.offers
    )
    return msgspec.structs.replace(answer, offers=tuple(offers))


def joined(query: OfferQuery, answers: Sequence[OfferAnswer]) -> OfferAnswer:
    """The offers of several answers, with all of their properties, each once, in order of preference; of equal ones
    those of the first answer come first."""
    every = {each.id: each for answer in reversed(answers) for each in reversed(answer.offers)}
    found = list(reversed(every.values()))
    chosen = Preference(query.preference).ordered(found, lambda each: each.properties)[: query.returned]
    notes = [note for answer in answers for note in answer.partial]
    if len(chosen) < len(found):
        notes.append(f"{len(found):,} offers match; {len(chosen):,} are returned")
    return OfferAnswer(tuple(chosen), tuple(dict.fromkeys(notes)))


@lru_cache(maxsize=256)  # many ask the same; a bound because others choose them
def _constraint(text: str) -> Constraint:
    return Constraint(text)


def _template(type_: ServiceType, equal: Mapping[str, PropertyValue]) -> EntryRep | None:
    """Entry with these values, as far as the type knows the properties: subtypes may have others. None: nothing can."""
    texts: list[str | None] = []
    for name, property_ in type_.every.items():
        try:
            texts.append(property_.text(equal[name]) if name in equal else None)
        except EntryError:
            value = equal[name]
            if not isinstance(value, float) or not value.is_integer():
                return None
            texts.append(str(int(value)))
    return EntryRep(type_.identity, tuple(texts))


def _shown(offered_: _Offered) -> Offer:
    return Offer(offered_.item.service_id, offered_.type.name, offered_.item.proxy, dict(offered_.values))
