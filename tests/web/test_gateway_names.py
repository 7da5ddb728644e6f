"""The type in a path is the one of that very name: never another one whose name ends so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
