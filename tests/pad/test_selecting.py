"""Who wants an object of those that its metadata match: by its publisher, and by the combined view."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.combined import NAMESPACE, Provenance
from jbi_pubsub.core.info_object import Head, TypeName
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.pad.matching import match_table
from jbi_pubsub.pad.matching.dissemination import Judgement
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.delegate import SubscriptionStatus

SPACES = (("og", NAMESPACE),)


def _subscription(uid: str, predicate: str = "", **options: Any) -> Subscription:
    request = SubscriptionRequest(uid, predicate=predicate, namespaces=SPACES, **options)
    return compile_subscription(request, owner="s", number=1)


def _judgement(table: MatchTable, origin: Provenance) -> Judgement:
    return Judgement(UntypedGate(TypeName("t")), (), table, validate=False, origin=origin)


def _head(sequence: int, payload: int, metadata: bytes = b"<a/>") -> Head:
    return Head("", "r-1", sequence, 1.0, "t", "1.0", metadata, payload)


def _selected(judgement: Judgement, head: Head) -> set[str]:
    metadata = bytes(head.metadata)
    matched = judgement.match(metadata, judgement.check(metadata))
    return {each.uid for each in judgement.select(matched, head)}


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (Provenance(), {"all", "unlike", "local"}),
        (Provenance(owner="one"), {"all", "local"}),
        (Provenance(owner="two"), {"all", "unlike", "local"}),
        (Provenance(is_relayed=True), {"all", "unlike"}),
        (Provenance(owner="one", is_relayed=True), {"all"}),
    ],
)
def test_a_publisher_decides_who_wants_its_objects(origin: Provenance, wanted: set[str]) -> None:
    table = MatchTable()
    for each in (_subscription("all"), _subscription("unlike", unlike="one"), _subscription("local", local=True)):
        table.add(each)
    assert table.selective == 2
    assert _selected(_judgement(table, origin), _head(1, 0)) == wanted


def test_the_view_is_made_once_for_an_object_and_again_when_somebody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a table with predicates on the view
    made: list[int] = []
    combined = match_table.combined

    def counted(head: Head, origin: Provenance) -> Any:
        made.append(head.sequence)
        return combined(head, origin)

    monkeypatch.setattr(match_table, "combined", counted)
    table = MatchTable()
    large = _subscription("large", "//og:PayloadLength > 10", view="combined")
    table.add(large)
    judgement = _judgement(table, Provenance())
    # When objects of equal metadata are judged, one of them twice, as where predicates are partitioned
    assert _selected(judgement, _head(1, 11)) == {"large"}
    assert _selected(judgement, _head(1, 11)) == {"large"}
    assert made == [1]
    # Expect the next one to be another one
    assert _selected(judgement, _head(2, 10)) == set()
    # Expect who has come since to be asked
    table.add(_subscription("small", "//og:PayloadLength < 11", view="combined"))
    assert _selected(judgement, _head(2, 10)) == {"small"}
    assert made == [1, 2, 2]
    # Expect nothing to be made where nobody asks
    table.remove(large)
    table.remove(next(iter(table.subscriptions())))
    assert (table.selective, table._view) == (0, None)
    assert _selected(judgement, _head(3, 11)) == set()
    assert made == [1, 2, 2]


def test_predicates_by_importance_ask_the_view_as_well() -> None:
    # Given subscriptions of different importance, in a table that is partitioned
    table = MatchTable()
    for importance in (1, 5):
        for size in (10, 100):
            each = _subscription(f"{importance}-{size}", f"//og:PayloadLength > {size}", view="combined")
            each.contract = Contract(Settings(importance=importance))
            table.add(each)
    table.partition()
    judgement = _judgement(table, Provenance())
    parts = table.parts
    assert parts is not None
    # When an object goes through the levels
    head = _head(1, 50)
    found = [
        each.uid
        for level in (4, 0)
        for each in judgement.select(judgement.match_at(parts, level, 1, b"<a/>", judgement.check(b"<a/>")), head)
    ]
    # Expect those that want it, the important first
    assert found == ["5-10", "1-10"]


def test_what_predicates_on_the_view_cost_counts() -> None:
    plain, viewed = (
        _subscription("s", "string-length(//a[b = c]/d) > count(//e)", view=view) for view in ("metadata", "combined")
    )
    assert viewed.charges == plain.charges != ()
    assert viewed.status(SubscriptionStatus)["failed"] == 0


@pytest.mark.parametrize("metadata", [b"", b"<not closed", b"\x00\xff"])
def test_of_metadata_that_are_none_no_predicate_is_true(metadata: bytes) -> None:
    table = MatchTable()
    for each in (
        _subscription("everything"), _subscription("true", "true()"), _subscription("not", "not(//a)"),
        _subscription("view", "not(//a)", view="combined"),
    ):  # fmt: skip
        table.add(each)
    judgement = Judgement(UntypedGate(TypeName("t")), (), table, validate=False, well_formed=False)
    head = _head(1, 0, metadata)
    # Expect the same of the second object of equal metadata, of one that catches up, and by levels
    for _ in range(2):
        assert _selected(judgement, head) == {"everything", "view"}
    assert judgement.read(metadata) is None
    table.partition()
    assert _selected(judgement, head) == {"everything", "view"}


def test_a_predicate_on_the_view_that_speaks_of_the_metadata_alone_is_matched_like_any_other() -> None:
    # Given one of each kind; Expect the view to be made for the one alone that speaks of what the platform says
    table = MatchTable()
    for uid, predicate in (("inside", "/og:metadata/a"), ("platform", "//og:PayloadLength > 5")):
        table.add(_subscription(uid, predicate, view="combined"))
    assert (table.selective, table.predicates) == (1, 1)
    assert _selected(_judgement(table, Provenance()), _head(1, 0)) == {"inside"}
    assert _selected(_judgement(table, Provenance()), _head(2, 9, b"<b/>")) == {"platform"}
