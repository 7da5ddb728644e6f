#!/bin/sh
# What the first sections of docs/measurements.md say, into a folder: benchmarks/everything.sh FOLDER. About 15 minutes,
# on a machine that does nothing else. benchmarks/peers/README.md says what to install.
set -eu
folder=${1:?"where the results go"}
mkdir -p "$folder"
python=${PYTHON:-$(dirname "$0")/../.venv/bin/python}
here=$(dirname "$0")
failed=0

measure() {
    name=$1
    shift
    echo "$name: $*" >&2
    "$python" "$@" >"$folder/$name" || { echo "$name: FAILED" >&2; failed=1; }
    cat "$folder/$name"
}

measure dissemination.txt "$here/dissemination.py"
measure system_calls.txt "$here/system_calls.py"
measure transport.txt "$here/transport.py"
measure payloads.txt "$here/payloads.py"
measure peers.md "$here/peers/table.py" --all --out "$folder/peers.jsonl" --plot "$folder/peers.svg"
measure stall.md "$here/peers/table.py" --systems jbi --n 10 --stall --out "$folder/stall.jsonl"
exit $failed
