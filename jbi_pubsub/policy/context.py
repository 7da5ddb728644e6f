"""Subjects of rules: the one vocabulary of all rules of policy.toml. Pure.

Rules:
- All keys of a rule must hold; of a key's list one will do. Texts are globs (`*`, `?`, `[...]`), and case counts.
- A claim is nobody: `user`, `group` and `role` hold for proven identities alone. `user = "*"` is everybody who has one,
  `user = ""` who has none.
- What is empty is matched by "" alone, never by a glob.
"""

from __future__ import annotations

import fnmatch
import graphlib
import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar, get_args

from jbi_pubsub.core.access import Action
from jbi_pubsub.core.toml import TextPlace, Where
from jbi_pubsub.core.wire.endpoint import Caller

from .file import MAX_RULES, PolicyDocument, nearest, texts

KEYS: Final = (
    "user", "group", "role", "client", "component", "address", "action", "type", "version", "delivery", "attribute",
)  # fmt: skip
"""Keys by which a rule may say what it is about."""

ACTIONS: Final[tuple[str, ...]] = get_args(Action)

BEGINNING_MOST: Final = 32
"""Characters by which rules are found."""
GLOB_MOST: Final = 200
"""Characters of a glob."""
GLOBS_MOST: Final = 1_000
"""Globs of one key: all of them are tried for each question."""

T = TypeVar("T")

_GLOB: Final = re.compile(r"[*?\[]")
_IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Globs:
    """Texts, some of them globs."""

    __slots__ = ("_compiled", "_globs", "exact", "said")

    def __init__(self, said: Iterable[str]) -> None:
        self.said: Final = tuple(sorted(set(said)))
        self._globs = tuple(text for text in self.said if _GLOB.search(text))
        self.exact: Final = frozenset(self.said) - frozenset(self._globs)
        self._compiled: re.Pattern[str] | None = None  # when it is needed: of 10,000 rules few ever are

    def any_of(self, values: Sequence[str]) -> bool:
        """Whether one of the values is one of the texts, or matches one; the empty one only if it is."""
        exact, globs = self.exact, self._compiled
        if globs is None and self._globs:
            globs = self._compiled = re.compile("|".join(map(fnmatch.translate, self._globs)))
        for value in values:  # noqa: SIM110  # asked for each rule: half the time of a generator
            if value in exact or (globs is not None and value and globs.match(value)):
                return True
        return False

    def beginnings(self) -> list[str]:
        """Beginnings of the texts, up to the first sign of a glob."""
        return [text if text in self.exact else _GLOB.split(text, maxsplit=1)[0] for text in self.said]

    def covers(self, other: Globs) -> bool:
        """Whether all that the other one matches is certain to be matched here; False: perhaps not."""
        return all(self.any_of((text,)) if text in other.exact else self._covers_glob(text) for text in other.said)

    def _covers_glob(self, glob: str) -> bool:
        start = _GLOB.split(glob, maxsplit=1)[0]
        return any(
            mine == glob or (mine.endswith("*") and not _GLOB.search(mine[:-1]) and start.startswith(mine[:-1]))
            for mine in self.said
        )


class Addresses:
    """Where somebody may come from: networks (CIDR), addresses, globs of either's text ("unix" for a Unix socket)."""

    __slots__ = ("globs", "networks", "said")

    def __init__(self, said: Iterable[str]) -> None:
        """Raises ValueError, which names the text, for a network or address that is none."""
        self.said: Final = tuple(sorted(set(said)))
        globs, networks = [], []
        for text in self.said:
            if _GLOB.search(text) or not re.search(r"[.:/]", text):
                globs.append(text)
                continue
            try:
                network = ipaddress.ip_network(text)
            except ValueError as exc:
                raise ValueError(f"{text!r} is not an address or network: {exc}") from exc
            if network.version == 6 and network.network_address.ipv4_mapped is not None:
                raise ValueError(
                    f"{text!r} matches no client: a client with such an address counts by its IPv4 address"
                )
            networks.append(network)
        self.globs: Final = Globs(globs)
        self.networks: Final[tuple[_IpNetwork, ...]] = tuple(networks)

    def any_of(self, values: Sequence[str]) -> bool:
        """Whether one of the hosts is within."""
        if self.globs.any_of(values):
            return True
        if not self.networks:
            return False
        found = [address for value in values if (address := _address(value)) is not None]
        return any(address in network for address in found for network in self.networks)

    def covers(self, other: Addresses) -> bool:
        """Whether all that the other one matches is certain to be matched here; False: perhaps not."""
        if not self.globs.covers(other.globs):
            return False
        return all(
            any(mine.version == each.version and each.subnet_of(mine) for mine in self.networks)  # type: ignore[arg-type]  # of one version
            for each in other.networks
        )


Matchers = Mapping[str, Globs | Addresses]
"""Matchers by key."""


def are_covered(theirs: Matchers, ours: Matchers) -> bool:
    """Whether whatever `theirs` match is certain to be matched by all of `ours`; False: perhaps not."""
    return all(
        (their := theirs.get(key)) is not None and our.covers(their)  # type: ignore[arg-type]  # of one key, of one class
        for key, our in ours.items()
    )


class Beginnings(Generic[T]):
    """Things by what texts about them begin with."""

    def __init__(self) -> None:
        self._by: dict[str, list[T]] = {}
        self._lengths: tuple[int, ...] = ()

    def take(self, globs: Globs, thing: T) -> bool:
        """Keep the thing by all the texts; False: one of them may begin with anything."""
        begins = dict(zip(globs.said, globs.beginnings(), strict=True))
        if any(not start for text, start in begins.items() if text):
            return False
        beginnings = {start[:BEGINNING_MOST] for start in begins.values()}
        for text in beginnings:
            self._by.setdefault(text, []).append(thing)
        self._lengths = tuple(sorted({*self._lengths, *map(len, beginnings)}))
        return True

    def of(self, text: str) -> Iterator[T]:
        """The things one of whose texts may be about this one."""
        for length in self._lengths:
            if length > len(text):
                break
            if (length or not text) and (found := self._by.get(text[:length])):
                yield from found


class Networks(Generic[T]):
    """Things by networks."""

    def __init__(self) -> None:
        self._by: dict[tuple[int, int], dict[int, list[T]]] = {}

    def take(self, addresses: Addresses, thing: T) -> bool:
        """Keep the thing by all the networks; False: there are globs as well."""
        if addresses.globs.said:
            return False
        for network in addresses.networks:
            shift = network.max_prefixlen - network.prefixlen
            of_size = self._by.setdefault((network.version, shift), {})
            of_size.setdefault(int(network.network_address) >> shift, []).append(thing)
        return True

    def of(self, host: str) -> Iterator[T]:
        """The things one of whose networks the host is in."""
        address = _address(host) if self._by else None
        if address is not None:
            for (version, shift), of_size in self._by.items():
                if version == address.version:
                    yield from of_size.get(int(address) >> shift, ())


class Keyed(Protocol):
    """Holder of context keys: a rule, a policy."""

    @property
    def keys(self) -> Matchers:
        """Matcher of each key that it has."""
        ...


K = TypeVar("K", bound=Keyed)


class Index(Generic[K]):
    """Rules by what they name first: the beginning of a user's name, of a type's, a network, a group, a role. Of 10,000
    a question concerns some. The others are looked at for each question."""

    def __init__(self, rules: Iterable[K], *, by_type: bool) -> None:
        self._users = Beginnings[K]()
        self._types = Beginnings[K]()
        self._networks = Networks[K]()
        self._named: dict[tuple[str, str], list[K]] = {}
        """By group or role."""
        self._others: list[K] = []
        for rule in rules:
            user, type_, address = rule.keys.get("user"), rule.keys.get("type"), rule.keys.get("address")
            if isinstance(user, Globs) and self._users.take(user, rule):
                continue
            if by_type and isinstance(type_, Globs) and self._types.take(type_, rule):
                continue
            if isinstance(address, Addresses) and self._networks.take(address, rule):
                continue
            if not any(self._take_named(key, rule) for key in ("group", "role")):
                self._others.append(rule)

    def _take_named(self, key: str, rule: K) -> bool:
        """Keep it by its groups or roles; False: it has none, or some are globs."""
        globs = rule.keys.get(key)
        if not isinstance(globs, Globs) or len(globs.exact) < len(globs.said):
            return False
        for name in globs.said:
            self._named.setdefault((key, name), []).append(rule)
        return True

    def about(self, facts: CallerFacts) -> Iterator[K]:
        """Those that may apply; some perhaps twice."""
        named = [("group", name) for name in facts.group] + [("role", name) for name in facts.role]
        return itertools.chain(
            self._users.of(facts.user[0]),
            self._types.of(facts.type[0]),
            self._networks.of(facts.address[0]),
            *(self._named[key] for key in named if key in self._named),
            self._others,
        )


def host_of(address: str) -> str:
    """Host of a peer's "host:port"; an IPv4 address that came by IPv6 as such."""
    host = address.rpartition(":")[0] if ":" in address else address
    host = host.strip("[]").partition("%")[0]
    found = _address(host)
    return str(found) if found is not None else host


def _address(host: str) -> _IpAddress | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@dataclass(frozen=True, slots=True)
class CallerFacts:
    """Facts of one question: each a tuple, as somebody has several groups and perhaps no role."""

    user: tuple[str, ...]
    group: tuple[str, ...]
    role: tuple[str, ...]
    client: tuple[str, ...]
    component: tuple[str, ...]
    address: tuple[str, ...]
    type: tuple[str, ...] = ("",)
    version: tuple[str, ...] = ("",)
    recipients: tuple[str, ...] = ("",)
    action: tuple[str, ...] = ("",)
    delivery: tuple[str, ...] = ("",)
    attribute: tuple[tuple[str, str], ...] = ()

    def attribute_of(self, name: str) -> str:
        """ "" for one that it has not."""
        return next((value for key, value in self.attribute if key == name), "")


def facts_of(
    caller: Caller,
    action: str,
    type_name: str,
    version: str,
    *,
    delivery: str = "queue",
    component: str = "",
    attributes: Mapping[str, str] | None = None,
    claims: bool = True,
) -> CallerFacts:
    """Facts of a contract that `caller` opens at a component. What he only says of himself counts if `claims` do: it
    may decide who is served first, never who may do what. Groups are not known yet."""
    is_known = claims or not caller.claimed
    return CallerFacts(
        (caller.user if is_known else "",),
        (),
        (caller.role,) if caller.role and claims else (),
        (caller.client,),
        (component,),
        (host_of(caller.address),),
        type=(type_name,),
        version=(version,),
        action=(action,),
        delivery=(delivery,),
        attribute=tuple(sorted((attributes or {}).items())),
    )


class People:
    """The groups and roles of a file."""

    def __init__(self, groups: Mapping[str, Globs], within: Mapping[str, tuple[str, ...]], roles: Mapping[str, str]):
        """`within`: of each group the groups that are members of it."""
        self.groups: Final = groups
        self.within: Final = within
        self.roles: Final = roles
        self.role_names: Final = frozenset(roles.values())
        self._containing: dict[str, set[str]] = {}
        for outer, inner in within.items():
            for name in inner:
                self._containing.setdefault(name, set()).add(outer)

    def groups_of(self, user: str) -> tuple[str, ...]:
        """The names of the groups that a user is in, also by way of others."""
        waiting = [name for name, members in self.groups.items() if members.any_of((user,))] if user else []
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._containing.get(name, ())
        return tuple(sorted(found))


def people_of(document: PolicyDocument) -> People:
    """`[group]` and `[role]` of a file; what is wrong with them is noted in the document."""
    groups: dict[str, Globs] = {}
    within: dict[str, tuple[str, ...]] = {}
    table = _table(document, "group")
    if len(table) > MAX_RULES:
        document.error(document.key(("group",)), f"more than {MAX_RULES} groups", "Use globs, or groups within groups")
    for name, value in itertools.islice(table.items(), MAX_RULES):
        if document.is_hopeless:
            break
        if value == []:
            document.warn(document.key(("group", name)), f"group {name!r} is empty: nobody is in it")
            groups[name], within[name] = Globs(()), ()
            continue
        members = patterns(document, table, ("group",), name) or ()
        groups[name] = Globs(member for member in members if not member.startswith("@"))
        within[name] = tuple(member[1:] for member in members if member.startswith("@"))
        for number, member in enumerate(members):
            if member.startswith("@") and member[1:] not in table:
                at = document.value(("group", name, number) if isinstance(value, list) else ("group", name))
                document.error(at, f"unknown group {member[1:]!r}", nearest(member[1:], table))
            elif member == "":
                document.error(document.value(("group", name, number)), "a client without an identity is in no group")
    for name in _in_cycle(within):
        document.error(document.key(("group", name)), f"group {name!r} is a member of itself, perhaps through others")
    roles = {}
    for user, role in _table(document, "role").items():
        if isinstance(role, str) and role:
            roles[user] = role
        else:
            document.error(document.value(("role", user)), f"the role of {user!r} is one text")
    return People(groups, within, roles)


def _in_cycle(within: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Groups by which one comes from one of them back to it; of several such circles one."""
    try:
        graphlib.TopologicalSorter(within).prepare()
    except graphlib.CycleError as exc:
        return sorted(set(exc.args[1]))
    return []


def patterns(document: PolicyDocument, table: Mapping[str, object], where: Where, key: str) -> tuple[str, ...] | None:
    """As `texts`, of which some are globs: few and short enough to be tried for each question."""
    said = texts(document, table, where, key)
    globs = [text for text in said or () if _GLOB.search(text)]
    place = document.value((*where, key))
    if len(globs) > GLOBS_MOST:
        document.error(place, f"{key}: more than {GLOBS_MOST} texts with *, ? or [", "Use fewer and wider ones")
        return None
    for text in globs:
        if len(text) > GLOB_MOST:
            what = f"{key}: {text[:20]!r}... with its {len(text)} characters is of no use as a glob"
            document.error(place, what, f"{GLOB_MOST} at most")
            return None
    return said


def _table(document: PolicyDocument, kind: str) -> Mapping[str, object]:
    found = document.get(kind, {})
    if isinstance(found, dict):
        return found
    document.error(document.key((kind,)), f"[{kind}] is a table", f"Write [{kind}] on a line of its own")
    return {}


def matchers(
    document: PolicyDocument, table: Mapping[str, object], where: Where, people: People, keys: Sequence[str]
) -> dict[str, Globs | Addresses]:
    """Matchers of those context `keys` that a rule has; `action` is not among them. What is wrong is noted. A "*" says
    nothing, but of a user, who has to be known then."""
    found: dict[str, Globs | Addresses] = {}
    for key in keys:
        said = patterns(document, table, where, key)
        if said is None or ("*" in said and key != "user"):
            continue
        at = document.value((*where, key))
        if key == "address":
            try:
                found[key] = Addresses(said)
            except ValueError as exc:
                document.error(at, str(exc), "For example 10.1.0.0/16, 192.0.2.7, 2001:db8::/32 or 10.1.*")
            continue
        if key in ("group", "role"):
            check_names(document, at, key, said, people)
        found[key] = Globs(said)
    return found


def check_names(document: PolicyDocument, place: TextPlace, key: str, said: Iterable[str], people: People) -> None:
    """Note those of the groups or roles, as `key` says, that nobody has."""
    known = people.groups if key == "group" else people.role_names
    for text in said:
        if document.is_hopeless:
            break
        if text not in known and not Globs((text,)).any_of(tuple(known)):
            report = document.error if key == "group" else document.warn
            report(place, f"no {key} {text!r}", nearest(text, known) if known else f"No [{key}] is written")


def actions_of(document: PolicyDocument, table: Mapping[str, object], where: Where) -> frozenset[str]:
    """The actions that a rule is about: all without the key. What is unknown is noted."""
    said = patterns(document, table, where, "action")
    if said is None:
        return frozenset(ACTIONS)
    found: set[str] = set()
    for text in said:
        matching = {action for action in ACTIONS if Globs((text,)).any_of((action,))}
        if not matching:
            document.error(document.value((*where, "action")), f"unknown action {text!r}", nearest(text, ACTIONS))
        found |= matching
    return frozenset(found)
