"""The link of a subscriber to a delegate: the session that is open there, its calls, and the condition of its state."""

from __future__ import annotations

import threading

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.replies import Opened
from jbi_pubsub.protocol.services import Claims, HistoryProxy, SubscriptionsProxy


class SessionLink:
    """The parts of a session share one. `changed` covers all their state."""

    def __init__(self, ref: ServiceRef, config: Config, renewals: LeaseRenewalManager, name: str) -> None:
        self.ref = ref
        self.config = config
        self.renewals = renewals
        self.name = name
        self.claims = Claims(config.client.user, config.client.role)
        self.proxy = SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
        self.history = HistoryProxy(ref, config.security(), timeout=config.lookup.timeout)
        self.changed = threading.Condition()
        self.opened: Opened | None = None
        self.is_lost = False
        self.is_parted = False
        """The delegate has said that nothing comes any more, and told what was lost."""
        self.is_dirty = False
        """Something is to be done by the session's thread."""
        self.stopping = threading.Event()
        self.left = threading.Event()
        """It is closed: nobody is to be told anything."""

    @property
    def address(self) -> str:
        """Where the delegate is, for people."""
        return ", ".join(self.ref.endpoints)

    @property
    def session_id(self) -> str:
        """Under the lock: of the session that was opened last; "" if there is none."""
        return self.opened.uid if self.opened is not None else ""

    def is_open(self, session_id: str = "") -> bool:
        """Under the lock: whether that is the session now ("": whichever it is). Only the session's thread opens the
        next one; it is lost on any."""
        return not self.is_lost and self.opened is not None and session_id in ("", self.opened.uid)

    def demand(self) -> None:
        """Have the session's thread look at what there is to do."""
        with self.changed:
            self.is_dirty = True
            self.changed.notify_all()

    def close(self) -> None:
        """End its calls."""
        self.proxy.close()
        self.history.close()
