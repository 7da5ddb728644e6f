"""Scripts: what federates do, in text.

    f0: request_federation_save("L")                    # one service after the other
    f0 <- federation_saved("L")                         # go on when it was told that
    * <- initiate_federate_save: federate_save_begun(); federate_save_complete()
                                                        # whoever is told so does this, in one go
    ---                                                 # what stands above happens first, in its order

Arguments are Python's literals; `@NAME` is the object instance of that name, `&NAME` the federate (also the surrogate,
which in F is called `s_G`), `$1` the first argument of what was told.
Federates are called after their federation: f0 and f1 are those of the first, g0 of the second, h0 of the third.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import ConfigurationError

FEDERATIONS: Final = "FGHIJKLM"
"""Their names, and in small letters those of their federates."""
_LINE: Final = re.compile(r"(?P<who>[a-z]\d|\*)\s*(?P<kind>:|<-)\s*(?P<rest>.+)")
_CALL: Final = re.compile(r"(?P<name>\w+)\s*(?:\((?P<arguments>.*)\))?\s*")


class InstanceName(NamedTuple):
    """An object instance, by its name."""

    name: str


class FederateName(NamedTuple):
    """A federate of the same federation, by how its name begins."""

    name: str


class CallbackArgument(NamedTuple):
    """The argument at a place, from 0, of what was told."""

    place: int


class Act(NamedTuple):
    """A service that is called, or, as `is_told`, something that is waited for."""

    name: str
    arguments: tuple[Any, ...] = ()
    is_told: bool = False


Group = tuple[Act, ...]
"""In one go."""


class Reaction(NamedTuple):
    """Reaction of a federate, "*" for all, to what it is told."""

    who: str
    told: Act
    acts: Group


class FederateScript(NamedTuple):
    """See the module."""

    first: tuple[tuple[str, Group], ...] = ()
    """Groups of acts before anything is explored."""
    programs: tuple[tuple[str, Group], ...] = ()
    reactions: tuple[Reaction, ...] = ()


def read(text: str) -> FederateScript:
    """Raises ConfigurationError, which names the line."""
    first: tuple[tuple[str, Group], ...] = ()
    programs: list[tuple[str, Group]] = []
    reactions = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if said == "---":
            first, programs = tuple(programs), []
        elif said:
            try:
                who, group, reaction = _line(said)
            except ValueError as exc:
                raise ConfigurationError(f"line {number} of the script: {exc}", hint='f0: service("argument")') from exc
            if reaction is not None:
                reactions.append(reaction)
            else:
                programs.append((who, group))
    return FederateScript(first, tuple(programs), tuple(reactions))


def _line(said: str) -> tuple[str, Group, Reaction | None]:
    found = _LINE.fullmatch(said)
    if found is None:
        raise ValueError(f"{said[:80]!r} is not a line of a script")
    who, rest = found["who"], found["rest"]
    if found["kind"] == ":":
        return who, tuple(_act(part) for part in _parts(rest)), None
    told, colon, acts = rest.partition(":") if _CALL.fullmatch(rest) is None else (rest, "", "")
    act = _act(told)._replace(is_told=True)
    if colon:
        return who, (), Reaction(who, act, tuple(_act(part) for part in _parts(acts)))
    return who, (act,), None


def _parts(said: str) -> list[str]:
    return [part for part in (each.strip() for each in said.split(";")) if part]


def _act(said: str) -> Act:
    found = _CALL.fullmatch(said.strip())
    if found is None:
        raise ValueError(f"{said[:80]!r} is not a call")
    arguments = found["arguments"] or ""
    plain = re.sub(r"([@&])([\w:]+)", r'("\1", "\2")', re.sub(r"\$(\d)", r'("$", \1)', arguments))
    try:
        values = ast.literal_eval(f"({plain},)") if plain.strip() else ()
    except (ValueError, SyntaxError) as exc:
        raise ValueError(f"{arguments[:80]!r} are not arguments") from exc
    return Act(found["name"], tuple(_value(each) for each in values))


def _value(value: Any) -> Any:
    match value:
        case ("@", str(name)):
            return InstanceName(name)
        case ("&", str(name)):
            return FederateName(name)
        case ("$", int(place)):
            return CallbackArgument(place - 1)
        case tuple() | list():
            return tuple(_value(each) for each in value)
        case _:
            return value


def filled(group: Group, told: tuple[Any, ...]) -> Group:
    """With what was told."""

    def argument(value: Any) -> Any:
        return told[value.place] if isinstance(value, CallbackArgument) else value

    return tuple(act._replace(arguments=tuple(map(argument, act.arguments))) for act in group)
