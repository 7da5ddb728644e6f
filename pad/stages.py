"""What stands in a delegate's pipeline beside the stages that every delegate has, made from the configuration.

The one place that knows which optional rooms there are; the rest of pad knows them as Protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core.access import AccessPolicy, AllowAll
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.signing import Signer, Verifier
from jbi_pubsub.core.wire.tls import TlsIdentity
from jbi_pubsub.pad.quality import Quality
from jbi_pubsub.pad.registration import Registration
from jbi_pubsub.pad.shelf import Shelves
from jbi_pubsub.pad.signed import SignatureCheck

if TYPE_CHECKING:
    from types import ModuleType

PEER: Final = "peer"
"""What a peer publisher is called where delegates are called "name@location"."""


@dataclass(frozen=True)
class Stages:
    """`room`: asked in turn before an object goes on, in how many seconds there may be room for it (0.0: there is), or
    raises BackPressureError: there will be none. None of them waits, nor counts what it is asked about: it is asked
    again until all have room, for as long as an object waits for memory ([queue] block_seconds).

    `shelves`: where newcomers catch up; `access`: who may do what, asked when contracts open; `signatures`: whether
    objects hold; `signer`: of what is said of payloads that were cut; `quality`: who is served first, and how."""

    shelves: Shelves
    room: tuple[Callable[[Registration, Parcel], float], ...] = ()
    access: AccessPolicy = field(default_factory=AllowAll)
    signatures: SignatureCheck | None = None
    signer: Signer | None = None
    quality: Quality | None = None


def stages_of(config: Config, component: str = PEER, access: AccessPolicy | None = None) -> Stages:
    """The stages that the configuration asks for, of a delegate ("name@location") or a peer publisher, which does not
    verify what it has signed itself. `access` instead of what [policy] names. Raises ConfigurationError or
    PolicyError."""
    verifier = None if component == PEER else verifier_of(config)
    signer = signer_of(config)
    source = None
    if access is None and config.policy.file:
        from jbi_pubsub.policy.manager import access_of  # here: what is off is not imported

        access = source = access_of(config, component)
    quality: Quality | None = None
    if config.qos.mode == "on":
        from jbi_pubsub.qos.enforcement import Enforcement  # here, for the same reason

        quality = Enforcement(config, component, source)
    return Stages(
        Shelves(config.pad.keep_seconds, config.pad.keep_bytes),
        access=access or AllowAll(),
        signatures=SignatureCheck(verifier, require=config.tls.verify == "require") if verifier is not None else None,
        signer=signer,
        quality=quality,
    )


def signer_of(config: Config) -> Signer | None:
    """Who signs for this process; None without [tls] sign. Raises ConfigurationError."""
    if not config.tls.sign:
        return None
    identity, trust = _trust(config, "sign")
    signer: Signer = trust.CertificateSigner(identity.certificate, identity.key)
    return signer


def verifier_of(config: Config) -> Verifier | None:
    """Who verifies for this process; None with [tls] verify off. Raises ConfigurationError."""
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
