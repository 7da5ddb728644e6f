"""Users by password: the file, the directory, and what a login is good for at servers."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.capi import ConnectionManager, PermissionDeniedException
from jbi_pubsub.cli.app import run
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.access import AllowAll
from jbi_pubsub.core.config import ClientSection, Config, PolicySection
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    JbiError,
    LookupNotFoundError,
    PolicyError,
    ProtocolError,
)
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlClient
from jbi_pubsub.core.wire.endpoint import Caller, Login, Security
from jbi_pubsub.core.wire.places import PortPlace
from jbi_pubsub.lookup.client import discovery
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.policy import users as module
from jbi_pubsub.policy.manager import access_of
from jbi_pubsub.policy.users import (
    COST,
    FAILURES_MOST,
    KNOWN_FAILURES_MOST,
    PEER_FAILURES_MOST,
    RIGHT_SECONDS,
    SLOW_SECONDS,
    Account,
    PasswordFile,
    UsersPolicy,
    memory_of,
    read_accounts,
    with_users,
    write_accounts,
)


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COST", 4)


def written(path: Path, **passwords: str) -> Path:
    """A password file."""
    write_accounts(path, {name: Account.of(name, password) for name, password in passwords.items()})
    return path


def test_a_password_is_checked_and_never_kept(tmp_path: Path) -> None:
    # Given a file of two users
    file = written(tmp_path / "users", alice="correct horse", bob="s3cret")
    users = PasswordFile(file)
    # Expect the right one alone to be right, also when it is asked again, and nothing of it in the file
    for _ in range(2):
        assert users.check("alice", "correct horse") is not None
        for name, password in (("alice", "s3cret"), ("alice", ""), ("carol", "x"), ("", ""), ("alice", "x" * 2000)):
            assert users.check(name, password) is None
    assert "horse" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


CHECKS = """
import os, sys, threading
from pathlib import Path
from jbi_pubsub.policy.users import PasswordFile

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

users, before, over = PasswordFile(Path(sys.argv[1])), resident(), threading.Event()
done = [threading.Event() for _ in range(12)]
def check(own):
    users.check("alice", "wrong")
    own.set()
    over.wait(60.0)
for each in done:
    threading.Thread(target=check, args=(each,)).start()
for each in done:
    each.wait(60.0)
print(resident() - before)
over.set()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_checking_leaves_no_memory_with_the_threads_that_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a process with a dozen threads, each of which has checked a password at its full price and stays
    monkeypatch.setattr(module, "COST", COST)
    file = written(tmp_path / "users", alice="a")
    ran = subprocess.run([sys.executable, "-c", CHECKS, str(file)], capture_output=True, text=True, timeout=60)
    # Expect less than what four of them took for a moment
    assert int(ran.stdout) < 4 * memory_of(COST), ran.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("alice\n", "users:1: no account"),
        ("alice:secret\n", "users:1: no account"),
        ("alice:$scrypt$ln=31,r=8,p=1$AAAAAAAAAAA=$AAAAAAAAAAAAAAAAAAAA\n", "users:1: no account"),
        ("alice:$scrypt$ln=4,r=8,p=1$====AAAA$AAAAAAAAAAAAAAAAAAAA\n", "users:1: no account"),
        ("*:$scrypt$ln=4,r=8,p=1$AAAAAAAA$AAAAAAAAAAAAAAAAAAAA\n", "users:1: no account"),
        ("# good\na:$scrypt$ln=4,r=8,p=1$AAAAAAAA$AAAAAAAAAAAAAAAA\n" * 2, "users:4: a a second time"),
        ("\udcff\x00", "users:1: no account"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "users").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PolicyError) as failed:
        PasswordFile(tmp_path / "users")
    assert told in str(failed.value)


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "users", alice="x")
    file.chmod(0o666)
    with pytest.raises(PolicyError, match="others may write it"):
        read_accounts(file)


def test_a_changed_file_holds_at_once_and_a_broken_one_does_not(tmp_path: Path) -> None:
    # Given who has logged in
    now = [0.0]
    file = written(tmp_path / "users", alice="old", bob="stays")
    users = PasswordFile(file, clock=lambda: now[0])
    alice, bob = users.check("alice", "old"), users.check("bob", "stays")
    assert alice is not None
    assert bob is not None
    # When the file is broken, expect the accounts of before
    file.write_text("nonsense")
    now[0] += 1
    assert users.holds("alice", alice)
    assert "no account" in users.status()["fault"]
    # When one gets another password, expect that hers alone is over, and the version another
    before = users.version
    accounts = {"alice": Account.of("alice", "new"), "bob": Account("bob", *_parts(bob))}
    write_accounts(file, accounts)
    now[0] += 1
    assert (users.holds("alice", alice), users.holds("bob", bob)) == (False, True)
    assert users.version > before
    assert users.check("alice", "old") is None


def _parts(line: str) -> tuple[int, bytes, bytes]:
    found = module._account(line)
    assert found is not None
    return found.cost, found.salt, found.key


def test_guessing_ends_for_who_guesses_and_for_nobody_else(tmp_path: Path) -> None:
    # Given who has guessed wrongly too often
    now = [0.0]
    policy = UsersPolicy(
        AllowAll(), PasswordFile(written(tmp_path / "users", alice="a", bob="b")), clock=lambda: now[0]
    )
    eve, bob = Caller("10.0.0.9:1", place=PortPlace("10.0.0.9")), Caller("10.0.0.7:1", place=PortPlace("10.0.0.7"))
    for _ in range(FAILURES_MOST):
        with pytest.raises(AccessDeniedError):
            policy.login(eve, "alice", "?")
    # Expect that not even the right one helps now; others log in, also she under another name; a minute later she may
    with pytest.raises(AccessDeniedError):
        policy.login(eve, "alice", "a")
    assert policy.login(bob, "alice", "a")
    assert policy.login(eve, "bob", "b")
    now[0] += 61
    assert policy.login(eve, "alice", "a")


def test_who_was_right_lately_is_not_locked_out_by_others_at_the_same_address(tmp_path: Path) -> None:
    # Given alice, who was right from an address that others use as well
    now, paused = [0.0], []
    accounts = PasswordFile(written(tmp_path / "users", alice="a", bob="b"))
    policy = UsersPolicy(AllowAll(), accounts, clock=lambda: now[0], pause=paused.append)
    nat = Caller("192.0.2.1:1", place=PortPlace("192.0.2.1"))
    assert policy.login(nat, "alice", "a")
    # When others there are wrong, for names without end
    for number in range(PEER_FAILURES_MOST + 2):
        with pytest.raises(AccessDeniedError):
            policy.login(nat, f"name-{number}", "?")
    # Expect her to be let in, and bob, who never was, to be refused unseen
    assert policy.login(nat, "alice", "a")
    with pytest.raises(AccessDeniedError):
        policy.login(nat, "bob", "b")
    # When they are wrong for her name, expect answers to get slow, not her to be out, until it is too much
    for _ in range(KNOWN_FAILURES_MOST):
        assert policy.login(nat, "alice", "a")
        with pytest.raises(AccessDeniedError):
            policy.login(nat, "alice", "?")
    assert paused == [SLOW_SECONDS] * (KNOWN_FAILURES_MOST - FAILURES_MOST)
    with pytest.raises(AccessDeniedError):
        policy.login(nat, "alice", "a")
    # Expect that to end, and who was right long ago to be as anybody
    now[0] += 61.0
    assert policy.login(nat, "alice", "a")
    now[0] += RIGHT_SECONDS
    for _ in range(FAILURES_MOST):
        with pytest.raises(AccessDeniedError):
            policy.login(nat, "alice", "?")
    with pytest.raises(AccessDeniedError):
        policy.login(nat, "alice", "a")


# -- at servers ---------------------------------------------------------------------------------------------------


RULES = """
[[access]]
allow = true
user = "alice"
action = ["connect", "publish", "subscribe", "status"]

[[access]]
allow = true
user = "root"
action = "*"
"""


@pytest.fixture
def guarded(federation: Any, tmp_path: Path) -> Iterator[tuple[DisseminationServer, Callable[..., Config], Path]]:
    """A delegate (alpha, rome) with rules and users, what `login(user, password)` makes of a client's configuration,
    and the file."""
    file = written(tmp_path / "users", alice="a", bob="b")
    rules = tmp_path / "policy.toml"
    rules.write_text(RULES)
    policy = PolicySection(file=str(rules), users=str(file))
    server = DisseminationServer(
        msgspec.structs.replace(federation.config, policy=policy), TypeRepository(), characteristics=("alpha", "rome")
    )
    server.start()

    def login(user: str, password: str) -> Config:
        return msgspec.structs.replace(federation.config, client=ClientSection(user=user, password=password))

    yield server, login, file
    server.stop(0.5)


def test_who_has_logged_in_may_what_rules_say(guarded: Any, figures: Any) -> None:
    # Given alice, who may publish and subscribe
    _, login, _ = guarded
    with PublisherAdapterLight(login("alice", "a")) as publisher, SubscriberAdapter(login("alice", "a")) as subscriber:
        subscription = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
        # When she does, expect that it works
        registration = figures.register(publisher)
        publisher.publish(registration, figures.figure_1)
        assert subscriber.receive(subscription, timeout=60.0) is not None


@pytest.mark.row("D-20")
@pytest.mark.parametrize(("user", "password"), [("alice", "b"), ("bob", "b"), ("alice", ""), ("eve", "a")])
def test_who_has_not_may_nothing(guarded: Any, user: str, password: str) -> None:
    # Given a wrong password, a user without rights, one who only says who he is, and a stranger; Expect a refusal
    _, login, _ = guarded
    with PublisherAdapterLight(login(user, password)) as publisher, pytest.raises(JbiError) as failed:
        publisher.connect_to_delegate("alpha", "rome", timeout=3.0)
    assert isinstance(failed.value, AccessDeniedError)


@pytest.fixture
def lookup(federation: Any, tmp_path: Path) -> Iterator[Callable[..., Config]]:
    """`login(user, password)` of a client whose one lookup service has the rules and users."""
    rules = tmp_path / "policy.toml"
    rules.write_text(RULES)
    policy = PolicySection(file=str(rules), users=str(written(tmp_path / "users", alice="a")))
    section = msgspec.structs.replace(federation.config.lookup, port=0, locators=())
    config = msgspec.structs.replace(federation.config, policy=policy, lookup=section)
    server = LookupServer(config, Registrar(), access=with_users(access_of(config, "lookup"), config))
    server.start()
    asked = msgspec.structs.replace(section, locators=(server.address,))

    def login(user: str, password: str) -> Config:
        return msgspec.structs.replace(config, lookup=asked, client=ClientSection(user=user, password=password))

    yield login
    server.stop()


@pytest.mark.parametrize(
    ("user", "password", "told", "cure"),
    [
        ("alice", "b", "another password", "user and password"),
        ("", "", "may not connect", "Nobody is logged in"),
    ],
)
def test_a_lookup_service_that_lets_nobody_in_is_told_at_once(
    lookup: Callable[..., Config], user: str, password: str, told: str, cure: str
) -> None:
    # Given a wrong password, and none; When a delegate is looked for, or a subscription made
    config = lookup(user, password)
    began = time.monotonic()
    with (
        PublisherAdapterLight(config) as publisher,
        pytest.raises(LookupNotFoundError, match=told) as failed,
    ):
        publisher.connect_to_delegate("alpha", "rome", timeout=60.0)
    with SubscriberAdapter(config) as subscriber, pytest.raises(LookupNotFoundError, match=told):
        subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", timeout=60.0)
    # Expect the reason, and the cure, long before the time is over
    assert cure in failed.value.hint
    assert isinstance(failed.value.__cause__, AccessDeniedError)
    assert time.monotonic() - began < 55.0
    # And in the Common API that it is not allowed
    manager = ConnectionManager(config)
    connection = manager.createConnection("app")
    with pytest.raises(PermissionDeniedException, match=told):
        connection.connect()
    manager.destroyConnection(connection)


def test_a_wrong_password_is_not_shown_each_second(lookup: Callable[..., Config]) -> None:
    # Given a client with a wrong one, which looks for its lookup service
    with pytest.MonkeyPatch.context() as patched:
        shown: list[float] = []
        (at,) = lookup("alice", "b").lookup.locators
        now = [time.monotonic()]
        found = discovery.LookupDiscovery(
            groups=None, locators=(at,), multicast=False, interfaces=tuple, security=lookup("alice", "b").security(),
            interval=1.0, discovered=lambda *_: None, discarded=lambda _: None,
        )  # fmt: skip
        patched.setattr(discovery, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
        # When a minute goes by
        for _ in range(60):
            for endpoint in found._due():
                found._probe(endpoint)
                shown.append(now[0])
            now[0] += 1.0
    # Expect fewer than the ten that lock the right one out
    assert 2 <= len(shown) < 10
    assert set(found.refusals()) == {at}


def test_who_is_removed_is_out_by_herself(guarded: Any, figures: Any, eventually: Callable[..., Any]) -> None:
    # Given alice with a registration and a subscription
    server, login, file = guarded
    with PublisherAdapterLight(login("alice", "a")) as publisher, SubscriberAdapter(login("alice", "a")) as subscriber:
        subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
        figures.register(publisher)
        eventually(lambda: server.status()["subscriptions"])
        # When she is removed from the file, expect that both end, without a call of hers
        written(file, bob="b")
        eventually(lambda: not server.status()["subscriptions"] and not server.status()["registrations"])


def test_a_connection_is_one_users(guarded: Any) -> None:
    # Given a connection that is alice's
    server, _, _ = guarded
    client = ControlClient(ServiceRef("", LOGIN, (server.address,)), Security(login=Login("alice", "a")))
    try:
        # When somebody logs in over it again, expect a refusal, whatever the password
        with pytest.raises(ProtocolError, match="is alice's already"):
            client.call("login", bool, "bob", "b")
    finally:
        client.close()


def test_a_password_is_not_shown_to_everybody_on_the_way() -> None:
    # Given a server elsewhere, without TLS
    security = Security(login=Login("alice", "hush"))
    assert [security.may_show_password(each) for each in ("127.0.0.1:1", "[::1]:1", "unix:///x", "10.0.0.1:1")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert "hush" not in repr(security)


def test_without_users_a_password_counts_for_nothing(federation: Any) -> None:
    # Given a delegate that knows no users; Expect that a client with a password may what everybody may
    federation.pad()
    config = msgspec.structs.replace(federation.config, client=ClientSection(user="alice", password="a"))
    federation.light(config).connect_to_delegate("alpha", "rome")


def test_users_without_rules_are_told_to_guard_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given users; When there is no policy, expect that it is told, and nothing where there is one
    users, rules = written(tmp_path / "users", alice="a"), tmp_path / "policy.toml"
    rules.write_text(RULES)
    for file, count in ((str(rules), 0), ("", 1)):
        with_users(AllowAll(), Config(policy=PolicySection(file=file, users=str(users)))).close()
        assert len([each for each in caplog.messages if "everybody may do everything" in each]) == count


# -- the command --------------------------------------------------------------------------------------------------


def test_users_are_kept_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    def jbi(*arguments: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = run(["users", *arguments, "--file", str(tmp_path / "users")])
        said = capsys.readouterr()
        return code, said.out, said.err

    # Given an empty place; When users are added, expect them listed, and their passwords right
    assert jbi("add", "alice", "--password-stdin", typed="a\n")[0] == 0
    assert jbi("add", "bob", "--password-stdin", typed="b\n")[0] == 0
    assert jbi("list")[1] == "user\nalice\nbob\n"
    assert jbi("check", "alice", "--password-stdin", typed="a\n")[0] == 0
    assert jbi("check", "alice", "--password-stdin", typed="b\n")[0] == 1
    # When one is removed, expect the other; a wrong name, no password, no terminal: a line that says so
    assert jbi("remove", "alice")[0] == 0
    assert jbi("list", "--json")[1].strip() == '["bob"]'
    assert "did you mean bob?" in jbi("remove", "bop")[2]
    assert "1 to 1000 characters" in jbi("add", "carol", "--password-stdin", typed="\n")[2]
    assert "is not a user's name" in jbi("add", "a:b", "--password-stdin", typed="x\n")[2]
    assert "no terminal" in jbi("add", "carol", typed="x\n")[2]
