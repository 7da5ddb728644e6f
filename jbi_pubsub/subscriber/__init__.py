"""The subscribers' adapter (SA)."""

from .adapter import SubscriberAdapter
from .listeners import SubscriptionListener, SubscriptionUid
from .options import Conditions, ContentOptions, SubscriptionOptions, TypeOptions
from .published import Matching
from .query import Query, QueryListener

__all__ = [
    "Conditions",
    "ContentOptions",
    "Matching",
    "Query",
    "QueryListener",
    "SubscriberAdapter",
    "SubscriptionListener",
    "SubscriptionOptions",
    "SubscriptionUid",
    "TypeOptions",
]
