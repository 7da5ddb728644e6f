"""The `jbi` command: one entry for everything, and a short name for each server and tool.

Exit codes: 0 done, 1 a run that went wrong (one line on stderr), 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

import click

from jbi_pubsub import __version__
from jbi_pubsub.core.errors import ConfigurationError, JbiError

from .settings import Settings, pass_settings

__all__ = ["codegen_main", "jbi", "lookup_main", "main", "pad_main", "pass_settings", "study_main"]

IDS = ("subscription", "object", "registration", "session", "cause", "count")
"""Attributes of log records that say what they are about."""

HOMES: Final = {
    "bench": "bench",
    "codegen": "codegen",
    "completion": "tools",
    "config": "settings",
    "demo": "demonstration",
    "explain": "clients",
    "lookup": "servers",
    "pad": "servers",
    "publish": "clients",
    "services": "clients",
    "status": "status",
    "study": "tools",
    "subscribe": "clients",
    "subscriptions": "clients",
}
"""The module of each command."""


class Commands(click.Group):
    """Loads a command's module when the command is asked for: without the libraries that only others need, a lookup
    service starts in half the time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's form
        """The names, sorted."""
        return list(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's form
        """The command of that name."""
        if cmd_name not in HOMES:
            return None
        found: click.Command = getattr(import_module(f".{HOMES[cmd_name]}", __package__), cmd_name)
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="jbi")
@click.option("--config", "config_file", metavar="FILE", help="TOML file instead of ./jbi.toml.")
@click.option("--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set any setting; repeatable.")
@click.option("--locator", "locators", metavar="HOST:PORT", multiple=True, help="Lookup service to ask; repeatable.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Group of lookup services; repeatable.")
@click.option("--no-multicast", is_flag=True, help="Neither announce nor discover by mDNS.")
@click.option("--insecure", is_flag=True, help="Allow to listen beyond loopback without TLS.")
@click.option("--log-json", is_flag=True, help="Log as JSON lines.")
@click.option("-v", "--verbose", count=True, help="Say more on stderr; -vv for all.")
@click.pass_context
def jbi(
    context: click.Context,
    config_file: str | None,
    assignments: tuple[str, ...],
    locators: tuple[str, ...],
    groups: tuple[str, ...],
    no_multicast: bool,
    insecure: bool,
    log_json: bool,
    verbose: int,
) -> None:
    """Publish and subscribe for information objects: a type, XML metadata, a payload.

    \b
    Try it:          jbi demo
    Start servers:   jbi lookup      jbi pad alpha rome
    Look:            jbi services    jbi status
    """
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if log_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level, handlers=[handler])
    flags: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {assignment}: no value", hint="For example --set lease.subscriber=5")
        flags[key] = value
    own = {
        "lookup.locators": list(locators) or None,
        "lookup.groups": list(groups) or None,
        "lookup.multicast": False if no_multicast else None,
        "tls.insecure": True if insecure else None,
    }
    context.obj = Settings(config_file, flags | {key: value for key, value in own.items() if value is not None})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the ids that a record is about (subscription, object,
    registration, session)."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        facts: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts |= {key: getattr(record, key) for key in IDS if hasattr(record, key)}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)


def main() -> None:
    """Console script `jbi`."""
    _end_with(sys.argv[1:])


def lookup_main() -> None:
    """Console script `jbi-lookup`, short for `jbi lookup`."""
    _end_with(["lookup", *sys.argv[1:]])


def pad_main() -> None:
    """Console script `jbi-pad`, short for `jbi pad`."""
    _end_with(["pad", *sys.argv[1:]])


def codegen_main() -> None:
    """Console script `jbi-codegen`, short for `jbi codegen`."""
    _end_with(["codegen", *sys.argv[1:]])


def study_main() -> None:
    """Console script `jbi-study`, short for `jbi study`."""
    _end_with(["study", *sys.argv[1:]])


def _end_with(arguments: Sequence[str]) -> NoReturn:
    signal.signal(signal.SIGTERM, _terminated)  # servers have a way of their own
    sys.exit(run(arguments))


def _terminated(number: int, _frame: object) -> NoReturn:
    """Whoever is terminated leaves as if interrupted: sessions are closed, nobody waits for a lease to run out."""
    sys.exit(128 + number)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. Our errors become one readable line, never a traceback."""
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
    except ConfigurationError as exc:
        click.echo(f"jbi: {exc}", err=True)
        return 2
    except JbiError as exc:
        click.echo(f"jbi: {exc}", err=True)
        return 1
    except BrokenPipeError:
        return 0  # the reader of our output has had enough
    except OSError as exc:
        click.echo(f"jbi: {exc}", err=True)
        return 1
