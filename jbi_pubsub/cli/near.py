"""Near names: an error for a mistyped name lists the names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import click

SHOWN = 5
"""Names that a message lists."""


class NearNames(click.Group):
    """A group that answers an unknown command with the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click's, with "Did you mean"."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            near = nearest(args[0], self.list_commands(ctx)) if args else ""
            if not near:
                raise
            raise click.UsageError(f"{exc.message} Did you mean {near!r}?", ctx) from exc


def nearest(given: str, known: Iterable[str]) -> str:
    """The name that was meant, or "". Names with dots, # or a namespace are compared by their last part as well."""
    from jbi_pubsub.core.near import near_name

    by_form = {form.casefold(): name for name in known for form in (re.split(r"[.#}]", name)[-1], name)}
    return by_form.get(near_name(given.casefold(), by_form, 0.5), "")


def told(kind: str, given: str, known: Iterable[str]) -> str:
    """That there is no such name, and the names."""
    names = sorted(set(known))
    near = nearest(given, names)
    if near:
        return f"no {kind} {given}; did you mean {near}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"no {kind} {given}; there are: {', '.join(names[:SHOWN]) or 'none'}{more}"


def pair(text: str, otherwise: Exception) -> tuple[str, str]:
    """The two of NAME=VALUE. Raises `otherwise`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise otherwise
    return name, value


def begins_so(known: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """For completions in a shell: the names that begin with what is typed."""
    return lambda _context, _parameter, typed: [name for name in known() if name.startswith(typed)]
