"""Users without a certificate: a name and a password, checked by a file or by a directory.

A password that was right makes a connection its user's, as a certificate would; rules (`user`, `group`, `role`) see no
difference. The file is looked at again when somebody asks and a quarter of a second has passed: an account that is
gone, or has another password, is nobody's from then on, and what stood on it ends when contracts are asked about next.

The file has a line a user, `name:$scrypt$ln=14,r=8,p=1$SALT$KEY` (RFC 7914; the form is that of PHC strings), and is
written by `jbi users` alone.

The directory is asked by python-ldap (the only `ldap`), with one simple bind (RFC 4513, section 5.1.3) a login, over
TLS. It tells nobody when an account goes: what stands ends with its connection, or when rules say so. A directory takes
a name in any case and width, and rules do not: the name must be that of the user's entry. The tests use a stand-in of
python-ldap; the code has run with OpenLDAP 2.5.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import logging
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from jbi_pubsub.core.access import AccessPolicy, Action, Decision, Passing, Subject
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    JbiError,
    PolicyError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.files import Watched, written
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.status import AccessStatus, UsersStatus
from jbi_pubsub.core.wire.endpoint import Caller, Login
from jbi_pubsub.core.xml import give_back

from .file import failure

log = logging.getLogger("jbi_pubsub.policy")

NAME: Final = re.compile(r"[^\s:*?\[\]{}\"'\\]{1,100}")
"""A user's name: no blanks, nothing that rules or the file's lines give another meaning."""
PASSWORD_MOST: Final = 1_000
"""Characters; a longer one is refused unseen."""
FILE_MOST: Final = 8 << 20
"""Bytes of a password file: some 60,000 users."""
LINE: Final = re.compile(r"([^:]+):\$scrypt\$ln=(\d{1,2}),r=8,p=1\$([A-Za-z0-9+/=]{8,64})\$([A-Za-z0-9+/=]{16,128})")
COST: Final = 14
"""log2 of scrypt's N: 16 MiB and some 50 ms a check (RFC 7914, section 2; OWASP's least is 17 with r=8)."""
COST_MOST: Final = 20
LOOK_SECONDS: Final = 0.25
"""Between two looks at the file."""
WAIT_SECONDS: Final = 5.0
"""For a turn to be checked: one is checked at a time, whatever strangers ask for."""
FAILURES_MOST: Final = 10
"""Failures of one peer for one name in FAILURES_SECONDS; after that it is refused unseen."""
PEER_FAILURES_MOST: Final = 60
"""Failures of one peer for all names: 3 s of work. It does not count for names that were right from there lately."""
KNOWN_FAILURES_MOST: Final = 60
"""Failures of one peer for a name that was right from there lately: who shares its address must not lock it out."""
SLOW_SECONDS: Final = 1.0
"""Until such a one is told that it is wrong, once it has been so FAILURES_MOST times."""
RIGHT_SECONDS: Final = 86_400.0
"""Seconds that a name counts as right lately."""
FAILURES_SECONDS: Final = 60.0
TRIED_MOST: Final = 2_000
"""Peers, and peers with a name, whose failures are counted; of more the oldest are forgotten."""
KNOWN_MOST: Final = 256
"""Passwords that were right, which are not checked by scrypt again: clients come back often."""
LDAP_SECONDS: Final = 5
"""For a directory to answer."""
STAYS: Final = "Who is logged in stays so"
LDAP_MOST: Final = 16
"""Logins that ask a directory at once. No timeout of the library covers the TLS handshake: a silent one keeps them."""


class Users(Protocol):
    """Knows users by their passwords. Safe from several threads."""

    @property
    def version(self) -> int:
        """Goes up whenever accounts may have changed."""
        ...

    def check(self, user: str, password: str) -> str | None:
        """Proof that the password is right; None: it is not. Raises WireError when nobody can say now, and
        AccessDeniedError when it is right, but the name is written otherwise."""
        ...

    def holds(self, user: str, proof: str) -> bool:
        """Whether what `check` has returned is still right."""
        ...

    def status(self) -> UsersStatus:
        """Where passwords are checked."""
        ...


class Account(NamedTuple):
    """A line of the file."""

    name: str
    cost: int
    salt: bytes
    key: bytes

    @classmethod
    def of(cls, name: str, password: str) -> Account:
        """A new one. Raises ConfigurationError for a name or password that can't be one."""
        check_name(name)
        if not password or len(password) > PASSWORD_MOST:
            raise ConfigurationError(f"a password has 1 to {PASSWORD_MOST} characters")
        salt = secrets.token_bytes(16)
        return cls(name, COST, salt, _derived(password, salt, COST))

    def line(self) -> str:
        """As it stands in the file."""
        salt, key = (base64.b64encode(each).decode() for each in (self.salt, self.key))
        return f"{self.name}:$scrypt$ln={self.cost},r=8,p=1${salt}${key}"


def check_name(name: str) -> None:
    """Raises ConfigurationError."""
    if not NAME.fullmatch(name) or not name.isprintable():
        raise ConfigurationError(
            f"{name[:100]!r} is not a user's name",
            hint="1 to 100 characters without blanks and any of : * ? [ ] { } \" ' \\",
        )


def read_accounts(path: Path) -> dict[str, Account]:
    """Those of a file, by name. Raises PolicyError, with its line."""
    try:
        with path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o022:
                raise failure(str(path), "others may write it", hint=f"chmod go-w {path}")
            text = opened.read(FILE_MOST + 1)
    except OSError as exc:
        raise failure(str(path), exc.strerror or str(exc), hint="`jbi users add NAME` makes one") from exc
    if len(text) > FILE_MOST:
        raise PolicyError(f"{path} has more than {FILE_MOST} bytes", file=str(path), line=0, column=0)
    found: dict[str, Account] = {}
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        account = _account(line)
        if account is None or account.name in found:
            raise PolicyError(
                f"{path}:{number}: " + ("no account" if account is None else f"{account.name} a second time"),
                hint="Lines are written by `jbi users`",
                file=str(path),
                line=number,
                column=1,
            )
        found[account.name] = account
    return found


def _account(line: str) -> Account | None:
    match = LINE.fullmatch(line.strip())
    if match is None or not NAME.fullmatch(match[1]) or int(match[2]) > COST_MOST:
        return None
    try:
        salt, key = (base64.b64decode(match[each], validate=True) for each in (3, 4))
    except ValueError:
        return None
    return Account(match[1], int(match[2]), salt, key)


def write_accounts(path: Path, accounts: Mapping[str, Account]) -> None:
    """As a whole, for the file's user alone. Raises PolicyError."""
    try:
        with written(path) as out:
            out.writelines(f"{accounts[name].line()}\n".encode() for name in sorted(accounts))
    except OSError as exc:
        raise failure(str(path), exc.strerror or str(exc)) from exc


def memory_of(cost: int) -> int:
    """Bytes that scrypt takes (RFC 7914, section 2: 128 r N)."""
    return 128 * 8 << cost


def _derived(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << cost, r=8, p=1, dklen=32, maxmem=2 * memory_of(cost))


class PasswordFile:
    """The users of a file. One that can't be used leaves the accounts of before in force, and says so."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises PolicyError for a file that can't be used."""
        self.path = path
        self.fault = ""
        self._turn = threading.Lock()
        """One scrypt at a time."""
        self._file = Watched((path,), lambda: read_accounts(path), every=LOOK_SECONDS, clock=clock)
        self._nobody = Account("", COST, secrets.token_bytes(16), b"")
        self._secret = secrets.token_bytes(32)
        self._known: Cache[bytes, None] = Cache(KNOWN_MOST)

    @property
    def version(self) -> int:
        """See Users."""
        self._look()
        return self._file.version

    def check(self, user: str, password: str) -> str | None:
        """See Users. An unknown user costs as much as a known one."""
        account = self._look().get(user)
        proof = account.line() if account is not None else ""
        if not password or len(password) > PASSWORD_MOST:
            return None
        known = hmac.digest(self._secret, f"{proof}\0{password}".encode(), "sha256")
        if account is not None and known in self._known:
            return proof
        if not self._turn.acquire(timeout=WAIT_SECONDS):
            raise WireTimeoutError("too many logins at once", hint="Try again")
        asked = account or self._nobody
        try:
            right = hmac.compare_digest(_derived(password, asked.salt, asked.cost), asked.key)
            if not right or account is None:
                return None
            self._known[known] = None
        finally:
            give_back(memory_of(asked.cost))  # before the next one: else each thread's heap keeps its own
            self._turn.release()
        return proof

    def holds(self, user: str, proof: str) -> bool:
        """See Users."""
        account = self._look().get(user)
        return account is not None and account.line() == proof

    def status(self) -> UsersStatus:
        """See Users."""
        file = self._file
        return UsersStatus(file=str(self.path), users=len(file.value), version=file.version, fault=self.fault)

    def _look(self) -> Mapping[str, Account]:
        try:
            if self._file.look():
                self.fault = ""
                log.warning("%s: %d users", self.path, len(self._file.value))
        except PolicyError as exc:
            self.fault = exc.message
            log.error("%s; the previous accounts stay in force", exc)
        return self._file.value


class Directory:
    """The users of an LDAP directory."""

    version: Final = 1

    def __init__(self, url: str, *, ca: Path | None = None, insecure: bool = False) -> None:
        """`ca`: PEM file of the authority of the directory's certificate; None: those that the system trusts. Raises
        ConfigurationError: no such URL, or no python-ldap."""
        parts = urlsplit(url)
        self._name = unquote(parts.path.lstrip("/"))
        if parts.scheme not in ("ldap", "ldaps") or not parts.netloc or self._name.count("{}") != 1:
            raise ConfigurationError(
                f"[policy] users {url!r} is not a directory",
                hint="For example ldaps://ldap.example.org/uid={},ou=people,dc=example,dc=org",
                key="policy.users",
            )
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._ca = ca
        self._starts_tls = parts.scheme == "ldap" and not insecure
        self._has_tls = parts.scheme == "ldaps" or self._starts_tls
        self._places = threading.BoundedSemaphore(LDAP_MOST)
        try:
            self._ldap: Any = importlib.import_module("ldap")
            self._dn: Any = importlib.import_module("ldap.dn")
        except ImportError as exc:
            raise ConfigurationError(
                f"[policy] users {self._url} needs the library python-ldap: {exc}",
                hint="Install it: pip install 'jbi-pubsub[ldap]'",
                key="policy.users",
            ) from exc

    def check(self, user: str, password: str) -> str | None:
        """See Users. An empty password binds as nobody, and directories say yes to that (RFC 4513, section 5.1.2): it
        is refused here."""
        if not password or len(password) > PASSWORD_MOST or not NAME.fullmatch(user):
            return None
        if not self._places.acquire(timeout=WAIT_SECONDS):
            raise self._silence()
        answer: list[bool | JbiError] = []
        asking = threading.Thread(target=self._ask, args=(user, password, answer), name="directory-login", daemon=True)
        asking.start()
        asking.join(LDAP_SECONDS)
        if not answer:
            raise self._silence()
        if isinstance(answer[0], JbiError):
            raise answer[0]
        return self._url if answer[0] else None

    def _silence(self) -> WireTimeoutError:
        return WireTimeoutError(f"the directory {self._url} has not answered within {LDAP_SECONDS} s", hint=STAYS)

    def _ask(self, user: str, password: str, answer: list[bool | JbiError]) -> None:
        with guarded("directory-login"):
            try:
                answer.append(self._is_right(user, password))
            except JbiError as exc:
                answer.append(exc)
        self._places.release()

    def _is_right(self, user: str, password: str) -> bool:
        ldap = self._ldap
        connection = ldap.initialize(self._url)
        name = self._name.replace("{}", self._dn.escape_dn_chars(user))
        try:
            self._set_up(connection)
            if self._starts_tls:
                connection.start_tls_s()
            connection.simple_bind_s(name, password)
            self._check_spelling(connection, name, user)
        except ldap.INVALID_CREDENTIALS:
            return False
        except ldap.LDAPError as exc:
            raise self._failure(exc) from exc
        finally:
            try:
                connection.unbind_s()
            except ldap.LDAPError as exc:  # it is gone: that is what was wanted
                log.debug("directory %s: %s", self._url, exc)
        return True

    def _set_up(self, connection: Any) -> None:
        """Raises WireError for authorities that can't be read."""
        ldap = self._ldap
        connection.set_option(ldap.OPT_NETWORK_TIMEOUT, LDAP_SECONDS)
        connection.set_option(ldap.OPT_TIMEOUT, LDAP_SECONDS)
        connection.set_option(ldap.OPT_REFERRALS, 0)
        if not self._has_tls:
            return
        connection.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND)
        if self._ca is not None:
            trusted = {ldap.OPT_X_TLS_CACERTFILE: str(self._ca)}
        else:  # those of the system: a new context has none
            trusted = {each: ldap.get_option(each) for each in (ldap.OPT_X_TLS_CACERTFILE, ldap.OPT_X_TLS_CACERTDIR)}
        for option, place in trusted.items():
            if place:
                connection.set_option(option, place)
        try:
            connection.set_option(ldap.OPT_X_TLS_NEWCTX, 0)
        except ValueError as exc:
            places = " and ".join(filter(None, trusted.values()))
            raise WireError(
                f"the directory {self._url} can't be asked: no authorities can be read from {places}", hint=STAYS
            ) from exc

    def _check_spelling(self, connection: Any, name: str, user: str) -> None:
        """Raises AccessDeniedError for a name that is not written as that of the user's entry, or, where he may not
        read that, not in small letters of ASCII."""
        ldap = self._ldap
        try:
            entries = connection.search_s(name, ldap.SCOPE_BASE, attrlist=["1.1"])
        except (ldap.NO_SUCH_OBJECT, ldap.INSUFFICIENT_ACCESS, ldap.INVALID_DN_SYNTAX):
            entries = []
        hint = "Log in by the name of its entry, with capital and small letters as there"
        if entries:
            is_own = self._part(entries[0][0]) == self._part(name)
        else:
            is_own = user.isascii() and user == user.lower()
            hint = "Users can't read their entries there: log in by the name in small letters of ASCII"
        if not is_own:
            raise AccessDeniedError(
                f"{user!r} is not as the directory {self._url} writes this user's name", hint=hint, action="connect"
            )

    def _part(self, name: str) -> list[set[str]]:
        """Values in the part of a distinguished name that has the user's."""
        at = len(self._dn.str2dn(self._name.partition("{}")[0])) - 1
        return [{value for _, value, _ in part} for part in self._dn.str2dn(name)[at : at + 1]]

    def _failure(self, exc: Exception) -> WireError:
        """An error of python-ldap, for people."""
        said = exc.args[0] if exc.args and isinstance(exc.args[0], dict) else {}
        told = ": ".join(str(said[each]) for each in ("desc", "info") if said.get(each)) or str(exc)
        hint = STAYS
        if self._has_tls and isinstance(exc, (self._ldap.SERVER_DOWN, self._ldap.CONNECT_ERROR)):
            ca = self._ca or "an authority of the system (TLS_CACERT in ldap.conf)"
            hint = f"Is it there, and its certificate for that name and from {ca}? {hint}"
        return WireError(f"the directory {self._url} can't be asked: {told}", hint=hint)

    def holds(self, user: str, proof: str) -> bool:  # noqa: ARG002  # the protocol's; a directory tells nobody
        """See Users."""
        return proof == self._url

    def status(self) -> UsersStatus:
        """See Users."""
        return UsersStatus(directory=self._url)


class UsersPolicy(Passing):
    """An AccessPolicy for which passwords count: `inner` decides, once it is clear who asks."""

    def __init__(
        self,
        inner: AccessPolicy,
        users: Users | None,
        *,
        own: Login | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Closes `inner`. `own`: how other parts of this process log in, who may do everything."""
        super().__init__(inner)
        self._users = users
        self._own = own
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()  # covers _failures and _right
        self._failures: Cache[str, list[float]] = Cache(TRIED_MOST)
        self._right: Cache[str, float] = Cache(TRIED_MOST)
        """When a name, from a peer, was right last; the longest ago first."""

    @property
    def version(self) -> int:
        """See AccessPolicy."""
        return self._inner.version + (self._users.version if self._users is not None else 0)

    def login(self, caller: Caller, user: str, password: str) -> str:
        """See core.access.Accounts."""
        if self._own is not None and user == self._own.user:
            if not hmac.compare_digest(password.encode(), self._own.password.encode()):
                raise _wrong(user)
            return _OWN
        peer = caller.place.peer or caller.address
        pair = f"{peer} {user[:PASSWORD_MOST]}"
        is_known, tries = self._was_right(pair), self._tried(pair)
        is_too_much = tries >= FAILURES_MOST or self._tried(peer) >= PEER_FAILURES_MOST
        if self._users is None or (tries >= KNOWN_FAILURES_MOST if is_known else is_too_much):
            raise _wrong(user)
        refused = partial(self._inner.record, caller, "connect", Subject(name=user[:100]), Decision(False, "users"))
        try:
            proof = self._users.check(user, password)
        except AccessDeniedError:
            refused()
            raise
        if proof is None:
            self._note(peer, PEER_FAILURES_MOST)
            self._note(pair, KNOWN_FAILURES_MOST)
            refused()
            if tries >= FAILURES_MOST:
                self._pause(SLOW_SECONDS)
            raise _wrong(user)
        with self._lock:
            self._right[pair] = self._clock()
        return proof

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """See AccessPolicy. Who has logged in, and whose account is another now, may nothing more."""
        place = caller.place
        if place.user and place.user == caller.identity:
            if place.proof == _OWN and self._own is not None:
                return Decision(True, "own")
            if self._users is None or not self._users.holds(place.user, place.proof):
                return Decision(False, "users")
        return self._inner.allow(caller, action, subject)

    def status(self) -> AccessStatus:
        """See AccessPolicy."""
        inner = self._inner.status()
        return msgspec.structs.replace(inner, users=self._users.status()) if self._users is not None else inner

    def _was_right(self, pair: str) -> bool:
        with self._lock:
            return self._clock() - self._right.get(pair, -math.inf) < RIGHT_SECONDS

    def _tried(self, who: str) -> int:
        with self._lock:
            since = self._clock() - FAILURES_SECONDS
            return sum(at > since for at in self._failures.get(who, ()))

    def _note(self, who: str, most: int) -> None:
        with self._lock:
            self._failures[who] = [*self._failures.get(who, ())[-most:], self._clock()]


_OWN: Final = "own"


def _wrong(user: str) -> AccessDeniedError:
    return AccessDeniedError(
        f"{user[:100]!r}: no such user, or another password, or too many wrong ones from there within a minute",
        hint="Set [client] user and password",
        action="connect",
    )


def with_users(access: AccessPolicy, config: Config, own: Login | None = None) -> AccessPolicy:
    """The same, where passwords count; `access` itself if they don't. `own`: see UsersPolicy. It is closed if that
    comes to nothing. Raises PolicyError, ConfigurationError."""
    if not config.policy.users and own is None:
        return access
    if config.policy.users and not config.policy.file:
        log.warning("[policy] users without file: everybody may do everything, also without a password")
    try:
        return UsersPolicy(access, users_of(config) if config.policy.users else None, own=own)
    except BaseException:
        access.close()
        raise


def users_of(config: Config) -> Users:
    """Users that [policy] users names. Raises PolicyError, ConfigurationError."""
    place = config.policy.users
    if "://" not in place:
        return PasswordFile(Path(place))
    identity = config.tls.identity()
    return Directory(place, ca=identity.ca if identity is not None else None, insecure=config.tls.insecure)
