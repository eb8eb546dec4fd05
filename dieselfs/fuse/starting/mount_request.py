"""The request for a mount, and the command line that gives it to a daemon."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chunkstore.stores.retrying import PATIENCE_S
from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cache.membership.peer_options import PeerOptions
from dieselfs.cache.ssd.options import SsdOptions
from dieselfs.cache.trace_options import TraceOptions
from dieselfs.config import Config, without_login
from dieselfs.dataset.address import DatasetAddress

if TYPE_CHECKING:
    from dieselfs.cache.node.block_eviction import PolicyName
    from dieselfs.fuse.mounts.front_choice import WantedCache, WantedFront
    from dieselfs.shuffle.order import ShuffleParameters


@dataclass(frozen=True, slots=True)
class MountRequest:
    """A dataset, a mountpoint, and the values of the options that `dlcmd mount` has.

    None stands for an option that is not given.
    """

    address: DatasetAddress
    mountpoint: Path
    allow_other: bool = False
    nonempty: bool = False
    uid: int | None = None
    gid: int | None = None
    snapshot: str | None = None
    refresh: bool | None = None
    no_index: bool = False
    memory_bytes: int | None = None
    task: str | None = None
    job: str | None = None
    shuffle: ShuffleParameters | None = None
    eviction: PolicyName | None = None
    preload: bool = False
    no_foreign_plans: bool = False
    prefill_bytes: int | None = None
    front: WantedFront = "auto"
    blob_cache: WantedCache = "auto"
    threads: int | None = None
    patience_s: float | None = None
    peers: PeerOptions = field(default_factory=PeerOptions)
    """Only what the caller gives: a daemon inherits the variables."""
    ssd: SsdOptions = field(default_factory=SsdOptions)
    """Only what the caller gives, likewise."""
    cache_cluster: CacheClusterOptions = field(default_factory=CacheClusterOptions)
    """Only what the caller gives, likewise."""
    cache_datasets: str | None = None
    trace: TraceOptions = field(default_factory=TraceOptions)
    """Only what the caller gives, likewise."""


def daemon_command(config: Config, request: MountRequest, snapshot: Path) -> list[str]:
    """Return the command line of the daemon.

    The daemon inherits the environment, so only the values of flags, -o options and the settings in
    the store are repeated.
    """
    command = [
        *this_program(),
        "mount",
        "--foreground",
        "--no-index",
        "--snapshot",
        os.fspath(snapshot.absolute()),
    ]
    for place in (config.store, config.index):
        # Peers meet in the index's Redis. No flag has a password: `dieselfs.config`.
        command += [place.origin, place.value] if place.origin.startswith("--") else []
    if config.index.is_stored:  # without the log-in, which the daemon finds as this process did
        command += ["--index", without_login(config.index.value)]
    command += ["--profile", config.profile] if config.profile else []
    command += ["--allow-other"] if request.allow_other else []
    command += ["--nonempty"] if request.nonempty else []
    command += ["--preload"] if request.preload else []
    command += ["--no-foreign-plans"] if request.no_foreign_plans else []
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
        ("--threads", request.threads),
        ("--uid", request.uid),
        ("--gid", request.gid),
        ("--memory", request.memory_bytes),
        ("--task", request.task),
        ("--job", request.job),
        ("--eviction", request.eviction),
        ("--shuffle", request.shuffle),
        ("--prefill", request.prefill_bytes),
        ("--patience", round(request.patience_s or PATIENCE_S)),
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
        ("--ssd-policy", request.ssd.policies.policy),
        ("--ssd-shadow-policy", request.ssd.policies.shadow),
        ("--ssd-write-budget", request.ssd.policies.write_budget),
        ("--ssd-buckets", request.ssd.policies.buckets),
        ("--record-trace", request.trace.file),
        ("--record-trace-size", request.trace.size_bytes),
        ("--secret-file", None if secret_file is None else os.path.abspath(secret_file)),
        ("--cache-cluster", request.cache_cluster.cache_cluster),
        (
            "--cache-cluster-secret-file",
            None
            if cache_cluster_secret_file is None
            else os.path.abspath(cache_cluster_secret_file),
        ),
        ("--cache-datasets", request.cache_datasets),
    ):
        command += [] if value is None else [flag, str(value)]
    return [*command, "--", request.address.dataset, os.path.abspath(request.mountpoint)]


def names_file(request: MountRequest) -> bool:
    """Return whether the request names its snapshot's file, as that of a daemon does."""
    return request.snapshot is not None and Path(request.snapshot).is_absolute()


def sharing_key(config: Config, request: MountRequest, snapshot: Path, job: str | None) -> str:
    """Return a key that is equal for two mounts that differ in nothing but their place.

    Such mounts can share one server and its pages. `job` is the one that they tell cache policies,
    also by Slurm's job id: a server reads for one job.
    """
    command = daemon_command(config, request, snapshot)[:-1]
    variables = sorted(item for item in os.environ.items() if item[0].startswith("DIESELFS_"))
    return hashlib.sha256(repr((command[2:], variables, job)).encode()).hexdigest()


def this_program() -> list[str]:
    """Return the command that starts `dlcmd` again, from wherever it was started."""
    script = os.path.realpath(sys.argv[0])  # mount(8) runs `dlcmd` by another name
    if os.path.basename(script).startswith("dlcmd") and os.path.isfile(script):
        return [sys.executable, script]
    return [sys.executable, "-m", "dieselfs.cli"]
