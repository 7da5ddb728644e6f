"""Roles of a domain, as the file of rules that is shipped gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import msgspec
import pytest

from jbi_pubsub.core.access import Subject
from jbi_pubsub.core.config import ClientSection, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.domains import data
from jbi_pubsub.domains.domain import Domain
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.policy.access import access_rules, review
from jbi_pubsub.policy.file import read
from jbi_pubsub.policy.manager import access_of
from jbi_pubsub.policy.users import Account, with_users, write_accounts
from tests.conftest import Federation

FILE = Path(data.__path__[0]) / "roles.toml"


@pytest.mark.unit
@pytest.mark.row("D-21")
@pytest.mark.row("D-42")
@pytest.mark.parametrize(
    ("user", "publishes", "subscribes"),
    [
        ("heat", {"Monitoring", "Steering"}, {"Steering"}),
        ("anna", {"Collaboration"}, {"Monitoring", "Steering", "Collaboration"}),
        ("bob", {"Steering", "Collaboration"}, {"Monitoring", "Steering", "Collaboration"}),
        ("eve", set(), set()),
    ],
)
def test_roles_may_do_what_the_figure_says(user: str, publishes: set[str], subscribes: set[str]) -> None:
    # Given the rules
    document, _ = read(FILE, name=str(FILE))
    rules = access_rules(document)
    review(document, rules)
    assert (document.errors, document.warnings) == ([], [])
    # When each is asked about each type
    caller = Caller("192.0.2.7:1", identity=user)
    for action, meant in (("publish", publishes), ("subscribe", subscribes)):
        may = {
            type_
            for type_ in ("Monitoring", "Steering", "Collaboration")
            if rules.decide(caller, action, Subject(f"discover.{type_}", "1.0"), component="alpha@rome")  # type: ignore[arg-type]
        }
        # Expect the figure
        assert may == meant, action
    # and whoever has a name to get in
    assert rules.decide(caller, "connect", Subject(), component="lookup")


@pytest.fixture
def login(federation: Federation, tmp_path: Path) -> Callable[[str], Domain]:
    """A domain whose servers have the rules, and the users of the file; what joins it as one of them."""
    write_accounts(tmp_path / "users", {name: Account.of(name, name) for name in ("heat", "anna", "bob")})
    copyfile(FILE, tmp_path / "policy.toml")
    policy = PolicySection(file=str(tmp_path / "policy.toml"), users=str(tmp_path / "users"))
    section = msgspec.structs.replace(federation.config.lookup, port=0, locators=())
    config = msgspec.structs.replace(federation.config, policy=policy, lookup=section)
    lookup = LookupServer(
        config, Registrar(groups=section.groups), access=with_users(access_of(config, "lookup"), config)
    )
    lookup.start()
    federation.stack.callback(lookup.stop)
    found = msgspec.structs.replace(section, locators=(lookup.address,))
    federation.pad(config=msgspec.structs.replace(config, lookup=found))

    def joined(user: str) -> Domain:
        client = ClientSection(user=user, password=user)
        return federation.stack.enter_context(
            Domain(msgspec.structs.replace(federation.config, lookup=found, client=client))
        )

    return joined


@pytest.mark.row("D-21")
def test_who_has_a_role_gets_in_and_may_do_what_it_says(
    login: Callable[[str], Domain], eventually: Callable[..., object]
) -> None:
    # Given an application of a domain with the rules
    alpha, seen, heard = [0.5], threading.Event(), threading.Event()
    heat = login("heat").application("heat", lambda: {"alpha": alpha[0]}, period=0.05)
    heat.steer("alpha", set=lambda value: alpha.__setitem__(0, value), get=lambda: alpha[0])
    # When a junior and a senior find it, expect the junior to watch it, and not to steer
    bob = login("bob").client("bob", lambda _event: heard.set())
    anna = login("anna").client("anna")
    eventually(lambda: anna.find("'alpha' in parameters"))
    anna.watch("heat", "alpha < 0.3", lambda _event: seen.set())
    with pytest.raises(AccessDeniedError, match="may not publish"):
        anna.set("heat", "alpha", 0.9)
    # the senior to steer
    bob.set("heat", "alpha", 0.2)
    assert seen.wait(60.0)
    # and nobody who is none to be an application
    with pytest.raises(AccessDeniedError, match=r"may not publish discover\.Monitoring"):
        login("anna").application("flow", dict)
    assert bob.find("name == 'flow'") == []
    # and both to talk
    anna.talk("bob", "look")
    assert heard.wait(60.0)
