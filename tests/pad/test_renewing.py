"""How long a client tries to renew a lease at a delegate."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.wire.ref import ServiceRef
from jbi_pubsub.protocol.services import SubscriptionsProxy


@pytest.mark.parametrize(
    ("term", "timeout", "tried"),
    [(1.0, 10.0, 5.0), (10.0, 10.0, 6.0), (60.0, 10.0, 10.0), (60.0, 30.0, 30.0), (86_400.0, 3.0, 3.0)],
)
def test_a_renewal_waits_for_its_answer_as_long_as_the_term_allows(
    term: float, timeout: float, tried: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lease of which three fifths are left when it is renewed, and a limit for any call
    asked: list[tuple[str, float]] = []

    def call(_client: Any, method: str, _result: Any, lease_id: str, duration: float, *, timeout: float) -> float:
        asked.append((method, timeout))
        return duration

    monkeypatch.setattr(ControlClient, "call", call)
    proxy = SubscriptionsProxy(ServiceRef("", "subscriptions", ("127.0.0.1:1",)), Security(), timeout=timeout)

    # When it is renewed
    # Expect a try to last as long as the rest of the term, but 5 s at least, and no longer than any call
    assert proxy.renew("lease", term) == Lease("lease", term)
    assert asked == [("renew", tried)]
    proxy.close()
