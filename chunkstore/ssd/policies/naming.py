"""Policies by name, as a user configures them."""

from __future__ import annotations

from dataclasses import dataclass

from chunkstore.ssd.policies.baselines import AdmitEverything, RandomRejection, RejectFirstMiss
from chunkstore.ssd.policies.names import NAMES, NEXT_USE
from chunkstore.ssd.policies.next_use import NextUsePolicy
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policies.priority import PRIORITIES
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.policies.threshold_policy import MINIMUM, ThresholdPolicy


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings of a policy. Those that the named policy does not know have no effect."""

    name: str
    minimum: float = MINIMUM
    write_budget: float | None = None
    """Bytes a second; None: no limit."""
    reinsertion_offset: float | None = None
    """The reinsertion threshold over the admit threshold; None: no reinsertion."""


def policy_of(settings: PolicySettings, history: RequestHistory | None = None) -> CachePolicy:
    """Return the policy that the settings name; raise ValueError if they make no sense."""
    for priority in PRIORITIES:
        if settings.name == priority:
            return ThresholdPolicy(
                priority,
                minimum=settings.minimum,
                write_budget=settings.write_budget,
                reinsertion_offset=settings.reinsertion_offset,
                history=history,
            )
    if settings.name == NEXT_USE:
        return NextUsePolicy(
            minimum=settings.minimum,
            write_budget=settings.write_budget,
            reinsertion_offset=settings.reinsertion_offset,
            history=history,
        )
    if settings.name == "all":
        return AdmitEverything()
    if settings.name == "reject-first":
        return RejectFirstMiss()
    if settings.name != "dynamic":
        raise ValueError(f"no cache policy '{settings.name}'; there are {', '.join(NAMES)}")
    if settings.write_budget is None:
        raise ValueError("the policy 'dynamic' needs a write budget in bytes a second")
    return RandomRejection(settings.write_budget)
