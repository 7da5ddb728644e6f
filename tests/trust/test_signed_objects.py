"""Signed objects through delegates, good and hostile ones, to subscribers that look at them (docs/signatures.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from certificates import DAY

from jbi_pubsub.core.config import LinkSection, TlsSection
from jbi_pubsub.core.errors import ConfigurationError, JbiError, SignatureError, WireError
from jbi_pubsub.core.info_object import InfoObject, LargeObject, LossNotice, Parcel, pack
from jbi_pubsub.core.signing import SigningKey, anchor_of, cut_bytes, digest, filter_digest, head_bytes
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delegate import registrations
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.entries import SigningKeyEntry
from jbi_pubsub.subscriber import signed
from jbi_pubsub.trust.signature import CertificateSigner
from tests.trust.conftest import Party

pytestmark = pytest.mark.processes

TRACKS = b"<tracks><track><lat>33.34</lat></track><track><lat>40.0</lat></track></tracks>"
WEST = "//track[lat<35]"


class Ear:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.objects: list[InfoObject] = []
        self.losses: list[LossNotice] = []

    def arrived(self, _uid: str, obj: InfoObject) -> None:
        self.objects.append(obj)

    def lost(self, _uid: str, notice: LossNotice) -> None:
        self.losses.append(notice)


def _forged(pad: DisseminationServer, tamper: Callable[[Parcel], Parcel | None]) -> None:
    """The delegate is hostile from now on: what it hands out is what `tamper` makes of it, if that is something."""
    hand_out = pad.delegate.pipeline.distribution.hand_out

    def hostile(parcel: Parcel, *rest: Any, **options: Any) -> None:
        made = tamper(parcel)
        hand_out(parcel if made is None else made, *rest, **options)

    pad.delegate.pipeline.distribution.hand_out = hostile  # type: ignore[method-assign]  # the point of it


@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_a_signed_object_is_known_by_the_name_of_who_signed_it(
    kind: str, party: Party, figures: Any, eventually: Any
) -> None:
    # Given a delegate and a subscriber that take signed objects alone, and a publisher that signs
    pad = party.pad(verify="require") if kind == "delegate" else None
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    if pad is not None:
        adapter = party.light()
        registration = figures.register(adapter)
    else:
        adapter = party.federation.peer(party.config("publisher.example", sign=True, verify="require"))
        registration = adapter.register_publisher(figures.schema, figures.figure_1)
    assert subscriber.wait_matched(uid) == 1

    # When it publishes: nothing, a little, what goes in chunks, and many at once
    payloads = [b"", b"x", b"y" * 900_000]
    for payload in payloads:
        adapter.publish(registration, figures.figure_1, payload)
    adapter.publish_many(registration, [(figures.figure_1, b"many")] * 20)
    adapter.flush()

    # Expect all of it, with the name in the certificate of who signed it
    received = [subscriber.receive(uid) for _ in range(23)]
    assert [obj.payload for obj in received] == [*payloads, *[b"many"] * 20]
    assert {obj.platform.verified for obj in received} == {"publisher.example"}

    # Expect everybody to have counted that, and nothing to be missing
    assert subscriber.status()["signed"] == 23
    assert subscriber.losses(uid) == {}
    if pad is None:
        assert adapter.status()["signed"] == 0  # nobody looks at what he has signed himself
    else:
        eventually(lambda: pad.status()["delivered"] == 23)
        status = pad.status()
        assert (status["signed"], status["bad_signature"], status["refused"]) == (23, 0, 0)
        assert status["registrations"][0]["signs"] is True
        assert [s.value for s in pad.samples() if s.name == "signed"] == [23]


@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_a_payload_in_a_file_is_signed_as_well(kind: str, party: Party, tmp_path: Path) -> None:
    # Given parties that keep what has more than 64 KiB in files
    link = LinkSection(spool=64 << 10)
    party.federation.config = msgspec.structs.replace(party.federation.config, link=link)
    path = tmp_path / "payload"
    path.write_bytes(bytes(range(250)) * 4_000)
    if kind == "delegate":
        party.pad(verify="require")
        adapter = party.light()
        at = (adapter.connect_to_delegate("alpha"),)
    else:
        adapter, at = party.federation.peer(party.config("publisher.example", sign=True)), ()
    registration = adapter.register_publisher(*at, type_name="report", validate=False)
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="report")
    subscriber.wait_matched(uid)
    # Expect what is signed to hold, with the name of who signed it
    adapter.publish(registration, b"<a/>", path)
    obj = subscriber.receive(uid, 60.0)
    assert (type(obj), obj.platform.verified, obj.payload) == (LargeObject, "publisher.example", path.read_bytes())


def test_the_key_is_an_entry_that_disturbs_no_template(party: Party, figures: Any) -> None:
    # Given a signed registration, and one that is not
    party.pad()
    signed = figures.register(party.light())
    plain = figures.register(party.federation.light(party.config("plain.example")))

    # Expect the key to stand at the signed one, for everybody to find
    subscriber = party.subscriber("warn")
    uids = [subscriber.register_subscriber(figures.figure_3, schema=figures.schema) for _ in range(2)]
    for uid in uids:
        subscriber.wait_matched(uid)
        assert subscriber.matching(uid).registrations == 2
    named = {registration: subscriber._subscriptions.watches.item(registration) for registration in (signed, plain)}
    classes = {uid: [e.cls.name for e in item.entries] for uid, item in named.items()}
    assert (classes[signed].count("jbi.SigningKey"), classes[plain].count("jbi.SigningKey")) == (1, 0)

    # Expect the two to be alike in all else: they share a match table
    assert [c for c in classes[signed] if c != "jbi.SigningKey"] == classes[plain]


def _tampers(other: Callable[[], Parcel]) -> dict[str, Callable[[Parcel], Parcel]]:
    """What a hostile delegate may make of an object."""

    def head(parcel: Parcel, **fields: Any) -> Parcel:
        return pack(msgspec.structs.replace(parcel.head, **fields), bytes(parcel.payload))

    return {
        "another payload": lambda p: pack(p.head, b"forged"),
        "another payload of the same length": lambda p: pack(p.head, bytes(len(p.payload))),
        "another length": lambda p: head(p, payload_length=1),
        "other metadata": lambda p: head(p, metadata=bytes(p.head.metadata).replace(b"33.", b"44.")),
        "another time": lambda p: head(p, published=p.head.published + 3600),
        "another id": lambda p: head(p, own_id="forged"),
        "another number": lambda p: head(p, sequence=p.head.sequence + 1000),
        "another version": lambda p: head(p, type_version="2.0"),
        "another registration's name": lambda p: head(p, registration=other().head.registration),
        "the signature of another registration": lambda p: head(p, signature=other().head.signature),
        "a truncated signature": lambda p: head(p, signature=p.head.signature[:63]),
        "no signature": lambda p: head(p, signature=b""),
        "a registration that nobody knows": lambda p: head(p, registration="registration-" + "0" * 32),
        "a cut that nobody has asked for": lambda p: pack(p.head, bytes(p.payload)).with_payload(b"cut", bytes(96)),
    }


@pytest.mark.row("D-23")
@pytest.mark.parametrize("verify", ["require", "warn"])
def test_what_a_hostile_delegate_makes_of_an_object_is_told(
    verify: str, party: Party, figures: Any, eventually: Any
) -> None:
    # Given a delegate that tampers with each object in another way, and a publisher and subscriber that know nothing
    pad, ear = party.pad(), Ear()
    adapter = party.light()
    registration, another = figures.register(adapter), figures.register(adapter)
    subscriber = party.subscriber(verify)
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", listener=ear)
    subscriber.wait_matched(uid)
    others: list[Parcel] = []
    _forged(pad, lambda parcel: others.append(parcel))
    adapter.publish(another, figures.figure_1, b"of another")
    eventually(lambda: len(ear.objects) == 1)
    tampers = _tampers(lambda: others[0])
    if verify == "warn":
        del tampers["another number"]  # the rest would be duplicates then: who warns believes it
    made = iter(tampers.values())
    del pad.delegate.pipeline.distribution.hand_out  # honest again
    _forged(pad, lambda parcel: next(made, lambda same: same)(parcel))

    # When that many are published, and one that it leaves alone
    for _ in range(len(tampers) + 1):
        adapter.publish(registration, figures.figure_1, b"payload")
    adapter.flush()

    # Expect the last one to arrive, as what it is
    eventually(lambda: len(ear.objects) > 1 and ear.objects[-1].platform.verified == "publisher.example")
    status = subscriber.status()
    assert (status["signed"], status["bad_signature"]) == (2, len(tampers))
    if verify == "require":
        # Expect nobody to have seen the others, and to be told of each with the reason
        assert len(ear.objects) == 2
        assert subscriber.losses(uid) == {"bad_signature": len(tampers)}
        assert sum(notice.count for notice in ear.losses) == len(tampers)
        assert all(pad.address in notice.detail for notice in ear.losses)
    else:
        # Expect them to be delivered, as nobody's; but for the one that claims a number of another registration
        assert {obj.platform.verified for obj in ear.objects[1:-1]} == {""}
        assert subscriber.losses(uid) == {}

    # Expect the account to be whole
    eventually(lambda: pad.status()["delivered"] == len(tampers) + 2)  # the acknowledgements come later
    totals, mine = pad.status(), subscriber.status()["subscriptions"][uid]
    assert totals["matched"] == totals["delivered"]
    assert mine["arrived"] + mine["duplicates"] + sum(mine["lost"].values()) == totals["delivered"]


def test_a_replayed_object_is_a_duplicate(party: Party, figures: Any, eventually: Any) -> None:
    # Given a delegate that delivers the first object again instead of the third
    pad = party.pad()
    adapter = party.light()
    registration = figures.register(adapter)
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    subscriber.wait_matched(uid)
    kept: list[Parcel] = []
    _forged(pad, lambda parcel: kept.append(parcel) if len(kept) < 2 else kept[0])

    # When three are published
    for payload in (b"1", b"2", b"3"):
        adapter.publish(registration, figures.figure_1, payload)

    # Expect two, and the replay among the duplicates
    assert [subscriber.receive(uid).payload for _ in range(2)] == [b"1", b"2"]
    eventually(lambda: subscriber.status()["subscriptions"][uid]["duplicates"] == 1)


def test_who_knows_the_secret_and_lists_another_key_is_not_believed(
    party: Party, figures: Any, eventually: Any
) -> None:
    # Given a delegate that puts a key of its own in the place of the publisher's, in its item and when it is asked
    pad = party.pad()
    adapter = party.light()
    registration = figures.register(adapter)
    tls = party.authority.issue("evil.example", number=2)
    evil = CertificateSigner(Path(tls.certificate), Path(tls.key))
    known = pad.delegate.tables.registrations[registration]
    secret = adapter._publications[registration][0].request().secret
    known.terms = replace(known.terms, signing=evil.bound(registration, anchor_of(secret)))
    item = pad.community._items.item(registration)
    own = SigningKeyEntry.of(known.terms.signing).rep()
    entries = (*(e for e in item.entries if e.cls.name != "jbi.SigningKey"), own)
    pad.community.join(msgspec.structs.replace(item, entries=entries), secret)
    pad.service.presence.wait_announced(registration, 10.0)

    # When it signs an object of its own making with it
    def forge(parcel: Parcel) -> Parcel:
        head = msgspec.structs.replace(parcel.head, metadata=figures.metadata(lat="1.0"))
        return pack(msgspec.structs.replace(head, signature=evil.sign(head_bytes(head, digest(b"")))), b"")

    _forged(pad, forge)
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    subscriber.wait_matched(uid)
    adapter.publish(registration, figures.figure_1, b"")

    # Expect nobody to believe that
    eventually(lambda: subscriber.losses(uid) == {"bad_signature": 1})
    assert subscriber.queue_size(uid) == 0


def test_a_delegate_that_requires_signatures_refuses_what_has_none(party: Party, figures: Any) -> None:
    # Given a delegate that takes signed objects alone
    pad = party.pad(verify="require")

    # Expect a publisher that does not sign to be refused, in a word that says what to do, and nothing to be left
    with pytest.raises(SignatureError, match=r"does not sign.*\[tls\] sign"):
        figures.register(party.federation.light(party.config("plain.example")))
    assert pad.status()["registrations"] == []

    # When one that does publishes an object, one with a wrong signature, and one without any
    refused: list[tuple[str, JbiError]] = []
    adapter = party.light(refused=lambda object_id, error: refused.append((object_id, error)))
    registration = figures.register(adapter)
    publication, _ = adapter._publications[registration]
    good = publication.next_objects
    adapter.publish(registration, figures.figure_1)
    for wrong in (bytes(64), b""):

        def forged(run: Any, attributes: Any = None, wrong: bytes = wrong) -> list[Parcel]:
            heads = good(run, attributes)
            return [pack(msgspec.structs.replace(p.head, signature=wrong), p.parts[-1]) for p in heads]

        publication.next_objects = forged
        adapter.publish(registration, figures.figure_1)
    adapter.flush()

    # Expect it to be told of those two
    assert [type(error) for _, error in refused] == [SignatureError] * 2
    status = pad.status()
    assert (status["published"], status["refused"], status["signed"], status["bad_signature"]) == (1, 2, 1, 2)


def test_a_delegate_that_warns_takes_everything_and_counts(
    party: Party, figures: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pad = party.pad(verify="warn")
    adapter = party.federation.light(party.config("plain.example"))
    registration = figures.register(adapter)
    for _ in range(9):
        adapter.publish(registration, figures.figure_1)
    adapter.flush()
    status = pad.status()
    assert (status["published"], status["refused"], status["signed"], status["bad_signature"]) == (9, 0, 0, 9)
    # Expect the log to be told when it registers, of the first object, and whenever their number has doubled
    assert sum("without a valid signature" in line for line in caplog.messages) == 4
    assert any("does not sign" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("kind", "signs", "verify"),
    [
        *((kind, *rest) for kind in ("delegate", "late") for rest in ((True, "require"), (False, "require"))),
        ("delegate", False, "warn"),
        ("peer", True, "require"),  # one that does not sign its cuts does not sign its objects
    ],
)
def test_a_payload_that_was_cut_needs_the_word_of_who_has_cut_it(
    kind: str, signs: bool, verify: str, party: Party, figures: Any, eventually: Any
) -> None:
    # Given a delegate that signs what it says, or does not; two subscriptions with a filter, and one without
    subscriber = party.subscriber(verify)

    def subscribe() -> list[str]:
        filters = [WEST, WEST, None]
        return [
            subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", payload_filter=f) for f in filters
        ]

    uids = [] if kind == "late" else subscribe()
    if kind == "peer":
        adapter = party.federation.peer(party.config("publisher.example", sign=True))
        registration = adapter.register_publisher(figures.schema, figures.figure_1)
    else:
        pad = party.pad(sign=signs)
        adapter = party.light()
        registration = figures.register(adapter)

    # When a payload is published that can be cut, and one that can't: before they come, or afterwards
    if kind != "late":
        assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1, 1]
    else:
        hold = pad.delegate.subscribers.late_joiners.welcome

        def late(subscription: Any, session: Any, topics: Any, since: float, *more: Any) -> None:
            hold(subscription, session, topics, since - 3600, *more)  # as if it had stood for an hour

        pad.delegate.subscribers.late_joiners.welcome = late
    adapter.publish(registration, figures.figure_1, TRACKS)
    adapter.publish(registration, figures.figure_1, b"no XML")
    adapter.flush()
    uids = uids or subscribe()

    # Expect who has no filter to have both
    whole = [subscriber.receive(uids[2]) for _ in range(2)]
    assert [obj.payload for obj in whole] == [TRACKS, b"no XML"]
    assert {obj.platform.verified for obj in whole} == {"publisher.example"}

    for uid in uids[:2]:
        if not signs and verify == "require":
            # Expect what nobody answers for to be lost, and the rest to come
            assert subscriber.receive(uid).payload == b"no XML"
            assert subscriber.losses(uid) == {"bad_signature": 1}
            continue
        cut, other = subscriber.receive(uid), subscriber.receive(uid)
        # Expect the part, with the publisher's name if the delegate answers for it
        assert (cut.payload.count(b"<track>"), other.payload) == (1, b"no XML")
        assert cut.platform.verified == ("publisher.example" if signs else "")
        assert cut.platform.payload_length == len(TRACKS)
        assert other.platform.verified == "publisher.example"


@pytest.mark.parametrize(
    "lie",
    [
        "another part",
        "another filter",
        "another object",
        "another original",
        "another certificate",
        "no signature",
        "half of it",
        "no filter",
    ],
)
def test_a_delegate_s_word_is_for_one_object_one_filter_and_one_result(
    lie: str, party: Party, figures: Any, eventually: Any
) -> None:
    # Given a delegate that cuts payloads, and says something that is not so
    pad = party.pad(sign=True)
    adapter = party.light()
    registration = figures.register(adapter)
    subscriber = party.subscriber()
    wanted = None if lie == "no filter" else WEST
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", payload_filter=wanted)
    assert subscriber.wait_matched(uid) == 1
    honest = pad.delegate.seals
    assert honest is not None
    tls = party.authority.issue("evil.example", number=2)
    evil = CertificateSigner(Path(tls.certificate), Path(tls.key))
    by = honest._signer
    if lie == "another certificate":
        by = evil
        honest._bound = by.generation, evil.bound(pad.server_id)

    def seal(parcel: Parcel, _wanted: Any, cut: bytes) -> bytes:
        object_id = "another" if lie == "another object" else parcel.head.object_id
        wanted = filter_digest("//other" if lie == "another filter" else WEST, ())
        original = digest(b"other" if lie == "another original" else parcel.payload)
        said = cut_bytes(object_id, wanted, original, digest(b"other" if lie == "another part" else cut))
        whole = original + (bytes(64) if lie == "no signature" else by.sign(said))
        return whole[:32] + whole[64:96] + bytes(32) if lie == "half of it" else whole

    pad.delegate.pipeline.distribution._seal = seal
    if lie == "no filter":

        def cut(parcel: Parcel) -> Parcel:
            said = cut_bytes(parcel.head.object_id, b"", digest(TRACKS), digest(b"cut"))
            return parcel.with_payload(b"cut", digest(TRACKS) + by.sign(said))

        _forged(pad, cut)

    # When an object is published
    adapter.publish(registration, figures.figure_1, TRACKS)

    # Expect it to be lost, and that to be told
    eventually(lambda: subscriber.losses(uid) == {"bad_signature": 1})
    assert subscriber.queue_size(uid) == 0

    # When the same delegate tells the truth
    pad.delegate.pipeline.distribution._seal = honest.seal
    if lie not in ("another certificate", "no filter"):
        for payload in (TRACKS + b" ", TRACKS + b"\n"):
            adapter.publish(registration, figures.figure_1, payload)
            # Expect that to be believed
            assert subscriber.receive(uid).platform.verified == "publisher.example"


def test_objects_that_nobody_signs_are_lost_to_who_requires_it(party: Party, figures: Any, eventually: Any) -> None:
    party.pad()
    adapter, ear = party.federation.light(party.config("plain.example")), Ear()
    registration = figures.register(adapter)
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", listener=ear)
    subscriber.wait_matched(uid)
    adapter.publish(registration, figures.figure_1)
    eventually(lambda: subscriber.losses(uid) == {"bad_signature": 1})
    assert "it is not signed" in eventually(lambda: ear.losses)[0].detail
    assert ear.objects == []


def test_a_subscriber_that_drops_goes_on_to_take(party: Party, figures: Any, eventually: Any) -> None:
    # Given a subscription with room for two objects
    party.pad()
    plain, signed = party.federation.light(party.config("plain.example")), party.light()
    registrations = [figures.register(adapter) for adapter in (plain, signed)]
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", bound=2, policy="block")
    subscriber.wait_matched(uid)

    # When more than that come that are dropped
    for _ in range(5):
        plain.publish(registrations[0], figures.figure_1)
        plain.flush()
    eventually(lambda: subscriber.losses(uid) == {"bad_signature": 5})

    # Expect a good one to arrive: what was dropped takes no room
    signed.publish(registrations[1], figures.figure_1)
    assert subscriber.receive(uid).platform.verified == "publisher.example"


def test_the_lookup_services_word_is_enough_for_a_key(party: Party, figures: Any, eventually: Any) -> None:
    # Given a delegate that does not say what its registrations sign with
    pad = party.pad()
    pad.delegate.signing_key = lambda _uid: None  # type: ignore[method-assign]  # it may be an archive, or away
    adapter = party.light()
    registration = figures.register(adapter)
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    subscriber.wait_matched(uid)
    eventually(lambda: subscriber._subscriptions.watches.item(registration))
    adapter.publish(registration, figures.figure_1)
    assert subscriber.receive(uid).platform.verified == "publisher.example"


def test_a_delegate_that_gives_no_key_is_not_asked_for_each_object(
    party: Party, figures: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that delivers objects of registrations that nobody knows
    pad, asked = party.pad(), []
    pad.delegate.signing_key = lambda uid: asked.append(uid)  # type: ignore[method-assign]
    adapter = party.light()
    registration = figures.register(adapter)
    strangers = iter([*["registration-1"] * 20, *[f"registration-{n}" for n in range(2, 12)]])
    _forged(pad, lambda p: pack(msgspec.structs.replace(p.head, registration=next(strangers)), bytes(p.payload)))
    monkeypatch.setattr(signed, "ASK_AGAIN", 1000.0)
    monkeypatch.setattr(signed, "ASKED_MOST", 5)
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    subscriber.wait_matched(uid)
    for _ in range(30):
        adapter.publish(registration, figures.figure_1)
    eventually(lambda: subscriber.losses(uid) == {"bad_signature": 30})

    # Expect it to have been asked once for each of them, and what is remembered of that to be bounded
    assert asked == [f"registration-{n}" for n in range(1, 12)]
    (session,) = subscriber._subscriptions.sessions.all()
    assert len(session.reader._signatures._asked) <= 5


def test_a_publisher_can_t_send_what_only_delegates_say(party: Party, figures: Any, eventually: Any) -> None:
    # Given a publisher that sends an object as if somebody had cut it
    pad = party.pad()
    adapter = party.light()
    registration = figures.register(adapter)
    publication, _ = adapter._publications[registration]
    good = publication.next_objects
    publication.next_objects = lambda *run: [p.with_payload(b"cut", bytes(96)) for p in good(*run)]
    adapter.publish(registration, figures.figure_1, TRACKS)

    # Expect the delegate to take that for what it is, and to take nothing of it
    connection = next(iter(adapter._connections.values()))
    eventually(lambda: not connection.status()["connected"])
    assert pad.status()["published"] == 0
    adapter.close(0.1)


def test_late_comers_get_the_key_of_a_publisher_that_has_gone(party: Party, figures: Any) -> None:
    # Given a publisher that has published, and left
    pad = party.pad()
    hold = pad.delegate.subscribers.late_joiners.welcome
    pad.delegate.subscribers.late_joiners.welcome = lambda s, session, topics, since, *more: hold(
        s, session, topics, since - 3600, *more
    )
    with party.light() as adapter:
        registration = figures.register(adapter)
        adapter.publish(registration, figures.figure_1, b"kept")
        adapter.flush()
        figures.register(party.light())  # of the same topic, so that somebody is led here
    assert pad.delegate.signing_key(registration) is not None

    # When somebody comes for it
    subscriber = party.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")

    # Expect it, verified, although the lookup services have forgotten it
    obj = subscriber.receive(uid)
    assert (obj.payload, obj.platform.verified) == (b"kept", "publisher.example")
    assert subscriber._subscriptions.watches.item(registration) is None


@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_a_publisher_s_certificate_is_renewed_while_it_publishes(
    kind: str, party: Party, figures: Any, eventually: Any, tmp_path: Path
) -> None:
    # Given a publisher, and a subscriber that honours what is revoked
    revoked = party.authority.revoke()
    tls = {"verify": "require", "revoked": str(revoked)}
    subscriber = party.federation.subscriber(party.config("subscriber.example", **tls))
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    if kind == "delegate":
        pad = party.pad(sign=True, verify="require")
        adapter = party.light()
        registration = figures.register(adapter)
        at = pad.delegate
    else:
        adapter = party.federation.peer(party.config("publisher.example", sign=True))
        registration = adapter.register_publisher(figures.schema, figures.figure_1)
        at = adapter._server.delegate
    subscriber.wait_matched(uid)
    adapter.publish(registration, figures.figure_1)
    assert subscriber.receive(uid).platform.verified == "publisher.example"
    before = at.signing_key(registration)
    assert before is not None
    old = tmp_path / "old.pem"
    old.write_bytes((party.authority.folder / "publisher.example.pem").read_bytes())

    # When its certificate is renewed, and the old one is revoked
    party.authority.issue("publisher.example", number=1)
    adapter._signer._holder._looked = 0.0  # now, not in a second
    if kind == "peer":
        adapter.publish(registration, figures.figure_1)
        assert subscriber.receive(uid) is not None
    eventually(lambda: at.signing_key(registration).chain != before.chain)
    party.authority.revoke(str(old))
    subscriber._subscriptions.sessions._signatures.verifier._look_at = 0.0

    # Expect its registration to go on, under the same id
    adapter.publish(registration, figures.figure_1, b"renewed")
    obj = subscriber.receive(uid)
    assert (obj.payload, obj.platform.verified) == (b"renewed", "publisher.example")
    assert obj.platform.registration == registration
    assert subscriber.losses(uid) == {}


def test_keys_of_publishers_that_have_gone_are_bounded(
    party: Party, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "GHOSTS_MOST", 2)
    pad, adapter = party.pad(), party.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    uids = []
    for _ in range(4):
        uids.append(adapter.register_publisher(at, figures.schema, figures.figure_1))
        adapter.unregister_publisher(uids[-1])
    assert [pad.delegate.signing_key(uid) is not None for uid in uids] == [False, False, True, True]


def test_what_is_not_signed_is_cut_without_a_word(party: Party, figures: Any) -> None:
    party.pad(sign=True)
    adapter = party.federation.light(party.config("plain.example"))
    registration = figures.register(adapter)
    subscriber = party.subscriber("off")
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", payload_filter=WEST)
    subscriber.wait_matched(uid)
    adapter.publish(registration, figures.figure_1, TRACKS)
    obj = subscriber.receive(uid)
    assert (obj.payload.count(b"<track>"), obj.platform.signature, obj.platform.seal) == (1, b"", b"")


def test_who_does_not_look_gets_signed_objects_as_any_others(party: Party, figures: Any) -> None:
    party.pad(sign=True)
    adapter = party.light()
    registration = figures.register(adapter)
    subscriber = party.subscriber("off")
    uids = [
        subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", payload_filter=f) for f in (None, WEST)
    ]
    for uid in uids:
        subscriber.wait_matched(uid)
    adapter.publish(registration, figures.figure_1, TRACKS)
    whole, cut = (subscriber.receive(uid) for uid in uids)
    assert (whole.payload, cut.payload.count(b"<track>")) == (TRACKS, 1)
    assert [obj.platform.verified for obj in (whole, cut)] == ["", ""]
    assert len(whole.platform.signature) == 64
    assert subscriber.status()["signed"] == 0


@pytest.mark.parametrize("what", ["publisher", "peer", "subscriber", "delegate"])
def test_what_can_t_be_done_is_said_when_it_is_opened(what: str, federation: Any) -> None:
    # Given somebody who is to sign or verify, without certificates
    tls = TlsSection(sign=what != "subscriber", verify="require" if what == "subscriber" else "off")
    config = msgspec.structs.replace(federation.config, tls=tls)
    opens = {"publisher": federation.light, "peer": federation.peer, "subscriber": federation.subscriber}
    # Expect an error that says what is missing, and nothing to be left open
    with pytest.raises(ConfigurationError, match="needs certificate, key and ca"):
        opens.get(what, lambda config: federation.pad(config=config))(config)
    federation.subscriber()


def test_a_delegate_whose_certificate_has_ended_does_not_start(party: Party) -> None:
    tls = party.authority.issue("old.example", number=3, begins=-2 * DAY, ends=-DAY)
    with pytest.raises(ConfigurationError, match=r"old\.example"):
        party.federation.pad(
            config=msgspec.structs.replace(party.config(), tls=msgspec.structs.replace(tls, sign=True))
        )


def test_of_an_item_that_names_thousands_of_keys_a_few_are_looked_at() -> None:
    # Given a registration of somebody hostile, each of whose keys costs who verifies 0.4 ms
    keys = (SigningKey(number.to_bytes(32, "big"), bytes(32), (b"x",), b"x", bytes(64)) for number in range(5_000))
    ref = ServiceRef("0" * 32, "x", ("127.0.0.1:1",))
    item = ServiceItem("x", (), ref, tuple(SigningKeyEntry.of(key).rep() for key in keys))

    class Silent:
        def signing_key(self, *_: object) -> None:
            return None

    check = signed.DeliverySignatures(cast("Any", Silent()), require=True)
    looked = signed.SessionSignatures(check, ref, cast("Any", Silent()), lambda _: item)
    assert len(list(looked._keys("x"))) == 4


def test_who_cannot_be_asked_for_a_key_just_now_is_asked_again_within_two_seconds() -> None:
    # Given a publisher whose connections have ended with its certificate of before, so that the next call fails, too
    key = SigningKey(bytes(32), bytes(32), (b"x",), b"x", bytes(64))
    answers = iter([WireError("the other side ended the connection"), WireError("refused"), key])

    class Renewed:
        def signing_key(self, _holder: str, seconds: float) -> SigningKey:
            assert 0 < seconds <= signed.ASK_SECONDS
            answer = next(answers)
            if isinstance(answer, WireError):
                raise answer
            return answer

    check = signed.DeliverySignatures(cast("Any", Renewed()), require=True)
    ref = ServiceRef("0" * 32, "x", ("127.0.0.1:1",))
    looked = signed.SessionSignatures(check, ref, cast("Any", Renewed()), lambda _: None)
    assert list(looked._keys("x")) == [key]


def test_who_is_away_is_not_waited_for_longer_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Away:
        def signing_key(self, holder: str, _seconds: float) -> None:
            asked.append(holder)
            raise WireError("refused")

    monkeypatch.setattr(signed, "ASK_SECONDS", 0.5)
    check = signed.DeliverySignatures(cast("Any", Away()), require=True)
    looked = signed.SessionSignatures(check, ServiceRef("0" * 32, "x", ()), cast("Any", Away()), lambda _: None)
    assert list(looked._keys("x")) == []
    assert list(looked._keys("x")) == []  # and not again at once
    # Expect what else comes of it not to wait, a thousand times
    assert all(not list(looked._keys(f"x {number}")) for number in range(1_000))
    assert asked == [*["x"] * asked.count("x"), *(f"x {number}" for number in range(1_000))]
    assert 1 < asked.count("x") < 5
