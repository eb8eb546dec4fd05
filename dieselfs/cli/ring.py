"""`dlcmd ring`: the cache nodes of a ring."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.exit_codes import ExitCode
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.output import Output
from dieselfs.cli.verb import verb
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.cachenodes.ring_status import RingNode

_HEADINGS: Final = (
    *("NODE", "SHARE", "SSD", "USED", "SERVED", "REQUESTS", "FROM SSD", "FROM STORE"),
    "STATE",
)


@verb(
    examples=[
        "dlcmd ring",
        "dlcmd ring redis:images",
        "dlcmd ring node1:7700,node2:7700 --ring-secret-file ring.secret --json",
    ]
)
@click.argument("ring", required=False, metavar="[redis[:NAME]|[NAME@]HOST:PORT,…]")
@click.option("--ring-secret-file", metavar="FILE", help="The secret of the ring.")
def ring(invocation: Invocation, ring: str | None, ring_secret_file: str | None) -> int:
    """Show the cache nodes of a ring: shares, what their SSDs hold, what they have served and from where.

    Which ring is said as for a mount: here, by DIESELFS_RING, or by the profile. Exits with 6 if a node does not answer, or there is none.
    """
    from dieselfs.cachenodes.ring_options import ring_settings
    from dieselfs.cachenodes.ring_settings import RingOptions
    from dieselfs.cachenodes.ring_status import ring_nodes

    settings = ring_settings(RingOptions(ring, ring_secret_file), invocation.config)
    if settings is None:
        raise UsageError("which ring?", "name it: dlcmd ring redis:NAME, or set DIESELFS_RING")
    nodes = ring_nodes(settings)
    output = invocation.output
    if output.json:
        for node in nodes:
            output.record(_record(node))
    else:
        output.table(_HEADINGS, [_row(node, output) for node in nodes])
        if not nodes:
            output.note(f"ring {settings.name} has no nodes: is that its name, and do they run?")
    answer = nodes and all(node.status for node in nodes)
    return ExitCode.OK if answer else ExitCode.PARTIAL


def _record(node: RingNode) -> dict[str, Any]:
    record: dict[str, Any] = {
        "node": node.member.id,
        "host": node.member.node,
        "weight": node.member.weight,
        "share": round(node.share, 4),
        "answers": node.status is not None,
    }
    if node.status is None:
        return {**record, "trouble": node.trouble}
    status = asdict(node.status)
    return {
        **record,
        "ssd_in_service": bool(status["budget_bytes"]),
        "ssd_bytes": status["budget_bytes"],
        "ssd_used_bytes": status["cached_bytes"],
        "served_bytes": status["served_bytes"],
        "served_requests": status["served_requests"],
        "from_ssd_bytes": status["from_peers_bytes"],
        "from_store_bytes": status["from_store_bytes"],
    }


def _row(node: RingNode, output: Output) -> list[str]:
    status = node.status
    if status is None:
        return [node.member.id, *[""] * 7, node.trouble or "does not answer"]
    sizes = (status.budget_bytes, status.cached_bytes)
    state = f"answers in {node.answered_in_s * 1e3:.1f} ms"
    return [
        node.member.id,
        f"{node.share:.1%}",
        *(map(output.size, sizes) if status.budget_bytes else ["", ""]),
        output.size(status.served_bytes),
        str(status.served_requests),
        output.size(status.from_peers_bytes),
        output.size(status.from_store_bytes),
        state if status.budget_bytes else f"{state}, its SSD is out of service",
    ]
