"""`dlcmd serve`: a cache node. It runs in the foreground, and a service manager watches it."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cache.cluster.settings import DEFAULT_CLUSTER
from dieselfs.cli.arguments.option_groups import cache_cluster_secret_option, ssd_options
from dieselfs.cli.command import command, former_option, log_to_stderr, size_option
from dieselfs.cli.command_context import CommandContext
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
    metavar="NAME",
    help="Name of the cache cluster.",
)
@former_option("--ring", "cache_cluster", default=DEFAULT_CLUSTER)
@cache_cluster_secret_option("; `dlcmd task secret` makes one")
@ssd_options("Cache chunks in this folder of a local SSD (required unless configured).")
@size_option("--memory", help_text="Memory for chunks just read (default: 256 MiB).")
@click.option(
    "--no-announce",
    is_flag=True,
    help="Don't announce this node in the index's Redis; clients list it.",
)
def serve(context: CommandContext, **options: Any) -> None:
    """Run a cache node, which serves chunks from this machine's SSD.

    The node serves all datasets of the configured store, and caches on its SSD the chunks that it
    is asked for. The size of its SSD decides its share of the cache cluster's chunks. If the index
    is in Redis, clients find the nodes there (`--cache-cluster redis` of a mount). Otherwise they
    need a list (`--cache-cluster HOST:PORT,HOST:PORT`). SIGTERM or Ctrl-C ends it.
    """
    from dieselfs.assembly import open_configured_store
    from dieselfs.cache.cluster.cache_node import CacheNode
    from dieselfs.cache.ports.core_dumps import prevent_core_dumps

    settings = _settings(context, options)
    log_to_stderr()
    prevent_core_dumps()
    ended = threading.Event()
    store = open_configured_store(context.config, PATIENCE_S)
    try:
        node = CacheNode(settings, store)
    except OSError as error:
        raise LocalFileError(
            f"{settings.listen}: {error.strerror or error}", "choose another --listen"
        ) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    found_by = "in the index's Redis" if settings.leases else "by a list that has it"
    log.info(
        "ready: %s of cache cluster %s, %s on %s, found %s",
        *(settings.id, settings.cache_cluster, human_size(node.budget_bytes), settings.ssd.folder),
        found_by,
    )
    ended.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a second signal would cut the shutdown short
    log.info("ending")
    node.close(CLOSE_S)
    log.info("ended")


def _settings(context: CommandContext, options: dict[str, Any]) -> CacheNodeSettings:
    from dieselfs.cache.cluster.chunk_memory import DEFAULT_MEMORY_BYTES, MIN_MEMORY_BYTES
    from dieselfs.cache.cluster.node_settings import CacheNodeSettings
    from dieselfs.cache.cluster.options import cluster_name, cluster_secret, redis_of
    from dieselfs.cache.membership.peer_addresses import is_host, is_wildcard, parse_address
    from dieselfs.cache.ssd.options import SsdOptions, typed_folder
    from dieselfs.cache.ssd.settings import configured, ssd_settings

    listen = parse_address(options["listen"], "--listen", DEFAULT_PORT)
    advertise = options["advertise"]
    if not listen.port:
        raise UsageError(
            "--listen with port 0: clients could not find the node", "write another port"
        )
    memory_bytes = options["memory"] or DEFAULT_MEMORY_BYTES
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
    cache_cluster = cluster_name(options["cache_cluster"])
    secret = cluster_secret(options["cache_cluster_secret_file"], context.config)
    policies = options["ssd_admission"], options["ssd_eviction"]
    given = SsdOptions(typed_folder(options["ssd"]), options["ssd_size"], *policies)
    ssd = ssd_settings(given.otherwise(configured(context.config)))
    if ssd is None:
        raise UsageError(
            "a cache node needs an SSD for its chunks", "name its folder: --ssd FOLDER"
        )
    ssd.check()
    return CacheNodeSettings(
        cache_cluster=cache_cluster,
        secret=secret,
        ssd=ssd,
        listen=listen,
        advertise=advertise,
        leases=None if options["no_announce"] else redis_of(context.config.index),
        memory_bytes=memory_bytes,
    )
