"""One schema per XSD construct: handled, or refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.render import render
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.core.errors import MetadataError, SchemaError

FOLDER = Path(__file__).parent.parent / "fixtures" / "xsd_constructs"
CONSTRUCTS = sorted(path.name for path in FOLDER.iterdir())

REFUSED = {
    "37_xsd11_assert": "main.xsd line 1: xs:assert is XML Schema 1.1",
    "38_xsd11_openContent_override": "main.xsd line 1: xs:override is XML Schema 1.1",
    "41_invalid_schema": "main.xsd:1: unknown type 'NoSuch'",
}

ENTRIES = {
    "02_enumeration": [("REntry", {"k": "a-b"})],
    "03_list": [("REntry", {"k": "1 2 3"})],
    "04_union": [("REntry", {"k": "2003-01-01"})],
    "05_nested_anon": [("RequiredMetadataEntry", {"Type": "Imagery"}), ("SubEntry", {"x": "7"})],
    "06_extension": [("REntry", {"a": "x", "b": "2"})],
    "07_restriction": [("REntry", {"a": "x"})],
    "08_attributes": [("REntry", {"a": "x", "req": "5", "opt": "o"})],
    "09_attributeGroup": [("REntry", {"a": "x", "p": "5"})],
    "10_modelGroup": [("REntry", {"p": "5", "a": "x"})],
    "11_repeated": [("KwEntry", {"value": "k1"}), ("KwEntry", {"value": "k2"})],
    "12_choice": [("REntry", {"b": "2003-01-01"})],
    "13_repeatedChoice": [
        ("BEntry", {"value": "q1"}),
        ("AEntry", {"value": "1"}),
        ("BEntry", {"value": "q2"}),
        ("AEntry", {"value": "2"}),
    ],
    "14_all": [("REntry", {"a": "1", "b": "q"})],
    "15_substitution": [("Sub2Entry", {"n": "nn", "m": "3"}), ("Sub1Entry", {"n": "oo"})],
    "16_simpleContent": [("REntry", {"value": "12.5", "uom": "m"})],
    "17_mixed": [("BEntry", {"value": "bold"})],
    "18_nillable": [("REntry", {"b": "x"})],
    "19_default_fixed": [("REntry", {"a": 'it\'s "d"', "b": "7", "v": "1"})],
    "20_import": [("REntry", {"item": "z"}), ("ItemEntry", {"x": "1"})],
    "21_include_chameleon": [("AEntry", {"x": "1"})],
    "22_redefine": [("AEntry", {"x": "1", "y": "yy"})],
    "23_any": [("REntry", {"a": "x"})],
    "26_elem_attr_clash": [("REntry", {"id": "e1", "ID": "e2", "id_attribute": "4"})],
    "27_same_name_two_types": [("A_ItemEntry", {"x": "1"}), ("B_ItemEntry", {"y": "2003-01-01"})],
    "28_class_clash": [("AEntry", {"b": "bb"})],
    "29_recursion": [("REntry", {"v": "1"}), ("NEntry", {"v": "2"}), ("NEntry", {"v": "3"})],
    "33_key_id": [("IEntry", {"k": "a"}), ("IEntry", {"k": "b", "r": "a"})],
    "34_xsi_type": [("E_DEntry", {"a": "x", "b": "2"})],
    "36_xml_lang": [("REntry", {"a": "x", "lang": "en-GB"})],
    "39_empty_type_element": [("REntry", {"x": "1"})],
    "40_two_ns_same_type": [("PEntry", {"x": "1"}), ("QEntry", {"y": "s"})],
    "42_whitespace_preserve": [("REntry", {"s": "  a  b ", "t": "a b"})],
    "43_global_clash": [("A_bEntry", {"x4": "5"})],
}


def opened(make, construct):
    document = make.load(f"xsd_constructs/{construct}/ok.xml")
    return open_type(read_bundle(FOLDER / construct / "main.xsd", root=str(document.tag))), document


def test_there_are_all_43():
    assert len(CONSTRUCTS) == 43


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_a_construct_is_handled_or_refused_with_its_place(make, construct):
    if construct in REFUSED:
        with pytest.raises(SchemaError) as refused:
            opened(make, construct)
        assert REFUSED[construct] in str(refused.value)
        assert refused.value.hint
        return
    kind, document = opened(make, construct)
    kind.validate(document)
    entries = kind.entries(document)
    assert entries
    kind.check_invariants(document, entries)
    shown = [(name.replace("RootEntry", "REntry"), values) for name, values in make.shown(entries)]
    assert shown == ENTRIES.get(construct, shown)
    compile(render(kind.model), construct, "exec")


@pytest.mark.parametrize("construct", sorted(c for c in CONSTRUCTS if (FOLDER / c / "bad.xml").exists()))
def test_a_bad_document_is_found(make, construct):
    if construct in REFUSED:
        return
    kind, _ = opened(make, construct)
    with pytest.raises(MetadataError):
        kind.validate(make.load(f"xsd_constructs/{construct}/bad.xml"))


def test_every_builtin_has_its_canonical_value(make):
    kind, document = opened(make, "01_builtins")
    assert list(make.shown(kind.entries(document))[0][1].values()) == [
        *("2003-02-01T10:00:00Z", "2003-02-01", "10:00:00", "P1DT2H", "2003", "33.34", "12345678901234567890", "true"),
        *("1500.0", "http://a/b", "AQID", "0FB8", "{urn:p}x", "en", "a b", "a b c"),
    ]


@pytest.mark.row("J-35")
def test_names_are_readable_unique_and_keep_their_case(make):
    kind, _ = opened(make, "25_names")
    assert [field.name for _, field in kind.model.invariants] == [
        *("mil_af_rl_jbi_Intel_Imagery", "a_dash_b", "a_dot_b", "a_b", "A_B", "aB", "ab", "_1", "x\u00b7y"),
        *("\u00e9l\u00e9ment", "\u65e5\u672c"),
    ]
    keywords, _ = opened(make, "24_keywords")
    names = [field.name for _, field in keywords.model.invariants]
    assert {"class_", "None_", "str_", "dataclass_", "x__init__", "match", "type", "self"} <= set(names)
