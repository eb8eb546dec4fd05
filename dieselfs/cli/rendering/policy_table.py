"""What cache policies have decided, as a table and as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dieselfs.cli.rendering.output import Output

if TYPE_CHECKING:
    from chunkstore.ssd.policy_counts import DecidedRow, PolicyCounts

_HEADINGS: Final = (
    *("POLICY", "BUCKET", "JOB", "HIT", "MISSED", "ADMITTED", "REFUSED"),
    *("EVICTED", "REINSERTED", "WRITTEN", "ABSORBED"),
)


def show_decisions(
    output: Output, decided: Mapping[DecidedRow, PolicyCounts], human: bool | None
) -> None:
    """Print a row for each policy, bucket and job; nothing if there are none."""
    from chunkstore.ssd.policy_statistics import as_record

    rows = sorted(decided.items(), key=lambda item: item[0])
    if not rows:
        return
    output.listing(
        _HEADINGS,
        [_cells(by, counts, output, human) for by, counts in rows],
        [
            {
                "cache_policy": {
                    "role": by.role,
                    "name": by.policy,
                    **by.row._asdict(),
                    **as_record(counts),
                }
            }
            for by, counts in rows
        ],
        expendable=["REINSERTED", "EVICTED", "ADMITTED", "REFUSED"],
    )


def _cells(
    by: DecidedRow, counts: PolicyCounts, output: Output, human: bool | None
) -> tuple[str, ...]:
    sizes = (
        *(counts.hit_bytes, counts.miss_bytes, counts.admitted_bytes, counts.refused_bytes),
        *(counts.evicted_bytes, counts.reinserted_bytes, counts.written_bytes),
    )
    absorbed = counts.absorbed_bytes
    return (
        by.policy if by.role == "acting" else f"{by.policy} (shadow)",
        output.name(by.row.bucket or by.row.dataset) or "others",
        output.name(by.row.job) or "-",
        *(output.size(size, human) for size in sizes),
        ("-" if absorbed < 0 else "") + output.size(abs(absorbed), human),
    )
