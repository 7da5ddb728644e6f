"""The index on disk: it chooses the candidates that `plan.py` says, and can be lost at any time."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from archived import TYPE, Shelf, answer, compare, record
from differential import NAMESPACES
from extent import examples
from lxml import etree
from plain_index import PlainIndex

from jbi_pubsub.archive.index import DuckIndex
from jbi_pubsub.archive.query import CandidateCount, Candidates, CompiledScope, Cursor, asked_of
from jbi_pubsub.archive.tables import TypeTables
from jbi_pubsub.archive.volume import Record
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.history import HistoryQuery, Order, Scope
from jbi_pubsub.core.info_object import TypeName

ID = b"an archive's id."
QUERY = HistoryQuery(scopes=())


def asked(text: str, kind: TypeName = TYPE) -> CompiledScope:
    (found,) = asked_of(HistoryQuery(scopes=(Scope(kind, text, tuple(NAMESPACES.items())),)))
    return found


class Beside:
    """The index, and beside it the plain one, which has to choose the same candidates."""

    def __init__(self, index: DuckIndex) -> None:
        self.index, self.plain = index, PlainIndex()

    @property
    def position(self) -> int:
        assert self.index.position == self.plain.position
        return self.index.position

    def add(self, records: Sequence[Record], up_to: int) -> None:
        self.index.add(records, up_to)
        self.plain.add(records, up_to)

    def window(self, after: int, up_to: int, rows: int, order: Order) -> tuple[int, int]:
        return self.index.window(after, up_to, rows, order)

    def candidates(self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int) -> Candidates:
        found = self.index.candidates(asked, query, after, up_to)
        assert found == self.plain.candidates(asked, query, after, up_to), asked.scope.predicate
        counted = CandidateCount(len(found.positions), sum(found.exact))
        assert self.index.count(asked, query, after, up_to) == counted, asked.scope.predicate
        return found

    def close(self) -> None:
        self.index.close()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Beside]:
    """Makes indexes, each in a folder of its own, that put all of a predicate to the database."""
    monkeypatch.setattr("jbi_pubsub.archive.sql.LOOKS_MOST", 1000)
    monkeypatch.setattr("jbi_pubsub.archive.sql.PATHS_MOST", 10_000)
    numbers = itertools.count()
    return lambda: Beside(DuckIndex(tmp_path / str(next(numbers)), ID, 0, columns=12, enough=20))


@pytest.mark.long
def test_answers_are_those_of_lxml(make: Callable[[], Beside]) -> None:
    # Given columns for some paths as soon as they come, and not enough for all
    comparison = compare(examples(7_000), make, documents=100, expressions=60, seed=2)
    # Expect what lxml says
    assert comparison.mismatches == ()
    assert comparison.true > 200
    assert comparison.exact > 100


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "limit"),
    [("leaves.MAX_PATHS", 14), ("leaves.MAX_PATHS_CHARS", 60), ("leaves.MAX_VALUES", 2), ("leaves.MAX_TEXT", 1),
     ("leaves.SIZES", (30, 60))],
)  # fmt: skip
def test_answers_are_those_of_lxml_where_not_all_is_held(
    make: Callable[[], Beside], monkeypatch: pytest.MonkeyPatch, what: str, limit: object
) -> None:
    # Given documents that are too much for the index, most of them
    monkeypatch.setattr(f"jbi_pubsub.archive.{what}", limit)
    comparison = compare(1_500, make, documents=80, expressions=24)
    # Expect what lxml says
    assert comparison.mismatches == ()
    assert comparison.true > 200


CALCULATED = (
    "sum(//a) * 2 > 20", "sum(//a) = 5", "sum(//a) != 5", "not(sum(//a) >= 7)", "count(//a) > 1", "count(//a) = 0",
    "sum(//a) - count(//a) < 3", "/m/b * 2 + /m/c > 10", "number(/m/b) - /m/c != 0", "/m/b mod 3 = 1",
    "not(/m/b * /m/c > 5)", "-2 div sum(//a) > 0.5", "sum(//a) div count(//a) > 4", "/m/b div /m/c > 1",
    "sum(//nowhere) = 0", "sum(//@id) > 5", "sum(//a) > 6.3 and count(//c) = 1 or /m/b = 'x'",
)  # fmt: skip


def test_calculations_are_decided_without_lxml(tmp_path: Path) -> None:
    # Given documents with any number of values at a path, which are numbers or are not, or written oddly
    chance = random.Random(1)
    values = ("5", "5.0", "0.1", "-0", "7.3", "-2", " 3 ", "", "n/a", "1e3", "1e400")
    sources = [
        "<m>{}</m>".format(
            "".join(
                f"<{name} id='{number % 9}'>{chance.choice(values[: chance.choice((6, 6, 6, 11))])}</{name}>"
                for name in chance.sample(("a", "a", "a", "a", "b", "c"), chance.randrange(7))
            )
        ).encode()
        for number in range(600)
    ]
    records = [record(number, source) for number, source in enumerate(sources, 1)]
    index = DuckIndex(tmp_path, ID, 0, enough=20)
    index.add(records, len(records))
    roots = [etree.fromstring(source) for source in sources]
    decided = 0
    for text in CALCULATED:
        # Expect what lxml says, of all that are said to be known, and few that are not
        lxml = {number for number, root in enumerate(roots, 1) if etree.XPath(f"boolean({text})")(root)}
        found = index.candidates(asked(text), QUERY, 0, len(records))
        known = {position for position, exact in zip(found.positions, found.exact, strict=True) if exact}
        assert known <= lxml <= set(found.positions), text
        decided += len(records) - len(set(found.positions) - known)
    assert decided > 0.8 * len(CALCULATED) * len(records)
    index.close()


def test_what_may_cost_too_much_for_some_documents_is_known_of_smaller_ones(tmp_path: Path) -> None:
    # Given documents of 1, 5 and 20 KB
    index = DuckIndex(tmp_path, ID, 0)
    index.add(
        [record(n, b"<m><a>5</a>" + b" " * size + b"</m>") for n, size in ((1, 1_000), (2, 5_000), (3, 20_000))], 3
    )
    # When they are asked what costs more, or less; Expect lxml to be asked about those for which it may be too much
    for text, exact in (("sum(//a) > 1", [True, False, False]), ("/m/a > 1", [True, True, False])):
        assert index.candidates(asked(text), QUERY, 0, 3) == Candidates([1, 2, 3], exact)
    index.close()


@pytest.mark.long
@pytest.mark.parametrize("limit", ["MAX_KINDS", "MAX_KIND_PATHS"])
def test_of_too_many_sets_of_repeated_paths_lxml_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"jbi_pubsub.archive.held.{limit}", 6)
    numbers = itertools.count()
    comparison = compare(
        1_500, lambda: DuckIndex(tmp_path / str(next(numbers)), ID, 0, enough=20), documents=80, expressions=24
    )
    assert comparison.mismatches == ()


HOSTILE = {
    "paths": b"<m>" + b"".join(b"<a%d>5</a%d>" % (n, n) for n in range(10_000)) + b"</m>",
    "a long text": b"<m><a>" + b"x" * (1 << 19) + b"5</a><b>7</b></m>",
    "repeated": b"<m>" + b"<a>5</a>" * 5_000 + b"<b>7</b></m>",
    "deep, so that //a costs too much": b"<m>" + b"<b>" * 150 + b"<a>5</a>" * 8_000 + b"</b>" * 150 + b"</m>",
    "SQL words": b"<select><from where='drop'>table o0; --</from><pos>n1 t1</pos><a>5</a></select>",
    "quotes": b"""<m q="it's"><a>'; DROP TABLE o0; --</a><b>&quot;$p0 ? %s \\</b></m>""",
    "control": "<m><a>\x85\u2028\u0300\U0001f600</a><b>\t\r\n</b></m>".encode(),
    "no XML": b"<m><a>5</m>",
    "nothing": b"",
    "doctype": b"<!DOCTYPE m><m><a>5</a></m>",
    "CDATA": b"<m><a>x<![CDATA[<5>]]>y</a></m>",
    "usual": b"<m><a>5</a><b>7</b></m>",
}
REFUSED = ("no XML", "nothing", "doctype")


@pytest.mark.long
def test_hostile_documents_are_found_as_lxml_finds_them(make: Callable[[], Beside]) -> None:
    # Given documents that mean no good, in one archive with usual ones
    index = make()
    records = [record(number, source) for number, source in enumerate(HOSTILE.values(), 1)]
    index.add(records, len(records))
    for text in (
        "/m/a=5", "//a='5'", "not(//a='6')", "/m/a5='5'", "/m/a9999=5", "not(/m/b=7)", "//a", "not(//a)",
        "contains(//a, '5')", "/m/a and /m/b=7",
        "contains(/m/a, 'DROP TABLE')", """/m/@q="it's" """, "/select/from/@where='drop'", "/select/pos='n1 t1'",
        "starts-with(/m/b, '\"$p0')", "string(/m/zz)!='x'", "count(//a)>4000", "/*", "not(/m)", "/m/a!=5",
        "normalize-space(/m/b)='7'", "/m/a[. = 5 and ../b = 7]", "not(contains(/m/a, 'x'))", "/m/a/text()='x<5>y'",
    ):  # fmt: skip
        one = asked(text)
        assert one.predicate is not None
        expected = [
            each.position
            for each, (name, source) in zip(records, HOSTILE.items(), strict=True)
            if name not in REFUSED and one.predicate.matches(etree.fromstring(source))
        ]
        # Expect what lxml says
        assert answer(Cursor(HistoryQuery(scopes=(one.scope,)), Shelf(records), index, len(records))) == expected, text
        assert expected or text in ("contains(/m/a, 'x')",), text


@pytest.mark.long
def test_a_predicate_that_asks_for_very_much_is_not_all_put_to_the_database(tmp_path: Path) -> None:
    # Given a type of many paths, rare ones and frequent ones, and predicates that compare all of them again and again
    index = DuckIndex(tmp_path, ID, 0, enough=20)
    sources = [
        b"<m>%s%s</m>" % (
            b"".join(b"<f%d><a>x%d</a></f%d>" % (path, number % 7, path) for path in range(40)),
            b"".join(b"<r%d_%d><a>y%d</a></r%d_%d>" % (number % 20, p, number, number % 20, p) for p in range(40)),
        )
        for number in range(100)
    ]  # fmt: skip
    records = [record(number, source) for number, source in enumerate(sources, 1)]
    index.add(records, len(records))
    roots = list(map(etree.fromstring, sources))
    for text in (
        " and ".join(f"//a!='x{number}'" for number in range(300)),
        " and ".join(f"not(//a='z{number}')" for number in range(300)),
        " and ".join((*(f"//a!='q{number}'" for number in range(50)), "/m/f1/a='x5'")),
        " or ".join(f"//a='y{number}'" for number in range(14)),
    ):
        one = asked(text)
        # Expect the question to be of a size, the condition that costs least to be in it, and lxml's answer
        made = index._made(one, QUERY, 0, len(records))
        assert made is not None
        assert len(made.rows) < 200_000
        assert made.rows.count("SELECT") <= 16
        assert one.predicate is not None
        expected = [each.position for each, root in zip(records, roots, strict=True) if one.predicate.matches(root)]
        cursor = Cursor(HistoryQuery(scopes=(one.scope,)), Shelf(records), index, len(records))
        assert answer(cursor) == expected
        assert expected
        if "/m/f1/a" in text:
            assert cursor.progress.candidates == len(expected)
    index.close()


def test_names_of_types_and_registrations_are_no_part_of_sql(tmp_path: Path) -> None:
    # Given a type and a registration of hostile names
    index = DuckIndex(tmp_path, ID, 0)
    kind = TypeName("x'; DROP TABLE o0; --\0", '1"; --')
    uid = "r'); DROP TABLE head; --abc1"
    index.add([record(1, b"<m/>", type_name=kind.name, type_version=kind.version, registration=uid)], 1)
    # Expect them to be names, before and after
    for _ in range(2):
        scoped = HistoryQuery(scopes=(Scope(kind, "/m", registrations=(uid,)),))
        assert index.candidates(asked_of(scoped)[0], scoped, 0, 1).positions == [1]
        other = HistoryQuery(scopes=(Scope(kind, "/m", registrations=("another",)),))
        assert index.candidates(asked_of(other)[0], other, 0, 1).positions == []
        index.close()
        index = DuckIndex(tmp_path, ID, 1)
        assert index.why_anew == ""
    index.close()


def test_of_too_many_types_nothing_is_known_and_all_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given more types than have tables
    monkeypatch.setattr("jbi_pubsub.archive.index.MAX_TYPES", 3)
    index = DuckIndex(tmp_path, ID, 0)
    records = [record(n, b"<m><a>%d</a></m>" % n, type_name=f"type{n % 6}") for n in range(1, 61)]
    index.add(records[:30], 30)
    index.close()
    index = DuckIndex(tmp_path, ID, 30)
    index.add(records[30:], 60)
    # Expect the objects of each, whatever is asked
    for n in range(6):
        for text, key, wanted in (
            ("/m/a > 30", "", [p for p in range(31, 61) if p % 6 == n]),
            ("", "", [p for p in range(1, 61) if p % 6 == n]),
            ("/m/a < 40", "/m", [p for p in range(1, 40) if p % 6 == n]),
            ("", "/m/none", []),
        ):
            query = HistoryQuery(scopes=(Scope(TypeName(f"type{n}"), text),), latest_by=key)
            assert answer(Cursor(query, Shelf(records), index, 60)) == wanted
            counting = Cursor(query, Shelf(records), index, 60, count_only=True)
            assert answer(counting) == []
            assert counting.progress.matched == len(wanted)
    explanation = index.explain(asked("/m/a > 30", TypeName("type5")), QUERY, 0, 60)
    assert explanation[2] is False
    assert len(index._types) == 4
    index.close()


def test_the_database_is_confined(tmp_path: Path) -> None:
    index = DuckIndex(tmp_path, ID, 0)
    run = index._connection
    for sql in (
        "SELECT * FROM read_csv('/etc/passwd')", "COPY head TO '/tmp/head.csv'", f"ATTACH '{tmp_path}/other.db'",
        "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true", "SET memory_limit = '100GB'",
        "SET threads = 8",
    ):  # fmt: skip
        with pytest.raises(duckdb.Error):
            run.execute(sql)
    asked_for = "SELECT current_setting('threads'), current_setting('memory_limit')"
    assert run.execute(asked_for).fetchone() == (1, "256.0 MiB")
    index.close()


def test_without_the_libraries_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigurationError, match="duckdb") as raised:
        DuckIndex(tmp_path, ID, 0)
    assert "jbi-pubsub[archive]" in str(raised.value)


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "index").touch()
    with pytest.raises(StorageError, match="index can't be made: File exists"):
        DuckIndex(tmp_path / "index", ID, 0)


def filled(folder: Path, count: int = 50) -> DuckIndex:
    index = DuckIndex(folder, ID, 0, enough=20)
    index.add([record(number, b"<m><a>%d</a></m>" % number) for number in range(1, count + 1)], count)
    return index


def test_what_is_known_is_known_after_opening_again(tmp_path: Path) -> None:
    index = filled(tmp_path)
    before = index.candidates(asked("/m/a>10"), QUERY, 0, 99)
    index.close()
    again = DuckIndex(tmp_path, ID, 50)
    assert (again.position, again.why_anew) == (50, "")
    assert again.candidates(asked("/m/a>10"), QUERY, 0, 99) == before
    assert before.positions == list(range(11, 51))
    again.add([record(number, b"<m><b>%d</b></m>" % number) for number in range(40, 60)], 60)  # some of them again
    assert again.count(asked("/m"), QUERY, 0, 99) == CandidateCount(59, 59)
    assert again.count(asked("/m/b"), QUERY, 0, 99) == CandidateCount(9, 9)
    again.close()


@pytest.mark.parametrize("what", ["ahead", "another archive", "another format", "no database", "cut", "empty", "table"])
def test_an_index_that_can_not_be_used_is_made_anew(tmp_path: Path, what: str) -> None:
    # Given an index that is not as it should be
    index = filled(tmp_path)
    if what == "another format":
        index._connection.execute("UPDATE head SET format = 99")
    if what == "table":
        index._connection.execute("DROP TABLE types")
    index.close()
    file = tmp_path / "index.duckdb"
    if what == "no database":
        file.write_bytes(b"SQLite format 3")
    elif what == "cut":
        file.write_bytes(file.read_bytes()[:9000])
    elif what == "empty":
        file.write_bytes(b"")
    # When it is opened
    archive = b"another archive." if what == "another archive" else ID
    again = DuckIndex(tmp_path, archive, 49 if what == "ahead" else 50)
    # Expect it to begin anew, to say why, and to work
    assert again.position == 0
    assert again.why_anew
    assert "\n" not in again.why_anew
    again.add([record(1, b"<m><a>5</a></m>")], 1)
    assert again.candidates(asked("/m/a=5"), QUERY, 0, 9).positions == [1]
    again.close()


def test_a_fault_of_the_library_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an index that the library fails on, as it does on what a kill has left: it says so with a stack
    filled(tmp_path).close()

    def load(_: DuckIndex) -> None:
        raise duckdb.InternalException(
            "INTERNAL Error: Attempted to dereference shared_ptr that is NULL!\n\nStack Trace:\n\n"
            "0  duckdb.so : a\n1  duckdb.so : b\n\nThis error signals an assertion failure within DuckDB."
        )

    monkeypatch.setattr(DuckIndex, "_load", load)
    # When it is opened, expect one line that says why it is made anew
    again = DuckIndex(tmp_path, ID, 50)
    assert again.why_anew == "INTERNAL Error: Attempted to dereference shared_ptr that is NULL!"
    again.close()


def test_damage_met_by_a_query_costs_time_and_no_answer(tmp_path: Path) -> None:
    # Given an index, and a byte changed in one block of it after the other
    filled(tmp_path, 2_000).close()
    file = tmp_path / "index.duckdb"
    whole = file.read_bytes()
    records = [record(number, b"<m><a>%d</a></m>" % number) for number in range(1, 2_001)]
    query = HistoryQuery(scopes=(asked("/m/a>1990").scope,))
    met = 0
    for block in range(3 * 4096, len(whole), 1 << 18):
        for path in tmp_path.iterdir():
            path.unlink()
        place = block + 1000
        file.write_bytes(whole[:place] + bytes((whole[place] ^ 0xFF,)) + whole[place + 1 :])
        index = DuckIndex(tmp_path, ID, 2_000)
        # When it is asked, expect the answer
        assert answer(Cursor(query, Shelf(records), index, 2_000)) == list(range(1_991, 2_001))
        if index.trouble:
            # Expect it to be made anew if that met the damage
            met += 1
            assert index.position == 0
            with pytest.raises(StorageError, match="built again"):
                index.add([], 2_001)
            index.add(records[:10], 10)
            assert index.count(asked("/m/a"), QUERY, 0, 99) == CandidateCount(10, 10)
        index.close()
    assert met


@pytest.mark.parametrize("error", [duckdb.IOException, MemoryError])
def test_what_fails_in_the_middle_was_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    # Given an index whose disk fails after a part of the rows
    index = filled(tmp_path)
    insert = TypeTables._insert

    def fails(self: TypeTables, run: object, table: str, batch: dict[str, object]) -> None:
        insert(self, run, table, batch)
        raise error("no space left on device")

    more = [record(number, b"<m><a>%d</a><new/></m>" % number) for number in range(51, 60)]
    with monkeypatch.context() as patch:
        patch.setattr(TypeTables, "_insert", fails)
        with pytest.raises((StorageError, MemoryError), match="no space left"):
            index.add(more, 60)
    # Expect nothing of them, and all of them the next time
    assert index.position == 50
    assert index.count(asked("/m"), QUERY, 0, 99) == CandidateCount(50, 50)
    index.add(more, 60)
    assert index.count(asked("/m/new"), QUERY, 0, 99) == CandidateCount(9, 9)
    index.close()


@pytest.mark.processes
def test_another_process_keeps_the_index_to_itself(tmp_path: Path) -> None:
    holds = "import sys, duckdb; held = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    filled(tmp_path).close()
    command = [sys.executable, "-c", holds, str(tmp_path / "index.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match="in use by another process"):
            DuckIndex(tmp_path, ID, 50)
        other.communicate()
    again = DuckIndex(tmp_path, ID, 50)
    assert again.position == 50
    again.close()


_FILLS = """
import sys
from pathlib import Path
from archived import record
from jbi_pubsub.archive.index import DuckIndex
from jbi_pubsub.archive.tables import TypeTables
index = DuckIndex(Path(sys.argv[1]), b"an archive's id.", 2**62, enough=20)
at = index.position
while True:
    index.add([record(n, b"<m><a>%d</a><b>x</b><b>y</b></m>" % n) for n in range(at + 1, at + 301)], at + 300)
    at += 300
    print(at, flush=True)
"""


@pytest.mark.processes
def test_after_a_kill_there_is_what_the_position_says(tmp_path: Path) -> None:
    chance = random.Random(1)
    before = 0
    oracles = str(Path(__file__).parent.parent / "oracles")
    for _ in range(2):
        # When its process is killed while it takes in
        command = [sys.executable, "-c", _FILLS, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": oracles}) as worker:
            assert worker.stdout is not None
            taken = int(worker.stdout.readline())  # the kill falls into what follows
            with suppress(subprocess.TimeoutExpired):
                worker.wait(chance.uniform(0.1, 0.4))
            worker.kill()
        # Expect each object up to the position once, and none beyond
        index = DuckIndex(tmp_path, ID, 2**62)
        assert index.why_anew == ""
        assert index.position >= taken > before
        before = index.position
        assert index.candidates(asked("/m/b='y'"), QUERY, 0, 2**62).positions == list(range(1, before + 1))
        assert index.candidates(asked("/m/a>0"), QUERY, 0, 2**62).positions == list(range(1, before + 1))
        index.close()


@pytest.mark.long
def test_all_columns_of_eight_types_fit_into_a_quarter_of_the_memory(tmp_path: Path) -> None:
    # Given eight types with as many paths as have columns, each with numbers and texts
    index = DuckIndex(tmp_path, ID, 0, memory=64 << 20)
    chance = random.Random(1)
    at = 0
    for _ in range(2):
        for kind in range(8):
            records = []
            for number in range(280):
                texts = [
                    b"%.4f" % chance.random() if number % 2 else b"t%d" % chance.randrange(10**6) for _ in range(64)
                ]
                leaves = b"".join(b"<a%d>%b</a%d>" % (n, text, n) for n, text in enumerate(texts))
                records.append(record(at + number + 1, b"<m>" + leaves + b"</m>", type_name=f"type{kind}"))
            at += 280
            index.add(records, at)
    for kind in range(8):
        known = index._types[f"type{kind}", "1.0"]
        assert len(known.frequent) == 64
        assert index.count(asked("/m/a63 > 0", TypeName(f"type{kind}")), QUERY, 0, at).candidates == 280
    index.close()
    again = DuckIndex(tmp_path, ID, at, memory=64 << 20)
    assert (again.position, again.why_anew) == (at, "")
    again.close()


def test_what_is_forgotten_is_found_no_more(tmp_path: Path) -> None:
    index = filled(tmp_path)
    index.add([record(51, b"<m><b/><b>7</b></m>"), record(52, b"<m><b/><b>7</b></m>")], 52)
    index.forget([1, 3, 51, 77])
    assert index.candidates(asked("/m/a<5"), QUERY, 0, 99).positions == [2, 4]
    assert index.candidates(asked("/m/b=7"), QUERY, 0, 99).positions == [52]
    index.drop()
    assert (index.position, index.candidates(asked("/m"), QUERY, 0, 99).positions) == (0, [])
    index.close()


def test_windows_are_parts_of_the_positions_with_about_so_many_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jbi_pubsub.archive.marks.MARK_ROWS", 400)
    index = DuckIndex(tmp_path, ID, 0)
    for base in range(0, 3_000, 100):
        index.add([record(3 * n, b"<m/>") for n in range(base + 1, base + 101)], 3 * (base + 100))
    end = index.position
    parts, at = [], 0
    while at < end:
        low, high = index.window(at, end, 800, "oldest")
        assert low == at < high <= end
        parts.append(high - low)
        at = high
    assert 3 <= len(parts) <= 5
    newest, at = [], end
    while at > 0:
        low, high = index.window(0, at, 800, "newest")
        assert high == at > low >= 0
        newest.append(high - low)
        at = low
    assert 3 <= len(newest) <= 5
    assert sum(parts) == sum(newest) == end
    index.close()
