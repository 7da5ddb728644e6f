"""Whether metadata are well-formed, or valid by their type's schema, where a subscription or query is to have those
alone that are: publishers and delegates may not look at them (`validate`, `well_formed` of a registration)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jbi_pubsub.codegen.repository import InformationType
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import parse_metadata


class Fit(NamedTuple):
    """What is left of objects that were looked at, how many were dropped, and why the first of them."""

    objects: Sequence[InfoObject]
    dropped: int = 0
    why: str = ""


class Fitness:
    """Of one subscription or query. Any thread."""

    def __init__(self, by: InformationType | None) -> None:
        """`by`: the type that they are to be valid by; None: well-formed will do, and so will none at all."""
        self._by = by
        self._last: tuple[bytes, str] = b"", "" if by is None else "there are no metadata, which are to be valid"
        """The metadata looked at last, and what was wrong with them."""

    def look(self, objects: Sequence[InfoObject]) -> Fit:
        """Drop those that are not."""
        found = [self._fault(each) for each in objects]
        if not any(found):
            return Fit(objects)
        good = [each for each, fault in zip(objects, found, strict=True) if not fault]
        return Fit(good, len(objects) - len(good), next(filter(None, found)))

    def _fault(self, obj: InfoObject) -> str:
        """What is wrong with an object; "" for nothing."""
        if self._by is not None and obj.type != self._by.type:
            return f"it is of {obj.type}, and the schema of {self._by.type}"
        metadata, fault = self._last
        if obj.metadata != metadata:
            fault = self._fault_of(obj.metadata)
            self._last = obj.metadata, fault
        return fault

    def _fault_of(self, metadata: bytes) -> str:
        if not metadata:
            return "" if self._by is None else "there are no metadata, which are to be valid"
        try:
            root = parse_metadata(metadata)
            if self._by is not None:
                self._by.validate(root)
        except JbiError as exc:
            return exc.message
        return ""
