"""`jbi explain` and `jbi subscriptions`: they ask every delegate, and one that has died hides nothing of the others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Wish
from jbi_pubsub.cli import explain as cli
from jbi_pubsub.core.config import ArchiveSection, PolicySection, QosSection
from jbi_pubsub.protocol.status.explained import levels

FIGURE_1 = str(Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery" / "fig1.xml")


@pytest.fixture
def explained(federation: Any, figures: Any) -> tuple[Any, str]:
    """A publisher, and the id of a subscription with a predicate at its delegate."""
    federation.pad("alpha", "rome")
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate="//lat>33", policy="drop_newest", bound=7
    )
    assert subscriber.wait_matched(uid) == 1
    return publisher, uid


@pytest.fixture
def dead(federation: Any) -> Any:
    """A delegate that has died, and that the lookup service still lists, before all others."""
    pad = federation.pad("bravo", "paris")
    pad.endpoints.first.stop()
    return pad


@pytest.mark.row("X-03")
def test_an_explanation_shows_all_parts_of_the_subscription(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert answer.code == 0
    for part in ("matches", "//lat>33", "drop_newest 7", "publisher=418th"):
        assert part in answer.out
    [facts] = json.loads(said(*flags, "explain", explained[1], "--metadata", FIGURE_1, "--json").out)
    assert facts["delivered"] is True
    assert (facts["terms"]["policy"], facts["terms"]["bound"], facts["terms"]["matched"]) == ("drop_newest", 7, 0)


@pytest.mark.row("X-03")
def test_what_policies_have_decided_and_where_it_goes_stands_with_the_template_predicate_and_filter(
    federation: Any, figures: Any, tmp_path: Path, flags: list[str], said: Callable[..., Any]
) -> None:
    # Given a delegate with policies, and a subscription that says all that one can say
    policies = tmp_path / "policy.toml"
    policies.write_text(
        '[[policy]]\nname = "all"\nimportance = 4\npreference = "GeneralSurv"\nmax_rate = "2/s"\nmax_size = "50 KB"\n'
    )
    config = msgspec.structs.replace(
        federation.config, qos=QosSection(mode="on"), policy=PolicySection(file=str(policies))
    )
    federation.pad(config=config)
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate="//lat>33", payload_filter="//name", direct=True,
        recipients=["ops@example.org"], qos=Wish(deadline=3.0, replace="//lat"),
    )  # fmt: skip
    assert subscriber.wait_matched(uid) >= 1
    # When it is explained
    answer = said(*flags, "explain", uid, "--metadata", FIGURE_1)
    # Expect each part of it
    found = [row.split("\t") for row in answer.out.splitlines()]
    terms = {(row[0], row[2]) for row in found if len(row) == 3 and not row[1]}
    assert terms >= {
        ("predicate", "//lat>33"), ("filter", "//name"), ("delivery", "queue, mail"), ("recipients", "ops@example.org"),
        ("importance", "4"), ("deadline", "3 s"), ("shape", "scale 0.5"), ("max_rate", "2 objects/s"),
        ("max_size", "50000 B"), ("replace", "//lat"),
    }  # fmt: skip
    assert any(name == "template" and "publisher=418th" in value for name, value in terms)


def test_each_level_and_condition_stands_in_the_table(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    rows = [line.split("\t") for line in answer.out.splitlines()]
    assert ["yes", "//lat>33", "'33.34'"] in rows
    assert rows[rows.index(["holds", "condition", "found"]) - 1] == [""]  # between tables
    assert ["predicate", "yes", "see below"] in rows
    [first] = [row for row in rows if row[0] == "first"]
    assert first[1] == "yes"
    assert first[2].startswith("mil.af.rl.jbi.Intel_Imagery 1.0, ")


def test_the_tables_fit_80_columns_and_hide_nothing(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    [facts] = json.loads(said(*flags, "explain", explained[1], "--metadata", FIGURE_1, "--json").out)
    facts["conditions"].append({**facts["conditions"][0], "text": "/metadata/" + "ImageDescriptor/" * 9 + "lat>33"})
    rows = [*levels(facts), *cli._conditions(facts["conditions"]), *cli._terms(facts)]
    lines = [line for row in rows for line in cli.folded(row)]
    assert max(sum(map(len, map(str, line))) + 4 for line in lines) <= 80
    # Expect all of a cell to be there, on several lines if need be
    shown = "".join(str(cell) for column in range(3) for cell in (line[column] for line in lines)).replace(" ", "")
    for cell in (cell for row in rows for cell in row):
        assert str(cell).replace(" ", "") in shown


def test_the_beginning_of_the_id_will_do(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    uid = explained[1]
    answer = said(*flags, "explain", uid.removeprefix("subscription-")[:8], "--metadata", FIGURE_1)
    assert answer.code == 0
    assert uid in said(*flags, "explain", uid[:20], "--metadata", FIGURE_1, "--json").out


def test_an_object_that_is_not_known_any_more_is_told(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    answer = said(*flags, "explain", explained[1], "--object", "registration-1-7")
    assert answer.code == 1
    assert answer.is_one_line(), answer
    # Expect the word to be of the object alone: the subscription stands
    assert "no object registration-1-7 is known any more" in answer.err
    assert "--metadata" in answer.err
    assert "template" not in answer.err


def test_a_subscription_that_stands_nowhere_is_not_blamed_on_the_object(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any], figures: Any
) -> None:
    publisher, _ = explained
    published = publisher.publish(figures.register(publisher), figures.figure_1)
    publisher.flush()
    answer = said(*flags, "explain", "607c", "--object", published)
    assert answer.is_one_line(), answer
    assert "no subscription 607c at any" in answer.err
    assert published not in answer.err


@pytest.mark.parametrize("arguments", [("", "--object", "x"), ("x", "--object", ""), (" ", "--metadata", FIGURE_1)])
def test_an_empty_id_is_refused_at_once(arguments: tuple[str, ...], said: Callable[..., Any]) -> None:
    # Given nobody to ask; Expect the word to be of the id
    answer = said("--no-multicast", "explain", *arguments)
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert "is empty" in answer.err


def test_an_object_is_explained_by_its_own_registration(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any], figures: Any
) -> None:
    # Given a registration that the template matches, and one of the 999th; When an object of the latter is explained
    publisher, uid = explained
    delegate = publisher.connect_to_delegate("alpha", "rome")
    other = figures.metadata(publisher="999th")
    registration = publisher.register_publisher(delegate, figures.schema, other)
    published = publisher.publish(registration, other)
    publisher.flush()
    [facts] = json.loads(said(*flags, "explain", uid, "--object", published, "--json").out)
    # Expect that registration alone, and what it says
    assert (facts["registration"], list(facts["first_level"]), facts["delivered"]) == (
        registration, [registration], False,
    )  # fmt: skip
    answer = said(*flags, "explain", uid, "--object", published)
    assert "wants '418th', has '999th'" in answer.out
    assert len([line for line in answer.out.splitlines() if line.startswith("first\t")]) == 1


def test_registrations_of_others_are_not_shown_as_if_they_were_the_objects(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any], figures: Any
) -> None:
    # Given an object whose own registration has ended, and another that stands
    publisher, uid = explained
    registration = figures.register(publisher)
    published = publisher.publish(registration, figures.figure_1)
    publisher.unregister_publisher(registration)
    # Expect this to be said before the others
    rows = [line.split("\t") for line in said(*flags, "explain", uid, "--object", published).out.splitlines()]
    first = [row for row in rows if row[0] == "first"]
    assert first[0][2] == "the object's own registration has ended; others, as if it were theirs:"
    assert len(first) == 2


def test_the_verdict_and_the_server_stand_in_the_table(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given two documents; When they are explained through a pipe, expect the verdict in the first row
    other = tmp_path / "other.xml"
    other.write_text("<other/>")
    for file, verdict in ((FIGURE_1, "is delivered, at"), (str(other), "is not delivered, at")):
        head, whole, *_ = said(*flags, "explain", explained[1], "--metadata", file).out.splitlines()
        assert head.startswith("level\t")
        assert re.fullmatch(rf"whole\t\t{Path(file).name} {verdict} 127\.0\.0\.1:\d+", whole)


def test_an_object_that_was_published_just_now_is_explained_by_its_id(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any], figures: Any
) -> None:
    publisher, uid = explained
    registration = figures.register(publisher)
    published = publisher.publish(registration, figures.figure_1)
    publisher.flush()
    answer = said(*flags, "explain", uid, "--object", published)
    assert answer.code == 0
    assert "yes\t//lat>33\t'33.34'" in answer.out


def test_a_document_or_an_object_is_needed(flags: list[str], said: Callable[..., Any]) -> None:
    for arguments in ((), ("--metadata", FIGURE_1, "--object", "x"), ("--object", "x", "--payload", FIGURE_1)):
        answer = said(*flags, "explain", "subscription-x", *arguments)
        assert (answer.code, "give either --metadata" in answer.err) == (2, True)


def test_where_nobody_publishes_any_more_the_explanation_says_so(
    explained: tuple[Any, str], flags: list[str], federation: Any, figures: Any, said: Callable[..., Any]
) -> None:
    explained[0].close()
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert answer.code == 0
    assert "no publisher is registered here now" in answer.out


def test_a_subscription_that_stands_nowhere_is_told_why(
    federation: Any, flags: list[str], said: Callable[..., Any]
) -> None:
    federation.pad()
    answer = said(*flags, "explain", "subscription-unknown", "--metadata", FIGURE_1)
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert "template matches" in answer.err


def test_a_dead_delegate_does_not_hide_what_the_others_explain(
    dead: Any, explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    # Expect the explanation, and on stderr who did not answer
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert answer.code == 0
    assert "matches" in answer.out
    assert dead.address in answer.err


def test_a_dead_delegate_does_not_hide_the_email_subscriptions_of_the_others(
    dead: Any, federation: Any, flags: list[str], said: Callable[..., Any]
) -> None:
    # Given an e-mail subscription that a living delegate has
    federation.pad("alpha", "rome")
    made = said(*flags, "subscribe", "--email", "ops@example.org", "--type", "other", "--json")
    uid = json.loads(made.out)["subscription"]
    answer = said(*flags, "subscriptions")
    assert (answer.code, uid in answer.out, dead.address in answer.err) == (0, True, True)
    # Expect it to be cancelled there
    answer = said(*flags, "subscriptions", "cancel", uid)
    assert (answer.code, "cancelled at 1" in answer.out, dead.address in answer.err) == (0, True, True)


@pytest.fixture
def refusing(federation: Any, tmp_path: Path) -> Any:
    """A delegate that tells nobody anything."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[access]]\naction = ["connect", "publish", "subscribe", "mail", "peer"]\n')
    config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(policy)))
    pad = federation.pad("bravo", "paris", config=config)
    pad.community.wait_joined(pad.server_id, 60.0)
    return pad


def test_a_delegate_that_refuses_does_not_hide_what_the_others_explain(
    refusing: Any, explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert (answer.code, "matches" in answer.out) == (0, True)
    # Expect to be told who refuses, and what
    assert f"passed over {refusing.address}: " in answer.err
    assert "may not status" in answer.err


def test_a_delegate_that_refuses_does_not_hide_the_email_subscriptions_of_the_others(
    refusing: Any, explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    made = said(*flags, "subscribe", "--email", "ops@example.org", "--type", "mil.af.rl.jbi.Intel_Imagery", "--json")
    uid = json.loads(made.out)["subscription"]
    for arguments in (("subscriptions",), ("subscriptions", "renew", uid), ("subscriptions", "cancel", uid)):
        answer = said(*flags, *arguments)
        assert (answer.code, f"passed over {refusing.address}: " in answer.err) == (0, True), answer
    assert "cancelled at 1 delegate" in answer.out


def test_where_everybody_refuses_that_is_the_answer(refusing: Any, flags: list[str], said: Callable[..., Any]) -> None:
    for arguments in (("subscriptions",), ("explain", "3f8a", "--metadata", FIGURE_1)):
        answer = said(*flags, *arguments)
        assert answer.code == 1
        assert f"jbi: {refusing.address}: " in answer.err.splitlines()[-1]


def test_durable_subscriptions_are_listed_by_name_with_how_far_they_have_come(
    federation: Any, figures: Any, said: Any, flags: list[str], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given an archive, and a durable subscription that has had two objects of three
    config = msgspec.structs.replace(federation.config, archive=ArchiveSection(folder=str(tmp_path / "archive")))
    federation.config = config
    federation.pad("alpha", "rome")
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    taking = ("subscribe", "--type", "Intel_Imagery", "--durable", "fusion-1", "--start", "all", "--timeout", "9")
    for _ in range(3):
        publisher.publish(registration, figures.figure_1)
    publisher.flush(20)
    assert said(*flags, *taking, "--count", "2").code == 0
    # When the list is asked for
    eventually(lambda: not json.loads(said(*flags, "subscriptions", "--json").out)[0]["open"])  # its session has ended
    shown, (row,) = said(*flags, "subscriptions"), json.loads(said(*flags, "subscriptions", "--json").out)
    # Expect its name and place, and thirty days without the moment since
    assert (row["durable"], row["end"] > row["position"] >= 2) == ("fusion-1", True)
    assert re.fullmatch("key [0-9a-f]{8}", row["owner"])
    line = f"fusion-1\t{row['owner']}\t{row['archive']}\tno\t{row['position']}\t{row['end']}\t\tin "
    assert line + "30d00h" in shown.out or line + "29d23h" in shown.out


def test_a_subscription_that_contradicts_the_schema_is_told_why_at_once_and_at_the_end(
    federation: Any, figures: Any, said: Any, flags: list[str]
) -> None:
    federation.pad("alpha", "rome")
    figures.register(federation.light())
    why = "//latt can't match: there is no element latt below the document; did you mean lat?"
    answer = said(*flags, "subscribe", "--predicate", "//latt > 3", "--count", "1", "--timeout", "0.5")
    assert answer.code == 1
    told = answer.err.splitlines()
    assert any(line.startswith("subscription ") and line.endswith(why) for line in told)
    assert told[-1].startswith("jbi: 0 of 1 object came in time: ")
    assert told[-1].endswith(why)


def test_the_explanation_names_the_contradiction_and_leaves_out_other_types(
    federation: Any, figures: Any, said: Any, flags: list[str]
) -> None:
    # Given two types, and a subscription to one of them by a path that it does not have
    federation.pad("alpha", "rome")
    publisher = federation.light()
    figures.register(publisher)
    data = Path(FIGURE_1).parent.parent / "cap"
    at = publisher.connect_to_delegate("alpha", "rome")
    publisher.register_publisher(at, data / "cap12.xsd", data / "canada.xml", marks=data / "marks.json")
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", predicate="//latt > 3")
    assert subscriber.wait_matched(uid) == 1
    # Expect the reason, and of the other type a short line
    shown = said(*flags, "explain", uid, "--metadata", FIGURE_1).out
    assert "did you mean lat?" in shown
    assert "the template asks for another type" in shown
    assert "documents of this type begin with" not in shown


def test_who_may_not_connect_to_any_delegate_is_told_and_waits_for_nothing(
    federation: Any, said: Any, flags: list[str], tmp_path: Path
) -> None:
    # Given a delegate whose policy allows nobody anything, so nothing is published that could match
    policy = tmp_path / "policy.toml"
    policy.write_text('[[access]]\nuser = "nobody"\naction = "connect"\n')
    federation.config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(policy)))
    federation.pad("alpha", "rome")
    # When somebody subscribes, without an end
    told = said(*flags, "subscribe", "--type", "report")
    # Expect to be refused, with an exit code
    assert told.code == 1
    assert "may not connect" in told.err
