"""The report of `dlcmd put`: its progress while it runs, and its summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from chunkstore.progress import Progress
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.output import Output, counted, printable
from dieselfs.cli.rendering.progress import Reached
from dieselfs.cli.rendering.upload_limit import throttled, upload_record
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress

if TYPE_CHECKING:
    from dieselfs.packing.put_request import PackProgress

SHOWN_FAILURES: Final = 20
"""The most failures, or links left out, that are named."""


def name_left_out(output: Output, reasons: Sequence[str]) -> None:
    """Note the links that were left out, each with its reason; the first 20 of them."""
    for reason in reasons[:SHOWN_FAILURES]:
        output.note(f"link left out: {printable(reason)}")
    if len(reasons) > SHOWN_FAILURES:
        output.note(f"… and {len(reasons) - SHOWN_FAILURES:,} more links left out")


class ShownProgress:
    """Turns counts since the start into steps of a progress bar.

    The bar begins at the first change: it has a thread, and the packing processes are forked
    before.
    """

    def __init__(self, begin: Callable[[], Progress], note: Callable[[str], None]) -> None:
        self._begin = begin
        self._note = note
        self._stopping = False
        self._shown: Progress | None = None
        self._expected = False

    def __call__(self, progress: PackProgress) -> None:
        if self._shown is None:
            self._shown = self._begin()
            self._reached = Reached(self._shown)
        if progress.stopping and not self._stopping:
            self._stopping = True
            self._note("committing what is stored; press Ctrl-C again to leave at once")
        if progress.walked and not self._expected:
            self._expected = True
            self._shown.expect(progress.files_found, 0)
        files = progress.files_committed + progress.files_unchanged + len(progress.failed)
        self._reached.files(files, progress.bytes_committed)


def _snapshot_record(progress: PackProgress) -> dict[str, Any]:
    """Return what JSON says of the snapshot that was published; null if there is none."""
    shown = progress.snapshot
    if shown is None:
        return {"snapshot": None, "snapshot_error": progress.unpublished or None}
    return {
        "snapshot": shown.snapshot_id,
        "snapshot_published": shown.is_new,
        "snapshot_bytes": shown.size_bytes,
        "snapshot_elapsed_s": round(shown.elapsed_s, 3),
        "snapshots_deleted": list(shown.deleted),
    }


def show_summary(
    context: CommandContext, address: DatasetAddress, progress: PackProgress, elapsed_s: float
) -> None:
    """Print the result of a put: one line and notes, or a JSON record."""
    output, files, chunks = context.output, progress.files_committed, progress.chunks_committed
    size_bytes = progress.bytes_committed
    unchanged = max(0, progress.files_unchanged - progress.files_reused)
    if output.json:
        output.record(
            {
                "files": files,
                "bytes": size_bytes,
                "chunks": chunks,
                "unchanged": unchanged,
                "reused": progress.files_reused,
                "repaired": progress.files_repaired,
                "deleted": progress.files_deleted,
                "failed": len(progress.failed),
                "special": len(progress.special),
                "links": len(progress.links),
                "outside": len(progress.outside),
                **upload_record(progress.uploads),
                "elapsed_s": round(elapsed_s, 3),
                "target": str(address),
                **_snapshot_record(progress),
            }
        )
        return
    for paths, kind, more in (
        (progress.special, "special file", " (sockets, pipes, devices)"),
        (progress.links, "symbolic link", ""),
    ):
        if paths:
            named = ", ".join(printable(os.fsdecode(path)) for path in paths[:3])
            rest = ", …" if len(paths) > 3 else ""
            output.note(f"left out {counted(len(paths), kind)}{more}: {named}{rest}")
    if output.quiet:
        return
    rate = files / elapsed_s if elapsed_s else 0
    apart = progress.chunks_of_directories
    where = f"in {counted(chunks - apart, 'chunk')}"
    if apart:
        where += f" and {apart} of directories alone"
    skipped = f", {unchanged:,} unchanged" if unchanged else ""
    if progress.files_reused:
        skipped += f", {progress.files_reused:,} in chunks that a killed put had stored"
    if progress.files_repaired:
        skipped += f", {progress.files_repaired:,} damaged in the store and repaired"
    if progress.files_deleted:
        skipped += f", {progress.files_deleted:,} deleted"
    if progress.chunks_retired:
        skipped += f", {counted(progress.chunks_retired, 'chunk')} put twice and retired"
    shown = progress.snapshot
    if shown is not None and shown.is_new:
        skipped += f", snapshot {shown.snapshot_id.partition('-')[0]} published"
    output.line(
        f"put {counted(files, 'file')}, {human_size(size_bytes)}, {where}{skipped}, "
        f"{elapsed_s:.1f} s, {rate:,.0f} files/s"
    )
    if line := throttled(progress.uploads):
        output.line(line)
    if sys.stdout.isatty():
        output.line(f"next: dlcmd mount dl://{address.dataset} MOUNTPOINT")
