"""`ChunkShuffleSampler`: chunk-wise shuffled order for an ordinary map-style dataset.

Its state resumes in the middle of an epoch.

    images = ImageFolder("/mnt/imagenet/train", transform)
    sampler = ChunkShuffleSampler(images, seed=1)
    loader = ChunkShuffleLoader(images, sampler=sampler, batch_size=256, num_workers=8)

A DataLoader's workers draw indices ahead of training, so a sampler alone cannot know what was
trained. Either the caller passes the number (`state_dict(batches_done=…)`), or `ChunkShuffleLoader`
counts.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data import Sampler

from dieselfs.errors import Conflict, UsageError
from dieselfs.integrations.epoch_stages import Division, Epoch, Stage
from dieselfs.integrations.plan_publisher import Announce, PlanPublisher
from dieselfs.integrations.sample_files import sample_files_of
from dieselfs.integrations.sampler_state import SamplerState
from dieselfs.prefetch.announcement import announce
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import DEFAULT_GROUP_SIZE, ShuffledOrder, ShuffleParameters
from metadata.snapshot import Snapshot

DEFAULT_IN_FLIGHT: Final = 2048
"""Samples that a DataLoader's workers may have drawn and not delivered.

The default is 8 workers, 2 batches each, 128 samples a batch.
"""
_DRAWN_AT_ONCE: Final = 1024


class ChunkShuffleSampler(Sampler[int]):
    """Sample indices of one rank in one epoch, in chunk-wise shuffled order.

    docs/shuffled-order.md defines the order. Two properties are those of `DistributedSampler`.
    Every rank gets equally many samples. `set_epoch` before each epoch gives each epoch its own
    order; without it the order is the same again.

    An iteration gives the rest of the epoch, which is the whole epoch unless a state was loaded.
    One thread uses the sampler, which pickles without its published plans.
    """

    def __init__(
        self,
        samples: Any,
        *,
        mount: str | os.PathLike[str] | None = None,
        snapshot: Snapshot | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        group_size: int = DEFAULT_GROUP_SIZE,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        batch_size: int | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
        publish: bool = True,
    ) -> None:
        """Create a sampler. Takes about 1 s for 1.28 M paths, which are not kept.

        - `samples`: a dataset with `samples` as ImageFolder has them, a `Subset` of one, a
          `DieselDataset`, or the paths by index. They may be any of the dataset's files, each once.
        - `mount`, `snapshot`: found from the first path unless given. With a snapshot, relative
          paths are relative to the dataset's root.
        - `seed`: 0, or a loaded state's.
        - `group_size`: chunks that are shuffled together, and must be in memory together.
        - `rank`, `world_size`: those of `torch.distributed` once it is initialised, else of the
          environment (`RANK`, `WORLD_SIZE`), else one rank.
        - `drop_last`: leave out the samples that do not divide evenly among ranks; otherwise a rank
          that is one short reads one file twice.
        - `batch_size`: for `state_dict(batches_done=…)`; a ChunkShuffleLoader knows its own.
        - `in_flight`: how many samples a plain DataLoader may have drawn but not delivered;
          prefetched chunks are kept that much longer.
        - `publish`: announce the order to the mount, if it listens, so that it prefetches.

        `UsageError` names the sample that is not in the mount, or the two that are one file.
        """
        found = distributed_rank()
        rank = found[0] if rank is None else rank
        world_size = found[1] if world_size is None else world_size
        ShuffleParameters(seed or 0, 0, group_size, rank, world_size)  # checks them
        self._samples = sample_files_of(samples, mount=mount, snapshot=snapshot)
        self._seed_given = seed is not None
        self.seed = seed or 0
        self.rank = rank
        self.division = Division(world_size, group_size, drop_last)
        self.batch_size = batch_size
        self.in_flight = in_flight
        self.epoch = 0
        self._counted = False
        listener: Announce | None = None
        if publish and self._samples.mount_root is not None:
            listener = partial(announce, self._samples.mount_root)
        elif publish:
            listener = _listener(samples)
        self._publisher = PlanPublisher(listener)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._begin_stage((), self._samples.files, 0)

    def _begin_stage(
        self, earlier: tuple[Stage, ...], files: npt.NDArray[np.uint32], start: int
    ) -> None:
        self._earlier = earlier
        """Stages of this epoch under other divisions."""
        self._files = files
        """The files that they left; the present stage divides them among the ranks."""
        self._start = start
        """The place in this rank's order at which an iteration begins."""
        self._delivered: int | None = 0
        """Samples delivered since then; None if no loader counts them."""
        self._drawn_to_the_end = False
        self._iteration = object()  # marks an iterator as out of date

    def __len__(self) -> int:
        """Return the number of samples left in this epoch for this rank."""
        return self._stage_length - self._start

    @property
    def _stage_length(self) -> int:
        return self.division.files_a_rank(len(self._files))

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. The epoch of a loaded state continues where it was left."""
        ShuffleParameters(self.seed, epoch)  # checks it
        if epoch != self.epoch:
            self.epoch = epoch
            self._begin_epoch()

    def __iter__(self) -> Iterator[int]:
        if self._drawn_to_the_end:
            self._begin_epoch()
        iteration = self._iteration = object()
        self._delivered = 0 if self._counted or not len(self) else None
        order = self._order(self.epoch, self._files)
        key = (self.epoch, self.seed, len(self._files))
        self._publisher.begin(key, partial(self._plan, order), self._start)
        return self._draw(order, iteration)

    def _draw(self, order: ShuffledOrder, iteration: object) -> Iterator[int]:
        for start in range(self._start, len(order), _DRAWN_AT_ONCE):
            part = order.inodes[start : start + _DRAWN_AT_ONCE]
            yield from self._samples.samples_of(part).tolist()
            if iteration is self._iteration:
                self._publisher.prepare(
                    (self.epoch + 1, self.seed, len(self._samples)),
                    partial(self._whole_plan, self.epoch + 1),
                )
                if not self._counted:
                    self._publisher.progress(start + len(part) - self.in_flight)
        if iteration is self._iteration:
            self._drawn_to_the_end = True

    def delivered(self, samples: int) -> None:
        """Set the number of samples that the training loop has received since the iteration began.

        A loader that counts samples calls this.
        """
        self._counted = True
        self._delivered = min(samples, len(self))
        self._publisher.progress(self._start + self._delivered)

    def state_dict(
        self, *, batches_done: int | None = None, samples_done: int | None = None
    ) -> dict[str, Any]:
        """Return how far the epoch is: a small dictionary for JSON or a checkpoint.

        It is the same on every rank, as all ranks have done equally many batches. `batches_done` or
        `samples_done` counts those of this rank since the iteration began, at the start of the
        epoch or at the loaded state. A batch has `batch_size` samples, and the last one the rest.
        Neither argument is needed with a ChunkShuffleLoader.
        """
        if batches_done is not None:
            if self.batch_size is None or samples_done is not None:
                raise UsageError(
                    "batches_done needs the size of a batch",
                    "create the sampler with batch_size=…, or call state_dict(samples_done=…)",
                )
            samples_done = min(index(batches_done) * self.batch_size, len(self))
        if samples_done is None:
            samples_done = self._delivered
        if samples_done is None:
            raise UsageError(
                "the sampler cannot know what was trained: a DataLoader draws indices ahead of it",
                "call state_dict(batches_done=…) or (samples_done=…), or use a ChunkShuffleLoader",
            )
        if not 0 <= index(samples_done) <= len(self):
            raise UsageError(
                f"{samples_done} samples done, but this rank had {len(self)} left in the epoch",
                "count the samples of this rank since iterating began",
            )
        stage = Stage(self.division, self._start + index(samples_done))
        return self._state((*self._earlier, stage)).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, override: bool = False) -> None:
        """Resume where `state_dict` was called.

        The next iteration gives the rest of that epoch, in chunk-wise order. With the same world
        size, group size and drop_last it is the very order that would have come. With others, the
        files that no rank has read are divided among the present ranks. The number of workers and
        the batch size may always differ.

        Raises `Conflict` with the reason if the state is of another snapshot, of other files of it,
        or of another seed than was given. With `override` a warning gives the reason instead, and
        the state's epoch starts again: the part that was read is ignored.
        """
        loaded = SamplerState.from_dict(state)
        seed = self.seed if self._seed_given else loaded.seed
        reasons = loaded.differences(replace(self._state(()), seed=seed))
        if reasons and not override:
            raise Conflict(
                f"the state cannot be resumed here: {'; '.join(reasons)}",
                "load it where it was saved, or start that epoch again with load_state_dict(…, "
                "override=True)",
            )
        if reasons:
            self.epoch = loaded.epoch
            self._begin_epoch()
            warnings.warn(
                f"epoch {loaded.epoch} starts again and the rest of the state is ignored: "
                f"{'; '.join(reasons)}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        earlier, start = loaded.stages, 0
        if earlier and earlier[-1].division == self.division:
            earlier, start = earlier[:-1], earlier[-1].samples_done
        earlier = tuple(stage for stage in earlier if stage.samples_done)
        files = self._epoch(seed, loaded.epoch).left_after(earlier)
        if start > self.division.files_a_rank(len(files)):
            raise UsageError(
                f"the sampler's state is damaged: {start} samples done of {len(files)}",
                "pass what state_dict() returned",
            )
        self.seed, self.epoch = seed, loaded.epoch
        self._begin_stage(earlier, files, start)

    def close(self) -> None:
        """Remove the published plans.

        The end of the sampler does so too; it may be iterated again.
        """
        self._publisher.close()

    def _state(self, stages: tuple[Stage, ...]) -> SamplerState:
        snapshot = self._samples.snapshot
        return SamplerState(
            snapshot.dataset.name,
            snapshot.dataset.id.hex(),
            snapshot.id,
            len(self._samples),
            self._samples.fingerprint,
            self.seed,
            self.epoch,
            stages,
        )

    def _epoch(self, seed: int, epoch: int) -> Epoch:
        chunk_first_inode = self._samples.snapshot.chunk_first_inode
        return Epoch(chunk_first_inode, self._samples.files, seed, epoch)

    def _order(self, epoch: int, files: npt.NDArray[np.uint32]) -> ShuffledOrder:
        return self._epoch(self.seed, epoch).order(self.division, self.rank, files)

    def _whole_plan(self, epoch: int) -> ReadingPlan:
        return self._plan(self._order(epoch, self._samples.files))

    def _plan(self, order: ShuffledOrder) -> ReadingPlan:
        snapshot = self._samples.snapshot
        return ReadingPlan(snapshot.id, order.inodes, order.group_start, os.fspath(snapshot.path))


def _listener(samples: Any) -> Announce | None:
    """Return the `announce` method of a DieselDataset, also of one below a Subset."""
    while not hasattr(samples, "announce") and hasattr(samples, "dataset"):
        samples = samples.dataset
    announce: Announce | None = getattr(samples, "announce", None)
    return announce


def distributed_rank() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    They come from `torch.distributed`, else from the environment as launchers set it, else they are
    0 of 1.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
