"""`dlcmd scrub`: read and verify every byte of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.command import command, jobs_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.finding_lines import exit_code, files_hit, print_findings
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted, picked
from dieselfs.cli.values.parsed import Parsed
from dieselfs.cli.values.percentages import Share
from dieselfs.cli.values.sizes import human_size, parse_rate
from dieselfs.config import cache_folder
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import DieselFSError, UsageError

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.checking import ScrubReport
    from metadata.kv.key_value_store import KeyValueStore


def _parse_rate(text: str) -> int:
    rate = parse_rate(text)
    if rate <= 0:
        raise UsageError("a rate of 0 reads nothing", "write for instance 200MiB/s")
    return rate


@command(
    examples=[
        "dlcmd scrub imagenet",
        "dlcmd scrub --rate 200MiB/s imagenet",
        "dlcmd scrub --sample 5% imagenet",
        "dlcmd scrub --json --restart imagenet",
        "dlcmd scrub --cached",
    ]
)
@click.argument("dataset", required=False)
@click.option(
    "--rate",
    type=Parsed("rate", _parse_rate),
    metavar="RATE",
    help="Read no faster than this, such as 200MiB/s.",
)
@click.option(
    "--sample", type=Share(), metavar="SHARE", help="Read only a share of the chunks, such as 5%."
)
@click.option(
    "--seed", type=int, metavar="N", help="Seed of the sample (default: a new one each time)."
)
@click.option("--restart", is_flag=True, help="Begin again instead of where the last run stopped.")
@click.option("--files", is_flag=True, help="List every affected file, not only the first ten.")
@click.option(
    "--cached",
    is_flag=True,
    help="Verify the chunks in the node memory of your tasks instead, and evict damaged ones.",
)
@click.option("--task", metavar="NAME", help="With --cached: only the task of this name.")
@jobs_option()
def scrub(
    context: CommandContext,
    dataset: str | None,
    rate: int | None,
    sample: float | None,
    seed: int | None,
    restart: bool,
    files: bool,
    cached: bool,
    task: str | None,
    jobs: int | None,
) -> int:
    """Read and verify every chunk of a dataset: header, files and blocks against their checksums.

    With --cached, verify instead the chunks that the node memory of your tasks holds now.

    After Ctrl-C or a crash, the same command goes on where it stopped. The exit code is 0 if all
    that was read is sound, and 7 if something is damaged.
    """
    from dieselfs.checking import ChunkSample
    from dieselfs.checking.scrub import JOBS

    if cached or task is not None:
        others = (dataset, rate, sample, seed, jobs)
        if not cached or restart or files or any(other is not None for other in others):
            raise UsageError(
                "--cached verifies what node memory holds, whole and of all datasets",
                "write `dlcmd scrub --cached`, or `dlcmd scrub --cached --task NAME`",
            )
        return _scrub_cached(context.output, task)
    if dataset is None:
        raise UsageError("no dataset is named", "write `dlcmd scrub DATASET`, or --cached")
    if seed is not None and sample is None:
        raise UsageError("--seed chooses a sample", "add --sample 5%, or leave --seed out")
    with context.places() as (store, index):
        report = run_scrub(
            context,
            store,
            index,
            parse_dataset(dataset),
            rate_bytes_per_s=rate,
            sample=ChunkSample(sample, seed) if sample is not None else None,
            restart=restart,
            jobs=jobs or JOBS,
        )
    print_scrub(context, report, all_files=files)
    return exit_code(report.verdict)


def _scrub_cached(output: Output, name: str | None) -> int:
    """Verify the node memory of the user's tasks, or of one; print a line for each."""
    from dieselfs.cache.task.running_tasks import running_tasks, scrub_task

    tasks = [task for task in running_tasks() if name in (None, task.name)]
    if name is not None and not tasks:
        raise DieselFSError(f"no task {name} on this node", "`dlcmd task ls` lists them")
    code = ExitCode.OK
    for task in tasks:
        if task.memory is None and name is None:
            continue  # the next process that reads verifies what it finds
        found = scrub_task(task.folder)
        for block in found.damaged:
            output.note(f"{task.name}: block {block} has changed in memory and was evicted")
        verdict = "damaged" if found.damaged else "clean"
        if found.damaged:
            code = ExitCode.INTEGRITY
        output.result(
            {
                "task": task.name,
                "verdict": verdict,
                "blocks": found.blocks,
                "bytes": found.size_bytes,
                "damaged": list(found.damaged),
            },
            f"{task.name}: {verdict} ({counted(found.blocks, 'block')}, "
            f"{human_size(found.size_bytes)} in node memory)",
        )
    return code


def run_scrub(
    context: CommandContext, store: ObjectStore, index: KeyValueStore, name: str, **options: Any
) -> ScrubReport:
    """Scrub with the user's progress file, and show the progress.

    `options` are those of `dieselfs.checking.scrub`.
    """
    from dieselfs import checking

    with context.progress("scrub") as progress:
        return checking.scrub(
            store,
            index,
            name,
            progress_folder=cache_folder() / "scrub",
            place=context.config.store.value,
            snapshot_folder=context.snapshot_folder,
            progress=progress,
            **options,
        )


def print_scrub(context: CommandContext, report: ScrubReport, *, all_files: bool) -> None:
    """Print the findings and a summary."""
    output, name, verdict = context.output, report.dataset.name, report.verdict.value
    print_findings(context, report.findings, all_files=all_files)
    of = f" of {report.chunks_there:,}" if report.chunks < report.chunks_there else ""
    sample = f", sample of seed {report.seed}" if report.seed is not None else ""
    output.result(
        {
            "dataset": name,
            "verdict": verdict,
            **picked(report, "generation chunks chunks_there files"),
            "bytes": report.size_bytes,
            **picked(report, "seed resumed read_again"),
            "findings": len(report.findings),
            "files_hit": files_hit(report.findings),
        },
        f"{name}: {verdict} ({counted(report.chunks, 'chunk')}{of}, "
        f"{counted(report.files, 'file')}, {human_size(report.size_bytes)} read up to generation "
        f"{report.generation}{sample}{', resumed' if report.resumed else ''})",
    )
    if report.read_again and not output.json:
        output.note(
            f"{counted(report.read_again, 'chunk')} had damage in the first read and none in the "
            "second: check memory, cables and network"
        )
