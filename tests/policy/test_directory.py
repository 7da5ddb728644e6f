"""Users of a directory: binds, over TLS, in a stand-in for python-ldap."""

from __future__ import annotations

import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.access import Action, AllowAll, Decision, Subject
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, WireError, WireTimeoutError
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PortPlace
from jbi_pubsub.policy import users as module
from jbi_pubsub.policy.users import LDAP_MOST, Directory, UsersPolicy


class Audit(AllowAll):
    """Writes down who was refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def record(self, caller: Caller, action: Action, subject: Subject, decision: Decision) -> None:
        assert (caller.identity, action, decision.allowed) == ("", "connect", False)
        self.refused.append(subject.name)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for python-ldap: the calls that it got, the passwords by name, and how it answers. Like a directory it
    takes a name in any case, and shows it as its entry has it (`known`)."""
    said: dict[str, Any] = {"calls": [], "known": {}, "raises": None, "answers": threading.Event(), "system": ""}
    said["answers"].set()
    ldap, dn = types.ModuleType("ldap"), types.ModuleType("ldap.dn")

    class LDAPError(Exception):
        pass

    class Connection:
        def set_option(self, option: str, value: Any) -> None:
            said["calls"].append((option, value))
            if option == "X_TLS_NEWCTX" and ("X_TLS_CACERTFILE", "gone.pem") in said["calls"]:
                raise ValueError("option error")

        def start_tls_s(self) -> None:
            said["calls"].append("start_tls")
            said["answers"].wait(60.0)

        def simple_bind_s(self, who: str, password: str) -> None:
            said["calls"].append(("bind", who))
            if said["raises"]:
                raise said["raises"]
            if {each.lower(): it for each, it in said["known"].items()}.get(who.lower()) != password:
                raise ldap.INVALID_CREDENTIALS

        def search_s(self, base: str, scope: int, attrlist: list[str]) -> list[tuple[str, dict[str, Any]]]:
            said["calls"].append(("search", base, scope, attrlist))
            found = [each for each in said["known"] if each.lower() == base.lower()]
            if not found or said.get("hidden"):
                raise ldap.NO_SUCH_OBJECT
            return [(found[0], {})]

        def unbind_s(self) -> None:
            said["calls"].append("unbind")

    def initialize(url: str) -> Connection:
        said["calls"].append(url)
        return Connection()

    def str2dn(name: str) -> list[list[tuple[str, str, int]]]:
        parts = (each.partition("=") for each in re.split(r"(?<!\\),", name))
        return [[(kind, value.replace("\\", ""), 1)] for kind, _, value in parts]

    for error in (
        "INVALID_CREDENTIALS",
        "NO_SUCH_OBJECT",
        "INSUFFICIENT_ACCESS",
        "INVALID_DN_SYNTAX",
        "SERVER_DOWN",
        "CONNECT_ERROR",
    ):
        setattr(ldap, error, type(error, (LDAPError,), {}))
    for name in ("NETWORK_TIMEOUT", "TIMEOUT", "REFERRALS", "X_TLS_REQUIRE_CERT", "X_TLS_DEMAND", "X_TLS_NEWCTX",
                 "X_TLS_CACERTFILE", "X_TLS_CACERTDIR"):  # fmt: skip
        setattr(ldap, f"OPT_{name}", name)
    ldap.LDAPError, ldap.initialize, ldap.SCOPE_BASE = LDAPError, initialize, 0  # type: ignore[attr-defined]
    ldap.get_option = lambda option: said["system"] if option == "X_TLS_CACERTFILE" else None  # type: ignore[attr-defined]
    dn.str2dn = str2dn  # type: ignore[attr-defined]
    dn.escape_dn_chars = lambda text: text.replace(",", "\\,")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ldap", ldap)
    monkeypatch.setitem(sys.modules, "ldap.dn", dn)
    return said


URL = "ldap://ldap.example.org/uid={},ou=people,dc=example,dc=org"


@pytest.mark.row("G-180")
def test_a_directory_is_asked_by_a_bind_over_tls(directory: dict[str, Any]) -> None:
    # Given a directory that knows alice
    directory["known"]["uid=alice,ou=people,dc=example,dc=org"] = "a"
    users = Directory(URL)
    # Expect her password to be right, over TLS with a certificate that holds; no other one; an empty one never asked
    assert users.check("alice", "a") == "ldap://ldap.example.org"
    calls = directory["calls"]
    assert calls[0] == "ldap://ldap.example.org"
    assert ("X_TLS_REQUIRE_CERT", "X_TLS_DEMAND") in calls
    name = "uid=alice,ou=people,dc=example,dc=org"
    assert calls[-4:] == ["start_tls", ("bind", name), ("search", name, 0, ["1.1"]), "unbind"]
    calls.clear()
    assert (users.check("alice", ""), users.check("a b", "a"), calls) == (None, None, [])
    assert users.check("alice", "b") is None
    users.check("alice,ou=admins", "a")
    assert ("bind", "uid=alice\\,ou=admins,ou=people,dc=example,dc=org") in calls


def test_a_directory_that_is_away_is_told_and_who_is_in_stays(directory: dict[str, Any]) -> None:
    users = Directory(URL)
    down = {"desc": "Can't contact LDAP server", "info": "certificate verify failed"}
    directory["raises"] = sys.modules["ldap"].SERVER_DOWN(down)
    with pytest.raises(
        WireError, match=r"asked: Can't contact LDAP server: certificate verify failed\. Is it there, and"
    ):
        users.check("alice", "a")
    assert users.holds("alice", "ldap://ldap.example.org")
    policy = UsersPolicy(AllowAll(), users)
    caller = Caller("x", "alice", PortPlace(user="alice", proof="ldap://ldap.example.org"))
    assert policy.allow(caller, "publish", Subject())


def test_a_directory_that_is_silent_ends_no_wait_but_the_thread_that_asks(
    directory: dict[str, Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a directory that takes connections, and then says nothing
    monkeypatch.setattr(module, "LDAP_SECONDS", 0.05)
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    directory["known"]["uid=alice,ou=people,dc=example,dc=org"] = "a"
    users = Directory(URL)
    directory["answers"].clear()
    # When more log in than may ask at once, expect each to hear that it is silent, and no more threads than that
    for _ in range(LDAP_MOST + 3):
        with pytest.raises(WireTimeoutError, match="has not answered within"):
            users.check("alice", "a")
    assert sum(each.name == "directory-login" for each in threading.enumerate()) == LDAP_MOST
    # When it answers again, expect that the threads end, and a right password is right
    directory["answers"].set()
    eventually(lambda: not any(each.name == "directory-login" for each in threading.enumerate()))
    monkeypatch.setattr(module, "LDAP_SECONDS", 5)
    assert users.check("alice", "a") is not None


def test_a_user_of_a_directory_has_one_name(directory: dict[str, Any]) -> None:
    # Given a directory, to which names in capital and small letters are the same, and rules, to which they are not
    directory["known"]["uid=alice,ou=people,dc=example,dc=org"] = "a"
    audit = Audit()
    policy = UsersPolicy(audit, Directory(URL))
    # When she writes her name otherwise, expect a refusal that says why, and is in the audit log
    with pytest.raises(AccessDeniedError, match=r"'ALICE' is not as the directory .* writes"):
        policy.login(Caller("10.0.0.1:1", place=PortPlace(peer="10.0.0.1")), "ALICE", "a")
    assert audit.refused == ["ALICE"]
    assert policy.login(Caller("10.0.0.1:1", place=PortPlace(peer="10.0.0.1")), "alice", "a")


def test_where_users_cant_read_their_entries_names_have_small_letters(directory: dict[str, Any]) -> None:
    directory["known"]["uid=alice,ou=people,dc=example,dc=org"] = "a"
    directory["known"]["uid=zoë,ou=people,dc=example,dc=org"] = "a"
    directory["hidden"] = True
    users = Directory(URL)
    assert users.check("alice", "a") is not None
    for name in ("Alice", "zoë"):
        with pytest.raises(AccessDeniedError, match="small letters of ASCII"):
            users.check(name, "a")


def test_the_authorities_of_a_directory_are_those_given_or_the_systems(directory: dict[str, Any]) -> None:
    # Given a system with authorities; When there are others in [tls], expect those alone
    directory["known"]["uid=alice,ou=people,dc=example,dc=org"], directory["system"] = "a", "system.pem"
    for ca, used in ((None, "system.pem"), (Path("ca.pem"), "ca.pem")):
        directory["calls"].clear()
        assert Directory(URL, ca=ca).check("alice", "a") is not None
        at = directory["calls"].index(("X_TLS_CACERTFILE", used))
        assert at < directory["calls"].index(("X_TLS_NEWCTX", 0))
        assert sum(each[0] == "X_TLS_CACERTFILE" for each in directory["calls"]) == 1
    # When the file is gone, expect its name
    with pytest.raises(WireError, match=r"no authorities can be read from gone\.pem"):
        Directory(URL, ca=Path("gone.pem")).check("alice", "a")


def test_without_the_library_it_is_told_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ldap", None)
    with pytest.raises(ConfigurationError, match=r"jbi-pubsub\[ldap\]"):
        Directory(URL)


@pytest.mark.parametrize(
    "url", ["ldap://host", "ldap://host/uid=x", "http://host/{}", "ldap:///uid={}", "ldap://h/{}{}"]
)
def test_a_url_that_is_none(directory: dict[str, Any], url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a directory"):
        Directory(url)
