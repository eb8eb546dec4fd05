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
        reach: int,
        digest: Callable[[bytes], int],
        *sections: Buffer,
    ) -> FileLookup:
        """`reach` and `sections` are as `metadata.path_lookup` passes them, `digest` is the xxh3_64 of a path. The last three sections are not read:
        what a file's reader asks for next is put on its way to the processor. `ValueError` if the sections' lengths do not fit each other.
        """

    def file(self, path: str | bytes, /) -> int | None: ...
    def files(self, paths: Sequence[str | bytes], /) -> list[int | None]: ...
    def is_path_of(self, inode: int, path: str | bytes, /) -> bool: ...
