"""Payloads made smaller for one contract: pictures, texts, nothing at all; and bytes that would hurt whoever tries."""

from __future__ import annotations

import io
import logging
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from certificates import Authority
from contracts import stand_under
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.info_object import Head, pack
from jbi_pubsub.core.quality import SHAPES, PayloadShape, Wish
from jbi_pubsub.qos import shaping
from jbi_pubsub.qos.shaping import Shaper, shape

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"
HALF = (PayloadShape("scale", (0.5,)),)


def picture(size: tuple[int, int] = (320, 200), kind: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    """Noise up to some size, so that what is smaller has fewer bytes; one colour beyond."""
    width, height = size
    if width * height > 400_000:
        image = Image.new("L", size, 120)
    else:
        image = Image.frombytes("L", size, random.Random(1).randbytes(width * height))
    out = io.BytesIO()
    image.convert(mode).save(out, kind, **options)
    return out.getvalue()


def sized(data: bytes) -> tuple[int, int]:
    """Width and height."""
    return Image.open(io.BytesIO(data)).size


# -- one payload --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ((PayloadShape("scale", (0.5,)),), (160, 100)),
        ((PayloadShape("scale", (0.01,)),), (3, 2)),
        ((PayloadShape("thumbnail", (100, 100)),), (100, 62)),
        ((PayloadShape("scale", (0.5,)), PayloadShape("thumbnail", (40, 100))), (40, 25)),
        ((PayloadShape("grey"), PayloadShape("scale", (0.5,))), (160, 100)),
        ((PayloadShape("scale", (0.5,)), PayloadShape("quality", (20,))), (160, 100)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_picture_is_scaled_and_stays_of_its_kind(
    kind: str, shapes: tuple[PayloadShape, ...], size: tuple[int, int]
) -> None:
    before = picture(kind=kind)
    after = shape(before, shapes)
    assert after is not None
    assert sized(after) == size
    assert Image.open(io.BytesIO(after)).format == kind
    assert len(after) < len(before)
    if "grey" in map(str, shapes):
        assert Image.open(io.BytesIO(after)).mode == "L"


def test_a_quality_makes_a_jpeg_smaller_and_leaves_its_size() -> None:
    before = picture(quality=95)
    after = shape(before, (PayloadShape("quality", (10,)),))
    assert after is not None
    assert (sized(after), len(after) < len(before) / 2) == ((320, 200), True)


def test_a_picture_stands_as_it_stood_without_what_it_says_beside_its_pixels() -> None:
    # Given a picture that was taken upright by a camera lying on its side, with a comment and a profile
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it
    exif[0x010E] = "taken at 34.53 69.17"
    before = picture(exif=exif, comment=b"secret", icc_profile=b"profile" * 50)
    # When it is scaled; Expect it upright, and nothing else of it but pixels
    after = shape(before, HALF)
    assert after is not None
    assert sized(after) == (100, 160)
    for word in (b"taken at", b"secret", b"profile"):
        assert word in before
        assert word not in after


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_usual_mode_of_a_picture_is_scaled(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    after = shape(picture((640, 400), kind, mode), (PayloadShape("scale", (0.1,)),))
    assert after is not None
    assert sized(after) == (64, 40)
    assert ("A" in Image.open(io.BytesIO(after)).mode) == ("A" in mode)  # what one sees through stays so


def test_a_payload_is_dropped_and_a_text_cut_between_characters() -> None:
    assert shape(b"anything", (PayloadShape("drop_payload"),)) == b""
    assert shape("grüße".encode(), (PayloadShape("truncate", (3,)),)) == b"gr"
    assert shape("grüße".encode(), (PayloadShape("truncate", (4,)),)) == "grü".encode()
    # Expect what is short enough to stay, as shaped as it can be
    assert shape(b"short", (PayloadShape("truncate", (5,)),)) == b"short"
    # Expect what would be broken by it to stay: no text, and XML
    for data in (b"ab\0cdef", b"\xff\xfe\xfdabc", b"  <track><lat>1</lat></track>"):
        assert shape(data, (PayloadShape("truncate", (4,)),)) is None
    # Expect each payload to get the shape that is for it
    either = (PayloadShape("truncate", (2,)), PayloadShape("scale", (0.5,)))
    assert shape(b"abc", either) == b"ab"
    assert sized(shape(picture(), either) or b"") == (160, 100)


def test_what_gets_no_smaller_stays() -> None:
    tiny = picture((2, 2))
    assert shape(tiny, (PayloadShape("quality", (95,)),)) is None
    assert shape(b"no picture", HALF) is None


# -- bytes that would hurt ----------------------------------------------------------------------------------------


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data))


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """A PNG of some kilobytes that says of itself to be so large."""
    lines = zlib.compress(bytes(10_000_000), 9)
    head = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return shaping.PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", lines) + _chunk(b"IEND", b"")


def huge_jpeg() -> bytes:
    """A JPEG whose head says 50,000 x 50,000."""
    data = bytearray(picture())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack("!HH", 50_000, 50_000)
    return bytes(data)


def many_scans() -> bytes:
    """A progressive JPEG of 12 megapixels whose last scan comes 100 times."""
    data = picture((4000, 3000), progressive=True)
    last = data.rindex(shaping.START_OF_SCAN)
    return data[:last] + data[last:-2] * 100 + data[-2:]


def animated() -> bytes:
    """Two frames in a PNG."""
    out = io.BytesIO()
    frames = [Image.new("RGB", (100, 100), colour) for colour in ("red", "blue")]
    frames[0].save(out, "PNG", save_all=True, append_images=frames[1:])
    return out.getvalue()


def text_bomb() -> bytes:
    """A PNG with a compressed text of 100 MB."""
    good = picture(kind="PNG")
    at = 8 + 25
    return good[:at] + _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(100_000_000), 9)) + good[at:]


@pytest.mark.parametrize(
    "make",
    [
        bomb,
        lambda: bomb(20_000, 5_000),
        lambda: bomb(0, 7),
        lambda: bomb(3_000_000, 1),
        lambda: bomb(1, 3_000_000),
        huge_jpeg,
        many_scans,
        animated,
        text_bomb,
        lambda: picture()[:-500],
        lambda: picture(kind="PNG")[:200],
        lambda: shaping.JPEG + os.urandom(2_000),
        lambda: shaping.PNG + os.urandom(2_000),
        lambda: picture(kind="GIF"),
        lambda: picture(kind="TIFF"),
        lambda: picture(kind="PNG", mode="I;16"),
    ],
    ids=[
        "50,000 x 50,000", "100 megapixels", "no pixels", "a line", "a column", "a huge JPEG", "110 scans",
        "animated", "a text of 100 MB", "JPEG cut off", "PNG cut off", "no JPEG", "no PNG", "GIF", "TIFF", "16 bits",
    ],
)  # fmt: skip
def test_hostile_pictures_stay_as_they_are_and_cost_little(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make()
    decoded: list[int] = []
    changed = shaping._changed

    def noted(picture: Any, *rest: Any) -> Any:
        decoded.append(picture.width * picture.height)
        return changed(picture, *rest)

    monkeypatch.setattr(shaping, "_changed", noted)
    began = time.thread_time()
    assert shape(data, (PayloadShape("scale", (0.9,)),)) is None
    # Expect none to be decoded but those that are small, nor more than a moment to be spent on what it says of itself
    assert sum(decoded) <= 320 * 200
    assert time.thread_time() - began < 10.0


def test_what_a_hostile_picture_says_beside_its_pixels_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    # Given one whose EXIF is full of nonsense
    good = picture()
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + b"\xff" * 1_000
    data = good[:2] + b"\xff\xe1" + struct.pack("!H", len(exif) + 2) + exif + good[2:]
    shaping._pillow.cache_clear()
    # Expect it to be scaled, and nothing to be said
    assert shape(data, HALF) is not None
    assert not recwarn.list


@settings(max_examples=examples(150))
@given(st.data())
def test_a_damaged_picture_is_shaped_or_stays_and_never_fails(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["JPEG", "PNG"]))
    bad = bytearray(picture((64, 40), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        bad[data.draw(st.integers(3, len(bad) - 1))] = data.draw(st.integers(0, 255))
    after = shape(bytes(bad), HALF)
    assert after is None or len(after) < len(bad)


def test_without_pillow_pictures_stay_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given an installation without the extra
    data = picture()
    shaping._pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    try:
        # When pictures come; Expect them unchanged, one line in the log, and other shapes to go on
        with caplog.at_level(logging.ERROR, "jbi_pubsub.qos"):
            assert [shape(data, HALF) for _ in range(3)] == [None] * 3
            assert shape(b"text", (PayloadShape("truncate", (2,)),)) == b"te"
        assert len(caplog.records) == 1
        assert "jbi-pubsub[qos]" in caplog.text
    finally:
        shaping._pillow.cache_clear()


def test_every_shape_of_the_table_is_one_that_can_be_done() -> None:
    for name, rule in SHAPES.items():
        arguments = tuple(least for _, least, _ in rule.arguments)
        asked = (PayloadShape(name, arguments),)
        data = picture(quality=95) if rule.picture else b"a long text " * 10
        assert shape(data, asked) is not None, name


# -- once an object -----------------------------------------------------------------------------------------------


def test_each_shape_of_an_object_is_made_once() -> None:
    # Given an object, and another with the same payload
    data = picture()
    heads = [
        pack(Head(f"{n:044x}", "registration-1", n, 1.0, "t", "1.0", b"<m/>", len(data)), data).head for n in (1, 2)
    ]
    shaper = Shaper()
    small = (PayloadShape("scale", (0.1,)),)
    # When it is wanted so and so, again and again; Expect the very same bytes for each
    made = [[shaper.shape(head, None, data, shapes) for shapes in (HALF, small, HALF, small)] for head in heads]
    for one in made:
        assert one[0] is one[2]
        assert one[1] is one[3]
    status = shaper.status()
    assert (status["shaped"], status["unshaped"]) == (4, 0)
    assert status["saved"] == sum(len(data) - len(each or b"") for one in made for each in one[:2])
    assert status["seconds"] > 0


# -- through a delegate -------------------------------------------------------------------------------------------


@pytest.fixture
def managed(fixtures: Any) -> Iterator[Any]:
    """A federation with QoS."""
    with ExitStack() as stack:
        config = msgspec.structs.replace(fixtures.test_config(), qos=QosSection(mode="on"))
        federation = fixtures.Federation(config, stack)
        yield federation


@pytest.mark.row("Q-65")
@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_of_two_subscriptions_of_one_client_one_gets_pictures_scaled_and_one_whole(
    kind: str, managed: Any, figures: Any, eventually: Any
) -> None:
    # Given two subscriptions of one client, of which a policy wants one scaled
    subscriber = managed.subscriber()
    uids = [subscriber.register_subscriber(type_name=TYPE) for _ in range(2)]
    if kind == "delegate":
        server, publisher = managed.pad(), managed.light()
        registration = figures.register(publisher)
        delegate = server.delegate
    else:
        publisher = managed.peer()
        registration = publisher.register_publisher(figures.schema, figures.figure_1)
        delegate = publisher._server.delegate
    assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1]
    [scaled] = stand_under(delegate, uids[0], shapes=HALF)
    stand_under(delegate, uids[1])

    # When a picture comes, and what is none
    data = picture((640, 480))
    publisher.publish(registration, figures.figure_1, data)
    publisher.publish(registration, figures.figure_1, b"no picture")

    # Expect each to have what it is to have, with the length as published
    small, whole = (subscriber.receive(uid) for uid in uids)
    assert (sized(small.payload), sized(whole.payload)) == ((320, 240), (640, 480))
    assert {obj.platform.payload_length for obj in (small, whole)} == {len(data)}
    assert small.object_id == whole.object_id
    assert [subscriber.receive(uid).payload for uid in uids] == [b"no picture"] * 2
    # Expect it to be counted
    assert (scaled.unshaped, scaled.saved) == (1, len(data) - len(small.payload))
    shown = publisher.status() if kind == "peer" else server.status()
    by_uid = {each["uid"]: each for each in shown["subscriptions"]}
    assert [by_uid[uid]["unshaped"] for uid in uids] == [1, 0]


@pytest.mark.row("X-05")
def test_the_filter_comes_first_then_the_shape_then_chunks_and_compression(
    tmp_path: Path, managed: Any, figures: Any, eventually: Any
) -> None:
    # Given a link, which counts what goes over it, compressed, and two who want a part of a document, one of them
    # without its payload
    path = tmp_path / "policy.toml"
    path.write_text('[[link]]\nname = "l"\nmembers = "action == \'subscribe\'"\nrate = "80 Mbps"\n')
    managed.config = msgspec.structs.replace(
        managed.config, policy=PolicySection(file=str(path)),
        link=msgspec.structs.replace(managed.config.link, chunk=4096, compression="deflate"),
    )  # fmt: skip
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    uids = [
        subscriber.register_subscriber(type_name=TYPE, payload_filter="//x", qos=Wish(shape=shape))
        for shape in (("drop_payload",), None)
    ]
    registration = figures.register(publisher)
    assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1]
    # When a document comes
    data = b"<r>" + b"<x>abc</x>" * 5_000 + b"<y>not wanted</y>" * 2_000 + b"</r>"
    publisher.publish(registration, figures.figure_1, data)
    # Expect what the filter left, and of the other nothing
    dropped, kept = (subscriber.receive(uid) for uid in uids)
    assert dropped.payload == b""
    assert kept.payload.count(b"<x>") == 5_000
    assert b"<y>" not in kept.payload
    # Expect the shape to have had what the filter left, and the filter the whole document, for both
    by_uid = {each["uid"]: each for each in server.status()["subscriptions"]}
    assert [by_uid[uid]["saved"] for uid in uids] == [len(kept.payload), 0]
    assert [by_uid[uid]["unfiltered"] for uid in uids] == [0, 0]
    # Expect no stage to make more of it: published, filtered, in pieces and compressed
    [link] = eventually(lambda: [each for each in server.status()["qos"]["links"] if not each["pending"]])
    sizes = [len(data), len(kept.payload), link["sent"], 1]
    assert sizes == sorted(sizes, reverse=True)
    assert link["sent"] < len(kept.payload) / 4


@pytest.mark.parametrize("oversize", ["drop", "shape"])
def test_objects_that_are_too_large_are_dropped_and_told_or_shaped(
    oversize: str, managed: Any, figures: Any, eventually: Any
) -> None:
    # Given a contract for objects up to a size
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    most = len(figures.figure_1) + 100
    shapes = (PayloadShape("truncate", (50,)),) if oversize == "shape" else ()
    stand_under(server.delegate, uid, max_size=most, oversize=oversize, shapes=shapes)

    # When a large one comes between two small ones
    for data in (b"first", b"x" * 101, b"last"):
        publisher.publish(registration, figures.figure_1, data)
    publisher.flush()

    # Expect it to be lost under its cause, or shaped; smaller ones stay as they are
    if oversize == "drop":
        assert [subscriber.receive(uid).payload for _ in range(2)] == [b"first", b"last"]
        eventually(lambda: subscriber.losses(uid) == {"oversize": 1})
        eventually(lambda: server.status()["delivered"] == 2)
        assert (server.status()["matched"], server.status()["lost"]) == (3, {"oversize": 1})
    else:
        assert [subscriber.receive(uid).payload for _ in range(3)] == [b"first", b"x" * 50, b"last"]
        assert subscriber.losses(uid) == {}


@pytest.mark.row("Q-66")
def test_the_switch_of_the_space_turns_all_shapes_off_and_leaves_the_sizes(managed: Any, figures: Any) -> None:
    # Given a contract with a shape and a size, where shaping is off
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    shaper = server.delegate.pipeline.distribution.shaper
    shaper.is_on = False
    [subscription] = stand_under(
        server.delegate, uid, shapes=(PayloadShape("truncate", (3,)),), max_size=len(figures.figure_1) + 10
    )
    # When objects come; Expect them whole, or lost for their size, and nothing shaped
    for data in (b"abcdef", b"x" * 11):
        publisher.publish(registration, figures.figure_1, data)
    publisher.flush()
    assert subscriber.receive(uid).payload == b"abcdef"
    assert subscription.lost == {"oversize": 1}
    assert shaper.status()["shaped"] == shaper.status()["unshaped"] == 0


def test_who_comes_late_gets_what_is_kept_in_his_shape(managed: Any, figures: Any, eventually: Any) -> None:
    # Given an object that was published before the subscription came to the delegate
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    registration = figures.register(publisher)
    publisher.publish(registration, figures.figure_1, b"abcdef")
    publisher.publish(registration, figures.figure_1, bytes(500))
    publisher.flush()
    welcome = server.delegate.subscribers.late_joiners.welcome

    def late(subscription: Any, session: Any, topics: Any, since: float, *more: Any) -> None:
        stand_under(
            server.delegate,
            subscription.uid,
            shapes=(PayloadShape("truncate", (3,)),),
            max_size=len(figures.figure_1) + 3,
        )
        welcome(subscription, session, topics, since - 3600, *more)  # as if it had stood for an hour

    server.delegate.subscribers.late_joiners.welcome = late
    # When it comes; Expect the one that can be shaped, and the other to be lost for its size
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.receive(uid).payload == b"abc"
    eventually(lambda: subscriber.losses(uid) == {"oversize": 1})
    assert server.status()["lost"] == {"oversize": 1}


@pytest.mark.row("Q-73")
def test_a_picture_is_shaped_once_before_it_comes_and_the_time_of_that_is_measured(
    managed: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two subscriptions under a contract with a shape that takes two seconds by the processor's clock
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    uids = [subscriber.register_subscriber(type_name=TYPE) for _ in range(2)]
    registration = figures.register(publisher)
    assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1]
    shaper = server.delegate.contracts.quality.shaper
    for uid in uids:
        stand_under(server.delegate, uid, shapes=HALF)
    now, shaped = [0.0], []

    def takes_time(payload: Any, shapes: Any) -> bytes | None:
        shaped.append(bytes(payload))
        now[0] += 2.0
        return shape(payload, shapes)

    monkeypatch.setattr(shaping, "shape", takes_time)
    monkeypatch.setattr(shaping, "time", SimpleNamespace(thread_time=lambda: now[0]))
    pictures = [picture((320, 200), quality=quality) for quality in (90, 95)]

    def come() -> list[tuple[int, int]]:
        for data in pictures:
            publisher.publish(registration, figures.figure_1, data)
        return [sized(subscriber.receive(uid).payload) for _ in pictures for uid in uids]

    # When objects come whole, and scaled
    shaper.is_on = False
    assert come() == [(320, 200)] * 4
    assert shaped == []
    shaper.is_on = True
    assert come() == [(160, 100)] * 4
    # Expect each to have been shaped once for both, and all of that time, and no other, to be told
    assert shaped == pictures
    assert (shaper.status()["shaped"], shaper.status()["seconds"]) == (2, 4.0)


@pytest.mark.row("Q-24")
def test_a_policy_about_sizes_shapes_large_objects_alone(
    tmp_path: Path, managed: Any, figures: Any, eventually: Any
) -> None:
    # Given a policy for objects of more than 2 KB, and one that drops what is larger than 4 KB whatever its shape
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[policy]]\nname = "large"\nwhen = "size > \'2 KB\'"\nshape = "truncate 5"\n'
        '[[policy]]\nname = "all"\nmax_size = "4 KB"\n'
    )
    managed.config = msgspec.structs.replace(managed.config, policy=PolicySection(file=str(path)))
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    # When small and large texts come, and what is large and no text
    for data in (b"x" * 10, b"x" * 3_000, bytes(3_000), bytes(5_000)):
        publisher.publish(registration, figures.figure_1, data)
    # Expect each as the policy for it says
    assert [len(subscriber.receive(uid).payload) for _ in range(3)] == [10, 5, 3_000]
    eventually(lambda: subscriber.losses(uid) == {"oversize": 1})
    assert server.status()["subscriptions"][0]["unshaped"] == 2


POLICY = """
[space]
shaping = %s

[[policy]]
name = "imagery"
type = "mil.*"
action = "subscribe"
shape = ["scale 0.5"]

[[link]]
name = "mail server"
members = "delivery == 'mail'"
rate = "80 kbps"
"""


def test_a_policy_file_decides_what_is_shaped_while_it_runs(
    tmp_path: Path, managed: Any, figures: Any, eventually: Any
) -> None:
    # Given a policy that scales pictures, and a link of its own for mail
    path = tmp_path / "policy.toml"
    path.write_text(POLICY % "true")
    managed.config = msgspec.structs.replace(managed.config, policy=PolicySection(file=str(path)))
    subscriber, server, publisher = managed.subscriber(), managed.pad(), managed.light()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    data = picture((640, 480))

    def width() -> int:
        publisher.publish(registration, figures.figure_1, data)
        return sized(subscriber.receive(uid).payload)[0]

    # Expect its contract to have it, and mail to have its rate in bytes
    assert width() == 320
    quality = server.delegate.contracts.quality
    eventually(lambda: quality.mail_rate == 10_000.0)
    # When shaping is switched off for the whole space; Expect the next pictures whole, nobody having subscribed anew
    path.write_text(POLICY % "false")
    eventually(lambda: not quality.shaper.is_on)
    shaped = quality.shaper.status()["shaped"]
    assert [width(), width()] == [640, 640]
    assert quality.shaper.status()["shaped"] == shaped


@pytest.mark.parametrize("wish", [Wish(), Wish(shape=("truncate 3",))], ids=["no wish", "a wish"])
def test_a_signed_object_that_is_shaped_is_taken_by_who_has_asked_for_shapes(
    wish: Wish, tmp_path: Path, fixtures: Any, figures: Any, eventually: Any
) -> None:
    # Given signed objects, a delegate that signs what it shapes, and a subscriber that wants all signed
    with ExitStack() as stack:
        authority = Authority(tmp_path)
        server_tls = msgspec.structs.replace(authority.issue("server.example"), sign=True)
        config = msgspec.structs.replace(fixtures.test_config(), tls=server_tls, qos=QosSection(mode="on"))
        federation = fixtures.Federation(config, stack)

        def party(name: str, **tls: Any) -> Any:
            issued = msgspec.structs.replace(authority.issue(name, number=1), **tls)
            return msgspec.structs.replace(federation.config, tls=issued)

        server = federation.pad()
        publisher = federation.light(party("publisher.example", sign=True))
        registration = figures.register(publisher)
        subscriber = federation.subscriber(party("subscriber.example", verify="require"))
        uids = [subscriber.register_subscriber(type_name=TYPE, payload_filter=f, qos=wish) for f in (None, "//x")]
        assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1]
        for uid in uids:
            stand_under(server.delegate, uid, shapes=(PayloadShape("truncate", (3,)),))
        # When an object comes that is shaped, and one that is not
        for data in (b"abcdef", b"abc"):
            publisher.publish(registration, figures.figure_1, data)
        for uid in uids:
            # Expect the first under the publisher's name where it was asked for, and to be lost where it was not
            if wish.shape:
                first = subscriber.receive(uid)
                assert (first.payload, first.platform.verified) == (b"abc", "publisher.example")
                assert first.platform.payload_length == 6
            second = subscriber.receive(uid)
            assert (second.payload, second.platform.verified) == (b"abc", "publisher.example")
            assert second.platform.payload_length == 3
            assert subscriber.losses(uid) == ({} if wish.shape else {"bad_signature": 1})


def test_without_qos_nothing_of_it_is_imported() -> None:
    script = (
        "import sys, jbi_pubsub.pad.server.server, jbi_pubsub.publisher.peer; from jbi_pubsub import Config\n"
        "from jbi_pubsub.pad.ingress.stages import stages_of\n"
        "assert stages_of(Config()).quality is None\n"
        "print([name for name in sys.modules if name.startswith(('jbi_pubsub.qos', 'PIL'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
