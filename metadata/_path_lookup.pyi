"""The C extension behind `metadata.path_lookup`, which is its only user and says what the calls mean."""

from collections.abc import Callable, Sequence

from typing_extensions import Buffer

class FileLookup:
    """Finds files by their paths in a snapshot's sections, which are kept and must not change. Thread-safe.

    Wherever the sections lie, memory that is not in the processor's cache is waited for: by `file` four times, one after the other; by `files`
    for many paths at once.
    """

    def __new__(
        cls,
        file_index: Buffer,
        parent: Buffer,
        name_at: Buffer,
        name_bytes: Buffer,
        names: Buffer,
        directory_path_at: Buffer,
        directory_paths: Buffer,
        reach: int,
        digest: Callable[[bytes], int],
        /,
    ) -> FileLookup:
        """`digest` is the xxh3_64 of a path. `ValueError` if the sections' lengths do not fit each other."""

    def file(self, path: bytes, /) -> int | None: ...
    def files(self, paths: Sequence[bytes], /) -> list[int | None]: ...
    def is_path_of(self, inode: int, path: bytes, /) -> bool: ...
