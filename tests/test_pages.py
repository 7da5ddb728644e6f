"""Every code block of README.md and docs/*.md runs here as it is written, or says beside it why it does not.

A page's blocks run in their order, in a folder and an interpreter of the page's own, beside a lookup service and a
delegate (alpha, rome) that default settings find. `examples/` is there. What a block is, is its language:

- `python` runs in the page's interpreter, one namespace for the page;
- `console`: each `$ command` runs in bash, with this environment's `jbi` and `python`, and ends with exit code 0; what
  stands below it is what it says (`...` stands for anything, on a line of its own for any lines); but `jbi` is a
  forked one (tests/oracles/door.py), except on the pages that are read first, and in the slow tests;
- `toml` is parsed, and loaded if it is a jbi.toml or a policy.toml; `json`, `xml` and `ini` are parsed; so is `sh`,
  which is a file, or run by another test, and says so: commands are `console`;
- `text` and `mermaid` are no code, but may become a file.

A comment on the line above a block says more:

- `<!-- file: NAME -->`: the block becomes that file of the folder, and a Python one does not run by itself;
- `<!-- terminal -->`: the command goes on until the page ends, by Ctrl-C; what it says is awaited then; of a
  server, which is to be there for the next, at once: `<!-- terminal: ready -->`;
- `<!-- exit: 2 -->`: the last command ends with that exit code;
- `<!-- run by: tests/x/test_y.py -->`: that test runs it, and names the page; above the page's title: all of the page;
- `<!-- test: NAME -->`: a test that knows page and block by their names runs it;
- `<!-- not run: why -->`.

Ports that pages name are free ones here (`PORTS`).

`<!-- starts its own servers -->` above the title: there is no lookup service and no delegate before a page starts one.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from door import Door
from lxml import etree
from markdown_it import MarkdownIt

from jbi_pubsub import Config
from jbi_pubsub.cli.app import HOMES
from jbi_pubsub.core import config

TOP: Final = Path(__file__).parent.parent
PAGES: Final = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]
NO_CODE: Final = {"text", "mermaid"}
PARSED: Final = {"toml", "json", "xml", "ini", "sh"}
PORTS: Final = ("4160", "4161", "4162", "4172", "8025", "8170", "8171", "9100", "9101")
"""Stand for free ones."""
FIRST: Final = {"README.md", "tutorial.md"}
"""Pages whose `jbi` is always the one that is installed."""
SECONDS: Final = 60.0
"""For one command or block: a hang, not a busy machine."""

COMMENT: Final = re.compile(r"\A<!-- (file|terminal|exit|run by|not run|test)(?:: (.+?))? -->\s*\Z", re.DOTALL)
INTERPRETER: Final = """
import json, sys, traceback
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(*json.loads(line), "exec"), namespace)
    except BaseException:
        print(json.dumps(traceback.format_exc()), file=told, flush=True)
    else:
        print(json.dumps(""), file=told, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A code block: where it is, its language, what the comment above it says."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order, with their comments."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    head = [token.content for token in tokens[: next(i for i, t in enumerate(tokens) if t.type == "heading_open")]]
    whole = next((m[2] for text in head for m in re.finditer(r"<!-- (run by): (\S+) -->", text)), "")
    found = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type not in ("fence", "code_block"):
            continue
        assert token.map is not None
        said = COMMENT.match(before.content) if before is not None and before.type == "html_block" else None
        mark, value = (said[1], said[2] or "") if said else ("run by", whole) if whole else ("", "")
        language = token.info.split()[0] if token.info else ""
        found.append(Block(page.name, token.map[0] + 1, language, token.content, mark, value))
    return [block for block in found if not block.language.startswith("{")]  # directives of the site


ALL: Final = {page.name: blocks(page) for page in PAGES}


def here(block: Block) -> bool:
    """Whether it runs in this file."""
    return (block.language not in NO_CODE or block.mark == "file") and block.mark not in ("run by", "not run", "test")


def test_no_block_is_silent() -> None:
    # Given all blocks of all pages
    every = [block for found in ALL.values() for block in found]
    # Expect each that another test does not run to say what it is, in a language that this file knows
    known = NO_CODE | PARSED | {"python", "console"}
    ours = [block for block in every if block.mark not in ("run by", "test")]
    assert [f"{b}: {b.language or 'no language'}" for b in ours if b.language not in known] == []
    assert [str(b) for b in every if b.language == "sh" and not b.mark] == []
    # and who leaves one out to say why, or which test runs it
    assert [str(b) for b in every if b.mark == "not run" and len(b.value.split()) < 3] == []
    elsewhere = [b for b in every if b.mark == "run by"]
    assert [f"{b}: {b.value}" for b in elsewhere if not (TOP / b.value).is_file()] == []
    assert [f"{b}: {b.value}" for b in elsewhere if b.page not in (TOP / b.value).read_text()] == []
    texts = [path.read_text() for path in (TOP / "tests").rglob("test_*.py")]
    named = [b for b in every if b.mark == "test"]
    assert [f"{b}: {b.value}" for b in named if not any(b.page in text and b.value in text for text in texts)] == []
    # and more of them to run than not
    assert sum(map(here, every)) > sum(b.mark == "not run" for b in every)


@dataclass(frozen=True)
class Terminal:
    """A command that goes on, what it is expected to say, and the file that has what it says."""

    block: Block
    expected: str
    process: subprocess.Popen[bytes]
    said: Path

    def agrees(self) -> bool:
        """Whether it has said it."""
        return agree(self.expected, self.said.read_text())

    def told(self) -> str:
        """What is wrong."""
        return disagreement(self.block, self.expected, self.said.read_text())


@dataclass
class Reader:
    """Whoever follows a page: a folder, an interpreter, terminals."""

    folder: Path
    environment: dict[str, str]
    ports: dict[str, str]
    eventually: Callable[..., Any]
    _python: subprocess.Popen[str] | None = None
    _terminals: list[Terminal] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        """Do what the block says."""
        for port, free in self.ports.items():
            block = replace(block, text=re.sub(rf"\b{port}\b", free, block.text))
        if block.mark == "file":
            (self.folder / block.value).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.value).write_text(block.text)
        if block.language in PARSED:
            parse(block, self.folder, shutil.which("jbi", path=self.environment["PATH"]))
        elif block.language == "console":
            self._type(block)
        elif block.mark != "file":
            self._interpret(block)

    def end(self) -> None:
        """Waits for what is said in the terminals, and presses Ctrl-C in each."""
        for terminal in self._terminals:
            self.eventually(terminal.agrees, what=terminal.told)
        for terminal in reversed(self._terminals):
            if terminal.process.poll() is None:
                os.killpg(terminal.process.pid, signal.SIGINT)
            terminal.process.wait(SECONDS)

    def kill(self) -> None:
        """End what is left."""
        for terminal in self._terminals:
            if terminal.process.poll() is None:
                os.killpg(terminal.process.pid, signal.SIGKILL)
                terminal.process.wait(SECONDS)
        if self._python is not None:
            self._python.kill()
            self._python.communicate(timeout=SECONDS)
        for each in Path("/proc").glob("[0-9]*/cwd"):  # what a page has detached, and not ended as it failed before
            with contextlib.suppress(OSError):
                if each.readlink() == self.folder:
                    os.kill(int(each.parent.name), signal.SIGKILL)

    def _type(self, block: Block) -> None:
        typed = commands(block)
        for number, (command, expected) in enumerate(typed, 1):
            if block.mark == "terminal":
                file = self.folder / f".terminal-{len(self._terminals)}"
                with file.open("wb") as out:
                    process = subprocess.Popen(
                        ["env", "--default-signal=INT", "bash", "-c", f"exec {command}"],
                        cwd=self.folder, env=self.environment,
                        stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
                self._terminals.append(Terminal(block, expected, process, file))
                if block.value == "ready":
                    self.eventually(self._terminals[-1].agrees, what=self._terminals[-1].told)
                continue
            done = subprocess.run(
                ["bash", "-c", command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            wanted = int(block.value) if block.mark == "exit" and number == len(typed) else 0
            assert done.returncode == wanted, f"{block}: $ {command}\n{done.stdout}{done.stderr}"
            said = done.stdout + done.stderr
            assert agree(expected, said), disagreement(block, expected, said)

    def _interpret(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", f"import os; told = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1){INTERPRETER}"],
                cwd=self.folder, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(["\n" * block.line + block.text, block.page]) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        assert answer, f"{block}: the interpreter has ended"
        assert json.loads(answer) == "", f"{block}: {json.loads(answer)}"


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, lines that end with a backslash joined, each with what stands below it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0][:-1]}{line.strip().removeprefix('> ')}", "")
        elif line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            assert found, f"{block}: begins without a command"
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    assert found, f"{block}: no command"
    return found


def agree(expected: str, said: str) -> bool:
    """Whether all lines that are expected were said, in order; `...` stands for anything."""
    lines = ["(?:.*\n)*" if line.strip() == "..." else f"{any_text(line)}\n" for line in expected.splitlines()]
    return re.search(f"^{''.join(lines)}", said if said.endswith("\n") else f"{said}\n", re.MULTILINE) is not None


def disagreement(block: Block, expected: str, said: str) -> str:
    """What to tell when they differ."""
    return f"{block}: expected\n{expected}\nwas\n{said}"


def any_text(line: str) -> str:
    """A line as an expression: `...` is anything, and so is how many blanks lie between words, and at its end."""
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in line.rstrip().split("...")]
    return ".*".join(parts) + r"\s*?"


def parse(block: Block, folder: Path, jbi: str | None) -> None:
    """Fails if the block is none of its language, or no settings where it looks like settings."""
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "xml":
        etree.fromstring(block.text.encode())
    elif block.language == "ini":
        configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
    elif block.language == "sh":
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
    else:
        said = tomllib.loads(block.text)
        tables = set(said)
        is_bridge, is_script = "side" in said, tables & {"publisher", "subscriber"}
        is_topology = "segment" in said
        is_policy = any(isinstance(value, list) for value in said.values()) or tables & {"group", "role", "space"}
        file = folder / (block.value if block.mark == "file" else f"block-{block.line}.toml")
        file.write_text(block.text)
        if not is_policy and tables <= {each.name for each in msgspec.structs.fields(Config)}:
            config.load(file=file, environment={})
        elif is_bridge or is_script or is_topology or (is_policy and "policy" in HOMES):
            assert jbi is not None
            command = ["client", "--check"] if is_script else ["bridge" if is_bridge else "policy", "check"]
            command = ["emulate", "--check"] if is_topology else command
            done = subprocess.run([jbi, *command, file], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"


def _outside() -> socket.socket:
    """A listener at a port that the system gives nobody who asks for any: what takes it later finds it free."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    pytest.fail("100 ports are taken")


@pytest.fixture
def reader(tmp_path: Path, world: str, eventually: Callable[..., Any]) -> Iterator[Reader]:
    """Somebody with an empty folder, this environment's commands, and a port for a lookup service of their own."""
    with contextlib.ExitStack() as held:
        free = [held.enter_context(_outside()) for _ in PORTS]
        ports = {port: str(each.getsockname()[1]) for port, each in zip(PORTS, free, strict=True)}
    (tmp_path / "examples").symlink_to(TOP / "examples")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
        "JBI_LOOKUP_PORT": ports["4160"],
        "JBI_GATEWAY_PORT": ports["8170"],
        "JBI_LOOKUP_LOCATORS": f"127.0.0.1:{ports['4160']}",
        "JBI_LOOKUP_GROUPS": world,
        "JBI_LOOKUP_MULTICAST": "false",
    }
    made = Reader(tmp_path, environment, ports, eventually)
    yield made
    made.kill()


WRONG: Final = {
    "an exception": "```python\n1 / 0\n```",
    "a name that a block before has not made": "```python\na = 1\n```\n```python\nb\n```",
    "an exit code": "```console\n$ false\n```",
    "another exit code": "<!-- exit: 2 -->\n```console\n$ false\n```",
    "another output": "```console\n$ echo one two\none\n```",
    "an output that goes on": "```console\n$ printf 'one\\nthree\\n'\none\ntwo\n```",
    "no command": "```console\nsays something\n```",
    "a misspelt setting": "```toml\n[lookup]\nprot = 1\n```",
    "no TOML": "```toml\n[lookup\n```",
    "no JSON": "```json\n{\n```",
    "no XML": "```xml\n<a>\n```",
    "no shell": "```sh\nif\n```",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_page_that_is_wrong_fails(text: str, tmp_path: Path, reader: Reader) -> None:
    # Given a page with a mistake; When somebody does what it says, expect that to be noticed
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n")
    *good, wrong = blocks(page)
    for block in good:
        reader.follow(block)
    with pytest.raises((AssertionError, ValueError, etree.XMLSyntaxError, subprocess.CalledProcessError)):
        reader.follow(wrong)


def test_what_is_said_above_a_block_is_read(tmp_path: Path) -> None:
    # Given a page whose blocks are run elsewhere, but for one with a reason of its own, in a list
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run by: tests/test_pages.py -->\n# A page\n\n```python\na\n```\n\n    indented\n\n"
        "1. first\n\n   <!-- not run: it would take a week -->\n   ```console\n   $ sleep 604800\n   ```\n"
    )
    # Expect each block with its language, and what is said of it
    assert [(b.line, b.language, b.text, b.mark, b.value) for b in blocks(page)] == [
        (4, "python", "a\n", "run by", "tests/test_pages.py"),
        (8, "", "indented\n", "run by", "tests/test_pages.py"),
        (13, "console", "$ sleep 604800\n", "not run", "it would take a week"),
    ]


RUN: Final = [name for name, found in ALL.items() if any(map(here, found))]


@pytest.fixture
def forked(reader: Reader, fixtures: Any, tmp_path_factory: pytest.TempPathFactory, _forks: None) -> Iterator[None]:
    """The reader's `jbi` is forked from a process that has imported the library."""

    def fork(streams: list[Any], environment: dict[str, str], script: str) -> Any:
        given = {"streams": streams, "environment": environment, "script": script}
        process = fixtures.FORKS.Process(target=exec, args=(fixtures.CHILD, given))
        process.start()
        return process

    folder = tmp_path_factory.mktemp("door")
    door = Door(folder, fork)
    reader.environment["PATH"] = f"{folder}:{reader.environment['PATH']}"
    yield
    reader.kill()
    door.close()


@pytest.mark.processes
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("page", [page for page in RUN if page not in FIRST])
def test_the_blocks_of_a_page_run(page: str, reader: Reader, start: Callable[..., Any]) -> None:
    follow(page, reader, start)


@pytest.mark.processes
@pytest.mark.parametrize(
    "page", [page if page in FIRST else pytest.param(page, marks=pytest.mark.slow) for page in RUN]
)
def test_the_blocks_of_a_page_run_with_the_installed_command(
    page: str, reader: Reader, start: Callable[..., Any]
) -> None:
    follow(page, reader, start)


def follow(page: str, reader: Reader, start: Callable[..., Any]) -> None:
    """Do what a page says."""
    # Given what a page takes for granted: a lookup service and a delegate, where it does not start its own
    todo = [block for block in ALL[page] if here(block)]
    text = next(path for path in PAGES if path.name == page).read_text()
    if any(b.language in ("python", "console") for b in todo) and "<!-- starts its own servers -->" not in text:
        lookup = start("--no-multicast", "lookup", "--port", "0", "--json").fact()
        start("--no-multicast", "--locator", lookup["address"], "pad", "alpha", "rome", "--json").fact()
        reader.environment["JBI_LOOKUP_LOCATORS"] = lookup["address"]
    # When somebody does what it says, in order, expect everything to be as it says
    for block in todo:
        reader.follow(block)
    reader.end()
