"""Extras: optional libraries, and one error for each that is missing."""

from __future__ import annotations

import importlib.util
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError, Fact

LIBRARIES: Final = {"archive": ("duckdb", "numpy"), "web": ("nicegui", "uvicorn")}
"""Modules to import, by the extra that brings them."""


def missing(extra: str) -> str:
    """The first library of an extra that is not installed, "" if all are. None of them is imported."""
    return next((each for each in LIBRARIES[extra] if importlib.util.find_spec(each) is None), "")


def need(extra: str, what: str, *, instead: str = "", **facts: Fact) -> None:
    """Raises ConfigurationError, with these facts, if a library of the extra is missing. `what` needs it; `instead` is
    how to go on without."""
    if library := missing(extra):
        hint = f"Install it: pip install 'jbi-pubsub[{extra}]'{instead and f', or {instead}'}"
        raise ConfigurationError(f"{what} needs the library {library}, which is not installed", hint=hint, **facts)
