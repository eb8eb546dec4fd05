"""`dlcmd gc`: list the garbage of datasets, and delete it on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.command import command, dry_run_option, grace_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import for_each
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted
from dieselfs.cli.rendering.progress import Reached
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.housekeeping.garbage import Garbage, GarbageItem
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
    help="Also find local snapshot files that are incomplete, or of a former dataset of the "
    "name, even if the store has none of the name now. Don't use it if another store has one.",
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
    from dieselfs.dataset.dataset import stored_names

    if (dataset is None) != everything:
        raise UsageError("name one dataset, or give --all", "see `dlcmd gc --help`")
    with context.places() as (store, index):
        names = [parse_dataset(dataset)] if dataset is not None else stored_names(store)
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


@dataclass(slots=True)
class _Run:
    """The garbage found in the datasets so far, and its deletion."""

    _context: CommandContext
    _store: ObjectStore
    _index: KeyValueStore
    _grace_s: float
    _local: bool
    _unreadable_leases: bool
    _verbose: bool
    _garbage: list[Garbage] = field(default_factory=list)
    _outside: list[GarbageItem] = field(default_factory=list)
    _waiting: list[GarbageItem] = field(default_factory=list)
    damaged: bool = False
    """True if something could not be judged."""

    @property
    def removable(self) -> list[GarbageItem]:
        """The garbage that may be deleted now."""
        return [item for found in self._garbage for item in found.removable] + self._outside

    def find_in_dataset(self, name: str) -> None:
        """Find the garbage of one dataset; of one that is gone, its files on this machine."""
        from chunkstore.commit_log import find_dataset
        from metadata.errors import DatasetNotFound

        try:
            found = self._garbage_of(name)
        except DatasetNotFound:  # or it is half removed
            is_gone = self._local and find_dataset(self._store, name) is None
            if not (is_gone and self._take_former(name, None)):
                raise
            return
        self._garbage.append(found)
        self._waiting += found.waiting
        for note in found.notes:
            self.damaged = True
            self._context.output.result({"dataset": name, "damaged": note}, f"{name}: {note}")
        if self._local:
            self._take_former(name, found.dataset.id)

    def _take_former(self, name: str, dataset_id: bytes | None) -> bool:
        from dieselfs.housekeeping.garbage import former_snapshots

        folder = self._context.snapshot_folder
        found = former_snapshots(folder, name, dataset_id, self._grace_s, time.time())
        self._take(found)
        return bool(found)

    def _garbage_of(self, name: str) -> Garbage:
        from dieselfs.housekeeping.garbage import find_garbage

        with self._context.progress(f"gc {name}", "commits") as progress:
            return find_garbage(
                self._store,
                name,
                now_ns=time.time_ns(),
                grace_s=self._grace_s,
                known_generation=_indexed_generation(self._store, self._index, name),
                unreadable_leases=self._unreadable_leases,
                progress=Reached(progress).files,
            )

    def find_outside(self) -> None:
        """Find the garbage that belongs to no dataset."""
        from dieselfs.housekeeping.garbage import incomplete_snapshots, temporary_files

        self._take(temporary_files(self._store, self._grace_s))
        if self._local:
            folder = self._context.snapshot_folder
            self._take(incomplete_snapshots(folder, self._grace_s, time.time()))

    def _take(self, found: Iterable[GarbageItem]) -> None:
        for item in found:
            (self._waiting if item.kept else self._outside).append(item)

    def print_found(self, *, complete: bool) -> None:
        """Print the garbage and what waits; with --json, totals after it.

        `complete` is False if some dataset failed.
        """
        output, found = self._context.output, self.removable + self._waiting
        if self._verbose:
            headings = ["KIND", "SIZE", "WHERE", "WHY", "STATE"]
            rows = [
                [item.kind, output.size(item.size_bytes), item.key, item.reason, _state(item)]
                for item in found
            ]
        else:
            headings, rows = ["KIND", "COUNT", "SIZE", "STATE"], _by_kind(found, output)
        output.listing(headings, rows, map(_record, found))
        if output.json:
            output.record(
                {
                    "garbage": len(self.removable),
                    "garbage_bytes": sum(item.size_bytes for item in self.removable),
                    "waiting": len(self._waiting),
                    "waiting_bytes": sum(item.size_bytes for item in self._waiting),
                    "complete": complete,
                }
            )
        elif complete and not rows:
            output.note("no garbage found")

    def delete(self) -> None:
        """Delete the garbage, and print how much that was."""
        from dieselfs.housekeeping.garbage_deletion import delete_garbage, delete_outside

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
        self._context.output.done(
            {"deleted": len(deleted), "bytes": sum(item.size_bytes for item in deleted)},
            f"deleted {_extent(deleted)}",
        )


def _record(item: GarbageItem) -> dict[str, Any]:
    record = {"kind": str(item.kind), "key": item.key, "bytes": item.size_bytes}
    return {**record, "reason": item.reason, "kept": item.kept or None}


def _state(item: GarbageItem) -> str:
    return item.kept or "garbage"


def _by_kind(found: Sequence[GarbageItem], output: Output) -> list[list[str]]:
    """Return rows of kind, count, size and state."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for item in found:
        sizes.setdefault((item.kind, _state(item)), []).append(item.size_bytes)
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


def _indexed_generation(store: ObjectStore, index: KeyValueStore, name: str) -> int:
    """Return the newest generation that the index knows; 0 if it does not know the dataset."""
    from chunkstore.commit_log import find_dataset
    from metadata import keys
    from metadata.dataset_state import indexed_dataset, read_state

    known = indexed_dataset(index, name)
    if known is None or known != find_dataset(store, name):
        return 0
    return read_state(index, known.id, keys.APPLIED).generation
