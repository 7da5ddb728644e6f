"""Leased proxies as plain data: the client library turns a ServiceRef into a connection, no code travels."""

from __future__ import annotations

from typing import Final

import msgspec

PROTOCOL: Final = 14
"""Number of the wire protocol; both sides must say the same (rpyc itself has no handshake)."""


class ServiceRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Reference to a service: what a Jini proxy is, without the code.

    `exported` names the object behind the endpoint and `methods` the calls it answers; `endpoints` are host:port,
    tried in order; `certificate` is the SHA-256 (hex) of the key of the server's TLS certificate, "" without TLS.
    """

    service_id: str
    exported: str
    endpoints: tuple[str, ...]
    methods: tuple[str, ...] = ()
    certificate: str = ""
    protocol: int = PROTOCOL
