"""Hosts: by which names an HTTP server of ours is reached, and how one stands before its port."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Container, Iterable
from typing import Final

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.%-]+)?)\]|([A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
"""Host of RFC 9110, section 7.2: nothing stands before it, as in a URI with a user, and nothing behind the port."""

ANY: Final = ("0.0.0.0", "::")  # noqa: S104  # compared, not listened on
"""Addresses that mean every interface; nobody is reached there."""


def with_port(host: str, port: int) -> str:
    """host:port, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def names_of(given: Iterable[str]) -> frozenset[str]:
    """Names that `is_ours` looks for: these, and localhost."""
    return frozenset({"localhost", *(name.casefold().rstrip(".") for name in given)} - {""})


def is_ours(host: str, names: Container[str]) -> bool:
    """Whether a `Host` header names us: one of `names`, or an address, which is nobody's name: a foreign page can't
    have been loaded by it (DNS rebinding)."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2]).casefold().rstrip(".")
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def elsewhere(host: str, exc: OSError) -> str:
    """Hint when listening failed because the host is no address of this machine; "" for another reason."""
    if exc.errno != errno.EADDRNOTAVAIL and not isinstance(exc, socket.gaierror):
        return ""
    return f"{host} is not an address of this machine: give one that is with --host"
