"""What QoS-managed dissemination does in a delegate or peer publisher, as the rest of pad sees it.

Absent (None) with `[qos] mode = "off"`: then nothing here is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from jbi_pubsub.core.info_object import Head, Part, SchemaBundle
from jbi_pubsub.core.quality import Contract, GrantedQos, Shape, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import PayloadFilter


class Shaping(Protocol):
    """Makes payloads smaller. Any thread."""

    @property
    def is_on(self) -> bool:
        """Whether anything is shaped at all."""
        ...

    def shape(self, head: Head, wanted: PayloadFilter | None, payload: Part, shapes: tuple[Shape, ...]) -> bytes | None:
        """What shapes make of what the filter `wanted` has left of the object with that head; None: it can't be shaped
        so, or gets no smaller."""
        ...


class Quality(Protocol):
    """Makes contracts and enforces them. Safe from several threads. Whoever is given one closes it."""

    @property
    def shaper(self) -> Shaping:
        """Of all contracts here."""
        ...

    @property
    def mail_rate(self) -> float:
        """Bytes a second that the link to the mail server takes by now; 0: any number."""
        ...

    def opened(
        self, caller: Caller, action: str, type_name: str, version: str, delivery: str, wish: Wish
    ) -> tuple[Contract, GrantedQos]:
        """A contract opens: for `action` publish, subscribe or query; `delivery` is queue, mail or peer. Its settings
        follow the policies until `ended`. Raises QosDeniedError."""
        ...

    def ended(self, contract: Contract) -> None:
        """It is over."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain data."""
        ...

    def series(self) -> dict[str, Any]:
        """The last seconds of every number in the status, by name: `at`, `last`, `mean`, `deviation`, `trend`,
        `per_second`, `points`."""
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
