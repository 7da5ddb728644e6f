"""Predicates over metadata, filters over payloads, and the index that decides many predicates at once."""

from jbi_pubsub.core.xpath.examination import ExaminedCondition, ExaminedPath, examine
from jbi_pubsub.core.xpath.geography import bbox
from jbi_pubsub.core.xpath.index.predicate_index import PredicateIndex
from jbi_pubsub.core.xpath.language.budget import (
    CHARGED,
    MAX_COST_OF_REGISTRATION,
    MAX_COST_OF_SUBSCRIBER,
    Charge,
    CostBudget,
)
from jbi_pubsub.core.xpath.payload_filter import PayloadFilter, Selection, compile_filter, select
from jbi_pubsub.core.xpath.predicate import Predicate, compile_predicate, register_language

__all__ = [
    "CHARGED",
    "MAX_COST_OF_REGISTRATION",
    "MAX_COST_OF_SUBSCRIBER",
    "Charge",
    "CostBudget",
    "ExaminedCondition",
    "ExaminedPath",
    "PayloadFilter",
    "Predicate",
    "PredicateIndex",
    "Selection",
    "bbox",
    "compile_filter",
    "compile_predicate",
    "examine",
    "register_language",
    "select",
]
