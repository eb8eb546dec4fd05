"""The C extensions: they look up paths, report crashes and guard memory maps.

Everything else is in pyproject.toml.

They are optional: where there is no compiler the package installs without; look-ups are slower, and
a damaged LMDB file or a truncated snapshot may end a process by a signal. With
DIESELFS_STABLE_ABI=1, which `make dist` sets, they keep to the stable ABI of Python 3.11, so that
one wheel serves that Python and all later ones.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("metadata/extension")
KEEPS_TO_STABLE_ABI = os.environ.get("DIESELFS_STABLE_ABI") == "1"

setup(
    ext_modules=[
        Extension(
            f"metadata._{name}",
            [str(FOLDER / f"{name}.c")],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if KEEPS_TO_STABLE_ABI else [],
            py_limited_api=KEEPS_TO_STABLE_ABI,
            extra_compile_args=[
                *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter"),
                "-Werror=implicit-function-declaration",  # of a call that the stable ABI lacks
            ],
            optional=not KEEPS_TO_STABLE_ABI,
        )
        for name in ("path_lookup", "crash_report", "mapped_file")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if KEEPS_TO_STABLE_ABI else {},
)
