"""Shape of the documents of one kind: a tree of their elements as they are written, with what may stand for what.

A shape is made of one document that was parsed and found good, and grows by merging it with those of others. It says
nothing that the documents and the schema (`Grammar`) do not say together: an element is written as it was seen; the
schema says where it may be missing or come again, and which texts may stand in a leaf.

Rules:
- All bytes here are those of documents in plain form (plain.py).
- Nothing is made of documents with a DOCTYPE, xsi:type, xsi:nil, xml:id, text beside elements, comments or instructions
  inside a leaf, nor where ASCII bytes may mean other characters. The tokens are held against the parsed tree.
- Elements at one path that the schema lets come again have one shape. Where it says nothing for certain, those of the
  document come one for one.
- Names have one meaning in a shape: all that is merged has the same prefixes bound to the same namespaces.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from jbi_pubsub.core.documents.plain import meaning, plain
from jbi_pubsub.core.xml import Element, has_plain_markup, is_utf8

MAX_STARTS: Final = 3
"""Start tags of one element that differ in attributes: of more these may come in any order."""

MAX_OTHERS: Final = 4
"""Elements of different names that a wildcard takes in one element: of more none is told from others."""

MAX_ATTRIBUTES: Final = 32
"""Attributes of an element that may come in any order."""

MAX_FIXED: Final = 64
"""Texts of one leaf kept as they were seen, for types of which no other text is certain."""

MAX_PIECES: Final = 2_000
"""Elements and attributes of a document that is looked at."""

MAX_DEPTH: Final = 32
"""Levels of elements, each some groups deep in an expression; the deepest in use (NIEM, NewsML) go to about ten."""

SPACE: Final = rb"[ \t\r\n\xfd]*+"
"""White space and instructions."""
COMMENT: Final = rb"<!--[ -,.-~\t\r\n\x80-\xf4]*+(?:-[ -,.-~\t\r\n\x80-\xf4]++)*+-->"
"""A comment: two hyphens only at its end."""

_TOKEN: Final = re.compile(
    COMMENT + rb"""|<(/?)([^\s<>/!?="']+)(?:\s+[^\s<>/="']+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*\s*(/?)>""", re.ASCII
)
_NAME: Final = re.compile(rb"""<[^\s<>/!?="']+""", re.ASCII)
_ATTRIBUTE: Final = re.compile(rb"""\s+([^\s<>/="']+)\s*=\s*(?:"([^"<]*)"|'([^'<]*)')""", re.ASCII)
_BETWEEN: Final = re.compile(SPACE + rb"(?:" + COMMENT + SPACE + rb")*+")
_DECLARATION: Final = re.compile(rb"\s*<\?xml\s[^<>]*\?>")
_XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
_XML: Final = "http://www.w3.org/XML/1998/namespace"
_REFUSED: Final = (f"{_XSI}type", f"{_XSI}nil", f"{{{_XML}}}id")


class Texts(NamedTuple):
    """Texts that a leaf may hold: those that `expression` (without groups) matches as a whole; if it is bounded,
    numbers between the bounds, both excluded (a rounded bound then does no harm). `sure`: an expression of almost as
    many that tells the bounds as well."""

    expression: str
    above: float = -math.inf
    below: float = math.inf
    sure: str = ""

    def simple(self) -> Texts:
        """These, or the sure ones."""
        return Texts(self.sure) if self.sure else self

    @property
    def is_bounded(self) -> bool:
        """Whether the value counts as well."""
        return self.above > -math.inf or self.below < math.inf


PLAIN: Final = r"[ -%'-;=?-~\t\n\x80-\xfc\xfe\xff]"
SOLID: Final = r"(?:[!-%'-;=?-~\xf8-\xfc]|[\xc2-\xf4][\x80-\xbf]++)"
"""Bytes of a text in plain form; one character other than white space, whose length depends on the whiteSpace facet."""
PLAIN_IN_QUOTES: Final = r"[ !#-%(-;=?-~\x80-\xfc\xff]"
SOLID_IN_QUOTES: Final = r"(?:[!#-%(-;=?-~\xf8-\xfc]|[\xc2-\xf4][\x80-\xbf]++)"

ANY_TEXT: Final = Texts(PLAIN + "*+")
"""Any text."""


class Wildcard(NamedTuple):
    """Elements that are valid whatever is in them, with text if they are `mixed` with it: those of namespaces that it
    `takes` (asked with a tag), if neither they nor anything in them has one of the local names `declared`."""

    takes: Callable[[str], bool]
    declared: frozenset[str]
    mixed: bool = False


@dataclasses.dataclass(frozen=True)
class Particle:
    """A part of a content model, with how often it may come (`most` None: any number of times).

    `kind`: "element" (`tag`), "sequence" or "choice" (of `parts`), "any" (elements of any other name), or "exact": what
    was seen, and nothing else.
    """

    kind: str
    least: int = 1
    most: int | None = 1
    tag: str = ""
    parts: tuple[Particle, ...] = ()
    wildcard: Wildcard | None = dataclasses.field(default=None, compare=False)
    """Elements that may come unseen, of "any"."""

    def tags(self) -> list[str]:
        """Tags of the elements that it names."""
        return [self.tag] if self.kind == "element" else [tag for part in self.parts for tag in part.tags()]

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The same, without order: asked for each element of a document."""
        return frozenset(self.tags())

    @functools.cached_property
    def foreign(self) -> Wildcard | None:
        """The wildcard in it, if something may come unseen."""
        return next(filter(None, (self.wildcard, *(part.foreign for part in self.parts))), None)


ANY: Final = Particle("any", 0, None)
EXACT: Final = Particle("exact")


class Grammar(Protocol):
    """Certainties of a schema about valid documents. Paths are tags from the document element down."""

    def texts(self, path: Sequence[str]) -> Texts | None:
        """Texts that the leaf at `path` may hold instead of its own; None: none for certain."""
        ...

    def attribute(self, path: Sequence[str], name: str) -> Texts | None:
        """Texts that the attribute `name`, in no namespace, of the element at `path` may hold instead of its own."""
        ...

    def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:
        """A content model of the element at `path`, in which each of `tags`, its children in a valid document, has one
        place. None: nothing is certain, not even that elements are valid each by itself."""
        ...

    def is_invariant(self, path: Sequence[str]) -> bool:
        """Whether the element at `path` tells something of the registration."""
        ...


class DifferError(Exception):
    """Two documents can't have one shape, or a document none."""


class Child(NamedTuple):
    """An element in another one, and how often it was seen there (where the schema does not say)."""

    shape: DocumentElement
    least: int = 1
    many: bool = False


class TagAttribute(NamedTuple):
    """An attribute of a start tag: what is written before its value (`gap` before its name, then the name as `before`
    has it) and behind; the texts that may stand for its value, and values that were seen, with what they mean. `name`
    is "" for the declaration of a namespace."""

    name: str
    gap: bytes
    before: bytes
    quote: bytes
    texts: Texts | None
    seen: Mapping[bytes, str]

    @property
    def written(self) -> bytes:
        """Its name."""
        return self.before.partition(b"=")[0].rstrip()


class StartTag(NamedTuple):
    """A start tag, `name` with what is before it and `end` with what is behind the attributes. These are written as
    they were seen; or, with `required`, in any order, those named there and perhaps others."""

    name: bytes
    attributes: tuple[TagAttribute, ...]
    end: bytes
    required: frozenset[bytes] | None = None

    @property
    def fixed(self) -> dict[str, str]:
        """Attributes that are always there, with the same values."""
        return {
            each.name: value
            for each in self.attributes
            if self.required is None and each.texts is None and each.name
            for value in each.seen.values()
        }

    @property
    def is_constant(self) -> bool:
        """Whether it is always the same."""
        return self.required is None and all(each.texts is None for each in self.attributes)

    def key(self) -> bytes:
        """Bytes that start tags of one kind have in common."""
        if self.required is not None:
            return b"*" + self.end
        values = (b"\0" if each.texts else next(iter(each.seen)) for each in self.attributes)
        parts = (e.gap + e.before + value + e.quote for e, value in zip(self.attributes, values, strict=True))
        return self.name + b"".join(parts) + self.end


def _joined(ours: Mapping[bytes, StartTag], theirs: Mapping[bytes, StartTag]) -> dict[bytes, StartTag]:
    """Start tags of either kind; where they are many, with attributes in any order, each valid by itself. Raises
    DifferError."""
    together = {**ours, **theirs}
    if len(together) <= MAX_STARTS and all(start.required is None for start in together.values()):
        return together
    made: dict[bytes, StartTag] = {}
    for end in (b">", b"/>"):
        some = [each for each in (*ours.values(), *theirs.values()) if each.end.endswith(b"/>") == (end == b"/>")]
        if some:
            start = _in_any_order(some, end)
            made[start.key()] = start
    return made


def _in_any_order(starts: Sequence[StartTag], end: bytes) -> StartTag:
    found: dict[bytes, TagAttribute] = {}
    for each in (each for start in starts for each in start.attributes):
        before = found.setdefault(each.before, each)
        found[each.before] = before._replace(texts=before.texts or each.texts, seen={**before.seen, **each.seen})
    names = {each.name or each.written: each.written for each in found.values()}
    is_clear = len(names) == len({each.written for each in found.values()}) and all(
        names[each.name or each.written] == each.written for each in found.values()
    )
    if not is_clear or len(found) > MAX_ATTRIBUTES or not all(_is_in_sight(each.seen) for each in found.values()):
        raise DifferError
    always = (
        {each.written for each in start.attributes} if start.required is None else start.required for start in starts
    )
    return StartTag(starts[0].name, tuple(found.values()), end, frozenset.intersection(*map(frozenset, always)))


def _is_in_sight(values: Mapping[bytes, str]) -> bool:
    """Whether there are few of them, and a tag with one ends at the next bracket."""
    return len(values) <= MAX_FIXED and not any(b">" in value for value in values)


class DocumentElement(msgspec.Struct, frozen=True, eq=False):
    """One element. A leaf has no `children`, and `texts` (if some are certain) or `fixed` (bytes and what they mean).

    `starts` are its start tags, by how they are written; those of empty-element tags end in "/>". With `skips`, what
    the wildcard takes in its content is no child, and may be anything.
    """

    tag: str
    name: bytes
    spaces: Mapping[str | None, str]
    starts: dict[bytes, StartTag]
    end: bytes
    content: Particle | None
    texts: Texts | None
    fixed: dict[bytes, str]
    children: tuple[Child, ...]
    comments: bool
    is_invariant: bool
    skips: bool = False

    @property
    def is_leaf(self) -> bool:
        """Whether there is nothing but text in it."""
        return not self.children and not self.skips

    def merged(self, other: DocumentElement, *, loose: bool) -> DocumentElement:
        """The shape of documents of either kind; `loose`: start tags and texts are valid each by itself. Raises
        DifferError."""
        fixed = {**self.fixed, **other.fixed}
        same = (self.tag, self.name, self.spaces) == (other.tag, other.name, other.spaces)
        if not same or (self.end and other.end and self.end != other.end):
            raise DifferError
        if not loose and not (self.starts == other.starts and self.fixed == other.fixed):
            raise DifferError
        starts = _joined(self.starts, other.starts)
        content = self.content if self.content == other.content else EXACT
        foreign = content.foreign if content is not None else None
        is_one = self.is_leaf == other.is_leaf
        if not is_one and not (foreign and foreign.mixed):
            return self._inner_and_leaf(other, starts)
        if len(fixed) > MAX_FIXED and is_one:
            raise DifferError
        if content is EXACT and self.children and (self.content is None or other.content is None):
            raise DifferError
        children, skips = _merged_or_skipped(self, other, content, foreign) if is_one else ((), True)
        return msgspec.structs.replace(
            self,
            starts=starts,
            fixed=fixed,
            end=self.end or other.end,
            content=content,
            children=children,
            comments=self.comments or other.comments,
            skips=skips,
        )

    def _inner_and_leaf(self, other: DocumentElement, starts: dict[bytes, StartTag]) -> DocumentElement:
        """An element all of whose children are optional."""
        inner, leaf = (self, other) if self.children else (other, self)
        is_blank = leaf.texts is None and not any(text.strip(b" \t\r\n") for text in leaf.fixed)
        if not is_blank or inner.content in (None, EXACT, ANY):
            raise DifferError
        return msgspec.structs.replace(inner, starts=starts)


class DocumentShape(NamedTuple):
    """The shape of a whole document: what stands before its document element, and that."""

    declaration: bytes
    root: DocumentElement
    comments: bool

    def merged(self, other: DocumentShape) -> DocumentShape:
        """The shape of documents of either kind. Raises DifferError."""
        if self.declaration != other.declaration:
            raise DifferError
        return DocumentShape(
            self.declaration, self.root.merged(other.root, loose=False), self.comments or other.comments
        )


class _OpenElement(NamedTuple):
    """An element whose end tag has not come: its children with the bytes before each."""

    element: Element
    start: bytes
    name: bytes
    begin: int
    children: list[DocumentElement]
    comments: list[bool]


def seen(source: bytes, root: Element, grammar: Grammar) -> DocumentShape:
    """The shape of `source`, a valid document which parses to `root`. Raises DifferError when it can't have one."""
    source, declaration = _plain(source)
    end = len(declaration)
    elements = root.iter("*")
    path: list[str] = []
    opened: list[_OpenElement] = []
    whole: list[DocumentElement] = []
    comments = False
    pieces = 0
    for token in _TOKEN.finditer(source, end):
        if token[2] is None:
            continue
        gap = source[end : token.start()]
        is_leaf_text = bool(token[1]) and bool(opened) and not opened[-1].children
        if not is_leaf_text:
            comments = _between(gap, opened, comments)
        if token[1]:
            if not opened or opened[-1].name != token[2]:
                raise DifferError
            at = opened.pop()
            made = _shape(at, gap if is_leaf_text else None, token[0], path, grammar)
            path.pop()
        else:
            element = next(elements, None)
            pieces += 1 + (len(element.attrib) if element is not None else 0)
            if pieces > MAX_PIECES:
                raise DifferError
            if element is None or not _agrees(element, token[2]) or len(path) >= MAX_DEPTH:
                raise DifferError
            path.append(str(element.tag))
            at = _OpenElement(element, token[0], token[2], token.end(), [], [])
            end = token.end()
            if not token[3]:
                opened.append(at)
                continue
            made = _shape(at, None, b"", path, grammar)
            path.pop()
        end = token.end()
        (opened[-1].children if opened else whole).append(made)
    comments = _between(source[end:], [], comments)
    if len(whole) != 1 or opened or next(elements, None) is not None:
        raise DifferError
    return DocumentShape(declaration, whole[0], comments)


def _plain(source: bytes) -> tuple[bytes, bytes]:
    """A document in plain form, and its XML declaration. Raises DifferError where something may be misread."""
    found = _DECLARATION.match(source)
    declaration = found[0] if found else b""
    written = plain(source) if has_plain_markup(source) else None
    if written is None or not (source.isascii() or is_utf8(declaration)):
        raise DifferError
    if b"<!" in written.replace(b"<!--", b"") or b"<?" in written[len(declaration) :]:
        raise DifferError
    return written, declaration


def _between(gap: bytes, opened: Sequence[_OpenElement], before: bool) -> bool:
    """Note whether there is a comment between two tags; whether there was one outside of the document element."""
    if not _BETWEEN.fullmatch(gap):
        raise DifferError
    if b"<" not in gap:
        return before
    if opened:
        opened[-1].comments.append(True)
        return before
    return True


def _agrees(element: Element, name: bytes) -> bool:
    """Whether that may be the element's tag, and the document leaves its type to the schema."""
    local = str(element.tag).rpartition("}")[2]
    is_root = element.getparent() is None
    own = [str(each) for each in element.attrib]
    is_plain = not any(each in _REFUSED or (each.startswith(_XSI) and not is_root) for each in own)
    return name.rpartition(b":")[2] == local.encode() and is_plain


def _shape(at: _OpenElement, text: bytes | None, end: bytes, path: Sequence[str], grammar: Grammar) -> DocumentElement:
    """Shape of one element; `text`: of a leaf with an end tag."""
    element = at.element
    shapes = at.children
    texts = None if shapes else grammar.texts(path)
    texts = texts and texts.simple()
    fixed: dict[bytes, str] = {}
    if text is not None:
        if len(element) or not _holds(element, text):
            raise DifferError
        if texts is None or not _is_one_of(texts, text):
            fixed = {text: element.text or ""}
    tags = [shape.tag for shape in shapes]
    skips = False
    content, children = grammar.content(path, tags), tuple(map(Child, shapes))
    if content not in (None, EXACT) and shapes:
        try:
            children = _gathered(shapes, content)
        except DifferError:
            skips = content.foreign is not None
            content = content if skips else EXACT
            children = tuple(child for child in children if not skips or child.shape.tag in content.names)
    return DocumentElement(
        tag=str(element.tag),
        name=at.name,
        spaces=dict(element.nsmap),
        starts=_starts(at, path, grammar),
        end=end,
        content=content,
        texts=texts,
        fixed=fixed,
        children=children,
        comments=bool(at.comments),
        is_invariant=grammar.is_invariant(path),
        skips=skips,
    )


def _starts(at: _OpenElement, path: Sequence[str], grammar: Grammar) -> dict[bytes, StartTag]:
    """The start tag of one element."""
    values = {str(name): str(value) for name, value in at.element.attrib.items()}
    attributes: list[TagAttribute] = []
    end = len(at.name) + 1
    for found in _attributes(at.start):
        written = found[1].decode()
        group = 2 if found[2] is not None else 3
        # A prefixed name, or xmlns, is no attribute in no namespace; what is no certain text is left as it is.
        is_told = values.get(written) == meaning(found[group])
        texts = _within_quotes(grammar.attribute(path, written)) if is_told else None
        texts = texts if texts is not None and _is_one_of(texts, found[group]) else None
        name = _expanded(written, at.element)
        seen = {} if texts else {found[group]: values.get(name, "")}
        before = at.start[found.start(1) : found.start(group)]
        attributes.append(TagAttribute(name, at.start[end : found.start(1)], before, before[-1:], texts, seen))
        end = found.end()
    start = StartTag(at.start[: len(at.name) + 1], tuple(attributes), at.start[end:])
    return {start.key(): start}


def _expanded(name: str, element: Element) -> str:
    """The expanded name of an attribute; "" for the declaration of a namespace."""
    prefix, _, local = name.rpartition(":")
    if "xmlns" in (prefix, name):
        return ""
    return f"{{{element.nsmap.get(prefix, _XML)}}}{local}" if prefix else name


def _attributes(start: bytes) -> Iterator[re.Match[bytes]]:
    """The attributes of a start tag, one behind the other: what looks like one within a value is none."""
    found = _NAME.match(start)
    while found is not None and (found := _ATTRIBUTE.match(start, found.end())) is not None:
        yield found


def _within_quotes(texts: Texts | None) -> Texts | None:
    """Those of the texts that mean the same in an attribute: without quotes, and white space other than spaces."""
    if texts is None:
        return None
    texts = texts.simple()
    expression = texts.expression.replace(PLAIN, PLAIN_IN_QUOTES).replace(SOLID, SOLID_IN_QUOTES)
    return None if {'"', "'", "\t", "\n"}.intersection(expression) else texts._replace(expression=expression)


def _is_one_of(texts: Texts, text: bytes) -> bool:
    if not re.fullmatch(texts.expression.encode(), text):
        return False
    return not texts.is_bounded or texts.above < float(text) < texts.below


def _holds(element: Element, text: bytes) -> bool:
    """Whether the element has that text, or one that is not among the certain ones anyway."""
    return b"\r" in text or (element.text or "") == meaning(text)


def _gathered(shapes: Sequence[DocumentElement], content: Particle) -> tuple[Child, ...]:
    """The children of one element, those of one name together. Raises DifferError."""
    declared = content.names
    found: dict[str, Child] = {}
    before = ""
    for shape in shapes:
        known = found.get(shape.tag)
        if known is None:
            found[shape.tag] = Child(shape)
        elif shape.tag not in declared and shape.tag != before:
            raise DifferError  # of those that the schema does not name one follows the other
        else:
            found[shape.tag] = Child(known.shape.merged(shape, loose=True), 1, many=True)
        before = shape.tag if shape.tag not in declared else before
    return tuple(found.values())


def _merged_or_skipped(
    one: DocumentElement, other: DocumentElement, content: Particle | None, foreign: Wildcard | None
) -> tuple[tuple[Child, ...], bool]:
    """The children of two elements, and whether those that a wildcard takes are skipped: since they have become many,
    or differ. Raises DifferError."""
    skips = one.skips or other.skips
    if not skips:
        try:
            children = _merged(one.children, other.children, content)
        except DifferError:
            skips = True
    if foreign is None or content is None:
        if skips:
            raise DifferError
        return children, False
    if not skips and sum(child.shape.tag not in content.names for child in children) <= MAX_OTHERS:
        return children, False
    ours, theirs = ([c for c in each.children if c.shape.tag in content.names] for each in (one, other))
    return _merged(ours, theirs, content), True


def _merged(ours: Sequence[Child], theirs: Sequence[Child], content: Particle | None) -> tuple[Child, ...]:
    """The children of two elements. Raises DifferError."""
    if content in (None, EXACT):
        if [child.shape.tag for child in ours] != [child.shape.tag for child in theirs]:
            raise DifferError
        loose = content is not None
        return tuple(Child(one.shape.merged(two.shape, loose=loose)) for one, two in zip(ours, theirs, strict=True))
    assert content is not None
    declared = content.names
    others = {child.shape.tag: child for child in theirs}
    known = {child.shape.tag for child in ours}
    new = [child for child in theirs if child.shape.tag not in known]
    common = [child.shape.tag for child in ours if child.shape.tag in others and child.shape.tag not in declared]
    if common != [c.shape.tag for c in theirs if c.shape.tag in known and c.shape.tag not in declared]:
        raise DifferError
    found: list[Child] = []
    for child in ours:
        other = others.get(child.shape.tag)
        if other is None:
            found.append(child._replace(least=0))
            continue
        while new and child.shape.tag not in declared and theirs.index(new[0]) < theirs.index(other):
            found.append(new.pop(0)._replace(least=0))
        both = child.shape.merged(other.shape, loose=True)
        found.append(Child(both, min(child.least, other.least), child.many or other.many))
    return (*found, *(child._replace(least=0) for child in new))
