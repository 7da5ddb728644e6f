"""The subscribers' adapter."""

from .adapter import SubscriberAdapter
from .subscription import SubscriptionListener, SubscriptionUid

__all__ = ["SubscriberAdapter", "SubscriptionListener", "SubscriptionUid"]
