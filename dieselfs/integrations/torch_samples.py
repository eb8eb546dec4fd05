"""`SampleDataset`: a map-style dataset of samples of several files, such as an image and its text.

It reads through the client, or from a mount, and gives dictionaries as webdataset does.

    pairs = SampleDataset(
        "/mnt/pairs", "train", parts=("jpg", "json"), decode={"json": json.loads}
    )
    loader = ChunkShuffleLoader(pairs, batch_size=256, num_workers=8)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.errors import UsageError
from dieselfs.integrations.image_files import read_file
from dieselfs.integrations.mounted_snapshot import check_shown, mounted_snapshot
from dieselfs.integrations.sample_files import mount_of
from dieselfs.integrations.sample_parts import Missing, sample_key_of, sample_parts
from dieselfs.integrations.sample_source import SampleSource, snapshot_of
from dieselfs.prefetch.announcement import Published, announce
from dieselfs.prefetch.plan_file import ReadingPlan
from metadata.snapshot import Snapshot

KEY: Final = "__key__"

Inodes = npt.NDArray[np.uint32]


class SampleDataset(Dataset[dict[str, Any]]):
    """A dataset of dictionaries by index: the parts of a sample, and its key as `__key__`.

    The key is the path up to the first dot of the name, relative to the dataset's root. The dataset
    keeps 4 bytes for each sample and part, and no path. It works in workers that are forked and in
    those that are spawned.
    """

    def __init__(
        self,
        source: Client | Callable[[], Client] | str | os.PathLike[str],
        under: str = "",
        *,
        parts: str | Sequence[str],
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        missing: Missing = "error",
        memory: NodeMemory | None = None,
    ) -> None:
        """Find the samples. Takes about 1.5 µs a file.

        - `source`: a mountpoint; or a client, whose snapshot or else present state is read from the
          node's memory, as `DieselDataset` does; or a function that makes one.
        - `under`: the directory with the samples, which may lie below it at any depth.
        - `parts`: what follows the first dot of the files' names, such as `("jpg", "json")`. Other
          files are left alone.
        - `decode`: functions from bytes, by part; a part without one stays bytes.
        - `transform`: a function of the dictionary. In spawned workers all functions must be
          picklable.
        - `missing`: "error" raises `UsageError`, which names a sample without one of the parts;
          "skip" leaves such samples out.
        - `memory`: for a client, by default that of all processes that read the dataset here.
        """
        self.parts = (parts,) if isinstance(parts, str) else tuple(parts)
        strange = set(decode or ()) - set(self.parts)
        if strange:
            raise UsageError(
                f"there is no part {min(strange)} to decode", f"the parts are {self.parts}"
            )
        self._decoders = dict(decode or {})
        self.transform = transform
        self._source: SampleSource | _MountedFiles
        if isinstance(source, str | os.PathLike):
            root = mount_of(os.fspath(source))
            self._source = _MountedFiles(mounted_snapshot(root), root)
            within = os.path.relpath(os.path.realpath(source), os.path.realpath(root))
            under = os.path.normpath(os.path.join(within, under.strip("/")))
            under = "" if under == "." else under
        else:
            with nullcontext(source) if isinstance(source, Client) else source() as client:
                snapshot = snapshot_of(client)
                self._source = SampleSource.open(snapshot, client, memory)
        self.part_inodes: Inodes = sample_parts(self.snapshot, self.parts, under, missing)
        """The inodes of the files: a row for each sample, a column for each part."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that the samples come from."""
        return self._source.snapshot

    @property
    def mount_root(self) -> Path | None:
        """The mount that is read; None with a client."""
        return self._source.root if isinstance(self._source, _MountedFiles) else None

    @property
    def inodes(self) -> Inodes:
        """The first part of each sample, by which a sampler orders them."""
        return self.part_inodes[:, 0]

    def __len__(self) -> int:
        return len(self.part_inodes)

    def __getitem__(self, index: int) -> Any:
        [sample] = self._samples(self.part_inodes[index][None])
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch: a DataLoader's workers ask for it in one call."""
        return self._samples(self.part_inodes[np.asarray(indices, np.int64)])

    def key(self, index: int) -> str:
        """Return the key of a sample."""
        return sample_key_of(self.snapshot, int(self.part_inodes[index, 0]))

    def announce(self, plan: ReadingPlan, position: int, after: str) -> Published | None:
        """Have the files loaded ahead of the sampler, which calls this."""
        return self._source.announce(plan, position, after)

    def close(self) -> None:
        """Leave the node's memory. Later reads come from the store."""
        if isinstance(self._source, SampleSource):
            self._source.close()

    def _samples(self, rows: Inodes) -> list[Any]:
        """Return samples by their rows. The loops go over parts: that takes half the time."""
        contents, each = self._source.read_many(rows.ravel()), len(self.parts)
        samples: list[dict[str, Any]] = [{KEY: key} for key in self._keys(rows[:, 0])]
        for column, part in enumerate(self.parts):
            decode = self._decoders.get(part)
            found = contents[column::each]
            for sample, content in zip(
                samples, map(decode, found) if decode else found, strict=True
            ):
                sample[part] = content
        return samples if self.transform is None else list(map(self.transform, samples))

    def _keys(self, inodes: Inodes) -> list[str]:
        """Return the keys of the samples with these first parts."""
        ending = b"." + os.fsencode(self.parts[0]) + b"\0"
        text = self.snapshot.paths_text(inodes, b"\0").replace(ending, b"\0")
        return os.fsdecode(text).split("\0")[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class _MountedFiles:
    """Files of a snapshot by inode, read from a mount that shows it."""

    snapshot: Snapshot
    root: Path

    def read_many(self, inodes: Inodes) -> list[bytes]:
        """Return whole files, in order; `Conflict` if one is not in the snapshot shown now."""
        top = os.fsencode(self.root) + b"/"
        paths = self.snapshot.paths_text(inodes, b"\0").split(b"\0")[:-1]
        try:
            return [read_file(top + path) for path in paths]
        except FileNotFoundError:
            check_shown(self.root, self.snapshot.id)
            raise

    def announce(self, plan: ReadingPlan, position: int, after: str) -> Published | None:
        """Have the mount prefetch a plan."""
        return announce(self.root, plan, position, after)
