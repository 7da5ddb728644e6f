"""Whether a network may go without a key, and its seal when it has one."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.sealing import DatagramSealing, Unsealed

_SIOCGIFFLAGS: Final = 0x8913
_IFREQ: Final = struct.Struct("16sH14x")
_LOOPBACK: Final = 8
"""See netdevice(7)."""


def check_open(name: str, interfaces: Sequence[str], *, insecure: bool, peers: bool = False) -> None:
    """Refuse to be in the network `name` in clear, beyond loopback. `interfaces`: those that it is on, none for all;
    `peers`: it has some, who are heard on all interfaces. Raises ConfigurationError."""
    if insecure or (interfaces and not peers and all(map(_is_loopback, interfaces))):
        return
    where = "single nodes" if peers else ", ".join(interfaces) or "all interfaces"
    raise ConfigurationError(
        f"refusing to send and hear datagrams of network {name} on {where} without a key",
        hint=f"Set [network.{name}] key to a file, which is made with a secret in it that all its nodes are to have; or"
        " set its interfaces to lo; or pass --insecure on a network you trust",
        key=f"network.{name}.key",
    )


def seal_of(secret: str, me: bytes) -> DatagramSealing:
    """The seal of a network of this node, whose id is `me`, made anew for each network and start; `secret`: that of
    its file, "" for none. Raises ConfigurationError."""
    if not secret:
        return Unsealed()
    try:
        from jbi_pubsub.trust import seal  # cryptography is an extra
    except ImportError as exc:
        raise ConfigurationError(
            f"the key of a network needs the library cryptography: {exc}",
            hint="Install it: pip install 'jbi-pubsub[trust]'",
        ) from exc
    return seal.DatagramSeal(seal.shared_key(secret), me)


def _is_loopback(interface: str) -> bool:
    """Whether an interface is there, and leads nowhere else."""
    with suppress(OSError, struct.error), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(interface.encode()[:15], 0))
        return bool(_IFREQ.unpack(answer)[1] & _LOOPBACK)
    return False
