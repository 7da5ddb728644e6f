"""The link of a subscriber to a delegate: the session that is open there, its calls, and the condition of its state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, WireError
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.replies import OpenReply
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
        self.opened: OpenReply | None = None
        self.is_lost = False
        self.is_parted = False
        """The delegate has said that nothing comes any more, and told what was lost."""
        self.is_dirty = False
        """Something is to be done by the session's thread."""
        self.stopping = threading.Event()
        self.left = threading.Event()
        """Set when it is closed: nobody is to be told anything."""

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

    def manage(
        self, key: str, duration: float, renew: Callable[[], float], ended: Callable[[JbiError], None],
        stands: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Have a lease renewed that lasts that long: of the session, or of a subscription by mail; not of what does not
        stand (asked under the lock) any more."""
        self.renewals.manage((self, key), duration, renew, ended, grantor=self)
        with self.changed:
            is_over = not stands()
        if is_over:
            self.renewals.remove((self, key))

    def close(self) -> None:
        """End its calls."""
        self.proxy.close()
        self.history.close()


class ReplacedError(JbiError):
    """A delegate was started again at its old address: the lookup service lists the new one, it gets a session of its
    own, and with one for the old one as well everything would come twice. Fact `server`: the id of who answers."""

    code = "replaced"


class SessionLease:
    """The lease of a session: opened, renewed, doubted when nobody answers, and ended."""

    def __init__(self, link: SessionLink, lose_session: Callable[[JbiError, str], None]) -> None:
        """`lose_session(why, session id)`: the delegate does not know that session any more."""
        self._link = link
        self._lose_session = lose_session
        self._is_doubted = False
        """Whether it should have run out, and the delegate has not said so: it may not have listened."""

    def open(self, opened_now: Callable[[], None]) -> None:
        """Open a session; `opened_now` is called under the lock. Raises ReplacedError, and what the delegate says."""
        link = self._link
        opened = link.proxy.open(link.name, link.config.lease.subscriber, link.claims)
        if opened.server != link.ref.service_id:
            link.proxy.close_session(opened.uid)
            raise ReplacedError(f"another server answers at {link.address}", server=opened.server)
        with link.changed:
            is_late = link.stopping.is_set()  # whoever closes has seen no session to end
            if not is_late:
                link.opened, link.is_lost, link.is_parted, self._is_doubted = opened, False, False, False
                opened_now()
                link.changed.notify_all()
        if is_late:
            link.proxy.close_session(opened.uid)
            raise WireError("closed while the session was opened")
        self._manage(opened, opened.lease.duration)
        link.renewals.hasten((link, opened.uid))  # opens the connection that will be needed

    def renew_if_doubted(self, opened: OpenReply) -> None:
        """Ask the delegate, if it is not known whether it has the session."""
        with self._link.changed:
            is_doubted = self._is_doubted
        if is_doubted:
            duration = self._renew(opened.lease.lease_id)
            self._is_doubted = False
            self._manage(opened, duration)

    def end(self, mail: Iterable[str]) -> None:
        """Renew nothing any more, nor that `mail` (ids of subscriptions). The leases run out, or are taken over by the
        next session: e-mail subscriptions live on."""
        link = self._link
        for key in [*mail, *([link.session_id] if link.session_id else [])]:
            link.renewals.remove((link, key))

    def _manage(self, opened: OpenReply, duration: float) -> None:
        link = self._link
        link.manage(
            opened.uid,
            duration,
            lambda: self._renew(opened.lease.lease_id),
            lambda why: self._over(why, opened.uid),
            lambda: link.is_open(opened.uid) and not link.stopping.is_set(),
        )

    def _over(self, why: JbiError, session_id: str) -> None:
        """The delegate says so, or has not answered until then: in that case it is asked as soon as it does."""
        if not isinstance(why, WireError):
            self._lose_session(why, session_id)
            return
        with self._link.changed:
            if self._link.is_open(session_id):
                self._is_doubted = self._link.is_dirty = True
                self._link.changed.notify_all()

    def _renew(self, lease_id: str) -> float:
        return self._link.proxy.renew(lease_id, self._link.config.lease.subscriber).duration
