"""`jbi publish` waits for a slow link, and not for a delegate that has gone."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.cli.publish import FLUSH_RATE, FLUSH_SECONDS, _flush
from jbi_pubsub.core.errors import BackPressureError

RATE = 7200 / 8


class FarAdapter(PublisherAdapterLight):
    """An adapter whose delegate is behind a link: it takes so many bytes, at RATE, on a clock of its own."""

    def __init__(self, size: int, *, connected: bool) -> None:
        self.left = size / RATE
        self.waited = 0.0
        self._is_connected = connected

    def monotonic(self) -> float:
        return self.waited

    def flush(self, timeout: float = 10.0) -> None:
        self.waited += min(timeout, self.left) if self._is_connected else timeout
        if self._is_connected:
            self.left -= min(timeout, self.left)
        if self.left:
            raise BackPressureError("the delegate has not taken all")

    def status(self) -> dict[str, Any]:
        return {"delegates": {"one": {"connected": self._is_connected}}}


def flushed(adapter: FarAdapter, size: int, patch: pytest.MonkeyPatch) -> int:
    patch.setattr("jbi_pubsub.cli.publish.time", adapter)
    return _flush(adapter, FLUSH_SECONDS + size / FLUSH_RATE, 10.0)


@pytest.mark.parametrize("size", [1_000, 200_000, 5_000_000])
def test_what_a_slow_link_carries_is_waited_for(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = FarAdapter(size, connected=True)
    assert flushed(adapter, size, monkeypatch) == 0
    assert adapter.waited == pytest.approx(size / RATE)


def test_a_delegate_that_is_not_connected_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = FarAdapter(5_000_000, connected=False)
    with pytest.raises(BackPressureError):
        flushed(adapter, 5_000_000, monkeypatch)
    assert adapter.waited == 10.0
