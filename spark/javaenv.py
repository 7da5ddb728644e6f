"""Find a Java that Spark can run on, before Spark tries and fails with a stack trace."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StudyError

OLDEST_JAVA: Final = 17
"""Spark 4 runs on Java 17 and later (Spark documentation, "Downloading")."""
_VERSION_TIMEOUT: Final = 20.0
"""Seconds for `java -version`; it takes 0.1 s, ten times that on a cold disk."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
_INSTALLED: Final = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home", "/opt/java/*")
"""Where Debian and Fedora, macOS, and container images put their Java runtimes."""


class JavaHome(msgspec.Struct, frozen=True):
    """A Java runtime: its folder (JAVA_HOME) and its feature release, for example 17."""

    path: Path
    release: int


def find_java(environ: Mapping[str, str], *, installed: tuple[str, ...] = _INSTALLED) -> JavaHome:
    """The first Java of at least OLDEST_JAVA: JAVA_HOME, then `java` on PATH, then the `installed` patterns.

    Raises StudyError when there is none; the message lists what was found and is too old.
    """
    too_old: list[str] = []
    for home in dict.fromkeys(_candidates(environ, installed)):
        release = _release(home / "bin" / "java")
        if release >= OLDEST_JAVA:
            return JavaHome(home, release)
        if release:
            too_old.append(f"{home} is Java {release}")
    raise StudyError(
        f"Spark needs Java {OLDEST_JAVA} or later and none was found"
        + (f" ({', '.join(too_old)})" if too_old else " (looked at JAVA_HOME, PATH and the usual folders)"),
        hint=f"Install a Java {OLDEST_JAVA}+ runtime or point JAVA_HOME at one; the engine local runs without",
        oldest_java=OLDEST_JAVA,
    )


def _candidates(environ: Mapping[str, str], installed: tuple[str, ...]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for pattern in installed:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _release(java: Path) -> int:
    """Feature release of a java executable, 0 when it is none or does not answer."""
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java, by JAVA_HOME, PATH or system folder
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else 0
