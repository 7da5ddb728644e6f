"""The `jbi` command: one entry for everything, and a short name for each server and tool.

Exit codes: 0 done, 1 a run that went wrong (one line on stderr), 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from jbi_pubsub import __version__

from .near import NearNames, pair
from .show import as_json, printable
from .signals import ending_signals

if TYPE_CHECKING:
    from .settings import CommandSettings

__all__ = ["codegen_main", "jbi", "lookup_main", "main", "pad_main", "study_main"]

IDS = ("subscription", "object", "registration", "session", "cause", "count")
"""Attributes of log records that say what they are about."""

LINE_MOST, TRACE_MOST = 4_000, 20_000
"""Characters of a line of the log, and of a traceback: the end of it says most."""

HOMES: Final = {
    "archive": ("archive", "Manage archives: status, deletion, retention, index."),
    "bench": ("bench", "Measure on this machine."),
    "bridge": ("bridge", "Mirror two platforms: objects of one are on the other."),
    "certs": ("certs", "Make, renew and revoke TLS certificates."),
    "client": ("client", "Run a script of publishers, subscribers and queries."),
    "codegen": ("codegen", "Generate Entry classes from a metadata schema."),
    "completion": ("tools", "Print the completion script of a shell."),
    "config": ("tools", "Show the effective settings and their origins."),
    "demo": ("demonstration", "Run a federation on this machine and check it."),
    "dissect": ("dissect", "Read a capture of the datagrams between nodes."),
    "doctor": ("doctor", "Check machine, configuration and servers, with advice."),
    "domain": ("domain", "Show a domain, and its links to others."),
    "emulate": ("emulate", "Emulate bad networks between nodes of this machine."),
    "explain": ("explain", "Explain why a subscription gets an object, or not."),
    "gateway": ("gateway", "Serve clients in any language, over HTTP."),
    "hla": ("hla", "Serve HLA federations."),
    "lookup": ("servers", "Run a lookup service, or administer one."),
    "node": ("node", "Run everything in one process: a node."),
    "pad": ("servers", "Run a publisher-adapter delegate."),
    "policy": ("policy", "Check and explain access rules and quality of service."),
    "publish": ("publish", "Publish information objects from files."),
    "query": ("query", "Query the objects in archives."),
    "services": ("services", "List what is registered in the lookup services."),
    "status": ("status", "Show the status of all servers."),
    "study": ("study", "Bulk studies, in this process or on Spark."),
    "subscribe": ("clients", "Subscribe, and show what arrives or have it mailed."),
    "subscriptions": ("subscriptions", "List, renew, cancel e-mail ones; reset, end durable ones."),
    "top": ("top", "Show all servers in the terminal, in pages."),
    "trader": ("trader", "Offer services, and find them by a constraint."),
    "types": ("types", "Keep information object types: add, list, check them."),
    "users": ("users", "Keep users and their passwords: add, remove, list."),
    "web": ("web", "Show all servers in a browser: the console."),
}
"""The module of each command, and what it does: the help of `jbi` imports none of them."""


AT_NODES: Final = ("archive", "node", "publish", "query", "types")
"""Commands whose `--at` or `--delegate` may be a node."""
LOOKING_THERE: Final = ("client", "domain", "explain", "services", "subscribe", "subscriptions", "top", "web")
"""Commands that look at what a node's lookup service knows, instead of at what ours do."""
ONLY_LOOKING: Final = (
    "archive", "domain", "explain", "policy", "query", "services", "status", "subscriptions", "top", "types", "users",
)  # fmt: skip
"""Commands that are told soon that no lookup service runs: what they are about is there already, or isn't."""
REFUSED_SECONDS: Final = 2.0
"""For a lookup service that is about to start."""
COMPLETION_SECONDS: Final = 0.5
"""For a lookup service to answer while a shell waits."""


class Commands(NearNames):
    """Loads a command's module when the command is asked for: without the libraries that only others need, a lookup
    service starts in half the time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's form
        """The names, sorted."""
        return list(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's form
        """The command of that name."""
        if cmd_name not in HOMES:
            return None
        found: click.Command = getattr(import_module(f".{HOMES[cmd_name][0]}", __package__), cmd_name)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """click's, which does not say of an option behind the command that it is one of those before it."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as exc:
            own = next((each for each in self.params if exc.option_name in each.opts), None)
            if own is None or exc.ctx is None:
                raise
            first, *rest = exc.ctx.command_path.split(" ")
            right = " ".join(filter(None, (first, exc.option_name, own.metavar, *rest)))
            raise click.UsageError(f"{exc.option_name} goes before the command: {right}", exc.ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's form
        """The commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in HOMES.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="jbi")
@click.option("--config", "config_file", metavar="FILE", help="TOML file instead of ./jbi.toml.")
@click.option("--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set any setting; repeatable.")
@click.option("--locator", "locators", metavar="HOST:PORT", multiple=True, help="Lookup service to ask; repeatable.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Group of lookup services; repeatable.")
@click.option("--node", metavar="NAME", default="", help="Node to use.",
              shell_complete=lambda _context, _parameter, typed: _nodes(typed))  # fmt: skip
@click.option("--no-multicast", is_flag=True, help="Do not announce or discover by mDNS.")
@click.option("--tls", "tls_folder", metavar="FOLDER", help="TLS, as the party of that folder (see `jbi certs`).")
@click.option("--insecure", is_flag=True, help="Allow to listen beyond loopback without TLS.")
@click.option("--log-json", is_flag=True, help="Log as JSON lines.")
@click.option("-v", "--verbose", count=True, help="More messages on stderr; -vv for all.")
@click.pass_context
def jbi(context: click.Context, /, verbose: int, log_json: bool, node: str, **given: Any) -> None:
    """Publish and subscribe for information objects: a type, XML metadata, a payload.

    \b
    Try it:          jbi demo
    Start servers:   jbi lookup      jbi pad alpha rome
    Look:            jbi services    jbi status
    One node:        jbi --node tent-3 status
    """
    from jbi_pubsub.core.errors import ConfigurationError  # here: `jbi --help` starts in half the time without these

    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if log_json else TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level, handlers=[handler])
    flags: dict[str, object] = {}
    if context.invoked_subcommand in ONLY_LOOKING or (node and context.invoked_subcommand == "node"):
        flags["lookup.refused"] = REFUSED_SECONDS
    for assignment in given["assignments"]:
        problem = ConfigurationError(f"--set {assignment}: no value", hint="For example --set lease.subscriber=5")
        key, value = pair(assignment, problem)
        flags[key] = value
    from .settings import CommandSettings  # here: `jbi --help` starts faster without

    own = {
        "lookup.locators": list(given["locators"]) or None,
        "lookup.groups": list(given["groups"]) or None,
        "lookup.multicast": False if given["no_multicast"] else None,
        "tls.folder": given["tls_folder"],
        "tls.insecure": True if given["insecure"] else None,
    }
    flags |= {key: value for key, value in own.items() if value is not None}
    context.obj = settings = CommandSettings(given["config_file"], flags, node)
    command = context.command.get_command(context, context.invoked_subcommand or "") if node else None  # type: ignore[attr-defined]  # a group
    settings.looks_there = command is not None and command.name in LOOKING_THERE
    if node:
        context.call_on_close(_leave)
    if command is not None and command.name in AT_NODES:
        context.default_map = {command.name: _at_node(command, settings)}


def _leave() -> None:
    from jbi_pubsub.core.wire import detour

    detour.leave()


def _at_node(command: click.Command, settings: CommandSettings) -> dict[str, object]:
    """Defaults of a command, and all below it, from a node's name, where it is not told whom to ask."""
    if isinstance(command, click.Group):
        return {name: _at_node(each, settings) for name, each in command.commands.items()}
    given: dict[str, object] = {}
    for parameter in command.params:
        if parameter.name == "delegate":
            given["delegate"] = lambda: ("node", settings.node()) if settings.node_at() else None
        elif parameter.name == "at":
            given["at"] = (lambda: [settings.node_at()]) if parameter.multiple else settings.node_at
    return given


def _nodes(typed: str) -> list[str]:
    """For completions in a shell: the names of those that are found at once."""
    from jbi_pubsub.core.errors import JbiError
    from jbi_pubsub.node.reaching import near_node

    from .settings import CommandSettings, nodes

    names: set[str] = set()
    with suppress(JbiError):
        config = CommandSettings(None, {}).load()
        near = near_node(config)
        names.update(near.names() if near is not None else ())
        names.update(nodes(config, COMPLETION_SECONDS))
    return sorted(name for name in names if name.startswith(typed))


OPTIONS: Final = (
    (re.compile(r"namespaces=\{'([^']*)': '([^']*)'\}"), r"--namespace \1=\2"),
    (re.compile(r"\bvalidate=False\b"), "--untyped"),
    (re.compile(r"\b(schema|timeout|durable)=(?=[,. ]|$)"), r"--\1"),
)
"""Options for arguments of the library's calls, which its hints name."""


def _as_options(hint: str) -> str:
    """A hint of the library as one for the command line."""
    for argument, named in OPTIONS:
        hint = argument.sub(named, hint)
    return hint


def _lines(text: str) -> str:
    """Text as a terminal can take it; lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


class TextFormatter(logging.Formatter):
    """As configured, without what a terminal would obey: peers have a say in what is logged."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """The line; a traceback goes below it."""
        return printable(super().formatMessage(record))[:LINE_MOST]

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        """A traceback: what the exception says is a peer's word as well."""
        return _lines(super().formatException(ei))[-TRACE_MOST:]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the ids that a record is about (subscription, object,
    registration, session)."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        facts: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:LINE_MOST],
        }
        facts |= {key: getattr(record, key) for key in IDS if hasattr(record, key)}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)[-TRACE_MOST:]
        return as_json(facts)


def main() -> None:
    """Console script `jbi`."""
    _end_with(sys.argv[1:])


def _short_for(name: str) -> Callable[[], None]:
    """Console script `jbi-NAME`, short for `jbi NAME`."""
    return lambda: _end_with([name, *sys.argv[1:]])


lookup_main, pad_main, codegen_main, study_main = map(_short_for, ("lookup", "pad", "codegen", "study"))


def _end_with(arguments: Sequence[str]) -> NoReturn:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: without it the next file or socket would take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115  # until we end
    for number in ending_signals():  # servers have a way of their own
        signal.signal(number, _terminated)
    code = run(arguments)
    try:
        sys.stdout.flush()
    except OSError:  # what nobody reads: the interpreter would try again, and end with another code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _terminated(number: int, _frame: object) -> NoReturn:
    """A process that is terminated ends as if interrupted: it closes its sessions, so that no lease has to run out."""
    sys.exit(128 + number)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. Our errors become one readable line, never a traceback."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    elif arguments[:1] == ["version"]:
        arguments = ["--version"]
    try:
        result = jbi.main(args=list(arguments), prog_name="jbi", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 130
    except KeyboardInterrupt:
        return 130
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except BrokenPipeError:
        return 0  # the reader of our output has had enough
    except OSError as exc:
        barred = exc.filename is not None and exc.errno in (errno.EACCES, errno.EROFS)
        told = f"{exc.filename}: {exc.strerror}. Name a place that this user can use" if barred else exc
        click.echo(_lines(f"jbi: {told}"), err=True)  # peers have a say in it
        return 2 if barred else 1
    except Exception as exc:
        from jbi_pubsub.core import errors  # here: `jbi --help` starts faster without

        if isinstance(exc, RuntimeError) and "can't start new thread" in str(exc):
            click.echo(f"jbi: {exc}. The system allows no more here: see `ulimit -u`, TasksMax of the unit", err=True)
            return 1
        if not isinstance(exc, errors.JbiError):
            raise
        exc.hint = _as_options(exc.hint)
        click.echo(_lines(f"jbi: {exc}"), err=True)
        given = (errors.ConfigurationError, errors.PredicateError, errors.AddressError)  # words of the command line
        return 2 if isinstance(exc, given) and not exc.is_remote else 1
