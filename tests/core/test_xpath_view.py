"""Predicates on the combined view that speak of the publisher's part alone have the same answers asked of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.combined import NAMESPACE, TOP, Provenance, combined
from jbi_pubsub.core.info_object import Head
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.core.xpath.view import inside

SPACES = {"og": NAMESPACE, "g": NAMESPACE, "x": "urn:x"}


@pytest.mark.parametrize(
    ("predicate", "asked"),
    [
        ("/og:metadata/image", "/image"),
        ("//image[priority='1']", "//image[priority='1']"),
        ("/g:metadata//a[@k]/b = 1 and //c", "//a[@k]/b = 1 and //c"),
        (" / og:metadata / image [2]", "  / image [2]"),
        ("/og:metadata/x:image[.//og:metadata]", "/x:image[.//og:metadata]"),
        ("contains(/og:metadata/a/@k, '/og:metadata/a')", "contains(/a/@k, '/og:metadata/a')"),
        ("//a | /og:metadata/b", "//a | /b"),
        ("//a != /og:metadata/b", "//a != /b"),
        ("//a >= -1", "//a >= -1"),
        # of the platform, or perhaps so
        ("/og:metadata/og:baseObject", None),
        ("/og:metadata/*", None),
        ("/og:metadata/og:*", None),
        ("//node()", None),
        ("/og:metadata", None),
        ("//og:metadata/image", None),
        ("/og:metadata[og:baseObject]/image", None),
        ("//image[../og:baseObject]", None),
        ("//image[preceding::og:Name]", None),
        ("//image[/og:metadata/og:baseObject]", None),
        ("//image/ancestor::og:metadata", None),
        ("//image[x/og:metadata/y]", None),
        ("//image[lang('en')]", None),
        # from the document, or its element
        ("/image", None),
        ("image", None),
        ("string-length() > 3", None),
        # true without metadata
        ("not(//image)", None),
        ("contains(//image, '')", None),
        ("count(//image) = 0", None),
        ("true()", None),
        ("1 = 1", None),
        ("//image = true()", None),
        ("(//image)[1]", None),
        ("//image[", None),
    ],
)
def test_what_speaks_of_the_metadata_alone_is_asked_of_them(predicate: str, asked: str | None) -> None:
    assert inside(predicate, SPACES, TOP) == asked


NAMES = st.sampled_from(["a", "b", "c", "x:a", "og:metadata", "og:a", "*", "@k", "text()", ".", "..", "node()"])
AXES = st.sampled_from(["", "", "", "", "descendant::", "self::", "following-sibling::", "ancestor::"])
STEP = st.tuples(AXES, NAMES).map(lambda s: s[1] if s[1][0] in "@.*" else "".join(s))
CONSTANT = st.sampled_from(["1", "'1'", "-1", "''", "2.5", "'ab'", "true()"])


def paths(starts: list[str]) -> st.SearchStrategy[str]:
    inner = st.recursive(
        st.lists(STEP, min_size=1, max_size=3).map("/".join),
        lambda sub: st.one_of(
            st.tuples(sub, st.sampled_from(["=", "!=", "<", ">="]), CONSTANT).map(" ".join),
            sub.map("not({})".format),
            sub.map("count({}) > 1".format),
            st.sampled_from(["1", "2", "last()", "position() = 1"]),
        ),
        max_leaves=3,
    )
    step = st.tuples(STEP, st.one_of(st.just(""), inner.map("[{}]".format))).map("".join)
    steps = st.tuples(step, st.lists(st.tuples(st.sampled_from(["/", "//"]), step).map("".join), max_size=2))
    return st.tuples(st.sampled_from(starts), steps.map(lambda s: s[0] + "".join(s[1]))).map("".join)


PATH = paths(["/og:metadata/", "/og:metadata/", "/g:metadata//", "//", "/", ""])
PART = st.one_of(
    PATH,
    st.tuples(PATH, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "|"]), st.one_of(CONSTANT, PATH)).map(" ".join),
    st.tuples(st.sampled_from(["contains", "starts-with"]), PATH, CONSTANT).map(lambda c: f"{c[0]}({c[1]}, {c[2]})"),
    PATH.map("not({})".format),
)
PREDICATE = st.one_of(PART, st.tuples(PART, st.sampled_from(["and", "or"]), PART).map(" ".join))

TREE = st.recursive(
    st.sampled_from(["", "1", "2.5", "ab", "<!--c-->"]),
    lambda sub: st.tuples(
        st.sampled_from(["a", "b", "c", "x:a", "og:metadata"]),
        st.sampled_from(["", " k='1'", " k='ab'"]),
        st.lists(sub, max_size=3).map("".join),
    ).map(lambda e: f"<{e[0]}{e[1]}>{e[2]}</{e[0]}>"),
    max_leaves=8,
)
DOCUMENT = st.tuples(st.sampled_from(["a", "b", "x:a", "og:a"]), st.lists(TREE, max_size=3).map("".join)).map(
    lambda d: f"<{d[0]} xmlns:x='urn:x' xmlns:og='{NAMESPACE}' k='1'>{d[1]}</{d[0]}>".encode()
)


@given(PREDICATE, DOCUMENT)
@example("/og:metadata/a[2] or /og:metadata/a[1]", b"<a><a/></a>")
@example("//a[last()] = '1'", b"<b><a>1</a><a/></b>")
def test_its_answer_is_that_of_the_combined_view(predicate: str, document: bytes) -> None:
    asked = inside(predicate, SPACES, TOP)
    if asked is None:
        return
    head = Head("o", "r", 1, 1.0, "t", "1.0", document, 0)
    expected = compile_predicate(predicate, namespaces=SPACES).matches(combined(head, Provenance()))
    assert compile_predicate(asked, namespaces=SPACES).matches(etree.fromstring(document)) == expected
    nothing = combined(Head("o", "r", 1, 1.0, "t", "1.0", b"", 0), Provenance())
    assert not compile_predicate(predicate, namespaces=SPACES).matches(nothing)
