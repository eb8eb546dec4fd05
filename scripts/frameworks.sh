#!/usr/bin/env bash
# Makes the virtual environment of `make test-frameworks`: TensorFlow and DALI, both for the CPU too.
#
#   scripts/frameworks.sh FOLDER
#
# Safe to run again: pip installs only what is missing.
set -euo pipefail
folder=$1
[[ -x $folder/bin/python ]] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    tensorflow-cpu nvidia-dali-cuda120
