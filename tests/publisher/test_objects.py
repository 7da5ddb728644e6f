"""What an object may be: without metadata or payload, not looked at, of a size, for a time, for some."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from jbi_pubsub import InfoObject, JbiError, SubscriberAdapter
from jbi_pubsub.core.config import ClientSection, Config, load
from jbi_pubsub.core.errors import ConfigurationError, InvariantError, MetadataError, OversizeError, SchemaError
from jbi_pubsub.core.info_object import Cause, Head, Parcel, SchemaBundle, TypeName, pack
from jbi_pubsub.core.xml import MAX_METADATA_BYTES
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.publisher.lanes import Lanes
from jbi_pubsub.publisher.payloads import MAX_PAYLOAD_BYTES
from tests.conftest import Federation, Figures, eventually

TYPE = "mil.af.rl.jbi.Intel_Imagery"
NONE = SchemaBundle("", (), type=TypeName("t"))


def _with(federation: Federation, **client: Any) -> Config:
    return msgspec.structs.replace(federation.config, client=ClientSection(**client))


def _drained(subscriber: SubscriberAdapter, uid: Any, count: int) -> list[InfoObject]:
    """So many objects, as soon as they are there."""
    eventually(lambda: subscriber.queue_size(uid) >= count, what=lambda: subscriber.queue_size(uid))
    return subscriber.drain(uid)


def _untyped(federation: Federation, config: Config | None = None, **terms: Any) -> tuple[Any, Any]:
    publisher = federation.light(config)
    at = publisher.connect_to_delegate("alpha", "rome")
    return publisher, publisher.register_publisher(at, type_name="report", validate=False, **terms)


# -- absent -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("G-02")
def test_metadata_or_payload_may_be_absent(federation: Federation) -> None:
    # Given subscriptions with and without predicates, of which none speaks of the platform
    federation.pad()
    publisher, uid = _untyped(federation)
    subscriber = federation.subscriber()
    everything = subscriber.register_subscriber(type_name="report")
    asked = [
        subscriber.register_subscriber(type_name="report", predicate=text)
        for text in ("not(//a)", "true()", "/a", "count(//*) = 0")
    ]
    # When objects without either are published, one by one and many at once
    for metadata, payload in ((None, b"p"), (b"", None), (b"<a/>", None), (None, None)):
        publisher.publish(uid, metadata, payload)
    publisher.publish_many(uid, [(None, b"q"), (b"<a/>", b"r")])
    # Expect them as they are; and no predicate to be true of metadata that are not there
    got = [subscriber.receive(everything, 60.0) for _ in range(6)]
    assert [(obj.metadata, obj.payload) for obj in got if obj] == [
        (b"", b"p"), (b"", b""), (b"<a/>", b""), (b"", b""), (b"", b"q"), (b"<a/>", b"r"),
    ]  # fmt: skip
    assert [(obj.platform.metadata_length, obj.platform.payload_length) for obj in got if obj][:2] == [(0, 1), (0, 0)]
    assert [len(_drained(subscriber, each, count)) for each, count in zip(asked, (0, 2, 2, 0), strict=True)] == [
        0,
        2,
        2,
        0,
    ]


def test_where_they_are_looked_at_they_have_to_be_there(publishing: Any, figures: Figures) -> None:
    # Given a type with a schema and invariants, validated and not
    for validate, says in ((True, "validated"), (False, "invariants")):
        registration = publishing.register(figures.figure_1, figures.schema, validate=validate)
        # Expect absent metadata to be refused
        with pytest.raises(MetadataError, match=says):
            publishing.publish(registration, None)
        publishing.publish(registration, figures.figure_1)


@pytest.mark.row("G-03")
def test_who_wants_a_version_gets_that_alone(federation: Federation) -> None:
    federation.pad()
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    subscriber = federation.subscriber()
    first, every = (
        subscriber.register_subscriber(type_name="report", version=version, view="combined", predicate="//og:Name")
        for version in ("1.0", None)
    )
    for version in ("1.0", "1.1", "2.0"):
        uid = publisher.register_publisher(at, type_name="report", version=version, validate=False)
        publisher.publish(uid, b"", version.encode())
    publisher.flush()
    assert sorted(obj.payload for obj in _drained(subscriber, every, 3)) == [b"1.0", b"1.1", b"2.0"]
    assert [obj.payload for obj in _drained(subscriber, first, 1)] == [b"1.0"]


# -- checks -----------------------------------------------------------------------------------------------------------


BAD, INVALID = b"<metadata><open></metadata>", b"<other/>"


@pytest.mark.row("G-51", "G-70")
@pytest.mark.parametrize("node", [True, False])
@pytest.mark.parametrize("client", [True, False, None])
def test_who_says_whether_metadata_are_to_be_well_formed(
    federation: Federation, node: bool, client: bool | None
) -> None:
    # Given a node that says one thing, and a client that says the same, another, or nothing
    federation.pad()
    publisher, uid = _untyped(federation, _with(federation, well_formed=node), well_formed=client)
    subscriber = federation.subscriber()
    everything = subscriber.register_subscriber(type_name="report")
    asked = subscriber.register_subscriber(type_name="report", predicate="/metadata or not(/metadata)")
    wanted = node if client is None else client
    # When metadata that are none are published
    if wanted:
        with pytest.raises(MetadataError, match="well-formed"):
            publisher.publish(uid, BAD)
    else:
        publisher.publish(uid, BAD, b"p")
    publisher.publish(uid, b"<metadata/>")
    # Expect the client's word to count, else the node's; no predicate is true of what is no XML
    got = [subscriber.receive(everything, 60.0) for _ in range(1 if wanted else 2)]
    assert [obj.metadata for obj in got if obj] == ([] if wanted else [BAD]) + [b"<metadata/>"]
    assert [obj.metadata for obj in _drained(subscriber, asked, 1)] == [b"<metadata/>"]


@pytest.mark.row("G-52", "G-71")
@pytest.mark.parametrize("node", [True, False])
@pytest.mark.parametrize("client", [True, False, None])
def test_who_says_whether_metadata_are_to_be_valid(
    federation: Federation, figures: Figures, node: bool, client: bool | None
) -> None:
    federation.pad()
    publisher = federation.light(_with(federation, validate=node))
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, validate=client)
    invalid = figures.figure_1.replace(b"<lat>", b"<nothing/><lat>")
    if node if client is None else client:
        with pytest.raises(MetadataError, match="nothing"):
            publisher.publish(registration, invalid)
    else:
        publisher.publish(registration, invalid)
    # Expect invariants to be looked at in any case
    with pytest.raises(InvariantError):
        publisher.publish(registration, figures.metadata(publisher="999th"))


@pytest.mark.row("G-52")
def test_a_type_of_which_there_is_no_schema_can_not_be_validated(federation: Federation) -> None:
    federation.pad()
    publisher = federation.light()
    with pytest.raises(SchemaError, match="no schema"):
        publisher.register_publisher(publisher.connect_to_delegate("alpha"), type_name="report")


def test_a_delegate_believes_nobody(federation: Federation) -> None:
    # Given a registration that says that its metadata are well-formed, and a publisher that does not look
    federation.pad()
    refused: list[Any] = []
    publisher = federation.light(refused=lambda uid, why: refused.append((uid, why)))
    uid = publisher.register_publisher(
        publisher.connect_to_delegate("alpha"), type_name="report", validate=False, well_formed=True
    )
    publisher._publications[uid][0].check = lambda _: None  # type: ignore[method-assign]
    object_id = publisher.publish(uid, BAD)
    publisher.flush()
    # Expect the delegate to look
    ((told, why),) = eventually(lambda: refused)
    assert told == object_id
    assert isinstance(why, MetadataError)


@pytest.mark.row("G-71")
def test_who_wants_valid_objects_alone_gets_those(federation: Federation, figures: Figures) -> None:
    # Given publishers of a type that do not look, and one of another type that has no schema
    federation.pad()
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, validate=False)
    loose = publisher.register_publisher(at, type_name="report", validate=False, well_formed=False)
    subscriber = federation.subscriber()
    valid = subscriber.register_subscriber(type_name=TYPE, version="1.0", validate=True)
    by_schema = subscriber.register_subscriber(schema=figures.schema, validate=True)
    formed = subscriber.register_subscriber(well_formed=True)
    everything = subscriber.register_subscriber()
    # When good and bad ones are published
    invalid = figures.figure_1.replace(b"<lat>", b"<nothing/><lat>")
    for metadata in (figures.figure_1, invalid, invalid, figures.metadata(lat="12")):
        publisher.publish(registration, metadata)
    for metadata in (BAD, b"", b"<good/>"):
        publisher.publish(loose, metadata)
    assert len([subscriber.receive(everything, 60.0) for _ in range(7)]) == 7
    # Expect what is not to be dropped, and told as lost
    good = [figures.figure_1, figures.metadata(lat="12")]
    for uid in (valid, by_schema):
        assert [obj.metadata for obj in _drained(subscriber, uid, 2)] == good
        eventually(lambda uid=uid: subscriber.losses(uid) == {Cause.INVALID: 2})  # type: ignore[misc]
    assert len(_drained(subscriber, formed, 6)) == 6
    eventually(lambda: subscriber.losses(formed) == {Cause.INVALID: 1})
    # Expect to be told where there is no schema to say what is valid
    with pytest.raises(SchemaError, match="schema is known to validate report"):
        subscriber.register_subscriber(type_name="report", version="1.0", validate=True)
    with pytest.raises(ConfigurationError, match="version"):
        subscriber.register_subscriber(type_name=TYPE, validate=True)


def test_a_version_has_no_space_at_its_ends(federation: Federation) -> None:
    # Given a delegate, and a version as no message and no template should say it; expect it to be refused everywhere
    federation.pad()
    publisher, subscriber = federation.publisher(), federation.subscriber()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    with pytest.raises(ConfigurationError, match=r"version is ' 1\.0'"):
        publisher.register_publisher(delegate, type_name="report", version=" 1.0", validate=False)
    with pytest.raises(ConfigurationError, match=r"version is '1\.0 '"):
        subscriber.register_subscriber(type_name="report", version="1.0 ")
    with pytest.raises(ConfigurationError, match=r"version is '1\.0 '"):
        subscriber.query(type_name="report", version="1.0 ")


@pytest.mark.row("G-71")
def test_queries_may_want_the_same(archived: Federation, figures: Figures) -> None:
    archived.pad()
    publisher = archived.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, validate=False, persist=True)
    invalid = figures.figure_1.replace(b"<lat>", b"<nothing/><lat>")
    for metadata in (invalid, figures.figure_1, invalid, figures.metadata(lat="12"), figures.metadata(lat="13")):
        publisher.publish(registration, metadata)
    publisher.flush()
    with archived.subscriber().open_query(TYPE, version="1.0", validate=True, limit=2) as query:
        found = [obj.metadata for obj in query]
    assert found == [figures.figure_1, figures.metadata(lat="12")]
    assert query.invalid == 2


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.row("G-50", "G-126")
@pytest.mark.parametrize("limit", ["max_metadata", "max_payload"])
def test_a_limit_is_taken_and_one_byte_more_is_not(federation: Federation, limit: str) -> None:
    # Given a publisher with limits
    federation.pad()
    publisher, uid = _untyped(federation, _with(federation, **{limit: 100}))

    def objects(size: int) -> tuple[bytes, bytes]:
        return (b"<a>%s</a>" % (b"x" * (size - 7)), b"") if limit == "max_metadata" else (b"<a/>", b"x" * size)

    # Expect the limit to be accepted, and one more to be refused, one by one and many at once
    publisher.publish(uid, *objects(100))
    publisher.publish_many(uid, [objects(100)])
    for call in (lambda: publisher.publish(uid, *objects(101)), lambda: publisher.publish_many(uid, [objects(101)])):
        with pytest.raises(OversizeError, match="101 bytes, the limit is 100") as caught:
            call()
        assert (caught.value.facts["size"], caught.value.facts["limit"]) == (101, 100)


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("limit", ["max_metadata", "max_payload"])
def test_a_node_with_limits_asks_nobody(federation: Federation, limit: str, mode: Any) -> None:
    # Given a delegate with limits, and a publisher without
    qos = msgspec.structs.replace(federation.config.qos, mode=mode)
    pad = federation.pad(config=msgspec.structs.replace(_with(federation, **{limit: 100}), qos=qos))
    refused: list[JbiError] = []
    publisher = federation.light(refused=lambda _uid, why: refused.append(why))
    uid = publisher.register_publisher(publisher.connect_to_delegate("alpha"), type_name="report", validate=False)
    sizes = (100, 101, 99)
    for size in sizes:
        metadata, payload = (b"<a>%s</a>" % (b"x" * (size - 7)), b"") if limit == "max_metadata" else (b"", b"x" * size)
        publisher.publish(uid, metadata, payload)
    publisher.flush()
    # Expect the one that is too large to be refused alone
    assert [type(each) for each in eventually(lambda: refused)] == [OversizeError]
    (row,) = pad.status()["registrations"]
    assert (row["published"], row["refused"]) == (2, 1)


def test_without_limits_of_its_own_a_node_has_no_stage_for_them(federation: Federation) -> None:
    assert not federation.pad().delegate.pipeline.control.has_stages
    assert ClientSection().max_metadata == MAX_METADATA_BYTES
    assert ClientSection().max_payload >= MAX_PAYLOAD_BYTES


# -- for a time -------------------------------------------------------------------------------------------------------


@pytest.mark.row("G-73", "D-29", "X-12")
@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_waits_too_long_for_a_subscriber_is_lost_and_told(federation: Federation, mode: Any) -> None:
    # Given a subscription that may have a hundred objects at a time, and two publishers, of which one's objects expire
    config = msgspec.structs.replace(federation.config, qos=msgspec.structs.replace(federation.config.qos, mode=mode))
    federation.pad(config=config)
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    lasting, passing = (
        publisher.register_publisher(at, type_name="report", validate=False, expiration=seconds)
        for seconds in (None, 3.0)
    )
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="report", bound=100)
    for registration in (lasting, passing):
        publisher.publish(registration, b"", b"first")
        assert subscriber.receive(uid, 60.0)
    # When more come than it may have, and it takes them later
    for count in (60, 90):
        for _ in range(count):
            publisher.publish(passing, b"", b"passing")
        publisher.flush()
        eventually(lambda: subscriber.queue_size(uid) >= 60)
    for _ in range(3):
        publisher.publish(lasting, b"", b"lasting")
    publisher.flush()
    time.sleep(3.5)
    got = []
    while (obj := subscriber.receive(uid, 2.0)) is not None:
        got.append(obj.payload)
    # Expect what had waited to be told as expired, and the others to come
    lost = subscriber.losses(uid)
    assert got.count(b"lasting") == 3, lost
    assert lost.get("expired", 0) > 10, lost
    assert got.count(b"passing") + sum(lost.values()) == 150


def test_mail_waits_no_longer_either(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a subscription by e-mail, and publishers of which one's objects expire
    pad = federation.pad()
    offered: list[tuple[Any, ...]] = []
    offer = pad.delegate.mail.dispatcher.offer

    def noted(subscription: Any, obj: InfoObject, payload: bytes, *until: Any) -> bool:
        offered.append(until)
        return offer(subscription, obj, payload, *until)

    monkeypatch.setattr(pad.delegate.mail.dispatcher, "offer", noted)
    federation.subscriber().register_subscriber(type_name="report", recipients=["ops@example.org"])
    for seconds in (None, 60.0):
        publisher, uid = _untyped(federation, expiration=seconds)
        publisher.publish(uid, b"<a/>")
        publisher.flush()
    # Expect its mail to have that time, and no other
    (none, until) = eventually(lambda: offered if len(offered) == 2 else None) or ()
    assert none == ()
    assert until[0] == pytest.approx(60.0, abs=5.0)  # two clocks, read one after the other


@pytest.mark.row("G-53")
def test_a_default_of_the_configuration_holds_where_nobody_says_otherwise(federation: Federation) -> None:
    pad = federation.pad()
    config = _with(federation, expiration=7.0, reliable=False)
    for given, is_meant in (({}, (7.0, False)), ({"expiration": 0.0, "reliable": True}, (0.0, True))):
        publisher, uid = _untyped(federation, config, **given)
        terms = publisher._publications[uid][0].terms
        assert (terms.expiration, terms.reliable) == is_meant
        assert pad.delegate.tables.registrations[uid].terms.expiration == is_meant[0]


def test_what_has_expired_when_a_delegate_answers_again_does_not_come(federation: Federation) -> None:
    # Given a publisher whose objects expire, and whose delegate goes away
    pad = federation.pad()
    publisher, uid = _untyped(federation, expiration=3.0)
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="report")
    some = subscriber.register_subscriber(type_name="report", predicate="/none")
    publisher.publish(uid, b"", b"before")
    assert subscriber.receive(subscription, 60.0).payload == b"before"  # type: ignore[union-attr]
    publisher.flush()
    pad.stop(0.0)
    # When it publishes meanwhile, and another delegate comes later, and a subscription before that
    for _ in range(5):
        publisher.publish(uid, b"", b"stale")
    time.sleep(3.5)
    later = federation.subscriber()
    new = later.register_subscriber(type_name="report")
    federation.pad()
    publisher.flush(30.0)
    publisher.publish(uid, b"", b"fresh")
    # Expect what is not stale alone, and to be told how many were; but for who came later
    assert subscriber.receive(subscription, 60.0).payload == b"fresh"  # type: ignore[union-attr]
    for each in (subscription, some):
        eventually(
            lambda each=each: subscriber.losses(each) == {"sequence_gap": 5}, what=lambda: subscriber.losses(some)
        )  # type: ignore[misc]
    assert later.receive(new, 60.0).payload == b"fresh"  # type: ignore[union-attr]
    assert later.losses(new) == {}
    (connection,) = publisher.status()["delegates"].values()
    assert connection["given_up"] == 5
    assert publisher.status()["registrations"][uid]["unfinished"] in (0, 1)


class _Lane:
    """What waits of two registrations, with a clock of its own."""

    def __init__(self, *, reliable: bool, expiration: float) -> None:
        self.now = 100.0
        self.lanes = Lanes(clock=lambda: self.now)
        self.lanes.grant(1, Registered(), reliable=reliable, expiration=expiration)
        self.numbers = {1: 0, 2: 0}

    def put(self, number: int, count: int) -> None:
        for _ in range(count):
            self.numbers[number] += 1
            head = Head("", f"r-{number}", self.numbers[number], 1.0, "t", "1.0", b"", 1)
            self.lanes.put(number, [pack(head, b"p", self.now)], 1.0)

    def taken(self) -> list[str]:
        items = self.lanes.take(1_000, 1 << 20)
        heads = [Parcel.received(b"".join(bytes(part) for part in item[1:])).head for item in items]
        lost = [f" lost {head.left_out}" if head.is_lost else "" for head in heads]
        return [f"{head.registration}:{head.sequence}{told}" for head, told in zip(heads, lost, strict=True)]


def test_what_has_waited_too_long_at_its_publisher_does_not_go() -> None:
    lane = _Lane(reliable=True, expiration=5.0)
    lane.put(1, 2)
    lane.put(2, 1)
    lane.now += 6.0
    lane.put(1, 1)
    # Expect the delegate to be told of it, up to its last number, and nobody to wait for it
    assert sorted(lane.taken()) == ["r-1:2 lost 2", "r-1:3", "r-2:1"]
    assert (lane.lanes.given_up, lane.lanes.unfinished(1), lane.lanes.waiting) == (2, 2, 0)
    # When the delegate goes away before it has that, and more expires meanwhile
    lane.lanes.restart()
    lane.now += 6.0
    lane.put(1, 1)
    # Expect the next one to be told of all
    assert sorted(lane.taken()) == ["r-1:3 lost 3", "r-1:4", "r-2:1"]
    assert lane.lanes.given_up == 3
    lane.lanes.acknowledged(3)
    assert (lane.lanes.wait_taken(0.0), lane.lanes.waiting, lane.lanes.is_empty()) == (0, 0, True)


def test_a_registration_of_which_all_has_waited_too_long_tells_that_once() -> None:
    lane = _Lane(reliable=True, expiration=5.0)
    lane.put(1, 2)
    lane.now += 6.0
    assert (lane.taken(), lane.taken()) == (["r-1:2 lost 2"], [])
    lane.lanes.restart()
    lane.now += 6.0
    assert lane.taken() == ["r-1:2 lost 2"]
    lane.lanes.acknowledged(1)
    assert (lane.lanes.given_up, lane.lanes.wait_taken(0.0), lane.lanes.unfinished(1)) == (2, 0, 0)


def test_what_expires_before_a_delegate_has_had_anything_is_told(federation: Federation) -> None:
    # Given a registration of which the delegate has no object yet when it stops
    pad = federation.pad()
    publisher, uid = _untyped(federation, expiration=0.5)
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="report")
    assert subscriber.wait_matched(subscription, timeout=60.0)
    pad.stop(0.0)
    # When two objects expire until it is back; expect that to be told, although nothing comes behind them
    for _ in range(2):
        publisher.publish(uid, b"", b"stale")
    time.sleep(0.6)
    federation.pad()
    eventually(
        lambda: subscriber.losses(subscription) == {"sequence_gap": 2}, what=lambda: subscriber.losses(subscription)
    )


@pytest.mark.row("D-27")
@pytest.mark.parametrize(
    ("reliable", "again"), [(True, ["r-1:1", "r-1:2", "r-1:3", "r-2:1"]), (False, ["r-1:3", "r-2:1"])]
)
def test_what_is_not_reliable_is_not_sent_again(reliable: bool, again: list[str]) -> None:
    # Given objects under way, and one that waits, when their delegate goes away
    lane = _Lane(reliable=reliable, expiration=0.0)
    lane.put(1, 2)
    lane.put(2, 1)
    assert len(lane.taken()) == 3
    lane.put(1, 1)
    lane.lanes.restart()
    # Expect what waits to go, and what was under way again if it is reliable
    assert sorted(lane.taken()) == again
    assert lane.lanes.given_up == (0 if reliable else 2)
    lane.lanes.acknowledged(10)
    assert lane.lanes.wait_taken(0.0) == 0


@pytest.mark.parametrize(
    ("terms", "what"),
    [
        ({"expiration": -1.0}, "expiration"),
        ({"expiration": float("inf")}, "expiration"),
        ({"owner": "x" * 65}, "owner"),
        ({"reliable": 1}, "reliable"),
        ({"local": "yes"}, "local"),
    ],
)
def test_terms_that_make_no_sense_are_refused(federation: Federation, terms: dict[str, Any], what: str) -> None:
    federation.pad()
    with pytest.raises(ConfigurationError, match=what):
        _untyped(federation, **terms)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespaces", "no-equals-sign"),
        ("namespaces", "1og=urn:x"),
        ("namespaces", "og="),
        ("max_metadata", "2000000"),
        ("max_payload", "-1"),
        ("expiration", "-1"),
        ("reliable", "perhaps"),
    ],
)
def test_bad_settings_are_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"client\.{name}") as caught:
        load(file=None, environment={f"JBI_CLIENT_{name.upper()}": value})
    assert caught.value.facts["key"] == f"client.{name}"


@pytest.mark.parametrize(("field", "value"), [("owner", "x" * 65), ("expiration", -1.0), ("expiration", 1e12)])
def test_a_request_of_a_stranger_is_checked_when_it_is_read(field: str, value: Any) -> None:
    said = msgspec.to_builtins(PublisherRequest(schema=NONE, entries=()))
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({**said, field: value}, PublisherRequest)
