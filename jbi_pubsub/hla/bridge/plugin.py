"""The plug-in `bridge.hla`: what the file of a bridge with a side of kind hla describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jbi_pubsub.bridge.file import BridgeDescription, OpenBridge, Platforms, read
from jbi_pubsub.core.config import Config

from .file import Federations, federations


def described(path: Path, document: Mapping[str, Any]) -> BridgeDescription:
    """A bridge between federations, or between one and a platform. Raises ConfigurationError, which names file and
    key."""
    sides = document.get("side")
    tables = [side for side in sides.values() if isinstance(side, dict)] if isinstance(sides, dict) else []
    if any(side.get("kind", "jbi") != "hla" for side in tables):
        from jbi_pubsub.hla import gateway  # here: a bridge between federations needs no publishers

        return Platforms(path, read(path), {"hla": gateway})
    return BetweenFederations(*federations(path, document))


class BetweenFederations(Federations):
    """A bridge that can be opened."""

    def opened(self, base: Config) -> OpenBridge:
        """See bridge.file.Described."""
        from .process import opened  # here: who checks a file needs no RTI

        return opened(self, base)
