"""The law of paths in a dataset.

A path is bytes, relative to the dataset's root, its components joined by one `/`. A component is 1-255 bytes, any but
`/` and NUL, and neither `.` nor `..`: exactly what Linux can show in a directory. One illegal name in a listing makes the
kernel fail the whole listing with EIO, so the law is enforced at every door: put, chunk decoding, snapshot load.
The empty path is the root directory itself and is legal for directories alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from chunkstore.errors import InvalidPath

MAX_COMPONENT_BYTES = 255
MAX_PATH_BYTES = 4095
"""Linux's PATH_MAX less the terminating NUL."""

# Paths are joined by NUL and searched once: a bad component is empty, `.` or `..`, or too long.
# (`$` would also match before a newline at the end, and ".\n" is a legal name. A long component is
# looked for at its start only: tried at every byte, 3,000 paths of 4,095 bytes took seconds.)
_BAD_COMPONENT = re.compile(rb"(?:^|[/\0])(?:\.{0,2}(?:[/\0]|\Z)|[^/\0]{256})")


def check_path(path: bytes) -> None:
    """Raise `InvalidPath` unless `path` may name a file."""
    if not path:
        raise InvalidPath("an empty path names the root directory, not a file")
    if len(path) > MAX_PATH_BYTES:
        raise InvalidPath(f"path is longer than {MAX_PATH_BYTES} bytes: {path[:80]!r}…")
    if b"\0" in path or _BAD_COMPONENT.search(path):
        raise InvalidPath(
            f"illegal path {path[:200]!r}: components are 1-{MAX_COMPONENT_BYTES} bytes, not '.' or '..', without NUL"
        )


def check_paths(paths: Sequence[bytes]) -> None:
    """`check_path` for many: a few searches over all of them together (about 70 ns a path)."""
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
        raise InvalidPath("a name with a '/' in it")


def ancestors(path: bytes) -> Iterable[bytes]:
    """The directories above `path`, nearest first, without the root."""
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def split(path: bytes) -> tuple[bytes, bytes]:
    """(directory, name) of `path`; the root's directory is b''."""
    directory, _, name = path.rpartition(b"/")
    return directory, name
