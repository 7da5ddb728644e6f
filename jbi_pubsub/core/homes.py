"""Folders of the user whose process this is."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ConfigurationError


def home() -> Path:
    """This user's home. Raises ConfigurationError: there is none, as in a container with a number for a user."""
    try:
        return Path.home()
    except RuntimeError as exc:
        raise ConfigurationError(
            "this user has no home folder", hint="Set HOME to a folder that can be written"
        ) from exc


def user_folder(variable: str, usual: str) -> Path:
    """Where this user's programs keep something (XDG Base Directory Specification 0.8): the absolute folder that a
    variable names, else the `usual` one of the home. Raises ConfigurationError as above."""
    own = Path(os.environ.get(variable, ""))
    return own if own.is_absolute() else home() / usual
