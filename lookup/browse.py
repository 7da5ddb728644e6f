"""Browsing: what the matching items say, for whoever does not know what to ask for (Jini LU.2.5).

Pure: the items come from pages of a lookup, one after another, so that no browsing holds the others up. The results are
sorted, empty where Jini has null, and bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final, TypeVar

from jbi_pubsub.core.errors import EntryError, OversizeError
from jbi_pubsub.lookup.entry import EntryRep, fits
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.items import PAGE_BYTES

MAX_VALUES: Final = 10_000
"""Names or values of one result; more is nothing to choose from."""

V = TypeVar("V", str, "str | None")


def entry_classes(items: Iterable[ServiceItem], template: ServiceTemplate) -> tuple[str, ...]:
    """Names of the classes of the items' entries; without the entries that match one of the template's and are of
    exactly its class, so that it shows what can be asked next. Raises OversizeError."""
    names = (e.cls.name for item in items for e in item.entries if not _is_asked(e, template.entries))
    return tuple(sorted(_distinct(names)))


def field_values(
    items: Iterable[ServiceItem], template: ServiceTemplate, index: int, field: str
) -> tuple[str | None, ...]:
    """The distinct values of `field` over the items' entries that match entry template number `index`; None (unset)
    first. Raises EntryError when the template or field does not exist, OversizeError."""
    asked = template.entries[index] if 0 <= index < len(template.entries) else None
    if asked is None or field not in asked.cls.fields:
        raise EntryError(
            f"no field {field!r} in entry template {index}",
            hint="Name a field of that entry template's class",
            field=field,
            index=index,
        )
    position = asked.cls.fields.index(field)
    values = (entry.values[position] for item in items for entry in item.entries if fits(asked, entry))
    return tuple(sorted(_distinct(values), key=lambda value: (value is not None, value or "")))


def service_types(items: Iterable[ServiceItem], template: ServiceTemplate, prefix: str) -> tuple[str, ...]:
    """Names of types of the items that begin with `prefix`: of each item the first in its order (concrete type
    first), leaving out the types of the template and what stands behind them. Raises OversizeError."""
    asked = frozenset(template.types)
    below = (takewhile(lambda name: name not in asked, item.types) for item in items)
    firsts = (next((name for name in names if name.startswith(prefix)), None) for names in below)
    return tuple(sorted(_distinct(name for name in firsts if name is not None)))


def _is_asked(entry: EntryRep, templates: Iterable[EntryRep]) -> bool:
    return any(template.cls.lineage[0] == entry.cls.lineage[0] and fits(template, entry) for template in templates)


def _distinct(values: Iterable[V]) -> set[V]:
    """Each once. Raises OversizeError as soon as they are too many or too long for one answer."""
    found: set[V] = set()
    size = 0
    for value in values:
        if value in found:
            continue
        found.add(value)
        size += 4 * len(value or "")  # UTF-8 takes at most 4 bytes a character (RFC 3629)
        if len(found) > MAX_VALUES or size > PAGE_BYTES:
            raise OversizeError(
                f"more than {MAX_VALUES} values or {PAGE_BYTES} bytes of them", hint="Narrow the template"
            )
    return found
