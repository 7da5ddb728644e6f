"""Dissemination of one information object: validate, match, filter. Pure: no network, thread or clock.

Rules:
- First level was decided at registration; here only predicates of subscriptions that matched it are asked
  (paper section 1). Metadata are parsed once; metadata equal to the ones before are not judged again.
- A predicate or filter that fails for an object is false for it and disturbs nobody else.
- A filter is computed once per distinct text and object. An object is never encoded again: the bytes that came are
  what goes out, shared by all who get them; of a filtered one all but the payload. Metadata are never modified (paper
  section 2.3.2).
- A payload that is not well-formed XML passes every filter unchanged (paper section 2.4(5)). XML that core/xml.py does
  not read is withheld from those with a filter, or goes to them whole, if they say so.
- With QoS, what the filter has left is shaped as the contract says, once for each filter and shape. Lengths as
  published stay in the head: a receiver sees that something was taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from jbi_pubsub.core.combined import Provenance
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.quality import PayloadShape, Settings
from jbi_pubsub.core.spool import COST_LEAST, MEMORY_BYTES
from jbi_pubsub.core.xml import LOOK_BYTES, Element, give_back, looks_like_xml, parse_payload
from jbi_pubsub.core.xpath import PayloadFilter, select
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.partition import Partition
from jbi_pubsub.pad.model.quality import Shaping
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.conformity import REMEMBERED_BYTES, Conformity, InformationTypeGate

NOWHERE: Final = Provenance()


def takes(subscription: Subscription, origin: Provenance) -> bool:
    """Whether a subscription wants objects of a publisher, whatever is in them."""
    request = subscription.request
    return not (request.unlike and request.unlike == origin.owner) and not (request.local and origin.is_relayed)


class Selected(NamedTuple):
    """One object for one subscription. `filtered` False: there is a filter, but the payload is not XML, or beyond what
    it is applied to; `wanted`: the filter that has cut it."""

    subscription: Subscription
    parcel: Parcel
    filtered: bool = True
    wanted: PayloadFilter | None = None


class Disseminated(NamedTuple):
    """Outcome for an object: deliveries, those whose filter selected nothing and who asked for silence, those whose
    contract or filter it is too large for, and those who have it shaped later."""

    selected: Sequence[Selected]
    suppressed: Sequence[Subscription] = ()
    oversize: Sequence[Subscription] = ()
    later: Sequence[Selected] = ()


ShapedLater = Callable[[Selected, tuple[PayloadShape, ...]], bool]
"""Whether somebody gets an object later, in the shapes that it is to have now ((): as it is)."""


class Seal(Protocol):
    """The statement on a payload that was cut or shaped (see signed.py)."""

    def __call__(self, parcel: Parcel, wanted: PayloadFilter | None, cut: bytes, *, is_shaped: bool = False) -> bytes:
        """Seal a cut: of which object, by which filter, to what."""
        ...


class Judgement:
    """Judgement of a registration's last metadata: whether they pass, and whom they match.

    A source whose objects differ in their payloads alone (frames of a camera, samples of a sensor) asks the same again
    and again; the answer holds while the metadata and the table's subscriptions are the same. One thread at a time.
    """

    __slots__ = (
        "_at",
        "_checked",
        "_conformity",
        "_matched",
        "_metadata",
        "_version",
        "_viewed",
        "gate",
        "origin",
        "table",
    )

    def __init__(
        self,
        gate: InformationTypeGate,
        entries: tuple[EntryRep, ...],
        table: MatchTable,
        *,
        validate: bool,
        well_formed: bool = True,
        origin: Provenance = NOWHERE,
    ) -> None:
        self._conformity = Conformity(gate, entries, validate=validate, well_formed=well_formed)
        self.gate: Final = gate
        self.table = table
        self.origin: Final = origin
        """The provenance: who publishes, and where."""
        self._viewed: tuple[int, int, frozenset[Subscription]] = -1, -1, frozenset()
        """Number of the object whose combined view was looked at last, at which version of the table, and whom it
        matched."""
        self._checked: bytes | None = None  # none yet
        self._metadata: bytes | None = None
        """Those that were matched last; of a run all are checked before the first one is matched."""
        self._version = -1
        self._matched: list[Subscription] = []
        self._at: dict[int, tuple[int, bytes, list[Subscription]]] = {}
        """By level, where the table is partitioned: its version, the metadata matched last, and whom they matched."""

    @property
    def validates(self) -> bool:
        """Whether the metadata have to be valid, beside having the registered invariants."""
        return self._conformity.validates

    def check(self, metadata: bytes) -> Element | Traced | None:
        """The document, for `match`; None: the same as last time, and as good. Raises MetadataError, InvariantError or
        OversizeError."""
        if metadata == self._checked:
            return None
        document = self._conformity.check(metadata)
        if len(metadata) <= REMEMBERED_BYTES:
            self._checked = metadata
        return document

    def misfit(self, metadata: bytes, root: Element | None) -> str:
        """See Conformity. Any thread."""
        return self._conformity.misfit(metadata, root)

    def match(self, metadata: bytes, document: Element | Traced | None) -> list[Subscription]:
        """The subscriptions whose predicate is true for metadata that were checked."""
        table = self.table
        version = table.version  # read first: what is added meanwhile makes the answer stale
        is_read = True
        if document is None:
            if version == self._version and metadata == self._metadata:
                table.count_again()
                return self._matched
            is_read = table.predicates > 0
            document = self.read(metadata) if is_read else None
        matched = table.match(document, len(metadata))
        if not is_read and table.predicates:  # since it was found that there are none
            matched = table.match(self.read(metadata), len(metadata))
        if len(metadata) <= REMEMBERED_BYTES:
            self._metadata, self._version, self._matched = metadata, version, matched
        return matched

    def match_at(
        self, parts: Partition, level: int, position: int, metadata: bytes, document: Element | Traced | None
    ) -> list[Subscription]:
        """The same for the object at that position and one level of importance."""
        while True:
            moves = parts.moves
            matched = self._matched_at(parts, level, metadata, document)
            if parts.moves is moves:
                break
        if moves:
            matched = [s for s in matched if (move := moves.get(s)) is None or move.level(position) == level]
        return matched

    def _matched_at(
        self, parts: Partition, level: int, metadata: bytes, document: Element | Traced | None
    ) -> list[Subscription]:
        table = self.table
        version = table.version  # read first, as above
        known = self._at.get(level)
        if known is not None and known[0] == version and known[1] == metadata:
            if table.predicates:
                parts.count_again_at(level)
            return known[2]
        is_read = table.predicates > 0
        if not is_read:
            document = None
        elif document is None:
            document = self.read(metadata)
        matched = parts.match_at(level, document, len(metadata))
        if not is_read and table.predicates:  # since it was found that there are none
            matched = parts.match_at(level, self.read(metadata), len(metadata))
        if len(metadata) <= REMEMBERED_BYTES:
            self._at[level] = version, metadata, matched
        return matched

    def select(self, matched: list[Subscription], head: Head) -> list[Subscription]:
        """Subscriptions, of those that the metadata match, that want the object: see MatchTable.selective."""
        wanted = [each for each in matched if takes(each, self.origin)]
        if not any(each.combined is not None for each in wanted):
            return wanted
        version = self.table.version
        if self._viewed[:2] != (head.sequence, version):
            self._viewed = head.sequence, version, self.table.view(head, self.origin)
        return [each for each in wanted if each.combined is None or each in self._viewed[2]]

    def read(self, metadata: bytes) -> Element | Traced | None:
        """The document of metadata that were good when they came; None: they are none. Any thread."""
        return self._conformity.read(metadata)


def disseminate(
    parcel: Parcel,
    matched: list[Subscription],
    seal: Seal | None = None,
    shaper: Shaping | None = None,
    is_later: ShapedLater | None = None,
) -> Disseminated:
    """Filter the object for those it matched, and shape what is left as their contracts say."""
    if parcel.size >= COST_LEAST and parcel.spooled is not None:
        return _disseminate_large(parcel, matched, seal, shaper, is_later)
    filters = [s.payload_filter for s in matched]  # looked at once: they may be amended meanwhile
    cuts, withheld = None, False
    try:
        cuts = _cuts(parcel, {each for each in filters if each is not None}, seal)
    except OversizeError:
        withheld = True
    selected: list[Selected] = []
    suppressed: list[Subscription] = []
    oversize: list[Subscription] = []
    for subscription, wanted in zip(matched, filters, strict=True):
        if wanted is not None and withheld and subscription.request.unfiltered == "withhold":
            oversize.append(subscription)
            continue
        if wanted is None or cuts is None:
            selected.append(Selected(subscription, parcel, filtered=wanted is None))
            continue
        count, rest = cuts[wanted]
        if count == 0 and subscription.request.suppress_empty:
            suppressed.append(subscription)
        else:
            selected.append(Selected(subscription, rest, wanted=wanted))
    if shaper is None:
        return Disseminated(selected, suppressed, oversize)
    result = shaped(parcel, selected, seal, shaper, is_later)
    return result._replace(suppressed=suppressed, oversize=[*oversize, *result.oversize])


def _disseminate_large(
    parcel: Parcel,
    matched: list[Subscription],
    seal: Seal | None,
    shaper: Shaping | None,
    is_later: ShapedLater | None,
) -> Disseminated:
    """One whose payload lies in a file: most get it from there. For those who have it filtered or shaped it is read
    into memory, if that is not too much for it; else it is too large for them, unless it is no XML to filter."""
    looked_at = [s for s in matched if s.payload_filter is not None or (shaper is not None and is_shaped(s))]
    spooled = parcel.spooled
    is_read = spooled is None or len(spooled) <= MEMORY_BYTES
    if spooled is not None and not is_read and looked_at:
        is_xml = looks_like_xml(spooled.read(0, LOOK_BYTES))
        looked_at = [s for s in looked_at if (is_xml and s.request.unfiltered == "withhold") or is_shaped(s)]
    apart = set(looked_at)
    others = [Selected(s, parcel, filtered=s.payload_filter is None) for s in matched if s not in apart]
    later = [each for each in others if is_later is not None and is_later(each, ())]
    ready = [each for each in others if each not in later]
    if not is_read or not looked_at:
        return Disseminated(ready, (), looked_at, later)
    read = parcel.in_memory()
    result = disseminate(read, looked_at, seal, shaper, is_later)
    ready += [each._replace(parcel=parcel) if each.parcel is read else each for each in result.selected]
    return result._replace(selected=ready, later=[*later, *result.later])


def is_shaped(subscription: Subscription) -> bool:
    """Whether its contract may have payloads shaped, or large objects dropped."""
    contract = subscription.contract
    if contract is None:
        return False
    settings = contract.settings
    return bool(settings.shapes) or settings.max_size is not None or contract.by_object is not None


def shaped(
    published: Parcel,
    selected: Sequence[Selected],
    seal: Seal | None,
    shaper: Shaping,
    is_later: ShapedLater | None = None,
) -> Disseminated:
    """The selected ones in the shapes of their contracts, but for those that are still too large for theirs."""
    made: dict[tuple[int, tuple[PayloadShape, ...]], Parcel | None] = {}
    ready: list[Selected] = []
    oversize: list[Subscription] = []
    later: list[Selected] = []
    for each in selected:
        subscription, parcel = each.subscription, each.parcel
        settings = subscription.contract.of(published) if subscription.contract is not None else None
        if settings is None:
            ready.append(each)
            continue
        shapes = settings.shapes if shaper.is_on and _is_to_shape(parcel, settings) else ()
        if is_later is not None and is_later(each, shapes):
            later.append(each)
            continue
        if shapes:
            key = id(parcel), shapes
            if key not in made:
                made[key] = _shape(published, each, shapes, seal, shaper)
            smaller = made[key]
            subscription.unshaped += smaller is None
            if smaller is not None:
                subscription.saved += parcel.size - smaller.size
                parcel = smaller
        if settings.oversize == "drop" and settings.max_size is not None and _length(parcel) > settings.max_size:
            oversize.append(subscription)
        else:
            ready.append(each if parcel is each.parcel else each._replace(parcel=parcel))
    return Disseminated(ready, (), oversize, later)


def _is_to_shape(parcel: Parcel, settings: Settings) -> bool:
    """With `oversize` = "shape" that is what becomes of larger ones; else of all."""
    if not settings.shapes or not parcel.payload_size:
        return False
    return settings.oversize == "drop" or settings.max_size is None or _length(parcel) > settings.max_size


def _length(parcel: Parcel) -> int:
    """Metadata and payload."""
    return len(parcel.head.metadata) + parcel.payload_size


def _shape(
    published: Parcel, each: Selected, shapes: tuple[PayloadShape, ...], seal: Seal | None, shaper: Shaping
) -> Parcel | None:
    """The parcel to deliver instead of what the filter has left; None: that stays."""
    wanted, payload = each.wanted, each.parcel.payload
    shaped = shaper.shape(published.head, wanted, payload, shapes)
    if shaped is None:
        return None
    if len(shaped) == len(payload):  # small enough already
        return each.parcel
    sealed = seal(published, wanted, shaped, is_shaped=True) if seal is not None else b""
    return published.with_payload(shaped, sealed)


def _cuts(
    parcel: Parcel, filters: set[PayloadFilter], seal: Seal | None
) -> dict[PayloadFilter, tuple[int, Parcel]] | None:
    """Selections of the filters: how many parts, and the object with them; None when the payload is no XML to filter.
    Raises OversizeError when it is XML beyond the limits."""
    if not filters:
        return None
    payload = bytes(parcel.payload)
    parsed = parse_payload(payload)
    if parsed is None:
        return None
    found = select(filters, parsed, len(payload))
    del parsed
    give_back(len(payload))
    return {
        each: (cut.count, parcel.with_payload(cut.payload, seal(parcel, each, cut.payload) if seal else b""))
        for each, cut in found.items()
    }
