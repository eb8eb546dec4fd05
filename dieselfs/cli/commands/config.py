"""`dlcmd config`: the settings that all nodes of a store share, and where each value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.config import Config, Setting

_LOCAL_KEYS: Final = ("store", "snapshots", "index_login", "job")
"""Keys of each node, which cannot be set in the store; `config explain` shows them too."""


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Set and show the settings that all nodes of a store share.

    They are kept in the store. A flag, a variable and a profile of a node take precedence, and the
    settings for a dataset take precedence over those for the store.
    """


_dataset_option: Final = click.option(
    "--dataset", metavar="DATASET", help="For this dataset alone (default: for the whole store)."
)


@command(
    name="set",
    group=config,
    examples=[
        "dlcmd config set index redis://node1:6379/0",
        "dlcmd config set ssd /local/ssd",
        "dlcmd config set memory 8GiB --dataset imagenet",
    ],
)
@click.argument("key")
@click.argument("value")
@_dataset_option
def set_(context: CommandContext, key: str, value: str, dataset: str | None) -> None:
    """Set a key for all nodes.

    The keys are index, cache_cluster, cache_cluster_secret_file, cache_datasets, ssd, ssd_size,
    ssd_admission, ssd_eviction, ssd_warmup, ssd_policy, ssd_shadow_policy, ssd_write_budget,
    ssd_buckets, patience, refresh, memory, eviction and prefill. A password is refused: every
    reader of the store could read it.
    """
    from dieselfs.assembly import open_configured_store
    from dieselfs.config.shared.changes import set_shared
    from dieselfs.config.shared.values import known_key

    name = None if dataset is None else parse_dataset(dataset)
    store = open_configured_store(context.config, None, create=True)
    set_shared(store, key, value, name)
    key = known_key(key, name)
    context.output.done(
        {"key": key, "value": value, "dataset": name}, f"{key} = {value} for {_whom(name)}"
    )
    if key == "cache_datasets" and _matches_none(value, store):
        context.output.note(f"{value} matches no dataset of this store; see `dlcmd dataset ls`")


def _matches_none(patterns: str, store: ObjectStore) -> bool:
    """Return whether patterns of datasets' names match none of a store that has some."""
    from chunkstore.ssd.policies.eligibility import Eligibility
    from dieselfs.snapshots.stored_datasets import dataset_names

    names = dataset_names(store)
    return bool(names) and Eligibility.parse(patterns).matches_none(names)


@command(
    group=config,
    examples=["dlcmd config get index", "dlcmd config get memory --dataset imagenet"],
)
@click.argument("key")
@_dataset_option
def get(context: CommandContext, key: str, dataset: str | None) -> None:
    """Print the value that is set in the store.

    The exit code is 4 if none is set. `dlcmd config explain` prints the value that counts on this
    node.
    """
    from chunkstore.errors import NotFound
    from chunkstore.store_settings import newest_version
    from dieselfs.config.shared.values import known_key

    name = None if dataset is None else parse_dataset(dataset)
    key = known_key(key, name)
    values = newest_version(context.store()).values(name)
    if key not in values:
        of = "" if name is None else f" --dataset {name}"
        raise NotFound(f"{key} is not set for {_whom(name)}: see `dlcmd config explain {key}{of}`")
    context.output.result({"key": key, "value": values[key], "dataset": name}, str(values[key]))


@command(group=config, examples=["dlcmd config ls", "dlcmd config ls --dataset imagenet --json"])
@_dataset_option
def ls(context: CommandContext, dataset: str | None) -> None:
    """List what is set in the store."""
    from chunkstore.store_settings import newest_version

    name = None if dataset is None else parse_dataset(dataset)
    found = newest_version(context.store())
    wanted: list[tuple[str | None, Mapping[str, Any]]] = [(name, found.values(name))]
    if name is None:
        wanted += sorted(found.datasets.items())
    rows = [(of, key, str(values[key])) for of, values in wanted for key in sorted(values)]
    context.output.listing(
        ["KEY", "VALUE", "FOR"],
        [[key, value, _whom(of)] for of, key, value in rows],
        ({"key": key, "value": value, "dataset": of} for of, key, value in rows),
    )


@command(
    group=config,
    examples=["dlcmd config unset memory --dataset imagenet", "dlcmd config unset --all --yes"],
)
@click.argument("key", required=False)
@_dataset_option
@click.option("--all", "everything", is_flag=True, help="Remove all settings, also damaged ones.")
@yes_option
def unset(
    context: CommandContext, key: str | None, dataset: str | None, everything: bool, yes: bool
) -> None:
    """Remove a setting from the store."""
    from chunkstore.store_settings import clear
    from dieselfs.cli.rendering.confirmation import confirm
    from dieselfs.config.former_names import present_key
    from dieselfs.config.shared.changes import unset_shared

    if (key is None) != everything:
        raise UsageError("name one key, or give --all", "see `dlcmd config unset --help`")
    name, store = None if dataset is None else parse_dataset(dataset), context.store()
    what = f"all settings for {_whom(name)}" if key is None else key
    if key is None and name is None:
        what = "all settings of the store and of its datasets"
        confirm(f"remove {what}", yes=yes)
        clear(store)
        was_set = True
    else:
        key = None if key is None else present_key(key.replace("-", "_"))
        was_set = unset_shared(store, key, name)
    what += "" if key is None else f" for {_whom(name)}"
    context.output.done(
        {"key": key, "dataset": name, "removed": was_set},
        f"removed {what}" if was_set else f"nothing to remove: {what}",
    )


@command(
    group=config,
    examples=["dlcmd config explain", "dlcmd config explain ssd --dataset imagenet"],
)
@click.argument("key", required=False)
@_dataset_option
def explain(context: CommandContext, key: str | None, dataset: str | None) -> None:
    """Show which value counts on this node, and where it comes from.

    It is looked for in this order: flag, variable, profile, the dataset's settings, the store's
    settings, default.
    """
    from dieselfs.config import SHARED_KEYS
    from dieselfs.config.shared.values import known_key

    name = None if dataset is None else parse_dataset(dataset)
    keys: tuple[str, ...] = (*_LOCAL_KEYS, *SHARED_KEYS)
    if key is not None:
        keys = (key,) if key in _LOCAL_KEYS else (known_key(key, None),)
    found = context.shared(name).config
    rows = [(each, *_shown(found, each)) for each in keys]
    context.output.listing(
        ["KEY", "VALUE", "FROM"],
        [[each, "-" if value is None else value, origin] for each, value, origin in rows],
        ({"key": each, "value": value, "from": origin} for each, value, origin in rows),
    )


def _shown(found: Config, key: str) -> tuple[str | None, str]:
    """Return the value and the origin of a key, without a password."""
    from dieselfs.config import DEFAULT_ORIGIN
    from metadata.url_secrets import redacted

    setting: Setting | None = getattr(found, key)
    if setting is None:
        return None, DEFAULT_ORIGIN
    return "***" if key == "index_login" else redacted(setting.value), setting.origin


def _whom(dataset: str | None) -> str:
    return "the store" if dataset is None else f"dataset {dataset}"
