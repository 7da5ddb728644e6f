"""Series as information objects of type jbi.Measurement 1.0: what everybody may subscribe to by XPath. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Final

from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.protocol.status.quality import SeriesStatus

TYPE: Final = TypeName("jbi.Measurement")
_FILE: Final = "Measurement.xsd"


def schema() -> SchemaBundle:
    """Schema of the type."""
    data = files("jbi_pubsub.qos").joinpath("data", _FILE).read_bytes()
    return SchemaBundle(_FILE, ((_FILE, data),), type=TYPE)


def invariants(component: str) -> bytes:
    """Invariant metadata of all measurements of a component: templates ask for it."""
    return f"<Measurement><component>{xml_text(component)}</component></Measurement>".encode()


def documents(component: str, series: Mapping[str, SeriesStatus]) -> Iterator[bytes]:
    """The metadata of a measurement for each series, as `Monitor.status` tells them."""
    for name, told in series.items():
        values = {"value": told.last, **{n: told[n] for n in ("mean", "deviation", "trend") if n in told}}
        yield (
            f"<Measurement><component>{xml_text(component)}</component><series>{xml_text(name)}</series>"
            f"<at>{told.at:.3f}</at>{''.join(f'<{n}>{value:.9g}</{n}>' for n, value in values.items())}"
            "</Measurement>"
        ).encode()


def xml_text(text: str) -> str:
    """Others' words, as XML can hold them."""
    return escape("".join(c if c.isprintable() else " " for c in text[:300]))
