"""Options that belong together and that several verbs have: each group is one decorator, in the order in which `--help` shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import click

from dieselfs.cli.verb import Size, former_option

Decorator: TypeAlias = Callable[[Any], Any]


def _group(*options: Decorator) -> Decorator:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def ssd_options(folder_help: str) -> Decorator:
    """Where the SSD tier is and how it is kept: `dieselfs.ssd_options.SsdOptions`."""
    return _group(
        click.option("--ssd", metavar="FOLDER", help=folder_help),
        click.option(
            "--ssd-size",
            type=Size(),
            metavar="SIZE",
            help="What it may take of the SSD (default: as before; of a new one four fifths of what is free).",
        ),
        click.option(
            "--ssd-admission",
            type=click.Choice(["all", "reject-first"]),
            help="Which chunks come onto it: all that are asked for (default), or those asked for a second time.",
        ),
        click.option(
            "--ssd-eviction",
            type=click.Choice(["lru", "fifo"]),
            help="What leaves it first: what was used least recently (default), or what came first.",
        ),
    )


ssd_warmup_option: Final = click.option(
    "--ssd-warmup/--no-ssd-warmup",
    default=None,
    help="Bring the whole dataset onto the SSD in the background, behind what is read (`dlcmd stats` says how far it is).",
)
"""Of who reads one dataset."""


cache_cluster_options: Final = _group(
    click.option(
        "--cache-cluster",
        metavar="redis[:NAME]|[NAME@]HOST:PORT,…",
        help="Read through the cache nodes of this cache cluster, found by the index's Redis or in this list (`dlcmd serve`); none: through none, whatever is configured.",
    ),
    click.option(
        "--cache-cluster-secret-file",
        metavar="FILE",
        help="The secret of the cache cluster and of who reads through it.",
    ),
    former_option("--ring", "cache_cluster"),
    former_option("--ring-secret-file", "cache_cluster_secret_file"),
)
"""Which cache nodes are read through: `dieselfs.cachenodes.ring_settings.CacheClusterOptions`."""


peer_options: Final = _group(
    click.option(
        "--peers",
        metavar="redis|torch|HOST:PORT,…",
        help="Put the task's memory together with that of its other nodes, found by the index's Redis, by a PyTorch job's variables, or in this list.",
    ),
    click.option(
        "--peer-listen",
        metavar="ADDRESS[:PORT]",
        help="Where peers reach this node (default: 127.0.0.1, of a list the own entry).",
    ),
    click.option(
        "--peer-advertise",
        metavar="HOST",
        help="What peers are told to connect to, if it is not where this listens.",
    ),
    click.option("--peer-name", metavar="ID", help="This node's name (default: its address)."),
    click.option(
        "--peer-nodes", type=click.IntRange(min=1), metavar="N", help="How many nodes the task has."
    ),
    click.option(
        "--secret-file",
        metavar="FILE",
        help="The secret that peers prove to each other; `dlcmd task secret` makes one.",
    ),
    click.option(
        "--cache-policy",
        type=click.Choice(["oneshot", "on-demand"]),
        help="When this node fetches its share: at the start, or each chunk on first use (default).",
    ),
    click.option("--no-share", is_flag=True, help="Give peers no memory, only read from theirs."),
)
"""How a node takes part in its task's peer cache: `dieselfs.peercache.peer_options.PeerOptions`."""
