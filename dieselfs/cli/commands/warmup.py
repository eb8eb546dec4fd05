"""`dlcmd warmup`: load a dataset, or a part, onto the SSD, print how much is there, or evict it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, BinaryIO

import click

from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cli.arguments.option_groups import cache_cluster_options
from dieselfs.cli.arguments.ssd_flags import chosen_ssd, configured_ssd, ssd_flags
from dieselfs.cli.command import command, dry_run_option, jobs_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.commands import warmup_pin
from dieselfs.cli.commands.warmup_background import start_in_background
from dieselfs.cli.commands.warmup_selection import Selection
from dieselfs.cli.rendering.entries import snapshot_record
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import counted, picked
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.chunk_source import ChunkRef
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.cache.cluster.settings import CacheClusterSettings
    from dieselfs.cache.ssd.settings import SsdSettings
    from dieselfs.cache.warmup.report import WarmUpReport
    from dieselfs.cache.warmup.ssd_warmup import Warmth
    from dieselfs.cache.warmup.warm_up import WarmUp
    from metadata.snapshot import Snapshot


@command(
    examples=[
        "dlcmd warmup imagenet",
        "dlcmd warmup --background imagenet",
        "dlcmd warmup --check imagenet",
        "dlcmd warmup imagenet@v2 --since v1",
        "dlcmd warmup dl://imagenet/train/n01440764",
        "dlcmd shuffle imagenet --epoch 4 | head -n 50000 | dlcmd warmup imagenet --files-from -",
        "dlcmd warmup imagenet --shuffle seed=1,epoch=4",
        "dlcmd warmup --evict imagenet",
        "dlcmd warmup --pin-mount imagenet",
        "dlcmd warmup --pin-mount --check imagenet",
        "dlcmd warmup --unpin-mount imagenet",
        (
            "dlcmd warmup imagenet --ssd none --cache-cluster redis "
            "--cache-cluster-secret-file cluster.secret"
        ),
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT][:PATH]")
@click.option(
    "--files-from",
    type=click.File("rb"),
    metavar="FILE",
    help="Load the chunks of the files and directories that this file lists, one a line, below "
    "PATH; - reads standard input.",
)
@click.option("-0", "--null", is_flag=True, help="Names of --files-from end with NUL.")
@click.option(
    "--shuffle",
    metavar="ORDER",
    help="Load the chunks of an epoch in the order of `dlcmd shuffle`, as far as there is room: "
    "seed=1,epoch=0,group=100,rank=0,world=1.",
)
@click.option(
    "-b",
    "--background",
    is_flag=True,
    help="Return at once; print where the log is, and how to stop it.",
)
@click.option("--check", is_flag=True, help="Only print how much is there.")
@click.option("--evict", is_flag=True, help="Evict all that is there of the dataset.")
@click.option(
    "--pin-mount",
    is_flag=True,
    help="Write all files as one local file, over which `dlcmd mount` needs no daemon; "
    "with --check: compare that file, byte by byte.",
)
@click.option("--unpin-mount", is_flag=True, help="Remove the file of --pin-mount.")
@click.option(
    "--since", metavar="SNAPSHOT", help="Load only chunks that this older snapshot does not have."
)
@click.option(
    "--no-index", is_flag=True, help="Don't ask the index; take the newest snapshot known."
)
@ssd_flags
@cache_cluster_options
@jobs_option()
@dry_run_option
def warmup(
    context: CommandContext,
    address: str,
    files_from: BinaryIO | None,
    null: bool,
    shuffle: str | None,
    background: bool,
    check: bool,
    evict: bool,
    pin_mount: bool,
    unpin_mount: bool,
    since: str | None,
    no_index: bool,
    ssd: str | None,
    ssd_size: int | None,
    cache_cluster: str | None,
    cache_cluster_secret_file: str | None,
    jobs: int | None,
    dry_run: bool,
) -> int:
    """Load the chunks of a dataset, or of a part of it, onto the SSD of this node.

    A part is a file or directory (DATASET:PATH or dl://DATASET/PATH), a list of names, or the order
    of an epoch. Whole chunks are loaded, which have other files too: a directory of a dataset that
    was packed by `scatter` may be in all of them.

    Chunks that are there are not read again, so the same command goes on where it was stopped, and
    several at once share the work. With a cache cluster, given or configured, chunks come through
    its cache nodes, so that several nodes read the store once. With a cache cluster and no SSD of
    this node, only the SSDs of the cache cluster are filled.

    The exit code is 0 if all chunks are there, and 6 if there was no room for all or some could not
    be fetched. With --check it is 10 if some are missing, and 7 if a pinned mount is damaged.

    --pin-mount writes the content of one snapshot, aligned to blocks, into the SSD's folder. As
    root, `dlcmd mount` with that SSD then mounts it without a daemon and without the store. The
    file counts against --ssd-size. A mount that uses it goes on when it is removed.
    """
    place = parse_address(address)
    selection = Selection.parse(place, files_from, shuffle, null=null)
    if selection.is_part and (evict or pin_mount or unpin_mount):
        raise UsageError(
            "--evict, --pin-mount and --unpin-mount are for whole datasets",
            f"write {place.dataset}",
        )
    if dry_run and (background or check or evict or pin_mount or unpin_mount):
        raise UsageError("--dry-run only prints what would be loaded", "leave out the others")
    if sum((background, check, evict)) > 1 or (evict and (since or place.snapshot)):
        raise UsageError(
            "--background, --check and --evict exclude each other, and --evict evicts a whole "
            "dataset",
            "see `dlcmd warmup --help`",
        )
    if (pin_mount or unpin_mount) and (background or evict or since or (pin_mount and unpin_mount)):
        raise UsageError(
            "--pin-mount can be combined with --check alone, and --unpin-mount with neither",
            "see `dlcmd warmup --help`",
        )
    if unpin_mount and check:
        raise UsageError("--unpin-mount and --check exclude each other", "give one of them")
    options = CacheClusterOptions(cache_cluster, cache_cluster_secret_file)
    context = context.shared(place.dataset)
    if pin_mount or unpin_mount:
        settings = chosen_ssd(context, ssd, ssd_size, only_looks=check or unpin_mount)
        return _pin(context, place, settings, no_index, jobs, check=check, removes=unpin_mount)
    from dieselfs.cache.cluster.options import cache_cluster_settings

    own = configured_ssd(context, ssd, ssd_size, only_looks=check or evict or dry_run)
    run = _WarmUpRun(context, own, cache_cluster_settings(options, context.config), jobs, dry_run)
    run.check_target()
    if evict:
        from dieselfs.cli.commands.cache import evict_dataset

        return evict_dataset(context, run.own_ssd("evict"), place.dataset)
    from dieselfs.snapshots.snapshot_choice import find_snapshot
    from metadata.snapshot import Snapshot

    with ExitStack() as stack:
        store = context.store()
        snapshot = stack.enter_context(_snapshot(context, store, place, no_index))
        older = None
        if since is not None:
            folder = context.snapshot_folder
            path = find_snapshot(since, place.dataset, folder, store)
            older = stack.enter_context(Snapshot.open(path))
        if background:
            return start_in_background(
                context, place.dataset, snapshot, run.ssd, options, jobs, older, selection
            )
        from dieselfs.cache.warmup.wanted_chunks import without_chunks_of

        chunks = without_chunks_of(older, selection.chunks(snapshot))
        if check:
            return run.check(snapshot, chunks)
        load = run.fill_cluster if run.ssd is None else run.fill_ssd
        return load(store, snapshot, chunks)


def _pin(
    context: CommandContext,
    place: DatasetAddress,
    settings: SsdSettings,
    no_index: bool,
    jobs: int | None,
    *,
    check: bool,
    removes: bool,
) -> int:
    """Write, check or remove a pinned mount, as --pin-mount and --unpin-mount ask."""
    if removes and not place.snapshot:
        return warmup_pin.unpin(context, settings, place.dataset, None)
    store = context.store()
    with _snapshot(context, store, place, no_index) as snapshot:
        if removes:
            return warmup_pin.unpin(context, settings, place.dataset, snapshot)
        if check:
            return warmup_pin.check(context, snapshot, settings)
        return warmup_pin.pin(context, store, snapshot, settings, jobs)


@dataclass(frozen=True, slots=True)
class _WarmUpRun:
    """A warm-up of the SSD, the cache cluster, or both, with its output."""

    context: CommandContext
    ssd: SsdSettings | None
    cache_cluster: CacheClusterSettings | None
    jobs: int | None
    dry_run: bool

    def check_target(self) -> None:
        """Raise `UsageError` if there is nothing to fill."""
        if self.ssd is None and self.cache_cluster is None:
            raise UsageError(
                "no SSD tier is configured, and no cache cluster",
                "add --ssd FOLDER, or set DIESELFS_SSD or `ssd` of a profile; or name cache "
                "nodes: --cache-cluster",
            )

    def own_ssd(self, what: str) -> SsdSettings:
        """Return this node's SSD; raise `UsageError` if there is only a cache cluster."""
        if self.ssd is not None:
            return self.ssd
        if what == "check":
            raise UsageError(
                "cannot check a cache cluster: its nodes do not report which chunks they cache",
                "see `dlcmd cluster` for the bytes of each, or name an SSD of this node: "
                "--ssd FOLDER",
            )
        raise UsageError(
            "cannot evict from a cache cluster: each cache node evicts from its own SSD",
            "run `dlcmd cache evict DATASET --ssd FOLDER` on each, or name an SSD of this "
            "node: --ssd FOLDER",
        )

    def check(self, snapshot: Snapshot, chunks: Sequence[ChunkRef]) -> int:
        """Print how much of the chunks is on the SSD."""
        from dieselfs.cache.ssd.settings import open_tier
        from dieselfs.cache.warmup.ssd_warmup import warmth

        found = warmth(open_tier(self.own_ssd("check")), snapshot.dataset, chunks)
        share = f"{found.cached_bytes / found.bytes:.1%}" if found.bytes else "100%"
        self.context.output.result(
            {**snapshot_record(snapshot), **asdict(found)},
            f"{snapshot.dataset.name}@{snapshot.id}: {found.cached_chunks:,} of "
            f"{counted(found.chunks, 'chunk')}, {human_size(found.cached_bytes)} of "
            f"{human_size(found.bytes)} ({share}) on the SSD",
        )
        return ExitCode.OK if found.is_all else ExitCode.FOUND

    def fill_ssd(self, store: ObjectStore, snapshot: Snapshot, chunks: Sequence[ChunkRef]) -> int:
        """Load the chunks onto the SSD, from the store or the cache cluster."""
        from dieselfs.cache.read_settings import ReadSettings
        from dieselfs.cache.read_stack import below_ssd
        from dieselfs.cache.ssd.settings import open_tier
        from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up, warmth
        from dieselfs.snapshots.expected_files import ExpectedFiles

        settings = self.own_ssd("fill")
        stack = ReadSettings(ssd=settings, cache_cluster=self.cache_cluster)
        filling = below_ssd(store, snapshot.dataset, stack, ExpectedFiles(snapshot))
        work = ssd_warm_up(filling, snapshot.dataset, settings, chunks)
        if self.dry_run:
            return self._plan(snapshot, work)
        with self.context.progress("warmup", "chunks") as progress:
            progress.expect(work.missing, work.missing_bytes)
            report = work.run(progress.advance, self.jobs)
        found = warmth(open_tier(settings), snapshot.dataset, chunks)
        rate = report.loaded_bytes / max(report.seconds, 1e-9)
        others = f", {report.by_others:,} by others" if report.by_others else ""
        self.context.output.done(
            {
                **snapshot_record(snapshot),
                **asdict(found),
                **picked(report, "cached_before loaded loaded_bytes by_others no_room failed"),
                "refused": [asdict(of) for of in report.refused],
                "seconds": round(report.seconds, 3),
                "bytes_per_s": round(rate),
            },
            f"{snapshot.dataset.name}@{snapshot.id}: loaded {counted(report.loaded, 'chunk')}, "
            f"{human_size(report.loaded_bytes)} ({human_size(rate)}/s){others}; on the SSD now: "
            f"{found.cached_chunks:,} of {counted(found.chunks, 'chunk')}",
            *_why_not_all(report, snapshot.dataset.name, found),
        )
        return ExitCode.OK if found.is_all else ExitCode.PARTIAL

    def fill_cluster(
        self, store: ObjectStore, snapshot: Snapshot, chunks: Sequence[ChunkRef]
    ) -> int:
        """Ask the owner of each chunk for it; this node keeps nothing."""
        from dieselfs.cache.warmup.cluster_warmup import ClusterTarget, warm_cluster
        from dieselfs.cache.warmup.warm_up import WarmUp

        assert self.cache_cluster is not None
        target = ClusterTarget(store, snapshot, chunks, self.cache_cluster)
        work = WarmUp(target, chunks)
        if self.dry_run:
            return self._plan(snapshot, work)
        with self.context.progress("warmup", "chunks") as progress:
            progress.expect(work.missing, work.missing_bytes)
            report, nodes = warm_cluster(target, work, progress.advance, self.jobs)
        fits = report.bytes <= nodes.ssd_bytes
        rate = nodes.from_store_bytes / max(report.seconds, 1e-9)
        too_small = (
            "the cache cluster's SSDs in service have room for only "
            f"{human_size(nodes.ssd_bytes)}, so some chunks will be evicted: see `dlcmd cluster`"
        )
        self.context.output.done(
            {
                **snapshot_record(snapshot),
                **picked(report, "chunks bytes"),
                "given": report.loaded,
                "given_bytes": report.loaded_bytes,
                **asdict(nodes),
                "refused": [asdict(of) for of in report.refused],
                "seconds": round(report.seconds, 3),
            },
            f"{snapshot.dataset.name}@{snapshot.id}: the cache nodes cache, or have loaded, "
            f"{report.loaded:,} of {counted(report.chunks, 'chunk')}, "
            f"{human_size(report.loaded_bytes)}; they read {human_size(nodes.from_store_bytes)} "
            f"from the store ({human_size(rate)}/s)",
            *(f"{counted(of.chunks, 'chunk')} not loaded: {of.detail}" for of in report.refused),
            "" if fits else too_small,
        )
        return ExitCode.OK if report.is_all and fits else ExitCode.PARTIAL

    def _plan(self, snapshot: Snapshot, work: WarmUp) -> int:
        """Print what would be loaded."""
        found = work.report()
        no_room = f"; no room for {counted(found.no_room, 'chunk')}" if found.no_room else ""
        self.context.output.result(
            {
                **snapshot_record(snapshot),
                **picked(found, "chunks bytes cached_before cached_before_bytes no_room"),
                "missing": work.missing,
                "missing_bytes": work.missing_bytes,
            },
            f"{snapshot.dataset.name}@{snapshot.id}: would load {counted(work.missing, 'chunk')}, "
            f"{human_size(work.missing_bytes)}; known to be there: {found.cached_before:,} of "
            f"{counted(found.chunks, 'chunk')}{no_room}",
        )
        return ExitCode.OK


def _why_not_all(report: WarmUpReport, dataset: str, found: Warmth) -> Iterator[str]:
    if report.no_room:
        [limit] = (of.detail for of in report.refused if of.reason == "no room")
        yield f"there was no room for {counted(report.no_room, 'chunk')}: {limit}"
    if report.failed:
        yield (
            f"{counted(report.failed, 'chunk')} could not be fetched from the store: `dlcmd scrub "
            f"{dataset}` lists the lost files"
        )
    elsewhere = found.chunks - found.cached_chunks - report.no_room - report.failed
    if elsewhere > 0:
        yield (
            f"{counted(elsewhere, 'chunk')} evicted again for chunks that were read meanwhile: "
            "see `dlcmd cache ls`"
        )


def _snapshot(
    context: CommandContext, store: ObjectStore, place: DatasetAddress, no_index: bool
) -> Snapshot:
    from dieselfs.cli.commands.snapshot import create_snapshot
    from dieselfs.errors import SnapshotNotFound
    from dieselfs.snapshots import snapshot_choice
    from metadata.errors import SnapshotRefused, SnapshotStale
    from metadata.snapshot import Snapshot

    folder, name = context.snapshot_folder, place.dataset
    if place.snapshot:
        return Snapshot.open(snapshot_choice.find_snapshot(place.snapshot, name, folder, store))
    if no_index:
        return Snapshot.open(snapshot_choice.newest_known(name, folder, store))
    with context.client(place) as client:
        try:
            path = snapshot_choice.newest_fresh(name, folder, store, client.dataset.index)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused) as error:
            context.output.note(f"{str(error).partition(': ')[0]}: making a new one")
            path = create_snapshot(context, client.dataset, unpublished=context.output.note)
        return Snapshot.open(path)
