"""Users of the console with a password: those of [policy] users, whom the rules of [policy] file let `connect` to the
component `web`; with [web] admin those that may `administer` as well change something.

Wrong passwords are counted against who sends them, as at any server (policy/users.py). A session ends when its account
goes or has another password, of which a directory says nothing, and when the rules say otherwise than they did at its
login.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from html import escape
from typing import Final
from urllib.parse import parse_qsl

from jbi_pubsub.core.access import AccessPolicy, Accounts, Action, Subject, denied
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PeerShares, PortPlace, peer_of
from jbi_pubsub.policy.settings import access_of

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
CHECKED_MOST: Final = 8
"""Passwords that are checked or wait to be."""
FORM_MOST: Final = 8 << 10
"""Bytes of a form with name and password."""

_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Log in - jbi-pubsub</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light dark; font-family: system-ui, "Segoe UI", Roboto, sans-serif; }}
main {{ max-width: 20rem; margin: 12vh auto; padding: 0 1rem; }} h1 {{ font-size: 1.4rem; }}
label {{ display: block; margin: 1rem 0; }} input, button {{ font: inherit; padding: .5rem; }}
input {{ width: 100%; box-sizing: border-box; margin-top: .25rem; }} p {{ min-height: 3em; font-weight: 600; }}
</style><main><h1>jbi-pubsub console</h1><form method="post" action="{to}">
<label>User <input name="user" autocomplete="username" maxlength="100" required autofocus></label>
<label>Password
<input name="password" type="password" autocomplete="current-password" maxlength="1000" required></label>
<button>Log in</button><p role="alert">{told}</p></form></main></html>"""


def login_page(told: str = "") -> str:
    """The form, and why the last try was refused."""
    return _PAGE.format(to=LOGIN, told=escape(told))


@dataclass(frozen=True, slots=True)
class WebUser:
    """Somebody who has logged in, from `client` (address, port). `proof`: the account that the password was checked
    against."""

    user: str
    proof: str
    client: tuple[str, int]
    is_admin: bool


class Logins:
    """Checks passwords, and whether visitors still stand. Of the event loop alone, but for `close`."""

    def __init__(self, access: AccessPolicy, accounts: Accounts) -> None:
        self._access, self._accounts = access, accounts
        self._checked = PeerShares(CHECKED_MOST, "too many passwords are being checked")

    @classmethod
    def of(cls, config: Config) -> Logins | None:
        """Those that the configuration names; None: nobody has a password here. Raises PolicyError,
        ConfigurationError."""
        access = access_of(config, "web") if config.policy.users else None
        if access is None:
            return None
        if not isinstance(access, Accounts):
            access.close()
            raise ConfigurationError("[policy] users is not for this access policy", key="policy.users")
        return cls(access, access)

    def close(self) -> None:
        """End the access policy."""
        self._access.close()

    async def check(self, form: bytes, client: tuple[str, int]) -> WebUser:
        """Somebody by the form that the browser at `client` has sent. Raises AccessDeniedError, BackPressureError, and
        WireError when nobody can say now."""
        given = dict(parse_qsl(form[:FORM_MOST].decode("utf-8", "replace")))
        user, password = given.get("user", ""), given.get("password", "")
        caller = _caller(client)
        with self._checked.held(caller.place.peer):
            proof = await asyncio.to_thread(self._accounts.login, caller, user, password)
        known = _caller(client, user, proof)
        decision = self._access.allow(known, "connect", Subject())
        if not decision or decision.audit:
            self._access.record(known, "connect", Subject(), decision)
        if not decision:
            raise denied(known, "connect", Subject())
        return WebUser(user, proof, client, self._may(known, "administer"))

    def stands(self, visitor: WebUser) -> bool:
        """Whether the account, and what its user may, are still those of the login."""
        caller = _caller(visitor.client, visitor.user, visitor.proof)
        return self._may(caller, "connect") and self._may(caller, "administer") == visitor.is_admin

    def _may(self, caller: Caller, action: Action) -> bool:
        return self._access.allow(caller, action, Subject()).allowed


def _caller(client: tuple[str, int], user: str = "", proof: str = "") -> Caller:
    host, port = client
    place = PortPlace(peer=f"user {user}" if user else peer_of(host), user=user, proof=proof)
    return Caller(with_port(host, port), user, place, client="console")
