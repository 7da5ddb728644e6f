"""What the OpenAPI document allows is not refused for its form, and what it does not allow is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub import __version__
from jbi_pubsub.capi import InfoObjectDescriptor, ObjectSizeException, PropertyDescriptor
from jbi_pubsub.capi.objects import type_of
from jbi_pubsub.codegen.opening import checked_name
from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.errors import ArgumentError, JbiError
from jbi_pubsub.subscriber.moments import seconds_at, start_at
from jbi_pubsub.web.handlers import namespaces_of
from jbi_pubsub.web.listing import OPERATIONS
from jbi_pubsub.web.operations import EVENT_SCHEMA, OperationParameter, OperationTable, objects_in

DOCUMENT = OperationTable(OPERATIONS).document(__version__)
SCHEMAS = DOCUMENT["components"]["schemas"]
TYPE = "/v1/types/report/1.0"
ANY = f"{TYPE}/objects?wait=20&validate=false"
PARAMETERS = {(op.name, each.name): each for op in OPERATIONS for each in op.parameters}


def texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Texts of that pattern, of all characters."""
    found = st.from_regex(schema["pattern"], fullmatch=True, alphabet=st.characters(exclude_categories=("Cs",)))
    return found.filter(lambda text: len(text) <= schema.get("maxLength", 1_000))


def allows(schema: dict[str, Any], text: str) -> bool:
    """Whether JSON Schema allows a text; its `$` is the end, not a line's."""
    fits = re.fullmatch(schema["pattern"], text) if "pattern" in schema else True
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(text))
    return bool(fits) and least <= len(text) <= most and text in schema.get("enum", [text])


def schema_of(operation: str, name: str) -> dict[str, Any]:
    told = PARAMETERS[operation, name].schema()["schema"]
    return told["items"] if told["type"] == "array" else told


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_names_versions_and_prefixes_of_the_document_are_taken(examples: int) -> None:
    # Given what the document says of a type and a version; Expect who publishes it, or asks the Common API, to take it
    said = SCHEMAS["SequenceAsked"]["properties"]
    published = [texts(schema_of("publishObjects", each)) for each in ("type", "version")]
    asked = [texts(said[each]) for each in ("type", "version")]

    @settings(max_examples=examples, deadline=None)
    @given(*published, *asked, texts(schema_of("queryObjects", "ns")))
    def taken(name: str, version: str, asked_name: str, asked_version: str, prefix: str) -> None:
        assert checked_name(name, version).name == name
        assert type_of(asked_name, asked_version).version == asked_version
        assert namespaces_of([prefix])

    taken()


@pytest.mark.parametrize(
    "text",
    [
        "2h",
        "1d12h",
        "0.5s",
        "2024-02-29T00:00Z",
        "2025-12-31T00:00Z",
        "2026-11-01T00:00Z",
        "2026-11-01",
        "2026-11-01T00:00:01.25+01:00",
    ],
)
def test_times_of_the_document_are_taken(text: str) -> None:
    assert allows(schema_of("queryObjects", "since"), text)
    assert allows(schema_of("subscribe", "start"), text)
    assert seconds_at(text, now=2e9, what="since") > 0
    assert start_at(text, now=2e9)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-11-1", "h", "2026-13-01T00:00Z", "1994-11-31T07:51Z", "2025-02-29T00:00Z", "-1", "2h\0"],
)
def test_what_is_no_time_is_none_in_the_document(text: str) -> None:
    for operation, name in (("queryObjects", "since"), ("subscribe", "start")):
        assert not allows(schema_of(operation, name), text)
    with pytest.raises(JbiError):
        seconds_at(text, now=2e9, what="since")


@pytest.mark.parametrize(
    "parameter", [each for each in PARAMETERS.values() if each.kind == "string"], ids=lambda each: each.name
)
def test_what_the_table_enforces_is_what_the_document_says(parameter: OperationParameter) -> None:
    told = parameter.schema()["schema"]
    told = told["items"] if parameter.many else told
    for text in (
        "metadata",
        "oldest",
        "newest",
        "type",
        "",
        "*",
        "1.0",
        "01.0",
        "1.00",
        "a b",
        "a\x00",
        "1.0\n",
        "query",
    ):
        if allows(told, text):
            assert parameter.value(text) == text
    for text in ("01.0", "a\x00"):
        if parameter.pattern and parameter.name == "version":
            with pytest.raises(ArgumentError):
                parameter.value(text)


def test_forms_say_what_they_need() -> None:
    form = DOCUMENT["paths"]["/v1/types/{type}/{version}/objects"]["post"]["requestBody"]["content"]
    assert form["multipart/form-data"]["schema"]["minProperties"] == 1
    assert form["application/xml"]["schema"] == {"type": "string"}  # tools take a length for that of the element's text
    for name, field, bad, good in (
        ("SequenceAsked", "kind", "writer", "query"),
        ("SequenceAsked", "type", "", "t"),
        ("SequenceAsked", "version", "01.0", "1.0"),
        ("Descriptor", "kind", "thing", "property"),
        ("Descriptor", "value_base64", "=", "YQ=="),
        ("ConnectionAsked", "name", " ", "c"),
    ):
        told = SCHEMAS[name]["properties"][field]
        assert not allows(told, bad)
        assert allows(told, good)
    assert SCHEMAS["QueryAsked"]["properties"]["timeout"]["exclusiveMinimum"] == 0


def test_the_time_of_a_query_is_bounded_as_the_common_api_has_it() -> None:
    @checked
    def executed(timeout: float) -> float:
        return timeout

    most = SCHEMAS["QueryAsked"]["properties"]["timeout"]["maximum"]
    assert executed(float(most)) == most
    with pytest.raises(ArgumentError):
        executed(most + 1.0)


def test_names_and_descriptions_are_bounded_as_a_repository_has_them() -> None:
    told = SCHEMAS["Descriptor"]["properties"]
    prop, of_type = PropertyDescriptor(), InfoObjectDescriptor()
    assert PARAMETERS["getDescriptor", "name"].schema()["schema"]["maxLength"] == told["name"]["maxLength"]
    for most, put in (
        (told["name"]["maxLength"], prop.setName),
        (told["description"]["maxLength"], of_type.setDescription),
    ):
        put("x" * most)
        with pytest.raises(ObjectSizeException):
            put("x" * (most + 1))


@pytest.mark.parametrize("each", ["nextObjects", "nextEvent"])
def test_a_number_to_go_on_from_is_bounded(each: str) -> None:
    parameter = PARAMETERS[each, "after"]
    most = parameter.schema()["schema"]["maximum"]
    assert parameter.value(str(most)) == most
    with pytest.raises(ArgumentError):
        parameter.value(str(most + 1))


def test_the_version_of_a_list_of_descriptors_is_one() -> None:
    with pytest.raises(ArgumentError):
        PARAMETERS["listDescriptors", "version"].value("ñ")
    assert PARAMETERS["listDescriptors", "version"].value("1.0") == "1.0"


@pytest.mark.parametrize("version", ["", "01.0", "1.0\n", "*", " 1.0", "1.0 "])
def test_an_event_has_a_version_as_an_object_has(version: str) -> None:
    parameter = PARAMETERS["publishEvent", "version"]
    assert not allows(parameter.schema()["schema"], version)
    with pytest.raises(ArgumentError):
        parameter.value(version)
    assert parameter.value("1.0") == "1.0"


@pytest.mark.parametrize("type_name", ["com.example.measured", "報告", "a b", "*", " a", "a "])
def test_an_event_has_a_type_that_an_object_may_have(type_name: str) -> None:
    told = EVENT_SCHEMA["properties"]["type"]["allOf"]
    is_name = type_name not in ("*", " a", "a ")
    assert all(allows(each, type_name) for each in told) == is_name
    assert allows(schema_of("publishObjects", "type"), type_name) == is_name


@pytest.mark.parametrize("name", ["ý\U00077c3c", "a b", "報告", "r" * 400])
def test_letters_that_a_version_of_python_does_not_know_are_taken(name: str) -> None:
    for schema in (schema_of("publishObjects", "type"), SCHEMAS["SequenceAsked"]["properties"]["type"]):
        assert allows(schema, name)
    assert checked_name(name, "1.0").name == type_of(name, "1.0").name == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\x00", "a\u202eb", "a\ue000", "\ufeffa", "a\U000e0041"])
def test_names_that_deceive_are_neither_in_the_document_nor_taken(name: str) -> None:
    assert not allows(schema_of("publishObjects", "type"), name)
    if name.strip() == name != "":
        with pytest.raises(JbiError):
            checked_name(name, "1.0")


@pytest.mark.parametrize("each", ["predicate", "view", "Last-Event-ID"])
def test_no_parameter_is_longer_than_the_document_says(each: str) -> None:
    parameter = PARAMETERS["subscribe", each]
    most = parameter.schema()["schema"]["maxLength"]
    assert most <= 8_192  # as an expression may be, and small enough for the head of a request
    with pytest.raises(ArgumentError):
        parameter.value("x" * (most + 1))


@pytest.mark.parametrize(
    ("charset", "body", "expected"),
    [
        ("iso-8859-1", b"<a>\xe9</a>", "<a>é</a>".encode()),
        ('"windows-1252"', b"<?xml version='1.0'?><a>\x80</a>", "<a>€</a>".encode()),
        ("UTF-16LE", "<a>é</a>".encode("utf-16-le"), "<a>é</a>".encode()),
        ("utf-8", b"<?xml version='1.0' encoding='iso-8859-1'?><a>\xc3\xa9</a>", "<a>é</a>".encode()),
        ("ISO-8859-1", (own := b"<?xml version='1.0' encoding='iso-8859-1'?><a>\xe9</a>"), own),
        ("utf-8", (utf8 := "<a>é</a>".encode()), utf8),
        ("iso-8859-1", (marked := b"\xef\xbb\xbf" + utf8), marked),
    ],
)
def test_the_charset_of_the_media_type_is_that_of_the_metadata(charset: str, body: bytes, expected: bytes) -> None:
    # Given metadata, and the same as a part of a form
    part = b'--b\r\ncontent-disposition: form-data; name="metadata"\r\ncontent-type: text/xml; charset=%s\r\n\r\n'
    form = part % charset.encode() + body + b"\r\n--b--\r\n"
    # When they are read; Expect them in UTF-8, but as they are where they declare the same
    assert objects_in(body, f"application/xml; charset={charset}") == [(expected, b"")]
    assert objects_in(form, "multipart/form-data; boundary=b") == [(expected, b"")]


def test_a_charset_that_is_not_known_or_not_true_is_refused(reached: Callable[..., Any]) -> None:
    it = reached(archive=False)
    for charset, body, status, code in (
        ("shift_jis", b"<a/>", 415, "argument"),
        ("iso-8859-99", b"<a/>", 415, "argument"),
        ("punycode", b"<a/>", 415, "argument"),
        ("us-ascii", b"<a>\xe9</a>", 422, "metadata"),
        ("utf-16", b"<a>", 422, "metadata"),
        ("iso-8859-1", b"<a>\xe9</a>", 201, None),
    ):
        said = it.ask("POST", ANY, body, Content_Type=f"application/xml; charset={charset}")
        assert (said.status, said.json().get("code")) == (status, code), said.body


@pytest.mark.parametrize(
    "path",
    [
        "/v1/openapi.json",
        "/v1/types",
        f"{TYPE}/query",
        f"{TYPE}/count?least_payload=1",
        "/v1/objects/{}",
        "/v1/objects/{}/payload",
        "/v1/objects/none",
        f"{TYPE}/query?limit=many",
        "/v1/nothing",
    ],
)
def test_head_answers_as_get_without_a_body(reached: Callable[..., Any], path: str) -> None:
    # Given an object whose payload goes out in parts
    it = reached()
    (stored,) = it.publish((b"<report/>", bytes(300_000)), at=f"{ANY}&persist=true").json()["ids"]
    # When HEAD and GET are asked
    got, head = (it.ask(method, path.format(stored)) for method in ("GET", "HEAD"))
    # Expect the same status and headers
    assert (head.status, head.body) == (got.status, b"")
    headers = [{name: value for name, value in each.headers.items() if name != "date"} for each in (got, head)]
    assert headers[0] == headers[1]
    assert int(head.headers["Content-Length"]) == len(got.body) > 0


def test_head_takes_nothing_from_streams_and_long_polls(reached: Callable[..., Any]) -> None:
    # Given a subscription with an object
    it = reached(archive=False)
    at = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    it.publish((b"<report/>", b""), at=ANY)
    # When HEAD is asked of what would wait, expect a refusal
    for path in (f"{TYPE}/subscribe", at, at.replace("/next", "/event"), "/v1/capi/sequences/x/next?timeout=0"):
        said = it.ask("HEAD", path)
        assert (said.status, said.headers["Allow"], said.body) == (405, "GET", b"")
    # and the object to be there, and only one subscription
    assert len(it.ask("GET", at).json()["objects"]) == 1
    assert len(it.gateway.guests.own.feeds) == 1


def test_a_stream_is_told_event_by_event() -> None:
    said = DOCUMENT["paths"]["/v1/types/{type}/{version}/subscribe"]["get"]["responses"]["200"]["content"]
    assert said["text/event-stream"]["schema"]["properties"]["event"]["enum"] == ["open", "object", "lost"]


def test_a_query_has_the_time_that_an_archive_needs_to_answer() -> None:
    for operation in ("queryObjects", "countObjects"):
        assert PARAMETERS[operation, "timeout"].schema()["schema"]["minimum"] == 1


@pytest.mark.processes
def test_a_sequence_to_which_nothing_has_come_is_no_failure_of_the_server(reached: Callable[..., Any]) -> None:
    # Given a sequence of a subscriber, at a delegate where nobody publishes; When it is asked; Expect no 5xx
    it = reached(archive=False)

    def post(path: str, body: bytes = b"") -> Any:
        return it.ask("POST", f"/v1/capi{path}", body, Content_Type="application/json")

    made = post("/connections", b'{"name": "c"}').json()["connection"]
    assert post(f"/connections/{made}/connect").status == 204
    asked = b'{"kind": "subscriber", "type": "report", "version": "1.0"}'
    sequence = post(f"/connections/{made}/sequences", asked).json()["sequence"]
    assert post(f"/sequences/{sequence}/activate").status == 204
    said = it.ask("GET", f"/v1/capi/sequences/{sequence}/next?timeout=1")
    assert (said.status, said.json()["status"], said.json()["code"]) == (409, 409, "capi_timeout")
