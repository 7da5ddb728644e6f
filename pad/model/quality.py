"""QoS-managed dissemination in a delegate or peer publisher, as the rest of pad sees it.

Absent (None) where `[qos] mode` and the policy file do not ask for it: then nothing here is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from jbi_pubsub.core.access import Impossible
from jbi_pubsub.core.info_object import Cause, Head, Parcel, Part, SchemaBundle
from jbi_pubsub.core.quality import Contract, GrantedQos, PayloadShape, PolicyChanged, Settings, Strategy, Wish
from jbi_pubsub.core.scheduling import QueuedObject, Work
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import HubSender, Turns
from jbi_pubsub.core.xpath import PayloadFilter
from jbi_pubsub.protocol.status.quality import QualityStatus, SeriesStatus

if TYPE_CHECKING:
    from jbi_pubsub.lookup.client.join import JoinManager


class Shaping(Protocol):
    """Makes payloads smaller. Any thread."""

    @property
    def is_on(self) -> bool:
        """Whether anything is shaped at all."""
        ...

    def seconds(
        self, head: Head, wanted: PayloadFilter | None, payload: Part, shapes: tuple[PayloadShape, ...]
    ) -> float:
        """Seconds that `shape` is likely to take; 0.0 for what it has just made."""
        ...

    def shape(
        self, head: Head, wanted: PayloadFilter | None, payload: Part, shapes: tuple[PayloadShape, ...]
    ) -> bytes | None:
        """The shaped payload, of what the filter `wanted` has left of the object with that head; None: it can't be
        shaped so, or gets no smaller."""
        ...


R = TypeVar("R")


class WorkTurns(Protocol):
    """Order of work: the most important one first, one at a time of each owner."""

    @property
    def is_strict(self) -> bool:
        """Whether nothing is done while something more important waits."""
        ...

    def task(self, kind: str, work: Work, owner: object) -> Any:
        """Work of a kind ("judge"), to be submitted; one step at a time is done of all that is of that `owner`."""
        ...

    def seconds(self, task: Any) -> float:
        """Time that a piece of it takes, by what was measured; 0.0: nothing was."""
        ...

    def submit(self, task: Any) -> None:
        """There is something to do for it. Never waits; may do it at once, on this thread."""
        ...

    def run(self, contract: Contract, owner: object, work: Callable[[], R]) -> R:
        """Do work of an `owner` when it is its turn, on this thread. Raises what it raises, and BackPressureError when
        its turn does not come."""
        ...

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to do; whether that was within `timeout` seconds."""
        ...


Q = TypeVar("Q", bound=QueuedObject)


class PriorityQueue(Protocol[Q]):
    """Queue that holds objects back for one subscription, by level: see qos/queue.py."""

    levels: int

    def __len__(self) -> int: ...
    def put(self, waiting: Q, now: float) -> None: ...
    def select(self, level: int, now: float) -> Q | None: ...
    def is_front(self, waiting: Q, now: float) -> bool: ...
    def take(self) -> Q: ...
    def has_room_for(self, parcel: Parcel, now: float) -> bool: ...
    def is_least(self, parcel: Parcel) -> bool: ...
    def drop_least(self) -> Q: ...
    def drop_oldest(self) -> Q: ...
    def expire(self, now: float) -> None: ...
    def refresh(self, now: float) -> bool: ...


class Links(Turns, Protocol):
    """Which sessions are behind which links, and when they send: see qos/bandwidth.py."""

    def assign(self, sender: HubSender, link: str) -> None:
        """Put a session behind that link; "": behind none."""
        ...

    def leave(self, sender: HubSender) -> None:
        """Forget a session that is over."""
        ...


class Quality(Protocol):
    """Makes contracts and enforces them. Safe from several threads. Whoever is given one closes it."""

    @property
    def shaper(self) -> Shaping:
        """The shaper of all contracts here."""
        ...

    @property
    def mail_rate(self) -> float:
        """Bytes a second that the link to the mail server takes by now; 0: any number."""
        ...

    @property
    def tasks(self) -> WorkTurns:
        """The order of judging."""
        ...

    @property
    def links(self) -> Links:
        """The links: who sends next, and when."""
        ...

    @property
    def rounds(self) -> int:
        """Goes up when all contracts were decided anew, by other policies or at another time."""
        ...

    def contradictions(self, type_name: str, version: str, impossible: Impossible) -> list[str]:
        """Warnings about policies whose XPaths are never true for a type, each with its place."""
        ...

    def strategy(self) -> Strategy:
        """The way that levels share what is short, now."""
        ...

    def queue_of(self, contract: Contract, lost: Callable[[Q, Cause], None]) -> PriorityQueue[Q]:
        """The queue that holds objects back for a contract; `lost`: what it has lost, or not let in."""
        ...

    def opened(
        self,
        caller: Caller,
        action: str,
        type_name: str,
        version: str,
        delivery: str,
        wish: Wish,
        changed: Callable[[GrantedQos], None] | None = None,
    ) -> tuple[Contract, GrantedQos]:
        """A contract opens: for `action` publish, subscribe or query; `delivery` is queue, mail or peer. Its settings
        follow the policies until `ended`; `changed` is told when it gets something else. Raises ConfigurationError for
        a wish that makes no sense, QosDeniedError."""
        ...

    def follow(self, community: JoinManager, service_id: str) -> None:
        """Follow the policy manager that is found there, where no file says who matters. `service_id` is ours."""
        ...

    def watch(self, queued: Callable[[], tuple[int, int]], counted: Callable[[], tuple[int, int]]) -> None:
        """`queued` says how many objects, and bytes, wait in all queues, `counted` how many were matched, and lost:
        policies may ask for it."""
        ...

    def granted(self, contract: Contract) -> GrantedQos:
        """The grant that it has got by now."""
        ...

    def explain(self, caller: Caller, action: str, type_name: str, version: str) -> dict[str, Any]:
        """The grant that such a contract would get, and why, as plain data."""
        ...

    def explain_contract(self, contract: Contract) -> dict[str, Any]:
        """The grant of a contract that stands, and why, as plain data."""
        ...

    def set(self, key: str, value: str, *, people: bool) -> PolicyChanged:
        """Change one value of the policy file, also of groups and roles if `people`, and go by it. Raises
        AccessDeniedError, PolicyError, ConfigurationError for a file that can't be written."""
        ...

    def ended(self, contract: Contract) -> None:
        """Note that a contract is over."""
        ...

    def status(self) -> QualityStatus:
        """All but its series."""
        ...

    def series(self) -> dict[str, SeriesStatus]:
        """The last seconds of every number in the status, by name."""
        ...

    def measurement_type(self) -> tuple[SchemaBundle, bytes]:
        """The schema of the type that series are published as, and the invariant metadata of ours."""
        ...

    def measurements(self) -> Iterable[bytes]:
        """Metadata of such objects: each series as it stands."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


class Pulled(Contract):
    """A contract for what is asked for rather than published now: importance, shapes, sizes and link are its own, but
    nothing of it is late, replaced, or too fast."""

    __slots__ = ("_contract", "_known")

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._known: tuple[Settings, Settings] | None = None
        asked = contract.by_object
        self.by_object = None if asked is None else lambda parcel: _pulled(asked(parcel))
        self.meter = contract.meter

    @property
    def settings(self) -> Settings:  # type: ignore[override]  # follows the other one's
        """The settings that are in force of the contract."""
        now = self._contract.settings
        if self._known is None or self._known[0] is not now:
            self._known = now, _pulled(now)
        return self._known[1]


def _pulled(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, deadline=None, max_rate=None, replace="", queue=None)


class CatchingUp(Contract):
    """A contract as it stands for what is published from now on; for what `is_past` as Pulled."""

    __slots__ = ("_contract", "_is_past", "_pulled")

    def __init__(self, contract: Contract, is_past: Callable[[Parcel], bool]) -> None:
        self._contract = contract
        self._is_past = is_past
        self._pulled = Pulled(contract)
        self.meter = contract.meter

    @property
    def settings(self) -> Settings:  # type: ignore[override]  # follows the other one's
        """The settings that are in force of the contract."""
        return self._contract.settings

    def by_object(self, parcel: Parcel) -> Settings:
        """The same for one object."""
        return self._pulled.of(parcel) if self._is_past(parcel) else self._contract.of(parcel)
