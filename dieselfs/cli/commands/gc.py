"""`dlcmd gc`: list the garbage of datasets, and delete it on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.command import command, dry_run_option, grace_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import for_each
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.housekeeping.garbage import Garbage
    from dieselfs.housekeeping.garbage_items import GarbageItem
    from metadata.kv.key_value_store import KeyValueStore

_A_DAY_S = 86_400


@command(
    examples=[
        "dlcmd gc imagenet",
        "dlcmd gc imagenet --delete",
        "dlcmd gc --all --delete --yes --grace 14d",
        "dlcmd gc imagenet -v --json",
    ]
)
@click.argument("dataset", required=False)
@click.option("--all", "everything", is_flag=True, help="Look through all datasets of the store.")
@click.option("--delete", is_flag=True, help="Delete the garbage, after asking.")
@grace_option("Keep garbage that is younger than this.")
@click.option(
    "--local",
    is_flag=True,
    help=(
        "Also find local snapshot files that are incomplete or of a former dataset of the "
        "name. Don't use it if another store has a dataset of that name."
    ),
)
@click.option(
    "--unreadable-leases",
    is_flag=True,
    help="Also find leases that can't be read. Use it only if no mount holds them.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show each object, and why it is garbage.")
@dry_run_option
@yes_option
def gc(
    context: CommandContext,
    dataset: str | None,
    everything: bool,
    delete: bool,
    grace: float,
    local: bool,
    unreadable_leases: bool,
    verbose: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Find garbage, and delete it with --delete.

    Garbage is what nothing needs any more: chunks that no commit names, retired chunks, leases of
    killed mounts, superseded tags, snapshots of former datasets of the name, and temporary files.
    Objects that are younger than the grace period stay, and so do those that a published snapshot,
    a tag or a running mount needs.
    """
    if (dataset is None) != everything:
        raise UsageError("name one dataset, or give --all", "see `dlcmd gc --help`")
    with context.places() as (store, index):
        names = [parse_dataset(dataset)] if dataset is not None else _stored_names(store)
        run = _Run(context, store, index, grace, local, unreadable_leases, verbose)
        failed = for_each(names, run.find_in_dataset, as_json=context.output.json)
        run.find_outside()
        run.print_found(complete=not failed)
        failed = failed or (ExitCode.INTEGRITY if run.damaged else ExitCode.OK)
        if not run.removable:
            return failed
        if dry_run or not delete:
            return failed or ExitCode.FOUND
        _confirm(run.removable, grace, yes=yes)
        run.delete()
    return failed or ExitCode.REPAIRED


class _Run:
    """The garbage found in the datasets so far, and its deletion."""

    def __init__(
        self,
        context: CommandContext,
        store: ObjectStore,
        index: KeyValueStore,
        grace_s: float,
        local: bool,
        unreadable_leases: bool,
        verbose: bool,
    ) -> None:
        self._context = context
        self._store = store
        self._index = index
        self._grace_s = grace_s
        self._local = local
        self._unreadable_leases = unreadable_leases
        self._verbose = verbose
        self._garbage: list[Garbage] = []
        self._outside: list[GarbageItem] = []
        self._waiting: list[GarbageItem] = []
        self.damaged = False
        """True if something could not be judged."""

    @property
    def removable(self) -> list[GarbageItem]:
        """The garbage that may be deleted now."""
        return [item for found in self._garbage for item in found.removable] + self._outside

    def find_in_dataset(self, name: str) -> None:
        """Find the garbage of one dataset."""
        from dieselfs.housekeeping.garbage import find_garbage
        from dieselfs.housekeeping.local_garbage import former_snapshots

        with self._context.progress(f"gc {name}") as progress:
            found = find_garbage(
                self._store,
                name,
                now_ns=time.time_ns(),
                grace_s=self._grace_s,
                known_generation=_indexed_generation(self._store, self._index, name),
                unreadable_leases=self._unreadable_leases,
                progress=lambda commits: progress.advance(commits, 0),
            )
        self._garbage.append(found)
        self._waiting += found.waiting
        for note in found.notes:
            self.damaged = True
            if self._context.output.json:
                self._context.output.record({"dataset": name, "damaged": note})
            else:
                self._context.output.line(f"{name}: {note}")
        if self._local:
            folder = self._context.snapshot_folder
            self._take(former_snapshots(folder, name, found.dataset.id, self._grace_s, time.time()))

    def find_outside(self) -> None:
        """Find the garbage that belongs to no dataset."""
        from dieselfs.housekeeping.local_garbage import incomplete_snapshots, temporary_files

        self._take(temporary_files(self._store, self._grace_s))
        if self._local:
            folder = self._context.snapshot_folder
            self._take(incomplete_snapshots(folder, self._grace_s, time.time()))

    def _take(self, found: Iterable[GarbageItem]) -> None:
        for item in found:
            (self._waiting if item.kept else self._outside).append(item)

    def print_found(self, *, complete: bool) -> None:
        """Print the garbage and what waits. `complete` is False if some dataset failed."""
        output = self._context.output
        if output.json:
            for item in self.removable + self._waiting:
                output.record(_record(item))
            return
        if self._verbose:
            rows = [
                [
                    str(item.kind),
                    output.size(item.size_bytes),
                    item.key,
                    item.reason,
                    item.kept or "garbage",
                ]
                for item in self.removable + self._waiting
            ]
            output.table(["KIND", "SIZE", "WHERE", "WHY", "STATE"], rows)
        else:
            rows = _by_kind(self.removable + self._waiting, output)
            output.table(["KIND", "COUNT", "SIZE", "STATE"], rows)
        if not rows and complete:
            output.note("no garbage found")

    def delete(self) -> None:
        """Delete the garbage, and print how much that was."""
        from dieselfs.housekeeping.garbage_removal import delete_garbage
        from dieselfs.housekeeping.local_garbage import delete_outside

        deleted: list[GarbageItem] = []
        with self._context.progress("delete") as progress:
            progress.expect(len(self.removable), sum(item.size_bytes for item in self.removable))

            def done(item: GarbageItem) -> None:
                progress.advance(1, item.size_bytes)
                deleted.append(item)

            for garbage in self._garbage:
                delete_garbage(self._store, garbage, deleted=done)
            for item in self._outside:
                delete_outside(self._store, item)
                done(item)
        output = self._context.output
        if output.json:
            size_bytes = sum(item.size_bytes for item in deleted)
            output.record({"deleted": len(deleted), "bytes": size_bytes})
        else:
            output.note(f"deleted {_extent(deleted)}")


def _record(item: GarbageItem) -> dict[str, Any]:
    return {
        "kind": str(item.kind),
        "key": item.key,
        "bytes": item.size_bytes,
        "reason": item.reason,
        "kept": item.kept or None,
    }


def _by_kind(found: Sequence[GarbageItem], output: Output) -> list[list[str]]:
    """Return rows of kind, count, size and state."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for item in found:
        sizes.setdefault((str(item.kind), item.kept or "garbage"), []).append(item.size_bytes)
    return [
        [kind, str(len(each)), output.size(sum(each)), state]
        for (kind, state), each in sizes.items()
    ]


def _extent(found: Sequence[GarbageItem]) -> str:
    size = human_size(sum(item.size_bytes for item in found))
    return f"{counted(len(found), 'object')}, {size}"


def _confirm(found: Sequence[GarbageItem], grace_s: float, *, yes: bool) -> None:
    question = f"delete {_extent(found)}"
    if grace_s < _A_DAY_S:
        question += (
            f", with a grace period of {human_duration(grace_s)} (no put or purge may be running)"
        )
    confirm(question, yes=yes)


def _stored_names(store: ObjectStore) -> list[str]:
    """Return the names of the store's datasets. This lists the whole store."""
    return sorted({info.key.split("/")[1] for info in store.list("datasets/")})


def _indexed_generation(store: ObjectStore, index: KeyValueStore, name: str) -> int:
    """Return the newest generation that the index knows; 0 if it does not know the dataset."""
    from chunkstore.commit_log import find_dataset
    from metadata import keys
    from metadata.dataset_state import indexed_dataset, read_state

    known = indexed_dataset(index, name)
    if known is None or known != find_dataset(store, name):
        return 0
    return read_state(index, known.id, keys.APPLIED).generation
