"""Trying a new schema on documents that were published by an older one: how many it would refuse, and why. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from jbi_pubsub.codegen.repository import InformationType
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import parse_metadata

REASONS_MOST: Final = 20
"""Kinds of errors that are told apart; what comes later counts as others."""
REASON_CHARS: Final = 300


class SampleRefusal(msgspec.Struct, frozen=True):
    """Documents that were refused for their first error at one place: how many, the name of the first of them, and
    what that error was."""

    path: str
    documents: int
    first: str
    error: str


class Trial(msgspec.Struct, frozen=True):
    """Result of a trial. `refused` by the new schema alone, `reasons` why; `before`: refused by the old one already;
    `unreadable`: no well-formed metadata; `others`: refused for more reasons than are told."""

    documents: int
    refused: int
    before: int
    unreadable: int
    others: int
    reasons: tuple[SampleRefusal, ...]


def tried(new: InformationType, old: InformationType, documents: Iterable[tuple[str, bytes]]) -> Trial:
    """Ask both schemas about (name, metadata) one by one."""
    count = refused = before = unreadable = others = 0
    reasons: dict[str, SampleRefusal] = {}
    for name, data in documents:
        count += 1
        try:
            root = parse_metadata(data, what=name)
        except JbiError:
            unreadable += 1
            continue
        try:
            old.validate(root)
        except JbiError:
            before += 1
            continue
        try:
            new.validate(root, what=name)
        except JbiError as exc:
            refused += 1
            path = re.sub(r"\[\d+\]", "", str(exc.facts.get("path", "")))
            known = reasons.get(path)
            if known is not None:
                reasons[path] = msgspec.structs.replace(known, documents=known.documents + 1)
            elif len(reasons) < REASONS_MOST:
                said = str(exc.facts.get("reason", exc.message))
                reasons[path] = SampleRefusal(path, 1, name, f"line {exc.facts.get('line', 0)}: {said}"[:REASON_CHARS])
            else:
                others += 1
    ordered = sorted(reasons.values(), key=lambda each: -each.documents)
    return Trial(count, refused, before, unreadable, others, tuple(ordered))
