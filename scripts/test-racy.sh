#!/usr/bin/env bash
# The tests that wait for threads, processes, mounts and peers (`tests/racy_part.py`), again and again beside a load
# of four busy processes.
#
#   scripts/test-racy.sh [ROUNDS [PYTEST-ARGUMENT...]]     20 rounds; the end says which tests failed
#   DELAYS=0.005 scripts/test-racy.sh 1     no load, but delays at random (tests/delays/sitecustomize.py)
#
# Tests with the mark `long` are left out: they search or repeat by themselves. An interrupt leaves no process and no
# mount behind; folders of interrupted tests may stay (/dev/shm/dieselfs-test-*, /tmp/pymp-*).
# A test that fails here has a race. Mend the cause: an event, a given clock, or `tests/eventually.py`.
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE  # each of hundreds of programs would compile every module that it imports
cd "$(dirname "$0")/.."

rounds=${1:-20}
shift || true
mapfile -t tests < <(.venv/bin/python -m tests.racy_part)
command -v stress-ng >/dev/null || scripts/setup.sh --as-root stress-ng
folder=$(mktemp -d)

end() {
    local pid second
    for ((second = 0; $(jobs -rp | wc -l) > 0; second++)); do
        for pid in $( ((second % 20)) || jobs -rp); do  # a test may take the first interrupt for its own
            kill -INT -- "-$pid" 2>/dev/null || true
        done
        sleep 1
    done
    # Servers that tests share have process groups of their own, but pytest's environment.
    grep -lz "^RACY_ROUNDS=$folder\$" /proc/[0-9]*/environ 2>/dev/null |
        cut -d / -f 3 | xargs -r kill 2>/dev/null || true
    # A worker that is interrupted in a test may leave the mount of that test.
    awk -v "below=$folder/" 'index($5, below) == 1 {print $5}' /proc/self/mountinfo | tac |
        while read -r point; do umount -l "$(printf %b "$point")" || true; done  # a space is written as \040
    rm -rf "$folder"
}

set -m  # each job has a process group, which ends as a whole
trap end EXIT
if [[ -n ${DELAYS:-} ]]; then
    export DELAYS PYTHONPATH="$PWD/tests/delays${PYTHONPATH:+:$PYTHONPATH}"
else
    stress-ng --cpu 4 --quiet &
fi
RACY_ROUNDS=$folder .venv/bin/python -m pytest -p tests.rounds --rounds "$rounds" -m "not long" -n 8 \
    --basetemp "$folder/tests" -o console_output_style=count -q "$@" "${tests[@]}" &
wait $!
