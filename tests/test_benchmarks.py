"""What the benchmarks rely on: documents that are valid, expectations that are right, reports that are read right."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from lxml import etree

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
STYLES = ("rect", "comment", "varied", "wide", "text", "mixed", "kinds")


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
    some = b"".join(documents["text"])
    assert all(mark in some for mark in (b"\xd0", b"&amp;", b"<![CDATA[", b"<?frame", b'<Track mode="', b"<x:Handling"))
    # Expect that they lie at the same places, so that the same rectangles match
    for style in ("comment", "varied", "wide", "text"):
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


@pytest.mark.parametrize("is_ugly", [False, True])
def test_objects_for_a_node_are_valid_and_wanted_by_one_subscription(
    monkeypatch: pytest.MonkeyPatch, is_ugly: bool
) -> None:
    # Given what goes through a node, the friendly way and the other
    monkeypatch.syspath_prepend(BENCHMARKS)
    node = importlib.import_module("node")
    case = node.Workload(1_024, is_ugly)
    # Expect documents that are valid, and all different
    documents = case.documents(50)
    assert all(is_valid(node.SCHEMA.read_bytes(), metadata) for metadata in documents)
    assert len(set(documents)) == 50
    # Expect the first subscription to want all of them, and no other one any
    about = [
        etree.fromstring(b'<og:m xmlns:og="og"><og:PayloadLength>1024</og:PayloadLength>' + part + b"</og:m>")
        for part in (metadata[metadata.index(b"<metadata") :] for metadata in documents)
    ]
    first, *others = [etree.XPath(f"boolean({each or 1})", namespaces={"og": "og"}) for each in case.predicates()]
    assert all(map(first, about))
    assert not any(other(document) for other in others for document in about)


def test_what_processes_share_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given one process, once and as if it were two
    monkeypatch.syspath_prepend(BENCHMARKS)
    node = importlib.import_module("node")
    alone, twice = node.together([os.getpid()]), node.together([os.getpid()] * 2)
    # Expect what the system says of it; and that its files are there once, what is its own twice
    assert alone == pytest.approx(node.memory(os.getpid())[0], rel=0.05)
    assert 1.2 * alone < twice < 1.98 * alone


@pytest.mark.row("G-136")
def test_more_calls_for_an_object_than_before_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given what a delegate did for an object before
    monkeypatch.syspath_prepend(BENCHMARKS)
    work = importlib.import_module("work")
    before = {"us": 20.0, "calls": 100.0, "functions": {"a.py:f": [10, 1.0], "a.py:gone": [1, 1.0]}}
    # Expect a hundredth more to pass for noise, and more not; and to be shown which function it is
    assert work.show("metadata", {**before, "calls": 101.0}, before)
    assert not work.show("metadata", {"us": 20.0, "calls": 103.0, "functions": {"a.py:f": [13, 1.0]}}, before)
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said[-2:]] == [["a.py:f", "13", "1.0", "10"], ["a.py:gone", "0", "0", "1"]]


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


def test_queries_of_an_archive_find_what_they_are_measured_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given an archive of the benchmark's, a small one
    monkeypatch.syspath_prepend(BENCHMARKS)
    archive = importlib.import_module("archive")
    monkeypatch.setattr(archive, "SAMPLE", 100)
    report = archive.measure(5000, tmp_path)
    hits = {name: row["hits"] for name, row in report["queries"].items()}
    # Expect the hits that their names say, told by the index alone but for the one that nothing restricts
    assert hits["unique text"] == hits["contains(unique text)"] == 1
    assert hits["nowhere"] == 0
    assert hits["//Area"] == hits["/.../Area"] > 0
    assert hits["newest of 100 keys"] == 100
    assert 20 < hits["rectangle, a hundredth"] < 90
    assert [name for name, row in report["queries"].items() if row["verified"] == 5000] == [
        "nothing to go by",
        "nothing to go by, a fifth",
    ]
    assert report["index_bytes"] > 0


def test_the_archive_is_measured_beside_other_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # When a few documents go into SQLite and DuckDB, and are packed
    monkeypatch.syspath_prepend(BENCHMARKS)
    archive = importlib.import_module("archive")
    report = archive.elsewhere(1_000, tmp_path) | archive.sealing(tmp_path / "seal")
    # Expect both to be measured, metadata to be small, and payloads that can't be to grow by no more than a byte
    assert all(f"{store}: rectangle, 10 hits, first_ms" in report for store in ("SQLite", "DuckDB"))
    assert report["meta, random_bytes"] < 612 / 7
    assert 1_024 < report["data, random_bytes"] < 1_040
    assert report["data, words_bytes"] < 600


@pytest.mark.long
@pytest.mark.processes
def test_adapters_for_asyncio_are_measured_beside_the_blocking_ones() -> None:
    # When both have published two lots of objects
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "aio.py", "--rounds", "1", "--count", "500", "--json"],
        capture_output=True, text=True, timeout=110, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("JBI_")},
    )  # fmt: skip
    # Expect a ratio of each way
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [*report] == [
        "through a delegate", "through a delegate, publish_many", "peer publisher", "peer, publish_many",
    ]  # fmt: skip
    assert all(row["ratio"] > 0 for row in report.values())


@pytest.mark.slow
def test_a_delegate_with_an_archive_is_measured_as_it_is_met(tmp_path: Path) -> None:
    # When all is measured with a thousand objects
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "archive_live.py", "--sizes", "1000", "--questions", "20", "--seconds", "0.5",
         "--folder", tmp_path, "--json"],
        capture_output=True, text=True, timeout=110, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("JBI_")},
    )  # fmt: skip
    # Expect figures of everything
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["durable: matching"] == 1
    wanted = ("archive: objects/s", "queries/s", "durable: back and served s", "after kill -9: queries s")
    assert all(report[name] > 0 for name in wanted)
    assert [name for name in report if name.startswith("live p99")] == [
        f"live p99 ms, {beside}" for beside in ("alone", "replay", "query")
    ]


def test_what_a_delegate_pays_for_an_object_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a few objects, of which nobody takes the time
    monkeypatch.syspath_prepend(BENCHMARKS)
    transport = importlib.import_module("transport")
    monkeypatch.setattr(transport, "OBJECTS", 200)
    for at_once in (1, 100):
        assert len(transport.measure(100, at_once)) == 6


def test_a_measurement_that_fails_is_told_and_the_others_are_made(tmp_path: Path) -> None:
    # Given an interpreter that fails at one of them
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "ran $1"\ncase $1 in *transport.py) exit 3;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        [BENCHMARKS / "everything.sh", tmp_path / "out"],
        env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "transport.txt: FAILED" in done.stderr, done.stderr.count("FAILED")) == (1, True, 1)
    assert len(list((tmp_path / "out").iterdir())) == 6


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark of networks, and what it is made of."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("network_simulated")


def test_networks_in_virtual_time_send_little_more_than_is_lost(networks: ModuleType) -> None:
    # Given the figures of few blocks
    ugly = networks.losses(150, 1, is_ugly=True)
    found = {each.what: each.reached for each in (*networks.losses(150, 1, is_ugly=False), *ugly)}
    # Expect about what the best possible would take (5, 24, 91, 139), though much of it is overtaken
    for words in ("", ", overtaken"):
        again = [found[f"{loss} loss{words}: sent again"] for loss in ("1%", "5%", "20%", "30%")]
        assert again == sorted(again)
        assert all(share <= most for share, most in zip(again, (12, 38, 125, 185), strict=True)), again


def test_figures_of_networks_that_are_no_matter_of_time_are_reached(networks: ModuleType) -> None:
    # Given what is counted in virtual time; Expect all of it to be as it is to be
    for found in (
        networks.missed(1), networks.modem(1), networks.islands(1, is_ugly=False), networks.islands(1, is_ugly=True),
        networks.churn(5),
    ):  # fmt: skip
        assert [each.what for each in found if not each.is_reached] == []
    ring, _ = networks.relays(30, 1)
    assert ring.reached == pytest.approx(1.0, abs=0.01)


def test_a_network_over_sockets_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a process for each node, two of which lose a fifth
    monkeypatch.syspath_prepend(BENCHMARKS)
    live = importlib.import_module("network_live")
    found = live.multicast(live.LiveCase(60, 1_360, 0.2, rate=2e6, receivers=2))
    # Expect all to have come, once, and some of it to have been sent again
    assert found["twice"] == 0
    assert 5 < found["sent again"] < 200


def test_a_figure_says_whether_it_is_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given figures with and without bounds; Expect the table to say which is not reached, and to be no wider than 80
    monkeypatch.syspath_prepend(BENCHMARKS)
    figures = importlib.import_module("network_figures")
    made = [figures.NetworkFigure("a", 3.0, "%", most=2), figures.NetworkFigure("b", 12_345.6, "objects/s", least=2)]
    assert not figures.shown(made, as_json=False)
    assert figures.shown([made[1], figures.NetworkFigure("c", 1.0)], as_json=True)
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said[1:3]] == [
        ["a", "<=", "2", "3", "%", "NO"], ["b", ">=", "2", "12,346", "objects/s", "yes"],
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in said[:3])
    assert [json.loads(line)["is_reached"] for line in said[3:]] == [True, True]
