"""The rules for paths in a dataset.

A path is bytes, relative to the dataset's root. One `/` joins its components. A component has 1-255
bytes, contains neither `/` nor NUL, and is neither `.` nor `..`: exactly what Linux can show in a
directory. One illegal name makes the kernel fail a whole directory listing with EIO, so every
entrance enforces the rules: put, chunk decoding and snapshot load. The empty path is the root
directory itself; only a directory may have it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from chunkstore.errors import InvalidPath

MAX_COMPONENT_BYTES = 255
"""The longest name of one component, as in Linux."""
MAX_PATH_BYTES = 4095
"""Linux's PATH_MAX less the terminating NUL."""

# Paths are joined by NUL and searched once. A bad component is empty, `.`, `..` or too long. (`$`
# would also match before a newline at the end, and ".\n" is a legal name. The search for a long
# component starts at component starts only: a search from every byte took seconds for 3,000 paths
# of 4,095 bytes.)
_BAD_COMPONENT = re.compile(rb"(?:^|[/\0])(?:\.{0,2}(?:[/\0]|\Z)|[^/\0]{256})")


def check_path(path: bytes) -> None:
    """Raise `InvalidPath` unless `path` may name a file."""
    if not path:
        raise InvalidPath("an empty path names the root directory, not a file")
    if len(path) > MAX_PATH_BYTES:
        raise InvalidPath(f"path is longer than {MAX_PATH_BYTES} bytes: {path[:80]!r}…")
    if b"\0" in path or _BAD_COMPONENT.search(path):
        raise InvalidPath(
            f"illegal path {os.fsdecode(path[:200])!r}: components are "
            f"1-{MAX_COMPONENT_BYTES} bytes, not '.' or '..', without NUL"
        )


def check_paths(paths: Sequence[bytes]) -> None:
    """Raise `InvalidPath` unless each of `paths` may name a file.

    The function searches all paths together a few times (about 70 ns a path).
    """
    joined = b"\0".join(paths)
    components = b"/" + joined.replace(b"\0", b"/") + b"/"
    if not paths or (
        joined.count(b"\0") == len(paths) - 1
        and b"//" not in components
        and b"/./" not in components
        and b"/../" not in components
        and max(map(len, paths)) <= MAX_COMPONENT_BYTES
    ):
        return
    for path in paths:
        check_path(path)


def check_names(names: Sequence[bytes]) -> None:
    """Raise `InvalidPath` unless each of `names` is a path of one component."""
    check_paths(names)
    if b"/" in b"\0".join(names):
        raise InvalidPath("a name contains a '/'")


def ancestors(path: bytes) -> Iterable[bytes]:
    """Return the directories above `path`, nearest first, without the root."""
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def split(path: bytes) -> tuple[bytes, bytes]:
    """Return (directory, name) of `path`; the root's directory is b''."""
    directory, _, name = path.rpartition(b"/")
    return directory, name
