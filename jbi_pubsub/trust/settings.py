"""Signing and verifying as [tls] says; `cryptography` is imported when one of them is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.signing import Signer, Verifier
from jbi_pubsub.core.wire.tls import TlsIdentity

if TYPE_CHECKING:
    from types import ModuleType

    from jbi_pubsub.trust.members import MemberSeal


def signer_of(config: Config) -> Signer | None:
    """Signer of this process; None without [tls] sign. Raises ConfigurationError."""
    if not config.tls.sign:
        return None
    identity, trust = _trust(config, "tls", "sign")
    signer: Signer = trust.CertificateSigner(identity.certificate, identity.key)
    return signer


def verifier_of(config: Config) -> Verifier | None:
    """Verifier of this process; None with [tls] verify off. Raises ConfigurationError."""
    if config.tls.verify == "off":
        return None
    identity, trust = _trust(config, "tls", "verify")
    verifier: Verifier = trust.CertificateVerifier(identity.ca, identity.revoked)
    return verifier


def member_seal_of(config: Config, network: str, me: bytes) -> MemberSeal:
    """The seal of a network whose nodes give each other their keys; `me`: our id. Raises ConfigurationError."""
    identity, trust = _trust(config, f"network.{network}", "key")
    from jbi_pubsub.trust.members import MemberSeal

    signer = trust.CertificateSigner(identity.certificate, identity.key)
    return MemberSeal(me, signer, trust.CertificateVerifier(identity.ca, identity.revoked))


def _trust(config: Config, section: str, what: str) -> tuple[TlsIdentity, ModuleType]:
    """Our files, and the room that signs and verifies, imported when it is wanted."""
    identity = config.security().tls
    if identity is None:
        raise ConfigurationError(
            f"[{section}] {what} needs certificate, key and ca of [tls]: without certificates a signature is nobody's",
            hint="Set all three, for example with `jbi certs`",
            key=f"{section}.{what}",
        )
    from jbi_pubsub.trust import signature  # here: cryptography takes 30 ms

    return identity, signature
