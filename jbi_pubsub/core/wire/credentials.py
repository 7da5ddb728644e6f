"""The PEM files of a party as TLS contexts, taken anew when the files change: a certificate that was renewed and a list
of revoked ones count without a restart.

Nobody waits for changes: whoever accepts, connects or calls looks at the files, once in LOOK_SECONDS at most. Files
that are no good then leave in force what was there, and the log says why. When somebody's certificate is on the list,
the standing connections of its holder end; for new ones OpenSSL has the list.

A server is known by its key (`ServiceRef.certificate`): as long as it serves, its certificate may change and its key
may not.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from jbi_pubsub.core.errors import ConfigurationError, WireError
from jbi_pubsub.core.files import Watched

from . import x509
from .port_connections import shut

log = logging.getLogger("jbi_pubsub.wire")

LOOK_SECONDS: Final = 1.0
"""Between two looks at the files: four calls of stat(2)."""

MAX_FILE_BYTES: Final = 32 << 20
"""Most bytes of one file: a list of half a million revoked certificates."""

WARN_SECONDS: Final = 30 * 86_400.0
"""Warning time before an end: public authorities renew then. Of what is good for less than 90 days, a third."""

TELL_SECONDS: Final = 86_400.0
"""Time until that is said again."""

T = TypeVar("T")


class Facts(NamedTuple):
    """Contents of the files, without secrets."""

    certificate: x509.Certificate
    """Ours."""
    authorities: tuple[x509.Certificate, ...]
    """Authorities whose certificates we take."""
    revocations: tuple[x509.RevocationList, ...]
    """Which of those not."""

    def is_revoked(self, holder: str, below: tuple[str, ...] = ()) -> bool:
        """Whether a list names the certificate (`x509.Certificate.holder`), or whatever may have issued it."""
        named, below = holder.partition(":")[2], (*below, holder)
        above = [a.holder for a in self.authorities if a.subject_name.hex() == named and a.holder not in below]
        is_named = any(each.names(holder) for each in self.revocations)
        return is_named or (bool(above) and all(self.is_revoked(each, below) for each in above))


class TlsContexts(NamedTuple):
    """The files as contexts: for listening, for connecting, and for listening to browsers, which are asked for no
    certificate."""

    facts: Facts
    server: ssl.SSLContext
    client: ssl.SSLContext
    site: ssl.SSLContext


def ends_soon(not_before: float, not_after: float, now: float) -> bool:
    """Whether what is good from `not_before` to `not_after` should be renewed by now."""
    return not_after - now < min(WARN_SECONDS, (not_after - not_before) / 3)


def read_facts(certificate: Path, ca: Path, revoked: Path | None) -> Facts:
    """Contents of such files; nothing is verified, neither dates nor signatures. Raises ConfigurationError."""
    own = _parsed(certificate, x509.certificates, "certificate")
    authorities = _parsed(ca, x509.certificates, "certificate")
    lists = _parsed(revoked, x509.revocations, "list of revoked certificates (X509 CRL)") if revoked else []
    return Facts(own[0], tuple(authorities), tuple(lists))


class FileCredentials:
    """See the module. Safe from several threads."""

    def __init__(self, certificate: Path, key: Path, ca: Path, revoked: Path | None) -> None:
        """Reads them at once. Raises ConfigurationError."""
        self._certificate, self._key, self._ca, self._revoked = certificate, key, ca, revoked
        self._watched: weakref.WeakKeyDictionary[ssl.SSLSocket, x509.Certificate] = weakref.WeakKeyDictionary()
        self._watching = threading.Lock()  # covers _watched
        self._serves = False
        self._told_key = -1
        self._told_soon = 0.0
        self.problem = ""
        """Why the files as they are now are not in force; "" when they are."""
        self._files = Watched(self._paths(), self._load, every=LOOK_SECONDS)
        self._tell_end(time.time())

    def latest(self) -> TlsContexts:
        """The contexts, as the files are now."""
        self.look()
        return self._files.value

    @property
    def facts(self) -> Facts:
        """Facts in force."""
        return self._files.value.facts

    def serve(self) -> str:
        """We are about to be known by our key; SHA-256 (hex) of it."""
        self._serves = True
        return self.facts.certificate.key

    def look(self) -> None:
        """Take the files anew if they have changed, and end the connections of those who are revoked now."""
        try:
            if self._files.look():
                self.problem = ""
                log.info("TLS files of %s were read again", self._certificate)
                self._end_revoked()
        except ConfigurationError as exc:
            if str(exc) != self.problem:
                log.error("the previous [tls] files stay in force: %s", exc)
            self.problem = str(exc)
            self._files.forget()
        self._tell_end(time.time())

    def watch(self, sock: ssl.SSLSocket) -> x509.Certificate:
        """The peer's certificate; the connection ends when that is revoked. Raises WireError if it is already."""
        der = sock.getpeercert(binary_form=True)
        try:
            peer = x509.certificate(der or b"")
        except ValueError as exc:
            raise WireError(f"TLS: the certificate shown can't be read: {exc}") from exc
        if self._revoked is not None:
            with self._watching:
                self._watched[sock] = peer
            if self.facts.is_revoked(peer.holder):
                raise WireError(f"TLS: the certificate of {peer.identity} is revoked")
        return peer

    def _end_revoked(self) -> None:
        with self._watching:
            revoked = [(sock, peer) for sock, peer in self._watched.items() if self.facts.is_revoked(peer.holder)]
        for sock, _ in revoked:
            shut(sock)
        for peer, count in Counter(peer for _, peer in revoked).items():
            log.warning("%d connections of %s ended: its certificate %x is revoked", count, peer.identity, peer.serial)

    def _tell_end(self, now: float) -> None:
        """Say daily that something ends soon, or that we are revoked."""
        if abs(now - self._told_soon) >= TELL_SECONDS:  # the clock may have been set back
            self._told_soon = now
            own, authorities, _ = self.facts
            if self.facts.is_revoked(own.holder):
                log.error("TLS certificate %s is revoked: others will refuse it", self._certificate)
            for what, one in (("certificate", own), *(("authority", each) for each in authorities)):
                if ends_soon(one.not_before, one.not_after, now):
                    path = self._certificate if one is own else self._ca
                    verb = "is" if one.not_after > now else "was"
                    log.warning("TLS %s %s %s valid until %s", what, path, verb, shown_time(one.not_after))

    # -- files ----------------------------------------------------------------------------------------------------

    def _paths(self) -> tuple[Path, ...]:
        return (self._certificate, self._key, self._ca, *([self._revoked] if self._revoked else []))

    def _load(self) -> TlsContexts:
        facts = read_facts(self._certificate, self._ca, self._revoked)
        self._check_key()
        if self._revoked is not None:
            self._check_lists(facts, self._revoked, time.time())
        if self._serves and facts.certificate.key != self.facts.certificate.key:
            raise ConfigurationError(
                f"TLS key {self._key}: it is another one, and a server is known by its key",
                hint="Start this process again, or renew for the same key (`jbi certs renew`)",
            )
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.verify_mode = ssl.CERT_REQUIRED
        server.num_tickets = 0  # TLS 1.3 tickets make a fresh socket readable although no request came
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False  # OpenSSL knows neither pins nor several names
        site = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in (server, client, site):
            self.fill(context)
            if {a.issuer_name for a in facts.authorities} <= {each.issuer_name for each in facts.revocations}:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN  # which takes nobody where a list is missing
        return TlsContexts(facts, server, client, site)

    def fill(self, context: ssl.SSLContext) -> None:
        """Our certificate and key, and whom we believe if it asks for certificates. Raises ConfigurationError."""
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: who it is was found out when it began
        try:
            context.load_cert_chain(self._certificate, self._key, password=self._refuse_password)
            if context.verify_mode == ssl.CERT_NONE:
                return
            context.load_verify_locations(self._ca)
            if self._revoked is not None:
                context.load_verify_locations(self._revoked)
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        except ssl.SSLError as exc:
            if "KEY_VALUES_MISMATCH" in (exc.reason or ""):
                raise ConfigurationError(
                    f"TLS key {self._key} does not belong to certificate {self._certificate}",
                    hint="Set the two that were issued together",
                ) from exc
            raise ConfigurationError(
                f"TLS files {', '.join(map(str, self._paths()))}: {exc}",
                hint="Check that they are PEM, and that the key belongs to the certificate",
            ) from exc
        except OSError as exc:
            raise ConfigurationError(f"TLS files {', '.join(map(str, self._paths()))}: {exc.strerror or exc}") from exc

    def _refuse_password(self) -> str:
        raise ConfigurationError(
            f"TLS key {self._key} is encrypted, and nobody is there to be asked",
            hint="Give a key without a passphrase that only this user may read",
        )

    def _check_key(self) -> None:
        """Raises ConfigurationError if it can't be read; said if others can."""
        try:
            with self._key.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
        except OSError as exc:
            raise _unreadable(self._key, exc) from exc
        if mode & (stat.S_IROTH | stat.S_IWOTH) and self._told_key != mode:
            self._told_key = mode
            log.warning("every user of this host may read TLS key %s: chmod 600", self._key)

    def _check_lists(self, facts: Facts, path: Path, now: float) -> None:
        """OpenSSL would take nobody at all with such a list. Raises ConfigurationError."""
        known = {authority.subject_name for authority in facts.authorities}
        for each in facts.revocations:
            if each.issuer_name not in known:
                whose = each.issuer[:200] or "another authority"
                raise ConfigurationError(
                    f"[tls] revoked {path} is of {whose}, which is not in {self._ca}",
                    hint="Set the list of the authority in [tls] ca",
                )
            if each.until < now:
                raise ConfigurationError(
                    f"[tls] revoked {path} was good until {shown_time(each.until)}", hint="Fetch the authority's latest"
                )
            if each.since > now:
                raise ConfigurationError(
                    f"[tls] revoked {path} is good from {shown_time(each.since)} on",
                    hint="Compare the clock of this host with that of its authority",
                )


def shown_time(seconds: float) -> str:
    """As people read it."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if seconds < float("inf") else "ever"


def _parsed(path: Path, parse: Callable[[str], list[T]], what: str) -> list[T]:
    """Items of a file, one at least. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"TLS file {path}: over {MAX_FILE_BYTES >> 20} MiB", hint="Correct it in [tls]")
    try:
        found = parse(data.decode("ascii", errors="replace"))
    except (ValueError, OverflowError) as exc:
        raise ConfigurationError(f"TLS file {path}: no good {what}: {exc}", hint="Give it in PEM") from exc
    if not found:
        raise ConfigurationError(f"TLS file {path}: there is no {what} in it", hint="Give it in PEM")
    return found


def _unreadable(path: Path, failure: OSError) -> ConfigurationError:
    return ConfigurationError(f"TLS file {path}: {failure.strerror or failure}", hint="Correct it in [tls]")
