"""Predicates over metadata, filters over payloads, and the index that decides many predicates at once."""

from .cost import MAX_COST_OF_REGISTRATION, MAX_COST_OF_SUBSCRIBER, Charge, CostBudget
from .examination import Condition, Found, examine
from .geography import bbox
from .index import PredicateIndex
from .payload_filter import PayloadFilter, Selection, compile_filter, select
from .predicate import Predicate, compile_predicate, register_language
from .stencil import Stencil, Texts, Traced

__all__ = [
    "MAX_COST_OF_REGISTRATION",
    "MAX_COST_OF_SUBSCRIBER",
    "Charge",
    "Condition",
    "CostBudget",
    "Found",
    "PayloadFilter",
    "Predicate",
    "PredicateIndex",
    "Selection",
    "Stencil",
    "Texts",
    "Traced",
    "bbox",
    "compile_filter",
    "compile_predicate",
    "examine",
    "register_language",
    "select",
]
