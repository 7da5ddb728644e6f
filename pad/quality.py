"""What QoS-managed dissemination does in a delegate or peer publisher, as the rest of pad sees it.

Absent (None) with `[qos] mode = "off"`: then nothing here is asked.
"""

from __future__ import annotations

from typing import Any, Protocol

from jbi_pubsub.core.quality import Contract, GrantedQos, Wish
from jbi_pubsub.core.wire.endpoint import Caller


class Quality(Protocol):
    """Makes contracts and enforces them. Safe from several threads. Whoever is given one closes it."""

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

    def close(self) -> None:
        """End its threads."""
        ...
