"""The display of files and directories, and the loop over the arguments of a command."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from dieselfs.cli.rendering.exit_codes import ExitCode, explain
from dieselfs.cli.rendering.times import iso_time as iso_time
from dieselfs.cli.rendering.times import local_time as local_time
from dieselfs.errors import DieselFSError

if TYPE_CHECKING:
    from dieselfs.dataset.file_stat import FileStat
    from metadata.snapshot import Snapshot


_TYPES: Final = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "link": stat.S_IFLNK}


def entry_record(entry: FileStat) -> dict[str, Any]:
    """Return the JSON record of a file, directory or symbolic link."""
    record: dict[str, Any] = {
        "path": entry.path,
        "kind": entry.kind,
        "size": entry.size,
        "mode": f"{stat.S_IMODE(entry.mode):04o}",
        "mtime": iso_time(entry.mtime_ns),
        "mtime_ns": entry.mtime_ns,
    }
    if entry.kind != "directory":
        record |= {"chunk": entry.chunk, "offset": entry.offset, "xxh3": f"{entry.hash:016x}"}
    return record | {"generation": entry.generation or None}


def permissions(entry: FileStat) -> str:
    """Return the mode as `ls -l` shows it: -rw-r--r--."""
    return stat.filemode(_TYPES[entry.kind] | stat.S_IMODE(entry.mode))


def snapshot_record(snapshot: Snapshot) -> dict[str, str]:
    """Return the part of a JSON record that names a snapshot."""
    return {"dataset": snapshot.dataset.name, "snapshot": str(snapshot.id)}


def for_each(items: Iterable[str], action: Callable[[str], None], *, as_json: bool) -> int:
    """Call `action` for every item, even if some fail, and return the exit code.

    Each failure is reported at once. The code is `OK` if no item failed, `PARTIAL` if some failed,
    and that of the first failure if all failed.
    """
    from dieselfs.cli.rendering.exit_codes import report

    codes: list[ExitCode] = []
    for item in items:
        try:
            action(item)
            codes.append(ExitCode.OK)
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except _OURS as error:
            failure = explain(error)
            report(failure, as_json=as_json)
            codes.append(failure.code)
    failed = [code for code in codes if code]
    if failed and len(failed) < len(codes):
        return ExitCode.PARTIAL
    return failed[0] if failed else ExitCode.OK


def _our_errors() -> tuple[type[Exception], ...]:
    from chunkstore.errors import ChunkStoreError
    from metadata.errors import MetadataError

    return DieselFSError, ChunkStoreError, MetadataError, OSError


_OURS = _our_errors()
