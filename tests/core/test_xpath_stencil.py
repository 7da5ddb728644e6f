"""Stencils: what is told from a document's bytes is what the parser would have told."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.documents import Stencil, Texts, Traced
from jbi_pubsub.core.documents.stencil import MAX_EXPRESSION_BYTES, MAX_HOLES
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate

MANY = settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
TEXT = Texts(r"[ -%'-;=?-~\t\n]*+")
NUMBER = Texts(r"[+-]?\d{1,9}(?:\.\d{1,9})?")


def anything(path: Sequence[str]) -> Texts | None:
    """Any text in any leaf."""
    return TEXT


def stencil(source: bytes, texts: Any = anything) -> Stencil | None:
    return Stencil.of(source, parse_metadata(source), texts)


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
    traced = made.trace(other)
    # Expect it to be recognised, and to be what the parser makes of it
    assert traced is not None
    assert canonical(traced.root) == canonical(parse_metadata(other))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"<lon>69.2</lon>", b"", id="an element less"),
        pytest.param(b"<empty/>", b"<empty/><empty/>", id="an element more"),
        pytest.param(b"kind='x>y'", b"kind='z'", id="another attribute"),
        pytest.param(b"</m>\n", b"</m>", id="other white space"),
        pytest.param(b"urn:n", b"urn:o", id="another namespace"),
        pytest.param(b"34.5", b"<b>34.5</b>", id="an element in a leaf"),
        pytest.param(b"34.5", b"34&#46;5", id="a character reference"),
        pytest.param(b"34.5", b"34.5<!-- -->", id="a comment"),
        pytest.param(b"34.5", "34,5\u00b0".encode(), id="a character beyond ASCII"),
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
    assert made.trace(other) is None


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"<m><!-- c --><a>1</a></m>", id="a comment"),
        pytest.param(b"<m><?p i?><a>1</a></m>", id="a processing instruction"),
        pytest.param(b"<m><a>1</a><b><![CDATA[x]]></b></m>", id="CDATA"),
        pytest.param(b'<m xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><a i:type="t">1</a></m>', id="xsi:type"),
        pytest.param(b'<m xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><a i:nil="1"></a></m>', id="xsi:nil"),
        pytest.param('<?xml version="1.0" encoding="UTF-16"?><m><a>1</a></m>'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'<?xml version="1.0" encoding="UTF-7"?><m><a>1</a></m>', id="UTF-7: a plus sign shifts"),
        pytest.param(b"\xef\xbb\xbf<m><a>1</a></m>", id="a byte order mark"),
        pytest.param(b"<m/>", id="no leaf with text"),
        pytest.param(b"<m><a>" + b"x" * 10_000 + b"</a></m>", id="a large document"),
    ],
)
def test_of_what_may_be_misread_no_stencil_is_made(source: bytes) -> None:
    assert stencil(source) is None


def test_a_leaf_takes_only_the_texts_that_it_may_hold() -> None:
    # Given a stencil in which one leaf takes numbers between bounds, and another nothing but its own text
    def texts(path: Sequence[str]) -> Texts | None:
        return NUMBER._replace(above=-90.0, below=90.0) if path[-1] == "lat" else None

    made = stencil(b"<m><lat>34.5</lat><who>us</who></m>", texts)
    assert made is not None
    # Expect those only
    fits = {
        text: made.trace(b"<m><lat>%s</lat><who>%s</who></m>" % text) is not None
        for text in ((b"-89.9", b"us"), (b"90", b"us"), (b"-90.0", b"us"), (b"north", b"us"), (b"1", b"them"))
    }
    assert list(fits.values()) == [True, False, False, False, False]


def test_a_document_above_the_limit_is_left_to_the_parser_which_refuses_it() -> None:
    made = stencil(b"<m><a>1</a></m>")
    assert made is not None
    assert made.trace(b"<m><a>" + b"x" * (MAX_METADATA_BYTES - 14) + b"</a></m>") is not None
    assert made.trace(b"<m><a>" + b"x" * (MAX_METADATA_BYTES - 13) + b"</a></m>") is None


@pytest.mark.parametrize(
    ("leaves", "expression"),
    [
        pytest.param(MAX_HOLES + 1, "x", id="leaves"),
        pytest.param(20, "(?:x|" + "y" * (MAX_EXPRESSION_BYTES // 20) + ")", id="what each of them may hold"),
    ],
)
def test_the_size_of_an_expression_is_bounded(leaves: int, expression: str) -> None:
    assert stencil(b"<m>" + b"<a>x</a>" * leaves + b"</m>", lambda _: Texts(expression)) is None


def test_asking_a_traced_document_for_its_root_twice_parses_it_once() -> None:
    made = stencil(b"<m><a>1</a></m>")
    assert made is not None
    traced = made.trace(b"<m><a>2</a></m>")
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
LEAVES = (
    *("/m/a > 2", "/m/a/lat > 30", "//lat", "/m/b/a = 'N'", "/m/a/b = 'south'", "/m/lat = 1 and /m/a/@x = 1"),
    *("/m/b/lat > 0 and /m/b/lat < 40 and /m/b/lon = 'N'", "/m/e", "/m/d/e != 'N'", "/m/f = 34.5 or /m/e = 'a b'"),
)
"""What is read of single leaves, but for a few."""
OTHERS = (
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
        parsed = parse_metadata(other)
    except MetadataError:
        assert made.trace(other) is None
        return
    traced = made.trace(other)
    # Expect it to be traced if its texts are plain, and then to match what it matches when it is parsed
    used = texts[: shape.count("{}")]
    assert (traced is not None) == all(re.fullmatch(TEXT.expression, text, re.ASCII) for text in used)
    if traced is not None:
        for index in INDICES:
            assert sorted(index.match(traced)) == sorted(index.match(parsed))
        assert canonical(traced.root) == canonical(parsed)


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
    traced = made.trace(damaged) if made is not None else None
    # Expect, if it is recognised, a well-formed document of the same elements and attributes
    if traced is not None:
        elements = [(each.tag, dict(each.attrib), len(each)) for each in parse_metadata(damaged).iter()]
        assert elements == [(each.tag, dict(each.attrib), len(each)) for each in parse_metadata(source).iter()]


def test_predicates_that_come_later_are_answered_as_well() -> None:
    # Given an index and a stencil that it has read documents by
    index: PredicateIndex[str] = PredicateIndex()
    index.add("north", compile_predicate("/m/lat > 40"))
    made = stencil(b"<m><lat>1</lat><lon>2</lon></m>")
    assert made is not None

    def matched(lat: bytes, lon: bytes) -> list[str]:
        traced = made.trace(b"<m><lat>%s</lat><lon>%s</lon></m>" % (lat, lon))
        assert isinstance(traced, Traced)
        return sorted(index.match(traced))

    assert matched(b"50", b"60") == ["north"]
    # When predicates over other paths come
    index.add("east", compile_predicate("/m/lon > 40"))
    index.add("either", compile_predicate("/m/lat > 40 or contains(/m/lon, '6')"))
    # Expect all to be answered
    assert matched(b"50", b"60") == ["east", "either", "north"]
    assert matched(b"10", b"70") == ["east"]
