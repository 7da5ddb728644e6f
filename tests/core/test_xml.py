"""Hostile and broken XML is harmless: one clear error for metadata, "not XML" for payloads."""

from __future__ import annotations

import codecs
import resource
import subprocess
import sys
from contextlib import suppress
from xml.parsers import expat

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core import xml
from jbi_pubsub.core.errors import MetadataError, OversizeError
from jbi_pubsub.core.xml import MAX_DEPTH, looks_like_xml, most_nodes, parse_metadata, parse_payload, to_bytes

XXE = b'<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><a>&e;</a>'
LAUGHS = (
    b"<!DOCTYPE a [<!ENTITY l0 'ha'>"
    + b"".join(b"<!ENTITY l%d '%s'>" % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 10))
    + b"]><a>&l9;</a>"
)
HIDDEN = [
    '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE a><a/>'.encode("utf-16"),
    codecs.BOM_UTF8 + b"<!DOCTYPE a><a/>",
    b'<?xml version="1.0" encoding="UTF-7"?>+ADwAIQ-DOCTYPE a+AD4-<a/>',
    '<?xml version="1.0" encoding="IBM037"?><!DOCTYPE a><a/>'.encode("cp037"),
    b" \n<!DOCTYPE a><a/>",
    b"<!-- <a> --><!DOCTYPE a><a/>",
    b"<?pi <a>?><!DOCTYPE a><a/>",
    b'<?xml version="1.0" encoding="ISO-8859-1"?><!--x--><!DOCTYPE a><a/>',
    b"<?xml version='1.0' encoding='us-ascii'?>\r\n<!DOCTYPE a><a/>",
]


LONG = 10_100_000
"""More than libxml2 takes of one text when nothing else is said."""


def nested(depth: int) -> bytes:
    return b"<a>" * depth + b"</a>" * depth


@pytest.mark.row("J-58")
@pytest.mark.parametrize("hostile", [XXE, LAUGHS, *HIDDEN])
def test_a_doctype_is_refused_in_metadata_and_payloads(hostile: bytes) -> None:
    with pytest.raises(MetadataError):
        parse_metadata(hostile)
    if looks_like_xml(hostile):
        with pytest.raises(OversizeError):
            parse_payload(hostile)
    else:
        assert parse_payload(hostile) is None


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><p><br></p>", b"<!DOCTYPE html>" + b"<p>x<br></p>" * 10_000])
def test_a_payload_with_a_doctype_that_is_not_well_formed_is_no_xml(page: bytes) -> None:
    assert parse_payload(page) is None


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"<r><p:a/></r>", id="prefix"),
        pytest.param(b"<r p:a='1'/>", id="prefix of an attribute"),
        pytest.param(b"<r><:a/></r>", id="colon"),
        pytest.param(b"<r><?a:b c?></r>", id="colon of an instruction"),
        pytest.param(b"<r xmlns:p='u' xmlns:q='u' p:x='1' q:x='2'/>", id="attribute twice"),
        pytest.param(b"<r xmlns:p='a b'/>", id="namespace that is no URI"),
        pytest.param(b"<r xmlns:xml='u'/>", id="reserved prefix"),
        pytest.param(b"<?xml version='2.0'?><r/>", id="version"),
        pytest.param(b"<?xml version='1.0' encoding='x-ours'?><r/>", id="encoding"),
        pytest.param(b"<r xmlns:p='a b'><" + b"n" * 60_000 + b"/></r>", id="namespace, and a long name"),
        pytest.param(b"<r><a xml:id='1'/><p:a/></r>", id="xml:id, and a prefix"),
    ],
)
def test_a_well_formed_payload_that_the_parser_refuses_is_no_payload_without_xml(payload: bytes) -> None:
    with pytest.raises(OversizeError, match="an XML payload has"):
        parse_payload(payload)


@pytest.mark.parametrize("payload", [b"<r><p:a/><b></r>", b"<r xmlns:p='a b'>&x;</r>", b"<r><a xml:id='1'/><b></r>"])
def test_a_payload_that_is_also_malformed_is_no_xml(payload: bytes) -> None:
    assert parse_payload(payload) is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("filling", ["", "x" * LONG], ids=["short", "long"])
def test_a_payload_whose_ids_are_faulty_is_parsed(filling: str, encoding: str) -> None:
    payload = f"<r><a xml:id='i'/><a xml:id='i'/><a xml:id='1'/><b>{filling}</b></r>"
    root = parse_payload(payload.encode(encoding))
    assert root is not None
    assert [each.get("{http://www.w3.org/XML/1998/namespace}id") for each in root[:3]] == ["i", "i", "1"]


MARKUP = ("<a>", "</a>", '<b xml:id="i"/>', '<b xml:id="1"/>', '<c p:x="1" q:x="2"/>', '<d xmlns:p="u" xmlns:q="u">',
          "</d>", '<d xmlns:p="u v">', '<e xmlns="::"/>', "<e:f/>", "<e::f/>", "<:f/>", "<?a:b c?>", "<?xml x?>",
          "<?p?>", "<!-- c -->", "<!-- -- -->", "&amp;", "&#38;", "&#1;", "&x;", "x", "<", ">", "]]>", '"', "é",
          "\ufffe", '<g x="1" x="2"/>', '<g x="<"/>', "<g x/>", "<![CDATA[<]]>", '<g xmlns:xml="u"/>',
          '<g xmlns:p=""/>', '<g xml:lang="%"/>', '<g xml:space="x"/>', "<1/>", '<g é="1"/>',
          '<g xmlns="%zz"/>')  # fmt: skip
PROLOGS = ("", "<!-- x -->", "<?p x?>", *(f'<?xml version="{n}"?>' for n in ("1.0", "1.1", "2.0")),
           '<?xml version="1.0" encoding="utf-8" standalone="yes"?>')  # fmt: skip


@settings(derandomize=True, max_examples=examples(500), deadline=None)
@given(st.sampled_from(PROLOGS), st.lists(st.sampled_from(MARKUP), max_size=5), st.sampled_from(["", " ", "x", "<y/>"]))
def test_no_payload_is_taken_for_no_xml_that_another_parser_reads(prolog: str, parts: list[str], end: str) -> None:
    payload = f"{prolog}<r>{''.join(parts)}</r>{end}".encode()
    try:
        is_none = parse_payload(payload) is None
    except OversizeError:
        is_none = False
    if is_none:
        with pytest.raises(expat.ExpatError):
            expat.ParserCreate().Parse(payload, True)


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    [b"<a>%s</a>", b"<a t='%s'/>", b"<![CDATA[%s]]>", b"<!--%s-->", b"<?p %s?>", b"<a xmlns='%s'/>"],
    ids=["text", "attribute", "CDATA", "comment", "instruction", "namespace"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_payload_is_parsed_however_long_one_part_of_it_is(part: bytes, encoding: str) -> None:
    text = "<r><id>7</id>" + part.decode() % ("x" * LONG) + "</r>"
    root = parse_payload(text.encode(encoding))
    assert root is not None
    assert root.findtext("id") == "7"


def test_a_payload_with_a_long_name_is_parsed() -> None:
    root = parse_payload(b"<r><id/><" + b"n" * 60_000 + b"/></r>")
    assert root is not None
    assert len(root[1].tag) == 60_000


@pytest.mark.row("J-58")
@pytest.mark.parametrize("filling", [b"", b"t" * 100_000, b"<![CDATA[" + b"t" * LONG + b"]]>"])
def test_entities_grow_to_nothing_however_long_the_payload_is(filling: bytes) -> None:
    # Given entities of entities, in an attribute, where they are always replaced
    laughs = LAUGHS.partition(b"<a>")[0] + b"<a t='&l9;'>" + filling + b"</a>"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OversizeError):
        parse_payload(laughs)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_depth_is_bounded() -> None:
    assert parse_metadata(nested(MAX_DEPTH)).tag == "a"
    with pytest.raises(MetadataError, match="nested deeper than 200"):
        parse_metadata(nested(MAX_DEPTH + 1))
    for depth in (MAX_DEPTH + 1, 300, 3_000, 1_000_000):
        with pytest.raises(OversizeError):
            parse_payload(nested(depth))


@pytest.mark.parametrize("padding", ["x" * 2_000, "<!-- c -->" * 200, "<?p i?>" * 300])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "us-ascii"])
def test_depth_is_bounded_whatever_else_is_in_the_document(padding: str, encoding: str) -> None:
    def document(depth: int) -> bytes:
        tree = "<a>" * depth + padding + "</a>" * depth
        return f'<?xml version="1.0" encoding="{encoding}"?>{tree}'.encode(encoding)

    assert parse_metadata(document(MAX_DEPTH)).tag == "a"
    with pytest.raises(MetadataError, match="nested deeper than 200"):
        parse_metadata(document(MAX_DEPTH + 1))


def test_a_document_with_many_elements_is_not_a_deep_one() -> None:
    assert len(parse_metadata(b"<a>" + b"<b><c/></b>" * 5_000 + b"</a>")) == 5_000


def nodes(root: xml.Element) -> list[str]:
    """All there are in a document, as an expression can tell them apart."""
    return [each if isinstance(each, str) else str(each.tag) for each in root.xpath("//node() | //@*")]


PARTS = ("<a>", "</a>", "<b x='1>'/>", "<b y=\"='\" z='>>'/>", "x", ">", ">>", "&gt;", "<!-- > = <<a> -->", "<?p >?>",
         "<![CDATA[<a>>]]>", " ", "<c/>", "=", "'", "\u3e3c", "\u3c3e", "é")  # fmt: skip


@settings(derandomize=True, max_examples=examples(400), deadline=None)
@given(
    st.lists(st.sampled_from(PARTS), max_size=9),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "iso-8859-1", "us-ascii", "cp037"]),
)
def test_a_document_is_what_lxml_takes_it_for_and_has_no_more_nodes_than_its_bytes_show(
    parts: list[str], encoding: str
) -> None:
    declared = encoding.replace("-sig", "")
    source = f'<?xml version="1.0" encoding="{declared}"?><r>{"".join(parts)}</r>'
    data = source.encode(encoding, errors="xmlcharrefreplace")
    try:
        root = parse_payload(data)
    except OversizeError:
        root = None
    if root is not None:
        assert root.xpath("count(//node()) + count(//@*)") <= most_nodes(data)
        assert nodes(root) == nodes(etree.fromstring(data))


def test_a_payload_with_too_many_nodes_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml, "MAX_XML_PAYLOAD_NODES", 1000)
    poison = b"<r>" + b"<x/>" * 1001 + b"</r>"
    for each in (poison, poison.decode().encode("utf-16")):
        with pytest.raises(OversizeError, match="more than 1000 nodes"):
            parse_payload(each)
    # but one that has as many bytes, and not as many nodes, is
    assert parse_payload(b"<r>" + b"<x>1</x>" * 400 + b"t" * 4000 + b"</r>") is not None


@pytest.mark.row("J-58")
@pytest.mark.slow
@pytest.mark.parametrize("part", [b"<x/>", b"<x><y>1</y></x>", b"<x>" + b"t" * 900 + b"</x>", b'<x a="1" b="2"/>'])
def test_memory_of_a_large_payload_is_bounded_and_given_back(part: bytes) -> None:
    # Given as large a payload as may come, in a process of its own
    script = f"""
import resource
from pathlib import Path
from jbi_pubsub.core.xml import MAX_XML_PAYLOAD_BYTES, MAX_XML_PAYLOAD_NODES, give_back, most_nodes, parse_payload
from jbi_pubsub.core.xpath import compile_filter, select
def held():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
room = min((MAX_XML_PAYLOAD_BYTES - 7) // {len(part)}, (MAX_XML_PAYLOAD_NODES - 1) // most_nodes({part!r}))
payload = b"<r>" + {part!r} * room + b"</r>"
before = held()
root = parse_payload(payload)
assert root is not None
select([compile_filter("//y")], root, len(payload))
del root
give_back(len(payload))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, held() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    peak, left = map(int, done.stdout.split())
    assert peak < 600 << 20
    assert left < 32 << 20


def test_size_is_bounded() -> None:
    with pytest.raises(OversizeError, match="has 30 bytes, the limit is 10"):
        parse_metadata(b"<a>" + b"x" * 23 + b"</a>", limit=10)


def test_malformed_metadata_name_line_and_column() -> None:
    with pytest.raises(MetadataError) as caught:
        parse_metadata(b"<a>\n  <b>\n</a>")
    assert caught.value.facts["line"] == 3


def test_text_with_an_encoding_declaration_is_taken() -> None:
    assert parse_metadata(to_bytes('<?xml version="1.0" encoding="ISO-8859-1"?>\n<a>\u20ac</a>')).text == "\u20ac"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_text_keeps_an_instruction_that_it_begins_with(mark: str) -> None:
    text = '<?xml-stylesheet href="a.xsl"?><a/>'
    assert to_bytes(mark + text) == (mark + text).encode()
    assert to_bytes(f'{mark}<?xml version="1.0"?>\n{text}') == text.encode()


@pytest.mark.parametrize("behind", ["\n", ", and more", "\n<b/>"])
def test_an_element_is_given_without_the_text_behind_it(behind: str) -> None:
    element = etree.fromstring(f"<top> <a>1</a>{behind}</top>")[0]
    assert to_bytes(element) == b"<a>1</a>"


@pytest.mark.long
@settings(derandomize=True, max_examples=examples(300))
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_parsed_or_refused_with_our_error(data: bytes) -> None:
    try:
        parse_metadata(data)
    except MetadataError:
        with suppress(OversizeError):  # a DOCTYPE, by chance
            assert parse_payload(data) is None
    else:
        assert parse_payload(data) is not None or not data.lstrip().startswith(b"<")
