"""A subscription that contradicts the schemas of what it matches says so at once: to the application, in the log, in
the explanation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Wish
from jbi_pubsub.core.config import ArchiveSection, PolicySection

MATCHING = "jbi_pubsub.subscriber.matching"


@pytest.fixture
def published(federation: Any, figures: Any) -> Any:
    """A delegate with one registration of the paper's type."""
    federation.pad("alpha", "rome")
    publisher = federation.light()
    figures.register(publisher)
    return publisher


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"predicate": "//latt > 3"}, "there is no element latt below the document; did you mean lat?"),
        ({"predicate": "/metadata/@id = '1'"}, "there is no attribute @id in metadata"),
        ({"predicate": "//Area > 'A'"}, "> compares numbers, and 'A' is none"),
        ({"predicate": "/m:metadata", "namespaces": {"m": "urn:m"}}, "as its metadata is in no namespace"),
        ({"predicate": "//lat > 3", "start": "last", "latest_by": "//Areaa"}, "latest_by //Areaa can't match"),
        ({"predicate": "//lat > 3", "qos": Wish(replace="//Areaa")}, "replace //Areaa can't match"),
    ],
)
def test_the_application_is_told_why_nothing_can_match(
    published: Any,
    federation: Any,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
    terms: dict[str, Any],
    said: str,
) -> None:
    subscriber = federation.subscriber()
    with caplog.at_level(logging.WARNING, MATCHING):
        uid = subscriber.register_subscriber(**terms)
        eventually(lambda: any(said in line for line in subscriber.matching(uid).impossible))
        eventually(lambda: [record for record in caplog.records if said in record.getMessage()])
    assert str(subscriber.matching(uid)).startswith("matches 1 registration now; ")


def test_what_can_match_and_what_is_not_validated_is_told_nothing(federation: Any, figures: Any) -> None:
    # Given one registration whose metadata are validated, and later one whose are not
    federation.pad("alpha", "rome")
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    good = subscriber.register_subscriber(predicate="//lat > 3")
    assert subscriber.wait_matched(good) == 1
    assert subscriber.matching(good).impossible == ()
    at = publisher.connect_to_delegate("alpha", "rome")
    publisher.register_publisher(at, figures.schema, figures.figure_1, validate=False)
    # Expect nothing to be said of a path that only metadata beyond the schema have
    odd = subscriber.register_subscriber(predicate="//latt > 3")
    assert subscriber.wait_matched(odd) == 1
    assert subscriber.matching(odd).impossible == ()


def test_a_registration_that_comes_later_takes_the_contradiction_away(
    published: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription of any type that contradicts the schema of the only registration
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(predicate="//latt > 3")
    eventually(lambda: subscriber.matching(uid).impossible)
    # When a registration comes whose metadata may have what the predicate asks for
    delegate = published.connect_to_delegate("alpha", "rome")
    published.register_publisher(delegate, figures.schema, figures.figure_1, validate=False)
    eventually(lambda: subscriber.matching(uid).registrations == 2)
    # Expect nothing to be said of it any more: the delegate has not judged that one
    assert subscriber.matching(uid).impossible == ()


def test_what_a_dead_delegate_said_is_not_said_of_those_that_live(
    published: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given the only registration that contradicts a subscription, beside one whose metadata are not validated
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(predicate="//latt > 3")
    eventually(lambda: subscriber.matching(uid).impossible)
    published.close()
    eventually(lambda: subscriber.matching(uid).registrations == 0)
    federation.pad("bravo", "rome")
    other = federation.light()
    delegate = other.connect_to_delegate("bravo", "rome")
    other.register_publisher(delegate, figures.schema, figures.figure_1, validate=False)
    assert subscriber.wait_matched(uid) >= 1
    eventually(lambda: subscriber.matching(uid).registrations == 1)
    assert subscriber.matching(uid).impossible == ()


def test_an_operator_is_told_of_a_keep_rule_that_contradicts_a_type(
    federation: Any, figures: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # Given a rule that keeps the newest of each key, which no document of the type has
    rules = tmp_path / "policy.toml"
    rules.write_text('[[keep]]\ntype = "*"\nlatest_by = "//Areaa"\n')
    archive, policy = ArchiveSection(folder=str(tmp_path / "archive")), PolicySection(file=str(rules))
    federation.config = msgspec.structs.replace(federation.config, archive=archive, policy=policy)
    federation.pad("alpha", "rome")
    # When the type is published twice, expect one line
    publisher = federation.light()
    figures.register(publisher)
    figures.register(publisher)
    told = [record.getMessage() for record in caplog.records if "latest_by" in record.getMessage()]
    assert len(told) == 1
    assert "did you mean Area?" in told[0]


def test_an_amendment_takes_the_contradiction_away(published: Any, federation: Any) -> None:
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(predicate="//latt > 3")
    assert subscriber.wait_matched(uid) == 1
    assert subscriber.matching(uid).impossible
    assert subscriber.amend_subscription(uid, predicate="//lat > 3") == 1
    assert subscriber.matching(uid).impossible == ()


def test_an_operator_is_told_of_rules_and_policies_that_contradict_a_type(
    federation: Any, figures: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a rule and a policy with elements that no document of the type has, and such a policy about another type
    rules = tmp_path / "policy.toml"
    rules.write_text(
        "[[access]]\naction = ['connect', 'publish', 'peer', 'status']\n"
        "[[access]]\naction = 'subscribe'\nwhere = \"//Aera = 'Kabul'\"\n"
        "[[policy]]\nname = 'large'\nwhen = 'metadata(\"//latt > 3\")'\nimportance = 4\n"
        "[[policy]]\nname = 'other'\nwhen = 'metadata(\"//nothing\") and type == \"b\"'\nimportance = 4\n"
    )
    federation.config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(rules)))
    delegate = federation.pad("alpha", "rome")
    # When the type is published, expect a line about each in the log and in the status
    figures.register(federation.light())

    def said() -> list[str]:
        lines = delegate.status().access.contradictions
        return list(lines) if lines is not msgspec.UNSET else []

    assert [line.partition(":")[2].split(":")[0] for line in said()] == ["3", "6"]
    assert all("did you mean" in line for line in said()), said()
    told = [record.getMessage() for record in caplog.records]
    assert all(line in told for line in said())
    # When the rule is corrected, expect that it is not told any more
    rules.write_text(rules.read_text().replace("Aera", "Area"))
    eventually(lambda: len(said()) == 1)
