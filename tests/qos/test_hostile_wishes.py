"""Wishes that were made by hand to do harm, as bytes on the wire: each is refused with a reason, and nobody else
notices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Wish
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.errors import ConfigurationError, JbiError, PredicateError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.replies import Answers, OpenReply, Registered
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest
from jbi_pubsub.protocol.services import DELEGATE, NO_CLAIMS, SUBSCRIPTIONS, DelegateProxy

TYPE = "mil.af.rl.jbi.Intel_Imagery"
HOSTILE: list[dict[str, Any]] = [
    {"importance": 99},
    {"importance": 0},
    {"importance": "5"},
    {"importance": 5.5},
    {"importance": True},
    {"deadline": math.nan},
    {"deadline": math.inf},
    {"deadline": -1.0},
    {"deadline": "5 s"},
    {"max_rate": math.nan},
    {"max_rate": 0.0},
    {"max_rate": 1e-300},
    {"max_rate": 1e300},
    {"max_size": -1},
    {"max_size": 0},
    {"shape": ["scale 0.5"] * 9},
    {"shape": ["scale nan"]},
    {"shape": ["quality 101"]},
    {"shape": ["x" * 1_000_000]},
    {"shape": "scale 0.5"},
    {"replace": "//a[" * 1_000},
    {"replace": 5},
    {"replace": "//a["},
    {"attributes": {str(number): "x" for number in range(100_000)}},
    {"attributes": {"a": "x" * 201}},
    {"attributes": {"a": 1}},
    {"attributes": ["a"]},
    {"require": ["importance"]},
    {"require": ["__class__"]},
    {"require": ["deadline"] * 9},
    {"unknown": 1},
]
SCANTY: list[dict[str, Any]] = [{"deadline": 1e-300}, {"max_size": (1 << 64) - 1}, {"replace": "count(//a)"}]
"""What makes sense, and is of little use."""


def by_hand(struct: Any, wish: dict[str, Any]) -> Any:
    """A request with that wish, which no class of ours has looked at."""
    plain = msgspec.to_builtins(struct, builtin_types=(bytes,))
    return {**plain, "qos": wish}


@pytest.mark.parametrize("mode", ["on", "off"])
def test_hostile_wishes_are_refused_and_disturb_nobody(
    federation: Any, figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[policy]]\nname = "a"\ntype = "*"\nimportance = 4\n[[link]]\nname = "l"\nrate = "1 Mbps"\n')
    section = QosSection(mode=mode)
    federation.config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(path)), qos=section)
    pad = federation.pad()
    # Given somebody who does nothing wrong
    requests: list[PublisherRequest] = []
    register = DelegateProxy.register

    def noting(self: DelegateProxy, connection_id: str, request: PublisherRequest, *rest: Any) -> Registered:
        requests.append(request)
        return register(self, connection_id, request, *rest)

    monkeypatch.setattr(DelegateProxy, "register", noting)
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    subscriber.wait_matched(uid)
    before = faults()
    # When somebody else wishes for what there is not, by each of both ways
    security = federation.config.security()
    subscriptions = ControlClient(ServiceRef("", SUBSCRIPTIONS, (pad.address,)), security, timeout=60.0)
    delegate = ControlClient(ServiceRef("", DELEGATE, (pad.address,)), security, timeout=60.0)
    session: str = subscriptions.call("open", OpenReply, "hostile", 30.0, NO_CLAIMS).uid
    connection: str = delegate.call("connect", OpenReply, "hostile", 30.0, NO_CLAIMS).uid
    taken = []
    for number, wish in enumerate([*HOSTILE, *SCANTY]):
        secret = f"{number:032}"
        asked = by_hand(SubscriptionRequest(f"subscription-{number:032}"), wish)
        offered = by_hand(msgspec.structs.replace(requests[0], secret=secret), wish)
        calls = (
            (subscriptions, "subscribe", Answers, (session, (asked,), 30.0, (0.0,), 0.0, NO_CLAIMS)),
            (delegate, "register", Registered, (connection, offered, owned_uid("registration", secret), number + 1)),
        )
        for client, name, kind, arguments in calls:
            try:
                found: Any = client.call(name, kind, *arguments)
            except JbiError as exc:
                why = str(exc)
            else:
                error = found.answers[0].error if isinstance(found, Answers) else None
                why = error.message if error is not None else ""
            assert len(why) < 1_000
            if not why:
                taken.append((name, wish))
    assert taken == [(name, wish) for wish in SCANTY for name in ("subscribe", "register")]
    # Expect the other to be served, and nothing that nobody has foreseen
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid, timeout=60.0) is not None
    assert faults() == before
    subscriptions.close()
    delegate.close()


@pytest.mark.parametrize(
    "wish",
    [Wish(max_rate=1e-9), Wish(max_rate=1e20), Wish(replace="//a["), Wish(deadline=math.nan), Wish(importance=9)],
)
def test_a_wish_that_makes_no_sense_is_refused_where_it_is_made(federation: Any, wish: Wish) -> None:
    with pytest.raises((ConfigurationError, PredicateError), match="wish: "):
        federation.subscriber().register_subscriber(type_name=TYPE, qos=wish)


@pytest.mark.parametrize(
    "words",
    [
        {"max_rate": "10/s"}, {"deadline": "2 s"}, {"max_size": 1.5}, {"importance": "high"}, {"shape": "scale 0.5"},
        {"require": "deadline"}, {"attributes": {"mission": 7}}, {"replace": object()},
    ],
)  # fmt: skip
def test_a_wish_in_words_that_files_take_is_told_what_it_takes(federation: Any, words: dict[str, Any]) -> None:
    for ask in (
        lambda wish: federation.subscriber().register_subscriber(type_name=TYPE, qos=wish),
        lambda wish: federation.subscriber().open_query(qos=wish),
    ):
        with pytest.raises(ConfigurationError, match="wish: ") as told:
            ask(Wish(**words))
        assert "bytes a second" in str(told.value.hint)
