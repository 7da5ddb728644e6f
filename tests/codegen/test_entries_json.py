"""Entries survive a round trip through JSON: instance, Entries, JSON, Entries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jbi_pubsub.lookup.entry import EntryRep, matches


def again(entries: tuple[EntryRep, ...]) -> tuple[EntryRep, ...]:
    return msgspec.json.decode(msgspec.json.encode(entries), type=tuple[EntryRep, ...])


def test_figure_2_and_its_template_match_after_json_as_before(make: Any, imagery: Any) -> None:
    entries = imagery.entries(make.load("intel_imagery/instances/fig2-invariant.xml"))
    templates = imagery.template(make.load("intel_imagery/template/fig3-template.xml"))
    assert again(entries) == entries
    assert again(templates) == templates
    assert all(any(matches(t, e) for e in again(entries)) for t in again(templates))


def test_every_alert_survives(make: Any, cap: Any) -> None:
    for document in make.cap_alerts().values():
        entries = cap.entries(document)
        assert entries
        assert again(entries) == entries


def test_a_field_that_is_not_known_is_refused(make: Any, imagery: Any) -> None:
    entries = imagery.entries(make.load("intel_imagery/instances/fig2-invariant.xml"))
    plain = msgspec.to_builtins(entries)
    plain[0]["code"] = "import os"
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(msgspec.json.encode(plain), type=tuple[EntryRep, ...])
