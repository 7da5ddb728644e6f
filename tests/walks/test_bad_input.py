"""Bad input: one clear error of the right class, with facts; nothing is delivered, no state is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import JbiError
from jbi_pubsub.core.errors import (
    AddressError,
    ConfigurationError,
    LookupNotFoundError,
    MetadataError,
    PredicateError,
    SchemaError,
)

IMAGERY = "mil.af.rl.jbi.Intel_Imagery"


@pytest.fixture
def unharmed(walk: Any) -> Iterator[Any]:
    """A walk with a good subscription; afterwards nothing but that one is left, and it works."""
    uid = walk.subscribe()
    lookup = walk.federation.lookups[0]
    before = [lookup.status()[name] for name in ("items", "event_registrations")]
    registrations = len(walk.publishing.status()["registrations"])
    yield walk
    assert list(walk.subscriber.status()["subscriptions"]) == [uid]
    assert [each["uid"] for each in walk.publishing.status()["subscriptions"]] == [uid]
    assert len(walk.publishing.status()["registrations"]) == registrations
    assert [lookup.status()[name] for name in ("items", "event_registrations")] == before
    walk.publish(payload=b"unharmed")
    assert walk.payloads(uid) == [b"unharmed"]


# -- subscribers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["predicate", "payload_filter"])
@pytest.mark.parametrize(
    ("expression", "position"),
    [
        pytest.param("//lat[", True, id="not closed"),
        pytest.param("//lat > ", True, id="no right side"),
        pytest.param("lat >> 3", True, id="no such operator"),
        pytest.param("//p:lat", False, id="unknown prefix"),
        pytest.param("no-such-function(//lat)", False, id="unknown function"),
        pytest.param("//lat > $bound", False, id="unknown variable"),
        pytest.param("//lat\x00", False, id="control character"),
    ],
)
def test_a_malformed_expression_is_refused_at_registration(
    unharmed: Any, argument: str, expression: str, *, position: bool
) -> None:
    # Given a good subscription; When another one has a malformed predicate or filter
    with pytest.raises(PredicateError) as caught:
        unharmed.subscribe(matched=0, **{argument: expression})
    # Expect an error that names the argument and the expression, and where it can be known, the position
    facts = caught.value.facts
    assert facts["argument"] == argument
    assert facts["expression"] == expression
    if position:
        assert isinstance(facts["position"], int)
        assert 0 <= facts["position"] <= len(expression)
    assert argument.rpartition("_")[2] in str(caught.value)


def test_an_unknown_predicate_language_is_refused(unharmed: Any) -> None:
    # When a predicate is in a language that nobody has made known; Expect an error with its name
    with pytest.raises(PredicateError) as caught:
        unharmed.subscribe(predicate="//lat", language="xql")
    assert "xql" in str(caught.value)


@pytest.mark.parametrize(
    "recipient",
    ["", "somebody", "a@x.org, b@x.org", "a@x.org\r\nBcc: b@x.org", "@x.org", "a@", "A <a@x.org>", "a b@x.org"],
)
def test_what_is_not_exactly_one_address_is_refused(unharmed: Any, recipient: str) -> None:
    # When one of two recipients is none, or more than one; Expect an error that shows it
    with pytest.raises(AddressError) as caught:
        unharmed.subscribe(recipients=["good@example.org", recipient])
    assert repr(recipient).strip("'\"") in str(caught.value) or recipient in caught.value.facts.values()


def test_a_text_instead_of_a_list_of_addresses_is_refused(unharmed: Any) -> None:
    with pytest.raises(AddressError, match="a list of addresses"):
        unharmed.subscribe(recipients="good@example.org")


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        pytest.param("</RequiredMetadata>", "", r"line \d+|mismatch", id="malformed"),
        pytest.param("<publisher>", "<author>a</author><publisher>", "author", id="unknown element"),
        pytest.param("<mil.af.rl.jbi.Intel_Imagery/>", "<org.example.Other/>", "Other", id="unknown type"),
        pytest.param("<metadata ", "<data ", "data|mismatch|line", id="another root"),
    ],
)
def test_a_bad_template_is_refused(unharmed: Any, old: str, new: str, word: str) -> None:
    # When a template is malformed, of another type, or has what the schema does not know
    template = unharmed.figures.figure_3.decode()
    assert old in template
    with pytest.raises(MetadataError) as caught:
        unharmed.subscribe(template.replace(old, new))
    # Expect an error that says what
    assert re.search(word, str(caught.value))


def test_a_template_that_cannot_be_read_is_refused(unharmed: Any, tmp_path: Path) -> None:
    # When the template is a file that is not there, or a folder; Expect an error that names it
    for path in (tmp_path / "missing.xml", tmp_path):
        with pytest.raises(MetadataError) as caught:
            unharmed.subscriber.register_subscriber(path, schema=unharmed.figures.schema)
        assert str(path) in str(caught.value)


def test_a_template_whose_schema_cannot_be_found_is_refused(unharmed: Any) -> None:
    # When a template comes as bytes without its schema; Expect an error that asks for the schema
    with pytest.raises((SchemaError, MetadataError)) as caught:
        unharmed.subscriber.register_subscriber(unharmed.figures.figure_3)
    assert "schema" in str(caught.value)


@pytest.mark.parametrize("options", [{"bound": 0}, {"bound": -1}, {"policy": "drop_all"}])
def test_a_bad_queue_setting_is_refused(unharmed: Any, options: dict[str, Any]) -> None:
    # When bound or policy make no sense; Expect an error that names the setting
    with pytest.raises(ConfigurationError) as caught:
        unharmed.subscribe(matched=0, **options)
    assert next(iter(options)) in str(caught.value)


def test_a_type_that_nobody_publishes_is_no_error(walk: Any) -> None:
    # Given a publisher of imagery; When somebody subscribes to another type; Expect no match, no error
    walk.register()
    uid = walk.subscriber.register_subscriber(type_name="org.example.Unheard_of")
    imagery = walk.subscriber.register_subscriber(type_name=IMAGERY)
    assert walk.subscriber.wait_matched(imagery) == 1
    assert walk.subscriber.wait_matched(uid, timeout=0.0) == 0


def test_a_subscriber_without_a_lookup_service_is_told_where_was_looked(federation: Any, world: str) -> None:
    # Given an adapter whose only lookup service is not there
    lookup = msgspec.structs.replace(federation.config.lookup, locators=("127.0.0.1:9",))
    subscriber = federation.subscriber(msgspec.structs.replace(federation.config, lookup=lookup))
    # When it subscribes; Expect an error with the address and what came of it, and no subscription
    where = rf"of the group {world} .* 0\.3 s; asked: 127.0.0.1:9 \(.*refused"
    with pytest.raises(LookupNotFoundError, match=where):
        subscriber.register_subscriber(type_name=IMAGERY, timeout=0.3)
    assert subscriber.status()["subscriptions"] == {}


# -- publishers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        pytest.param("</RequiredMetadata>", "", "", id="malformed"),
        pytest.param(
            "<publisher>418th</publisher>", "<author>418th</author>", "author|publisher", id="unknown element"
        ),
        pytest.param("<language>EN</language>", "<language>E N</language>", "language", id="invalid value"),
        pytest.param("<mil.af.rl.jbi.Intel_Imagery/>", "<org.example.Other/>", "Other|metadata", id="unknown type"),
    ],
)
def test_a_bad_invariant_document_is_refused(unharmed: Any, old: str, new: str, path: str) -> None:
    # When a publisher registers with an invariant document that is malformed, invalid or of another type
    document = unharmed.figures.figure_1.decode()
    assert old in document
    with pytest.raises(MetadataError) as caught:
        unharmed.register(document.replace(old, new).encode())
    # Expect an error that names the path of the element
    if path:
        assert re.search(path, str(caught.value.facts["path"]))


def _without_marks(schema: str) -> str:
    return re.sub(r'<!-- (in)?variant -->| jbi:variance="\w+"', "", schema)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        pytest.param(_without_marks, "mark", id="without marks"),
        pytest.param(lambda s: s[:500], r"line \d+|well-formed|malformed", id="malformed"),
        pytest.param(lambda s: s.replace('type="xs:decimal"', 'type="xs:decimaal"'), "decimaal", id="invalid"),
        pytest.param(lambda _: "<a/>", "schema", id="no schema"),
        pytest.param(
            lambda s: s.replace(
                '<xs:element name="metadata">', '<xs:include schemaLocation="m.xsd"/><xs:element name="metadata">'
            ),
            "m.xsd",
            id="included document missing",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(unharmed: Any, spoil: Callable[[str], str], word: str) -> None:
    # Given the schema of the figures, spoilt
    spoilt = spoil(unharmed.figures.schema.read_text())
    assert spoilt != unharmed.figures.schema.read_text()
    # When a publisher registers with it; Expect an error that says why
    with pytest.raises(SchemaError) as caught:
        unharmed.register(schema=spoilt.encode(), version="9.9")
    assert re.search(word, str(caught.value))
    # and the same for a subscriber's template
    with pytest.raises(SchemaError, match=word):
        unharmed.subscribe(schema=spoilt.encode(), version="9.9")


def test_a_schema_file_that_is_not_there_is_refused(unharmed: Any, tmp_path: Any) -> None:
    # When the schema file does not exist; Expect an error with its name
    for act in (unharmed.register, unharmed.subscribe):
        with pytest.raises(SchemaError, match=r"missing\.xsd"):
            act(schema=tmp_path / "missing.xsd")


def test_every_error_can_be_caught_by_the_family_and_says_more_than_its_class(unharmed: Any) -> None:
    # Given bad input of several kinds; When it is used; Expect the family's base, a code and a message
    attempts: list[Callable[[], Any]] = [
        lambda: unharmed.subscribe(predicate="//["),
        lambda: unharmed.subscribe(recipients=["nobody"]),
        lambda: unharmed.publishing.adapter.publish("nothing", unharmed.figures.figure_1),
        lambda: unharmed.publish(b"<metadata/>"),
    ]
    codes = []
    for attempt in attempts:
        with pytest.raises(JbiError) as caught:
            attempt()
        codes.append(caught.value.code)
        assert len(str(caught.value)) > 20
    assert codes == ["predicate", "address", "unknown_uid", "metadata"]
