"""What the benchmarks rely on: documents that are valid, expectations that are right, reports that are read right."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from lxml import etree

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
STYLES = ("rect", "comment", "varied", "wide", "mixed")


@pytest.fixture
def workload(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The workload that all systems get."""
    monkeypatch.syspath_prepend(BENCHMARKS / "peers")
    return importlib.import_module("workload")


@pytest.fixture
def system_calls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The counter of system calls."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("system_calls")


@pytest.fixture
def dissemination(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The end-to-end benchmark."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("dissemination")


def is_valid(schema: bytes, metadata: bytes) -> bool:
    """As libxml2 says."""
    return bool(etree.XMLSchema(etree.fromstring(schema)).validate(etree.fromstring(metadata)))


@pytest.mark.parametrize("style", STYLES)
def test_the_documents_of_a_style_are_those_of_its_strict_schema(workload: ModuleType, style: str) -> None:
    # Given documents of a style, and its schema
    schema = workload.schema(style)
    objects, _, _ = workload.generate(60, 5, style=style)
    # Expect that all are valid, and none in which a value or an element is wrong
    assert all(is_valid(schema, obj.metadata) for obj in objects)
    for leaf in ("lat", "long", "Acquired", "Sensor", "ImageType"):
        wrong = re.sub(rf"(<{leaf}[^>]*>)[^<]*".encode(), rb"\1wrong", objects[0].metadata, count=1)
        assert not is_valid(schema, wrong), leaf
    assert not is_valid(schema, objects[0].metadata.replace(b"</ImageDescriptor>", b"<other/></ImageDescriptor>"))


def test_styles_differ_in_what_they_say_and_in_nothing_else(workload: ModuleType) -> None:
    # Given the same objects in all styles
    made = {style: workload.generate(100, 10, style=style) for style in STYLES}
    documents = {style: [obj.metadata for obj in objects] for style, (objects, _, _) in made.items()}
    # Expect another comment in each, many structures, many leaves
    assert len({re.search(rb"<!--.*-->", metadata)[0] for metadata in documents["comment"]}) > 95  # type: ignore[index]
    shapes = {style: {re.sub(rb">[^<>]+<", b"><", m) for m in of} for style, of in documents.items()}
    assert len(shapes["rect"]) == len(shapes["wide"]) == 1
    assert len(shapes["varied"]) > 95
    assert etree.fromstring(documents["wide"][0]).xpath("count(//*[not(*)])") > 1_000
    # Expect that they lie at the same places, so that the same rectangles match
    for style in ("comment", "varied", "wide"):
        assert [obj.fields for obj in made[style][0]] == [obj.fields for obj in made["rect"][0]]
        assert made[style][2] == made["rect"][2]


@pytest.mark.parametrize("style", STYLES)
def test_what_is_expected_is_what_lxml_says(workload: ModuleType, style: str) -> None:
    # Given objects and predicates, and who is expected to get what
    objects, predicates, expected = workload.generate(100, 20, matches_per_object=2, style=style)
    # Expect those whose predicate is true
    evaluated = [etree.XPath(f"boolean({predicate.xpath})") for predicate in predicates]
    for obj, subscribers in zip(objects, expected, strict=True):
        root = etree.fromstring(obj.metadata)
        assert sorted(subscribers) == [at for at, holds in enumerate(evaluated) if holds(root)]
    assert any(expected)


def test_each_document_is_in_one_stripe(dissemination: ModuleType) -> None:
    # Given subscriptions that share the documents out among them, in two processes
    case = dissemination.Case(200, 0, own=True, processes=2, each=5)
    roots = [etree.fromstring(metadata) for metadata in case.documents()]
    # Expect that each process gets as many as it waits for, and all together get each document once
    told = 0
    for predicates, expected in case.subscribers():
        found = sum(etree.XPath(f"boolean({predicate})")(root) for predicate in predicates for root in roots)
        assert found == expected
        told += found
    assert told == len(roots)


PERF = """\
# started on Sun Nov 22 12:12:16 2026

12||raw_syscalls:sys_enter|865464|100.00||
4||syscalls:sys_enter_sendto|865464|100.00||
5||syscalls:sys_enter_futex|865464|100.00||
<not counted>||syscalls:sys_enter_read|0|100.00||
"""
STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 34.06    0.405963           6         4           sendto
 31.25    0.372444          35         5         1 futex
  0.01    0.000067          33         3           munmap
------ ----------- ----------- --------- --------- ----------------
100.00    0.778474          41        12         1 total
"""


@pytest.mark.parametrize("report", [PERF, STRACE])
def test_a_report_of_system_calls_is_read(system_calls: ModuleType, report: str) -> None:
    # Given twelve calls, of which three are of no kind that is shown; Expect these
    found = system_calls.counts(report)
    assert (found["send"], found["futex"], found["receive"], found["other"], found["total"]) == (4, 5, 0, 3, 12)
