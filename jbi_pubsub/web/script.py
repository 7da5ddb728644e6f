"""Scripts of the test client: panels with their attributes as a TOML file says them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jbi_pubsub.capi import PublisherSequence, QuerySequence, SubscriberSequence, bindings
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.toml import TomlDocument, TomlError, typed

PUBLISHERS_MOST: Final = 64
"""Publisher sequences of a panel: each has a thread while it publishes."""
COUNT_MOST: Final = 1_000_000
"""Objects of one of them at a start."""
FILE_MOST: Final = 1 << 20
"""Bytes of a script, and of a file with metadata."""

Ms = Annotated[int, msgspec.Meta(ge=0, le=bindings.YEAR_MS)]
Version = Annotated[str, msgspec.Meta(max_length=40)]


class _ScriptTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of a script."""


class ConnectionPanel(_ScriptTable, frozen=True):
    """`[connection]`: what others see, which node (delegate), any without, to be found within `timeout_ms`, and who
    connects."""

    name: str = "test client"
    delegate: Annotated[tuple[str, ...], msgspec.Meta(max_length=2)] = ()
    timeout_ms: Ms | None = None
    user: str | None = None
    password: str | None = None
    role: str | None = None

    def __repr__(self) -> str:
        return f"<Connecting {self.name!r}>"


class _Panel(_ScriptTable, frozen=True):
    """Table that all panels have: attributes that are None are not set, and the platform's defaults hold."""

    type: str
    version: Version = "1.0"
    name: str = ""
    """Name of the panel in counters and log; "" takes one by its kind and number."""
    well_formed: bool | None = None
    valid: bool | None = None

    def set(self, sequence: Any) -> None:
        """Set its attributes. Raises CapiException."""
        if self.well_formed is not None or self.valid is not None:
            sequence.setValidationAttribute(self.well_formed is not False, self.valid is not False)


class PublisherPanel(_Panel, frozen=True):
    """`[[publisher]]`: so many sequences, which publish so many objects each, one every `delay_ms`."""

    metadata: str | None = None
    metadata_file: str = ""
    payload: str = ""
    payload_file: str = ""
    publishers: Annotated[int, msgspec.Meta(ge=1, le=PUBLISHERS_MOST)] = 1
    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MOST)] = 1
    delay_ms: Ms = 0
    reliable: bool | None = None
    expiration_ms: Ms | None = None
    persistent: bool | None = None
    compress: bool | None = None
    local: bool | None = None
    in_order: bool | None = None
    invariants: str = ""

    def set(self, sequence: PublisherSequence) -> None:
        """See _Panel."""
        super().set(sequence)
        if self.reliable is not None or self.expiration_ms is not None:
            sequence.setReliableDeliveryAttribute(self.reliable is not False, self.expiration_ms or 0)
        if self.persistent is not None:
            sequence.setPersistenceAttribute(self.persistent)
        if self.compress is not None:
            sequence.setCompressionAttribute(self.compress)
        if self.local is not None:
            sequence.setLocalAttribute(self.local)
        if self.in_order is not None:
            sequence.setOrderAttribute(self.in_order)
        if self.invariants:
            sequence.setInvariantsAttribute(self.invariants)


class SubscriberPanel(_Panel, frozen=True):
    """`[[subscriber]]`. `expect`: so many objects come, or the script has failed."""

    predicate: str = ""
    prefixes: dict[str, str] = {}
    local: bool | None = None
    own: bool | None = None
    in_order: bool | None = None
    durable: str = ""
    latest_by: str = ""
    expect: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def set(self, sequence: SubscriberSequence) -> None:
        """See _Panel."""
        super().set(sequence)
        if self.local is not None:
            sequence.setLocalAttribute(self.local)
        if self.own is not None:
            sequence.setOwnPublicationsAttribute(self.own)
        if self.in_order is not None:
            sequence.setOrderAttribute(self.in_order)
        if self.durable:
            sequence.setDurableAttribute(self.durable)
        _set_asking(sequence, self)


class QueryPanel(_Panel, frozen=True):
    """`[[query]]`, of the node's archive, or of all that can be found within `distributed_ms`. `expect`: so many
    results, or the script has failed; `limit`: no more than so many are taken."""

    predicate: str = ""
    prefixes: dict[str, str] = {}
    latest_by: str = ""
    distributed_ms: Ms = 0
    limit: Annotated[int, msgspec.Meta(ge=1)] = COUNT_MOST
    expect: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def set(self, sequence: QuerySequence) -> None:
        """See _Panel."""
        super().set(sequence)
        _set_asking(sequence, self)


Panel = PublisherPanel | SubscriberPanel | QueryPanel
ROLES: Final[Mapping[type[Any], str]] = {
    PublisherPanel: "publisher",
    SubscriberPanel: "subscriber",
    QueryPanel: "query",
}


class Script(_ScriptTable, frozen=True):
    """A whole file. `timeout`: seconds for all of it; `quiet_ms`: for how long nothing has come where nothing is
    expected, or more than was expected might."""

    connection: ConnectionPanel = ConnectionPanel()
    publisher: tuple[PublisherPanel, ...] = ()
    subscriber: tuple[SubscriberPanel, ...] = ()
    query: tuple[QueryPanel, ...] = ()
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    quiet_ms: Ms = 500


def _set_asking(sequence: SubscriberSequence | QuerySequence, panel: SubscriberPanel | QueryPanel) -> None:
    if panel.prefixes:
        sequence.setNamespacePrefixes(panel.prefixes)
    if panel.latest_by:
        sequence.setLatestAttribute(panel.latest_by)
    if panel.predicate:
        sequence.setSequencePredicate(
            f"<predicate><predicateName/><predicateType>XPath</predicateType><predicateInstance>"
            f"{escape(panel.predicate)}</predicateInstance></predicate>"
        )


def read(path: Path) -> Script:
    """A script, with what its files say; their paths are from its folder. Raises ConfigurationError, which names file
    and key."""
    try:
        script = typed(TomlDocument(_text(path)), Script)
    except TomlError as exc:
        raise ConfigurationError(f"script {exc.told(path)}", hint=exc.hint or "See docs/client.md for one") from exc
    names = [each.name for each in (*script.publisher, *script.subscriber, *script.query) if each.name]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"script {path}: two panels have one name", hint="Names are for counters and the log")
    if not (script.publisher or script.subscriber or script.query):
        raise ConfigurationError(f"script {path}: there is no panel", hint="[[publisher]], [[subscriber]] or [[query]]")
    return msgspec.structs.replace(script, publisher=tuple(_resolved(path, each) for each in script.publisher))


def _resolved(path: Path, panel: PublisherPanel) -> PublisherPanel:
    """With metadata from their file, and a payload's file that is there."""
    for key in ("metadata", "payload"):
        if getattr(panel, key) and getattr(panel, f"{key}_file"):
            raise ConfigurationError(f"script {path}: {key} and {key}_file are given", hint="One of them will do")
    given: dict[str, Any] = {}
    if panel.metadata_file:
        given["metadata"] = _text(path.parent / panel.metadata_file)
    if panel.payload_file:
        file = path.parent / panel.payload_file
        if not file.is_file():
            raise ConfigurationError(f"script {path}: payload_file {file} is not a file")
        given["payload_file"] = str(file)
    return msgspec.structs.replace(panel, **given)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_MOST + 1)
        if len(data) > FILE_MOST:
            raise ConfigurationError(f"{path} has more than {FILE_MOST} bytes")
        return data.decode()
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror or exc}", hint="Paths are from the script's folder") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{path} is not text in UTF-8: {exc}"[:300]) from exc
