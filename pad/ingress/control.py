"""Room for an object: memory for what waits, room in other stages, and late joiners who are on their way."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.matching.registration import Registration


class AdmissionControl:
    """All back-pressure is here. Whoever may wait does that in `wait`; others ask `pause`, `has_memory` and `room_in`
    about each object that is not `is_clear`, and come again. Safe from several threads."""

    def __init__(
        self, config: Config, stages: Stages, budget: Budget, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience = config.queue.block_seconds
        """Seconds that an object waits for memory."""
        self._settle_seconds = config.pad.settle_seconds
        self._buffers = stages.buffers
        self._stages = stages.room if stages.archive is None else (*stages.room, stages.archive.room)
        self._budget = budget
        self._clock = clock
        self.stopping = Event()
        """Set when nobody is to wait any more."""

    def wait(self, registration: Registration, parcel: Parcel) -> None:
        """Return as soon as there is room for an object. Raises BackPressureError, OversizeError or StorageError when
        there is none in time."""
        if self._budget.used >= self._budget.limit and not self._budget.wait_for_room(self.patience):
            raise self.no_memory()
        is_clear = registration.marks.has_settled or self._buffers.has_room(parcel.size)  # nearly always
        if not is_clear and (pause := self.pause(registration, parcel)):
            self.stopping.wait(pause)
        if self._stages and (pause := self.room_in(registration, parcel)):
            self._wait_for_stages(registration, parcel, pause)

    def _wait_for_stages(self, registration: Registration, parcel: Parcel, pause: float) -> None:
        deadline = time.monotonic() + self.patience
        while pause:
            left = deadline - time.monotonic()
            if left <= 0 or self.stopping.wait(min(pause, left)):
                raise self.no_stage()
            pause = self.room_in(registration, parcel)

    def is_clear(self, registration: Registration, size: int) -> bool:
        """Whether an object of any importance may be judged at once: there is memory for all, and nobody to be waited
        for."""
        budget = self._budget
        return budget.used * 2 < budget.limit and (registration.marks.has_settled or self._buffers.has_room(size))

    def has_memory(self, importance: int) -> bool:
        """Whether an object of that importance (1 to 5) may take memory: the more important, the more of it."""
        return self._budget.used < self._budget.limit * (50 + 10 * importance) / 100

    @property
    def has_stages(self) -> bool:
        """Whether `room_in` is to be asked about each object, by who has it admitted without waiting."""
        return bool(self._stages)

    def room_in(self, registration: Registration, parcel: Parcel) -> float:
        """In how many seconds all stages may have room for an object; 0.0: they have. Raises BackPressureError,
        OversizeError or StorageError when one of them will have none."""
        for asked in self._stages:
            if pause := asked(registration, parcel):
                return pause
        return 0.0

    def pause(self, registration: Registration, parcel: Parcel) -> float:
        """Seconds to wait before that object is judged. A publisher that fills the buffers within moments waits once:
        who was told of it and is on the way here gets its first objects, too."""
        if registration.marks.has_settled or self._buffers.has_room(parcel.size):
            return 0.0
        settle, topic = self._settle_seconds, registration.topic
        if topic.is_awaited and self._buffers.is_crowded(topic.buffer, parcel.size, self._clock(), settle):
            registration.marks.has_settled = True
            return settle
        return 0.0

    def no_memory(self) -> BackPressureError:
        """The error for an object that has waited for memory in vain."""
        return BackPressureError(
            f"the delegate's queues hold {self._budget.used} bytes, the limit is {self._budget.limit}",
            hint="Subscribers are too slow; see `jbi status`, or raise [pad] max_queued_bytes",
        )

    def no_stage(self) -> BackPressureError:
        """The error for an object that has waited for another stage's room in vain."""
        return BackPressureError(
            f"no room for this object within {self.patience:g} s: it is kept or sent on more slowly than it comes",
            hint="Publish more slowly, or raise [queue] block_seconds",
        )
