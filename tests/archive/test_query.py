"""Queries: what lxml finds, in order, whatever an index has taken in by then."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from archived import TYPE, Shelf, answer, compare, record
from extent import examples
from lxml import etree
from plain_index import PlainIndex

from jbi_pubsub.archive import query as queries
from jbi_pubsub.archive.index import DuckIndex
from jbi_pubsub.archive.items import METADATA_STORES, PAYLOAD_STORES
from jbi_pubsub.archive.log import Log
from jbi_pubsub.archive.pack import Sealable, seal
from jbi_pubsub.archive.query import Cursor, QueryIndex, explained
from jbi_pubsub.archive.store import LOG, PACKS, VolumeStore
from jbi_pubsub.archive.volume import LogVolume, Record
from jbi_pubsub.core.errors import PredicateError, StorageError
from jbi_pubsub.core.history import MAX_POSITION, HistoryQuery, Scope
from jbi_pubsub.core.info_object import Head, Parcel, TypeName, object_id_of, pack
from jbi_pubsub.core.xpath.predicate import compile_predicate

ARCHIVE = b"an archive's id."
ALERT = TypeName("alert", "1.0")
REGISTRATIONS = ("r-a1", "r-b2", "r-c3")
PREDICATES = ("", "/m/a > 5", "not(/m/a > 5)", "//k = 'x'", "/m/a = 3 or /m/b", "count(/m/*) = 2", "/m/none", "/m/b/k")
KEYS = ("/m/k", "//k", "string(/m/k)", "/m/none", "/m/a")


@pytest.mark.long
def test_answers_are_those_of_lxml() -> None:
    count = examples(20_000)
    comparison = compare(count, PlainIndex)
    assert comparison.mismatches == ()
    assert comparison.true > count / 10  # it is no comparison of nothing with nothing
    assert comparison.exact > count / 25


def history(chance: random.Random, count: int) -> list[Record]:
    """Objects of two types and three registrations, with gaps between their positions."""
    records = []
    for number, position in enumerate(sorted(chance.sample(range(1, 2 * count), count)), 1):
        kind = chance.choice((TYPE, TYPE, ALERT))
        again = chance.choice(("", "", "", "<k>z</k>")) if kind is ALERT else ""
        key = chance.choice(("", f"<k>{chance.choice(('x', 'y', '7', '07', '7.0', ''))}</k>")) + again
        metadata = f"<m><a>{chance.randrange(10)}</a>{key}{chance.choice(('', '<b/>', '<b><k>x</k></b>'))}</m>"
        records.append(
            record(
                position, metadata.encode(), b"x" * chance.randrange(5), type_name=kind.name,
                registration=chance.choice(REGISTRATIONS), sequence=number, published=1000.0 + chance.randrange(50),
                own_id=chance.choice(("", "", f"own-{number}")),
            )
        )  # fmt: skip
    return records


def expected(query: HistoryQuery, records: list[Record], gone: Container[int]) -> list[int]:
    """What is to be found, said as plainly as can be."""
    found, keys = [], set()
    for each in reversed(records):
        head = Parcel.received(each.data).head
        root = etree.fromstring(bytes(head.metadata))
        if (
            query.after < each.position <= query.up_to
            and each.position not in gone
            and query.since <= (each.received if query.by_receipt else head.published) <= query.until
            and query.least_payload <= head.payload_length <= query.most_payload
            and (query.object_ids is None or head.object_id in query.object_ids)
            and any(
                (scope.type.name, scope.type.version) == (head.type_name, head.type_version)
                and (scope.registrations is None or head.registration in scope.registrations)
                and (not scope.predicate or compile_predicate(scope.predicate).matches(root))
                for scope in query.scopes
            )
        ):
            if query.latest_by:
                text = root.xpath(f"string({query.latest_by})")
                if not text or (head.type_name, text) in keys:
                    continue
                keys.add((head.type_name, text))
            found.append(each.position)
    if query.order == "oldest":
        found.reverse()
    return found[: query.limit] if query.limit else found


def asked_at_random(chance: random.Random, records: list[Record]) -> HistoryQuery:
    def some(value: object, default: object) -> object:
        return value if chance.random() < 0.3 else default

    scopes = tuple(
        Scope(
            chance.choice((TYPE, ALERT, TypeName("unknown"))),
            chance.choice(PREDICATES),
            registrations=chance.choice((None, None, ("r-a1",), ("r-b2", "r-c3", "r-d4"), ())),
        )
        for _ in range(chance.choice((1, 1, 1, 2, 3)))
    )
    last = records[-1].position
    low, high = sorted((chance.randrange(last + 9), chance.randrange(last + 9)))
    since = float(1000 + chance.randrange(50))
    base = 1000.0 if chance.random() < 0.5 else 0.0
    heads = [Parcel.received(each.data).head for each in chance.sample(records, 40)]
    ids = [head.object_id for head in heads[:10]] + [object_id_of(h.registration, h.sequence) for h in heads[10:]]
    fields = {
        "after": some(low, 0), "up_to": some(high, MAX_POSITION), "since": some(since + base, 0.0),
        "until": some(since + base + chance.randrange(99), 1e11), "by_receipt": base > 0,
        "least_payload": some(1, 0), "most_payload": some(3, 2**53), "limit": some(chance.randrange(1, 9), 0),
        "object_ids": some((*ids, "nobody", "a1-00000000000g", "ownx"), None),
        "latest_by": some(chance.choice(KEYS), ""),
        "order": chance.choice(("oldest", "newest")),
    }  # fmt: skip
    if fields["since"] > fields["until"]:  # type: ignore[operator]  # numbers both
        fields["until"] = 1e11
    return msgspec.structs.replace(HistoryQuery(scopes=scopes), **fields)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["none", "plain", "on disk"])
def test_all_bounds_hold_together(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given windows and steps that are small
    small = {"FIRST_ROWS": 30, "MOST_ROWS": 90, "MOST_WAITING": 10, "READ_MOST": 7, "ASK_MOST": 5}
    for name, value in small.items():
        monkeypatch.setattr(queries, name, value)
    monkeypatch.setattr("jbi_pubsub.archive.marks.MARK_ROWS", 10)
    chance = random.Random(2)
    counted = found = 0
    for turn in range(4):
        records = history(chance, 150)
        shelf = Shelf(records)
        index: DuckIndex | PlainIndex | None = None
        if kind != "none":
            index = (
                PlainIndex() if kind == "plain" else DuckIndex(tmp_path / str(turn), b"id", 0, enough=19 * (turn // 2))
            )
            cuts = [0, *sorted(chance.sample(range(1, 150), 5))]
            for low, high in pairwise(cuts):
                index.add(records[low:high], records[high - 1].position)
        gone = set(chance.sample([each.position for each in records], 10)) if turn % 2 else set[int]()
        for _ in range(examples(60)):
            query = asked_at_random(chance, records)
            wanted = expected(query, records, gone)
            cursor = Cursor(query, shelf, index, records[-1].position, gone=gone)
            # Expect what is said plainly, however much is taken at a time
            answered: list[int] = []
            while cursor.progress.state == "running":
                answered += [
                    each.position for each in cursor.step(chance.randrange(1, 9), chance.choice((1, 500, 9999)))
                ]
            assert cursor.progress.state == "finished", cursor.progress
            assert answered == wanted, query
            assert cursor.progress.matched == len(wanted)
            # Expect the same number when results are counted alone
            counting = Cursor(query, shelf, index, records[-1].position, gone=gone, count_only=True)
            assert answer(counting) == []
            assert counting.progress.matched == len(wanted), query
            counted += counting.progress.verified == 0 and len(wanted) > 0
            found += len(wanted)
        if isinstance(index, DuckIndex):
            index.close()
    assert found > examples(400)
    assert counted > (2 if kind == "none" else examples(15))


def test_objects_are_found_by_their_ids_alone(tmp_path: Path) -> None:
    # Given objects with ids made from registration and number, and one with an id of its own
    records = [record(n, b"<m/>", registration="r-a1", sequence=n) for n in range(1, 16)]
    records.append(record(16, b"<m/>", registration="r-a1", sequence=16, own_id="own"))
    index = DuckIndex(tmp_path, b"id", 0)
    index.add(records, 16)
    for asking, wanted in (
        (("a100000000000a",), [10]),
        (("a100000000000A", "a1000000000010", "a1 0000000000a", "a1-0000000000a", "a10000000000_a"), []),
        (("own", "a1000000000001", "a1000000000002", "b1000000000003", ""), [1, 2, 16]),
    ):
        query = HistoryQuery(scopes=(Scope(TYPE),), object_ids=asking)
        assert answer(Cursor(query, Shelf(records), index, 16)) == wanted
        assert answer(Cursor(query, Shelf(records), None, 16)) == wanted
    index.close()


def test_what_is_deleted_while_a_query_is_on_its_way_is_not_found() -> None:
    records = [record(n, b"<m><a>%d</a></m>" % n) for n in range(1, 100)]
    index, gone = PlainIndex(), set[int]()
    index.add(records[:80], 80)
    cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE),)), Shelf(records), index, 99, gone=gone)
    found = [each.position for each in cursor.step()]
    found += [each.position for each in cursor.step(3)]
    gone.update((1, 10, 50, 79, 90))
    assert found + answer(cursor) == [n for n in range(1, 100) if n in found or n not in gone]
    assert len(found) < 10


def test_the_newest_of_each_key_is_told_from_the_index_alone(tmp_path: Path) -> None:
    # Given objects with keys, all of them in the index; some keys are numbers written in several ways
    records = [record(n, b"<m><k>%s</k><a>%d</a></m>" % (key, n)) for n, key in enumerate([b"x", b"7", b"07"] * 400, 1)]
    index = DuckIndex(tmp_path, b"id", 0)
    index.add(records, 1200)
    query = HistoryQuery(scopes=(Scope(TYPE, "/m/a < 1000"),), latest_by="/m/k")
    cursor = Cursor(query, Shelf(records), index, 1200)
    # Expect the newest of each, and that no more than those were read
    assert answer(cursor) == [997, 998, 999]
    assert cursor.progress.verified == 3
    # Expect all to be read once there is an object of which not all is held
    index.add([record(1201, b"<m>" + b"<k>z</k>" * 2 + b"</m>")], 1201)
    cursor = Cursor(msgspec.structs.replace(query, order="newest"), Shelf(records), index, 1201)
    assert answer(cursor) == [999, 998, 997]
    assert cursor.progress.verified > 900
    index.close()


def test_the_newest_of_each_key_is_read_where_the_index_alone_can_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given objects whose keys are in the index, and one with a path that is not held
    monkeypatch.setattr("jbi_pubsub.archive.leaves.MAX_PATHS", 3)
    records = [record(n, b"<m><k>%d</k><a>%d</a></m>" % (n % 3, n)) for n in range(1, 300)]
    records.append(record(300, b"<m><zz>1</zz></m>"))
    index = DuckIndex(tmp_path, b"id", 0, enough=1)
    index.add(records[:-1], 299)

    def newest(predicate: str, key: str) -> list[int]:
        query = HistoryQuery(scopes=(Scope(TYPE, predicate),), latest_by=key)
        return answer(Cursor(query, Shelf(records), index, 300))

    # Expect the newest of those that match, whatever is left to lxml
    assert newest("sum(/m/a) < 100", "/m/k") == [97, 98, 99]
    assert newest("/m/a < 100", "string(/m/k)") == [97, 98, 99]
    index.add(records[-1:], 300)
    assert newest("", "/m/zz") == [300]
    assert newest("", "//zz | //k") == [297, 299, 300]
    index.close()


def test_too_many_keys_end_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_KEYS", 5)
    records = [record(n, b"<m><k>%d</k></m>" % n) for n in range(1, 20)]
    cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE),), latest_by="/m/k"), Shelf(records), None, 19)
    while cursor.progress.state == "running":
        cursor.step()
    assert cursor.progress.state == "failed"
    assert "different keys" in cursor.progress.error


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (HistoryQuery(scopes=(Scope(TYPE, "/m/["),)), "predicate"),
        (HistoryQuery(scopes=(Scope(TYPE, "/p:m"),)), "prefix"),
        (HistoryQuery(scopes=(Scope(TYPE, "//*[//*[//*[//a]]]"),)), "may take"),
        (HistoryQuery(scopes=(Scope(TYPE),), latest_by="/m/["), "latest_by"),
        (HistoryQuery(scopes=(Scope(TYPE),), since=5, until=4), "since"),
        (HistoryQuery(scopes=(Scope(TYPE),), after=5, up_to=4), "after"),
        (HistoryQuery(scopes=(Scope(TYPE),), least_payload=5, most_payload=4), "least_payload"),
        (HistoryQuery(scopes=(Scope(TYPE),), object_ids=("x",) * 10_001), "object_ids"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(query: HistoryQuery, says: str) -> None:
    with pytest.raises(PredicateError, match=says):
        Cursor(query, Shelf(), None, 0)
    with pytest.raises(PredicateError, match=says):
        explained(query, None, 0, objects=0)


def test_nothing_is_found_where_there_is_nothing() -> None:
    for query in (
        HistoryQuery(scopes=()),
        HistoryQuery(scopes=(Scope(TYPE),)),
        HistoryQuery(scopes=(Scope(TYPE),), object_ids=()),
    ):
        for index in (None, PlainIndex()):
            assert answer(Cursor(query, Shelf(), index, 0)) == []


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_objects_are_found_in_packs_and_files_of_the_log_alike(tmp_path: Path, order: queries.Order) -> None:
    # Given objects of which a part is sealed, another not yet, and a third not even in the index
    log = Log(tmp_path / LOG, ARCHIVE, volume_bytes=20_000)
    for n in range(1, 601):
        head = Head("", "r-a1", n, 1000.0 + n, TYPE.name, TYPE.version, b"<m><a>%d</a></m>" % (n % 50), 20)
        log.append([(n, pack(head, b"%020d" % n).parts)], 2000.0 + n)
    log.sync(600)
    (tmp_path / PACKS).mkdir()
    files = sorted((tmp_path / LOG).glob("*.log"))
    for path in files[: len(files) // 2]:
        volume = LogVolume(path, ARCHIVE)
        volume.recover()
        stores = {"metadata": METADATA_STORES["deflated"], "payloads": PAYLOAD_STORES["file"]}
        of = Sealable(ARCHIVE, volume.first, volume.last, volume.previous, volume.head.began)
        seal(of, list(volume.read(0, 600)), tmp_path / PACKS, **stores)
        volume.close()
        path.unlink()
    store = VolumeStore(tmp_path, ARCHIVE)
    store.refresh(600)
    assert {volume.path.suffix for volume in store.volumes} == {".log", ".pack"}
    index = DuckIndex(tmp_path / "index", ARCHIVE, 600)
    index.add(store.read(0, 500), 500)
    for text in ("/m/a < 10", "count(//a) = 1 and /m/a < 10", ""):
        # Expect each that matches, once, with its payload
        cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE, text),), order=order), store, index, 600)
        found = []
        while cursor.progress.state == "running":
            found += cursor.step()
        wanted = [n for n in range(1, 601) if not text or n % 50 < 10]
        assert [each.position for each in found] == (wanted if order == "oldest" else wanted[::-1])
        for each in found:
            assert Parcel.received(each.data).payload == b"%020d" % each.position
            assert each.received == 2000.0 + each.position
    index.close()
    store.close()
    log.close()


class Lost(PlainIndex):
    """An index that fails when it is asked for the n-th time."""

    def __init__(self, after: int, does: Callable[[Lost], None]) -> None:
        super().__init__()
        self.after, self.does = after, does

    def candidates(self, *asked: object) -> queries.Candidates:
        self.after -= 1
        if self.after == 0:
            self.does(self)
        return super().candidates(*asked)  # type: ignore[arg-type]  # passed on


def _fails(_: Lost) -> None:
    raise StorageError("damaged")


def _begins_anew(index: Lost) -> None:
    index.__init__(0, _fails)  # type: ignore[misc]  # all is lost
    raise StorageError("made anew")


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("does", [_fails, _begins_anew])
def test_an_index_that_is_lost_during_a_query_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, order: queries.Order, does: Callable[[Lost], None]
) -> None:
    monkeypatch.setattr(queries, "FIRST_ROWS", 16)
    records = [record(n, b"<m><a>%d</a></m>" % n) for n in range(1, 200)]
    for after in range(1, 6):
        index = Lost(after, does)
        index.add(records, 150)
        query = HistoryQuery(scopes=(Scope(TYPE, "/m/a > 20"),), order=order)
        wanted = list(range(21, 200))
        assert answer(Cursor(query, Shelf(records), index, 199)) == (wanted if order == "oldest" else wanted[::-1])


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_only_what_is_not_in_the_index_is_read_one_by_one(order: queries.Order) -> None:
    records = [record(n, b"<m><a>%d</a></m>" % n) for n in range(1, 3000)]
    index = PlainIndex()
    index.add(records[:2900], 2900)
    cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE, "/m/a > 20"),), order=order), Shelf(records), index, 2999)
    assert len(answer(cursor)) == 2979
    assert cursor.progress.verified == 99


def test_what_comes_later_is_not_seen_also_when_it_is_in_the_index_by_then() -> None:
    records = [record(n, b"<m><a>%d</a></m>" % n) for n in range(1, 300)]
    index, shelf = PlainIndex(), Shelf(records)
    index.add(records[:50], 50)
    cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE, "/m/a > 20"),)), shelf, index, 200)
    first = [each.position for each in cursor.step()]
    index.add([*records[50:], record(300, b"<m><new/><a>1</a></m>")], 300)
    assert first + answer(cursor) == list(range(21, 201))


def test_a_path_that_comes_while_a_query_is_on_its_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "FIRST_ROWS", 16)
    records = [record(n, b"<m><a>%d</a></m>" % n) for n in range(1, 100)] + [record(100, b"<m><new/></m>")]
    index: QueryIndex = PlainIndex()
    index.add(records[:50], 50)  # type: ignore[attr-defined]  # a plain one
    cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE, "//new"),)), Shelf(records), index, 100)
    assert cursor.step() == []
    index.add(records[50:], 100)  # type: ignore[attr-defined]  # as above
    assert answer(cursor) == [100]


def test_records_that_can_not_be_read_any_more_are_passed_over() -> None:
    records = [record(n, b"<m><a>%d</a></m>" % n) for n in range(1, 100)]
    index, shelf = PlainIndex(), Shelf(records)
    index.add(records, 99)
    cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE, "/m/a > 20"),)), shelf, index, 99)
    found = [each.position for each in cursor.step(3)]
    for position in (25, 26, 27, 50, 99):
        del shelf.records[position]
    assert found + answer(cursor) == [n for n in range(21, 100) if n in shelf.records]


def test_a_query_can_be_left_at_any_point() -> None:
    records = [record(n, b"<m><a>%d</a></m>" % n, b"x" * 1000) for n in range(1, 600)]
    index = PlainIndex()
    index.add(records[:300], 300)
    for steps in range(5):
        cursor = Cursor(HistoryQuery(scopes=(Scope(TYPE, "/m/a > 20"),)), Shelf(records), index, 599)
        for _ in range(steps):
            cursor.step(100)
        cursor.cancel()
        assert cursor.progress.state == "cancelled"
        assert cursor.step() == []


def test_it_can_be_said_how_a_query_would_be_answered(tmp_path: Path) -> None:
    # Given objects of which nine in ten are in the index
    records = [record(n, b"<m><a>%d</a><k>x</k></m>" % n) for n in range(1, 1001)]
    index = DuckIndex(tmp_path, b"id", 0)
    index.add(records[:900], 900)

    def said(predicate: str, end: int = 1000) -> queries.Explanation:
        return explained(HistoryQuery(scopes=(Scope(TYPE, predicate),)), index, end, objects=1000)

    # Expect what columns decide, what lxml is left, and how many there are
    known = said("/m/a > 800 or /m/k = 'y'", 900)
    assert [(step.conditions, step.left, step.rows) for step in known.steps] == [
        (("/m/a > 800.0",), (), 100),
        (("/m/k = 'y'",), (), 0),
    ]
    assert (known.is_exact, known.objects, known.not_indexed) == (True, 900, 0)
    late = said("/m/a > 800")
    assert (late.is_exact, late.objects, late.not_indexed) == (False, 1000, 100)
    opaque = said("number(concat(/m/a, '')) > 800", 900)
    assert [(step.conditions, step.rows) for step in opaque.steps] == [((), 900)]
    assert "number(concat(/m/a,''))" in opaque.steps[0].left[0]
    assert opaque.seconds > 50 * known.seconds
    assert said("//nowhere", 900).steps == ()
    assert [(step.conditions, step.rows) for step in said("/m/a = 'no number'", 900).steps] == [
        (("/m/a = 'no number'",), 0)
    ]
    nobody = HistoryQuery(scopes=(Scope(TYPE, "/m/a > 800", registrations=("nobody",)),))
    assert [step.rows for step in explained(nobody, index, 900, objects=1000).steps] == [0]
    # Expect nothing of what an access rule hides, nor of the rule: whether columns decide it, or lxml
    for rule, seen in (("/m/a > 850", 50), ("number(concat(/m/a, '')) > 850", 0)):
        scope = Scope(TYPE, "/m/a > 100 or /m/k = 'y'", where=rule)
        narrowed = explained(HistoryQuery(scopes=(scope,), is_narrowed=True), index, 1000, objects=1000)
        assert [(step.conditions, step.left, step.rows) for step in narrowed.steps] == [
            (("/m/a > 100.0",), (), seen),
            (("/m/k = 'y'",), (), 0),
        ]
        assert (narrowed.is_exact, narrowed.objects, narrowed.not_indexed) == (False, seen, 0)
        assert "850" not in f"{narrowed}"
    without = explained(HistoryQuery(scopes=(Scope(TYPE, "/m/a"),)), None, 1000, objects=1000)
    assert (without.steps, without.not_indexed, without.is_exact) == ((), 1000, False)
    index.close()
