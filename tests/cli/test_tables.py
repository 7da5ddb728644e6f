"""Tables fit the terminal, whatever is in them: which columns are shown, what is cut, and what people may ask for."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.cli import demonstration, examples, services, status
from jbi_pubsub.cli.options import TableArguments
from jbi_pubsub.cli.settings import CommandSettings
from jbi_pubsub.cli.show import (
    BRIEF,
    MARKS_MOST,
    NARROWEST,
    Column,
    Table,
    View,
    cut,
    drawn,
    places,
    printable,
    show_facts,
    show_tables,
)
from jbi_pubsub.cli.status import tables
from jbi_pubsub.examples.demo import Demo
from jbi_pubsub.examples.example import ExampleOutcome, Promise
from jbi_pubsub.examples.example import OutcomeTable as Told
from jbi_pubsub.examples.scenario import expected

HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("東京ｱ한ß\u0301\u0e31\u1160\u3164\u200b\u200d\u202e\u2066\ufe0f\x1b\x9b\x00\t\n\x7f\U0001f469"),
        st.sampled_from("abcdefghij.0123456789"),
    ),
    max_size=60,
)
NUMBER = st.integers(0, 10**9)


def taken(line: str) -> int:
    """Places that a line takes, by the tables of Python: wide and full-width characters two, marks none."""
    marks = ("Mn", "Me", "Mc")
    return sum(
        0 if unicodedata.category(c) in marks else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line
    )


@st.composite
def statuses(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What servers say of themselves, in words and numbers of any kind and size."""
    loss = st.dictionaries(HOSTILE, NUMBER, max_size=3)
    common = {
        "address": HOSTILE.filter(str.strip), "uptime": st.floats(0, 1e7), "faults": loss, "lost": loss,
        "novel": st.dictionaries(HOSTILE, st.one_of(NUMBER, HOSTILE), max_size=3),
    }  # fmt: skip
    lookup = {
        **common, "kind": st.just("lookup"), "groups": st.lists(HOSTILE, max_size=3), "store": st.none(),
        **dict.fromkeys(("items", "event_registrations", "lookups", "changes", "events", "events_lost"), NUMBER),
    }  # fmt: skip
    subscription = {
        "uid": st.uuids().map(lambda u: f"subscription-{u.hex}"), "predicate": HOSTILE, "filter": HOSTILE,
        "policy": HOSTILE, "direct": st.booleans(), "recipients": st.lists(HOSTILE, max_size=2), "lost": loss,
        **dict.fromkeys(("bound", "matched", "suppressed", "delivered", "mailed", "mail_waiting"), NUMBER),
    }  # fmt: skip
    delegate = {
        **common, "kind": st.just("delegate"), "name": HOSTILE, "location": HOSTILE,
        "counts": st.fixed_dictionaries(dict.fromkeys(("registrations", "subscriptions"), NUMBER)),
        "mail": st.fixed_dictionaries({"fault": HOSTILE, "queued": NUMBER}), "sessions": st.just([]),
        "kept": st.fixed_dictionaries({"bytes": NUMBER}),
        "subscriptions": st.lists(st.fixed_dictionaries(subscription), max_size=3),
        **dict.fromkeys(
            ("leases", "published", "unmatched", "matched", "suppressed", "delivered", "queued", "in_flight", "mailed"),
            NUMBER,
        ),
    }  # fmt: skip
    return [draw(st.fixed_dictionaries(lookup)), draw(st.fixed_dictionaries(delegate))]


@given(found=statuses(), width=st.integers(40, 200), whole=st.booleans())
def test_no_line_is_wider_than_the_terminal_and_every_row_can_be_told(
    found: list[dict[str, Any]], width: int, whole: bool
) -> None:
    for table in tables(found, subscriptions=True, whole=whole):
        lines = drawn(table, width=width).split("\n")
        # Expect no line to be too wide, and none to hold what a terminal obeys
        assert max(map(taken, lines)) <= width
        assert all(line.isprintable() for line in lines)
        # Expect the column that says what a row is about, and in it an id whole, a name whole or both its ends
        assert any(table.columns[0].head in line for line in lines)
        for row in table.rows:
            key = printable(row[0])
            shown = {cut(key, width, middle=True) for width in range(NARROWEST, places(key) + 1)} | {key}
            if table.columns[0].brief:
                shown = {key.rpartition("-")[2][:BRIEF]}
            assert any(part.strip() in line for part in shown for line in lines), (row, lines)


@given(HOSTILE)
def test_no_text_has_what_nobody_sees(text: str) -> None:
    shown = printable(text)
    # Expect what is left to be seen: nothing that only other characters show, and no heap of marks
    assert shown.isprintable()
    assert not set(shown) & set("\u200b\u200d\u202e\u2066\u3164\ufe0f\u1160\u034f\u2800")
    marks = [unicodedata.category(c)[0] == "M" for c in shown]
    assert not any(all(marks[i : i + MARKS_MOST + 1]) for i in range(len(marks) - MARKS_MOST))
    assert not marks[:1] or not marks[0]


def test_marks_do_not_pile_up_on_the_lines_above() -> None:
    assert printable("a" + "\u0301" * 50 + "b") == "a" + "\u0301" * MARKS_MOST + "b"
    assert printable("\u0301\u0301x") == "x"


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    for text in (
        "Größe",
        "東京",
        "한국",
        "עִבְרִית",
        "ภาษาไทย",
        "Tiếng Việt",
        unicodedata.normalize("NFD", "Tiếng Việt 한국"),
    ):
        assert printable(text) == text


def test_a_wide_character_counts_twice_and_is_not_cut_in_two() -> None:
    # Given names that take two places a letter
    table = Table([Column("name", long=True), Column("n", right=True)], [("東京都千代田区霞が関", 1), ("rome", 2)])
    for width in (17, 18):  # in one of them the cut falls into a letter
        lines = drawn(table, width=width).split("\n")
        # Expect the numbers to stand below each other, and whole letters
        assert {taken(line) for line in lines} == {width}
        assert lines[2].startswith("東京都千代田"[: (width - 4) // 2])
    assert (places("e\u0301"), places("\U0001f44d\U0001f3fd")) == (1, 4)


def _demo() -> list[dict[str, Any]]:
    counts = dict.fromkeys(("unmatched", "matched", "suppressed", "delivered", "queued", "in_flight"), 1_234)
    return [
        {
            "kind": "delegate", "name": "alpha", "location": "rome", "address": "127.0.0.1:40123", "uptime": 60.0,
            "leases": 3, "counts": {"registrations": 1, "subscriptions": 1}, "published": 1_234_567, **counts,
            "lost": {"missed": 2}, "mail": {"fault": "", "queued": 0}, "sessions": [], "subscriptions": [],
        }
    ]  # fmt: skip


def test_what_a_later_version_counts_is_shown_without_a_column_for_it() -> None:
    # Given a status with counters and a date that this version knows nothing of
    [facts] = _demo()
    facts |= {"signatures": {"verified": 812, "bad": 0}, "certificate": {"ends": "2027-01-31"}, "pid": 4711}
    facts |= {"access": {"rules": 12, "refused": {"publish": 3}, "audit": {"bytes": 5_000}}}
    # Expect what is not zero of these, and what is of no interest with --wide alone
    *_, more = tables([facts])
    assert [row[1:] for row in more.rows] == [
        ("signatures.verified", "812"), ("certificate.ends", "2027-01-31"), ("access.refused.publish", "3")
    ]  # fmt: skip
    *_, more = tables([facts], whole=True)
    assert ("alpha, rome", "pid", "4711") in more.rows
    # When it says things without end, expect an end
    facts["novel"] = {str(number): {str(inner): 1 for inner in range(100)} for number in range(100)}
    assert len(list(tables([facts]))[-1].rows) == status.MORE_MOST


def _view(known: Any, *, wide: bool, columns: str) -> View:
    return TableArguments(CommandSettings(None, {}), wide=wide, columns=columns, as_json=False).view(known)


def test_columns_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    # When some are asked for, in any case, expect these in their order behind what says which row it is, in all tables
    # that have one of them
    view = _view(status._ALL, wide=False, columns="LOST, published")
    show_tables(tables(_demo()), view)
    assert capsys.readouterr().out == ("objects at\tlost\tpublished\nalpha, rome\t2\t1,234,567\n")
    # Expect the address of a server beside its kind, since a peer has no name
    show_tables(tables(_demo()), _view(status._ALL, wide=False, columns="regs"))
    assert capsys.readouterr().out == "kind\taddress\tregs\ndelegate\t127.0.0.1:40123\t1\n"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("status", "--columns", "publishd"), "no column publishd; did you mean published?"),
        (("status", "--columns", "lost,,xyzzy"), "no column xyzzy; there are: "),
        (("services", "--columns", "addres"), "did you mean address?"),
        (("subscriptions", "--columns", "recipient"), "did you mean recipients?"),
        (("status", "--columns", "lost", "--json"), "--columns is for tables"),
        (("services", "--wide", "--json"), "--wide is for tables"),
    ],
    ids=str,
)
def test_columns_that_do_not_exist(arguments: tuple[str, ...], meant: str, said: Callable[..., Any]) -> None:
    # Expect an error before anybody is asked
    answer = said("--no-multicast", "--locator", "127.0.0.1:1", *arguments)
    assert (answer.code, answer.is_one_line()) == (2, True)
    assert meant in answer.err


def test_wide_cuts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Given a terminal of 60 columns, and a service with a long entry
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    row = (("registration-" + "5" * 32)[:21], "PublisherRegistration", "a.b.Intel_Imagery", "127.0.0.1:40123", "E" * 99)
    table = Table(services._SERVICES, [row], "1 service")
    show_tables([table])
    assert "E" * 9 not in capsys.readouterr().out
    # Expect all of it with --wide
    show_tables([table], _view([services._SERVICES], wide=True, columns=""))
    shown = capsys.readouterr().out
    assert all(part in shown for part in row)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_demo_fits_the_terminal(width: int) -> None:
    # Given the demo when everything has come, but for one alert
    state = Demo(stage="done", published=20)
    for row in state.rows.values():
        want = expected(row.subscriber)
        row.objects, row.parts, row.last = want.objects, want.parts, "Intel_Imagery #8, 2 parts: 373 of 632 B"
        row.mails = want.objects if row.subscriber.recipients else 0
    state.rows["severe"].objects -= 1
    # Expect all that matters, in lines that are not broken
    shown = demonstration._table(state, width)
    assert max(map(taken, shown.splitlines())) <= width
    assert "4 of 4 ok" in shown
    assert "3 of 4 WRONG" in shown
    if width >= 80:
        assert "418th, Imagery, EN       in the rectangle around Kabul  4 of 4 ok" in shown


def test_what_an_example_promises_is_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a terminal of 60 columns, and sentences that are longer
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    says = "the whole takes long, and less than a fiftieth of it went over the link"
    examples.show_outcome(ExampleOutcome((Told(f"{says}, before", ("a",), ((1,),)),), (Promise(says, True),)), 1.0)
    # Expect all words, whole, in lines that fit
    shown = capsys.readouterr().out
    assert max(map(taken, shown.splitlines())) <= 60
    assert shown.split().count("fiftieth") == 2
    assert "ok     the whole takes long, and less than a fiftieth of it\n       went over the link\n" in shown


def test_a_namespace_gives_way_before_its_name() -> None:
    row = ("c" * 8, "PublisherRegistration", "{urn:oasis:names:tc:emergency:cap:1.2}alert", "127.0.0.1:40123", "")
    assert "  alert  " in drawn(Table(services._SERVICES, [row]), width=80)


def test_facts_go_on_below_themselves_and_are_lines_without_a_head_when_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = [("not in it", "TLS, networks, validation by schemas"), ("\x1b[2Jhostile", "x\ny")]
    # When piped
    show_facts(facts, title="capacity")
    # Expect a line for each, and nothing that a terminal obeys
    assert capsys.readouterr().out.splitlines() == [f"{printable(name)}\t{printable(value)}" for name, value in facts]
    # When in a terminal of 40 columns; Expect the whole of each, below itself
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    show_facts(facts[:1], title="capacity")
    assert capsys.readouterr().out == ("capacity\nnot in it  TLS, networks, validation by\n           schemas\n")
