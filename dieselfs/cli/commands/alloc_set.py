"""`dlcmd alloc set-cache` and `set-io`: decisions by hand, with or without an allocator."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.allocation_overview import decided_by, rate_text
from dieselfs.cli.rendering.output import counted
from dieselfs.cli.values.sizes import human_size, parse_size
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.chunk_format import DatasetRef
    from dieselfs.allocation.administration.by_hand import QuotaInForce, RateInForce
    from dieselfs.allocation.directory.port import AllocationDirectory

_NONE: Final = "none"


@command(
    name="set-cache",
    examples=[
        "dlcmd alloc set-cache imagenet 200GiB",
        "dlcmd alloc set-cache imagenet 0",
        "dlcmd alloc set-cache imagenet none",
    ],
)
@click.argument("dataset")
@click.argument("size", metavar="SIZE|none")
def set_cache_command(context: CommandContext, dataset: str, size: str) -> None:
    """Set a quota of the caches by hand.

    DATASET may use SIZE in the caches of its readers. The decision goes before an allocator's, and
    needs no allocator. Cached chunks stay, no more are cached than SIZE, and those above it are
    evicted within 10 s. 0 caches nothing. `none` takes the decision by hand back: an allocator's
    counts again, or there is no quota.
    """
    from dieselfs.allocation.administration.by_hand import set_cache
    from dieselfs.allocation.directory.directories import allocation_directory
    from dieselfs.dataset.address import parse_dataset

    name = parse_dataset(dataset)
    size_bytes = None if size == _NONE else _size(size)
    context = context.shared(name)
    with closing(allocation_directory(context.config.index.value)) as directory:
        for ref in _datasets(context, directory, name, takes_back=size_bytes is None):
            _say_quota(context, set_cache(directory, ref, size_bytes), size_bytes)


def _size(text: str) -> int:
    if text.lstrip().startswith("-"):
        raise UsageError(f"a quota of {text}: it must be 0 or more", "write for instance 200GiB")
    return parse_size(text)


def _datasets(
    context: CommandContext, directory: AllocationDirectory, name: str, *, takes_back: bool
) -> list[DatasetRef]:
    """Return the dataset of this name; to take back, also removed ones that have a decision.

    Raises `DatasetNotFound`.
    """
    from chunkstore.commit_log import find_dataset
    from dieselfs.allocation.administration.by_hand import datasets_set_by_hand
    from metadata.errors import DatasetNotFound

    found = datasets_set_by_hand(directory, name) if takes_back else []
    if not found:
        ref = find_dataset(context.store(), name)
        if ref is None:
            raise DatasetNotFound(f"dataset {name!r} does not exist")
        found = [ref]
    return found


def _say_quota(context: CommandContext, found: QuotaInForce, size_bytes: int | None) -> None:
    decision, name = found.decision, found.dataset.name
    record = {
        "dataset": name,
        "dataset_id": found.dataset.id.hex(),
        "cache_bytes": None if decision is None else decision.size_bytes,
        "origin": "none" if decision is None else decision.origin,
    }
    nothing = size_bytes is None and not found.was_set
    quota = "no quota" if decision is None else f"a quota of {human_size(decision.size_bytes)}"
    context.output.result(
        record,
        *([f"{name}: nothing was decided by hand"] if nothing else []),
        f"{name}: {quota}, {decided_by(decision)}",
        *(["nothing of it is cached any more"] if size_bytes == 0 else []),
    )


@command(
    name="set-io",
    examples=[
        "dlcmd alloc set-io resnet-1 10MB/s",
        "dlcmd alloc set-io resnet-1 none",
        'dlcmd alloc set-io "" 50MB/s',
    ],
)
@click.argument("job")
@click.argument("rate", metavar="RATE|none")
def set_io_command(context: CommandContext, job: str, rate: str) -> None:
    """Set the remote IO of a job by hand.

    Its readers may together fetch RATE of the store, in bytes a second, and divide that by what
    each needs. The decision goes before an allocator's, and needs no allocator. Readers obey within
    2 s. `none` takes the decision by hand back: an allocator's counts again, or there is no limit.
    The empty name "" stands for all readers without a job.
    """
    from dieselfs.allocation.administration.by_hand import set_io
    from dieselfs.allocation.directory.directories import allocation_directory
    from dieselfs.allocation.job_table import byte_rate

    if rate.lstrip().startswith("-"):
        raise UsageError(
            f"a remote IO of {rate}: it must be 0 or more", "write for instance 10MB/s"
        )
    bytes_per_s = None if rate == _NONE else byte_rate("the remote IO", rate)
    context = context.shared()
    with closing(allocation_directory(context.config.index.value)) as directory:
        _say_rate(context, set_io(directory, job, bytes_per_s), bytes_per_s)


def _say_rate(context: CommandContext, found: RateInForce, bytes_per_s: float | None) -> None:
    from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S

    decision, name = found.decision, found.job or "(no job)"
    record = {
        "job": found.job,
        "io_bytes_per_s": None if decision is None else decision.bytes_per_s,
        "origin": "none" if decision is None else decision.origin,
        "readers": found.readers,
    }
    nothing = bytes_per_s is None and not found.was_set
    rate = rate_text(None if decision is None else max(decision.bytes_per_s, FLOOR_BYTES_PER_S))
    context.output.result(
        record,
        *([f"{name}: nothing was decided by hand"] if nothing else []),
        f"{name}: {rate}, {decided_by(decision)}; {counted(found.readers, 'reader')}",
    )
    floor = human_size(FLOOR_BYTES_PER_S)
    if bytes_per_s is not None and bytes_per_s < FLOOR_BYTES_PER_S:
        context.output.note(f"no job gets less than {floor}/s, so that no reader waits for ever")
    if bytes_per_s is not None and not found.readers:
        context.output.note(
            f"no reader of {name} is seen; the decision counts as soon as one begins. "
            "`dlcmd alloc show` lists the jobs that read"
        )


for _with_rate in (set_cache_command, set_io_command):
    _with_rate.ignore_unknown_options = True  # so that -5MB/s is told to be no rate
