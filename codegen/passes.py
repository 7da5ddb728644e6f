"""From a draft to the model: a table of small passes over shapes and names.

Names keep their case and do not depend on where in the schema something stands: "-" and "." become "_", a Python
keyword gets a trailing "_". Where two names of one scope would clash, both move on to a more explicit spelling
(`a-b` -> `a_dash_b`, an attribute `id` beside an element `id` -> `id_attribute`, `Item` below A and below B ->
`A_ItemEntry` and `B_ItemEntry`, at last a digest of what it stands for).
"""

from __future__ import annotations

import hashlib
import keyword
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from jbi_pubsub.codegen.model import TEXT, Below, EntryModel, Field, ModelPart, TypeModel, readable
from jbi_pubsub.codegen.walk import Draft, ElementShape, Key, Leaf
from jbi_pubsub.core.errors import SchemaError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.lookup.entry import MAX_FIELDS, MAX_LINEAGE

RESERVED: Final = frozenset(
    ("str", "ClassVar", "Entry", "dataclass", "xsd", "_xsd_kinds", "entry_name", "rep", "from_rep")
)
"""Names that a generated class body needs, that its decorators set, or that lookup.entry.Entry defines."""

K = TypeVar("K", str, Key)
_SPELLED: Final = {"-": "_dash_", ".": "_dot_"}


@dataclass
class Naming:
    """A draft while the passes work on it. `classes` are the shapes that are classes; `fields` maps (shape, tag) to a
    name, `names` a shape to the name of its class."""

    draft: Draft
    type: TypeName
    classes: dict[Key, ElementShape]
    fields: dict[tuple[Key, str], str] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)


def build(draft: Draft, type: TypeName) -> TypeModel:  # noqa: A002 - the interface's word for it
    """The model of `draft` as information object type `type`. Raises SchemaError on names that clash."""
    shapes = {key: draft.shapes[key] for key in _in_document_order(draft)}
    naming = Naming(draft, type, {key: shape for key, shape in shapes.items() if shape.reads is None})
    for change in PASSES:
        change(naming)
    return _model(naming)


def derive_from_declared_types(naming: Naming) -> None:
    """An element whose named type is also a base class goes below that class: one template then matches all."""
    shapes = naming.classes
    for shape in shapes.values():
        if shape.declared is not None and shape.declared in shapes:
            shape.parent = shape.declared
            inherited = {leaf.tag for leaf in _all_leaves(shapes[shape.declared], shapes)}
            shape.leaves = [leaf for leaf in shape.leaves if leaf.tag not in inherited]


def drop_empty_shapes(naming: Naming) -> None:
    """A class without fields says nothing; a subclass of one with fields tells elements apart and stays."""
    shapes = naming.classes
    kept: dict[Key, ElementShape] = {}
    for shape in shapes.values():
        while shape.parent is not None and not _all_leaves(shapes[shape.parent], shapes):
            shape.parent = shapes[shape.parent].parent
        if _all_leaves(shape, shapes):
            kept[shape.key] = shape
    naming.classes = kept
    if not kept and not naming.draft.has_none:
        raise SchemaError(
            "nothing in the schema is invariant",
            hint="Leave at least one element with a value unmarked, or name it in the marks file, where"
            ' "invariant": [] says that there is none',
        )


def refuse_large_classes(naming: Naming) -> None:
    """The lookup service takes no larger ones (lookup.entry.check_rep)."""
    shapes = naming.classes
    for shape in shapes.values():
        fields, lineage = len(_all_leaves(shape, shapes)), len(_lineage(shape, shapes))
        if fields > MAX_FIELDS or lineage > MAX_LINEAGE:
            raise SchemaError(
                f"{_path(shape, naming.draft.prefixes)} at {shape.place} has {fields} invariant leaves and {lineage} "
                f"levels of extension; {MAX_FIELDS} and {MAX_LINEAGE} are allowed",
                hint="Mark what changes as variant, or name in a marks file the paths that do not",
                place=shape.place,
            )


def put_bases_first(naming: Naming) -> None:
    """Classes in document order, but each behind its superclass."""
    shapes = naming.classes
    ordered: dict[Key, ElementShape] = {}
    for shape in shapes.values():
        ordered.update((link.key, link) for link in reversed(_lineage(shape, shapes)))
    naming.classes = ordered


def name_fields(naming: Naming) -> None:
    """Field names, unique in each family of classes (all that have an ancestor in common)."""
    shapes, prefixes = naming.classes, naming.draft.prefixes
    families: dict[Key, dict[str, Leaf]] = {}
    for shape in shapes.values():
        families.setdefault(_top(shape, shapes), {}).update((leaf.tag, leaf) for leaf in shape.leaves)
    for top, leaves in families.items():
        names = unique(
            {tag: _field_spellings(tag, prefixes) for tag in leaves},
            {t: f"{t} at {leaf.place}" for t, leaf in leaves.items()},
        )
        naming.fields.update(((top, tag), name) for tag, name in names.items())


def name_classes(naming: Naming) -> None:
    """Class names, unique in the module."""
    shapes, prefixes = naming.classes, naming.draft.prefixes
    spellings = {key: _class_spellings(shape, prefixes) for key, shape in shapes.items()}
    places = {key: f"{_path(shape, prefixes)} at {shape.place}" for key, shape in shapes.items()}
    naming.names = unique(spellings, places)


PASSES: Final[Sequence[Callable[[Naming], None]]] = (
    derive_from_declared_types,
    drop_empty_shapes,
    refuse_large_classes,
    put_bases_first,
    name_fields,
    name_classes,
)
"""The steps from draft to names, in order. A new naming rule is a new line here."""


def unique(spellings: Mapping[K, Sequence[str]], places: Mapping[K, str]) -> dict[K, str]:
    """For each key the first of its spellings that no other key has, all clashing keys moving on together; to the last
    one only where nothing else helps."""
    level = dict.fromkeys(spellings, 0)
    while True:
        taken: dict[str, list[K]] = {}
        for key, at in level.items():
            taken.setdefault(spellings[key][at], []).append(key)
        clashes = {name: keys for name, keys in taken.items() if len(keys) > 1}
        if not clashes:
            return {key: spellings[key][at] for key, at in level.items()}
        for name, keys in clashes.items():
            movable = [key for key in keys if level[key] + 2 < len(spellings[key])]
            movable = movable or [key for key in keys if level[key] + 1 < len(spellings[key])]
            if not movable:
                raise SchemaError(
                    f"two declarations get the name {name}: {places[keys[0]]} and {places[keys[1]]}",
                    hint="Rename one of them in the schema, or mark one of them variant",
                    name=name,
                )
            for key in movable:
                level[key] += 1


def identifier(text: str) -> str:
    """A Python identifier for an XML name, readable; what Python or the Entry class needs gets a trailing "_"."""
    plain = unicodedata.normalize("NFKC", text)  # as Python does to identifiers
    name = "".join(letter if f"_{letter}".isidentifier() else "_" for letter in plain)
    if not name[:1].isidentifier() or name.startswith("__"):
        name = f"x{name}"  # "__" at the start would be mangled by Python, or make a special method
    return f"{name}_" if keyword.iskeyword(name) or name in RESERVED else name


def _field_spellings(tag: str, prefixes: Mapping[str, str]) -> list[str]:
    if tag == TEXT:
        return ["value", "value_text"]
    local = tag.rpartition("}")[2].lstrip("@")
    spelled = _spelled(local)
    kind = identifier(f"{spelled}_attribute") if tag.startswith("@") else identifier(spelled)
    escaped = [] if kind.rstrip("_") == kind or local.endswith("_") else [identifier(f"{spelled}_element")]
    return [
        *_distinct([identifier(local), identifier(spelled), kind, *escaped, *_prefixed(tag, kind, prefixes)]),
        _marked(kind, tag),
    ]


def _class_spellings(shape: ElementShape, prefixes: Mapping[str, str]) -> list[str]:
    tag = shape.key[1] if shape.key[0] != "element" else shape.path[-1]
    local = tag.rpartition("}")[2]
    above = [_spelled(step.rpartition("}")[2]) for step in shape.path]
    last = _marked(_class(_spelled(local)), *shape.key)
    if shape.key[0] == "typed":
        names = (_class(f"{'_'.join(above[at:])}_{_spelled(local)}") for at in range(len(above) - 1, -1, -1))
        return [*_distinct(names), last]
    found = [_class(local), _class(_spelled(local)), f"{identifier(_spelled(local))}Entry"]
    if shape.key[0] == "type":
        found.append(f"{_class(_spelled(local))[: -len('Entry')]}TypeEntry")
    found.extend(_class("_".join(above[at:])) for at in range(len(above) - 2, -1, -1))
    return [*_distinct([*found, *_prefixed(tag, found[-1], prefixes)]), last]


def _class(text: str) -> str:
    name = identifier(text).rstrip("_") or "x"
    return f"{name[0].upper()}{name[1:]}Entry"


def _spelled(local: str) -> str:
    return "".join(_SPELLED.get(letter, letter) for letter in local)


def _prefixed(tag: str, name: str, prefixes: Mapping[str, str]) -> list[str]:
    uri = tag.lstrip("@")[1:].partition("}")[0] if "}" in tag else ""
    return [f"{identifier(prefixes[uri])}_{name}"] if uri in prefixes else []


def _marked(name: str, *key: str) -> str:
    """The last resort: a name that tells by itself what it stands for, wherever that stands."""
    return f"{name.removesuffix('Entry')}_{hashlib.blake2b(repr(key).encode(), digest_size=3).hexdigest()}" + (
        "Entry" if name.endswith("Entry") else ""
    )


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _lineage(shape: ElementShape, shapes: Mapping[Key, ElementShape]) -> list[ElementShape]:
    """`shape` and what it derives from, nearest first."""
    chain = [shape]
    while chain[-1].parent is not None:
        chain.append(shapes[chain[-1].parent])
    return chain


def _top(shape: ElementShape, shapes: Mapping[Key, ElementShape]) -> Key:
    return _lineage(shape, shapes)[-1].key


def _all_leaves(shape: ElementShape, shapes: Mapping[Key, ElementShape]) -> list[Leaf]:
    return [leaf for link in reversed(_lineage(shape, shapes)) for leaf in link.leaves]


def _path(shape: ElementShape, prefixes: Mapping[str, str]) -> str:
    if shape.key[0] == "type":
        return f"type {readable(shape.key[1], prefixes)}"
    path = "/" + "/".join(readable(step, prefixes) for step in shape.path)
    return f"{path} as {readable(shape.key[1], prefixes)}" if shape.key[0] == "typed" else path


def _in_document_order(draft: Draft) -> list[Key]:
    """The shapes as documents lead to them, those of superclasses behind them (`put_bases_first` mends that)."""
    found: dict[Key, None] = {}
    waiting = [draft.key]
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found[key] = None
        shape = draft.shapes[key]
        below = [below.key for below in shape.below.values()] + list(shape.typed.values())
        waiting.extend(reversed([*below, *((shape.like,) if shape.like else ())]))
    return [*found, *(key for key in draft.shapes if key not in found)]


def _model(naming: Naming) -> TypeModel:
    draft = naming.draft
    entries = tuple(_entry(naming, shape) for shape in naming.classes.values())
    prefixes = tuple(sorted(draft.prefixes.items()))
    return TypeModel(naming.type, draft.root, _parts(naming), entries, prefixes, draft.documentation)


def _entry(naming: Naming, shape: ElementShape) -> EntryModel:
    top = _top(shape, naming.classes)
    name = naming.names[shape.key]
    fields = tuple(
        Field(naming.fields[top, leaf.tag], leaf.tag, leaf.type, leaf.documentation, leaf.default)
        for leaf in shape.leaves
    )
    return EntryModel(
        name,
        f"{naming.type.name}#{name}",
        _path(shape, naming.draft.prefixes),
        naming.names[shape.parent] if shape.parent is not None else "",
        fields,
        shape.documentation,
    )


def _parts(naming: Naming) -> tuple[ModelPart, ...]:
    """The parts that documents lead to, by number: that of the document element first."""
    shapes = naming.draft.shapes
    order = _in_document_order(naming.draft)
    number = {key: at for at, key in enumerate(order)}

    def part(shape: ElementShape) -> ModelPart:
        content = shapes[shape.like] if shape.like is not None else shape
        return ModelPart(
            naming.names.get(shape.reads or shape.key, ""),
            tuple(Below(tag, number[below.key], below.repeated, below.default) for tag, below in content.below.items()),
            (*content.variant, *(leaf.tag for leaf in content.leaves if shape.reads is not None)),  # base's wildcards
            content.is_open,
            tuple((name, number[key]) for name, key in content.typed.items()),
            tuple(content.required),
        )

    return tuple(part(shapes[key]) for key in order)
