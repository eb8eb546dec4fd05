"""`dlcmd snapshot`: one dataset's metadata at one generation, in one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.arguments.snapshot_files import local_file, without_path
from dieselfs.cli.command import command, human_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.commands.snapshot_diff import diff_command
from dieselfs.cli.commands.snapshot_rm import prune_command, rm_command
from dieselfs.cli.rendering.entries import iso_time
from dieselfs.cli.rendering.output import counted
from dieselfs.cli.rendering.progress import Reached
from dieselfs.dataset.address import DatasetAddress, parse_dataset

if TYPE_CHECKING:
    from chunkstore.chunk_format import DatasetRef
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.dataset.dataset import Dataset
    from metadata.snapshot import Snapshot


@click.group(cls=SuggestingGroup)
def snapshot() -> None:
    """Create, list, tag, compare and prune snapshots of a dataset.

    A mount reads a snapshot instead of an index. Snapshots are also the versions of a dataset.
    """


@command(
    group=snapshot,
    examples=["dlcmd snapshot create imagenet", "dlcmd snapshot create imagenet --no-publish"],
)
@click.argument("dataset")
@click.option(
    "--publish/--no-publish", default=True, help="Also store it in the object store (default)."
)
def create(context: CommandContext, dataset: str, publish: bool) -> None:
    """Make a snapshot of the dataset as it is now."""
    name = parse_dataset(dataset)
    with context.client(DatasetAddress(name)) as client:
        path = create_snapshot(context, client.dataset, publish=publish)
    _print_file(context, path, published=publish)
    if not context.output.json:
        context.output.note(f"next: dlcmd mount {name} MOUNTPOINT")


def create_snapshot(
    context: CommandContext,
    dataset: Dataset,
    *,
    publish: bool = True,
    unpublished: Callable[[str], None] | None = None,
) -> Path:
    """Make a snapshot, and show the progress. See `lifecycle.create` for `unpublished`."""
    from dieselfs.snapshots import lifecycle

    folder = context.snapshot_folder
    with context.progress("snapshot") as progress:
        progress.expect(dataset.namespace.state().files, 0)
        return lifecycle.create(
            dataset,
            folder,
            publish=publish,
            progress=Reached(progress).files,
            unpublished=unpublished,
        )


@command(
    group=snapshot, examples=["dlcmd snapshot ls imagenet", "dlcmd snapshot ls imagenet --json"]
)
@click.argument("dataset")
@human_option
def ls(context: CommandContext, dataset: str, human: bool | None) -> None:
    """List snapshots on this machine and in the store, oldest first."""
    output = context.output
    records = _known(context, parse_dataset(dataset))
    rows = [
        [
            *(output.snapshot_id(r["id"]), str(r["generation"]), output.size(r["bytes"], human)),
            *(", ".join(_places(r)), ", ".join(r["tags"])),
        ]
        for r in records
    ]
    output.listing(["ID", "GENERATION", "SIZE", "WHERE", "TAGS"], rows, records)


def _known(context: CommandContext, name: str) -> list[dict[str, Any]]:
    from chunkstore.commit_log import find_dataset
    from dieselfs.dataset.dataset import no_dataset
    from dieselfs.snapshots import lifecycle

    store = context.store()
    ref = find_dataset(store, name)
    tags = {} if ref is None else _tags(context, store, ref)
    found: dict[str, dict[str, Any]] = {}
    for listed in lifecycle.list_published(store, name):
        found[listed.snapshot_id] = _record(listed.snapshot_id, listed.size_bytes, None, True)
    for path in lifecycle.list_local(context.snapshot_folder, name):
        id_ = lifecycle.id_of(path)
        found[id_] = _record(id_, path.stat().st_size, str(path), id_ in found)
    if not found and ref is None:
        raise no_dataset(store, name)
    for snapshot_id, record in found.items():
        record["tags"] = tags.pop(snapshot_id, [])
    for snapshot_id, names in tags.items():
        context.output.note(f"tagged {', '.join(names)}, but gone: snapshot {snapshot_id}")
    return sorted(found.values(), key=lambda record: (record["generation"], record["id"]))


def _tags(context: CommandContext, store: ObjectStore, ref: DatasetRef) -> dict[str, list[str]]:
    """Return the tags of each snapshot id. Tags that can't be read are reported."""
    from chunkstore.tags import current, read_tags

    listing = read_tags(store, ref)
    for name, reason in listing.damaged.items():
        context.output.note(f"tag {name} can't be read: {reason}")
    found: dict[str, list[str]] = {}
    for tag in current(listing, ref):
        found.setdefault(tag.snapshot_id, []).append(tag.name)
    return found


def _record(snapshot_id: str, size_bytes: int, file: str | None, published: bool) -> dict[str, Any]:
    record = {"id": snapshot_id, "generation": int(snapshot_id.partition("-")[0])}
    return {**record, "bytes": size_bytes, "file": file, "published": published}


def _places(record: dict[str, Any]) -> list[str]:
    return (["local"] if record["file"] else []) + (["store"] if record["published"] else [])


@command(
    group=snapshot,
    examples=["dlcmd snapshot show imagenet", "dlcmd snapshot show imagenet@12 --json"],
)
@click.argument("which", metavar="DATASET[@ID]|FILE")
@human_option
def show(context: CommandContext, which: str, human: bool | None) -> None:
    """Show a snapshot's dataset, generation, counts and size.

    Without ID, show the newest snapshot known.
    """
    from metadata.snapshot import Snapshot

    path = local_file(context, which)
    with Snapshot.open(path) as opened:
        record = _described(opened, path)
    fields = {key: str(value) for key, value in record.items()}
    for key in ("bytes", "file_bytes"):
        fields[key] = context.output.size(record[key], human)
    context.output.details(record, fields)


def _described(opened: Snapshot, path: Path) -> dict[str, Any]:
    from chunkstore.chunk_id import print_id

    return {
        "dataset": opened.dataset.name,
        "dataset_id": print_id(opened.dataset.id),
        "id": opened.id,
        "generation": opened.generation,
        "updated": iso_time(opened.updated_ns),
        "files": opened.file_count,
        "directories": opened.directory_count,
        "chunks": opened.chunk_count,
        "bytes": opened.total_bytes,
        "file": str(path),
        "file_bytes": path.stat().st_size,
    }


@command(
    group=snapshot, examples=["dlcmd snapshot pull imagenet", "dlcmd snapshot pull imagenet@12"]
)
@click.argument("which", metavar="DATASET[@ID]")
def pull(context: CommandContext, which: str) -> None:
    """Download a published snapshot to this machine, and verify it.

    Without ID, download the newest.
    """
    from dieselfs.snapshots.snapshot_choice import pull_snapshot

    address = without_path(which)
    folder = context.snapshot_folder
    path = pull_snapshot(address.snapshot, address.dataset, folder, context.store())
    _print_file(context, path, published=True)


@command(
    group=snapshot,
    examples=["dlcmd snapshot verify imagenet@12", "dlcmd snapshot verify ./imagenet-12.snapshot"],
)
@click.argument("which", metavar="FILE|DATASET[@ID]")
def verify(context: CommandContext, which: str) -> None:
    """Check every byte of a snapshot file: its hash, names and ranges."""
    from metadata.snapshot import Snapshot

    path = local_file(context, which)
    Snapshot.verify(path)
    context.output.result({"file": str(path), "sound": True}, f"{path}: sound")


@command(
    name="tag",
    group=snapshot,
    examples=["dlcmd snapshot tag imagenet v1", "dlcmd snapshot tag imagenet@12 before-cleaning"],
)
@click.argument("which", metavar="DATASET[@ID]")
@click.argument("tag")
def tag_(context: CommandContext, which: str, tag: str) -> None:
    """Give a snapshot a name, which can be used wherever an ID can.

    Without ID, the command tags the newest snapshot, which must be as new as the dataset. An
    existing tag is moved. A tagged snapshot is neither pruned nor removed, and its chunks stay.
    """
    from dieselfs.snapshots.tagging import tag_snapshot

    address = without_path(which)
    folder = context.snapshot_folder
    made = tag_snapshot(context.store(), address.dataset, address.snapshot, tag, folder)
    context.output.done(
        {"dataset": address.dataset, "tag": made.name, "id": made.snapshot_id},
        f"{address.dataset}@{made.name} is snapshot {made.snapshot_id}",
    )


@command(group=snapshot, examples=["dlcmd snapshot untag imagenet v1"])
@click.argument("dataset")
@click.argument("tag")
def untag(context: CommandContext, dataset: str, tag: str) -> None:
    """Remove a tag, even one that can't be read.

    The snapshot stays until it is pruned.
    """
    from dieselfs.snapshots.tagging import untag_snapshot

    name = parse_dataset(dataset)
    untag_snapshot(context.store(), name, tag)
    context.output.done(
        {"dataset": name, "tag": tag, "removed": True}, f"removed tag {tag} of {name}"
    )


for _command in (diff_command, rm_command, prune_command):
    snapshot.add_command(_command)


def _print_file(context: CommandContext, path: Path, *, published: bool) -> None:
    from metadata.snapshot import Snapshot

    with Snapshot.open(path) as opened:
        record = _described(opened, path) | {"published": published}
    context.output.result(record, str(path))
    if not context.output.json:
        context.output.note(
            f"snapshot {record['id']} of {record['dataset']}: "
            f"{counted(record['files'], 'file')}, generation {record['generation']}"
        )
