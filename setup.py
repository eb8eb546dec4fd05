"""The C extension that looks up paths. Everything else is in pyproject.toml.

It is optional: where there is no compiler the package installs without, and look-ups are slower.
With DIESELFS_STABLE_ABI=1, which `make dist` sets, it keeps to the stable ABI of Python 3.11, so
that one wheel serves that Python and all later ones.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("metadata/extension")
KEEPS_TO_STABLE_ABI = os.environ.get("DIESELFS_STABLE_ABI") == "1"

setup(
    ext_modules=[
        Extension(
            "metadata._path_lookup",
            sorted(str(path) for path in FOLDER.glob("*.c")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if KEEPS_TO_STABLE_ABI else [],
            py_limited_api=KEEPS_TO_STABLE_ABI,
            extra_compile_args=[
                *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter"),
                "-Werror=implicit-function-declaration",  # of a call that the stable ABI lacks
            ],
            optional=not KEEPS_TO_STABLE_ABI,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if KEEPS_TO_STABLE_ABI else {},
)
