"""The finding of a delegate: what there is when the time is over counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jbi_pubsub.core.errors import DelegateNotFoundError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import PAD_TYPE, PublisherAdapterDelegate
from jbi_pubsub.publisher.finder import DelegateFinder

pytestmark = pytest.mark.unit


def delegate(name: str) -> ServiceItem:
    """One as it is registered."""
    proxy = ServiceRef(name, name, ("127.0.0.1:1",))
    return ServiceItem(name, (PAD_TYPE,), proxy, (PublisherAdapterDelegate(name=name, location="rome").rep(),))


@pytest.fixture
def community() -> Any:
    """Lookup services that tell of nothing in time, and have two delegates when they are asked."""
    cache = SimpleNamespace(wait=lambda *_: [])
    there = [delegate("alpha"), delegate("bravo")]
    return SimpleNamespace(
        watch=lambda _: cache, unwatch=lambda _: None, refused=lambda: None, lookup=lambda *_, **__: there
    )


@pytest.mark.parametrize(("name", "found"), [("bravo", "bravo"), ("alpha", "alpha"), (None, "alpha")])
def test_a_delegate_that_has_come_when_the_time_is_over_is_found(community: Any, name: str | None, found: str) -> None:
    assert DelegateFinder(community, name, None).find(0.0).service_id == found


def test_of_one_that_is_not_there_it_is_said_which_are(community: Any) -> None:
    told = r"no delegate \(charlie, \*\) within 0 s; there are: \(alpha, rome\), \(bravo, rome\)"
    with pytest.raises(DelegateNotFoundError, match=told):
        DelegateFinder(community, "charlie", None).find(0.0)
