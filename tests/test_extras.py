"""Extras are independent: with any one or two of them and nothing of the others there, every module that is not of the
others can be imported, and what needs one that is missing says so in one line that names it."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

TOP = Path(__file__).parent.parent

EXTRAS: Final = ("archive", "ldap", "mqtt", "node", "plot", "qos", "spark", "web", "zenoh")
ROOMS: Final = {
    "jbi_pubsub.archive.": {"archive", "node"},
    "jbi_pubsub.web.": {"web", "node"},
    "jbi_pubsub.spark.": {"spark"},
    "jbi_pubsub.examples.": {"spark"},
}
"""Modules that may need an extra, any of these, when they are imported."""
PROBES: Final = {
    "archive": ("archive import none.jsonl --folder kept", {"archive", "node"}),
    "node": ("--set node.folder=/proc/none node start", {"node", "archive"}),
    "gateway": ("gateway --document", {"web", "node"}),
    "web": ("--insecure web --host 256.0.0.1", {"web", "node"}),
    "bridge": ("bridge check mqtt.toml", {"mqtt"}),
    "ldap": ("--no-multicast --set policy.users=ldaps://x/uid={} pad alpha rome", {"ldap"}),
    "study": ("study import one.jsonl --out data", {"spark"}),
    "generate": ("study generate --publications 9 --out made", {"spark"}),
    "match": ("study match --registrations 9 --templates 9 --out matched", {"spark"}),
    "capacity": ("study capacity . --publishers 1 --rate 1 --subscribers 1 --out capacity", {"spark"}),
    "watch": ("study watch . --out watched", {"spark"}),
    "compare": ("study compare . . --out /compared", {"spark"}),
    "export": ("archive export all.parquet", {"spark"}),
    "plot": ("policy simulate none.toml --plot page.html", {"plot", "spark"}),
    "shape": ("policy check policy.toml", {"qos", "plot", "spark"}),
}
"""Commands, and the extras of which each suffices. They end at once, with or without what they need."""
FILES: Final = {
    "none.jsonl": "",
    "all.parquet": "",
    "one.jsonl": '{"metadata": "<a/>", "type": "a"}\n',
    "mqtt.toml": '[side.a]\n[side.b]\nkind = "mqtt"\nbroker = "127.0.0.1:1"\n',
    "policy.toml": '[[policy]]\nname = "small"\nimportance = 1\nshape = ["scale 0.5"]\n',
}

PROBE = """
import contextlib, importlib, io, json, os, sys, tempfile
ours, files, probes, tasks = json.load(sys.stdin)
for name in ("rich", "lxml.etree", "msgspec", "click", "jbi_pubsub.core.config"):
    importlib.import_module(name)

class Without:
    def __init__(self, finder, blocked):
        self.finder, self.blocked = finder, blocked
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.blocked else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

def probe(blocked):
    assert not set(blocked) & {name.partition(".")[0] for name in sys.modules}
    sys.meta_path[:] = [Without(finder, set(blocked)) for finder in sys.meta_path]
    from jbi_pubsub.cli.app import run
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, text in files.items():
            open(name, "w").write(text)
        for name, words in probes.items():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = run(words.split())
                except BaseException as exc:
                    code = repr(exc)
            yield name, code, out.getvalue() + err.getvalue()
        os.chdir("/")
    for name in ours:
        try:
            importlib.import_module(name)
        except BaseException as exc:
            yield name, type(exc).__name__, str(exc)

for extras, blocked in tasks:
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            for name, code, said in probe(blocked):
                print(json.dumps([extras, name, code, said]), flush=True)
            print(json.dumps([extras, "", 0, ""]), flush=True)
        finally:
            os._exit(0)
    os.wait()
"""


def closure(requirements: list[str]) -> set[str]:
    """Distributions that are installed for them, by their normal names."""
    found: set[str] = set()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = requirement.name.lower().replace("_", "-")
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        more = [(Requirement(each), own) for each in needs for own in ("", *requirement.extras)]
        waiting += [(each, own) for each, own in more if each.name.lower().replace("_", "-") not in found]
    return found


def blocked(extras: tuple[str, ...]) -> list[str]:
    """Top-level modules that are here for the other extras alone."""
    settings = configparser.ConfigParser()
    settings.read(TOP / "setup.cfg")
    every = {name: text.split("\n") for name, text in settings["options.extras_require"].items()}
    base = settings["options"]["install_requires"].split("\n")
    wanted = {name: [line for line in lines if line.strip()] for name, lines in (*every.items(), ("", base))}
    here = closure([*wanted[""], *(line for each in extras for line in wanted[each])])
    others = closure([line for each in EXTRAS for line in wanted[each]]) - here
    return sorted(
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if {name.lower().replace("_", "-") for name in names} <= others
    )


def modules() -> list[str]:
    spec = importlib.util.spec_from_file_location("test_modules", TOP / "tests" / "test_modules.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    names: list[str] = made.all_modules()
    return sorted(names)


def check(combinations: list[tuple[str, ...]], ours: list[str]) -> None:
    words = {name: line for name, (line, _) in PROBES.items()}
    tasks = [(each, blocked(each)) for each in combinations]
    said = subprocess.run(
        [sys.executable, "-c", PROBE], input=json.dumps([ours, FILES, words, tasks]), text=True, capture_output=True,
        timeout=400, check=False,
    )  # fmt: skip
    told: list[Any] = [json.loads(line) for line in said.stdout.splitlines()]
    assert [tuple(extras) for extras, name, _, _ in told if not name] == combinations, said.stderr
    bad = [why for each in told if (why := wrong(*each))]
    assert not bad, "\n".join(bad)


def wrong(extras: list[str], name: str, code: object, text: str) -> str:
    """Why that is not as it should be; "" when it is."""
    here = set(extras) - ({"ldap"} if importlib.util.find_spec("ldap") is None else set())
    told = f"with {extras or 'no extra'}: {name}: {code} {text[:600]}"
    if name in PROBES:
        needs = PROBES[name][1]
        if here & needs:
            return told if "pip install" in text or not isinstance(code, int) else ""
        is_named = any(f"jbi-pubsub[{each}]" in text for each in needs)
        is_line = isinstance(code, int) and "Traceback" not in text and (code in (1, 2) or name == "shape")
        return "" if is_named and is_line else told
    needs = next((extras_ for room, extras_ in ROOMS.items() if name.startswith(room)), set())
    return told if name and (not needs or here & needs) else ""


def test_each_extra_says_in_one_line_what_it_brings() -> None:
    # Given the extras of setup.cfg, with the line above each, and the page on installation
    section = (TOP / "setup.cfg").read_text().partition("[options.extras_require]")[2].partition("\n[")[0]
    said = {name: brings for brings, name in re.findall(r"^(?:# (.+)\n)?(\w+) =$", section, re.MULTILINE)}
    page = (TOP / "docs" / "install.md").read_text()
    # Expect each to be told in both, in the same words but for those that the page adds
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE))
    assert set(said) == set(told) == {*EXTRAS, "docs", "test"}
    for name, brings in said.items():
        assert brings.partition(":")[0] == told[name].replace("`", "").partition(":")[0].partition(" (")[0], name


@pytest.mark.row("G-27", "G-148")
def test_without_extras_what_needs_one_names_it() -> None:
    check([()], [])


@pytest.mark.row("G-27")
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_with_any_one_or_two_of_them_what_needs_another_names_it_and_what_is_theirs_can_be_imported() -> None:
    check([*((each,) for each in EXTRAS), *itertools.combinations(EXTRAS, 2)], modules())
