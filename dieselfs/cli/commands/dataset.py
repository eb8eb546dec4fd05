"""`dlcmd dataset`: list, describe and remove datasets."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command, human_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import for_each, iso_time
from dieselfs.cli.rendering.exit_codes import ExitCode, explain, report
from dieselfs.cli.rendering.output import Output, counted, picked, printable
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress, parse_dataset

if TYPE_CHECKING:
    from chunkstore.chunk_format import DatasetRef
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.client import Client
    from dieselfs.housekeeping.dataset_users import DatasetUsers
    from dieselfs.snapshots.stored_datasets import StoredDataset
    from metadata.kv.key_value_store import KeyValueStore
    from metadata.records import DatasetState

_TOTALS: Final = "files bytes directories chunks"
_AT_ONCE: Final = 16
"""The number of datasets that are looked at concurrently."""


@click.group(cls=SuggestingGroup)
def dataset() -> None:
    """List, describe and remove datasets."""


@command(group=dataset, examples=["dlcmd dataset ls", "dlcmd dataset ls --json"])
@human_option
def ls(context: CommandContext, human: bool | None) -> int:
    """List the datasets of the store, as the store has them."""
    return print_datasets(context, human)


@command(
    group=dataset, examples=["dlcmd dataset info imagenet", "dlcmd dataset info imagenet --json"]
)
@click.argument("name")
@human_option
def info(context: CommandContext, name: str, human: bool | None) -> None:
    """Describe a dataset: totals, generation, chunks, holes, packing.

    Holes are entries of chunks that were deleted or replaced.
    """
    output = context.output
    with context.client(DatasetAddress(parse_dataset(name))) as client:
        record = _described(client)
    holes = record["holes"]
    fields = {key: str(value) for key, value in record.items()}
    for key in ("bytes", "stored_bytes"):
        fields[key] = output.size(record[key], human)
    entries = counted(holes["entries"], "deleted entry")
    fields["holes"] = f"{entries}, {output.size(holes['bytes'], human)}"
    fields["packing"] = _told(record["packing"])
    output.details(record, fields)


@command(
    group=dataset, examples=["dlcmd dataset rm old-imagenet", "dlcmd dataset rm old-imagenet --yes"]
)
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Remove it even if running mounts or tags need it; name them."
)
@yes_option
def rm(context: CommandContext, name: str, force: bool, yes: bool) -> None:
    """Remove a dataset for good, with its files and snapshots.

    Its snapshots on this machine are deleted too.
    A dataset that has a tag, or that a running mount serves, is refused.
    """
    from dieselfs.dataset.dataset import existing_dataset, remove_dataset
    from dieselfs.snapshots.lifecycle import remove_local

    name = parse_dataset(name)
    with context.places() as (store, index):
        ref = existing_dataset(store, name)
        files = _applied(index, ref).files  # one half removed may be gone from the index already
        hit = _hit(_users(store, name, force))
        confirm(f"remove dataset {name} ({counted(files, 'file')}) for good{hit}", yes=yes)
        users = _users(store, name, force)  # the question may have waited for long
        remove_dataset(store, index, name, ref)
        local = remove_local(context.snapshot_folder, ref)
    record = {"dataset": name, "removed": True, "local_files": local, **_users_record(users)}
    context.output.done(record, f"removed dataset {name}{_hit(users)}")


def _users(store: ObjectStore, name: str, force: bool) -> DatasetUsers:
    """Return the users that `force` accepts; without it, raise `Refused` if there are any."""
    from dieselfs.housekeeping.dataset_users import dataset_users, lasting_users

    if force:
        return dataset_users(store, name, time.time_ns())
    users = lasting_users(store, name)
    users.check_none()
    return users


def _hit(users: DatasetUsers) -> str:
    """Return the end of a sentence that names the users that lose their files; empty for none."""
    described = ", ".join(users.described())
    return printable(f"; used by {described}" if described else "")


def _users_record(users: DatasetUsers) -> dict[str, Any]:
    mounts = [picked(lease, "host pid generations") for lease in users.mounts]
    return {"mounts": mounts, "tags": [tag.name for tag in users.tags]}


def print_datasets(context: CommandContext, human: bool | None = None) -> int:
    """Print a line or a JSON record for each dataset of the store.

    An index that fails is reported, and the exit code is then `PARTIAL`: the store has the names.
    """
    from concurrent.futures import ThreadPoolExecutor

    from dieselfs.snapshots.stored_datasets import dataset_names, stored_dataset

    output = context.output
    found: list[StoredDataset] = []
    with ExitStack() as stack:
        store, index, failed = _places_to_list(context, stack)
        threads = stack.enter_context(ThreadPoolExecutor(_AT_ONCE))
        asked = {
            name: threads.submit(stored_dataset, store, index, name)
            for name in dataset_names(store)
        }

        def take(name: str) -> None:
            if listed := asked[name].result():
                found.append(listed)

        code = for_each(asked, take, as_json=output.json) or failed
    rows = [_row(output, listed, human) for listed in found]
    output.listing(
        ["NAME", "FILES", "SIZE", "CHUNKS", "GENERATION", "UPDATED"],
        rows,
        map(_listed, found),
        expendable=["CHUNKS", "UPDATED"],
    )
    for listed in found:
        if listed.totals is None:
            name = listed.ref.name
            output.note(
                f"{name} is not counted: the index lacks it or is behind; `dlcmd dataset info "
                f"{name}` updates the index"
            )
    return code


def _places_to_list(
    context: CommandContext, stack: ExitStack
) -> tuple[ObjectStore, KeyValueStore, ExitCode]:
    """Return the store, and the index or an empty one in its place, with the exit code for that."""
    from metadata.dataset_state import list_datasets
    from metadata.errors import IndexDamaged, IndexUnavailable
    from metadata.kv.memory import MemoryStore

    try:
        store, index = stack.enter_context(context.places())
        list_datasets(index)
    except (IndexDamaged, IndexUnavailable) as error:
        report(explain(error), as_json=context.output.json)
        return context.store(), MemoryStore(), ExitCode.PARTIAL
    return store, index, ExitCode.OK


def _listed(listed: StoredDataset) -> dict[str, Any]:
    from chunkstore.chunk_id import print_id

    totals = dict.fromkeys(_TOTALS.split())
    if listed.totals is not None:
        totals = picked(listed.totals, _TOTALS)
    return {
        "name": listed.ref.name,
        "id": print_id(listed.ref.id),
        "generation": listed.generation,
        **totals,
        "updated": iso_time(listed.updated_ns),
    }


def _row(output: Output, listed: StoredDataset, human: bool | None) -> list[str]:
    record = _listed(listed)
    size = "-" if listed.totals is None else output.size(listed.totals.bytes, human)
    files, chunks = (
        "-" if record[key] is None else str(record[key]) for key in ("files", "chunks")
    )
    updated = output.time(listed.updated_ns)
    return [record["name"], files, size, chunks, str(listed.generation), updated]


def _applied(index: KeyValueStore, ref: DatasetRef) -> DatasetState:
    from metadata import keys
    from metadata.dataset_state import read_state

    return read_state(index, ref.id, keys.APPLIED)


def _totals(ref: DatasetRef, state: DatasetState) -> dict[str, Any]:
    from chunkstore.chunk_id import print_id

    return {
        "name": ref.name,
        "id": print_id(ref.id),
        **picked(state, f"generation {_TOTALS}"),
        "updated": iso_time(state.updated_ns),
    }


def _described(client: Client) -> dict[str, Any]:
    """Return the totals, and how much of the chunks deletions and newer versions hide."""
    namespace = client.dataset.namespace
    chunks = namespace.chunks().values()
    holes = {
        "entries": sum(chunk.deleted_count for chunk in chunks),
        "bytes": sum(chunk.deleted_bytes for chunk in chunks),
    }
    stored = {"stored_bytes": sum(chunk.head_bytes + chunk.payload_bytes for chunk in chunks)}
    packing = {"packing": _packing(client)}
    return _totals(client.dataset.ref, namespace.state()) | stored | {"holes": holes} | packing


def _packing(client: Client) -> dict[str, Any] | None:
    """Return the packing settings that the dataset remembers; None if it remembers none.

    Settings that cannot be used give their `error`.
    """
    from dieselfs.dataset.packing_choice import remembered_packing
    from dieselfs.errors import Refused

    try:
        remembered = remembered_packing(client.dataset)
    except Refused as error:
        return {"error": str(error)}
    if remembered is None:
        return None
    return {
        "chunk_bytes": remembered.target_bytes,
        "order": remembered.order,
        "keep_together": remembered.keep_together,
    }


def _told(packing: dict[str, Any] | None) -> str:
    if packing is None:
        return "not remembered"
    if "error" in packing:
        return str(packing["error"])
    kept = packing["keep_together"]
    told = f"chunks of {human_size(packing['chunk_bytes'])}, order {packing['order']}"
    return told if kept == "none" else f"{told}, files of a {kept} together"
