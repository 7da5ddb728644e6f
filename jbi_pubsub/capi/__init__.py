"""The Common API of JBI platforms, over the adapters.

Names are those of the API. Times are in milliseconds, versions MAJOR.MINOR, documents XML as text.
"""

from .attributes import SequenceAttribute
from .callbacks import ConnectionCallback, QueryCallback, QueryProvider, SequenceCallback
from .connection import Connection, ConnectionManager, NodeDetails
from .errors import (
    CapiException,
    ConnectionException,
    InvalidMetadataException,
    InvalidPayloadException,
    InvalidPredicateException,
    NodeAwayException,
    ObjectSizeException,
    ObjectUnavailableException,
    PausedSequenceException,
    PermissionDeniedException,
    PlatformFailureException,
    PredicateLanguageException,
    SequenceStateException,
    TimeoutException,
    UnrecognizedObjectTypeException,
    UnsupportedVersionException,
    VersionNumberException,
)
from .metadata_repository import AttributeDescriptor, InfoObjectDescriptor, MetadataRepository, PropertyDescriptor
from .objects import InfoObject
from .publisher_sequence import PublisherSequence
from .query_sequence import QuerySequence
from .sequences import SequenceState, SubscriberSequence

__all__ = [
    "AttributeDescriptor",
    "CapiException",
    "Connection",
    "ConnectionCallback",
    "ConnectionException",
    "ConnectionManager",
    "InfoObject",
    "InfoObjectDescriptor",
    "InvalidMetadataException",
    "InvalidPayloadException",
    "InvalidPredicateException",
    "MetadataRepository",
    "NodeAwayException",
    "NodeDetails",
    "ObjectSizeException",
    "ObjectUnavailableException",
    "PausedSequenceException",
    "PermissionDeniedException",
    "PlatformFailureException",
    "PredicateLanguageException",
    "PropertyDescriptor",
    "PublisherSequence",
    "QueryCallback",
    "QueryProvider",
    "QuerySequence",
    "SequenceAttribute",
    "SequenceCallback",
    "SequenceState",
    "SequenceStateException",
    "SubscriberSequence",
    "TimeoutException",
    "UnrecognizedObjectTypeException",
    "UnsupportedVersionException",
    "VersionNumberException",
]
