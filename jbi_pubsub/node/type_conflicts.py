"""Types of which nodes have different schemas, as when they published while they could not hear each other.

Both stand, each at its own node, which refuses what the other one publishes so. Until somebody decides: that is a
durable message to all nodes, and each puts the schema into its type repository in the place of any other one. What
stands goes on; whoever registers anew by another schema is refused, as for any type of a repository. The node at which
it was decided says so again when it is started.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.codegen.bundle import PLACE, parse_schema
from jbi_pubsub.codegen.opening import OPENER, OpenedSchema
from jbi_pubsub.core.descriptors import Descriptor, Key, StoredType, TypeRegistry
from jbi_pubsub.core.errors import ConfigurationError, JbiError, ProtocolError, SchemaError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.xml import Element
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.protocol.status.networks import ConflictingSchema, TypeConflict

from .bodies import VERSION, SettledBody, digest
from .infosphere import Infosphere

log = logging.getLogger("jbi_pubsub.node")

PROPERTY: Final = "jbi.settled"
"""Property of a type in the repository: who has decided, and when."""
AHEAD_SECONDS: Final = 86_400.0
"""Time by which the clock of another node may be ahead, or that of this one may have been: the last word holds, and
there must be one."""


class _Settlement(msgspec.Struct, frozen=True, order=True):
    """A decision. Of two the later one holds."""

    at: float
    origin: bytes
    node: str = ""


_settlement: Final = decoder_of(_Settlement)


class TypeConflicts:
    """See the module. Any thread."""

    def __init__(
        self,
        side: Infosphere,
        registry: TypeRegistry | None,
        cache: Path | None,
        me: bytes,
        name: str,
        peers: Callable[[], Mapping[bytes, NodePeer]],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`cache`: folder of opened schemas; `me`, `name`: of this node; `peers`: others that are heard."""
        self._side, self._registry, self._cache = side, registry, cache
        self._me, self._name, self._peers = me, name, peers
        self._wall = wall
        self._lock = threading.Lock()
        """Held while something is settled."""
        side.settled = self._hear

    def publishing(self, type_: str) -> list[str]:
        """Names of other nodes that publish a type."""
        return sorted({self._called(node) for of, _, node in self._side.types() if node and str(of) == type_})

    def found(self) -> list[TypeConflict]:
        """Those of which nodes have different schemas."""
        told = []
        for type_, schemas in self._schemas():
            groups = [
                ConflictingSchema(
                    each, sorted({self._called(node) for _, node in those}), self._is_settled(type_, each)
                )
                for each, those in sorted(schemas.items())
            ]
            (one, _), (other, _) = [schemas[each.digest][0] for each in groups[:2]]
            told.append(
                TypeConflict(type_.name, type_.version, groups, _difference(self._open(one), self._open(other)))
            )
        return told

    def settle(self, type_: TypeName, node: str, by: str) -> None:
        """Decide that a type has the schema of a node. Raises UnknownUidError, SchemaError, ConfigurationError,
        StorageError."""
        schemas = dict(self._schemas()).get(type_, {})
        having = [(each, bundle) for each in schemas for bundle, at in schemas[each] if self._called(at) == node]
        if len({each for each, _ in having}) != 1:
            names = sorted({self._called(at) for those in schemas.values() for _, at in those})
            raise UnknownUidError(
                f"no one schema of {type_} at a node {node}"
                if names
                else f"nodes have no different schemas of {type_}",
                hint=f"Name one of: {', '.join(names)}" if names else "`jbi types conflicts` lists those there are",
            )
        before = self._before(_key(type_))
        at = max(self._wall(), before.at + 0.001 if before is not None else 0.0)
        body = SettledBody(VERSION, msgspec.structs.replace(having[0][1], type=type_), at, node)
        self._take(self._me, body)
        log.warning("%s has decided that %s has the schema of node %s", by, type_, node)
        self._say(body)

    def say_again(self) -> None:
        """Say what was decided here before this start."""
        for each in self._registry.all("type") if self._registry is not None else ():
            before = self._before(each.key)
            if self._registry is not None and before is not None and before.origin == self._me:
                self._say(SettledBody(VERSION, self._registry.schema(each.key), before.at, before.node))

    def _say(self, body: SettledBody) -> None:
        self._side.words.stand(digest(f"settled {body.schema.type}".encode()), body)

    def _hear(self, origin: bytes, body: SettledBody) -> None:
        """Another node says what was decided there; on the network's delivery thread."""
        if (ahead := body.at - self._wall()) > AHEAD_SECONDS:
            raise ProtocolError(
                f"the schema of {body.schema.type} was decided in the future, {ahead:,.0f} s ahead of the clock here",
                hint="Look at the clocks of both nodes, and decide again",
            )
        try:
            self._take(origin, body)
        except JbiError as exc:
            log.warning("%s can't have the schema of node %s here: %s", body.schema.type, body.node, exc)

    def _take(self, origin: bytes, body: SettledBody) -> None:
        """Raises SchemaError, ConfigurationError, StorageError, OversizeError."""
        registry, key = self._registry, _key(body.schema.type)
        if registry is None:
            raise ConfigurationError("this node has no type repository", hint="Set [node] types = true")
        if body.schema.is_none:
            raise SchemaError(f"node {body.node} has no schema of {body.schema.type}", hint="Name another node")
        opened = OPENER.open(body.schema, cache_dir=self._cache, caller=origin.hex())
        settlement, by = _Settlement(body.at, origin, body.node), f"node {origin.hex()[:8]}"
        with self._lock:
            before = self._before(key)
            if before is not None and before >= settlement:
                if before != settlement:
                    log.warning(
                        "%s does not get the schema of node %s, as %s decided: a later decision has that of node %s",
                        body.schema.type, body.node, by, before.node,
                    )  # fmt: skip
                return
            held = registry.find(key, removed=True)
            if held is not None and held.digest != opened.digest:
                registry.remove(key, by, users=(), force=True)
            told = Descriptor(*key, opened.digest, created=time.time(), by=by, description=f"as of node {body.node}")
            registry.keep(StoredType(told, body.schema), by)
            registry.set_property(key, PROPERTY, msgspec.msgpack.encode(settlement), by)

    def _before(self, key: Key) -> _Settlement | None:
        """Decision that holds; none from the future, which others do not take: our clock was ahead. Raises
        StorageError."""
        if self._registry is None or self._registry.find(key) is None:
            return None
        if PROPERTY not in {each.name for each in self._registry.properties(key)}:
            return None
        found = decoded(_settlement, self._registry.property(key, PROPERTY), PROPERTY)
        return found if found.at <= self._wall() + AHEAD_SECONDS else None

    def _is_settled(self, type_: TypeName, of: str) -> bool:
        held = self._registry.find(_key(type_)) if self._registry is not None else None
        return held is not None and held.digest == of and self._before(held.key) is not None

    def _schemas(self) -> Iterator[tuple[TypeName, dict[str, list[tuple[SchemaBundle, bytes]]]]]:
        """Types with several schemas: each by the digest of its meaning, as which node has it."""
        types: dict[TypeName, list[tuple[SchemaBundle, bytes]]] = defaultdict(list)
        for type_, bundle, node in self._side.types():
            types[type_].append((bundle, node))
        for type_, those in sorted(types.items()):
            if all(bundle == those[0][0] for bundle, _ in those):
                continue
            schemas: dict[str, list[tuple[SchemaBundle, bytes]]] = defaultdict(list)
            for bundle, node in those:
                opened = self._open(bundle)
                schemas[opened.digest if opened is not None else ""].append((bundle, node))
            if len(schemas) > 1:
                yield type_, schemas

    def _open(self, bundle: SchemaBundle) -> OpenedSchema | None:
        """None: it is none, or can't be opened."""
        try:
            return None if bundle.is_none else OPENER.open(bundle, cache_dir=self._cache, caller="networks")
        except JbiError as exc:
            log.warning("a schema of another node is not usable: %s", exc)
            return None

    def _called(self, node: bytes) -> str:
        peer = self._peers().get(node)
        return peer.name if peer is not None else node.hex()[:8] or self._name


def _key(type_: TypeName) -> Key:
    return "type", type_


def _difference(one: OpenedSchema | None, other: OpenedSchema | None) -> str:
    """The first declaration in which two schemas differ, for people."""
    if one is None or other is None:
        return "one is none"
    there = list(_elements(other))
    for number, each in enumerate(_elements(one)):
        if number >= len(there) or _said(each) != _said(there[number]):
            name = each.get("name") or str(each.tag).rpartition("}")[2]
            return f"{name} ({each.get(PLACE) or 'the document'})"
    return f"one has {len(there)} declarations"


def _elements(schema: OpenedSchema) -> Iterator[Element]:
    for name, data in schema.documents.items():
        yield from parse_schema(name, data).iter("*")


def _said(element: Element) -> tuple[str, list[tuple[str, str]], str]:
    attributes = sorted((str(name), str(text)) for name, text in element.items() if name != PLACE)
    return str(element.tag), attributes, (element.text or "").strip()
