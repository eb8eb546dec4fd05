#!/usr/bin/env bash
# The tests that wait for threads, processes, mounts and peers, again and again beside a load of four busy processes.
#
#   scripts/test-racy.sh [ROUNDS [PYTEST-ARGUMENT...]]     20 rounds; stops at the first that fails
#
# A test that fails here has a race. Mend the cause: an event, a given clock, or `tests/eventually.py`.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-20}
shift || true
tests=(
    tests/chunkstore/{ssd,stores,test_call_threads.py,test_group_commit.py,test_uploader.py}
    tests/dieselfs/{cache,fuse,prefetch,test_client_memory.py}
    tests/dieselfs/cli/commands/{test_task.py,test_stats.py}
    tests/faults/{test_daemon.py,test_damaged_chunks.py,test_store_out.py}
    tests/metadata/kv
    tests/mount/test_{life,mount_table,plans,refresh,supervisor,torture}.py
    tests/peers
)
command -v stress-ng >/dev/null || scripts/setup.sh --as-root stress-ng
stress-ng --cpu 4 --quiet &
load=$!
trap 'kill $load && wait $load || true' EXIT
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds"
    .venv/bin/python -m pytest -q -n 4 --dist worksteal "$@" "${tests[@]}"
done
