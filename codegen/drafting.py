"""Drafting a marks file: for schemas that carry no marks, from the schema alone or from sample documents.

From samples, what has the same values in all of them is proposed as invariant: the largest subtrees in which nothing
that the schema declares changes. It is a draft for people: samples of one publisher's session say more than samples of
many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import msgspec

from jbi_pubsub.codegen.binder import XSI
from jbi_pubsub.codegen.bundle import normalize
from jbi_pubsub.codegen.marks import Marks, Steps
from jbi_pubsub.codegen.model import readable
from jbi_pubsub.core.child import PASSING, Children
from jbi_pubsub.core.errors import ChildError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.xml import Element

MAX_PATHS: Final = 10_000
"""Distinct paths in the samples; the draft is to be read by people."""


def draft_marks(bundle: SchemaBundle, samples: Iterable[Element] = ()) -> bytes:
    """A marks file (indented JSON) for `bundle`. Without samples it names the children of the document element.

    Raises SchemaError: an invalid schema, samples of another document element, nothing constant in the samples.
    """
    samples = list(samples)
    seen = [_values(sample) for sample in samples]
    root, known, children, declared = _outlined(bundle, tuple(set[Steps]().union(*seen)))
    if (other := next((sample.tag for sample in samples if sample.tag != root), None)) is not None:
        raise SchemaError(
            f"a sample begins with {other!s}, the document element is {root}",
            hint="Give samples of this type, or name the document element as root",
        )
    paths = _constant(seen, root, set(declared)) if seen else children
    prefixes = _prefixes(known, paths)
    marks = Marks(
        schema=bundle.main,
        root=root,
        namespaces={prefix: uri for uri, prefix in prefixes.items()},
        invariant=tuple("/" + "/".join(readable(step, prefixes) for step in path) for path in paths),
        note=_NOTE_SAMPLES.format(len(seen)) if seen else _NOTE_SCHEMA,
    )
    return msgspec.json.format(msgspec.json.encode(marks), indent=1)


_Asked = tuple[SchemaBundle, tuple[Steps, ...]]
_Outline = tuple[str, dict[str, str], tuple[Steps, ...], tuple[Steps, ...]]


def _outlined(bundle: SchemaBundle, found: tuple[Steps, ...]) -> _Outline:
    try:
        data = Children().run("jbi_pubsub.codegen.drafting:work", msgspec.msgpack.encode((bundle, found)))
    except ChildError as exc:
        if exc.facts["cause"] in PASSING:
            raise
        raise SchemaError(f"reading the schema {exc.message}", hint="Write the marks file by hand") from None
    told: _Outline = decoder_of(cast(type[_Outline], _Outline)).decode(data)
    return told


def work(data: bytes) -> bytes:
    """Outline of a schema for a draft, in a child process: a bundle and paths of samples in, the document element, the
    prefixes by namespace, the paths of the element's children and those of the samples that are declared out. Raises
    SchemaError."""
    from jbi_pubsub.codegen.schema import outline

    asked: _Asked = decoder_of(cast(type[_Asked], _Asked)).decode(data)
    return msgspec.msgpack.encode(outline(normalize(asked[0]), asked[1]))


_NOTE_SAMPLES: Final = "Draft: what is equal in {} sample documents. Keep what stays the same for a whole session"
_NOTE_SCHEMA: Final = "Draft: keep the paths whose values stay the same for a whole session, remove the others"


def _values(sample: Element) -> dict[Steps, frozenset[str]]:
    """The values of each leaf path of one document; a path that repeats has several."""
    found: dict[Steps, set[str]] = {}
    waiting: list[tuple[Element, Steps]] = [(sample, (str(sample.tag),))]
    while waiting:
        element, path = waiting.pop()
        children = list(element.iterchildren("*"))
        waiting.extend((child, (*path, str(child.tag))) for child in children)
        for name, text in element.attrib.items():
            if not str(name).startswith(f"{{{XSI}}}"):
                found.setdefault((*path, f"@{name}"), set()).add(str(text).strip())
        text = "".join(element.itertext("*")).strip()
        if not children and text:
            found.setdefault(path, set()).add(text)
        if len(found) > MAX_PATHS:
            raise SchemaError(
                f"a sample has more than {MAX_PATHS} different paths", hint="Write the marks file by hand"
            )
    return {path: frozenset(values) for path, values in found.items()}


def _constant(seen: list[dict[Steps, frozenset[str]]], root: str, declared: set[Steps]) -> tuple[Steps, ...]:
    """Paths of the largest subtrees that are the same in all samples; what is not declared does not count."""
    paths = sorted(set().union(*seen) & declared)
    changing = {path for path in paths if len({values.get(path) for values in seen}) > 1}
    mixed = {path[:end] for path in changing for end in range(1, len(path) + 1)} | {(root,)}
    found = {
        next(path[:end] for end in range(1, len(path) + 1) if path[:end] not in mixed)
        for path in paths
        if path not in changing
    }
    if not found:
        raise SchemaError("nothing is equal in all samples", hint="Give samples of one publisher's session")
    return tuple(sorted(found))


def _prefixes(known: dict[str, str], paths: tuple[Steps, ...]) -> dict[str, str]:
    """Namespace to prefix for the paths: the schema's own prefixes, n1, n2 ... for others."""
    used = sorted({step.lstrip("@")[1:].partition("}")[0] for path in paths for step in path if "}" in step})
    found = {uri: known[uri] for uri in used if uri in known}
    found.update((uri, f"n{number}") for number, uri in enumerate((u for u in used if u not in found), 1))
    return found
