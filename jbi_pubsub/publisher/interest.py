"""Asks a delegate again and again what its subscriptions want of what is relayed to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, ProtocolError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.services import WANTED_SECONDS, BridgingProxy
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

log = logging.getLogger("jbi_pubsub.publisher")

ASK_FIRST: Final = 0.1
ASK_MOST: Final = 5.0
"""Seconds until a delegate that gives no answer is asked again."""
END_SECONDS: Final = 2.0


class InterestWatch:
    """Interest of one delegate, or of another one that has taken over. While there is none the last answer counts."""

    def __init__(
        self,
        at: Callable[[], ServiceRef],
        config: Config,
        bridge: str,
        changed: Callable[[Wanted], None],
        *,
        members: bool = False,
    ) -> None:
        """`at` says where the delegate is, and raises JbiError while there is none; `bridge`: the id whose
        subscriptions do not count; `members`: whether who wants it is told, too."""
        self._at = at
        self._security = config.security()
        self._timeout = config.lookup.timeout
        self._bridge = bridge
        self._changed = changed
        self._members = members
        self._proxy: BridgingProxy | None = None
        self._ref: ServiceRef | None = None
        self._last: Wanted | None = None
        self._backoff = Backoff(ASK_FIRST, ASK_MOST)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"interest-{bridge}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is told any more once this has returned, unless whoever is told hangs."""
        self._stopping.set()
        if (proxy := self._proxy) is not None:
            proxy.close()
        if self._thread is not threading.current_thread():
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with guarded("interest in what is relayed"):
                self._ask()
        self._close()

    def _ask(self) -> None:
        try:
            after = self._last.revision if self._last else 0
            told = self._connected().wanted(self._bridge, after, WANTED_SECONDS, members=self._members)
            self._backoff.reset()
        except (AccessDeniedError, ProtocolError) as exc:
            log.debug("the wanted objects of bridge %s are not known: %s", self._bridge, exc)
            self._tell(EVERYTHING)
            self._stopping.wait(self._backoff.pause())
        except JbiError as exc:
            log.debug("the wanted objects of bridge %s will be known later: %s", self._bridge, exc)
            self._stopping.wait(self._backoff.pause())
        else:
            self._tell(told)

    def _tell(self, told: Wanted) -> None:
        if told != self._last and not self._stopping.is_set():
            self._last = told
            self._changed(told)

    def _connected(self) -> BridgingProxy:
        """Raises JbiError."""
        ref = self._at()
        if self._proxy is not None and ref == self._ref:
            return self._proxy
        self._close()
        proxy = self._proxy = BridgingProxy(ref, self._security, timeout=self._timeout)
        self._ref = ref
        if self._stopping.is_set():  # whoever has set it did not see this one
            proxy.close()
        return proxy

    def _close(self) -> None:
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy.close()
