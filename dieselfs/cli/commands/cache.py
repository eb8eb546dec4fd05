"""`dlcmd cache`: the contents of this node's SSD tier, and the limits of each dataset on it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.arguments.ssd_flags import chosen_ssd, ssd_flags
from dieselfs.cli.command import command, human_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import iso_time, local_time
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted, picked
from dieselfs.cli.rendering.policy_table import show_decisions
from dieselfs.cli.values.durations import human_duration, parse_duration
from dieselfs.cli.values.sizes import human_size, parse_size
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.ssd.eviction import DatasetLimits
    from dieselfs.cache.ssd.settings import SsdSettings
    from dieselfs.cache.ssd.usage import DatasetUsage, TierUsage

_HEADINGS = (
    *("DATASET", "SIZE", "SHARE", "HITS", "HIT BYTES", "HIT RATE"),
    *("LAST USED", "QUOTA", "TTL", "PINNED"),
)
_NONE = "none"


@click.group(cls=SuggestingGroup)
def cache() -> None:
    """Show and limit what the SSD tier of this node caches (docs/ssd-tier.md)."""


@command(group=cache, examples=["dlcmd cache ls", "dlcmd cache ls -v", "dlcmd cache ls --ssd /ssd"])
@ssd_flags
@human_option
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show warm-ups beside readers, and what cache policies have decided.",
)
def ls(
    context: CommandContext,
    ssd: str | None,
    ssd_size: int | None,
    human: bool | None,
    verbose: bool,
) -> None:
    """List the cached datasets with hits and limits, and pinned mounts.

    A hit is a read that the SSD answered, and a miss is a read that went to the store. Both count
    all mounts and commands of this node since it booted. The last line shows the budget, how much
    of it is used, and that the SSD works. If the SSD does not work, the command fails with the
    reason.
    """
    from dieselfs.cache.ssd.blob import pinned_mounts
    from dieselfs.cache.ssd.usage import TierAccess

    settings = chosen_ssd(context, ssd, ssd_size, only_looks=True)
    access = TierAccess(settings)
    usage = access.usage()

    output = context.output
    output.listing(
        _HEADINGS,
        [_row(of, usage, output, human) for of in usage.datasets],
        [_record(of, usage) for of in usage.datasets],
        expendable=["HIT BYTES", "LAST USED", "TTL", "HITS"],
    )
    for mount in pinned_mounts(settings.folder):
        state = "" if mount.is_complete else ", not complete: run `dlcmd warmup --pin-mount` again"
        output.result(
            {"pinned_mount": asdict(mount)},
            f"pinned mount: {mount.dataset}@{mount.snapshot}, "
            f"{output.size(mount.bytes, human)}{state}",
        )
    for note in access.warmups().values() if verbose else ():
        now = note.progress
        output.result(
            {"warmup": {"dataset": note.dataset, **asdict(now)}},
            f"warm-up of {output.name(note.dataset)}: {now.state}, {now.cached_chunks:,} of "
            f"{counted(now.chunks, 'chunk')}, {output.size(now.cached_bytes, human)} of "
            f"{output.size(now.bytes, human)}",
        )
    if verbose:
        show_decisions(output, access.decisions(), human)
    sizes = picked(usage, "budget_bytes used_bytes region_bytes")
    output.result(
        {"folder": str(settings.folder), **sizes, "in_service": True},
        f"{settings.folder}: {output.size(usage.used_bytes, human)} of "
        f"{output.size(usage.budget_bytes, human)} used, in service",
    )


@command(
    group=cache, examples=["dlcmd cache quota imagenet 200GiB", "dlcmd cache quota imagenet none"]
)
@click.argument("dataset")
@click.argument("size", metavar="SIZE|none")
@ssd_flags
def quota(
    context: CommandContext, dataset: str, size: str, ssd: str | None, ssd_size: int | None
) -> None:
    """Limit how much of the SSD a dataset may use.

    The bytes above the limit are evicted within seconds.
    """
    quota_bytes = None if size == _NONE else parse_size(size)
    _change(context, dataset, ssd, ssd_size, quota_bytes=quota_bytes)


@command(group=cache, examples=["dlcmd cache ttl imagenet 7d", "dlcmd cache ttl imagenet none"])
@click.argument("dataset")
@click.argument("duration", metavar="TIME|none")
@ssd_flags
def ttl(
    context: CommandContext, dataset: str, duration: str, ssd: str | None, ssd_size: int | None
) -> None:
    """Evict parts of a dataset unused for TIME, even if there is room.

    A pinned dataset stays. The eviction takes seconds while a mount or command of this node has the
    SSD open. Otherwise it happens when the next one opens the SSD.
    """
    ttl_s = None if duration == _NONE else parse_duration(duration)
    if ttl_s == 0:
        raise UsageError(
            "a TTL of 0 would evict everything", f"evict it: dlcmd cache evict {dataset}"
        )
    _change(context, dataset, ssd, ssd_size, ttl_s=ttl_s)


@command(group=cache, examples=["dlcmd cache pin imagenet"])
@click.argument("dataset")
@ssd_flags
def pin(context: CommandContext, dataset: str, ssd: str | None, ssd_size: int | None) -> None:
    """Keep what is cached of a dataset, whatever else is read."""
    _change(context, dataset, ssd, ssd_size, pinned=True)


@command(group=cache, examples=["dlcmd cache unpin imagenet"])
@click.argument("dataset")
@ssd_flags
def unpin(context: CommandContext, dataset: str, ssd: str | None, ssd_size: int | None) -> None:
    """Allow the eviction of a pinned dataset again."""
    _change(context, dataset, ssd, ssd_size, pinned=False)


@command(group=cache, examples=["dlcmd cache resize 800GiB", "dlcmd cache resize 200GiB --yes"])
@click.argument("size", metavar="SIZE")
@click.option("--ssd", metavar="FOLDER", help="Folder of the SSD tier (default: as configured).")
@yes_option
def resize(context: CommandContext, size: str, ssd: str | None, yes: bool) -> None:
    """Change the size of the SSD tier for all that use it.

    A smaller size evicts chunks, also pinned ones, after asking; running mounts obey within
    seconds. No other command makes the tier smaller.
    """
    from dieselfs.cache.ssd.usage import TierAccess

    budget_bytes, settings = parse_size(size), chosen_ssd(context, ssd, None, only_looks=True)
    access = TierAccess(settings)
    usage = access.usage()
    if budget_bytes < usage.budget_bytes and usage.used_bytes:
        cached = ", ".join(f"{of.name} {human_size(of.bytes)}" for of in usage.datasets if of.bytes)
        confirm(
            f"make the SSD tier {settings.folder} smaller, from "
            f"{human_size(usage.budget_bytes)} to {human_size(budget_bytes)}, and evict what has "
            f"no room (cached: {cached})",
            yes=yes,
        )
    resized = access.resize(budget_bytes)
    evicted = ", ".join(f"{name} {human_size(lost)}" for name, lost in resized.evicted.items())
    configured = settings.budget_bytes
    undone = (
        f"--ssd-size, DIESELFS_SSD_SIZE or the profile says {human_size(configured or 0)}: change "
        "it too, or the next command with that size makes the tier larger again"
    )
    context.output.done(
        {"folder": str(settings.folder), **asdict(resized)},
        f"{settings.folder}: {human_size(resized.former_bytes)} before, "
        f"{human_size(budget_bytes)} now; evicted: {evicted or 'nothing'}",
        undone if configured is not None and configured > budget_bytes else "",
    )


@command(
    group=cache,
    examples=[
        "dlcmd cache policy",
        "dlcmd cache policy next-use --write-budget 100MB/s",
        "dlcmd cache policy --shadow future",
        "dlcmd cache policy --clear",
    ],
)
@click.argument("name", required=False)
@click.option(
    "--shadow", metavar="NAME|none", help="A policy that is asked and counted, and decides nothing."
)
@click.option(
    "--write-budget",
    metavar="RATE|none",
    help="Write no more to the SSD on average, such as 100MB/s.",
)
@click.option(
    "--buckets", metavar="MAP", help="What jobs read together: dataset, directory, group."
)
@click.option("--clear", is_flag=True, help="Let each mount and cache node have its own setting.")
@ssd_flags
def policy(
    context: CommandContext,
    name: str | None,
    shadow: str | None,
    write_budget: str | None,
    buckets: str | None,
    clear: bool,
    ssd: str | None,
    ssd_size: int | None,
) -> None:
    """Show or set which cache policy decides what the SSD tier caches.

    What is set here goes before --ssd-policy and its variables and keys. All mounts and commands
    that use the folder obey within seconds, without a restart; so does a cache node, whose folder
    --ssd names. What is not named stays as it is. The policies are lru, next-use, future, historic,
    hybrid, dynamic, reject-first and all (docs/ssd-tier.md).
    """
    from dieselfs.cache.ssd.options import PolicyOptions
    from dieselfs.cache.ssd.settings import changed_choice
    from dieselfs.cache.ssd.usage import TierAccess

    given = PolicyOptions(name, shadow, write_budget, buckets)
    if clear and given != PolicyOptions():
        raise UsageError("--clear takes all settings of the folder away", "use it alone")
    settings = chosen_ssd(context, ssd, ssd_size, only_looks=True)
    access = TierAccess(settings)
    former = access.policy()
    choice = former
    if clear:
        choice = None
    elif given != PolicyOptions():
        choice = changed_choice(former or settings.choice, given)
    if choice != former or clear:
        access.set_policy(choice)
    origin = "set in the folder" if choice else "as configured"
    shown = choice or settings.choice
    budget = "none" if shown.write_budget is None else f"{human_size(shown.write_budget)}/s"
    context.output.result(
        {"folder": str(settings.folder), **asdict(shown), "in_folder": choice is not None},
        f"{settings.folder}: policy {shown.policy} ({origin}), shadow policy "
        f"{shown.shadow or 'none'}, write budget {budget}, buckets by {shown.buckets}",
    )


@command(group=cache, examples=["dlcmd cache evict imagenet"])
@click.argument("dataset")
@ssd_flags
def evict(context: CommandContext, dataset: str, ssd: str | None, ssd_size: int | None) -> int:
    """Evict all of a dataset, pinned or not, with its pinned mounts.

    Later reads load its chunks again.
    """
    return evict_dataset(context, chosen_ssd(context, ssd, ssd_size, only_looks=True), dataset)


def evict_dataset(context: CommandContext, settings: SsdSettings, dataset: str) -> int:
    """Evict a dataset and its pinned mounts from the SSD, and print how many bytes that freed."""
    from dieselfs.cache.ssd.blob import remove_blobs
    from dieselfs.cache.ssd.usage import TierAccess

    name = parse_dataset(dataset)
    freed = TierAccess(settings).evict(name, context.store()) + remove_blobs(settings.folder, name)
    context.output.done(
        {"dataset": name, "freed_bytes": freed},
        f"{name}: evicted, {human_size(freed)} of the SSD freed",
    )
    return ExitCode.OK


def _change(
    context: CommandContext, dataset: str, ssd: str | None, ssd_size: int | None, **changed: Any
) -> None:
    from dieselfs.cache.ssd.usage import TierAccess

    name = parse_dataset(dataset)
    settings = chosen_ssd(context.shared(name), ssd, ssd_size, only_looks=True)
    limits = TierAccess(settings).change(
        name, context.store(), lambda limits: replace(limits, **changed)
    )
    context.output.done(
        {"dataset": name, **asdict(limits)},
        f"{name}: quota {_size(limits, human=True)}, ttl {_ttl(limits)}, "
        f"{'pinned' if limits.pinned else 'not pinned'}",
    )


def _record(of: DatasetUsage, usage: TierUsage) -> dict[str, Any]:
    from chunkstore.chunk_id import print_id

    last_used = None if of.last_used is None else iso_time(int(of.last_used * 1e9))
    return {
        "dataset": of.name,
        "dataset_id": print_id(of.id),
        "bytes": of.bytes,
        "share": round(of.bytes / usage.budget_bytes, 4),
        **picked(of, "hits hit_bytes misses"),
        "hit_rate": None if of.hit_rate is None else round(of.hit_rate, 4),
        "last_used": last_used,
        **asdict(of.limits),
    }


def _row(of: DatasetUsage, usage: TierUsage, output: Output, human: bool | None) -> tuple[str, ...]:
    from chunkstore.chunk_id import print_id

    return (
        output.name(of.name) or f"(id {print_id(of.id)})",
        output.size(of.bytes, human),
        f"{of.bytes / usage.budget_bytes:.1%}",
        f"{of.hits}",
        output.size(of.hit_bytes, human),
        "-" if of.hit_rate is None else f"{of.hit_rate:.1%}",
        "-" if of.last_used is None else local_time(int(of.last_used * 1e9)),
        _size(of.limits, human=output.terminal if human is None else human),
        _ttl(of.limits),
        "yes" if of.limits.pinned else "no",
    )


def _size(limits: DatasetLimits, *, human: bool) -> str:
    if limits.quota_bytes is None:
        return _NONE
    return human_size(limits.quota_bytes) if human else str(limits.quota_bytes)


def _ttl(limits: DatasetLimits) -> str:
    return _NONE if limits.ttl_s is None else human_duration(limits.ttl_s)
