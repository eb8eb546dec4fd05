"""`dlcmd warmup`: bring a dataset's chunks onto the SSD, say how many are there, or let them go."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.address import Address, parse_address
from dieselfs.cli.exit_codes import ExitCode
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.mount_request import this_program
from dieselfs.cli.output import counted
from dieselfs.cli.sizes import human_size
from dieselfs.cli.ssd_flags import chosen_ssd, ssd_flags
from dieselfs.cli.verb import jobs_option, verb
from dieselfs.errors import LocalFileError, UsageError

if TYPE_CHECKING:
    from chunkstore.chunk_source import ChunkRef
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.ssd_tier import SsdSettings
    from metadata.snapshot import Snapshot


@verb(
    examples=[
        "dlcmd warmup imagenet",
        "dlcmd warmup --background imagenet",
        "dlcmd warmup --check imagenet",
        "dlcmd warmup imagenet@v2 --since v1",
        "dlcmd warmup --evict imagenet",
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT]")
@click.option("-b", "--background", is_flag=True, help="Return at once; say where the log is.")
@click.option("--check", is_flag=True, help="Only say how much is there.")
@click.option("--evict", is_flag=True, help="Let go of all that is there of the dataset.")
@click.option(
    "--since", metavar="SNAPSHOT", help="Only chunks that this older snapshot does not have."
)
@click.option(
    "--no-index", is_flag=True, help="Don't ask the index: take the newest snapshot known."
)
@ssd_flags
@jobs_option()
def warmup(
    invocation: Invocation,
    address: str,
    background: bool,
    check: bool,
    evict: bool,
    since: str | None,
    no_index: bool,
    ssd: str | None,
    ssd_size: int | None,
    jobs: int | None,
) -> int:
    """Bring the chunks of a dataset onto the SSD of this node, so that they are read from there.

    What is there already is not read again, so the same command goes on where it was stopped. Several at once share the work. Exit code 0: all is
    there; 6: there was not room for all; with --check 10: not all is there. Through the cache nodes of DIESELFS_RING, if it names any: so several nodes
    read the store once.
    """
    place = parse_address(address)
    if place.path:
        raise UsageError(f"{address}: only whole datasets are warmed", f"write {place.dataset}")
    if sum((background, check, evict)) > 1 or (evict and (since or place.snapshot)):
        raise UsageError(
            "--background, --check and --evict exclude each other, and --evict lets go of a whole dataset"
        )
    settings = chosen_ssd(invocation, ssd, ssd_size)
    if evict:
        from dieselfs.cli.cache import evict_dataset

        return evict_dataset(invocation, settings, place.dataset)
    with ExitStack() as stack:
        store = invocation.store()
        snapshot = stack.enter_context(_snapshot(invocation, store, place, no_index))
        older = None
        if since is not None:
            older = stack.enter_context(_older(invocation, store, place, since))
        if background:
            return _start(invocation, place, snapshot, settings, jobs, older)
        return _run(invocation, store, snapshot, older, settings, check=check, jobs=jobs)


def _run(
    invocation: Invocation,
    store: ObjectStore,
    snapshot: Snapshot,
    older: Snapshot | None,
    settings: SsdSettings,
    *,
    check: bool,
    jobs: int | None,
) -> int:
    from dieselfs.cachenodes.ring_options import ring_settings
    from dieselfs.cachenodes.ring_settings import RingOptions
    from dieselfs.cachenodes.ring_store import RingStore
    from dieselfs.ssd_warmup import JOBS, WarmUp, open_tier, wanted_chunks, warmth

    chunks = wanted_chunks(snapshot, older)
    if check:
        return _print_warmth(invocation, snapshot, settings, chunks)
    ring = ring_settings(RingOptions(), invocation.config)
    if ring is not None:
        store = RingStore(store, snapshot.dataset, chunks, ring)
    work = WarmUp(store, snapshot.dataset, settings, chunks)
    with invocation.progress("warmup", "chunks") as progress:
        progress.expect(work.missing, work.missing_bytes)
        report = work.run(progress.advance, jobs or JOBS)
    found = warmth(open_tier(settings), snapshot.dataset, chunks)
    name = f"{snapshot.dataset.name}@{snapshot.id}"
    rate = report.brought_bytes / max(report.seconds, 1e-9)
    if invocation.output.json:
        invocation.output.record(
            {
                "dataset": snapshot.dataset.name,
                "snapshot": str(snapshot.id),
                "chunks": found.chunks,
                "bytes": found.bytes,
                "held_chunks": found.held_chunks,
                "held_bytes": found.held_bytes,
                "brought": report.brought,
                "brought_bytes": report.brought_bytes,
                "by_others": report.by_others,
                "no_room": report.no_room,
                "seconds": round(report.seconds, 3),
                "bytes_per_s": round(rate),
            }
        )
    else:
        others = f", {report.by_others:,} by others" if report.by_others else ""
        invocation.output.note(
            f"{name}: brought {counted(report.brought, 'chunk')}, {human_size(report.brought_bytes)}"
            f" ({human_size(rate)}/s){others}; on the SSD now: {found.held_chunks:,} of {counted(found.chunks, 'chunk')}"
        )
        if report.no_room:
            invocation.output.note(
                f"there was no room for {counted(report.no_room, 'chunk')}: see `dlcmd cache ls`, or give it more with --ssd-size"
            )
    return ExitCode.OK if found.is_all else ExitCode.PARTIAL


def _print_warmth(
    invocation: Invocation, snapshot: Snapshot, settings: SsdSettings, chunks: Sequence[ChunkRef]
) -> int:
    from dieselfs.ssd_warmup import open_tier, warmth

    found = warmth(open_tier(settings), snapshot.dataset, chunks)
    if invocation.output.json:
        invocation.output.record(
            {
                "dataset": snapshot.dataset.name,
                "snapshot": str(snapshot.id),
                "chunks": found.chunks,
                "bytes": found.bytes,
                "held_chunks": found.held_chunks,
                "held_bytes": found.held_bytes,
            }
        )
    else:
        share = f"{found.held_bytes / found.bytes:.1%}" if found.bytes else "100%"
        invocation.output.line(
            f"{snapshot.dataset.name}@{snapshot.id}: {found.held_chunks:,} of {counted(found.chunks, 'chunk')}, "
            f"{human_size(found.held_bytes)} of {human_size(found.bytes)} ({share}) on the SSD"
        )
    return ExitCode.OK if found.is_all else ExitCode.FOUND


def _snapshot(
    invocation: Invocation, store: ObjectStore, place: Address, no_index: bool
) -> Snapshot:
    from dieselfs.cli import snapshot_choice
    from dieselfs.cli.snapshot import create_snapshot
    from dieselfs.errors import SnapshotNotFound
    from metadata.errors import SnapshotRefused, SnapshotStale
    from metadata.snapshot import Snapshot

    folder, name = invocation.snapshot_folder, place.dataset
    if place.snapshot:
        return Snapshot.open(snapshot_choice.find_snapshot(place.snapshot, name, folder, store))
    if no_index:
        return Snapshot.open(snapshot_choice.newest_known(name, folder, store))
    with invocation.client(place) as client:
        try:
            path = snapshot_choice.newest_fresh(name, folder, store, client.dataset.index)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused) as error:
            invocation.output.note(f"{str(error).partition(': ')[0]}: making a new one")
            path = create_snapshot(invocation, client.dataset)
        return Snapshot.open(path)


def _older(invocation: Invocation, store: ObjectStore, place: Address, which: str) -> Snapshot:
    from dieselfs.cli.snapshot_choice import find_snapshot
    from metadata.snapshot import Snapshot

    return Snapshot.open(find_snapshot(which, place.dataset, invocation.snapshot_folder, store))


def _start(
    invocation: Invocation,
    place: Address,
    snapshot: Snapshot,
    settings: SsdSettings,
    jobs: int | None,
    older: Snapshot | None,
) -> int:
    """The same in a process of its own, which is told what was chosen."""
    command = [*this_program(), "warmup", "--ssd", os.fspath(settings.folder)]
    for place_ in (invocation.config.store, invocation.config.index):
        command += [place_.origin, place_.value] if place_.origin.startswith("--") else []
    command += ["--profile", invocation.profile] if invocation.profile else []
    if settings.budget_bytes is not None:
        command += ["--ssd-size", str(settings.budget_bytes)]
    command += [] if jobs is None else ["--jobs", str(jobs)]
    command += [] if older is None else ["--since", str(older.id)]
    command += ["--", f"{place.dataset}@{snapshot.id}"]
    log_file = _log_file(place.dataset)
    try:
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise LocalFileError(f"{error.filename or log_file}: {error.strerror}") from error
    if invocation.output.json:
        invocation.output.record({"pid": process.pid, "log": str(log_file)})
    else:
        invocation.output.note(
            f"warming {place.dataset}@{snapshot.id} in the background (process {process.pid}); log: {log_file}; "
            f"`dlcmd warmup --check {place.dataset}` says how far it is"
        )
    process.returncode = 0  # it is not waited for
    return ExitCode.OK


def _log_file(dataset: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "dieselfs", f"warmup-{dataset}.log")
