"""Information objects: typed, described by valid metadata, with any payload (paper sections 1, 2.1 and 2.3.2)."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub import RegistrationUid, TypeName
from jbi_pubsub.core.errors import InvariantError, MetadataError, TypeConflictError, UnknownUidError

IMAGERY = "mil.af.rl.jbi.Intel_Imagery"


@pytest.mark.row("J-01")
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(random.Random(1).randbytes(1 << 20), id="1 MiB"),
        pytest.param(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + random.Random(2).randbytes(500) + b"\xff\xd9", id="JPEG"),
        pytest.param('<?xml version="1.0"?>\n<a  b="1">\r\n<c/>é</a>\n<!-- x -->'.encode(), id="XML"),
    ],
)
def test_any_payload_arrives_byte_identical_with_type_and_metadata(walk: Any, payload: bytes) -> None:
    # Given a subscription without a filter
    uid = walk.subscribe()
    # When an object is published
    object_id = walk.publish(walk.figures.figure_1, payload)
    # Expect the payload, the type name and the metadata as they were published, byte by byte
    obj = walk.subscriber.receive(uid)
    assert obj is not None
    assert hashlib.sha256(obj.payload).hexdigest() == hashlib.sha256(payload).hexdigest()
    assert obj.metadata == walk.figures.figure_1
    assert obj.type == TypeName(IMAGERY, "1.0")
    assert obj.object_id == object_id


def test_the_platform_tells_publication_time_registration_sequence_and_lengths(walk: Any) -> None:
    # Given a subscription; When two objects are published
    uid = walk.subscribe()
    walk.publish(payload=b"123")
    walk.publish(payload=b"")
    first, second = walk.subscriber.receive(uid), walk.subscriber.receive(uid)
    # Expect that the platform has counted and measured them, and that neither came over a bridge
    assert [first.platform.sequence, second.platform.sequence] == [1, 2]
    assert [first.platform.payload_length, second.platform.payload_length] == [3, 0]
    assert first.platform.metadata_length == len(walk.figures.figure_1)
    assert first.platform.registration == second.platform.registration == walk.registration
    assert first.platform.published <= second.platform.published
    assert (first.platform.hops, first.platform.via) == (0, ())
    assert first.object_id != second.object_id


@pytest.mark.row("J-02")
@pytest.mark.parametrize("stranger", ["", "registration-0", "mil.af.rl.jbi.Intel_Imagery"])
def test_publishing_without_a_registration_is_refused(walk: Any, stranger: str) -> None:
    # Given a subscription
    uid = walk.subscribe()
    # When something is published under an id that no registration has
    with pytest.raises(UnknownUidError):
        walk.publishing.adapter.publish(RegistrationUid(stranger), walk.figures.figure_1, b"untyped")
    # Expect that nothing is delivered
    assert walk.received(uid) == []


@pytest.mark.row("J-04")
def test_publishers_register_before_they_publish(walk: Any) -> None:
    # Given a publisher that has not registered; When it publishes; Expect an error
    with pytest.raises(UnknownUidError):
        walk.publishing.adapter.publish(RegistrationUid("any"), walk.figures.figure_1)


@pytest.mark.row("J-05")
@pytest.mark.parametrize(
    ("element", "value"),
    [("publisher", "999th"), ("Type", "Video"), ("JBIIIdentifier", "JBI000024"), ("keywords", "x"), ("language", "FR")],
)
def test_invariant_metadata_are_constant_in_all_publications(walk: Any, element: str, value: str) -> None:
    # Given a registration with figure 1's invariant metadata
    uid = walk.subscribe(predicate="true()")
    # When a publication has another value for one of them
    with pytest.raises(InvariantError) as caught:
        walk.publish(walk.figures.metadata(**{element: value}), b"changed")
    # Expect an error that names the path of the element, and nothing delivered
    assert str(caught.value.facts["path"]).endswith(element)
    assert element in str(caught.value)
    assert walk.received(uid) == []


@pytest.mark.row("J-05")
def test_an_invariant_that_is_left_out_counts_as_changed(walk: Any) -> None:
    # Given a registration with figure 1's invariant metadata, and validation switched off
    walk.register(validate=False)
    uid = walk.subscribe()
    # When a publication lacks one of them
    with pytest.raises(InvariantError) as caught:
        walk.publish(walk.figures.figure_1.replace(b"<publisher>418th</publisher>", b""), b"changed")
    # Expect the same error: invariants are always checked
    assert "publisher" in str(caught.value.facts["path"])
    assert walk.received(uid) == []


def test_variant_metadata_may_change_with_every_publication(walk: Any) -> None:
    # Given a registration
    uid = walk.subscribe()
    # When publications differ in variant elements
    documents = [walk.figures.metadata(lat=str(lat), Area=f"area {lat}") for lat in range(3)]
    for document in documents:
        walk.publish(document, b"image")
    # Expect them all, as published
    assert [obj.metadata for obj in walk.received(uid)] == documents


@pytest.mark.row("J-15")
def test_figure_1_is_valid_against_the_schema(figures: Any) -> None:
    # Given the schema and figure 1, verbatim
    schema = etree.XMLSchema(etree.parse(str(figures.schema)))
    # Expect that figures 1 and 2 are valid
    assert schema.validate(etree.fromstring(figures.figure_1))
    assert schema.validate(etree.fromstring(figures.figure_2))


@pytest.mark.row("J-18")
@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        pytest.param("<publisher>418th</publisher>", "", "RequiredMetadata", id="required element missing"),
        pytest.param("<lat>33.34</lat>", "<lat>n/a</lat>", "lat", id="not a number"),
        pytest.param("<ImageType>IR</ImageType>", "<ImageType>XX</ImageType>", "ImageType", id="not in enumeration"),
        pytest.param("<Area>Kabul</Area>", "<Area>Kabul</Area><Extra/>", "Extra", id="unknown element"),
        pytest.param(
            "<ImageType>IR</ImageType>\n    <Area>Kabul</Area>",
            "<Area>Kabul</Area>\n    <ImageType>IR</ImageType>",
            "ImageDescriptor",
            id="wrong element order",
        ),
    ],
)
def test_invalid_metadata_are_refused_with_the_path(walk: Any, old: str, new: str, path: str) -> None:
    # Given a subscription that would take anything of the type
    uid = walk.subscribe()
    # When metadata are published that the schema does not allow
    document = walk.figures.figure_1.decode()
    assert old in document
    with pytest.raises(MetadataError) as caught:
        walk.publish(document.replace(old, new).encode(), b"invalid")
    # Expect an error that names the element, to the publisher; nothing is delivered
    assert path in str(caught.value.facts["path"])
    assert walk.received(uid) == []
    # and no gap in the sequence of what is published
    assert walk.counter("published") == 1


@pytest.mark.row("J-16")
def test_metadata_without_the_marker_element_have_no_type(walk: Any) -> None:
    # Given a subscription
    uid = walk.subscribe()
    # When metadata come without the marker element
    with pytest.raises(MetadataError):
        walk.publish(walk.figures.figure_1.replace(b"<mil.af.rl.jbi.Intel_Imagery/>", b""), b"untyped")
    # Expect that they are refused
    assert walk.received(uid) == []


def test_the_first_object_of_a_registration_may_not_be_without_metadata(own_walk: Any) -> None:
    # Given a subscription, and a registration that has published nothing
    own_walk.register()
    uid = own_walk.subscribe()
    # When an object comes without metadata, expect it to be refused, and nothing to be delivered
    with pytest.raises(MetadataError):
        own_walk.publish(b"", b"without metadata")
    assert own_walk.received(uid) == []


def test_metadata_that_are_not_xml_are_refused_with_their_position(walk: Any) -> None:
    # Given a subscription; When metadata are cut short
    uid = walk.subscribe()
    with pytest.raises(MetadataError) as caught:
        walk.publish(walk.figures.figure_1[:200], b"malformed")
    # Expect an error that says where, and nothing delivered
    assert re.search(r"line \d+", str(caught.value)) or "position" in caught.value.facts or "line" in caught.value.facts
    assert walk.received(uid) == []


@pytest.mark.row("J-43")
def test_the_invariant_document_alone_is_no_publication_when_variant_elements_are_required(
    own_walk: Any, other_schema: Callable[[str, str], bytes]
) -> None:
    # Given a schema that requires the variant part
    schema = other_schema('type="ImageDescriptorType" minOccurs="0"', 'type="ImageDescriptorType"')
    # When a publisher registers with the invariant metadata of figure 2 only
    own_walk.register(own_walk.figures.figure_2, schema)
    uid = own_walk.subscribe(schema=schema)
    # Expect that the registration stands, but that figure 2 is not enough for a publication
    with pytest.raises(MetadataError) as caught:
        own_walk.publish(own_walk.figures.figure_2, b"variant part missing")
    assert "ImageDescriptor" in str(caught.value)
    assert own_walk.received(uid, own_walk.figures.metadata(JBIIIdentifier="JBII00023")) == []


def test_validation_can_be_switched_off_for_a_registration(walk: Any) -> None:
    # Given a registration without validation
    walk.register(validate=False)
    uid = walk.subscribe()
    # When metadata are published that the schema does not allow
    document = walk.figures.metadata(lat="n/a")
    walk.publish(document, b"not validated")
    # Expect that they are delivered as they are
    assert [obj.metadata for obj in walk.received(uid)] == [document]


@pytest.mark.row("J-17")
def test_a_second_different_schema_for_a_type_is_refused(
    own_walk: Any, other_schema: Callable[[str, str], bytes]
) -> None:
    # Given a registration of the type
    uid = own_walk.subscribe()
    # When the same adapter registers the type with another schema
    with pytest.raises(TypeConflictError) as caught:
        own_walk.register(schema=other_schema('"IR"', '"UV"'))
    # Expect an error that names the type, and that the first registration goes on
    assert IMAGERY in str(caught.value)
    own_walk.publish(payload=b"still here")
    assert own_walk.payloads(uid) == [b"still here"]


@pytest.mark.row("J-17")
def test_an_identical_schema_is_accepted_again(walk: Any) -> None:
    # Given a registration of the type; When it is registered again, from the file and from its bytes
    again = [walk.register(), walk.register(), walk.register(schema=walk.figures.schema.read_bytes())]
    # Expect a registration each
    assert len(set(again)) == 3


def test_one_schema_for_a_type_holds_across_publishers_and_delegates(
    federation: Any, figures: Any, other_schema: Callable[[str, str], bytes], eventually: Callable[..., Any]
) -> None:
    # Given the type registered at one delegate, and another delegate
    federation.pad("alpha", "rome")
    federation.pad("bravo", "paris")
    one = federation.light()
    one.register_publisher(one.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    eventually(lambda: federation.lookups[0].status()["items"] == 3, what="two delegates, one registration")
    # When publishers register it with another schema, at the other delegate and peer to peer
    two, peer = federation.light(), federation.peer()
    at = two.connect_to_delegate("bravo")
    # Expect that both are refused
    with pytest.raises(TypeConflictError):
        two.register_publisher(at, other_schema('"IR"', '"UV"'), figures.figure_1)
    with pytest.raises(TypeConflictError):
        peer.register_publisher(other_schema('"IR"', '"UV"'), figures.figure_1)
    # and that a publisher with the same schema is accepted by a third delegate
    federation.pad("charlie", "oslo")
    three = federation.light()
    assert three.register_publisher(three.connect_to_delegate("charlie"), figures.schema, figures.figure_1)


def test_a_refused_schema_leaves_nothing_behind(
    federation: Any, figures: Any, other_schema: Callable[[str, str], bytes], eventually: Callable[..., Any]
) -> None:
    # Given a delegate that has refused another schema for a type, since another delegate has the type
    federation.pad("alpha", "rome")
    federation.pad("bravo", "paris")
    one, two, three = federation.light(), federation.light(), federation.light()
    one.register_publisher(one.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    eventually(lambda: federation.lookups[0].status()["items"] == 3, what="two delegates, one registration")
    at = two.connect_to_delegate("bravo")
    with pytest.raises(TypeConflictError):
        two.register_publisher(at, other_schema('"IR"', '"UV"'), figures.figure_1)
    # When the type comes with its right schema, from another publisher and from the one that was refused
    # Expect that the delegate takes it
    assert three.register_publisher(three.connect_to_delegate("bravo"), figures.schema, figures.figure_1)
    assert two.register_publisher(at, figures.schema, figures.figure_1)


def test_another_version_of_a_type_may_have_another_schema(
    walk: Any, other_schema: Callable[[str, str], bytes]
) -> None:
    # Given version 1.0 and version 2.0 of a type, with different schemas
    old = walk.register()
    new = walk.register(schema=other_schema('"IR"', '"UV"'), version="2.0")
    # When subscriptions ask for one of them, or for neither
    one = walk.subscriber.register_subscriber(type_name=IMAGERY, version="1.0")
    two = walk.subscriber.register_subscriber(type_name=IMAGERY, version="2.0")
    both = walk.subscriber.register_subscriber(type_name=IMAGERY)
    for uid in (one, two, both):
        assert walk.subscriber.wait_matched(uid) == 1
    walk.publishing.publish(old, walk.figures.figure_1, b"old")
    walk.publishing.publish(new, walk.figures.metadata(ImageType="UV"), b"new")
    walk.publishing.publish(old, walk.figures.figure_1, b"end")
    walk.publishing.publish(new, walk.figures.metadata(ImageType="UV"), b"end")
    # Expect that each gets its own
    take = walk.subscriber.receive
    assert [(o.type.version, o.payload) for o in (take(one), take(one))] == [("1.0", b"old"), ("1.0", b"end")]
    assert [(o.type.version, o.payload) for o in (take(two), take(two))] == [("2.0", b"new"), ("2.0", b"end")]
    assert sorted(take(both).payload for _ in range(4)) == [b"end", b"end", b"new", b"old"]


def test_without_a_marker_element_the_type_is_the_qualified_name_of_the_root(walk: Any) -> None:
    # Given a schema without a marker element: CAP 1.2, with a marks file
    cap = Path(walk.figures.schema).parent.parent / "cap"
    alert = (cap / "43b080713727.xml").read_bytes()
    # When an alert is registered and published
    walk.register(alert, cap / "cap12.xsd", marks=cap / "marks.json")
    uid = walk.subscriber.register_subscriber(type_name="{urn:oasis:names:tc:emergency:cap:1.2}alert")
    assert walk.subscriber.wait_matched(uid) == 1
    walk.publish(alert)
    # Expect that its type is named after the root
    assert walk.subscriber.receive(uid).type.name == "{urn:oasis:names:tc:emergency:cap:1.2}alert"


def test_the_type_can_be_named_explicitly(walk: Any) -> None:
    # Given a registration under a name of the publisher's choice
    walk.register(type_name="org.example.Picture")
    uid = walk.subscriber.register_subscriber(type_name="org.example.Picture")
    assert walk.subscriber.wait_matched(uid) == 1
    # When an object is published; Expect that it has this type
    walk.publish()
    assert walk.subscriber.receive(uid).type == TypeName("org.example.Picture")


@pytest.mark.row("J-71")
def test_publish_takes_bytes_files_xml_objects_and_no_payload(walk: Any, tmp_path: Path) -> None:
    # Given the same metadata and payload as bytes, as files and as XML objects
    uid = walk.subscribe()
    (tmp_path / "metadata.xml").write_bytes(walk.figures.figure_1)
    (tmp_path / "payload.xml").write_bytes(b"<a><b/></a>")
    # When each form is published
    walk.publish(walk.figures.figure_1, b"<a><b/></a>")
    walk.publish(tmp_path / "metadata.xml", tmp_path / "payload.xml")
    walk.publish(etree.fromstring(walk.figures.figure_1), etree.fromstring(b"<a><b/></a>"))
    walk.publish(walk.figures.figure_1.decode(), b"<a><b/></a>")
    walk.publish(walk.figures.figure_1, bytearray(b"<a><b/></a>"))
    walk.publish(walk.figures.figure_1)
    received = walk.received(uid)
    # Expect that each is delivered equal, and no payload as an empty one
    assert [obj.payload for obj in received] == [b"<a><b/></a>"] * 5 + [b""]
    as_bytes, as_files, as_xml = (obj.metadata for obj in received[:3])
    assert as_bytes == as_files == walk.figures.figure_1
    assert etree.tostring(etree.fromstring(as_xml), method="c14n") == etree.tostring(
        etree.fromstring(as_bytes), method="c14n"
    )


def test_a_payload_file_that_is_not_there_is_refused(walk: Any, tmp_path: Path) -> None:
    # Given a subscription; When a payload file is named that does not exist
    uid = walk.subscribe()
    with pytest.raises(MetadataError) as caught:
        walk.publish(payload=tmp_path / "missing.jpg")
    # Expect an error with the file's name, and nothing delivered
    assert "missing.jpg" in str(caught.value)
    assert walk.received(uid) == []
