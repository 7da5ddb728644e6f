"""Opening a schema: all that has to be worked out once, as plain data, in this process or in one that can't outlast its
limits.

Rules:
- A schema that has not been seen before is opened in a child process (core/child.py). What it says is remembered by the
  bundle's digest, on disk as well where there is a folder for it: a seen one costs nothing. So are refusals, but not
  what says nothing of the schema: a child that was killed from outside, no place, no time left for who asks.
- What is left to do here is to compile the documents with libxml2 for validation, without Python's lock; the child has
  done and measured just that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.codegen.folder import SchemaFolder
from jbi_pubsub.codegen.model import TypeModel, one_line
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.child import LIMITS, PASSING, PATIENCE, CallerAllowance, Children, Limits
from jbi_pubsub.core.errors import ChildError, ErrorReport, JbiError, SchemaError, rebuild, report
from jbi_pubsub.core.info_object import SchemaBundle, TypeName, has_zeros, is_name
from jbi_pubsub.core.values import decoder_of

MAX_NAME_CHARS: Final = 500
"""Characters of a type's name and version together; a namespace and a local name need about 100."""

MAX_COMPILE_SECONDS: Final = 2.0
"""Processor time for libxml2 to compile a schema: each process that uses it does it again. The largest schemas
looked at take 0.3."""

MAX_SEEN_BYTES: Final = 32 << 20
"""Bytes of what is remembered of schemas that were opened; that of the largest ones looked at has 1."""

MAX_REFUSED: Final = 1_000
"""Schemas that are remembered as refused."""

REFUSED_SECONDS: Final = 600.0
"""For so long a schema that ran into a limit is refused without another try."""

TRIES: Final = 2
"""Children for one schema, where the first one is ended from outside."""

OUR_FAULT: Final = "This is a fault of jbi-pubsub or a library, not of the schema: please report it, with the schema"

log = logging.getLogger("jbi_pubsub.codegen")

_OUR_ERRORS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError)
"""Errors of code that meets something not thought of: no word on a schema that is valid."""

_WORK: Final = "jbi_pubsub.codegen.opening:work"


class OpenedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of opening a schema. `documents` are the bundle's, made ready for libxml2, `main` names one of them,
    `names` says what they were called. `digest` is of the meaning."""

    model: TypeModel
    digest: str
    main: str
    documents: dict[str, bytes]
    names: dict[str, str]


def opened(bundle: SchemaBundle, most: float = math.inf) -> OpenedSchema:
    """Open a schema in this process, without limits but `most` seconds to compile it. Raises SchemaError."""
    from jbi_pubsub.codegen.bundle import (
        circle,
        normalize,
        several,
    )  # the libraries below are only needed for schemas not seen before
    from jbi_pubsub.codegen.compiled import validator
    from jbi_pubsub.codegen.passes import build
    from jbi_pubsub.codegen.schema import load, written
    from jbi_pubsub.codegen.walk import read_schema

    sources = normalize(bundle)
    documents = written(sources)
    begun = time.process_time()
    try:
        validator(sources.main, documents, sources.names)  # first: the reader leaves the check of what is variant to it
    except SchemaError as exc:
        fault = exc
        try:
            with contextlib.suppress(*_OUR_ERRORS):
                load(sources, check=True)  # where it objects as well its words are shorter, and name the place better
        except SchemaError as better:
            fault = better
        told = _told_circle(fault, circle(sources, str(fault.facts.get("document", ""))))
        raise _told_several(told, *several(sources)) from None
    seconds = time.process_time() - begun
    if seconds > most:
        raise SchemaError(
            f"schema {sources.names[sources.main]} takes {seconds:.1f} s to compile, the limit is {most:g} s",
            hint="Split the type, or leave out what the metadata do not use",
            limit=most,
            amount=seconds,
        )
    try:
        draft = read_schema(sources)
    except _OUR_ERRORS as exc:
        with contextlib.suppress(*_OUR_ERRORS):
            load(sources, check=True)  # libxml2 takes some schemas that are invalid, of which the reader knows nothing
        what = one_line(f"{type(exc).__name__}: {exc}")
        raise SchemaError(f"schema {sources.names[sources.main]} can't be read here: {what}", hint=OUR_FAULT) from exc
    name = checked_name(bundle.type.name or draft.marker or draft.root, bundle.type.version)
    return OpenedSchema(build(draft, name), sources.digest, sources.main, documents, dict(sources.names))


def _told_circle(exc: SchemaError, chain: Sequence[str]) -> SchemaError:
    """The same error, with the circle in which the document that it is about refers to itself, if it does: legal in
    itself, and what most often makes one that is not."""
    if not chain:
        return exc
    told = f"{exc.message}; its documents refer to each other in a circle: {' -> '.join(chain)}"
    hint = "Break the circle: move what both sides need into a document that refers to neither"
    return SchemaError(told, hint=hint, **{**exc.facts, "chain": " -> ".join(chain)})


def _told_several(exc: SchemaError, namespace: str, documents: Sequence[str]) -> SchemaError:
    """The same error, with the documents that one namespace is imported from: what stands in the second is unknown."""
    if not documents or not any(word in exc.message for word in ("unknown", "does not resolve")):
        return exc
    told = f"{exc.message}; namespace {namespace} is imported from {', '.join(documents)}, of which the first counts"
    hint = "Import one document that includes the others (xs:include)"
    return SchemaError(told, hint=hint, **exc.facts)


def checked_name(name: str, version: str) -> TypeName:
    """A type's name and version. Raises SchemaError."""
    if not version or not is_name(name + version) or len(name) + len(version) > MAX_NAME_CHARS:
        raise SchemaError(
            f"{name[:40]!r} {version[:20]!r} is not a name and version of a type",
            hint=f"Use printable characters, {MAX_NAME_CHARS} at most; leave out the version for 1.0",
        )
    if has_zeros(version):
        raise SchemaError(f"version {version[:20]!r} begins a number with 0", hint="1.0, not 01.0")
    return TypeName(name, version)


def work(data: bytes) -> bytes:
    """`opened` for a child process: a bundle as MessagePack in, an Opened out. Raises SchemaError."""
    return msgspec.msgpack.encode(opened(decoder_of(SchemaBundle).decode(data), MAX_COMPILE_SECONDS))


class _SchemaMemory:
    """Memory of schemas by the digest of their bundles, bounded in bytes. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, bytes] = {}
        self._size = 0
        self._refused: Cache[str, tuple[ErrorReport, float]] = Cache(MAX_REFUSED)

    def find(self, key: str, now: float) -> bytes | ErrorReport | None:
        """Find what was remembered."""
        with self._lock:
            if key in self._seen:
                self._seen[key] = self._seen.pop(key)  # used last
                return self._seen[key]
            refusal, until = self._refused.get(key, (None, 0.0))
            return refusal if now < until else None

    def keep(self, key: str, data: bytes) -> None:
        """Remember what opening gave; the one that was not used for longest goes for it."""
        with self._lock:
            self._size += len(data) - len(self._seen.pop(key, b""))
            self._seen[key] = data
            while self._size > MAX_SEEN_BYTES:
                self._size -= len(self._seen.pop(next(iter(self._seen))))

    def refuse(self, key: str, refusal: ErrorReport, until: float) -> None:
        """Remember that it is refused, until then."""
        with self._lock:
            self._refused[key] = refusal, until


class Opener:
    """Opens the schemas of strangers. Several threads may use it at once."""

    def __init__(self, *, limits: Limits = LIMITS, children: Children | None = None) -> None:
        self._limits = limits
        self._children = children or Children(allowance=CallerAllowance())
        self._memory = _SchemaMemory()
        self._lock = threading.Lock()
        self._coming: dict[str, Future[bytes]] = {}

    def open(self, bundle: SchemaBundle, *, cache_dir: Path | None = None, caller: str = "") -> OpenedSchema:
        """Open `bundle`. `caller` names who asks, for a fair share of time; `cache_dir` keeps it on disk.

        Raises SchemaError; among others if it takes more than its limits. ChildError: not now, try again.
        """
        data = msgspec.msgpack.encode(bundle)
        key = _key(data)
        folder = None if cache_dir is None else SchemaFolder(cache_dir)
        found = self._memory.find(key, time.monotonic())
        if isinstance(found, ErrorReport):
            raise rebuild(found)
        if found is None:
            found = self._once(key, data, folder, caller)
        elif folder is not None and not folder.has(key):
            folder.find(key, functools.partial(bytes, found), _is_opened)
        return decoder_of(OpenedSchema).decode(found)

    def _once(self, key: str, data: bytes, folder: SchemaFolder | None, caller: str) -> bytes:
        """Have a schema opened, by one of several threads that come with it."""
        while True:
            with self._lock:
                coming = self._coming.get(key)
                if coming is None:
                    own = self._coming[key] = Future[bytes]()
                    break
            try:
                return coming.result(PATIENCE + TRIES * self._limits.deadline)
            except FutureTimeoutError:
                raise _not_now("it is still being opened", "busy") from None
            except ChildError:
                continue  # the other's time or place, not ours
        try:
            found = self._make(key, data, folder, caller)
            own.set_result(found)
        except BaseException as exc:
            own.set_exception(exc)
            raise
        finally:
            with self._lock:
                del self._coming[key]
        return found

    def _make(self, key: str, data: bytes, folder: SchemaFolder | None, caller: str) -> bytes:
        def run() -> bytes:
            return self._run(data, caller)

        try:
            found = run() if folder is None else folder.find(key, run, _is_opened)
        except ChildError as exc:
            if exc.facts["cause"] in PASSING:
                raise _not_now(exc.message, str(exc.facts["cause"]), exc.hint) from None
            refusal = _refusal(exc)
            self._memory.refuse(key, report(refusal), time.monotonic() + REFUSED_SECONDS)
            raise refusal from None
        except JbiError as exc:
            self._memory.refuse(key, report(exc), time.monotonic() + REFUSED_SECONDS)
            raise
        self._memory.keep(key, found)
        return found

    def _run(self, data: bytes, caller: str) -> bytes:
        for _ in range(TRIES - 1):
            try:
                return self._children.run(_WORK, data, limits=self._limits, caller=caller)
            except ChildError as exc:
                if exc.facts["cause"] != "outside":
                    raise
                log.warning("opening a schema %s: trying again", exc.message)
        return self._children.run(_WORK, data, limits=self._limits, caller=caller)


OPENER: Final = Opener()
"""That of this process: what one repository has seen costs the others nothing."""


def _not_now(why: str, cause: str, hint: str = "") -> ChildError:
    return ChildError(f"the schema has to wait: {why}", hint=hint or "Try again", cause=cause)


def _refusal(exc: ChildError) -> SchemaError:
    """A limit that a schema ran into, in words for who wrote the schema; or our own fault."""
    cause = str(exc.facts["cause"])
    hint = "Groups, unions or types that refer to each other multiply: split the type, or leave out what is not used"
    if cause == "exception":
        hint = OUR_FAULT
    return SchemaError(f"opening the schema {exc.message}", hint=hint, cause=cause)


def _is_opened(data: bytes) -> bool:
    try:
        decoder_of(OpenedSchema).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _key(data: bytes) -> str:
    hashed = hashlib.blake2b(_code(), digest_size=16)
    hashed.update(data)
    return hashed.hexdigest()


@functools.cache
def _code() -> bytes:
    """Digest of what opens schemas: another release, or another one of a library, may make something else of them."""
    hashed = hashlib.blake2b(repr((etree.LXML_VERSION, etree.LIBXML_VERSION)).encode(), digest_size=16)
    found = map(importlib.util.find_spec, ("jbi_pubsub", "xmlschema"))  # not imported: that takes as long as all else
    releases = [Path(each.origin) for each in found if each is not None and each.origin is not None]
    for path in [*releases, *sorted(Path(__file__).parent.glob("*.py"))]:
        hashed.update(path.read_bytes())
    return hashed.digest()
