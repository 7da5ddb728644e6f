"""A server that starts with a policy file that can't be used: with the rules of before, or not at all."""

from __future__ import annotations

import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.access import Subject
from jbi_pubsub.core.errors import AccessDeniedError, PolicyError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller, Security
from jbi_pubsub.policy.manager import AccessManager
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SubscriptionsProxy, fetch_status

ALICE = Caller("192.0.2.7:1", identity="alice")
ONLY_BOB = "[[access]]\nuser = 'bob'\n"
BROKEN = "[[access]]\nuser = 'bob'\nactoin = 'publish'\n"
LOOKING = "[[access]]\naction = ['connect', 'status']\n"


def administers(address: str) -> bool:
    """Whether we may ask what only an administrator may."""
    proxy = SubscriptionsProxy(ServiceRef("", SUBSCRIPTIONS, (address,)), Security(), timeout=60.0)
    try:
        return proxy.mail_subscriptions() == []
    except AccessDeniedError:
        return False
    finally:
        proxy.close()


@pytest.mark.processes
def test_a_delegate_that_is_killed_while_its_policy_file_is_broken_comes_back_with_the_rules_of_before(
    start: Callable[..., Any], federation: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate whose rules let nobody administer, and which keeps its policies
    path, locator = tmp_path / "policy.toml", ("--no-multicast", "--locator", federation.lookups[0].address)
    path.write_text(LOOKING)
    keeping = ("--set", f"policy.file={path}", "--set", f"policy.state={tmp_path / 'alpha.state'}")
    pad = start(*locator, *keeping, "pad", "alpha", "rome", "--json")
    assert not administers(pad.fact()["address"])
    # When the file is broken, and the delegate is killed and started again
    path.write_text(BROKEN)
    pad.signal(signal.SIGKILL)
    pad.wait()
    again = start(*locator, *keeping, "pad", "alpha", "rome", "--json")
    address = again.fact()["address"]
    # Expect the rules of before, and log, status and doctor to say what is wrong, and where
    wrong = "policy.toml:3:1: unknown key 'actoin'"
    assert not administers(address)
    access = fetch_status(ServiceRef("", "", (address,)), Security(), timeout=60.0)["access"]
    assert (access["rules"], wrong in access["fault"]) == (1, True)
    assert wrong in again.stderr()
    assert "are in force until it is corrected" in again.stderr()
    doctor = start(*locator, "doctor", "--json")
    assert wrong in doctor.communicate()[0]
    table = start(*locator, "status")
    assert wrong in table.communicate()[0]
    # When it is mended; Expect that to be in force
    path.write_text(LOOKING.replace("'status'", "'status', 'administer'"))
    eventually(lambda: administers(address))
    assert fetch_status(ServiceRef("", "", (address,)), Security(), timeout=60.0)["access"]["fault"] == ""


@pytest.mark.processes
@pytest.mark.parametrize("keeps", [False, True])
def test_a_first_start_with_a_broken_file_says_what_is_wrong_and_what_would_help(
    start: Callable[..., Any], tmp_path: Path, keeps: bool
) -> None:
    path, state = tmp_path / "policy.toml", tmp_path / "alpha.state"
    path.write_text(BROKEN)
    keeping = ("--set", f"policy.state={state}") if keeps else ()
    pad = start("--no-multicast", "--set", f"policy.file={path}", *keeping, "pad", "alpha", "rome")
    assert pad.wait() != 0
    [said] = pad.stderr().strip().splitlines()
    assert "policy.toml:3:1: unknown key 'actoin'" in said
    assert "Did you mean 'action'?" in said
    assert f"`jbi policy check {path}`" in said
    assert ("[policy] state" in said, f"{state}." in said) == (not keeps, keeps)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., AccessManager]]:
    """opened(name): a manager of the policy file of that name, all with one state."""
    with ExitStack() as stack:

        def make(name: str = "policy.toml", **options: bool | None) -> AccessManager:
            manager = AccessManager(tmp_path / name, component="alpha@rome", state=tmp_path / "state", **options)  # type: ignore[arg-type]  # those that are None alone
            stack.callback(manager.close)
            return manager

        yield make


def may(manager: AccessManager) -> bool:
    return bool(manager.allow(ALICE, "connect", Subject()))


@pytest.mark.parametrize(
    "break_it",
    [
        lambda path: path.write_text(BROKEN),
        lambda path: path.write_text(""),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.chmod(0o666),
        lambda path: path.unlink(),
    ],
)
def test_what_was_in_force_last_is_so_after_a_restart(
    opened: Callable[..., AccessManager], tmp_path: Path, eventually: Callable[..., Any],
    break_it: Callable[[Path], object],
) -> None:  # fmt: skip
    # Given rules that were changed while they were in force, and then a file that can't be used
    path = tmp_path / "policy.toml"
    path.write_text("[[access]]\n")
    first = opened()
    path.write_text(ONLY_BOB)
    eventually(lambda: not may(first))
    first.close()
    break_it(path)
    # When the server starts, expect the last rules, twice over, as whoever keeps them may not lose them
    for _ in range(2):
        manager = opened()
        assert (may(manager), manager.fault != "", manager.rules.rules[0].name) == (False, True, "policy.toml:1")
        manager.close()
    # Expect them for our eyes alone
    [kept] = tmp_path.glob("state.*")
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == (ONLY_BOB, 0o600)


def test_who_matters_and_what_is_archived_are_kept_as_well(
    opened: Callable[..., AccessManager], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text("[[policy]]\nname = 'first'\nimportance = 5\n[[keep]]\ncount = 7\n")
    opened(policies=None, keep=True).close()
    (tmp_path / "policy.toml").write_text(BROKEN)
    manager = opened(policies=None, keep=True)
    told: list[Any] = []
    manager.follow(told.append)
    manager.follow_keep(told.append)
    assert [policy.name for policy in told[0].rules] == ["first"]
    assert [rule.count for rule in told[1]] == [7]


def test_the_rules_of_another_file_are_not_taken(opened: Callable[..., AccessManager], tmp_path: Path) -> None:
    # Given one state of two servers, one of which has had no file that it could use
    (tmp_path / "policy.toml").write_text("[[access]]\n")
    opened()
    (tmp_path / "other.toml").write_text(BROKEN)
    with pytest.raises(PolicyError, match="unknown key"):
        opened("other.toml")


def test_a_copy_that_is_no_good_does_not_let_a_server_start(
    opened: Callable[..., AccessManager], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(ONLY_BOB)
    opened().close()
    [kept] = tmp_path.glob("state.*")
    kept.write_text("")
    (tmp_path / "policy.toml").write_text(BROKEN)
    with pytest.raises(PolicyError, match="unknown key") as refused:
        opened()
    assert "empty" in refused.value.hint


def test_a_disk_that_does_not_take_the_copy_is_told(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(ONLY_BOB)
    manager = AccessManager(tmp_path / "policy.toml", component="c", state=tmp_path / "none" / "state")
    manager.close()
    assert (may(manager), manager.fault) == (False, "")
    assert "not kept for a restart" in str(manager.status()["fault"])
