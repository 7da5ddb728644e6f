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


@pytest.mark.parametrize("terms", [{"type_name": "Intel_Imagery"}, {"type_name": "mil.af.rl.jbi.Intel_Imagery"}, {}])
def test_a_value_that_is_not_the_invariant_one_is_told_with_that(
    published: Any, federation: Any, eventually: Callable[..., Any], terms: dict[str, Any]
) -> None:
    # Given the publisher 418th, and a subscription of another one, whose type is named in short, in full or not at all
    subscriber = federation.subscriber()
    predicate = "/metadata/RequiredMetadata[language = 'EN']/publisher = '419th' and //lat > 3"
    uid = subscriber.register_subscriber(predicate=predicate, **terms)
    # Expect to be told which condition it is, and what the registration has
    eventually(lambda: subscriber.matching(uid).impossible)
    (why,) = subscriber.matching(uid).impossible
    assert why.startswith("/metadata/RequiredMetadata[language = 'EN']/publisher = '419th' can't match: ")
    assert "publisher is invariant, and '418th' in what is published; did you mean '418th'?" in why


def test_a_subscription_made_before_its_type_is_published_is_told_of_the_invariant_value(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a schema and the short name of its type, which nobody publishes: the template can't have the invariants
    federation.pad("alpha", "rome")
    subscriber = federation.subscriber()
    predicate = "/metadata/RequiredMetadata/publisher = '419th'"
    uid = subscriber.register_subscriber(type_name="Intel_Imagery", schema=figures.schema, predicate=predicate)
    # When it is published, expect the reason
    figures.register(federation.light())
    eventually(lambda: any("'418th' in what is published" in line for line in subscriber.matching(uid).impossible))


def test_nothing_is_said_as_long_as_one_registration_has_the_value(
    published: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two registrations with other invariants
    delegate = published.connect_to_delegate("alpha", "rome")
    other = figures.metadata(publisher="419th")
    second = published.register_publisher(delegate, figures.schema, other)
    subscriber = federation.subscriber()
    good = subscriber.register_subscriber(predicate="/metadata/RequiredMetadata/publisher = '419th'")
    bad = subscriber.register_subscriber(predicate="/metadata/RequiredMetadata/publisher = '420th'")
    eventually(lambda: any("'418th', '419th' in what" in line for line in subscriber.matching(bad).impossible))
    assert subscriber.matching(good).impossible == ()
    # When one of them gives way to one that has the value, expect nothing to be said of it
    published.unregister_publisher(second)
    eventually(lambda: subscriber.matching(bad).registrations == 1)
    third = figures.metadata(publisher="420th")
    published.register_publisher(delegate, figures.schema, third)
    eventually(lambda: subscriber.matching(bad).registrations == 2)
    assert subscriber.matching(bad).impossible == ()


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
    archive, policy = ArchiveSection(folder=str(tmp_path / "archive"), workers=0), PolicySection(file=str(rules))
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
