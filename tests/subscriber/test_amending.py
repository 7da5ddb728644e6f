"""A standing subscription is amended between two objects: each is judged by the old terms or by the new ones."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from jbi_pubsub import InfoObject, Wish
from jbi_pubsub.core.errors import AccessDeniedError, PredicateError, UnknownUidError, WireError
from tests.conftest import Federation, Figures, Publishing

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class Terms(NamedTuple):
    """What is asked for, and what that gives, told without the product: `payload` of the number of an object."""

    predicate: str
    payload_filter: str
    matches: Callable[[float], bool]
    payload: Callable[[int], bytes]


ALL_OF = b"<p><a>%d</a><b>%d</b></p>"
CUT = b'<jbi:selection xmlns:jbi="urn:jbi-pubsub:selection:1">%s</jbi:selection>'
TERMS = (
    Terms("//lat > 0", "//a", lambda lat: lat > 0, lambda n: CUT % b"<a>%d</a>" % n),
    Terms("//lat < 0", "//b", lambda lat: lat < 0, lambda n: CUT % b"<b>%d</b>" % n),
    Terms("//lat > 40 or //lat < -40", "", lambda lat: abs(lat) > 40, lambda n: ALL_OF % (n, n)),
    Terms("", "//a", lambda _lat: True, lambda n: CUT % b"<a>%d</a>" % n),
)


class Period(NamedTuple):
    """When terms may have been in force: from the call that asked for them to the return of the next one."""

    terms: Terms
    since: float
    until: float


def _number(obj: InfoObject) -> int:
    return int(obj.metadata.split(b"<long>")[1].split(b"</long>")[0])


def _latitude(number: int) -> float:
    return random.Random(number).choice([-50.0, -10.0, 10.0, 50.0])


@pytest.mark.row("X-13")
def test_objects_are_judged_by_the_old_terms_or_the_new_ones_while_they_change(
    publishing: Publishing, federation: Federation, figures: Figures
) -> None:
    # Given two sources that publish all the while, and a subscription beside another one
    registrations = [publishing.register(figures.figure_1, figures.schema, validate=False) for _ in range(2)]
    app = federation.subscriber()
    uid = app.register_subscriber(type_name=TYPE, predicate=TERMS[0].predicate, payload_filter=TERMS[0].payload_filter)
    other = app.register_subscriber(type_name=TYPE, predicate="//lat > 0")
    for each in (uid, other):
        assert app.wait_matched(each) == 1
    windows: dict[int, tuple[float, float]] = {}
    stop = threading.Event()

    def source(at: int) -> None:
        number = at
        while not stop.wait(0.001):
            lat = str(_latitude(number))
            began = time.monotonic()
            metadata = figures.metadata(lat=lat, long=str(number))
            publishing.publish(registrations[at], metadata, ALL_OF % (number, number))
            windows[number] = began, time.monotonic()
            number += 2

    threads = [threading.Thread(target=source, args=(at,)) for at in range(2)]
    periods = [Period(TERMS[0], 0.0, 0.0)]
    for thread in threads:
        thread.start()
    # When it is amended again and again, and a third comes and goes
    chance = random.Random(7)
    for _ in range(40):
        terms = chance.choice([each for each in TERMS if each is not periods[-1].terms])
        began = time.monotonic()
        stood = app.amend_subscription(uid, predicate=terms.predicate, payload_filter=terms.payload_filter)
        assert stood == 1
        periods[-1] = periods[-1]._replace(until=time.monotonic())
        periods.append(Period(terms, began, 0.0))
        third = app.register_subscriber(type_name=TYPE, predicate="//lat = 10")
        time.sleep(chance.uniform(0.0, 0.01))  # so that some objects come by these terms
        app.cancel_subscription(third)
    stop.set()
    for thread in threads:
        thread.join()
    periods[-1] = periods[-1]._replace(until=time.monotonic())
    last = next(lat for lat in (60, -60) if periods[-1].terms.matches(lat))
    publishing.publish(registrations[0], figures.metadata(lat=str(last), long="-1"), ALL_OF % (-1, -1))
    # Expect each object as one of the terms gives it that were in force while it was published, or not at all if one
    # does not match it; nothing twice, each source in order; the other subscription to have missed nothing
    came: dict[int, bytes] = {}
    while (obj := app.receive(uid, 60.0)) is not None and _number(obj) != -1:
        assert _number(obj) not in came
        came[_number(obj)] = bytes(obj.payload)
        if len(windows) == len(came):
            break
    for number, (began, ended) in windows.items():
        allowed = [each.terms for each in periods if each.since <= ended and each.until >= began]
        results = [each.payload(number) if each.matches(_latitude(number)) else None for each in allowed]
        assert came.get(number) in results, (number, [each.predicate for each in allowed])
    for at in range(2):
        assert [n for n in came if n % 2 == at] == sorted(n for n in came if n % 2 == at)
    wanted = sorted(number for number in windows if _latitude(number) > 0)
    got = []
    while len(got) < len(wanted) and (obj := app.receive(other, 60.0)) is not None:
        got.append(_number(obj))
    assert sorted(got) == wanted
    assert app.losses(uid) == {}


def test_what_a_predicate_says_of_invariants_is_matched_anew(
    publishing: Publishing, federation: Federation, figures: Figures
) -> None:
    # Given a subscription to another publisher's objects than the one there is: it stands nowhere
    registration = publishing.register(figures.figure_1, figures.schema)
    app = federation.subscriber()
    other = "/metadata/RequiredMetadata/publisher = '999th'"
    uid = app.register_subscriber(schema=figures.schema, version="1.0", predicate=other)
    assert app.matching(uid).registrations == 0
    # When it asks for this one
    app.amend_subscription(uid, predicate="/metadata/RequiredMetadata/publisher = '418th'")
    # Expect it to stand there, and to get its objects
    assert app.wait_matched(uid, timeout=60.0) == 1
    publishing.publish(registration, figures.figure_1, b"it")
    obj = app.receive(uid, 60.0)
    assert obj is not None
    assert obj.payload == b"it"
    # When it asks for the other one again
    app.amend_subscription(uid, predicate=other)
    # Expect none of this one
    publishing.publish(registration, figures.figure_1, b"not it")
    assert app.matching(uid).registrations == 0
    assert app.receive(uid, 0.3) is None


def test_bad_terms_are_refused_at_the_call_and_the_old_ones_stay(
    publishing: Publishing, federation: Federation, figures: Figures
) -> None:
    registration = publishing.register(figures.figure_1, figures.schema)
    app = federation.subscriber()
    uid = app.register_subscriber(type_name=TYPE, predicate="//lat > 40")
    assert app.wait_matched(uid) == 1
    with pytest.raises(PredicateError, match="payload_filter"):
        app.amend_subscription(uid, payload_filter="//a[")
    with pytest.raises(PredicateError):
        app.amend_subscription(uid, predicate="//lat >")
    with pytest.raises(UnknownUidError):
        app.amend_subscription(type(uid)("subscription-of-nobody"), predicate="")
    publishing.publish(registration, figures.metadata(lat="10"))
    publishing.publish(registration, figures.metadata(lat="50"), b"north")
    obj = app.receive(uid, 60.0)
    assert obj is not None
    assert obj.payload == b"north"


def test_what_a_delegate_refuses_reaches_the_caller_and_the_old_terms_stay(
    federation: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription at two delegates, one of which refuses the new terms
    pads = [federation.pad(name, "rome") for name in ("alpha", "beta")]
    light = federation.light()
    registrations = [
        light.register_publisher(light.connect_to_delegate(name, "rome"), figures.schema, figures.figure_1)
        for name in ("alpha", "beta")
    ]
    app = federation.subscriber()
    uid = app.register_subscriber(type_name=TYPE, predicate="//lat > 40")
    assert app.wait_matched(uid, 2) == 2

    def refuse(*_arguments: Any) -> None:
        raise AccessDeniedError("not south of there")

    monkeypatch.setattr(pads[1].delegate.subscribers._amendments, "_exchange", refuse)
    # When it is amended
    with pytest.raises(AccessDeniedError, match="not south of there"):
        app.amend_subscription(uid, predicate="//lat < 40")
    # Expect both to judge by the old terms
    for registration in registrations:
        light.publish(registration, figures.metadata(lat="10"), b"south")
        light.publish(registration, figures.metadata(lat="50"), b"north")
    light.flush()
    found = [app.receive(uid, 60.0) for _ in range(2)]
    assert [obj.payload for obj in found if obj is not None] == [b"north", b"north"]
    assert app.queue_size(uid) == 0
    assert app.losses(uid) == {}


def test_a_delegate_that_is_away_gets_the_new_terms_when_it_is_back(
    federation: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    # Given a subscription at a delegate that does not answer for a while
    federation.pad()
    light = federation.light()
    registration = light.register_publisher(
        light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    app = federation.subscriber()
    uid = app.register_subscriber(type_name=TYPE, predicate="//lat > 40")
    assert app.wait_matched(uid) == 1
    (session,) = app._subscriptions.sessions.all()
    ask = session.link.proxy.subscribe
    away = threading.Event()
    away.set()

    def subscribe(*arguments: Any) -> Any:
        if away.is_set():
            raise WireError("away")
        return ask(*arguments)

    monkeypatch.setattr(session.link.proxy, "subscribe", subscribe)
    # When it is amended; Expect the call to say that it stands nowhere by the new terms
    assert app.amend_subscription(uid, predicate="//lat < 40", timeout=0.2) == 0
    light.publish(registration, figures.metadata(lat="50"), b"north")
    light.flush()
    obj = app.receive(uid, 60.0)
    assert obj is not None
    assert obj.payload == b"north"
    # When it answers again; Expect it to judge by these
    away.clear()
    eventually(lambda: session.registry.has_amended(uid))
    light.publish(registration, figures.metadata(lat="50"), b"north")
    light.publish(registration, figures.metadata(lat="10"), b"south")
    light.flush()
    obj = app.receive(uid, 60.0)
    assert obj is not None
    assert obj.payload == b"south"


@pytest.mark.row("X-13")
def test_a_durable_subscription_goes_on_by_the_new_terms(archived: Federation, figures: Figures) -> None:
    # Given a durable subscription whose application has taken nothing yet
    archived.pad()
    light = archived.light()
    registration = light.register_publisher(
        light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1, persist=True
    )
    app = archived.subscriber()
    uid = app.register_subscriber(type_name=TYPE, predicate="//lat > 40", durable="d", bound=5)
    assert app.wait_matched(uid) == 1
    for number in range(20):
        light.publish(registration, figures.metadata(lat=str(50 - 20 * (number % 2)), long=str(number)))
    light.flush()
    # When it is amended while most of what it has missed is not caught up with, and goes away and comes back
    first = app.receive(uid, 60.0)
    assert first is not None
    assert app.amend_subscription(uid, predicate="//lat < 40") == 1
    for number in range(20, 30):
        light.publish(registration, figures.metadata(lat=str(50 - 20 * (number % 2)), long=str(number)))
    light.flush()
    numbers = [_number(first)]
    while not numbers or numbers[-1] != 29:
        obj = app.receive(uid, 60.0)
        assert obj is not None
        numbers.append(_number(obj))
    # Expect what matched the old terms first, then all that matches the new ones; nothing twice, in order
    assert numbers == sorted(set(numbers))
    old, new = [n for n in numbers if n % 2 == 0], [n for n in numbers if n % 2]
    assert new == list(range(new[0], 30, 2))
    assert old == list(range(0, 2 * len(old), 2))
    assert max(old) < 20
    app.close()
    again = archived.subscriber()
    light.publish(registration, figures.metadata(lat="10", long="30"))
    light.flush()
    uid = again.register_subscriber(type_name=TYPE, predicate="//lat < 40", durable="d")
    obj = again.receive(uid, 60.0)
    assert obj is not None
    assert _number(obj) == 30


def test_a_wish_is_amended(federation: Federation, figures: Figures) -> None:
    # Given a subscription without a wish at a delegate that manages no quality of service
    federation.pad()
    light = federation.light()
    light.register_publisher(light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1)
    app = federation.subscriber()
    uid = app.register_subscriber(type_name=TYPE)
    assert app.wait_matched(uid) == 1
    # When it wishes something; Expect it to be told what it got: nothing
    assert app.amend_subscription(uid, qos=Wish(importance=4)) == 1
    (granted,) = app.qos(uid).values()
    assert [each.field for each in granted.reduced] == ["importance"]


PUBLISHER = "/metadata/RequiredMetadata/publisher = '%s'"


def _stands(federation: Federation, figures: Figures) -> tuple[Any, Any, Callable[[], Any]]:
    """A subscription to 418th's objects that stands at a delegate; and a call that has one published and taken."""
    light = federation.light()
    registration = light.register_publisher(
        light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    app = federation.subscriber()
    uid = app.register_subscriber(schema=figures.schema, version="1.0", predicate=PUBLISHER % "418th")
    assert app.wait_matched(uid) == 1

    def taken() -> Any:
        light.publish(registration, figures.figure_1)
        return app.receive(uid, 60.0)

    return app, uid, taken


def test_an_amendment_that_waits_for_a_delegate_holds_up_none_of_another_subscription(
    federation: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two subscriptions at a delegate each, of which one's does not answer
    for name in ("alpha", "beta"):
        federation.pad(name, "rome")
    light = federation.light()
    light.register_publisher(light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1)
    light.register_publisher(light.connect_to_delegate("beta", "rome"), type_name="report", validate=False)
    app = federation.subscriber()
    slow, quick = (app.register_subscriber(type_name=each) for each in ("report", TYPE))
    assert [app.wait_matched(each) for each in (slow, quick)] == [1, 1]
    (session,) = [each for each in app._subscriptions.sessions.all() if each.stands(slow)]
    asked, answers, ask = threading.Event(), threading.Event(), session.link.proxy.subscribe

    def subscribe(*arguments: Any) -> Any:
        asked.set()
        assert answers.wait(60.0)
        return ask(*arguments)

    monkeypatch.setattr(session.link.proxy, "subscribe", subscribe)
    stood: list[int] = []
    waiting = threading.Thread(target=lambda: stood.append(app.amend_subscription(slow, predicate="//a")))
    waiting.start()
    assert asked.wait(60.0)
    # When both are amended; Expect the one to be while the other waits
    other = threading.Thread(target=lambda: stood.append(app.amend_subscription(quick, predicate="//lat > 40")))
    other.start()
    other.join(20.0)
    was_done = list(stood)
    answers.set()
    for thread in (waiting, other):
        thread.join(60.0)
    assert was_done == [1]
    assert stood == [1, 1]


def test_what_is_refused_goes_back_to_where_it_stood_without_a_lookup_service(
    federation: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that refuses the new terms, while the lookup services go away
    delegate = federation.pad().delegate
    app, uid, taken = _stands(federation, figures)
    (before,) = app._subscriptions.watches.all()

    def refuse(*_arguments: Any) -> None:
        for each in federation.lookups:
            each.stop()
        raise AccessDeniedError("not theirs")

    monkeypatch.setattr(delegate.subscribers._amendments, "_exchange", refuse)
    # When it asks for another publisher's; Expect the refusal
    with pytest.raises(AccessDeniedError, match="not theirs"):
        app.amend_subscription(uid, predicate=PUBLISHER % "999th", timeout=5.0)
    # Expect it to be watched for as before, and to get what it got
    assert app._subscriptions.watches.all() == [before]
    assert app.matching(uid).registrations == 1
    assert taken() is not None


def test_who_interrupts_an_amendment_has_the_old_terms(
    federation: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an amendment whose answers are waited for
    federation.pad()
    app, uid, taken = _stands(federation, figures)
    (before,) = app._subscriptions.watches.all()
    (session,) = app._subscriptions.sessions.all()

    def interrupt(_uid: str) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(session.registry, "has_amended", interrupt)
    # When it is interrupted; Expect the subscription to be as it was
    with pytest.raises(KeyboardInterrupt):
        app.amend_subscription(uid, predicate=PUBLISHER % "999th")
    assert app._subscriptions.watches.all() == [before]
    assert taken() is not None
    # Expect it to be amended the next time
    assert app.amend_subscription(uid, predicate=f"{PUBLISHER % '418th'} and //lat > 0") == 1
    assert len(app._subscriptions.watches.all()) == 1
    assert taken() is not None


def test_who_waits_to_amend_what_is_cancelled_is_told(federation: Federation, figures: Figures) -> None:
    # Given a subscription that is cancelled while its new terms are made out
    federation.pad()
    app, uid, _ = _stands(federation, figures)
    entries = app._subscriptions.templates.entries

    def cancelled(*arguments: Any) -> Any:
        found = entries(*arguments)
        app.cancel_subscription(uid)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(app._subscriptions.templates, "entries", cancelled)
        # When it is amended, expect that said, and nothing of it left
        with pytest.raises(UnknownUidError):
            app.amend_subscription(uid, predicate=PUBLISHER % "999th")
    assert not app._subscriptions.watches.all()
