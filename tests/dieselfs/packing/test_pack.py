"""Packing without the command line: failures that need a store of their own."""

from __future__ import annotations

import errno
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from chunkstore.chunk_format import KIND_FILE, decode_head
from chunkstore.errors import (
    BadSource,
    ChunkStoreError,
    InvalidPath,
    NoStoreYet,
    StoreFull,
    Unavailable,
)
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.object_store import Buffer
from chunkstore.uploader import Uploader
from dieselfs.dataset.dataset import open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import UsageError
from dieselfs.packing import pack as pack_module
from dieselfs.packing import processes as processes_module
from dieselfs.packing import worker as worker_module
from dieselfs.packing.forecast import Forecast, forecast
from dieselfs.packing.pack import pack
from dieselfs.packing.preflight import BadSources, preflight
from dieselfs.packing.put_request import FileList, PackProgress, PackRequest
from dieselfs.packing.source_tree import EntryBatch, SourceTree
from dieselfs.recovery import RecoveryOptions, read_history, recover
from metadata.errors import DatasetNotFound, PathConflict
from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.lmdb_file import LmdbFileStore
from tests.dieselfs.dataset_content import content_of, tree_of
from tests.eventually import PATIENCE_S, eventually


class StoreWithRules(LocalDirectory):
    """`refuse` raises for keys it does not want; with `after` the object is there nevertheless."""

    def __init__(
        self,
        root: Path,
        refuse: Callable[[str], None],
        after: bool = False,
        refuse_reads: Callable[[str], None] = lambda key: None,
    ) -> None:
        super().__init__(root)
        self._refuse = refuse
        self._after = after
        self._refuse_reads = refuse_reads

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        self._refuse_reads(key)
        return super().get_range(key, offset, length)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        if not self._after:
            self._refuse(key)
        super().create(key, parts)
        if self._after:
            self._refuse(key)


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        for number in range(60):
            (self.source / str(number)).write_bytes(bytes([number]) * 1000)
        self.refuse: Callable[[str], None] = lambda key: None
        self.refuse_reads: Callable[[str], None] = lambda key: None
        self.after = False

    def store(self) -> StoreWithRules:
        return StoreWithRules(self.folder / "store", self.refuse, self.after, self.refuse_reads)

    def index(self) -> KeyValueStore:
        return LmdbFileStore(self.folder / "index")

    def pack(self, **options: object) -> PackProgress:
        progress = PackProgress()
        self.pack_into(progress, **options)
        return progress

    def pack_into(self, progress: PackProgress, **options: object) -> None:
        tree = SourceTree(os.fsencode(self.source), b"")
        request = PackRequest([tree], jobs=2, target_bytes=8192, **options)  # type: ignore[arg-type]
        pack("d", request, self.store, self.index, progress)

    def content(self) -> dict[bytes, object]:
        index = self.index()
        try:
            return dict(content_of(open_dataset(LocalDirectory(self.folder / "store"), index, "d")))
        finally:
            index.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def raising(error: Exception, word: str, times: int = 1000) -> Callable[[str], None]:
    left = [times]

    def refuse(key: str) -> None:
        if word in key and left[0]:
            left[0] -= 1
            raise error

    return refuse


def test_everything_is_counted(place: Place) -> None:
    progress = place.pack()
    assert (progress.files_found, progress.files_committed, progress.walked) == (60, 60, True)
    assert progress.bytes_committed == 60_000
    assert progress.failed == progress.special == []
    assert place.content() == tree_of(place.source)
    assert place.pack().files_unchanged == 60


@pytest.mark.parametrize("error", [StoreFull("no space left"), Unavailable("gone")])
@pytest.mark.parametrize("word", ["/chunks/", "/commits/0000000000000002"])
def test_a_store_that_fails_leaves_no_new_dataset(
    place: Place, error: Exception, word: str
) -> None:
    place.refuse = raising(error, word, 1 if "commits" in word else 1000)  # a removal is a commit
    with pytest.raises(type(error)):
        place.pack()
    with pytest.raises(DatasetNotFound):
        place.content()
    place.refuse = lambda key: None
    place.pack()
    assert place.content() == tree_of(place.source)


def test_a_store_that_fails_leaves_an_old_dataset_as_it_was(place: Place) -> None:
    place.pack()
    before = place.content()
    (place.source / "new").write_bytes(b"x")
    place.refuse = raising(StoreFull("no space left"), "/chunks/")
    with pytest.raises(StoreFull):
        place.pack()
    assert place.content() == before


def test_a_commit_that_landed_though_the_store_did_not_say_so(place: Place) -> None:
    """Its chunks must not be taken back: the commit names them."""
    place.refuse, place.after = raising(Unavailable("no answer"), "/commits/0000000000000002"), True
    with pytest.raises(Unavailable):
        place.pack()
    place.refuse = lambda key: None
    there = place.content()
    assert there
    place.pack()
    assert place.content() == tree_of(place.source)


def test_a_put_that_fails_spares_what_another_one_committed(place: Place) -> None:
    """It made the dataset itself; meanwhile somebody else has used it."""
    (place.source / "dangling").symlink_to("nowhere")
    opened = [0]

    def open_store() -> StoreWithRules:
        opened[0] += 1
        return place.store()

    def write_once_born(key: str) -> None:
        if key.endswith("/commits/0000000000000001"):
            place.refuse = lambda key: None
            index = LmdbFileStore(place.folder / "index of another")
            other = open_dataset(LocalDirectory(place.folder / "store"), index, "d")
            with DatasetWriter(other) as writer:
                writer.put(b"theirs", b"x")
            index.close()

    place.refuse, place.after = write_once_born, True
    tree = SourceTree(os.fsencode(place.source), b"")
    with pytest.raises(BadSource):
        pack("d", PackRequest([tree]), open_store, place.index, PackProgress())
    assert set(place.content()) == {b"", b"theirs"}
    assert opened[0] >= 1


def damage(place: Place, kind: str) -> int:
    """Damage one chunk; return how many of its files cannot be read, or not without their head."""
    objects = [path for path in (place.folder / "store").rglob("chunks/**/*") if path.is_file()]
    chunk = next(path for path in objects if decode_head(path.read_bytes()).payload_bytes)
    content = bytearray(chunk.read_bytes())
    files = decode_head(content).entries.kind.tolist().count(KIND_FILE)
    content[100 if kind == "head" else -1] ^= 1
    chunk.write_bytes(content)
    if kind == "missing":
        chunk.unlink()
    return 1 if kind == "payload" else files


@pytest.mark.parametrize("large_bytes", [500, 64 << 20])
@pytest.mark.parametrize("kind", ["payload", "head", "missing"])
def test_a_file_whose_stored_content_is_damaged_is_put_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str, large_bytes: int
) -> None:
    monkeypatch.setattr(worker_module, "_LARGE_BYTES", large_bytes)
    (place.source / "large").write_bytes(os.urandom(600_000))
    place.pack()
    count = damage(place, kind)
    tree = SourceTree(os.fsencode(place.source), b"")
    assert place.pack().files_unchanged == 61  # without --checksum nothing is read
    found = forecast_of(place, PackRequest([tree], checksum=True))
    if kind != "head":  # small files can be read without it
        with pytest.raises(ChunkStoreError):
            place.content()
    put = place.pack(checksum=True)
    assert found.damaged == found.files == put.files_repaired == put.files_committed == count
    assert put.files_unchanged == found.unchanged == 61 - count
    assert place.content() == tree_of(place.source)
    assert place.pack(checksum=True).files_unchanged == 61


def test_a_store_that_does_not_answer_is_not_taken_for_damaged(place: Place) -> None:
    place.pack()
    before = place.content()
    place.refuse_reads = raising(Unavailable("no answer"), "/chunks/")
    with pytest.raises(Unavailable):
        place.pack(checksum=True)
    place.refuse_reads = lambda key: None
    assert place.content() == before


def forecast_of(place: Place, request: PackRequest) -> Forecast:
    index = place.index()
    try:
        dataset = open_dataset(place.store(), index, "d")
    except (DatasetNotFound, NoStoreYet):
        return forecast(request, None)
    else:
        return forecast(request, dataset)
    finally:
        index.close()


def test_a_forecast_is_what_a_put_does(place: Place) -> None:
    (place.source / "large").write_bytes(bytes(20_000))
    tree = SourceTree(os.fsencode(place.source), b"")
    found = forecast_of(place, PackRequest([tree], target_bytes=8192))
    assert (found.files, found.bytes) == (61, 80_000)
    assert found.chunks == 1 + -(-60_000 // 8192)
    (place.source / "dangling").symlink_to("nowhere")
    with pytest.raises(BadSource, match="dangling"):
        forecast_of(place, PackRequest([tree]))


@pytest.mark.parametrize("checksum", [False, True])
def test_a_forecast_counts_what_a_put_then_finds(place: Place, *, checksum: bool) -> None:
    place.pack()
    status = (place.source / "3").stat()
    (place.source / "1").write_bytes(b"other size")
    os.utime(place.source / "2", ns=(0, 5))
    (place.source / "3").write_bytes(bytes(1000))
    os.utime(place.source / "3", ns=(0, status.st_mtime_ns))
    (place.source / "4").chmod(0o600)
    (place.source / "below").mkdir()
    for number in range(3):
        (place.source / f"below/{number}").write_bytes(b"new")
    tree = SourceTree(os.fsencode(place.source), b"")
    before = place.content()
    found = forecast_of(place, PackRequest([tree], checksum=checksum))
    assert (found.new, found.changed, found.unchanged) == (3, 3, 57)
    assert place.content() == before
    put = place.pack(checksum=checksum)
    assert (put.files_committed, put.files_unchanged) == (found.files, found.unchanged)
    assert put.bytes_committed == found.bytes == 3 * 3 + 10 + 1000 + 1000
    assert forecast_of(place, PackRequest([tree], checksum=True)).files == int(not checksum)


def test_a_forecast_refuses_what_a_put_refuses(place: Place) -> None:
    place.pack()
    (place.source / "1").unlink()
    (place.source / "1").mkdir()
    (place.source / "1/x").write_bytes(b"x")
    tree = SourceTree(os.fsencode(place.source), b"")
    with pytest.raises(PathConflict, match="1 is a file"):
        forecast_of(place, PackRequest([tree]))


def walk_after_the_survey(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Make the walk that packs begin after the survey has ended and `change` has been done."""
    surveyed = threading.Event()
    real_survey, real_runs = pack_module.preflight, pack_module.batches_of

    def preflight(*arguments: Any) -> None:
        try:
            real_survey(*arguments)
            change()
        finally:
            surveyed.set()

    def batches_of(*arguments: Any) -> Iterator[EntryBatch]:
        assert surveyed.wait(20)
        yield from real_runs(*arguments)

    monkeypatch.setattr(pack_module, "preflight", preflight)
    monkeypatch.setattr(pack_module, "batches_of", batches_of)


def test_a_source_that_vanishes_after_the_survey_is_a_failed_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_after_the_survey(monkeypatch, lambda: place.source.rename(place.folder / "elsewhere"))
    progress = place.pack()
    assert progress.files_committed == 0
    assert [reason for reason in progress.failed if str(place.source) in reason] != []


def test_a_walk_that_fails_ends_the_put(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        monkeypatch.setattr(SourceTree, "batches", lambda *_: 1 // 0)

    walk_after_the_survey(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError):
        place.pack()


def test_a_directory_that_can_be_read_in_part_only_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    class Failing:
        def __init__(self, path: bytes) -> None:
            self.entries = real(path)

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            self.entries.close()

        def __iter__(self) -> Iterator[os.DirEntry[bytes]]:
            yield next(self.entries)
            raise OSError(errno.EIO, "Input/output error")

    source = os.fsencode(place.source)
    monkeypatch.setattr(os, "scandir", lambda path: Failing(path) if path == source else real(path))
    with pytest.raises(BadSource, match=f"{place.source}: Input/output error"):
        place.pack()


@pytest.mark.parametrize(
    "source",
    [
        FileList(b"/etc", b"", [b"../etc/hostname"]),
        FileList(b"/", b"", [b"/etc/hostname"]),
        FileList(b"/etc", b"../x", [b"hostname"]),
        SourceTree(b"/etc/hostname", b"a/../hostname"),
    ],
)
def test_illegal_paths_are_refused_before_anything_is_put(
    place: Place, source: FileList | SourceTree
) -> None:
    progress = PackProgress()
    with pytest.raises(InvalidPath):
        pack("d", PackRequest([source]), place.store, place.index, progress)
    with pytest.raises(DatasetNotFound):
        place.content()
    with pytest.raises(InvalidPath):
        forecast(PackRequest([source]), None)


def test_times_that_do_not_fit_are_failures_of_their_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.source / "folder").mkdir()
    far = {(place.source / name).stat().st_ino for name in ("7", "folder")}

    class Far:
        st_mtime_ns = 1 << 70

        def __init__(self, status: os.stat_result) -> None:
            self.st_mode, self.st_size, self.st_dev, self.st_ino = (
                status[0],
                status[6],
                status[2],
                status[1],
            )

    def seen_far(real: Callable[..., os.stat_result]) -> Callable[..., object]:
        def status_of(*arguments: Any, **named: Any) -> object:
            status = real(*arguments, **named)
            return Far(status) if status.st_ino in far else status

        return status_of

    monkeypatch.setattr(os, "stat", seen_far(os.stat))
    monkeypatch.setattr(os, "fstat", seen_far(os.fstat))
    progress = place.pack()
    monkeypatch.undo()
    assert progress.files_committed == 59
    assert sorted(reason.partition(" ")[0] for reason in progress.failed) == [
        str(place.source / "7"),
        str(place.source / "folder"),
    ]


def test_a_writer_refuses_attributes_that_do_not_fit(place: Place) -> None:
    index = place.index()
    with DatasetWriter(open_dataset(place.store(), index, "d", create=True)) as writer:
        for mode, mtime_ns in ((0o644, 1 << 63), (0o644, -(1 << 63) - 1), (-1, 0), (1 << 16, 0)):
            with pytest.raises(UsageError):
                writer.put(b"a", b"x", mode, mtime_ns)
            with pytest.raises(UsageError):
                writer.put_directory(b"b", mode, mtime_ns)
        writer.put(b"c", b"x", 0o644, -(1 << 63))
        writer.put(b"d", b"x", 0o100644, (1 << 63) - 1)
    index.close()
    assert set(place.content()) - {b""} == {b"c", b"d"}


def test_a_large_file_that_changes_while_it_is_packed_is_reported_and_the_others_are_put(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_LARGE_BYTES", 50_000)
    for name in ("changes", "vanishes", "large"):
        (place.source / name).write_bytes(bytes(50_000))
    real = worker_module.hash_stream

    def hash_and_change(pieces: Iterable[bytes], size: int) -> object:
        hashes = real(pieces, size)
        (place.source / "changes").write_bytes(os.urandom(50_000))
        (place.source / "vanishes").unlink(missing_ok=True)
        return hashes

    monkeypatch.setattr(worker_module, "hash_stream", hash_and_change)
    monkeypatch.setattr(
        SourceTree,
        "batches",
        lambda *_: iter(
            [EntryBatch(os.fsencode(place.source), b"", [b"vanishes", b"changes", b"large", b"1"])]
        ),
    )
    progress = PackProgress()
    tree = SourceTree(os.fsencode(place.source), b"")
    pack("d", PackRequest([tree]), place.store, place.index, progress)
    assert progress.files_committed == 2
    assert {reason.split()[0].rstrip(":") for reason in progress.failed} == {
        str(place.source / name) for name in ("vanishes", "changes")
    }
    assert set(place.content()) - {b""} == {b"large", b"1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_somebody_who_is_not_root_is_told_what_cannot_be_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = SourceTree(os.fsencode(place.source), b"")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    preflight([tree], PackProgress())
    real = os.access

    def access(path: Any, mode: int, **named: Any) -> bool:
        assert path == tree.disk_path or named["dir_fd"] >= 0
        return path not in (b"7", b"8") and real(path, mode, **named)

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(BadSources, match="2 sources cannot be packed: no file was put") as failure:
        preflight([tree], PackProgress())
    assert sorted(failure.value.reasons) == [
        f"{place.source}/{number}: cannot be read: check its owner and mode" for number in (7, 8)
    ]


def test_a_put_that_fails_spares_what_another_one_commits_at_that_very_moment(place: Place) -> None:
    """Between its look at the newest commit and its own last one."""
    (place.source / "dangling").symlink_to("nowhere")

    class Store(StoreWithRules):
        armed = True

        def create(self, key: str, parts: Iterable[Buffer]) -> None:
            if key.endswith("/commits/0000000000000002") and self.armed:
                Store.armed = False
                index = LmdbFileStore(place.folder / "index of another")
                other = open_dataset(LocalDirectory(place.folder / "store"), index, "d")
                with DatasetWriter(other) as writer:
                    writer.put(b"theirs", b"x")
                index.close()
            super().create(key, parts)

    tree = SourceTree(os.fsencode(place.source), b"")
    with pytest.raises(BadSource):
        pack(
            "d",
            PackRequest([tree]),
            lambda: Store(place.folder / "store", place.refuse),
            place.index,
            PackProgress(),
        )
    assert not Store.armed
    assert set(place.content()) == {b"", b"theirs"}


@pytest.mark.parametrize(("order", "count"), [("scatter", 2), ("path", 1), ("given", 1)])
def test_processes_are_forked_before_progress_is_told_and_keep_an_order_that_is_wanted(
    place: Place, monkeypatch: pytest.MonkeyPatch, order: str, count: int
) -> None:
    events: list[object] = []
    real = pack_module.PackingProcesses

    def processes(open_store: Any, open_index: Any, count: int) -> object:
        made = real(open_store, open_index, count)
        events.append(count)
        return made

    monkeypatch.setattr(pack_module, "PackingProcesses", processes)
    progress = PackProgress(on_change=lambda _: events.append(threading.current_thread()))
    tree = SourceTree(os.fsencode(place.source), b"")
    pack("d", PackRequest([tree], jobs=2, order=order), place.store, place.index, progress)
    assert events[:2] == [count, threading.main_thread()]


def interrupt_when_stored(
    place: Place, monkeypatch: pytest.MonkeyPatch, chunks: int, *, after_preflight: bool
) -> PackProgress:
    """Send SIGINT to this process when so many chunks are stored; no upload goes on before it acts.

    Uploads need the progress that is returned.
    """
    released, parent, store = threading.Event(), os.getpid(), place.folder / "store"
    examined, stopping = place.folder / "examined", place.folder / "stopping"
    real = pack_module.preflight

    def preflight(*arguments: Any) -> None:
        if not after_preflight:
            assert released.wait(PATIENCE_S)
        real(*arguments)

    def interrupt(key: str) -> None:
        if "/chunks/" in key and len(list(store.glob("datasets/d/chunks/**/*"))) >= chunks:
            if after_preflight:
                eventually(examined.exists, "the end of the preflight")
            with suppress(FileExistsError):
                (place.folder / "interrupted").touch(exist_ok=False)
                os.kill(parent, signal.SIGINT)
            eventually(stopping.exists, "the interrupt")

    def note(progress: PackProgress) -> None:
        if progress.stopping:
            stopping.touch()

    real_release = pack_module._Commits.release

    def release(commits: Any) -> None:
        real_release(commits)
        examined.touch()

    monkeypatch.setattr(pack_module._Commits, "release", release)
    monkeypatch.setattr(pack_module, "preflight", preflight)
    monkeypatch.setattr(pack_module, "_PREFLIGHT_PATIENCE_S", 0.2)
    monkeypatch.setattr(worker_module, "Uploader", partial(Uploader, max_in_flight_bytes=20_000))
    place.refuse, place.after = interrupt, True
    return PackProgress(on_change=note)


def test_an_interrupt_commits_what_is_stored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(600):
        (place.source / f"x{number}").write_bytes(b"x" * 1000)
    progress = interrupt_when_stored(place, monkeypatch, 5, after_preflight=True)
    with pytest.raises(KeyboardInterrupt):
        place.pack_into(progress, open_chunks=2)
    assert progress.stopping
    history = read_history(place.store(), "d")
    assert not history.uncommitted
    # Of the five chunks that it saw, each process may have stored one and not told of it yet.
    assert 3 * 8 <= progress.files_committed < 660
    place.refuse = lambda key: None
    again = place.pack(open_chunks=2)
    assert again.files_unchanged == progress.files_committed
    assert again.files_committed == 660 - progress.files_committed
    assert place.content() == tree_of(place.source)


def test_an_interrupt_before_all_sources_are_examined_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.pack()
    before = place.content()
    for number in range(600):
        (place.source / f"x{number}").write_bytes(b"x" * 1000)
    progress = interrupt_when_stored(place, monkeypatch, 12, after_preflight=False)
    with pytest.raises(KeyboardInterrupt):
        place.pack_into(progress, open_chunks=2)
    assert not read_history(place.store(), "d").uncommitted
    assert place.content() == before


def test_a_second_interrupt_waits_for_no_store(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store does not answer before the worker is killed."""
    progress = interrupt_when_stored(place, monkeypatch, 1, after_preflight=True)
    interrupt, note = place.refuse, progress.on_change

    def hang(key: str) -> None:
        interrupt(key)
        if "/chunks/" in key:
            threading.Event().wait(PATIENCE_S)

    place.refuse = hang
    monkeypatch.setattr(processes_module, "_STOP_TIMEOUT_S", 0.2)

    def interrupt_again(progress: PackProgress) -> None:
        note(progress)
        if progress.stopping:
            signal.raise_signal(signal.SIGINT)

    progress.on_change = interrupt_again
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        place.pack_into(progress)
    assert time.monotonic() - began < PATIENCE_S / 2


def test_a_process_that_is_killed_in_the_middle_of_a_report_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any) -> None:
        (connection,) = (each for each in arguments if isinstance(each, Connection))
        while connection.recv() is not None:  # what it leaves unread would be noticed
            pass
        os.write(connection.fileno(), struct.pack("!i", 1000) + b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(processes_module, "run_worker", killed)
    with pytest.raises(Unavailable, match="ended early"):
        place.pack()


def test_a_put_that_fails_spares_its_chunks_that_somebody_has_adopted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a put is looking through its sources nothing is committed, and `recover --adopt` sees
    its chunks."""
    place.pack()
    (place.source / "new").write_bytes(b"x" * 5000)

    def adopt_and_fail(*_: object) -> None:
        eventually(lambda: read_history(place.store(), "d").uncommitted, "chunks without a commit")
        index = place.index()
        assert recover(place.store(), index, "d", RecoveryOptions(adopt=True)).adopted
        index.close()
        raise BadSource("a source is gone")

    monkeypatch.setattr(pack_module, "preflight", adopt_and_fail)
    with pytest.raises(BadSource):
        place.pack()
    assert not read_history(place.store(), "d").lost_chunks()
    assert place.content() == tree_of(place.source)
