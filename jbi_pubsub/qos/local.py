"""Contracts and what is in force for each: the local manager of a delegate or peer publisher (QED, section III).

Theory of operation: contracts of equal facts and wishes are a *class*, which is resolved once. When policies change, or
the time is come, classes are resolved again and the settings of their contracts replaced as a whole: whoever serves
them reads one attribute. What policies ask of resources is decided by a tick, four times a second, with hysteresis;
what they ask of objects is decided for each object, by conditions that were made when the policies were read.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Parcel, Part
from jbi_pubsub.core.quality import (
    DEFAULT,
    Contract,
    GrantedQos,
    PayloadShape,
    Resources,
    Settings,
    Space,
    Wish,
    checked_wish,
    demanded,
)
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import Element, read_metadata
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.policy.condition import Bound, Node, about_resources, holds, tests_of
from jbi_pubsub.policy.context import CallerFacts, facts_of
from jbi_pubsub.policy.policy import Resolution, granted
from jbi_pubsub.policy.policyset import NOTHING, PolicySet
from jbi_pubsub.protocol.status.quality import PolicyInForce

TICK_SECONDS: Final = 0.25
"""Between two looks at resources."""
HOLD_SECONDS: Final = 1.0
"""Seconds for which a decision about a resource stays: who hovers about a limit does not flap."""
MARGIN: Final = 0.1
"""A condition about a resource ends only when it is missed by a tenth."""
CLOCK_SECONDS: Final = 1.0
"""Between two looks at the wall clock, which may jump."""
TYPES_MOST: Final = 1_000
"""Information object types of which a contract that names none remembers what is in force."""
SNIFFED: Final = 512
"""Bytes of a payload that its type is told by."""

Changed = Callable[[GrantedQos], None]
"""Told of what a contract has got from now on."""


class ClassContract(Contract):
    """A contract with its class, and who is told when it gets something else."""

    __slots__ = ("changed", "kind")

    def __init__(self, kind: ContractClass, changed: Changed | None) -> None:
        super().__init__(kind.granted.settings, kind.by_object)
        self.kind = kind
        self.changed = changed


class ContractClass:
    """Contracts of equal facts and wishes."""

    __slots__ = ("by_object", "contracts", "facts", "granted", "policies", "resolution", "shapes", "wish")

    def __init__(self, facts: CallerFacts, wish: Wish, shapes: tuple[PayloadShape, ...]) -> None:
        self.facts = facts
        self.wish = wish
        self.shapes = shapes
        self.contracts: dict[ClassContract, None] = {}
        self.policies = NOTHING
        self.resolution = Resolution(facts, ())
        self.granted = GrantedQos()
        self.by_object: Callable[[Parcel], Settings] | None = None

    def resolve(self, policies: PolicySet, now: float) -> None:
        """By other policies, or at another time; `settle` comes next."""
        self.policies = policies
        self.resolution = policies.resolve(self.facts, now=now)

    def asks(self) -> Iterator[tuple[str, Bound]]:
        """Questions about resources: the link and the test of each."""
        for _, node in self.resolution.candidates:
            for test in tests_of(node):
                if isinstance(test, Bound) and test.group == "resource":
                    yield self.resolution.link, test

    def settle(self, decide: Callable[[str, Bound], bool], seen: ObjectMemory, now: float) -> bool:
        """Make the settings anew; whether they are others than before."""
        found = self.resolution
        link = found.link
        left = [(rule, about_resources(node, lambda test: decide(link, test))) for rule, node in found.candidates]
        resolution = dataclasses.replace(found, candidates=tuple(pair for pair in left if pair[1] is not False))
        before, decided = self.granted, self.by_object
        self.granted = self.of(resolution)
        self.by_object = None
        if resolution.residues:
            made = SettingsByObject(resolution, self.of, seen)
            self.by_object = decided if isinstance(decided, SettingsByObject) and decided.says == made.says else made
        knows_type = self.facts.type != ("",) and self.facts.version != ("",)
        if not knows_type and not self.policies.asks.isdisjoint(("type", "version")):
            self.by_object = SettingsByType(self, decide, seen, now)
        return _plain(before) != _plain(self.granted)

    def of(self, resolution: Resolution, holding: Callable[[Node], bool] = lambda _node: False) -> GrantedQos:
        """Grant of its contracts if those conditions about an object hold."""
        return granted(resolution.outcome(holding), self.wish, self.shapes)


def _plain(given: GrantedQos) -> GrantedQos:
    """Without the number of the policies."""
    settings = msgspec.structs.replace(given.settings, version=0)
    return msgspec.structs.replace(given, settings=settings)


_Key = tuple[str, float, int]


def _key(parcel: Parcel) -> _Key:
    """Key of an object, whatever filters left of it: the number of one that was refused is used again."""
    head = parcel.head
    return head.object_id, head.published, head.payload_length


class ObjectMemory:
    """Memory of the object that was looked at last: of one that many classes ask about all is found out once."""

    def __init__(self) -> None:
        self._last: ObjectFacts | None = None

    def of(self, parcel: Parcel) -> ObjectFacts:
        """Facts of that one."""
        known = self._last
        if known is None or known.key != _key(parcel):
            known = self._last = ObjectFacts(parcel)
        return known


class ObjectFacts:
    """Facts of one object, for conditions. It keeps the metadata, never the payload."""

    def __init__(self, parcel: Parcel) -> None:
        head = parcel.head
        self.key: Final = _key(parcel)
        self.size: Final = len(head.metadata) + head.payload_length
        self.payload_type: Final = payload_type(parcel.payload)
        self._metadata = bytes(head.metadata)
        self._document: Element | None = None
        self._said: dict[Predicate, bool | None] = {}

    def says(self, predicate: Predicate) -> bool | None:
        """Whether a predicate holds for its metadata, which is read once; None: that is not known."""
        if predicate not in self._said:
            if self._document is None:
                self._document = read_metadata(self._metadata)
            document = self._document
            self._said[predicate] = None if document is None else predicate.decide(document, len(self._metadata))
        return self._said[predicate]


class SettingsByObject:
    """The settings for one object, where policies ask for its size or metadata."""

    def __init__(
        self, resolution: Resolution, of: Callable[[Resolution, Callable[[Node], bool]], GrantedQos], seen: ObjectMemory
    ) -> None:
        self._resolution = resolution
        self._residues = resolution.residues
        self.says: Final = (
            resolution.link,
            [(rule.name, rule.fields, rule.allow, node) for rule, node in resolution.candidates],
        )
        """Effect on objects, whatever else policies say: equal for those that decide alike."""
        self._of = of
        self._seen = seen
        self._known: Cache[tuple[bool, ...], Settings] = Cache(TYPES_MOST, self._settings)
        """By what holds."""
        self._last: tuple[_Key, Settings] = (("", 0.0, 0), DEFAULT)

    def __call__(self, parcel: Parcel) -> Settings:
        last = self._last
        if last[0] == _key(parcel):
            return last[1]
        known = self._seen.of(parcel)
        try:
            holding = tuple(holds(node, known) for node in self._residues)
        except JbiError:  # its metadata can't be read: nothing is said of them
            holding = (False,) * len(self._residues)
        settings = self._known[holding]
        self._last = (known.key, settings)
        return settings

    def _settings(self, holding: tuple[bool, ...]) -> Settings:
        return self._of(self._resolution, dict(zip(self._residues, holding, strict=True)).__getitem__).settings


class SettingsByType:
    """The settings for one object, where the contract does not say of which type its objects are: a class for each."""

    def __init__(
        self, kind: ContractClass, decide: Callable[[str, Bound], bool], seen: ObjectMemory, now: float
    ) -> None:
        self._kind = kind
        self._policies = kind.policies
        self._decide = decide
        self._seen = seen
        self._now = now
        self._known: Cache[tuple[str, str], ContractClass] = Cache(TYPES_MOST, self._of)

    def __call__(self, parcel: Parcel) -> Settings:
        head = parcel.head
        found = self._known[head.type_name, head.type_version]
        return found.granted.settings if found.by_object is None else found.by_object(parcel)

    def _of(self, type_: tuple[str, str]) -> ContractClass:
        name, version = type_
        facts = dataclasses.replace(self._kind.facts, type=(name,), version=(version,))
        kind = ContractClass(facts, self._kind.wish, self._kind.shapes)
        kind.resolve(self._policies, self._now)
        kind.settle(self._decide, self._seen, self._now)
        return kind


def payload_type(payload: Part) -> str:
    """Media type (RFC 2046) of a payload by its first bytes; "" for none."""
    start = bytes(memoryview(payload)[:SNIFFED])
    if not start:
        return ""
    known = (
        (b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"), (b"PK\x03\x04", "application/zip"), (b"\x1f\x8b", "application/gzip"),
    )  # fmt: skip
    for magic, name in known:
        if start.startswith(magic):
            return name
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<":
        return "application/xml"
    try:
        start.decode()
    except UnicodeDecodeError as exc:
        if exc.start < len(start) - 3 or len(start) < SNIFFED:  # else a sign was cut
            return "application/octet-stream"
    return "application/octet-stream" if b"\0" in start else "text/plain"


def still_holds(test: Bound, value: float | None, was: bool, since: float, now: float) -> bool:
    """Whether a test of a resource is taken to hold that was, or was not, since then."""
    holds_now = test.of(value)
    if value is None:
        return False
    if holds_now == was or now - since < HOLD_SECONDS:
        return was
    return holds_now if holds_now else abs(value - test.limit) < MARGIN * test.limit


class LocalManager:
    """See the module. Safe from several threads; `_lock` covers classes and what was decided of resources. Who holds it
    calls nobody: contracts are asked about objects with locks of queues held."""

    def __init__(
        self,
        component: str,
        *,
        installed: Callable[[Space], None] = lambda _space: None,
        applied: Callable[[], None] = lambda: None,
        measured: Callable[[str], Resources] = lambda _link: Resources(),  # nothing is known
        claims: bool = True,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`component`: "name@location", or "peer"; `installed` is told what holds for the space, before contracts
        follow it, `applied` when some of them have got something else; `measured`: what is known of a link; `claims`:
        whether what somebody says of himself counts."""
        self.component = component
        self._installed = installed
        self._applied = applied
        self._measured = measured
        self.claims = claims
        self._wall = wall
        self._clock = clock
        self._lock = threading.RLock()
        self._classes: dict[tuple[CallerFacts, Wish], ContractClass] = {}
        self._policies = NOTHING
        self.rounds = 0
        """Number of times that all contracts were decided anew."""
        self._seen = ObjectMemory()
        self._held: dict[tuple[str, Bound], tuple[bool, float]] = {}
        """State of each test of a resource that somebody asks for: whether it holds, and since when."""
        self._unchanged = wall(), math.inf
        """From when to when, by the wall clock, policies change nothing by themselves."""
        self._job = Job("contracts", CLOCK_SECONDS, self._step)
        self._job.start()

    @property
    def policies(self) -> PolicySet:
        """Those in force."""
        return self._policies

    def contract(
        self,
        caller: Caller,
        action: str,
        type_name: str,
        version: str,
        delivery: str,
        wish: Wish,
        changed: Changed | None = None,
    ) -> tuple[Contract, GrantedQos]:
        """A contract opens. Raises ConfigurationError for a wish that makes no sense, QosDeniedError."""
        shapes = checked_wish(wish)
        facts = facts_of(
            caller, action, type_name, version, delivery=delivery, component=self.component,
            attributes=wish.attributes, claims=self.claims,
        )  # fmt: skip
        key = (facts, _hashable(wish))
        with self._lock:
            kind = self._classes.get(key)
            if kind is None:
                kind = ContractClass(facts, wish, shapes)
                self._refresh(kind, self._wall())
            given = demanded(wish, kind.granted)
            self._classes[key] = kind
            contract = ClassContract(kind, changed)
            kind.contracts[contract] = None
        return contract, given

    def granted(self, contract: Contract) -> GrantedQos:
        """Grant that a contract has got by now."""
        return contract.kind.granted if isinstance(contract, ClassContract) else GrantedQos()

    def close(self, contract: Contract) -> None:
        """Note that a contract is over. Safe to repeat."""
        if not isinstance(contract, ClassContract):
            return
        with self._lock:
            kind = contract.kind
            kind.contracts.pop(contract, None)
            if not kind.contracts:
                self._classes.pop((kind.facts, _hashable(kind.wish)), None)

    def install(self, policies: PolicySet) -> None:
        """Other policies are in force, for contracts that stand as well."""
        with self._lock:
            if policies == self._policies and policies.version == self._policies.version:
                return
            self._policies = policies
            now = self._wall()
            self._unchanged = now, policies.next_change(now)
        self._installed(policies.space)
        self._resolve_all()

    def _resolve_all(self) -> None:
        """All classes, one by one: others get in between."""
        with self._lock:
            classes = list(self._classes.values())
        now = self._wall()
        for kind in classes:
            with self._lock:
                told = self._apply(kind, is_new=self._refresh(kind, now))
            _tell(told)
        self.rounds += 1
        self._applied()
        self._job.wake()

    def _refresh(self, kind: ContractClass, now: float) -> bool:
        """Under the lock: resolve a class; whether it gets something else."""
        kind.resolve(self._policies, now)
        return kind.settle(self._decide, self._seen, now)

    def _apply(self, kind: ContractClass, *, is_new: bool) -> list[tuple[Changed, GrantedQos]]:
        """Under the lock: what its contracts have from now on; who is to be told, as that `is_new`."""
        settings, by_object = kind.granted.settings, kind.by_object
        for held in kind.contracts:
            held.by_object = by_object
            held.settings = settings  # last: whoever sees other ones sorts what waits by what they say of objects
        return [(held.changed, kind.granted) for held in kind.contracts if is_new and held.changed is not None]

    # -- resources and time -------------------------------------------------------------------------------------

    def _decide(self, link: str, test: Bound) -> bool:
        """Whether a test of a resource holds, as it was found out last. Asked for the first time it is not known, and
        does not: the tick, which is at once then, finds out. Called with locks of others held: it asks nobody."""
        with self._lock:
            known = self._held.get((link, test))
            if known is None:
                known = self._held[link, test] = False, -math.inf
                self._job.wake()
            return known[0]

    def tick(self) -> None:
        """Look at the resources that somebody asks for."""
        with self._lock:
            asks = {kind: set(kind.asks()) for kind in self._classes.values()}
            asked = set().union(*asks.values()) if asks else set()
            # what types of contracts that name none ask for is found out when an object of them comes
            asked |= self._held.keys() if any(isinstance(kind.by_object, SettingsByType) for kind in asks) else set()
            self._held = {key: self._held[key] for key in asked if key in self._held}
        links = {link: self._measured(link) for link in {link for link, _ in asked}}  # whoever is asked has locks, too
        now = self._clock()
        told: list[tuple[Changed, GrantedQos]] = []
        with self._lock:
            flipped = set()
            for link, test in asked:
                was, since = self._held.get((link, test), (False, -math.inf))
                is_so = still_holds(test, getattr(links[link], test.name), was, since, now)
                if is_so != was:
                    self._held[link, test] = is_so, now
                    flipped.add((link, test))
            touched = [kind for kind in asks if asks[kind] & flipped or isinstance(kind.by_object, SettingsByType)]
            for kind in touched if flipped else []:
                told += self._apply(kind, is_new=kind.settle(self._decide, self._seen, self._wall()))
        _tell(told)
        if flipped:
            self._applied()

    def _step(self) -> float:
        """Look; seconds until something may have changed by itself."""
        self.look()
        with self._lock:
            if self._held:
                return TICK_SECONDS
            return CLOCK_SECONDS if self._unchanged[1] < math.inf else math.inf

    def look(self) -> None:
        """Whether the time of a policy has come or gone, or resources have changed."""
        now, (since, until) = self._wall(), self._unchanged
        if not since <= now < until:
            with self._lock:  # others may come in force just now
                self._unchanged = now, self._policies.next_change(now)
            self._resolve_all()
        with self._lock:
            self._unchanged = now, self._unchanged[1]
        if self._held:
            self.tick()

    def explain(self, facts: CallerFacts, wish: Wish | None = None) -> dict[str, Any]:
        """Explain what such a contract gets now, as plain data; what policies ask of objects is not decided."""
        link = self._policies.resolve(facts, now=self._wall()).link

        def holds_now(node: Node) -> bool:
            return about_resources(node, lambda test: self._decide(link, test)) is True

        return self._policies.explained(facts, now=self._wall(), holds=holds_now, wish=wish)

    def explain_contract(self, contract: Contract) -> dict[str, Any]:
        """The same of one that stands."""
        if not isinstance(contract, ClassContract):
            return {}
        return self.explain(contract.kind.facts, contract.kind.wish)

    # -- for people ---------------------------------------------------------------------------------------------

    def status(self) -> PolicyInForce:
        """The policies in force, and how many contracts have which importance."""
        with self._lock:
            levels = Counter[int]()
            for kind in self._classes.values():
                levels[kind.granted.settings.importance] += len(kind.contracts)
            policies, classes = self._policies, len(self._classes)
        return PolicyInForce(
            policies=len(policies.rules),
            version=policies.version,
            digest=policies.digest[:16] if not policies.is_empty else "",
            strategy=policies.space.strategy.name,
            shaping=policies.space.shaping,
            classes=classes,
            contracts={str(level): count for level, count in sorted(levels.items())},
        )

    def stop(self) -> None:
        """Look no more. Safe to repeat."""
        self._job.stop()


def _tell(told: list[tuple[Changed, GrantedQos]]) -> None:
    for changed, given in told:
        with guarded("telling of a contract"):
            changed(given)


def _hashable(wish: Wish) -> Any:
    """A wish as a key: its attributes are facts already."""
    return msgspec.structs.astuple(wish)[:-1]
