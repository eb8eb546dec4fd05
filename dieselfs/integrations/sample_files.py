"""The file of a snapshot behind each sample of a map-style dataset, and the sample of each file.

They take two columns of 4 bytes a sample and one of 8; no path is kept. Finding the inodes of 1.28
M paths takes about a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import are_links
from dieselfs.errors import UsageError
from dieselfs.integrations.mounted_snapshot import mounted_snapshot
from dieselfs.prefetch.announcement import mount_above
from metadata.snapshot import Snapshot

_RESOLVED_AT_ONCE: Final = 65536
"""Paths in one batch.

Their strings are copied, without the path of the mount, a batch at a time.
"""
_HOW: Final = (
    "give a dataset with `samples` as ImageFolder has them, a Subset of one, a DieselDataset, "
    "or the list of its samples' paths by index"
)

Inodes = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class SampleFiles:
    """The files of a dataset's samples, each of exactly one sample."""

    snapshot: Snapshot
    by_sample: Inodes
    """The inode of each sample, by sample index: its file, or the first of its files."""
    files: Inodes
    """The same inodes, ascending."""
    sample_of: npt.NDArray[np.int64]
    """The sample index of `files[i]`."""
    mount_root: Path | None = None
    parts: Inodes | None = None
    """The inodes of all files of each sample, by sample index, if samples have several files."""

    def __len__(self) -> int:
        return len(self.files)

    def samples_of(self, inodes: Inodes) -> npt.NDArray[np.int64]:
        """Return the sample indices of files that are all among these."""
        return self.sample_of[np.searchsorted(self.files, inodes)]

    @property
    def files_each(self) -> int:
        """The number of files of a sample."""
        return 1 if self.parts is None else self.parts.shape[1]

    def all_files_of(self, inodes: Inodes) -> Inodes:
        """Return the files of the samples of these files, sample by sample."""
        if self.parts is None:
            return inodes
        return self.parts[self.samples_of(inodes)].ravel()

    def check_same(self, dataset: Any) -> None:
        """Raise `UsageError` if the samples of `dataset` are seen to be others than these.

        The number of samples is compared, and the inodes or else the names and the mount of the
        first and the last sample: as much as can be told in no time.
        """
        here = len(dataset) if hasattr(dataset, "__len__") else len(self)
        reason = f"it is of {len(self):,} samples, and the dataset has {here:,}"
        if here == len(self):
            inodes, samples = getattr(dataset, "inodes", None), getattr(dataset, "samples", None)
            if inodes is not None:
                same = dataset.snapshot.id == self.snapshot.id
                same = same and np.array_equal(inodes, self.by_sample)
                reason = "" if same else "the dataset's files are others, or in another order"
            elif isinstance(samples, Sequence):
                found = (self._difference(samples, number) for number in (0, here - 1))
                reason = next(filter(None, found), "")
            else:
                reason = ""
        if reason:
            raise UsageError(
                f"the sampler is not of this dataset: {reason}",
                "create the sampler from the dataset that the loader reads",
            )

    def _difference(self, samples: Any, number: int) -> str:
        """Return how the path of a sample differs from its file; empty if it does not."""
        path = os.fspath(
            samples[number][0] if isinstance(samples[number], tuple) else samples[number]
        )
        expected = os.fsdecode(self.snapshot.path_of(int(self.by_sample[number])))
        if os.path.basename(path) != os.path.basename(expected):
            return f"sample {number} is {path} there, and {expected} here"
        if self.mount_root is not None:
            root = mount_above(path)
            if root is None or os.path.realpath(root) != os.path.realpath(self.mount_root):
                return f"{path} does not lie in {self.mount_root}"
        return ""

    @property
    def fingerprint(self) -> str:
        """A hash of the set of files, which differs between subsets of a snapshot.

        The order of the samples does not matter.
        """
        return xxhash.xxh3_128_hexdigest(self.files.astype("<u4").tobytes())


def sample_files_of(
    samples: Any,
    *,
    mount: str | os.PathLike[str] | None = None,
    snapshot: Snapshot | str | os.PathLike[str] | None = None,
) -> SampleFiles:
    """Return the files of a dataset's samples, or of a list of paths.

    The mount is found from the first path unless it is given, and the snapshot from the mount. With
    a snapshot, relative paths are relative to the dataset's root. `UsageError` names the sample
    that is not in it, or the two that are the same file.
    """
    inodes = getattr(samples, "inodes", None)
    if inodes is not None:
        columns = _columns(
            samples.snapshot, np.asarray(inodes), getattr(samples, "mount_root", None)
        )
        return replace(columns, parts=getattr(samples, "part_inodes", None))
    if hasattr(samples, "dataset") and hasattr(samples, "indices"):
        whole = sample_files_of(samples.dataset, mount=mount, snapshot=snapshot)
        chosen = np.asarray(samples.indices, np.int64)
        columns = _columns(whole.snapshot, whole.by_sample[chosen], whole.mount_root)
        return replace(columns, parts=None if whole.parts is None else whole.parts[chosen])
    paths = _paths_of(samples)
    if not paths:
        raise UsageError("there are no samples to shuffle", _HOW)
    root = mount
    if mount is None and (snapshot is None or os.path.isabs(paths[0])):
        root = mount_of(paths[0])
    opened = opened_snapshot(snapshot, root)
    return _columns(opened, _inodes_of(opened, paths, root), None if root is None else Path(root))


def _paths_of(samples: Any) -> Sequence[str]:
    listed: Any = getattr(samples, "samples", samples)
    if isinstance(listed, str | bytes) or not isinstance(listed, Sequence):
        raise UsageError(
            f"cannot find the files of the samples of a {type(samples).__name__}", _HOW
        )
    if len(listed) and isinstance(listed[0], tuple):
        return [path for path, *_ in listed]
    if len(listed) and not isinstance(listed[0], str):
        return [os.fspath(path) for path in listed]
    return listed


def mount_of(path: str) -> Path:
    """Return the root of the mount that a path lies in; `UsageError` if it lies in none."""
    root = mount_above(path)
    if root is None:
        raise UsageError(
            f"{path} does not lie in a mounted dataset",
            "mount the dataset (`dlcmd mount`) and read it from there, or pass its mountpoint: "
            "mount=…",
        )
    return root


def opened_snapshot(
    snapshot: Snapshot | str | os.PathLike[str] | None, root: str | os.PathLike[str] | None
) -> Snapshot:
    """Return the snapshot that is given, or else the one that a mount shows."""
    if isinstance(snapshot, Snapshot):
        return snapshot
    if snapshot is None:
        assert root is not None
        return mounted_snapshot(Path(root))
    return Snapshot.open(snapshot)


def _inodes_of(
    snapshot: Snapshot, paths: Sequence[str], root: str | os.PathLike[str] | None
) -> npt.NDArray[np.int64]:
    before, within = _prefix_of(paths[0], root)
    found = []
    remaining: Iterable[str] = iter(paths)
    while block := list(islice(remaining, _RESOLVED_AT_ONCE)):
        if before:
            outside = [path for path in block if not path.startswith(before)]
            if outside:
                raise UsageError(
                    f"{outside[0]} does not lie in {before}, as {paths[0]} does",
                    "all samples must be files of one mounted dataset",
                )
        if before or within:
            cut = len(before)
            block = [within + path[cut:] for path in block]
        inodes = snapshot.resolve_many(block)
        missing = np.flatnonzero((inodes < 0) | (inodes >= snapshot.file_count))
        if len(missing):
            raise UsageError(
                f"{block[missing[0]]} is not a file of snapshot {snapshot.id} of "
                f"{snapshot.dataset.name}",
                "the dataset object may be older than this snapshot of the mount: create it again",
            )
        _refuse_links(snapshot, inodes)
        found.append(inodes)
    return np.concatenate(found)


def _refuse_links(snapshot: Snapshot, inodes: npt.NDArray[np.int64]) -> None:
    if snapshot.has_links:
        links = inodes[are_links(snapshot.columns.mode[inodes])]
        if len(links):
            path = os.fsdecode(snapshot.path_of(int(links[0])))
            raise UsageError(
                f"{path} is a symbolic link, and an epoch reads every file once",
                "leave links out of the samples; what they lead to may be a sample itself",
            )


def _prefix_of(path: str, root: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the prefix of a path to cut off, and its replacement relative to the dataset's root.

    The prefix is as short as possible: a path that leads through a symbolic link into the mount
    differs from the real one up to there.
    """
    if root is None:
        return "", ""
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    if relative.startswith("../"):
        raise UsageError(
            f"{path} does not lie in {os.fspath(root)}",
            "pass the mountpoint of the dataset: mount=…",
        )
    given, real = path.split("/"), relative.split("/")
    same = 0
    while same < min(len(given), len(real)) and given[-1 - same] == real[-1 - same]:
        same += 1
    suffix_length = len("/".join(given[len(given) - same :]))
    return path[: len(path) - suffix_length], relative[: len(relative) - suffix_length]


def _columns(
    snapshot: Snapshot, inodes: npt.NDArray[np.integer], root: Path | None = None
) -> SampleFiles:
    by_sample = inodes.astype(np.uint32)
    sample_of = np.argsort(by_sample, kind="stable")
    files = by_sample[sample_of]
    twice = np.flatnonzero(files[1:] == files[:-1])
    if len(twice):
        one, other = sample_of[twice[0]], sample_of[twice[0] + 1]
        path = os.fsdecode(snapshot.path_of(int(files[twice[0]])))
        raise UsageError(
            f"samples {one} and {other} are the same file, {path}",
            "an epoch reads every file once: leave one of them out",
        )
    return SampleFiles(snapshot, by_sample, files, sample_of, root)
