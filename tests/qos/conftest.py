"""Federations with quality of service, where policies say how important a type is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config, PublisherAdapterLight, RegistrationUid
from jbi_pubsub.core.config import QosSection
from jbi_pubsub.pad.ingress.pipeline import Pipeline

POLICIES = """
[space]
strategy = "strict"

[[policy]]
name = "what is important"
type = "important"
importance = 5

[[policy]]
name = "what is not"
type = "normal"
importance = 1
"""


@pytest.fixture
def by_type(tmp_path: Path) -> Callable[..., Config]:
    """A configuration with quality of service: objects of type "important" are, those of type "normal" are not, and
    more important ones go first."""
    file = tmp_path / "policies.toml"
    file.write_text(POLICIES)

    def made(config: Config, **changes: Any) -> Config:
        policy = msgspec.structs.replace(config.policy, file=str(file))
        return msgspec.structs.replace(config, policy=policy, qos=QosSection(mode="on", **changes))

    return made


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
    def held(self) -> Iterator[None]:
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

    def judges(self: Pipeline, registration: Any, run: Any, *rest: Any) -> int:
        if run:
            noted.waiting.set()
            assert noted.bar.wait(60.0)
        noted.judged += [(parcel.head.type_name, parcel.head.sequence) for parcel in run]
        return judge(self, registration, run, *rest)

    monkeypatch.setattr(Pipeline, "judge", judges)
    return noted
