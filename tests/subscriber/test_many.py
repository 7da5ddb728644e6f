"""Thousands of subscriptions of one process: brought to a delegate in few calls, and each with a fate of its own."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

import jbi_pubsub.subscriber.registry as registry_module
from jbi_pubsub import Wish
from jbi_pubsub.core.errors import OversizeError, QosDeniedError, WireError
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.services import SUBSCRIBE_AT_ONCE, SubscriptionsProxy
from jbi_pubsub.subscriber.options import subscription_request
from tests.conftest import test_config

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class _Calls:
    """The calls that subscribe, by how many subscriptions each had. `fails`: the answer of that one is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: int = -1) -> None:
        self.sizes: list[int] = []
        subscribe = SubscriptionsProxy.subscribe

        def counted(
            proxy: SubscriptionsProxy, session: str, requests: Sequence[SubscriptionRequest], *more: Any
        ) -> Any:
            self.sizes.append(len(requests))
            answers = subscribe(proxy, session, requests, *more)
            if len(self.sizes) - 1 == fails:
                proxy._client._drop()
                raise WireError("the connection is lost")
            return answers

        monkeypatch.setattr(SubscriptionsProxy, "subscribe", counted)


@pytest.mark.parametrize("is_quick", [True, False], ids=["quick", "slow"])
def test_many_are_brought_to_a_delegate_in_few_calls_where_it_answers_quickly(
    is_quick: bool, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscriber with 750 subscriptions, and nobody who publishes yet; a delegate that answers quickly, or not
    monkeypatch.setattr(registry_module, "QUICK_SECONDS", 60.0 if is_quick else 0.0)
    calls = _Calls(monkeypatch)
    pad = federation.pad()
    subscriber = federation.subscriber()
    uids = [subscriber.register_subscriber(type_name=TYPE, predicate=f"//lat>{33 + n / 1e4}") for n in range(750)]
    # When somebody registers there
    figures.register(federation.light())
    # Expect all to stand; each call twice as large as that before it, or as small as the first one
    assert [subscriber.wait_matched(uid, timeout=60.0) for uid in uids] == [1] * len(uids)
    assert len(pad.status()["subscriptions"]) == len(uids)
    assert sum(calls.sizes) == len(uids)
    if is_quick:
        assert calls.sizes[0] <= 100
        assert len(calls.sizes) <= 7
        assert max(calls.sizes) <= SUBSCRIBE_AT_ONCE
    else:
        assert max(calls.sizes) <= 100


def test_of_many_subscriptions_each_that_is_refused_is_told_why_by_its_own_error(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with room for 300 subscriptions, and without quality of service
    section = msgspec.structs.replace(federation.config.pad, max_subscriptions=300)
    federation.pad(config=msgspec.structs.replace(federation.config, pad=section))
    subscriber = federation.subscriber()
    # When 400 are to stand there, every tenth of which requires what nobody grants
    required = Wish(deadline=1.0, require=("deadline",))
    uids = [subscriber.register_subscriber(type_name=TYPE, qos=required if n % 10 == 3 else Wish()) for n in range(400)]
    publisher = federation.light()
    registration = figures.register(publisher)
    # Expect each of these to be refused by an error of its own, of the others the last ones, as there is no room
    eventually(lambda: Counter(type(subscriber.refusal(uid)) for uid in uids)[OversizeError] == 60)
    refused = {n: type(why) for n, uid in enumerate(uids) if (why := subscriber.refusal(uid)) is not None}
    denied = set(range(3, 400, 10))
    assert {n for n, why in refused.items() if why is QosDeniedError} == denied
    fit = [n for n in range(400) if n not in denied]
    assert {n for n, why in refused.items() if why is OversizeError} == set(fit[300:])
    # Expect all others to get what is published
    publisher.publish(registration, figures.figure_1)
    assert all(subscriber.receive(uids[n], 60.0) for n in fit[:300])


def test_a_connection_that_is_lost_half_way_through_many_ends_with_each_served_once(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 700 subscriptions, and a connection that is lost when the delegate has taken the second lot of them
    pad = federation.pad()
    calls = _Calls(monkeypatch, fails=1)
    subscriber = federation.subscriber()
    uids = [subscriber.register_subscriber(type_name=TYPE) for _ in range(700)]
    publisher = federation.light()
    registration = figures.register(publisher)
    # Expect all to stand there once, and each to get an object once
    assert [subscriber.wait_matched(uid, timeout=60.0) for uid in uids] == [1] * len(uids)
    assert max(calls.sizes[2:3]) <= 100, "after one that failed it begins as at first"
    assert sorted(each["uid"] for each in pad.status()["subscriptions"]) == sorted(uids)
    for _ in range(2):
        publisher.publish(registration, figures.figure_1)
    came = [[subscriber.receive(uid, 60.0).platform.sequence for _ in range(2)] for uid in uids]
    assert came == [[1, 2]] * len(uids)
    assert not any(subscriber.losses(uid) for uid in uids)
    assert not any(subscriber.queue_size(uid) for uid in uids)


def test_ids_differ_whatever_an_application_does_with_chance() -> None:
    # Given an application that begins its own chance anew each time
    ids = []
    for _ in range(100):
        random.seed(1)
        ids.append(subscription_request({}, test_config(), now=0.0).uid)
    # Expect ids that nobody else has
    assert len(set(ids)) == 100


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of any fork in a process with threads
def test_a_forked_child_makes_ids_of_its_own() -> None:
    # Given a process that forks
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, subscription_request({}, test_config(), now=0.0).uid.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    # Expect both to have ids of their own from then on
    assert said.startswith("subscription-")
    assert said != subscription_request({}, test_config(), now=0.0).uid
