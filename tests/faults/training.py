"""A training job for the soak: `python training.py MOUNT STOP BEATS`. DataLoader workers are forked
for each epoch, and each byte is checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.reading import content

SIZE = 16_000


class Files(Dataset[int]):
    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self.names = sorted(name for name in os.listdir(mount) if name != ".dieselfs")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        name = self.names[index]
        data = (self._mount / name).read_bytes()
        assert data == content(name, SIZE), f"{name}: wrong bytes"
        # An epoch must read anew: what the page cache has makes no request.
        with open(self._mount / name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return len(data)


def main() -> int:
    mount, stop, beats = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    files = Files(mount)
    log = os.open(beats, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while not stop.exists():
        loader = DataLoader(
            files, batch_size=32, shuffle=True, num_workers=2, multiprocessing_context="fork"
        )
        for sizes in loader:
            assert int(sizes.sum()) == SIZE * len(sizes)
            os.write(log, b".")
            if stop.exists():
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
