"""Clients who move between domains, or come back, and get what they watch once; and what they have consumed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Domain, Services, ServiceType, StructuredEvent
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Transformation
from jbi_pubsub.core.config import ArchiveSection, Config, DomainSection, PolicySection
from jbi_pubsub.core.errors import StorageError, TypeConflictError, UnknownUidError
from jbi_pubsub.domains import catch_up
from jbi_pubsub.domains.event import CONSUMED, MONITORING
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.testing import LocalFederation


def _publish(domain: Domain, *steps: int, of: str = "heat") -> None:
    for step in steps:
        domain.publish(StructuredEvent(of, "Monitoring", "", {"step": step}), MONITORING)


class Places:
    """Two domains, each with an archive that keeps events, and a bridge between that brings what is wanted."""

    def __init__(self, tmp_path: Path, stack: ExitStack) -> None:
        rules = tmp_path / "policy.toml"
        rules.write_text('[[keep]]\ntype = "discover.*"\nrelayed = false\n')
        self.configs: list[Config] = []
        self.delegates: list[DisseminationServer] = []
        for number, name in ((1, "one"), (2, "two")):
            federation = stack.enter_context(LocalFederation())
            archive = ArchiveSection(folder=str(tmp_path / name), workers=0, sync="never")
            policy = PolicySection(file=str(rules))
            made = federation.delegate(
                name, "x", msgspec.structs.replace(federation.config, archive=archive, policy=policy)
            )
            self.delegates.append(made)
            self.configs.append(msgspec.structs.replace(federation.config, domain=DomainSection(number=number)))
        self.journal = tmp_path / "anna.journal"
        self._stack = stack

    def link(self) -> None:
        sides = [
            JbiPlatform(name, config, (name, "x"), "one-two")
            for name, config in zip(("one", "two"), self.configs, strict=True)
        ]
        terms = DirectionTerms(poll=0.2, wanted=True)
        ways = [
            Direction(*ends, Transformation(("*",), (), ()), bridge="one-two", terms=terms)
            for ends in ((sides[0], sides[1]), (sides[1], sides[0]))
        ]
        mirror = Mirror((sides[0], sides[1]), (ways[0], ways[1]))
        mirror.start()
        self._stack.callback(mirror.close)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(tmp_path, stack)


@pytest.mark.row("D-25")
def test_client_that_moves_to_another_domain_gets_what_came_meanwhile_once_and_in_order(
    places: Places, eventually: Callable[..., Any]
) -> None:
    # Given two domains with a bridge between, and a client who watches in the first one
    places.link()
    steps: list[Any] = []

    def watch(domain: Domain) -> None:
        anna = domain.client("anna", journal=places.journal)
        anna.watch("heat", "step > 0", lambda event: steps.append(event.body["step"]), durable=True)

    with Domain(places.configs[0]) as one, ExitStack() as elsewhere:
        with Domain(places.configs[0]) as here:
            watch(here)
            _publish(one, 1, 2, 0, 3)
            eventually(lambda: steps == [1, 2, 3])
        # When she is away while it goes on, moves to the other domain, and comes back
        _publish(one, *range(4, 104))
        there = elsewhere.enter_context(Domain(places.configs[1]))
        watch(there)
        _publish(one, *range(104, 124))
        eventually(lambda: len(steps) >= 123, what=lambda: steps)
        elsewhere.close()
        _publish(one, *range(124, 144))
        with Domain(places.configs[0]) as here:
            watch(here)
            _publish(one, *range(144, 150))
            eventually(lambda: len(steps) >= 149, what=lambda: steps)
    # Expect all of it once, in the order in which it was published
    assert steps == list(range(1, 150))
    # and that the other domain has kept nothing of it
    assert [each["published"] for each in places.delegates[1].status()["registrations"] if each["persist"]] == []


def test_client_gets_what_a_bridge_that_was_away_did_not_bring(
    places: Places, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a client who has moved to a domain that the bridge to the former one does not reach yet
    monkeypatch.setattr(catch_up, "SETTLE_SECONDS", 0.2)
    steps: list[Any] = []

    def watch(domain: Domain) -> None:
        anna = domain.client("anna", journal=places.journal)
        anna.watch("heat", "", lambda event: steps.append(event.body["step"]), durable=True)

    with Domain(places.configs[0]) as one:
        with Domain(places.configs[0]) as here:
            watch(here)
            _publish(one, 1)
            eventually(lambda: steps == [1])
        _publish(one, 2, 3)
        with Domain(places.configs[1]) as there:
            _publish(there, 0, of="other")  # so that the archive there has some of the type
            watch(there)
            until = time.monotonic() + 1.0
            eventually(lambda: time.monotonic() > until)  # by then archives have said that there is nothing
            # When it comes, and with it the first object, expect what is missing, too
            places.link()
            eventually(lambda: (_publish(one, 4), len(steps) >= 4)[1], what=lambda: steps)
            eventually(lambda: {2, 3} <= set(steps), what=lambda: steps)
            assert (steps.count(1), steps.count(2), steps.count(3)) == (1, 1, 1)


_KILLED = """
    import os, sys
    import msgspec
    from jbi_pubsub import Domain
    from jbi_pubsub.core.config import Config, DomainSection, LookupSection

    groups, locator, journal, dies_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    lookup = LookupSection(groups=(groups,), locators=(locator,), multicast=False)

    def seen(event):
        os.write(1, b"%d\\n" % event.body["step"])  # whole: the other thread writes as well
        if event.body["step"] == dies_at:
            os.kill(os.getpid(), 9)

    with Domain(Config(lookup=lookup, domain=DomainSection(number=1))) as domain:
        domain.client("anna", journal=journal).watch("heat", "", seen, durable=True)
        os.write(1, b"ready\\n")
        sys.stdin.read()
"""


def test_client_killed_while_it_catches_up_goes_on_where_it_was(places: Places) -> None:
    # Given a client who has watched, and events that came while it was away
    lookup = places.configs[0].lookup

    def client(dies_at: int) -> subprocess.Popen[str]:
        code = textwrap.dedent(_KILLED)
        args = (lookup.groups[0], str(lookup.locators[0]), str(places.journal), str(dies_at))
        return subprocess.Popen([sys.executable, "-c", code, *args], stdin=-1, stdout=-1, text=True)

    def lines(process: subprocess.Popen[str], until: str) -> list[str]:
        assert process.stdout is not None
        found = []
        for line in process.stdout:
            found.append(line.strip())
            if found[-1] == until:
                break
        return [each for each in found if each != "ready"]

    with Domain(places.configs[0]) as one:
        with client(0) as first:
            lines(first, "ready")
            _publish(one, 1, 2, 3)
            seen = lines(first, "3")
            first.communicate()
        _publish(one, *range(4, 50))
        # When it is killed while it catches up, and started again
        with client(20) as second:
            seen += lines(second, "20")
            assert second.wait(10) == -signal.SIGKILL
        with client(0) as third:
            seen += lines(third, "49")
            third.communicate()
    # Expect all of it in order, and twice at most the one during which it died
    assert [int(each) for each in seen] == [*range(1, 21), *range(20, 50)]


@pytest.mark.row("D-26")
def test_client_asks_for_what_it_has_consumed(places: Places, eventually: Callable[..., Any]) -> None:
    # Given two clients who watch different things
    with Domain(places.configs[0]) as domain:
        seen: list[Any] = []
        anna, bob = domain.client("anna", seen.append), domain.client("bob")
        anna.watch("heat", "step > 2", seen.append)
        bob.watch("heat", "step <= 2", seen.append)
        _publish(domain, 1, 2, 3, 4)
        bob.talk("anna", "look")
        eventually(lambda: len(seen) == 5)

        def consumed(of: Any, since: str = "1h", until: str | None = None) -> list[Any]:
            try:
                events = list(of.history(since, until, kind="consumed"))
            except UnknownUidError:  # no archive has anything of the type yet
                return []
            return [each.body.get("step", each.body.get("text")) for each in events]

        # and others who say that they have consumed what makes no sense
        hostile: list[dict[str, Any]] = [
            {},
            {"type": MONITORING, "constraint": "((", "first": 1.0, "last": 2.0},
            {"type": "none", "constraint": "", "first": 1e300, "last": 0},
        ]
        for said in hostile:
            domain.publish(StructuredEvent("bob", "Consumed", "", said), CONSUMED)
        # When each asks for what it has consumed, expect that, and of others nothing
        eventually(lambda: len(consumed(anna)) >= 3, what=lambda: consumed(anna))
        eventually(lambda: len(consumed(bob)) >= 2, what=lambda: consumed(bob))
        assert sorted(consumed(anna), key=str) == [3, 4, "look"]
        assert consumed(bob) == [1, 2]
        # and of a time in which it had none nothing
        until = time.time() + 1.1
        eventually(lambda: time.time() > until)
        assert consumed(bob, "1s") == []
        assert consumed(bob, "1h", "30m") == []
        # and what it did as before
        assert [each.body["text"] for each in bob.history("1h")] == ["look"]


def test_journal_is_of_one_client_and_one_process_at_a_time(places: Places, tmp_path: Path) -> None:
    # Given a client with a journal
    with Domain(places.configs[0]) as domain:
        domain.client("anna", journal=places.journal)
        # When somebody else opens it, expect a refusal
        with pytest.raises(StorageError, match="locked"):
            domain.client("anna", journal=places.journal)
    with Domain(places.configs[0]) as domain:
        with pytest.raises(StorageError, match="journal of anna"):
            domain.client("bob", journal=places.journal)
        # and of a file that is none, or has been damaged, as well
        (tmp_path / "text").write_text("no journal" * 1_000)
        with pytest.raises(StorageError, match="not a database"):
            domain.client("anna", journal=tmp_path / "text")
        with closing(sqlite3.connect(places.journal, isolation_level=None)) as base:
            base.execute("INSERT INTO watch VALUES (?, 'yesterday', NULL)", (f"{MONITORING} $domain == 'heat'",))
        base.close()
        anna = domain.client("anna", journal=places.journal)
        with pytest.raises(StorageError, match="yesterday"):
            anna.watch("heat", "", print, durable=True)


def test_watch_that_fails_forgets_nothing(places: Places, eventually: Callable[..., Any]) -> None:
    # Given a client who has watched something durably, and is away while it goes on
    steps: list[Any] = []

    def watch(domain: Domain) -> None:
        anna = domain.client("anna", journal=places.journal)
        anna.watch("heat", "", lambda event: steps.append(event.body["step"]), durable=True)

    with Domain(places.configs[0]) as one:
        with Domain(places.configs[0]) as here:
            watch(here)
            _publish(one, 1)
            eventually(lambda: steps == [1])
        _publish(one, 2, 3)
        # When it watches that again, and fails, as another program has other profiles
        with Services(places.configs[0]) as other, Domain(places.configs[0]) as here:
            other.offer(ServiceType.of("discover.Profile", "string client"), {"client": "eve"})
            with pytest.raises(TypeConflictError):
                watch(here)
        assert steps == [1]
        # Expect the next watch to give all that came
        with Domain(places.configs[0]) as here:
            watch(here)
            _publish(one, 4)
            eventually(lambda: len(steps) >= 4, what=lambda: steps)
    assert steps == [1, 2, 3, 4]


def test_what_is_watched_no_more_is_not_remembered(places: Places, eventually: Callable[..., Any]) -> None:
    # Given a client who has watched something, and does no more
    steps: list[Any] = []
    others: list[Any] = []
    with Domain(places.configs[0]) as domain:
        domain.client("bob").watch("heat", "", others.append)
        anna = domain.client("anna", journal=places.journal)
        watched = anna.watch("heat", "", lambda event: steps.append(event.body["step"]), durable=True)
        _publish(domain, 1)
        eventually(lambda: steps == [1])
        anna.unwatch(watched)
        _publish(domain, 2)
        eventually(lambda: len(others) == 2)
        # When it watches that again, expect what comes from then on
        anna.watch("heat", "", lambda event: steps.append(event.body["step"]), durable=True)
        _publish(domain, 3)
        eventually(lambda: len(steps) >= 2)
        assert steps == [1, 3]
    assert places.journal.stat().st_mode & 0o077 == 0
