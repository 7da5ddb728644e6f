"""Whether a network may go without a key, and its seal when it has one."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.core.sealing import FLAGS_AT, DatagramSealing, SealFault, Unsealed
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, hash_of, packed, read
from jbi_pubsub.trust.settings import member_seal_of

_SIOCGIFFLAGS: Final = 0x8913
_IFREQ: Final = struct.Struct("16sH14x")
_LOOPBACK: Final = 8
"""See netdevice(7)."""
_KIND_AT: Final = 3
_KEY_IN_CLEAR: Final = bytes((DatagramKind.KEY, DatagramMode.UNRELIABLE))
"""Kind and flags."""


def check_open(name: str, network: NetworkSection, *, insecure: bool) -> None:
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
    from jbi_pubsub.trust import seal  # here: cryptography takes 30 ms

    found: DatagramSealing = seal.DatagramSeal(seal.shared_key(secret), me)
    return found


class MemberSealing:
    """The seal of a network whose nodes give each other their keys: in datagrams in clear, which no exchange reads."""

    def __init__(self, config: Config, network: str, me: bytes) -> None:
        """By certificates; `me`: our id. Raises ConfigurationError."""
        self._member, self._me = member_seal_of(config, network, me), me
        self._said = 0
        self.seal = self._member.seal

    def open(self, data: bytes) -> bytes | SealFault | None:
        """See DatagramSealing."""
        if data[_KIND_AT : FLAGS_AT + 1] != _KEY_IN_CLEAR:
            return self._member.open(data)
        found = read(data)
        return SealFault.REFUSED if isinstance(found, str) else self._member.heard(bytes(found.data))

    def outgoing(self) -> bytes | None:
        """See DatagramSealing."""
        body = self._member.outgoing()
        if body is None:
            return None
        self._said += 1
        return packed(
            Datagram(
                DatagramKind.KEY, DatagramMode.UNRELIABLE, self._me, hash_of(body, 0), body,
                sender=self._me[:4], number=self._said,
            )
        )  # fmt: skip


def opener_of(secret: str) -> Callable[[bytes], bytes | SealFault]:
    """A reader of sealed datagrams of a capture. Raises ConfigurationError."""
    from jbi_pubsub.trust import seal  # here: cryptography takes 30 ms

    key = seal.shared_key(secret)
    return lambda data: seal.opened(data, key)


def _is_loopback(interface: str) -> bool:
    """Whether an interface is there, and leads nowhere else."""
    with suppress(OSError, struct.error), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(interface.encode()[:15], 0))
        return bool(_IFREQ.unpack(answer)[1] & _LOOPBACK)
    return False
