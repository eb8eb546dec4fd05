#!/usr/bin/env bash
# The C extensions' tests and a short run of their fuzzers, with builds of them that check themselves: for memory and undefined behaviour (ASan, UBSan),
# then for races of threads (TSan). The builds lie in build/sanitize; the extensions in use are not touched.
#
# Python itself is not built so. It takes its memory from malloc here, so that ASan sees the end of each object; leaks are its own, and
# tests count references instead. TSan knows the GIL, a lock as any other, and so finds what is done without it.
#
# The extensions handle SIGBUS, SIGSEGV and SIGABRT themselves, and tests see how a process ends by them. So the sanitizers leave these alone.
set -euo pipefail
cd "$(dirname "$0")/.."

# The address space as TSan expects it, where the kernel lets us.
same_addresses=()
if setarch --addr-no-randomize true 2>/dev/null; then same_addresses=(setarch --addr-no-randomize); fi

signals=handle_sigbus=0:handle_segv=0:handle_abort=0
export PYTHONSAFEPATH=1 PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:$signals TSAN_OPTIONS=halt_on_error=1:$signals

build() {  # build <name> <flags>: a copy of the package `metadata`, which processes of the tests find first, too
    folder=$PWD/build/sanitize/$1
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -r metadata "$folder"
    rm -f "$folder"/metadata/*.so
    CC=gcc CFLAGS="-g -fno-omit-frame-pointer -fno-sanitize-recover=all $2" .venv/bin/python setup.py --quiet build_ext --force \
        --build-lib "$folder" --build-temp "$folder"
}

run() {  # run <library> <Python's arguments>
    local library
    library=$(gcc -print-file-name="$1")
    shift
    PYTHONPATH=$folder:$PWD LD_PRELOAD=$library "${same_addresses[@]}" .venv/bin/python - "$folder" "$@" <<'PYTHON'
import runpy
import sys

from metadata import _crash_report, _mapped_file, _path_lookup

folder, module, *arguments = sys.argv[1:]
for extension in (_crash_report, _mapped_file, _path_lookup):
    assert extension.__file__.startswith(folder), "the build failed"
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
PYTHON
}

# What a sanitizer says goes to descriptor 2, which pytest would keep to itself.
tests=(pytest -q -p no:cacheprovider --capture=sys -o pythonpath=)

build memory -fsanitize=address,undefined
run libasan.so "${tests[@]}" tests/metadata/test_path_lookup.py tests/metadata/test_snapshot_damage.py tests/metadata/test_mapped_file.py \
    tests/fuzz/test_fuzz.py -k "not test_fuzz or path_lookup or path-lookup"
run libasan.so tests.fuzz.overwritten_maps --seconds "${OVERWRITE_S:-60}"
# Not the case of damage at random: it forks commands while threads of its own allocate, and GCC 12's ASan leaves its allocator locked in
# such a child, which then waits for ever in `free`.
run libasan.so "${tests[@]}" tests/faults/test_damaged_lmdb.py -k "not at_random"
build threads -fsanitize=thread
run libtsan.so "${tests[@]}" tests/metadata/test_path_lookup.py -k threads_at_once
