"""Stages in a delegate's pipeline beside the stages that every delegate has, made from the configuration.

The one place that knows which optional rooms there are; the rest of pad knows them as Protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core import extras, plugins
from jbi_pubsub.core.access import AccessPolicy, AllowAll
from jbi_pubsub.core.config import ClientSection, Config
from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.signing import Signer
from jbi_pubsub.core.wire.endpoint import Login
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.matching.signatures import SignatureCheck
from jbi_pubsub.pad.model.quality import Quality, Shaping
from jbi_pubsub.policy.settings import managed_access_of
from jbi_pubsub.trust.settings import signer_of, verifier_of

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.archiving import Archiving
    from jbi_pubsub.pad.past.store_protocol import Keeping
    from jbi_pubsub.protocol.remote import RemoteArchive

NO_LIMITS: Final = ClientSection()
PEER: Final = "peer"
"""Name of a peer publisher where delegates are called "name@location"."""


@dataclass(frozen=True)
class Stages:
    """`room`: asked in turn before an object goes on, in how many seconds there may be room for it (0.0: there is), or
    raises BackPressureError, OversizeError or StorageError: there will be none. None of them waits, nor counts what it
    is asked about: it is asked again until all have room, for as long as an object waits for memory ([queue]
    block_seconds).

    `buffers`: where late joiners catch up; `access`: who may do what, asked when contracts open; `signatures`: whether
    objects hold; `signer`: of what is said of payloads that were cut; `quality`: who is served first, and how;
    `archive`: where objects are kept, and who closes it; `remote`: who answers queries in its place, from another
    platform."""

    buffers: RecentBuffers
    room: tuple[Callable[[Registration, Parcel], float], ...] = ()
    access: AccessPolicy = field(default_factory=AllowAll)
    signatures: SignatureCheck | None = None
    signer: Signer | None = None
    quality: Quality | None = None
    archive: Archiving | None = None
    remote: RemoteArchive | None = None

    @property
    def shaper(self) -> Shaping | None:
        """The shaper of payloads, with quality of service."""
        return self.quality.shaper if self.quality is not None else None


def stages_of(
    config: Config, component: str = PEER, access: AccessPolicy | None = None, own: Login | None = None
) -> Stages:
    """The stages that the configuration asks for, of a delegate ("name@location") or a peer publisher, which does not
    verify what it has signed itself. `access` instead of what [policy] names; `own`: how other parts of this process
    log in there. Raises ConfigurationError, PolicyError or StorageError."""
    verifier = None if component == PEER else verifier_of(config)
    signer = signer_of(config)
    source = None
    if access is None:
        wanted = {"auto": None, "on": True, "off": False}[config.qos.mode]
        access, source = managed_access_of(config, component, own, policies=wanted)
    quality: Quality | None = None
    if config.qos.mode == "on" or (config.qos.mode == "auto" and source is not None and source.reads_policies):
        from jbi_pubsub.qos.enforcement import Enforcement  # here, for the same reason

        quality = Enforcement(config, component, source)
    buffers = RecentBuffers(config.pad.keep_seconds, config.pad.keep_bytes)
    archive = _archive_of(config, buffers) if config.archive.folder else None
    if archive is not None and source is not None:
        source.follow_keep(archive.follow)
    return Stages(
        buffers,
        room=_limits_of(config.client),
        access=access or AllowAll(),
        signatures=SignatureCheck(verifier, require=config.tls.verify == "require") if verifier is not None else None,
        signer=signer,
        quality=quality,
        archive=archive,
    )


def _limits_of(client: ClientSection) -> tuple[Callable[[Registration, Parcel], float], ...]:
    """The stage that refuses objects larger than this node wants; none without limits of its own."""
    metadata, payload = client.max_metadata, client.max_payload
    if (metadata, payload) == (NO_LIMITS.max_metadata, NO_LIMITS.max_payload):
        return ()

    def limit(_: Registration, parcel: Parcel) -> float:
        head = parcel.head
        for what, size, most in (("metadata", len(head.metadata), metadata), ("payload", head.payload_length, payload)):
            if size > most:
                raise OversizeError(f"{what} has {size} bytes, the limit is {most}", size=size, limit=most)
        return 0.0

    return (limit,)


def _archive_of(config: Config, buffers: RecentBuffers) -> Archiving:
    """Raises ConfigurationError without the libraries, StorageError for a folder that is another's, or damaged."""
    keeping = _keeping_of(config)
    from jbi_pubsub.pad.past.archiving import Archiving
    from jbi_pubsub.pad.past.blobs import LargePayloads

    try:
        folder = config.archive.folder
        beside = None if "://" in folder else LargePayloads(Path(folder), config.archive.max_payload_bytes)
        return Archiving(keeping, buffers, beside=beside)
    except BaseException:
        keeping.close()
        raise


def _keeping_of(config: Config) -> Keeping:
    found = plugins.named("store", config.archive.folder, key="archive.folder", does="keeps archives")
    if found is not None:
        made, address = found
        theirs: Keeping = made(address)
        return theirs
    extras.need("archive", "[archive] folder", key="archive.folder")
    from jbi_pubsub.archive.engine import Archive  # here: what is off is not imported

    keeping: Keeping = Archive(config)
    return keeping
