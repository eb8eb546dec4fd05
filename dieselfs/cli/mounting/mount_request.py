"""The request to `dlcmd mount`, from flags and the options of an fstab line.

The module also makes the command line that gives a daemon the same request.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chunkstore.stores.retrying import PATIENCE_S
from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cache.membership.peer_options import TASK_VARIABLE, PeerOptions
from dieselfs.cache.ssd.options import SsdOptions, typed_folder
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.mount_helper import is_mount_helper
from dieselfs.cli.mounting.mount_options import as_number
from dieselfs.cli.values.sizes import parse_size
from dieselfs.dataset.address import DatasetAddress
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.cache.node.block_eviction import PolicyName
    from dieselfs.fuse.mounts.front_choice import WantedCache, WantedFront
    from dieselfs.shuffle.order import ShuffleParameters

FRONTS: Final = ("auto", "erofs", "erofs-loop", "fuse")
BLOB_CACHES: Final = ("auto", "buffered", "direct")
EVICTIONS: Final = ("uniform", "lru")


@dataclass(frozen=True, slots=True)
class MountRequest:
    """The values of the flags and the -o options together."""

    address: DatasetAddress
    mountpoint: Path
    allow_other: bool
    nonempty: bool
    uid: int | None
    gid: int | None
    snapshot: str | None
    refresh: bool
    no_index: bool
    memory_bytes: int | None
    task: str | None
    shuffle: ShuffleParameters | None
    eviction: PolicyName | None
    preload: bool
    prefill_bytes: int | None
    front: WantedFront
    blob_cache: WantedCache
    patience_s: float
    peers: PeerOptions
    """Only what flags and -o options give: a daemon inherits the variables."""
    ssd: SsdOptions
    """Only what flags and -o options give, likewise."""
    cache_cluster: CacheClusterOptions
    """Only what flags and -o options give, likewise."""


def mount_request(
    address: DatasetAddress, mountpoint: Path, options: dict[str, str], flags: dict[str, Any]
) -> MountRequest:
    """Build the request; flags take precedence over options.

    Raises `UsageError` for a combination that makes no sense.
    """
    if address.path:
        raise UsageError(f"{address}: only whole datasets are mounted", f"mount {address.dataset}")
    if address.snapshot and flags["snapshot"]:
        raise UsageError(f"{address} and --snapshot {flags['snapshot']}", "name one snapshot")
    memory_option = options.get("memory") or options.get("cache_memory")
    memory = None if memory_option is None else parse_size(memory_option)
    shuffle = flags["shuffle"] or options.get("shuffle")
    prefill = parse_size(options["prefill"]) if "prefill" in options else None
    return MountRequest(
        address=address,
        mountpoint=mountpoint,
        allow_other=flags["allow_other"] or "allow_other" in options,
        nonempty=flags["nonempty"] or "nonempty" in options,
        uid=as_number(options, "uid") if flags["uid"] is None else flags["uid"],
        gid=as_number(options, "gid") if flags["gid"] is None else flags["gid"],
        snapshot=flags["snapshot"] or options.get("snapshot") or address.snapshot,
        refresh=flags["refresh"] or "refresh" in options,
        no_index=flags["no_index"] or "no_index" in options,
        memory_bytes=flags["memory"] or memory,
        task=flags["task"] or options.get("task") or os.environ.get(TASK_VARIABLE) or None,
        shuffle=None if shuffle is None else _parameters(shuffle),
        eviction=_chosen("eviction", EVICTIONS, flags, options),
        preload=flags["preload"] or "preload" in options,
        prefill_bytes=prefill if flags["prefill"] is None else flags["prefill"],
        front=_chosen("front", FRONTS, flags, options) or "auto",
        blob_cache=_chosen("blob_cache", BLOB_CACHES, flags, options) or "auto",
        patience_s=float(_patience(flags, options) or PATIENCE_S),
        peers=_peers(options, flags),
        ssd=_ssd(options, flags),
        cache_cluster=CacheClusterOptions(
            flags["cache_cluster"] or options.get("cache_cluster"),
            flags["cache_cluster_secret_file"] or options.get("cache_cluster_secret_file"),
        ),
    )


def _ssd(options: dict[str, str], flags: dict[str, Any]) -> SsdOptions:
    size = options.get("ssd_size")
    in_options = SsdOptions(
        options.get("ssd"),
        None if size is None else parse_size(size),
        options.get("ssd_admission"),
        options.get("ssd_eviction"),
        True if "ssd_warmup" in options else None,
    )
    return SsdOptions(
        typed_folder(flags["ssd"]),
        flags["ssd_size"],
        flags["ssd_admission"],
        flags["ssd_eviction"],
        flags["ssd_warmup"],
    ).otherwise(in_options)


def _peers(options: dict[str, str], flags: dict[str, Any]) -> PeerOptions:
    in_options = PeerOptions(
        options.get("peers"),
        options.get("peer_listen"),
        options.get("peer_advertise"),
        options.get("peer_name"),
        as_number(options, "peer_nodes"),
        options.get("secret_file"),
        options.get("cache_policy"),
        True if "no_share" in options else None,
    )
    in_flags = PeerOptions(
        flags["peers"],
        flags["peer_listen"],
        flags["peer_advertise"],
        flags["peer_name"],
        flags["peer_nodes"],
        flags["secret_file"],
        flags["cache_policy"],
        flags["no_share"] or None,
    )
    return in_flags.otherwise(in_options)


def _patience(flags: dict[str, Any], options: dict[str, str]) -> int | None:
    return as_number(options, "patience") if flags["patience"] is None else flags["patience"]


def daemon_command(context: CommandContext, request: MountRequest, snapshot: Path) -> list[str]:
    """Return the command line of the daemon.

    The daemon inherits the environment, so only the values of flags and -o options are repeated.
    """
    command = [
        *this_program(),
        "mount",
        "--foreground",
        "--no-index",
        "--snapshot",
        os.fspath(snapshot.absolute()),
    ]
    for place in (context.config.store, context.config.index):
        # Peers meet in the index's Redis. No flag has a password: `dieselfs.config`.
        command += [place.origin, place.value] if place.origin.startswith("--") else []
    command += ["--profile", context.profile] if context.profile else []
    command += ["--allow-other"] if request.allow_other else []
    command += ["--nonempty"] if request.nonempty else []
    command += ["--preload"] if request.preload else []
    command += ["--no-share"] if request.peers.no_share else []
    if request.ssd.warmup is not None:
        command += ["--ssd-warmup" if request.ssd.warmup else "--no-ssd-warmup"]
    secret_file, cache_cluster_secret_file = (
        request.peers.secret_file,
        request.cache_cluster.secret_file,
    )
    for flag, value in (
        ("--front", request.front),
        ("--blob-cache", request.blob_cache),
        ("--uid", request.uid),
        ("--gid", request.gid),
        ("--memory", request.memory_bytes),
        ("--task", request.task),
        ("--eviction", request.eviction),
        ("--shuffle", request.shuffle),
        ("--prefill", request.prefill_bytes),
        ("--patience", round(request.patience_s)),
        ("--peers", request.peers.peers),
        ("--peer-listen", request.peers.listen),
        ("--peer-advertise", request.peers.advertise),
        ("--peer-name", request.peers.name),
        ("--peer-nodes", request.peers.nodes),
        ("--cache-policy", request.peers.cache_policy),
        ("--ssd", request.ssd.folder),
        ("--ssd-size", request.ssd.size_bytes),
        ("--ssd-admission", request.ssd.admission),
        ("--ssd-eviction", request.ssd.eviction),
        ("--secret-file", None if secret_file is None else os.path.abspath(secret_file)),
        ("--cache-cluster", request.cache_cluster.cache_cluster),
        (
            "--cache-cluster-secret-file",
            None
            if cache_cluster_secret_file is None
            else os.path.abspath(cache_cluster_secret_file),
        ),
    ):
        command += [] if value is None else [flag, str(value)]
    return [*command, "--", request.address.dataset, os.path.abspath(request.mountpoint)]


def sharing_key(context: CommandContext, request: MountRequest, snapshot: Path) -> str:
    """Return a key that is equal for two mounts that differ in nothing but their place.

    Such mounts can share one server and its pages.
    """
    command = daemon_command(context, request, snapshot)[:-1]
    variables = sorted(item for item in os.environ.items() if item[0].startswith("DIESELFS_"))
    return hashlib.sha256(repr((command[2:], variables)).encode()).hexdigest()


def this_program() -> list[str]:
    """Return the command that starts `dlcmd` again, from wherever it was started."""
    script = os.path.abspath(sys.argv[0])
    if is_mount_helper(script):
        script = os.path.realpath(script)
    if os.path.basename(script).startswith("dlcmd") and os.path.isfile(script):
        return [sys.executable, script]
    return [sys.executable, "-m", "dieselfs.cli"]


def _chosen(
    name: str, choices: tuple[str, ...], flags: dict[str, Any], options: dict[str, str]
) -> Any:
    """Return the value of a flag or -o option that has few values; None if neither was given."""
    value = flags[name] or options.get(name)
    if value is None or value in choices:
        return value
    raise UsageError(
        f"-o {name}={value}", "write " + " or ".join(f"{name}={choice}" for choice in choices)
    )


def _parameters(text: str) -> ShuffleParameters:
    from dieselfs.shuffle.order import parse_parameters

    try:
        # A comma would end a -o option, so a colon may stand for it.
        return parse_parameters(text.replace(":", ","))
    except ValueError as error:
        raise UsageError(f"--shuffle {error}") from error
