"""Names of types: that in a path is of the type of that very name, never of another one that ends so; those that are
published are told as soon as a lookup service has answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jbi_pubsub.core.node_sections import GatewaySection
from jbi_pubsub.web.gateway import Gateway
from tests.conftest import test_config

from .conftest import Reached

KEPT = "/v1/types/{}/1.0/objects?wait=20&validate=false&persist=true"


def test_a_path_names_one_type_and_no_other_that_ends_so(reached: Callable[..., Any]) -> None:
    # Given a type whose name ends as that of a path
    it = reached()
    assert it.publish((b"<n>0</n>", b""), at=KEPT.format("a.Note")).status == 201
    # When the path is subscribed to, asked and counted; Expect nothing, and in the archive no such type
    stream, polled = it.stream("/v1/types/Note/1.0/subscribe"), it.ask("POST", "/v1/types/Note/1.0/subscriptions")
    for what in ("query", "count", "subscribe"):
        said = it.ask("GET", f"/v1/types/Note/1.0/{what}", **({"Last_Event_ID": "1"} if what == "subscribe" else {}))
        assert (said.status, said.json()["code"]) == (404, "unknown_uid"), said.body
    # When its own type is published as well; Expect that alone
    for name in ("a.Note", "Note", "b.Note"):
        assert it.publish((f"<n>{name}</n>".encode(), b""), at=KEPT.format(name)).status == 201
    assert stream.next()[1]["type"] == "Note"
    stream.close()
    found = it.ask("GET", f"{polled.json()['next']}?count=10&timeout=20").json()["objects"]
    assert [each["type"] for each in found] == ["Note"]
    assert it.ask("GET", "/v1/types/Note/1.0/count").json()["count"] == 1


def test_the_first_request_for_types_has_them(reached: Callable[..., Any]) -> None:
    it = reached()
    assert it.publish((b"<n/>", b""), at=KEPT.format("Note")).status == 201
    assert it.ask("GET", "/v1/types").json() == {"types": [{"type": "Note", "version": "1.0"}]}


def test_types_that_no_lookup_service_has_told_are_not_none() -> None:
    # Given a gateway where no lookup service answers; Expect that to be told
    config = test_config()
    lookup = msgspec.structs.replace(config.lookup, locators=("127.0.0.1:1",), timeout=0.3)
    gateway = Gateway(msgspec.structs.replace(config, lookup=lookup, gateway=GatewaySection(port=0)))
    gateway.start()
    try:
        said = Reached(gateway, None, None, None).ask("GET", "/v1/types")  # type: ignore[arg-type]  # none is needed
    finally:
        gateway.stop()
    assert (said.status, said.json()["code"]) == (503, "lookup_not_found"), said.body
