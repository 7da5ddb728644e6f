"""Objects that their publishers sign, over a bridge: who signed them is known on the other side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority

from jbi_pubsub import Config
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform, SideSubscriber
from jbi_pubsub.bridge.transformation import Transformation
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, SignatureError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.signing import anchor_of
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.publisher.relay import RelayPublisher
from jbi_pubsub.trust.signature import CertificateSigner
from tests.bridge.conftest import ALPHA, BRAVO, taken
from tests.conftest import Federation, test_config

TYPE = "mil.af.rl.jbi.Intel_Imagery"
SECRET = "0123456789abcdef" * 2


class Signed:
    """Two platforms under one authority; the second one takes signed objects alone."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.authority = Authority(folder)
        self.stack = stack
        server = self.authority.issue("server.example")
        self.sides = [Federation(msgspec.structs.replace(test_config(), tls=server), stack) for _ in range(2)]
        for side, delegate, verify in zip(self.sides, (ALPHA, BRAVO), ("off", "require"), strict=True):
            tls = msgspec.structs.replace(server, verify=verify)
            side.pad(*delegate, config=msgspec.structs.replace(side.config, tls=tls))

    def bridge(self) -> Direction:
        """The direction from the first to the second of a bridge that is there from now on."""
        sides = [
            JbiPlatform(name, self.config(number, "bridge.example"), delegate, "b1")
            for number, (name, delegate) in enumerate((("alpha", ALPHA), ("bravo", BRAVO)))
        ]
        way = Direction(sides[0], sides[1], Transformation(("*",), (), ()), bridge="b1", terms=DirectionTerms(poll=0.2))
        mirror = Mirror((sides[0], sides[1]), (way,))
        self.stack.callback(mirror.close)
        mirror.start()
        return way

    def config(self, side: int, name: str, **tls: Any) -> Config:
        section = msgspec.structs.replace(self.authority.issue(name, number=1), **tls)
        return msgspec.structs.replace(self.sides[side].config, tls=section)


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    with ExitStack() as stack:
        yield Signed(tmp_path, stack)


@pytest.mark.processes
def test_a_signature_holds_over_a_bridge(signed: Signed, figures: Any, eventually: Any) -> None:
    # Given a bridge, and a subscriber on the other side that takes signed objects alone
    way = signed.bridge()
    eventually(lambda: way.status()["listening"])
    config = signed.config(1, "subscriber.example", verify="require")
    subscriber = signed.stack.enter_context(SideSubscriber(config))
    uid = subscriber.register_subscriber(type_name="Intel_Imagery")
    # When somebody publishes who signs, and somebody who does not
    ids = []
    for name, sign in (("publisher.example", True), ("plain.example", False)):
        publisher = signed.sides[0].light(signed.config(0, name, sign=sign))
        ids.append(publisher.publish(figures.register(publisher), figures.figure_1, b"p" * 900_000))
        publisher.flush()
    # Expect the signed one, by the name of who signed it, and the other one refused by the platform
    (obj,) = taken(subscriber, uid, 1)
    assert (obj.object_id, obj.platform.verified, obj.platform.hops) == (ids[0], "publisher.example", 1)
    eventually(lambda: any("does not sign" in why for why in way.status()["waiting"].values()), what=way.status)


@pytest.mark.processes
def test_a_signature_holds_in_what_a_query_brings_over_a_bridge(
    signed: Signed, figures: Any, eventually: Any, tmp_path: Path
) -> None:
    # Given an archive with a signed object, whose publisher has left before there is a bridge
    archive = ArchiveSection(folder=str(tmp_path / "kept"), workers=0)
    signed.sides[0].pad("kept", "rome", msgspec.structs.replace(signed.sides[0].config, archive=archive))
    with signed.sides[0].light(signed.config(0, "publisher.example", sign=True)) as publisher:
        at = publisher.connect_to_delegate("kept", "rome")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
        object_id = publisher.publish(registration, figures.figure_1, b"kept")
        publisher.flush()
    signed.bridge()
    # When somebody on the other side asks who takes signed objects alone
    asker = signed.stack.enter_context(SideSubscriber(signed.config(1, "subscriber.example", verify="require")))

    def found() -> list[tuple[str, str]]:
        with suppress(UnknownUidError), asker.open_query(TYPE) as query:
            return [(obj.object_id, obj.platform.verified) for obj in query]
        return []

    # Expect it, by the name of who signed it
    eventually(lambda: found() == [(object_id, "publisher.example")], what=found)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("side", "delegate", "error", "why"),
    [
        (0, ALPHA, AccessDeniedError, "not that of its signing key"),
        (1, BRAVO, SignatureError, "id is not made from it"),
    ],
)
def test_a_registration_that_signs_is_relayed_under_its_own_id_alone(
    signed: Signed, bundle: SchemaBundle, side: int, delegate: tuple[str, str], error: type[JbiError], why: str
) -> None:
    # Given a bridge with the key of a registration, to a delegate that does not look at signatures, or does
    bridge = signed.stack.enter_context(RelayPublisher(signed.config(side, "bridge.example"), name="b1", bridge="b1"))
    at = bridge.connect_to_delegate(*delegate)
    tls = signed.authority.issue("publisher.example")
    key = CertificateSigner(Path(tls.certificate), Path(tls.key)).bound("registration-1", anchor_of(SECRET))
    # When it relays another one by it, expect a refusal
    request = PublisherRequest(bundle, (), signing=key)
    with pytest.raises(error, match=why):
        bridge.register_relayed(at, "registration-1", TypeName("x"), request, ("far",))
