#!/usr/bin/env bash
# The C extension's tests and a short run of its fuzzer, with builds of it that check themselves: for memory and undefined behaviour (ASan, UBSan),
# then for races of threads (TSan). The builds lie in build/sanitize; the extension in use is not touched.
#
# Python itself is not built so. It takes its memory from malloc here, so that ASan sees the end of each object; leaks are its own, and
# tests count references instead. TSan knows the GIL, a lock as any other, and so finds what is done without it.
set -euo pipefail
cd "$(dirname "$0")/.."

# The address space as TSan expects it, where the kernel lets us.
same_addresses=()
if setarch --addr-no-randomize true 2>/dev/null; then same_addresses=(setarch --addr-no-randomize); fi

run() {  # run <name> <library> <flags> <pytest's arguments>
    local folder=$PWD/build/sanitize/$1 library
    library=$(gcc -print-file-name="$2")
    CC=gcc CFLAGS="-g -fno-omit-frame-pointer -fno-sanitize-recover=all $3" .venv/bin/python setup.py --quiet build_ext --force \
        --build-lib "$folder" --build-temp "$folder"
    shift 3
    LD_PRELOAD=$library PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1 \
        "${same_addresses[@]}" .venv/bin/python - "$folder" "$@" <<'PYTHON'
import sys

import pytest

import metadata

folder = sys.argv[1]
metadata.__path__.insert(0, f"{folder}/metadata")
from metadata import _path_lookup

assert _path_lookup.__file__.startswith(folder), "the build failed"
# What a sanitizer says goes to descriptor 2, which pytest would keep to itself.
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--capture=sys", *sys.argv[2:]]))
PYTHON
}

run memory libasan.so -fsanitize=address,undefined tests/metadata/test_path_lookup.py tests/fuzz/test_fuzz.py -k "path_lookup or path-lookup"
run threads libtsan.so -fsanitize=thread tests/metadata/test_path_lookup.py -k threads_at_once
