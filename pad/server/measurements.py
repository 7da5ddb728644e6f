"""A delegate or peer publisher publishes what it measures, as an application of its own: [qos] publish_measurements."""

from __future__ import annotations

from typing import Final

from jbi_pubsub.core.signing import Signer
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.pad.server.system_publisher import OwnRegistration

EVERY_SECONDS: Final = 2.0
"""Between two measurements of a series."""


class Measurements:
    """A job that publishes, as long as somebody has subscribed; nothing is made for nobody."""

    def __init__(self, delegate: Delegate, quality: Quality, signer: Signer | None) -> None:
        self._quality = quality
        self._own = OwnRegistration(delegate, signer, *quality.measurement_type(), "measurements")
        self._job = Job("measurements", EVERY_SECONDS, self._measure, slow=True)

    def start(self) -> None:
        """Begin."""
        self._job.start()

    def stop(self) -> None:
        """End it. Safe to repeat."""
        self._job.stop()

    def _measure(self) -> None:
        if self._own.is_wanted:
            self._own.publish(self._quality.measurements())
