"""Whether a network may go without a key, and its seal when it has one."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.sealing import DatagramSealing, SealFault, Unsealed

_SIOCGIFFLAGS: Final = 0x8913
_IFREQ: Final = struct.Struct("16sH14x")
_LOOPBACK: Final = 8
"""See netdevice(7)."""


class NetworkTerms(Protocol):
    """Settings of a network that say who can hear it."""

    @property
    def plugin(self) -> str:
        """Kind of the link."""
        ...

    @property
    def interfaces(self) -> Sequence[str]:
        """Interfaces that it is on; none: all."""
        ...

    @property
    def peers(self) -> Sequence[str]:
        """Nodes that are sent to one by one: such are heard on all interfaces."""
        ...

    @property
    def key(self) -> str:
        """File with its secret; "" for none."""
        ...


def check_open(name: str, network: NetworkTerms, *, insecure: bool) -> None:
    """Refuse to be in a network in clear, but within this process or on loopback. Raises ConfigurationError."""
    if insecure or network.key or network.plugin == "local":
        return
    if network.plugin != "udp" or network.peers:
        where = f"any interface, by {network.plugin}"
    elif not network.interfaces:
        where = "all interfaces"
    else:
        where = ", ".join(each for each in network.interfaces if not _is_loopback(each))
    if where:
        raise ConfigurationError(
            f"refusing to send and hear datagrams of network {name} on {where} without a key",
            hint=f"Set [network.{name}] key to a file, which is made with a secret in it that all its nodes are to"
            ' have; or interfaces = ["lo"], without peers; or pass --insecure on a network you trust',
            key=f"network.{name}.key",
        )


def seal_of(secret: str, me: bytes) -> DatagramSealing:
    """The seal of a network of this node, whose id is `me`, made anew for each network and start; `secret`: that of
    its file, "" for none. Raises ConfigurationError."""
    if not secret:
        return Unsealed()
    seal = _trust()
    found: DatagramSealing = seal.DatagramSeal(seal.shared_key(secret), me)
    return found


def opener_of(secret: str) -> Callable[[bytes], bytes | SealFault]:
    """A reader of sealed datagrams of a capture. Raises ConfigurationError."""
    seal = _trust()
    key = seal.shared_key(secret)
    return lambda data: seal.opened(data, key)


def _trust() -> Any:
    try:
        from jbi_pubsub.trust import seal  # cryptography is an extra
    except ImportError as exc:
        raise ConfigurationError(
            f"the key of a network needs the library cryptography: {exc}",
            hint="Install it: pip install 'jbi-pubsub[trust]'",
        ) from exc
    return seal


def _is_loopback(interface: str) -> bool:
    """Whether an interface is there, and leads nowhere else."""
    with suppress(OSError, struct.error), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(interface.encode()[:15], 0))
        return bool(_IFREQ.unpack(answer)[1] & _LOOPBACK)
    return False
