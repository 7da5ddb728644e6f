"""Saves of federations, on disk: a file a label, written whole or not at all.

A file is a digest and behind it, in msgpack, what it is a save of and the value (an execution, or a bridge between two)
as plain ones. Names of files are digests: what somebody calls a federation or a label never is a path. A file that is
damaged, of another version or of another object model is told in the log and left alone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from immutables import Map

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.values import decoded, decoder_of

log = logging.getLogger("jbi_pubsub.hla")

T = TypeVar("T")

VERSION: Final = 1
SUFFIX: Final = ".save"


class SaveFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a file."""

    version: int
    federation: str
    label: str
    model: str
    """Digest of the object model."""
    value: Any


def plain(value: Any) -> Any:
    """A value, or a part of it, as values that msgpack knows."""
    if isinstance(value, Map):
        return {"map": [[plain(key), plain(value[key])] for key in sorted(value)]}
    if isinstance(value, tuple):
        items = [plain(each) for each in value]
        return {"is": type(value).__name__, "of": items} if type(value) is not tuple else items
    return value


def built(value: Any, kinds: Mapping[str, type]) -> Any:
    """The value that `plain` was given. Raises KeyError, TypeError, ValueError for what it has not made."""
    if isinstance(value, list):
        return tuple(built(each, kinds) for each in value)
    if isinstance(value, dict):
        if "map" in value:
            return Map({built(key, kinds): built(each, kinds) for key, each in value["map"]})
        return kinds[value["is"]](*(built(each, kinds) for each in value["of"]))
    return value


class Saves(Generic[T]):
    """The saves of a folder. Without one nothing is kept. For one thread."""

    def __init__(self, folder: Path | None, kind: type[T], *parts: type) -> None:
        """Saves of values of a kind, made of values of other ones. Makes the folder. Raises StorageError."""
        self._folder = folder
        self._kind = kind
        self._kinds = {each.__name__: each for each in (kind, *parts)}
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StorageError(
                f"the folder for saves {folder} can't be made: {exc.strerror}", hint="Give another with --saves"
            ) from exc

    def put(self, federation: str, model: str, label: str, value: T) -> None:
        """Keep a save, in place of an older one of that label. Raises StorageError: the older one is still there."""
        if self._folder is None:
            return
        body = msgspec.msgpack.encode(SaveFile(VERSION, federation, label, model, plain(value)))
        path = _file(self._folder, federation, label)
        try:
            path.parent.mkdir(exist_ok=True)
            with written(path, mode=None) as file:
                file.write(hashlib.sha256(body).digest() + body)
        except OSError as exc:
            raise StorageError(
                f"the save {label!r} of {federation} can't be written: {exc.strerror}",
                hint=f"Make room in {self._folder}",
            ) from exc

    def drop(self, federation: str, label: str) -> None:
        """Forget a save, if there is one."""
        if self._folder is not None:
            _file(self._folder, federation, label).unlink(missing_ok=True)

    def of(self, federation: str, model: str) -> list[tuple[str, T]]:
        """Labels and values that were saved of a federation with that object model, the oldest first."""
        if self._folder is None:
            return []
        found = []
        folder = _file(self._folder, federation, "").parent
        for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda each: each.stat().st_mtime_ns):
            try:
                found.append(self._read(path, federation, model))
            except (OSError, StorageError, ValueError, TypeError, KeyError) as exc:
                log.error("the save %s is left out: %s", path, exc)
        return found

    def _read(self, path: Path, federation: str, model: str) -> tuple[str, T]:
        data = path.read_bytes()
        body = data[32:]
        if hashlib.sha256(body).digest() != data[:32]:
            raise StorageError("it is damaged", hint="Take it from a backup")
        kept = decoded(decoder_of(SaveFile), body, "save")
        if (kept.version, kept.federation, kept.model) != (VERSION, federation, model):
            raise StorageError(
                f"it is version {kept.version} of {kept.federation} with the object model {kept.model}",
                hint="Serve that federation with the modules that it was saved with",
            )
        value = built(kept.value, self._kinds)
        if not isinstance(value, self._kind):
            raise StorageError(f"it holds no {self._kind.__name__.lower()}", hint="Take it from a backup")
        return kept.label, value


def _file(folder: Path, federation: str, label: str) -> Path:
    within = hashlib.sha256(federation.encode()).hexdigest()[:32]
    return folder / within / (hashlib.sha256(label.encode()).hexdigest()[:32] + SUFFIX)
