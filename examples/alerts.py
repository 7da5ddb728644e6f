"""`jbi demo alerts`: real CAP alerts to e-mail.

Three people subscribe by mail, with predicates over the alerts themselves (a CAP alert is the metadata of its object):
what is severe, what is of category Geo, and everything, gathered in a digest. The mail server is one of loopback that
shows what it gets.
"""

from __future__ import annotations

import time
from email.message import EmailMessage
from typing import Any, Final

import msgspec
from lxml import etree

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import MailSection
from jbi_pubsub.examples.example import DATA, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import PATIENCE, Federation
from jbi_pubsub.examples.mailbox import mailbox
from jbi_pubsub.examples.scenario import CAP, CAP_TYPE, PUBLISHERS, publications

SCHEMA: Final = DATA / "cap" / "cap12.xsd"
MARKS: Final = DATA / "cap" / "marks.json"
QUIET: Final = 0.7
"""Seconds after the last mail that is expected, in which another one would show itself."""


class MailReader(msgspec.Struct, frozen=True):
    """Subscriber by mail, and to what; `digest` is the seconds that objects are gathered for."""

    address: str
    predicate: str
    digest: float = 0.0


READERS: Final = (
    MailReader("duty@example.org", "c:info/c:severity='Severe' or c:info/c:severity='Extreme'"),
    MailReader("quakes@example.org", "c:info/c:category='Geo'"),
    MailReader("archive@example.org", "", digest=1.0),
)


class AlertMail(msgspec.Struct, frozen=True):
    """One mail: who got it, its subject, and the alerts attached to it."""

    to: str
    subject: str
    alerts: tuple[bytes, ...]
    size: int


def run(options: ExampleOptions) -> ExampleOutcome:
    """Subscribe by mail, publish all alerts, and look at the mails."""
    alerts = [publication.metadata for publication in publications(next(p for p in PUBLISHERS if p.name == "alerts"))]
    mails: list[AlertMail] = []

    def heard(facts: dict[str, Any]) -> None:
        if "mail" in facts:
            mails.append(facts["mail"])
            options.tell(f"mail to {mails[-1].to}: {len(mails[-1].alerts)} attached")

    with mailbox(lambda to, message: here.tell(mail=_read(to, message))) as port:
        config = Config(mail=MailSection(port=port, sender="alerts@example.org"))
        with (
            Federation(config).lookup().delegate("alerts", "paris") as here,
            SubscriberAdapter(here.config) as subscriber,
            PublisherAdapterLight(here.config) as publisher,
        ):
            for reader in READERS:
                subscription = subscriber.register_subscriber(
                    type_name=CAP_TYPE,
                    predicate=reader.predicate,
                    namespaces=dict(CAP),
                    recipients=[reader.address],
                    attributes={"mail_digest_seconds": f"{reader.digest:g}"} if reader.digest else {},
                )
                subscriber.wait_matched(subscription, timeout=PATIENCE)
            publish(publisher, alerts)
            options.tell(f"published {len(alerts)} alerts")
            expected = {reader.address: matching(reader, alerts) for reader in READERS}
            here.until(lambda: _count(mails) >= sum(map(len, expected.values())), "the mails", heard)
            quiet = time.monotonic() + QUIET
            while time.monotonic() < quiet:
                heard(here.news(0.1) or {})
    return outcome(mails, expected)


def publish(publisher: PublisherAdapterLight, alerts: list[bytes]) -> None:
    """Senders differ, and are invariant: each alert gets a registration of its own."""
    delegate = publisher.connect_to_delegate("alerts", "paris")
    for alert in alerts:
        registration = publisher.register_publisher(delegate, SCHEMA, alert, marks=MARKS)
        publisher.publish(registration, alert)
    publisher.flush(PATIENCE)


def matching(reader: MailReader, alerts: list[bytes]) -> list[bytes]:
    """The alerts that a reader must get, as lxml alone says."""
    wanted = etree.XPath(f"boolean({reader.predicate or 'true()'})", namespaces=dict(CAP))
    return [alert for alert in alerts if wanted(etree.fromstring(alert))]


def outcome(mails: list[AlertMail], expected: dict[str, list[bytes]]) -> ExampleOutcome:
    """The mails, and whether everybody got his."""
    rows = [(mail.to, len(mail.alerts), f"{mail.size:,}", ", ".join(map(event, mail.alerts))) for mail in mails]
    got = {to: [alert for mail in mails if mail.to == to for alert in mail.alerts] for to in expected}
    digests = [mail for mail in mails if mail.to == READERS[-1].address]
    return ExampleOutcome(
        (OutcomeTable("The mails", ("to", "alerts", "bytes", "about"), rows),),
        (
            *(
                Promise(f"{to} got {len(alerts)} alerts, byte for byte, none twice", sorted(got[to]) == sorted(alerts))
                for to, alerts in expected.items()
            ),
            Promise("nobody else got any", {mail.to for mail in mails} == set(expected)),
            Promise(
                f"the digest is fewer mails than alerts: {len(digests)} for {len(expected[READERS[-1].address])}",
                0 < len(digests) < len(expected[READERS[-1].address]),
            ),
        ),
    )


def event(alert: bytes) -> str:
    """Event that an alert is about."""
    return etree.fromstring(alert).findtext("c:info/c:event", "?", namespaces=dict(CAP))


def _read(to: tuple[str, ...], message: EmailMessage) -> AlertMail:
    attached = [part for part in message.walk() if part.get_filename() == "metadata.xml"]
    alerts = tuple(part.get_payload(decode=True) for part in attached)
    return AlertMail(", ".join(to), str(message["Subject"]), alerts, len(message.as_bytes()))  # type: ignore[arg-type]  # bytes: they are base64


def _count(mails: list[AlertMail]) -> int:
    return sum(len(mail.alerts) for mail in mails)
