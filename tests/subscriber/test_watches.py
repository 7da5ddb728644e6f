"""Services where a subscription is registered, as lookup services list them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import BRIDGE_TYPE, PAD_TYPE, PROVIDER_TYPE, ArchiveEntry
from jbi_pubsub.protocol.requests import Start, SubscriptionRequest
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.subscription import LocalSubscription
from jbi_pubsub.subscriber.watches import TemplateWatch


def _item(kind: str) -> ServiceItem:
    return ServiceItem(kind, (kind,), ServiceRef(("localhost:1",), kind, "subscriptions", ()), (ArchiveEntry().rep(),))


@pytest.mark.unit
@pytest.mark.parametrize("is_late", [False, True])
def test_one_that_begins_in_the_past_stands_where_something_is_kept_and_not_where_only_queries_are_answered(
    is_late: bool,
) -> None:
    # Given a delegate with an archive, a bridge, and a query provider, before the subscription is there or after
    items = [_item(kind) for kind in (PAD_TYPE, BRIDGE_TYPE, PROVIDER_TYPE)]
    served: list[str] = []
    listeners: list[Any] = []

    def watched(template: Any, listener: Any) -> Any:
        listeners.append(listener)
        return SimpleNamespace(items=lambda: items if template.entries and not is_late else [])

    watch = TemplateWatch(lambda _, item: served.append(item.service_id), (), None)
    subscription = LocalSubscription(SubscriptionRequest("s", start=Start("all")), None, ListenerPool("test"))
    # When it begins in the past
    watch.add(subscription)
    watch.begin(subscription, SimpleNamespace(watch=watched))  # type: ignore[arg-type]
    for item in items if is_late else ():
        listeners[-1].service_added(item)
    # Expect it to be registered at the delegate alone
    assert served == [PAD_TYPE]
