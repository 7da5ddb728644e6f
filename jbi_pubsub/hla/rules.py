"""Rules that an object model keeps: each name in it stands for something, and each data type can be encoded.

They are those of IEEE 1516.2-2010, 4.13, as far as values and deliveries depend on them. What the standard's own module
has of data types, transportations and dimensions is known without it. A module that names another one as a reference of
type Dependency, or Composed From, may speak of what is there, though that one is not given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple, NoReturn

from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.xml import Element

from .datatypes import ALTERNATIVES_CHARS, TypeRow, enumerators_for, enumerators_of, is_basic, merged, number_of
from .encoding import STANDARD
from .exceptions import ErrorReadingFom
from .omt import children, elements, is_of_2025, local_name, text_of

_MIM_NAMES: Final = """
    token handle handleList transportationName updateRateName logicalTime timeInterval count seconds msec index
    normalizedFederateHandle integer64Time float64Time federateState timeState ownership resignAction orderType switch
    synchPointStatus normalizedServiceGroup interactionSubList argumentList objectClassBasedCounts interactionCounts
    synchPointList synchPointFederateList moduleDesignatorList interactionSubscription objectClassBasedCount
    interactionCount synchPointFederate"""
_MIM: Final = frozenset("HLA" + each for each in _MIM_NAMES.split())
"""Data types of the standard's own module that have no encoding here."""
_NONE: Final = frozenset(("", "NA", "N/A"))
_COUNT: Final = r"(Dynamic|\d+|[\[(]\s*\d+\s*\.\.\s*\d+\s*[\])])"
_CARDINALITY: Final = re.compile(rf"{_COUNT}(\s*,\s*{_COUNT})*", re.IGNORECASE)
_SIZE: Final = re.compile(r"[1-9][0-9]{0,5}")
_ENCODINGS: Final = {
    "arrayData": ("HLAfixedArray", "HLAvariableArray"), "fixedRecordData": ("HLAfixedRecord",),
    "variantRecordData": ("HLAvariantRecord", "HLAextendableVariantRecord"),
}  # fmt: skip
"""Those of the standard; names of others do not begin with HLA."""


class _Names(NamedTuple):
    """Names that modules may speak of."""

    types: dict[str, TypeRow]
    transportations: set[str]
    dimensions: set[str]
    is_open: bool
    """A module that another one depends on is not there: it may have what is missing."""
    is_of_2025: bool
    """A model of 2025, of which the standard's own names are not all known."""

    def has_type(self, name: str) -> bool:
        known = name in self.types or name in STANDARD or name in _MIM or bool(is_basic(name))
        return known or self.is_open or (self.is_of_2025 and name.startswith("HLA"))


def check(modules: list[tuple[str, Element]]) -> None:
    """Modules, each with its name and root, that make a model together. Raises ErrorReadingFom, InconsistentFom."""
    roots = [root for _, root in modules]
    names = _Names(
        merged(modules),
        {"HLAreliable", "HLAbestEffort", *_NONE, *_rows_of(roots, "transportations")},
        {"HLAfederate", "HLAserviceGroup", *_NONE, *_rows_of(roots, "dimensions")},
        _depends_on_others(roots),
        any(is_of_2025(root) for root in roots),
    )
    for name, row in names.types.items():
        _check_type(name, row, names)
    inner = {name: [_named(each) for each in _uses(row.element)] for name, row in names.types.items()}
    try:
        TopologicalSorter({name: [each for each in of if each in inner] for name, of in inner.items()}).prepare()
    except CycleError as exc:
        cycle: list[str] = exc.args[1]
        _refuse(names.types[cycle[0]].where, f"data type {cycle[0]} is made of itself: {' < '.join(cycle[:10])}",
                "Take one of them out of the other")  # fmt: skip
    for module, root in modules:
        for table in ("objects", "interactions", "dimensions", "time", "tags", "synchronizations"):
            for part in children(root, table):
                _check_part(module, part, names)


def _rows_of(roots: list[Element], table: str) -> Iterator[str]:
    return (text_of(row, "name") for root in roots for each in children(root, table) for row in elements(each))


def _depends_on_others(roots: list[Element]) -> bool:
    told = [each for root in roots for each in children(root, "modelIdentification")]
    given = {text_of(each, "name").lower() for each in told}
    references = [row for each in told for row in children(each, "reference")]
    return any(
        text_of(row, "type").lower().replace("_", " ") in ("dependency", "composed from")
        and text_of(row, "identification").lower() not in given
        for row in references
    )


def _uses(element: Element) -> Iterator[Element]:
    """Its words on other data types."""
    for each in elements(element):
        if local_name(each) in ("dataType", "representation"):
            yield each
        else:
            yield from children(each, "dataType")


def _named(element: Element) -> str:
    return (element.text or "").strip()[:255]


def _refuse(where: str, what: str, hint: str) -> NoReturn:
    raise ErrorReadingFom(f"{where}: {what}", hint=hint)


# -- data types ------------------------------------------------------------------------------------------------------


def _check_type(name: str, row: TypeRow, names: _Names) -> None:
    element, where, kind = row.element, row.where, local_name(row.element)
    if name in _NONE:
        _refuse(where, f"a data type of {kind} has no name", "Name it")
    encoding, known = text_of(element, "encoding"), _ENCODINGS.get(kind, ())
    if known and encoding.startswith("HLA") and encoding not in known and not names.is_of_2025:
        _refuse(where, f"{name} has the encoding {encoding!r}, which the standard has not for a {kind}",
                f"There are {', '.join(known)}; names of your own do not begin with HLA")  # fmt: skip
    if kind == "basicData" and not _SIZE.fullmatch(text_of(element, "size")) and not is_basic(name):
        _refuse(where, f"{name} has the size {text_of(element, 'size')!r}", "Say its bits: 8, 16, 32")
    if kind in ("simpleData", "enumeratedData"):
        _check_representation(name, row, names)
    if kind == "enumeratedData":
        _check_enumerators(name, row)
    if kind == "arrayData":
        _check_array(name, row)
    if kind in ("fixedRecordData", "variantRecordData"):
        _check_fields(name, row)
    for each in _uses(element):
        of = _named(each)
        if not names.has_type(of) and not (of in _NONE and of and kind == "variantRecordData"):
            _unknown(f"{row.module}:{each.sourceline}", f"{name} names", of, names)
    if kind == "variantRecordData":
        _check_variants(name, row, names)


def _unknown(where: str, what: str, of: str, names: _Names) -> NoReturn:
    near = near_hint(of, sorted({*names.types, *STANDARD, *_MIM}), 5)
    _refuse(where, f"{what} the data type {of!r}, which no module has",
            f"{near}{'' if near.endswith('?') else '.'} If another module has it, give that one, or name it as a "
            "reference of type Dependency under modelIdentification")  # fmt: skip


def _check_representation(name: str, row: TypeRow, names: _Names) -> None:
    of = text_of(row.element, "representation")
    found = names.types.get(of)
    plain = local_name(found.element) == "basicData" if found else bool(is_basic(of)) or not names.has_type(of)
    if not plain and not names.is_open:
        _refuse(row.where, f"{name} is represented by {of!r}, which is not a basic representation",
                "Name one of the table basicDataRepresentations, or of the standard, as HLAinteger32BE")  # fmt: skip
    if not of:
        _refuse(row.where, f"{name} has no representation", "Name a basic representation, as HLAinteger32BE")


def _check_enumerators(name: str, row: TypeRow) -> None:
    taken: dict[int, str] = {}
    for each in children(row.element, "enumerator"):
        where, label = f"{row.module}:{each.sourceline}", text_of(each, "name")
        if not label:
            _refuse(where, f"an enumerator of {name} has no name", "Name it")
        for said in [_named(value) for value in children(each, "value")] or [""]:
            try:
                value = number_of(said)
            except ValueError:
                _refuse(where, f"{label} of {name} has the value {said!r}", "Give it a whole number")
            if value in taken:
                _refuse(where, f"{label} of {name} has the value {value}, as {taken[value]} has", "Leave one")
            taken[value] = label
    if not taken:
        _refuse(row.where, f"{name} has no enumerators", "Give it one")


def _check_array(name: str, row: TypeRow) -> None:
    said = text_of(row.element, "cardinality")
    if not _CARDINALITY.fullmatch(said):
        _refuse(row.where, f"{name} has the cardinality {said!r}", "Give 3, [2..5] or Dynamic, or such with commas")
    if not text_of(row.element, "dataType"):
        _refuse(row.where, f"{name} does not say of what it is an array", "Give it a dataType")
    if text_of(row.element, "encoding") == "HLAfixedArray" and said.lower() == "dynamic":
        _refuse(row.where, f"{name} is a fixed array of no fixed count",
                "Give it the encoding HLAvariableArray, or a number as cardinality")  # fmt: skip


def _check_fields(name: str, row: TypeRow) -> None:
    taken: set[str] = set()
    for each in elements(row.element):
        if (kind := local_name(each)) not in ("field", "alternative"):
            continue
        where, label = f"{row.module}:{each.sourceline}", text_of(each, "name")
        if not label or not children(each, "dataType"):
            _refuse(where, f"{'a' if kind == 'field' else 'an'} {kind} of {name} has no name or no data type",
                    "Give it both")  # fmt: skip
        if label in taken and label not in _NONE:
            _refuse(where, f"{name} has two of the name {label}", "Name one otherwise")
        taken.add(label)


def _check_variants(name: str, row: TypeRow, names: _Names) -> None:
    """Its discriminant is enumerated, and each enumerator has one alternative at most."""
    kind = text_of(row.element, "dataType")
    of = names.types.get(kind)
    if of is None and kind != "HLAboolean" and kind not in (STANDARD.keys() | _NONE) and not is_basic(kind):
        return  # one that is not known here
    if local_name(of.element) != "enumeratedData" if of is not None else kind != "HLAboolean":
        _refuse(row.where, f"the discriminant of {name} is of {kind or 'no data type'}", "Give it an enumerated one")
    known = enumerators_of(of.element if of is not None else None)
    taken: set[str] = set()
    for each in children(row.element, "alternative"):
        where, said = f"{row.module}:{each.sourceline}", text_of(each, "enumerator", ALTERNATIVES_CHARS)
        for one in enumerators_for(said, known):
            if one not in known and one != "HLAother":
                _refuse(where, f"an alternative of {name} is for {one[:100]!r}, which is not an enumerator of {kind}",
                        near_hint(one, known, 5))  # fmt: skip
            if one in taken:
                _refuse(where, f"{name} has two alternatives for {one}", "Leave one")
            taken.add(one)


# -- classes and other tables ----------------------------------------------------------------------------------------


def _check_part(module: str, part: Element, names: _Names) -> None:
    """A table, with all that is in it."""
    for each in part.iter():
        if not isinstance(each.tag, str):
            continue
        kind, of, where = local_name(each), _named(each), f"{module}:{each.sourceline}"
        if kind == "dataType" and of not in _NONE and not names.has_type(of):
            _unknown(where, f"{_path(each)} has", of, names)
        for table, known in (("transportation", names.transportations), ("dimension", names.dimensions)):
            if kind == table and not len(each) and of not in known and not names.is_open:
                _refuse(where, f"{_path(each)} has the {table} {of!r}, which no module has",
                        near_hint(of, sorted(known - _NONE), 5))  # fmt: skip


def _path(element: Element) -> str:
    """Names of the classes that it is in."""
    found = [text_of(each, "name") or text_of(each, "label") for each in element.iterancestors()]
    return ".".join(each for each in reversed(found) if each) or local_name(element)
