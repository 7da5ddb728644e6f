"""What a delegate says of itself to who looks every second, and what an administrator may do to it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.errors import ConfigurationError, OversizeError, UnknownUidError, WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.delegate.overview import (
    LEASES_MOST,
    NAMES_MOST,
    PAGE_MOST,
    leases_ending,
    publishers_by_name,
)
from jbi_pubsub.protocol.entries import PAD_TYPE
from jbi_pubsub.protocol.services import STATUS, AdminProxy, fetch_page, fetch_status

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def _ref(pad: Any) -> ServiceRef:
    return ServiceRef("", STATUS, (pad.address,))


@pytest.fixture
def pad(federation: Any, figures: Any, fixtures: Any) -> Any:
    """A delegate with one registration, and 25 subscriptions of one subscriber, of which 24 match nothing."""
    pad = federation.pad()
    adapter = federation.light(name="camera")
    registration = figures.register(adapter)
    subscriber = federation.stack.enter_context(SubscriberAdapter(federation.config, name="Kabul"))
    for number in range(24):
        subscriber.register_subscriber(type_name=TYPE, version="1.0", predicate=f"//Area='area{number}'")
    uid = subscriber.register_subscriber(type_name=TYPE)
    fixtures.eventually(lambda: pad.overview()["counts"]["subscriptions"] == 25)
    adapter.publish(registration, figures.figure_1)
    assert subscriber.receive(uid, timeout=60.0) is not None
    fixtures.eventually(lambda: pad.overview()["delivered"] == 1)  # it has been acknowledged
    pad.test = subscriber, uid
    return pad


def test_an_overview_tells_by_name_and_type_and_without_rows(pad: Any) -> None:
    said = pad.overview()
    # Expect what is in the status, but for its lists
    whole = pad.status()
    lists = {"publishers", "registrations", "sessions", "subscriptions"}
    assert whole.keys() - lists <= said.keys()
    assert said["published"] == whole["published"] == 1
    # Expect who and what by name
    assert said["publishers"] == [{"name": "camera", "of": 1, "connections": 1, "registrations": 1, "published": 1}]
    [kabul] = said["sessions"]
    assert {name: kabul[name] for name in ("name", "of", "sessions", "connected", "subscriptions", "delivered")} == {
        "name": "Kabul", "of": 1, "sessions": 1, "connected": 1, "subscriptions": 25, "delivered": 1
    }  # fmt: skip
    assert said["types"] == [
        {"name": f"{TYPE} 1.0", "of": 1, "registrations": 1, "published": 1, "unmatched": 0, "subscriptions": 25}
    ]
    assert {lease["name"] for lease in said["ending"]} == {"camera", "Kabul"}
    assert all(0 < lease["left"] <= 30.0 for lease in said["ending"])
    # Expect nothing in it that is a right to something
    assert "session-" not in msgspec.json.encode(said).decode()


def test_subscriptions_come_page_by_page_searched_and_in_order(pad: Any) -> None:
    def page(search: str = "", order: str = "number", start: int = 0, count: int = 10) -> dict[str, Any]:
        return fetch_page(_ref(pad), Security(), search, order, start, count, timeout=10.0)

    # Expect pages without a gap and none twice
    pages = [page(start=start) for start in (0, 10, 20, 30)]
    assert [len(p["rows"]) for p in pages] == [10, 10, 5, 0]
    assert {p["total"] for p in pages} == {25}
    assert len({row["uid"] for p in pages for row in p["rows"]}) == 25
    assert {row["name"] for row in pages[0]["rows"]} == {"Kabul"}
    # Expect what is searched for, whatever its case, in predicate and subscriber's name
    assert page("AREA7")["total"] == 1
    assert page("kabul")["total"] == 25
    assert page("nowhere") == {"total": 0, "rows": []}
    # Expect that which has been delivered most first
    assert page(order="delivered", count=1)["rows"][0]["uid"] == pad.test[1]
    # Expect what asks for too much to be refused
    with pytest.raises(OversizeError):
        page(count=PAGE_MOST + 1)
    with pytest.raises(OversizeError):
        page("x" * 1000)
    with pytest.raises(ConfigurationError, match="no order 'size'"):
        page(order="size")
    assert page(start=-5, count=-1) == {"total": 25, "rows": []}


def test_an_administrator_cancels_a_subscription_and_its_subscriber_is_told(pad: Any, fixtures: Any) -> None:
    subscriber, uid = pad.test
    admin = AdminProxy(_ref(pad), Security(), timeout=60.0)
    assert admin.cancel(uid) == 1
    # Expect it gone at the delegate, and the loss told
    assert pad.overview()["counts"]["subscriptions"] == 24
    fixtures.eventually(lambda: "cancelled" in subscriber.losses(uid))
    with pytest.raises(UnknownUidError):
        admin.cancel(uid)
    admin.close()


def test_a_delegate_that_is_drained_is_not_found_until_it_resumes(
    federation: Any, pad: Any, figures: Any, fixtures: Any
) -> None:
    admin = AdminProxy(_ref(pad), Security(), timeout=60.0)
    look = federation.stack.enter_context(closing(JoinManager(federation.config, name="look")))
    assert admin.drain(5.0) == 0
    # Expect no lookup service to list it, and who knows its address to be refused
    template = ServiceTemplate(types=(PAD_TYPE,))
    fixtures.eventually(lambda: look.lookup(template) == [])
    assert fetch_status(_ref(pad), Security(), timeout=60.0)["draining"] is True
    with pytest.raises(WireError, match="draining"):
        pad.service.presence.refuse_when_draining()
    # Expect subscribers to go on
    assert pad.overview()["counts"]["subscriptions"] == 25
    # When it resumes; Expect it to be found, and to take publishers
    admin.resume()
    fixtures.eventually(lambda: len(look.lookup(template)) == 1)
    figures.register(federation.light())
    admin.close()


def test_names_and_leases_that_are_told_are_bounded() -> None:
    said = publishers_by_name((f"publisher {number}", []) for number in range(10_000))
    assert len(said) == NAMES_MOST + 1
    assert said[-1] == {"name": "", "of": 10_000 - NAMES_MOST, "connections": 9_900, "registrations": 0, "published": 0}
    leases = leases_ending(("publisher", f"{number}", float(number)) for number in range(1_000, 0, -1))
    assert [lease["left"] for lease in leases] == [float(n) for n in range(1, LEASES_MOST + 1)]
