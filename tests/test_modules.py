"""Every module can be imported alone, in a process that has imported nothing else of ours: no hidden cycles."""

from __future__ import annotations

import configparser
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import jbi_pubsub

# An interpreter forks for all modules together, and once per package with modules of a cycle, so that each of these
# starts from nothing of ours but its package, which its import begins with. What is not ours it imports before: the
# first fork has said what all modules together load.
PROBE = """
import gc, os, sys, importlib
gc.disable()  # what is forked would copy all that it looks through
count = int(sys.argv[1])
names, alone, width, running, failed = sys.argv[2:][:count], sys.argv[2:][count:], max(2, os.cpu_count() or 2), {}, []
ours, said = names[0] + ".", os.pipe()
def imported(names):
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as exc:
            print(name, type(exc).__name__, exc, file=sys.stderr, flush=True)
            return 1
    return 0
if os.fork() == 0:
    code = imported(names)
    os.write(said[1], " ".join(name for name in sys.modules if not (name + ".").startswith(ours)).encode())
    os._exit(code)
os.close(said[1])
with open(said[0]) as theirs:
    for name in theirs.read().split():
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # a name that only another module's import gives
if os.wait()[1]:
    failed.append("all")
def reap():
    pid, status = os.wait()
    name = running.pop(pid)
    if status:
        failed.append(name)
def each_after(package, names):
    # an import begins with the package, which imports most of what is in it
    code = imported([package] if package else [])
    for name in [name for name in names if name not in sys.modules]:
        if os.fork() == 0:
            os._exit(imported([name]))
        code |= bool(os.wait()[1])
    return code
groups = {}
for name in alone:
    groups.setdefault(name.rpartition(".")[0], []).append(name)
for package, names in groups.items():
    if len(running) >= width:
        reap()
    pid = os.fork()
    if pid == 0:
        os._exit(each_after(package, names))
    running[pid] = package or names[0]
while running:
    reap()
print(" ".join(failed))
"""


ROOMS = ("lookup", "pad", "codegen", "spark", "examples")
"""What lies beside jbi_pubsub/ and is linked there; an unpacked source distribution has no links."""


def everything() -> dict[str, bool]:
    """All modules of ours, and whether each is a package; the rooms by their own path, linked or not."""
    walked = [*pkgutil.walk_packages(jbi_pubsub.__path__, "jbi_pubsub.")]
    for room in ROOMS:
        name = f"jbi_pubsub.{room}"
        walked += pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
    return {m.name: m.ispkg for m in walked} | {f"jbi_pubsub.{room}": True for room in ROOMS} | {"jbi_pubsub": True}


def all_modules() -> list[str]:
    """Ours, but not `__main__`, which runs the command."""
    return [name for name in everything() if not name.endswith("__main__")]


def in_cycles(names: list[str]) -> list[str]:
    """Those that import themselves by way of others, a package being imported before what is in it. Any other can be
    imported alone if all of them together can."""
    graph = grimp.build_graph("jbi_pubsub", exclude_type_checking_imports=True)
    for name in graph.modules - {"jbi_pubsub"}:
        graph.add_import(importer=name, imported=name.rpartition(".")[0])
    upstream = {name: graph.find_upstream_modules(name) for name in graph.modules}
    cyclic = {name for name in upstream if any(name in upstream[each] for each in upstream[name])}
    return [name for name in names if name in cyclic or name not in upstream]


def test_every_module_can_be_imported_alone() -> None:
    names = sorted(all_modules())  # the package comes first: the probe asks for that
    assert {
        "jbi_pubsub.core.wire.stream",
        "jbi_pubsub.lookup.registrar",
        "jbi_pubsub.pad.delegate.delegate",
    } <= set(names)
    command = [sys.executable, "-c", PROBE, str(len(names)), *names, *in_cycles(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_the_face_names_what_an_application_needs_and_loads_nothing_at_import() -> None:
    script = (
        "import sys, jbi_pubsub; loaded = [m for m in sys.modules if m.split('.')[0] in ('rpyc', 'lxml', 'zeroconf')]; "
        "assert not loaded, loaded; [getattr(jbi_pubsub, n) for n in jbi_pubsub.__all__]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.row("G-21")
@pytest.mark.parametrize("client", ["subscriber", "publisher", "capi", "cli.clients", "cli.publish", "web.gateway"])
def test_a_client_is_loaded_without_what_serves_it(client: str) -> None:
    script = (
        f"import sys, jbi_pubsub.{client}; "
        "print([name for name in sys.modules if name.startswith(('jbi_pubsub.pad', 'aiosmtplib'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_command_that_publishes_loads_nothing_that_it_does_not_use() -> None:
    script = (
        "import sys, jbi_pubsub.cli.publish; unused = ('asyncio', 'email', 'ifaddr', 'rich', 'xmlschema', 'zeroconf'); "
        "own = ('jbi_pubsub.subscriber', 'jbi_pubsub.policy.policy', 'jbi_pubsub.policy.file'); "
        "print([name for name in sys.modules if name.split('.')[0] in unused or name.startswith(own)])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_who_has_no_type_repository_loads_nothing_of_one() -> None:
    script = (
        "import sys, jbi_pubsub.publisher, jbi_pubsub.subscriber, jbi_pubsub.pad.server.server; "
        "from jbi_pubsub.core.config import Config; from jbi_pubsub.codegen.repository import repository_of; "
        "assert repository_of(Config()).registry is None; "
        "assert not [name for name in sys.modules if name.startswith('jbi_pubsub.codegen.types.') "
        "and not name.endswith('.untyped')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_worker_of_an_archive_is_loaded_without_what_speaks_to_networks() -> None:
    script = (
        "import sys, jbi_pubsub.archive.worker; "
        "loaded = {'ssl', 'http.client', 'urllib.request', 'email', 'importlib.metadata', 'rpyc'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_source_tree_has_the_names_of_the_installed_package() -> None:
    top = Path(jbi_pubsub.__file__).parent
    if not (top / "lookup").exists():
        pytest.skip("an unpacked source distribution has no links")
    for room in ROOMS:
        link = top / room
        if link.is_symlink():  # an installed package has folders instead
            assert str(link.readlink()) == f"../{room}"
        assert (link / "__init__.py").is_file()


@pytest.mark.row("C-07")
def test_every_package_is_listed_for_installation() -> None:
    # Given setup.cfg, which lists packages because discovery would follow the links
    top = Path(jbi_pubsub.__file__).parent.parent
    if not (top / "setup.cfg").is_file():
        pytest.skip("installed without its source tree")
    settings = configparser.ConfigParser()
    settings.read(top / "setup.cfg")
    listed = set(settings["options"]["packages"].split())
    # Expect every folder with Python files in it
    assert listed == {name for name, is_package in everything().items() if is_package}


def test_the_page_for_contributors_names_all_rooms() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    named = {name.rpartition("/")[2] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    rooms = {module.name for module in pkgutil.iter_modules(jbi_pubsub.__path__) if module.ispkg}
    assert rooms <= named, rooms - named
