"""PredicateIndex: answers exactly what lxml answers for each predicate, while predicates come and go."""

from __future__ import annotations

import math
import random
import sys
import threading
from typing import Any

import pytest
from differential import NAMESPACES, compare, document, expression, is_taken
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.cache import SizedCache
from jbi_pubsub.core.errors import MetadataError, UnknownUidError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, bbox, compile_predicate
from jbi_pubsub.core.xpath.index import document as document_module
from jbi_pubsub.core.xpath.index import grid, placement, relative, residual
from jbi_pubsub.core.xpath.index.relative import NO_STEP
from jbi_pubsub.core.xpath.language import budget


def index_of(*expressions: str) -> PredicateIndex[int]:
    """An index with these predicates under 0, 1, 2 ..."""
    index: PredicateIndex[int] = PredicateIndex()
    for key, text in enumerate(expressions):
        index.add(key, compile_predicate(text))
    return index


def lxml_says(expressions: list[str] | tuple[str, ...], root: etree._Element) -> list[int]:
    return [k for k, text in enumerate(expressions) if etree.XPath(f"boolean({text})", namespaces=NAMESPACES)(root)]


def exactly(expressions: list[str] | tuple[str, ...], *sources: str) -> PredicateIndex[int]:
    """The index over `expressions`, after comparing its answers for `sources` with lxml's."""
    index = index_of(*expressions)
    for source in sources:
        root = parse_metadata(source.encode())
        assert sorted(index.match(root)) == lxml_says(expressions, etree.fromstring(source)), source
    return index


PARTS = ("", "2", "2003", "2003-04-01T00", "04-", "3-04", "x", "00", "2003-04-01T00:", "0")


RELATIVE = ("//a", "//P", "* * a", "m * *", "m //P a", "* //b", "//P @id", "* *", "m P * @id", "//{urn:q}a")


class TestRegistration:
    def test_keys_whose_predicate_is_true_are_answered_once(self) -> None:
        index = index_of("/m/a=1", "/m/a=2", "/m/a=1 or /m/b=1", "/m/a>0 and /m/a<3")
        assert sorted(index.match(etree.fromstring("<m><a>1</a><b>1</b></m>"))) == [0, 2, 3]

    def test_no_predicate_always_matches(self) -> None:
        index: PredicateIndex[str] = PredicateIndex()
        index.add("all", None)
        index.add("some", compile_predicate("/m/a=1"))
        assert index.match(etree.fromstring("<m/>")) == ["all"]
        assert len(index) == 2

    def test_a_removed_key_is_not_answered(self) -> None:
        index = index_of("/m/a=1", "string-length(//a)=1", "/m/a=1 or /m/b=2", "not(/m/zz)")
        root = etree.fromstring("<m><a>1</a></m>")
        for key in range(4):
            assert key in index.match(root)
            index.remove(key)
            assert key not in index.match(root)
        assert len(index) == 0
        assert index.stats()["rows"] == 0

    def test_an_unknown_key_is_refused(self) -> None:
        index = index_of("a")
        with pytest.raises(UnknownUidError, match="7"):
            index.remove(7)
        index.remove(0)
        with pytest.raises(UnknownUidError):
            index.remove(0)

    def test_a_key_added_again_has_the_new_predicate_only(self) -> None:
        index = index_of("/m/a=1")
        index.add(0, compile_predicate("/m/a=2"))
        assert index.match(etree.fromstring("<m><a>1</a></m>")) == []
        assert index.match(etree.fromstring("<m><a>2</a></m>")) == [0]
        index.add(0, None)
        assert index.match(etree.fromstring("<m/>")) == [0]
        assert len(index) == 1

    def test_lower_groups_come_first(self) -> None:
        index: PredicateIndex[int] = PredicateIndex()
        for key, group in ((1, 2), (2, 0), (3, 1)):
            index.add(key, compile_predicate(f"/m/a={group} or true()"), group=group)
        index.add(4, None, group=-1)
        assert index.match(etree.fromstring("<m/>")) == [4, 2, 3, 1]

    def test_equal_predicates_share_their_work_and_leave_one_by_one(self) -> None:
        for text in (bbox(33.2, 65.7, 35, 70, location="/m"), "//lat>33", "/m/lat=34", "/m/lat>33 and /m/latord='N'"):
            index = index_of(*[text] * 5)
            source = "<m><lat>34</lat><latord>N</latord><long>68</long><longord>E</longord></m>"
            root = etree.fromstring(source)
            assert index.stats()["distinct"] == 1
            for key in range(5):
                assert sorted(index.match(root)) == list(range(key, 5))
                index.remove(key)
            assert index.match(root) == []
            assert index.stats()["distinct"] == 0

    def test_an_element_inside_a_document_is_refused(self) -> None:
        with pytest.raises(MetadataError, match="/m/a"):
            index_of("/m").match(etree.fromstring("<m><a/></m>")[0])


class TestCounters:
    def test_evaluations_are_documents_times_predicates(self) -> None:
        index = index_of(*[f"/m/a={i}" for i in range(10)], "position()=1 or string-length(//a)=1")
        index.add(99, None)
        for _ in range(7):
            index.match(etree.fromstring("<m><a>1</a></m>"))
        stats = index.stats()
        assert stats["documents"] == 7
        assert stats["evaluations"] == 7 * 11
        assert stats["xpath_evaluations"] == 7
        assert (stats["predicates"], stats["always"]) == (11, 1)
        assert (stats["indexed"], stats["fallback"], stats["fallback_distinct"]) == (10, 1, 1)

    def test_nothing_registered_costs_no_evaluation(self) -> None:
        index: PredicateIndex[int] = PredicateIndex()
        for _ in range(10):
            index.match(etree.fromstring("<m/>"))
        assert index.stats()["evaluations"] == 0

    def test_one_failing_predicate_disturbs_no_other(self) -> None:
        failing = compile_predicate("position()=1")
        index = index_of("/m/a=1", "//a")
        index.add(2, failing)
        assert sorted(index.match(etree.fromstring("<m><a>1</a></m>"))) == [0, 1]
        assert index.stats()["errors"] == failing.errors == 1

    def test_an_indexed_predicate_needs_no_lxml(self) -> None:
        index = index_of(bbox(33.2, 65.7, 35, 70), bbox(-10, 170, 10, -170))
        index.match(etree.fromstring("<metadata/>"))
        assert index.stats()["xpath_evaluations"] == 0


class TestExplanation:
    def test_of_what_the_index_does_with_a_predicate(self) -> None:
        index: PredicateIndex[int] = PredicateIndex()
        told = index.explain(
            compile_predicate(
                "/m/a='x' and /m/b>5 and /m/b<7 and not(/m/c=1) and /m/d[2] and substring-after(a, ' - ')='y' and "
                "/m/P[floor(e)!=2] and /m/Q[position()=2]"
            )
        )
        assert told["indexed"]
        assert told["conjuncts"] == [
            {
                "access": ["/m/a = 'x'", "substring-after(a,' - ') = 'y'", "/m/b > 5.0", "/m/b < 7.0"],
                "checked": [
                    "not(/m/c = 1.0)",
                    "boolean(/m/d[2]) exists",
                    "/m/P exists",
                    "/m/P floor(e) != 2.0",
                    "/m/Q exists",
                ],
                "single": ["/m/P", "/m/Q"],
                "verified": ["position()"],
            }
        ]

    @pytest.mark.parametrize(
        ("expression", "reason"),
        [
            ("position()=1", "position()"),
            ("'x'", "a constant"),
            ("sum(//b[sum(//b)!=5])>0", "the first of several nodes"),
            ("a<1e400", "a constant that is not a finite number, or an empty text"),
            (" or ".join(f"a={n}" for n in range(20)), "more than 16 alternatives"),
        ],
    )
    def test_of_what_lxml_has_to_evaluate(self, expression: str, reason: str) -> None:
        index: PredicateIndex[int] = PredicateIndex()
        told = index.explain(compile_predicate(expression, namespaces=NAMESPACES))
        assert not told["indexed"]
        assert reason in told["reasons"]

    @pytest.mark.parametrize(
        ("expression", "operand"),
        [
            ("//a//b=1", "/descendant::a/descendant::b"),
            ("/m/q:*/a", "boolean(/m/q:*/a)"),
            ("string-length(a)>1", "string-length(a)"),
            ("sum(//a/b)>1", "sum(/descendant::a/b)"),
            ("..", "boolean(..)"),
            ("a+string-length(b)>1", "a + string-length(b)"),
            ("a|b", "boolean(a | b)"),
            ("a=b", "boolean(a = b)"),
            ("not(/m/a[b=1])", "boolean(/m/a[b = 1])"),
            ("following::a", "boolean(following::a)"),
            ("a/text()='x'", "a/text()"),
        ],
    )
    def test_of_what_lxml_evaluates_once_for_a_document(self, expression: str, operand: str) -> None:
        index: PredicateIndex[int] = PredicateIndex()
        told = index.explain(compile_predicate(expression, namespaces=NAMESPACES))
        assert told["indexed"] or expression.startswith("not")
        (conjunct,) = told["conjuncts"]
        assert operand in " ".join((*conjunct["access"], *conjunct["checked"]))


class TestExactness:
    """Every one of these has broken some index of predicates."""

    def test_a_range_over_a_path_that_occurs_twice(self) -> None:
        exactly(
            ("/m/a>7 and /m/a<6", "/m/a>5 and /m/a<6", "/m/a>=5 and /m/a<=5", "/m/a>8 and /m/a<5", "/m/a=5 and /m/a=8"),
            "<m><a>5</a><a>8</a></m>",
            "<m><a>8</a><a>5</a></m>",
            "<m><a>5.5</a></m>",
            "<m><a>x</a><a>5</a></m>",
            "<m/>",
            "<m><a>4</a><a>9</a><a/></m>",
        )

    def test_many_rows_over_paths_that_occur_often(self) -> None:
        # Given enough rows for grids, sorted pieces, and more values than are tried one by one
        chance = random.Random(5)
        texts = []
        for _ in range(400):
            low, size = chance.uniform(-50, 50), chance.choice([0, 0.01, 1, 7, 100, 1e6])
            texts.append(f"/m/a>={low:.3f} and /m/a<{low + size:.3f} and /m/k='{chance.randrange(3)}'")
            texts.append(f"/m/a>{low:.3f} and /m/a<={low + size:.3f} and /m/b>{low:.2f} and /m/b<{low + size:.2f}")
            texts.append(f"/m/b>{low:.3f} and /m/k='{chance.randrange(60)}'")
            texts.append(f"/m/b<={low:.3f}")
        sources = []
        for count in (1, 1, 2, 3, 12, 300):
            inside = "".join(
                f"<a>{chance.uniform(-60, 60):.3f}</a><b>{chance.uniform(-60, 60):.2f}</b><k>{chance.randrange(60)}</k>"
                for _ in range(count)
            )
            sources.append(f"<m>{inside}<k>1</k></m>")
        index = exactly(texts, *sources)
        assert index.stats()["fallback"] == 0
        # and I expect the same answers after half of them are gone
        for key in range(0, len(texts), 2):
            index.remove(key)
        for source in sources:
            root = parse_metadata(source.encode())
            assert sorted(index.match(root)) == [k for k in lxml_says(texts, etree.fromstring(source)) if k % 2]

    def test_conditions_on_one_of_several_nodes(self) -> None:
        exactly(
            (
                "/m/L[lat=7 and lon=1]",
                "/m/L[not(lat=7)]",
                "/m/L[lat=7]/lon=2",
                "/m[L/lat=7]/L/lon=2",
                "/m/L[lat>6][lon<2]",
            ),
            "<m><L><lat>7</lat><lon>2</lon></L><L><lat>8</lat><lon>1</lon></L></m>",
            "<m><L><lat>7</lat><lon>1</lon></L></m>",
            "<m><L><lat>7</lat></L></m>",
            "<m><L/></m>",
            "<m/>",
            "<n/>",
        )

    def test_first_node_functions(self) -> None:
        exactly(
            (
                "contains(/m/a,'x')",
                "not(contains(/m/a,'x'))",
                "string(/m/a)='x'",
                "string(/m/a)!='x'",
                "number(/m/a)!=1",
                "string(/m/a)=''",
                "normalize-space(/m/a)='x y'",
                "starts-with(/m/a,'')",
                "string(/m/a)<2",
            ),
            "<m><a>y</a><a>x</a></m>",
            "<m><a> x \n y</a></m>",
            "<m><a>x</a></m>",
            "<m><a/></m>",
            "<m/>",
            "<m><a>1</a></m>",
            "<m><a>x\u00a0y</a></m>",
        )

    def test_rows_with_equal_keys_that_mean_different_things(self) -> None:
        # Given pairs whose access key is the same, but of which one reads the first node only
        texts = ("number(a)>=5", "a>=5", "string(a)='7'", "a='7'", "number(a)>6 and number(a)<8", "a>6 and a<8")
        sources = ("<m><a>1</a><a>7</a></m>", "<m><a>7</a><a>1</a></m>", "<m><a>7</a></m>", "<m><a>1</a></m>")
        exactly(texts, *sources)
        exactly(texts[::-1], *sources)

    def test_missing_nodes(self) -> None:
        exactly(
            (
                "/m/a!=5",
                "not(/m/a=5)",
                "not(/m/a!=5)",
                "/m/a=''",
                "not(/m/a)",
                "/m/a=false()",
                "not(/m/a<5)",
                "/m/@a!='x'",
                "not(/m/@a='x')",
                "@a",
            ),
            "<m/>",
            "<m><a/></m>",
            "<m><a>5</a></m>",
            "<m><a>n/a</a></m>",
            '<m a="x"/>',
            '<m a=""/>',
            "<n><a>5</a></n>",
        )

    def test_bounds_next_to_each_other(self) -> None:
        exactly(
            (
                "a>33.2 and a<33.20001",
                "a>=33.2 and a<=33.2",
                "a>33.2",
                "a<33.2",
                "a>=-0 and a<=0",
                "a>-0.0000001 and a<0",
                "a>=1000000000000000000000 and a<1e300",
                "a>1 and a<3 and a>2",
                "a=33.2",
                "a>33.2 and a<33.2",
            ),
            *[
                f"<m><a>{v}</a></m>"
                for v in (
                    "33.2",
                    "33.200000000000003",
                    "33.200005",
                    "0",
                    "-0",
                    "1e21",
                    "1e299",
                    "1e400",
                    "-1e400",
                    "2",
                    "2.5",
                    "3",
                    "",
                    "33.2x",
                )
            ],
        )

    def test_text_across_markup(self) -> None:
        exactly(
            (
                *("/m/a='ab'", "/m/a=12", "/m/a>=12 and /m/a<13", "/m='ab'", ".='ab'"),
                *("/m/a/text()='ab'", "count(//text())=1", "/m/a/text()[1]='ab'", "//text()[.='ab']"),
                *("/m/a[text()='b']", "contains(/m/a/text(),'b')", "starts-with(//a/text(),'a') and not(//text()[2])"),
            ),
            "<m><a>a<!--x-->b</a></m>",
            "<m><a>a<![CDATA[b]]></a></m>",
            "<m><a><![CDATA[]]><![CDATA[a]]>b</a></m>",
            "<m><a>1<i>2</i></a></m>",
            "<m><a>1<?x y?>2</a></m>",
        )

    def test_a_path_first_named_while_its_parent_is_known(self) -> None:
        index = index_of("/m/a/b=1")
        root = etree.fromstring("<m x='1'><a>7<b>1</b></a></m>")
        assert index.match(root) == [0]
        for key, text in enumerate(("/m/a=71", "/m/a/b/c", "/m/@x=1", "x", "/m/a/b>0", "string(/m)='71'"), start=1):
            index.add(key, compile_predicate(text))
        assert sorted(index.match(root)) == [0, 1, 3, 5, 6]

    def test_a_condition_on_another_document_element_implies_nothing_about_this_one(self) -> None:
        exactly(
            (
                "/m/*[/o/a=1]",
                "/m/*[/*/a='1']",
                "/m/*[/m/a='1']",
                "*[/o/a='1']",
                "/*/*[/*/a>0 and /*/a<2]",
                "/m/*[/o/a]",
                "/m/*[/m/a='1'] and /o/*[/*/a='1']",
                "/m[/o/a='1']",
                "/m/a[/o/a='1']",
            ),
            "<o><a>1</a></o>",
            "<m><a>1</a></m>",
            "<p><a>1</a></p>",
            "<m a='1'/>",
            "<m/>",
        )

    def test_arithmetic_is_over_the_first_nodes_and_computed_as_libxml2_does(self) -> None:
        index = exactly(
            (
                "a + b * 2 > 7",
                "a - 33 < 5",
                "number(a) div b = 2",
                "-a >= -5",
                "a mod 3 = 2",
                "a mod 0 != 1",
                "a div 0 > 5",
                "a div -0.0 < 5",
                "5 - a * 2 <= 0.3",
                "a + 1 != 5",
                "not(a + b > 5)",
                "a * b = 0",
                "0.1 + a = '0.30000000000000004'",
                "/m/L[lat + lon > 5]",
                "L[lat * lon = 6]/lat",
                "count(a) > 1",
                "count(//lat) * 2 = 4",
                "-(-a) = 5",
                "a + a - a = a",
                "-a < 1e308 and a * 1e308 > 1e308",
            ),
            "<m><a>5</a><b>2.5</b></m>",
            "<m><a>5</a><a>1</a><b>-1</b><b>9</b></m>",
            "<m><a>0.2</a><b>1e308</b></m>",
            "<m><a>1e400</a><b>0</b></m>",
            "<m><a>-0</a></m>",
            "<m><a>x</a><b>1</b></m>",
            "<m><L><lat>1</lat></L><L><lat>2</lat><lon>3</lon></L></m>",
            "<m><L><lat>2</lat><lon>3</lon></L><x><lat>9</lat></x></m>",
            "<m/>",
        )
        assert index.stats()["fallback"] == 2  # bounds on what is divided by 0

    @settings(derandomize=True, max_examples=examples(300), deadline=None)
    @given(
        st.lists(st.sampled_from(("+{}", "-{}", "*{}", " div {}", "{}-", "{}+", "{}*", "-")), min_size=1, max_size=4),
        st.lists(st.decimals(-1000, 1000, allow_nan=False, places=3), min_size=9, max_size=9),
        st.sampled_from(("<", "<=", ">", ">=")),
    )
    def test_moving_a_constant_to_the_other_side_keeps_the_last_bit(
        self, moves: list[str], numbers: list[Any], relation: str
    ) -> None:
        # Given a path with constants around it, which is looked up by a bound for the path itself
        *constants, limit = numbers[:5]
        term = "a"
        for move, by in zip(moves, constants, strict=False):
            term = (
                f"-({term})"
                if move == "-"
                else f"{move.format(by)}({term})"
                if move[0] == "{"
                else f"({term}){move.format(by)}"
            )
        text = f"{term} {relation} {limit}"
        predicate = compile_predicate(text)
        # Expect the same answer as lxml's next to that bound
        near = [float(c) for c in predicate.constants[:1]] or [float(numbers[5])]
        values = [v for x in near for v in (x, math.nextafter(x, math.inf), math.nextafter(x, -math.inf), x + 1, x - 1)]
        exactly((text,), *(f"<m><a>{value!r}</a></m>" for value in values), "<m><a/></m>", "<m/>")

    def test_paths_to_any_depth_any_name_and_the_parent(self) -> None:
        index = exactly(
            (
                "//x='c'",
                "//x[.>5]",
                "//x[starts-with(.,'c') and ../y<5]",
                "//x[contains(.,'c')]/../y=7",
                "//m",
                ".//m",
                ".//x",
                "descendant::x=5",
                "/m//x/@id='1'",
                "//x//x",
                "//x/x='c'",
                "/*/*[x='c'][y<5]",
                "/m/*/x",
                "*[y=7]",
                "/m/*='c'",
                "not(//x)",
                "not(//x='c')",
                "//x[not(../y)]",
                "../m/x='c'",
                "x/../../m/x='c'",
                "count(//x)>1",
                "count(//x[.='c'])>1",
                "count(.//m)=0",
                "//m/..",
                "//x/../@id",
                "//x[//y=7]",
                "//x/*[/m/x='c']",
                "x='c' and /m[//x/*]",
                "/../m",
                "@id/../x='c'",
                "//x/../../y=7",
                "*/../x='c'",
                "string(//x)='c'",
                "starts-with(//x,'c')",
            ),
            "<m><x>c</x><y>3</y></m>",
            "<m><x>d</x><g><x>c</x><y>7</y></g></m>",
            "<m><g><x>c</x></g><h><x>6</x><y>3</y></h></m>",
            "<m><x id='1'>5<x>c</x></x></m>",
            "<m id='2'><!--c--><m><x>cc</x></m><y>7</y></m>",
            "<x>c</x>",
            "<m xmlns='urn:q'><x>c</x><y>3</y></m>",
            "<m/>",
        )
        assert index.stats()["fallback"] == 0

    @settings(derandomize=True, max_examples=examples(200), deadline=None)
    @given(st.integers(0, 2**32), st.lists(st.sampled_from(RELATIVE), min_size=1, max_size=4, unique=True))
    def test_what_is_read_of_an_element_depends_on_the_tags_down_to_it(self, seed: int, paths: list[str]) -> None:
        # Given what is to be read at relative paths
        step = NO_STEP
        for slot, path in enumerate(paths):
            step = step.having(tuple(path.split()), (slot, 0))
        root = parse_metadata(document(random.Random(seed)))
        read = step.nodes(root)
        for element in root.iter("*"):
            # When an element is known by its tags alone
            above = [str(each.tag) for each in reversed(list(element.iterancestors()))]
            slots, attributes = step.at([*above, str(element.tag)])
            # Expect that the same is read of it as in the walk
            assert sorted(slots) == sorted(slot for slot, node in read if node is element)
            assert {name for name, _ in attributes} <= {"id"}
        texts = [slot for slot, node in read if isinstance(node, str)]
        named = [
            slot
            for element in root.iter("*")
            for name, slot in step.at([str(each.tag) for each in (*list(element.iterancestors())[::-1], element)])[1]
            if name in element.attrib
        ]
        assert sorted(texts) == sorted(named)

    @pytest.mark.parametrize("count", [3, 400])
    def test_parts_of_many_texts_are_looked_up(self, count: int) -> None:
        # Given parts of several lengths, fewer and more than what a document could be cut into; texts short and long
        texts = [f"/m/a[contains(., '{n}')]" for n in range(count)] + ["/m/a[contains(., 'abc')]", "contains(/m/a,'b')"]
        exactly(
            texts,
            "<m>" + "".join(f"<a>x{n * 7}y</a>" for n in range(60)) + "</m>",
            "<m>" + "<a>ab</a><a>c1</a><a>2</a>" * 50 + "</m>",
            "<m><a>" + "12ab" * 500 + "</a><a>c</a></m>",
            "<m><a/><a>abc</a></m>",
        )

    def test_a_part_of_a_text_is_looked_up(self) -> None:
        texts = [f"{function}(/m/{p},'{t}')" for function in ("contains", "starts-with") for p in "ab" for t in PARTS]
        index = exactly(
            texts,
            "<m><a>2003-04-01T00</a></m>",
            "<m><a>x</a><a>2003</a><b>04-</b></m>",
            "<m><a>" + "2003-04-" * 300 + "</a><b/></m>",
            "<m/>",
        )
        assert index.stats()["fallback"] == 4  # contains(..., '') holds without a text, too
        for key in range(0, len(texts), 2):
            index.remove(key)
        root = etree.fromstring("<m><a>2003-04-01T00</a></m>")
        assert sorted(index.match(root)) == [k for k in lxml_says(texts, root) if k % 2]

    def test_random_predicates_and_documents(self) -> None:
        result = compare(examples(20_000), seed=2004)
        assert result.mismatches == ()
        assert result.indexed > result.expressions // 2
        assert result.true > result.compared // 10

    @pytest.mark.slow
    def test_many_random_predicates_and_documents(self) -> None:
        result = compare(1_000_000, seed=2026)
        assert result.mismatches == ()
        assert result.indexed > result.expressions // 2
        assert result.true > result.compared // 10

    @settings(derandomize=True, max_examples=examples(60), deadline=None)
    @given(st.integers(0, 2**32), st.lists(st.booleans(), max_size=30))
    def test_any_sequence_of_adding_removing_and_matching(self, seed: int, steps: list[bool]) -> None:
        chance = random.Random(seed)
        index: PredicateIndex[int] = PredicateIndex()
        held: dict[int, Any] = {}
        for key, adding in enumerate(steps):
            if adding or not held:
                text = next(filter(is_taken, iter(lambda: expression(chance), None)))
                index.add(key, compile_predicate(text, namespaces=NAMESPACES))
                held[key] = etree.XPath(f"boolean({text})", namespaces=NAMESPACES)
            else:
                gone = chance.choice(sorted(held))
                index.remove(gone)
                del held[gone]
            source = document(chance)
            as_lxml_parses = etree.fromstring(source)
            expected = [k for k in sorted(held) if held[k](as_lxml_parses)]
            assert sorted(index.match(parse_metadata(source))) == expected


class TestBounds:
    def test_more_kinds_of_predicates_than_families(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(placement, "MAX_FAMILIES", 3)
        texts = [f"/m/{a}='1' and /m/{b}>0 and /m/{b}<5 and /m/{c}='2'" for a in "abc" for b in "abc" for c in "abc"]
        texts += [f"/m/{a}>1" for a in "abc"] + [f"not(/m/{a}=1)" for a in "abc"]
        index = exactly(texts, "<m><a>1</a><b>2</b><c>1</c></m>", "<m><a>1</a><a>2</a><b>1</b><c>2</c></m>", "<m/>")
        assert index.stats()["families"] <= 7
        assert index.stats()["fallback"] == 0

    def test_more_paths_than_slots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(document_module, "MAX_SLOTS", 6)
        index = exactly([f"/m/a{i}=1" for i in range(20)], "<m><a3>1</a3><a17>1</a17></m>", "<m/>")
        assert index.stats()["paths"] <= 6
        assert index.stats()["fallback"] == 14

    def test_more_terms_and_relative_paths_than_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(budget, "MAX_OPERANDS", 7)
        texts = [f"a*{i}+b>5" for i in range(6)] + [f"//a{i}=1" for i in range(8)]
        index = exactly(texts, "<m><a>2</a><b>1</b><a1>1</a1><a7>1</a7></m>", "<m/>")
        assert index.stats()["fallback"] == 7
        # Expect what has no room to be looked for by the rest of a condition
        index.add(99, compile_predicate("a*9+b>5 and a=2"))
        assert index.stats()["fallback"] == 7
        assert 99 in index.match(etree.fromstring("<m><a>2</a><b>1</b></m>"))
        # and room when others have gone
        for key in range(len(texts)):
            index.remove(key)
        index.add(100, compile_predicate("a*9+b>5"))
        assert index.stats()["fallback"] == 0
        assert sum(compile_predicate(text).evaluates for text in texts) == len(texts)  # so that all are charged

    def test_a_document_that_costs_too_much_to_read_at_relative_paths_is_left_to_lxml(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Given a document whose texts stand within each other, so that reading them all is the square of reading one
        source = b"<a>" * 190 + b"x" * 900_000 + b"</a>" * 190
        predicates = {n: compile_predicate(text) for n, text in enumerate(("//a='x'", "//a=5", "//b", "/a/a"))}
        index: PredicateIndex[int] = PredicateIndex()
        for key, predicate in predicates.items():
            index.add(key, predicate)
        read: list[int] = []
        text_of = document_module._text
        monkeypatch.setattr(document_module, "_text", lambda e: read.append(len(text_of(e))) or text_of(e))
        # When it is matched, expect it not to be read to the end, and lxml to be asked, within the bounds of its cost
        assert index.match(parse_metadata(source), len(source)) == [3]
        assert sum(read) <= document_module.MAX_TEXT + 900_000
        assert [predicates[n].errors for n in range(4)] == [1, 1, 0, 0]
        # and all documents to be decided exactly, however little is read
        monkeypatch.setattr(document_module, "MAX_TEXT", 3)
        monkeypatch.setattr(relative, "MAX_NODES", 2)
        assert compare(examples(10_000), seed=11).mismatches == ()

    def test_a_path_of_any_length_is_taken(self) -> None:
        exactly(("/a" * 4000, "//a" + "/.." * 2000), "<a/>", "<a><a/></a>")

    def test_more_sizes_of_ranges_than_levels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grid, "MAX_LEVELS", 3)
        texts = [f"a>{i} and a<{i + 2**-k:.9f} and b>0 and b<{2**k}" for i in range(8) for k in range(12)]
        index = exactly(
            texts, *[f"<m><a>{v}</a><b>1</b></m>" for v in (0.0001, 3.001, 7.4, 9)], "<m><a>1.1</a><a>2</a><b>3</b></m>"
        )
        for key in range(len(texts)):
            index.remove(key)
        assert index.stats()["rows"] == 0

    def test_many_rows_in_one_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grid, "MAX_BUCKET", 400)
        texts = [f"a>{i / 1000} and a<{1 + i / 1000} and b>0 and b<1" for i in range(300)]
        texts += [f"c>={i / 1000} and c<={1 + i / 1000}" for i in range(300)]
        index = exactly(texts, *[f"<m><a>{v}</a><b>.5</b><c>{v}</c></m>" for v in (0.1234, 0.9, 1.25, 2)])
        for key in range(len(texts)):
            index.remove(key)
        assert index.stats()["rows"] == 0

    def test_what_is_remembered_of_shapes_is_bounded_in_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Given little room, and many shapes of predicates with checks that come and go
        monkeypatch.setattr(residual, "MAX_FUNCTIONS_BYTES", 20 * residual.FUNCTION_BYTES)
        index = index_of()
        texts = [f"/m/a=1 and not(/m/b{i % 40}={i}) and not(/m/c{i % 7}=1)" for i in range(300)]
        for key, text in enumerate(texts):
            index.add(key, compile_predicate(text))
        assert sorted(index.match(etree.fromstring("<m><a>1</a><b3>43</b3></m>"))) == [k for k in range(300) if k != 43]
        assert index._checks._functions.size <= residual.MAX_FUNCTIONS_BYTES
        for key in range(len(texts)):
            index.remove(key)
        # Expect nothing to be kept for a row that is gone
        assert set(index._checks.of) == {None}
        assert index._kinds == {}

    def test_what_does_not_fit_is_forgotten_and_what_is_too_large_is_not_kept(self) -> None:
        kept: SizedCache[str, int] = SizedCache(100)
        assert kept.put("a", 1, 60) == 1
        assert kept.get("a") == 1
        assert kept.put("b", 2, 60) == 2
        assert (kept.get("a"), kept.get("b"), len(kept), kept.size) == (None, 2, 1, 60)
        assert kept.put("c", 3, 101) == 3
        assert (len(kept), kept.size) == (0, 0)

    def test_numbers_of_rows_are_used_again(self) -> None:
        index = index_of("/m/a=1")
        for key in range(1, 500):
            index.add(key, compile_predicate(f"/m/a={key}"))
            index.remove(key)
        assert len(index._owners) < 10
        assert index.match(etree.fromstring("<m><a>1</a></m>")) == [0]


class TestThreads:
    @pytest.mark.parametrize("rounds", [200, pytest.param(3_000, marks=[pytest.mark.slow, pytest.mark.long])])
    def test_readers_are_exact_while_a_writer_adds_and_removes(self, rounds: int) -> None:
        # Given predicates that stay, of every kind, and documents with their known answers
        stay = (
            "/m/a=1",
            "/m/a>0 and /m/a<9",
            "//a=1",
            "/m/a=1 or /m/b=2",
            "not(/m/z=1)",
            "/m/a>0",
            "contains(/m/b,'2')",
        )
        index = index_of(*stay)
        roots = [
            etree.fromstring(s)
            for s in ("<m><a>1</a></m>", "<m><b>2</b></m>", "<m><a>4</a><a>1</a></m>", "<m><z>1</z></m>")
        ]
        expected = [lxml_says(stay, r) for r in roots]
        stop, wrong = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                for root, answer in zip(roots, expected, strict=True):
                    found = index.match(root)
                    kept = sorted(k for k in found if k < 100)
                    foreign = [k for k in found if k >= 100 and k % 2]  # odd keys never hold
                    if kept != answer or foreign or len(found) != len(set(found)):
                        wrong.append((answer, found))

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads alternate within a match
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        # while predicates with new paths and new kinds of keys come and go
        chance = random.Random(9)
        for round_ in range(rounds):
            path = f"p{round_ % 60}"
            true = chance.choice(
                ("not(/m/{p}=1)", "/m/a>0 or /m/{p}", "/m/a>=0.5 and /m/a<{n}.5", "/m/a!=77 and not(/m/{p})")
            )
            false = chance.choice(
                ("/m/{p}=1", "/m/{p}>1 and /m/{p}<2", "/m/a=1 and /m/{p}", "//{p}", "/m/a>1e6 and /m/a<2e6")
            )
            index.add(100 + 2 * round_, compile_predicate(true.format(p=path, n=round_)))
            index.add(101 + 2 * round_, compile_predicate(false.format(p=path, n=round_)))
            if round_ >= 20:
                index.remove(100 + 2 * (round_ - 20))
                index.remove(101 + 2 * (round_ - 20))
        stop.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(before)
        # I expect that no reader ever saw anything else for those that stayed
        assert wrong == []
