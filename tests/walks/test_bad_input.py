"""Bad input: one clear error of the right class, with facts; nothing is delivered, no state is left."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import JbiError, PublisherAdapter, PublisherAdapterLight, SubscriberAdapter, bbox
from jbi_pubsub.core.arguments import rules_of
from jbi_pubsub.core.errors import (
    AddressError,
    ArgumentError,
    ConfigurationError,
    LookupNotFoundError,
    MetadataError,
    OversizeError,
    PredicateError,
    SchemaError,
)
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SubscriptionsProxy

IMAGERY = "mil.af.rl.jbi.Intel_Imagery"

CALLS = [
    call
    for adapter in (PublisherAdapter, PublisherAdapterLight, SubscriberAdapter)
    for name, call in vars(adapter).items()
    if inspect.isfunction(call)
    and (name == "__init__" or name[0] != "_")
    and len(inspect.signature(call).parameters) > 1
] + [bbox]
"""What applications call with arguments."""


@pytest.fixture
def unharmed(walk: Any, eventually: Callable[..., Any]) -> Iterator[Any]:
    """A walk with a good subscription; afterwards nothing but that one is left, and it works."""
    uid = walk.subscribe()
    lookup = walk.federation.lookups[0]

    def listed() -> bool:
        """Of whom there is: two watches of the subscriber, one of each other process; items of the servers."""
        held = [lookup.status()[name] for name in ("items", "event_registrations")]
        return held == ([2, 4] if walk.kind == "delegate" else [1, 3])

    eventually(listed)
    registrations = len(walk.publishing.status()["registrations"])
    yield walk
    assert list(walk.subscriber.status()["subscriptions"]) == [uid]
    assert [each["uid"] for each in walk.publishing.status()["subscriptions"]] == [uid]
    assert len(walk.publishing.status()["registrations"]) == registrations
    eventually(listed, what=lookup.status)
    walk.publish(payload=b"unharmed")
    assert walk.payloads(uid) == [b"unharmed"]


# -- subscribers ----------------------------------------------------------------------------------------------------


@pytest.mark.row("J-56")
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
    with pytest.raises(ConfigurationError, match=r"recipients .*'good@example\.org'.* a list or tuple of text"):
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
    where = rf"of the group {world} .* 0\.3 s; tried: 127.0.0.1:9 \(.*refused"
    with pytest.raises(LookupNotFoundError, match=where):
        subscriber.register_subscriber(type_name=IMAGERY, timeout=0.3)
    assert subscriber.status()["subscriptions"] == {}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("template", 42), ("predicate", 5), ("payload_filter", b"//a"), ("listener", object()), ("listener", 3),
        ("recipients", [1]), ("recipients", "a@example.org"), ("direct", "yes"), ("schema", 7), ("marks", {}),
        ("type_name", b"x"), ("version", 2), ("namespaces", ["a"]), ("namespaces", {"a": 1}), ("language", 1),
        ("policy", "drop"), ("bound", "5"), ("bound", True), ("suppress_empty", None), ("locations", {"a": "b"}),
        ("attributes", {"a": 1}), ("timeout", "5"), ("timeout", float("nan")), ("timeout", float("inf")),
        ("predicate", "//a[. = '\ud800']"), ("attributes", {"a": "\ud800"}), ("view", "everything"), ("view", 5),
        ("unlike", 5), ("local", "yes"), ("well_formed", 1), ("validate", None),
    ],
)  # fmt: skip
def test_an_argument_of_the_wrong_type_is_refused_where_the_call_is_made(
    unharmed: Any, argument: str, value: object
) -> None:
    # When a subscriber gives an argument of another type than the call takes
    with pytest.raises(ArgumentError) as caught:
        unharmed.subscribe(matched=0, **{argument: value})
    # Expect an error that names the call, the argument, what came and what is taken; of a builtin family as well
    assert isinstance(caught.value, TypeError)
    assert caught.value.facts == {"call": "SubscriberAdapter.register_subscriber", "argument": argument}
    assert f"{argument} is {value!r}, of type {type(value).__name__}. It takes " in str(caught.value)


def test_none_means_none(walk: Any) -> None:
    # Given a subscription that says None to everything that is an option
    options = dict.fromkeys(
        ("template", "predicate", "payload_filter", "listener", "recipients", "direct", "schema", "marks", "type_name",
         "version", "namespaces", "language", "policy", "bound", "locations", "attributes", "timeout")
    )  # fmt: skip
    walk.register()
    uid = walk.subscriber.register_subscriber(**options)
    # Expect it to stand and to get everything, as without them
    assert walk.subscriber.wait_matched(uid) == 1
    walk.publish(payload=b"all")
    assert walk.subscriber.receive(uid).payload == b"all"


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_the_arguments_of_every_public_call_are_checked(call: Any) -> None:
    # Expect each call of applications that takes arguments to check them, by annotations that are understood
    assert hasattr(call, "__wrapped__")
    assert all(rule.text for rule in rules_of(call.__wrapped__).values())


class Deaf:
    def lost(self, subscription: str, notice: object) -> None: ...


class Mute:
    def arrived(self, subscription: str, obj: object) -> None: ...


class Forgetful(Mute, Deaf):
    def arrived(self, obj: object) -> None: ...  # type: ignore[override]  # the mistake


@pytest.mark.parametrize(
    "listener",
    [Deaf(), Mute(), Forgetful(), Mute, threading.Event().set, len, re.sub],
    ids=["no arrived", "no lost", "arrived of one", "class", "of none", "of one", "of three"],
)
def test_a_listener_in_which_every_object_would_be_lost_is_refused(unharmed: Any, listener: Any) -> None:
    with pytest.raises(ArgumentError, match=r"arrived\(subscription, obj\).* a function that takes"):
        unharmed.subscribe(matched=0, listener=listener)


def test_a_function_is_a_listener(walk: Any, eventually: Callable[..., Any]) -> None:
    # Given a function as listener
    told: list[tuple[str, bytes]] = []
    uid = walk.subscribe(listener=lambda subscription, obj: told.append((subscription, obj.payload)))
    # When something is published; Expect it to be called with it
    walk.publish(payload=b"heard")
    assert eventually(lambda: told) == [(uid, b"heard")]
    assert walk.subscriber.losses(uid) == {}


def test_one_refused_subscription_refuses_no_other_of_its_batch(walk: Any) -> None:
    # Given three subscriptions in one call to the delegate, one of which can't be read
    walk.register()
    good = walk.subscriber.register_subscriber(type_name=IMAGERY)
    assert walk.subscriber.wait_matched(good) == 1
    [address] = {session["address"] for session in walk.subscriber.status()["sessions"]}
    proxy = SubscriptionsProxy(ServiceRef("", SUBSCRIPTIONS, (address,)), Security(), timeout=60.0)
    session = proxy.open("test", 5.0)
    requests = [SubscriptionRequest(f"subscription-{n}", predicate=p) for n, p in enumerate(("a", None, "b"))]  # type: ignore[arg-type]  # the mistake
    # When it is made; Expect the two others to stand
    answers = proxy.subscribe(session.uid, requests, 5.0, [0.0] * 3)
    proxy.close_session(session.uid)
    proxy.close()
    assert [answer.granted is not None for answer in answers] == [True, False, True]
    assert "predicate" in answers[1].error.message


def test_a_batch_that_is_refused_as_a_whole_is_asked_for_in_parts(walk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a delegate that refuses each call with a certain subscription in it
    walk.register()
    asked, subscribe = [], SubscriptionsProxy.subscribe

    def refusing(proxy: Any, session: str, requests: Any, duration: float, *more: Any) -> Any:
        asked.append(len(requests))
        if any(request.predicate == "bad" for request in requests):
            raise OversizeError("too much")
        return subscribe(proxy, session, requests, duration, *more)

    monkeypatch.setattr(SubscriptionsProxy, "subscribe", refusing)
    # When it is one of seven; Expect the six others to stand
    uids = [walk.subscriber.register_subscriber(predicate="bad" if n == 3 else "*") for n in range(7)]
    assert [walk.subscriber.wait_matched(uid) for n, uid in enumerate(uids) if n != 3] == [1] * 6
    assert walk.subscriber.wait_matched(uids[3], timeout=0.0) == 0


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


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("schema", 7), ("invariants", None), ("marks", 7), ("type_name", 7), ("version", 2), ("validate", "no"),
        ("locations", ["a"]), ("well_formed", "no"), ("reliable", 1), ("expiration", "5"), ("local", "here"),
        ("owner", 5),
    ],
)  # fmt: skip
def test_a_registration_with_an_argument_of_the_wrong_type_is_refused(
    unharmed: Any, argument: str, value: object
) -> None:
    given = {"schema": unharmed.figures.schema, "invariants": unharmed.figures.figure_1, argument: value}
    first = () if unharmed.kind == "peer" else (unharmed.publishing.at,)
    with pytest.raises(ArgumentError, match=f"register_publisher: {argument} is "):
        unharmed.publishing.adapter.register_publisher(*first, **given)


@pytest.mark.parametrize(
    ("argument", "value"), [("registration", 5), ("registration", []), ("metadata", 5),
                            ("payload", 5), ("payload", ["a"]), ("payload", "\ud800")]
)  # fmt: skip
def test_an_object_of_the_wrong_type_is_refused(unharmed: Any, argument: str, value: object) -> None:
    given = {"registration": unharmed.registration, "metadata": unharmed.figures.figure_1, argument: value}
    with pytest.raises(ArgumentError, match=f"publish: {argument} is "):
        unharmed.publishing.adapter.publish(**given)


@pytest.mark.parametrize("adapter", [PublisherAdapter, PublisherAdapterLight, SubscriberAdapter])
def test_an_adapter_with_something_else_than_a_configuration_is_refused(adapter: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{adapter.__name__}: config is 'jbi.toml', of type str. It takes Config"):
        adapter("jbi.toml")


# -- texts and paths ------------------------------------------------------------------------------------------------


def test_a_text_that_begins_as_xml_is_a_document_and_any_other_a_path(walk: Any, tmp_path: Path) -> None:
    # Given schema, invariants, template and metadata, each as a text and as the path of a file in a text
    figures = walk.figures
    files = {"schema": figures.schema.read_bytes(), "invariants": figures.figure_1, "template": figures.figure_3}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    as_path = {name: str(tmp_path / name) for name in files}
    as_text = {name: "\ufeff\n " * (name != "schema") + data.decode() for name, data in files.items()}
    # When they are used in all places
    for given, payload in ((as_path, b"path"), (as_text, b"text")):
        registration = walk.register(given["invariants"], given["schema"])
        uid = walk.subscriber.register_subscriber(given["template"], schema=given["schema"])
        assert walk.subscriber.wait_matched(uid) == 1
        walk.publishing.publish(registration, given["invariants"], payload)
        # Expect the same of both
        obj = walk.subscriber.receive(uid)
        assert (obj.payload, b"<publisher>418th</publisher>" in obj.metadata) == (payload, True)


def test_a_text_that_is_neither_xml_nor_a_file_is_told_both(unharmed: Any) -> None:
    # When a text is meant as XML but is not, or as a path that is wrong
    for act in (
        lambda: unharmed.subscribe("metadata.xml"),
        lambda: unharmed.register("metadata.xml"),
        lambda: unharmed.publish("metadata.xml"),
        lambda: unharmed.publish("a\0b"),
    ):
        # Expect the error to say what a text is taken for
        with pytest.raises(MetadataError, match="A text is a path unless it begins with <"):
            act()


def test_an_empty_text_is_called_that(unharmed: Any) -> None:
    # Given an empty text, which as a path is the current folder; Expect no word of a directory
    for act, what in (
        (lambda: unharmed.subscriber.register_subscriber("", schema=unharmed.figures.schema), "template"),
        (lambda: unharmed.publishing.register("", unharmed.figures.schema), "invariant metadata"),
        (lambda: unharmed.publish(""), "metadata"),
    ):
        with pytest.raises(MetadataError, match=f"^{what} is an empty text"):
            act()


def test_invariants_that_are_no_xml_are_named_by_their_file(unharmed: Any, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    with pytest.raises(MetadataError, match=r"^invariant metadata /.*/image\.png is not well-formed XML: ") as caught:
        unharmed.register(tmp_path / "image.png")
    assert "<string>" not in str(caught.value)


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
