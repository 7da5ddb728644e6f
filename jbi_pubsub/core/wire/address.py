"""Addresses of endpoints: host:port, as people write it and others send it."""

from __future__ import annotations

import ipaddress
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.hosts import with_port

MAX_HOST: Final = 253
"""Characters of a host name (RFC 1035 section 2.3.4, without the final dot)."""


def is_loopback(host: str) -> bool:
    """Only literal loopback addresses and `localhost`: another name may resolve to anything."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_endpoint(text: str, *, default_port: int = 0) -> tuple[str, int]:
    """host:port -> (host, port); [::1]:port works as well. Raises ConfigurationError."""
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    try:
        number = int(port) if port else default_port
    except ValueError:
        number = -1
    if not host or not 0 < number < 65536:
        raise ConfigurationError(f"{text!r} is not HOST:PORT", hint="For example 127.0.0.1:4160", endpoint=text)
    return host.strip("[]"), number


def check_endpoint(text: str) -> str:
    """`text` as host:port in one form (host in lower case, an IPv6 host in brackets), so that equal ones are equal
    text; jbi://host:port (Jini's form of a locator, DJ.5) is the same. Stricter than `split_endpoint`: for what people
    write and others send. Raises ConfigurationError."""
    host, colon, port = text.removeprefix("jbi://").rpartition(":")
    bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host.replace(":", " ")
    good = bool(colon and 0 < len(bare) <= MAX_HOST and port.isascii() and port.isdecimal())
    if not good or any(not c.isprintable() or c in " []/@" for c in bare):
        raise ConfigurationError(
            f"{text!r} is not HOST:PORT", hint="For example 127.0.0.1:4160, an IPv6 host in brackets", endpoint=text
        )
    host, number = split_endpoint(f"{host}:{port}")
    return with_port(host, number).lower()
