"""`dlcmd serve`: a cache node. It runs in the foreground, and a service manager watches it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cache.cluster.settings import DEFAULT_CLUSTER
from dieselfs.cli.arguments.option_groups import (
    cache_cluster_secret_option,
    ssd_options,
    trace_options,
)
from dieselfs.cli.command import command, former_option, log_to_stderr, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.stop_signals import StopSignals
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import LocalFileError, UsageError

if TYPE_CHECKING:
    from dieselfs.cache.cluster.node_settings import CacheNodeSettings

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 7700
PATIENCE_S: Final = 10.0
"""Patience with the store.

It is shorter than the patience of clients with a node, so that they learn of a failure and ask the
store themselves.
"""
CLOSE_S: Final = 4.0
ALLOCATIONS_CLOSE_S: Final = 0.5


@command(
    examples=[
        (
            "dlcmd serve --listen 10.0.0.1 --cache-cluster-secret-file cluster.secret --ssd "
            "/nvme/dieselfs --ssd-size 2TiB"
        ),
        (
            "dlcmd serve --listen 0.0.0.0:7700 --advertise node7 --cache-cluster images "
            "--cache-cluster-secret-file cluster.secret --ssd /nvme/dieselfs --ssd-size 500GiB"
        ),
    ]
)
@click.option(
    "--listen",
    required=True,
    metavar="ADDRESS[:PORT]",
    help=f"Address at which clients reach this node (default port: {DEFAULT_PORT}).",
)
@click.option(
    "--advertise",
    metavar="HOST",
    help="Host that clients connect to, if it differs from --listen. With the port it is "
    "this node's name.",
)
@click.option(
    "--cache-cluster",
    default=DEFAULT_CLUSTER,
    show_default=True,
    metavar="NAME[@HOST:PORT,…]",
    help="Name of the cache cluster; with a list of its nodes, which --warm-on-miss needs if the "
    "index is not in Redis.",
)
@former_option("--ring", "cache_cluster", default=DEFAULT_CLUSTER)
@cache_cluster_secret_option("; `dlcmd task secret` makes one")
@ssd_options("Cache chunks in this folder of a local SSD (required unless configured).")
@size_option("--memory", help_text="Memory for chunks just read (default: 256 MiB).")
@trace_options
@click.option(
    "--no-announce",
    is_flag=True,
    help="Don't announce this node in the index's Redis; clients list it.",
)
@click.option(
    "--warm-on-miss",
    is_flag=True,
    help="When a dataset is first missed, load this node's share of it in the background.",
)
def serve(context: CommandContext, **options: Any) -> None:
    """Run a cache node, which serves chunks from this machine's SSD.

    The node serves all datasets of the configured store, and caches on its SSD the chunks that it
    is asked for. The size of its SSD decides its share of the cache cluster's chunks. If the index
    is in Redis, clients find the nodes there (`--cache-cluster redis` of a mount). Otherwise they
    need a list (`--cache-cluster HOST:PORT,HOST:PORT`). SIGTERM or Ctrl-C ends it.

    With --warm-on-miss the first read that the SSD cannot answer makes the node load its share of
    the dataset's newest published snapshot, while no client waits for the store. `dlcmd cache ls
    -v` shows how far it is.
    """
    from dieselfs.assembly import configured_patience_s, open_configured_store
    from dieselfs.cache.cluster.cache_node import CacheNode
    from dieselfs.cache.cluster.node_allocation import keep_allocations
    from dieselfs.cache.jobs.job_beats import watch_jobs
    from dieselfs.cache.ports.core_dumps import prevent_core_dumps
    from dieselfs.cache.ports.process_heap import keep_heap_small
    from dieselfs.cache.trace_options import trace_settings, typed_options

    keep_heap_small()  # the settings of the store are read by threads
    context = context.shared()
    settings = _settings(context, options)
    recorded = trace_settings(
        typed_options(options["record_trace"], options["record_trace_size"]), context.config
    )
    log_to_stderr()
    prevent_core_dumps()
    store = open_configured_store(context.config, configured_patience_s(context.config))
    try:
        node = CacheNode(settings, store)
    except OSError as error:
        raise LocalFileError(
            f"{settings.listen}: {error.strerror or error}", "choose another --listen"
        ) from error
    recorder = None
    if recorded is not None:
        from dieselfs.cache.advice.recorder import Recorder

        recorder = Recorder(recorded)
        node.tier.policies.observe(recorder)
    jobs = watch_jobs(context.config.index.value, node.tier.policies)
    allocations = keep_allocations(context.config.index.value, node)
    warming = None
    if options["warm_on_miss"]:
        from dieselfs.cache.warmup.warm_on_miss import WarmOnMiss

        warming = WarmOnMiss(node, store, settings.ssd, context.snapshot_folder)
    stop = StopSignals()
    found_by = "in the index's Redis" if settings.leases else "by a list that has it"
    log.info(
        "ready: %s of cache cluster %s, %s on %s, found %s",
        *(settings.id, settings.cache_cluster, human_size(node.budget_bytes), settings.ssd.folder),
        found_by,
    )
    stop.wait()
    stop.ignore()
    log.info("ending")
    if warming is not None:
        warming.close()
    jobs.close()
    allocations.close(ALLOCATIONS_CLOSE_S)
    node.close(CLOSE_S)
    if recorder is not None:
        recorder.close()
    log.info("ended")


def _settings(context: CommandContext, options: dict[str, Any]) -> CacheNodeSettings:
    from dieselfs.cache.cluster.chunk_memory import DEFAULT_MEMORY_BYTES, MIN_MEMORY_BYTES
    from dieselfs.cache.cluster.node_settings import CacheNodeSettings
    from dieselfs.cache.cluster.options import cluster_name, cluster_secret, redis_of
    from dieselfs.cache.membership.peer_addresses import (
        is_host,
        is_wildcard,
        parse_address,
        parse_addresses,
    )
    from dieselfs.cache.ssd.options import (
        POLICY_KEYS,
        PolicyOptions,
        SsdOptions,
        typed_folder,
    )
    from dieselfs.cache.ssd.settings import configured, ssd_settings

    listen = parse_address(options["listen"], "--listen", DEFAULT_PORT)
    advertise = options["advertise"]
    if not listen.port:
        raise UsageError(
            "--listen with port 0: clients could not find the node", "write another port"
        )
    memory_bytes = DEFAULT_MEMORY_BYTES if options["memory"] is None else options["memory"]
    if memory_bytes < MIN_MEMORY_BYTES:
        raise UsageError(
            f"--memory {human_size(memory_bytes)}: too little for the requests of clients",
            f"give {human_size(MIN_MEMORY_BYTES)} at least",
        )
    reached = advertise or listen.host
    if is_wildcard(reached) or not is_host(reached):
        raise UsageError(
            f"clients can't connect to {reached}",
            "name the host by which they reach this node: --advertise HOST",
        )
    name, _, nodes = options["cache_cluster"].partition("@")
    cache_cluster = cluster_name(name)
    listed = parse_addresses(nodes, "--cache-cluster") if nodes else ()
    secret = cluster_secret(options["cache_cluster_secret_file"], context.config)
    orders = options["ssd_admission"], options["ssd_eviction"]
    policies = PolicyOptions(*(options[key] for key in POLICY_KEYS))
    given = SsdOptions(
        typed_folder(options["ssd"]), options["ssd_size"], *orders, policies=policies
    )
    ssd = ssd_settings(given.otherwise(configured(context.config)))
    if ssd is None:
        raise UsageError(
            "a cache node needs an SSD for its chunks", "name its folder: --ssd FOLDER"
        )
    found = CacheNodeSettings(
        cache_cluster=cache_cluster,
        secret=secret,
        ssd=ssd,
        listen=listen,
        advertise=advertise,
        leases=None if options["no_announce"] else redis_of(context.config.index),
        memory_bytes=memory_bytes,
        listed=listed,
    )
    _check_nodes(found, warms=options["warm_on_miss"])
    ssd.check()
    return found


def _check_nodes(settings: CacheNodeSettings, *, warms: bool) -> None:
    """Raise `UsageError` if the share of a node that warms datasets cannot be known."""
    if settings.listed and settings.address not in settings.listed:
        raise UsageError(
            f"--cache-cluster: the list does not have this node, {settings.id}",
            "write the nodes as clients do, with the host of --advertise",
        )
    if warms and settings.leases is None and not settings.listed:
        raise UsageError(
            "--warm-on-miss needs the other nodes, to compute this node's share of a dataset",
            f"name all nodes: --cache-cluster {settings.cache_cluster}@{settings.id},HOST:PORT…, "
            "or use an index in Redis",
        )
