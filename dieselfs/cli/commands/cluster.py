"""`dlcmd cluster`: the cache nodes of a cache cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.arguments.option_groups import cache_cluster_secret_option
from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, picked
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.cache.cluster.status import CacheNodeReport
    from dieselfs.cache.ports.cached_chunks import PolicyStatus

_HEADINGS: Final = (
    *("NODE", "SHARE", "SSD", "USED", "SERVED", "REQUESTS", "FROM SSD", "FROM STORE"),
    *("POLICY", "HITS", "ABSORBED", "STATE"),
)


@command(
    examples=[
        "dlcmd cluster",
        "dlcmd cluster redis:images",
        "dlcmd cluster node1:7700,node2:7700 --cache-cluster-secret-file cluster.secret --json",
    ]
)
@click.argument("cache_cluster", required=False, metavar="[redis[:NAME]|[NAME@]HOST:PORT,…]")
@cache_cluster_secret_option()
def cluster(
    context: CommandContext, cache_cluster: str | None, cache_cluster_secret_file: str | None
) -> int:
    """Show the cache nodes of a cache cluster: shares, SSDs, bytes by source, and cache policies.

    HITS is the part of the bytes asked of the SSD that it had. ABSORBED is what the node kept from
    the store: bytes sent to clients less bytes read. So the policies of two nodes can be compared.

    The argument, DIESELFS_CACHE_CLUSTER or the profile names the cache cluster, as for a mount. The
    exit code is 6 if a node does not answer, or if there are no nodes.
    """
    from dieselfs.cache.cluster.options import cache_cluster_settings
    from dieselfs.cache.cluster.settings import CacheClusterOptions
    from dieselfs.cache.cluster.status import cluster_nodes

    settings = cache_cluster_settings(
        CacheClusterOptions(cache_cluster, cache_cluster_secret_file), context.shared().config
    )
    if settings is None:
        raise UsageError(
            "which cache cluster?",
            "name it: dlcmd cluster redis:NAME, or set DIESELFS_CACHE_CLUSTER",
        )
    nodes = cluster_nodes(settings)
    output = context.output
    output.listing(
        _HEADINGS,
        [_row(node, output) for node in nodes],
        map(_record, nodes),
        expendable=["REQUESTS", "SHARE", "USED", "FROM STORE", "FROM SSD"],
    )
    if not nodes and not output.json:
        output.note(
            f"cache cluster {settings.name} has no nodes: is that its name, and do they run?"
        )
    answer = nodes and all(node.status for node in nodes)
    return ExitCode.OK if answer else ExitCode.PARTIAL


def _record(node: CacheNodeReport) -> dict[str, Any]:
    record: dict[str, Any] = {
        "node": node.member.id,
        "host": node.member.node,
        "weight": node.member.weight,
        "share": round(node.share, 4),
        "answers": node.status is not None,
    }
    if node.status is None:
        return {**record, "trouble": node.trouble}
    status = node.status
    return {
        **record,
        "ssd_in_service": bool(status.budget_bytes),
        "ssd_bytes": status.budget_bytes,
        "ssd_used_bytes": status.cached_bytes,
        **picked(status, "served_bytes served_requests"),
        "from_ssd_bytes": status.from_peers_bytes,
        "from_store_bytes": status.from_store_bytes,
        **picked(status, "share_bytes share_cached_bytes"),
        "policy": None if node.policy is None else _policy_record(node.policy),
    }


def _policy_record(policy: PolicyStatus) -> dict[str, Any]:
    return {
        "name": policy.policy,
        "shadow": policy.shadow or None,
        **{name: _rounded(getattr(policy, name)) for name in ("hit_rate", "shadow_hit_rate")},
        **picked(
            policy,
            "hit_bytes miss_bytes absorbed_bytes admitted_bytes refused_bytes evicted_bytes "
            "reinserted_bytes written_bytes shadow_hit_bytes shadow_miss_bytes",
        ),
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)


def _policy_cells(policy: PolicyStatus | None, output: Output) -> list[str]:
    if policy is None:
        return [""] * 3
    names = [policy.policy, *([f"{policy.shadow} in shadow"] if policy.shadow else [])]
    rates = [policy.hit_rate, policy.shadow_hit_rate]
    hits = ["" if rate is None else f"{rate:.1%}" for rate in rates[: len(names)]]
    return [", ".join(names), ", ".join(filter(None, hits)), output.size(policy.absorbed_bytes)]


def _row(node: CacheNodeReport, output: Output) -> list[str]:
    status = node.status
    if status is None:
        return [node.member.id, *[""] * 10, node.trouble or "does not answer"]
    sizes = (status.budget_bytes, status.cached_bytes)
    state = f"answers in {node.answered_in_s * 1e3:.1f} ms"
    if status.share_cached_bytes < status.share_bytes:
        share = (status.share_cached_bytes, status.share_bytes)
        state += ", warmed: {} of {}".format(*map(output.size, share))
    return [
        node.member.id,
        f"{node.share:.1%}",
        *(map(output.size, sizes) if status.budget_bytes else ["", ""]),
        output.size(status.served_bytes),
        str(status.served_requests),
        output.size(status.from_peers_bytes),
        output.size(status.from_store_bytes),
        *_policy_cells(node.policy, output),
        state if status.budget_bytes else f"{state}, its SSD is out of service",
    ]
