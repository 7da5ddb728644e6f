"""Studies decide as live matching does: in this process, in Spark's workers, and as lxml itself says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from differential import NAMESPACES, document, expression, is_taken
from lxml import etree

from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate
from jbi_pubsub.core.xpath.predicate import compiled_xpath
from jbi_pubsub.spark import dataset, passes
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, SubscriptionRow, hashed
from jbi_pubsub.spark.studies import predicates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow", reason="needs the spark extra")

VALUES = (
    " 1 ", "+1", "1e3", ".5", "-.5", "5.", ".", "-", "- 1", "NaN", "Infinity", "-0", "0418", "", " ", "true", "0x10",
    "1_000", "1,5", "&#160;1", "\N{FULLWIDTH DIGIT ONE}", "\N{ARABIC-INDIC DIGIT ONE}", "<z>1</z>2", "1<!-- -->2",
    "1<?p?>",
)  # fmt: skip
"""Where number() of XPath and of programming languages part ways (XPath 1.0, 4.4), and mixed content."""
RULES = (
    "a = 1", "a != 1", "a = '1'", "1 = a", "a > 0", "a < 1", "a >= -.5", "a = .5", "a = 1000", "a = 418", "a = '0418'",
    "number(a) = 1", "number(a) != number(a)", "a + 1 = 2", "-a < 0", "a * 2 > 1", "sum(a) = 1", "string(a) = '1'",
    "normalize-space(a) = '1'", "a = true()", "a = false()", "boolean(a)", "boolean(number(a))", "boolean(string(a))",
    "not(a)", "not(a = 1)", "true()", "false()", "a[. = 1]", "string-length(a) = 0", "a/z = 1", "count(a/text()) = 2",
)  # fmt: skip

Sets = dict[int, tuple[int, int]]
"""Of each predicate that matches: how many documents, and the sum of their hashes."""


def sets(found: Sequence[Sequence[int]], documents: Sequence[bytes]) -> Sets:
    """By the numbers of the predicates that match each document."""
    known: Sets = {}
    for at, numbers in enumerate(found):
        which = hashed(f"o{at}".encode() + documents[at]) >> 29
        for number in numbers:
            count, mixed = known.get(number, (0, 0))
            known[number] = count + 1, mixed + which
    return known


def of_study(passed: passes.Passed) -> Sets:
    assert not passed.rejects
    return {int(number): (sums[0], sums[2]) for number, sums in passed.of("match").items()}


def compare(texts: Sequence[str], documents: Sequence[bytes], folder: Path, spark: SparkSession) -> int:
    """The number of matches, of which no way says another."""
    compiled = [compile_predicate(text, namespaces=NAMESPACES) for text in texts]
    live: PredicateIndex[int] = PredicateIndex()
    for number, each in enumerate(compiled):
        live.add(number, each)
    oracles = [compiled_xpath(f"boolean({text})", NAMESPACES) for text in texts]
    subscriptions = [
        SubscriptionRow(subscription=f"s{n}", predicate=t, namespaces=NAMESPACES) for n, t in enumerate(texts)
    ]
    contracts = Contracts((), tuple(subscriptions))
    published = [PublicationRow(f"o{n}", "t", "1.0", 0.0, "r", each, 0) for n, each in enumerate(documents)]
    dataset.write(folder, contracts, published, source="test")

    as_lxml_parses = [etree.fromstring(each) for each in documents]
    lxml = sets([[n for n, oracle in enumerate(oracles) if oracle(root)] for root in as_lxml_parses], documents)
    by_live = sets([live.match(parse_metadata(each)) for each in documents], documents)
    here = of_study(passes.here(folder / "publications", contracts, predicates.STUDY.see))
    there = of_study(passes.on_spark(spark, (folder / "publications").as_uri(), contracts, predicates.STUDY.see))

    assert by_live == here == there
    refused = {n for n, each in enumerate(compiled) if each.last_error == str(each.too_costly())}
    assert len(refused) <= len(texts) // 100
    differ = {texts[n] for n in {*lxml, *here} - refused if lxml.get(n) != here.get(n)}
    assert not differ
    return sum(count for count, _ in here.values())


@pytest.mark.spark
def test_numbers_are_those_of_xpath_everywhere(tmp_path: Path, spark: SparkSession) -> None:
    documents = [f"<m><a>{value}</a></m>".encode() for value in VALUES]
    documents += [f"<m><a>{one}</a><a>{two}</a></m>".encode() for one, two in pairwise(VALUES)]

    assert compare(RULES, [*documents, b"<m/>"], tmp_path / "data", spark) > 300


GROUP = 250
"""Predicates at once: what a document may cost has a bound, and 10,000 would be beyond it."""


@pytest.mark.row("C-06")
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("number", "size"), [(250, 250), pytest.param(10_000, 10_000, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_random_predicates_match_the_same_random_documents(
    number: int, size: int, tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(f"{number} x {size}")
    documents = [document(chance) for _ in range(size)]
    matches = 0
    for group in range(0, number, GROUP):
        texts = [next(filter(is_taken, iter(lambda: expression(chance), None))) for _ in range(GROUP)]
        matches += compare(texts, documents, tmp_path / str(group), spark)

    assert matches > number * size // 20
