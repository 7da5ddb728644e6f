"""The runtime infrastructure as a function: all services of a federation execution by name, checked, in order.

`call` looks the service up, checks its arguments, refuses what may not be called now, and has the service's group do
it: federation.py, declaration.py, objects.py, ownership.py, timing.py, distribution.py. It changes nothing and waits
for nothing; whoever calls keeps the execution that comes back, and passes on what is told. What a service is for,
its clause and what it raises stands in services.py; a function that does one says what else there is to know of it.

While a federation is saved, all but reports, status queries, aborting and resigning is refused (SaveInProgress), and
the same while it is restored (RestoreInProgress; IEEE 1516.1-2010, clauses 4.16 and 4.24).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.values import decoded

from . import advice, declaration, distribution, extensions, federation, objects, ownership, timing
from .exceptions import (
    FederateAlreadyExecutionMember,
    FederateNotExecutionMember,
    InvalidArgument,
    InvalidLogicalTime,
    InvalidLookahead,
    InvalidRangeBound,
    InvalidTransportationType,
    RestoreInProgress,
    RtiError,
    RtiInternalError,
    SaveInProgress,
    UnknownService,
)
from .execution import Execution, FederationModel, ServiceCall, ServiceStep, Values
from .fom import BEST_EFFORT, DIMENSION_MOST, RELIABLE

NAME_MOST: Final = 1_000
"""Characters of names and labels."""
TAG_MOST: Final = 64 * 1024
"""Bytes of a user-supplied tag."""
VALUES_MOST: Final = 16 * 1024 * 1024
"""Bytes of all values of a message."""
PLAIN_BYTES: Final = 4 * 1024
"""Limit of arguments that may be anything before they are checked."""
HANDLES_MOST: Final = 100_000
"""Handles in one argument."""
FEDERATES_MOST: Final = 1_000
INSTANCES_MOST: Final = 1_000_000

LEAVE: Final = "resign_federation_execution"
JOIN: Final = "join_federation_execution"
REGISTER: Final = "register_object_instance"
"""Also with regions."""


class Service(NamedTuple):
    """A service of an RTI."""

    act: Callable[..., Any]
    checks: tuple[Callable[[str, Any], Any], ...]
    """Checks of its arguments."""
    required: int
    """Number of arguments that have to be given."""
    is_for: str = ""
    """When else it may be called: while the federation is saved ("save"), restored ("restore"), or both ("both")."""


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > NAME_MOST or any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidArgument(f"{name} takes a text of at most {NAME_MOST} characters, not {_shown(value)}", hint=_HINT)
    return value


def _handle(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise InvalidArgument(f"{name} takes a handle, a whole number, not {_shown(value)}", hint=_HINT)
    return value


def _list(name: str, value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) > HANDLES_MOST:
        raise InvalidArgument(f"{name} takes {what}, not {_shown(value)}", hint=_HINT)
    return value


def _handles(name: str, value: Any) -> tuple[int, ...]:
    return tuple(_handle(name, each) for each in _list(name, value, f"up to {HANDLES_MOST:,} handles"))


def _names(name: str, value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_text(name, each) for each in _list(name, value, f"up to {HANDLES_MOST:,} names")))


def _members(name: str, value: Any) -> tuple[int, ...] | None:
    return None if value is None else _handles(name, value)


def _tag(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) > TAG_MOST:
        raise InvalidArgument(f"{name} takes a tag of at most {TAG_MOST:,} bytes, not {_shown(value)}", hint=_HINT)
    return value


def _values(name: str, value: Any) -> Values:
    """Pairs of handles and bytes, by handles."""
    what = "pairs of handles and bytes"
    size = 0
    made = []
    for pair in _list(name, value, what):
        if (
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or type(pair[0]) is not int
            or not isinstance(pair[1], bytes)
        ):
            raise InvalidArgument(f"{name} takes {what}, not {_shown(pair)}", hint=_HINT)
        size += len(pair[1])
        made.append((pair[0], pair[1]))
    if size > VALUES_MOST:
        raise InvalidArgument(f"{name} takes values of {VALUES_MOST:,} bytes at most, not {size:,}", hint=_HINT)
    if len(made) > 1:
        made.sort(key=lambda pair: pair[0])
        if any(a[0] == b[0] for a, b in itertools.pairwise(made)):
            raise InvalidArgument(f"{name} takes one value of each handle", hint=_HINT)
    return tuple(made)


def _pairs(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Attributes, each with a region."""
    is_many = isinstance(value, Sequence) and len(value) <= HANDLES_MOST
    if not is_many or any(not isinstance(each, list | tuple) or len(each) != 2 for each in value):
        raise InvalidArgument(f"{name} takes pairs of an attribute and a region, not {_shown(value)}", hint=_HINT)
    return tuple(_handles(name, each) for each in value)


def _bound(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= DIMENSION_MOST:
        raise InvalidRangeBound(f"{name} takes bounds, whole numbers from 0, not {_shown(value)}", hint=_HINT)
    return value


def _seconds(name: str, value: Any, what: str, error: type[RtiError]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise error(f"{name} takes a {what}, a finite number from 0, not {_shown(value)}", hint="Give seconds")
    return float(value)


def _time(name: str, value: Any) -> float:
    return _seconds(name, value, "logical time", InvalidLogicalTime)


def _final(name: str, value: Any) -> float:
    """A time that may be infinity: nothing follows."""
    return math.inf if value == math.inf else _time(name, value)


def _stamp(name: str, value: Any) -> float | None:
    return None if value is None else _time(name, value)


def _lookahead(name: str, value: Any) -> float:
    return _seconds(name, value, "lookahead", InvalidLookahead)


def _order(name: str, value: Any) -> str:
    if value not in ("receive", "timestamp"):
        raise InvalidArgument(f"{name} takes the order receive or timestamp, not {_shown(value)}", hint=_HINT)
    return str(value)


def _transportation(name: str, value: Any) -> int:
    if type(value) is not int or value not in (RELIABLE, BEST_EFFORT):
        raise InvalidTransportationType(
            f"{name} takes a transportation type, not {_shown(value)}", hint="Take get_transportation_type_handle"
        )
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} takes true or false, not {_shown(value)}", hint=_HINT)
    return value


_HINT: Final = "See what the service takes"


def _shown(value: Any) -> str:
    return f"{repr(_begin(value))[:100]} ({type(value).__name__})"


def _begin(value: Any) -> Any:
    """As much of it as is shown."""
    if isinstance(value, list | tuple):
        return type(value)(map(_begin, value[:10]))
    return value[:100] if isinstance(value, str | bytes) else value


def _of(act: Callable[..., Any], *checks: Callable[[str, Any], Any], needs: int = -1, at: str = "") -> Service:
    return Service(act, checks, len(checks) if needs < 0 else needs, at)


_ATTRIBUTES: Final = (_handle, _handles)

SERVICES: Final[dict[str, Service]] = {
    each.act.__name__: each
    for each in (
        _of(federation.join_federation_execution, _text, _text, _text, needs=0),
        _of(federation.resign_federation_execution, _text, at="both"),
        _of(federation.register_federation_synchronization_point, _text, _tag, _members, needs=1),
        _of(federation.synchronization_point_achieved, _text, _flag, needs=1),
        _of(federation.request_federation_save, _text, _stamp, needs=1),
        _of(federation.federate_save_begun, at="save"),
        _of(federation.abort_federation_save, at="save"),
        _of(federation.request_federation_restore, _text),
        _of(federation.abort_federation_restore, at="restore"),
        _of(federation.get_automatic_resign_directive),
        _of(federation.set_automatic_resign_directive, _text),
        _of(extensions.query_synchronization_point, _text),
        _of(extensions.disclose_surrogate),
        _of(extensions.report_registration_failure, _text, _text),
        _of(extensions.synchronization_point_not_achieved, _text),
        _of(extensions.join_set, _text),
        _of(extensions.leave_set, _text),
        _of(extensions.register_synchronization_point_for_set, _text, _tag, _text),
        _of(extensions.query_federation_state, at="both"),
        _of(extensions.declare_unowned, _handle, _handles, _flag, needs=2),
        _of(declaration.publish_object_class_attributes, *_ATTRIBUTES),
        _of(declaration.unpublish_object_class, _handle),
        _of(declaration.unpublish_object_class_attributes, *_ATTRIBUTES),
        _of(declaration.subscribe_object_class_attributes, *_ATTRIBUTES, _text, _flag, needs=2),
        _of(declaration.unsubscribe_object_class, _handle),
        _of(declaration.unsubscribe_object_class_attributes, *_ATTRIBUTES),
        _of(declaration.publish_interaction_class, _handle),
        _of(declaration.unpublish_interaction_class, _handle),
        _of(declaration.subscribe_interaction_class, _handle, _flag, needs=1),
        _of(declaration.unsubscribe_interaction_class, _handle),
        _of(declaration.set_convey_producing_federate_switch, _flag),
        _of(declaration.get_update_rate_value_for_attribute, _handle, _handle),
        _of(advice.set_advisory_switch, _text, _flag),
        _of(objects.reserve_object_instance_name, _text),
        _of(objects.reserve_multiple_object_instance_names, _names),
        _of(objects.release_multiple_object_instance_names, _names),
        _of(objects.register_object_instance, _handle, _text, needs=1),
        _of(objects.update_attribute_values, _handle, _values, _tag, _stamp, needs=2),
        _of(objects.send_interaction, _handle, _values, _tag, _stamp, needs=2),
        _of(objects.delete_object_instance, _handle, _tag, _stamp, needs=1),
        _of(objects.local_delete_object_instance, _handle),
        _of(objects.request_attribute_value_update, _handle, _handles, _tag, needs=2),
        _of(objects.request_class_attribute_value_update, _handle, _handles, _tag, needs=2),
        _of(objects.get_object_instance_name, _handle),
        _of(objects.get_object_instance_handle, _text),
        _of(objects.get_known_object_class_handle, _handle),
        _of(objects.change_attribute_order_type, _handle, _handles, _order),
        _of(objects.change_interaction_order_type, _handle, _order),
        _of(objects.request_attribute_transportation_type_change, *_ATTRIBUTES, _transportation),
        _of(objects.query_attribute_transportation_type, _handle, _handle),
        _of(objects.request_interaction_transportation_type_change, _handle, _transportation),
        _of(objects.query_interaction_transportation_type, _handle, _handle),
        _of(ownership.unconditional_attribute_ownership_divestiture, *_ATTRIBUTES),
        _of(ownership.negotiated_attribute_ownership_divestiture, _handle, _handles, _tag, needs=2),
        _of(ownership.confirm_divestiture, _handle, _handles, _tag, needs=2),
        _of(ownership.attribute_ownership_acquisition, _handle, _handles, _tag, needs=2),
        _of(ownership.attribute_ownership_acquisition_if_available, *_ATTRIBUTES),
        _of(ownership.attribute_ownership_release_denied, *_ATTRIBUTES),
        _of(ownership.attribute_ownership_divestiture_if_wanted, *_ATTRIBUTES),
        _of(ownership.cancel_negotiated_attribute_ownership_divestiture, *_ATTRIBUTES),
        _of(ownership.cancel_attribute_ownership_acquisition, *_ATTRIBUTES),
        _of(ownership.query_attribute_ownership, _handle, _handle),
        _of(ownership.is_attribute_owned_by_federate, _handle, _handle),
        _of(distribution.create_region, _handles),
        _of(distribution.commit_region_modifications, _handles),
        _of(distribution.delete_region, _handle),
        _of(distribution.register_object_instance_with_regions, _handle, _pairs, _text, needs=2),
        _of(distribution.associate_regions_for_updates, _handle, _pairs),
        _of(distribution.unassociate_regions_for_updates, _handle, _pairs),
        _of(distribution.subscribe_object_class_attributes_with_regions, _handle, _pairs, _text, _flag, needs=2),
        _of(distribution.unsubscribe_object_class_attributes_with_regions, _handle, _pairs),
        _of(distribution.subscribe_interaction_class_with_regions, _handle, _handles, _flag, needs=2),
        _of(distribution.unsubscribe_interaction_class_with_regions, _handle, _handles),
        _of(distribution.send_interaction_with_regions, _handle, _values, _handles, _tag, _stamp, needs=3),
        _of(distribution.request_attribute_value_update_with_regions, _handle, _pairs, _tag, needs=2),
        _of(distribution.get_dimension_handle_set, _handle),
        _of(distribution.get_range_bounds, _handle, _handle),
        _of(distribution.set_range_bounds, _handle, _handle, _bound, _bound),
        _of(timing.enable_time_regulation, _lookahead),
        _of(timing.disable_time_regulation),
        _of(timing.enable_time_constrained),
        _of(timing.disable_time_constrained),
        _of(timing.enable_asynchronous_delivery),
        _of(timing.disable_asynchronous_delivery),
        _of(timing.modify_lookahead, _lookahead),
        _of(timing.retract, _handle),
        _of(timing.query_logical_time),
        _of(timing.query_lookahead),
        _of(timing.query_galt),
        _of(timing.query_lits),
        _of(timing.watch_lower_bound, _flag),
    )
} | {
    **{name: _of(act, _final) for name, act in timing.REQUESTS.items()},
    **{name: _of(act, at=at) for name, (act, at) in federation.REPORTS.items()},
}
"""By their names: those of the standard in Python style."""


def created(name: str) -> Execution:
    """A federation execution that nobody has joined. Raises InvalidArgument."""
    if not _text("a federation execution", name):
        raise InvalidArgument("a federation execution has a name", hint="Give a text of one character or more")
    return Execution(name)


def arguments(service: str, data: msgspec.Raw) -> list[Any]:
    """The arguments of a call as a federate has sent them. Of large ones nothing is made that no service takes: a
    million small items would take long. Raises InvalidArgument."""
    try:
        if len(data) <= PLAIN_BYTES:
            return decoded(_ANYTHING, data, "arguments")
        return [
            decoded(_BYTES if memoryview(each)[0] in _BINARY else _ARGUMENT, each, "argument")
            for each in decoded(_PARTS, data, "arguments")
        ]
    except ProtocolError as exc:
        raise InvalidArgument(f"{service[:100]}: {exc.message}", hint=_HINT) from exc


def call(
    model: FederationModel, execution: Execution, federate: int, service: str, *arguments: Any, is_awaited: bool = True
) -> ServiceStep:
    """Result of a service that a federate calls; who joins is federate 0. `is_awaited`: it waits for the answer; what
    it does not wait for may have crossed the beginning of a save. Raises an RtiError: nothing has changed then."""
    found = SERVICES.get(service)
    if found is None:
        near = near_name(service, SERVICES)
        hint = f"Did you mean {near}?" if near else "See jbi_pubsub.hla.rti.SERVICES"
        raise UnknownService(f"no service {service[:100]!r}", hint=hint)
    if not found.required <= len(arguments) <= len(found.checks):
        takes = (
            str(found.required) if found.required == len(found.checks) else f"{found.required} to {len(found.checks)}"
        )
        raise InvalidArgument(f"{service} takes {takes} arguments, not {len(arguments)}", hint=_HINT)
    has_crossed = (
        not is_awaited and service in timing.REQUESTS and execution.saving.states.get(federate) == "instructed"
    )
    _admit(execution, federate, service, "both" if has_crossed else found.is_for)
    checked = [check(service, each) for check, each in zip(found.checks, arguments, strict=False)]
    made = ServiceCall(model, execution, federate)
    answer = found.act(made, *checked)
    return finished(made, execution, answer, answer if service.startswith(REGISTER) else checked[0] if checked else 0)


def finished(made: ServiceCall, before: Execution, answer: Any, about: int) -> ServiceStep:
    """Result of something that was done, with what others discover and are advised of by that. `about`: an instance, if
    it is about one."""
    objects.discover_moved(made)
    if made.execution.declared.advised and not before.saving.is_restore:
        advice.advise(made, before, about)
    if made.model.options.adds:
        made.told.extend(extensions.notices(made.model.options, before, made.execution))
    return made.step(answer)


def _admit(execution: Execution, federate: int, service: str, is_for: str) -> None:
    """Raises FederateNotExecutionMember, FederateAlreadyExecutionMember, SaveInProgress, RestoreInProgress; at a bound
    RtiInternalError."""
    is_joined = federate in execution.members.joined
    if is_joined and service == JOIN:
        raise FederateAlreadyExecutionMember(f"the federate is joined to {execution.name}", hint="Resign first")
    if not is_joined and service != JOIN:
        raise FederateNotExecutionMember(
            f"the federate is not joined to {execution.name}", hint="Join, or join again after a resignation"
        )
    saving = execution.saving
    if saving.label and saving.is_restore and is_for not in ("restore", "both"):
        raise RestoreInProgress(f"the federation is being restored to {saving.label!r}", hint="Wait for its end")
    if saving.label and not saving.is_restore and is_for not in ("save", "both"):
        raise SaveInProgress(f"the federation is being saved as {saving.label!r}", hint="Wait for its end")
    if service == JOIN and len(execution.members.joined) >= FEDERATES_MOST:
        raise RtiInternalError(f"{FEDERATES_MOST:,} federates are joined to {execution.name}", hint="Resign some")
    if service.startswith(REGISTER) and len(execution.instances.by_handle) >= INSTANCES_MOST:
        raise RtiInternalError(f"{INSTANCES_MOST:,} object instances exist", hint="Delete some")


Decoder = msgspec.msgpack.Decoder
_BINARY: Final = b"\xc4\xc5\xc6"
"""Beginnings of values of bytes."""
_ANYTHING: Final[Decoder[list[Any]]] = Decoder(list[Any])
_PARTS: Final[Decoder[list[msgspec.Raw]]] = Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=10)])
_BYTES: Final[Decoder[Any]] = Decoder(bytes)
_ARGUMENT: Final[Decoder[Any]] = Decoder(
    bool
    | int
    | float
    | str
    | Annotated[list[int | str | tuple[int, bytes | int]], msgspec.Meta(max_length=HANDLES_MOST)]
    | None
)
