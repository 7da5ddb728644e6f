"""Refusals of an RTI: the exceptions of the standard (IEEE 1516.1-2010), by their names.

Each is an `RtiError`, and so a JbiError: it says what is wrong, where, and how to mend it, and crosses the wire as the
same class. A service that raises one has changed nothing.
"""

from __future__ import annotations

import re

from jbi_pubsub.core.errors import JbiError


class RtiError(JbiError):
    """Base of what an RTI refuses."""

    code = "rti"

    def __init_subclass__(cls) -> None:
        cls.code = "rti." + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# A table, a row each: the refusal, and what it says.
# fmt: off

# federations and members
class NotConnected(RtiError): """The ambassador is not connected to an RTI, or is not any more."""
class FederationExecutionAlreadyExists(RtiError): """A federation execution of that name exists."""
class FederationExecutionDoesNotExist(RtiError): """No federation execution of that name exists."""
class FederatesCurrentlyJoined(RtiError):
    """Federates are joined to the federation execution that was to be destroyed."""
class FederateAlreadyExecutionMember(RtiError): """The federate is joined."""
class FederateNotExecutionMember(RtiError): """The federate is not joined, or has been resigned."""
class FederateNameAlreadyInUse(RtiError): """A joined federate has that name."""
class FederateOwnsAttributes(RtiError):
    """A federate that owns attributes resigns with an action that does not say what becomes of them."""
class OwnershipAcquisitionPending(RtiError):
    """A federate that waits for ownership resigns with an action that does not cancel it."""
class InvalidResignAction(RtiError): """There is no such resign action."""

# save, restore, synchronization points
class SaveInProgress(RtiError): """The federation is being saved: the service waits until it is done."""
class RestoreInProgress(RtiError): """The federation is being restored: the service waits until it is done."""
class SaveNotInitiated(RtiError): """Nobody has told the federate to save."""
class SaveNotInProgress(RtiError): """The federation is not being saved."""
class FederateHasNotBegunSave(RtiError): """The federate has not said that its save has begun."""
class RestoreNotRequested(RtiError): """Nobody has told the federate to restore."""
class RestoreNotInProgress(RtiError): """The federation is not being restored."""
class SynchronizationPointLabelNotAnnounced(RtiError):
    """No synchronization point of that label is announced to the federate."""

# declarations and objects
class InvalidObjectClassHandle(RtiError): """The federation object model has no object class of that handle."""
class AttributeNotDefined(RtiError): """The object class has no such attribute."""
class ObjectClassNotPublished(RtiError): """The federate does not publish the object class."""
class AttributeNotPublished(RtiError): """The federate does not publish the attribute."""
class InvalidInteractionClassHandle(RtiError):
    """The federation object model has no interaction class of that handle."""
class InteractionClassNotPublished(RtiError): """The federate does not publish the interaction class."""
class InteractionParameterNotDefined(RtiError): """The interaction class has no such parameter."""
class ObjectInstanceNotKnown(RtiError): """The federate knows no object instance of that handle or name."""
class ObjectInstanceNameInUse(RtiError): """An object instance has that name."""
class IllegalName(RtiError): """A name that no object instance can have: it is empty, or begins with HLA."""
class ObjectInstanceNameNotReserved(RtiError): """The federate has not reserved that name."""
class DeletePrivilegeNotHeld(RtiError): """The federate does not own HLAprivilegeToDeleteObject of the instance."""
class InvalidTransportationType(RtiError): """There is no such transportation type."""
class InvalidUpdateRateDesignator(RtiError): """The object model has no update rate of that name."""
class NameNotFound(RtiError): """The federation object model has nothing of that name."""

# ownership
class AttributeNotOwned(RtiError): """The federate does not own the instance attribute."""
class AttributeAlreadyOwned(RtiError): """The federate owns the instance attribute."""
class AttributeAlreadyBeingDivested(RtiError): """The federate is divesting the instance attribute."""
class AttributeAlreadyBeingAcquired(RtiError): """The federate has asked for the instance attribute."""
class AttributeDivestitureWasNotRequested(RtiError): """The federate has not asked to divest the instance attribute."""
class AttributeAcquisitionWasNotRequested(RtiError): """The federate has not asked for the instance attribute."""
class NoAcquisitionPending(RtiError): """Nobody waits for the instance attribute."""

# time
class InvalidLogicalTime(RtiError):
    """A time stamp below the federate's time and lookahead, or a time that is none (NaN, infinite, negative)."""
class LogicalTimeAlreadyPassed(RtiError): """The federate's time is past that."""
class InvalidLookahead(RtiError): """A lookahead that is none: NaN, infinite, negative."""
class InTimeAdvancingState(RtiError): """The federate has asked for a time, and has not been granted it."""
class RequestForTimeConstrainedPending(RtiError): """The federate has asked to be time-constrained, and is not yet."""
class TimeRegulationAlreadyEnabled(RtiError): """The federate is time-regulating."""
class TimeRegulationIsNotEnabled(RtiError): """The federate is not time-regulating."""
class TimeConstrainedAlreadyEnabled(RtiError): """The federate is time-constrained."""
class TimeConstrainedIsNotEnabled(RtiError): """The federate is not time-constrained."""
class AsynchronousDeliveryAlreadyEnabled(RtiError): """Asynchronous delivery is on."""
class AsynchronousDeliveryAlreadyDisabled(RtiError): """Asynchronous delivery is off."""
class FederateUnableToUseTime(RtiError): """A save at a time was asked for by a federate that is not time-regulating."""
class InvalidMessageRetractionHandle(RtiError): """The federate has sent no message of that retraction handle."""
class MessageCanNoLongerBeRetracted(RtiError):
    """The message is below the federate's time and lookahead: others may have acted on it."""

# data distribution
class InvalidDimensionHandle(RtiError): """The federation object model has no dimension of that handle."""
class InvalidRegion(RtiError): """There is no region of that handle."""
class RegionNotCreatedByThisFederate(RtiError): """Another federate has created the region."""
class RegionInUseForUpdateOrSubscription(RtiError): """The region is used for updates or subscriptions."""
class InvalidRegionContext(RtiError):
    """The region has a dimension that is not available for the attribute or interaction class."""
class RegionDoesNotContainSpecifiedDimension(RtiError): """The region was created without that dimension."""
class InvalidRangeBound(RtiError):
    """Bounds that are none: the lower one is below the upper one, both from 0 to the dimension's upper bound."""

# the rest
class ErrorReadingFom(RtiError): """A module of a federation object model can't be read."""
class InconsistentFom(RtiError):
    """Two modules of a federation object model say different things of one class or data type."""
class EncoderException(RtiError): """A value is none of the type that it is to be encoded as."""
class DecoderException(RtiError): """Bytes are no value of the type that they are to be decoded as."""
class InvalidArgument(RtiError): """An argument is of another type than the service takes, or too large."""
class UnknownService(RtiError): """There is no such service."""
class ServiceNotEnabled(RtiError): """The RTI was not told to have that service."""
class RingOfBridges(RtiError):
    """A bridge would join federations that others join already, over whatever federations."""
class CallNotAllowedFromWithinCallback(RtiError): """Callbacks can't be evoked from within a callback."""
class RtiInternalError(RtiError): """The RTI can't do what it should: its disk is full, its bounds are reached."""
