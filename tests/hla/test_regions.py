"""Regions: which overlap."""

from __future__ import annotations

from itertools import product
from typing import Any

from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from jbi_pubsub.hla.regions import index_of, meets

ranges = st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
boxes = st.dictionaries(st.integers(1, 3), ranges, max_size=3).map(
    lambda found: tuple((each, *found[each]) for each in sorted(found))
)


def overlap(one: Any, other: Any) -> bool:
    """Whether they have a point in common, by going through all points."""
    spans = [{each: range(lower, upper) for each, lower, upper in box} for box in (one, other)]
    everywhere = range(20)
    return any(
        all(x in span.get(each, everywhere) for span in spans for each, x in zip((1, 2, 3), point, strict=True))
        for point in product(everywhere, everywhere, everywhere)
        if all(x == 0 or any(each in span for span in spans) for each, x in zip((1, 2, 3), point, strict=True))
    )


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(boxes, max_size=2), st.lists(boxes, min_size=1, max_size=5))
def test_regions_meet_where_they_have_a_point_in_common(sent: list[Any], wanted: list[Any]) -> None:
    both = Map(enumerate(sent, 1)), Map(enumerate(wanted, 1))
    assert meets(*both) is any(overlap(one, other) for one in sent for other in wanted)


@given(st.lists(st.tuples(ranges, ranges).map(lambda two: ((1, *two[0]), (2, *two[1]))), min_size=1), ranges, ranges)
def test_many_regions_are_looked_through_as_if_one_by_one(wanted: list[Any], x: Any, y: Any) -> None:
    one = ((1, *x), (2, *y))
    found = any(all(a < d and c < b for (_, a, b), (_, c, d) in zip(one, each, strict=True)) for each in wanted)
    assert meets(Map({1: one}), Map(enumerate(wanted, 1))) is found


def test_of_many_small_regions_few_are_looked_at() -> None:
    wanted = Map({n: ((1, 0, 1000), (2, 10 * n, 10 * n + 10)) for n in range(1, 1001)})
    dimension, widest, lows, _ = index_of(wanted)
    assert (dimension, widest) == (2, 10)
    assert lows == sorted(lows)
