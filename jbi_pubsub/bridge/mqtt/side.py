"""Settings of a side of kind "mqtt", and whether they can work."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from jbi_pubsub.codegen.opening import checked_name
from jbi_pubsub.core.errors import ConfigurationError, SchemaError
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.core.info_object import DEFAULT_VERSION
from jbi_pubsub.core.wire.address import check_endpoint

from .client import library

if TYPE_CHECKING:
    from paho.mqtt.client import Client

TOPIC_MOST: Final = 65_535
"""Bytes of a topic (section 1.5.4)."""
PREFIX_MOST: Final = 1_000
"""Characters of the prefix of a topic, which a type's name follows."""
SESSION_MOST: Final = (1 << 32) - 1
_REFUSED: Final = "\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufeff" + "".join(
    chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF)
)
NO_TEXT: Final = re.compile(f"[{_REFUSED}]")
"""Characters that a broker may refuse in any text (section 1.5.4): controls and non-characters. U+FEFF is among them as
paho refuses it."""
NO_TOPIC: Final = re.compile(f"[+#{_REFUSED}]")
"""Wildcards (section 4.7.1), and these."""


class MqttTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[side.NAME.topic]]`: messages that are objects for the other side."""

    filter: str
    """Topics, with the wildcards of MQTT."""
    type: str = ""
    """Information object type of what comes there; "": as each message says (`jbi-type`)."""
    version: str = DEFAULT_VERSION
    retained: Literal["change", "new", "never"] = "change"
    """When the broker's retained messages come: when they have changed; anew with each connection; or never."""

    @property
    def identifier(self) -> int:
        """Identifier of its subscription (section 3.8.2.1.2); the same in all files."""
        return int.from_bytes(hashlib.sha256(self.filter.encode()).digest()[:4]) % ((1 << 28) - 1) + 1


class MqttSide(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[side.NAME]` of kind "mqtt"."""

    broker: str
    """HOST:PORT."""
    kind: str = "mqtt"
    prefix: str = "jbi"
    """Prefix of the topics that objects go to."""
    topic: tuple[MqttTopic, ...] = ()
    client_id: str = ""
    """"": made of the names of bridge and side."""
    session: Annotated[int, msgspec.Meta(ge=0, le=SESSION_MOST)] = 86_400
    """Seconds for which the broker is to keep what comes for us while we are away (Session Expiry Interval)."""
    user: str = ""
    password_file: str = ""
    """File with the password, from the bridge file's folder."""
    tls: bool = False
    ca: str = ""
    """The broker's authority; "": those of this host."""
    certificate: str = ""
    key: str = ""
    max_payload: Annotated[int, msgspec.Meta(ge=1)] = 16 << 20
    """Bytes of a message's payload; larger ones are left out."""


def check_side(side: MqttSide, folder: Path) -> None:
    """Raises ConfigurationError for what can't work, whoever is there."""
    host, port = address(side)
    library()
    for topic in side.topic:
        if topic.filter.startswith("$share/"):  # there is no No Local for these (section 3.8.3.1)
            raise ConfigurationError(
                f"{topic.filter[:100]!r} is a shared subscription", hint="Give the bridges client ids of their own"
            )
        if not topic.filter or len(topic.filter.encode()) > TOPIC_MOST or not _is_filter(topic.filter):
            raise ConfigurationError(
                f"{topic.filter[:100]!r} is not a topic filter",
                hint="'+' matches one level, a last '#' all levels below",
            )
        try:
            checked_name(topic.type, topic.version)
        except SchemaError as exc:
            raise ConfigurationError(exc.message, hint=exc.hint) from exc
    for name, text in (("client_id", side.client_id), ("user", side.user)):
        if len(text.encode()) > TOPIC_MOST:  # as any text (section 1.5.4)
            raise ConfigurationError(f"{name} is longer than {TOPIC_MOST} bytes")
    if not side.prefix or NO_TOPIC.search(side.prefix) or side.prefix[0] == "$" or len(side.prefix) > PREFIX_MOST:
        raise ConfigurationError(f"prefix {side.prefix[:100]!r} can't begin a topic")
    if side.password_file and not side.tls and not _is_loopback(host):
        raise ConfigurationError(
            f"the password for {with_port(host, port)} would go in clear text", hint="Set tls = true for this side"
        )
    if not side.tls and (side.ca or side.certificate or side.key):
        raise ConfigurationError(
            f"ca, certificate and key are for TLS: what goes to {with_port(host, port)} would go in clear text",
            hint="Set tls = true for this side",
        )
    for name, needed in (("password_file", "user"), ("key", "certificate")):
        if getattr(side, name) and not getattr(side, needed):
            raise ConfigurationError(f"{name} without {needed} is not used", hint=f"Set {needed} for this side")
    password(side, folder)
    context(side, folder)


def _is_filter(text: str) -> bool:
    """MQTT 5, section 4.7.1."""
    levels = text.split("/")
    return "\0" not in text and all(
        level in ("+", "#") or not ("+" in level or "#" in level) for level in levels
    ) and "#" not in levels[:-1]  # fmt: skip


def address(side: MqttSide) -> tuple[str, int]:
    host, _, port = check_endpoint(side.broker).rpartition(":")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def password(side: MqttSide, folder: Path) -> str | None:
    """Raises ConfigurationError."""
    if not side.password_file:
        return None
    try:
        return (folder / side.password_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"password_file {side.password_file}: {exc}") from exc


def context(side: MqttSide, folder: Path) -> ssl.SSLContext | None:
    """Raises ConfigurationError."""
    if not side.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=str(folder / side.ca) if side.ca else None)
        if side.certificate:
            key = folder / side.key if side.key else None
            context.load_cert_chain(folder / side.certificate, key, password=partial(_refuse_password, side))
    except (OSError, ssl.SSLError) as exc:
        raise ConfigurationError(
            f"TLS to the broker {side.broker}: {exc}", hint="ca, certificate and key are PEM files"
        ) from exc
    return context


def _refuse_password(side: MqttSide) -> str:
    """OpenSSL would ask at the terminal."""
    key = side.key or side.certificate
    raise ConfigurationError(
        f"TLS to the broker {side.broker}: key {key} is encrypted, and nobody is there to be asked",
        hint="Give a key without a passphrase that only this user may read",
    )


def speak_tls(client: Client, side: MqttSide, folder: Path, tell: Callable[[str], None]) -> None:
    """Have each connection use the files as they are when it begins; `tell` is told why they can't be used: then it
    uses those of before. Raises ConfigurationError."""
    secured = context(side, folder)

    def read_again(*_: object) -> None:
        try:
            client._ssl_context = context(side, folder)  # paho sets one once
        except ConfigurationError as exc:
            tell(f"the previous files stay in force: {exc.message}")

    if secured is not None:
        client.tls_set_context(secured)
        client.on_pre_connect = read_again


class HeardTopics:
    """Topics that a broker is asked for."""

    def __init__(self, topics: Sequence[MqttTopic]) -> None:
        """Two may have the same filter: the first counts then."""
        self._topics = list({one.filter: one for one in reversed(topics)}.values())
        self.types: frozenset[str] | None = None
        """Their types; None: any."""
        self.has_identifiers = True
        """Whether the broker knows subscription identifiers."""

    def subscribe(self, client: Client) -> None:
        """Ask for them, and for no others any more."""
        paho = library()
        for topic in self._topics:
            if self.types is not None and topic.type not in self.types:
                client.unsubscribe(topic.filter)
                continue
            handling = {"new": 0, "change": 1, "never": 2}[topic.retained]  # section 3.8.3.1
            options = paho.options(qos=1, noLocal=True, retainHandling=handling)
            properties = paho.properties(paho.packets.SUBSCRIBE)
            if self.has_identifiers:
                properties.SubscriptionIdentifier = topic.identifier
            client.subscribe([(topic.filter, options)], properties=properties)
