"""Hostile and broken XML is harmless: one clear error for metadata, "not XML" for payloads."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import MetadataError, OversizeError
from jbi_pubsub.core.xml import MAX_DEPTH, parse_metadata, parse_payload, to_bytes

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


def nested(depth: int) -> bytes:
    return b"<a>" * depth + b"</a>" * depth


@pytest.mark.parametrize("hostile", [XXE, LAUGHS, *HIDDEN])
def test_a_doctype_is_refused_in_metadata_and_makes_a_payload_not_xml(hostile: bytes) -> None:
    with pytest.raises(MetadataError):
        parse_metadata(hostile)
    assert parse_payload(hostile) is None


def test_depth_is_bounded() -> None:
    assert parse_metadata(nested(MAX_DEPTH)).tag == "a"
    with pytest.raises(MetadataError, match="nested deeper than 200"):
        parse_metadata(nested(MAX_DEPTH + 1))
    assert parse_payload(nested(MAX_DEPTH + 1)) is None


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


def test_size_is_bounded() -> None:
    with pytest.raises(OversizeError, match="has 30 bytes, the limit is 10"):
        parse_metadata(b"<a>" + b"x" * 23 + b"</a>", limit=10)


def test_malformed_metadata_name_line_and_column() -> None:
    with pytest.raises(MetadataError) as caught:
        parse_metadata(b"<a>\n  <b>\n</a>")
    assert caught.value.facts["line"] == 3


def test_text_with_an_encoding_declaration_is_taken() -> None:
    assert parse_metadata(to_bytes('<?xml version="1.0" encoding="ISO-8859-1"?>\n<a>\u20ac</a>')).text == "\u20ac"


@settings(derandomize=True, max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_parsed_or_refused_with_our_error(data: bytes) -> None:
    try:
        parse_metadata(data)
    except MetadataError:
        assert parse_payload(data) is None
    else:
        assert parse_payload(data) is not None or not data.lstrip().startswith(b"<")
