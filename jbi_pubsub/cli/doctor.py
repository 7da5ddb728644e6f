"""`jbi doctor`: what of this machine and of the servers found is as it has to be, and what to type where it is not.

Checks (cli/checks.py) run side by side, all within TOTAL_SECONDS; what has not answered by then says so. Nothing is
changed: files that are written to try a folder are unnamed and gone, a port is bound for a moment, no mail is sent.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import click

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.guard import note
from jbi_pubsub.protocol.services import patience

from .checks import CHECKS
from .near import begins_so, told
from .options import JsonArguments, argument, command, flag
from .parties import Check, Checkup, Finding, side_by_side
from .show import Column, counted, printable, show_table, terminal_width, wrapped

TOTAL_SECONDS: Final = 10.0
"""For all checks together, unless [lookup] timeout is longer."""

NARROW: Final = 60
"""Places of a line; with fewer, the finding is below its check."""

_SHOWN: Final = {"ok": "ok", "warning": "WARNING", "failure": "FAILURE", "skipped": "-"}
_COLUMNS: Final = (Column("check"), Column("state"), Column("found"), Column("advice"))


class _Doctor(JsonArguments):
    checks: tuple[str, ...] = argument(metavar="[CHECK]...", nargs=-1, shell_complete=begins_so(lambda: CHECKS))
    strict: bool = flag("Warnings count as failures.")


@command(None, _Doctor)
def doctor(given: _Doctor) -> int:
    """Check this machine, the configuration and the servers, and show corrections.

    Exit code 0 if nothing fails, otherwise 1. It needs no server and changes nothing.

    \b
    jbi doctor                        # everything, 10 s at most, or [lookup] timeout
    jbi doctor ports tls              # only these
    jbi --config site.toml doctor --strict --json
    """
    for name in given.checks:
        if name not in CHECKS:
            raise ConfigurationError(told("check", name, CHECKS))
    began = time.monotonic()
    checkup = Checkup(*given.settings.explain())
    chosen = {name: CHECKS[name] for name in CHECKS if not given.checks or name in given.checks}
    found = examine(chosen, checkup, TOTAL_SECONDS * patience(checkup.config))
    bad = sum(each.state == "failure" or (given.strict and each.state == "warning") for each in found)
    plain = {"good": not bad, "checks": [each._asdict() for each in found]}
    given.show(plain, lambda: _show(found, time.monotonic() - began))
    return 1 if bad else 0


def _show(found: Sequence[Finding], took: float) -> None:
    if sys.stdout.isatty():
        click.echo("\n".join(report(found, terminal_width(), took)))
    else:
        show_table(_COLUMNS, [tuple(each) for each in found])


def examine(checks: dict[str, Check], checkup: Checkup, seconds: float) -> list[Finding]:
    """Findings of the checks, in their order, after `seconds` at most."""
    results: dict[str, list[Finding]] = {}

    def run(name: str, check: Check) -> None:
        try:
            results[name] = list(check(checkup))
        except Exception as exc:  # noqa: BLE001  # a check that fails itself must not hide what others find
            note(f"check {name}", exc)
            results[name] = [Finding(name, "failure", f"the check itself failed: {type(exc).__name__}: {exc}")]

    side_by_side({name: partial(run, name, check) for name, check in checks.items()}, seconds)
    late = [Finding("", "failure", f"no result within {seconds:g} s", "Try it alone: jbi doctor NAME")]
    return [
        each._replace(
            check=each.check or name, advice=each.advice.replace("NAME", name) if each is late[0] else each.advice
        )
        for name in checks
        for each in results.get(name, late)
    ]


def report(found: Sequence[Finding], width: int, took: float) -> list[str]:
    """Lines of at most `width` places: state and check, what was found, and below it what to do."""
    checks = max(len(each.check) for each in found)
    beside = width >= NARROW
    margin = len("FAILURE") + 2 + checks + 2 if beside else 2
    lines = []
    for each in found:
        head = f"{_SHOWN[each.state]:7}  {each.check:{checks}}"
        texts = wrapped(printable(each.found), width - margin)
        advice = wrapped(printable(each.advice), width - margin - 3)
        texts += [("   " if number else "-> ") + line for number, line in enumerate(advice)]
        if beside:
            lines += [f"{'' if number else head:{margin - 2}}  {text}" for number, text in enumerate(texts or [""])]
        else:
            lines += [head, *(f"  {text}" for text in texts)]
    lines = [line.rstrip() for line in lines]
    count = Counter(str(each.state) for each in found)
    bad = ", ".join(counted(count[state], state) for state in ("failure", "warning") if count[state])
    rest = f"{count['ok']} ok, {count['skipped']} skipped, {took:.1f} s"
    return [*lines, "", *wrapped(f"{bad or 'nothing wrong'}; {rest}", width)]
