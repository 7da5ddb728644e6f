"""What one object comes to at a delegate: judged once while nothing changes, its bytes passed on as they came."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from jbi_pubsub.core import xml
from jbi_pubsub.core.errors import ConfigurationError, MetadataError
from jbi_pubsub.core.info_object import Head, Parcel, TypeName, decode, pack
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath import PayloadFilter
from jbi_pubsub.pad.matching.dissemination import Judgement, disseminate
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.recent import OVERHEAD, RecentBuffer, RecentBuffers
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.conformity import REMEMBERED_BYTES
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.delegate import SubscriptionStatus

KABUL = b"<m><lat>34.5</lat></m>"
ROME = b"<m><lat>41.9</lat></m>"


class Gate:
    """A type whose metadata must have a latitude; counts how often it is asked."""

    type = TypeName("t")
    digest = "d"

    def __init__(self) -> None:
        self.asked = 0

    def validate(self, root: Element) -> None:
        self.asked += 1
        if root.find("lat") is None:
            raise MetadataError("no lat", path="/m")

    def check_invariants(self, root: Element, registered: Any, metadata: bytes = b"") -> None:
        """Nothing is invariant."""

    def texts(self, path: Any) -> None:
        """Nothing is certain."""

    def attribute(self, path: Any, name: Any) -> None:
        """Nor here."""

    def content(self, path: Any, tags: Any) -> None:
        """Nor here."""

    def is_invariant(self, _path: Any) -> bool:
        """Nothing is."""
        return False


def _subscription(uid: str, predicate: str = "", **options: Any) -> Subscription:
    return compile_subscription(SubscriptionRequest(uid, predicate=predicate, **options), owner="s", number=1)


@pytest.fixture
def table() -> MatchTable:
    return MatchTable()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def judgement(gate: Gate, table: MatchTable) -> Judgement:
    return Judgement(gate, (), table, validate=True)


def judged(judgement: Judgement, metadata: bytes) -> list[Subscription]:
    """Checked and matched, as an object's metadata are."""
    return judgement.match(metadata, judgement.check(metadata))


def _uids(matched: list[Subscription]) -> list[str]:
    return sorted(s.uid for s in matched)


def test_metadata_equal_to_the_ones_before_are_not_judged_again(
    judgement: Judgement, gate: Gate, table: MatchTable
) -> None:
    # Given subscriptions with and without a predicate
    table.add(_subscription("north", "/m/lat > 40"))
    table.add(_subscription("south", "/m/lat < 40"))
    table.add(_subscription("all"))
    # When a source says the same three times, then something else, then the first again
    said = [_uids(judged(judgement, metadata)) for metadata in (KABUL, KABUL, bytes(bytearray(KABUL)), ROME, KABUL)]
    # Expect the answers of five separate judgements, of which three were made
    assert said == [["all", "south"]] * 3 + [["all", "north"], ["all", "south"]]
    assert gate.asked == 3
    # Expect the counters to know no difference: second-level matching is per publication
    assert table.stats()["documents"] == 5
    assert table.stats()["evaluations"] == 10


def test_a_subscription_that_comes_or_goes_makes_the_answer_stale(judgement: Judgement, table: MatchTable) -> None:
    # Given metadata that were judged when nobody had subscribed
    assert judged(judgement, KABUL) == []
    # When subscriptions come one by one, expect each to be asked from the next object on
    south, everything, north = (
        _subscription("south", "/m/lat < 40"),
        _subscription("all"),
        _subscription("north", "/m/lat > 40"),
    )
    table.add(everything)
    assert _uids(judged(judgement, KABUL)) == ["all"]
    table.add(south)
    assert _uids(judged(judgement, KABUL)) == ["all", "south"]
    table.add(north)
    assert _uids(judged(judgement, KABUL)) == ["all", "south"]
    # When they go, expect them to be gone
    table.remove(south)
    assert _uids(judged(judgement, KABUL)) == ["all"]
    table.remove(everything)
    assert judged(judgement, KABUL) == []


def test_metadata_that_were_refused_are_refused_again(judgement: Judgement, gate: Gate) -> None:
    for _ in range(2):
        with pytest.raises(MetadataError, match="no lat"):
            judged(judgement, b"<m/>")
    assert gate.asked == 2
    # Expect what passed before a refusal to be judged by what was said last, not by the refused
    assert judged(judgement, KABUL) == []
    with pytest.raises(MetadataError):
        judged(judgement, b"<m/>")
    assert judged(judgement, KABUL) == []


def test_empty_metadata_are_refused_also_as_the_first_ones(judgement: Judgement) -> None:
    # Given a registration that has published nothing yet, and no subscription that would have the metadata read
    # When it publishes without any, expect a refusal; the same after an object that passed
    for _ in range(2):
        with pytest.raises(MetadataError):
            judged(judgement, b"")
        judged(judgement, KABUL)


def test_large_metadata_are_not_kept_for_the_next_object(judgement: Judgement, gate: Gate, table: MatchTable) -> None:
    # Given a subscription, and metadata at the limit and beyond it
    table.add(_subscription("south", "/m/lat < 40"))
    kept = KABUL.replace(b"</m>", b" " * (REMEMBERED_BYTES - len(KABUL)) + b"</m>")
    large = kept.replace(b"</m>", b" </m>")
    # When each comes twice, expect the same answers, and the larger to be judged each time
    assert [_uids(judged(judgement, metadata)) for metadata in (kept, kept, large, large)] == [["south"]] * 4
    assert gate.asked == 3
    # Expect what was kept before to hold still
    assert _uids(judged(judgement, kept)) == ["south"]
    assert gate.asked == 3


def test_what_goes_out_is_what_came_in() -> None:
    # Given an object as it came over the wire
    came = b"".join(pack(Head("1", "registration-1", 7, 1.0, "t", "1.0", KABUL, 9), b"<p>a</p> ").parts)
    parcel = Parcel.received(came)
    # Expect its bytes to be passed on, not made anew
    assert parcel.parts == (came,)
    assert parcel.parts[0] is came
    assert bytes(parcel.payload) == b"<p>a</p> "


def test_a_filter_changes_the_payload_alone() -> None:
    # Given an object whose payload is XML, one subscription with a filter, one without
    payload = b"<p><keep>a</keep><drop>b</drop></p>"
    came = b"".join(pack(Head("1", "registration-1", 7, 1.0, "t", "1.0", KABUL, len(payload)), payload).parts)
    some, whole = _subscription("some", payload_filter="/p/keep"), _subscription("whole")
    # When it is disseminated
    result = disseminate(Parcel.received(came), [some, whole])
    # Expect the one to get a selection, with the length as published, the other the bytes as they came
    cut, full = (decode(b"".join(selected.parcel.parts)) for selected in result.selected)
    assert b"<keep>a</keep>" in cut.payload
    assert b"drop" not in cut.payload
    assert (cut.metadata, cut.platform) == (full.metadata, full.platform)
    assert cut.platform.payload_length == len(payload)
    assert full.payload == payload


def test_what_a_filter_takes_away_is_not_kept() -> None:
    # Given a large object that came over the wire, and a filter that leaves little of it
    payload = b"<x><y>kept</y><z>" + b"z" * 1_000_000 + b"</z></x>"
    sent = pack(Head("object1", "registration-1", 1, 1.0, "t", "1.0", KABUL, len(payload)), payload)
    came = Parcel.received(b"".join(sent.parts))
    # When it is cut
    (selected,) = disseminate(came, [_subscription("s", payload_filter="//y")]).selected
    # Expect its parts to hold no more memory than its size says, which is what counts for queues
    held = sum(len(part.obj if isinstance(part, memoryview) else part) for part in selected.parcel.parts)
    assert held == selected.parcel.size < 1000


@pytest.mark.parametrize("payload_filter", ["", "//x"])
def test_what_waits_is_held_once_and_takes_no_more_than_is_counted_for_it(payload_filter: str) -> None:
    # Given objects with large metadata, as they come over the wire
    metadata = KABUL.replace(b"</m>", b" " * 20_000 + b"</m>")
    came = [
        b"".join(pack(Head(f"o{n}", "registration-1", n, 1.0, "t", "1.0", metadata, len(PAYLOAD)), PAYLOAD).parts)
        for n in range(20)
    ]
    subscription = _subscription("s", payload_filter=payload_filter)

    def disseminated() -> tuple[list[Parcel], tracemalloc.Snapshot]:
        """Parcels that wait, and the memory that was taken in here: not that of other threads of the process."""
        gc.collect()
        tracemalloc.start(20)
        waiting = []
        for data in came:
            parcel = Parcel.received(bytes(bytearray(data)))  # a copy that nobody else holds
            waiting += [selected.parcel for selected in disseminate(parcel, [subscription]).selected]
        del parcel
        gc.collect()
        taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__, all_frames=True)])
        tracemalloc.stop()
        return waiting, taken

    # When they are read and disseminated, and what is made once for all is there
    disseminated()
    waiting, taken = disseminated()
    # Expect them to take their size and some overhead, and to be whole
    by_place = taken.statistics("lineno")
    assert sum(each.size for each in by_place) < sum(each.size + OVERHEAD for each in waiting), by_place[:10]
    assert {decode(b"".join(each.parts)).metadata for each in waiting} == {metadata}
    assert {bytes(each.head.metadata) for each in waiting} == {metadata}


PAYLOAD = b"<r><x>1</x><y/></r>"


def _parcel(payload: bytes) -> Parcel:
    return pack(Head("object1", "registration-1", 1, 1.0, "t", "1.0", KABUL, len(payload)), payload)


def test_filters_of_equal_text_are_computed_once_for_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given subscriptions whose filters have one text, and one with another
    matched = [_subscription(f"s{n}", payload_filter="//x") for n in range(50)]
    matched.append(_subscription("other", payload_filter="//y"))
    computed: list[str] = []
    apply = PayloadFilter._apply
    monkeypatch.setattr(PayloadFilter, "_apply", lambda f, root: (computed.append(f.expression), apply(f, root))[1])
    # When an object is disseminated, expect each text once, and one payload for all who share it
    found = disseminate(_parcel(PAYLOAD), matched)
    assert sorted(computed) == ["//x", "//y"]
    assert len({id(selected.parcel.payload) for selected in found.selected}) == 2


def test_xml_beyond_the_bounds_is_withheld_or_passes_unchanged_as_the_subscription_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xml, "MAX_XML_PAYLOAD_NODES", 100)
    poison = b"<r>" + b"<x/>" * 200 + b"</r>"
    usual, whole = (
        _subscription(choice, payload_filter="//y", suppress_empty=True, unfiltered=choice)
        for choice in ("withhold", "deliver")
    )
    found = disseminate(_parcel(poison), [usual, whole, _subscription("without")])
    assert found.oversize == [usual]
    assert [(s.subscription.uid, s.filtered) for s in found.selected] == [("deliver", False), ("without", True)]
    assert all(bytes(selected.parcel.payload) == poison for selected in found.selected)


def test_a_choice_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unfiltered: 'drop'"):
        _subscription("s", payload_filter="//y", unfiltered="drop")


def test_a_filter_that_fails_selects_nothing_and_disturbs_no_other() -> None:
    matched = [_subscription(str(n), payload_filter=text) for n, text in enumerate(("position()", "position()", "//x"))]
    counts = [bytes(s.parcel.payload).count(b"<x>") for s in disseminate(_parcel(PAYLOAD), matched).selected]
    assert counts == [0, 0, 1]
    # Expect each of those who have it to be told
    assert [subscription.status(SubscriptionStatus)["failed"] for subscription in matched] == [1, 1, 0]
    assert "position" in str(matched[1].status(SubscriptionStatus)["last_failure"])


def test_a_predicate_that_fails_is_told_to_all_who_have_it(table: MatchTable) -> None:
    both = [_subscription(name, "position()=1") for name in ("one", "other")]
    for subscription in both:
        table.add(subscription)
    assert table.match(parse_metadata(KABUL)) == []
    assert [subscription.status(SubscriptionStatus)["failed"] for subscription in both] == [1, 1]


@pytest.mark.slow
def test_a_payload_of_eleven_million_elements_stops_nobody(federation: Any, figures: Any) -> None:
    # Given a subscription with a filter, and a payload with more nodes than libxml2 can have in a set
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uids = [
        subscriber.register_subscriber(
            figures.figure_3, schema=figures.schema, payload_filter="//y", unfiltered=choice
        )
        for choice in ("deliver", None)
    ]  # fmt: skip
    assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1]
    poison = b"<r>" + b"<x/>" * 11_000_000 + b"</r>"
    # When it is published between two others
    for payload in (b"<r/>", poison, b"<r/>"):
        publisher.publish(registration, figures.figure_1, payload)
    # Expect all three where that is wished, the large one as it was, and counted
    received = [subscriber.receive(uids[0], 30.0) for _ in range(3)]
    assert [len(obj.payload) if obj else None for obj in received][1] == len(poison)
    assert [obj.is_selection if obj else None for obj in received] == [True, False, True]
    assert sorted(each["unfiltered"] for each in pad.delegate.status()["subscriptions"]) == [0, 1]
    # Expect the others to have the two that could be filtered, and to be told of the third
    received = [subscriber.receive(uids[1], 30.0) for _ in range(2)]
    assert [obj.is_selection if obj else None for obj in received] == [True, True]
    assert subscriber.losses(uids[1]) == {"oversize": 1}


def test_what_a_delegate_keeps_by_the_thousand_is_nothing_that_the_garbage_collector_goes_through() -> None:
    # Given an object in a buffer, and as an application has it
    parcel = Parcel.received(b"".join(pack(Head("1", "registration-1", 7, 1.0, "t", "1.0", KABUL, 1), b"x").parts))
    buffers, buffer = RecentBuffers(10.0, 1 << 20), RecentBuffer()
    (kept,) = buffers.keep(buffer, [parcel], Judgement(Gate(), (), MatchTable(), validate=False), 0.0)
    # Expect none of it to be the collector's: it took a third of a delegate's time
    assert not any(map(gc.is_tracked, (parcel, parcel.head, kept, parcel.unpacked(), parcel.unpacked().platform)))
