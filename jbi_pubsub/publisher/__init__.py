"""The publishers' adapters: through a delegate (PAL), or peer to peer (PA)."""

from .light import DelegateUid, PublisherAdapterLight
from .peer import PublisherAdapter
from .publication import RegistrationUid

__all__ = ["DelegateUid", "PublisherAdapter", "PublisherAdapterLight", "RegistrationUid"]
