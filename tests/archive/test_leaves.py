"""What an index holds of a document: all of its leaves and attributes, or nothing at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.archive.leaves import (
    MAX_PATHS,
    MAX_TEXT,
    MAX_VALUES,
    SIZES,
    UNHELD,
    DocumentRow,
    TypePaths,
    Values,
    is_canonical,
    value_of,
)
from jbi_pubsub.core.xpath.language.number import number


def read(source: str, paths: TypePaths | None = None) -> tuple[dict[str, str], list[tuple[str, str]], set[str]]:
    paths = paths or TypePaths()
    row = paths.read(source.encode())
    assert not row.is_open
    at = {each: "/".join(paths.where(each)) for each in range(len(paths))}
    return (
        {at[each]: text for each, text in row.firsts.items()},
        [(at[each], text) for each, text in row.further],
        {at[each] for each in row.repeated},
    )


def test_leaves_and_attributes_are_held_in_document_order() -> None:
    source = "<m id='1'><a>5</a><b x='y'/><a>6</a><P><a>7</a></P><P><c/></P><a>8</a></m>"
    firsts, further, repeated = read(source)
    assert firsts == {"m/@id": "1", "m/a": "5", "m/b/@x": "y", "m/b": "", "m/P/a": "7", "m/P/c": ""}
    assert further == [("m/a", "6"), ("m/a", "8")]
    assert repeated == {"m/a", "m/P"}


def test_a_text_is_the_string_value_around_comments_and_sections() -> None:
    firsts, _, _ = read("<m><a>5<!--c-->5<?p i?><![CDATA[<5>]]>&#53;</a><b><!--c--></b></m>")
    assert firsts == {"m/a": "55<5>5", "m/b": ""}


@pytest.mark.parametrize("source", ["<m><a>5</a><a><b/></a></m>", "<m><a><b/></a><a>5</a></m>"])
def test_an_element_that_is_a_leaf_and_is_none_comes_again(source: str) -> None:
    assert read(source)[2] == {"m/a"}


def test_names_are_those_of_xpath_with_their_namespaces() -> None:
    firsts, _, _ = read("<q:m xmlns:q='urn:q' q:id='1'><a xmlns='urn:a'>5</a></q:m>")
    assert firsts == {"{urn:q}m/@{urn:q}id": "1", "{urn:q}m/{urn:a}a": "5"}


def test_what_is_known_of_a_type_can_be_kept() -> None:
    first = TypePaths()
    before = first.read(b"<m id='1'><P x='1'><a>5</a></P><b/></m>")
    again = TypePaths(first.known())
    assert again.known() == first.known()
    assert [first.is_inner(each) for each in range(len(first))].count(True) == 2  # m and P
    version = again.version
    assert again.read(b"<m id='1'><P x='1'><a>5</a></P><b/></m>") == before
    assert again.version == version
    again.read(b"<m><b><c/></b></m>")
    assert again.version > version


@pytest.mark.parametrize(
    "source",
    [
        "<m>" + "".join(f"<a{n}/>" for n in range(MAX_PATHS)) + "</m>",
        "<m>" + "<a/>" * (MAX_VALUES + 2) + "</m>",
        "<m><" + "a" * 600_000 + "/></m>",
        "<m><a></m>",
        "<!DOCTYPE m []><m/>",
        "",
    ],
    ids=["paths", "values", "names", "no xml", "doctype", "empty"],
)
def test_of_too_much_nothing_is_held(source: str) -> None:
    paths = TypePaths()
    if "a" * 99 in source:
        paths.read(source.replace("aa", "bb").encode())
    assert paths.read(source.encode()) == DocumentRow(is_open=True)
    # Expect others to be read as before
    assert paths.read(b"<m>5</m>").firsts or len(paths) >= MAX_PATHS


def test_a_document_is_large_as_it_was_published() -> None:
    paths = TypePaths()
    for text in (b"x", b">"):
        assert [paths.read(b"<m>" + text * (size - 7) + b"</m>").size for size in SIZES] == [0, 1]
    assert paths.read(b"<m>" + b"x" * SIZES[-1] + b"</m>").size == len(SIZES)


numbers = st.one_of(
    st.from_regex(r"-?[0-9]{1,16}(\.[0-9]{0,15})?", fullmatch=True),
    st.integers(-(10**15), 10**15).map(str),
    st.decimals(-(10**7), 10**7, places=6).map(str),
    st.text("0123456789.-+e \t", max_size=6),
)


@given(first=numbers, second=numbers)
def test_different_texts_are_held_as_different_values(first: str, second: str) -> None:
    held = value_of(first)
    if first != second:
        assert held != value_of(second)
    # Expect a number to be the one of XPath, and to stand alone only if its text follows from it
    assert (held[0] is None) == (number(first) != number(first))
    if held[1] is None:
        assert is_canonical(first)
        assert float(first) == held[0]


def test_neighbours_of_fifteen_digits_are_told_apart() -> None:
    for digits in ("99999999999999", "12345678901234", "90071992547409"):
        for point in range(1, 14):
            texts = [f"{digits[:point]}.{digits[point:-1]}{last}" for last in "123456789"]
            assert len({value_of(text)[0] for text in texts if is_canonical(text)}) == 9


def test_long_texts_are_not_held_and_odd_ones_are() -> None:
    assert value_of("x" * (MAX_TEXT + 1)) == UNHELD
    assert value_of("5" * (MAX_TEXT + 1)) == UNHELD
    assert value_of("x" * MAX_TEXT) == (None, "x" * MAX_TEXT)
    assert value_of("") == (None, "")
    assert value_of("-0") == (0.0, "-0")
    assert value_of("1e400") == (float("inf"), "1e400")
    assert value_of("NaN") == (None, "NaN")
    assert Values().of("007") == (7.0, "007")


_PLAIN = ("5", "007", "x", "", " y ", "it's", "-1.50", '"')
_ODD = ("é", "a&amp;b", "&#53;", "<!--c-->7", "<![CDATA[<5>]]>", "\r\n")
_IN_QUOTES = ("1", "2.50", "x y", "")
_ODD_IN_QUOTES = ("é", "&lt;", ">", "\t")


def _alike(chance: random.Random, template: str) -> bytes:
    """A document like a template: other texts in it, odd ones in every third."""
    is_odd = chance.random() < 0.3
    for mark, plain, odd in (("?", _PLAIN, _ODD), ("~", _IN_QUOTES, _ODD_IN_QUOTES)):
        while mark in template:
            text = chance.choice(odd if is_odd and chance.random() < 0.3 else plain)
            template = template.replace(mark, text, 1)
    return template.encode()


_TEMPLATES = (
    "<m id='~'><a>?</a><b>?</b><P x='~' y='1'><a>?</a></P></m>",
    "<m id='~'><a>?</a><a>?</a><P><a>?</a></P><P><a>?</a><b/></P></m>",
    "<q:m xmlns:q='urn:q' q:id='~'><q:a>?</q:a><a>?</a><q:a>?</q:a></q:m>",
    "<m>\n <a>?</a>\n <b><c/></b>\n <b>?</b>\n</m>",
    "<m>?</m>",
    "<m><!--c--><a></a><a/><b>?</b></m>",
)


@pytest.mark.parametrize("kinds", [1, 2, 6])
def test_documents_like_known_ones_are_read_as_if_they_were_parsed(kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given many documents of some kinds, in another order each time
    chance = random.Random(kinds)
    monkeypatch.setattr("jbi_pubsub.archive.leaves.MAX_VALUES", 9)
    with_stencils, traced = TypePaths(), 0
    for base in range(0, 6, kinds):
        for _ in range(400 if kinds == 6 else 250):
            source = _alike(chance, chance.choice(_TEMPLATES[base : base + kinds]))
            known = with_stencils._known.trace(source) is not None
            parsed = TypePaths(with_stencils.known())
            # Expect the same of a document that fits a stencil and of one that is parsed
            assert with_stencils.read(source) == parsed.read(source)
            traced += known
    assert traced > 150
    assert any(with_stencils._layouts.values())
