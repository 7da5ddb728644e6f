"""jbi-pubsub: publish and subscribe for information objects (a type, XML metadata, an opaque payload).

The face of the package: what an application needs. Names are loaded when they are first used (PEP 562), so that
importing the package, on a Spark worker for example, loads no network code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.config import Config as Config
    from .core.errors import JbiError as JbiError
    from .core.info_object import Cause as Cause
    from .core.info_object import InfoObject as InfoObject
    from .core.info_object import LossNotice as LossNotice
    from .core.info_object import Platform as Platform
    from .core.info_object import TypeName as TypeName
    from .core.quality import GrantedQos as GrantedQos
    from .core.quality import Wish as Wish
    from .core.xpath import bbox as bbox
    from .domains.domain import Domain as Domain
    from .domains.event import StructuredEvent as StructuredEvent
    from .domains.service_type import ServiceType as ServiceType
    from .domains.services import Services as Services
    from .protocol.sending import Sending as Sending
    from .publisher import DelegateUid as DelegateUid
    from .publisher import PublisherAdapter as PublisherAdapter
    from .publisher import PublisherAdapterLight as PublisherAdapterLight
    from .publisher import RegistrationUid as RegistrationUid
    from .subscriber import Conditions as Conditions
    from .subscriber import ContentOptions as ContentOptions
    from .subscriber import Query as Query
    from .subscriber import QueryListener as QueryListener
    from .subscriber import SubscriberAdapter as SubscriberAdapter
    from .subscriber import SubscriptionListener as SubscriptionListener
    from .subscriber import SubscriptionOptions as SubscriptionOptions
    from .subscriber import SubscriptionUid as SubscriptionUid
    from .subscriber import TypeOptions as TypeOptions

__version__ = "0.1.0"

_HOMES = {
    # the three adapters (paper section 2.4)
    "PublisherAdapterLight": "publisher",
    "PublisherAdapter": "publisher",
    "SubscriberAdapter": "subscriber",
    # what they take and give
    "Cause": "core.info_object",
    "Conditions": "subscriber",
    "ContentOptions": "subscriber",
    "Config": "core.config",
    "DelegateUid": "publisher",
    "GrantedQos": "core.quality",
    "InfoObject": "core.info_object",
    "LossNotice": "core.info_object",
    "Platform": "core.info_object",
    "Query": "subscriber",
    "QueryListener": "subscriber",
    "RegistrationUid": "publisher",
    "Sending": "protocol.sending",
    "ServiceType": "domains.service_type",
    "Domain": "domains.domain",
    "Services": "domains.services",
    "StructuredEvent": "domains.event",
    "SubscriptionListener": "subscriber",
    "SubscriptionOptions": "subscriber",
    "SubscriptionUid": "subscriber",
    "TypeName": "core.info_object",
    "TypeOptions": "subscriber",
    "Wish": "core.quality",
    "bbox": "core.xpath",
    # the base of all errors; the others are in jbi_pubsub.core.errors
    "JbiError": "core.errors",
}

__all__ = [*_HOMES, "__version__"]  # all are strings


if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
