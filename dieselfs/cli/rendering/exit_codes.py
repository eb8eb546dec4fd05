"""Exit codes, and the table that gives each error of the three packages a code and a hint.

The codes 0 to 5 mean what they mean in rclone. Scripts may rely on the table. Any other code is a
failure too.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import chunkstore.errors as store
import dieselfs.errors as product
import metadata.errors as index
from dieselfs.config import redacted

PROGRAM: Final = "dlcmd"


class ExitCode(IntEnum):
    """The exit codes of `dlcmd`; `MEANINGS` explains them."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    DIRECTORY_NOT_FOUND = 3
    FILE_NOT_FOUND = 4
    TEMPORARY = 5
    PARTIAL = 6
    INTEGRITY = 7
    CONFLICT = 8
    REPAIRED = 9
    FOUND = 10
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: Final = {
    ExitCode.OK: "success",
    ExitCode.FAILURE: "any other failure",
    ExitCode.USAGE: "wrong usage, address, URL or profile",
    ExitCode.DIRECTORY_NOT_FOUND: "dataset or directory not found",
    ExitCode.FILE_NOT_FOUND: "file or snapshot not found",
    ExitCode.TEMPORARY: "temporary: the store or the index does not answer; try again",
    ExitCode.PARTIAL: "partial: some items failed, the others are done",
    ExitCode.INTEGRITY: "integrity: damaged or foreign data was refused",
    ExitCode.CONFLICT: "conflict: exists, stale or busy",
    ExitCode.REPAIRED: "repaired: damage was repaired, or garbage was deleted",
    ExitCode.FOUND: "found: something can be repaired or deleted; nothing was changed",
    ExitCode.INTERRUPTED: "interrupted",
}

_REBUILD: Final = "`dlcmd recover DATASET` repairs or rebuilds the index from the store"

# The nearest class of an error decides. The hint is for messages that don't say what to do.
_TABLE: Final[dict[type[BaseException], tuple[ExitCode, str]]] = {
    store.Unavailable: (ExitCode.TEMPORARY, "check --store and try again"),
    store.Corrupt: (ExitCode.INTEGRITY, "restore this object from a copy of the store"),
    store.NotFound: (ExitCode.FILE_NOT_FOUND, "check the name and --store"),
    store.AlreadyExists: (
        ExitCode.CONFLICT,
        "another writer was faster; run the same command again",
    ),
    store.StoreFull: (ExitCode.FAILURE, "free space, then run the same command again"),
    store.Denied: (ExitCode.FAILURE, "check the permissions of the store"),
    store.BadSource: (ExitCode.FAILURE, "correct the file, then run the same command again"),
    store.InvalidPath: (ExitCode.USAGE, "rename the file"),
    index.IndexUnavailable: (
        ExitCode.TEMPORARY,
        "check --index and that the server runs, then try again",
    ),
    index.RecordCorrupt: (ExitCode.INTEGRITY, _REBUILD),
    index.DatasetNotFound: (
        ExitCode.DIRECTORY_NOT_FOUND,
        "see `dlcmd dataset ls`; check --store and --index",
    ),
    index.PathNotFound: (ExitCode.FILE_NOT_FOUND, "see `dlcmd ls`"),
    index.PathConflict: (ExitCode.CONFLICT, "check with `dlcmd stat` what is there"),
    index.IndexBehind: (ExitCode.CONFLICT, _REBUILD),
    index.SnapshotRefused: (ExitCode.INTEGRITY, "pull or create it again"),
    index.SnapshotStale: (
        ExitCode.CONFLICT,
        "take a new one with `dlcmd snapshot create`, or use --refresh",
    ),
    product.UsageError: (ExitCode.USAGE, "see `dlcmd --help`"),
    product.DirectoryNotFound: (
        ExitCode.DIRECTORY_NOT_FOUND,
        "see `dlcmd ls` of the directory above",
    ),
    product.SnapshotNotFound: (ExitCode.FILE_NOT_FOUND, "see `dlcmd snapshot ls`"),
    product.SsdUnavailable: (
        ExitCode.TEMPORARY,
        "check the disk, or name another folder with --ssd",
    ),
    product.MountpointBusy: (ExitCode.CONFLICT, "see `dlcmd mounts`"),
    product.RegistryUnavailable: (ExitCode.TEMPORARY, "check --index and try again"),
    product.HistoryDamaged: (ExitCode.INTEGRITY, ""),
    product.Conflict: (ExitCode.CONFLICT, ""),
    product.PartialFailure: (
        ExitCode.PARTIAL,
        "correct what is reported above, then run the same command again",
    ),
    product.DieselFSError: (ExitCode.FAILURE, ""),
    index.MetadataError: (ExitCode.FAILURE, ""),
    store.ChunkStoreError: (ExitCode.FAILURE, ""),
    MemoryError: (ExitCode.FAILURE, "use fewer --jobs"),
}
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

# By convention, a message that says what to do has a semicolon, a command, or a colon and a verb.
_NAMES_A_REMEDY = re.compile(
    r"; |`dlcmd |check --|: (check|use|run|write|make|pull|free|see|start|add|name|unmount) "
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the user sees it."""

    code: ExitCode
    what: str
    hint: str
    kind: str
    """The name of the error's class, for programs."""

    def __str__(self) -> str:
        return f"{self.what}: {self.hint}" if self.hint else self.what

    def as_record(self) -> dict[str, object]:
        """Return the JSON record of the failure."""
        shown = {"error": self.kind, "message": self.what, "hint": self.hint}
        return {**shown, "exit_code": int(self.code)}


def explain(error: BaseException) -> Failure:
    """Return the exit code and one line for any error, expected or not."""
    for kind in filter(_TABLE.__contains__, type(error).__mro__):
        code, hint = _TABLE[kind]
        what = _one_line(str(error)) or kind.__name__
        return Failure(code, what, _hint(error, hint), type(error).__name__)
    if isinstance(error, OSError):
        return _explain_os_error(error)
    what = _one_line(f"internal error: {type(error).__name__}: {error}")
    hint = "run it again with --debug and report what it prints"
    return Failure(ExitCode.FAILURE, what, hint, type(error).__name__)


def _hint(error: BaseException, fallback: str) -> str:
    own = getattr(error, "hint", None)
    if own is not None:
        return _one_line(str(own))
    return "" if _NAMES_A_REMEDY.search(str(error)) else fallback


def _explain_os_error(error: OSError) -> Failure:
    reason = error.strerror or str(error) or type(error).__name__
    what = f"{error.filename}: {reason}" if error.filename is not None else reason
    hint = "free space, then run the same command again" if error.errno in _FULL else ""
    return Failure(ExitCode.FAILURE, _one_line(what), hint, type(error).__name__)


def _one_line(text: str) -> str:
    """Return `text` on one line, without passwords, and with unprintable characters escaped."""
    flat = " ".join(redacted(text).split())
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in flat
    )


def report(failure: Failure, *, as_json: bool) -> None:
    """Print a failure as one line on stderr: as text for people, or as a JSON object."""
    text = json.dumps(failure.as_record()) if as_json else f"{PROGRAM}: {failure}"
    print(text.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
