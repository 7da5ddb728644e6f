"""The combined view of an object, as the paper prints it."""

from __future__ import annotations

from datetime import datetime

import pytest
from lxml import etree

from jbi_pubsub.core.combined import NAMESPACE, PATHS, Provenance, combined
from jbi_pubsub.core.info_object import Head
from jbi_pubsub.core.xpath import compile_predicate

IMAGE = b"""<image>
  <name>SampleImage</name>
  <description>This is a sample image</description>
  <priority>1</priority>
</image>
"""

PRINTED = """<og:metadata xmlns:og="http://gdc4s.com/oim/gemini">
  <og:baseObject>
    <og:InfoObjectType>
      <og:Name>test</og:Name>
      <og:MajorVersion>1</og:MajorVersion>
      <og:MinorVersion>0</og:MinorVersion>
    </og:InfoObjectType>
    <og:PublicationTime>2007-12-03T14:30:50.416-07:00</og:PublicationTime>
    <og:InfoObjectID>998c30c4-d333-467d-8c6d-c87acbe6e30c</og:InfoObjectID>
    <og:PublisherID>ClientTest</og:PublisherID>
    <og:MetadataLength>121</og:MetadataLength>
    <og:PayloadLength>3269654</og:PayloadLength>
  </og:baseObject>
  <image>
    <name>SampleImage</name>
    <description>This is a sample image</description>
    <priority>1</priority>
  </image>
</og:metadata>"""
"""But for the time, which is told in UTC: it is the same for all nodes."""

PUBLISHED = datetime.fromisoformat("2007-12-03T14:30:50.416-07:00").timestamp()


def _head(metadata: bytes = IMAGE, payload: int = 3_269_654, **others: object) -> Head:
    given = {"registration": "r-1", "sequence": 1, "type_name": "test", "type_version": "1.0", **others}
    return Head(
        "998c30c4-d333-467d-8c6d-c87acbe6e30c", published=PUBLISHED, metadata=metadata, payload_length=payload, **given
    )  # type: ignore[arg-type]


CLIENT = Provenance("ClientTest")


def _holds(predicate: str, head: Head, origin: Provenance = CLIENT, prefix: str = "og") -> bool:
    return compile_predicate(predicate, namespaces={prefix: NAMESPACE}).matches(combined(head, origin))


@pytest.mark.row("G-108", "G-109")
def test_the_example_is_that_of_the_paper() -> None:
    # Given the printed metadata, of 121 bytes
    assert len(IMAGE) == 121
    # Expect the printed document
    made = combined(_head(), Provenance("ClientTest"))
    printed = etree.fromstring(PRINTED.replace("14:30:50.416-07:00", "21:30:50.416+00:00"))
    for each in (made, printed):
        etree.indent(each)
    assert etree.tostring(made, method="c14n") == etree.tostring(printed, method="c14n")


@pytest.mark.row("G-49", "G-110")
@pytest.mark.parametrize(
    ("predicate", "with_the_payload_of"),
    [
        ("/og:metadata/image", (3_269_654, 999_999)),
        ("/og:metadata/og:baseObject[og:PayloadLength>1000000]", (3_269_654,)),
        ("//image[priority='1']", (3_269_654, 999_999)),
    ],
)
def test_the_printed_predicates_match(predicate: str, with_the_payload_of: tuple[int, ...]) -> None:
    for size in (3_269_654, 999_999):
        assert _holds(predicate, _head(payload=size)) is (size in with_the_payload_of), size
    assert not _holds("/image", _head())  # it is not the document element here


@pytest.mark.row("G-109", "G-162")
def test_each_path_of_the_platform_is_there_and_no_other() -> None:
    made = combined(_head(b""), Provenance("me", "f00d", ("10.0.0.1", "::1")))
    found = [
        tuple(str(e.tag) for e in [*reversed(list(each.iterancestors())), each]) for each in made.iter(etree.Element)
    ]
    assert list(dict.fromkeys(found)) == list(PATHS)
    assert [str(e.text) for e in made.iter(f"{{{NAMESPACE}}}NodeAddress")] == ["10.0.0.1", "::1"]


def test_the_node_that_has_sent_it_is_the_first_on_the_way() -> None:
    here = Provenance("me", "here", ("10.0.0.1",))
    assert _holds("//og:NodeID = 'here' and //og:NodeAddress = '10.0.0.1'", _head(), here)
    assert _holds("//og:NodeID = 'far' and not(//og:NodeAddress)", _head(via=("far", "near"), hops=2), here)


@pytest.mark.parametrize("metadata", [b"", b"<no", b"\xff\xfe\x00", b"<!DOCTYPE a><a/>"])
def test_without_metadata_that_can_be_read_there_is_the_platforms_part(metadata: bytes) -> None:
    assert _holds(f"//og:MetadataLength = {len(metadata)} and count(/og:metadata/*) = 1", _head(metadata))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<a>&amp;\"'", "<a>&amp;\"'"),
        ("]]>", "]]>"),
        ("\x00\x1b[31m", "\ufffd\ufffd[31m"),
        ("a\ufffeb", "a\ufffdb"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_hostile_names_stay_text(text: str, kept: str) -> None:
    # Given a name that is markup, or no XML
    made = combined(_head(type_name=text), Provenance(text, text, (text,)))
    # Expect a document that can be read again, with the name as a text
    again = etree.fromstring(etree.tostring(made))
    assert len(list(again.iter())) == len(list(made.iter()))
    for tag in ("Name", "PublisherID", "NodeID", "NodeAddress"):
        assert again.findtext(f".//{{{NAMESPACE}}}{tag}") == kept


def test_versions_are_taken_apart_at_the_first_dot() -> None:
    for version, major, minor in (("1.0", "1", "0"), ("2", "2", ""), ("2.1.3", "2", "1.3")):
        head = _head(type_version=version)
        assert _holds(f"//og:MajorVersion = '{major}' and string(//og:MinorVersion) = '{minor}'", head), version


@pytest.mark.row("G-113")
def test_another_prefix_may_stand_for_the_platform() -> None:
    assert _holds("/x:metadata/x:baseObject/x:PublisherID = 'ClientTest'", _head(), prefix="x")
