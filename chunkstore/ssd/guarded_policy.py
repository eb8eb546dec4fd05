"""A cache policy that a simpler one replaces if it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from chunkstore.ssd.policies.history import RequestHistory
from chunkstore.ssd.policies.jobs import JobSpecification
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policy_choice import LRU, SIMPLER, PolicyChoice

log = logging.getLogger(__name__)

T = TypeVar("T")
HISTORY_SEGMENTS: Final = 2_000_000
"""The capacity of a tier's history: 8 TB of chunks of 4 MiB within six hours, in 10 MiB."""


class MakesPolicies(Protocol):
    """A function that makes policies: `policy_of`, or a test's."""

    def __call__(
        self, settings: PolicySettings, history: RequestHistory | None = None
    ) -> CachePolicy:
        """Return the policy that the settings name."""
        ...


class GuardedPolicy:
    """The policy of one name, and its successors if it raises. Not thread-safe."""

    def __init__(self, choice: PolicyChoice, name: str, made: MakesPolicies = policy_of) -> None:
        self._choice, self._make = choice, made
        self._history: RequestHistory | None = None
        self.name = name
        """The policy's present name; `LRU`: it has no answers."""
        self.policy = self._made(name)
        """None: the tier's own admission decides."""

    def change(self, choice: PolicyChoice, name: str) -> None:
        """Go on with another policy; the request history stays."""
        self._choice, self.name = choice, name
        self.policy = self._made(name)

    def ask(self, question: Callable[[CachePolicy], T]) -> T | None:
        """Return the policy's answer; None without a policy, or if it fails now."""
        policy = self.policy
        if policy is None:
            return None
        try:
            return question(policy)
        except Exception:
            self._replace()
            return None

    def publish(self, specifications: Iterable[JobSpecification], now: float) -> None:
        """Tell the policy what jobs have published; it ignores one that it cannot take."""
        for specification in specifications:
            try:
                if self.policy is not None:
                    self.policy.publish(specification, now)
            except ValueError as error:  # for instance too many jobs
                log.debug("the policy %s ignores a job: %s", self.name, error)
            except Exception:
                self._replace()

    def _replace(self) -> None:
        failed, self.name = self.name, SIMPLER.get(self.name, LRU)
        log.exception("the cache policy %s failed; %s takes its place", failed, self.name)
        self.policy = self._made(self.name)

    def _made(self, name: str) -> CachePolicy | None:
        if name == LRU:
            return None
        if self._history is None:
            self._history = RequestHistory(capacity_segments=HISTORY_SEGMENTS)
        return self._make(self._choice.settings_of(name), self._history)
