"""State tables: the states of a thing, the events of its life, and the state that follows, as data in one place.

Whoever has a state keeps a member of an Enum, and changes it by `StateTable.after` alone, under his own lock. An event
that the table does not have in that state is a fault of the program, and raises; so what can't happen is written down
as what is not there. The diagrams of docs/states.md are made from the tables. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransitionError(RuntimeError):
    """An event that can't happen in a state: a fault of the program, never of its input."""


class StateTable(Generic[S, E]):
    """The table of one kind of thing."""

    def __init__(self, name: str, initial: S, transitions: Mapping[tuple[S, E], S]) -> None:
        """`name`: of the thing, for messages and diagrams; `initial`: the state in which its life begins. Raises
        ValueError for a state that no event leads to."""
        self.name: Final = name
        self.initial: Final = initial
        self._transitions: Final = dict(transitions)
        self._final: Final = frozenset(
            each for each in type(initial)
            if all(following is each for state, _, following in self.rows() if state is each)
        )  # fmt: skip
        unreached = set(type(initial)) - {initial, *self._transitions.values()}
        if unreached:
            raise ValueError(f"{name}: no event leads to {', '.join(sorted(each.name for each in unreached))}")

    def after(self, state: S, event: E) -> S:
        """The state that follows. Raises IllegalTransitionError."""
        following = self._transitions.get((state, event))
        if following is None:
            raise IllegalTransitionError(f"{self.name}: {event.name} can't happen in state {state.name}")
        return following

    def allows(self, state: S, event: E) -> bool:
        """Whether the event can happen in that state."""
        return (state, event) in self._transitions

    def is_final(self, state: S) -> bool:
        """Whether nothing leads out of it."""
        return state in self._final

    def rows(self) -> Iterator[tuple[S, E, S]]:
        """(state, event, state that follows), as they were given."""
        for (state, event), following in self._transitions.items():
            yield state, event, following

    def diagram(self) -> str:
        """The table as a state diagram in Mermaid's language, a line each for what leads from one state to another;
        what leaves a state as it is does not show."""
        ways: dict[tuple[S, S], list[str]] = {}
        for state, event, following in self.rows():
            if state is not following:
                ways.setdefault((state, following), []).append(event.name.lower())
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial.name}"]
        lines += [f"    {a.name} --> {b.name}: {', '.join(names)}" for (a, b), names in ways.items()]
        lines += [f"    {each.name} --> [*]" for each in type(self.initial) if self.is_final(each)]
        return "\n".join(lines) + "\n"
