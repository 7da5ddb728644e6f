"""Signing and verifying as [tls] says; `cryptography`, which takes 30 ms, is imported when one of them is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.signing import Signer, Verifier
from jbi_pubsub.core.wire.tls import TlsIdentity

if TYPE_CHECKING:
    from jbi_pubsub.trust.members import MemberSeal


def signer_of(config: Config) -> Signer | None:
    """Signer of this process; None without [tls] sign. Raises ConfigurationError."""
    if not config.tls.sign:
        return None
    identity = _identity(config, "tls", "sign")
    from jbi_pubsub.trust.signature import CertificateSigner

    return CertificateSigner(identity.certificate, identity.key)


def verifier_of(config: Config) -> Verifier | None:
    """Verifier of this process; None with [tls] verify off. Raises ConfigurationError."""
    if config.tls.verify == "off":
        return None
    identity = _identity(config, "tls", "verify")
    from jbi_pubsub.trust.signature import CertificateVerifier

    return CertificateVerifier(identity.ca, identity.revoked)


def member_seal_of(config: Config, network: str, me: bytes) -> MemberSeal:
    """The seal of a network whose nodes give each other their keys; `me`: our id. Raises ConfigurationError."""
    identity = _identity(config, f"network.{network}", "key")
    from jbi_pubsub.trust.members import MemberSeal
    from jbi_pubsub.trust.signature import CertificateSigner, CertificateVerifier

    signer = CertificateSigner(identity.certificate, identity.key)
    return MemberSeal(me, signer, CertificateVerifier(identity.ca, identity.revoked), rate=config.network[network].rate)


def _identity(config: Config, section: str, what: str) -> TlsIdentity:
    """Our files. Raises ConfigurationError."""
    identity = config.security().tls
    if identity is None:
        raise ConfigurationError(
            f"[{section}] {what} needs certificate, key and ca of [tls]: without certificates a signature is nobody's",
            hint="Set all three, for example with `jbi certs`",
            key=f"{section}.{what}",
        )
    return identity
