"""The one predicate of a sequence, as the XML document that the Common API has for it:

<predicate>
  <predicateName>large images</predicateName>
  <predicateType>XPath</predicateType>
  <predicateInstance>/og:metadata/og:baseObject[og:PayloadLength&gt;1000000]</predicateInstance>
</predicate>

The elements may be in any namespace or in none.
"""

from __future__ import annotations

from typing import Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import Element, parse_metadata, to_bytes
from jbi_pubsub.core.xpath import compile_predicate, narrowing

from .bindings import own_text
from .errors import InvalidPredicateException, PredicateLanguageException

MAX_BYTES: Final = 256 << 10
"""Bytes of a predicate's document: an expression has less than the 64 KiB that the grammar takes."""

_PARTS: Final = ("predicateName", "predicateType", "predicateInstance")
_HINT: Final = (
    "It is <predicate><predicateName/><predicateType>XPath</predicateType><predicateInstance>...</predicateInstance>"
    "</predicate>"
)


def read_predicate(document: str) -> str:
    """The expression in a predicate's document; whatever its prefixes stand for, which is said when it is used. Raises
    InvalidPredicateException (malformed, no predicate, several), PredicateLanguageException, PredicateError."""
    try:
        root = parse_metadata(to_bytes(document), what="predicate document", limit=MAX_BYTES)
    except JbiError as exc:
        raise InvalidPredicateException(exc.message, hint=_HINT, **exc.facts) from exc
    if _local(root) != "predicate":
        raise InvalidPredicateException(f"predicate document: <{_local(root)}> is not a <predicate>", hint=_HINT)
    texts: dict[str, str] = {}
    for part in root.iterchildren("*"):
        name = _local(part)
        if name not in _PARTS:
            raise InvalidPredicateException(f"predicate document: unexpected element <{name}>", hint=_HINT)
        if name in texts:
            raise InvalidPredicateException(
                f"predicate document: several <{name}>", hint="A sequence has one predicate: join them by and, or"
            )
        if next(part.iterchildren("*"), None) is not None:
            raise InvalidPredicateException(
                f"predicate document: elements in <{name}>", hint="Write < of an expression as &lt;"
            )
        texts[name] = own_text(part).strip()
    expression = texts.get("predicateInstance", "")
    if not expression:
        raise InvalidPredicateException("predicate document: there is no <predicateInstance>", hint=_HINT)
    language = texts.get("predicateType", "")
    if language.casefold() != "xpath":
        raise PredicateLanguageException(
            f"predicate document: <predicateType> is {language[:60]!r}", hint="Predicates are XPath", language=language
        )
    compile_predicate(expression, namespaces=dict.fromkeys(narrowing.prefixes_of(expression), "urn:any"))
    return expression


def _local(element: Element) -> str:
    return str(element.tag).rpartition("}")[2][:60]
