"""mDNS: how a lookup service is announced, and how announcements are heard. The only zeroconf, and the only ifaddr
(which zeroconf brings). Loaded where mDNS is used: that takes time, and 7 MB.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final
from uuid import uuid4

import ifaddr
from zeroconf import Error as ZeroconfError
from zeroconf import (
    IPVersion,
    RecordUpdate,
    RecordUpdateListener,
    ServiceBrowser,
    ServiceInfo,
    ServiceListener,
    Zeroconf,
)

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.hosts import ANY
from jbi_pubsub.core.wire.address import is_loopback, split_endpoint
from jbi_pubsub.lookup.client.proxy import RegistrarInfo

log = logging.getLogger("jbi_pubsub.discovery")

SERVICE_TYPE: Final = "_jbi-lookup._tcp.local."
GROUPS: Final = b"groups"
"""Key of the groups in the TXT record, separated by commas."""
MAX_TXT: Final = 255
"""Bytes of one string of a TXT record, key and "=" included (RFC 6763 section 6.1)."""
ASKED_MOST: Final = 32
"""Names that are asked after by mDNS at a time, each for a second: of more, what they say by themselves is taken."""
MAX_DOMAIN: Final = 253
"""Bytes of a name in mDNS, without the final dot."""
LOOPBACK: Final = "127.0.0.1"


class Announcement:
    """A lookup service's presence in mDNS. Registering takes 0.45 s, so it happens on a thread of its own."""

    def __init__(self, info: RegistrarInfo, address: str, interfaces: Sequence[str]) -> None:
        self._registrar = info
        self._address = address
        self._interfaces = list(interfaces)
        self._info: ServiceInfo | None = None
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
        opened, self._zeroconf = self._zeroconf, None
        if opened is not None:
            if self._info is not None:
                with contextlib.suppress(ZeroconfError, OSError):  # leaving anyway; probes notice
                    opened.unregister_service(self._info)
            opened.close()

    def _announce(self) -> None:
        with guarded("lookup announcement"):
            try:
                opened = _opened(addresses_of(self._interfaces))
                self._zeroconf = opened
                with self._lock:
                    if self._stopped:
                        return
                self._info = self._described()
                opened.register_service(self._info, cooperating_responders=True)
            except (ZeroconfError, OSError, ConfigurationError) as exc:
                log.warning("no mDNS announcement on %s (%s): clients need a locator", ", ".join(self._interfaces), exc)

    def _described(self) -> ServiceInfo:
        host, port = split_endpoint(self._address)
        own = self._registrar.service_id
        return ServiceInfo(
            SERVICE_TYPE,
            f"{own}.{SERVICE_TYPE}",
            addresses=[socket.inet_aton(socket.gethostbyname(host))],
            port=port,
            properties=_properties(self._registrar),
            server=f"{own}.local.",
        )


class Browser:
    """Lookup services that are announced by mDNS, told as they come and go."""

    def __init__(
        self,
        interfaces: Sequence[str],
        found: Callable[[str, list[str], list[str] | None], None],
        gone: Callable[[str], None],
        ended: Callable[[], bool],
    ) -> None:
        """`found` is given a name, endpoints, and groups (None: not said); `gone` a name. Both are called on zeroconf's
        thread, until we have `ended`. Raises ConfigurationError: there is no mDNS here."""
        listener = _Listener(partial(_tell, found), gone, ended)
        with contextlib.ExitStack() as stack:
            try:
                self.zeroconf = _opened(addresses_of(interfaces))
                stack.callback(self.zeroconf.close)
                self._browser = ServiceBrowser(self.zeroconf, SERVICE_TYPE, listener)
            except (ZeroconfError, OSError, ConfigurationError) as exc:
                raise ConfigurationError(f"no mDNS on {', '.join(interfaces)} ({exc})") from exc
            stack.pop_all()

    def close(self) -> None:
        """Leave mDNS."""
        self._browser.cancel()
        self.zeroconf.close()


def _tell(found: Callable[[str, list[str], list[str] | None], None], info: ServiceInfo) -> None:
    groups = (info.properties or {}).get(GROUPS)  # not there: they are too many for the record, a probe will tell
    endpoints = [f"{address}:{info.port}" for address in info.parsed_addresses(IPVersion.V4Only)]
    found(info.name, endpoints, None if groups is None else groups.decode(errors="replace").split(","))


def hears_itself(address: str, seconds: float) -> str:
    """ "" when what one party announces by mDNS on the interface of that address another one hears there, else why not.
    A name that nobody else has is announced meanwhile. Takes 0.5 s, and `seconds` more when nothing is heard."""
    kind = "_jbi-doctor._tcp.local."
    name = f"{uuid4().hex}.{kind}"
    try:
        with contextlib.ExitStack() as stack:
            says = _opened([address])
            stack.callback(says.close)
            hears = _opened([address])
            stack.callback(hears.close)
            info = ServiceInfo(kind, name, addresses=[socket.inet_aton(address)], port=9, server=f"{name[:32]}.local.")
            says.register_service(info, cooperating_responders=True)
            heard = hears.get_service_info(kind, name, timeout=round(seconds * 1000))
            return "" if heard is not None else "nothing is heard"
    except (ZeroconfError, OSError) as exc:
        return str(exc) or type(exc).__name__


class _Sieve(RecordUpdateListener):
    """Takes out of zeroconf's cache what can't be asked for again, as soon as it is there: it would be in each query
    (RFC 6762, section 7.1), and with it no query could be sent. On zeroconf's loop."""

    def __init__(self, zc: Zeroconf) -> None:
        self._cache = zc.cache
        self._odd: list[Any] = []

    def async_update_records(self, _: Zeroconf, __: float, records: list[RecordUpdate]) -> None:
        """Records that are about to be put into the cache."""
        self._odd += [each.new for each in records if not _is_writable(each.new)]

    def async_update_records_complete(self) -> None:
        """They are in it."""
        if self._odd:
            self._cache.async_remove_records(self._odd)
            self._odd = []

    def look(self) -> None:
        """Look at what came before this was there."""
        known = (each for name in self._cache.names() for each in self._cache.async_entries_with_name(name))
        self._odd += [each for each in known if not _is_writable(each)]
        self.async_update_records_complete()


def _opened(interfaces: Sequence[str]) -> Zeroconf:
    """Raises ZeroconfError, OSError."""
    opened = Zeroconf(interfaces=list(interfaces), ip_version=IPVersion.V4Only)
    sieve = _Sieve(opened)
    opened.add_listener(sieve, None)
    if opened.loop is not None:
        opened.loop.call_soon_threadsafe(sieve.look)
    return opened


def _is_writable(record: Any) -> bool:
    names = (getattr(record, part, "") for part in ("name", "alias", "server", "next_name"))
    return not any(map(_is_odd_domain, filter(None, names)))


def _is_odd_domain(name: str) -> bool:
    """Whether it is no name as they are written (RFC 1035, section 2.3.4), or none that a log can show: what was read
    with errors is longer than it was."""
    return len(name.encode()) > MAX_DOMAIN or not name.isprintable() or _LONG_LABEL(name.encode()) is not None


_LONG_LABEL: Final = re.compile(rb"[^.]{64}").search


class _Listener(ServiceListener):
    """Called on zeroconf's thread, which waits for nobody: who announces itself says all there is to know, and names
    that come alone are asked after on zeroconf's loop. None is, once we are `ended`."""

    def __init__(
        self, found: Callable[[ServiceInfo], None], gone: Callable[[str], None], ended: Callable[[], bool]
    ) -> None:
        self._found = found
        self._gone = gone
        self._ended = ended
        self._room = threading.BoundedSemaphore(ASKED_MOST)

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        with guarded("discovery by mDNS"):
            if _is_odd_domain(name) or self._ended():  # the browser tells of a record before it is taken away
                return
            info = ServiceInfo(type_, name)
            if info.load_from_cache(zc):
                self._found(info)
            elif zc.loop is not None and self._room.acquire(blocking=False):
                asked = asyncio.run_coroutine_threadsafe(info.async_request(zc, 1000.0), zc.loop)
                asked.add_done_callback(lambda done: self._answered(done, info))

    def _answered(self, asked: Future[bool], info: ServiceInfo) -> None:
        self._room.release()
        with guarded("discovery by mDNS"):
            if not self._ended() and not asked.cancelled() and asked.result():
                self._found(info)

    update_service = add_service

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:  # noqa: ARG002  # the listener's form
        """Its good-bye, or its record has run out. That it is dead only a probe can tell."""
        with guarded("discovery by mDNS"):
            self._gone(name)


def interfaces_of(config: Config) -> tuple[str, ...]:
    """The interfaces for mDNS: the configured ones, else loopback and what this process listens on."""
    if config.lookup.interfaces:
        return config.lookup.interfaces
    own = [str(ip.ip) for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
    hosts = [config.lookup.host, config.pad.host]
    reached = own if any(host in ANY for host in hosts) else [address for address in own if address in hosts]
    return tuple(dict.fromkeys((LOOPBACK, *reached)))


def addresses_of(interfaces: Sequence[str]) -> list[str]:
    """IPv4 addresses of interfaces that are named by an address or, as the system does, by name ("eth0"). Those that
    are not there are left out, and said. Raises ConfigurationError when none is there."""
    known: dict[str, list[str]] = {}
    for adapter in ifaddr.get_adapters():
        addresses = [str(ip.ip) for ip in adapter.ips if ip.is_IPv4]
        for name in (adapter.nice_name, *addresses):
            known.setdefault(name, []).extend(addresses if name == adapter.nice_name else [name])
    # all of these are there, whichever the system lists
    known |= {each: [each] for each in interfaces if each.startswith("127.") and is_loopback(each)}
    missing = [each for each in interfaces if not known.get(each)]
    there = [address for each in interfaces for address in known.get(each, ())]
    if missing:
        wrong = " or ".join(map(repr, missing))
        problem = f"no interface with an IPv4 address is {wrong}; there are {', '.join(known)}"
        if not there:
            raise ConfigurationError(problem, hint="Set [lookup] interfaces to names or addresses of these")
        log.warning("%s", problem)
    return list(dict.fromkeys(there))


def _properties(info: RegistrarInfo) -> dict[str | bytes, str | bytes | None]:
    """The TXT record. Groups that do not fit are left out: a probe tells them."""
    groups = ",".join(info.groups).encode()
    fits = len(GROUPS) + 1 + len(groups) <= MAX_TXT
    return {b"id": info.service_id, **({GROUPS: groups} if fits else {})}
