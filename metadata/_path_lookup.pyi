"""The C extension behind `metadata.path_lookup`, its only user, which documents the calls."""

from collections.abc import Callable, Sequence

from typing_extensions import Buffer

class FileLookup:
    """The look-up of files by their paths in a snapshot's sections. Thread-safe.

    The sections are kept and must not change. Wherever they lie, the look-up waits for memory that
    is not in the processor's cache: `file` waits four times, one time after the other; `files`
    waits for many paths at once.
    """

    def __new__(
        cls,
        reach: int,
        digest: Callable[[bytes], int],
        *sections: Buffer,
    ) -> FileLookup:
        """`reach` and `sections` are as `metadata.path_lookup` passes them; `digest` returns the
        xxh3_64 of a path.

        The last three sections are not read but prefetched: a file's reader asks for them next.
        Raises `ValueError` unless the sections are aligned arrays of unsigned numbers, with the
        widths of docs/snapshot-format.md and with lengths that fit each other.
        """

    def file(self, path: str | bytes, /) -> int | None: ...
    def files(self, paths: Sequence[str | bytes], /) -> list[int | None]: ...
    def text(self, inodes: Buffer, /) -> bytes | None: ...
    def is_path_of(self, inode: int, path: str | bytes, /) -> bool: ...
