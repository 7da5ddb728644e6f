"""Applications of a collaboratory: simulations and experiments that are monitored and steered (paper 4(1)A, B)."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.state import StateTable
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.protocol.services import DELEGATE

from .channel import DomainChannel, told
from .event import MONITORING, STEERING, StructuredEvent, quoted
from .service_type import PropertyValue, ServiceType

log = logging.getLogger("jbi_pubsub.domains")

APPLICATION: Final = ServiceType.of(
    "discover.Application", "mandatory_readonly long domain", "mandatory_readonly string name", "strings categories",
    "strings parameters", interface=DELEGATE,
)  # fmt: skip
"""Service type of applications: the number of their domain, their name, the categories of clients that may use them,
and what can be steered. Their interface is that of the channel of their domain, by which all goes (paper 4(2)(a))."""
ANSWERS_MOST: Final = 10_000
"""Commands that are known to have been done; a client repeats one within the seconds that it waits for the answer."""
ID_CHARS: Final = 200
"""Length of a client's name and a command's id, up to which its answer is remembered."""
Setter = Callable[[PropertyValue], object]
Getter = Callable[[], PropertyValue]


class ApplicationState(enum.Enum):
    """States of an application, as its monitoring events say them."""

    RUNNING = "running"
    COMPUTING = "computing"
    INTERACTING = "interacting"
    PAUSED = "paused"


class ApplicationEvent(enum.Enum):
    """Events in the life of an application."""

    RUN = "running"
    COMPUTE = "computing"
    INTERACT = "interacting"
    PAUSE = "paused"


_S, _E = ApplicationState, ApplicationEvent
APPLICATION_STATES: Final = StateTable(
    "application",
    _S.RUNNING,
    {
        (_S.RUNNING, _E.COMPUTE): _S.COMPUTING,
        (_S.RUNNING, _E.INTERACT): _S.INTERACTING,
        (_S.RUNNING, _E.PAUSE): _S.PAUSED,
        (_S.COMPUTING, _E.RUN): _S.RUNNING,
        (_S.COMPUTING, _E.INTERACT): _S.INTERACTING,
        (_S.COMPUTING, _E.PAUSE): _S.PAUSED,
        (_S.INTERACTING, _E.RUN): _S.RUNNING,
        (_S.INTERACTING, _E.COMPUTE): _S.COMPUTING,
        (_S.INTERACTING, _E.PAUSE): _S.PAUSED,
        (_S.PAUSED, _E.RUN): _S.RUNNING,
    },
)


@dataclass(frozen=True)
class _Parameter:
    set: Setter | None
    get: Getter | None


class Application:
    """An application: it tells of its state each period, and obeys steering commands, one after the other."""

    def __init__(
        self, domain: DomainChannel, name: str, state: Callable[[], Mapping[str, PropertyValue]], period: float
    ) -> None:
        """Made by Domain.application."""
        self.name: Final = name
        self._domain = domain
        self._values = state
        self._period = period
        self._lock = threading.Lock()
        self._state: ApplicationState = APPLICATION_STATES.initial
        self._parameters: dict[str, _Parameter] = {}
        self._answers: Cache[tuple[str, str], StructuredEvent] = Cache(ANSWERS_MOST)
        """By client and id of the command, which comes again where the answer has not reached the client."""
        self._due = time.monotonic()
        self._job = Job(f"application {name}", period, self._tell, slow=True)
        self._subscription = domain.listen(STEERING, f"$domain == {quoted(name)}", told(self._obey))
        self._offer = ""

    def start(self, categories: tuple[str, ...]) -> None:
        """Be found by clients of these categories, () for all, and tell. Raises as Services.offer, and WireError while
        the channel is away."""
        self._domain.announce(StructuredEvent(self.name, "Monitoring"), MONITORING)
        said: dict[str, PropertyValue] = {"domain": self._domain.number, "name": self.name, "parameters": ()}
        if categories:
            said["categories"] = categories
        self._offer = self._domain.services.offer(APPLICATION, said, at=self._domain.reference)
        self._job.start()

    def steer(self, parameter: str, *, set: Setter | None = None, get: Getter | None = None) -> None:  # noqa: A002  # the command's word
        """Let clients set a parameter, or get it. These are called on a thread of the subscription, one at a time.
        Raises EntryError where the names of all are too long for an offer (TEXT_MOST)."""
        with self._lock:
            before = self._parameters.get(parameter)
            self._parameters[parameter] = _Parameter(set, get)
            names = tuple(sorted(self._parameters))
        try:
            self._domain.services.modify(self._offer, {"parameters": names})
        except JbiError:
            with self._lock:
                del self._parameters[parameter]
                if before is not None:
                    self._parameters[parameter] = before
            raise

    def moved(self) -> None:
        """The channel is elsewhere: the offer refers to it. Raises WireError while it is away."""
        if self._offer:
            self._domain.services.modify(self._offer, {}, at=self._domain.reference)

    @property
    def state(self) -> ApplicationState:
        """The state."""
        with self._lock:
            return self._state

    def enter(self, state: ApplicationState | str) -> None:
        """Be in another state, which is told at once. Raises IllegalTransitionError, ConfigurationError."""
        try:
            event = ApplicationEvent(state if isinstance(state, str) else state.value)
        except ValueError as exc:
            states = ", ".join(each.value for each in ApplicationState)
            raise ConfigurationError(f"no state {state!r:.80} of an application", hint=f"There are {states}") from exc
        with self._lock:
            self._state = APPLICATION_STATES.after(self._state, event)
        self._job.wake()

    def close(self) -> None:
        """Be gone: it is neither found nor told of any more. Safe to repeat."""
        self._job.stop()
        if self._domain.forget(self):
            self._domain.unlisten(self._subscription)
            if self._offer:
                self._domain.services.withdraw(self._offer)

    def _tell(self) -> float:
        """Monitoring event now; seconds until the next one is due."""
        state = self.state
        body = {**self._values(), "state": state.value}
        self._domain.publish(StructuredEvent(self.name, "Monitoring", state.value, body), MONITORING)
        now = time.monotonic()
        last = now if now < self._due else self._due  # it may have been woken
        self._due = max(last + self._period, now)
        return self._due - now

    def _obey(self, command: StructuredEvent) -> None:
        """A steering command; whoever gave it gets an answer with its id. One may be for another of this name."""
        if command.body.get("offer", self._offer) != self._offer:
            return
        client, said = command.body.get("client"), {"id": command.body.get("id", ""), "application": self.name}
        if not isinstance(client, str) or not client:
            log.warning("application %s: a command without a sender is ignored", self.name)
            return
        known = client, str(said["id"])
        if answer := self._answers.get(known):
            self._domain.publish(answer, STEERING)
            return
        try:
            value = self._done(command)
            result = said | ({"done": True} if value is None else {"done": True, "value": value})
            StructuredEvent(client, "Steering", "answer", result).metadata()  # or it is no property's value
            said = result
        except BaseException as exc:  # noqa: BLE001  # the application's own code: who asked is told
            said |= {"done": False, "why": str(exc)[:500]}
            log.warning("application %s: %s %s", self.name, command.name, exc)
        answer = StructuredEvent(client, "Steering", "answer", said)
        if said["id"] and len(client) + len(known[1]) <= ID_CHARS:
            self._answers[known] = answer
        self._domain.publish(answer, STEERING)
        self._job.wake()

    def _done(self, command: StructuredEvent) -> PropertyValue | None:
        """Result of a command. Raises ConfigurationError, IllegalTransitionError, and what the application does."""
        if command.name in ("pause", "resume"):
            self.enter("paused" if command.name == "pause" else "running")
            return None
        name, value = str(command.body.get("parameter", "")), command.body.get("value")
        with self._lock:
            parameter = self._parameters.get(name)
            known = ", ".join(self._parameters)[:300] or "none"
        if parameter is None:
            raise ConfigurationError(f"no parameter {name[:80]!r} of {self.name}", hint=f"It has {known}")
        if command.name == "get" and parameter.get is not None:
            return parameter.get()
        if command.name == "set" and parameter.set is not None and value is not None:
            parameter.set(value)
            return parameter.get() if parameter.get is not None else None
        raise ConfigurationError(f"{self.name} can't {command.name[:80]} {name[:80]}")
