"""`dlcmd jobs`: list what the readers of jobs have published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.output import picked
from dieselfs.cli.values.durations import human_duration

if TYPE_CHECKING:
    from dieselfs.cache.jobs.job_record import JobRecord


@command(examples=["dlcmd jobs", "dlcmd jobs --json | jq -r .job | sort | uniq -c"])
def jobs(context: CommandContext) -> None:
    """List the job records that cache policies see: what is read now, by whom, and how far it is.

    Mounts publish them while their SSD tier has a cache policy, or while they read for a job
    (`dlcmd mount --job`) through a cache cluster. The records are in the index's Redis. With
    another index they are in this node's memory, and only those of this user.
    """
    from dieselfs.cache.jobs.registries import job_registry

    context = context.shared()
    registry = job_registry(context.config.index.value)
    try:
        found = sorted(registry.records(), key=lambda each: (each.job, each.dataset, each.reader))
    finally:
        registry.close()
    rows = [
        [
            *(each.job or "-", each.dataset, f"{each.host}:{each.pid}", str(each.epoch)),
            *(_position(each), f"{each.keys_per_s:.1f}/s" if each.keys_per_s else "-"),
            human_duration(each.age_s),
        ]
        for each in found
    ]
    headings = ["JOB", "DATASET", "READER", "EPOCH", "POSITION", "CHUNKS", "AGE"]
    context.output.listing(headings, rows, map(_record, found), expendable=["CHUNKS", "AGE"])


def _position(record: JobRecord) -> str:
    share = _share(record)
    return "-" if share is None else f"{100 * share:.0f} %"


def _share(record: JobRecord) -> float | None:
    """Return the part of the order that is read; None if no order is known."""
    return min(1.0, record.position / record.length) if record.length else None


def _record(record: JobRecord) -> dict[str, object]:
    names = "job dataset dataset_id reader host pid epoch order length position keys_per_s age_s"
    return {**picked(record, names), "position_share": _share(record)}
