"""The first schemas of a process are compiled on several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jbi_pubsub.codegen import compiled

SCRIPT = """
import os, sys, threading
from pathlib import Path
from jbi_pubsub.codegen.compiled import validator
documents = {"Intel_Imagery.xsd": Path(sys.argv[1]).read_bytes()}
failed = 0
for _ in range(60):
    child = os.fork()
    if not child:
        begin, wrong = threading.Barrier(6), []
        def compile():
            begin.wait()
            try:
                validator("Intel_Imagery.xsd", documents, {})
            except Exception as exc:
                wrong.append(exc)
        threads = [threading.Thread(target=compile) for _ in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        os._exit(bool(wrong))
    failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
print(failed)
"""


@pytest.mark.processes
def test_valid_schemas_that_come_first_and_at_once_are_taken() -> None:
    # Given sixty processes that have compiled nothing yet; When six threads of each begin with it; Expect no failure
    schema = compiled.__file__.rpartition("/jbi_pubsub/")[0] + "/examples/data/intel_imagery/Intel_Imagery.xsd"
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, schema], capture_output=True, text=True, timeout=100, check=True
    )
    assert ran.stdout == "0\n"
