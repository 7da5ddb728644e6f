"""Options of all commands, as far as their values are concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from jbi_pubsub.cli.app import jbi

ASKING = click.Context(jbi)


def numbers(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    """Each option, of each command, that takes a number that need not be whole."""
    for parameter in command.params:
        if isinstance(parameter.type, click.types.FloatParamType):
            yield " ".join((*path, max(parameter.opts, key=len))), parameter
    if isinstance(command, click.Group):
        for name in command.list_commands(ASKING):
            below = command.get_command(ASKING, name)
            assert below is not None
            yield from numbers(below, (*path, name))


def test_no_option_takes_for_a_number_what_is_none(said: Callable[..., Any]) -> None:
    # Given all options for numbers
    found = dict(numbers(jbi))
    assert {"hla serve --lease", "subscribe --timeout", "node stop --wait"} <= set(found)
    # When one is given NaN, which no bound of a range excludes; Expect a refusal, and a number to be taken
    taken = []
    for name, parameter in found.items():
        assert parameter.type_cast_value(ASKING, "1") == 1.0
        try:
            parameter.type_cast_value(ASKING, "nan")
            taken.append(name)
        except click.BadParameter:
            pass
    assert taken == []
    # with words that name the option
    answer = said("subscribe", "--timeout", "NaN")
    assert answer.code == 2
    assert "--timeout" in answer.err
    assert "nan is not a number" in answer.err


@pytest.mark.parametrize("command", [("pad", "gr\udcf6", "rome"), ("subscribe", "--type", "gr\udcf6")])
def test_a_name_that_no_server_can_be_told_is_refused_at_once(
    said: Callable[..., Any], command: tuple[str, ...]
) -> None:
    # Given a name with a byte that is no UTF-8, as Python has it; Expect a refusal, and no server that nobody finds
    answer = said("--no-multicast", *command)
    assert answer.code == 2
    assert "\\udcf6' is not a text in utf-8" in answer.err
