"""The fixed test sets (the paper's figures, CAP 1.2), and small schemas made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, open_type
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep

FIXTURES = Path(__file__).parent.parent / "fixtures"
CAP_12 = "{urn:oasis:names:tc:emergency:cap:1.2}alert"


class Make:
    """Builders for schemas and documents; `r` is always the document element."""

    fixtures = FIXTURES

    @staticmethod
    def load(path: str) -> Element:
        return parse_metadata((FIXTURES / path).read_bytes())

    @staticmethod
    def document(text: str) -> Element:
        return parse_metadata(text.encode())

    @staticmethod
    def schema(body: str, attributes: str = "") -> bytes:
        names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'
        return f"<xs:schema {names} {attributes}>{body}</xs:schema>".encode()

    @classmethod
    def root(cls, *elements: str, attributes: str = "", more: str = "") -> bytes:
        content = f"<xs:complexType><xs:sequence>{''.join(elements)}</xs:sequence>{attributes}</xs:complexType>"
        return cls.schema(f'<xs:element name="r">{content}</xs:element>{more}')

    @staticmethod
    def leaf(name: str, kind: str = "xs:string", more: str = "") -> str:
        return f'<xs:element name="{name}" type="{kind}" {more}/>'

    @staticmethod
    def bundle(schema: bytes, root: str = "r", **marks: Any) -> SchemaBundle:
        """All of the schema is invariant, but for what `marks` says."""
        return read_bundle(schema, marks=json.dumps({"root": root, **marks}).encode())

    @classmethod
    def type(cls, schema: bytes, root: str = "r", **marks: Any) -> InformationType:
        return open_type(cls.bundle(schema, root, **marks))

    @staticmethod
    def shown(reps: tuple[EntryRep, ...]) -> list[tuple[str, dict[str, str]]]:
        """(class, set fields) of each entry: what a reader wants to see."""
        return [
            (rep.cls.name.rpartition("#")[2], {k: v for k, v in rep.as_dict().items() if v is not None}) for rep in reps
        ]

    @classmethod
    def cap_alerts(cls) -> dict[str, Element]:
        alerts = {path.name: parse_metadata(path.read_bytes()) for path in (FIXTURES / "cap/instances").glob("*.xml")}
        return {name: root for name, root in sorted(alerts.items()) if root.tag == CAP_12 and name != "invalid.xml"}


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture(scope="session")
def imagery() -> InformationType:
    return open_type(read_bundle(FIXTURES / "intel_imagery/Intel_Imagery.xsd"))


@pytest.fixture(scope="session")
def cap() -> InformationType:
    return open_type(read_bundle(FIXTURES / "cap/schema/cap12.xsd", marks=FIXTURES / "cap/marks.json"))


@pytest.fixture
def figure() -> Callable[[int], Element]:
    paths = {1: "instances/fig1.xml", 2: "instances/fig2-invariant.xml", 3: "template/fig3-template.xml"}
    return lambda number: Make.load(f"intel_imagery/{paths[number]}")
