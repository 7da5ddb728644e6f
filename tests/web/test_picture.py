"""Pictures, maps and what a page says of an object: pure, without a browser."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.web.drawing import Drawing, cut
from jbi_pubsub.web.federation import KINDS, Edge, Server, Snapshot
from jbi_pubsub.web.map import Location, chart, places
from jbi_pubsub.web.objects import METADATA_SHOWN, looked_at, payload_shown
from jbi_pubsub.web.picture import NARROW, WIDE, folded, per_second, picture, short, state_of

HOSTILE = "<img src=x onerror=alert(1)></script>"


def _server(number: int, kind: Any = "delegate", **facts: Any) -> Server:
    named = {} if kind == "lookup" else {"name": f"d{number}", "location": "rome"}
    told = KINDS[kind](kind=kind, address=f"127.0.0.1:{number}", uptime=1.0, **named, **facts)
    return Server(f"{kind}{number}", kind, ServiceRef("", "status", ("127.0.0.1:1",)), told, {}, "", {}, True)


def _edge(server: str, kind: Any, name: str, count: int = 1, **more: Any) -> Edge:
    return Edge(kind, server, name, more.pop("of", 1), count, more.pop("rate", 1.0), **more)


def _large() -> Snapshot:
    """20 delegates with 10,000 subscriptions of 400 applications, three lookup services, a hundred publishers."""
    servers = [_server(n, "lookup") for n in range(3)] + [_server(n) for n in range(20)]
    edges = [
        edge
        for n in range(20)
        for edge in (
            *(_edge(f"delegate{n}", "publish", f"{HOSTILE}{k}") for k in range(5)),
            *(_edge(f"delegate{n}", "deliver", f"application {k}", 25) for k in range(20)),
            _edge(f"delegate{n}", "deliver", "", 9_500, of=300),
        )
    ]
    return Snapshot(1, 0.0, tuple(servers), tuple(edges), 7, "")


def _boxes(drawing: Drawing) -> list[tuple[float, float, float, float]]:
    return [(s["x"], s["y"], s["x"] + s["w"], s["y"] + s["h"]) for s in drawing.shapes if s["s"] == "box"]


@pytest.mark.parametrize("narrow", [False, True])
def test_a_large_federation_stays_readable(narrow: bool) -> None:
    drawing = picture(_large(), narrow=narrow)
    boxes = _boxes(drawing)
    # Expect every server, and its crowds as one box each
    words = [text["t"] for s in drawing.shapes for text in s.get("texts", [])]
    assert sum(word.startswith("delegate d") for word in words) == 20
    assert sum(word == "320 subscribers" for word in words) == 20
    assert sum("subscriptions" in word and word.startswith("10,000") for word in words) == 20
    assert any(s.get("t") == "and 7 more servers" for s in drawing.shapes)
    # Expect no two boxes to overlap, none beyond the edge, rates' plates on no box, and a bounded height
    plates = [
        (s["x"] - s["w"] / 2, s["y"] - 9, s["x"] + s["w"] / 2, s["y"] + 9) for s in drawing.shapes if s["s"] == "arrow"
    ]
    for one, other in itertools.combinations([*boxes, *plates], 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    assert min(b[0] for b in boxes) >= 0
    assert max(b[2] for b in boxes) <= (NARROW if narrow else WIDE)
    assert max(b[3] for b in boxes) <= drawing.height < (5_000 if narrow else 2_500)


def test_what_has_no_room_is_folded_with_its_sums() -> None:
    edges = [_edge("a", "deliver", f"s{n}", n, rate=float(n), waiting=1, lost=2) for n in range(10)]
    kept = folded(edges, 3)
    assert [(e.name, e.of, e.count) for e in kept] == [("s9", 1, 9), ("s8", 1, 8), ("", 8, 28)]
    assert (kept[-1].rate, kept[-1].waiting, kept[-1].lost) == (28.0, 8, 16)
    assert folded(edges[:3], 3) == edges[2::-1]
    assert folded([], 3) == []
    assert folded([_edge("a", "deliver", "x", rate=None)] * 2, 1)[0].rate is None


def test_states_are_told_in_words() -> None:
    assert state_of(_server(1)) == ("ok", "")
    assert state_of(_server(1, draining=True)) == ("warn", "draining")
    assert state_of(_server(1, faults={"a loop": 1})) == ("bad", "has faults")
    silent = Server("x", "unknown", ServiceRef("", "status", ("host:1",)), None, {}, "away", {}, True)
    assert state_of(silent) == ("bad", "does not answer")
    assert "does not answer" in str(picture(Snapshot(servers=(silent,))).data())
    assert [per_second(r) for r in (None, 0.0, 1.26, 123.4, 98_765.0)] == ["", "0/s", "1.3/s", "123/s", "99k/s"]
    assert [short(n) for n in (7, 9_999, 10_000, 150_300, 25_000_000)] == ["7", "9,999", "10k", "150k", "25M"]


def test_texts_are_cut_to_their_room_wide_characters_count_more() -> None:
    assert cut("short", 100, 12) == "short"
    assert cut("x" * 100, 100, 12).endswith("…")
    assert len(cut("x" * 100, 100, 12)) <= 14
    assert len(cut("東" * 100, 100, 12)) <= 8


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("<m><at><lat>33.34</lat><latord>N</latord><long>69.98</long><longord>E</longord></at></m>", (33.34, 69.98)),
        ("<m><p><lat>33.3</lat><ladir>S</ladir><long>67.8</long><lodir>W</lodir></p></m>", (-33.3, -67.8)),
        ('<m><position latitude="-1.5" longitude="200"/></m>', None),
        ('<m><position Lat="-1.5" Lon="20"/></m>', (-1.5, 20.0)),
        ('<x:m xmlns:x="u"><x:polygon>10,20 30,40\n20,30</x:polygon></x:m>', (20.0, 30.0)),
        ("<m><circle>42.5,-82.5 15</circle></m>", (42.5, -82.5)),
        ("<m><lat>ten</lat><long>1</long></m>", None),
        ("<m><lat>nan</lat><long>inf</long></m>", None),
        ("<m><polygon>none</polygon><!-- lat --></m>", None),
        ("<m/>", None),
    ],
)
def test_locations_are_found_by_the_usual_names(document: str, found: tuple[float, float] | None) -> None:
    assert places(parse_metadata(document.encode())) == ([Location(*found)] if found else [])


def test_a_map_has_its_places_inside_and_lines_with_degrees() -> None:
    drawing = chart([("#1", Location(33.0, 69.0)), ("#2", Location(-10.0, -20.0)), ("#3", Location(90.0, 180.0))])
    dots = [s for s in drawing.shapes if s["s"] == "dot"]
    assert len(dots) == 3
    assert all(0 <= d["x"] <= drawing.width and 0 <= d["y"] <= drawing.height for d in dots)
    assert dots[0]["y"] < dots[1]["y"]  # north is up
    assert dots[0]["x"] > dots[1]["x"]  # east is to the right
    texts = [s["t"] for s in drawing.shapes if s["s"] == "text"]
    assert "0°" in texts
    assert any(t.endswith("N") for t in texts)
    # Expect one place, and none, to make a map as well
    for some in ([("#1", Location(0.0, 0.0))], []):
        assert 2 <= sum(s["s"] == "line" for s in chart(some).shapes) < 30


def test_an_object_is_shown_as_text_whatever_it_holds() -> None:
    def seen(metadata: bytes, payload: bytes = b"") -> Any:
        platform = Platform(100.0, "registration-1", 7, len(metadata), len(payload))
        return looked_at(InfoObject("o-1", TypeName("t", "1.0"), metadata, payload, platform), 100.25)

    shown = seen(f"<m><a>{HOSTILE.replace('<', '&lt;')}</a></m>".encode(), b"hello\x1b[2J")
    assert shown.metadata == f"<m>\n  <a>{HOSTILE.replace('<', '&lt;').replace('>', '&gt;')}</a>\n</m>"
    assert (shown.payload, shown.age, shown.sequence) == ("hello�[2J", 0.25, 7)
    assert "not well-formed" in seen(b"<m>").metadata or seen(b"<m>").metadata.startswith("(")
    assert len(seen(b"<m>" + b"<a/>" * 100_000 + b"</m>").metadata) <= METADATA_SHOWN
    assert payload_shown(b"\xff\x00" * 1000).startswith("ff 00 ff 00")
    assert payload_shown("ä".encode() * 10_000).startswith("äää")
    assert payload_shown(b"") == "(none)"
    # Expect a long payload that is no text to be shown as bytes, and metadata in a line by their leaves
    assert payload_shown(b"PNG \xff" + b"a" * 10_000).startswith("50 4e 47 20 ff")
    assert seen(b"<m xmlns='u:v'><a> 1\n 2 </a><b><c>x</c></b><d/></m>").brief == "a: 1 2, c: x"


def test_an_answer_that_makes_no_sense_is_said_to_be_none() -> None:
    from jbi_pubsub.web.explain import answer_of  # here: it imports NiceGUI

    good = {
        "subscription": "s", "delivered": True, "predicate": "//a", "predicate_true": True, "predicate_failure": "",
        "filter": "", "queue": {},
        "first_level": {
            "r-1": {"matches": True, "document": "fits", "misses": [], "type": "t", "version": "1", "impossible": []}
        },
        "conditions": [{"joint": "", "level": 0, "holds": None, "text": "//a", "found": [{"count": 0, "values": []}]}],
    }  # fmt: skip
    answer = answer_of("alpha", good)
    assert [(row["level"], row["holds"]) for row in answer.levels] == [("first", "yes"), ("predicate", "yes")]
    assert [(row["holds"], row["found"]) for row in answer.conditions] == [("failed", "nothing")]
    bad = (
        {},
        {**good, "first_level": 7},
        {**good, "conditions": [{}]},
        {**good, "queue": "x"},
        {**good, "filter": "x"},
    )
    for each in bad:
        with pytest.raises(ProtocolError, match="gives an explanation that this version does not understand"):
            answer_of("alpha", each)
