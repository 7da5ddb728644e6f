"""An index of which all objects of types and registrations go."""

from __future__ import annotations

from pathlib import Path

import pytest
from archived import Shelf, answer, record

from jbi_pubsub.archive.index import DuckIndex
from jbi_pubsub.archive.query import Cursor
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import TypeName
from tests.archive.test_index import ID


def test_of_types_and_registrations_that_are_gone_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an index with room for three types
    monkeypatch.setattr("jbi_pubsub.archive.index.MAX_TYPES", 3)
    index, at, records = DuckIndex(tmp_path, ID, 0), 0, []

    def add(count: int, *types: str, registration: str = "") -> list[int]:
        nonlocal at
        new = [
            record(
                at + n,
                b"<m><a>%d</a></m>" % n,
                type_name=types[n % len(types)],
                registration=registration or f"r{at + n}",
            )
            for n in range(1, count + 1)
        ]
        at += count
        records.extend(new)
        index.add(new, at)
        return [each.position for each in new]

    def found(name: str) -> list[int]:
        query = HistoryQuery(scopes=(Scope(TypeName(name), "/m/a > 0"),))
        return answer(Cursor(query, Shelf([r for r in records if r.position not in gone]), index, at))

    gone: set[int] = set()

    def forget(positions: list[int]) -> None:
        gone.update(positions)
        index.forget(positions)

    # When two of them go, and one shares a registration with one that stays
    stays = add(4, "stays", registration="shared")
    forget(add(4, "one", "two") + add(2, "one", registration="shared"))
    # Expect of these nothing but the registration that is shared
    assert [name for name, _ in index._types] == ["stays"]
    assert list(index._registrations) == ["shared"]
    # When others come, more of them than there is room for
    one, many = add(3, "one"), add(4, "three", "four")
    # Expect the objects of each, after a restart as well, and further ones of a type that has no room
    for _ in range(2):
        assert [found(name) for name in ("stays", "one", "two")] == [stays, one, []]
        assert sorted(found("three") + found("four")) == many
        scope = Scope(TypeName("one"), registrations=(f"r{one[1]}",))
        assert answer(Cursor(HistoryQuery(scopes=(scope,)), Shelf(records), index, at)) == [one[1]]
        index.close()
        index = DuckIndex(tmp_path, ID, at)
        assert index.why_anew == ""
    # When a type with room goes and comes while there are some without
    forget(one)
    four = add(2, "four")
    assert sorted(found("three") + found("four")) == [*many, *four]
    index.close()
