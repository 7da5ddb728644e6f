"""Payloads in files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.spool import Spool

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_payload_in_a_file_is_not_copied(tmp_path: Path, copied: Callable[..., Any]) -> None:
    # Given a payload in a file
    payload = Spool(str(tmp_path), 10, 1_000).begin(100)
    payload.write(b"some bytes")
    # When somebody copies it, expect to be told what to do, and no half of one that ends in a warning
    with pytest.raises(TypeError, match="read it"):
        copied(payload)
    assert len(payload) == 10
