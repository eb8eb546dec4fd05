"""A process that reads a mount of `made_up` files in every way there is, and checks each byte.

It imports little, since tests start dozens of such processes.
"""

import errno
import mmap
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.mount import made_up

ENDED = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT)
"""What a reader gets from a mount that has ended or was aborted."""
PAGE = 4096
STEP_S = 0.001
"""Between two reads: eight readers that only read would leave the mount's servers little time."""


class Wrong(Exception):
    """A byte, a size or a name that is in no version, or a mix of two."""


class OpenFile:
    """A file of one version, whichever it was opened in."""

    def __init__(self, mount: Path, path: str, flags: int = 0) -> None:
        self._path = path
        self.fd = os.open(mount / path, os.O_RDONLY | flags)
        self.size = os.fstat(self.fd).st_size
        self._possible = [
            version
            for version in made_up.versions_of(path)
            if len(made_up.content(path, version)) == self.size
        ]

    def check(self, data: bytes, start: int, wanted: int) -> None:
        """`data` is what came for a range."""
        self._possible = [
            version
            for version in self._possible
            if made_up.content(self._path, version)[start : start + wanted] == data
        ]
        if not self._possible:
            raise Wrong(f"{self._path}: {len(data)} bytes for {wanted} from {start} of {self.size}")

    def pread(self, length: int, start: int) -> None:
        data = os.pread(self.fd, length, start)
        while data and len(data) < min(length, self.size - start):
            # What came before an error is given first, and the error to who reads on.
            data += (more := os.pread(self.fd, length - len(data), start + len(data)))
            if not more:
                break
        self.check(data, start, length)

    def __enter__(self) -> "OpenFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)


class Reader:
    def __init__(self, mount: Path, files: int, seed: int, faults: Any = None) -> None:
        """`faults` is odd while reads may fail; None if they never may."""
        self._mount = mount
        self._paths = made_up.all_paths(files)
        self._dice = random.Random(seed)
        self._direct = mmap.mmap(-1, 1 << 20)  # O_DIRECT wants whole pages
        self._faults = faults
        self._ways: list[Callable[[str], None]] = [
            *[self.whole] * 4,
            *[self.at_random] * 2,
            *[self.mapped if faults is None else self.whole] * 2,  # an error there is a signal
            *(self.past_the_cache, self.with_readahead, self.dropped),
        ]

    def read_some(self) -> None:
        """One file, a few neighbours or a listing."""
        draw = self._dice.random()
        if draw < 0.01:
            self.listing()
        elif draw < 0.02:
            first = self._dice.randrange(len(self._paths))
            for path in self._paths[first : first + 200]:
                self._one(self.whole, path)
        else:
            self._one(self._dice.choice(self._ways), self._dice.choice(self._paths))

    def _one(self, way: Callable[[str], None], path: str) -> None:
        before = 0 if self._faults is None else self._faults.value
        try:
            way(path)
        except FileNotFoundError:
            if made_up.versions_of(path) == made_up.VERSIONS:
                raise
        except OSError as error:
            may_fail = self._faults is not None and (before % 2 or self._faults.value != before)
            if error.errno != errno.EIO or not may_fail:
                raise

    def whole(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            file.pread(file.size + 1, 0)

    def at_random(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            for _ in range(5):
                start = self._dice.randrange(file.size + 100)
                file.pread(self._dice.randrange(1, 100_000), start)

    def mapped(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            if not file.size:
                return
            with mmap.mmap(file.fd, 0, prot=mmap.PROT_READ) as view:
                for _ in range(5):
                    start = self._dice.randrange(file.size)
                    length = self._dice.randrange(1, 30_000)
                    file.check(view[start : start + length], start, length)
                if self._dice.random() < 0.3:
                    view.madvise(mmap.MADV_DONTNEED)
                    file.check(view[:], 0, file.size)

    def past_the_cache(self, path: str) -> None:
        try:
            opened = OpenFile(self._mount, path, os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.whole(path)  # EROFS over files has none
            return
        with opened as file:
            start = self._dice.randrange(0, file.size + 1, PAGE)
            got = os.preadv(file.fd, [self._direct], start)
            file.check(self._direct[:got], start, len(self._direct))

    def with_readahead(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_WILLNEED)
            for start in range(0, file.size, PAGE):
                file.pread(PAGE, start)

    def dropped(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            for _ in range(2):
                file.pread(file.size, 0)
                os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def listing(self) -> None:
        directory = f"d{self._dice.randrange(made_up.DIRECTORIES)}"
        with os.scandir(self._mount / directory) as entries:
            names = [entry.name for entry in entries]
        if len(names) != len(set(names)) or not any(
            set(names) == made_up.names_in(directory, version, self._paths)
            for version in made_up.VERSIONS
        ):
            raise Wrong(f"{directory} lists {len(names)} names")


def read_on(
    mount: Path,
    files: int,
    number: int,
    beats: Any,
    ended: Any,
    may_end: bool,
    report: Path,
    faults: Any,
) -> None:
    """The main function of a reading process. It ends well, or says why in `report`."""
    try:
        reader = Reader(mount, files, number, faults)
        for directory in range(
            made_up.DIRECTORIES
        ):  # as a data loader begins: the kernel learns the inodes
            with os.scandir(mount / f"d{directory}") as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # the other version may have come
                        entry.stat()
        while not ended.is_set():
            reader.read_some()
            beats[number] += 1
            time.sleep(STEP_S)
    except OSError as error:
        if not (may_end and error.errno in ENDED):
            report.write_text(f"{error!r}: {error.filename}")
    except BaseException as error:
        report.write_text(repr(error))
