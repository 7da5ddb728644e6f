"""What stands in a delegate's pipeline beside the stages that every delegate has, made from the configuration.

The one place that knows which optional rooms there are; the rest of pad knows them as Protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jbi_pubsub.core.access import AccessPolicy, AllowAll
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.pad.registration import Registration
from jbi_pubsub.pad.shelf import Shelves


@dataclass(frozen=True)
class Stages:
    """`room`: asked in turn before an object is admitted, each may make its publisher wait, or raise BackPressureError;
    `shelves`: where newcomers catch up; `access`: who may do what, asked when contracts open."""

    shelves: Shelves
    room: tuple[Callable[[Registration, Parcel], None], ...] = ()
    access: AccessPolicy = field(default_factory=AllowAll)


def stages_of(config: Config, component: str = "peer", access: AccessPolicy | None = None) -> Stages:
    """The stages that the configuration asks for, of a delegate ("name@location") or a peer publisher. `access` instead
    of what [policy] names. Raises PolicyError."""
    if access is None and config.policy.file:
        from jbi_pubsub.policy.manager import access_of  # here: what is off is not imported

        access = access_of(config, component)
    return Stages(Shelves(config.pad.keep_seconds, config.pad.keep_bytes), access=access or AllowAll())
