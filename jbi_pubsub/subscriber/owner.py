"""Owners of durable subscriptions: the secret of a user, which each of his processes finds in the same file.

Where peers show certificates, the name in these counts. Else a delegate that knows a durable subscription's secret
could take it over elsewhere: so each name has a secret of its own, made from the user's, which stays here.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from secrets import token_hex
from typing import Final

from jbi_pubsub.core.config import ClientSection
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.homes import user_folder
from jbi_pubsub.protocol.ownership import MIN_SECRET

MAX_NAME: Final = 64
"""Characters of a durable subscription's name."""
MOST: Final = 1_024
"""Bytes of the file."""


def secret_of(name: str, client: ClientSection) -> str:
    """The secret of the durable subscription `name`, made from its user's, which is made if it is missing: in the file
    [client] owner, or the usual one. Whom a password proves counts as well, of several whose files are one. Raises
    ConfigurationError, StorageError."""
    if not (name.isprintable() and 1 <= len(name) <= MAX_NAME) or name != name.strip():
        raise ConfigurationError(
            f"durable={name[:MAX_NAME]!r} is not a name", hint=f"1 to {MAX_NAME} printable characters, as fusion-1"
        )
    own = user_secret(client.owner)
    of = f"{client.user}\n{name}" if client.user and client.password else name  # a name has no line ends
    return hashlib.sha256(f"jbi-pubsub durable 1:{own}:{of}".encode()).hexdigest()


def user_secret(file: str, what: str = "the secret of durable subscriptions", key: str = "[client] owner") -> str:
    """The secret in a file, which is made if it is missing; "" is the usual one. Raises ConfigurationError,
    StorageError."""
    path = Path(file) if file else user_folder("XDG_STATE_HOME", ".local/state") / "jbi-pubsub" / "secret"
    try:
        return _read(path, what) or _made(path, what)
    except OSError as exc:
        raise StorageError(
            f"{what}, {path}: {exc.strerror or exc}", hint=f"Name a file that can be written once: {key}"
        ) from exc


def _read(path: Path, what: str) -> str:
    """Content of the file; "" if there is none. Raises ConfigurationError, OSError."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(MOST + 1)
    except FileNotFoundError:
        return ""
    if mode & 0o077:
        raise ConfigurationError(f"{path}: others may read it", hint=f"chmod 600 {path}")
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not MIN_SECRET <= len(text) <= MOST or not text.isalnum():
        raise ConfigurationError(
            f"{path} does not hold {what}",
            hint=f"Letters and digits, at least {MIN_SECRET}; without the file another one is made",
        )
    return text


def _made(path: Path, what: str) -> str:
    """A new secret, whole or not at all; if another process has been quicker, its own."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with written(path, replaces=False) as file:
        file.write(f"{token_hex(32)}\n".encode())
    return _read(path, what)
