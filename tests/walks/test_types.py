"""Types known by name: a repository at a delegate, its say in what is published, and types without a schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import repository_of
from jbi_pubsub.core.config import PolicySection, TypesSection
from jbi_pubsub.core.descriptors import Key, TypeChange
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ArgumentError,
    ConfigurationError,
    MetadataError,
    SchemaError,
    StorageError,
    TypeConflictError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.services import TYPES, TypesProxy

IMAGERY = TypeName("mil.af.rl.jbi.Intel_Imagery")
KEY: Key = ("type", IMAGERY)
Pad = Callable[..., tuple[DisseminationServer, TypesProxy]]


@pytest.fixture
def pad(federation: Any, tmp_path: Path) -> Pad:
    """A delegate with a repository of its own, and who asks it."""

    def start(
        name: str = "alpha", *, folder: bool = True, only_known: bool = False, policy: str = "", audit: str = ""
    ) -> tuple[DisseminationServer, TypesProxy]:
        section = TypesSection(folder=str(tmp_path / name) if folder else "", only_known=only_known)
        config = msgspec.structs.replace(
            federation.config, types=section, policy=PolicySection(file=policy, audit=audit)
        )
        repository = repository_of(config)
        if repository.registry is not None:
            federation.stack.callback(repository.registry.close)
        server = DisseminationServer(config, repository, characteristics=(name, "rome"))
        server.start()
        federation.stack.callback(server.stop, 0.5)
        server.community.wait_joined(server.server_id, 60.0)
        proxy = TypesProxy(server.endpoints.ref(TYPES, ()), config.security(), timeout=60.0)
        federation.stack.callback(proxy.close)
        return server, proxy

    return start


def add(types: TypesProxy, figures: Any) -> None:
    types.add("type", read_bundle(figures.schema), None, "pictures")


@pytest.mark.row("D-32")
def test_a_publisher_and_a_template_need_the_name_alone(federation: Any, pad: Pad, figures: Any) -> None:
    # Given a type in the repository of a delegate
    _, types = pad()
    add(types, figures)
    # When somebody publishes it, and somebody subscribes with a template, without its schema
    light, subscriber = federation.light(), federation.subscriber()
    wanted = subscriber.register_subscriber(figures.figure_3)
    delegate = light.connect_to_delegate("alpha", "rome")
    registration = light.register_publisher(delegate, type_name=IMAGERY.name, invariants=figures.figure_1)
    light.publish(registration, figures.figure_1)
    # Expect the object, and what is not valid to be refused
    obj = subscriber.receive(wanted)
    assert obj is not None
    assert obj.metadata == figures.figure_1
    with pytest.raises(MetadataError):
        light.publish(registration, figures.metadata(lat="north"))
    # and the publisher to be told what is missing
    with pytest.raises(SchemaError, match=r"no type repository has one"):
        light.register_publisher(delegate, type_name="nobody.knows", invariants=figures.figure_2)
    with pytest.raises(SchemaError, match=r"Intel_Imagery 2\.0"):
        light.register_publisher(delegate, type_name=IMAGERY.name, version="2.0", invariants=figures.figure_2)
    with pytest.raises(ArgumentError, match="invariants is None"):
        light.register_publisher(delegate, type_name=IMAGERY.name)
    with pytest.raises(ArgumentError, match="type_name"):
        light.register_publisher(delegate, invariants=figures.figure_2)
    with pytest.raises(ArgumentError, match="marks"):
        light.register_publisher(delegate, type_name=IMAGERY.name, marks=b"{}", invariants=figures.figure_2)


def test_a_type_of_which_nothing_is_invariant_is_published_without_saying_what_is(federation: Any, pad: Pad) -> None:
    # Given
    _, types = pad()
    schema = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="n" type="xs:int"/></xs:schema>'
    types.add("type", read_bundle(schema, marks=b'{"root": "n", "invariant": []}', name="number"), None, "")
    light, subscriber = federation.light(), federation.subscriber()
    wanted = subscriber.register_subscriber(type_name="number", version="1.0", predicate="/n > 4")
    # When
    registration = light.register_publisher(light.connect_to_delegate("alpha", "rome"), type_name="number")
    for each in ("<n>4</n>", "<n>5</n>"):
        light.publish(registration, each)
    # Expect
    obj = subscriber.receive(wanted)
    assert obj is not None
    assert obj.metadata == b"<n>5</n>"
    with pytest.raises(MetadataError):
        light.publish(registration, "<n>five</n>")


def test_a_type_without_a_schema_may_be_published_again_when_its_publisher_has_left(federation: Any, pad: Pad) -> None:
    # Given
    pad()
    light = federation.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    first = light.register_publisher(delegate, type_name="free.Text", validate=False)
    light.publish(first, "<note/>")
    light.unregister_publisher(first)
    # When, Expect
    again = light.register_publisher(delegate, type_name="free.Text", validate=False)
    assert light.publish(again, "<note/>")


def test_a_schema_that_is_sent_is_the_one_in_the_repository(federation: Any, pad: Pad, figures: Any) -> None:
    _, types = pad()
    add(types, figures)
    light = federation.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    other = figures.schema.read_bytes().replace(
        b'name="publisher" type="xs:token"', b'name="publisher" type="xs:string"'
    )
    with pytest.raises(TypeConflictError) as refused:
        light.register_publisher(delegate, other, figures.figure_2)
    known = types.show(KEY)[0].digest
    assert refused.value.facts["known"] == known
    assert known in str(refused.value)
    assert str(refused.value.facts["offered"]) in str(refused.value)
    # Expect the same of the type without a schema, and that the right one passes
    with pytest.raises(TypeConflictError):
        types.add("type", read_bundle(other), None, "")
    light.register_publisher(delegate, figures.schema, figures.figure_2)


@pytest.mark.row("G-116")
def test_metadata_of_a_type_that_nobody_knows_are_published(publishing: Any, federation: Any, figures: Any) -> None:
    # Given no schema, no repository
    subscriber = federation.subscriber()
    wanted = subscriber.register_subscriber(type_name="free.Text", predicate="/note/@to='all'")
    adapter = publishing.adapter
    at = (publishing.at,) if publishing.kind == "delegate" else ()
    # When a type is registered by its name alone, without validation
    registration = adapter.register_publisher(*at, type_name="free.Text", validate=False)
    for text in ("<note to='all'>one</note>", "<note/>", "<other to='all'/>", "<note to='all'><b/></note>"):
        publishing.publish(registration, text.encode(), text)
    # Expect what is well-formed to be matched by predicates, and the rest to be refused
    assert [o.payload for o in (subscriber.receive(wanted), subscriber.receive(wanted)) if o is not None] == [
        b"<note to='all'>one</note>", b"<note to='all'><b/></note>",
    ]  # fmt: skip
    with pytest.raises(MetadataError):
        publishing.publish(registration, b"<note>")
    # and nothing that only a schema could say
    with pytest.raises(SchemaError):
        adapter.register_publisher(*at, type_name="free.Text")
    with pytest.raises(MetadataError, match="no schema"):
        adapter.register_publisher(*at, type_name="free.Text", validate=False, invariants="<note/>")
    # and no schema for the same name as long as it is published so
    with pytest.raises(TypeConflictError):
        adapter.register_publisher(*at, figures.schema, figures.figure_2, type_name="free.Text")


def test_a_type_with_a_schema_is_not_published_without(federation: Any, pad: Pad, figures: Any) -> None:
    # Given a type that is published at one delegate, and another delegate without a repository
    federation.pad()
    pad("bravo", folder=False)
    light = federation.light()
    figures.register(light)
    # When somebody would publish it there without; Expect an error
    stranger = federation.light()
    bravo = stranger.connect_to_delegate("bravo", "rome")
    with pytest.raises(TypeConflictError):
        stranger.register_publisher(bravo, type_name=IMAGERY.name, validate=False)


@pytest.mark.row("D-36")
def test_only_known_types(federation: Any, pad: Pad, figures: Any) -> None:
    _, types = pad(only_known=True)
    light = federation.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    for given in ({"schema": figures.schema, "invariants": figures.figure_2}, {"type_name": "a", "validate": False}):
        with pytest.raises(SchemaError, match="none but known types"):
            light.register_publisher(delegate, **given)
    # and the same of a peer publisher, which asks the delegate
    config = msgspec.structs.replace(federation.config, types=TypesSection(only_known=True))
    peer = federation.peer(config)
    with pytest.raises(SchemaError, match="none but known types"):
        peer.register_publisher(figures.schema, figures.figure_2)
    add(types, figures)
    light.register_publisher(delegate, figures.schema, figures.figure_2)
    peer.register_publisher(type_name=IMAGERY.name, invariants=figures.figure_2)


@pytest.mark.row("G-177")
def test_other_delegates_find_a_type_and_keep_a_copy(federation: Any, pad: Pad, figures: Any) -> None:
    # Given a delegate that knows a type, one with a repository that does not, one without that takes known ones alone
    alpha, at_alpha = pad()
    add(at_alpha, figures)
    _, at_bravo = pad("bravo")
    pad("carol", folder=False, only_known=True)
    light = federation.light()
    assert at_bravo.all("type") == ()
    other = figures.schema.read_bytes().replace(
        b'name="publisher" type="xs:token"', b'name="publisher" type="xs:string"'
    )
    # When it is published at the others by its name, and with another schema; Expect the repository's
    for name in ("bravo", "carol"):
        delegate = light.connect_to_delegate(name, "rome")
        with pytest.raises(TypeConflictError):
            light.register_publisher(delegate, other, figures.figure_2)
        light.register_publisher(delegate, type_name=IMAGERY.name, invariants=figures.figure_2)
    # and a copy where there is room for one, that does without the first
    assert at_bravo.show(KEY)[0].description == "pictures"
    assert at_bravo.history(KEY)[0].what.startswith("copied")
    alpha.stop(0.5)
    assert at_bravo.get(IMAGERY).documents == read_bundle(figures.schema).documents


def test_repositories_that_are_not_of_one_mind(federation: Any, pad: Pad, figures: Any, tmp_path: Path) -> None:
    # Given a type at one delegate; When another one is given another schema for it; Expect a refusal
    _, at_alpha = pad()
    add(at_alpha, figures)
    other = figures.schema.read_bytes().replace(b"xs:token", b"xs:string")
    _, at_bravo = pad("bravo")
    with pytest.raises(TypeConflictError):
        at_bravo.add("type", read_bundle(other), None, "")
    # Given a third one with another schema all the same: it was in its folder
    config = msgspec.structs.replace(federation.config, types=TypesSection(folder=str(tmp_path / "carol")))
    aside = repository_of(config)
    digest = aside.add(read_bundle(other), by="anna").digest
    assert aside.registry is not None
    aside.registry.close()
    pad("carol")
    # When somebody who does not know the type asks both; Expect neither to be believed, and both to be told
    light, subscriber = federation.light(), federation.subscriber()
    bravo = light.connect_to_delegate("bravo", "rome")
    with pytest.raises(TypeConflictError) as refused:
        light.register_publisher(bravo, type_name=IMAGERY.name, invariants=figures.figure_1)
    assert {refused.value.facts["known"], refused.value.facts["offered"]} == {digest, at_alpha.show(KEY)[0].digest}
    with pytest.raises(MetadataError, match="no schema is known"):
        subscriber.register_subscriber(figures.figure_3)
    assert at_bravo.all("type") == ()


def test_what_is_in_use_is_not_removed(federation: Any, pad: Pad, figures: Any, eventually: Callable[..., Any]) -> None:
    # Given a type that is published at its own delegate and at another one, and that something else uses
    alpha, types = pad()
    add(types, figures)
    pad("bravo", folder=False)
    light = federation.light()
    here = light.register_publisher(light.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_2)
    there = light.register_publisher(light.connect_to_delegate("bravo", "rome"), figures.schema, figures.figure_2)
    stored = [True]
    alpha.service.repositories.users.append(lambda type_: "3 stored objects" if stored and type_ == IMAGERY else "")
    with pytest.raises(ConfigurationError, match="1 registration here, 1 registration elsewhere, 3 stored objects"):
        types.remove(KEY)
    light.unregister_publisher(here)
    light.unregister_publisher(there)

    def refusal() -> str:
        with pytest.raises(ConfigurationError) as caught:
            types.remove(KEY)
        return str(caught.value)

    eventually(lambda: "in use: 3 stored objects" in refusal())  # once the lookup services say that both have left
    # When it is removed by force; Expect it to be found no more, and to go with its last user
    assert types.remove(KEY, force=True) is False
    with pytest.raises(UnknownUidError):
        types.show(KEY)
    with pytest.raises(TypeConflictError):
        types.add("type", read_bundle(figures.schema.read_bytes().replace(b"xs:token", b"xs:string")), None, "")
    stored.clear()
    types.add("type", read_bundle(figures.schema.read_bytes().replace(b"xs:token", b"xs:string")), None, "")
    assert types.remove(KEY)


@pytest.mark.row("G-117")
def test_all_of_the_repository_over_the_network(pad: Pad, figures: Any) -> None:
    _, types = pad()
    add(types, figures)
    types.add("attribute", read_bundle(figures.schema), None, "")
    assert [(d.kind, d.type) for d in (*types.all("type"), *types.all("attribute"))] == [KEY, ("attribute", IMAGERY)]
    types.describe(KEY, "what cameras see")
    types.set_property(KEY, "icon", b"\0\xff")
    types.deprecate(KEY)
    told, properties = types.show(KEY)
    assert (told.description, told.state, [p.name for p in properties]) == ("what cameras see", "deprecated", ["icon"])
    assert types.property(KEY, "icon") == b"\0\xff"
    types.set_property(KEY, "icon", None)
    types.deprecate(KEY, undo=True)
    assert types.show(KEY)[1] == ()
    assert [c.what.split(",")[0] for c in types.history(KEY)] == [
        "added", "described", "property icon set", "deprecated", "property icon removed", "made active again",
    ]  # fmt: skip
    assert all(c.who.startswith("127.0.0.1") for c in types.history(KEY))
    assert types.faults() == ()
    held = types.held(KEY)
    assert held is not None
    assert held.bundle.documents == read_bundle(figures.schema).documents
    # and no time that no calendar has
    for when in (float("nan"), float("inf"), -1.0):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(TypeChange(when, "a", "b")), type=TypeChange)
    # and a delegate without one says so
    _, none = pad("bravo", folder=False)
    with pytest.raises(ConfigurationError, match="no type repository"):
        none.all("type")
    assert none.held(KEY) is None


def test_changing_takes_the_right_to(pad: Pad, figures: Any, tmp_path: Path, eventually: Callable[..., Any]) -> None:
    # Given rules by which everybody reads, and nobody changes types but of one kind of name
    policy, audit = tmp_path / "policy.toml", tmp_path / "audit.jsonl"
    policy.write_text(
        '[[access]]\naction = ["status", "connect", "peer"]\n[[access]]\naction = "types"\ntype = "mil.af.*"\n'
    )
    _, types = pad(policy=str(policy), audit=str(audit))
    add(types, figures)
    assert types.show(KEY)[0].type == IMAGERY
    changes: list[Callable[[Key], Any]] = [
        lambda key: types.describe(key, "x"), types.deprecate, types.remove,
        lambda key: types.set_property(key, "a", b""),
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(AccessDeniedError, match="may not types other"):
            change(("type", TypeName("other")))
    with pytest.raises(AccessDeniedError, match="may not types free"):
        types.add("type", read_bundle(figures.schema, name="free"), None, "")
    assert [d.type for d in types.all("type")] == [IMAGERY]
    # and each decision in the audit log, also what is allowed, with what was to be done
    expected = {
        ("allowed", IMAGERY.name, "add type"), ("refused", "other", "describe (type)"),
        ("refused", "other", "deprecate (type)"), ("refused", "other", "remove (type)"),
        ("refused", "other", "property a (type)"), ("refused", "free", "add type"),
    }  # fmt: skip

    def told() -> set[tuple[str, str, str]]:
        rows = [json.loads(line) for line in audit.read_text().splitlines()]
        return {(each["decision"], each["type"], each["name"]) for each in rows if each["action"] == "types"}

    eventually(lambda: told() == expected, what=told)


def test_a_damaged_repository_refuses_its_types_alone(federation: Any, pad: Pad, figures: Any, tmp_path: Path) -> None:
    _, types = pad()
    add(types, figures)
    (document,) = (tmp_path / "alpha").glob("*.xsd")
    document.write_bytes(b"<x/>")
    assert [document.name in fault for fault in types.faults()] == [True]
    light = federation.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    with pytest.raises(StorageError, match=document.name):
        light.register_publisher(delegate, type_name=IMAGERY.name, invariants=figures.figure_2)
    light.register_publisher(delegate, figures.schema, figures.figure_2)
    light.register_publisher(delegate, type_name="free", validate=False)


OUTER = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1" xmlns:n="urn:b">'
    '<xs:import namespace="urn:b" schemaLocation="b.xsd"/><xs:element name="r"><xs:complexType><xs:sequence>'
    '<xs:element name="unit" type="xs:string"/><xs:element name="at" type="n:B" jbi:variance="variant"/>'
    "</xs:sequence></xs:complexType></xs:element></xs:schema>"
)
INNER = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:{0}" xmlns:n="urn:c">'


@pytest.mark.row("G-178")
def test_a_schema_with_imports_to_three_levels_is_known_by_its_name(federation: Any, pad: Pad, tmp_path: Path) -> None:
    # Given a schema that imports one that imports one, each of a namespace of its own
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/a.xsd").write_text(OUTER)
    (tmp_path / "in/b.xsd").write_text(
        INNER.format("b")
        + '<xs:import namespace="urn:c" schemaLocation="deep/c.xsd"/>'
        + '<xs:simpleType name="B"><xs:restriction base="n:C"/></xs:simpleType></xs:schema>'
    )
    (tmp_path / "in/deep/c.xsd").write_text(
        INNER.format("c") + '<xs:simpleType name="C"><xs:restriction base="xs:int"/></xs:simpleType></xs:schema>'
    )
    _, types = pad()
    types.add("type", read_bundle(tmp_path / "in/a.xsd", name="nested"), None, "")
    # When it is published by its name alone; Expect what the innermost says to hold
    light, subscriber = federation.light(), federation.subscriber()
    live = subscriber.register_subscriber(type_name="nested")
    registration = light.register_publisher(
        light.connect_to_delegate("alpha", "rome"), type_name="nested", invariants="<r><unit>a</unit><at>1</at></r>"
    )
    light.publish(registration, "<r><unit>a</unit><at>7</at></r>")
    with pytest.raises(MetadataError, match="seven"):
        light.publish(registration, "<r><unit>a</unit><at>seven</at></r>")
    obj = subscriber.receive(live)
    assert obj is not None
    assert obj.metadata == b"<r><unit>a</unit><at>7</at></r>"
