"""The limits that users set for datasets on a tier, one small file for each dataset.

All processes of the node read the files `<tier>/datasets/<dataset id>.json`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chunkstore.ssd.allocated_quotas import AllocatedQuotas
from chunkstore.ssd.eviction import DatasetLimits

_READ_AGAIN_S: Final = 1.0
_NO_LIMITS: Final = DatasetLimits()


@dataclass(frozen=True, slots=True)
class NamedLimits:
    """A dataset's name, for display, and its limits."""

    name: str
    limits: DatasetLimits


class LimitsFolder:
    """The folder of limits. Thread-safe. An unreadable file counts as missing: no limits."""

    def __init__(self, tier: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = tier / "datasets"
        self._now = now
        self._allocated = AllocatedQuotas(tier)
        self._read_at = float("-inf")
        self._known: dict[bytes, DatasetLimits] = {}

    def of(self, dataset: bytes) -> DatasetLimits:
        """Return the limits of a dataset by its id; they are at most a second old.

        An allocator's quota is among them.
        """
        if self._now() - self._read_at > _READ_AGAIN_S:
            found = {id: known.limits for id, known in self.read().items()}
            for id, size in self._allocated.read().items():
                found[id] = replace(found.get(id, _NO_LIMITS), allocated_bytes=size)
            self._known, self._read_at = found, self._now()
        return self._known.get(dataset, _NO_LIMITS)

    def read(self) -> dict[bytes, NamedLimits]:
        """Return what users set for all datasets that ever had a file here, by id."""
        found = {}
        try:
            names = os.listdir(self._folder)
        except OSError:
            return {}
        for name in names:
            try:
                dataset = bytes.fromhex(Path(name).stem)
                found[dataset] = _decoded((self._folder / name).read_text())
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def write(self, dataset: bytes, named: NamedLimits) -> None:
        """Set the limits of a dataset. Raises `OSError`."""
        os.rename(self._written(named), self._path(dataset))
        self._read_at = float("-inf")

    def name(self, dataset: bytes, name: str) -> None:
        """Record the name of a dataset if it has no file. Raises `OSError`."""
        if self._path(dataset).exists():
            return
        temporary = self._written(NamedLimits(name, DatasetLimits()))
        try:
            os.link(temporary, self._path(dataset))
        except FileExistsError:  # a user has just set limits, which stay
            pass
        finally:
            temporary.unlink()

    def _path(self, dataset: bytes) -> Path:
        return self._folder / f"{dataset.hex()}.json"

    def _written(self, named: NamedLimits) -> Path:
        """Return a new file under a temporary name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        limits = named.limits
        temporary = self._folder / f".{os.urandom(8).hex()}"
        temporary.write_text(
            json.dumps(
                {
                    "name": named.name,
                    "quota_bytes": limits.quota_bytes,
                    "ttl_s": limits.ttl_s,
                    "pinned": limits.pinned,
                }
            )
        )
        return temporary


def _decoded(text: str) -> NamedLimits:
    data = json.loads(text)
    quota, ttl = data["quota_bytes"], data["ttl_s"]
    return NamedLimits(
        str(data["name"]),
        DatasetLimits(
            None if quota is None else int(quota),
            None if ttl is None else float(ttl),
            bool(data["pinned"]),
        ),
    )
