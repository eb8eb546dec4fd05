"""Files that forked processes write are the same, and no process or temporary file is left."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.errors import Unavailable
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.client import Client
from dieselfs.client.extraction import extraction, writers
from dieselfs.client.extraction.local_folder import LocalFolder
from dieselfs.client.extraction.writers import LocalWriter, StopFlag, Writers
from dieselfs.errors import LocalFileError, PartialFailure
from metadata.kv.memory import MemoryStore
from tests.eventually import PATIENCE_S

FILES = {f"class{number % 7}/{number}.jpg": bytes([number % 251]) * 900 for number in range(500)}
FILES["empty"] = b""
MTIME_NS = 1_577_840_523_123_456_789

pytestmark = pytest.mark.usefixtures("_processes_for_few_files")


@pytest.fixture
def _processes_for_few_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extraction, "_MANY_FILES", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    opened = Client.connect(
        "pets",
        store=MemoryObjectStore(),
        index=MemoryStore(),
        snapshot_folder=tmp_path,
        create=True,
        open_chunks=1,
        target_bytes=64 << 10,
    )
    with opened as client:
        for path, data in FILES.items():
            client.put(data, path, mode=0o640, mtime_ns=MTIME_NS)
        client.flush()
        yield client


class Watched:
    """A receiver of progress that calls `then` at the first batch. The other threads wait for its
    end after a batch each, so that most batches come later."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then, self.calls = then, 0
        self._lock = threading.Lock()

    def advance(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self.calls += 1
            if self.calls == 1:
                self._then()

    def expect(self, files: int, size_bytes: int) -> None:
        pass


def content(folder: Path) -> dict[str, bytes]:
    """All files, temporary ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def kill_all(number: signal.Signals) -> None:
    processes = multiprocessing.active_children()
    assert len(processes) == 3
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, number)


def test_all_is_there_and_a_second_call_skips_it(client: Client, tmp_path: Path) -> None:
    progress = Watched(lambda: kill_all(signal.SIGTERM))  # meant for the parent, and ignored
    done = client.download("", tmp_path / "out", jobs=3, progress=progress)
    assert (done.files, done.bytes, done.skipped) == (501, 500 * 900, 0)
    assert content(tmp_path / "out") == FILES
    status = (tmp_path / "out/class0/0.jpg").stat()
    assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o640, MTIME_NS)
    (tmp_path / "out/class1/1.jpg").write_bytes(b"changed")
    again = client.download("", tmp_path / "out", jobs=3)
    assert (again.files, again.skipped) == (1, 500)
    assert content(tmp_path / "out") == FILES


def test_one_job_writes_itself(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    client.download("", tmp_path / "out", jobs=1)
    assert content(tmp_path / "out") == FILES


def test_a_link_that_leads_outside_is_told_with_its_path(client: Client, tmp_path: Path) -> None:
    client.put_link("../empty", "class3/up")
    client.put_link("../../x", "class3/deep/out")
    client.flush()
    failed: list[str] = []
    done = client.download(
        "class3",
        tmp_path / "out",
        jobs=3,
        on_failure=lambda entry, error: failed.append(entry.path),
    )
    assert (done.outside, sorted(failed)) == (2, ["class3/deep/out", "class3/up"])
    with pytest.raises(PartialFailure, match=r"2 of 73 files were not copied.*class3/"):
        client.download("class3", tmp_path / "out", jobs=3)


def test_an_error_of_the_disk_names_the_file(client: Client, tmp_path: Path) -> None:
    (tmp_path / "out/class2/2.jpg").mkdir(parents=True)
    with pytest.raises(LocalFileError, match=r"class2/2\.jpg"):
        client.download("", tmp_path / "out", jobs=3)
    assert not [path for path in content(tmp_path / "out") if ".dlcmd-" in path]


def test_a_process_that_is_killed_is_told(client: Client, tmp_path: Path) -> None:
    progress = Watched(lambda: kill_all(signal.SIGKILL))
    with pytest.raises(Unavailable, match=r"ended early \(exit code -9\): run the same command"):
        client.download("", tmp_path / "out", jobs=3, progress=progress)
    client.download("", tmp_path / "out", jobs=3)
    there = content(tmp_path / "out")
    assert {path: there[path] for path in FILES} == FILES


def test_an_interrupt_leaves_whole_files_and_no_process(client: Client, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.download("", tmp_path / "out", jobs=3, progress=Watched(interrupt))
    assert content(tmp_path / "out").items() <= FILES.items()
    client.download("", tmp_path / "out", jobs=3)
    assert content(tmp_path / "out") == FILES


def test_a_writer_that_is_stopped_begins_no_file(tmp_path: Path) -> None:
    folder, stopped = LocalFolder(tmp_path), StopFlag()
    writer, row = LocalWriter(folder, stopped), ("", "file", 0o644, 0, 4, False)
    stopped.set()
    assert writer.write([row], [b"data"]).files == 0
    assert os.listdir(tmp_path) == []
    folder.close()


def test_a_file_goes_to_the_path_that_is_given(client: Client, tmp_path: Path) -> None:
    assert client.download("class1/1.jpg", tmp_path / "mine.jpg").files == 1
    assert (tmp_path / "mine.jpg").read_bytes() == FILES["class1/1.jpg"]


def test_a_process_that_was_forked_meanwhile_does_not_hold_up_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_END_TIMEOUT_S", PATIENCE_S)
    folder = LocalFolder(tmp_path / "out")
    several = Writers(folder, 2)
    several.start_processes()
    processes = [each._process for each in several._processes]
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        several.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        folder.close()
    assert [process.exitcode for process in processes] == [0, 0]
