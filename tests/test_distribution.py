"""What is published is whole: the source distribution can be tested, the wheel has the documentation."""

from __future__ import annotations

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
    # When it is made
    script = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=TOP, check=True, capture_output=True)
    [made] = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    # Expect every file that is tracked, and none twice by the links of the source tree
    assert sorted(tracked() - names) == []
    assert [name for name in names if name.startswith(("jbi_pubsub/lookup/", "jbi_pubsub/pad/"))] == []


def test_the_wheel_brings_the_documentation() -> None:
    # Given setup.cfg, which names what goes beside the packages; Expect every page of the documentation
    settings = (TOP / "setup.cfg").read_text()
    assert "share/doc/jbi-pubsub = docs/*.md" in settings
    assert len(list((TOP / "docs").glob("*.md"))) > 5
