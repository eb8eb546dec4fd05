"""The names that the file of `--files-from` lists."""

from __future__ import annotations

from typing import BinaryIO

from dieselfs.errors import LocalFileError, UsageError


def listed_names(file: BinaryIO, *, null: bool) -> list[bytes]:
    """Return the names that a file lists, one a line, or each with a NUL behind it.

    Raises `LocalFileError`, and `UsageError` for lines with a NUL, which no path has.
    """
    try:
        data = file.read()
    except OSError as error:
        name = "-" if file.fileno() == 0 else file.name
        raise LocalFileError(f"--files-from {name}: {error.strerror}") from error
    if not null and b"\0" in data:
        raise UsageError("the names of --files-from end with NUL, not with line breaks", "add -0")
    return data.split(b"\0" if null else b"\n")
