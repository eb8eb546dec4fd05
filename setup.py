"""The C extension of the mount. Everything else is in pyproject.toml.

It is optional: where there is no compiler or no libfuse3 to build against, the package installs without it and the mount is slower.
"""

import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("dieselfs/fuse/extension")


def fuse_flags(which: str) -> list[str]:
    if not shutil.which("pkg-config"):
        return []
    found = subprocess.run(["pkg-config", which, "fuse3"], capture_output=True, text=True)
    return shlex.split(found.stdout)


setup(
    ext_modules=[
        Extension(
            "dieselfs.fuse._fast_path",
            sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=[
                *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter"),
                *fuse_flags("--cflags"),
            ],
            # Linked even where no symbol of it is used: dlsym(RTLD_NEXT) looks for libfuse behind this module.
            extra_link_args=["-pthread", "-Wl,--no-as-needed", *fuse_flags("--libs")],
            optional=True,
        )
    ]
)
