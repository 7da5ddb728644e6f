"""Configuration: defaults, one TOML file, JBI_* variables, flags, in rising order. Knows where each value is from.

The file is the one named by JBI_CONFIG or --config, else ./jbi.toml, else ~/.config/jbi/jbi.toml, if there is one.
A variable is JBI_<SECTION>_<KEY>, for example JBI_LEASE_SUBSCRIBER=2.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from .errors import ConfigurationError
from .homes import home, user_folder
from .near import near_name
from .node_sections import NETWORK_NAME, DomainSection, GatewaySection, LogSection, NetworkSection, NodeSection
from .section import Binding, Limit, Port, Section, Term, Wait
from .spool import MEMORY_BYTES, SPOOL_LEAST, Spool
from .wire.endpoint import Login, Security
from .wire.stream import CHUNK_BYTES
from .wire.tls import TlsIdentity

CERTIFICATE_FILE, KEY_FILE, CA_FILE, REVOKED_FILE = "certificate.pem", "key.pem", "ca.pem", "crl.pem"
"""Names of what lies in [tls] `folder`."""


class LookupSection(Section, frozen=True):
    """Addresses and names of lookup services, and discovery."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 4160
    """Jini's port (Discovery and Join specification DJ.2.1.4); 0: any free port."""
    name: str = ""
    """Name of this lookup service for people; "" is the host's name."""
    advertise: str = ""
    """Host name or address that others connect to, when it differs from `host`."""
    groups: tuple[str, ...] = ("",)
    """Groups to join and to search; "" is the public group, "*" (clients only) all groups, an empty list none."""
    locators: tuple[str, ...] = ("127.0.0.1:4160",)
    """host:port of lookup services to use in addition to discovery. A lookup service itself joins only those that are
    set, not the default."""
    multicast: bool = True
    """Announce and discover by mDNS."""
    interfaces: tuple[str, ...] = ()
    """Names or addresses of interfaces for mDNS; if empty: loopback, and those of `host` and [pad] `host`."""
    timeout: Wait = 10.0
    """Seconds to wait for a lookup service, or until a delegate is found."""
    refused: Wait = 0.0
    """The same where every address refuses the connection; 0: as `timeout`. Commands that only look wait 2 s."""
    probe: Term = 10.0
    """Seconds between two probes of a lookup service."""
    state: str = ""
    """File in which a lookup service keeps its registrations over restarts; "": none."""


class PadSection(Section, frozen=True):
    """Addresses and limits of delegates and peer publishers."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    hosts: tuple[str, ...] = ()
    """Further addresses, of other interfaces, at the same port if it is free there, otherwise at any free port. Clients
    try all of them."""
    port: Port = 0
    """0: any free port, because clients find delegates through the lookup service."""
    advertise: str = ""
    """Host name or address that others connect to, when it differs from `host`."""
    sockets: str = ""
    """Folder of Unix sockets, "" for none. A delegate or peer publisher also listens on a socket there. Clients of the
    same user on the same host prefer it. Not with [tls]."""
    state: str = ""
    """File in which a delegate keeps its e-mail subscriptions over restarts; FILE.mails keeps unsent mail. "": none."""
    max_registrations: Limit = 10_000
    """Publisher registrations of one delegate; more are refused."""
    max_queued_bytes: Limit = 1 << 30
    """Bytes that may wait in all subscription queues together. Above it publishers wait, and are refused in the end."""
    max_sessions: Limit = 5_000
    """Publishers and subscriber processes connected to one delegate; more are refused. Clients without a data
    connection are disconnected first."""
    max_subscriptions: Limit = 200_000
    """Subscriptions of one delegate; more are refused."""
    keep_seconds: Wait = 10.0
    """Seconds that objects of a new registration are kept for existing subscriptions that connect late. 0 keeps none,
    and the missed objects are reported as lost. Less than 5 s, after which a subscriber tries again, loses objects in
    outages."""
    keep_bytes: Limit = 64 << 20
    """Bytes of all objects that are kept so."""
    settle_seconds: Wait = 2.0
    """Seconds that a publisher that fills `keep_bytes` at once waits, one time. A delegate or peer publisher that stops
    waits as long for subscribers that know of its new registrations."""


class LeaseSection(Section, frozen=True):
    """Seconds of the leases that clients request; renewed at 2/5 of the term (at lookup services at 7/8)."""

    publisher: Term = 60.0
    """Publisher at its delegate."""
    subscriber: Term = 60.0
    """Subscriber at a delegate or peer publisher."""
    lookup: Term = 60.0
    """Delegates and peer publishers at the lookup service."""
    mail: Term = 86_400.0
    """E-mail subscriptions."""
    durable: Term = 2_592_000.0
    """Durable subscriptions while their subscriber is disconnected: 30 days."""
    maximum: Term = 604_800.0
    """Longest lease that a delegate grants, except for durable subscriptions: a week."""


class QueueSection(Section, frozen=True):
    """Subscription queues and publishing."""

    bound: Limit = 10_000
    """Objects that may wait for one subscription at one delegate, and as many again in the subscriber."""
    policy: Literal["drop_oldest", "drop_newest", "block"] = "drop_oldest"
    """Action when a queue is full."""
    block_seconds: Wait = 5.0
    """Seconds that `block` delays the publisher before the object counts as lost."""
    publish_seconds: Wait = 10.0
    """Seconds that publish() waits for capacity before it raises BackPressureError."""


class LinkSection(Section, frozen=True):
    """Settings of the data connections: publications, deliveries, lookup events."""

    compression: Literal["none", "deflate"] = "none"
    """Compression that a client (publisher, subscriber, listener of a lookup service) requests. `deflate` is for slow
    links: it costs both ends processor time (docs/links.md)."""
    window: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes in transit on a data connection of a publisher or subscriber; 0 leaves it to TCP, which fills the queue of
    a slow link, so that leases are not renewed in time. 4096 is 5 s of 7,200 bit/s."""
    chunk: Annotated[int, msgspec.Meta(ge=512, le=CHUNK_BYTES)] = CHUNK_BYTES
    """Bytes of one piece of a larger object; no batch becomes much larger, so that small objects wait no longer than
    for one piece. Publishers use it for publications, delegates for deliveries. 262144 is 0.3 s of 7 Mbit/s, 4096 is 5
    s of 7,200 bit/s. Where a piece takes a hundredth of a second, four times as much may be sent at once."""
    spool: Annotated[int, msgspec.Meta(ge=SPOOL_LEAST, le=MEMORY_BYTES)] = 8 << 20
    """Bytes of an object above which its payload is kept in a file at each end, never in memory."""
    spool_bytes: Limit = 16 << 30
    """Bytes of all such files of one delegate, publisher or subscriber. Above it publishers wait, and are refused in
    the end."""
    spool_folder: str = ""
    """Folder on whose disk they are; "" is $TMPDIR, otherwise /var/tmp. The files have no names, so they are not
    visible."""
    max_compressed: Annotated[int, msgspec.Meta(ge=0)] = 500
    """Compressed connections of one server, up to 0.3 MB each; further ones are not compressed. 0: none."""

    def spooling(self) -> Spool:
        """Where a party's large payloads are kept."""
        return Spool(self.spool_folder, self.spool, self.spool_bytes)


class MailSection(Section, frozen=True):
    """SMTP server for the e-mail of delegates."""

    host: str = "127.0.0.1"
    """Host of the mail server."""
    port: Port = 25
    """Its port."""
    sender: str = "jbi-pubsub@localhost"
    """Sender in envelope and header; it receives bounces."""
    start_tls: Literal["never", "required"] = "never"
    """`required` refuses to send without TLS, and knows the authorities of the system, or of the file SSL_CERT_FILE."""
    username: str = ""
    """For SMTP AUTH; "" for none. It goes to another host over TLS alone, or with tls.insecure."""
    password: str = ""
    """For SMTP AUTH; `jbi config` does not show it."""
    timeout: Term = 15.0
    """Seconds for one SMTP command."""
    try_seconds: Term = 120.0
    """Seconds for a whole attempt, from connecting to the server's answer to the message."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=100)] = 4
    """Simultaneous connections to the mail server, one mail each; a subscription has one at most."""
    idle_seconds: Term = 30.0
    """Seconds without a mail after which a connection is closed."""
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Mails per second at most; 0 for no limit."""
    retries: Annotated[int, msgspec.Meta(ge=0)] = 30
    """Further attempts when the server is not available or answers 4xx."""
    retry_seconds: Wait = 2.0
    """Seconds before the second attempt; doubled each time, up to a minute."""
    suspend_after: Annotated[int, msgspec.Meta(ge=0)] = 10
    """Consecutive mails of a subscription that are refused permanently (5xx), after which its recipient gets no more
    (mail_suspended) until it subscribes again; 0: never."""
    unsubscribe: str = ""
    """URL of `jbi web` for recipients, e.g. https://jbi.example.org:8160. Each recipient then gets a separate mail with
    a link to unsubscribe. "": no link."""
    reminder_seconds: Wait = 7_200.0
    """Seconds before the end of an e-mail subscription's lease at which its recipients get one reminder, except for
    leases shorter than four times that; 0: never."""
    digest_objects: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Objects in one mail of a subscription with the attribute mail_digest_seconds; when as many wait, they are sent at
    once."""
    max_bytes: Limit = 20 << 20
    """Largest mail; a larger one counts as lost (oversize)."""
    queue_bound: Limit = 10_000
    """Mails that may wait in a delegate, a quarter of them for one subscription; further ones are lost
    (queue_overflow)."""
    queue_bytes: Limit = 256 << 20
    """Bytes of these mails, a quarter of them for one subscription; a mail for several subscriptions counts for
    each."""


class TypesSection(Section, frozen=True):
    """Information object types."""

    cache: str = ""
    """Folder of the code generated from schemas, shared by the processes of one user; "" is
    $XDG_CACHE_HOME/jbi-pubsub/types or ~/.cache/jbi-pubsub/types, "none": no cache."""
    folder: str = ""
    """Folder of a delegate's type repository, or NAME://ADDRESS of a plug-in's store; "": no repository."""
    only_known: bool = False
    """Refuse types that the repository does not have."""


class MetricsSection(Section, frozen=True):
    """Prometheus metrics of servers, without TLS: for loopback, or behind a proxy. With a [policy] file the client's
    address needs the right `status`."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, msgspec.Meta(ge=-1, le=65_535)] = -1
    """-1: off; 0: any free port."""
    names: tuple[str, ...] = ()
    """Host names of the page in addition to localhost, addresses, `host` and this host's own name; other names are
    refused."""


class PolicySection(Section, frozen=True):
    """Operators' rules for access and quality of service."""

    file: str = ""
    """policy.toml, read again when it changes, or NAME://ADDRESS of a plug-in; "": everybody may do everything."""
    users: str = ""
    """Passwords of users without a certificate: the file that `jbi users` writes, read again when it changes, or a
    directory, ldaps://HOST/uid={},ou=people,dc=example with {} for the name. "": no passwords."""
    audit: str = ""
    """File in which refusals are recorded; "": in the log only."""
    audit_all: bool = False
    """Record what is allowed as well."""
    state: str = ""
    """File that keeps the last policies of a manager, for a start without it, and next to it a copy of `file` as it was
    last in force, for a start while `file` is invalid; "": none."""
    trust_claims: bool = True
    """Use the name that a client without a certificate gives itself in quality-of-service policies. Access rules never
    use it."""


class QosSection(Section, frozen=True):
    """Quality of service: importance, deadlines, rates and shapes of policies are enforced."""

    mode: Literal["auto", "off", "on"] = "auto"
    """"on", "off", or "auto": on if [policy] file contains quality-of-service policies when the process starts."""
    bins: Annotated[int, msgspec.Meta(ge=1, le=50)] = 15
    """Classes of importance and cost in which objects wait for evaluation; 1: first come, first served."""
    credit: Limit = 1_024
    """Objects of one registration that are admitted and not finished."""
    credit_bytes: Limit = 16 << 20
    """Bytes of these objects."""
    monitor_window: Term = 10.0
    """Seconds of measurements that are kept."""
    publish_measurements: bool = False
    """Delegates publish their measurements as information objects `jbi.Measurement`."""


class ArchiveSection(Section, frozen=True):
    """Published objects that a delegate or peer publisher keeps on disk."""

    folder: str = ""
    """Folder of the objects, for one process at a time, or NAME://ADDRESS of a plug-in's store; "": no archive."""
    sync: str = "batch"
    """When objects are forced to the disk: "batch": before a batch is acknowledged to its publisher; a number ("0.2"):
    every so many seconds; "never": when the system does."""
    full: Literal["refuse", "drop_oldest", "pass"] = "refuse"
    """Action when the archive is full. refuse: objects that are to be kept are refused to their publishers.
    drop_oldest: the oldest volume is removed, and publishers wait until it is. pass: objects are delivered without
    being kept, and counted (not_archived)."""
    columns: Annotated[int, msgspec.Meta(ge=1, le=256)] = 64
    """Paths of a type that have columns of their own in the index; all others share a table."""
    workers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 1
    """Processes that index, answer queries and clean up; 0: threads of the delegate, for small machines."""
    memory: Annotated[int, msgspec.Meta(ge=32 << 20)] = 256 << 20
    """Bytes of memory for the index."""
    max_queries: Limit = 1_000
    """Open queries of a delegate, 20 of one session, three quarters of one client; more are refused. A quarter may be
    calls that count or explain, which need no session."""
    max_metadata_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of all metadata on disk; 0: limited by the disk only."""
    max_payload_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of all payloads on disk; 0: limited by the disk only."""
    reserve: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.05
    """Share of the disk that stays free, `reserve_bytes` at most."""
    reserve_bytes: Annotated[int, msgspec.Meta(ge=0)] = 256 << 20
    """Bytes of the disk that are enough of a reserve, whatever share they are: a twentieth of a large disk is much."""


class ClientSection(Section, frozen=True):
    """Identity of an application, and defaults for its publishers, subscribers and queries."""

    user: str = ""
    """Name of the user: a claim. A certificate's name overrides it, unless a password proves it."""
    password: str = ""
    """Password of the user, for servers with [policy] users; sent over TLS, or on this host, and not shown."""
    role: str = ""
    """Present role of the user."""
    owner: str = ""
    """File with the secret that proves the ownership of durable subscriptions where certificates do not; it is made if
    it is missing. "": jbi-pubsub/secret in $XDG_STATE_HOME, or in ~/.local/state."""
    namespaces: tuple[Binding, ...] = ("og=http://gdc4s.com/oim/gemini",)
    """prefix=URI of namespaces for all predicates, filters and keys; those of a subscription or query take
    precedence."""
    max_metadata: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 1 << 20
    """Bytes of metadata above which an object is refused; at most the default, the limit of the parser."""
    max_payload: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    """Bytes of payload above which publishers and delegates refuse an object."""
    well_formed: bool = True
    """Check that metadata are well-formed before they are published. Metadata that are validated, or have invariants,
    are checked in any case."""
    validate: bool = True
    """Validate metadata by their type's schema before they are published."""
    reliable: bool = True
    """Send what a failed delegate has not acknowledged again, to the delegate that takes over."""
    expiration: Wait = 0.0
    """Seconds after which an object that still waits, at its publisher or for a subscriber, is dropped; 0: never."""


class WebSection(Section, frozen=True):
    """The console, `jbi web`."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback it needs [tls]."""
    port: Port = 8160
    """0: any free port."""
    names: tuple[str, ...] = ()
    """Host names for browsers in addition to localhost, addresses, `host` and this host's own name; other names are
    refused."""
    admin: bool = False
    """Allow changes: cancel subscriptions, drain delegates, administer lookup services. The servers must allow them to
    this process, too."""


class TlsSection(Section, frozen=True):
    """PEM files: a folder made by `jbi certs`, or certificate, key and ca, or none."""

    folder: str = ""
    """Folder of one party as `jbi certs issue` makes it. Its certificate.pem, key.pem, ca.pem and crl.pem are used for
    those of the next three keys and `revoked` that are not set."""
    certificate: str = ""
    """Certificate of this process."""
    key: str = ""
    """Private key of the certificate."""
    ca: str = ""
    """Authority of the other parties' certificates."""
    server_names: tuple[str, ...] = ()
    """Names that certificates of servers may have instead of the address. A common name counts here. "*.example.org" is
    every name with one label more, "*" every certificate of the authority."""
    insecure: bool = False
    """Allow to listen beyond loopback without TLS."""
    revoked: str = ""
    """PEM file of revoked certificates (a CRL of the authority), read again when it changes; "": none."""
    sign: bool = False
    """Publishers of this process sign their objects, delegates the filtered payloads."""
    verify: Literal["off", "warn", "require"] = "off"
    """Action of delegates and subscribers on objects without a valid signature: none; log and count; drop, count and
    report as lost (`bad_signature`)."""

    def identity(self) -> TlsIdentity | None:
        """The files that are meant, None without any. Raises ConfigurationError when only some are named."""
        files = [self.certificate, self.key, self.ca]
        revoked = self.revoked
        if self.folder:
            folder = Path(self.folder)
            names = (CERTIFICATE_FILE, KEY_FILE, CA_FILE)
            files = [file or str(folder / name) for file, name in zip(files, names, strict=True)]
            revoked = revoked or str(folder / REVOKED_FILE)
        if not any(files):
            return None
        if not all(files):
            raise ConfigurationError(
                "[tls] needs certificate, key and ca", hint="Set all three or none, or the folder they are in"
            )
        certificate, key, ca = map(Path, files)
        return TlsIdentity(certificate, key, ca, self.server_names, Path(revoked) if revoked else None)


class Config(Section, frozen=True):
    """All settings of a process."""

    lookup: LookupSection = LookupSection()
    pad: PadSection = PadSection()
    lease: LeaseSection = LeaseSection()
    queue: QueueSection = QueueSection()
    link: LinkSection = LinkSection()
    mail: MailSection = MailSection()
    types: TypesSection = TypesSection()
    metrics: MetricsSection = MetricsSection()
    tls: TlsSection = TlsSection()
    policy: PolicySection = PolicySection()
    qos: QosSection = QosSection()
    archive: ArchiveSection = ArchiveSection()
    client: ClientSection = ClientSection()
    web: WebSection = WebSection()
    node: NodeSection = NodeSection()
    log: LogSection = LogSection()
    gateway: GatewaySection = GatewaySection()
    domain: DomainSection = DomainSection()
    network: dict[str, NetworkSection] = msgspec.field(default_factory=dict)
    """Networks of a node, by name."""
    own: tuple[tuple[str, Login], ...] = ()
    """Logins of a part of this process at servers of the process, by their addresses; no setting."""

    def type_cache(self) -> Path | None:
        """Where a type repository keeps what it has made: as configured, else where users' caches are (XDG base
        directories); None: nowhere."""
        if self.types.cache:
            return None if self.types.cache == "none" else Path(self.types.cache)
        with suppress(ConfigurationError):  # nobody's home
            return user_folder("XDG_CACHE_HOME", ".cache") / "jbi-pubsub" / "types"
        return None

    def security(self) -> Security:
        """Settings for listening and connecting. Raises ConfigurationError when only some TLS files are named, or one
        is no good: now, for a client would take it for a server that never answers."""
        identity = self.tls.identity()
        if identity is not None:
            identity.client_context()
        login = Login(self.client.user, self.client.password) if self.client.password else None
        return Security(identity, self.tls.insecure, login, self.own)


Origins = dict[str, str]
"""section.key -> where the value comes from, for those that are not defaults."""

_KINDS: Final = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "array": "a list",
}  # fmt: skip
_SECTIONS: Final[dict[str, type[Section]]] = {
    f.name: type(f.default) for f in msgspec.structs.fields(Config) if isinstance(f.default, Section)
}
NETWORK: Final = "network"
"""Section that there may be several of, each with a name: `[network.field]`."""


def load(
    *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> tuple[Config, Origins]:
    """The effective configuration and its origins. `flags` maps "section.key" to a value.

    Raises ConfigurationError for a file that can't be read, an unknown key (naming the nearest), a bad value.
    """
    values: dict[str, dict[str, object]] = {}
    origins: Origins = {}
    for key, value, origin in (*_from_file(file), *_from_environment(environment), *_from_flags(flags or {})):
        section, name = _known(key, origin)
        values.setdefault(section, {})[name] = _convert(section, name, value, origin)
        origins[f"{section}.{name}"] = origin
    made: dict[str, Any] = {s: _kind(s)(**v) for s, v in values.items()}
    networks = {s.partition(".")[2]: made.pop(s) for s in list(made) if _is_network(s)}
    return Config(**made, network=networks), origins


def effective() -> Config:
    """The configuration of this process, from its file and its JBI_* variables: what adapters use that are given
    none. Raises ConfigurationError."""
    return load(file=default_file(os.environ), environment=os.environ)[0]


def default_file(environment: Mapping[str, str]) -> Path | None:
    """The configuration file to use when none is named by a flag, or None. A folder that is gone, can't be searched, or
    is nobody's home has none."""
    if environment.get("JBI_CONFIG"):
        return Path(environment["JBI_CONFIG"])
    for folder in (Path.cwd, lambda: home() / ".config" / "jbi"):
        with suppress(OSError, ConfigurationError):
            if (file := folder() / "jbi.toml").is_file():
                return file
    return None


def entries(config: Config) -> Iterator[tuple[str, object]]:
    """("section.key", value) of every setting; passwords are hidden."""
    sections = {name: getattr(config, name) for name in _SECTIONS}
    for section, each in (sections | {f"{NETWORK}.{name}": it for name, it in config.network.items()}).items():
        for name, value in msgspec.structs.asdict(each).items():
            hidden = name == "password" and value
            yield f"{section}.{name}", "***" if hidden else value


def _near_value(file: Path) -> str:
    """The hint for a word that stands for a value, as ture; "" for another fault."""
    from .toml import TomlError, read  # here: most files have none

    try:
        read(file)
    except (TomlError, OSError) as exc:  # OSError: it is another file by now
        hint = getattr(exc, "hint", "")
        return hint if hint.startswith("Did you mean") else ""
    return ""


def _from_file(file: Path | None) -> Iterator[tuple[str, object, str]]:
    if file is None:
        return
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        hint = "Name one that can be read by --config or JBI_CONFIG"
        raise ConfigurationError(f"configuration file {file}: {exc.strerror}", hint=hint) from exc
    except (ValueError, RecursionError) as exc:  # ValueError: no UTF-8, no TOML, a zero byte in the name
        why = "too many brackets within each other" if isinstance(exc, RecursionError) else exc
        hint = 'It is TOML in UTF-8: texts need quotes, "..."; `jbi config` lists every setting'
        hint = _near_value(file) or hint if isinstance(exc, tomllib.TOMLDecodeError) else hint
        raise ConfigurationError(f"configuration file {file}: {why}", hint=hint) from exc
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigurationError(f"{file}: {section} is outside a section", hint=_sections_hint())
        for name, value in table.items():
            if section == NETWORK and isinstance(value, dict):
                yield from ((f"{NETWORK}.{name}.{key}", each, str(file)) for key, each in value.items())
                if not value:
                    yield f"{NETWORK}.{name}.plugin", NetworkSection().plugin, str(file)
            else:
                yield f"{section}.{name}", value, str(file)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for variable, value in sorted(environment.items()):
        if variable.startswith("JBI_") and variable != "JBI_CONFIG":
            section, _, name = variable[4:].lower().partition("_")
            if section == NETWORK:
                name = name.replace("_", ".", 1)
            yield f"{section}.{name}", value, f"${variable}"


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for key, value in flags.items():
        if value is not None:
            yield key, value, "flag"


def _is_network(section: str) -> bool:
    kind, _, name = section.partition(".")
    return kind == NETWORK and NETWORK_NAME.fullmatch(name) is not None


def _kind(section: str) -> type[Section]:
    return NetworkSection if _is_network(section) else _SECTIONS[section]


def _known(key: str, origin: str) -> tuple[str, str]:
    section, _, name = key.rpartition(".")
    if (is_section := section in _SECTIONS or _is_network(section)) and name in _kind(section).__struct_fields__:
        return section, name
    sections = _SECTIONS | {section if _is_network(section) else f"{NETWORK}.NAME": NetworkSection}
    everything = [f"{each}.{field}" for each, kind in sections.items() for field in kind.__struct_fields__]
    elsewhere = [each for each in everything if is_section and each.endswith(f".{name}")]
    near = near_name(key, elsewhere or everything, 0.1 if elsewhere else 0.5)
    hint = f"Did you mean {near}?" if near else _sections_hint()
    if section.startswith(f"{NETWORK}.") and not _is_network(section):
        hint = "The name of a network begins with a letter, and has up to 32 letters, digits and -"
    raise ConfigurationError(f"unknown setting {key} ({origin})", hint=hint, key=key, nearest=near)


def _convert(section: str, name: str, value: object, origin: str) -> Any:
    field = next(f for f in msgspec.structs.fields(_kind(section)) if f.name == name)
    if isinstance(value, str) and isinstance(field.default, tuple):
        value = [part.strip() for part in value.split(",")] if value else []
    try:
        return msgspec.convert(value, field.type, strict=not isinstance(value, str))
    except msgspec.ValidationError as exc:
        words = get_args(field.type) if get_origin(field.type) is Literal else ()
        shown = value if isinstance(value, str) else repr(value)
        raise ConfigurationError(
            f"{section}.{name} = {shown} ({origin}): {_expected(str(exc))}",
            hint=f"It takes {', '.join(words[:-1])} or {words[-1]}" if words else "",
            key=f"{section}.{name}",
        ) from exc


def _expected(said: str) -> str:
    """The words of msgspec for people who do not know Python."""
    said = re.sub(r", got `\w+`", "", said)
    said = re.sub(r"Expected `(\w+)`", lambda kind: f"it must be {_KINDS.get(kind[1], kind[1])}", said)
    return re.sub(r"Invalid enum value '(.*)'", r"'\1' is not one of its values", said, flags=re.DOTALL)


def check_value(section: str, name: str, value: str) -> Any:
    """Value that a text stands for as that setting. Raises ConfigurationError."""
    _known(f"{section}.{name}", "set")
    return _convert(section, name, value, "set")


def _sections_hint() -> str:
    return f"Sections are {', '.join(_SECTIONS)}, {NETWORK}.NAME; `jbi config` lists every setting"
