"""Stencils: what is told from a document's bytes is what the parser would have told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from extent import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.documents import ANY, ANY_TEXT, EXACT, Particle, Stencil, Texts, Traced
from jbi_pubsub.core.documents.plain import plain
from jbi_pubsub.core.documents.shape import MAX_FIXED, MAX_PIECES, MAX_STARTS, DifferError, DocumentShape, seen
from jbi_pubsub.core.documents.stencil import MAX_EXPRESSION_BYTES, WantedParts
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate
from jbi_pubsub.core.xpath.index.document import EMPTY, PRESENT, Paths
from jbi_pubsub.core.xpath.index.document import TEXT as NODE_TEXT

MANY = settings(max_examples=examples(300), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
NUMBER = Texts(r"[+-]?\d{1,9}(?:\.\d{1,9})?")


class Says:
    """A grammar: the same texts for any leaf, the same content for any element; elements named so are invariant."""

    def __init__(self, texts: Texts | None = ANY_TEXT, content: Particle | None = EXACT, invariant: str = "") -> None:
        self._texts = texts
        self._content = content
        self._invariant = invariant

    def texts(self, path: Sequence[str]) -> Texts | None:  # noqa: ARG002 - of any
        return self._texts

    def attribute(self, path: Sequence[str], name: str) -> Texts | None:  # noqa: ARG002 - of any
        return None

    def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:  # noqa: ARG002 - of any
        return self._content

    def is_invariant(self, path: Sequence[str]) -> bool:
        return path[-1] == self._invariant


def shape(source: bytes, grammar: Any = None) -> DocumentShape:
    return seen(source, parse_metadata(source), grammar or Says())


def stencil(source: bytes, grammar: Any = None, *others: bytes, wanted: WantedParts | None = None) -> Stencil | None:
    """Of those documents together."""
    try:
        made = shape(source, grammar)
        for other in others:
            made = made.merged(shape(other, grammar))
    except DifferError:
        return None
    return Stencil(made, everything(made) if wanted is None else wanted)


def everything(made: DocumentShape) -> WantedParts:
    """All that may be read of such documents."""
    paths = frozenset(Stencil(made)._leaves)
    return WantedParts(paths, paths)


def trace(made: Stencil, document: bytes) -> Traced | None:
    written = plain(document)
    return None if written is None else made.trace(document, written)


def fits(made: Stencil | None, *documents: bytes) -> list[bool]:
    assert made is not None
    return [trace(made, document) is not None for document in documents]


def canonical(root: Any) -> bytes:
    return etree.tostring(root, method="c14n")


SOURCE = b"""<?xml version="1.0" encoding="UTF-8"?>
<m xmlns:n="urn:n" a="1 &gt; 0">
  <n:place><lat>34.5</lat><lon>69.2</lon></n:place>
  <note kind='x>y'>a note</note><empty/><blank></blank>
</m>
"""


def test_a_document_with_other_texts_in_its_leaves_is_traced() -> None:
    # Given a stencil
    made = stencil(SOURCE)
    assert made is not None
    # When a document differs in the texts of its leaves only
    other = SOURCE.replace(b"34.5", b"41.9").replace(b"a note", b"another").replace(b"<blank>", b"<blank>\n")
    traced = trace(made, other)
    # Expect it to be recognised, and to be what the parser makes of it
    assert traced is not None
    assert canonical(traced.root) == canonical(etree.fromstring(other))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"<lon>69.2</lon>", b"", id="an element less"),
        pytest.param(b"<empty/>", b"<empty/><empty/>", id="an element more"),
        pytest.param(b"kind='x>y'", b"kind='z'", id="another attribute"),
        pytest.param(b"<empty/>", b"text<empty/>", id="text beside elements"),
        pytest.param(b"<empty/>", b"<empty />", id="the same tag written in another way"),
        pytest.param(b"urn:n", b"urn:o", id="another namespace"),
        pytest.param(b"34.5", b"<b>34.5</b>", id="an element in a leaf"),
        pytest.param(b"34.5", b"34&nbsp;5", id="an entity"),
        pytest.param(b"34.5", b"34&#10;5", id="white space by its number"),
        pytest.param(b"34.5", b"34.5<!-- -->", id="a comment"),
        pytest.param(b"34.5", b"34\xb05", id="no UTF-8"),
        pytest.param(b"34.5", b"34\xed\xa0\x80", id="half of a surrogate pair"),
        pytest.param(b"34.5", b"34\xef\xbf\xbf", id="not a character"),
        pytest.param(b"34.5", b"34\xfe", id="a byte that has a meaning in plain form"),
        pytest.param(b"34.5", b"<![CDATA[34.5]]", id="half a CDATA section"),
        pytest.param(b"<empty/>", b"<![CDATA[ ]]><empty/>", id="a CDATA section between tags"),
        pytest.param(b"<empty/>", b"&#32;<empty/>", id="white space by its number between tags"),
        pytest.param(b"kind='x>y'", b"kind='<![CDATA[x>y]]>'", id="a CDATA section in an attribute"),
        pytest.param(b"<empty/>", b"<<![CDATA[empty]]>/>", id="a CDATA section in a tag"),
        pytest.param(b"<empty/>", b"<empty<?p i?>/>", id="an instruction in a tag"),
        pytest.param(b"a note", b"a <?p i?>note", id="an instruction in a leaf"),
        pytest.param(b"<empty/>", b"<?xml i?><empty/>", id="a reserved instruction"),
        pytest.param(b"<empty/>", b"<!-- <?p -->?><empty/>", id="an instruction that begins in a comment"),
        pytest.param(b"a note", b"a\r\nnote", id="a carriage return, which the parser takes away"),
        pytest.param(b"a note", b"a ]]> note", id="what may stand in no text"),
        pytest.param(b"a note", b"a\x00note", id="a character that XML does not have"),
        pytest.param(b"</m>", b"</m><x/>", id="a second document element"),
    ],
)
def test_what_differs_in_anything_else_is_not(old: bytes, new: bytes) -> None:
    made = stencil(SOURCE)
    assert made is not None
    other = SOURCE.replace(old, new)
    assert other != SOURCE
    assert trace(made, other) is None


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"<m><a>1<!-- c --></a></m>", id="a comment in a leaf"),
        pytest.param(b"<m>text<a>1</a></m>", id="text beside elements"),
        pytest.param('<?xml version="1.0" encoding="ISO-8859-1"?><m>\u00e9</m>'.encode("latin-1"), id="Latin-1"),
        pytest.param(b'<m><a xml:id="x">1</a></m>', id="xml:id"),
        pytest.param(b"<m>" + b"<a>" * 32 + b"</a>" * 32 + b"</m>", id="deep"),
        pytest.param(b"<m><a>1<?p i?></a></m>", id="a processing instruction in a leaf"),
        pytest.param(b"<m><a>1</a><![CDATA[ ]]><b>2</b></m>", id="CDATA beside elements"),
        pytest.param(b'<m xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><a i:type="t">1</a></m>', id="xsi:type"),
        pytest.param(b'<m xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><a i:nil="1"></a></m>', id="xsi:nil"),
        pytest.param('<?xml version="1.0" encoding="UTF-16"?><m><a>1</a></m>'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'<?xml version="1.0" encoding="UTF-7"?><m><a>1</a></m>', id="UTF-7: a plus sign shifts"),
        pytest.param(b"\xef\xbb\xbf<m><a>1</a></m>", id="a byte order mark"),
    ],
)
def test_of_what_may_be_misread_no_stencil_is_made(source: bytes) -> None:
    assert stencil(source) is None


def test_a_leaf_takes_only_the_texts_that_it_may_hold() -> None:
    # Given a stencil in which one leaf takes numbers between bounds, and another nothing but texts that were seen
    class Bounded(Says):
        def texts(self, path: Sequence[str]) -> Texts | None:
            return NUMBER._replace(above=-90.0, below=90.0) if path[-1] == "lat" else None

    document = "<m><lat>{}</lat><who>{}</who></m>"
    made = stencil(document.format("34.5", "us").encode(), Bounded(), document.format("90", "you").encode())
    # Expect those only, in any combination
    documents = [("-89.9", "us"), ("90", "you"), ("-90", "us"), ("90.0", "us"), ("north", "us"), ("1", "them")]
    found = fits(made, *(document.format(*texts).encode() for texts in documents))
    assert found == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        pytest.param("a note", "\u6a4b, \u0645\u0648\u0642\u0639 \u00e9 \U0001f600", None, id="languages"),
        pytest.param("a note", "&lt;a&gt; &amp;amp; &quot;&apos;", "<a> &amp; \"'", id="entities"),
        pytest.param("a note", "&#233;&#x1F600;&#38;amp;&#60;", "\u00e9\U0001f600&amp;<", id="characters by number"),
        pytest.param("a note", "a <![CDATA[<b> & \u00e9]]> note", "a <b> & \u00e9 note", id="a CDATA section"),
        pytest.param("a note", "<![CDATA[&amp; ]]]]><![CDATA[>]]>", "&amp; ]]>", id="several"),
        pytest.param("<empty/>", "<?p i?>\n<?q a ? > & b?><empty/><?p?>", "a note", id="instructions"),
    ],
)
def test_what_may_be_written_in_many_ways_is_known_in_each(old: str, new: str, text: str | None) -> None:
    made = stencil(SOURCE)
    assert made is not None
    # Given a document with another text, or more between the tags
    document = SOURCE.decode().replace(old, new).encode()
    found = trace(made, document)
    assert found is not None
    # Expect what the parser reads
    paths = Paths()
    paths.slot(("m", "note"), NODE_TEXT)
    layout = paths.layout(EMPTY)
    assert found.read(layout)[0] == layout.read(etree.fromstring(document))[0] == [None, text or new]
    assert found.size == len(document)
    # Expect a stencil made of it to be as good
    other = stencil(document)
    assert other is not None
    assert trace(other, document.replace(b"34.5", b"1")) is not None


def test_bytes_beyond_ascii_mean_what_the_declaration_says() -> None:
    # Given a stencil of a document in ASCII that is declared to be in another encoding
    source = b'<?xml version="1.0" encoding="ISO-8859-1"?><m><a>a</a></m>'
    # Expect no bytes to be taken for UTF-8, and entities to be known
    documents = [source.replace(b"<a>a", b"<a>" + text) for text in ("\u00e9".encode(), b"\xe9", b"&amp;", b"&#233;")]
    assert fits(stencil(source), *documents) == [False, False, True, True]


def test_a_text_that_was_seen_is_taken_beside_the_certain_ones() -> None:
    made = stencil("<m><a>\u00e9</a><b>1</b></m>".encode(), Says(NUMBER))
    documents = (
        "<m><a>\u00e9</a><b>1</b></m>",
        "<m><a>2</a><b>1</b></m>",
        "<m><a>\u00e8</a><b>1</b></m>",
        "x</a><b>1</b></m>",
    )
    assert fits(made, *map(str.encode, documents)) == [True, True, False, False]


def test_texts_that_are_not_certain_each_by_itself_are_not_combined() -> None:
    # Given documents of a schema that may tie leaves together
    documents = (b"<m><a>1</a><b>1</b></m>", b"<m><a>2</a><b>2</b></m>")
    # Expect none to stand for the other
    assert stencil(documents[0], Says(texts=None, content=None), documents[1]) is None
    assert stencil(documents[0], Says(texts=None), documents[1]) is not None


@pytest.mark.parametrize(
    "gap",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b" \t\r\n", id="white space"),
        pytest.param(b"<!-- b -->", id="another comment"),
        pytest.param(b"\n<!----><!--<a>1</a>-->\n<!-- - -->", id="several"),
    ],
)
def test_between_elements_stands_what_says_nothing(gap: bytes) -> None:
    # Given a stencil of a document with comments
    source = b"<!-- c --><m><!-- c --><a>1</a><b>2</b></m><!-- c -->"
    made = stencil(source)
    # Expect any number of them anywhere in the same element, around it only where there were some
    assert fits(made, source.replace(b"<!-- c -->", gap), source.replace(b"<b>", gap + b"<b>")) == [True, True]
    assert fits(stencil(b"<m><a>1</a></m>"), b"<m><!-- c --><a>1</a></m>") == [False]


@pytest.mark.parametrize(
    "comment",
    [
        "<!-- a -- b -->",
        "<!-- a --->",
        "<!-->",
        "<!--->",
        "<!-- a",
        "<!- a -->",
        "<!-- \x00 -->",
        "<!-- \x0b -->",
        "<!-- \xe9 -->",
    ],
)
def test_what_is_no_comment_is_not_taken_for_one(comment: str) -> None:
    source = b"<m><!-- c --><a>1</a></m>"
    assert fits(stencil(source), source.replace(b"<!-- c -->", comment.encode("latin-1"))) == [False]


ITEM = Particle("element", 0, None, "i")
MODEL = Particle(
    "sequence",
    parts=(Particle("element", 1, 1, "a"), Particle("element", 0, 1, "b"), ITEM, Particle("element", 2, 3, "c")),
)


class Modelled(Says):
    """A grammar with a model for the document element."""

    def __init__(self, model: Particle) -> None:
        super().__init__()
        self._model = model

    def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:  # noqa: ARG002 - of any
        return self._model if len(path) == 1 else EXACT


@pytest.mark.parametrize(
    ("inside", "is_known"),
    [
        ("<a>1</a><c/><c/>", True),
        ("<a>1</a><b>1</b><c/><c/>", True),
        ("<a>1</a><i>1</i><c/><c/>", True),
        ("<a>1</a><b>x</b><i>1</i><i>2</i><i>3</i><c/><c/><c/>", True),
        ("<b>1</b><c/><c/>", False),
        ("<a>1</a><a>1</a><c/><c/>", False),
        ("<a>1</a><b>1</b><b>1</b><c/><c/>", False),
        ("<a>1</a><i>1</i><b>1</b><c/><c/>", False),
        ("<a>1</a><c/>", False),
        ("<a>1</a><c/><c/><c/><c/>", False),
        ("<a>1</a><c/><c/><d/>", False),
    ],
)
def test_parts_come_as_often_as_the_schema_says(inside: str, is_known: bool) -> None:
    # Given a stencil of one document with all parts, under a content model
    made = stencil(b"<m><a>1</a><b>1</b><i>1</i><c/><c/></m>", Modelled(MODEL))
    # Expect what the model says
    assert fits(made, f"<m>{inside}</m>".encode()) == [is_known]


def test_what_was_never_seen_does_not_come() -> None:
    # Given documents without an optional part of the schema
    made = stencil(b"<m><a>1</a><c/><c/></m>", Modelled(MODEL))
    # Expect those with it to be left to the parser: how it is written is not known
    assert fits(made, b"<m><a>1</a><c/><c/></m>", b"<m><a>1</a><b>1</b><c/><c/></m>") == [True, False]


def test_a_choice_that_comes_again_takes_its_parts_in_any_order() -> None:
    parts = (Particle("element", 1, 1, "a"), Particle("sequence", 1, 1, "", (Particle("element", 1, 1, "b"), ITEM)))
    made = stencil(b"<m><a>1</a><b>1</b><i>1</i></m>", Modelled(Particle("choice", 0, None, "", parts)))
    documents = [
        b"<m><b>1</b><a>1</a><a>1</a><b>2</b><i/></m>",
        b"<m><b>1</b><i>1</i><i>2</i><b>2</b></m>",
        b"<m><i>1</i></m>",
    ]
    assert fits(made, *documents) == [False, True, False]  # <i/> is written in another way


def test_where_anything_may_come_parts_come_as_they_were_seen() -> None:
    # Given documents in which the schema does not say what comes
    made = stencil(b"<m><a>1</a><b>1</b></m>", Says(content=ANY), b"<m><a>1</a><c>1</c><c>1</c></m>")
    # Expect what was missing once to be optional, and what came twice to come again
    inside = [b"<a>1</a>", b"<a>1</a><b>1</b><c>1</c>", b"<a>1</a><c>1</c><c>1</c><c>1</c>", b"<b>1</b>", b"<a/>"]
    assert fits(made, *(b"<m>%s</m>" % each for each in inside)) == [True, True, True, False, False]
    assert stencil(b"<m><a/><b/></m>", Says(content=ANY), b"<m><b/><a/></m>") is None


def test_nodes_of_one_path_come_in_the_order_of_the_document() -> None:
    # Given elements of one name that are written one for one, some of them with parts that come again and again
    class Some(Says):
        def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:
            return ANY if list(path) == ["m", "b"] and tags == ["c", "c"] else EXACT

    made = stencil(b"<m><b><c>1</c></b><b><c>2</c><c>3</c></b><b><c>4</c></b></m>", Some())
    assert made is not None
    traced = trace(made, b"<m><b><c>5</c></b><b><c>6</c></b><b><c>7</c></b></m>")
    assert traced is not None
    # Expect all nodes of the path, in the order in which they stand
    paths = Paths()
    paths.slot(("m", "b", "c"), NODE_TEXT)
    layout = paths.layout(EMPTY)
    assert traced.read(layout) == layout.read(traced.root)
    assert traced.read(layout)[1] == {1: ["5", "6", "7"]}


def test_an_element_that_is_a_leaf_here_and_none_there_has_its_whole_text() -> None:
    made = stencil(b"<m><b><c>1</c></b><b>2</b></m>")
    assert made is not None
    traced = trace(made, b"<m><b><c>3</c></b><b>4</b></m>")
    assert traced is not None
    paths = Paths()
    paths.slot(("m", "b"), NODE_TEXT)
    assert traced.read(paths.layout(EMPTY))[1] == {1: ["3", "4"]}


def test_names_that_mean_something_else_have_a_shape_of_their_own() -> None:
    # Given documents that write the same name, bound to other namespaces
    one, two = b'<m><p xmlns:n="urn:1"><n:a/></p></m>', b'<m><p xmlns:n="urn:2"><n:a/></p></m>'
    assert stencil(one, Says(content=ANY), two) is None


def test_start_tags_that_were_seen_are_taken_and_no_others() -> None:
    made = stencil(b'<m><a x="1">1</a></m>', Says(content=ANY), b"<m><a>1</a></m>", b"<m><a/></m>")
    documents = [
        b'<m><a x="1">2</a></m>',
        b"<m><a>3</a></m>",
        b"<m><a/></m>",
        b'<m><a x="2">2</a></m>',
        b'<m><a x="1"/></m>',
    ]
    assert fits(made, *documents) == [True, True, True, False, False]


def test_attributes_that_were_seen_in_several_ways_come_in_any_order() -> None:
    # Given a stencil of start tags that differ in their attributes
    starts = (' x="1" y="a"', ' y="b" x=\'2\' z=""', ' x="1" xml:lang="en"', ' xml:lang="de" y="a x=" x="1"')
    first, *others = (f"<m><a{start}>1</a></m>".encode() for start in starts)
    made = stencil(first, Says(content=ANY), *others)
    assert made is not None
    # Expect any of these, in any order and with values that were seen, if those that were always there are
    good = (' x="1"', "  z=\"\"\n x='2' ", ' y="b" xml:lang="de" x="1"', ' x="1" z=""')
    wrong = (
        "",
        ' y="a"',
        ' x="3"',
        ' x="1" q="1"',
        ' x="1" x="1"',
        " x=\"1\" x='2'",
        ' x="1"y="a"',
        ' x="1" y="a" y="b"',
    )
    assert fits(made, *(f"<m><a{start}>1</a></m>".encode() for start in good)) == [True] * len(good)
    assert fits(made, *(f"<m><a{start}>1</a></m>".encode() for start in wrong)) == [False] * len(wrong)
    # and to be read as the parser reads them
    paths = Paths()
    for name in ("@x", "@y", "@z", "@{http://www.w3.org/XML/1998/namespace}lang"):
        paths.slot(("m", "a", name), NODE_TEXT)
        paths.slot(("m", "a", name), PRESENT)
    layout = paths.layout(EMPTY)
    for start in good:
        document = f"<m><a{start}>1</a></m>".encode()
        found = trace(made, document)
        assert found is not None
        assert found.read(layout) == layout.read(etree.fromstring(document))


def test_attributes_that_may_mean_something_else_in_another_order_have_no_stencil() -> None:
    # Given start tags with attributes that two prefixes of one namespace may give twice, or with a bracket in a value
    spaces = 'xmlns:a="urn:u" xmlns:b="urn:u"'
    for values in (("a:x", "b:x", "a:y", "b:y"), ("x='>' q", "y", "z", "q")):
        documents = [f'<m {spaces}><a {value}="1">1</a></m>'.encode() for value in values]
        # Expect as many of them as are taken as they are written, and not more
        assert stencil(documents[0], Says(content=ANY), *documents[1:MAX_STARTS]) is not None
        assert stencil(documents[0], Says(content=ANY), *documents[1:]) is None


def test_attributes_hold_what_they_may() -> None:
    # Given a stencil in which one attribute takes numbers below ten, and others nothing but their own values
    class Attributes(Says):
        def attribute(self, path: Sequence[str], name: str) -> Texts | None:  # noqa: ARG002 - of any
            return {"x": NUMBER._replace(below=10.0), "t": ANY_TEXT}.get(name)

    made = stencil(b"<m><a x='1' y=\"1\" t='a'/><a x='2' y=\"1\" t='b'/></m>", Attributes(content=ANY))
    assert made is not None
    starts = (b"x='3' y=\"1\" t=''", b"x='11' y=\"1\" t='b'", b"x='' y=\"1\" t='b'", b"x='3' y=\"2\" t='b'")
    starts += (b"x='3' y=\"1\" t='a\tb'", b"x='3' y=\"1\" t='a' z='b'", b"y=\"1\" x='3' t='b'", b'x=\'3\' y="1" t="b"')
    assert fits(made, *(b"<m><a %s/></m>" % start for start in starts)) == [True] + 7 * [False]
    # Expect them to be read, and those that are always the same
    paths = Paths()
    for name, reading in (("@x", NODE_TEXT), ("@y", NODE_TEXT), ("@t", NODE_TEXT), ("@z", NODE_TEXT)):
        paths.slot(("m", "a", name), reading)
    layout = paths.layout(EMPTY)
    traced = trace(made, b"<m><a x='4' y=\"1\" t='c'/><a x='5' y=\"1\" t=' '/></m>")
    assert traced is not None
    assert traced.read(layout) == layout.read(traced.root)
    assert traced.read(layout) == ([None, "4", "1", "c", None], {1: ["4", "5"], 2: ["1", "1"], 3: ["c", " "]})


@pytest.mark.parametrize(
    "before", ["""a=' x="1" '""", """a=" x='1' \"""", "xmlns:p='urn:p' p:a=' x=\"1\" '", "xmlns=''"]
)
def test_what_looks_like_an_attribute_within_a_value_is_none(before: str) -> None:
    # Given a stencil of a document with an attribute that takes numbers, behind one whose value looks like it
    class Attributes(Says):
        def attribute(self, path: Sequence[str], name: str) -> Texts | None:  # noqa: ARG002 - of any
            return NUMBER if name == "x" else None

    made = stencil(f'<m {before} x="1"/>'.encode(), Attributes())
    # Expect the attribute itself to take another number, and nothing else to change
    if made is not None:
        assert fits(made, f'<m {before} x="7"/>'.encode()) == [True]
        if "1" in before:
            assert fits(made, f'<m {before.replace("1", "7")} x="1"/>'.encode()) == [False]


def test_attributes_of_one_path_come_in_the_order_of_the_document() -> None:
    # Given elements of one name, with an attribute that is always the same here and may be any number there
    class Attributes(Says):
        def attribute(self, path: Sequence[str], name: str) -> Texts | None:  # noqa: ARG002 - of any
            return NUMBER

    made = stencil(b"<m><a x='us'/><a x='1'/></m>", Attributes())
    assert made is not None
    paths = Paths()
    paths.slot(("m", "a", "@x"), NODE_TEXT)
    layout = paths.layout(EMPTY)
    traced = trace(made, b"<m><a x='us'/><a x='2'/></m>")
    assert traced is not None
    # Expect both values, in this order
    assert traced.read(layout) == ([None, "us"], {1: ["us", "2"]})


def test_texts_kept_as_they_were_seen_are_few() -> None:
    many = [b"<m><a>%d</a></m>" % number for number in range(MAX_FIXED + 1)]
    assert stencil(many[0], Says(texts=None), *many[1:-1]) is not None
    assert stencil(many[0], Says(texts=None), *many[1:]) is None


def test_what_is_invariant_is_told_apart() -> None:
    # Given a stencil in which `k` is invariant, and comes again and again
    model = Particle("sequence", parts=(Particle("element", 0, None, "k"), Particle("element", 0, 1, "v")))
    grammar = Modelled(model)
    grammar._invariant = "k"
    made = stencil(b"<m><k>a</k><k>b</k><v>1</v></m>", grammar)
    assert made is not None

    def told(inside: bytes) -> Any:
        traced = trace(made, b"<m>%s</m>" % inside)
        assert traced is not None
        return traced.invariants

    # Expect equal invariants only of documents that say the same of it
    assert told(b"<k>a</k><k>b</k><v>1</v>") == told(b"<k>a</k><k>b</k><v>2</v>") == told(b"<k>a</k><k>b</k>")
    others = [b"<k>a</k>", b"<k>b</k><k>a</k>", b"<k>a</k><k>c</k>", b"<k>ab</k>", b"", b"<k>a</k><k>b</k><k></k>"]
    assert len({told(each) for each in (*others, b"<k>a</k><k>b</k>")}) == len(others) + 1


def test_a_document_above_the_limit_is_left_to_the_parser_which_refuses_it() -> None:
    made = stencil(b"<m><a>1</a></m>")
    assert made is not None
    assert trace(made, b"<m><a>" + b"x" * (MAX_METADATA_BYTES - 14) + b"</a></m>") is not None
    assert trace(made, b"<m><a>" + b"x" * (MAX_METADATA_BYTES - 13) + b"</a></m>") is None


@pytest.mark.parametrize(
    ("leaves", "expression", "content"),
    [
        pytest.param(500, "(?:x|" + "y" * 200 + ")", EXACT, id="what each of many may hold"),
        pytest.param(1, "(?:x|" + "y" * MAX_EXPRESSION_BYTES + ")", EXACT, id="what one may hold"),
        pytest.param(2, "(?:x|" + "y" * (MAX_EXPRESSION_BYTES // 2) + ")", ANY, id="what comes again and again"),
    ],
)
def test_the_size_of_an_expression_is_bounded(leaves: int, expression: str, content: Particle) -> None:
    with pytest.raises(OverflowError):
        stencil(b"<m>" + b"<a>x</a>" * leaves + b"</m>", Says(Texts(expression), content))


def test_of_a_document_of_many_pieces_no_stencil_is_made() -> None:
    assert stencil(b"<m>" + b"<a/>" * (MAX_PIECES - 1) + b"</m>", Says(content=ANY)) is not None
    assert stencil(b"<m>" + b"<a/>" * MAX_PIECES + b"</m>", Says(content=ANY)) is None
    attributes = " ".join(f'a{number}="1"' for number in range(MAX_PIECES))
    assert stencil(f"<m {attributes}/>".encode()) is None


LONG = 1 << 19
HOSTILE = {
    "space": b" " * LONG,
    "line ends": b"\r\n" * (LONG // 2),
    "comments": b"<!-- c -->" * (LONG // 10),
    "a comment that does not end": b"<!--" + b"- " * (LONG // 2),
    "hyphens": b"<!--" + b"-" * LONG,
    "comments that begin": b"<!--" * (LONG // 4),
    "items": b"<i>1</i>" * (LONG // 8),
    "items apart": b"<i>1</i> " * (LONG // 9),
    "items that end badly": b"<i>1</i>" * (LONG // 8) + b"<i>1</j>",
    "parts": b"<p><i>1</i><b>1</b></p>" * (LONG // 23),
    "parts that begin": b"<p><i>1</i>" * (LONG // 11),
    "items in a part that ends badly": b"<p>" + b"<i>1</i>" * (LONG // 8) + b"</q>",
    "optional ones": b"<a>1</a><b>1</b>" * (LONG // 16),
    "a text": b"<a>" + b"1" * LONG,
    "tags that begin": b"<a" * (LONG // 2),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_document_takes_longer_than_its_length(what: str) -> None:
    # Given a stencil with all that may come again or not, and leaves whose texts can be read in two ways
    elements = {name: Particle("element", 0, 1, name) for name in "ab"}
    part = Particle("element", 0, None, "p")
    any_order = Particle("choice", 0, None, "", (part, *elements.values()))
    leaves = tuple(Particle("element", 1, 1, f"n{number}") for number in range(60))

    class Loose(Says):
        def texts(self, path: Sequence[str]) -> Texts | None:  # noqa: ARG002 - of any
            return Texts("(?:1|2|11|[0-9]{1,9})")

        def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:  # noqa: ARG002
            inside = Particle("sequence", 1, 1, "", (ITEM, elements["b"]))
            return {1: Particle("sequence", 1, 1, "", (*leaves, any_order)), 2: inside}.get(len(path), EXACT)

    start = "".join(f"<n{number}>{{}}</n{number}>" for number in range(60))
    sources = [f"<m><!-- c -->{start}<a>1</a><p><i>1</i><b>1</b></p><b>1</b></m>".replace("{}", text) for text in "1x"]
    made = stencil(sources[0].encode(), Loose(), sources[1].encode())
    assert made is not None
    head = b"<m>" + start.replace("{}", "1").encode()
    # When a long document comes that is wrong only at its end, Expect an answer in the life of the test
    for end in (b"", b"</m", b"<x/></m>", b"<!-- c --></m>x"):
        assert trace(made, head + HOSTILE[what] + end) is None


def test_asking_a_traced_document_for_its_root_twice_parses_it_once() -> None:
    made = stencil(b"<m><a>1</a></m>")
    assert made is not None
    traced = trace(made, b"<m><a>2</a></m>")
    assert traced is not None
    assert traced.root is traced.root


# -- against the parser ---------------------------------------------------------------------------------------------

NAMES = ("a", "b", "n:c", "lat", "lon", "d", "e", "f")


def document(seed: int) -> str:
    """A small document, its leaves with texts in them: `{}` stands where one may be."""
    rng = random.Random(seed)
    names = rng.choice((NAMES, NAMES[:3]))

    def element(depth: int) -> str:
        name = rng.choice(names)
        attributes = rng.choice(("", "", ' x="1"', " y='&lt;>'"))
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(
                (f"<{name}{attributes}/>", f"<{name}{attributes}>{{}}</{name} >", f"<{name}>{{}}</{name}>")
            )
        inside = "".join(element(depth - 1) + rng.choice(("", "\n", " t ")) for _ in range(rng.randrange(1, 4)))
        return f"<{name}{attributes}>{inside}</{name}>"

    return f'<m xmlns:n="urn:n">{element(3)}{element(2)}</m>'


TEXTS = ("", "1", "34.5", "-7", "N", "south", "a b", " 1 ", "1e3", "&amp;", "é", "a\r\nb", "]", ">")
TEXTS += ("<![CDATA[1 & 2]]>", "<![CDATA[]]>")
LEAVES = (
    *("/m/a > 2", "/m/a/lat > 30", "//lat", "/m/b/a = 'N'", "/m/a/b = 'south'", "/m/lat = 1 and /m/a/@x = 1"),
    *("/m/b/lat > 0 and /m/b/lat < 40 and /m/b/lon = 'N'", "/m/e", "/m/d/e != 'N'", "/m/f = 34.5 or /m/e = 'a b'"),
)
"""What is read of single leaves, but for a few."""
OTHERS = (
    *("lat + lon > 40", "a * 2 >= 14 and b", "-a < -5", "//lat - 3 > 5", "//a[starts-with(., '7') and ../b]", "//b//a"),
    *("*/a mod 2 = 1", "/m/*[a='7'][lat > 1]", "count(//a) - count(//b) > 0", "count(*) = 2", "contains(//b, '7')"),
    *("//@a", ".//b/@x='1'", "//a != 7", "//b/../a"),
    *("//a = 1", "count(//a) > 2", "*[lat > 0 and a]", "not(/m/a)", "/m/b[a = '1']/lat > 0", "contains(/m/a, 'N')"),
    *("/m = '1'", "/m/a = /m/b", "string-length(//b) > 1", "/m/a != 'N'", "/m/*/a = 34.5", "sum(//lat) > 5"),
)


def index_of(*predicates: str) -> PredicateIndex[int]:
    made: PredicateIndex[int] = PredicateIndex()
    for number, predicate in enumerate(predicates):
        made.add(number, compile_predicate(predicate))
    return made


INDICES = (index_of(*LEAVES), index_of(*LEAVES, *OTHERS))


@MANY
@given(seed=st.integers(0, 10**6), texts=st.lists(st.sampled_from(TEXTS), min_size=60, max_size=60))
def test_traced_documents_match_what_parsed_ones_do(seed: int, texts: list[str]) -> None:
    # Given a stencil of some document
    shape = document(seed)
    made = stencil(shape.replace("{}", "7").encode())
    if made is None:
        return
    # When another one of that shape comes
    other = shape.format(*texts).encode()
    try:
        parsed = etree.fromstring(other)
    except etree.XMLSyntaxError:
        assert trace(made, other) is None
        return
    traced = trace(made, other)
    # Expect it to be traced unless a text is left to the parser, and then to match what it matches when it is parsed
    used = texts[: shape.count("{}")]
    assert (traced is not None) == {"a\r\nb", ">", "<![CDATA[]]>"}.isdisjoint(used)
    if traced is not None:
        for index in INDICES:
            assert sorted(index.match(traced)) == sorted(index.match(parsed))
        assert canonical(traced.root) == canonical(parsed)


@pytest.mark.long
@MANY
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=6), text=st.sampled_from(TEXTS))
def test_documents_with_a_part_more_or_less_match_what_parsed_ones_do(seeds: list[int], text: str) -> None:
    # Given a stencil of documents in which anything may come
    first, *others = (f"<m>{varied(seed)}</m>".encode() for seed in seeds[:-1])
    try:
        made = stencil(first, Says(content=ANY), *others)
    except DifferError:
        made = None
    if made is None:
        return
    # When one comes, with a comment here and there
    document = f"<m>{varied(seeds[-1])}</m>".replace("7", text).encode()
    traced = trace(made, document)
    # Expect, if it is known, what the parser says
    if traced is not None:
        parsed = etree.fromstring(document)
        for index in INDICES:
            assert sorted(index.match(traced)) == sorted(index.match(parsed))
            layout = index._state.layout
            found, expected = traced.read(layout), layout.read(parsed)
            assert repr(found[0]) == repr(expected[0])
            assert repr(sorted(found[1].items())) == repr(sorted(expected[1].items()))


def varied(seed: int) -> str:
    """Parts of a document in one order, each there or not, some of them again and again."""
    rng = random.Random(seed)

    def times(part: str, most: int) -> str:
        return "".join(rng.choice(("", "\n", "<!-- c -->")) + part for _ in range(rng.randrange(most + 1)))

    leaf = rng.choice(("<lat>7</lat>", "<lat/>", "<lat></lat>"))
    a = times("<a>7</a>", 2) if rng.random() < 0.7 else times('<a x="1">7</a>', 1)
    b = times(f"<b>{times('<a>7</a>', 2)}{leaf}{times('<lon>7</lon>', 2)}</b>", 3)
    return f"{a}{b}{times(leaf, 1)}{times('<e>7</e>', 3)}"


@MANY
@given(seed=st.integers(0, 10**6), changes=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=3))
def test_damaged_documents_are_traced_only_if_they_still_are_what_the_stencil_says(
    seed: int, changes: list[tuple[int, bytes]]
) -> None:
    # Given a stencil, and a document that was damaged somewhere
    source = document(seed).replace("{}", "34.5").encode()
    made = stencil(source)
    damaged = source
    for at, what in changes:
        at %= len(damaged)
        damaged = damaged[:at] + what + damaged[at + len(what) :]
    traced = trace(made, damaged) if made is not None else None
    # Expect, if it is recognised, a well-formed document of the same elements and attributes
    if traced is not None:
        elements = [(each.tag, dict(each.attrib), len(each)) for each in etree.fromstring(damaged).iter()]
        assert elements == [(each.tag, dict(each.attrib), len(each)) for each in etree.fromstring(source).iter()]


def test_for_relative_paths_terms_and_counts_nothing_is_parsed() -> None:
    # Given a stencil, and predicates that are about elements of any name, anywhere, and computed
    made = stencil(b"<m><g><x>c</x><y>3</y></g><x>d</x></m>")
    assert made is not None
    index = index_of(
        "//y[starts-with(., '3')]", "//x = 'c'", "//y * 2 > 7", "*/y = 4", "count(//x) = 2", "//x[../y = 5]"
    )
    # When documents of that kind come, expect their answers without a parser
    for x, y, answer in ((b"c", b"3", [0, 1, 4]), (b"k", b"4", [2, 3, 4])):
        traced = trace(made, b"<m><g><x>%s</x><y>%s</y></g><x>e</x></m>" % (x, y))
        assert isinstance(traced, Traced)
        assert sorted(index.match(traced)) == answer
        assert traced._root is None


def test_predicates_that_come_later_are_answered_as_well() -> None:
    # Given an index and a stencil that it has read documents by
    index: PredicateIndex[str] = PredicateIndex()
    index.add("north", compile_predicate("/m/lat > 40"))
    made = stencil(b"<m><lat>1</lat><lon>2</lon></m>", wanted=WantedParts(frozenset([("m", "lat")])))
    assert made is not None

    def matched(lat: bytes, lon: bytes) -> list[str]:
        traced = trace(made, b"<m><lat>%s</lat><lon>%s</lon></m>" % (lat, lon))
        assert isinstance(traced, Traced)
        return sorted(index.match(traced))

    assert matched(b"50", b"60") == ["north"]
    # When predicates over other paths come
    index.add("east", compile_predicate("/m/lon > 40"))
    index.add("either", compile_predicate("/m/lat > 40 or contains(/m/lon, '6')"))
    # Expect all to be answered
    assert matched(b"50", b"60") == ["east", "either", "north"]
    assert matched(b"10", b"70") == ["east"]


@pytest.mark.parametrize(
    ("texts", "is_parsed"),
    [
        (["g/y * 2 > 7", "/m/g/y=4", "number(g/y) - 1 < 2.5"], False),
        (["//x[starts-with(.,'c') and ../y<5]", "*/y=4", "count(//x)=1", "//h/@id='1'", "//g='d9'"], True),
    ],
    ids=["terms", "relative paths"],
)
def test_a_known_document_is_parsed_for_what_its_tree_alone_says(texts: list[str], is_parsed: bool) -> None:
    # Given a stencil, and predicates that lxml need not look at, or must for some
    source = b"<m><g><x>c</x><y>3</y></g><h id='1'/></m>"
    made = stencil(source)
    assert made is not None
    index = index_of(*texts)
    for x, y in (("c", "3"), ("cd", "4"), ("d", "9")):
        # When a document of that kind comes
        data = source.replace(b">c<", f">{x}<".encode()).replace(b">3<", f">{y}<".encode())
        traced = trace(made, data)
        assert traced is not None
        # Expect lxml's answers, with a parser where the index reads relative paths
        expected = [n for n, text in enumerate(texts) if etree.fromstring(data).xpath(f"boolean({text})")]
        assert sorted(index.match(traced)) == expected
        assert (traced._root is not None) == is_parsed
