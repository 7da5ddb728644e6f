"""Documents that are like known ones: recognised by their bytes, without a parser.

A source publishes the same document again and again with other readings in it, with a part more or less. One regular
expression, made from the shape of documents that were parsed and found good, tells such a one in a tenth of the time
that parsing and checking it takes.

Rules:
- A stencil never guesses: what does not fit is parsed. What fits is as well-formed and as valid as the documents that
  it was made of; what is invariant in it is told apart (`Traced.invariants`) and left to the caller to compare.
- Groups only around what is read, bounded or invariant. What comes again and again is one group, gone through with an
  expression of its own; the last one would be all that is kept of a group inside.
- Time: what may come at a place is told by the name of the next tag, since each name has one place in a content model.
  Whatever can be read in more ways than one, is optional or comes again is atomic or possessive, so nothing is tried
  twice but for the beginning of a tag; matching is linear in the bytes, whatever they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.documents.foreign import foreign_content
from jbi_pubsub.core.documents.plain import meaning
from jbi_pubsub.core.documents.shape import (
    ANY_TEXT,
    COMMENT,
    EXACT,
    SPACE,
    Child,
    DocumentElement,
    DocumentShape,
    Particle,
    StartTag,
    TagAttribute,
)
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, Element, is_utf8, parse_metadata
from jbi_pubsub.core.xpath.index.document import ABSENT_NUMBER, NUMBER, PRESENT, Layout, Many, Values, put
from jbi_pubsub.core.xpath.language.number import number

MAX_EXPRESSION_BYTES: Final = 32 << 10
"""Limit of a stencil; such an expression takes some 60 ms to compile, and some ten times its bytes of memory."""

_GROUP: Final = b"\0("
"""Opens a group, until it is decided whether it is one: no expression has a zero byte."""

_GAP: Final = SPACE + rb"(?:" + COMMENT + SPACE + rb")*+"

_NO_OTHER: Final = rb"(?![^<>]*?[ \t\r\n]%b[ \t\r\n]*+=)"
_REQUIRED: Final = (
    rb"(?=(?>[ \t\r\n]++(?!%b[ \t\r\n]*+=)[^ \t\r\n<>=/\"']++[ \t\r\n]*+=[ \t\r\n]*+(?:\"[^\"<>]*+\"|'[^'<>]*+'))*+"
    rb"[ \t\r\n]++%b[ \t\r\n]*+=)"
)
_SEVERAL: Final = rb"(?>[ \t\r\n]++(?:%b))*+[ \t\r\n]*+"
"""Attributes in any order: behind one no other of its name; those that have to be there; and all."""

Path = tuple[str, ...]
"""Tags from the document element down."""

Invariants = tuple[int, tuple[bytes | None, ...]]

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True)
class WantedParts:
    """Parts to be read of documents: the paths of leaves whose text is asked for, and of elements of which it is asked
    whether they are there, or what their attributes are."""

    texts: frozenset[Path] = frozenset()
    tags: frozenset[Path] = frozenset()

    def __or__(self, other: WantedParts) -> WantedParts:
        return WantedParts(self.texts | other.texts, self.tags | other.tags)

    def __contains__(self, other: object) -> bool:
        return isinstance(other, WantedParts) and other.texts <= self.texts and other.tags <= self.tags


NOTHING: Final = WantedParts()


class _Place(NamedTuple):
    """A group that is read: the bytes of a leaf's text, with what some of them mean; those of an attribute's value; or
    those of a start tag, with the values of its other attributes."""

    group: int
    path: Path
    is_text: bool
    known: Mapping[bytes, str] = {}
    attribute: str = ""
    values: Mapping[str, str] | None = None


class _Bound(NamedTuple):
    """A group whose number has to lie between bounds, unless it is one of `known`."""

    group: int
    above: float
    below: float
    known: Mapping[bytes, str]


class _Run(NamedTuple):
    """A group of what comes again and again, and the expression of each."""

    group: int
    each: _Scope


class _Scope(NamedTuple):
    """Findings of one expression; `checked` are those of its runs with numbers that have to lie between bounds."""

    expression: re.Pattern[bytes]
    places: tuple[_Place, ...]
    bounds: tuple[_Bound, ...]
    runs: tuple[_Run, ...]
    checked: tuple[_Run, ...]

    @property
    def is_checked(self) -> bool:
        """Whether something may not hold."""
        return bool(self.bounds or self.checked)

    def holds(self, found: re.Match[bytes]) -> bool:
        """Whether the numbers lie between their bounds."""
        for group, above, below, known in self.bounds:
            text = found[group]
            if text is not None and text not in known and not above < float(text) < below:
                return False
        for group, each in self.checked:
            if not all(map(each.holds, each.expression.finditer(found.string, *found.span(group)))):
                return False
        return True


class Stencil:
    """See the module. Immutable but for its counts; several threads may use it."""

    def __init__(self, shape: DocumentShape, wanted: WantedParts = NOTHING) -> None:
        """Compiles it, for documents of which `wanted` is read. Raises OverflowError if it would be too large."""
        self.shape = shape
        self.wanted = wanted
        self.fitted = 0
        """Documents, about: counted without a lock, as the next."""
        self.unread = 0
        """Documents that had to be parsed, since `missing` of them was not read."""
        self.missing = NOTHING
        self.kind = self.number = next(_numbers)
        writer = _Writer(wanted)
        gap = _GAP if shape.comments else SPACE
        body = writer.element(shape.root, (), is_certain=True)
        scope = writer.scope(re.escape(shape.declaration) + gap + body + gap)
        self._scope = scope
        self._fit = scope.expression.fullmatch
        self._is_checked = scope.is_checked
        self._is_ascii = not is_utf8(shape.declaration)
        self._invariants = _groups_of(writer.invariants)
        self._leaves: dict[Path, bool] = {}
        self._foreign: list[tuple[Path, frozenset[str]]] = []
        for path, each in _shapes_of(shape.root, ()):
            self._leaves[path] = self._leaves.get(path, True) and each.is_leaf
            if each.skips and each.content is not None:
                self._foreign.append((path, each.content.names))

    def wanting(self, wanted: WantedParts) -> Stencil:
        """The same, for documents of which `wanted` is read. Raises OverflowError."""
        made = Stencil(self.shape, wanted)
        made.kind, made.fitted = self.kind, self.fitted
        return made

    def trace(self, data: bytes, written: bytes) -> Traced | None:
        """The document, if it fits; `written`: in plain form."""
        found = self._fit(written)
        if found is None or len(data) > MAX_METADATA_BYTES or (self._is_checked and not self._scope.holds(found)):
            return None
        return Traced(self, data, found) if not self._is_ascii or data.isascii() else None

    def invariants(self, found: re.Match[bytes]) -> Invariants:
        """Invariants of a document that fits."""
        return self.kind, self._invariants(found)

    def elements(self) -> list[tuple[Path, bool, frozenset[str]]]:
        """Elements that a document that fits may have, by path: whether they are leaves, and the names of their
        attributes. Several of one path may differ."""
        return [
            (path, each.is_leaf, frozenset(name for start in each.starts.values() for name in _attributes(start)))
            for path, each in _shapes_of(self.shape.root, ())
        ]

    def reader(self, layout: Layout) -> _SlotReader | None:
        """Reader of documents that fit; None: they have to be parsed for that."""
        known: tuple[_SlotReader | WantedParts | None] | None = layout.readers.get(self.number)
        if known is None:
            known = layout.remember(self.number, (self._reader(layout),))
        reader = known[0]
        if isinstance(reader, WantedParts):
            self.unread += 1
            self.missing |= reader
            return None
        return reader

    def _reader(self, layout: Layout) -> _SlotReader | WantedParts | None:
        """Also: what has to be wanted for that."""
        if any(layout.reads_below(path, names) for path, names in self._foreign):
            return None
        texts: list[Path] = []
        tags: list[Path] = []
        for path, is_leaf in self._leaves.items():
            slots, attributes = layout.at(path)
            readings = {reading for _, reading in slots}
            if readings - {PRESENT}:
                if not is_leaf:
                    return None  # a text that several make up
                texts.append(path)
            if attributes or PRESENT in readings:
                tags.append(path)
        needed = WantedParts(frozenset(texts), frozenset(tags))
        return _SlotReader.of(self._scope, layout) if needed in self.wanted else needed


class Traced:
    """A document that fits a stencil; parsed only if somebody asks for its `root`. One thread at a time."""

    __slots__ = ("_data", "_found", "_root", "stencil")

    def __init__(self, stencil: Stencil, data: bytes, found: re.Match[bytes]) -> None:
        """`stencil`: the one that it fits."""
        self.stencil: Final = stencil
        self._data = data
        self._found = found
        self._root: Element | None = None

    @property
    def root(self) -> Element:
        """The document element."""
        if self._root is None:
            self._root = parse_metadata(self._data)
        return self._root

    @property
    def size(self) -> int:
        """Bytes of the document."""
        return len(self._data)

    @property
    def invariants(self) -> Invariants:
        """The stencil's number and what is invariant: equal for two documents only if they tell the same of the
        registration."""
        return self.stencil.invariants(self._found)

    def read(self, layout: Layout) -> tuple[Values, Many]:
        """As `layout.read(root)`."""
        reader = self.stencil.reader(layout)
        if reader is None:
            return layout.read(self.root)
        values = layout.blank.copy()
        many: Many = {}
        reader.read(self._found, values, many)
        return values, many


class _SlotReader:
    """Reader of what one expression tells at the slots of one layout."""

    __slots__ = ("_runs", "_tags", "_texts", "slots")

    def __init__(self, texts: Sequence[Any], tags: Sequence[Any], runs: Sequence[Any], slots: set[int]) -> None:
        self._texts = texts
        self._tags = tags
        self._runs = runs
        self.slots = slots

    @classmethod
    def of(cls, scope: _Scope, layout: Layout) -> _SlotReader | None:
        """For a layout all of whose places are among the scope's; None where the values of one slot would not come in
        the order of the document: some of them are in what comes again and again, or are always the same."""
        texts: list[tuple[int, int, bool, Mapping[bytes, str]]] = []
        tags: list[tuple[int, int, Any]] = []
        for place in scope.places:
            slots, attributes = layout.at(place.path)
            if place.is_text:
                texts += (
                    (place.group, slot, reading == NUMBER, place.known) for slot, reading in slots if reading != PRESENT
                )
            elif place.values is not None:
                values = place.values
                tags += ((place.group, slot, "") for slot, reading in slots if reading == PRESENT)
                tags += (
                    (place.group, slot, _read(values[name], reading))
                    for name, (slot, reading) in attributes
                    if name in values
                )
            for name, (slot, reading) in attributes:
                if name == place.attribute and reading == PRESENT:
                    tags.append((place.group, slot, ""))
                elif name == place.attribute:
                    texts.append((place.group, slot, reading == NUMBER, place.known))
        runs: list[tuple[int, Callable[..., Iterable[re.Match[bytes]]], _SlotReader]] = []
        for group, each in scope.runs:
            reader = cls.of(each, layout)
            if reader is None:
                return None
            if reader.slots:
                runs.append((group, each.expression.finditer, reader))
        parts = [{text[1] for text in texts}, {tag[1] for tag in tags}, {s for _, _, r in runs for s in r.slots}]
        every = parts[0].union(*parts)
        return cls(texts, tags, runs, every) if len(every) == sum(map(len, parts)) else None

    def read(self, found: re.Match[bytes], values: Values, many: Many) -> None:
        """Put what was found at its slots."""
        for group, slot, is_number, known in self._texts:
            raw = found[group]
            if raw is None:
                continue
            text = known[raw] if known and raw in known else meaning(raw)
            value: Any = number(text) if is_number else text
            before = values[slot]
            if before is None or before is ABSENT_NUMBER:
                values[slot] = value
            else:
                put(slot, value, values, many)
        for group, slot, value in self._tags:
            if found[group] is not None:
                put(slot, value, values, many)
        for group, finditer, each in self._runs:
            for one in finditer(found.string, *found.span(group)):
                each.read(one, values, many)


_Body = Callable[["_Writer", bool], bytes]
"""Writes a part of an expression; the flag says whether it is always there."""


class _Writer:
    """Writes one expression, with its groups in the order of the document."""

    def __init__(self, wanted: WantedParts, room: list[int] | None = None) -> None:
        """`room`: how many bytes it and those inside may still take."""
        self._wanted = wanted
        self._room = [MAX_EXPRESSION_BYTES] if room is None else room
        self._groups = 0
        self._places: list[_Place] = []
        self._bounds: list[_Bound] = []
        self._runs: list[_Run] = []
        self._inner = 0
        """Groups that only what is foreign has: they stay where others are left out."""
        self.invariants: list[int] = []

    def scope(self, body: bytes) -> _Scope:
        """All that was written."""
        self._room[0] -= len(body)
        if self._room[0] < 0:
            raise OverflowError
        expression = re.compile(body.replace(_GROUP, b"("))
        checked = tuple(run for run in self._runs if run.each.is_checked)
        return _Scope(expression, tuple(self._places), tuple(self._bounds), tuple(self._runs), checked)

    def element(self, shape: DocumentElement, above: Path, *, is_certain: bool) -> bytes:
        """One element; `is_certain`: it is always there."""
        path = (*above, shape.tag)
        is_constant = (
            is_certain and len(shape.starts) == 1 and all(start.is_constant for start in shape.starts.values())
        )
        tells = shape.is_invariant and not is_constant
        opening = [start for key, start in shape.starts.items() if not key.endswith(b"/>")]
        empty = [start for key, start in shape.starts.items() if key.endswith(b"/>")]
        forms: list[bytes] = []
        if opening:
            written = _one_of([self._start(start, path, tells=tells, is_text=False) for start in opening])
            forms.append(written + self._content(shape, path) + re.escape(shape.end))
        if empty:
            is_text = path in self._wanted.texts and shape.is_leaf
            forms.append(_one_of([self._start(start, path, tells=tells, is_text=is_text) for start in empty]))
        return _one_of(forms)

    def _start(self, start: StartTag, path: Path, *, tells: bool, is_text: bool) -> bytes:
        """A start tag; `is_text`: it stands for an empty text as well."""
        is_wanted, is_set = path in self._wanted.tags, start.required is not None
        is_told = tells or is_wanted or is_text
        self._groups += is_told  # opened before those inside
        group = self._groups
        if is_wanted:
            self._places.append(_Place(group, path, False, values=start.fixed))
        if is_text:
            self._places.append(_Place(group, path, True, _Empty()))
        if tells:
            self.invariants.append(group)
        name, end = re.escape(start.name), re.escape(start.end)
        values = [self._value(each, path, is_wanted=is_wanted, is_set=is_set) for each in start.attributes]
        written = [re.escape(e.before) + v + e.quote for e, v in zip(start.attributes, values, strict=True)]
        if start.required is None:
            tag = name + b"".join(re.escape(e.gap) + w for e, w in zip(start.attributes, written, strict=True)) + end
        else:
            some = b"|".join(
                w + _NO_OTHER % re.escape(e.written) for e, w in zip(start.attributes, written, strict=True)
            )
            needed = b"".join(_REQUIRED % (2 * (re.escape(each),)) for each in sorted(start.required))
            tag = name + needed + _SEVERAL % some + end
        return _GROUP + tag + b")" if is_told else tag

    def _value(self, attribute: TagAttribute, path: Path, *, is_wanted: bool, is_set: bool) -> bytes:
        """The value of an attribute; `is_set`: of those that may be missing."""
        texts = attribute.texts
        if texts is None and not is_set:
            return b"".join(map(re.escape, attribute.seen))
        values = [re.escape(value) + b"(?=" + attribute.quote + b")" for value in attribute.seen]
        value = b"(?>" + b"|".join([*values, *([texts.expression.encode()] if texts else [])]) + b")"
        is_read = is_wanted and bool(attribute.name)
        is_bounded = texts is not None and texts.is_bounded
        if is_read or is_bounded:
            value = self._grouped(value)
        if is_read:
            self._places.append(_Place(self._groups, path, False, attribute.seen, attribute.name))
        if texts is not None and is_bounded:
            self._bounds.append(_Bound(self._groups, texts.above, texts.below, attribute.seen))
        return value

    def _content(self, shape: DocumentElement, path: Path) -> bytes:
        """Expression for what stands between the tags of an element."""
        if shape.is_leaf:
            return self._text(shape, path)
        gap = _GAP if shape.comments else SPACE
        if shape.content in (None, EXACT):
            inside = [self.element(child.shape, path, is_certain=True) + gap for child in shape.children]
            return gap + b"".join(inside)
        assert shape.content is not None
        children = {child.shape.tag: child for child in shape.children}
        model = _ContentGroups(children, shape.content.names, path, gap, shape if shape.skips else None)
        return gap + model.body(shape.content)(self, True)

    def _text(self, shape: DocumentElement, path: Path) -> bytes:
        texts = shape.texts
        written = [re.escape(text) + b"(?=<)" for text in shape.fixed]
        if texts is not None:
            written.append(texts.expression.encode())
        text = b"|".join(written)
        if shape.fixed or texts != ANY_TEXT:
            text = b"(?>" + text + b")"  # else what may be read in two ways is tried in all of them, for each leaf
        is_bounded = texts is not None and texts.is_bounded
        is_wanted = path in self._wanted.texts
        if not (is_bounded or is_wanted or shape.is_invariant):
            return text
        text = self._grouped(text)
        if is_wanted:
            self._places.append(_Place(self._groups, path, True, shape.fixed))
        if texts is not None and is_bounded:
            self._bounds.append(_Bound(self._groups, texts.above, texts.below, shape.fixed))
        if shape.is_invariant:
            self.invariants.append(self._groups)
        return text

    def _grouped(self, written: bytes) -> bytes:
        self._groups += 1
        return _GROUP + written + b")"

    def foreign(self, shape: DocumentElement) -> bytes:
        """Expression for what a wildcard takes in an element."""
        content = foreign_content(shape, next(_numbers))
        groups = content.count(b"(?P<")
        self._groups += groups
        self._inner += groups
        return content

    def run(self, body: _Body, times: bytes) -> bytes:
        """Expression for what may come again and again."""
        each = _Writer(self._wanted, self._room)
        self._groups += 1  # opened before what `body` writes, which has no groups of its own here
        group = self._groups
        written = body(each, False)
        plain = b"(?:" + written.replace(_GROUP, b"(?:") + b")" + times
        self._groups += each._inner
        self._inner += each._inner
        is_read = bool(each._places or each._bounds or each._runs)
        if is_read:
            self._runs.append(_Run(group, each.scope(written)))
        if each.invariants:
            self.invariants.append(group)
        if is_read or each.invariants:
            return _GROUP + plain + b")"
        self._groups -= 1
        return plain


class _ContentGroups(NamedTuple):
    """A content model, with the children that were seen; the others can't come. `foreign`: the element, if what its
    wildcard takes is skipped."""

    children: dict[str, Child]
    named: frozenset[str]
    path: Path
    gap: bytes
    foreign: DocumentElement | None

    def body(self, particle: Particle) -> _Body:
        """Writer of a part of the model that can come."""
        if particle.kind == "element":
            return self._times(self._child(self.children[particle.tag]), particle.least, particle.most)
        if particle.kind == "any" and self.foreign is not None:
            foreign = self.foreign
            return lambda writer, _: writer.foreign(foreign)
        if particle.kind == "any":
            others = [child for tag, child in self.children.items() if tag not in self.named]
            return _sequence([self._times(self._child(c), c.least, None if c.many else 1) for c in others])
        inside = [self.body(part) for part in particle.parts if self.can_come(part)]
        made = _choice(inside) if particle.kind == "choice" else _sequence(inside)
        return self._times(made, particle.least, particle.most)

    def can_come(self, particle: Particle) -> bool:
        """Whether enough of it was seen."""
        if particle.kind == "element":
            return particle.tag in self.children
        if particle.kind == "any":
            return self.foreign is not None or not self.named.issuperset(self.children)
        can = list(map(self.can_come, particle.parts))
        is_whole = all(here or not part.least for here, part in zip(can, particle.parts, strict=True))
        return any(can) and (is_whole or particle.kind == "choice")

    def _child(self, child: Child) -> _Body:
        return lambda writer, is_certain: writer.element(child.shape, self.path, is_certain=is_certain) + self.gap

    def _times(self, body: _Body, least: int, most: int | None) -> _Body:
        if most != 1:
            times = (
                b"*+" if (least, most) == (0, None) else b"{%d,%b}+" % (least, b"" if most is None else b"%d" % most)
            )
            return lambda writer, _: writer.run(body, times)
        if least:
            return body
        return lambda writer, _: b"(?>" + body(writer, False) + b"|)"


def _choice(inside: Sequence[_Body]) -> _Body:
    return lambda writer, _: b"(?>" + b"|".join(body(writer, False) for body in inside) + b")"


def _sequence(inside: Sequence[_Body]) -> _Body:
    return lambda writer, is_certain: b"".join(body(writer, is_certain) for body in inside)


def _groups_of(groups: Sequence[int]) -> Callable[[re.Match[bytes]], tuple[bytes | None, ...]]:
    """Function that gets the bytes of some groups."""
    if len(groups) > 1:
        return operator.itemgetter(*groups)
    return lambda found: tuple(found[group] for group in groups)


class _Empty(dict[bytes, str]):
    """Whatever the bytes, they mean no text."""

    def __contains__(self, key: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __missing__(self, key: bytes) -> str:
        return ""


def _read(text: str, reading: int) -> Any:
    return "" if reading == PRESENT else number(text) if reading == NUMBER else text


def _one_of(forms: Sequence[bytes]) -> bytes:
    return forms[0] if len(forms) == 1 else b"(?>" + b"|".join(forms) + b")"


def _attributes(start: StartTag) -> Iterable[str]:
    return (each.name for each in start.attributes if each.name)


def _shapes_of(shape: DocumentElement, above: Path) -> Iterable[tuple[Path, DocumentElement]]:
    path = (*above, shape.tag)
    yield path, shape
    for child in shape.children:
        yield from _shapes_of(child.shape, path)
