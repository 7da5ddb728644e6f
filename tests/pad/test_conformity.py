"""Metadata that only repeat what was found good are told without a parser: with the answer it would have given."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, open_type
from jbi_pubsub.core.cache import InUse
from jbi_pubsub.core.documents import KnownDocuments, Traced, known
from jbi_pubsub.core.documents.known import MAX_STENCILS, PATIENCE_FIRST
from jbi_pubsub.core.errors import InvariantError, JbiError, MetadataError, OversizeError
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, Element, parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate
from jbi_pubsub.protocol.conformity import MAX_PASSED, UNLIKE, UNLIKE_EVERY, Conformity

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "data"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of documents that other tests have made."""
    monkeypatch.setattr(known, "_by_type", InUse())


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
    for number in range(PATIENCE_FIRST + 1):  # the last one shows its invariants
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


def test_an_optional_part_a_repeated_one_and_comments_are_known_by_one_stencil(imagery: InformationType) -> None:
    # Given objects now with, now without the optional part, with a comment here and there
    made = conformity(imagery)
    head, _, rest = figure_1().partition(b"<ImageDescriptor>")
    kinds = [
        figure_1(),
        head + rest.partition(b"</ImageDescriptor>")[2],
        figure_1().replace(b"<Area>", b"<!-- where -->\n<Area>"),
    ]
    for number in range(2 * PATIENCE_FIRST):
        made.check(kinds[number % 3])
    # Expect all to be recognised, and so what is new in the same places
    new = figure_1().replace(b"<lat>", b"<lat>1").replace(b"<LocationCoord>", b"<!-- <lat> --><LocationCoord>")
    assert all(isinstance(made.check(kind), Traced) for kind in (*kinds, new))
    assert len(made._known.stencils) == 1


def test_registrations_of_a_type_share_what_is_known_of_its_documents(imagery: InformationType) -> None:
    # Given a registration whose documents are known, and other ones of the type with other invariants
    first = taught(imagery)
    for publisher in (b"419th", b"420th"):
        metadata = figure_1().replace(b"418th", publisher)
        other = Conformity(imagery, imagery.entries(parse_metadata(metadata)), validate=True)
        # When the second document of each comes
        assert not isinstance(other.check(metadata), Traced)
        # Expect it to be known, and one with the invariants of the first to be refused as ever
        assert isinstance(other.check(metadata), Traced)
        with pytest.raises(InvariantError):
            other.check(figure_1())
        with pytest.raises(InvariantError):
            first.check(metadata)


def test_what_is_not_validated_has_stencils_of_its_own(imagery: InformationType) -> None:
    # Given two registrations of a type, one of which is not validated
    made = taught(imagery)
    entries = imagery.entries(parse_metadata(figure_1()))
    lax = Conformity(imagery, entries, validate=False)
    wrong = figure_1().replace(b"<latord>N", b"<latord>Q")
    for _ in range(PATIENCE_FIRST + 1):
        lax.check(wrong)
    # Expect what is invalid to be known to this one, and refused by the other
    assert isinstance(lax.check(wrong.replace(b"<Area>", b"<Area>in ")), Traced)
    with pytest.raises(InvariantError):
        lax.check(wrong.replace(b"418th", b"419th"))
    with pytest.raises(MetadataError):
        made.check(wrong)


def test_stencils_go_with_the_last_registration(imagery: InformationType) -> None:
    # Given a type whose documents are known; When its registrations are gone
    made = taught(imagery)
    documents = weakref.ref(made._known)
    del made
    # Expect nothing to be held of it
    assert documents() is None


def test_ways_to_write_the_invariants_are_remembered_in_small_number(imagery: InformationType) -> None:
    # Given a source that writes its repeated invariants in another way each time
    made = taught(imagery)
    for number in range(3 * MAX_PASSED):
        made.check(figure_1().replace(b"</keywords>", b"</keywords>" + b" " * number))
        assert len(made._passed) <= MAX_PASSED


def test_kinds_of_documents_that_are_unlike_have_a_stencil_each_and_the_commonest_stay(
    imagery: InformationType,
) -> None:
    # Given documents of which some are written in other ways
    made = conformity(imagery)
    kinds = [
        figure_1().replace(b'version="1.0"', b'version="1.0"' + b" " * number) for number in range(MAX_STENCILS + 2)
    ]
    for number in range(10 * PATIENCE_FIRST):
        made.check(kinds[number % 2])
        made.check(kinds[number % len(kinds)])
    # Expect the commonest to be known
    assert all(isinstance(made.check(kind), Traced) for kind in kinds[:2])
    assert len(made._known.stencils) <= MAX_STENCILS


def test_of_sources_that_never_repeat_themselves_few_stencils_are_made(
    imagery: InformationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a source each of whose documents is laid out in another way
    made = conformity(imagery)
    tries = 0
    learn = KnownDocuments.learn

    def counted(known: KnownDocuments, samples: Any, weight: float) -> None:
        nonlocal tries
        tries += 1
        learn(known, samples, weight)

    monkeypatch.setattr(KnownDocuments, "learn", counted)
    # When many of them come
    for number in range(10 * PATIENCE_FIRST):
        made.check(figure_1().replace(b"</metadata>", b"</metadata" + b" " * number + b">"))
    # Expect ever longer waits between two tries
    assert tries == 4


def test_a_source_that_is_like_no_known_ones_is_looked_at_now_and_then(
    imagery: InformationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given known documents, and a source whose documents are like none of them
    made = taught(imagery)
    looked = 0
    trace = KnownDocuments.trace

    def counted(known: KnownDocuments, metadata: bytes) -> Any:
        nonlocal looked
        looked += 1
        return trace(known, metadata)

    monkeypatch.setattr(KnownDocuments, "trace", counted)
    odd = figure_1().replace(b"</metadata>", b"</metadata >")
    for _ in range(UNLIKE + 5 * UNLIKE_EVERY):
        with pytest.raises(MetadataError):
            made.check(odd.replace(b"<lat>", b"<lat>x"))
    # Expect few of them to be looked at; when it has known ones again, all
    assert looked == UNLIKE + 5
    while not isinstance(made.check(figure_1()), Traced):
        pass
    assert all(isinstance(made.check(figure_1()), Traced) for _ in range(2 * UNLIKE_EVERY))


def test_what_predicates_read_is_learned(imagery: InformationType) -> None:
    # Given known documents, and predicates over two leaves
    made = taught(imagery)
    index: PredicateIndex[str] = PredicateIndex()
    index.add("rome", compile_predicate("/metadata/ImageDescriptor/Area = 'Rome'"))
    index.add("far", compile_predicate("/metadata/ImageDescriptor/LocationCoord/lat > 40"))

    def is_parsed() -> bool:
        traced = made.check(with_latitude("50"))
        assert isinstance(traced, Traced)
        assert sorted(index.match(traced)) == ["far"]
        return traced._root is not None

    # When some were parsed for it
    while is_parsed():
        pass
    # Expect the next ones not to be, until a predicate reads something else
    assert not is_parsed()


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
        parse_metadata(metadata)  # for what it refuses
        root = etree.fromstring(metadata)
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
        traced += tried._known.trace(metadata) is not None
    assert traced > 100


def test_a_type_too_deep_for_a_stencil_is_parsed(tmp_path: Path) -> None:
    # Given a schema of types within types, each with groups within groups
    levels, groups = 28, 40
    types = '<xs:complexType name="t0"><xs:sequence><xs:element name="z" type="xs:int"/></xs:sequence></xs:complexType>'
    for level in range(1, levels + 1):
        inner = f'<xs:element name="e{level - 1}" type="t{level - 1}" minOccurs="0"/>'
        group = '<xs:sequence minOccurs="0">' * groups + inner + "</xs:sequence>" * groups
        types += f'<xs:complexType name="t{level}">{group}</xs:complexType>'
    schema = tmp_path / "deep.xsd"
    schema.write_text(
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">'
        f'{types}<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>'
        f'<xs:element name="v" jbi:variance="variant" type="t{levels}"/></xs:sequence></xs:complexType></xs:element>'
        "</xs:schema>"
    )
    kind = open_type(read_bundle(schema))
    inside = "<z>1</z>"
    for level in range(levels):
        inside = f"<e{level}>{inside}</e{level}>"
    document = f"<r><who>w</who><v>{inside}</v></r>".encode()
    made = Conformity(kind, kind.entries(parse_metadata(document)), validate=True)
    # When so many documents have come that a stencil would be made, expect each to be taken
    for _ in range(2 * PATIENCE_FIRST):
        assert made.check(document) is not None
