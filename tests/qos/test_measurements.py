"""Series as information objects: whoever subscribes to jbi.Measurement gets them, by XPath those that he wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.pad.server import system_publisher
from jbi_pubsub.protocol.status.quality import SeriesStatus
from jbi_pubsub.qos import measurement

pytestmark = pytest.mark.processes

MANAGED = QosSection(mode="on", publish_measurements=True)


@pytest.fixture
def managed(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A federation whose servers publish what they measure, often."""
    monkeypatch.setattr(system_publisher, "MEASURE_SECONDS", 0.2)
    with ExitStack() as stack:
        config = msgspec.structs.replace(fixtures.test_config(), qos=MANAGED)
        federation = fixtures.Federation(config, stack)
        yield federation


SHAPED = "/Measurement[component='alpha@rome'][series='shaping.shaped']"


@given(st.text(max_size=50), st.text(max_size=50), st.floats(allow_nan=False, allow_infinity=False))
def test_each_series_is_a_document_of_the_schema(component: str, name: str, value: float) -> None:
    told = SeriesStatus(at=1_790_000_000.25, last=value, mean=value, deviation=0.0, trend=-value)
    [document] = measurement.documents(component, {name: told})
    [(_, data)] = measurement.schema().documents
    root = etree.fromstring(document)
    etree.XMLSchema(etree.fromstring(data)).assertValid(root)
    assert float(root.findtext("value")) == pytest.approx(value, rel=1e-8)
    if (component + name).isprintable():
        assert (root.findtext("component"), root.findtext("series")) == (component, name)


@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_whoever_subscribes_to_a_series_by_xpath_gets_it_from_a_delegate_or_peer(kind: str, managed: Any) -> None:
    # Given somebody who wants one number of one server, and one who wants what is above a bound
    subscriber = managed.subscriber()
    who = "alpha@rome" if kind == "delegate" else "peer"
    uid = subscriber.register_subscriber(
        type_name="jbi.Measurement", predicate=SHAPED.replace("alpha@rome", who) + "[value < 5]"
    )
    above = subscriber.register_subscriber(type_name="jbi.Measurement", predicate="/Measurement[value > 1e15]")
    # When the server measures; Expect it, again and again, as it stands, and nothing else
    managed.pad() if kind == "delegate" else managed.peer()
    first, second = (etree.fromstring(subscriber.receive(uid).metadata) for _ in range(2))
    for each in (first, second):
        assert (each.findtext("component"), each.findtext("series")) == (who, "shaping.shaped")
        assert float(each.findtext("value")) == 0.0
    assert float(second.findtext("at")) >= float(first.findtext("at"))
    assert subscriber.queue_size(above) == 0
    assert subscriber.losses(uid) == {}


@pytest.mark.row("X-10")
def test_the_bandwidth_of_one_of_three_delegates_is_had_by_xpath(managed: Any, tmp_path: Path) -> None:
    # Given three delegates, each with a link of its own
    for number, name in enumerate(("one", "two", "three"), 1):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'[[link]]\nname = "downlink"\nmembers = "action == \'subscribe\'"\nrate = "{number} Mbps"\n')
        config = msgspec.structs.replace(managed.config, policy=PolicySection(file=str(file)))
        managed.pad(name, "rome", config)
    # When somebody asks for the rate of the third one's, and for what goes over it: these measurements
    subscriber = managed.subscriber()
    of_third = "/Measurement[component='three@rome'][series='links.downlink.{}'][value > 0]"
    limit, used = (
        subscriber.register_subscriber(type_name="jbi.Measurement", predicate=of_third.format(which))
        for which in ("limit", "used")
    )
    # Expect the third one's, and of no other one
    for _ in range(2):
        found = etree.fromstring(subscriber.receive(limit).metadata)
        assert (found.findtext("component"), float(found.findtext("value"))) == ("three@rome", 375_000.0)
    assert float(etree.fromstring(subscriber.receive(used).metadata).findtext("value")) > 0


def test_measuring_is_of_the_least_importance_and_nothing_is_made_for_nobody(managed: Any, eventually: Any) -> None:
    # Given a server that nobody has asked for anything
    server = managed.pad()
    [registration] = eventually(lambda: server.delegate.tables.registrations.values())
    made: list[object] = []
    quality = server.delegate.contracts.quality
    tell = quality.measurements
    quality.measurements = lambda: made.append(1) or tell()
    eventually(lambda: registration.contract)
    assert registration.contract.settings.importance == 1
    assert server.status()["published"] == 0
    # When somebody comes and leaves; Expect measurements to be made meanwhile alone
    assert made == []
    with managed.subscriber() as subscriber:
        uid = subscriber.register_subscriber(type_name="jbi.Measurement")
        assert subscriber.receive(uid).type.name == "jbi.Measurement"
        assert made
    eventually(lambda: not len(registration.topic.table))
    count = server.status()["published"]
    # Expect nothing of it to fail at the end of its server
    server.stop(0.0)
    assert server.status()["published"] >= count


def test_without_the_setting_nothing_is_published(managed: Any) -> None:
    config = msgspec.structs.replace(managed.config, qos=QosSection(mode="on"))
    server = managed.pad(config=config)
    assert server.status()["registrations"] == []


@pytest.mark.parametrize("sign", [True, False])
def test_where_objects_have_to_be_signed_measurements_are_or_it_is_said(
    sign: bool, tmp_path: Path, fixtures: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(system_publisher, "MEASURE_SECONDS", 0.2)
    with ExitStack() as stack:
        # Given a delegate that takes signed objects alone, and signs itself, or does not
        authority = Authority(tmp_path)
        tls = msgspec.structs.replace(authority.issue("server.example"), sign=sign, verify="require")
        federation = fixtures.Federation(msgspec.structs.replace(fixtures.test_config(), tls=tls, qos=MANAGED), stack)
        federation.pad()
        own = msgspec.structs.replace(authority.issue("subscriber.example", number=1), verify="require")
        if not sign:
            # Expect the log to say once why nothing is published
            eventually(lambda: "measurements are not published" in caplog.text)
            assert "does not sign" in caplog.text
            return
        # Expect whoever wants them signed to see whose they are
        subscriber = federation.subscriber(msgspec.structs.replace(federation.config, tls=own))
        uid = subscriber.register_subscriber(type_name="jbi.Measurement", predicate=SHAPED)
        assert subscriber.receive(uid).platform.verified == "server.example"
