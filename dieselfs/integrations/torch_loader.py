"""`ChunkShuffleLoader`: a DataLoader that counts the batches it has delivered.

So its state is exactly what was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset

from dieselfs.errors import UsageError
from dieselfs.integrations.calling_framework import batch_counter
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler

Batch = TypeVar("Batch")


class ChunkShuffleLoader(DataLoader[Batch]):
    """A DataLoader over a ChunkShuffleSampler; all its other options are DataLoader's own.

    Workers and processes are DataLoader's own, too. A batch is done as soon as the loop has it:
    `state_dict` within the loop's body counts the batch at hand.

    The batches are one rank's share. Lightning uses the loader as it is and saves its state with
    its checkpoints; accelerate's `prepare` and the Trainer of transformers leave it whole, and do
    not move its batches to a device.
    """

    sampler: ChunkShuffleSampler
    _is_accelerate_prepared = True  # accelerate would deal this rank's batches out among all ranks

    def __init__(
        self,
        dataset: Dataset[Batch],
        batch_size: int | None = 1,
        *,
        sampler: ChunkShuffleSampler | None = None,
        **options: Any,
    ) -> None:
        """Create a loader; without a sampler it uses one with its defaults.

        Raises `UsageError` for another sampler, and for options that would give another order.
        """
        other = {"shuffle", "batch_sampler"} & {name for name in options if options[name]}
        if not options.get("in_order", True):
            other.add("in_order=False")
        if other:
            raise UsageError(
                f"{', '.join(sorted(other))} cannot be set: the sampler determines the order, so "
                "that its state can be saved",
                "leave it out, or use an ordinary DataLoader",
            )
        sampler = ChunkShuffleSampler(dataset) if sampler is None else sampler
        if not isinstance(sampler, ChunkShuffleSampler):
            raise UsageError(
                f"the sampler is a {type(sampler).__name__}, whose order has no state to save",
                "pass a ChunkShuffleSampler, or use an ordinary DataLoader",
            )
        super().__init__(dataset, batch_size, sampler=sampler, **options)
        self.sampler.check_dataset(dataset)
        if self.batch_sampler is not None:
            # A Trainer that resumes skips its batches, and sets only its epoch.
            setattr(self.batch_sampler, "set_epoch", self.sampler.set_epoch)  # noqa: B010

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Return an iterator whose first batch starts the workers.

        Lightning sets the epoch between the two.
        """
        samples = self.batch_size or 1
        self.sampler.count_next_iteration()
        iteration = None
        for number, batch in enumerate(super().__iter__(), 1):
            iteration = iteration or self.sampler.iteration
            self.sampler.check_iteration(iteration)
            self.sampler.delivered(number * samples)
            yield batch
            self.sampler.check_not_followed(iteration)  # its workers' next batch is not ours then
        self.sampler.ended(iteration)

    def state_dict(self) -> dict[str, Any]:
        """Return how far training is in the epoch: see `ChunkShuffleSampler.state_dict`."""
        return {**self.sampler.state_dict(), "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any], *, override: bool = False) -> None:
        """Resume at a state: see `ChunkShuffleSampler.load_state_dict`.

        The next iteration gives the rest of that epoch.
        """
        counter = batch_counter() if state.get("batch_size") != self.batch_size else None
        if counter is not None:
            raise UsageError(
                f"{counter} counts the batches of an epoch, and this one was begun with batches of "
                f"{state.get('batch_size')} samples, not {self.batch_size}",
                "resume with the same batch size, or from a checkpoint of the end of an epoch",
            )
        self.sampler.load_state_dict(state, override=override)
