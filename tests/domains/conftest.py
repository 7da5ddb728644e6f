"""A domain for tests: a lookup service, a delegate, and whoever joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from jbi_pubsub import Domain
from tests.conftest import Federation


@pytest.fixture
def domain(federation: Federation) -> Iterator[Callable[[], Domain]]:
    """The domain as one process after the other joins it."""
    federation.pad()
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Domain(federation.config))
