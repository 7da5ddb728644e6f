"""Servers with a policy file, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import Config, PolicySection
from jbi_pubsub.policy import manager

TYPE = "mil.af.rl.jbi.Intel_Imagery"
EVERYTHING = "[[access]]\n"
"""A rule that allows everything to everybody: no AllowAll, all questions are asked."""


@dataclass
class PolicyFile:
    """A policy file and the configuration that names it."""

    path: Path
    config: Config

    def write(self, text: str) -> None:
        """Its next content."""
        self.path.write_text(text)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "LOOK_SECONDS", 0.05)


@pytest.fixture
def policy(federation: Any, tmp_path: Path) -> PolicyFile:
    """The federation's delegates and peer publishers have this policy: everything is allowed, until it is written."""
    path = tmp_path / "policy.toml"
    path.write_text(EVERYTHING)
    config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(path)))
    federation.config = config
    return PolicyFile(path, config)
