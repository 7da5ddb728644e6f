"""Alarms and remedies: pure, without a browser."""

from __future__ import annotations

from typing import Any

import msgspec

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.status.delegate import DelegateOverview, ListedSubscription, MailStatus
from jbi_pubsub.web.alarms import alarms, full_queues
from jbi_pubsub.web.explain import readable
from jbi_pubsub.web.federation import Server, Snapshot
from jbi_pubsub.web.remedies import remedy
from jbi_pubsub.web.subscriptionpage import CUT, brief


def _delegate(name: str, error: str = "", rates: dict[str, float] | None = None, **facts: Any) -> Server:
    told = DelegateOverview(kind="delegate", address="127.0.0.1:1", uptime=1.0, name=name, location="rome", **facts)
    return Server(name, "delegate", ServiceRef("", "status", ("127.0.0.1:1",)), told, {}, error, rates or {}, True)


def _shot(*servers: Server, problem: str = "") -> Snapshot:
    return Snapshot(1, 0.0, servers, (), 0, problem)


def test_a_federation_that_is_well_has_no_alarm() -> None:
    assert alarms(_shot(_delegate("alpha"))) == []


def test_each_thing_that_is_wrong_has_a_place_and_a_remedy() -> None:
    lost = {"queue_overflow": 3, "expired": 2, "late": 0}
    mail = MailStatus(queued=4, away="connection refused", server="mx:25")
    shot = _shot(
        _delegate("alpha", lost=lost, rates={"lost.queue_overflow": 1.0}),
        _delegate("bravo", "no answer", mail=mail, faults={"ingress": 1}, draining=True),
        problem="no lookup service found",
    )  # fmt: skip
    full = ListedSubscription(uid="subscription-1", name="slow", waiting=99, bound=100)
    found = alarms(shot, [("alpha, rome", full)])
    # Expect what goes on before what is over, and each with what to do
    assert [a.is_now for a in found] == [True] * 7 + [False]
    assert all(a.do and a.where for a in found)
    texts = {a.what for a in found}
    assert texts == {
        "no lookup service found", "3 objects lost, 1.0/s now: queue_overflow", "2 objects lost: expired",
        "Does not answer: no answer", "A step failed 1 time: ingress", "4 mails waiting: connection refused",
        "Draining: it takes no publishers", "A queue is full: 99 of 100 objects",
    }  # fmt: skip
    assert found[-1].href == "/subscriptions?server=alpha&order=lost"


def test_full_queues_are_those_near_their_bound() -> None:
    class Asked:
        def snapshot(self) -> Snapshot:
            return _shot(_delegate("alpha", queued=100), _delegate("bravo"))

        def subscriptions(self, servers: list[str], **_: Any) -> Any:
            assert servers == ["alpha"]  # nothing waits at the other one
            rows = [ListedSubscription(uid=str(n), waiting=n, bound=100) for n in (90, 10)]
            return 2, [("alpha", row) for row in rows], []

    assert [(title, row.uid) for title, row in full_queues(Asked())] == [("alpha, rome", "90")]  # type: ignore[arg-type]  # as much of an observer as is asked


def test_each_cause_has_a_remedy_in_plain_text() -> None:
    for cause in Cause:
        assert remedy(cause)
        assert "`" not in remedy(cause)
    assert ".md" not in remedy("oversize")
    assert remedy("<img src=x>") == ""


def test_a_template_is_told_in_words() -> None:
    assert readable("jbi.InformationType(name=mil.Report, version=1.0)") == "type mil.Report 1.0"
    assert readable("mil.Report#RequiredMetadataEntry(who=418th, area=x=y)") == "who = 418th and area = x=y"
    assert readable("mil.Report#RequiredMetadataEntry()") == "any RequiredMetadataEntry"
    assert readable("nonsense") == "any nonsense"


def test_a_long_predicate_is_cut_between_words() -> None:
    long = " and ".join(f"(/a/b{n} > {n})" for n in range(40))
    cut = brief(long)
    assert len(cut) <= CUT
    assert long.startswith(cut[:-1] + " ")
    assert brief("x" * 500) == "x" * (CUT - 1) + "…"
    assert brief("//a > 1") == "//a > 1"


def test_alarms_are_plain_data_for_programs() -> None:
    (alarm,) = alarms(_shot(problem="none"))
    assert msgspec.to_builtins(alarm)["what"] == "none"
