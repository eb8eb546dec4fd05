"""The C extensions: the mount's fast path, and look-ups of paths. Everything else is in pyproject.toml.

They are optional: where there is no compiler, or no libfuse3 to build against, the package installs without and is slower.
"""

import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup

FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter")


def fuse_flags(which: str) -> list[str]:
    if not shutil.which("pkg-config"):
        return []
    found = subprocess.run(["pkg-config", which, "fuse3"], capture_output=True, text=True)
    return shlex.split(found.stdout)


def extension(name: str, folder: str, compile_args: list[str], link_args: list[str]) -> Extension:
    """All of a folder's sources are one module."""
    return Extension(
        name,
        sorted(str(path) for path in Path(folder).glob("*.c")),
        depends=sorted(str(path) for path in Path(folder).glob("*.h")),
        extra_compile_args=[*FLAGS, *compile_args],
        extra_link_args=link_args,
        optional=True,
    )


setup(
    ext_modules=[
        extension(
            "dieselfs.fuse._fast_path",
            "dieselfs/fuse/extension",
            fuse_flags("--cflags"),
            # Linked even where no symbol of it is used: dlsym(RTLD_NEXT) looks for libfuse behind this module.
            ["-pthread", "-Wl,--no-as-needed", *fuse_flags("--libs")],
        ),
        extension("metadata._path_lookup", "metadata/extension", [], []),
    ]
)
