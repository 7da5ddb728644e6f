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
