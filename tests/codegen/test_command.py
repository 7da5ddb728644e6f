"""`jbi codegen`: layouts of many folders, prefixes, and what a second run costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import run

pytestmark = pytest.mark.processes

CAP = "urn:oasis:names:tc:emergency:cap:1.2"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an empty folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def layout(make: Any, folder: Path) -> None:
    """a/main.xsd imports ../c.xsd, and a document by its address."""
    (folder / "a").mkdir()
    (folder / "copies").mkdir()
    links = (
        '<xs:import namespace="urn:c" schemaLocation="../c.xsd"/>'
        '<xs:import namespace="urn:d" schemaLocation="http://example.org/d.xsd"/>'
    )
    content = '<xs:element ref="c:c" xmlns:c="urn:c"/><xs:element ref="d:d" xmlns:d="urn:d"/>'
    root = f'<xs:element name="r"><xs:complexType><xs:sequence>{content}</xs:sequence></xs:complexType></xs:element>'
    (folder / "a/main.xsd").write_bytes(make.schema(links + root))
    one = '<xs:element name="{}" type="xs:int"/>'
    (folder / "c.xsd").write_bytes(make.schema(one.format("c"), 'targetNamespace="urn:c"'))
    (folder / "copies/d.xsd").write_bytes(make.schema(one.format("d"), 'targetNamespace="urn:d"'))


@pytest.mark.parametrize("copies", ["http://example.org/=copies", "http://example.org/d.xsd=copies/d.xsd"])
def test_a_published_layout_is_generated_from_local_copies(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], copies: str
) -> None:
    layout(make, tmp_path)
    command = ["codegen", "a/main.xsd", "--root", "r", "-o", "made.py"]
    # Given no copies: the refusal names the option that takes them
    assert run(command) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "--locations http://example.org/d.xsd=FILE" in said
    # Expect them to be taken, and the document in the folder above
    assert run([*command, "--locations", copies]) == 0
    assert 'c="int"' in (tmp_path / "made.py").read_text()
    # but not where another folder is named
    assert run([*command, "--locations", copies, "--within", "a"]) == 1
    assert f"../c.xsd, which lies outside of {tmp_path / 'a'}. Give the document" in capsys.readouterr().err


def test_prefixes_of_a_predicate_are_those_that_were_given(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cap = [str(make.fixtures / "cap" / name) for name in ("schema/cap12.xsd", "marks.json")]
    command = ["codegen", "explain", cap[0], "--marks", cap[1], "/x:alert/x:sender='me'"]
    assert run(command) == 2
    assert "prefix" in capsys.readouterr().err
    assert run([*command, "--namespace", f"x={CAP}"]) == 0
    assert "template" in capsys.readouterr().out
    # Expect what is no prefix and address to be refused
    assert run([*command, "--namespace", "x"]) == 2
    assert "'x' is not PREFIX=URI" in capsys.readouterr().err


def test_a_predicate_that_is_no_xpath_is_refused(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    schema = str(make.fixtures / "intel_imagery/Intel_Imagery.xsd")
    assert run(["codegen", "explain", schema, "/metadata["]) == 2
    assert "/metadata[" in capsys.readouterr().err


def test_a_second_run_opens_no_schema(make: Any, tmp_path: Path) -> None:
    # Given a schema that was generated from before
    schema = str(make.fixtures / "intel_imagery/Intel_Imagery.xsd")
    assert run(["codegen", schema, "-o", "one.py"]) == 0
    # When another process does so again
    code = (
        "import sys\nfrom jbi_pubsub.core.child import Children\nChildren.run = None\n"
        "from jbi_pubsub.cli.app import run\n"
        f"sys.exit(run(['codegen', {schema!r}, '-o', 'two.py']) or 'xmlschema' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    # Expect the same module, without a child process and without the libraries that read schemas
    assert (tmp_path / "two.py").read_bytes() == (tmp_path / "one.py").read_bytes()


def test_marks_are_drafted_for_a_schema_of_many_folders(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout(make, tmp_path)
    assert run(["codegen", "marks", "a/main.xsd", "--root", "r", "--locations", "http://example.org/=copies"]) == 0
    assert '"/r/n1:c"' in capsys.readouterr().out
