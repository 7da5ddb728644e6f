"""`jbi lookup admin` over lookup services that are processes: what it sets is in force at once, and after kill -9."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ALONE = ("--no-multicast", "--set", "lookup.locators=")


@pytest.fixture
def admin(said: Callable[..., Any]) -> Callable[..., Any]:
    """admin(address, "groups", "add", "lab")"""

    def command(address: str, *arguments: str) -> Any:
        return said("--no-multicast", "lookup", "admin", "--at", address, *arguments)

    return command


@pytest.fixture
def lookup(start: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """lookup(*flags) starts one that keeps its state in one file: (process, what it said)."""

    def begin(*flags: str, port: str = "0") -> tuple[Any, dict[str, Any]]:
        process = start(*ALONE, *flags, "lookup", "--port", port, "--state", str(tmp_path / "state.db"), "--json")
        return process, process.fact()

    return begin


def kill(process: Any) -> None:
    process.signal(signal.SIGKILL)
    process.wait(60.0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_what_an_administrator_sets_is_shown_and_in_force_after_kill_9(
    admin: Callable[..., Any], lookup: Callable[..., Any], said: Callable[..., Any]
) -> None:
    # Given a lookup service with a state
    process, ready = lookup("--group", "start")
    at, port = ready["address"], free_port()
    assert admin(at, "groups").out == "serves start\n"
    assert admin(at, "locators").out == "joins nobody by address\n"
    assert admin(at, "port").out == f"listens on port {at.rpartition(':')[2]}\n"
    # When groups, locators and port are set
    assert admin(at, "groups", "add", "lab", "").out == "serves start, lab, public\n"
    assert admin(at, "groups", "remove", "start").out == "serves lab, public\n"
    assert admin(at, "locators", "add", "127.0.0.1:1", "LOCALHOST:2").out == "joins 127.0.0.1:1, localhost:2\n"
    assert admin(at, "locators", "remove", "127.0.0.1:1").out == "joins localhost:2\n"
    assert admin(at, "port", "set", str(port)).out == f"listens on port {port}\n"
    # Expect programs to read the same
    assert json.loads(admin(at, "port", "--json").out) == {"port": port}
    assert json.loads(admin(at, "groups", "--json").out) == {"groups": ["lab", ""]}
    assert json.loads(admin(at, "locators", "--json").out) == {"locators": ["localhost:2"]}
    # Expect it to serve there, the same one
    moved = f"127.0.0.1:{port}"
    [status] = json.loads(said("--no-multicast", "status", moved, "--json").out)
    assert (status["id"], status["address"], status["groups"]) == (ready["id"], moved, ["lab", ""])
    # When it is killed and started as before, expect all that was set, whatever the flags say
    kill(process)
    process, again = lookup("--group", "start")
    assert (again["id"], again["address"], again["groups"]) == (ready["id"], moved, ["lab", ""])
    assert admin(moved, "locators").out == "joins localhost:2\n"
    # and that `set` says so before it takes it out of everything
    for what in ("groups", "locators"):
        for arguments in ((what, "set"), (what, "add"), (what, "show", "--none"), (what, "set", "a:1", "--none")):
            assert admin(moved, *arguments).code == 2
    assert admin(moved, "groups").out == "serves lab, public\n"
    assert admin(moved, "groups", "set", "--none").out == "serves none\n"
    assert admin(moved, "locators", "set", "--none").out == "joins nobody by address\n"
    kill(process)
    assert lookup()[1]["groups"] == []


def test_what_nobody_has_set_is_as_configured_at_each_start(
    lookup: Callable[..., Any], admin: Callable[..., Any]
) -> None:
    # Given a lookup service of which an administrator has only set the locators
    process, ready = lookup("--group", "one")
    assert admin(ready["address"], "locators", "set", "127.0.0.1:1").code == 0
    kill(process)
    # When it is started with other groups and another port, expect these
    port = free_port()
    _, again = lookup("--group", "two", port=str(port))
    assert (again["id"], again["groups"], again["address"]) == (ready["id"], ["two"], f"127.0.0.1:{port}")
    assert admin(again["address"], "locators").out == "joins 127.0.0.1:1\n"


def test_a_port_that_is_taken_is_refused_at_once_and_at_a_restart(
    admin: Callable[..., Any], lookup: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a lookup service, and a port that somebody else has
    process, ready = lookup()
    at, port = ready["address"], free_port()
    with socket.create_server(("127.0.0.1", port)):
        answer = admin(at, "port", "set", str(port))
    # Expect a refusal, and the old port in use
    assert answer.code != 0
    assert answer.is_one_line(), answer
    assert str(port) in answer.err
    assert admin(at, "port").out == f"listens on port {at.rpartition(':')[2]}\n"
    # When the port that was set is taken at the next start, expect a line that says who has set it
    assert admin(at, "port", "set", str(port)).code == 0
    kill(process)
    with socket.create_server(("127.0.0.1", port)):
        failed = start(*ALONE, "lookup", "--port", "0", "--state", str(tmp_path / "state.db"))
        _, said = failed.communicate(timeout=60.0)
    assert failed.returncode != 0
    assert "administrator" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("locators", "add", "nonsense"), "nonsense"),
        (("locators", "set", "host:70000"), "host:70000"),
        (("groups", "add", "a,b"), "a,b"),
        (("groups", "set", "*"), "*"),
        (("port", "set", "70000"), "70000"),
        (("port", "set"), "number"),
        (("port", "show", "1"), "number"),
        (("groups", "add"), "NAME"),
        (("locators", "remove"), "HOST:PORT"),
        (("groups", "show", "lab"), "lab"),
        (("groups", "lab"), "lab"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nonsense_is_answered_with_what_is_wrong(
    admin: Callable[..., Any], federation: Any, arguments: tuple[str, ...], named: str
) -> None:
    answer = admin(federation.lookups[0].address, *arguments)
    assert answer.code != 0
    assert named in answer.err
    assert "Traceback" not in answer.err


def test_there_must_be_somebody_to_administer(admin: Callable[..., Any]) -> None:
    for address in ("127.0.0.1:1", "nonsense"):
        answer = admin(address, "groups")
        assert answer.code != 0
        assert answer.is_one_line(), answer
        assert address in answer.err


@pytest.mark.parametrize("command", [("lookup", "--port", "0"), ("pad", "alpha", "rome"), ("services",)], ids=" ".join)
@pytest.mark.parametrize("locator", ["nonsense", "host:70000", "a b:1"])
def test_an_odd_locator_ends_a_command_with_one_line(
    said: Callable[..., Any], command: tuple[str, ...], locator: str
) -> None:
    for flags in (("--locator", locator), ("--set", f"lookup.locators={locator}")):
        answer = said("--no-multicast", *flags, *command)
        assert answer.code == 2
        assert answer.is_one_line(), answer
        assert locator in answer.err


def test_lookup_services_that_know_one_are_all_listed_by_services(
    said: Callable[..., Any], start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given three lookup services as processes, of which two know the first, and a client that does
    first = start("--no-multicast", "--locator", "127.0.0.1:1", "lookup", "--port", "0", "--json").fact()
    flags = ("--no-multicast", "--locator", first["address"])
    others = [start(*flags, "--set", f"lookup.name={n}", "lookup", "--port", "0", "--json") for n in ("two", "three")]
    everybody = {first["id"], *(process.fact()["id"] for process in others)}

    def shown() -> dict[str, Any]:
        listed = json.loads(said(*flags, "services", "--type", "jbi.Registrar", "--json").out)
        return {service["id"]: service["entries"][0] for service in listed}

    # Expect all three, with their names
    eventually(lambda: set(shown()) == everybody)
    assert {"two", "three"} < {entry["name"] for entry in shown().values()}
    # and that one that ends is gone at once
    others[1].end()
    assert set(shown()) < everybody


def test_a_killed_lookup_service_takes_its_place_at_the_others_again_before_its_lease_has_run_out(
    lookup: Callable[..., Any], start: Callable[..., Any], said: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a lookup service that has joined another one, under a lease of a minute
    other = start(*ALONE, "lookup", "--port", "0", "--json").fact()
    flags = ("--locator", other["address"])
    process, ready = lookup(*flags)

    def address() -> str:
        listed = json.loads(said("--no-multicast", *flags, "services", "--type", "jbi.Registrar", "--json").out)
        return "".join(service["entries"][0]["address"] for service in listed if service["id"] == ready["id"])

    eventually(lambda: address() == ready["address"])
    # When it is killed and started again at another port
    kill(process)
    _, again = lookup(*flags)
    # Expect the other one to know the new address: it could replace its own item
    eventually(lambda: address() == again["address"])


def test_the_configured_locator_says_which_lookup_service_is_meant(federation: Any, said: Callable[..., Any]) -> None:
    # Given one locator, expect it to be administered without being named again
    address = federation.lookups[0].address
    told = said("--no-multicast", "--locator", address, "lookup", "admin", "groups")
    assert told.code == 0
    # Given two, expect the question which
    both = said("--no-multicast", "--locator", address, "--locator", "127.0.0.1:1", "lookup", "admin", "groups")
    assert both.code != 0
    assert "--at" in both.err


def test_a_lookup_service_joins_no_other_by_the_default_locator(
    start: Callable[..., Any], said: Callable[..., Any]
) -> None:
    # Given a lookup service without any locator configured, and another that names it
    first = start("--no-multicast", "lookup", "--port", "0", "--json").fact()
    told = said("--no-multicast", "lookup", "admin", "--at", first["address"], "locators")
    # Expect the first to have none: what applications ask by default is not for it to join
    assert told.code == 0
    assert "4160" not in told.out
    second = start("--no-multicast", "--locator", first["address"], "lookup", "--port", "0", "--json").fact()
    told = said("--no-multicast", "lookup", "admin", "--at", second["address"], "locators")
    assert first["address"] in told.out


def test_what_is_no_lookup_service_is_said_to_be_none(federation: Any, said: Callable[..., Any]) -> None:
    # When the address is a delegate's
    pad = federation.pad()
    answer = said("lookup", "admin", "--at", pad.address, "groups")
    # Expect that, not the name of a method
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert f"{pad.address} is not a lookup service" in answer.err
