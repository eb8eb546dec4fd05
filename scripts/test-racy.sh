#!/usr/bin/env bash
# The tests that wait for threads, processes, mounts and peers (`tests/racy_part.py`), again and again beside a load
# of four busy processes.
#
#   scripts/test-racy.sh [ROUNDS [PYTEST-ARGUMENT...]]     20 rounds; ends with 1 if a test has failed
#
# Each of eight runs of pytest has an eighth of the files in each round: workers of one run would each collect all of
# them, and take a fifth of the time for that and for their messages. No run waits for the others to begin its next round.
# A test that fails here has a race. Mend the cause: an event, a given clock, or `tests/eventually.py`.
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE  # each of hundreds of programs would compile every module that it imports
cd "$(dirname "$0")/.."

parts=8
rounds=${1:-20}
shift || true
mapfile -t tests < <(.venv/bin/python -m tests.racy_part)
command -v stress-ng >/dev/null || scripts/setup.sh --as-root stress-ng
folder=$(mktemp -d)
stress-ng --cpu 4 --quiet &
load=$!
trap 'kill $load $(jobs -p) 2>/dev/null; wait; rm -rf "$folder"' EXIT

# Print what becomes of every `parts`th file from number $1 on, in each round.
repeat() {
    local part=$1 number=0 round file files=()
    for file in "${tests[@]}"; do
        if ((number++ % parts == part)); then
            files+=("$file")
        fi
    done
    shift
    for ((round = 1; round <= rounds; round++)); do
        .venv/bin/python -m pytest -q --basetemp "$folder/$part" "$@" "${files[@]}" >"$folder/said.$part" 2>&1 ||
            touch "$folder/failed"
        echo "round $round of $rounds, part $((part + 1)) of $parts: $(grep -E ' in [0-9.]+s' "$folder/said.$part" | tail -n 1)"
        sed -n '/^=* \(FAILURES\|ERRORS\) =*$/,$p' "$folder/said.$part"
    done
}

for ((part = 0; part < parts; part++)); do
    repeat $part "$@" &
    repeating+=($!)
done
wait "${repeating[@]}"
[[ ! -e "$folder/failed" ]]
