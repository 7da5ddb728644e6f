"""The seven preferences of table 1 of the QED paper, as a policy names them: what becomes of pictures and of what is
too old, in the queues of subscribers and in the mail to them."""

from __future__ import annotations

import email.policy
import io
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from email import message_from_bytes
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from jbi_pubsub import Wish
from jbi_pubsub.core.config import MailSection, PolicySection, QosSection
from jbi_pubsub.core.info_object import Cause, Head, pack
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.examples.mailbox import AnyPort
from jbi_pubsub.pad.egress.queue import Waiting
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.mail.queue import MailQueue
from jbi_pubsub.pad.model.subscription import compile_subscription
from jbi_pubsub.policy.context import CallerFacts
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.qos.queue import LevelQueue

TYPE = "mil.af.rl.jbi.Intel_Imagery"
FULL, HALF, QUARTER = (320, 200), (160, 100), (80, 50)
NEVER = float("inf")

TABLE_1 = {
    "Default": (FULL, NEVER),
    "NoDrop": (QUARTER, NEVER),
    "FullImageDrop": (FULL, 5.0),
    "GeneralSurv": (HALF, 5.0),
    "FullImageNoDrop": (FULL, NEVER),
    "FullImage": (FULL, 9.0),
    "BFTrack": (QUARTER, 15.0),
}
"""The size of a picture that is published with FULL, and the age from which on it is lost; where the table says
"unspecified", those of the policy behind (INHERITED)."""

INHERITED = """
[[policy]]
name = "what is inherited"
precedence = -1
shape = "scale 0.25"
deadline = "9 s"
"""
POLICIES = INHERITED + "".join(
    f'[[policy]]\nname = "{name}"\nattribute = {{ wants = "{name}" }}\npreference = "{name}"\n' for name in TABLE_1
)


def settings_of(name: str) -> Settings:
    """Of a contract that wants that preference."""
    facts = CallerFacts(("",), (), (), ("",), ("",), ("",), type=(TYPE,), attribute=(("wants", name),))
    return PolicySet.parse(POLICIES).resolve(facts, now=0.0).settings


def is_late_in_a_queue(settings: Settings, age: float) -> bool:
    """Whether an object is lost by its deadline when its turn comes at that age."""
    lost: list[Cause] = []
    queue: LevelQueue[Any] = LevelQueue(Contract(settings), lambda _waiting, cause: lost.append(cause))
    parcel = pack(Head("o", "r", 1, 1.0, TYPE, "1.0", b"<m/>", 1), b"x")
    queue.put(Waiting(parcel, arrived=100.0), 100.0)
    found = queue.select(settings.importance - 1, 100.0 + age)
    assert lost == ([Cause.DEADLINE] if found is None else [])
    return found is None


def is_late_in_the_mail(settings: Settings, age: float) -> bool:
    """The same of a mail when a connection to the mail server is free at that age."""
    request = SubscriptionRequest("s", direct=False, recipients=("ops@example.org",))
    subscription = compile_subscription(request, owner="mail", number=0)
    subscription.contract = Contract(settings)
    queue = MailQueue(MailSection())
    queue.open(subscription, durable=False)
    queue.offer(subscription, Content(1, "o", "t", "t #1", b"x"), 100.0)
    attempt = queue.take(100.0 + age)
    assert [loss.cause for loss in queue.late()] == ([Cause.DEADLINE] if attempt is None else [])
    return attempt is None


@pytest.mark.row("Q-32", "Q-57", "Q-58", "Q-59", "Q-60", "Q-61", "Q-63", "D-29", "X-04", "X-12")
@pytest.mark.parametrize("is_late", [is_late_in_a_queue, is_late_in_the_mail])
@pytest.mark.parametrize("name", TABLE_1)
def test_what_is_older_than_its_preference_says_is_dropped(name: str, is_late: Any) -> None:
    settings, (_, deadline) = settings_of(name), TABLE_1[name]
    for age in (0.0, 4.9, 5.1, 8.9, 9.1, 14.9, 15.1, 86_400.0):
        assert is_late(settings, age) is (age > deadline), age


# -- pictures, by queue and mail --------------------------------------------------------------------------------------


class Mailbox:
    """An SMTP server's mind: sizes of the pictures that came, by recipient."""

    def __init__(self) -> None:
        self.came: dict[str, tuple[int, int]] = {}

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        message: Any = message_from_bytes(envelope.content, policy=email.policy.default)
        [data] = [part.get_payload(decode=True) for part in itertools.islice(message.iter_attachments(), 1, None)]
        self.came[envelope.rcpt_tos[0].partition("@")[0]] = sized(data)
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    controller = AnyPort(box, hostname="127.0.0.1", port=0)
    controller.start()
    yield box, controller.port
    controller.stop()


def sized(data: bytes) -> tuple[int, int]:
    """Width and height."""
    return Image.open(io.BytesIO(data)).size


@pytest.mark.row("Q-32", "Q-57", "Q-59", "Q-60", "Q-61", "Q-62", "X-04")
@pytest.mark.processes
def test_each_preference_scales_pictures_or_leaves_them_in_the_queue_and_in_the_mail(
    mailbox: tuple[Mailbox, int], tmp_path: Path, fixtures: Any, figures: Any, eventually: Any
) -> None:
    # Given a subscriber with a subscription for each preference, which gets mail of it as well
    box, port = mailbox
    path = tmp_path / "policy.toml"
    path.write_text(POLICIES)
    with ExitStack() as stack:
        config = msgspec.structs.replace(
            fixtures.test_config(mail=MailSection(port=port)),
            qos=QosSection(mode="on"), policy=PolicySection(file=str(path)),
        )  # fmt: skip
        federation = fixtures.Federation(config, stack)
        federation.pad()
        publisher, subscriber = federation.light(), federation.subscriber()
        registration = figures.register(publisher)
        uids = {
            name: subscriber.register_subscriber(
                type_name=TYPE, direct=True, recipients=[f"{name}@example.org"], qos=Wish(attributes={"wants": name})
            )
            for name in TABLE_1
        }
        assert [subscriber.wait_matched(uid) for uid in uids.values()] == [1] * len(uids)
        # When a picture comes
        out = io.BytesIO()
        Image.effect_noise(FULL, 60).save(out, "JPEG")
        publisher.publish(registration, figures.figure_1, out.getvalue())
        # Expect it in the size that table 1 says, both ways
        expected = {name: size for name, (size, _) in TABLE_1.items()}
        assert {name: sized(subscriber.receive(uid).payload) for name, uid in uids.items()} == expected
        eventually(lambda: len(box.came) == len(expected))
        assert box.came == expected
