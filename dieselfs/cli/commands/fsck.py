"""`dlcmd fsck`: compare store, index and snapshots of a dataset, and repair differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import command, dry_run_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.commands.scrub import print_scrub, run_scrub
from dieselfs.cli.finding_lines import VERDICTS, exit_code, files_hit, print_findings
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import counted, picked
from dieselfs.dataset.address import parse_dataset

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.checking import FsckReport
    from metadata.kv.key_value_store import KeyValueStore


@command(
    examples=[
        "dlcmd fsck imagenet",
        "dlcmd fsck --files --json imagenet",
        "dlcmd fsck --repair -n imagenet",
        "dlcmd fsck --repair --yes imagenet",
        "dlcmd fsck --scrub imagenet",
    ]
)
@click.argument("dataset")
@click.option("--files", is_flag=True, help="List every affected file, not only the first ten.")
@click.option(
    "--repair", is_flag=True, help="Repair the index; replace or delete damaged snapshots."
)
@click.option("--scrub", is_flag=True, help="Read and verify all content afterwards.")
@dry_run_option
@yes_option
def fsck(
    context: CommandContext,
    dataset: str,
    files: bool,
    repair: bool,
    scrub: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Compare store, index and snapshots of a dataset, without reading file content.

    The exit code is 0 if the dataset is clean, 10 if --repair can repair the differences without
    loss, 9 if they were repaired, and 7 if something is damaged or lost. Nothing changes without
    --repair, and chunks and commits never change.
    """
    from dieselfs import checking
    from dieselfs.assembly import check_index_file

    name = parse_dataset(dataset)
    check_index_file(context.config.index.value)
    with context.places() as (store, index):
        with context.progress("fsck") as progress:
            report = checking.fsck(
                store, index, name, snapshot_folder=context.snapshot_folder, progress=progress
            )
        print_findings(context, report.findings, all_files=files)
        code = exit_code(report.verdict)
        if repair and report.findings:
            code = _repair(context, store, index, report, dry_run=dry_run, yes=yes)
        _print_summary(context, report, code)
        if scrub:
            scrubbed = run_scrub(context, store, index, name)
            print_scrub(context, scrubbed, all_files=files)
            code = max(code, exit_code(scrubbed.verdict), key=list(VERDICTS).index)
    return code


def _repair(
    context: CommandContext,
    store: ObjectStore,
    index: KeyValueStore,
    report: FsckReport,
    *,
    dry_run: bool,
    yes: bool,
) -> ExitCode:
    from dieselfs import checking

    todo = sorted((f.repair.value, f.object) for f in report.findings if f.repair is not None)
    if dry_run:
        _say(context, "would", todo)
        return exit_code(report.verdict)
    lost = sum(f.repair is not None and f.repair.loses for f in report.findings)
    if lost:
        confirm(f"delete {counted(lost, 'damaged snapshot')} of {report.dataset.name}", yes=yes)
    with context.progress("repair") as progress:
        done = checking.repair(store, index, report, context.snapshot_folder, progress)
    _say(context, "done", todo)
    if any(finding.damaged for finding in done.left):
        return ExitCode.INTEGRITY
    return ExitCode.REPAIRED


def _say(context: CommandContext, when: str, todo: list[tuple[str, str]]) -> None:
    """Print each repair once, even if several findings ask for it."""
    output = context.output
    for action, target in dict.fromkeys(todo):
        line = output.name(f"{when}: {action} ({target})")
        output.result({when: action, "object": target}, line)


def _print_summary(context: CommandContext, report: FsckReport, code: ExitCode) -> None:
    output, name, verdict = context.output, report.dataset.name, VERDICTS[code]
    counts = picked(report, "generation chunks uncommitted_chunks snapshots local_snapshots")
    output.result(
        {
            "dataset": name,
            "verdict": verdict,
            **counts,
            "findings": len(report.findings),
            "files_hit": files_hit(report.findings),
        },
        f"{name}: {verdict} (generation {report.generation}, {counted(report.chunks, 'chunk')}, "
        f"{counted(report.snapshots, 'published snapshot')}, {report.local_snapshots:,} here)",
    )
    if report.uncommitted_chunks and not output.json:
        whose = f"being written, or garbage; see `dlcmd gc {name}`"
        if report.commits_lost:
            whose = "perhaps named by the lost commits; delete none of them"
        output.note(f"{counted(report.uncommitted_chunks, 'chunk')} without a commit: {whose}")
