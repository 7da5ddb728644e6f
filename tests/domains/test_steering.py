"""Commands to applications, and what applications say of themselves, up to their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import Domain
from jbi_pubsub.core.errors import ConfigurationError, EntryError, UnknownUidError, WireTimeoutError
from jbi_pubsub.domains import client
from jbi_pubsub.domains.trader import OfferAnswer, OfferQuery


def test_application_has_a_thousand_parameters_and_is_watched_by_a_long_constraint(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given an application with many parameters
    here = domain()
    names = [f"permeability_layer_{number:04}" for number in range(1_000)]
    reservoir = here.application("reservoir", lambda: {"step": 199}, period=0.05)
    for name in names:
        reservoir.steer(name, get=lambda: 1)
    anna, seen = here.client("anna"), list[Any]()
    # When it is looked for, expect all of them
    (found,) = eventually(lambda: anna.find(f"'{names[-1]}' in parameters"))
    assert found.properties["parameters"] == tuple(names)
    # and one for which there is no room to be refused, and the others to be as they were
    with pytest.raises(EntryError, match="property parameters has"):
        reservoir.steer("x" * 32_000, get=lambda: 2)
    with pytest.raises(EntryError, match="property parameters has"):
        reservoir.steer("x" * 32_000, get=lambda: 2)
    with pytest.raises(ConfigurationError, match="no parameter"):
        anna.get("reservoir", "x" * 32_000)
    assert anna.get("reservoir", names[-1]) == 1
    # and events to come by a constraint of many words
    anna.watch("reservoir", " or ".join(f"step == {number}" for number in range(200)), seen.append)
    eventually(lambda: seen)


@pytest.mark.row("D-45")
def test_command_to_the_application_that_was_found_goes_to_that_one_alone(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given two applications of one name
    first, second, had = domain(), domain(), list[str]()
    for number, each in enumerate((first, second), 1):
        made = each.application("heat", dict, categories=(f"c{number}",))
        made.steer("alpha", set=lambda value, of=number: had.append(f"{value} of {of}"), get=lambda of=number: of)  # type: ignore[misc]
    anna = first.client("anna")
    one, two = (eventually(lambda of=number: anna.find(f"'c{of}' in categories"))[0] for number in (1, 2))
    # When a client commands what it has found, expect that one to obey
    anna.set(one, "alpha", 0.1)
    anna.set(two, "alpha", 0.2)
    assert [anna.get(each, "alpha") for each in (one, two, one)] == [1, 2, 1]
    assert had == ["0.1 of 1", "0.2 of 2"]
    # and whoever is gone to be so, though another one has the name
    second.close()
    eventually(lambda: len(anna.find("name == 'heat'")) == 1)
    with pytest.raises(UnknownUidError, match="is not there"):
        anna.get(two, "alpha", timeout=0.3)


def test_command_without_an_answer_waits_for_no_trader(
    domain: Callable[[], Domain], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a domain whose trader hangs
    here, asked = domain(), list[float]()

    def hangs(query: OfferQuery) -> OfferAnswer:
        asked.append(query.timeout)
        return OfferAnswer((), ("trader at 10.0.0.7:4160 did not answer in time",))

    monkeypatch.setattr(here.services, "query", hangs)
    # When a command is not answered, expect it to be asked for a moment, and the application perhaps to be there
    with pytest.raises(WireTimeoutError, match="did not answer"):
        here.client("anna").get("heat", "alpha", timeout=0.1)
    assert asked == [client.GONE_SECONDS]
