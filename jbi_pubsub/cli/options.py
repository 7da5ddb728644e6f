"""Options of commands as one typed value: a class with a field for each option and argument, which a command is given.

    class _Tail(JsonArguments):
        type_name: str = option("Of that type alone.", "--type", default="")
        lines: int = option("Number of objects from before.", "-n", "--lines", shown=10)

    @command(archive, _Tail)
    def tail(given: _Tail) -> None: ...

An option is called as its field unless it says otherwise. Options stand in the help in the order of their fields,
those of a base class first (with `class _Tail(Base, first=True)` behind the own), and LAST how results are shown.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from jbi_pubsub.core.errors import ConfigurationError

from .near import NearNames, told
from .settings import CommandSettings
from .show import Column, View, show_json
from .show import as_json as json_text

EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
EXISTING_FOLDER.name = FOLDER.name = "folder"
LAST: Final = ("wide", "columns", "as_json")


class _Checked(click.Parameter):
    """An option or argument. A text is one that can be sent, in UTF-8; a path may have any bytes. A number is not NaN,
    which no bound of a range of click excludes."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value of what was given. Raises BadParameter."""
        found = super().type_cast_value(ctx, value)
        if isinstance(found, float) and math.isnan(found):
            raise click.BadParameter("nan is not a number", ctx, self)
        if isinstance(self.type, click.types.StringParamType):
            for each in found if isinstance(found, tuple) else (found,):
                if isinstance(each, str) and any("\ud800" <= c <= "\udfff" for c in each):
                    raise click.BadParameter(f"{each!r} is not a text in {sys.getfilesystemencoding()}", ctx, self)
        return found


class _Option(_Checked, click.Option):
    """See _Checked."""


class _Argument(_Checked, click.Argument):
    """See _Checked."""


class _OptionField(NamedTuple):
    """An option or argument of a command, until its class makes a parameter of click of it."""

    kind: type[_Option | _Argument]
    names: tuple[str, ...]
    attributes: dict[str, Any]

    @property
    def is_option(self) -> bool:
        """Not an argument, which comes before."""
        return self.kind is _Option

    def parameter(self, name: str) -> click.Parameter:
        """The option or argument as click has it, under the name of its field."""
        names = self.names or ((f"--{name.replace('_', '-')}",) if self.is_option else ())
        return self.kind([name, *names], **self.attributes)


def option(help: str, *names: str, shown: Any = None, **attributes: Any) -> Any:  # noqa: A002  # click's word
    """An option with its help; `shown` is a default that the help shows, `attributes` are click's."""
    default = {} if shown is None else {"default": shown, "show_default": True}
    return _OptionField(_Option, names, {"help": help, **default, **attributes})


def flag(help: str, *names: str, **attributes: Any) -> Any:  # noqa: A002  # as above
    """An option that is there, or not."""
    return option(help, *names, is_flag=True, **attributes)


def repeated(help: str, *names: str, **attributes: Any) -> Any:  # noqa: A002  # as above
    """An option that may be given several times; its field has them all."""
    return option(help, *names, multiple=True, **attributes)


def argument(**attributes: Any) -> Any:
    """A word that means itself; `attributes` are click's."""
    return _OptionField(_Argument, (), attributes)


HOST: Final = option("Address to listen on; default 127.0.0.1.")
PORT: Final = option("Port to listen on; default any free one.", type=click.IntRange(0, 65535))
METRICS_PORT: Final = option("Prometheus metrics; -1 for none, 0 any port.", type=click.IntRange(-1, 65535))
COUNT: Final = option("Stop after that many objects.", type=click.IntRange(1))
TIMEOUT: Final = option("Stop when no object has come for that many seconds.", type=click.FloatRange(0))
PREDICATE: Final = option("XPath over the metadata.", default="")
SCHEMA: Final = option("XML Schema of the template.", type=EXISTING_FILE)
MARKS: Final = option("Marks file, for a schema without marks.", type=EXISTING_FILE)


class Arguments:
    """Base of what commands are given; `settings` are those of the whole command line."""

    settings: CommandSettings
    _is_first = False

    def __init_subclass__(cls, *, first: bool = False) -> None:
        """`first`: its own fields stand before those of its bases."""
        cls._is_first = first

    def __init__(self, settings: CommandSettings, **given: Any) -> None:
        self.settings = settings
        self.__dict__.update(given)

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        """The fields as click has them, in the order of the help."""
        fields: dict[str, _OptionField] = {}
        for of in reversed(cls.__mro__):
            own = {name: each for name, each in vars(of).items() if isinstance(each, _OptionField)}
            fields = own | fields if vars(of).get("_is_first") else fields | own
        names = [*(name for name in fields if name not in LAST), *(name for name in LAST if name in fields)]
        return [fields[name].parameter(name) for name in sorted(names, key=lambda name: fields[name].is_option)]


class JsonArguments(Arguments):
    """Base for commands that programs read as well."""

    as_json: bool = flag("Machine-readable output.", "--json")

    def show(self, plain: object, shown: str | Callable[[], object]) -> None:
        """One JSON document where that is asked for; else a text for people, or what shows them more."""
        if self.as_json:
            show_json(plain)
        elif isinstance(shown, str):
            click.echo(shown)
        else:
            shown()

    def tell(self, plain: object, text: str) -> None:
        """A line of either."""
        click.echo(json_text(plain) if self.as_json else text)


class TableArguments(JsonArguments):
    """Base for commands whose tables may be wider than a terminal."""

    wide: bool = flag("All columns, not shortened.")
    columns: str = option("These columns, in this order.", metavar="NAME,...", default="")

    def view(self, known: Iterable[Sequence[Column]]) -> View:
        """The part that is wanted of tables with the `known` columns, all of the command. Raises ConfigurationError."""
        for option, given in (("--columns", self.columns), ("--wide", self.wide)):
            if self.as_json and given:
                raise ConfigurationError(f"{option} is for tables", hint="--json has everything")
        heads = {column.head.casefold(): column.head for columns in known for column in columns}
        wanted = [name.strip() for name in self.columns.split(",") if name.strip()]
        for name in wanted:
            if name.casefold() not in heads:
                raise ConfigurationError(f"--columns: {told('column', name, heads.values())}")
        return View(self.wide, tuple(heads[name.casefold()] for name in wanted))


A = TypeVar("A", bound=Arguments)
K = TypeVar("K", bound=click.Command)


def command(
    of: click.Group | None, arguments: type[A], name: str | None = None, **attributes: Any
) -> Callable[[Callable[[A], Any]], click.Command]:
    """A command of a group (None: of none yet), whose function is given its options as one value."""

    def made(function: Callable[[A], Any]) -> click.Command:
        found = _made(click.Command, function, arguments, name=name, **attributes)
        if of is not None:
            of.add_command(found)
        return found

    return made


def group(arguments: type[A]) -> Callable[[Callable[[A], Any]], click.Group]:
    """A group that is a command as well, where none of its commands is named."""
    return lambda function: _made(NearNames, function, arguments, invoke_without_command=True)


def _made(kind: type[K], function: Callable[[A], Any], arguments: type[A], **attributes: Any) -> K:
    @click.pass_context
    def run(context: click.Context, /, **given: Any) -> Any:
        if context.invoked_subcommand is not None:
            return None
        return function(arguments(context.find_object(CommandSettings) or CommandSettings(None, {}), **given))

    attributes["name"] = attributes.get("name") or function.__name__.replace("_", "-")
    return kind(callback=run, params=arguments.parameters(), help=function.__doc__, **attributes)
