"""The choice of a cache policy for an SSD tier, and the file in the tier's folder that holds one.

All processes of the node read `<tier>/policy.json`, so a change needs no restart. The file goes
before the setting of a process.
"""

from __future__ import annotations

import json
import logging
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chunkstore.ssd.policies.names import NAMES
from chunkstore.ssd.policies.segment_buckets import BUCKET_MAPS

if TYPE_CHECKING:
    from chunkstore.ssd.policies.naming import PolicySettings

log = logging.getLogger(__name__)

LRU: Final = "lru"
"""No policy: the tier admits and evicts by its settings, as it does without a choice."""
POLICIES: Final = (LRU, *NAMES)
SIMPLER: Final = {"next-use": "future", "future": "historic", "hybrid": "historic"}
"""For each policy the next simpler one, which takes its place if it fails; `LRU` for others."""
_VERSION: Final = 1
_MAX_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The choice of a tier's cache policies."""

    policy: str = LRU
    shadow: str | None = None
    """A policy that is asked and counted, and decides nothing."""
    write_budget: float | None = None
    """Bytes a second that the SSD may be written on average; None: no limit."""
    buckets: str = "dataset"
    """The bucket map of the node's own readers (`policies.tags.BUCKET_MAPS`)."""

    def __post_init__(self) -> None:
        for name in (self.policy, *(() if self.shadow is None else (self.shadow,))):
            if name not in POLICIES:
                raise ValueError(f"no cache policy {name!r}; write {_either(POLICIES)}")
            if name == "dynamic" and self.write_budget is None:
                raise ValueError(
                    "the policy dynamic needs a write budget; write for instance 100MB/s"
                )
        if self.buckets not in BUCKET_MAPS:
            raise ValueError(f"no bucket map {self.buckets!r}; write {_either(tuple(BUCKET_MAPS))}")
        budget = self.write_budget
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise ValueError(
                f"a write budget of {budget:g} bytes a second; write for instance 100MB/s"
            )

    @property
    def is_plain(self) -> bool:
        """True if no policy decides or is asked."""
        return self.policy == LRU and self.shadow is None

    def settings_of(self, name: str) -> PolicySettings:
        """Return the settings of a policy under this choice."""
        from chunkstore.ssd.policies.naming import PolicySettings

        return PolicySettings(name, write_budget=self.write_budget)


class PolicyFile:
    """The file of one tier's choice. A damaged or foreign file counts as missing."""

    def __init__(self, tier: Path) -> None:
        self._path = tier / "policy.json"
        self._read_as: tuple[int, int, int] | None = None
        self._known: PolicyChoice | None = None

    def read(self) -> PolicyChoice | None:
        """Return the choice; None without one. Costs one `stat` while the file stays the same."""
        try:
            found = self._path.stat()
            read_as = found.st_mtime_ns, found.st_ino, found.st_size
            if read_as != self._read_as:
                self._known = self._decoded()
                self._read_as = read_as
        except FileNotFoundError:
            self._read_as = self._known = None
        except OSError as error:
            log.debug("cannot read %s: %s", self._path, error)
        return self._known

    def write(self, choice: PolicyChoice | None) -> None:
        """Set the choice; None removes it. Raises `OSError`."""
        if choice is None:
            with suppress(FileNotFoundError):
                self._path.unlink()
            return
        temporary = self._path.with_name(f".policy-{os.urandom(8).hex()}")
        temporary.write_text(json.dumps({"version": _VERSION, **asdict(choice)}))
        temporary.rename(self._path)

    def _decoded(self) -> PolicyChoice | None:
        with self._path.open("rb") as file:
            data = file.read(_MAX_BYTES)
        try:
            return _choice(json.loads(data))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("%s is ignored: %s; run 'dlcmd cache policy'", self._path, error)
            return None


def _choice(data: dict[str, Any]) -> PolicyChoice:
    if data["version"] != _VERSION:
        raise ValueError(f"it has version {data['version']!r}, and this release knows {_VERSION}")
    budget, shadow = data["write_budget"], data["shadow"]
    return PolicyChoice(
        str(data["policy"]),
        None if shadow is None else str(shadow),
        None if budget is None else float(budget),
        str(data["buckets"]),
    )


def _either(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]
