"""A gateway takes bodies as they are: what is in a coding that it does not read is refused, and never published."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core.errors import ArgumentError
from jbi_pubsub.web.operations import CodingError, objects_in

AT = "/v1/types/report/1.0/objects?wait=20&validate=false"
XML = {"Content_Type": "application/xml"}
EVENT = {"Content_Type": "text/plain", "ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [(AT, XML), ("/v1/events?wait=20", EVENT), ("/v1/capi/connections", {"Content_Type": "application/json"})],
)
@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
def test_a_body_with_a_content_coding_is_refused(
    reached: Callable[..., Any], path: str, kind: dict[str, str], coding: str
) -> None:
    it = reached(archive=False)
    said = it.ask("POST", path, gzip.compress(b"<r/>"), Content_Encoding=coding, **kind)
    assert (said.status, said.json()["code"]) == (415, "argument"), said.body
    assert coding in said.json()["detail"]
    assert said.headers["Accept-Encoding"] == "identity"  # RFC 9110, section 15.5.16


def test_a_body_as_it_is_may_say_so(reached: Callable[..., Any]) -> None:
    said = reached(archive=False).ask("POST", AT, b"<r/>", Content_Encoding="Identity", **XML)
    assert said.status == 201, said.body


@pytest.mark.parametrize(("coding", "status"), [(b"gzip, chunked", 501), (b"chunked", 201)])
def test_a_transfer_coding_other_than_chunked_is_not_implemented(
    reached: Callable[..., Any], coding: bytes, status: int
) -> None:
    # Given a body in chunks; When it is sent in a further coding; Expect 501
    it = reached(archive=False)
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/xml\r\nTransfer-Encoding: %s\r\n\r\n"
    with socket.create_connection(("127.0.0.1", it.gateway.port), timeout=60) as connection:
        connection.sendall(head % (AT.encode(), coding) + b"4\r\n<r/>\r\n0\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 %d " % status)


def test_a_part_is_taken_as_it_is() -> None:
    # Given parts that say how they are encoded; Expect those alone that are not
    kind = "multipart/form-data; boundary=b"
    head = b'Content-Disposition: form-data; name="payload"\r\nContent-Transfer-Encoding: %s\r\n'
    part = b"--b\r\n" + head + b"\r\nabcd\r\n--b--\r\n"
    for said in (b"binary", b"8BIT", b"7bit "):
        assert objects_in(part % said, kind) == [(b"", b"abcd")]
    for said in (b"base64", b"quoted-printable"):
        with pytest.raises(CodingError) as caught:
            objects_in(part % said, kind)
        assert isinstance(caught.value.error, ArgumentError)
        assert said.decode() in caught.value.error.message


def test_a_stream_for_a_client_of_http_1_0_ends_with_its_connection(reached: Callable[..., Any]) -> None:
    # Given a client that knows no chunks (RFC 9112, section 6.1)
    it = reached(archive=False)
    address = "127.0.0.1", it.gateway.port
    with socket.create_connection(address, timeout=60) as connection, connection.makefile("rb") as stream:
        connection.sendall(b"GET /v1/types/report/1.0/subscribe HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head = b"".join(iter(stream.readline, b"\r\n")).lower()
        assert (b"transfer-encoding" in head, b"connection: close" in head) == (False, True)
        # When an object comes, and the subscription ends; Expect the bytes of its event, and the end
        opened = b"".join(iter(stream.readline, b"\n"))
        assert opened.startswith(b"event: open\n")
        assert it.ask("POST", AT, b"<r/>", **XML).status == 201
        event = b"".join(iter(stream.readline, b"\n"))
        assert event.startswith(b"event: object\n")
        key = opened.partition(b'"subscription":"')[2].partition(b'"')[0].decode()
        assert it.ask("DELETE", f"/v1/subscriptions/{key}").status == 204
        assert stream.read() == b""


def test_an_answer_with_its_length_is_the_same_for_a_client_of_http_1_0(reached: Callable[..., Any]) -> None:
    address = "127.0.0.1", reached(archive=False).gateway.port
    with socket.create_connection(address, timeout=60) as connection, connection.makefile("rb") as answer:
        connection.sendall(b"GET /v1/types HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.read().partition(b"\r\n\r\n")
    assert (b"content-length: %d" % len(body) in head, body) == (True, b'{"types":[]}')
