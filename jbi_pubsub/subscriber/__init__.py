"""The subscribers' adapter."""

from .adapter import SubscriberAdapter
from .published import Matching
from .subscription import SubscriptionListener, SubscriptionUid

__all__ = ["Matching", "SubscriberAdapter", "SubscriptionListener", "SubscriptionUid"]
