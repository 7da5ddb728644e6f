"""The value of one federation execution, and what its services do to it.

Everything is immutable: ints, strs, bytes, floats, tuples, and maps that share what they have in common
(immutables.Map). So an execution is copied for nothing, hashed cheaply, saved as it is, and a service that refuses has
changed nothing. A service is a function

    service(model, execution, federate, *arguments) -> Step

which knows no thread, socket or clock. Handles are ints above 0; one counter gives those of federates, object instances
and retractions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .clock import Clock
    from .declaration import Declared
    from .federation import Members, Points, Saving
    from .fom import Fom
    from .objects import Instances
    from .ownership import Owned


class Callback(NamedTuple):
    """What an RTI tells a federate: the name of a callback of the standard, in Python style, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


class Told(NamedTuple):
    """A callback on its way to a federate."""

    federate: int
    callback: Callback


class Options(NamedTuple):
    """What an RTI does that the standard leaves open."""

    one_at_a_time: bool = False
    """A synchronization point can't be registered beside a pending one (Bridging the HLA, section 5.1)."""
    adds: bool = False
    """The services of extensions.py exist."""
    discloses: bool = True
    """Who is the last that has not reported is told so if it is a surrogate; else whoever it is."""


class Model(NamedTuple):
    """What stays for the life of a federation execution."""

    fom: Fom
    options: Options = Options()


class Execution(NamedTuple):
    """One federation execution."""

    name: str
    members: Members
    saving: Saving
    points: Points
    declared: Declared
    instances: Instances
    owned: Owned
    clock: Clock
    handles: int = 0
    """The last handle that was given."""


class Step(NamedTuple):
    """What a service did: the execution after it, its answer, and what is told, in the order in which each federate
    gets it."""

    execution: Execution
    answer: Any = None
    told: tuple[Told, ...] = ()


def tell(federate: int, name: str, *arguments: Any) -> Told:
    """A callback for a federate."""
    return Told(federate, Callback(name, arguments))
