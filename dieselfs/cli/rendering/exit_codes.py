"""Exit codes, and the table that gives each error of the three packages a code and a hint.

The codes 0 to 5 mean what they mean in rclone. Scripts may rely on the table. Any other code is a
failure too.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import chunkstore.errors as store
import dieselfs.errors as product
import metadata.errors as index
from dieselfs.cli.rendering.standard_streams import say
from metadata.url_secrets import redacted

PROGRAM: Final = "dlcmd"


class ExitCode(IntEnum):
    """The exit codes of `dlcmd`, each with its meaning."""

    OK = 0, "success"
    FAILURE = 1, "any other failure"
    USAGE = 2, "wrong usage, address, URL or profile"
    DIRECTORY_NOT_FOUND = 3, "dataset or directory not found"
    FILE_NOT_FOUND = 4, "file or snapshot not found"
    TEMPORARY = 5, "temporary: the store or the index does not answer; try again"
    PARTIAL = 6, "partial: some items failed, the others are done"
    INTEGRITY = 7, "integrity: damaged or foreign data was refused"
    CONFLICT = 8, "conflict: exists, stale or busy"
    REPAIRED = 9, "repaired: damage was repaired, or garbage was deleted"
    FOUND = 10, "found: something can be repaired or deleted; nothing was changed"
    INTERRUPTED = 130, "interrupted"
    BROKEN_PIPE = 141, ""

    meaning: str
    """The meaning as `--help` shows it; empty for a code that nobody sees."""

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member


_REBUILD: Final = "`dlcmd recover DATASET` repairs or rebuilds the index from the store"

# The hint is for messages that don't say what to do.
_HINTS: Final[dict[ExitCode, dict[type[BaseException], str]]] = {
    ExitCode.FAILURE: {
        store.ChunkStoreError: "",
        store.StoreFull: "free space, then run the same command again",
        store.Denied: "check the permissions of the store",
        store.BadSource: "correct the file, then run the same command again",
        index.MetadataError: "",
        index.IndexDenied: "check the user and the password in the index's URL",
        index.IndexEvicts: "set maxmemory-policy noeviction in its Redis server",
        product.DieselFSError: "",
        MemoryError: "use fewer --jobs",
    },
    ExitCode.USAGE: {
        store.InvalidPath: "rename the file",
        product.UsageError: "see `dlcmd --help`",
    },
    ExitCode.DIRECTORY_NOT_FOUND: {
        index.DatasetNotFound: "see `dlcmd dataset ls`; check --store and --index",
        product.DirectoryNotFound: "see `dlcmd ls` of the directory above",
    },
    ExitCode.FILE_NOT_FOUND: {
        store.NotFound: "check the name and --store",
        index.PathNotFound: "see `dlcmd ls`",
        product.SnapshotNotFound: "see `dlcmd snapshot ls`",
    },
    ExitCode.TEMPORARY: {
        store.Unavailable: "check --store and try again",
        index.IndexUnavailable: "check --index and that the server runs, then try again",
        product.SsdUnavailable: "check the disk, or name another folder with --ssd",
        product.RegistryUnavailable: "check --index and try again",
    },
    ExitCode.PARTIAL: {
        product.PartialFailure: "correct what is reported above, then run the same command again"
    },
    ExitCode.INTEGRITY: {
        store.Untrusted: "check the store, and proxies and caches in front of it",
        store.Corrupt: "restore this object from a copy of the store",
        index.RecordCorrupt: _REBUILD,
        index.IndexDamaged: _REBUILD,
        index.SnapshotRefused: "pull or create it again",
        product.HistoryDamaged: "",
    },
    ExitCode.CONFLICT: {
        store.AlreadyExists: "another writer was faster; run the same command again",
        index.PathConflict: "check with `dlcmd stat` what is there",
        index.IndexBehind: _REBUILD,
        index.SnapshotStale: "take a new one with `dlcmd snapshot create`, or use --refresh",
        product.MountpointBusy: "see `dlcmd mounts`",
        product.Conflict: "",
    },
}
_TABLE: Final = {kind: (code, hint) for code, of in _HINTS.items() for kind, hint in of.items()}
"""The exit code and the hint by class; the nearest class of an error decides."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REFUSED: Final = (errno.EACCES, errno.EROFS)

# By convention, a message that says what to do has a semicolon, a command, or a colon and a verb.
_VERBS: Final = (
    "(check|choose|correct|did|finish|free|list|make|name|pull|rebuild|restore|run|see|start|try"
    "|unmount|use|wait|write|add|give|remove) "
)
_NAMES_A_REMEDY = re.compile(rf"; |`dlcmd |check --|: {_VERBS}")
_REMEDY_AT_THE_END = re.compile(rf"[:;] (?={_VERBS})")


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
        own = getattr(error, "hint", None)
        if own is None:
            what, own = _parted(what, hint)
        return Failure(code, what, _one_line(str(own)), type(error).__name__)
    if sys.platform != "linux" and _lacks_linux(error):
        what = _one_line(f"this command needs Linux, and this is {sys.platform}: {error}")
        hint = "packing, listing, reading and checking a dataset works here"
        return Failure(ExitCode.FAILURE, what, hint, "NeedsLinux")
    if isinstance(error, OSError):
        return _explain_os_error(error)
    what = _one_line(f"internal error: {type(error).__name__}: {error}")
    hint = "run it again with --debug and report what it prints"
    return Failure(ExitCode.FAILURE, what, hint, type(error).__name__)


def _parted(message: str, fallback: str) -> tuple[str, str]:
    """Return what a message says has happened, and what it says to do, or else `fallback`."""
    if remedy := _REMEDY_AT_THE_END.search(message):
        return message[: remedy.start()], message[remedy.end() :]
    return message, "" if _NAMES_A_REMEDY.search(message) else fallback


def _lacks_linux(error: BaseException) -> bool:
    """Return True for a name, a system call or a file that another system than Linux lacks."""
    if isinstance(error, OSError):
        return str(error.filename).startswith(("/proc/", "/sys/"))
    return isinstance(error, AttributeError | ImportError)


def _explain_os_error(error: OSError) -> Failure:
    reason = error.strerror or str(error) or type(error).__name__
    what = f"{error.filename}: {reason}" if error.filename is not None else reason
    return Failure(ExitCode.FAILURE, _one_line(what), _advice(error), type(error).__name__)


def _advice(error: OSError) -> str:
    if error.errno in _FULL:
        return "free space, then run the same command again"
    if error.errno not in _REFUSED:
        return ""
    from dieselfs.config.user_folders import home_folder

    if os.access(home_folder(), os.W_OK):
        return ""
    return "set HOME to a folder of yours; defaults are below it"


def _one_line(text: str) -> str:
    """Return `text` on one line, without passwords, and with unprintable characters escaped."""
    flat = " ".join(redacted(text).split())
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in flat
    )


def report(failure: Failure, *, as_json: bool) -> None:
    """Print a failure as one line on stderr: as text for people, or as a JSON object."""
    text = f"{PROGRAM}: {failure}"
    if as_json:
        import json

        text = json.dumps(failure.as_record())
    say(text)
