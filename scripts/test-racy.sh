#!/usr/bin/env bash
# The tests that wait for threads, processes, mounts and peers (`tests/racy_part.py`), again and again beside a load
# of four busy processes.
#
#   scripts/test-racy.sh [ROUNDS [PYTEST-ARGUMENT...]]     20 rounds; the end says which tests failed
#
# Each of eight runs of pytest has an eighth of the files in each round, so that no run collects the tests of another.
# No run waits for the others to begin its next round.
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
touch "$folder/failed"

# Print what becomes of every `parts`th file from number $1 on, in each round.
repeat() {
    local part=$1 number=0 round file files=() code said="$folder/said.$1" what
    trap 'exit 1' INT  # pytest ends what it has started, and then this ends
    for file in "${tests[@]}"; do
        if ((number++ % parts == part)); then
            files+=("$file")
        fi
    done
    shift
    for ((round = 1; round <= rounds; round++)); do
        what="round $round, part $((part + 1))"
        code=0
        .venv/bin/python -m pytest -q --basetemp "$folder/$part" "$@" "${files[@]}" >"$said" 2>&1 || code=$?
        echo "$what of $parts: $(grep -E ' in [0-9.]+s' "$said" | tail -n 1)"
        if ((code == 0 || code == 5)); then  # 5: the arguments leave no test in this part
            continue
        fi
        tail -n 200 "$said"
        if ! sed -nE "s/ - .*//; s/^(FAILED|ERROR) /$what: /p" "$said" | grep . >>"$folder/failed"; then
            echo "$what: pytest ended with $code" >>"$folder/failed"
        fi
    done
}

end() {
    local pid second
    for ((second = 0; $(jobs -rp | wc -l) > 0; second++)); do
        for pid in $( ((second % 20)) || jobs -rp); do  # a test may take the first interrupt for its own
            kill -INT -- "-$pid" 2>/dev/null || true
        done
        sleep 1
    done
    rm -rf "$folder"
}

set -m  # each job has a process group, which ends as a whole
trap end EXIT
stress-ng --cpu 4 --quiet &
repeating=()
for ((part = 0; part < parts; part++)); do
    repeat $part "$@" &
    repeating+=($!)
done
wait "${repeating[@]}"
if [[ -s "$folder/failed" ]]; then
    echo "failed:"
    sed 's/^/  /' "$folder/failed"
    exit 1
fi
echo "passed in each round: $rounds of $rounds"
