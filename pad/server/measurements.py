"""A delegate or peer publisher publishes what it measures, as an application of its own: [qos] publish_measurements."""

from __future__ import annotations

import threading
from typing import Final

from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.signing import Signer
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.pad.server.system_publisher import OwnRegistration

EVERY_SECONDS: Final = 2.0
"""Between two measurements of a series."""


class Measurements:
    """A thread that publishes, as long as somebody has subscribed; nothing is made for nobody."""

    def __init__(self, delegate: Delegate, quality: Quality, signer: Signer | None, name: str) -> None:
        self._quality = quality
        self._own = OwnRegistration(delegate, signer, *quality.measurement_type(), "measurements")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"measure-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Safe to repeat."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with guarded("measurements"):
                if self._own.is_wanted:
                    self._own.publish(self._quality.measurements())
            if self._stopping.wait(EVERY_SECONDS):
                return
