"""Page fillers: by ranges of an ordinary sparse file, by stores of a connection that is none, by a
helper process on real files."""

import ctypes
import errno
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.pages import range_filler
from dieselfs.fuse.pages.file_filler import FileFiller
from dieselfs.fuse.pages.page_filler import Filled, PageFiller
from dieselfs.fuse.pages.page_helper import PageHelper
from dieselfs.fuse.pages.range_filler import RangeFiller
from dieselfs.fuse.pages.store_filler import StoreFiller
from metadata.snapshot import Snapshot
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.eventually import PATIENCE_S, eventually
from tests.mount.mounting import is_alive
from tests.open_descriptors import open_descriptors
from tests.stopping import stop

PAGE = 4096
CHUNKS, FILES = 4, 40
SIZE = 3 * PAGE - 100
STEP = 32 << 10


class Placed(MadeSnapshot):
    """A made-up snapshot with places in chunks; the files' paths are their numbers."""

    def __init__(self, lengths: Sequence[Sequence[int]]) -> None:
        super().__init__(lengths)
        offsets = [np.concatenate([[0], np.cumsum(files)[:-1]]) for files in lengths]
        object.__setattr__(self.columns, "offset", np.concatenate(offsets).astype(np.uint64))


SNAPSHOT = Placed([[SIZE] * FILES] * CHUNKS)


def inodes(*files: int) -> Any:
    return np.array(files, np.uint32)


def files_of(chunk: int) -> Any:
    return np.arange(chunk * FILES, (chunk + 1) * FILES, dtype=np.uint32)


class Layout:
    """Files of three pages each; from chunk 3 on in another device."""

    def range_of_files(self, first_inode: int, end_inode: int) -> list[tuple[int, int, int]]:
        edge = 3 * FILES
        parts = [(0, first_inode, min(end_inode, edge)), (1, max(first_inode, edge), end_inode)]
        return [
            (device, (first - device * edge) * 3 * PAGE, (end - device * edge) * 3 * PAGE)
            for device, first, end in parts
            if first < end
        ]


class Helper:
    """Implements `page_helper.Helper`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.on_stat: Callable[[], None] = lambda: None
        self.works = True

    def _call(self, what: str, paths: bytes) -> bool:
        self.calls.append((what, [int(path) for path in paths.split(b"\0")[:-1]]))
        return self.works

    def load(self, paths: bytes) -> bool:
        return self._call("load", paths)

    def drop(self, paths: bytes) -> bool:
        return self._call("drop", paths)

    def stat(self, paths: bytes) -> bool:
        self.on_stat()
        return self._call("stat", paths)


def filled(filler: PageFiller, count: int) -> list[Filled]:
    """Wait for so many."""
    found: list[Filled] = []
    while len(found) < count:
        assert select.select([filler.wake_fd], [], [], PATIENCE_S)[0]
        found += filler.take_filled()
    return found


def dropped(filler: PageFiller, files: Any, *, staged_only: bool = False) -> None:
    """Drop, and wait for it."""
    done: list[int] = []
    filler.drop(files, lambda: done.append(threading.get_ident()), staged_only=staged_only)
    while not done:
        assert select.select([filler.wake_fd], [], [], PATIENCE_S)[0]
        assert filler.take_filled() == []
    assert done == [threading.get_ident()], "in the thread that asks"


# Ranges


class Blobs:
    """Two sparse files, and the descriptors of them that are open."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "0", folder / "1"]
        for path in self.paths:
            with path.open("wb") as file:
                file.truncate(3 * FILES * 3 * PAGE)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.opened = 0

    def open(self, device: int) -> int:
        self.opened += 1
        return os.open(self.paths[device], os.O_RDONLY)

    def cached(self, device: int, start: int, length: int) -> int:
        """Pages in the page cache."""

        class Stat(ctypes.Structure):
            _fields_ = [(name, ctypes.c_uint64) for name in "abcde"]

        window, found = (ctypes.c_uint64 * 2)(start, length), Stat()
        with self.paths[device].open("rb") as file:
            if ctypes.CDLL(None).syscall(451, file.fileno(), window, ctypes.byref(found), 0):
                pytest.skip("no cachestat(2)")
        return int(found.a)

    def is_open_here(self) -> bool:
        targets = [target for _, target in open_descriptors()]
        return any(str(path) in targets for path in self.paths)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path)


@pytest.fixture
def helper() -> Helper:
    return Helper()


@pytest.fixture
def own_pids() -> set[int]:
    return set()


@pytest.fixture
def ranges(blobs: Blobs, helper: Helper, own_pids: set[int]) -> Iterator[RangeFiller]:
    filler = RangeFiller(SNAPSHOT.as_snapshot(), Layout(), blobs.open, STEP, helper, own_pids)
    yield filler
    filler.close()


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(advice, start, length) as they are given."""
    calls: list[tuple[int, int, int]] = []
    real = os.posix_fadvise

    def advise(fd: int, start: int, length: int, advice: int) -> None:
        calls.append((advice, start, length))
        real(fd, start, length, advice)

    monkeypatch.setattr(range_filler.os, "posix_fadvise", advise)
    return calls


def test_a_range_is_read_ahead_step_by_step(
    ranges: RangeFiller, blobs: Blobs, advised: list[tuple[int, int, int]]
) -> None:
    ranges.fill(1, files_of(1))
    assert filled(ranges, 1) == [Filled(1, True)]
    begin, size = FILES * 3 * PAGE, FILES * 3 * PAGE
    assert blobs.cached(0, begin, size) == 3 * FILES
    assert blobs.cached(0, begin + size, size) == 0, "and nothing beyond it"
    steps = [(at, length) for what, at, length in advised if what == os.POSIX_FADV_WILLNEED]
    assert steps[0] == (begin, STEP)
    assert max(length for _, length in steps) == STEP
    assert sum(length for _, length in steps) == size
    assert ranges.statistics().filled_bytes == FILES * SIZE
    assert blobs.opened == 1


def test_of_a_chunk_only_the_files_asked_for_are_filled_and_few_others(
    ranges: RangeFiller, blobs: Blobs
) -> None:
    ranges.fill(0, inodes(0, 1, 5, 30))
    filled(ranges, 1)
    assert blobs.cached(0, 0, 6 * 3 * PAGE) == 18, "what is in between is brought along"
    assert blobs.cached(0, 30 * 3 * PAGE, 3 * PAGE) == 3
    assert blobs.cached(0, 0, FILES * 3 * PAGE) == 21


def test_ranges_are_dropped_file_by_file_or_as_a_whole(
    ranges: RangeFiller, blobs: Blobs, helper: Helper, advised: list[tuple[int, int, int]]
) -> None:
    ranges.fill(0, files_of(0))
    filled(ranges, 1)
    advised.clear()
    dropped(ranges, inodes(7, 3, 4, 20), staged_only=True)
    assert [(at // PAGE, length // PAGE) for _, at, length in advised] == [(9, 6), (21, 3), (60, 3)]
    assert blobs.cached(0, 0, FILES * 3 * PAGE) == 3 * FILES - 12
    assert helper.calls == []
    dropped(ranges, files_of(0))
    assert blobs.cached(0, 0, FILES * 3 * PAGE) == 0
    assert helper.calls == [("drop", list(range(FILES)))]
    assert ranges.statistics().dropped_files == FILES
    assert blobs.opened == 1


def test_files_of_two_devices(ranges: RangeFiller, blobs: Blobs) -> None:
    ranges.fill(3, inodes(3 * FILES, 3 * FILES + 1))
    filled(ranges, 1)
    assert blobs.cached(1, 0, 3 * FILES * PAGE) == 6
    dropped(ranges, np.arange(2 * FILES, 4 * FILES, dtype=np.uint32), staged_only=True)
    assert blobs.cached(1, 0, 3 * FILES * PAGE) == 0


def test_what_cannot_be_read_is_told(
    ranges: RangeFiller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.pread

    def fail(fd: int, size: int, at: int) -> bytes:
        if at > 20 * 3 * PAGE:
            raise OSError(errno.EIO, "no such chunk")
        return real(fd, size, at)

    monkeypatch.setattr(range_filler.os, "pread", fail)
    ranges.fill(0, files_of(0))
    ranges.fill(0, inodes(0))
    assert {each.complete for each in filled(ranges, 2)} == {False, True}
    assert ranges.statistics().incomplete_fills == 1
    assert caplog.text == ""


def test_a_blob_that_cannot_be_opened_is_logged(
    helper: Helper, own_pids: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(device: int) -> int:
        raise OSError(errno.ENOTCONN, "the server is gone")

    filler = RangeFiller(SNAPSHOT.as_snapshot(), Layout(), refuse, STEP, helper, own_pids)
    filler.fill(2, files_of(2))
    assert filled(filler, 1) == [Filled(2, False)]
    dropped(filler, files_of(2))
    filler.close()
    assert "chunk 2 is not prefilled: [Errno 107] the server is gone" in caplog.text
    assert "pages were not dropped from the page cache" in caplog.text


def test_its_threads_are_known_while_they_live(ranges: RangeFiller, own_pids: set[int]) -> None:
    assert own_pids == set()
    ranges.fill(0, files_of(0))
    filled(ranges, 1)
    dropped(ranges, files_of(0))
    eventually(lambda: len(own_pids) == 3, "the second thread that fills, which had no work")
    assert threading.get_native_id() not in own_pids
    ranges.close(PATIENCE_S)
    assert own_pids == set()


def test_without_threads_nothing_is_done_until_there_are_some(
    ranges: RangeFiller, monkeypatch: pytest.MonkeyPatch, own_pids: set[int]
) -> None:
    """It is told as the end of a fill that is incomplete, and of a drop."""
    start, started = threading.Thread.start, 0

    def fails(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started != 1:  # the first of two that fill
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        ranges.fill(0, files_of(0))
        assert filled(ranges, 1) == [Filled(0, False)]
        dropped(ranges, files_of(0))
    eventually(lambda: not own_pids, "an end of the thread that was started")
    ranges.fill(0, files_of(0))
    assert filled(ranges, 1) == [Filled(0, True)]
    dropped(ranges, files_of(0))


def test_closing_leaves_out_fills_and_not_drops(
    blobs: Blobs, helper: Helper, own_pids: set[int]
) -> None:
    before = open_descriptors()
    entered, go_on = threading.Event(), threading.Event()

    def slow(device: int) -> int:
        entered.set()
        assert go_on.wait(PATIENCE_S)
        return blobs.open(device)

    filler = RangeFiller(SNAPSHOT.as_snapshot(), Layout(), slow, STEP, helper, own_pids)
    for chunk in range(4):
        filler.fill(chunk, files_of(chunk))
        filler.drop(files_of(chunk))
    assert entered.wait(PATIENCE_S)
    filler.close(0.05)
    assert not filler.has_ended, "it has waited for the drop"
    go_on.set()
    filler.close(PATIENCE_S)
    filler.fill(0, files_of(0))
    assert len(helper.calls) == 4
    assert blobs.opened == 2, "of two devices"
    assert not blobs.is_open_here()
    # Not their number: the garbage of former tests may be collected meanwhile.
    assert open_descriptors() <= before


# Stores


class Connection:
    """The kernel's side of `notify`: pages by node."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.unknown: set[int] = set()
        self.messages = 0

    def notify(self, parts: Sequence[bytes | memoryview]) -> bool:
        message = b"".join(parts)
        length, kind, unique, node, offset, size, _ = struct.unpack_from("=IiQQQII", message)
        assert (kind, unique, offset) == (4, 0, 0)
        assert length == len(message) == 40 + size
        self.messages += 1
        if node in self.unknown:
            return False
        self.pages[node] = message[40:]
        return True


class Source:
    """Chunk n is full of bytes of value n."""

    def __init__(self) -> None:
        self.absent: set[int] = set()

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        number = int.from_bytes(file.chunk.id.value[:4], "big")
        if number in self.absent:
            return None
        numbers = np.arange(file.chunk.payload_bytes, dtype=np.uint32) // SIZE % FILES
        view = memoryview((numbers + number * FILES).astype(np.uint8))
        return view[file.offset + start : file.offset + start + length]


def node_of(inode: int) -> int:
    return inode + 1000


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def stores(
    connection: Connection, source: Source, helper: Helper, own_pids: set[int]
) -> Iterator[StoreFiller]:
    filler = StoreFiller(
        cast(Snapshot, SNAPSHOT), cast(Any, source), connection.notify, node_of, helper, own_pids
    )
    yield filler
    filler.close()


def test_each_file_is_stored_by_one_message(stores: StoreFiller, connection: Connection) -> None:
    stores.fill(1, files_of(1))
    stores.fill(2, inodes(85, 90))
    assert set(filled(stores, 2)) == {Filled(1, True), Filled(2, True)}, "in whatever order"
    assert connection.pages == {
        node_of(inode): bytes([inode]) * SIZE for inode in [*range(40, 80), 85, 90]
    }
    assert connection.messages == 42
    assert stores.statistics().filled_files == 42


def test_unknown_files_are_looked_up_once_and_stored_then(
    stores: StoreFiller, connection: Connection, helper: Helper
) -> None:
    connection.unknown = {node_of(inode) for inode in (0, 5, 6)}
    helper.on_stat = connection.unknown.clear
    stores.fill(0, files_of(0))
    assert filled(stores, 1) == [Filled(0, True)]
    assert helper.calls == [("stat", [0, 5, 6])]
    assert connection.messages == FILES + 3
    assert len(connection.pages) == FILES
    assert stores.statistics().unknown_files == 3


def test_what_is_unknown_even_then_makes_it_incomplete(
    stores: StoreFiller, connection: Connection, helper: Helper
) -> None:
    connection.unknown = {node_of(5)}
    stores.fill(0, files_of(0))
    assert filled(stores, 1) == [Filled(0, False)]
    assert len(helper.calls) == 1
    assert len(connection.pages) == FILES - 1


def test_a_chunk_that_has_left_memory_is_not_stored(
    stores: StoreFiller, source: Source, connection: Connection, helper: Helper
) -> None:
    source.absent = {1}
    stores.fill(1, files_of(1))
    assert filled(stores, 1) == [Filled(1, False)]
    assert connection.messages == 0
    assert helper.calls == []


def test_stored_pages_are_dropped_by_the_helper(stores: StoreFiller, helper: Helper) -> None:
    dropped(stores, inodes(5, 3), staged_only=True)
    assert helper.calls == []
    dropped(stores, inodes(5, 3))
    assert helper.calls == [("drop", [5, 3])]


# Files, and the helper process


def test_files_are_loaded_and_dropped_by_the_helper(helper: Helper, own_pids: set[int]) -> None:
    filler = FileFiller(SNAPSHOT.as_snapshot(), helper, own_pids)
    filler.fill(1, inodes(40, 45))
    assert filled(filler, 1) == [Filled(1, True)]
    helper.works = False
    filler.fill(1, inodes(41))
    assert filled(filler, 1) == [Filled(1, False)]
    dropped(filler, inodes(45), staged_only=True)
    dropped(filler, inodes(45))
    filler.close()
    assert helper.calls == [("load", [40, 45]), ("load", [41]), ("drop", [45])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "mounted"
    (root / "sub").mkdir(parents=True)
    for number in range(300):
        (root / "sub" / str(number)).write_bytes(os.urandom(10_000 + number))
    os.sync()
    return root


@pytest.fixture
def pages(folder: Path, own_pids: set[int]) -> Iterator[PageHelper]:
    found = PageHelper(folder, own_pids, STEP)
    yield found
    found.close()


def paths(*numbers: int) -> bytes:
    return b"".join(b"sub/%d\0" % number for number in numbers)


def cached_pages(path: Path) -> int:
    class Stat(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in "abcde"]

    window, found = (ctypes.c_uint64 * 2)(0, 0), Stat()
    with path.open("rb") as file:
        if ctypes.CDLL(None).syscall(451, file.fileno(), window, ctypes.byref(found), 0):
            pytest.skip("no cachestat(2)")
    return int(found.a)


def test_the_process_drops_and_loads_pages(pages: PageHelper, folder: Path) -> None:
    assert pages.drop(paths(*range(300)))
    if cached_pages(folder / "sub" / "7"):
        pytest.skip("a file system that has no other copy")

    def all_are_loaded() -> bool:
        assert pages.load(b"absent\0sub/absent/x\0" + paths(*range(200)))
        return {cached_pages(folder / "sub" / str(n)) for n in range(200)} == {3}

    eventually(all_are_loaded)  # others may drop the caches of the whole machine
    assert cached_pages(folder / "sub" / "250") == 0
    assert pages.drop(paths(7))
    assert cached_pages(folder / "sub" / "7") == 0
    assert cached_pages(folder / "sub" / "8") == 3


def test_the_process_is_known_while_it_lives(pages: PageHelper, own_pids: set[int]) -> None:
    assert own_pids == set()
    assert pages.stat(paths(1))
    [pid] = own_pids
    assert Path(f"/proc/{pid}/comm").read_text() == "dlcmd-pages\n"
    pages.close(PATIENCE_S)
    assert own_pids == set()
    assert not Path(f"/proc/{pid}").exists()
    assert not pages.stat(paths(1))


def test_a_long_list_from_several_threads(pages: PageHelper) -> None:
    text = paths(*range(300)) * 60
    assert len(text) > 1 << 17
    results: list[bool] = []

    def call(what: Callable[[bytes], bool]) -> None:
        results.append(what(text))

    threads = [
        threading.Thread(target=call, args=(what,))
        for what in (pages.drop, pages.stat, pages.load) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [True] * 6


def test_a_process_that_has_died_is_started_again(
    pages: PageHelper, own_pids: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert pages.drop(paths(1))
    [pid] = own_pids
    os.kill(pid, signal.SIGKILL)
    assert not pages.drop(paths(1))
    assert "a batch of files for the page cache failed" in caplog.text
    assert pages.drop(paths(1))
    assert own_pids.isdisjoint({pid})


def test_a_process_that_hangs_does_not_hang_the_end(pages: PageHelper, own_pids: set[int]) -> None:
    assert pages.stat(paths(1))
    [pid] = own_pids
    stop(pid)
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(pages.drop(paths(1))))
    waiting.start()
    pages.close()
    waiting.join(PATIENCE_S)
    assert results == [False]
    # It is killed; the second in which it may end is short for a busy machine.
    eventually(lambda: not is_alive(pid), "its end")


def test_it_ends_with_the_process_that_started_it(folder: Path) -> None:
    program = f"""
from pathlib import Path
from dieselfs.fuse.pages.page_helper import PageHelper
own = set()
pages = PageHelper(Path({str(folder)!r}), own)
print(pages.drop(b"sub/1\\0"), *own, flush=True)
input()
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with starter:
        assert starter.stdout is not None
        works, pid = starter.stdout.readline().split()
        assert works == b"True"
        starter.kill()
    eventually(lambda: not Path(f"/proc/{int(pid)}").exists(), "the end of the helper")


def test_paths_without_an_end_are_refused(pages: PageHelper) -> None:
    with pytest.raises(ValueError, match="ended by a NUL"):
        pages.drop(b"sub/1")


def test_it_holds_nothing_while_it_waits(pages: PageHelper, own_pids: set[int]) -> None:
    assert pages.load(paths(1, 2))
    [pid] = own_pids
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    targets = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert not any("mounted" in target for target in targets)


def test_a_file_that_cannot_be_read_is_told(pages: PageHelper, folder: Path) -> None:
    (folder / "sub" / "folder").mkdir()
    assert pages.load(paths(1))
    assert not pages.load(paths(1) + b"sub/folder\0")
    assert pages.drop(paths(1) + b"sub/folder\0")
