"""`dlcmd recover`: rebuild or verify the index from the object store alone.

It can also make the index or a snapshot of an earlier time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from chunkstore.chunk_id import parse_id
from dieselfs.cli.command import command, dry_run_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import for_each, iso_time
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted, picked
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.recovery import History, RecoveryOptions, RecoveryReport
    from metadata.errors import IndexDamaged
    from metadata.kv.key_value_store import KeyValueStore

_SHOWN: Final = 1000
"""The most lines of differences, and of chunks with -v, that are printed."""


@command(
    examples=[
        "dlcmd recover imagenet",
        "dlcmd recover --all --yes",
        "dlcmd recover imagenet --check",
        "dlcmd recover imagenet --since 2h",
        "dlcmd recover imagenet --until 2026-01-31T12:00",
        "dlcmd recover imagenet --until 41 --to lmdb:///data/imagenet-41",
        "dlcmd recover imagenet --adopt -n",
        "dlcmd recover imagenet --without-commits -n",
    ]
)
@click.argument("dataset", required=False)
@click.option("--all", "everything", is_flag=True, help="Recover every dataset of the store.")
@click.option(
    "--since",
    metavar="WHEN",
    help="Apply only the commits after WHEN again; the index must be complete up to then. "
    "WHEN is a generation, a time, or 2h for two hours ago.",
)
@click.option(
    "--until",
    metavar="WHEN",
    help="Make the dataset as it was then: a snapshot, published in the store, or with "
    "--to an index that stays there.",
)
@click.option("--to", metavar="URL", help="Make another index, and leave the present one alone.")
@click.option("--check", is_flag=True, help="Compare the index with the store; change nothing.")
@click.option(
    "--adopt", is_flag=True, help="Commit the orphans: whole chunks that no commit names."
)
@click.option(
    "--without-commits", is_flag=True, help="If commits are lost, rebuild the log from the chunks."
)
@click.option(
    "--without-chunks",
    is_flag=True,
    help="If chunks are lost or their headers damaged, go on without the files in them.",
)
@click.option(
    "--dataset-id", metavar="ID", help="Id of the dataset, if the store holds several of this name."
)
@click.option("-v", "--verbose", is_flag=True, help="List each chunk that no commit names.")
@dry_run_option
@yes_option
def recover(
    context: CommandContext,
    dataset: str | None,
    everything: bool,
    since: str | None,
    until: str | None,
    to: str | None,
    dataset_id: str | None,
    verbose: bool,
    yes: bool,
    **flags: Any,
) -> int:
    """Rebuild the index from the object store alone: all of it, or what is wrong with it.

    An LMDB file that is damaged as a whole is moved away first, after asking. Mounts go on serving.
    Chunks that no commit names are reported and stay invisible. With --check or -n, the exit code
    is 10 if something is to be repaired.
    """
    from dieselfs.recovery import RecoveryOptions, parse_point

    if (dataset is None) != everything:
        raise UsageError("name one dataset, or give --all", "see `dlcmd recover --help`")
    if everything and (until is not None or dataset_id is not None):
        raise UsageError(
            "--until and --dataset-id are for one dataset",
            "name it instead of --all",
        )
    name, now_ns = None if dataset is None else parse_dataset(dataset), time.time_ns()
    options = RecoveryOptions(
        since=None if since is None else parse_point(since, now_ns),
        until=None if until is None else parse_point(until, now_ns),
        dataset_id=None if dataset_id is None else _parse_dataset_id(dataset_id),
        snapshot_folder=context.snapshot_folder if until is not None else None,
        **flags,
    )
    run = _Run(context, name, to, until, options, verbose, yes)
    try:
        return run.recover()
    except _FileDamaged as damaged:
        run.set_aside(damaged.error)
    return run.recover()


class _FileDamaged(Exception):
    """The index's file has to be moved away before anything is recovered into it."""

    def __init__(self, error: IndexDamaged) -> None:
        self.error = error


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command, for one dataset or, without a name, for all."""

    _context: CommandContext
    _name: str | None
    _to: str | None
    _until: str | None
    _options: RecoveryOptions
    _verbose: bool
    _yes: bool

    def recover(self) -> int:
        """Recover each dataset; raise `_FileDamaged` if the index's file is unsound."""
        from dieselfs.dataset.dataset import stored_names
        from metadata.errors import IndexDamaged

        try:
            with _places(self._context, self._to, self._until) as (store, index):
                if self._name is not None:
                    return self._recover_one(store, index, self._name)
                codes: list[ExitCode] = []

                def recover_one(name: str) -> None:
                    try:
                        codes.append(self._recover_one(store, index, name))
                    except IndexDamaged as error:
                        raise _FileDamaged(error) from error  # not one dataset's failure

                json = self._context.output.json
                return for_each(stored_names(store), recover_one, as_json=json) or max(
                    codes, default=ExitCode.OK
                )
        except IndexDamaged as error:
            raise _FileDamaged(error) from error

    def _recover_one(self, store: ObjectStore, index: KeyValueStore | None, name: str) -> ExitCode:
        from dieselfs.recovery import recover

        options = self._options
        if not options.reads_only:
            _ask(self._context.output, store, index, name, options, yes=self._yes)
        with self._context.progress(f"recover {name}") as progress:
            report = recover(store, index, name, options, progress)
        _print(self._context.output, report, options, self._verbose)
        if options.reads_only and (report.difference_count or report.log or report.adopted):
            return ExitCode.FOUND
        if options.without_commits and not options.reads_only:
            _check_all_is_back(report)
        return ExitCode.OK

    def set_aside(self, error: IndexDamaged) -> None:
        """Move the damaged file away, after asking; raise `error` if the options forbid it."""
        from metadata.kv.damaged_file import set_aside

        folder = error.folder
        if folder is None or self._options.reads_only or self._options.since is not None:
            raise error
        output = self._context.output
        confirm(f"move the damaged LMDB file of {folder} away and rebuild the index", yes=self._yes)
        kept = set_aside(folder, datetime.now(UTC))
        output.note(f"moved the damaged file of the index to {kept}")
        if self._name is not None:
            output.note(
                "other datasets come into the new index when they are used; "
                "`dlcmd recover --all` rebuilds all at once"
            )


def _parse_dataset_id(text: str) -> bytes:
    try:
        return parse_id(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no dataset id", "see `dlcmd recover -v -n`") from error


@contextmanager
def _places(
    context: CommandContext, to: str | None, until: str | None
) -> Iterator[tuple[ObjectStore, KeyValueStore | None]]:
    """Yield the store, and the index that the options mean. No other index is opened.

    Raises `IndexDamaged` before an LMDB file with damaged pages is opened.
    """
    from dieselfs.assembly import check_index_file

    if until is not None and to is None:
        yield context.store(), None
        return
    context = context.shared()
    target = context.at(None, to, None)
    if until is not None and target.config.index.value == context.config.index.value:
        raise UsageError(
            "--until would leave the present index at that point in time",
            "name another index with --to",
        )
    check_index_file(target.config.index.value)
    with target.places() as (store, index):
        yield store, index


def _check_all_is_back(report: RecoveryReport) -> None:
    """Raise `HistoryDamaged` if whole chunks are left that no commit names, lost or not.

    They hold files that are not brought back: of a killed put, or of a commit whose generation
    another commit has taken.
    """
    from dieselfs.errors import HistoryDamaged

    history = report.history
    left = [
        chunk.evidence
        for chunk in history.uncommitted
        if chunk.is_whole and chunk.evidence and chunk.evidence.dataset == history.dataset
    ]
    files = sum(evidence.file_count for evidence in left)
    if files:
        raise HistoryDamaged(
            f"{counted(files, 'file')} in {counted(len(left), 'chunk')} of {history.name} are not "
            "brought back, since no lost commit can have named them",
            f"see them with `dlcmd recover {history.name} -v -n`; `--adopt` commits them as the "
            "newest versions",
        )


def _ask(
    output: Output,
    store: ObjectStore,
    index: KeyValueStore | None,
    name: str,
    options: RecoveryOptions,
    *,
    yes: bool,
) -> None:
    """Ask before anything is committed, and say how much that is."""
    from dataclasses import replace

    from dieselfs.recovery import recover as recover_dataset

    if yes or not (options.adopt or options.without_commits):
        return
    report = recover_dataset(store, index, name, replace(options, dry_run=True))
    if report.log is not None:
        made, assigned = len(report.log.plan.commits), report.log.assigned
        if not output.json:
            output.note("what cannot be known without the lost commits:")
            for line in report.log.unknowable:
                output.note(f"  - {line}")
        question = f"rebuild {counted(made, 'commit')} of {name} from {counted(assigned, 'chunk')}"
        confirm(f"{question}; no writer may be running", yes=yes)
    elif report.adopted:
        question = f"commit {counted(len(report.adopted), 'chunk')} to {name}"
        confirm(f"{question}; no put may be running", yes=yes)


def _print(output: Output, report: RecoveryReport, options: RecoveryOptions, verbose: bool) -> None:
    if output.json:
        output.record(_record(report, verbose))
        return
    for difference in report.differences[:_SHOWN]:
        path = output.name(os.fsdecode(difference.path))
        output.line(f"{difference.fault.value} {difference.kind.value} {path}")
    if report.difference_count > min(len(report.differences), _SHOWN):
        output.line(f"… {report.difference_count:,} differences in all")
    for line in _summary(report, options):
        output.line(line)
    chunks = report.history.uncommitted if verbose else []
    for chunk in chunks[:_SHOWN]:
        output.line(f"  {chunk.id}  {chunk.object_bytes} bytes  {chunk.flaw or 'whole'}")
    if len(chunks) > _SHOWN:
        output.line(f"  … {counted(len(chunks), 'chunk')} in all")


def _summary(report: RecoveryReport, options: RecoveryOptions) -> Iterator[str]:
    history, state = report.history, report.state
    would = "would be " if options.reads_only else ""
    if report.log is not None:
        log = report.log
        yield (
            f"{counted(len(log.plan.commits), 'commit')} {would}rebuilt from "
            f"{counted(log.assigned, 'chunk')}"
            f" with {counted(log.assigned_files, 'file')}"
        )
        yield "lost with the commits, and not rebuilt:"
        for line in log.unknowable:
            yield f"  - {line}"
        if log.foreign:
            yield f"{counted(log.foreign, 'chunk')} of other datasets of that name skipped"
    if report.moved_aside:
        yield f"{counted(report.moved_aside, 'damaged commit')} moved to commits/GENERATION.damaged"
    if report.adopted:
        yield f"{counted(len(report.adopted), 'chunk')} {would}committed"
    if report.lost_chunks:
        yield (
            f"{counted(len(report.lost_chunks), 'chunk')} lost or damaged: their files are missing"
        )
    if state is not None:
        yield (
            f"{history.name}, generation {state.generation:,}: {counted(state.files, 'file')},"
            f" {counted(state.directories, 'directory')}, {counted(state.chunks, 'chunk')}"
        )
    yield from _done(report, options)
    if history.uncommitted:
        yield _uncommitted(history)


def _done(report: RecoveryReport, options: RecoveryOptions) -> Iterator[str]:
    if report.state is None:
        return
    if report.snapshot_id is not None:
        name = report.history.name
        yield (
            f"snapshot {report.snapshot_id}; next: dlcmd mount "
            f"{name}@{report.snapshot_id.partition('-')[0]} MOUNTPOINT"
        )
    elif options.until is not None:
        yield "the index stays at this generation"
    elif options.reads_only:
        count = report.difference_count
        yield (
            f"the index differs in {counted(count, 'record')}" if count else "no differences found"
        )
    elif report.was_empty:
        yield "the index was empty and has been filled"
    elif report.changed or report.removed:
        changed, removed = counted(report.changed, "record"), counted(report.removed, "record")
        yield f"repaired: {changed}; removed: {removed} that the store does not have"
    else:
        yield "the index needed no repair"


def _uncommitted(history: History) -> str:
    chunks = history.uncommitted
    whole = sum(chunk.is_whole for chunk in chunks)
    seconds = [chunk.id.seconds for chunk in chunks]
    oldest, newest = iso_time(min(seconds) * 10**9), iso_time(max(seconds) * 10**9)
    return (
        f"{counted(len(chunks), 'chunk')} ({sum(chunk.object_bytes for chunk in chunks):,} "
        f"bytes) named by no commit, {whole:,} whole,"
        f" from {oldest[:19]}Z to {newest[:19]}Z: invisible, being written, or garbage for `dlcmd "
        "gc`; --adopt commits the whole ones"
    )


def _record(report: RecoveryReport, verbose: bool) -> dict[str, Any]:
    from chunkstore.chunk_id import print_id

    history, state, log = report.history, report.state, report.log
    totals = "files bytes directories chunks"
    record: dict[str, Any] = {
        "dataset": history.name,
        "id": print_id(history.dataset.id) if history.dataset else None,
        "generation": state.generation if state else history.newest,
        **(picked(state, totals) if state else dict.fromkeys(totals.split())),
        "commits_read": len(history.commits),
        "commits_lost": list(history.lost),
        "earliest_generation": history.reachable[-1].start,
        "reachable_generations": [[reach.start, reach.stop - 1] for reach in history.reachable],
        **picked(report, "was_empty changed removed"),
        "differences": report.difference_count,
        "moved_aside": report.moved_aside,
        "adopted": [str(ref.id) for ref in report.adopted],
        "lost_chunks": [str(ref.id) for ref in report.lost_chunks],
        "snapshot": report.snapshot_id,
        "uncommitted": {
            "chunks": len(history.uncommitted),
            "bytes": sum(chunk.object_bytes for chunk in history.uncommitted),
            "whole": sum(chunk.is_whole for chunk in history.uncommitted),
        },
    }
    if log is not None:
        record["log"] = {
            "commits": len(log.plan.commits),
            "chunks": log.assigned,
            "files": log.assigned_files,
            "left": log.unassigned,
            **picked(log, "foreign unknowable"),
        }
    if report.differences:
        record["different"] = [
            {"fault": d.fault.value, "kind": d.kind.value, "path": os.fsdecode(d.path)}
            for d in report.differences
        ]
    if verbose:
        record["uncommitted"]["list"] = [
            {"chunk": str(chunk.id), "bytes": chunk.object_bytes, "flaw": chunk.flaw or None}
            for chunk in history.uncommitted
        ]
    return record
