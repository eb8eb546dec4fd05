"""`DieselDataset`: a map-style dataset of class folders, read through the client.

It needs no mount, and its samples are those of ImageFolder.

    with Client.connect("imagenet", …) as client:
        images = DieselDataset(client, under="train", transform=transform)
        sampler = ChunkShuffleSampler(images)
        loader = ChunkShuffleLoader(images, sampler=sampler, batch_size=256, num_workers=8)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.integrations.class_folders import class_folders
from dieselfs.integrations.image_files import decode_image
from dieselfs.integrations.sample_source import SampleSource, snapshot_of
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan
from metadata.snapshot import Snapshot

Load = Callable[[bytes], Any]


class DieselDataset(Dataset[tuple[Any, int]]):
    """A dataset of (sample, number of its class) by index.

    It keeps 8 bytes a sample, and no path. Its attributes are ImageFolder's, with two exceptions:
    `targets` is an array, and there is no list of samples; `path(index)` gives a sample's path. It
    works in workers that are forked and in those that are spawned.
    """

    def __init__(
        self,
        source: Client | Callable[[], Client],
        under: str = "",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        loader: Load = decode_image,
        *,
        extensions: str | Sequence[str] | None = None,
        memory: NodeMemory | None = None,
    ) -> None:
        """Open the samples.

        `source` is a client, or a function that makes one, which is closed again. The dataset
        itself needs only the client's store and settings. It reads the snapshot that the client has
        loaded, or else the dataset's present state; the client stays as it is.

        `under` is the directory with one folder a class; for `extensions` see `class_folders`.
        `loader` makes a sample of a file's bytes; in spawned workers, it and the transforms must be
        picklable. `memory` is by default that of all processes that read this dataset on the node.
        """
        with nullcontext(source) if isinstance(source, Client) else source() as client:
            snapshot = snapshot_of(client)
            found = class_folders(snapshot, under, extensions)
            self._source = SampleSource.open(snapshot, client, memory)
        self.classes = found.classes
        self.class_to_idx = {name: number for number, name in enumerate(found.classes)}
        self.inodes = found.inodes
        self.targets = found.targets
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that the samples come from."""
        return self._source.snapshot

    def __len__(self) -> int:
        return len(self.inodes)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._sample(index, self._source.reader.read(int(self.inodes[index])))

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return a batch: a DataLoader's workers ask for it in one call."""
        contents = self._source.reader.read_many(self.inodes[np.asarray(indices, np.int64)])
        return [self._sample(*pair) for pair in zip(indices, contents, strict=True)]

    def path(self, index: int) -> str:
        """Return a sample's path, relative to the dataset's root."""
        return os.fsdecode(self.snapshot.path_of(int(self.inodes[index])))

    def announce(self, plan: ReadingPlan, position: int, after: str) -> PlanFile | None:
        """Have the node's memory filled ahead of the sampler, which calls this."""
        return self._source.announce(plan, position, after)

    def close(self) -> None:
        """Leave the node's memory. Later reads come from the store."""
        self._source.close()

    def _sample(self, index: int, data: bytes) -> tuple[Any, Any]:
        sample, target = self.loader(data), int(self.targets[index])
        if self.transform is not None:
            sample = self.transform(sample)
        return sample, target if self.target_transform is None else self.target_transform(target)
