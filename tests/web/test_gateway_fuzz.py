"""The gateway beside its own document: schemathesis, which `make fuzz` installs, makes requests of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1_200)
def test_the_gateway_does_what_its_document_says(reached: Callable[..., Any], tmp_path: Path) -> None:
    if (program := os.environ.get("SCHEMATHESIS")) is None:
        pytest.skip("schemathesis is not here: make fuzz")
    it = reached()
    at = "/v1/types/report/1.0/objects?wait=20&validate=false&persist=true"
    (stored,) = it.publish((b"<report><n>1</n></report>", b"payload"), at=at).json()["ids"]
    done = subprocess.run(
        [
            Path(program).resolve(), "--config-file", Path(__file__).parent / "schemathesis.toml", "run",
            f"http://127.0.0.1:{it.gateway.port}/v1/openapi.json", "--continue-on-failure",
            "--max-time", os.environ.get("FUZZ_SECONDS", "20"), *os.environ.get("FUZZ_ARGS", "").split(),
        ],
        cwd=tmp_path, env={**os.environ, "STORED_OBJECT": stored}, timeout=1_100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, "what it says is above"
