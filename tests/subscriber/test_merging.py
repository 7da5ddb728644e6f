"""Results of several archives as one sequence: in order, each object once, limits and newest of each key."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jbi_pubsub.protocol.merging as merging_module
from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.protocol.merging import KeyOf, Merge, chosen
from jbi_pubsub.protocol.requests import QueryRequest

TYPE = TypeName("t")


def _object(number: int, published: float, key: str = "") -> InfoObject:
    return InfoObject(f"o{number}", TYPE, key.encode(), b"", Platform(published, "registration-1", number, 0, 0))


def _key(obj: InfoObject) -> str:
    return obj.metadata.decode()


def _merged(
    archives: list[list[InfoObject]], *, newest_first: bool = False, limit: int = 0, key: KeyOf | None = None
) -> Iterator[InfoObject]:
    """As a query asks: each archive that is wanted says what it has next."""
    merge = Merge(len(archives), newest_first=newest_first, limit=limit, key=key)
    left = [iter(archive) for archive in archives]
    while not merge.is_over:
        for part in merge.wants():
            following = next(left[part], None)
            if following is None:
                merge.end(part)
            else:
                merge.offer(part, following)
        if (obj := merge.next()) is not None:
            yield obj


ARCHIVES = st.lists(st.lists(st.integers(1, 30), max_size=12, unique=True), min_size=1, max_size=4)


@given(ARCHIVES, st.booleans(), st.integers(0, 8))
def test_each_object_comes_once_in_order_of_time(drawn: list[list[int]], newest_first: bool, limit: int) -> None:
    # Given archives in the order of their times, with copies of objects among them
    archives = [
        [_object(number, float(number)) for number in sorted(archive, reverse=newest_first)] for archive in drawn
    ]
    # When they are merged
    found = [obj.platform.sequence for obj in _merged(archives, newest_first=newest_first, limit=limit)]
    # Expect what a naive model has: all numbers once, in order, as many as are wanted
    expected = sorted({number for archive in drawn for number in archive}, reverse=newest_first)
    assert found == (expected[:limit] if limit else expected)


@given(ARCHIVES, st.booleans())
def test_the_order_of_each_archive_is_kept_however_its_times_are(drawn: list[list[int]], newest_first: bool) -> None:
    # Given archives whose objects were published in another order than they came
    archives = [[_object(100 * at + number, float(number)) for number in archive] for at, archive in enumerate(drawn)]
    found = list(_merged(archives, newest_first=newest_first))
    # Expect all of them, those of each archive in its own order
    assert len(found) == sum(map(len, archives))
    for archive in archives:
        ids = {obj.object_id for obj in archive}
        assert [obj.object_id for obj in found if obj.object_id in ids] == [obj.object_id for obj in archive]


@given(ARCHIVES, st.booleans())
def test_of_each_key_the_newest_of_all_archives_comes(drawn: list[list[int]], newest_first: bool) -> None:
    # Given what each archive has of each key as its newest, in its order
    newest = [{number % 3: number for number in sorted(archive)} for archive in drawn]
    archives = [
        [_object(n, float(n), f"key {n % 3}") for n in sorted(each.values(), reverse=newest_first)] for each in newest
    ]
    found = list(_merged(archives, newest_first=newest_first, key=_key))
    # Expect one object of each key, the newest of all, in order
    model = {number % 3: number for number in sorted(number for archive in drawn for number in archive)}
    assert [obj.platform.sequence for obj in found] == sorted(model.values(), reverse=newest_first)


def test_an_archive_that_ends_holds_up_no_other() -> None:
    # Given two archives, one of which says nothing
    merge = Merge(2)
    merge.offer(0, _object(1, 1.0))
    # Expect to be asked for what it has next, before anything comes
    assert (merge.wants(), merge.next(), merge.is_over) == ([1], None, False)
    # When it is given up, expect the other's objects
    merge.end(1)
    first = merge.next()
    assert first is not None
    assert first.object_id == "o1"
    assert merge.wants() == [0]
    merge.end(0)
    assert merge.is_over


def _chosen(objects: list[InfoObject], request: QueryRequest) -> list[str]:
    return [obj.object_id for obj in chosen(iter(objects), request)]


def test_a_request_chooses_the_newest_of_each_key_and_as_many_as_its_limit() -> None:
    # Given objects of two areas, and one of none
    areas = ("a", "b", "a", "b", "")
    objects = [
        _object(n, float(n), f"<m><area>{area}</area></m>" if area else "<m/>") for n, area in enumerate(areas, 1)
    ]
    # Expect of one sequence what an archive would choose of its own
    assert _chosen(objects, QueryRequest()) == ["o1", "o2", "o3", "o4", "o5"]
    assert _chosen(objects, QueryRequest(limit=2)) == ["o1", "o2"]
    assert _chosen(objects, QueryRequest(latest_by="//area")) == ["o3", "o4"]
    assert _chosen(objects[::-1], QueryRequest(latest_by="//area", order="newest", limit=1)) == ["o4"]


def test_no_more_is_read_than_a_limit_needs() -> None:
    objects = iter([_object(n, float(n)) for n in range(1, 5)])
    assert [obj.object_id for obj in chosen(objects, QueryRequest(limit=2))] == ["o1", "o2"]
    assert next(objects).object_id == "o3"


def test_the_newest_of_each_key_that_are_held_are_bounded_in_bytes() -> None:
    # Given objects of one key, and then of many
    one = [_object(n, float(n), "<m>a</m>") for n in range(1, 9)]
    many = [_object(n, float(n), f"<m>{n}</m>") for n in range(1, 9)]
    with patch.object(merging_module, "CHOSEN_BYTES", 40):
        # Expect what is held to count alone
        assert _chosen(one, QueryRequest(latest_by="//m")) == ["o8"]
        with pytest.raises(OversizeError, match="newest of each key"):
            _chosen(many, QueryRequest(latest_by="//m"))


def test_more_keys_than_can_be_held_are_refused() -> None:
    with patch.object(merging_module, "KEYS_MOST", 2), pytest.raises(OversizeError, match="keys"):
        list(_merged([[_object(n, 1.0, str(n)) for n in range(1, 4)], []], key=_key))


def test_copies_are_known_within_a_bound() -> None:
    # Given two archives with the same hundred objects, and memory for ten
    archive = [_object(number, float(number)) for number in range(1, 101)]
    with patch.object(merging_module, "IDS_REMEMBERED", 10):
        # Expect each once: its copies have its time, and are next to it
        assert len(list(_merged([archive, archive, archive]))) == 100
