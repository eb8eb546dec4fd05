"""The statistics of cache policies as `stats.json` and `dlcmd cache ls` show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from chunkstore.ssd.policy_counts import CountedRow, PolicyCounts, total_of

if TYPE_CHECKING:
    from chunkstore.ssd.policy_runner import PolicyRunner

_SHOWN_ROWS: Final = 16
_SHOWN_CHARACTERS: Final = 200
"""The most of a name that is shown: programs read 64 KiB of `stats.json` at most."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """The counts of one dataset, bucket and job."""

    dataset: str
    bucket: str
    job: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """The counts of one policy in one process, since that began to ask it."""

    name: str
    """The policy's present name; a simpler one than was chosen if that failed."""
    counts: Mapping[str, int]
    """The sums over all rows: the fields of `PolicyCounts`, and `absorbed_bytes`."""
    rows: tuple[PolicyRow, ...]
    """The rows with the most bytes that were asked for, 16 at most."""


@dataclass(frozen=True, slots=True)
class PoliciesStatistics:
    """The statistics of the cache policies of a tier in one process."""

    acting: PolicyStatistics
    shadow: PolicyStatistics | None
    write_budget: float | None
    """Bytes a second; None: no limit."""
    buckets: str


def policies_statistics(runner: PolicyRunner) -> PoliciesStatistics:
    """Return the current statistics of a runner."""
    shadow, choice = runner.shadow, runner.choice
    return PoliciesStatistics(
        policy_statistics(runner.policy, runner.counts.all()),
        None if shadow is None else policy_statistics(shadow.policy.name, shadow.counts.all()),
        choice.write_budget,
        choice.buckets,
    )


def policy_statistics(name: str, rows: Mapping[CountedRow, PolicyCounts]) -> PolicyStatistics:
    """Return the statistics of one policy, given its rows."""
    return PolicyStatistics(name, as_record(total_of(rows)), tuple(_shown(rows.items())))


def as_record(counts: PolicyCounts) -> dict[str, int]:
    """Return the counts by name, with the absorbed bytes."""
    return {**asdict(counts), "absorbed_bytes": counts.absorbed_bytes}


def _shown(rows: Iterable[tuple[CountedRow, PolicyCounts]]) -> Iterable[PolicyRow]:
    most = sorted(rows, key=lambda row: (-row[1].hit_bytes - row[1].miss_bytes, row[0]))
    for row, counts in most[:_SHOWN_ROWS]:
        dataset, bucket, job = (name[:_SHOWN_CHARACTERS] for name in row)
        yield PolicyRow(dataset, bucket, job, as_record(counts))
