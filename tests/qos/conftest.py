"""Federations with quality of service, where a test double of the policies says how important a type is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config, PublisherAdapterLight, RegistrationUid
from jbi_pubsub.core.config import QosSection
from jbi_pubsub.core.quality import Contract, GrantedQos, Settings, Strategy, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.pipeline import Pipeline
from jbi_pubsub.qos import enforcement
from jbi_pubsub.qos.enforcement import Enforcement
from jbi_pubsub.qos.tasks import TaskManager

IMPORTANCE = {"important": 5, "normal": 1}


def with_qos(config: Config, **changes: Any) -> Config:
    """The same with quality of service."""
    return msgspec.structs.replace(config, qos=QosSection(mode="on", **changes))


@pytest.fixture
def by_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of type "important" are, those of type "normal" are not, and more important ones go first."""

    def opened(
        self: Enforcement, caller: Caller, action: str, type_name: str, version: str, delivery: str, wish: Wish
    ) -> tuple[Contract, GrantedQos]:
        settings = Settings(importance=IMPORTANCE.get(type_name, 3))
        assert (action, delivery, version, wish) == ("publish", "queue", "1.0", Wish()), (self.component, caller)
        return Contract(settings), GrantedQos(settings)

    monkeypatch.setattr(Enforcement, "opened", opened)
    monkeypatch.setattr(
        enforcement, "TaskManager", lambda name, **options: TaskManager(name, Strategy(name="strict"), **options)
    )


@pytest.fixture
def register(figures: Any) -> Callable[[PublisherAdapterLight, str], RegistrationUid]:
    """A registration of a type at the delegate (alpha, rome), by a connection of its own or by the one given."""

    def made(adapter: PublisherAdapterLight, type_name: str, at: Any = None) -> RegistrationUid:
        delegate = at or adapter.connect_to_delegate("alpha", "rome")
        return adapter.register_publisher(delegate, figures.schema, figures.figure_1, type_name=type_name)

    return made


class Judging:
    """What is judged, in its order, and a bar to hold it up."""

    def __init__(self) -> None:
        self.judged: list[tuple[str, int]] = []
        """(type, number) of each object."""
        self.bar = threading.Event()
        self.bar.set()
        self.waiting = threading.Event()

    @contextmanager
    def held(self) -> Any:
        """Who judges waits at the first object that comes, with the baton."""
        self.waiting.clear()
        self.bar.clear()
        try:
            yield
        finally:
            self.bar.set()


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> Judging:
    """Of all delegates of the test."""
    noted = Judging()
    judge = Pipeline.judge

    def judges(self: Pipeline, registration: Any, run: Any, deliveries: Any, refused: Any) -> int:
        if run:
            noted.waiting.set()
            assert noted.bar.wait(30)
        noted.judged += [(parcel.head.type_name, parcel.head.sequence) for parcel in run]
        return judge(self, registration, run, deliveries, refused)

    monkeypatch.setattr(Pipeline, "judge", judges)
    return noted


Held = Callable[[], AbstractContextManager[None]]
