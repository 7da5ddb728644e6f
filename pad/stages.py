"""What stands in a delegate's pipeline beside the stages that every delegate has, made from the configuration.

The one place that knows which optional rooms there are; the rest of pad knows them as Protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.pad.registration import Registration
from jbi_pubsub.pad.shelf import Shelves


@dataclass(frozen=True)
class Stages:
    """`room`: asked in turn before an object is admitted, each may make its publisher wait, or raise BackPressureError;
    `shelves`: where newcomers catch up."""

    shelves: Shelves
    room: tuple[Callable[[Registration, Parcel], None], ...] = ()


def stages_of(config: Config) -> Stages:
    """The stages that the configuration asks for."""
    return Stages(Shelves(config.pad.keep_seconds, config.pad.keep_bytes))
