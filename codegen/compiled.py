"""Schemas compiled by libxml2, for validation: from documents in memory, with nothing opened or fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lxml import etree

from jbi_pubsub.codegen.model import one_line
from jbi_pubsub.core.errors import SchemaError

BASE: Final = "http://schema.invalid/"
"""Where documents pretend to lie: nothing is ever fetched from a name like that (RFC 2606)."""

# libxml2 makes its built-in types with the first schema of a process, and several threads at that fail with valid ones.
etree.XMLSchema(
    etree.fromstring(b'<x:schema xmlns:x="http://www.w3.org/2001/XMLSchema"><x:element name="a"/></x:schema>')
)


def validator(main: str, documents: Mapping[str, bytes], names: Mapping[str, str]) -> etree.XMLSchema:
    """The compiled schema by which libxml2 validates documents, checked as a whole. `names` are for messages.

    Raises SchemaError with document and line.
    """
    parser = etree.XMLParser(no_network=True, resolve_entities=False, load_dtd=False)
    parser.resolvers.add(_Documents(documents))
    try:
        return etree.XMLSchema(etree.fromstring(documents[main], parser, base_url=BASE + main))
    except etree.XMLSchemaParseError as exc:
        entry = exc.error_log.last_error
        where = (entry.filename or "").rpartition("/")[2] if entry else ""
        document, line = names.get(where, where), entry.line if entry else 0
        reason = one_line(entry.message if entry else str(exc)).replace(BASE, "")
        raise SchemaError(
            f"schema {names.get(main, main)} is invalid at {document} line {line}: {reason}",
            hint="Check it with an XML Schema 1.0 validator",
            document=document,
            line=line,
        ) from exc


class _Documents(etree.Resolver):
    """Gives libxml2 the documents of the bundle by their names, and nothing else."""

    def __init__(self, documents: Mapping[str, bytes]) -> None:
        super().__init__()
        self._documents = documents

    def resolve(self, system_url: str | None, public_id: str | None, context: Any) -> Any:  # noqa: ARG002  # lxml's form
        """The document of that name, or an empty one, which libxml2 refuses."""
        found = self._documents.get((system_url or "").rpartition("/")[2], b"")
        return self.resolve_string(found, context, base_url=system_url)
