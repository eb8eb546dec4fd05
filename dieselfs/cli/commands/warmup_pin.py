"""`dlcmd warmup --pin-mount`: write, check or remove a pinned mount on the SSD of this node."""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING

from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import snapshot_record
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import counted
from dieselfs.cli.values.sizes import human_size

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.cache.ssd.settings import SsdSettings
    from metadata.snapshot import Snapshot


def pin(
    context: CommandContext,
    store: ObjectStore,
    snapshot: Snapshot,
    settings: SsdSettings,
    jobs: int | None,
) -> int:
    """Write the blob, or what is missing of it."""
    from dieselfs.cache.ssd.blob import JOBS
    from dieselfs.cache.ssd.pin import pin_mount

    name = f"{snapshot.dataset.name}@{snapshot.id}"
    with context.progress("pin mount", "chunks") as progress:
        progress.expect(snapshot.chunk_count, snapshot.total_bytes)
        report = pin_mount(snapshot, store, settings, progress.advance, jobs=jobs or JOBS)
    written = report.chunks - report.chunks_before
    wrote = (
        f"wrote {counted(written, 'chunk')} in {report.seconds:.1f} s; its mount is pinned, "
        f"{human_size(report.bytes)} at {report.paths[0]}"
    )
    context.output.done(
        {
            **snapshot_record(snapshot),
            "blob": [str(path) for path in report.paths],
            "blob_bytes": report.bytes,
            "chunks": report.chunks,
            "written": written,
            "seconds": round(report.seconds, 3),
        },
        f"{name}: {wrote if written else f'its mount is pinned already, at {report.paths[0]}'}",
    )
    return ExitCode.OK


def check(context: CommandContext, snapshot: Snapshot, settings: SsdSettings) -> int:
    """Compare every byte of the blob with the snapshot's hashes, and name the damaged files."""
    from dieselfs.cache.ssd.blob import check_blob, find_blob

    name = f"{snapshot.dataset.name}@{snapshot.id}"
    paths = find_blob(settings.folder, snapshot)
    damaged: list[int] = []
    if paths is not None:
        with context.progress("check", "chunks") as progress:
            progress.expect(snapshot.chunk_count, snapshot.total_bytes)
            damaged = check_blob(snapshot, paths, progress.advance)
    shown = [os.fsdecode(snapshot.path_of(inode)) for inode in damaged]
    output = context.output
    if output.json:
        output.record(
            {
                **snapshot_record(snapshot),
                "pinned": paths is not None,
                "files": snapshot.file_count,
                "damaged": shown,
            }
        )
    elif paths is None:
        output.line(f"{name}: its mount is not pinned in {settings.folder}, or not completely")
    else:
        for path in shown:
            output.line(f"damaged: {output.name(path)}")
        output.line(f"{name}: {len(damaged):,} of {counted(snapshot.file_count, 'file')} damaged")
        if damaged:
            ssd = f"--ssd {quote(os.fspath(settings.folder))}"
            output.note(
                f"write it again: dlcmd warmup --unpin-mount {name} {ssd}; "
                f"dlcmd warmup --pin-mount {name} {ssd}"
            )
    if paths is None:
        return ExitCode.FOUND
    return ExitCode.INTEGRITY if damaged else ExitCode.OK


def unpin(
    context: CommandContext, settings: SsdSettings, dataset: str, snapshot: Snapshot | None
) -> int:
    """Remove the blob of a snapshot, or of all snapshots of the dataset."""
    from dieselfs.cache.ssd.blob import remove_blob, remove_blobs

    if snapshot is None:
        freed = remove_blobs(settings.folder, dataset)
    else:
        freed = remove_blob(settings.folder, snapshot)
    name = dataset if snapshot is None else f"{dataset}@{snapshot.id}"
    unpinned = (
        f"unpinned, {human_size(freed)} of the SSD; what is mounted of it goes on, and keeps its "
        "space until it is unmounted"
    )
    context.output.done(
        {"dataset": dataset, "freed_bytes": freed},
        f"{name}: {unpinned if freed else f'no mount was pinned in {settings.folder}'}",
    )
    return ExitCode.OK
