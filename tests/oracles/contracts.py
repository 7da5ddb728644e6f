"""Contracts as policies would have decided them, put in force at a delegate or peer publisher by hand."""

from __future__ import annotations

from typing import Any

from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.model.subscription import Subscription


def stand_under(delegate: Delegate, uid: str, **settings: Any) -> list[Subscription]:
    """The subscriptions of that id, under such settings from now on."""
    found = [each for (_, known), each in delegate.tables.subscriptions.items() if known == uid]
    for each in found:
        each.contract = Contract(Settings(**settings))
    assert found
    return found
