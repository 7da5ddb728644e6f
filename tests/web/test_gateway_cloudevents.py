"""CloudEvents at the gateway, made and read by the SDK of the CloudEvents project (test dependency), in both modes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core.errors import ArgumentError, JbiError
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.web.cloudevents import event_in, event_reply, structured

http = pytest.importorskip("cloudevents.core.bindings.http", reason="the SDK of CloudEvents is not here (extra test)")
event_module = pytest.importorskip("cloudevents.core.v1.event")

ATTRIBUTES = {
    "specversion": "1.0", "id": "A-1", "source": "/sensors/7", "type": "com.example.measured", "partition": "b 2",
    "dataschema": "urn:schema:1", "datacontenttype": "application/json", "subject": 'héllo "%" 😀',
}  # fmt: skip
KIND = "/v1/types/com.example.measured/1.0"


def kept(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.processes
def test_events_of_the_sdk_go_in_and_come_out_again(reached: Callable[..., Any], mode: str) -> None:
    # Given a subscription by an attribute, and an event that the SDK has written
    it = reached()
    stream = it.stream(f"{KIND}/subscribe?events=true")
    asks = f"{KIND}/subscriptions?predicate=/cloudevent/source=%27/sensors/7%27"
    at = it.ask("POST", asks).json()["next"].replace("/next", "/event")
    sent = event_module.CloudEvent(attributes=dict(ATTRIBUTES), data={"n": 1})
    message = (http.to_binary_event if mode == "binary" else http.to_structured_event)(sent)
    # When it is published
    headers = {name.replace("-", "_"): value for name, value in message.headers.items()}
    said = it.ask("POST", "/v1/events?wait=20&persist=true", message.body, **headers)
    assert said.status == 201, said.body
    # Expect the SDK to read the same event from a long poll, a stream and the archive
    (number,) = said.json()["ids"]
    polled = it.ask("GET", f"{at}?mode={mode}&timeout=20")
    assert (polled.status, polled.headers["JBI-Last"]) == (200, "1")
    stored = it.ask("GET", f"/v1/objects/{number}/event?mode={mode}")
    streamed = json.dumps(stream.next()[1]).encode()
    stream.close()
    answers = [(kept(dict(each.headers)), each.body) for each in (polled, stored)]
    answers.append(({"content-type": "application/cloudevents+json"}, streamed))
    for found_headers, body in answers:
        found = http.from_http_event(http.HTTPMessage(headers=found_headers, body=body))
        assert {name: found.get_attributes()[name] for name in ATTRIBUTES} == ATTRIBUTES
        assert found.get_data() == {"n": 1}
    assert it.ask("GET", f"{at}?timeout=0").status == 204


@pytest.mark.processes
def test_an_object_that_was_no_event_is_one_for_the_sdk(reached: Callable[..., Any]) -> None:
    it = reached()
    at = "/v1/types/report/1.0/objects?wait=20&validate=false&persist=true"
    first, second = it.publish((b"<report/>", b""), (b"<report/>", b"\x00\xff"), at=at).json()["ids"]
    for number, kind, data in (
        (first, "application/xml", b"<report/>"),
        (second, "application/octet-stream", b"\x00\xff"),
    ):
        for mode in ("binary", "structured"):
            answer = it.ask("GET", f"/v1/objects/{number}/event?mode={mode}")
            found = http.from_http_event(http.HTTPMessage(headers=kept(dict(answer.headers)), body=answer.body))
            said, had = found.get_attributes(), found.get_data()
            assert (said["id"], said["type"], said["datacontenttype"]) == (number, "report", kind)
            assert (had.encode() if isinstance(had, str) else had) == data


HEAD = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
JSON = {"content-type": "application/cloudevents+json; charset=utf-8"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({**HEAD, "ce-specversion": "0.3"}, b""),
        ({**HEAD, "ce-id": ""}, b""),
        ({**HEAD, "ce-id": "%C0%A0"}, b""),
        ({**HEAD, "ce-subject": "a%0Ab"}, b""),
        ({**HEAD, "ce-not-one": "1"}, b""),
        ({**HEAD, "ce-time": "yesterday"}, b""),
        ({**HEAD, "ce-datacontenttype": "text/plain"}, b""),
        ({**HEAD, **{f"ce-a{n}": "1" for n in range(60)}}, b""),
        ({"content-type": "application/cloudevents-batch+json"}, b"[]"),
        ({"content-type": "application/cloudevents+avro"}, b""),
        (JSON, b"["),
        (JSON, b"\xff"),
        (JSON, b"[" * 100_000),
        (JSON, b'{"a":' * 100_000),
        (JSON, json.dumps({**EVENT, "extension": {"a": 1}}).encode()),
        (JSON, json.dumps({**EVENT, "extension": 2**31}).encode()),
        (JSON, json.dumps({**EVENT, "extension": 1.5}).encode()),
        (JSON, json.dumps({**EVENT, "id": 1}).encode()),
        (JSON, json.dumps({**EVENT, "source": True}).encode()),
        (JSON, json.dumps({**EVENT, "type": "*"}).encode()),
        (JSON, json.dumps({**EVENT, "data": 1, "data_base64": "AA=="}).encode()),
        (JSON, json.dumps({**EVENT, "data_base64": "!"}).encode()),
        (JSON, json.dumps({**EVENT, "data_base64": 3}).encode()),
        (JSON, json.dumps({**EVENT, "datacontenttype": "text/plain", "data": {}}).encode()),
        (JSON, b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"\xff"}'),
    ],
)
@pytest.mark.processes
def test_what_is_no_event_is_refused_with_an_error_of_ours(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(JbiError) as told:
        event_in(body, headers)
    assert told.value.hint


@pytest.mark.processes
def test_headers_are_decoded_once_and_quoted_ones_too() -> None:
    _, metadata, data = event_in(b"x", {**HEAD, "ce-subject": '"a \\"b\\" c"', "ce-other": "a%2520b"})
    assert b'<subject>a "b" c</subject><other>a%20b</other>' in metadata
    assert data == b"x"
    with pytest.raises(ArgumentError, match="batch"):
        event_in(b"[]", {"content-type": "application/cloudevents-batch+json"})


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize(
    ("charset", "data"), [("iso-8859-1", b"h\xe9"), ("utf-16le", b"h\0\xe9\0"), ("UTF-8", b"h\xc3\xa9")]
)
@pytest.mark.processes
def test_text_is_in_the_charset_that_its_media_type_names(mode: str, charset: str, data: bytes) -> None:
    # Given an event with text, in either mode
    kind = f"text/plain; charset={charset}"
    if mode == "binary":
        given = event_in(data, {**HEAD, "content-type": kind})
    else:
        given = event_in(json.dumps({**EVENT, "datacontenttype": kind, "data": "hé"}).encode(), JSON)
    # Expect its data to be in that charset, and to be text again in structured mode
    _, metadata, payload = given
    assert payload == data
    platform = Platform(1.0, "registration-1", 1, len(metadata), len(payload))
    obj = InfoObject("1", TypeName("t"), metadata, payload, platform)
    assert json.loads(structured(obj))["data"] == "hé"
    assert event_reply(obj, "binary").body == data


@pytest.mark.processes
def test_text_that_its_charset_does_not_have_is_refused() -> None:
    def asked(charset: str) -> bytes:
        return json.dumps({**EVENT, "datacontenttype": f"text/plain; charset={charset}", "data": "日"}).encode()

    with pytest.raises(ArgumentError, match="iso-8859-1"):
        event_in(asked("iso-8859-1"), JSON)
    with pytest.raises(ArgumentError, match="charset rot13 is not supported"):
        event_in(asked("rot13"), JSON)


def test_integers_may_be_written_with_a_point() -> None:
    # JSON Schema, and JavaScript, know no difference between 1 and 1.0
    _, metadata, _ = event_in(json.dumps(EVENT)[:-1].encode() + b', "a": 1.0, "b": -2e3, "c": -0.0}', JSON)
    assert b"<a>1</a><b>-2000</b><c>0</c>" in metadata


def test_an_attribute_that_is_null_is_not_there() -> None:
    name, metadata, data = event_in(json.dumps({**EVENT, "time": None, "data_base64": None, "data": 1}).encode(), JSON)
    assert (name, data) == ("t", b"1")
    assert b"time" not in metadata
