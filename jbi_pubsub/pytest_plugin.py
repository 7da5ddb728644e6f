"""A fixture of pytest for the tests of applications (docs/testing.md). pytest loads this module in each of its runs, so
that the federation is imported by the first test that has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import LocalFederation


@pytest.fixture
def jbi_federation() -> Iterator[LocalFederation]:
    """A started federation of the test's own, with a lookup service; all of it ends with the test."""
    from .testing import LocalFederation

    with LocalFederation() as federation:
        yield federation
