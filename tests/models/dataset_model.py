"""A dataset as a dictionary: what is acknowledged, and what may be there besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Put:
    path: bytes
    data: bytes
    is_link: bool = False
    """A symbolic link, whose target is `data`."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    path: bytes
    seen: int
    """The generation of the version that it hides, with all before."""


Change = Put | Tombstone


@dataclass(frozen=True, slots=True)
class Version:
    data: bytes
    generation: int
    is_link: bool = False


@dataclass(slots=True)
class DatasetModel:
    """Files by path. What a flush brings is one commit: there as a whole, or not at all."""

    files: Mapping[bytes, Version] = field(default_factory=dict)

    def after(self, changes: Sequence[Change], generation: int) -> DatasetModel:
        """With one commit more; of two changes of a path in it the later counts."""
        files = dict(self.files)
        for path, change in {change.path: change for change in changes}.items():
            match change:
                case Put(_, data, is_link):
                    files[path] = Version(data, generation, is_link)
                case Tombstone(_, seen):
                    if path in files and files[path].generation <= seen:
                        del files[path]
        return DatasetModel(files)

    @property
    def links(self) -> set[bytes]:
        """The paths of the symbolic links."""
        return {path for path, version in self.files.items() if version.is_link}

    @property
    def content(self) -> dict[bytes, bytes]:
        return {path: version.data for path, version in self.files.items()}
