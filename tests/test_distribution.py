"""What is published is whole: the source distribution can be tested, the wheel has the documentation."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import module_of

TOP = Path(__file__).parent.parent

OURS = {".gitignore", ".ci"}
"""What belongs to the repository alone."""


def tracked() -> set[str]:
    """The files of the repository, links apart."""
    if shutil.which("git") is None or not (TOP / ".git").exists():
        pytest.skip("not in the repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    files = {name for name in listed.split("\0") if name and (TOP / name).is_file()}
    return {name for name in files if PurePosixPath(name).parts[0] not in OURS}


def test_the_source_distribution_has_all_files_of_the_repository(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    # Given a fresh checkout: setuptools takes what an earlier run has listed for a source as well
    files, fresh, made = tracked(), tmp_path / "fresh", tmp_path / "made"
    for name in files:
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, fresh / name)
    # When the source distribution is made
    script = f"from setuptools.build_meta import build_sdist; build_sdist({str(made)!r})"
    made.mkdir()
    done = subprocess.run([sys.executable, "-c", script], cwd=fresh, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [archive] = made.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    # Expect every file that is tracked
    assert sorted(files - names) == []


def test_the_wheel_brings_the_documentation() -> None:
    # Given setup.cfg, which names what goes beside the packages; Expect every page of the documentation
    settings = (TOP / "setup.cfg").read_text()
    assert "share/doc/jbi-pubsub = docs/*.md" in settings
    assert len(list((TOP / "docs").glob("*.md"))) > 5


def test_an_editable_installation_is_a_folder_on_the_path_which_type_checkers_see() -> None:
    # Given setup.cfg, which has `pip install -e .` put this folder on the path, and no finder
    settings = configparser.ConfigParser()
    settings.read(TOP / "setup.cfg")
    assert settings["editable_wheel"]["mode"] == "compat"
    # Expect each package to be there under its own name, by a link where its room lies elsewhere
    for package in settings["options"]["packages"].split():
        assert (TOP / package.replace(".", "/") / "__init__.py").is_file(), package
    assert (TOP / "jbi_pubsub" / "py.typed").is_file()


def test_what_is_published_is_typed_for_who_has_no_stubs_of_lxml() -> None:
    # Given a checker to which an lxml element is Any; Expect it not to meet one in the unions that applications give
    for source, alias in (("core/arguments.py", "Document"), ("publisher/payloads.py", "Payload")):
        [line] = re.findall(rf"^{alias} = (.*)$", (TOP / "jbi_pubsub" / source).read_text(), re.MULTILINE)
        names = set(re.findall(r"\w+", line))
        assert "XmlElement" in names
        assert names.isdisjoint(("Element", "Any"))


UV = """#!/bin/sh
for last; do :; done
case "$*" in
*"--python 3.12 "*) echo "no such Python" >&2; exit 2 ;;
build*) touch "$4/jbi.whl" "$4/jbi.tar.gz" ;;
venv*) mkdir -p "$last/bin"; ln -s /bin/true "$last/bin/jbi" ;;
esac
"""


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_release_that_is_not_tried_on_a_python_says_so_and_fails_in_ci(
    ci: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a machine without Python 3.12
    release, tried = module_of(TOP / "tools" / "release.py"), set[str]()
    for name, folder in (("DIST", tmp_path / "dist"), ("BUILD", tmp_path / "build")):
        monkeypatch.setattr(release, name, folder)
    monkeypatch.setattr(release, "tried", lambda _uv, folder, _package: tried.add(folder.parent.name))
    monkeypatch.setattr(release, "materials", lambda *_: None)
    monkeypatch.setattr(release.shutil, "which", lambda _: None)
    monkeypatch.setattr(release.shutil, "rmtree", lambda folder, **_: folder.mkdir())
    monkeypatch.setenv("CI", ci)
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    # When a release is made, expect it to be tried on the others, that to be said, and an error where nobody reads it
    assert release.main(str(tmp_path / "uv")) == code
    assert tried == {"3.11", "3.13"}
    assert "NOT TRIED on Python 3.12" in capsys.readouterr().out
