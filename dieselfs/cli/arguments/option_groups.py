"""Groups of options that several commands have.

Each group is one decorator. Its options are in the order in which `--help` shows them.
"""

from __future__ import annotations

from typing import Final

import click

from dieselfs.cli.command import Decorator, former_option, option_group, size_option

policy_options: Final = (
    click.option(
        "--ssd-policy",
        metavar="NAME",
        help="Cache policy that decides what the SSD caches: lru (default: as --ssd-admission and "
        "--ssd-eviction say), next-use, future, historic, hybrid, dynamic, reject-first or all.",
    ),
    click.option(
        "--ssd-shadow-policy",
        metavar="NAME",
        help="Cache policy that is asked and counted beside it, and decides nothing.",
    ),
    click.option(
        "--ssd-write-budget",
        metavar="RATE",
        help="With a cache policy: write no more to the SSD on average, such as 100MB/s.",
    ),
    click.option(
        "--ssd-buckets",
        metavar="MAP",
        help="With a cache policy: what jobs read together: dataset (default), directory or group.",
    ),
)
"""The options of cache policies: `dieselfs.cache.ssd.options.PolicyOptions`."""


def ssd_options(folder_help: str) -> Decorator:
    """Return the options of the SSD tier: `dieselfs.cache.ssd.options.SsdOptions`."""
    return option_group(
        click.option("--ssd", metavar="FOLDER", help=folder_help),
        size_option(
            "--ssd-size",
            help_text="Budget of the SSD tier (default: as before; for a new one, four fifths of "
            "the free space).",
        ),
        click.option(
            "--ssd-admission",
            type=click.Choice(["all", "reject-first"]),
            help="Which chunks to insert: all that a read misses (default), or those missed for a "
            "second time.",
        ),
        click.option(
            "--ssd-eviction",
            type=click.Choice(["lru", "fifo"]),
            help="What to evict first: the least recently used (default), or the oldest.",
        ),
        *policy_options,
    )


ssd_warmup_option: Final = click.option(
    "--ssd-warmup/--no-ssd-warmup",
    default=None,
    help="Load the whole dataset onto the SSD in the background; reads go first (`dlcmd stats` "
    "shows the progress).",
)
"""The warm-up option of commands that read one dataset."""


def cache_cluster_secret_option(more: str = "") -> Decorator:
    """Return the option of a cache cluster's secret, with its former spelling."""
    return option_group(
        click.option(
            "--cache-cluster-secret-file",
            metavar="FILE",
            help=f"File with the secret of the cache cluster{more}.",
        ),
        former_option("--ring-secret-file", "cache_cluster_secret_file"),
    )


trace_options: Final = option_group(
    click.option(
        "--record-trace",
        metavar="FILE",
        help="Record which chunks are asked for, for `dlcmd advise`. If the file exists, a number "
        "is added.",
    ),
    size_option("--record-trace-size", help_text="The most bytes of the trace (default: 64 MiB)."),
)
"""The options of the trace recorder: `dieselfs.cache.trace_options.TraceOptions`."""


cache_cluster_options: Final = option_group(
    click.option(
        "--cache-cluster",
        metavar="redis[:NAME]|[NAME@]HOST:PORT,…",
        help="Read through the nodes of this cache cluster, found in the index's Redis or by "
        "this list (see `dlcmd serve`). none: through no cache cluster, whatever is "
        "configured.",
    ),
    former_option("--ring", "cache_cluster"),
    cache_cluster_secret_option(),
)
"""The options of a cache cluster: `dieselfs.cache.cluster.settings.CacheClusterOptions`."""


peer_options: Final = option_group(
    click.option(
        "--peers",
        metavar="redis|torch|HOST:PORT,…",
        help="Share memory with the task's other nodes, found in the index's Redis, by the "
        "variables of a PyTorch job, or by this list.",
    ),
    click.option(
        "--peer-listen",
        metavar="ADDRESS[:PORT]",
        help="Address at which peers reach this node (default: 127.0.0.1; with a list, this "
        "node's entry).",
    ),
    click.option(
        "--peer-advertise",
        metavar="HOST",
        help="Host that peers connect to, if it differs from --peer-listen.",
    ),
    click.option("--peer-name", metavar="ID", help="Name of this node (default: its address)."),
    click.option(
        "--peer-nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes of the task."
    ),
    click.option(
        "--secret-file",
        metavar="FILE",
        help="File with the secret that peers prove to each other; `dlcmd task secret` makes one.",
    ),
    click.option(
        "--cache-policy",
        type=click.Choice(["oneshot", "on-demand"]),
        help="When this node fetches its share: at the start, or each chunk at its first use "
        "(default).",
    ),
    click.option("--no-share", is_flag=True, help="Give peers no memory; only read from theirs."),
)
"""The options of a node in its task's peer cache: `cache.membership.peer_options.PeerOptions`."""
