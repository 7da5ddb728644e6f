"""Runs those tests again that failed in the last run, alone and one at a time: `make test`.

    python tools/again.py [pytest's arguments of the run]

Tests start servers and wait for what they do. Where a machine is busy with other tests, one of thousands may be late.
Who fails alone as well has failed. Who passes is named, so that it is mended; more than a few are no matter of luck.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MOST: Final = 5
"""Failures of a run that are looked at again."""


def main(arguments: list[str]) -> int:
    """The exit code."""
    failed = json.loads((ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text())
    if len(failed) > MOST:
        print(f"{len(failed)} tests failed: they are not run again, as up to {MOST} are")
        return 1
    print("again, alone:", *sorted(failed), sep="\n  ", flush=True)
    again = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none", *arguments)
    code = subprocess.run([sys.executable, "-m", "pytest", *again], cwd=ROOT, check=False).returncode
    if code == 0:
        print("failed beside others, and passed alone; to be mended:", *sorted(failed), sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
