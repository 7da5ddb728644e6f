"""The publishers' adapters: through a delegate (PublisherAdapterLight) or peer to peer (PublisherAdapter)."""

from .light import DelegateUid, PublisherAdapterLight
from .peer import PublisherAdapter
from .publication import RegistrationUid

__all__ = ["DelegateUid", "PublisherAdapter", "PublisherAdapterLight", "RegistrationUid"]
