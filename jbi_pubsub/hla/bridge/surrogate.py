"""A surrogate: the federate by which a bridge is joined to a federation, and stands there for all of the other side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError
from jbi_pubsub.hla import datatypes
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.exceptions import NotConnected
from jbi_pubsub.hla.execution import Callback
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.proxy import Rti
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import RTI_TYPE

from .state import Call
from .translation import SideModel

FIND_SECONDS: Final = 2.0


class Surrogate(RTIAmbassador):
    """See the module. Callbacks are taken from it, not evoked. For one thread."""

    def __init__(self, config: Config, federation: str) -> None:
        super().__init__(config)
        self.federation = federation
        self._has_news = False
        self.connect(FederateAmbassador())
        self.community.watch(ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation=federation).rep(),)), self)

    @property
    def community(self) -> JoinManager:
        """The lookup services in which its federation is looked for."""
        assert self._community is not None  # from the beginning, until it is disconnected
        return self._community

    def execution(self) -> str:
        """The id of the service that its federation execution is. Raises as join_federation_execution."""
        return self._federation(self.federation, FIND_SECONDS).service_id

    def come(self, name: str, wake: Callable[[], None]) -> None:
        """Join. `wake` is called, on a thread of its own, when there is something to take. Raises as
        join_federation_execution."""
        self.join_federation_execution(self.federation, name, timeout=FIND_SECONDS)
        self._joined().wake = wake

    def model(self, side: str) -> SideModel:
        """The object model of the federation, under the name of a side. Raises ErrorReadingFom."""
        return SideModel(side, self.fom, datatypes.parsed(*self.fom.modules))

    def has_learned(self) -> bool:
        """Whether the object model has got additions since it was asked for, which it has now. Raises JbiError."""
        news, self._has_news = self._has_news, False
        return news and self._learned()

    # -- as a listener of its federation, on other threads --------------------------------------------------------

    def service_added(self, item: ServiceItem) -> None:
        """See to it that another object model is asked for."""
        models = {Rti.from_rep(each).model for each in item.entries if each.cls.name == Rti.entry_name}
        if self._fom is None or self._fom.digest not in models:  # None: it is being asked for, perhaps without them
            self._has_news = True
            if (link := self._link) is not None and link.wake is not None:
                link.wake()

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """As above."""
        self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Its connection tells when it is away."""

    # -- for the bridge's thread ----------------------------------------------------------------------------------

    def take(self, most: int) -> list[Callback]:
        """Callbacks that came, so many at most. Raises NotConnected once it is not joined and all has been taken."""
        link = self._joined()
        found = link.taken(most)
        callbacks = [Callback(name, arguments) for name, arguments in found if name != "connection_lost"]
        if not found and link.lost:
            raise NotConnected(f"{self.federation}: {link.lost}")
        for callback in callbacks:
            if callback.name == "initiate_federate_restore":
                self._handle = callback.arguments[2]
        return callbacks

    def do(self, calls: Sequence[Call]) -> list[Any]:
        """The answers of calls that go together; what one is refused with in its place. Raises NotConnected."""
        try:
            found = self._joined().ask_all([(call.service, call.arguments) for call in calls])
        except NotConnected as exc:
            raise NotConnected(f"{self.federation}: {exc.message}", hint=exc.hint) from exc
        for answer in found:
            if isinstance(answer, ProtocolError | ConfigurationError):
                raise answer
        return found
