"""Mails as a reader's program sees them: parsed with the standard library, whatever bytes an object has."""

from __future__ import annotations

import email.policy
from email import message_from_bytes
from email.message import EmailMessage
from typing import cast

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.pad.mail.message import SHOWN, compose, digest, estimate, reminder, single
from jbi_pubsub.protocol.requests import SubscriptionRequest

SENDER = "jbi@example.org"
NASTY = [
    b"",
    b".",
    b"\r\n.\r\n",
    b"--=_object-",
    b"From me\n",
    b"=3D=\n",
    b"\r",
    b"\x00",
    "Ünïcode ".encode(),
    b"x" * 999,
]
BYTES = st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(NASTY), max_size=6).map(b"".join))


def made(
    metadata: bytes = b"<a/>", payload: bytes = b"", name: str = "mil.af.Imagery", sequence: int = 1
) -> InfoObject:
    """An object."""
    platform = Platform(1_700_000_000.0, "registration-1", sequence, len(metadata), len(payload))
    return InfoObject(f"object-{sequence}", TypeName(name), metadata, payload, platform)


def read(data: bytes) -> EmailMessage:
    """As a mail program reads it, and no defect found."""
    message = cast(EmailMessage, message_from_bytes(data, policy=email.policy.default))
    assert [part.defects for part in message.walk() if part.defects] == []
    return message


def attached(message: EmailMessage) -> list[bytes]:
    """The attached files."""
    return [cast(bytes, part.get_payload(decode=True)) for part in message.iter_attachments()]


@settings(max_examples=examples(200), derandomize=True, deadline=None)
@given(metadata=BYTES, payload=BYTES, name=st.text(max_size=60))
def test_metadata_and_payload_are_attached_byte_for_byte_and_lines_are_short_and_ascii(
    metadata: bytes, payload: bytes, name: str
) -> None:
    # Given an object of any bytes and any type name
    obj = made(metadata, payload, name)
    # When its mail is read
    content = compose(obj, payload, number=1, sender=SENDER)
    data = single(content, "subscription-1", "example.org")
    # Expect the bytes as published; lines within RFC 5322 2.1.1, 7-bit, ended by CRLF
    assert attached(read(data)) == [metadata, payload] if payload else [metadata]
    assert data.isascii()
    assert all(len(line) <= 998 and b"\r" not in line and b"\n" not in line for line in data.split(b"\r\n"))
    assert estimate(obj, payload) >= sum(len(x) * 4 // 3 for x in (metadata, payload))


@settings(max_examples=examples(100), derandomize=True, deadline=None)
@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=4))
def test_a_digest_holds_each_objects_whole_mail(parts: list[tuple[bytes, bytes]]) -> None:
    # Given objects of any bytes; When they go in one mail
    objects = [made(metadata, payload, sequence=n) for n, (metadata, payload) in enumerate(parts, 1)]
    contents = [compose(o, o.payload, number=n, sender=SENDER) for n, o in enumerate(objects, 1)]
    message = read(digest(contents, "one", sender=SENDER, domain="example.org", published=0.0))
    # Expect a list to read, and each object's mail with its files
    listed, gathered = message.iter_parts()
    assert [line.split()[-1] for line in str(listed.get_content()).splitlines()] == [o.object_id for o in objects]
    assert gathered.get_content_type() == "multipart/digest"
    inner = [part.get_content() for part in gathered.iter_parts()]
    assert [attached(m) for m in inner] == [[o.metadata, o.payload] if o.payload else [o.metadata] for o in objects]


def test_a_reader_sees_type_date_and_list() -> None:
    # Given a type name beyond ASCII
    obj = made("<Ort>Köln</Ort>".encode(), name="de.Lagemeldung.Köln")
    message = read(single(compose(obj, b"", number=1, sender=SENDER), "subscription <1>\r\nBcc: x", "example.org"))
    assert message["Subject"] == "de.Lagemeldung.Köln registration-1 #1"
    assert message["Date"].datetime.timestamp() == 1_700_000_000.0
    assert message["List-Id"] == "<subscription__1___Bcc__x.subscription.example.org>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Bcc"] is None
    body = message.get_body(("plain",))
    assert body is not None
    assert "<Ort>Köln</Ort>" in body.get_content()


@pytest.mark.parametrize(
    "name", ["=?utf-8?b?Zm9v?=", "=?utf-8?q?foo?= bar", "a =?us-ascii?q?=0D=0ABcc=3A_x?=", "=?", "?="]
)
def test_a_type_that_looks_like_an_encoded_word_reads_as_it_is_written(name: str) -> None:
    # Given a type whose name a mail program would decode (RFC 2047)
    content = compose(made(name=name), b"", number=1, sender=SENDER)
    message = read(single(content, "one", "example.org"))
    # Expect its own letters in subject and header, of a single mail and of a digest
    assert message["Subject"] == f"{name} registration-1 #1"
    assert message["X-JBI-Type"] == f"{name} 1.0"
    gathered = read(digest([content], "one", sender=SENDER, domain="x", published=0.0))
    assert gathered["Subject"] == f"1 objects: {name}"
    assert message["Bcc"] is None


def test_the_message_id_is_that_of_object_and_subscription() -> None:
    # Given two objects and two subscriptions
    first, second = (compose(made(sequence=n), b"", number=n, sender=SENDER) for n in (1, 2))
    again = compose(made(sequence=1), b"", number=3, sender=SENDER)
    # Expect the same mail for the same pair, byte for byte, and another Message-ID for every other
    assert single(first, "one", "example.org") == single(again, "one", "example.org")
    pairs = [(first, "one"), (first, "two"), (second, "one"), (second, "two")]
    ids = {read(single(c, uid, "example.org"))["Message-ID"] for c, uid in pairs}
    ids |= {read(digest([c], uid, sender=SENDER, domain="x", published=0.0))["Message-ID"] for c, uid in pairs}
    assert len(ids) == 8


def test_a_mail_with_a_link_lets_its_reader_unsubscribe_with_one_click() -> None:
    # Given a link over HTTPS; Expect the two headers of RFC 2369 and 8058, in a single mail and a digest
    content = compose(made(), b"", number=1, sender=SENDER)
    url = "https://jbi.example.org:8160/unsubscribe?token=" + "a" * 43
    for message in (
        read(single(content, "one", "x", url)),
        read(digest([content], "one", sender=SENDER, domain="x", published=0.0, unsubscribe=url)),
    ):
        assert message["List-Unsubscribe"] == f"<{url}>"
        assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    # Expect the link alone over HTTP, for which there is no one-click, and neither without a link
    plain = read(single(content, "one", "x", url.replace("https", "http")))
    assert (plain["List-Unsubscribe"], plain["List-Unsubscribe-Post"]) == (f"<{url.replace('https', 'http')}>", None)
    assert read(single(content, "one", "x"))["List-Unsubscribe"] is None


UNSUBSCRIBE, RENEW = "https://x.org/unsubscribe?token=" + "a" * 43, "https://x.org/renew?token=" + "b" * 43


def reminded(request: SubscriptionRequest, *, unsubscribe: str = UNSUBSCRIBE, renew: str = RENEW) -> EmailMessage:
    """A reminder as a mail program reads it."""
    data = reminder(
        request, ends=1_700_000_000.0, date=1_699_990_000.0, sender=SENDER, domain="x.org", unsubscribe=unsubscribe,
        renew=renew,
    )  # fmt: skip
    assert data.isascii()
    assert all(len(line) <= 998 and b"\r" not in line and b"\n" not in line for line in data.split(b"\r\n"))
    return read(data)


def test_a_reminder_says_what_ends_when_and_how_it_goes_on_or_not() -> None:
    # Given a subscription with a predicate
    request = SubscriptionRequest("subscription-1", predicate="//lat > 33", recipients=("a@x.org", "secret@y.org"))
    message = reminded(request)
    text = str(message.get_content())
    # Expect all of it, at the end of the lease, sent at the time of the reminder
    assert message["Subject"] == "Ends 2023-11-14 22:13:20 UTC: e-mail subscription subscription-1"
    assert message["Date"].datetime.timestamp() == 1_699_990_000.0
    assert "ends at 2023-11-14 22:13:20 UTC" in text
    assert "predicate: //lat > 33" in text
    assert UNSUBSCRIBE in text
    assert RENEW in text
    assert "jbi subscriptions renew subscription-1" in text
    assert message["List-Unsubscribe"] == f"<{UNSUBSCRIBE}>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert "y.org" not in message.as_string(), "nobody is told of the others"
    # Expect commands alone without links, and the same mail for the same lease
    without = str(reminded(request, unsubscribe="", renew="").get_content())
    assert "https:" not in without
    assert "jbi subscriptions renew subscription-1" in without
    assert "jbi subscriptions cancel subscription-1" in without
    assert reminded(request)["Message-ID"] == message["Message-ID"]


@settings(max_examples=examples(100), derandomize=True, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80), st.sampled_from([*map(bytes.decode, NASTY), "x\r\nBcc: a@x.org\r\n\r\n<b>", "a" * 9_999])
    )
)
def test_a_reminder_is_one_mail_whatever_its_subscription_says(hostile: str) -> None:
    # Given a subscription with hostile text in all that a reminder shows
    request = SubscriptionRequest(hostile, predicate=hostile, payload_filter=hostile)
    message = reminded(request)
    # Expect no further header, no lines of its own in the text, and no more of it than is shown
    assert message["Bcc"] is None
    text = str(message.get_content())
    assert len(text) < 4 * SHOWN + 2 * len(hostile) + 1_000


def test_metadata_that_are_no_text_leave_no_control_characters_in_the_body() -> None:
    obj = made(b"\x1b[2J\x00<a>\xc2\x9b31m\r\n\tb")
    message = read(single(compose(obj, b"", number=1, sender=SENDER), "subscription-1", "example.org"))
    body = message.get_body()
    assert body is not None
    text = body.get_content()
    assert "31m" in text
    assert not {each for each in text if not each.isprintable()} - set("\r\n\t")


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-16", "windows-1252", "utf-8", "utf-8-sig"])
def test_metadata_are_readable_in_whatever_encoding_they_are(encoding: str) -> None:
    name = encoding.removesuffix("-sig")
    metadata = f"<?xml version='1.0' encoding='{name}'?>\n<Ort>K\u00f6ln</Ort>".encode(encoding)
    message = read(single(compose(made(metadata), b"", number=1, sender=SENDER), "subscription-1", "example.org"))
    body = message.get_body(("plain",))
    assert body is not None
    text = body.get_content()
    assert "<Ort>K\u00f6ln</Ort>" in text
    assert "\ufeff" not in text
    assert attached(message) == [metadata]


def test_metadata_that_are_too_long_to_read_say_where_the_rest_is() -> None:
    # Given metadata whose sixteen KiB end within a character
    metadata = ("<m>" + "\u00f6" * 20_000 + "</m>").encode()
    message = read(single(compose(made(metadata), b"", number=1, sender=SENDER), "subscription-1", "example.org"))
    body = message.get_body(("plain",))
    assert body is not None
    text = str(body.get_content())
    assert text.count("\u00f6") == 8_190
    assert "[11,814 more characters are in metadata.xml]" in text
    assert "\ufffd" not in text
