"""Queries that pass a bridge: what only the other platform has is found, as if it were here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform, SideSubscriber
from jbi_pubsub.bridge.transformation import Rule, Transformation
from jbi_pubsub.capi.objects import made
from jbi_pubsub.capi.provider import provide
from jbi_pubsub.cli import archives
from jbi_pubsub.core.config import ArchiveSection, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, UnknownUidError
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import BRIDGE_TYPE
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.services import HistoryProxy
from tests.bridge.conftest import ALPHA, BRAVO, Place

TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.fixture
def past(place: Callable[..., Place], tmp_path: Path, figures: Any, eventually: Any) -> Iterator[Any]:
    """Two platforms, the second one with an archive that has five objects, and bridges between them."""
    with ExitStack() as stack:
        alpha, bravo = place(ALPHA), place(BRAVO)
        archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0)
        bravo.federation.pad("kept", "paris", msgspec.structs.replace(bravo.federation.config, archive=archive))
        publisher = bravo.federation.light()
        at = publisher.connect_to_delegate("kept", "paris")
        uid = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
        ids = [publisher.publish(uid, figures.metadata(lat=str(lat)), b"<p/>") for lat in (10, 20, 30, 40, 50)]
        publisher.flush()
        publisher.close()

        class Past:
            def __init__(self) -> None:
                self.ids, self.alpha, self.bravo = ids, alpha, bravo

            def bridge(self, name: str = "b1", rules: tuple[Rule, ...] = (), policy: str = "") -> Mirror:
                config = msgspec.structs.replace(alpha.federation.config, policy=PolicySection(file=policy))
                a = JbiPlatform("alpha", config, ALPHA, name)
                b = JbiPlatform("bravo", bravo.federation.config, BRAVO, name)
                ways = tuple(
                    Direction(*ends, Transformation(("*",), (), with_), bridge=name, terms=DirectionTerms(poll=0.2))
                    for ends, with_ in (((a, b), ()), ((b, a), rules))
                )
                made = Mirror((a, b), ways)
                stack.callback(made.close)
                made.start()
                template = ServiceTemplate(types=(BRIDGE_TYPE,))
                for one in (alpha, bravo):
                    eventually(lambda one=one: one.pad.community.lookup(template))
                return made

            def asker(self) -> SideSubscriber:
                return stack.enter_context(SideSubscriber(alpha.federation.config))

        yield Past()


def ids_of(objects: Any) -> list[str]:
    return [obj.object_id for obj in objects]


@pytest.mark.row("G-24", "G-75", "G-100", "G-106")
def test_a_query_runs_on_the_other_platform_too(past: Any) -> None:
    # Given two bridges side by side to a platform with an archive
    past.bridge("b1")
    past.bridge("b2")
    asker = past.asker()
    # When somebody here asks
    found = list(asker.query("Intel_Imagery"))
    # Expect what is only there, each once, and how it came
    assert ids_of(found) == past.ids
    assert {(obj.platform.hops, obj.platform.via) for obj in found} == {(1, ("bravo",))}
    # And the conditions of queries
    assert ids_of(asker.query("Intel_Imagery", predicate="//lat > 25")) == past.ids[2:]
    assert ids_of(asker.query("Intel_Imagery", predicate="//lat > 25", limit=2)) == past.ids[2:4]
    assert ids_of(asker.query("Intel_Imagery", order="newest", limit=2)) == past.ids[:-3:-1]
    assert [obj.payload for obj in asker.query("Intel_Imagery", payload_filter="/p", limit=1)] == [
        b'<jbi:selection xmlns:jbi="urn:jbi-pubsub:selection:1"><p/></jbi:selection>'
    ]
    assert asker.get(past.ids[3]).object_id == past.ids[3]
    assert asker.count(TYPE, predicate="//lat > 25") == 6  # a copy behind another bridge counts as well
    assert list(asker.query("Nothing_Of_The_Kind")) == []


def test_what_a_direction_leaves_out_no_query_brings(past: Any) -> None:
    # Given a bridge that lets the north through, and calls the type otherwise
    past.bridge(rules=(Rule(types=(TYPE,), where="//lat > 25", name="nato.Imagery"),))
    asker = past.asker()
    # When somebody asks for all of it, by the name that it has here, expect the north
    assert ids_of(asker.query("nato.Imagery")) == past.ids[2:]
    assert ids_of(asker.query("nato.Imagery", limit=1)) == past.ids[2:3]


def test_the_newest_of_a_key_is_one_that_a_direction_lets_through(past: Any) -> None:
    # Given a bridge that lets the south through
    past.bridge(rules=(Rule(types=(TYPE,), where="//lat < 25"),))
    asker = past.asker()
    # When somebody asks for the newest object of each key, expect that of the south, whatever is newer
    assert ids_of(asker.query(TYPE, latest_by="'any'")) == past.ids[1:2]
    assert ids_of(asker.query(TYPE, latest_by="//lat", order="newest", limit=1)) == past.ids[1:2]


def test_rules_of_access_hold_for_queries_that_pass_a_bridge(past: Any, tmp_path: Path) -> None:
    # Given a bridge whose rules here let everybody query the south of one type
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'[[access]]\naction = "connect"\n[[access]]\naction = "query"\ntype = "{TYPE}"\nwhere = "//lat < 25"\n'
    )
    past.bridge(policy=str(rules))
    asker = past.asker()
    # When somebody asks, expect the south, and of another type nothing
    assert ids_of(asker.query(TYPE)) == past.ids[:2]
    # Expect limits, and the newest of a key, as if there were nothing else
    assert ids_of(asker.query(TYPE, order="newest", limit=1)) == past.ids[1:2]
    assert ids_of(asker.query(TYPE, latest_by="'any'")) == past.ids[1:2]
    assert ids_of(asker.query(TYPE, predicate="//lat = 10 or //lat > 45", order="newest", limit=1)) == past.ids[:1]
    assert asker.count(TYPE, order="newest", limit=1) == 1
    assert asker.count(TYPE, latest_by="//lat") == 2
    with pytest.raises(AccessDeniedError):
        list(asker.query("other.Type"))


def test_a_query_that_nobody_takes_and_one_that_is_cancelled_end(past: Any, eventually: Any) -> None:
    # Given a bridge
    made = past.bridge()
    asker = past.asker()
    # When a query is cancelled after its first result
    query = asker.open_query(TYPE)
    assert ids_of(query.get_next(1)) == past.ids[:1]
    query.cancel()
    # Expect nothing of it left at the bridge
    history = made.sides[0]._server._server.delegate.history
    eventually(lambda: history.status()["open"] == 0)
    eventually(lambda: not any(each.is_alive for each in history.queries.source._open))


def test_archives_behind_a_bridge_are_none_to_look_after(past: Any) -> None:
    # Given a bridge to a platform with an archive, from one without
    past.bridge()
    # When somebody looks after the archives of both, expect that of the second one alone
    with pytest.raises(UnknownUidError, match="no archive"):
        archives.found(past.alpha.federation.config)
    assert len(archives.found(past.bravo.federation.config)) == 1


def test_the_archive_of_another_platform_is_not_changed_through_a_bridge(past: Any) -> None:
    # Given a bridge
    past.bridge()
    (item,) = past.alpha.pad.community.lookup(ServiceTemplate(types=(BRIDGE_TYPE,)))
    proxy = HistoryProxy(item.proxy, past.alpha.federation.config.security(), timeout=60.0)
    # When somebody administers its archive, expect a refusal that says where to do it
    try:
        for call in (
            lambda: proxy.delete(QueryRequest(), 1.0),
            lambda: proxy.retain(is_dry=True, seconds=1.0),
            proxy.rebuild,
            lambda: proxy.take_in((), (), 1.0),
        ):
            with pytest.raises(ConfigurationError, match="another platform"):
                call()
    finally:
        proxy.close()


def test_when_the_other_platform_is_away_a_query_says_so(past: Any, eventually: Any) -> None:
    # Given a bridge whose other side has lost its lookup service
    made = past.bridge()
    asker = past.asker()
    for server in past.bravo.federation.lookups:
        server.stop()
    eventually(lambda: not made.status()["sides"]["bravo"]["connected"])
    # When somebody asks, expect an error: never an empty answer
    with pytest.raises(JbiError, match="lookup service"):
        list(asker.open_query(TYPE, timeout=10.0))


class Provider:
    """An application that answers queries with one object of its own."""

    def queryReceived(self, type: str, version: str, predicate: str) -> list[Any]:  # noqa: A002, ARG002, N802  # the API's
        return [made(TYPE, "1.0", b"mine", "<metadata><lat>45</lat></metadata>")]


@pytest.mark.row("G-101")
def test_a_query_that_passes_a_bridge_reaches_query_providers(past: Any, eventually: Any) -> None:
    # Given an application on the other platform that answers queries, beside the archive there, and a bridge
    provider = provide(Provider(), past.bravo.federation.config, "provider")
    try:
        past.bridge()
        asker = past.asker()
        # When it is asked from here, expect both
        eventually(lambda: len(list(asker.query(TYPE))) == 6)
        with asker.open_query(TYPE, predicate="//lat > 42") as query:
            assert sorted(obj.payload for obj in query) == [b"<p/>", b"mine"]
            assert query.partial == ()
        assert asker.count(TYPE) == 6
        # Expect what it does not keep not to be looked for there, and no archive of it to look after
        with pytest.raises(UnknownUidError):
            asker.get("ab" * 20)
        places = archives.found(past.bravo.federation.config)
        assert len(places) == 1
    finally:
        provider.stop()


@pytest.mark.parametrize("is_ring", [False, True])
def test_a_query_passes_one_bridge_after_the_other_and_rings_end(
    past: Any,
    place: Callable[..., Place],
    tmp_path: Path,
    figures: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    is_ring: bool,
) -> None:
    # Given a third platform, with an archive, behind the second one; in a ring also beside the first
    charlie = place(("charlie", "bonn"))
    archive = ArchiveSection(folder=str(tmp_path / "charlie"), workers=0)
    charlie.federation.pad("kept", "bonn", msgspec.structs.replace(charlie.federation.config, archive=archive))
    publisher = charlie.federation.light()
    at = publisher.connect_to_delegate("kept", "bonn")
    uid = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    ids = [publisher.publish(uid, figures.metadata(lat=str(lat)), b"<p/>") for lat in (60, 70)]
    publisher.flush()
    publisher.close()
    asked: list[tuple[str, QueryRequest]] = []

    def noted(side: JbiPlatform) -> None:
        def query(request: QueryRequest, ask: Any = side.query) -> Any:
            asked.append((side.name, request))
            return ask(request)

        monkeypatch.setattr(side, "query", query)

    past.bridge()
    with ExitStack() as stack:
        for name, other in (("bravo", past.bravo), *((("alpha", past.alpha),) if is_ring else ())):
            one = JbiPlatform(name, other.federation.config, other.delegate, f"to-{name}")
            two = JbiPlatform("charlie", charlie.federation.config, charlie.delegate, f"to-{name}")
            ways = tuple(
                Direction(*ends, Transformation(("*",), (), ()), bridge=f"to-{name}", terms=DirectionTerms(poll=0.2))
                for ends in ((one, two), (two, one))
            )
            for side in (one, two):
                noted(side)
            mirror = Mirror((one, two), ways)
            stack.callback(mirror.close)
            mirror.start()
        asker = past.asker()
        # When the first one asks, expect all of it, each object once, and the same from the end
        eventually(lambda: len(list(asker.query(TYPE))) == 7)
        asked.clear()
        with asker.open_query(TYPE) as query:
            found = list(query)
        assert sorted(obj.object_id for obj in found) == sorted([*past.ids, *ids])
        assert (query.state, query.partial) == ("finished", ())
        assert asker.get(ids[0]).platform.via in {("charlie", "bravo"), ("charlie",)}
        # Expect no platform to be asked twice on one way
        assert {name for name, _ in asked} == ({"charlie", "bravo"} if is_ring else {"charlie"})
        assert all(name not in request.passed and len(request.passed) < 3 for name, request in asked)


def test_a_query_that_has_passed_too_many_platforms_is_refused(past: Any) -> None:
    # Given a query that has come through as many platforms as it may
    one, two = past.bridge().sides
    way = Direction(one, two, Transformation(("*",), (), ()), bridge="b1", terms=DirectionTerms(poll=0.2))
    # When it is to pass one more, expect that to be refused, not to be answered with nothing
    with pytest.raises(ConfigurationError, match="has passed 16 platforms"):
        way.answers(QueryRequest(passed=tuple(f"p{n}" for n in range(16))))
