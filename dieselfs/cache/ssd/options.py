"""The options of an SSD tier as given by flags, -o options, variables or a profile.

`dieselfs.cache.ssd.settings` interprets them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from dieselfs.errors import UsageError

AdmissionName: TypeAlias = Literal["all", "reject-first"]
ADMISSIONS: Final[tuple[AdmissionName, ...]] = get_args(AdmissionName)
NONE: Final = "none"
"""As a folder: no tier, whatever the configuration says."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options of cache policies as written; None for an absent one."""

    policy: str | None = None
    shadow: str | None = None
    write_budget: str | None = None
    buckets: str | None = None

    def otherwise(self, other: PolicyOptions) -> PolicyOptions:
        """Return these options, completed from `other`."""
        return PolicyOptions(
            self.policy or other.policy,
            self.shadow or other.shadow,
            self.write_budget or other.write_budget,
            self.buckets or other.buckets,
        )


POLICY_KEYS: Final = ("ssd_policy", "ssd_shadow_policy", "ssd_write_budget", "ssd_buckets")
"""The keys of these options, in the order of their fields."""


@dataclass(frozen=True, slots=True)
class SsdOptions:
    """The options as written; None for an absent one."""

    folder: str | None = None
    size_bytes: int | None = None
    admission: str | None = None
    eviction: str | None = None
    warmup: bool | None = None
    policies: PolicyOptions = field(default_factory=PolicyOptions)

    def otherwise(self, other: SsdOptions) -> SsdOptions:
        """Return these options, completed from `other`.

        If a folder is given here, nothing is taken from `other`.
        """
        if self.folder is not None:
            return self
        return SsdOptions(
            other.folder,
            other.size_bytes if self.size_bytes is None else self.size_bytes,
            self.admission or other.admission,
            self.eviction or other.eviction,
            other.warmup if self.warmup is None else self.warmup,
            self.policies.otherwise(other.policies),
        )


def typed_folder(folder: str | None) -> str | None:
    """Return a folder typed at a prompt as an absolute path; `none` and None stay.

    Raises `UsageError` for an empty one, which would be the current folder.
    """
    if folder in (None, NONE):
        return folder
    if not folder:
        raise UsageError("--ssd names an empty folder", "name a folder, or write --ssd none")
    return os.path.abspath(os.path.expanduser(folder))
