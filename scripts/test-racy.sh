#!/usr/bin/env bash
# The tests that wait for threads, processes, mounts and peers (`tests/racy_part.py`), again and again beside a load
# of four busy processes.
#
#   scripts/test-racy.sh [--keep-going] [ROUNDS [PYTEST-ARGUMENT...]]     20 rounds; stops at the first that fails
#
# With --keep-going it does all rounds, and says in the end which failed, and in which tests.
# A test that fails here has a race. Mend the cause: an event, a given clock, or `tests/eventually.py`.
set -euo pipefail
cd "$(dirname "$0")/.."

# Of eight at a time a few compute and the others wait: together they get about as much as the load does. With more
# of them it would be less load than tests, and each of them imports and collects what it may have to run.
workers=8
keep_going=false
if [[ ${1:-} == --keep-going ]]; then
    keep_going=true
    shift
fi
rounds=${1:-20}
shift || true
mapfile -t tests < <(.venv/bin/python -m tests.racy_part)
command -v stress-ng >/dev/null || scripts/setup.sh --as-root stress-ng
said=$(mktemp)
stress-ng --cpu 4 --quiet &
load=$!
trap 'rm -f "$said"; kill $load && wait $load || true' EXIT
failures=()
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds"
    if .venv/bin/python -m pytest -q -n $workers --dist worksteal "$@" "${tests[@]}" | tee "$said"; then
        continue
    fi
    mapfile -t failed < <(sed -nE 's/ - .*//; s/^(FAILED|ERROR) //p' "$said" | sort -u)
    failures+=("${failed[@]/#/round $round: }")
    [[ ${#failed[@]} -gt 0 ]] || failures+=("round $round: pytest itself")
    $keep_going || break
done
if [[ ${#failures[@]} -gt 0 ]]; then
    printf '%s\n' "failed:" "${failures[@]/#/  }"
    exit 1
fi
