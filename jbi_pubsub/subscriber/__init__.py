"""The subscribers' adapter (SA)."""

from .adapter import SubscriberAdapter
from .asking import Conditions
from .published import Matching
from .query import Query, QueryListener
from .subscription import SubscriptionListener, SubscriptionUid

__all__ = [
    "Conditions",
    "Matching",
    "Query",
    "QueryListener",
    "SubscriberAdapter",
    "SubscriptionListener",
    "SubscriptionUid",
]
