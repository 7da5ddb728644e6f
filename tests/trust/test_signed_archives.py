"""Signed objects of the past: who asks an archive verifies them, and is told of those that do not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.core.errors import WireError
from jbi_pubsub.subscriber import Query
from tests.trust.conftest import Party

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def published(party: Party, figures: Any, name: str = "publisher.example", *, sign: bool = True) -> str:
    """Id of an object that is archived, of a publisher that has left."""
    with party.federation.light(party.config(name, sign=sign)) as adapter:
        at = adapter.connect_to_delegate("alpha", "rome")
        uid = adapter.register_publisher(at, figures.schema, figures.figure_1, persist=True)
        object_id: str = adapter.publish(uid, figures.figure_1, b"kept")
        adapter.flush()
    return object_id


def signers(query: Query) -> dict[str, str]:
    """Who has signed the results, by their ids."""
    with query:
        return {obj.object_id: obj.platform.verified for obj in query}


def test_a_query_says_how_many_objects_it_has_dropped_for_their_signatures(
    party: Party, figures: Any, tmp_path: Path
) -> None:
    # Given an archive with an object that is signed, and one that is not
    party.pad(tmp_path / "kept")
    signed = published(party, figures)
    plain = published(party, figures, "plain.example", sign=False)
    subscriber = party.subscriber()
    # When somebody asks who takes signed objects alone
    query = subscriber.open_query(TYPE)
    # Expect the signed one, and to be told of the other one
    assert signers(query) == {signed: "publisher.example"}
    assert query.state == "finished"
    assert len(query.partial) == 1
    assert "objects without a valid signature: 1" in query.partial[0]
    with pytest.raises(WireError, match="without a valid signature"):
        subscriber.get(plain)
    assert subscriber.get(signed).platform.verified == "publisher.example"
    # Expect whoever takes all to be told of nothing
    query = party.subscriber("warn").open_query(TYPE)
    assert signers(query) == {signed: "publisher.example", plain: ""}
    assert query.partial == ()


def test_what_is_archived_is_verified_after_a_restart_of_its_delegate(
    party: Party, figures: Any, tmp_path: Path
) -> None:
    # Given a signed object in an archive, whose publisher has left, and whose delegate is started again
    pad = party.pad(tmp_path / "kept")
    object_id = published(party, figures)
    pad.stop()
    party.pad(tmp_path / "kept")
    subscriber = party.subscriber()
    # Expect it to be verified by queries
    query = subscriber.open_query(TYPE)
    assert (signers(query), query.partial) == ({object_id: "publisher.example"}, ())
    # and by a subscription to the past
    uid = subscriber.register_subscriber(type_name=TYPE, start="all")
    obj = subscriber.receive(uid, 30.0)
    assert obj is not None
    assert (obj.object_id, obj.platform.verified) == (object_id, "publisher.example")


def test_an_export_carries_what_objects_are_verified_by(party: Party, figures: Any, tmp_path: Path) -> None:
    # Given a file of an archive at rest with a signed object
    pad = party.pad(tmp_path / "kept")
    object_id = published(party, figures)
    pad.stop()
    file = tmp_path / "all.jsonl"
    assert run(["archive", "export", str(file), "--folder", str(tmp_path / "kept")]) == 0
    # When another archive imports it, and is opened by a delegate
    assert run(["archive", "import", str(file), "--folder", str(tmp_path / "other")]) == 0
    party.pad(tmp_path / "other")
    # Expect it to be verified there
    assert signers(party.subscriber().open_query(TYPE)) == {object_id: "publisher.example"}
