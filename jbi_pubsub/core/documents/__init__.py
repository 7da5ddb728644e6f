"""Documents that are known without being parsed, since good ones like them have been seen."""

from .known import AnyDocument, KnownDocuments, known_documents
from .shape import ANY, ANY_TEXT, EXACT, Grammar, Particle, Texts
from .stencil import Invariants, Stencil, Traced

__all__ = [
    "ANY",
    "ANY_TEXT",
    "EXACT",
    "AnyDocument",
    "Grammar",
    "Invariants",
    "KnownDocuments",
    "Particle",
    "Stencil",
    "Texts",
    "Traced",
    "known_documents",
]
