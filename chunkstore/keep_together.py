"""The files that are kept together in one chunk: those of a sample, or of a directory.

The key of a sample is the path up to the first dot of its last component: `cat/0001.jpg` and
`cat/0001.seg.png` are parts of the sample `cat/0001`. Dots at the beginning of a name belong to the
key, so that `._0001.jpg`, which macOS leaves beside `0001.jpg`, is a sample of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Literal

KeepTogether = Literal["none", "sample", "directory"]
"""The files that share a chunk; the place in this list is the number in a dataset's record."""

KeyOf = Callable[[bytes], bytes]


def split_sample(path: bytes) -> tuple[bytes, bytes]:
    """Return the key of a path's sample, and the rest behind the dot: the part's extension."""
    name_at = path.rfind(b"/") + 1
    dots = len(path) - name_at - len(path[name_at:].lstrip(b"."))
    at = path.find(b".", name_at + dots)
    return (path, b"") if at < 0 else (path[:at], path[at + 1 :])


def sample_key(path: bytes) -> bytes:
    """Return the key of a path's sample."""
    return split_sample(path)[0]


def directory_of(path: bytes) -> bytes:
    """Return the path of the directory above."""
    return path.rpartition(b"/")[0]


KEYS: Final[dict[KeepTogether, KeyOf | None]] = {
    "none": None,
    "sample": sample_key,
    "directory": directory_of,
}
"""The function from a path to the key that files which stay together share."""


def gathered(paths: Iterable[bytes], key_of: KeyOf) -> list[bytes]:
    """Return the paths with those of one key together, at the place of the first of them."""
    groups: dict[bytes, list[bytes]] = {}
    for path in paths:
        groups.setdefault(key_of(path), []).append(path)
    return list(chain.from_iterable(groups.values()))


def whole_parts(
    paths: Sequence[bytes], at_least: int, at_most: int, key_of: KeyOf | None
) -> Iterator[Sequence[bytes]]:
    """Yield gathered paths in parts of `at_least`, which end where the key changes.

    A part of `at_most` ends anywhere. Without `key_of` all parts but the last have `at_least`. Of
    no paths there is one empty part.
    """
    start = 0
    if not paths:
        yield paths
    while start < len(paths):
        end = start + at_least
        if key_of is not None:
            most = min(len(paths), start + at_most)
            while end < most and key_of(paths[end]) == key_of(paths[end - 1]):
                end += 1
        yield paths[start:end]
        start = end
