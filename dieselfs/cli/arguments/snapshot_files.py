"""The snapshot file that an argument of a `dlcmd snapshot` command means."""

from __future__ import annotations

from pathlib import Path

from dieselfs.cli.command_context import CommandContext
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.errors import LocalFileError, UsageError


def local_file(context: CommandContext, which: str) -> Path:
    """Return the file that is named, or the local file of a snapshot, pulled if it is not here.

    Raises `LocalFileError` for a file that does not exist.
    """
    from dieselfs.snapshots.snapshot_choice import find_snapshot, newest_known

    path = Path(which)
    if path.is_file():
        return path
    if which.endswith(".snapshot") or ("/" in which and "://" not in which):
        raise LocalFileError(f"{which}: no such file", "see `dlcmd snapshot ls DATASET`")
    address, folder = without_path(which), context.snapshot_folder
    if address.snapshot:
        return find_snapshot(address.snapshot, address.dataset, folder, context.store())
    return newest_known(address.dataset, folder, context.store())


def without_path(which: str) -> DatasetAddress:
    """Return the address; raise `UsageError` if it names a path."""
    address = parse_address(which)
    if address.path:
        raise UsageError(f"{which}: snapshots are of whole datasets", f"write {address.dataset}")
    return address


def named(which: str) -> tuple[str, str]:
    """Return the dataset and the snapshot of an address; raise `UsageError` if one is missing."""
    address = without_path(which)
    if not address.snapshot:
        raise UsageError(f"{which} names no snapshot", f"write {address.dataset}@ID")
    return address.dataset, address.snapshot
