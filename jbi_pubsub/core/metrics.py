"""Prometheus metrics over HTTP. The only prometheus_client.

A server says what it knows as `Sample` values when it is asked; nothing is counted twice. What of its threads' steps
has failed (`core.guard`) is told beside it.

One thread answers, one request after the other, of CONNECTIONS_MOST connections at most: the oldest of the peer that
has the most gives way. Each has one request, of REQUEST_BYTES within REQUEST_SECONDS, and one answer within
ANSWER_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, get_type_hints

from msgspec import UNSET
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .access import AccessPolicy, Subject, demand
from .config import MetricsSection
from .errors import AccessDeniedError, PortInUseError
from .guard import faults, guarded
from .hosts import is_ours, names_of, with_port
from .status import FieldMetric, Status, TlsStatus
from .wire.endpoint import Caller
from .wire.places import PortPlace, peer_of, room

log = logging.getLogger("jbi_pubsub.metrics")

CONNECTIONS_MOST: Final = 32
"""Whoever scrapes has one; there are a handful of them."""
REQUEST_SECONDS: Final = 5.0
REQUEST_BYTES: Final = 8 << 10
"""Most bytes of a request line and its headers; Prometheus sends some 300 bytes."""
ANSWER_SECONDS: Final = 30.0
"""For a megabyte over 300 kbit/s: 5,000 subscribers."""


class Sample(NamedTuple):
    """One number: `name` without the prefix jbi_, labels as pairs."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricsServer:
    """Answers GET /metrics on host and port of its section with what `collect` returns, each time anew."""

    def __init__(
        self, section: MetricsSection, collect: Callable[[], Iterable[Sample]], access: AccessPolicy | None = None
    ) -> None:
        """Listens at once; answers who has `status`, of an address. Raises PortInUseError."""
        host, port = section.host, section.port
        self._access = access
        self._names = names_of((host, socket.gethostname(), *section.names))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(collect))
        try:
            self._listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as exc:
            raise PortInUseError(
                f"can't serve metrics on {with_port(host, port)}: {exc.strerror or exc}",
                hint="Choose another [metrics] port, or -1 for none",
                host=host,
                port=port,
            ) from exc
        self.port = int(self._listener.getsockname()[1])
        self._writers: dict[asyncio.StreamWriter, PortPlace] = {}
        """Open connections; of the thread alone."""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"metrics-{self.port}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the port. Safe to repeat."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(5.0)

    def _run(self) -> None:
        with guarded("metrics"), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=REQUEST_BYTES, backlog=512)
        await self._stopping.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = (writer.get_extra_info("peername") or ("", 0))[:2]
        peer = peer_of(host)
        for oldest in room(self._writers, peer, CONNECTIONS_MOST) or ():
            del self._writers[oldest]
            oldest.transport.abort()
        self._writers[writer] = PortPlace(peer)
        with guarded("metrics"):
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.transport.set_write_buffer_limits(0)  # drained is sent
                writer.write(self._answer(head, Caller(with_port(host, port))))
                async with asyncio.timeout(ANSWER_SECONDS):
                    await writer.drain()
            except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
                log.debug("metrics: a connection ended: %s", exc)
                writer.transport.abort()
        self._writers.pop(writer, None)
        writer.close()

    def _answer(self, head: bytes, caller: Caller) -> bytes:
        line, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        hosts = [each.partition(":")[2].strip() for each in lines if each[:5].lower() == "host:"]
        if len(hosts) > 1 or not all(is_ours(host, self._names) for host in hosts):
            return _response("403 Forbidden", b"Not by that name: see [metrics] names\n")
        if self._access is not None:
            try:
                demand(self._access, caller, ("status", Subject()))
            except AccessDeniedError as exc:
                return _response("403 Forbidden", f"{exc.message}\n".encode())
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET /metrics\n")
        if path not in ("/", "/metrics"):
            return _response("404 Not Found", b"GET /metrics\n")
        accepted = next((each[7:].strip() for each in lines if each[:7].lower() == "accept:"), "")
        with guarded("metrics"):
            try:
                encode, kind = choose_encoder(accepted)
            except (ValueError, IndexError, TypeError):  # a version that is none
                encode, kind = choose_encoder("")
            return _response("200 OK", encode(self._registry), kind, with_body=method == "GET")
        return _response("500 Internal Server Error", b"the log says why\n")


def _response(status: str, body: bytes, kind: str = "text/plain", *, with_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + (body if with_body else b"")


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in (*self._collect(), *_faults()):
            family = families.get(sample.name)
            if family is None:
                made = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                names = [name for name, _ in sample.labels]
                family = families[sample.name] = made(f"jbi_{sample.name}", sample.meaning, labels=names)
            family.add_metric([_label(value) for _, value in sample.labels], sample.value)  # type: ignore[attr-defined]  # both families have it
        yield from families.values()


@functools.cache
def _metrics(kind: type[Status]) -> tuple[tuple[str, FieldMetric], ...]:
    """The fields of a status that are metrics."""
    hints = get_type_hints(kind, include_extras=True)
    metas = ((name, meta) for name in kind.__struct_fields__ for meta in getattr(hints[name], "__metadata__", ()))
    return tuple((name, meta.extra["metric"]) for name, meta in metas if "metric" in (meta.extra or {}))


def samples_of(status: Status, prefix: str = "", labels: tuple[tuple[str, str], ...] = ()) -> Iterator[Sample]:
    """Samples of the fields of a status, as their metadata say (see core/status.py); not of statuses inside it."""
    for name, metric in _metrics(type(status)):
        value = getattr(status, name)
        if isinstance(value, str):
            value = bool(value)
        yield Sample(f"{prefix}{metric.name or name}", metric.kind, metric.meaning, float(value or 0), labels)


def refusals(refused: Mapping[str, int]) -> Iterator[Sample]:
    """Samples of `AccessPolicy.refused`."""
    for action, count in refused.items():
        meaning = "Refused by the access policy, by action"
        yield Sample("access_refused", "counter", meaning, count, (("action", action),))


def expiries(tls: TlsStatus) -> Iterator[Sample]:
    """When what `TlsIdentity.status` tells of ends; nothing without TLS."""
    if tls.identity is UNSET:
        return
    kinds = {"certificate": [tls], "authority": tls.authorities or (), "revocations": tls.revocations or ()}
    for kind, ones in kinds.items():
        if ends := [one.until for one in ones if isinstance(one.until, float)]:
            meaning = "When the [tls] file ends, the first of its kind, in seconds since 1970"
            yield Sample("certificate_expires_seconds", "gauge", meaning, min(ends), (("of", kind),))


def _faults() -> Iterator[Sample]:
    for where, count in faults().items():
        yield Sample("faults", "counter", "Steps of threads that failed unexpectedly", count, (("where", where),))


def _label(value: str) -> str:
    """A value as every reader of the text can take it: names are chosen by clients, control characters and all."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
