"""Links in mails: each proves whose it is and what for, and nothing else does."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.protocol.mail_links import LINK_ACTIONS, MAX_BASE, check_base, link, recipient_of, uid_of
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import SubscriptionRequest

SECRET = "0123456789abcdef" * 2
REQUEST = SubscriptionRequest(
    owned_uid("subscription", SECRET), direct=False, recipients=("a@x.org", "b@x.org"), secret=SECRET
)
OTHER = SubscriptionRequest(owned_uid("subscription", SECRET[::-1]), recipients=("a@x.org",), secret=SECRET[::-1])


def token(action: str = "unsubscribe", request: SubscriptionRequest = REQUEST, recipient: str = "a@x.org") -> str:
    """Of a link, as it stands in a mail."""
    made = link("https://x.org", action, request, recipient)  # type: ignore[arg-type]  # one of LINK_ACTIONS
    return made.removeprefix(f"https://x.org/{action}?token=")


def test_a_link_proves_its_recipient_and_nobody_else() -> None:
    # Expect each recipient's link to be his, for the subscription that it names
    for recipient in REQUEST.recipients:
        assert uid_of(token(recipient=recipient)) == REQUEST.uid
        assert recipient_of(token(recipient=recipient), "unsubscribe", REQUEST) == recipient
    # Expect a link for one thing to be none for the other, nor for another subscription, also one of the same recipient
    for action, other in (LINK_ACTIONS, LINK_ACTIONS[::-1]):
        assert recipient_of(token(action), action, REQUEST)
        assert not recipient_of(token(action), other, REQUEST)
    assert not recipient_of(token(), "unsubscribe", OTHER)
    assert not recipient_of(token(request=OTHER), "unsubscribe", REQUEST)
    # Expect it to be the same over restarts, and to say neither address nor secret
    assert token() == token()
    assert b"a@x.org" not in base64.urlsafe_b64decode(token() + "=")
    assert SECRET not in token()


def test_a_link_with_one_bit_changed_proves_nothing() -> None:
    good = base64.urlsafe_b64decode(token() + "=")
    for at in range(8 * len(good)):
        changed = bytearray(good)
        changed[at // 8] ^= 1 << at % 8
        forged = base64.urlsafe_b64encode(bytes(changed)).rstrip(b"=").decode()
        assert uid_of(forged) != REQUEST.uid or not recipient_of(forged, "unsubscribe", REQUEST)


@given(st.text(max_size=60))
@example("")
@example("A" * 42)
@example("A" * 44)
@example("A" * 42 + "=")
@example("A" * 42 + "\n")
@example("../" * 14 + "a")
@example("é" * 43)
@example("A" * 100_000)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(UnknownUidError):
        uid_of(text)


@pytest.mark.parametrize("secret", ["", "short"])
def test_a_subscription_without_a_secret_has_no_links(secret: str) -> None:
    # Given one whose key anybody could guess; Expect neither a link nor a proof
    guessed = msgspec.structs.replace(REQUEST, secret=secret)
    assert link("https://x.org", "unsubscribe", guessed, "a@x.org") == ""
    assert recipient_of(token(), "unsubscribe", guessed) == ""


def test_without_a_base_there_is_no_link() -> None:
    assert link("", "unsubscribe", REQUEST, "a@x.org") == ""


@pytest.mark.parametrize(
    "base",
    [
        "jbi.example.org", "ftp://x.org", "mailto:a@x.org", "https://", "https://x.org?a=b", "https://x.org#a",
        "https://user@x.org", "https://x.org:0", "https://x.org:99999", "https://x.org>,<https://evil.org",
        "https://x org", "https://x.org\r\nBcc: a@x.org", 'https://x.org/"', "https://кириллица.org", "https://[::1",
        f"https://{'x' * MAX_BASE}.org",
    ],
)  # fmt: skip
def test_a_base_that_cannot_stand_in_a_header_is_refused(base: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[mail\] unsubscribe"):
        check_base(base)


@pytest.mark.parametrize(
    "base", ["https://jbi.example.org:8160", "http://127.0.0.1:8160", "https://[::1]:8160", "https://x.org/jbi"]
)
def test_links_begin_with_the_base(base: str) -> None:
    assert check_base(f"{base}/") == base
    assert check_base("") == ""
