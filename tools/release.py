"""`make dist`: builds what is published, and tries it on each Python as a user would who has no extra.

    python tools/release.py UV           # UV: the program of that name

Wheel and source distribution go to dist/. On each Python the wheel is installed in an environment of its own: a message
goes from one process to another, `jbi doctor` finds nothing wrong, and `jbi demo` is right and says what it leaves out.
The source distribution is installed on the newest Python. dist/ gets a bill of materials (CycloneDX), in which every
library has a licence. A Python that is neither here nor can be downloaded is told; with CI=true it is an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).resolve().parent.parent
DIST, BUILD = TOP / "dist", TOP / "build" / "release"
PYTHONS: Final = ("3.11", "3.12", "3.13")
SECONDS: Final = 180.0
"""For one command: a hang, not a busy machine."""
ONE_DEMO: Final = threading.Lock()
"""Two that begin at once would both take the usual port for free."""
MATERIALS: Final = "cyclonedx-bom>=7,<8"
TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"


class ReleaseError(Exception):
    """Something of the release does not work."""


def said(*words: str | Path, here: Path = TOP) -> str:
    """The output of a command. Raises ReleaseError unless it ends well."""
    done = subprocess.run(list(map(str, words)), cwd=here, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        command = " ".join(map(str, words))
        raise ReleaseError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(uv: str, python: str) -> Path | None:
    """An empty environment of that Python, None where there is none."""
    folder = BUILD / python
    try:
        said(uv, "venv", "--quiet", "--clear", "--python", python, folder)
    except ReleaseError as exc:
        print(f"NOT TRIED on Python {python}, which is not here:\n{exc}", flush=True)
        return None
    return folder / "bin"


def talk(jbi: Path, data: Path, here: Path) -> None:
    """A message by way of a lookup service and a delegate, each of the four a process. Raises ReleaseError."""
    with ExitStack() as stack:

        def start(*words: str | Path) -> subprocess.Popen[str]:
            process = subprocess.Popen([jbi, *words], cwd=here, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait, SECONDS)
            stack.callback(process.terminate)
            return process

        def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise ReleaseError(f"{process.args} says nothing")
            found: dict[str, Any] = json.loads(line)
            return found

        flags = ("--no-multicast", "--group", "release")
        address = ready(start(*flags, "lookup", "--port", "0", "--json"))["address"]
        flags += ("--locator", address)
        ready(start(*flags, "pad", "alpha", "rome", "--port", "0", "--json"))
        subscriber = start(*flags, "subscribe", "--type", TYPE, "--count", "1", "--timeout", "60", "--json")
        said(
            jbi, *flags, "publish", "--delegate", "alpha", "rome", "--schema", data / "Intel_Imagery.xsd",
            "--metadata", data / "fig1.xml", "--payload", data / "image.png", "--subscribers", "1", here=here,
        )  # fmt: skip
        if ready(subscriber)["type"] != TYPE or subscriber.wait(SECONDS):
            raise ReleaseError("the object did not come")


def tried(uv: str, folder: Path, package: Path) -> None:
    """All that a user does first with an installed package. Raises ReleaseError."""
    began = time.monotonic()
    said(uv, "pip", "install", "--quiet", "--python", folder / "python", package)
    jbi = folder / "jbi"
    with tempfile.TemporaryDirectory(prefix="jbi-release-") as name:
        here = Path(name)
        said(jbi, "--version", here=here)
        where = "import jbi_pubsub.examples as e; print(e.__path__[0])"
        talk(jbi, Path(said(folder / "python", "-c", where, here=here).strip(), "data", "intel_imagery"), here)
        with ONE_DEMO:  # which the doctor of another Python would find, and miss a moment later
            said(jbi, "doctor", here=here)
            demo = said(jbi, "demo", here=here)
    for expected in ("objects published", "left out: ", "jbi-pubsub[archive]", "Try next:"):
        if expected not in demo:
            raise ReleaseError(f"jbi demo does not say {expected!r}:\n{demo}")
    if "everything arrived" in demo:
        raise ReleaseError(f"jbi demo says that everything arrived, without an archive:\n{demo}")
    print(f"Python {folder.parent.name}: {package.name} works, {time.monotonic() - began:.0f} s", flush=True)


def materials(uv: str, folder: Path) -> None:
    """The bill of materials of an environment. Raises ReleaseError for a library without a licence."""
    file = DIST / "jbi-pubsub.cdx.json"
    tool = ("tool", "run", "--quiet", "--from", MATERIALS, "cyclonedx-py", "environment")
    said(uv, *tool, "--output-reproducible", "-o", file, folder / "python")
    parts = json.loads(file.read_text())["components"]
    without = [part["name"] for part in parts if not part.get("licenses")]
    if without:
        raise ReleaseError(f"no licence is known of {', '.join(without)}")
    print(f"{file.relative_to(TOP)}: {len(parts)} parts, each with its licence", flush=True)


def main(uv: str) -> int:
    """Exit code 1 if something does not work."""
    if pyenv := shutil.which("pyenv"):  # its shims run nothing but the versions that are switched on
        os.environ["PYENV_VERSION"] = ":".join(said(pyenv, "versions", "--bare").split())
    for folder in (DIST, BUILD):
        shutil.rmtree(folder, ignore_errors=True)
    said(uv, "build", "--quiet", "--out-dir", DIST, TOP)
    [wheel], [source] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    found = {python: folder for python in PYTHONS if (folder := environment(uv, python)) is not None}
    with ThreadPoolExecutor(len(PYTHONS)) as pool:
        list(pool.map(lambda folder: tried(uv, folder, wheel), found.values()))
    if found:
        newest = [*found.values()][-1]
        materials(uv, newest)
        said(uv, "pip", "install", "--quiet", "--no-deps", "--reinstall", "--python", newest / "python", source)
        said(newest / "jbi", "--version", here=DIST)
    return int(not found or (len(found) < len(PYTHONS) and os.environ.get("CI") == "true"))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except ReleaseError as exc:
        sys.exit(str(exc))
