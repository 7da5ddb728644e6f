"""The parts of a delegate that serves, for the calls that it exports."""

from __future__ import annotations

from dataclasses import dataclass

from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.pad.server.data import DataConnections
from jbi_pubsub.pad.server.guard import CallGuard
from jbi_pubsub.pad.server.presence import DelegatePresence
from jbi_pubsub.pad.server.repositories import Repositories


@dataclass(frozen=True)
class DelegateService:
    """A delegate, and what stands beside it in its server."""

    server_id: str
    name: str
    delegate: Delegate
    guard: CallGuard
    presence: DelegatePresence
    repositories: Repositories
    data: DataConnections
    quality: Quality | None

    def drain(self, seconds: float) -> int:
        """Take no new publishers, nor be found by them; those there are, and subscribers, go on. How many objects still
        wait after `seconds`. Until `presence.resume`, or the end."""
        self.presence.drain()
        clock = self.delegate.tables.clock
        began = clock()
        if self.quality is not None:
            self.quality.tasks.drain(seconds)
        return self.delegate.drain(max(0.0, seconds - (clock() - began)))
