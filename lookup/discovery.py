"""Finding lookup services: mDNS announcements and unicast locators, always both. The only zeroconf.

Rules (Jini Discovery and Join Specification DJ.2-DJ.3; measurements on zeroconf):
- mDNS only suggests. A suggestion counts once the lookup service itself has answered a probe.
- A killed process stays listed in mDNS for up to 19 minutes, so death is noticed by probes, never by mDNS.
- Groups are free strings, "" is public; None means all groups, () none. They travel in the TXT record and are
  confirmed by the probe.
- Without multicast an announcement "succeeds" silently; the locators carry on alone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security, split_endpoint
from jbi_pubsub.lookup.proxy import EXPORTED, RegistrarInfo, RegistrarProxy

log = logging.getLogger("jbi_pubsub.discovery")

SERVICE_TYPE: Final = "_jbi-lookup._tcp.local."
MAX_SUGGESTIONS: Final = 256
"""Endpoints remembered from mDNS; anybody on the link can announce, so there is a bound."""
PROBE_SECONDS: Final = 3.0
"""Time for one probe. A lookup service that needs longer is probed again in the next round."""


class Announcement:
    """A lookup service's presence in mDNS. Registering takes 0.45 s, so it happens on a thread of its own."""

    def __init__(self, info: RegistrarInfo, address: str, interfaces: Sequence[str]) -> None:
        host, port = split_endpoint(address)
        self._interfaces = list(interfaces)
        self._info = ServiceInfo(
            SERVICE_TYPE,
            f"{info.service_id}.{SERVICE_TYPE}",
            addresses=[socket.inet_aton(socket.gethostbyname(host))],
            port=port,
            properties={"id": info.service_id, "groups": ",".join(info.groups)},
            server=f"{info.service_id}.local.",
        )
        self._zeroconf: Zeroconf | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._announce, name="lookup-announce", daemon=True)

    def start(self) -> None:
        """Begin to announce."""
        self._thread.start()

    def stop(self) -> None:
        """Say good-bye, so that others need not wait for a probe."""
        with self._lock:
            self._stopped = True
        self._thread.join(5.0)
        if self._zeroconf is not None:
            with contextlib.suppress(ZeroconfError, OSError):  # leaving anyway; probes notice
                self._zeroconf.unregister_service(self._info)
            self._zeroconf.close()

    def _announce(self) -> None:
        try:
            opened = Zeroconf(interfaces=self._interfaces, ip_version=IPVersion.V4Only)
            self._zeroconf = opened
            with self._lock:
                if self._stopped:
                    return
            opened.register_service(self._info, cooperating_responders=True)
        except (ZeroconfError, OSError) as exc:
            log.warning("no mDNS announcement on %s (%s): clients need a locator", self._interfaces, exc)


class LookupDiscovery:
    """Keeps looking for lookup services of some groups. `discovered` is called once for each, on our thread."""

    def __init__(
        self,
        *,
        groups: Sequence[str] | None,
        locators: Sequence[str],
        multicast: bool,
        interfaces: Sequence[str],
        security: Security,
        interval: float,
        discovered: Callable[[ServiceRef, RegistrarInfo], None],
        name: str,
    ) -> None:
        """`interval`: seconds between two rounds of probes of endpoints where no lookup service is known."""
        self._groups = None if groups is None else frozenset(groups)
        self._locators = tuple(_normal(locator) for locator in locators)
        self._security = security
        self._interval = interval
        self._discovered = discovered
        self._changed = threading.Condition()  # covers _suggested, _known and _stopping
        self._suggested: dict[str, str] = {}  # endpoint -> service id in mDNS
        self._known: dict[str, str] = {}  # endpoint -> service id that answered there
        self._stopping = False
        self._kicked = False
        self._multicast = multicast
        self._interfaces = list(interfaces)
        self._zeroconf: Zeroconf | None = None
        self._browser: ServiceBrowser | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name}-discovery", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and leave mDNS."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(PROBE_SECONDS + 2.0)
        if self._browser is not None:
            self._browser.cancel()
        if self._zeroconf is not None:
            self._zeroconf.close()

    def lost(self, endpoint: str) -> None:
        """The lookup service there does not answer any more: whoever answers there next counts as discovered."""
        with self._changed:
            self._known.pop(endpoint, None)

    def endpoints(self) -> list[str]:
        """All endpoints that are asked: the locators, and what mDNS suggests."""
        with self._changed:
            return list(dict.fromkeys([*self._locators, *self._suggested]))

    def _run(self) -> None:
        if self._multicast:
            self._browse()
        while True:
            for endpoint in self.endpoints():
                self._probe(endpoint)
            with self._changed:
                if not self._stopping and not self._kicked:
                    self._changed.wait(self._interval)
                if self._stopping:
                    return
                self._kicked = False

    def _probe(self, endpoint: str) -> None:
        with self._changed:
            if self._stopping or endpoint in self._known:
                return
        ref = ServiceRef("", EXPORTED, (endpoint,))
        proxy = RegistrarProxy(ref, self._security, timeout=PROBE_SECONDS)
        try:
            info = proxy.describe()
        except JbiError as exc:
            log.debug("no lookup service at %s: %s", endpoint, exc)
            return
        finally:
            proxy.close()
        if self._groups is not None and not self._groups & set(info.groups):
            return
        with self._changed:
            heard = info.service_id in self._known.values()
            self._known[endpoint] = info.service_id
        if not heard:
            self._discovered(msgspec.structs.replace(ref, service_id=info.service_id), info)

    def _browse(self) -> None:
        try:
            self._zeroconf = Zeroconf(interfaces=self._interfaces, ip_version=IPVersion.V4Only)
            self._browser = ServiceBrowser(self._zeroconf, SERVICE_TYPE, _Listener(self._suggest))
        except (ZeroconfError, OSError) as exc:
            log.warning("no mDNS on %s (%s): using the locators alone", self._interfaces, exc)

    def _suggest(self, info: ServiceInfo) -> None:
        groups = ((info.properties or {}).get(b"groups") or b"").decode(errors="replace").split(",")
        if self._groups is not None and not self._groups & set(groups):
            return
        found = [f"{address}:{info.port}" for address in info.parsed_addresses(IPVersion.V4Only)]
        with self._changed:
            for endpoint in found:
                if len(self._suggested) < MAX_SUGGESTIONS:
                    self._suggested[endpoint] = info.name
            self._kicked = True
            self._changed.notify_all()


class _Listener(ServiceListener):
    def __init__(self, found: Callable[[ServiceInfo], None]) -> None:
        self._found = found

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        info = zc.get_service_info(type_, name, timeout=1000)
        if info is not None:
            self._found(info)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Nothing to do: only a probe decides that a lookup service is gone."""


def _normal(locator: str) -> str:
    host, port = split_endpoint(locator.removeprefix("jbi://"), default_port=4160)
    return f"{host}:{port}"
