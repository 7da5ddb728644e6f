"""Types and registrations that leave an index with the last of their objects."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple


class Emptied(NamedTuple):
    """Numbers of types, and of registrations, of which nothing is in the index any more."""

    types: set[int]
    registrations: set[int]


def emptied_by(run: Any, types: Collection[int]) -> Emptied:
    """Delete the objects whose positions are in the table `gone` from the tables of these types, and what is empty
    then."""
    empty, ended = set(), set()
    for number in types:
        gone = f"FROM o{number} WHERE pos IN (SELECT pos FROM gone)"  # noqa: S608  # numbers and our own words
        of = run.execute(f"SELECT DISTINCT registration {gone}").fetchall()
        if of:
            ended |= {registration for (registration,) in of}
            run.execute(f"DELETE {gone}")
            run.execute(f"DELETE FROM m{number} WHERE pos IN (SELECT pos FROM gone)")  # noqa: S608  # as above
            if run.execute(f"SELECT pos FROM o{number} LIMIT 1").fetchone() is None:  # noqa: S608  # as above
                empty.add(number)
    for number in set(types) - empty:  # another type may have had a registration of that id
        if ended:
            left = f"SELECT DISTINCT registration FROM o{number} WHERE registration IN (SELECT unnest($1))"  # noqa: S608  # as above
            ended -= {registration for (registration,) in run.execute(left, [list(ended)]).fetchall()}
    for number in empty:
        run.execute(f"DROP TABLE o{number}")
        run.execute(f"DROP TABLE m{number}")
    run.execute("DELETE FROM types WHERE id IN (SELECT unnest($1))", [list(empty)])
    run.execute("DELETE FROM registrations WHERE id IN (SELECT unnest($1))", [list(ended)])
    return Emptied(empty, ended)
