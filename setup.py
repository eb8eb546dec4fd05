"""The C extension that looks up paths. Everything else is in pyproject.toml.

It is optional: where there is no compiler the package installs without, and look-ups are slower.
"""

from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("metadata/extension")

setup(
    ext_modules=[
        Extension(
            "metadata._path_lookup",
            sorted(str(path) for path in FOLDER.glob("*.c")),
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter"],
            optional=True,
        )
    ]
)
