"""What is said of an SSD tier, by flags, -o options, variables or a profile, before sense is made of it (`dieselfs.ssd_tier`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from dieselfs.errors import UsageError

AdmissionName: TypeAlias = Literal["all", "reject-first"]
ADMISSIONS: Final[tuple[AdmissionName, ...]] = get_args(AdmissionName)
NONE: Final = "none"
"""As a folder: no tier, whatever the configuration says."""


@dataclass(frozen=True, slots=True)
class SsdOptions:
    """As written. None: not said."""

    folder: str | None = None
    size_bytes: int | None = None
    admission: str | None = None
    eviction: str | None = None
    warmup: bool | None = None

    def otherwise(self, other: SsdOptions) -> SsdOptions:
        """What is not said here is as `other` says; a folder that is said here has nothing from there."""
        if self.folder is not None:
            return self
        return SsdOptions(
            other.folder,
            other.size_bytes if self.size_bytes is None else self.size_bytes,
            self.admission or other.admission,
            self.eviction or other.eviction,
            other.warmup if self.warmup is None else self.warmup,
        )


def typed_folder(folder: str | None) -> str | None:
    """A folder as it was typed at a prompt, made absolute; `none` and None stay. `UsageError` for an empty one: it would be the current folder."""
    if folder in (None, NONE):
        return folder
    if not folder:
        raise UsageError("--ssd with an empty folder", "name one, or write --ssd none")
    return os.path.abspath(os.path.expanduser(folder))
