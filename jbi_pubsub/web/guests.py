"""Guests of the gateway: itself, or users who have shown a password. Each user has adapters of his own, which log
in as he: servers check him, and rules see him, as if he had connected himself.

Who a request comes from is decided here alone, and asked as `connect` of component `gateway`, by the policy of the
gateway's process. Wrong passwords are counted against who sends them, as at any server (policy/users.py), and reach no
server. Whether a user's account still stands and he may connect is asked every TIDY_SECONDS of the gateway: else what
he has there ends. A directory says nothing of that: his password is checked again with the first request after
CHECKED_SECONDS.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from jbi_pubsub.capi.connection import Share
from jbi_pubsub.core.access import Accounts, Action, Subject, demand, denied
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, BackPressureError, WireError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PeerShares, PortPlace, peer_of
from jbi_pubsub.policy.settings import access_of
from jbi_pubsub.subscriber import SubscriberAdapter

from .common import Common
from .feeds import EventFeeds
from .publishing import GatewayPublisher

log = logging.getLogger("jbi_pubsub.web")

GUESTS_MOST: Final = 16
"""Users at once, each with the bounds of one client; one that does nothing goes for another."""
LOGINS_MOST: Final = 8
"""Passwords that are checked or wait to be: the threads are for those who are in."""
IDLE_SECONDS: Final = 60.0
"""After which what is kept for a user who does nothing ends."""
CHECKED_SECONDS: Final = 2.0
"""A password that was right is checked with the next request after that."""
_USERS: Final = "users"
"""The rule of a decision about an account that is none any more (policy/users.py)."""

_BASIC: Final = "Authorization: Basic, with user and password"

T = TypeVar("T")


class GuestSubscriber(SubscriberAdapter):
    """One of several in this process: each is another user's."""

    _is_only = False


class NobodyError(Exception):
    """Nobody has said who he is, or not so that it could be believed: 401, not 403."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.error = AccessDeniedError(message, hint=hint, action="connect")


class Guest:
    """State of the gateway for one user, or for itself: all that HTTP clients publish and subscribe with."""

    def __init__(self, config: Config, call: Callable[..., Any], *, user: str = "", proof: str = "") -> None:
        self.user, self.proof = user, proof
        self.publishing = GatewayPublisher(config)
        self.share = Share(GuestSubscriber)
        self.common = Common(config, self.share, user=user)
        self.feeds = EventFeeds(partial(call, peer=user), self.subscriber)
        self.client = ("", 0)
        """Where his last request came from (address, port)."""
        self.calls = 0
        self.used = self.checked = time.monotonic()
        self.checking = asyncio.Lock()
        self._config = config
        self._subscriber: SubscriberAdapter | None = None
        self._ending = threading.Thread(target=self._end_common, name="jbi-gateway-end", daemon=True)

    def subscriber(self) -> SubscriberAdapter:
        """That of all his requests, connections of the Common API too. Blocks: for threads. Raises as it does."""
        with self.common.lock:
            if self._subscriber is None:
                self._subscriber = self.share.take(self._config, "gateway")
            return self._subscriber

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a request is answered."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self.used = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether nothing of his is there that could be missed, and he has not asked for a while."""
        busy = self.calls or len(self.feeds) or len(self.common)
        return not busy and time.monotonic() - self.used > IDLE_SECONDS

    def hush(self) -> None:
        """Wake all that wait: nothing more comes. Does not wait itself. Safe to repeat."""
        self.feeds.close()
        if self._ending.ident is None:
            self._ending.start()

    def close(self) -> None:
        """Leave, after `hush`: what he has published goes out first. No part that fails keeps another. Blocks."""
        with guarded("jbi-gateway-leave"):
            self.publishing.close()
        self._ending.join()
        with self.common.lock:
            subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            with guarded("jbi-gateway-leave"):
                subscriber.close()  # queries that are under way end by it
            with guarded("jbi-gateway-leave"):
                self.share.give_back()

    def _end_common(self) -> None:
        with guarded("jbi-gateway-end"):
            self.common.close()


class Guests:
    """All of them. Of the event loop, but for `close`."""

    def __init__(self, config: Config, token: str, call: Callable[..., Awaitable[Any]]) -> None:
        """`token`: what a client sends for the gateway's own rights, "" for none. Raises PolicyError,
        ConfigurationError."""
        self._config = config
        self._token = token.encode()
        self._call = call
        self.own = Guest(config, call)
        self._access = access_of(config, "gateway")
        self._accounts = self._access if isinstance(self._access, Accounts) else None
        self._guests: dict[tuple[str, str], Guest] = {}
        """By user and password: a header says the same in many ways."""
        self._logins = PeerShares(LOGINS_MOST, "too many passwords are being checked")
        self._leaving: list[threading.Thread] = []

    @property
    def everybody(self) -> tuple[Guest, ...]:
        """Users and the gateway itself."""
        return (self.own, *self._guests.values())

    @property
    def challenge(self) -> str:
        """Credentials that a client is asked for (RFC 9110, section 11.6.1)."""
        basic = 'Basic realm="jbi", charset="UTF-8"' if self._accounts is not None else ""
        return ", ".join(each for each in (basic, "Bearer" if self._token else "") if each)

    async def find(self, authorization: str, client: tuple[str, int]) -> tuple[Guest, Caller]:
        """Guest that a request of `client` (address, port) is for, and the caller that rules see. Raises NobodyError,
        AccessDeniedError when he may not connect, BackPressureError when too many are there, WireError when nobody can
        say."""
        scheme, _, said = authorization.partition(" ")
        if scheme.lower() == "basic" and self._accounts is not None:
            login = _credentials(said)
            guest = self._guests.get(login)
            if guest is not None and self._refused_by(self._caller(client, guest)) == _USERS:
                self._end(login)
                guest = None
            if guest is not None:
                guest = await self._checked(login, guest, client)
            if guest is None:
                guest = await self._log_in(login, client)
        elif self._token and scheme.lower() == "bearer" and hmac.compare_digest(said.strip().encode(), self._token):
            guest = self.own
        elif self._token or self._accounts is not None:
            ways = ["a user and password"] * (self._accounts is not None) + ["the gateway's token"] * bool(self._token)
            raise NobodyError(f"this gateway wants {' or '.join(ways)}", f"Authorization: {self.challenge}")
        else:
            guest = self.own
        self.check_connect(caller := self._caller(client, guest))
        guest.client = client
        return guest, caller

    @property
    def version(self) -> int:
        """Goes up whenever the gateway's rules may say something else."""
        return self._access.version if self._access is not None else 0

    def check_connect(self, caller: Caller) -> None:
        """Raises AccessDeniedError."""
        if self._refused_by(caller, record=True) is not None:
            raise denied(caller, "connect", Subject())

    def check_subscribe(self, caller: Caller, name: str, version: str) -> None:
        """Whether a type may be subscribed to, "" for any, as the gateway's rules say: servers are asked when something
        matches, and tell the subscription then. Raises AccessDeniedError."""
        if self._access is not None:
            demand(self._access, caller, ("subscribe", Subject(name, version, some=not (name and version))))

    def seen(self, caller: Caller, types: Iterable[TypeName]) -> list[TypeName]:
        """Those of which the gateway's rules let him have or publish something: others are not named to him."""
        access = self._access
        if access is None:
            return list(types)
        actions: tuple[Action, ...] = ("subscribe", "query", "publish")
        return [t for t in types if any(access.allow(caller, each, Subject(t.name, t.version)) for each in actions)]

    async def dismiss(self) -> None:
        """End users who do nothing, and those who are not to be here any more. Waits for nobody."""
        for key, guest in list(self._guests.items()):
            if guest.is_idle or self._refused_by(self._caller(guest.client, guest)) is not None:
                self._end(key)

    async def end_idle(self) -> None:
        """End what nobody uses, of each by himself: he may have to wait for his delegate, or have no room for that.
        Raises what one of them has raised."""
        ends = [end() for each in self.everybody for end in (each.feeds.end_idle, each.common.end_idle)]
        for said in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(said, BaseException):
                raise said

    def hush(self) -> None:
        """See Guest."""
        for each in self.everybody:
            each.hush()

    def close(self) -> None:
        """See Guest; each waits for his own delegate."""
        with ThreadPoolExecutor(GUESTS_MOST + 1, thread_name_prefix="jbi-gateway-end") as ending:
            list(ending.map(Guest.close, self.everybody))
        for each in self._leaving:
            each.join()
        if self._access is not None:
            self._access.close()

    async def _log_in(self, login: tuple[str, str], client: tuple[str, int]) -> Guest:
        user, password = login
        accounts = self._accounts
        assert accounts is not None
        caller = self._caller(client)
        with self._logins.held(caller.place.peer):
            try:
                proof = await self._call(lambda: accounts.login(caller, user, password), caller.place.peer)
            except AccessDeniedError as exc:
                raise NobodyError(exc.message, _BASIC) from exc
        guest = self._guests.get(login)  # another request was first
        if guest is None:
            self._make_room()
            client_section = msgspec.structs.replace(self._config.client, user=user, password=password)
            config = msgspec.structs.replace(self._config, client=client_section)
            guest = self._guests.setdefault(login, Guest(config, self._call, user=user, proof=proof))
            guest.client = client
        return guest

    async def _checked(self, login: tuple[str, str], guest: Guest, client: tuple[str, int]) -> Guest | None:
        """The same, after another look at his password, if the last is long ago; None: he has left meanwhile. He stays
        when nobody can say. Raises NobodyError, BackPressureError."""
        accounts = self._accounts
        assert accounts is not None
        async with guest.checking:
            if time.monotonic() - guest.checked < CHECKED_SECONDS:
                return guest
            if self._guests.get(login) is not guest:
                return None
            caller = self._caller(client, guest)
            try:
                with guest.in_use():
                    await self._call(lambda: accounts.login(caller, *login), f"password of {guest.user}")
            except AccessDeniedError as exc:
                self._end(login)
                raise NobodyError(exc.message, _BASIC) from exc
            except BackPressureError:
                raise
            except WireError as exc:
                log.warning("%s stays: %s", guest.user, exc)
            guest.checked = time.monotonic()
            return guest

    def _make_room(self) -> None:
        """Raises BackPressureError."""
        if len(self._guests) < GUESTS_MOST:
            return
        quiet = [key for key, g in self._guests.items() if not (g.calls or len(g.feeds) or len(g.common))]
        if not quiet or sum(each.is_alive() for each in self._leaving) >= GUESTS_MOST:
            raise BackPressureError(f"{GUESTS_MOST} users are here", hint="Come again")
        self._end(min(quiet, key=lambda key: self._guests[key].used))

    def _end(self, key: tuple[str, str]) -> None:
        """He leaves on a thread of his own, which may wait for his delegate."""
        guest = self._guests.pop(key)
        guest.hush()
        leaving = threading.Thread(target=guest.close, name="jbi-gateway-leave", daemon=True)
        leaving.start()
        self._leaving = [*(each for each in self._leaving if each.is_alive()), leaving]

    def _caller(self, client: tuple[str, int], guest: Guest | None = None) -> Caller:
        host, port = client
        user, proof = (guest.user, guest.proof) if guest is not None else ("", "")
        peer = f"user {user}" if user else peer_of(host)
        return Caller(with_port(host, port), user, PortPlace(peer=peer, user=user, proof=proof), client="gateway")

    def _refused_by(self, caller: Caller, *, record: bool = False) -> str | None:
        """The rule by which it may not connect; None: it may."""
        if self._access is None:
            return None
        decision = self._access.allow(caller, "connect", Subject())
        if record and (not decision or decision.audit):
            self._access.record(caller, "connect", Subject(), decision)
        return None if decision else decision.rule


def _credentials(said: str) -> tuple[str, str]:
    """User and password, as `Basic` says them (RFC 7617). Raises NobodyError."""
    try:
        text = base64.b64decode(said.strip().encode("latin-1"), validate=True).decode()
    except (binascii.Error, UnicodeError) as exc:
        raise NobodyError("the credentials can't be read", "base64 of USER:PASSWORD, in UTF-8") from exc
    user, colon, password = text.partition(":")
    if not colon:
        raise NobodyError("the credentials have no colon", "base64 of USER:PASSWORD, in UTF-8")
    return user, password
