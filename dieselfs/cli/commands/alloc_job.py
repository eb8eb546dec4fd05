"""`dlcmd alloc job`: jobs that are declared, so that an allocator need not measure them."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import command, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.rendering.allocation_overview import rate_text
from dieselfs.cli.rendering.output import counted, picked
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkstore.chunk_format import DatasetRef
    from dieselfs.allocation.directory.decisions import JobEntry
    from dieselfs.allocation.jobs import Job, ReadingOrder

_ORDERS = ("random", "told", "draws")
"""A copy of `dieselfs.allocation.jobs.ReadingOrder`, which the help need not load."""


@click.group("job", cls=SuggestingGroup)
def job_group() -> None:
    """Declare jobs: their speeds, GPUs and passes."""


@command(
    group=job_group,
    examples=[
        "dlcmd alloc job add resnet-1 imagenet --speed 114MB/s --passes 90",
        "dlcmd alloc job add --table jobs.csv",
    ],
)
@click.argument("job", metavar="[JOB", required=False)
@click.argument("dataset", metavar="DATASET]", required=False)
@click.option("--speed", metavar="RATE", help="How fast the job reads if it never waits.")
@click.option("--gpus", type=int, default=1, show_default=True, metavar="N", help="Its GPUs.")
@click.option(
    "--passes",
    type=float,
    default=1.0,
    show_default=True,
    metavar="N",
    help="How often it reads its dataset; 0.5 for half of it.",
)
@size_option("--size", help_text="The size of the dataset (default: as it is in the store).")
@click.option("--irregular", is_flag=True, help="It draws by a curriculum, or nobody knows how.")
@click.option("--repeats-items", is_flag=True, help="It may read a chunk again in the same epoch.")
@click.option(
    "--order",
    type=click.Choice(_ORDERS),
    default="random",
    show_default=True,
    help="How it reads, as far as the cache knows.",
)
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    metavar="JOBS.csv",
    help="Declare all jobs of a table, as `dlcmd alloc plan` takes it.",
)
def add(
    context: CommandContext,
    job: str | None,
    dataset: str | None,
    speed: str | None,
    gpus: int,
    passes: float,
    size: int | None,
    irregular: bool,
    repeats_items: bool,
    order: ReadingOrder,
    table: Path | None,
) -> None:
    """Declare a job, or all jobs of a table; declare it again to change it.

    JOB is the name that its readers have by --job, DIESELFS_JOB or SLURM_JOB_ID. The declaration
    goes before what is measured. All lines of a table are checked before anything is declared.
    """
    from dieselfs.allocation.administration.declared import declare, now_s
    from dieselfs.allocation.directory.directories import allocation_directory
    from dieselfs.allocation.job_table import byte_rate, read_job_table
    from dieselfs.allocation.jobs import Job

    if table is not None:
        given = (job, speed, size, gpus, passes, order, irregular, repeats_items)
        if given != (None, None, None, 1, 1.0, "random", False, False):
            raise UsageError(
                "--table has all jobs with all that is declared of them",
                "give either --table, or JOB and its options",
            )
        jobs: list[Job] = read_job_table(table)
    elif job is None or dataset is None or speed is None:
        missing = "JOB" if job is None else "DATASET" if dataset is None else "--speed"
        raise UsageError(f"{missing} is not given", "give JOB DATASET --speed RATE, or --table")
    else:
        speed_bytes_per_s = byte_rate("--speed", speed)
        if size is None:
            size = _stored_bytes(context, dataset)
        jobs = [
            Job(
                *(job, dataset, size, speed_bytes_per_s, gpus, passes, now_s()),
                regular=not irregular,
                repeats_items=repeats_items or order == "draws",
                order=order,
            )
        ]
    context = context.shared()
    with closing(allocation_directory(context.config.index.value)) as directory:
        entries = declare(directory, jobs, partial(_found, context))
    _say_declared(context, entries)


def _stored_bytes(context: CommandContext, dataset: str) -> int:
    """Return the size of a dataset in the store. Raises `DatasetNotFound`."""
    from dieselfs.dataset.address import DatasetAddress, parse_dataset

    with context.client(DatasetAddress(parse_dataset(dataset))) as client:
        chunks = client.dataset.namespace.chunks().values()
        size = sum(chunk.head_bytes + chunk.payload_bytes for chunk in chunks)
    if not size:
        raise UsageError(f"dataset {dataset} is empty", "put files first, or give --size")
    return size


def _found(context: CommandContext, name: str) -> DatasetRef | None:
    """Return the dataset of a name; None, with a note, if the store has none."""
    from chunkstore.commit_log import find_dataset
    from dieselfs.dataset.address import parse_dataset

    ref = find_dataset(context.store(), parse_dataset(name))
    if ref is None:
        context.output.note(f"the store has no dataset {name} yet")
    return ref


def _say_declared(context: CommandContext, entries: Sequence[JobEntry]) -> None:
    output = context.output
    for each in entries:
        output.result(
            _record(each),
            f"{each.job}: reads {each.dataset} ({human_size(each.dataset_bytes)}) "
            f"{each.passes:g} times at {rate_text(each.speed_bytes_per_s)}, "
            f"{counted(each.gpus, 'GPU')}",
        )


@command(group=job_group, examples=["dlcmd alloc job rm resnet-1"])
@click.argument("job")
def rm(context: CommandContext, job: str) -> None:
    """Take the declaration of a job back; while it has readers, it is measured again."""
    from dieselfs.allocation.administration.declared import withdraw
    from dieselfs.allocation.directory.directories import allocation_directory

    context = context.shared()
    with closing(allocation_directory(context.config.index.value)) as directory:
        withdraw(directory, job)
    context.output.done({"job": job}, f"{job}: not declared any more")


@command(group=job_group, examples=["dlcmd alloc job ls", "dlcmd alloc job ls --json"])
def ls(context: CommandContext) -> None:
    """List the jobs that are declared."""
    from dieselfs.allocation.directory.directories import allocation_directory

    context = context.shared()
    with closing(allocation_directory(context.config.index.value)) as directory:
        found = directory.jobs()
    rows = [
        [
            *(each.job, each.dataset, human_size(each.dataset_bytes)),
            *(rate_text(each.speed_bytes_per_s), str(each.gpus), f"{each.passes:g}"),
            *("yes" if each.regular else "no", each.order),
        ]
        for each in found
    ]
    headings = ["JOB", "DATASET", "SIZE", "SPEED", "GPUS", "PASSES", "REGULAR", "ORDER"]
    context.output.listing(headings, rows, map(_record, found), expendable=["ORDER", "REGULAR"])


def _record(entry: JobEntry) -> dict[str, object]:
    names = "job dataset dataset_id dataset_bytes speed_bytes_per_s gpus passes submitted_s"
    return picked(entry, f"{names} regular repeats_items order")
