"""Predicates: what they mean, what is refused and how, and that lxml is the reference."""

from __future__ import annotations

import math
import random
import threading

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

import jbi_pubsub.core.xpath.predicate as predicate_module
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_filter, compile_predicate, register_language
from jbi_pubsub.core.xpath.language.analysis import skeleton
from jbi_pubsub.core.xpath.language.grammar import FUNCTIONS, MAX_LENGTH, MAX_NESTING
from jbi_pubsub.core.xpath.language.number import number

FIGURE_1 = b"""<metadata xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<mil.af.rl.jbi.Intel_Imagery/><RequiredMetadata><Type>Imagery</Type><publisher>418th</publisher></RequiredMetadata>
<ImageDescriptor><ImageType>IR</ImageType><Area>Kabul</Area><LocationCoord><lat>33.34</lat><latord>N</latord>
<long>69.98</long><longord>E</longord></LocationCoord></ImageDescriptor></metadata>"""
_COORD = "/metadata/ImageDescriptor/LocationCoord"
KABUL = (
    f"*[({_COORD}/lat>33.2) and ({_COORD}/lat<35.0) and ({_COORD}/latord='N')"
    f" and ({_COORD}/long>65.7) and ({_COORD}/long<70.0) and ({_COORD}/longord='E')]"
)


def both(expression: str, source: bytes | str, **namespaces: str) -> bool:
    """The answer of the predicate and of the index, which must be the same, and what lxml says of its own tree."""
    data = source if isinstance(source, bytes) else source.encode()
    root = parse_metadata(data)
    predicate = compile_predicate(expression, namespaces=namespaces)
    index: PredicateIndex[int] = PredicateIndex()
    index.add(1, predicate)
    alone = predicate.matches(root)
    assert bool(index.match(root)) == alone == predicate.matches(etree.fromstring(data))
    return alone


def located(lat: object, long: object, latord: str = "N") -> bytes:
    return (
        FIGURE_1.decode().replace("33.34", str(lat)).replace("69.98", str(long)).replace(">N<", f">{latord}<").encode()
    )


class TestTheKabulPredicate:
    @pytest.mark.row("J-44")
    def test_it_is_true_for_figure_1(self) -> None:
        assert both(KABUL, FIGURE_1)

    @pytest.mark.row("J-45")
    @pytest.mark.parametrize(
        ("lat", "long", "latord", "inside"),
        [
            ("33.2", "69.98", "N", False),
            ("33.2000001", "69.98", "N", True),
            ("35.0", "69.98", "N", False),
            ("34", "65.7", "N", False),
            ("34", "70.0", "N", False),
            ("34", "69", "S", False),
            ("340", "69", "N", False),  # a comparison of texts would accept it
            ("34", "680", "N", False),
            ("3.4e1", "69", "N", True),  # libxml2 reads exponents
            ("n/a", "69", "N", False),
            ("", "69", "N", False),
            (" 34 ", "\t69\n", "N", True),
            ("34", "69", " N ", False),  # texts are compared as they are
        ],
    )
    def test_its_edges_are_strict_and_numeric(self, lat: str, long: str, latord: str, inside: bool) -> None:
        assert both(KABUL, located(lat, long, latord)) is inside

    def test_it_begins_with_a_step_from_the_document_element(self) -> None:
        # Given a document element without children, `*[...]` has no node to be true of
        assert not both("*['always']", "<metadata/>")
        assert both("*['always']", "<metadata><x/></metadata>")
        assert not both("*['always']", "<metadata><!-- no element --></metadata>")

    def test_a_payload_element_is_not_seen(self) -> None:
        assert not both("//descriptor", FIGURE_1)


class TestTruth:
    """boolean(), XPath 1.0 section 4.3."""

    @pytest.mark.parametrize(
        ("expression", "true"),
        [
            ("/m/a", True),
            ("/m/zz", False),
            ("/", True),
            ("'x'", True),
            ("''", False),
            ("0", False),
            ("-0", False),
            ("0 div 0", False),
            ("count(/m/a)", True),  # at the top a number is no position
            ("count(/m/zz)", False),
            ("/m/zz=false()", True),
            ("/m/a=true()", True),
            ("contains(/m/zz,'')", True),
            ("starts-with(/m/zz,'')", True),
            ("true()", True),
            ("false()", False),
        ],
    )
    def test_of_each_type(self, expression: str, true: bool) -> None:
        assert both(expression, "<m><a>x</a></m>") is true

    @pytest.mark.parametrize(
        ("expression", "true"),
        [
            ("/m/a>7 and /m/a<6", True),  # two nodes, one for each condition
            ("/m/a!=5", True),
            ("not(/m/a=5)", False),  # not the same as !=
            ("/m/a=5 and /m/a='8'", True),
            ("/m/a[.>7 and .<6]", False),  # here one node has to satisfy both
            ("/m/zz!=5", False),
            ("not(/m/zz=5)", True),
            ("/m/n=' 7'", True),
            ("/m/n='7'", False),
            ("/m/n=7", True),
            ("/m/n<'8'", True),
            ("not(/m/a<'x')", True),
            ("1</m/a</m/n", False),  # (1</m/a) is true, true() and the node-set both count as 1
            ("5</m/n", True),
            ("/m/a=/m/n", False),
            ("/m/a+1=6", True),
            ("contains(/m/a,'8')", False),  # the first node only
            ("string(/m/a)='8'", False),
            ("number(/m/a)=5", True),
            ("/m/same!='s'", False),
            ("/m/e>-65.7", True),
            ("/m/e<-65.66", False),
        ],
    )
    def test_comparisons_hold_for_one_node_of_a_set(self, expression: str, true: bool) -> None:
        source = "<m><a>5</a><a>8</a><n> 7</n><same>s</same><same>s</same><e>-65.65</e></m>"
        assert both(expression, source) is true

    def test_a_negated_condition_inside_brackets_is_about_some_node(self) -> None:
        source = "<m><L><lat>7</lat></L><L><lat>8</lat></L></m>"
        assert both("/m/L[not(lat=7)]", source)
        assert not both("not(/m/L[lat=7])", source)
        assert both("/m/L[lat=7 and lat<8]", source)
        assert not both("/m/L[lat=7 and lat>7]", source)

    def test_positions(self) -> None:
        source = "<m><a>1</a><b>2</b></m>"
        assert both("*[1]=1", source)
        assert not both("*[1]=2", source)
        assert both("/m[count(a)]", source)  # the first and only m
        assert not both("/m[count(*)]", source)

    @pytest.mark.parametrize(
        "content", ["<a>ab</a>", "<a>a<!--x-->b</a>", "<a><![CDATA[a]]>b</a>", "<a><i>a</i>b</a>", "<a>a<?x y?>b</a>"]
    )
    def test_the_value_of_an_element_is_all_its_text(self, content: str) -> None:
        assert both("/m/a='ab'", f"<m>{content}</m>")

    def test_a_cdata_section_is_text_like_any_other(self) -> None:
        # XPath 1.0, section 5.7: a text node is never beside another one
        source = "<m><a>x<![CDATA[<y>]]>z</a></m>"
        assert both("/m/a/text() = 'x<y>z' and count(/m/a/text()) = 1", source)
        assert both("starts-with(//a/text()[1], 'x<') and not(/m/a/text()[2])", source)

    def test_names_without_prefix_are_in_no_namespace(self) -> None:
        assert not both("/m/a=1", '<m xmlns="urn:x"><a>1</a></m>')
        assert both("/x:m/x:a=1", '<m xmlns="urn:x"><a>1</a></m>', x="urn:x")
        assert both("/m/@xml:lang='en'", '<m xml:lang="en"/>')

    @pytest.mark.parametrize("name", ["\u00e9t\u00e9", "e\u0301te\u0301", "नाम", "ชื่อ", "নাম", "שֵׁם", "क्"])
    def test_names_have_the_characters_of_xml_in_any_script(self, name: str) -> None:
        # Given names with combining marks; Expect them to be taken, as prefixes too, and in filters
        source = f"<m><{name}1>5</{name}1><{name}2 {name}='6'/></m>"
        assert both(f"/m/{name}1 = 5 and /m/{name}2/@{name} > 5", source)
        assert both(f"//{name}:a - 1 = 4", "<m xmlns:x='urn:1'><x:a>5</x:a></m>", **{name: "urn:1"})
        assert compile_filter(f"//{name}1").expression == f"//{name}1"
        # Expect a digit behind a mark to be the name's, and no constant in which predicates of one form differ
        index: PredicateIndex[int] = PredicateIndex()
        for digit in (1, 2, 3):
            index.add(digit, compile_predicate(f"/m/{name}{digit}"))
        assert sorted(index.match(parse_metadata(source.encode()))) == [1, 2]
        assert skeleton(f"/m/{name}1 = 5")[1] == ["5"]

    def test_the_same_expression_differs_by_its_namespaces(self) -> None:
        source = '<m xmlns="urn:x"><a>1</a></m>'
        assert both("/p:m/p:a=1", source, p="urn:x")
        assert not both("/p:m/p:a=1", source, p="urn:y")


class TestNumbers:
    """Conversion is libxml2's, bit for bit."""

    reference = etree.XPath("number($text)", smart_strings=False)
    anywhere = etree.Element("anywhere")

    def agree(self, text: str) -> bool:
        ours, theirs = number(text), float(self.reference(self.anywhere, text=text))
        same_sign = math.copysign(1, ours) == math.copysign(1, theirs)
        return (ours == theirs and same_sign) or (ours != ours and theirs != theirs)

    @pytest.mark.parametrize(
        "text",
        ["", " 33.2 ", "+5", "1e3", "1e", "1e+", "5.", ".5", ".", "-", "--5", "- 5", "0x10", "INF", "NaN", "1_000",
         "1,5", "\u0661", "\u00a05", "1e400", "-0", "12.358816", "0" * 40 + "1", "0." + "0" * 30 + "1", "9" * 30,
         "\u00b2", "1.\u00b2"],
    )  # fmt: skip
    def test_odd_texts(self, text: str) -> None:
        assert self.agree(text)

    def test_last_bits(self) -> None:
        chance = random.Random(7)
        texts = [f"{chance.uniform(-200, 200):.{chance.randrange(17)}f}" for _ in range(20_000)]
        assert [t for t in texts if not self.agree(t)] == []
        assert any(float(t) != number(t) for t in texts)  # so float() would not do

    @settings(derandomize=True, max_examples=examples(500), deadline=None)
    @given(st.text(alphabet="0123456789.-+eE \t\n\rx", max_size=24))
    def test_any_text(self, text: str) -> None:
        assert self.agree(text)

    def test_literals_are_converted_alike(self) -> None:
        assert both("/m/a=12.358816", "<m><a>12.358816</a></m>")
        assert both("/m/a>=12.358816 and /m/a<='12.358816'", "<m><a>12.358816</a></m>")
        assert both("/m/a=1e3", "<m><a>1000</a></m>")


def node_set(chance: random.Random, depth: int = 0) -> str:
    """A random expression for a set of nodes."""
    kind = chance.random()
    if depth > 3 or kind < 0.25:
        return chance.choice(("a", "b", "//a", "/m/a", ".", "..", "@i", "*", "/", "text()", "id('x')", "//@i", "a//b"))
    inner = node_set(chance, depth + 1)
    if kind < 0.55:
        return f"{inner}{chance.choice(('|', ' | '))}{node_set(chance, depth + 1)}"
    if kind < 0.7:
        return f"({inner})"
    tails = ("[1]", "[a]", "[.='1']", "[last()]", "[1][a]", "[not(a)]", "/a", "//b", "/..", "/@i", "/text()", "/a[1]")
    return f"({inner}){chance.choice(tails)}"


class TestRefusal:
    @pytest.mark.parametrize(
        ("expression", "position", "word"),
        [
            ("/m/a[", 5, "missing"),
            ("/m/a>", 5, "missing"),
            ("", 0, "missing"),
            ("   ", 3, "missing"),
            ("a and", 5, "missing"),
            ("a='x", 2, "not closed"),
            ("a ! b", 2, "unexpected"),
            ("1 2", 2, "unexpected"),
            ("a]", 1, "unexpected"),
            ("(a or b)[1]", 11, "node-set"),
            ("1|a", 3, "union"),
            ("a|(b or c)", 10, "union"),
            ("a|count(b)", 10, "union"),
            ("/m/a=1 and foo(1)", 11, "unknown function foo"),
            ("re:test('a','b')", 0, "unknown function re:test"),
            ("document('file:///etc/passwd')", 0, "unknown function document"),
            ("contains('a')", 0, "contains() takes 2 arguments, not 1"),
            ("count(1)", 0, "node-set"),
            ("p:a=1", 0, "'p' is not bound"),
            ("a=$x", 2, "no variables"),
            ("outer::a", 0, "unknown axis"),
            ("a='\x01'", 3, "not an XML character"),
            ("a=\x00", 2, "not an XML character"),
        ],
    )
    def test_names_the_place_and_the_reason(self, expression: str, position: int, word: str) -> None:
        with pytest.raises(PredicateError) as caught:
            compile_predicate(expression, argument="predicate")
        assert word in str(caught.value)
        assert caught.value.facts["argument"] == "predicate"
        assert caught.value.facts["expression"] == expression
        assert caught.value.facts["position"] == position

    def test_is_the_same_for_filters_and_names_the_argument(self) -> None:
        with pytest.raises(PredicateError, match=r"payload_filter: .*position 2"):
            compile_filter("a[")

    def test_of_the_oversized(self) -> None:
        compile_predicate("a" * MAX_LENGTH)
        with pytest.raises(PredicateError, match="limit is"):
            compile_predicate("a" * (MAX_LENGTH + 1))

    @pytest.mark.parametrize("opening", ["(", "a[", "not(", "-"])
    def test_of_the_deep(self, opening: str) -> None:
        closing = {"(": ")", "a[": "]", "not(": ")", "-": ""}[opening]
        half = MAX_NESTING // 2
        compile_predicate(opening * half + "a" + closing * half)
        with pytest.raises(PredicateError, match="nested deeper"):
            compile_predicate(opening * (MAX_NESTING + 1) + "a" + closing * (MAX_NESTING + 1))

    def test_a_long_flat_expression_is_no_deep_one(self) -> None:
        assert both(" or ".join(f"a={i}" for i in range(900)), "<m><a>899</a></m>")
        assert both("+".join(["1"] * 3000), "<m/>")

    def test_of_what_needs_too_much_memory(self) -> None:
        with pytest.raises(PredicateError, match="joins more than"):
            compile_predicate("concat(" + ",".join(["string(/)"] * 9) + ")")

    def test_of_an_empty_prefix(self) -> None:
        with pytest.raises(PredicateError, match="prefix ''"):
            compile_predicate("a", namespaces={"": "urn:x"})

    @pytest.mark.long
    @settings(derandomize=True, max_examples=examples(1500), deadline=None)
    @given(st.lists(st.sampled_from([*"()[]/|@*.,=<>-+$:'\" ", "//", "::", "..", "a", "b1", "and", "or", "div", "not",
           "count", "text()", "1", "1.5", "'x'", "self", "p:a", "!="]), max_size=12))  # fmt: skip
    def test_any_text_is_accepted_as_lxml_does_or_refused(self, parts: list[str]) -> None:
        expression = "".join(parts)
        try:
            predicate = compile_predicate(expression)
        except PredicateError:
            return
        compiled = etree.XPath(f"boolean({expression})", regexp=False)
        root = etree.fromstring("<m><a>1<b1/></a></m>")
        try:
            expected = bool(compiled(root))
        except etree.XPathEvalError:
            expected = False
        assert predicate.matches(root) is expected

    @settings(derandomize=True, max_examples=examples(600), deadline=None)
    @given(st.integers(0, 2**32))
    def test_sets_of_nodes_are_taken_exactly_as_lxml_takes_them(self, seed: int) -> None:
        # Given an expression for a set of nodes: unions of unions, in brackets and out of them, cut and continued
        expression = node_set(random.Random(seed))
        for source in ("<m><a>1<b/></a><a i='2'/><b><a/></b></m>", "<m/>"):
            root = etree.fromstring(source)
            # Expect it to be taken, and to be true when it selects something
            assert both(expression, source) is etree.XPath(f"boolean({expression})")(root), expression

    def test_every_core_function_is_known_with_lxmls_number_of_arguments(self) -> None:
        root = etree.fromstring("<m>1</m>")
        for name, (least, greatest) in FUNCTIONS.items():
            for count in range(5):
                call = f"{name}({','.join(['.'] * count)})"
                try:
                    etree.XPath(call)(root)
                    accepted = True
                except etree.XPathEvalError as exc:
                    accepted = "number of arguments" not in str(exc)
                if name not in ("last", "position", "true", "false", "lang", "id") or count:
                    assert accepted == (least <= count <= greatest), call


class TestEvaluation:
    def test_a_failing_evaluation_is_false_and_counted(self) -> None:
        predicate = compile_predicate("position()=1")
        assert not predicate.matches(etree.fromstring("<m/>"))
        assert predicate.errors == 1
        assert "position" in predicate.last_error

    def test_one_predicate_serves_many_threads(self) -> None:
        predicate = compile_predicate("count(//a)>3")
        roots = [etree.fromstring("<m>" + "<a/>" * n + "</m>") for n in range(8)]
        answers: list[list[bool]] = []
        threads = [
            threading.Thread(target=lambda: answers.append([predicate.matches(r) for r in roots * 50]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [[n > 3 for n in range(8)] * 50] * 4

    def test_no_extension_functions(self) -> None:
        with pytest.raises(PredicateError):
            compile_predicate("re:test(a,'x')", namespaces={"re": "http://exslt.org/regular-expressions"})


class TestLanguages:
    @pytest.mark.row("J-09")
    def test_an_unknown_language_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(PredicateError, match=r"unknown predicate language 'xql'\. There (is|are) .*xpath"):
            compile_predicate("a", language="xql")
        with pytest.raises(PredicateError, match=r"unknown predicate language 'xpaht'\. Did you mean xpath\?"):
            compile_predicate("a", language="xpaht")
        with pytest.raises(PredicateError, match=r"Did you mean tcl\?"):
            compile_predicate("a", language="tlc")
        with pytest.raises(PredicateError, match="write XPath here"):
            compile_predicate("a", language="tcl")

    @pytest.mark.row("J-09")
    def test_a_plugged_in_language_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(predicate_module, "_languages", {})

        def compiler(expression: str, namespaces: object) -> object:
            if not expression.isalnum():
                raise ValueError("one word only")
            return lambda root: root.tag == expression

        register_language("tag", compiler)  # type: ignore[arg-type]  # any callable of that form
        predicate = compile_predicate("m", language="tag")
        index: PredicateIndex[str] = PredicateIndex()
        index.add("k", predicate)
        assert predicate.matches(etree.fromstring("<m/>"))
        assert index.match(etree.fromstring("<m/>")) == ["k"]
        assert index.match(etree.fromstring("<n/>")) == []
        with pytest.raises(PredicateError, match="one word only"):
            compile_predicate("two words", language="tag")

    def test_a_plugged_in_language_that_fails_is_false_and_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(predicate_module, "_languages", {})

        def broken(root: etree._Element) -> bool:
            raise ValueError("no such thing")

        register_language("broken", lambda _e, _n: broken)
        predicate = compile_predicate("x", language="broken")
        assert not predicate.matches(etree.fromstring("<m/>"))
        assert (predicate.errors, predicate.last_error) == (1, "no such thing")

    def test_xpath_cannot_be_replaced(self) -> None:
        with pytest.raises(PredicateError):
            register_language("xpath", lambda _e, _n: lambda _root: True)
