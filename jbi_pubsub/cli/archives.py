"""Archives as commands reach them: those of delegates, or one in a folder that no process has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.past.store_protocol import Keeping
from jbi_pubsub.protocol.entries import ANSWERING_TYPES, ArchiveEntry
from jbi_pubsub.protocol.services import HISTORY, HistoryProxy, fetch_status

from .clients import SINCE, UNTIL, VERSION
from .community import at_address, by_address, calling, listed
from .options import FOLDER, PREDICATE, Arguments, option, repeated
from .status import archive_row

CALL_SECONDS: Final = 300.0
"""For a slice to be deleted, or objects to be taken in."""


class ArchiveServer(NamedTuple):
    """An archive of a server."""

    ref: ServiceRef
    name: str
    """Where it is reached."""
    item: ServiceItem | None = None
    """As the lookup services have it."""

    def calls(self, config: Config) -> AbstractContextManager[HistoryProxy]:
        """To ask it. Raises UnknownUidError for a server without one."""
        missing = UnknownUidError(f"{self.name} has no archive", hint="`jbi archive status` lists those there are")
        return calling(HistoryProxy, self.ref, config, HISTORY, missing)

    def status(self, config: Config) -> dict[str, Any]:
        """The server's own word on its archive; `error` where it does not say."""
        try:
            facts = fetch_status(self.ref, config.security(), timeout=config.lookup.timeout).get("archive")
        except JbiError as exc:
            return {"error": f"no answer: {exc.message}"}
        if facts is None:
            return {"error": "it has no archive"}
        try:
            archive_row(self.name, facts)
            return {**dict(facts), "synced": int(facts["synced"]), "indexed": int(facts["indexed"])}
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            return {"error": f"its archive gives facts that this version does not understand: {exc}"}


class ServedArchive(Arguments):
    """Archives that are in use."""

    at: str | None = option("Archive of that server; default: all archives found.", metavar="HOST:PORT")

    def places(self, config: Config) -> list[ArchiveServer]:
        """The one at an address, or all that the lookup services know. Raises UnknownUidError where there is none."""
        if self.at:
            ref = at_address(self.at)
            return [ArchiveServer(ref, ref.endpoints[0])]
        return found(config)

    def place(self, config: Config) -> ArchiveServer:
        """The only one. Raises ConfigurationError."""
        places = self.places(config)
        if len(places) > 1:
            raise ConfigurationError("there are several archives", hint=f"--at one of {names(places)}")
        return places[0]


class RestingArchive(Arguments):
    """An archive at rest."""

    folder: Path | None = option("Folder of an archive that no process has open.", type=FOLDER)


class AnyArchive(RestingArchive, ServedArchive):
    """An archive that is in use, or one at rest."""

    def resting(self) -> Path | None:
        """Folder of one at rest; None: it is in use. Raises ConfigurationError."""
        if self.at and self.folder is not None:
            raise ConfigurationError("--at asks a server, --folder opens a folder", hint="Give one of them")
        return self.folder


class ObjectSelection(Arguments):
    """Objects of an archive by their conditions."""

    type_name: str = option("Type of the objects; the last part of its name is enough.", "--type", default="")
    version: str = VERSION
    predicate: str = PREDICATE
    namespaces: tuple[str, ...] = repeated("Prefix in the XPath; repeatable.", "--namespace", metavar="PREFIX=URI")
    since: str | None = SINCE
    until: str | None = UNTIL


def found(config: Config) -> list[ArchiveServer]:
    """All that the lookup services know. Raises UnknownUidError where there is none."""
    items = listed(config, ServiceTemplate(entries=(ArchiveEntry().rep(),)), "archives")
    items = [item for item in items if ANSWERING_TYPES.isdisjoint(item.types)]  # who has one elsewhere, or none
    if not items:
        raise UnknownUidError(
            "the lookup services know of no archive",
            hint="Start a delegate with one: jbi pad NAME LOCATION --archive FOLDER; or name a folder: --folder",
        )
    places = (ArchiveServer(item.proxy, ", ".join(item.proxy.endpoints), item) for item in by_address(items))
    return sorted(places, key=lambda place: place.name)


def names(places: list[ArchiveServer]) -> str:
    """The first of them, to choose from."""
    return ", ".join(place.name for place in places[:10])


@contextmanager
def opened(config: Config, folder: Path, *, is_made: bool = False) -> Iterator[Keeping]:
    """The archive in a folder, in this process; `is_made`: also where there is none yet. Raises StorageError while
    another one has it."""
    from jbi_pubsub.archive.engine import Archive  # here: the other commands start faster without
    from jbi_pubsub.archive.folder import archive_of

    if not is_made:
        archive_of(folder)
    section = msgspec.structs.replace(config.archive, folder=str(folder), workers=0)
    with closing(Archive(msgspec.structs.replace(config, archive=section))) as archive:
        yield archive
