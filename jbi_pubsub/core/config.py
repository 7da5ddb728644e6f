"""Configuration: defaults, one TOML file, JBI_* variables, flags, in rising order. Knows where each value is from.

The file is the one named by JBI_CONFIG or --config, else ./jbi.toml, else ~/.config/jbi/jbi.toml, if there is one.
A variable is JBI_<SECTION>_<KEY>, for example JBI_LEASE_SUBSCRIBER=2.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from .errors import ConfigurationError
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
    """Where lookup services listen and how they are found."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 4160
    """Jini's own port (Discovery and Join specification DJ.2.1.4); 0 takes a free one."""
    name: str = ""
    """Name that people call this lookup service by; "" is the host's name."""
    advertise: str = ""
    """Host name or address that others connect to, when it differs from `host`."""
    groups: tuple[str, ...] = ("",)
    """Groups to join and to look in; "" is the public one, "*" (clients only) all, none at all looks nowhere."""
    locators: tuple[str, ...] = ("127.0.0.1:4160",)
    """host:port of lookup services to ask beside discovery. A lookup service joins those that are set, no default."""
    multicast: bool = True
    """Announce and discover by mDNS."""
    interfaces: tuple[str, ...] = ()
    """Names or addresses of interfaces for mDNS; without any loopback, and what `host` and [pad] `host` name."""
    timeout: Wait = 10.0
    """Seconds to wait for a lookup service, or for a delegate to be found."""
    probe: Term = 10.0
    """Seconds between two probes of a lookup service."""
    state: str = ""
    """File in which a lookup service keeps its registrations over restarts; "" keeps nothing."""


class PadSection(Section, frozen=True):
    """Where delegates and peer publishers listen, and their bounds."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    hosts: tuple[str, ...] = ()
    """Further addresses, of other interfaces, at the same port if that is free there, else at a free one; clients try
    all of them."""
    port: Port = 0
    """0 takes a free port: delegates are found through the lookup service."""
    advertise: str = ""
    """Host name or address that others connect to, when it differs from `host`."""
    sockets: str = ""
    """Folder of Unix sockets: beside its port, a delegate or peer publisher listens on one of its own there, which
    clients of the same user on the same host prefer; "" for none. Not with [tls]."""
    state: str = ""
    """File in which a delegate keeps its e-mail subscriptions over restarts, and beside it, in FILE.mails, the mail
    that has not been sent; "" keeps nothing."""
    max_registrations: Limit = 10_000
    """Publisher registrations of one delegate; more are refused."""
    max_queued_bytes: Limit = 1 << 30
    """Bytes that may wait in all subscriber queues together; then publishers wait, and are refused in the end."""
    max_sessions: Limit = 5_000
    """Publishers, and subscriber processes, connected to one delegate; more are refused. Whoever has no data connection
    yet gives way."""
    max_subscriptions: Limit = 200_000
    """Subscriptions of one delegate; more are refused."""
    keep_seconds: Wait = 10.0
    """Seconds that a new registration's objects are kept for subscriptions that stood before and come late; 0 keeps
    none, and what is missed is told. Less than the 5 s after which a subscriber tries again costs objects in
    outages."""
    keep_bytes: Limit = 64 << 20
    """Bytes kept for them in all."""
    settle_seconds: Wait = 2.0
    """Seconds that a publisher that fills that within moments waits, once, and how long a delegate or peer publisher
    that stops waits for subscribers that were told of its new registrations."""


class LeaseSection(Section, frozen=True):
    """Seconds of the leases that clients ask for; renewed at 2/5 of the term (at lookup services at 7/8)."""

    publisher: Term = 60.0
    """Publisher at its delegate."""
    subscriber: Term = 60.0
    """Subscriber at a delegate or peer publisher."""
    lookup: Term = 60.0
    """Delegates and peer publishers at the lookup service."""
    mail: Term = 86_400.0
    """E-mail subscriptions."""
    durable: Term = 2_592_000.0
    """Durable subscriptions whose subscriber is away: 30 days."""
    maximum: Term = 604_800.0
    """The longest a delegate grants, but for durable subscriptions: a week."""


class QueueSection(Section, frozen=True):
    """Subscriber queues and publishing."""

    bound: Limit = 10_000
    """Objects that may wait for one subscription at one delegate, and again as many in the subscriber."""
    policy: Literal["drop_oldest", "drop_newest", "block"] = "drop_oldest"
    """Policy when a queue is full."""
    block_seconds: Wait = 5.0
    """Seconds that `block` holds the publisher up before the object counts as lost."""
    publish_seconds: Wait = 10.0
    """Seconds that publish() waits for room before it raises BackPressureError."""


class LinkSection(Section, frozen=True):
    """Settings of the data connections: publications, deliveries, lookup events."""

    compression: Literal["none", "deflate"] = "none"
    """Compression that a client (publisher, subscriber, whoever watches a lookup service) asks for. `deflate` is for
    slow links: it costs both ends time (docs/links.md)."""
    window: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes that may be under way on a data connection of a publisher or subscriber; 0 leaves it to TCP, which fills
    whatever queue a slow link has, and then leases are not renewed in time. 4096 is 5 s of 7,200 bit/s."""
    chunk: Annotated[int, msgspec.Meta(ge=512, le=CHUNK_BYTES)] = CHUNK_BYTES
    """Bytes: larger objects go in chunks of this size, and no batch becomes much larger, so that what is small does not
    wait for longer; at a publisher for what it publishes, at a delegate for what it delivers. 262144 is 0.3 s of
    7 Mbit/s, 4096 is 5 s of 7,200 bit/s. Where it takes a hundredth of a second, four times as much may go at once."""
    spool: Annotated[int, msgspec.Meta(ge=SPOOL_LEAST, le=MEMORY_BYTES)] = 8 << 20
    """Bytes: of a larger object that comes or goes the payload is kept in a file, at each end, and never in memory."""
    spool_bytes: Limit = 16 << 30
    """Bytes that all such files of one delegate, publisher or subscriber may have together; then publishers wait, and
    are refused in the end."""
    spool_folder: str = ""
    """Folder on whose disk they are; "" is $TMPDIR, else /var/tmp. They have no names: nothing is ever seen there."""
    max_compressed: Annotated[int, msgspec.Meta(ge=0)] = 500
    """Compressed connections of one server, up to 0.3 MB each; further ones are not compressed; 0: none is."""

    def spooling(self) -> Spool:
        """Where a party's large payloads are kept."""
        return Spool(self.spool_folder, self.spool, self.spool_bytes)


class MailSection(Section, frozen=True):
    """The SMTP server that delegates hand e-mail to."""

    host: str = "127.0.0.1"
    """Host of the mail server."""
    port: Port = 25
    """Its port."""
    sender: str = "jbi-pubsub@localhost"
    """Envelope and header sender; bounces go there."""
    start_tls: Literal["never", "required"] = "never"
    """`required` refuses to send in clear; there is no "if possible"."""
    username: str = ""
    """For SMTP AUTH; empty for none."""
    password: str = ""
    """For SMTP AUTH; `jbi config` does not show it."""
    timeout: Term = 15.0
    """Seconds for one SMTP command."""
    try_seconds: Term = 120.0
    """Seconds for a whole try, from connecting to the answer to the message."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=100)] = 4
    """Connections to the mail server at once, and so mails under way; one of a subscription at most."""
    idle_seconds: Term = 30.0
    """A connection that nothing was sent on for so long is closed."""
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Mails per second at most; 0 for no limit."""
    retries: Annotated[int, msgspec.Meta(ge=0)] = 30
    """Tries after the first when the server is away or answers 4xx."""
    retry_seconds: Wait = 2.0
    """Wait before the first retry; doubles each time, up to a minute."""
    suspend_after: Annotated[int, msgspec.Meta(ge=0)] = 10
    """Mails of a subscription running that are refused for good (5xx), after which the recipient gets no more
    (mail_suspended) until the subscription is made again; 0 for never."""
    unsubscribe: str = ""
    """URL under which people reach `jbi web`, e.g. https://jbi.example.org:8160: each recipient gets a mail of his own
    with a link to unsubscribe; "" for mails without."""
    reminder_seconds: Wait = 7_200.0
    """So long before the lease of an e-mail subscription ends its recipients are reminded, once, unless it is shorter
    than four times that; 0 for never."""
    digest_objects: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Objects in one mail of a subscription with attribute mail_digest_seconds; so many that wait are sent at once."""
    max_bytes: Limit = 20 << 20
    """Largest mail; a larger one counts as lost (oversize)."""
    queue_bound: Limit = 10_000
    """Mails that may wait in a delegate, a quarter of them for one subscription; more are lost (queue_overflow)."""
    queue_bytes: Limit = 256 << 20
    """Their bytes, a quarter of them for one subscription; what waits for several subscriptions counts for each."""


class TypesSection(Section, frozen=True):
    """Information object types."""

    cache: str = ""
    """Folder in which what was made of schemas is kept, shared by the processes of one user; "" is the user's own,
    $XDG_CACHE_HOME/jbi-pubsub/types or ~/.cache/jbi-pubsub/types, "none" keeps nothing."""
    folder: str = ""
    """Folder of a delegate's type repository, or NAME://ADDRESS of a plug-in's store; "" has none."""
    only_known: bool = False
    """Whether types that are not in it are refused."""


class MetricsSection(Section, frozen=True):
    """Prometheus metrics of servers, in clear: loopback, or behind a proxy of yours. With a [policy] file whoever asks
    needs `status`, by his address."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, msgspec.Meta(ge=-1, le=65_535)] = -1
    """-1 for none, 0 for any free port."""
    names: tuple[str, ...] = ()
    """Host names that it is reached by, beside localhost, addresses, `host` and this host's own name; others are
    refused."""


class PolicySection(Section, frozen=True):
    """Rules of an operator: who may do what."""

    file: str = ""
    """policy.toml, read again when it changes, or NAME://ADDRESS of a plug-in; "" allows everything to everybody."""
    users: str = ""
    """Names of people without a certificate: the password file that `jbi users` writes, read again when it changes, or
    a directory, ldaps://HOST/uid={},ou=people,dc=example with {} for the name; "" asks nobody for a password."""
    audit: str = ""
    """File in which refusals are written down; "" keeps none but the log's."""
    audit_all: bool = False
    """Write down what is allowed as well."""
    state: str = ""
    """File that keeps the last policies that a manager has sent, for a start without it, and beside it a copy of `file`
    as it was in force last, for a start when it can't be used; "" keeps none."""
    trust_claims: bool = True
    """Whether the name that a client without a certificate gives itself counts where policies rank contracts; rights
    never follow from it."""


class QosSection(Section, frozen=True):
    """QoS-managed dissemination: what policies say of importance, deadlines, rates and shapes is enforced."""

    mode: Literal["auto", "off", "on"] = "auto"
    """"on"; "off": nothing of it exists; "auto": on where [policy] file speaks of it when the process starts."""
    bins: Annotated[int, msgspec.Meta(ge=1, le=50)] = 15
    """Classes of importance and cost in which objects wait to be judged; 1 is first come, first served."""
    credit: Limit = 1_024
    """Objects of one registration between admission and done."""
    credit_bytes: Limit = 16 << 20
    """Their bytes."""
    monitor_window: Term = 10.0
    """Seconds of the series that are kept."""
    publish_measurements: bool = False
    """Whether delegates publish their series as information objects `jbi.Measurement`."""


class ArchiveSection(Section, frozen=True):
    """Objects as they were published, kept on disk by a delegate or peer publisher."""

    folder: str = ""
    """Where they are kept, of one process at a time, or NAME://ADDRESS of a plug-in's store; "" keeps nothing, and
    nothing of the archive exists."""
    sync: str = "batch"
    """When what is kept is forced to the disk: "batch", before a batch is acknowledged to its publisher; seconds
    between two times ("0.2"); "never", when the system likes."""
    full: Literal["refuse", "drop_oldest", "pass"] = "refuse"
    """When there is no room: refuse what is to be kept; drop the oldest; pass it on, and count it (not_archived)."""
    columns: Annotated[int, msgspec.Meta(ge=1, le=256)] = 64
    """Paths of a type that have columns of their own in the index; all others share a table."""
    workers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 1
    """Processes that index, answer and clean up; 0: threads of the delegate, for small machines."""
    memory: Annotated[int, msgspec.Meta(ge=32 << 20)] = 256 << 20
    """Bytes that the index may take in memory."""
    max_queries: Limit = 1_000
    """Open queries of a delegate, 20 of one session, three quarters of one party; more are refused. A quarter of
    them may be calls that count or explain, which need no session."""
    max_metadata_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of all metadata on disk; 0: no limit but the disk."""
    max_payload_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of all payloads on disk."""
    reserve: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.05
    """Share of the disk that is left free."""


class ClientSection(Section, frozen=True):
    """Words of an application on itself, and what holds for its publishers, subscribers and queries unless they say
    otherwise."""

    user: str = ""
    """User of it: a claim, which a certificate's name overrides, and a password proves."""
    password: str = ""
    """Password of that user, for servers with [policy] users; sent over TLS, or on this host. `jbi config` does not
    show it."""
    role: str = ""
    """His present duty."""
    owner: str = ""
    """File by whose secret durable subscriptions are his, where certificates don't say so; it is made when it is
    missing. "": jbi-pubsub/secret in $XDG_STATE_HOME, or in ~/.local/state."""
    namespaces: tuple[Binding, ...] = ("og=http://gdc4s.com/oim/gemini",)
    """prefix=URI of namespaces that predicates, filters and keys may use without saying so; those that are given with a
    subscription or query go before."""
    max_metadata: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 1 << 20
    """Bytes: larger metadata are refused, by publishers and by delegates. More than the default can't be parsed."""
    max_payload: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    """Bytes: larger payloads are refused, by publishers and by delegates."""
    well_formed: bool = True
    """Whether metadata are looked at for well-formedness before they are published. What is validated, or has
    invariants, is looked at in any case."""
    validate: bool = True
    """Whether metadata are validated by their type's schema before they are published."""
    reliable: bool = True
    """Whether what a delegate has not acknowledged when it goes away is sent again, to the one that takes over."""
    expiration: Wait = 0.0
    """Seconds after which an object that still waits, at its publisher or for a subscriber, is given up; 0: never."""


class WebSection(Section, frozen=True):
    """The console, `jbi web`."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback it needs [tls]."""
    port: Port = 8160
    """0 takes a free one."""
    names: tuple[str, ...] = ()
    """Host names that browsers reach it by, beside localhost, addresses, `host` and this host's own name; others are
    refused."""
    admin: bool = False
    """Whether it may change what runs: cancel subscriptions, drain delegates, administer lookup services; the servers
    must allow it to this process too."""


class TlsSection(Section, frozen=True):
    """PEM files: a folder that `jbi certs` made, or certificate, key and ca, or none."""

    folder: str = ""
    """Folder of one party as `jbi certs issue` makes it: certificate.pem, key.pem, ca.pem and crl.pem stand for those
    of the next three and `revoked` that are not set."""
    certificate: str = ""
    """Our certificate."""
    key: str = ""
    """Its private key."""
    ca: str = ""
    """The authority that our peers' certificates come from."""
    server_names: tuple[str, ...] = ()
    """Names in the certificates of servers that do not name the address they are reached at; a common name counts here,
    "*.example.org" stands for all with one label more, "*" for every certificate of the authority."""
    insecure: bool = False
    """Allow to listen beyond loopback without TLS."""
    revoked: str = ""
    """PEM file of revoked certificates (a CRL of the authority), read again when it changes; "" for none."""
    sign: bool = False
    """Whether publishers of this process sign their objects, and delegates what their filters leave of payloads."""
    verify: Literal["off", "warn", "require"] = "off"
    """Treatment of signatures by delegates and subscribers of this process: nothing; log and count what is not signed
    or does not hold; drop it, counted and told as lost (`bad_signature`)."""

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
        own = Path(os.environ.get("XDG_CACHE_HOME", ""))
        with suppress(RuntimeError):  # nobody's home
            return (own if own.is_absolute() else Path.home() / ".cache") / "jbi-pubsub" / "types"
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

_SECTIONS: Mapping[str, type[Section]] = {
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
    file = default_file(os.environ, Path.cwd(), Path.home())
    return load(file=file, environment=os.environ)[0]


def default_file(environment: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """The configuration file to use when none is named by a flag, or None."""
    if environment.get("JBI_CONFIG"):
        return Path(environment["JBI_CONFIG"])
    return next((p for p in (cwd / "jbi.toml", home / ".config" / "jbi" / "jbi.toml") if p.is_file()), None)


def entries(config: Config) -> Iterator[tuple[str, object]]:
    """("section.key", value) of every setting; passwords are hidden."""
    sections = {name: getattr(config, name) for name in _SECTIONS}
    for section, each in (sections | {f"{NETWORK}.{name}": it for name, it in config.network.items()}).items():
        for name, value in msgspec.structs.asdict(each).items():
            hidden = name == "password" and value
            yield f"{section}.{name}", "***" if hidden else value


def _from_file(file: Path | None) -> Iterator[tuple[str, object, str]]:
    if file is None:
        return
    try:
        document = tomllib.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as exc:  # ValueError: no UTF-8, no TOML, a zero byte in the name
        why = "too many brackets within each other" if isinstance(exc, RecursionError) else exc
        raise ConfigurationError(
            f"configuration file {file}: {exc.strerror if isinstance(exc, OSError) else why}",
            hint="It is TOML; `jbi config` lists every setting",
        ) from exc
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigurationError(f"{file}: {section} stands outside a section", hint=_sections_hint())
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
    if (section in _SECTIONS or _is_network(section)) and name in _kind(section).__struct_fields__:
        return section, name
    everything = [f"{s}.{n}" for s, kind in _SECTIONS.items() for n in kind.__struct_fields__]
    network = section if _is_network(section) else f"{NETWORK}.NAME"
    everything += [f"{network}.{n}" for n in NetworkSection.__struct_fields__]
    near = near_name(key, everything, 0.5)
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
        raise ConfigurationError(
            f"{section}.{name} = {value!r} ({origin}): {exc}",
            hint=f"It takes {', '.join(words[:-1])} or {words[-1]}" if words else "",
            key=f"{section}.{name}",
        ) from exc


def check_value(section: str, name: str, value: str) -> Any:
    """Value that a text stands for as that setting. Raises ConfigurationError."""
    _known(f"{section}.{name}", "set")
    return _convert(section, name, value, "set")


def _sections_hint() -> str:
    return f"Sections are {', '.join(_SECTIONS)}, {NETWORK}.NAME; `jbi config` lists every setting"
