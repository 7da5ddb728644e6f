"""Prometheus metrics over HTTP. The only prometheus_client.

A server says what it knows as `Sample` values when it is asked; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .errors import PortInUseError


class Sample(NamedTuple):
    """One number: `name` without the prefix jbi_, labels as pairs."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricsServer:
    """Answers GET /metrics on `host`:`port` (0 takes a free port) with what `collect` returns, each time anew."""

    def __init__(self, host: str, port: int, collect: Callable[[], Iterable[Sample]]) -> None:
        """Listens at once. Raises PortInUseError."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(collect))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as exc:
            raise PortInUseError(
                f"can't serve metrics on {host}:{port}: {exc.strerror or exc}",
                hint="Choose another [metrics] port, or -1 for none",
                host=host,
                port=port,
            ) from exc
        self.port = int(self._server.server_port)

    def stop(self) -> None:
        """End the thread and close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self._collect():
            family = families.get(sample.name)
            if family is None:
                made = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                names = [name for name, _ in sample.labels]
                family = families[sample.name] = made(f"jbi_{sample.name}", sample.meaning, labels=names)
            family.add_metric([value for _, value in sample.labels], sample.value)  # type: ignore[attr-defined]  # both families have it
        yield from families.values()
