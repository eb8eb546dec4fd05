"""A failing read is one line with the file's path, however often the kernel asks for it."""

import errno

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt, Unavailable
from dieselfs.fuse.requests.errnos import RequestRefused
from dieselfs.fuse.requests.read_failures import QUIET_S, ReadFailures
from metadata.errors import SnapshotRefused

FILE = FileExtent(ChunkRef(ChunkId(bytes(16)), 64, 1024), 0, 10, 0)
OTHER = FileExtent(ChunkRef(ChunkId(bytes(16)), 64, 1024), 10, 10, 0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def path_of(file: FileExtent) -> str:
    return {0: "cat/1.jpg", 10: "cat/2.jpg"}[file.offset]


def test_equal_failures_of_a_file_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = ReadFailures(path_of, clock)
    for _ in range(4):
        assert failures.errno(FILE, "blob0@4096", Corrupt("wrong")) == errno.EIO
    failures.errno(OTHER, "blob0@8192", Corrupt("wrong"))
    failures.errno(FILE, "blob0@4096", Unavailable("away"))
    assert caplog.messages == [
        "read of cat/1.jpg: EIO: Corrupt: wrong",
        "read of cat/2.jpg: EIO: Corrupt: wrong",
        "read of cat/1.jpg: EIO: Unavailable: away",
    ]
    assert failures.kinds() == {"Corrupt": 5, "Unavailable": 1}
    caplog.clear()
    clock.now += QUIET_S
    for _ in range(2):
        failures.errno(FILE, "blob0@4096", Corrupt("wrong"))
    line = "read of cat/1.jpg (and 3 more times since the last line): EIO: Corrupt: wrong"
    assert caplog.messages == [line]


def test_a_file_without_a_path_is_named_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    def damaged(file: FileExtent) -> str:
        raise SnapshotRefused("damaged")

    ReadFailures().errno(FILE, "blob0@4096", Corrupt("wrong"))
    ReadFailures(damaged).errno(FILE, "blob0@4096", Corrupt("wrong"))
    ReadFailures(path_of).errno(None, "blob0@4096", Corrupt("wrong"))
    assert caplog.messages == ["read of blob0@4096: EIO: Corrupt: wrong"] * 3


def test_what_is_refused_as_it_should_be_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    failures = ReadFailures(path_of)
    assert failures.errno(FILE, "x", RequestRefused(errno.EISDIR)) == errno.EISDIR
    assert (caplog.messages, failures.kinds()) == ([], {})


def test_a_bug_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failures = ReadFailures(path_of)
    assert failures.errno(FILE, "x", ZeroDivisionError()) == errno.EIO
    assert caplog.records[0].exc_info is not None
    assert failures.kinds() == {"ZeroDivisionError": 1}


def test_the_memory_for_files_that_fail_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = ReadFailures(lambda file: str(file.offset), clock)
    for number in range(5000):
        file = FileExtent(FILE.chunk, number, 10, 0)
        failures.errno(file, "x", Unavailable("away"))
    assert len(failures._quiet) <= 4096
    assert len(caplog.messages) == 5000
