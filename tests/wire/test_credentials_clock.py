"""Ends of certificates are told by the clock as it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jbi_pubsub.core.wire.credentials import FileCredentials
from jbi_pubsub.trust.authority import Authority

DAY = 86_400.0


def test_a_certificate_that_ends_soon_is_told_of_daily_also_when_the_clock_was_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a certificate of 90 days, and a process that comes while the clock is two years ahead
    folder, now = tmp_path / "certs", time.time()
    Authority.init(folder, "test", now=now)
    with Authority.opened(folder) as authority:
        authority.issue("server", "server", ["127.0.0.1"], now=now, days=90)
    monkeypatch.setattr(time, "time", lambda: now + 730 * DAY)
    files = [folder / "server" / name for name in ("certificate.pem", "key.pem", "ca.pem")]
    known = FileCredentials(*files, None)
    assert "was valid until" in caplog.text
    caplog.clear()
    # When the clock is right, and weeks later
    for day, is_told in ((0, False), (70, True), (70.5, False), (71, True)):
        monkeypatch.setattr(time, "time", lambda day=day: now + day * DAY)
        known.look()
        # Expect it when it ends soon, once a day
        assert ("is valid until" in caplog.text) is is_told
        caplog.clear()
