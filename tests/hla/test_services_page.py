"""The table of services says what is there, and has all of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.rti import SERVICES

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "hla-services.md").read_text()
LAST = {4: 32, 5: 13, 6: 30, 7: 19, 8: 24, 9: 13, 10: 44}
"""The last service of each clause of IEEE 1516.1-2010; each begins with its second one."""


class Row(NamedTuple):
    clause: str
    names: tuple[str, ...]
    file: str
    test: str


def rows() -> list[Row]:
    found = []
    for service, here, test in re.findall(r"^\| ([^|]*) \| ([^|]*) \| ?([^|]*?) ?\|$", PAGE, re.MULTILINE):
        clause = re.match(r"\d+\.\d+|own", service)
        if clause is not None:
            file, _, name = test.replace("`", "").partition(": ")
            found.append(Row(clause[0], tuple(re.findall(r"`(\w+)`", here.partition("(")[0])), file, name))
    return found


def public(cls: type) -> set[str]:
    return {name for each in cls.__mro__ for name in vars(each) if name[0] != "_" and each is not object}


def test_the_table_has_each_service_of_the_standard_once() -> None:
    clauses = [row.clause for row in rows() if row.clause != "own"]
    assert clauses == [f"{part}.{number}" for part, last in LAST.items() for number in range(2, last + 1)]


def test_the_table_has_each_service_that_is_there_and_no_other() -> None:
    there = public(RTIAmbassador) | public(FederateAmbassador)
    named = {name for row in rows() for name in row.names}
    assert there - named == set()
    assert named - there - set(SERVICES) - set(vars(RTIAmbassador())) == set()
    # what an RTI does is there under the name of the standard, but for the one service behind four switches
    assert set(SERVICES) - named == {"set_advisory_switch"}


@pytest.mark.parametrize("row", [row for row in rows() if row.names], ids=lambda row: row.names[0])
def test_the_test_of_a_service_calls_it(row: Row) -> None:
    text = (HERE / row.file).read_text()
    tests = {each.name: each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)}
    source = ast.get_source_segment(text, tests[row.test]) or ""
    assert any(re.search(rf"\b{name}\b", source) for name in row.names)
