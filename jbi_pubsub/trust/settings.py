"""Signing and verifying as [tls] says; `cryptography` is imported when one of them is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.signing import Signer, Verifier
from jbi_pubsub.core.wire.tls import TlsIdentity

if TYPE_CHECKING:
    from types import ModuleType


def signer_of(config: Config) -> Signer | None:
    """Signer of this process; None without [tls] sign. Raises ConfigurationError."""
    if not config.tls.sign:
        return None
    identity, trust = _trust(config, "sign")
    signer: Signer = trust.CertificateSigner(identity.certificate, identity.key)
    return signer


def verifier_of(config: Config) -> Verifier | None:
    """Verifier of this process; None with [tls] verify off. Raises ConfigurationError."""
    if config.tls.verify == "off":
        return None
    identity, trust = _trust(config, "verify")
    verifier: Verifier = trust.CertificateVerifier(identity.ca, identity.revoked)
    return verifier


def _trust(config: Config, what: str) -> tuple[TlsIdentity, ModuleType]:
    """Our files, and the room that signs and verifies, imported when it is wanted."""
    identity = config.security().tls
    if identity is None:
        raise ConfigurationError(
            f"[tls] {what} needs certificate, key and ca: without certificates a signature is nobody's",
            hint="Set all three, for example with `jbi certs`",
            key=f"tls.{what}",
        )
    try:
        from jbi_pubsub.trust import signature  # cryptography is an extra, and takes 30 ms
    except ImportError as exc:
        raise ConfigurationError(
            f"[tls] {what} needs the library cryptography: {exc}",
            hint="Install it: pip install 'jbi-pubsub[trust]'",
            key=f"tls.{what}",
        ) from exc
    return identity, signature
