"""The secret that the nodes of a task, or of a cache cluster and its clients, prove to each other.

A task's secret comes in the environment (`DIESELFS_TASK_SECRET`) or in a file that only its owner
can access (mode 0600), never in arguments, logs or Redis. A cache cluster's secret comes likewise,
in `DIESELFS_CACHE_CLUSTER_SECRET`. Its bytes are those of the text, without white space around it:
hexadecimal digits are not read as a number, so any text will do.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final

from dieselfs.config import former_names
from dieselfs.errors import Conflict, LocalFileError, UsageError

VARIABLE: Final = "DIESELFS_TASK_SECRET"
CLUSTER_SECRET_VARIABLE: Final = "DIESELFS_CACHE_CLUSTER_SECRET"
FILE_VARIABLE: Final = "DIESELFS_TASK_SECRET_FILE"
MIN_BYTES: Final = 16
MAX_BYTES: Final = 4096

_MAKE_ONE: Final = "make one with `dlcmd task secret FILE`, and copy it to all nodes"


@dataclass(frozen=True, slots=True)
class TaskSecret:
    """A secret. It compares by value, and its representation shows nothing."""

    value: bytes = field(repr=False)

    def proof(self, role: bytes, transcript: bytes) -> bytes:
        """Return 32 bytes (HMAC-SHA256) that prove the secret for this role and transcript."""
        return hmac.digest(self.value, role + b"\0" + transcript, "sha256")

    @classmethod
    def load(
        cls, environment: Mapping[str, str], file: Path | None, variable: str = VARIABLE
    ) -> TaskSecret | None:
        """Return the secret of `file`, else of `variable`, else of the file that a variable names.

        The last variable is `variable` with `_FILE` behind it. None if none of these is given.
        Raises `UsageError` if the value is no secret, or not kept secret.
        """
        if file is None and (value := former_names.variable(environment, variable)):
            return _checked(os.fsencode(value), variable)
        if file is None and (value := former_names.variable(environment, f"{variable}_FILE")):
            file = Path(value)
        return None if file is None else read_secret_file(file)


def read_secret_file(path: Path) -> TaskSecret:
    """Read a secret from a file.

    Raises `UsageError` unless it is a regular file of this user's that no other user can read or
    write.
    """
    # Refuse a link, which another user could redirect, and never wait for a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
        try:
            _check_file(path, os.fstat(descriptor))
            return _checked(os.read(descriptor, MAX_BYTES + 1), str(path))
        finally:
            os.close(descriptor)
    except OSError as error:
        what = "is a link" if path.is_symlink() else error.strerror
        raise UsageError(f"the secret {path}: {what}", _MAKE_ONE) from error


def make_secret_file(path: Path) -> None:
    """Create a file of mode 0600 with a new secret of 256 bits, as 64 hexadecimal digits.

    Raises `Conflict` if something of that name exists, `LocalFileError`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise Conflict(f"{path} exists", "choose another name, or remove it") from None
    except OSError as error:
        raise LocalFileError(f"cannot write {path}: {error.strerror}") from error
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(os.urandom(32).hex() + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LocalFileError(f"cannot read {path}: {error.strerror}") from error


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"the secret {path} is not a regular file", _MAKE_ONE)
    if found.st_uid != os.geteuid():
        raise UsageError(
            f"the secret {path} belongs to another user",
            "copy it to a file of your own with mode 0600",
        )
    if found.st_mode & 0o077:
        raise UsageError(
            f"others may read or change the secret {path}", f"chmod 600 {quote(str(path))}"
        )


def _checked(text: bytes, source: str) -> TaskSecret:
    """Return the secret in a text. An error never shows the text."""
    if len(text) > MAX_BYTES:
        raise UsageError(f"the secret in {source} is longer than {MAX_BYTES} bytes")
    value = text.strip()
    if len(value) < MIN_BYTES:
        raise UsageError(f"the secret in {source} is shorter than {MIN_BYTES} bytes", _MAKE_ONE)
    return TaskSecret(value)
