"""Metadata that only repeat what was found good are told without a parser: with the answer it would have given."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.codegen.repository import InformationType, open_type
from jbi_pubsub.codegen.schema import read_bundle
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.errors import InvariantError, JbiError, MetadataError, OversizeError
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, Element, parse_metadata
from jbi_pubsub.pad.dissemination import PATIENCE_FIRST, STENCILS, Conformity

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "data"


@pytest.fixture(scope="module")
def imagery() -> InformationType:
    return open_type(read_bundle(EXAMPLES / "intel_imagery/Intel_Imagery.xsd"))


def figure_1() -> bytes:
    return (EXAMPLES / "intel_imagery/fig1.xml").read_bytes()


def with_latitude(value: str) -> bytes:
    head, _, rest = figure_1().partition(b"<lat>")
    return head + b"<lat>" + value.encode() + b"</lat>" + rest.partition(b"</lat>")[2]


def conformity(kind: InformationType) -> Conformity:
    return Conformity(kind, kind.entries(parse_metadata(figure_1())), validate=True)


def taught(kind: InformationType) -> Conformity:
    """After so many documents that it has a stencil of them."""
    made = conformity(kind)
    for number in range(PATIENCE_FIRST):
        made.check(with_latitude(f"{number}.5"))
    return made


def test_a_source_that_repeats_itself_is_not_parsed_any_more(imagery: InformationType) -> None:
    # Given a registration whose objects have differed in a number
    made = taught(imagery)
    # Expect the next ones to be recognised, whatever the number
    assert all(isinstance(made.check(with_latitude(value)), Traced) for value in ("1", "-33.948", "88.00"))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        pytest.param(b"<lat>", b"<lat>north", MetadataError, id="a value that is none"),
        pytest.param(b"<latord>N<", b"<latord>Q<", MetadataError, id="a value not enumerated"),
        pytest.param(b"418th", b"419th", InvariantError, id="another invariant"),
        pytest.param(b"<lat>", b"<lat", MetadataError, id="malformed"),
        pytest.param(b"<lat>", b"<late>", MetadataError, id="another element"),
        pytest.param(b"<Area>", b"<Area>" + b"x" * MAX_METADATA_BYTES, OversizeError, id="too large"),
    ],
)
def test_what_is_wrong_is_refused_as_before(imagery: InformationType, old: bytes, new: bytes, error: Any) -> None:
    # Given a registration with a stencil; When an object is wrong
    made = taught(imagery)
    wrong = figure_1().replace(old, new)
    assert wrong != figure_1()
    # Expect the error that it would have had before
    with pytest.raises(error) as refused:
        made.check(wrong)
    with pytest.raises(error) as before:
        conformity(imagery).check(wrong)
    assert str(refused.value) == str(before.value)


def test_what_the_validator_itself_fails_on_is_refused() -> None:
    # Given a schema by which libxml2 can't compare some values: years of 18 digits
    schema = (
        b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"><xs:element name="r">'
        b'<xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/><xs:element name="v" '
        b'jbi:variance="variant"><xs:simpleType><xs:restriction base="xs:gYear"><xs:enumeration value="2000"/>'
        b"</xs:restriction></xs:simpleType></xs:element></xs:sequence></xs:complexType></xs:element></xs:schema>"
    )
    kind = open_type(read_bundle(schema))
    document = b"<r><who>a</who><v>%s</v></r>"
    made = Conformity(kind, kind.entries(parse_metadata(document % b"2000")), validate=True)
    made.check(document % b"2000")
    # Expect an error that says so, not the library's
    with pytest.raises(MetadataError, match="can't be validated"):
        made.check(document % b"123456789012345678")


def test_two_kinds_of_documents_have_a_stencil_each(imagery: InformationType) -> None:
    # Given objects now with, now without the optional part
    made = conformity(imagery)
    head, _, rest = figure_1().partition(b"<ImageDescriptor>")
    without = head + rest.partition(b"</ImageDescriptor>")[2]
    head, _, rest = figure_1().partition(b"<Area>")
    elsewhere = head + b"<Area>Rome</Area>" + rest.partition(b"</Area>")[2]
    kinds = [figure_1().replace(b"\n", b"\n "), elsewhere]
    for number in range(3 * PATIENCE_FIRST):
        made.check(kinds[number % 2])
    # Expect both to be recognised; what has no leaf to vary is parsed
    assert all(isinstance(made.check(kind), Traced) for kind in kinds)
    assert not isinstance(made.check(without), Traced)
    assert len(made._stencils) <= STENCILS


def test_of_sources_that_never_repeat_themselves_few_stencils_are_made(imagery: InformationType) -> None:
    # Given a source each of whose documents is laid out in another way
    made = conformity(imagery)
    asked = 0

    class Asked:
        """Counts how often the schema is asked for certain texts."""

        def __getattr__(self, name: str) -> Any:
            return getattr(imagery, name)

        def texts(self, path: Any) -> Any:
            nonlocal asked
            asked += path[-1] == "lat"
            return imagery.texts(path)

    made._gate = Asked()
    # When many of them come
    for number in range(10 * PATIENCE_FIRST):
        made.check(figure_1().replace(b"</metadata>", b" " * number + b"</metadata>"))
    # Expect ever longer waits between two tries
    assert asked == 4


# -- against the parser ---------------------------------------------------------------------------------------------


def outcome(check: Any, metadata: bytes) -> tuple[str, str]:
    try:
        check(metadata)
    except JbiError as exc:
        return type(exc).__name__, str(exc)
    return "", ""


VALUES = {
    "imagery": (
        ("lat", ("1", "-90.000", "1e3", "", " 7 ", "12345678901234567890", "٣", "7.", ".7", "+7")),
        ("latord", ("N", "S", " N", "n", "")),
        ("ImageType", ("IR", "SAR", "X", "IR ")),
        ("Area", ("Rome", "Á", "", "a &lt; b", "a  b", "<b/>", "]]>", "a\rb")),
        ("publisher", ("418th", "419th", " 418th ", "")),
    ),
    "cap": (
        ("identifier", ("KSTO1055887203", "x", "", "a b", "a,b", "é")),
        ("sent", ("2003-06-17T14:57:00-07:00", "2003-02-30T00:00:00-07:00", "2024-02-29T12:00:00-00:00", "now", "")),
        ("status", ("Actual", "Test", "actual", "")),
        ("urgency", ("Immediate", "Past", "past")),
        ("description", ("rain", "", "A\tB\n", "é", "<x/>")),
        ("effective", ("2003-06-17T14:57:00-07:00", "2003-06-17")),
        ("polygon", ("38.47,-120.14 38.34,-119.95", "x", "")),
    ),
}


def kinds() -> dict[str, tuple[InformationType, bytes]]:
    cap = open_type(read_bundle(EXAMPLES / "cap/cap12.xsd", marks=EXAMPLES / "cap/marks.json"))
    return {
        "imagery": (open_type(read_bundle(EXAMPLES / "intel_imagery/Intel_Imagery.xsd")), figure_1()),
        "cap": (cap, (EXAMPLES / "cap/thunderstorm.xml").read_bytes()),
    }


@pytest.mark.parametrize("name", VALUES)
def test_every_answer_is_the_parsers(name: str) -> None:
    # Given documents of a type with values of all kinds in their leaves, good and bad
    kind, source = kinds()[name]
    registered = kind.entries(parse_metadata(source))
    tried = Conformity(kind, registered, validate=True)
    rng = random.Random(1)
    text = source.decode()

    def parser(metadata: bytes) -> Element:
        root = parse_metadata(metadata)
        kind.validate(root)
        kind.check_invariants(root, registered)
        return root

    traced = 0
    for _ in range(1500):
        changed = text
        for tag, values in VALUES[name]:
            if rng.random() < 0.4:
                head, _, rest = changed.partition(f"<{tag}>")
                value = values[0] if rng.random() < 0.6 else rng.choice(values)
                changed = f"{head}<{tag}>{value}</{tag}>{rest.partition(f'</{tag}>')[2]}"
        metadata = changed.encode()
        # Expect for each the parser's answer, down to the words of the error
        assert outcome(tried.check, metadata) == outcome(parser, metadata), changed
        traced += any(stencil.trace(metadata) is not None for stencil in tried._stencils)
    assert traced > 100
