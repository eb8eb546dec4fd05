"""The progress of an epoch as a small dictionary for a checkpoint.

It also shows whether it belongs to the present dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dieselfs.errors import UsageError
from dieselfs.integrations.epoch_stages import Division, Stage

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The state of a sampler; the same on every rank."""

    dataset: str
    dataset_id: str
    snapshot: str
    files: int
    """The number of samples."""
    fingerprint: str
    """The fingerprint of the samples' files."""
    seed: int
    epoch: int
    stages: tuple[Stage, ...]
    """The stages; each but the last was ended by another division."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary for JSON or `torch.save`."""
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "dataset_id": self.dataset_id,
            "snapshot": self.snapshot,
            "files": self.files,
            "fingerprint": self.fingerprint,
            "seed": self.seed,
            "epoch": self.epoch,
            "stages": [
                {
                    "world_size": stage.division.world_size,
                    "group_size": stage.division.group_size,
                    "drop_last": stage.division.drop_last,
                    "samples_done": stage.samples_done,
                }
                for stage in self.stages
            ],
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SamplerState:
        """Return the state of a dictionary; `UsageError` if it is damaged or of another version."""
        if state.get("version") != VERSION:
            raise UsageError(
                f"the sampler's state has version {state.get('version')!r}, but this DieselFS "
                f"reads version {VERSION}",
                "pass what state_dict() returned, to the same or a newer DieselFS",
            )
        try:
            stages = tuple(
                Stage(
                    Division(
                        _count(stage["world_size"], 1),
                        _count(stage["group_size"], 1),
                        bool(stage["drop_last"]),
                    ),
                    _count(stage["samples_done"], 0),
                )
                for stage in state["stages"]
            )
            return cls(
                str(state["dataset"]),
                str(state["dataset_id"]),
                str(state["snapshot"]),
                _count(state["files"], 0),
                str(state["fingerprint"]),
                _count(state["seed"], 0),
                _count(state["epoch"], 0),
                stages,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the sampler's state is damaged: {error!r}", "pass what state_dict() returned"
            ) from error

    def differences(self, other: SamplerState) -> list[str]:
        """Return the reasons why `self` cannot be resumed where `other` is; empty if it can."""
        if (self.dataset_id, self.snapshot) != (other.dataset_id, other.snapshot):
            return [
                f"it is of snapshot {self.snapshot} of dataset {self.dataset}, "
                f"and this is snapshot {other.snapshot} of {other.dataset}"
            ]
        found = []
        if self.fingerprint != other.fingerprint:
            found.append(
                f"it is of {self.files:,} files of the snapshot, and these are {other.files:,}"
                + (" others" if self.files == other.files else "")
            )
        if self.seed != other.seed:
            found.append(f"it is of seed {self.seed}, and this is seed {other.seed}")
        return found


def sampler_state_within(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampler's state in the state of a torchdata StatefulDataLoader (0.8 to 0.11).

    Another state is returned as it is. Raises `UsageError` if the loader took its state only every
    few batches and is past the last one: the sampler's state lacks the batches since then.
    """
    main, since = state, 0
    if "_snapshot" in state:  # with workers
        main = state["_snapshot"].get("_main_snapshot", {})
        since = state.get("_steps_since_snapshot", 0)
    within = main.get("_sampler_iter_state")
    if not isinstance(within, Mapping) or "sampler_state" not in within:
        return state
    if since:
        raise UsageError(
            f"the loader's state is {since} batches past the sampler's",
            "load it into a StatefulDataLoader with the same number of workers, or save states "
            "with snapshot_every_n_steps=1",
        )
    found: Mapping[str, Any] = within["sampler_state"]
    return found


def _count(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is not a number from {least}")
    return value
