"""Leases are the only clean-up path: nothing outlives its lease, whatever races with the end of it or fails then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jbi_pubsub.pad.delegate.subscribers as subscribers_module
from jbi_pubsub import Config
from jbi_pubsub.core.errors import ConfigurationError, StorageError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PortPlace
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.delegate.store import DelegateOptions, KeptSubscription, SubscriptionStore, Whose
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.pad.server.server import REAP_SECONDS
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest

pytestmark = pytest.mark.processes

SECRET = "0123456789abcdef" * 2
UID = owned_uid("registration", SECRET)
REQUEST = PublisherRequest(SchemaBundle("main.xsd", ()), (), secret=SECRET)
MAIL = SubscriptionRequest(
    owned_uid("subscription", SECRET), direct=False, recipients=("chief@example.org",), secret=SECRET
)


class Gate:
    """An opened type."""

    type = TypeName("t")
    digest = "leases"
    bundle = SchemaBundle("t.xsd", ())

    def impossible(self, _said: str, _namespaces: Any, _registered: Any = ()) -> tuple[str, ...]:
        return ()


@dataclass
class World:
    """A delegate without network: its clock, its types, its presence in lookup services and its store are ours."""

    now: float = 0.0
    ahead: float = 0.0
    """Seconds by which the wall clock is ahead of the other one."""
    store: SubscriptionStore | None = None
    opening: Callable[[], object] = lambda: None
    announcing: Callable[[], object] = lambda: None
    types: set[TypeName] = field(default_factory=set)
    announced: list[str] = field(default_factory=list)
    left: list[tuple[str, ...]] = field(default_factory=list)
    disk_is_broken: bool = False
    kept: Whose | None = None
    delegate: Delegate = field(init=False)

    def __post_init__(self) -> None:
        self.delegate = Delegate(
            "d" * 32,
            config=Config(),
            types=self,  # type: ignore[arg-type]  # as much of a repository as is asked
            announcer=self,
            subscriptions_ref=ServiceRef("d", "subscriptions", ("127.0.0.1:1",)),
            clock=lambda: self.now,
            options=DelegateOptions(store=self.store or self, wall=lambda: self.now + self.ahead),  # type: ignore[arg-type]  # and of a store
        )

    def later(self, seconds: float) -> None:
        """Time passes, and the delegate looks at its leases."""
        self.now += seconds
        self.delegate.expire()

    def open(self, _bundle: SchemaBundle) -> Gate:
        self.opening()
        self.types.add(Gate.type)
        return Gate()

    def join(self, item: Any, _secret: str) -> None:
        self.announcing()
        self.announced.append(item.service_id)

    def leave(self, *service_ids: str) -> None:
        self.left.append(service_ids)
        self.announced[:] = [known for known in self.announced if known not in service_ids]

    def load(self, _wall: float) -> list[KeptSubscription]:
        return []

    def keep(self, kept: KeptSubscription) -> None:
        self.kept = kept.whose

    def hand_over(self, _uid: str, whose: Whose | None) -> None:
        self.kept = whose

    def set_times(self, _times: object) -> None: ...

    def unsubscribed(self) -> list[tuple[str, str]]:
        return []

    def close(self) -> None: ...

    def forget(self, what: Any) -> None:
        """A type, or a subscription in the store."""
        if isinstance(what, TypeName):
            self.types.discard(what)
        elif self.disk_is_broken:
            raise StorageError("disk I/O error")

    def held(self) -> dict[str, Any]:
        """All that the delegate holds for others."""
        status = self.delegate.status()
        kinds = ("publishers", "registrations", "sessions", "subscriptions", "leases")
        return {kind: status[kind] for kind in kinds if status[kind]} | (
            {"announced": self.announced} if self.announced else {}
        )


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.disk_is_broken = False
    made.delegate.close()


# -- e-mail subscriptions -----------------------------------------------------------------------------------------


def test_an_email_subscription_sent_again_is_the_same_one_under_the_same_lease(world: World) -> None:
    # Given an e-mail subscription under a lease of 10 s
    first = world.delegate.subscribers.subscribe("", MAIL, 10.0)
    # When it is sent again after 4 s, as a client does that has not seen the answer
    world.later(4.0)
    second = world.delegate.subscribers.subscribe("", MAIL, 10.0)
    # Expect the same number, the same lease, and what is left of it
    assert first.lease is not None
    assert second.lease is not None
    assert (second.number, second.lease.lease_id) == (first.number, first.lease.lease_id)
    assert second.lease.duration == pytest.approx(6.0)
    assert world.held()["leases"] == 1


def test_an_email_subscription_sent_again_hangs_on_the_certificate_it_was_sent_with_last(world: World) -> None:
    # Given an e-mail subscription of somebody, who has got another certificate since and sends it again
    for holder in ("1:old", "2:new"):
        anna = Caller("192.0.2.1:7", place=PortPlace(holder=holder), user="anna")
        world.delegate.subscribers.subscribe("", MAIL, 10.0, caller=anna)
        assert world.kept == Whose("192.0.2.1:7", "anna", claimed=False, client="", holder=holder)
    # When the old one is revoked, expect it to stand; when the new one is, to end
    assert world.delegate.review.end_held("1:old".__eq__) == 0
    assert world.delegate.review.end_held("2:new".__eq__) == 1
    assert world.held() == {}


def test_what_could_not_be_handed_over_on_the_disk_hangs_on_the_old_certificate_until_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an e-mail subscription, and another certificate of its owner
    old, new = (Caller("192.0.2.1:7", place=PortPlace(holder=holder), user="anna") for holder in ("1:old", "2:new"))
    world.delegate.subscribers.subscribe("", MAIL, 10.0, caller=old)

    def full(_uid: str, _whose: Whose | None) -> None:
        raise StorageError("no room")

    # When it is sent again with that, while the disk takes nothing
    with monkeypatch.context() as patched:
        patched.setattr(world, "hand_over", full)
        with pytest.raises(StorageError, match="no room"):
            world.delegate.subscribers.subscribe("", MAIL, 10.0, caller=new)
    # Expect it to be handed over, on the disk as well, when it is sent once more
    world.delegate.subscribers.subscribe("", MAIL, 10.0, caller=new)
    assert world.kept is not None
    assert world.kept.holder == "2:new"
    assert world.delegate.review.end_held("1:old".__eq__) == 0


def test_an_email_subscription_that_ends_while_it_is_handed_over_stays_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an e-mail subscription, and who is told what happens to it
    old, new = (Caller("192.0.2.1:7", place=PortPlace(holder=holder), user="anna") for holder in ("1:old", "2:new"))
    world.delegate.subscribers.subscribe("", MAIL, 10.0, caller=old)
    told: list[str] = []
    world.delegate.events.witness = lambda happening: told.append(happening.what)

    # When it is cancelled before it hangs on another certificate, with which it was sent again with other terms
    def cancels(_request: SubscriptionRequest) -> None:
        world.delegate.subscribers.unsubscribe("", MAIL.uid, administer=True)

    monkeypatch.setattr(world, "amend", cancels, raising=False)
    amended = msgspec.structs.replace(MAIL, predicate="/m/@n = 2")
    world.delegate.subscribers.subscribe("", amended, 10.0, caller=new)
    # Expect nothing to be done with it afterwards
    assert told == ["updated", "removed"]
    assert world.held() == {}


def test_an_email_subscription_sent_again_lives_as_long_as_its_lease_is_renewed(world: World) -> None:
    # Given an e-mail subscription that was sent twice
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    lease = world.delegate.subscribers.subscribe("", MAIL, 10.0).lease
    assert lease is not None
    # When the lease is renewed beyond its first term
    world.later(9.0)
    world.delegate.renew(lease.lease_id, 10.0)
    world.later(9.0)
    # Expect the subscription to stand
    assert [s["uid"] for s in world.delegate.mail.rows()] == [MAIL.uid]
    # When nobody renews it
    world.later(2.0)
    # Expect nothing to be left
    assert world.held() == {}


@pytest.mark.row("X-13")
def test_an_amended_email_subscription_is_kept_as_it_is_by_then(world: World, tmp_path: Path) -> None:
    # Given a delegate that keeps its e-mail subscriptions
    store = SubscriptionStore(tmp_path / "subscriptions")
    world.delegate.mail.store = store
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    lease = world.delegate.mail.rows()[0]["lease"]
    # When one is amended
    amended = msgspec.structs.replace(MAIL, predicate="/m/@n = 2", payload_filter="//a")
    granted = world.delegate.subscribers.subscribe("", amended, 10.0)
    # Expect its lease to be the one that it had, and what is on disk to be the new terms
    assert granted.lease is not None
    assert [s["lease"] for s in world.delegate.mail.rows()] == [lease]
    (kept,) = store.load(0.0)
    assert kept.request == amended
    assert kept.lease_id == granted.lease.lease_id
    store.close()
    world.delegate.mail.store = None


def test_an_email_subscription_that_ends_before_it_is_on_the_disk_does_not_come_back(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that keeps its e-mail subscriptions
    store = SubscriptionStore(tmp_path / "subscriptions")
    keep = store.keep
    monkeypatch.setattr(world.delegate.mail, "store", store)

    # When one is cancelled before its subscriber has the answer
    def cancelled_before(kept: KeptSubscription) -> None:
        world.delegate.subscribers.cancel(MAIL.uid)
        keep(kept)

    monkeypatch.setattr(store, "keep", cancelled_before)
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    # Expect nothing of it for the next start
    assert store.load(0.0) == []
    store.close()
    monkeypatch.undo()


def test_new_terms_that_cant_be_kept_leave_the_old_ones_in_force(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an e-mail subscription
    store = SubscriptionStore(tmp_path / "subscriptions")
    monkeypatch.setattr(world.delegate.mail, "store", store)
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    (standing,) = world.delegate.tables.subscriptions.values()
    taken = dict(world.delegate.contracts.quota._taken)
    amended = msgspec.structs.replace(MAIL, predicate="/m/@n = 2")
    # When it is amended, and the disk takes nothing any more

    def full(_request: SubscriptionRequest) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(store, "amend", full)
        with pytest.raises(StorageError, match="no room"):
            world.delegate.subscribers.subscribe("", amended, 10.0)
    # Expect the old terms in force, and nothing taken for the new ones
    assert (standing.request, standing.predicate) == (MAIL, None)
    assert dict(world.delegate.contracts.quota._taken) == taken
    # and, asked for again, the new ones in force and on the disk
    world.delegate.subscribers.subscribe("", amended, 10.0)
    assert standing.request == amended
    (kept,) = store.load(0.0)
    assert kept.request == amended
    store.close()
    monkeypatch.undo()


def test_nobody_turns_an_email_subscription_to_other_recipients(world: World) -> None:
    # Given an e-mail subscription
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    # When somebody registers one of the same id for other recipients
    other = msgspec.structs.replace(MAIL, recipients=("somebody.else@example.net",))
    # Expect a refusal, and the first to stand as it was
    with pytest.raises(ConfigurationError, match="other terms"):
        world.delegate.subscribers.subscribe("", other, 10.0)
    assert [s["recipients"] for s in world.delegate.mail.rows()] == [["chief@example.org"]]
    assert world.held()["leases"] == 1


def test_a_cancelled_email_subscription_leaves_no_lease(world: World) -> None:
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    world.delegate.subscribers.unsubscribe("", MAIL.uid, administer=True)
    assert world.held() == {}


# -- races with the end of a lease --------------------------------------------------------------------------------


def test_a_lease_that_runs_out_while_its_publisher_registers_leaves_nothing(world: World) -> None:
    # Given a publisher with 10 s left
    connection, _ = world.delegate.publishers.connect("publisher", 10.0)
    # When opening the schema of its registration takes longer
    world.opening = lambda: world.later(11.0)
    # Expect the publisher to be unknown, and no registration, announcement or type
    with pytest.raises(UnknownUidError):
        world.delegate.registrations.register(connection.connection_id, REQUEST, uid=UID, number=1)
    assert world.held() == {}
    assert world.types == set()
    # When it comes back, expect its registration to be taken
    world.opening = lambda: None
    again, _ = world.delegate.publishers.connect("publisher", 10.0)
    world.delegate.registrations.register(again.connection_id, REQUEST, uid=UID, number=1)
    assert world.announced == [UID]


def test_a_lease_that_runs_out_before_the_registration_is_announced_leaves_no_announcement(world: World) -> None:
    # Given a publisher with 10 s left
    connection, _ = world.delegate.publishers.connect("publisher", 10.0)
    # When they pass between the decision to register and the announcement
    world.announcing = lambda: world.later(11.0)
    with suppress(UnknownUidError):
        world.delegate.registrations.register(connection.connection_id, REQUEST, uid=UID, number=1)
    # Expect nothing to be announced for ever
    assert world.held() == {}


def test_a_lease_that_runs_out_while_its_subscriber_subscribes_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscriber with 10 s left
    session, _ = world.delegate.sessions.open("subscriber", 10.0)
    # When compiling its subscription takes longer
    compiled = subscribers_module.compile_subscription

    def slowly(*arguments: Any, **options: Any) -> Any:
        world.later(11.0)
        return compiled(*arguments, **options)

    monkeypatch.setattr(subscribers_module, "compile_subscription", slowly)
    # Expect the session to be unknown, and no subscription that nobody's lease covers
    with pytest.raises(UnknownUidError):
        world.delegate.subscribers.subscribe(session, SubscriptionRequest("late"), 10.0)
    assert world.held() == {}


# -- failures while cleaning up -----------------------------------------------------------------------------------


def test_a_disk_that_fails_while_one_lease_ends_keeps_no_other_alive(world: World) -> None:
    # Given an e-mail subscription that is on disk, a session and a publisher, all with 10 s left
    world.delegate.subscribers.subscribe("", MAIL, 10.0)
    world.delegate.sessions.open("subscriber", 10.0)
    world.delegate.publishers.connect("publisher", 10.0)
    # When the disk fails, and all leases run out
    world.disk_is_broken = True
    world.later(11.0)
    # Expect nothing to be left
    assert world.held() == {}


def test_a_delegate_goes_on_looking_at_leases_after_its_disk_has_failed(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a delegate that keeps its e-mail subscriptions on a disk, one of them there
    section = msgspec.structs.replace(federation.config.pad, state=str(tmp_path / "state.db"))
    pad = federation.pad(config=msgspec.structs.replace(federation.config, pad=section))
    pad.delegate.subscribers.subscribe("", MAIL, 0.1)
    asked = []

    def failing(uid: str) -> None:
        asked.append(uid)
        raise StorageError("disk I/O error")

    # When the disk fails as its lease ends
    monkeypatch.setattr(pad.delegate.mail.store, "forget", failing)
    eventually(lambda: asked == [MAIL.uid])
    # Expect a lease that ends later to be seen
    pad.delegate.sessions.open("subscriber", 0.1)
    eventually(lambda: pad.status()["sessions"] == [] and pad.status()["leases"] == 0)


def test_a_delegate_that_stops_ends_no_lease_any_more(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a delegate that has time to deliver when it stops
    pad = federation.pad()
    looks: list[bool] = []
    expire, drain = pad.delegate.expire, pad.delegate.drain

    def looked() -> int:
        looks.append(pad.service.presence.is_stopping)
        return int(expire())

    def slowly(timeout: float, *, closing: bool = False) -> int:
        time.sleep(5 * REAP_SECONDS)
        return int(drain(timeout, closing=closing))

    monkeypatch.setattr(pad.delegate, "expire", looked)
    monkeypatch.setattr(pad.delegate, "drain", slowly)
    eventually(lambda: looks)
    # When it stops; Expect nobody to be ended for a lease that he could not renew
    pad.stop(1.0)
    assert not any(looks)


UNIT = define("test.Unit", {"name": str})
OTHER_UNIT = define("test.Unit", {"name": str, "country": str})


def _register(world: World, connection: str, number: int, entry: EntryRep) -> str:
    secret = f"{number:032}"
    request = msgspec.structs.replace(REQUEST, entries=(entry,), secret=secret)
    uid = owned_uid("registration", secret)
    world.delegate.registrations.register(connection, request, uid=uid, number=number)
    return uid


def test_the_end_of_a_subscription_costs_nothing_at_registrations_that_it_does_not_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given many registrations that differ, and a session with a subscription to each of some, and one to all
    world = World()
    connection = world.delegate.publishers.connect("publisher", 60.0)[0].connection_id
    for number in range(1, 101):
        _register(world, connection, number, EntryRep(UNIT, (f"unit-{number}",)))
    session, _ = world.delegate.sessions.open("subscriber", 60.0)
    for number in range(1, 11):
        entries = (EntryRep(UNIT, (f"unit-{number}",)),)
        world.delegate.subscribers.subscribe(session, SubscriptionRequest(f"subscription-{number}", entries), 60.0)
    world.delegate.subscribers.subscribe(session, SubscriptionRequest("all"), 60.0)
    assert sum(len(topic.table) for topic in world.delegate.tables.topics) == 110
    removals: list[object] = []
    remove = MatchTable.remove

    def counted(table: MatchTable, subscription: Subscription) -> None:
        removals.append(subscription)
        remove(table, subscription)

    monkeypatch.setattr(MatchTable, "remove", counted)
    # When it ends
    world.delegate.sessions.close(session)
    # Expect nothing to be left in any table, and only those to be asked that had it: first all, then one by one
    assert sum(len(topic.table) for topic in world.delegate.tables.topics) == 0
    assert len(removals) <= 2 * 110


def test_a_subscription_ends_whose_class_has_got_other_fields_meanwhile() -> None:
    # Given a subscription to a class of which only another generation is registered by now
    world = World()
    connection = world.delegate.publishers.connect("publisher", 60.0)[0].connection_id
    before = _register(world, connection, 1, EntryRep(UNIT, ("unit",)))
    session, _ = world.delegate.sessions.open("subscriber", 60.0)
    world.delegate.subscribers.subscribe(
        session, SubscriptionRequest("subscription", (EntryRep(UNIT, ("unit",)),)), 60.0
    )
    world.delegate.publishers.unregister(connection, before)
    _register(world, connection, 2, EntryRep(OTHER_UNIT, ("unit", "country")))
    # When it is cancelled
    world.delegate.subscribers.unsubscribe(session, "subscription")
    # Expect it to be gone
    assert world.delegate.status()["subscriptions"] == []


def test_the_registrations_of_a_publisher_that_ends_leave_the_lookup_services_together(world: World) -> None:
    # Given a publisher with registrations
    connection = world.delegate.publishers.connect("publisher", 60.0)[0].connection_id
    uids = [_register(world, connection, number, EntryRep(UNIT, (f"unit-{number}",))) for number in range(1, 6)]
    # When its lease runs out
    world.later(61.0)
    # Expect one step for all of them: each may be one over all that the delegate has announced
    assert [set(left) for left in world.left] == [set(uids)]
    assert world.announced == []
