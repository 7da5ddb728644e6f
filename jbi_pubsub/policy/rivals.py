"""Other policy managers of the same information space: one alone has the say, by its epoch."""

from __future__ import annotations

import logging
import math
import time
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, LookupNotFoundError, PolicyError, WireError
from jbi_pubsub.core.wire.dial import is_gone
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

from .proxy import MANAGER_TYPE, PolicyProxy, epoch_of

log = logging.getLogger("jbi_pubsub.policy")

ASK_SECONDS: Final = 3.0
"""For looking for other managers at the start, and asking each of them."""
TAKE_OVER_SECONDS: Final = 60.0
"""After a start with `take_over`: local managers that followed somebody else are taken over."""


class RivalManagers:
    """See the module."""

    def __init__(self, config: Config, community: JoinManager, manager: str, *, take_over: bool) -> None:
        """`manager` is our id; `take_over`: have the say also where another one has it."""
        self.fault = self.superseded = ""
        """Words for what is wrong, and for who has the say instead of us."""
        self.watch: Final = community.watch(ServiceTemplate(types=(MANAGER_TYPE,)))
        self._security = config.security()
        self._community = community
        self._manager = manager
        self._takes_over_until = time.monotonic() + TAKE_OVER_SECONDS if take_over else -math.inf

    @property
    def is_taking_over(self) -> bool:
        """Whether local managers that followed somebody else are taken over."""
        return time.monotonic() < self._takes_over_until

    def look_at_start(self) -> int:
        """The highest epoch of those that answer, 0 if none does. Raises PolicyError when there is one, and we are not
        to take over."""
        highest = 0
        try:
            found = self._community.lookup(ServiceTemplate(types=(MANAGER_TYPE,)), timeout=ASK_SECONDS)
        except LookupNotFoundError as exc:
            log.warning("the search for other managers failed: %s", exc)
            return 0
        for item in found:
            if item.service_id == self._manager:
                continue
            epoch = self._epoch_of(item)
            if epoch is None:
                continue
            if not self.is_taking_over:
                raise PolicyError(
                    f"manager {item.service_id[:8]} at {', '.join(item.proxy.endpoints)} serves this space already",
                    hint="Stop it, or start this one with --take-over",
                )
            highest = max(highest, epoch)
        return highest

    def _epoch_of(self, item: ServiceItem) -> int | None:
        """Epoch of another manager; None: it does not answer, so it has no say, although its lease has not run out."""
        proxy = PolicyProxy(item.proxy, self._security, timeout=ASK_SECONDS)
        try:
            proxy.status()
        except WireError as exc:
            log.warning("manager %s does not answer: %s", item.service_id[:8], exc)
            return None
        except JbiError as exc:
            log.info("manager %s answers: %s", item.service_id[:8], exc)
        finally:
            proxy.close()
        return epoch_of(item)

    def look(self, ours: int) -> None:
        """Look at others as lookup services have them by now; `ours` is our epoch."""
        superseded = fault = ""
        for item in self.watch.items():
            epoch = epoch_of(item)
            if item.service_id == self._manager or epoch < ours:
                continue
            if is_gone(item.proxy, self._security):
                continue
            where = f"manager {item.service_id[:8]} at {', '.join(item.proxy.endpoints)}"
            if epoch > ours:
                superseded = f"{where} has taken over, with epoch {epoch}"
            else:
                fault = f"{where} serves this space as well, with the same epoch {epoch}: stop one of them"
        self.superseded = superseded
        fault = superseded or fault
        if fault and fault != self.fault:
            log.error("%s", fault)
        self.fault = fault
