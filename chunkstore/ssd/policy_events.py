"""What a trace recorder sees of the cache policies of a tier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One request as the policies see it: of a chunk's object up to 32 MiB, or a block beyond."""

    job: str
    epoch: int
    dataset: str
    bucket: Bucket
    key: int
    """The key of the first segment (`policies.tags.key_of`)."""
    length: int
    """The bytes about which a policy decides at once."""
    hit: bool


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The answer of the acting policy, or of the tier's own admission, about a missed request."""

    bucket: Bucket
    key: int
    admitted: bool


Observed: TypeAlias = PolicyRequest | PolicyDecision | JobSpecification
"""What a trace recorder sees, in the order in which it happens."""
Observer: TypeAlias = Callable[[Observed], None]
"""A function that takes note quickly, from any thread, and never raises."""
