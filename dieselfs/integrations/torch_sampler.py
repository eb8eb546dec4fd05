"""`ChunkShuffleSampler`: chunk-wise shuffled order for an ordinary map-style dataset.

Its state resumes in the middle of an epoch.

    images = ImageFolder("/mnt/imagenet/train", transform)
    sampler = ChunkShuffleSampler(images, seed=1)
    loader = ChunkShuffleLoader(images, sampler=sampler, batch_size=256, num_workers=8)

A DataLoader's workers draw indices ahead of training, so a sampler alone cannot know what was
trained. Either the caller passes the number (`state_dict(batches_done=…)`), or `ChunkShuffleLoader`
counts, or a loader keeps the state of the sampler with each batch (`progress="drawn"`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data import Dataset, DistributedSampler

from dieselfs.errors import Conflict, UsageError
from dieselfs.integrations.calling_framework import batch_counter, batch_dealer
from dieselfs.integrations.epoch_stages import Division, Epoch, Stage
from dieselfs.integrations.plan_publisher import PlanPublisher, listener_of
from dieselfs.integrations.sample_files import sample_files_of
from dieselfs.integrations.sampler_state import SamplerState, sampler_state_within
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import DEFAULT_GROUP_SIZE, ShuffledOrder, ShuffleParameters
from metadata.snapshot import Snapshot

DEFAULT_IN_FLIGHT: Final = 2048
"""Samples that a DataLoader's workers may have drawn and not delivered.

The default is 8 workers, 2 batches each, 128 samples a batch.
"""
_DRAWN_AT_ONCE: Final = 1024

Progress = Literal["delivered", "drawn"]


class ChunkShuffleSampler(DistributedSampler[int]):
    """Sample indices of one rank in one epoch, in chunk-wise shuffled order.

    docs/shuffled-order.md defines the order. The sampler is a `DistributedSampler`, so frameworks
    leave the division among ranks to it, and its attributes have the same meaning. Every rank gets
    equally many samples. `set_epoch` before each epoch gives each epoch its own order; without it
    the order is the same again.

    An iteration gives the rest of the epoch, which is the whole epoch unless a state was loaded.
    It begins with its first sample, and ends any earlier one. One thread uses the sampler, which
    pickles without its published plans.
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
        progress: Progress = "delivered",
        publish: bool = True,
    ) -> None:
        """Create a sampler. Takes about 1 s for 1.28 M paths, which are not kept.

        - `samples`: a dataset with `samples` as ImageFolder has them, a `Subset` of one, a
          `DieselDataset`, a `SampleDataset`, or the paths by index. They may be any of the
          dataset's files, each once.
        - `mount`, `snapshot`: found from the first path unless given. With a snapshot, relative
          paths are relative to the dataset's root.
        - `seed`: 0, or a loaded state's.
        - `group_size`: chunks that are shuffled together, and must be in memory together.
        - `rank`, `world_size`: those of `torch.distributed` once it is initialised, also after the
          sampler was created, else of the environment (`RANK`, `WORLD_SIZE`), else one rank.
        - `drop_last`: leave out the samples that do not divide evenly among ranks; otherwise a rank
          that is one short reads one file twice.
        - `batch_size`: for `state_dict(batches_done=…)`; a ChunkShuffleLoader knows its own.
        - `in_flight`: how many samples a plain DataLoader may have drawn but not delivered;
          prefetched chunks are kept that much longer.
        - `progress`: what a state counts. With "drawn" it counts the samples that were drawn, for a
          loader that takes a state with each batch that it draws and returns that of the last batch
          delivered, as torchdata's StatefulDataLoader does. With another loader such a state would
          skip what workers hold.
        - `publish`: announce the order to the mount, if it listens, so that it prefetches.

        `UsageError` names the sample that is not in the mount, or the two that are one file.
        """
        ranks_given = rank is not None or world_size is not None
        found = distributed_rank()
        rank = found[0] if rank is None else rank
        world_size = found[1] if world_size is None else world_size
        # It checks them, and NumPy's integers would make a state that JSON does not take.
        checked = ShuffleParameters(seed or 0, 0, group_size, rank, world_size)
        if progress not in ("delivered", "drawn"):
            raise UsageError(
                f"progress is {progress!r}", 'pass progress="delivered" or progress="drawn"'
            )
        self._samples = sample_files_of(samples, mount=mount, snapshot=snapshot)
        self._fingerprint = self._samples.fingerprint
        # A list of paths has served its purpose and may be large.
        self.dataset = samples if isinstance(samples, Dataset) else range(len(self._samples))  # type: ignore[assignment]
        self._seed_given = seed is not None
        self._ranks_given = ranks_given
        self.seed = checked.seed
        self.shuffle = True
        self.drop_last = drop_last = bool(drop_last)
        self.batch_size = batch_size
        self.in_flight = in_flight
        self.progress = progress
        self.epoch = 0
        self._asked_epoch: int | None = None
        """The epoch of the last `set_epoch`."""
        self._is_counted_next = False
        self._divide(Division(checked.world_size, checked.group_size, drop_last), checked.rank)
        listener = listener_of(samples, self._samples.mount_root) if publish else None
        self._publisher = PlanPublisher(listener)
        self._begin_epoch()

    def _divide(self, division: Division, rank: int) -> None:
        self.division = division
        self.rank = rank
        self.num_replicas = division.world_size
        self.num_samples = division.files_a_rank(len(self._samples))
        self.total_size = self.num_samples * self.num_replicas

    def _follow_process_group(self) -> None:
        """Take the rank in a process group that was initialised after the sampler was created.

        Launchers such as Lightning's initialise it in `fit`, after the script has made its loaders.
        """
        if self._ranks_given or not _is_distributed():
            return
        rank, world_size = distributed_rank()
        if (rank, world_size) == (self.rank, self.num_replicas):
            return
        if self._start or self._earlier or self._has_begun:
            raise UsageError(
                f"the sampler is in the middle of an epoch as rank {self.rank} of "
                f"{self.num_replicas}, and torch.distributed was initialised with rank {rank} of "
                f"{world_size} since then",
                "create the sampler, or load its state, after the process group is initialised",
            )
        self._divide(replace(self.division, world_size=world_size), rank)
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
        self._done: int | None = 0
        """Samples done since then; None if nothing counts them."""
        self._has_begun = False
        self._is_over = False
        """True once all samples were drawn or, if a loader counts them, delivered."""
        self._stays_over = False
        """Whether the epoch, which is over, begins again only after another `set_epoch`."""
        self.iteration: object = object()
        """A mark of the present iteration. Another one replaces it, and so does another epoch."""

    def __len__(self) -> int:
        """Return the number of samples of this rank in a whole epoch, as `DistributedSampler` does.

        Schedulers and trainers multiply it by the number of epochs. A resumed epoch has only
        `samples_left`.
        """
        self._follow_process_group()
        return self.num_samples

    @property
    def samples_left(self) -> int:
        """The number of samples that the next iteration gives if the epoch is not over."""
        self._follow_process_group()
        return self.division.files_a_rank(len(self._files)) - self._start

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. The epoch of a loaded state continues where it was left."""
        epoch = ShuffleParameters(self.seed, epoch).epoch  # checked
        self._follow_process_group()
        self._asked_epoch = epoch
        self._stays_over = False
        if epoch != self.epoch:
            self.epoch = epoch
            self._begin_epoch()

    def __iter__(self) -> Iterator[int]:
        self._follow_process_group()
        if self._is_over and not self._stays_over:
            self._begin_epoch()
        elif self.progress == "drawn" and self._asked_epoch is None and not self.samples_left:
            # A StatefulDataLoader that loads a finished epoch iterates again for the next one.
            self._is_over = True
        return self._draw()

    def _draw(self) -> Iterator[int]:
        dealer = batch_dealer() if self.num_replicas > 1 else None
        if dealer is not None:
            raise UsageError(
                f"{dealer} deals the batches of rank {self.rank} out among {self.num_replicas} "
                "ranks, and those are this rank's own: most samples would be lost",
                "use a ChunkShuffleLoader, which accelerate's prepare() leaves as it is",
            )
        order, iteration = self._order(self.epoch, self._files), object()
        self.iteration, self._has_begun = iteration, True
        is_counted, self._is_counted_next = self._is_counted_next, False
        is_drawn = self.progress == "drawn"
        self._done = 0 if is_counted or is_drawn or self._start == len(order) else None
        key = (self.epoch, self.seed, len(self._files))
        files_each = self._samples.files_each
        self._publisher.begin(key, partial(self._plan, order), self._start * files_each)
        for start in range(self._start, len(order), _DRAWN_AT_ONCE):
            part = order.inodes[start : start + _DRAWN_AT_ONCE]
            for number, sample in enumerate(self._samples.samples_of(part).tolist(), start + 1):
                self.check_iteration(iteration)
                if is_drawn:
                    self._done = number - self._start
                if number == len(order) and not is_counted:
                    self._is_over = True
                yield sample
            if iteration is self.iteration:
                self._publisher.prepare(
                    (self.epoch + 1, self.seed, len(self._samples)),
                    partial(self._whole_plan, self.epoch + 1),
                )
                if not is_counted:
                    self._publisher.progress((start + len(part) - self.in_flight) * files_each)
        if iteration is self.iteration and not is_counted:
            self._is_over = True

    def check_iteration(self, iteration: object) -> None:
        """Raise `UsageError` if `iteration` is not the present one."""
        if iteration is not self.iteration:
            raise UsageError(
                "this iteration of the sampler has ended: another loader iterates over the same "
                "sampler, or its epoch was set or its state loaded in the meantime",
                "give each loader a sampler of its own, and call set_epoch between two epochs",
            )

    def check_not_followed(self, iteration: object) -> None:
        """Raise `UsageError` if another iteration has begun after `iteration`."""
        if self._has_begun:
            self.check_iteration(iteration)

    def check_dataset(self, dataset: Any) -> None:
        """Raise `UsageError` if `dataset` is seen to be another than this sampler's."""
        self._samples.check_same(dataset)

    def count_next_iteration(self) -> None:
        """Note that a loader will call `delivered` in the next iteration."""
        if self.progress == "drawn":
            raise UsageError(
                'a ChunkShuffleLoader counts deliveries, and the sampler draws (progress="drawn")',
                "leave progress out; only torchdata's StatefulDataLoader needs it",
            )
        self._is_counted_next = True

    def delivered(self, samples: int) -> None:
        """Set the number of samples that the training loop has received since the iteration began.

        A loader that counts samples calls this.
        """
        self._done = min(samples, self.samples_left)
        self._is_over = self._done == self.samples_left
        self._publisher.progress((self._start + self._done) * self._samples.files_each)

    def ended(self, iteration: object | None) -> None:
        """Note that no more batches come of an iteration: what is left does not fill one.

        The loader calls this. `iteration` is None if no batch came.
        """
        if iteration in (None, self.iteration):
            self._is_over = True

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
            samples_done = min(index(batches_done) * self.batch_size, self.samples_left)
        self._follow_process_group()
        if samples_done is None:
            samples_done = self._done
        if samples_done is None:
            raise UsageError(
                "the sampler cannot know what was trained: a DataLoader draws indices ahead of it",
                "call state_dict(batches_done=…) or (samples_done=…), use a ChunkShuffleLoader, or "
                'pass progress="drawn" for a StatefulDataLoader',
            )
        if not 0 <= index(samples_done) <= self.samples_left:
            raise UsageError(
                f"{samples_done} samples done, but this rank had {self.samples_left} left in the "
                "epoch",
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

        A StatefulDataLoader's state, which has the sampler's within it, is also accepted. Such a
        loader can load it only with the same number of workers; the sampler with any.

        Raises `Conflict` with the reason if the state is of another snapshot, of other files of it,
        or of another seed than was given. With `override` a warning gives the reason instead, and
        the state's epoch starts again: the part that was read is ignored. Raises `UsageError` if
        the caller could not read the whole rest of the epoch.
        """
        self._follow_process_group()
        loaded = SamplerState.from_dict(sampler_state_within(state))
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
        counter = batch_counter() if earlier else None
        if counter is not None:
            raise UsageError(
                f"{counter} counts the batches of an epoch, and the rest of this one has other "
                f"batches: it was begun with {_told(earlier[-1].division)}, and this is "
                f"{_told(self.division)}",
                "resume with the same division, or from a checkpoint of the end of an epoch",
            )
        asked = self._asked_epoch if self.progress == "drawn" else None
        left = self.division.files_a_rank(len(files)) - start
        if asked is not None and asked != loaded.epoch and left:
            raise UsageError(
                f"the state is in the middle of epoch {loaded.epoch}, and set_epoch({asked}) was "
                "called before the loader loaded it",
                f"begin the training loop with epoch {loaded.epoch}",
            )
        self.seed, self.epoch = seed, loaded.epoch
        self._begin_stage(earlier, files, start)
        if asked is not None:
            # A StatefulDataLoader loads its state when it is iterated, after set_epoch. A finished
            # one it iterates again, for the next epoch: the one asked for, or else none.
            self.set_epoch(asked)
            self._stays_over = asked == loaded.epoch and not left

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
            self._fingerprint,
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
        """Return the plan of all files of the samples, of which an order has one file each."""
        samples = self._samples
        return ReadingPlan(
            samples.snapshot.id,
            samples.all_files_of(order.inodes),
            order.group_start * samples.files_each,
            os.fspath(samples.snapshot.path),
        )


def distributed_rank() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    They come from `torch.distributed`, else from the environment as launchers set it, else they are
    0 of 1.
    """
    if _is_distributed():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)


def _from_environment(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"{variable}={text} in the environment is not a number",
            "correct the variable, or create the sampler with rank=… and world_size=…",
        ) from None


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _told(division: Division) -> str:
    return (
        f"{division.world_size} ranks, group_size={division.group_size}, "
        f"drop_last={division.drop_last}"
    )
