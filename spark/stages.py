"""Stages of a study that are not done twice: what each has written, and of what, kept in the result folder.

    out/stages/NAME.json   written last, when the stage's files are on the disk: their sizes, and a digest of all that
                           they were made from

An interrupted study goes on from there. What was made from anything else, or by another version, is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from jbi_pubsub.core.process import version
from jbi_pubsub.spark import report

FOLDER: Final = "stages"
LAYOUT: Final = "2"
"""Changes whenever a stage writes something else of the same input."""
_CHUNK: Final = 1 << 20


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    files: dict[str, int]
    facts: dict[str, Any] = {}


_decode: Final = msgspec.json.Decoder(_Mark).decode


def digest(parts: Iterable[bytes | Path]) -> str:
    """Digest of texts and of the content of files, in their order, and of this product's version."""
    whole = hashlib.blake2b(f"{LAYOUT} {version()}".encode(), digest_size=16)
    for part in parts:
        own = hashlib.blake2b(digest_size=16)
        if isinstance(part, Path):
            with part.open("rb") as opened:
                while chunk := opened.read(_CHUNK):
                    own.update(chunk)
        else:
            own.update(part)
        whole.update(own.digest())
    return whole.hexdigest()


@contextmanager
def timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the wall seconds that it takes to those of a stage."""
    begin = perf_counter()
    yield
    timings[stage] = timings.get(stage, 0.0) + perf_counter() - begin


class StudyStages:
    """The stages of one run, in a claimed result folder. `skipped`: those that were found finished."""

    def __init__(self, folder: Path, made_from: str, *, resume: bool) -> None:
        """`made_from` is the digest of the input, "" for one that can't be known. Without `resume` what is there of an
        earlier run is removed."""
        self._folder = folder
        self._made_from = made_from
        self._resume = resume
        self.skipped: list[str] = []
        self._reasons: list[str] = []
        if not resume:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)

    def finished(self, name: str) -> Mapping[str, Any] | None:
        """The facts of a stage that need not be done again, None for one that has to be."""
        if not self._resume:
            return None
        try:
            mark = _decode((self._folder / FOLDER / f"{name}.json").read_bytes())
        except FileNotFoundError:
            self._reasons.append(f"{name} was not finished")
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a ValidationError is one
            self._reasons.append(f"what is known of {name} can't be read")
            return None
        if not self._made_from or mark.digest != self._made_from:
            self._reasons.append(f"{name} was made from another input, or by another version")
            return None
        if mark.files != self._sizes(mark.files):
            self._reasons.append(f"files of {name} have changed")
            return None
        self.skipped.append(name)
        return mark.facts

    def finish(self, name: str, paths: Sequence[Path], facts: Mapping[str, Any] | None = None) -> None:
        """A stage has written these files, and folders of them. Raises OSError."""
        files = [file for path in paths for file in (sorted(path.rglob("*.parquet")) if path.is_dir() else [path])]
        for file in files:
            with file.open("rb") as opened:
                os.fsync(opened.fileno())  # the mark must not reach the disk before they do
        names = [file.relative_to(self._folder).as_posix() for file in files]
        mark = _Mark(self._made_from, self._sizes(names), dict(facts or {}))
        (self._folder / FOLDER).mkdir(exist_ok=True)
        report.write(self._folder / FOLDER / f"{name}.json", msgspec.json.encode(mark))

    def begin(self, name: str) -> None:
        """A stage is done anew: what it will overwrite is no longer finished."""
        (self._folder / FOLDER / f"{name}.json").unlink(missing_ok=True)

    def told(self) -> str:
        """Message on what was skipped, and what was not and why, for people; "" for a run that was not to resume."""
        if not self._resume:
            return ""
        skipped = f"skipped {', '.join(self.skipped)}: finished before" if self.skipped else "nothing to skip"
        return "; ".join([skipped, *self._reasons])

    def _sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Sizes of files, -1 of those that are not there or not here."""
        sizes = {}
        for name in names:
            path = (self._folder / name).resolve()
            inside = path.is_relative_to(self._folder)
            sizes[name] = path.stat().st_size if inside and path.is_file() else -1
        return sizes
