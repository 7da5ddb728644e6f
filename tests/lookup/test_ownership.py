"""Whose item it is: only its owner replaces it, whatever has happened in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import AccessDeniedError, LookupNotFoundError, UnknownLeaseError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.join import JoinedItems, JoinManager
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.records import ItemKept, KeptState
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.store import Store

NOW = 1000.0


def item(service_id: str = "printer-1", port: int = 1) -> ServiceItem:
    return ServiceItem(service_id, ("Printer",), ServiceRef("printer", "printer", (f"127.0.0.1:{port}",)))


def shown(registrar: Registrar, now: float = NOW) -> list[str]:
    return [i.proxy.endpoints[0] for i in registrar.lookup_all(ServiceTemplate(types=("Printer",)), now, 10).items]


def test_an_item_with_a_key_is_replaced_with_that_key_only():
    registrar = Registrar()
    first = registrar.register(item(), 60.0, NOW, key="mine").result
    for key in ("", "theirs"):
        with pytest.raises(AccessDeniedError, match="another owner"):
            registrar.register(item(port=2), 60.0, NOW, key=key)
    assert shown(registrar) == ["127.0.0.1:1"]
    registrar.renew(first.lease_id, 60.0, NOW)  # the refusals have not touched its lease
    registrar.register(item(port=3), 60.0, NOW, key="mine")
    assert shown(registrar) == ["127.0.0.1:3"]


def test_an_item_without_a_key_is_everybodys_as_in_jini():
    registrar = Registrar()
    registrar.register(item(), 60.0, NOW)
    registrar.register(item(port=2), 60.0, NOW, key="theirs")
    assert shown(registrar) == ["127.0.0.1:2"]


@pytest.mark.parametrize("reaped", [False, True])
def test_when_the_lease_has_run_out_the_id_is_free(reaped: bool):
    registrar = Registrar()
    registrar.register(item(), 60.0, NOW, key="mine")
    if reaped:
        registrar.expire(NOW + 60.0)
    registrar.register(item(port=2), 60.0, NOW + 60.0, key="theirs")
    assert shown(registrar, NOW + 60.0) == ["127.0.0.1:2"]
    with pytest.raises(AccessDeniedError):
        registrar.register(item(), 60.0, NOW + 60.0, key="mine")


def test_an_equal_proxy_does_not_open_the_item_of_another_owner():
    registrar = Registrar()
    mine = registrar.register(item(""), 60.0, NOW, key="mine").result
    theirs = registrar.register(item(""), 60.0, NOW, key="theirs").result
    assert mine.service_id != theirs.service_id
    registrar.renew(mine.lease_id, 60.0, NOW)
    again = registrar.register(item(""), 60.0, NOW, key="mine").result
    assert again.service_id == mine.service_id
    registrar.renew(theirs.lease_id, 60.0, NOW)


def test_a_registration_costs_the_same_however_many_others_have_an_equal_proxy(monkeypatch: pytest.MonkeyPatch):
    """Given many items of others with one proxy, and one's own that is the last of them; when it is registered again
    without an id, it is found without a look at the others."""
    registrar = Registrar()
    item = ServiceItem("", ("Service",), ServiceRef("", "service", ("127.0.0.1:1",)))
    for number in range(500):
        registrar.register(item, 60.0, NOW, key=f"key {number}")
    own = registrar.register(item, 60.0, NOW, key="own").result
    looked_at: list[str] = []
    is_live = registrar._leases.items.is_live

    def counting(lease_id: str, now: float) -> bool:
        looked_at.append(lease_id)
        return is_live(lease_id, now)

    monkeypatch.setattr(registrar._leases.items, "is_live", counting)
    assert registrar.register(item, 60.0, NOW, key="own").result.service_id == own.service_id
    assert len(looked_at) < 5


def test_attributes_are_changed_by_who_holds_the_lease_and_nobody_is_told_its_id():
    registrar = Registrar()
    got = registrar.register(item(), 60.0, NOW, key="mine").result
    with pytest.raises(UnknownLeaseError):
        registrar.set_attributes(got.service_id, "guessed", (), NOW)
    public = (
        registrar.lookup_all(ServiceTemplate(), NOW, 10),
        registrar.status(),
        registrar.notify(ServiceTemplate(), 7, 9.0, NOW),
    )
    assert got.lease_id not in str(public)


def test_the_own_item_is_nobodys_but_the_lookup_services():
    registrar = Registrar(service_id="own")
    registrar.put_own(item("own"), NOW)
    with pytest.raises(AccessDeniedError):
        registrar.register(item("own"), 60.0, NOW)
    for call in (
        lambda: registrar.renew("own", 60.0, NOW),
        lambda: registrar.cancel("own", NOW),
        lambda: registrar.set_attributes("own", "own", (), NOW),
    ):
        with pytest.raises((UnknownLeaseError, AccessDeniedError)):
            call()
    # nor does an equal proxy take it
    assert registrar.register(item(""), 60.0, NOW).result.service_id != "own"
    assert registrar.status().items == 1


def test_the_own_item_follows_what_it_says_never_ends_and_is_told_of():
    registrar = Registrar(service_id="own")
    registrar.notify(ServiceTemplate(types=("Printer",)), 7, 60.0, NOW)
    assert [e.transition for _, e in registrar.put_own(item("own"), NOW).events] == [2]
    assert [e.transition for _, e in registrar.put_own(item("own", 2), NOW).events] == [4]
    assert registrar.expire(1e12).result == 1, "the event registration only"
    assert shown(registrar, 1e12) == ["127.0.0.1:2"]
    assert registrar.status().items == 0, "it does not count"


def test_the_owner_is_known_after_a_restart_and_its_key_is_not_on_the_disk(tmp_path: Path):
    path = tmp_path / "state.db"
    store = Store(path)
    registrar = Registrar(log=store)
    registrar.restore(store.recover(NOW, time.time()), NOW)
    registrar.register(item(), 600.0, NOW, key="my very own key")
    store.close()
    assert b"my very own key" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    store = Store(path)
    again = Registrar(log=store)
    again.restore(store.recover(NOW, time.time()), NOW)
    with pytest.raises(AccessDeniedError):
        again.register(item(port=2), 60.0, NOW, key="theirs")
    again.register(item(port=3), 60.0, NOW, key="my very own key")
    assert shown(again) == ["127.0.0.1:3"]
    store.close()


def test_a_changed_item_stays_its_owners():
    records: list[Any] = []

    class Log:
        def admit(self) -> None: ...

        def write(self, written: Any) -> None:
            records.extend(written)

    registrar = Registrar(log=Log())
    got = registrar.register(item(), 60.0, NOW, key="mine").result
    registrar.set_attributes(got.service_id, got.lease_id, (), NOW)
    again = Registrar()
    again.restore(KeptState(None, tuple(r for r in records if isinstance(r, ItemKept))[-1:]), NOW)
    with pytest.raises(AccessDeniedError):
        again.register(item(port=2), 60.0, NOW, key="theirs")


# -- over the wire ------------------------------------------------------------------------------------------------


def proxy_of(federation: Any, number: int = 0) -> RegistrarProxy:
    made = RegistrarProxy(ServiceRef("", EXPORTED, (federation.lookups[number].address,)), Security())
    federation.stack.callback(made.close)
    return made


def test_a_stranger_cant_replace_what_a_process_keeps_joined_at_any_lookup_service(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a service that is joined at two lookup services
    federation.lookup()
    community = JoinManager(federation.config, name="owner")
    federation.stack.callback(community.close)
    eventually(lambda: len(community.sessions()) == 2)
    community.join(item())
    assert community.wait_joined("printer-1", 60.0) == 2
    # When a stranger registers its id
    for number in (0, 1):
        with pytest.raises(AccessDeniedError, match="another owner"):
            proxy_of(federation, number).register(item(port=666), 60.0, "guessed")
    # Expect the owner's item, which the owner may still replace
    community.join(item(port=2))
    assert community.wait_joined("printer-1", 60.0) == 2
    found = community.lookup(ServiceTemplate(types=("Printer",)))
    assert [each.proxy.endpoints for each in found] == [("127.0.0.1:2",)]


def test_the_owner_registers_again_after_its_lease_was_lost(federation: Any, eventually: Callable[..., Any]) -> None:
    # Given a joined service, whose lease id the process then does not know any more
    community = JoinManager(federation.config, name="owner")
    federation.stack.callback(community.close)
    community.join(item())
    community.wait_joined("printer-1", 60.0)
    [session] = community.sessions()
    session._joined.clear()
    # When it brings things in order
    community.join(item(port=2))
    # Expect the new item, under the same key
    assert community.wait_joined("printer-1", 60.0) == 1
    assert proxy_of(federation).lookup(ServiceTemplate("printer-1"), 1).items[0].proxy.endpoints == ("127.0.0.1:2",)


def test_a_process_that_keeps_its_ids_and_its_secret_owns_its_items_after_a_restart(federation: Any) -> None:
    # Given a service whose process was killed: its item is still there
    first = JoinManager(federation.config, name="first", secret="kept in a file")
    first.join(item())
    first.wait_joined("printer-1", 60.0)
    for session in first.sessions():
        session._joined.clear()  # so that leaving cancels nothing
    first.close()
    assert federation.lookups[0].status()["items"] == 1
    # When another one without the secret comes, and then the restarted one
    stranger = JoinManager(federation.config, name="stranger")
    federation.stack.callback(stranger.close)
    stranger.join(item(port=666))
    again = JoinManager(federation.config, name="again", secret="kept in a file")
    federation.stack.callback(again.close)
    again.join(item(port=2))
    # Expect that the latter has it
    assert again.wait_joined("printer-1", 60.0) == 1
    assert proxy_of(federation).lookup(ServiceTemplate("printer-1"), 1).items[0].proxy.endpoints == ("127.0.0.1:2",)


def test_each_lookup_service_gets_a_key_of_its_own() -> None:
    # Given what a process shows to two lookup services for one item, and for two items
    items = JoinedItems("secret")
    keys = {items.key(service, registrar) for service in ("a", "b") for registrar in ("one", "two")}
    # Expect that one says nothing about another, nor about the secret
    assert len(keys) == 4
    assert not any("secret" in key for key in keys)


@pytest.mark.processes
def test_who_waits_for_a_lookup_service_is_told_when_its_process_leaves(fixtures: Any) -> None:
    # Given a community without a lookup service, and somebody who waits a minute for one
    community = JoinManager(fixtures.test_config(), name="left")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(community.lookup, ServiceTemplate(), timeout=60.0)
        # When the process leaves, expect an end, with the reason
        community.close()
        with pytest.raises(LookupNotFoundError, match="before we left"):
            waiting.result(30.0)
