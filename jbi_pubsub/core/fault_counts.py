"""Faults of what comes from others, counted by their texts. They may have the say in a text, so not each is kept."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

FAULTS_MOST: Final = 100
TEXT_MOST: Final = 100
"""Characters of a text."""
REST: Final = "others"


class FaultCounts:
    """Faults by their texts; when there are FAULTS_MOST texts new ones count as `others`. Any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, why: str) -> bool:
        """One more; whether it is the first of its text."""
        text = why[:TEXT_MOST]
        with self._lock:
            if text not in self._counts and len(self._counts) >= FAULTS_MOST:
                text = REST
            self._counts[text] += 1
            return self._counts[text] == 1

    def counts(self) -> dict[str, int]:
        """All of them."""
        with self._lock:
            return dict(self._counts)
