"""Files are fetched chunk by chunk, and only those that are hit fail."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.progress import NO_PROGRESS
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.client import Client
from dieselfs.client.extraction.copies import Copy, batches
from dieselfs.client.extraction.extraction import Extraction
from dieselfs.client.extraction.local_folder import LocalFolder
from dieselfs.client.extraction.writers import Writers
from dieselfs.dataset.file_stat import FileStat
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from metadata.kv.memory import MemoryStore
from tests.chunkstore.packed import CountingStore

FILES = {f"class{number % 7}/{number}.jpg": bytes([number % 251]) * 900 for number in range(500)}


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryObjectStore())


@pytest.fixture
def connected(store: CountingStore, tmp_path: Path) -> Callable[[], Client]:
    index = MemoryStore()
    return lambda: Client.connect(
        "pets", store=store, index=index, snapshot_folder=tmp_path, create=True, open_chunks=1
    )


@pytest.fixture
def client(connected: Callable[[], Client]) -> Iterator[Client]:
    with connected() as writing:
        for path, data in FILES.items():
            writing.put(data, path)
    with connected() as client:
        yield client


def extracted(
    client: Client, folder: Path, copies: Iterator[Copy] | None = None, **options: Any
) -> tuple[Extraction, list[str]]:
    failed: list[str] = []
    local = LocalFolder(folder)
    extraction = Extraction(
        local,
        open_source=client.sibling,
        on_failure=lambda entry, error: failed.append(entry.path),
        progress=NO_PROGRESS,
        **options,
    )
    extraction.run(copies or (Copy(entry, entry.path) for entry in client.walk()))
    local.close()
    return extraction, failed


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def stat_of(path: str, size: int, chunk: str = "a", offset: int = 0) -> FileStat:
    return FileStat(path, "file", size, 0o100644, 0, chunk, offset, 0, 1)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_chunk_is_one_read(
    client: Client, store: CountingStore, tmp_path: Path, jobs: int
) -> None:
    assert len({entry.chunk for entry in client.walk() if entry.kind == "file"}) == 1
    store.calls.clear()
    extraction, failed = extracted(client, tmp_path / "out", jobs=jobs)
    assert (extraction.files, failed, content(tmp_path / "out")) == (500, [], FILES)
    assert store.calls == ["get_range"]


def test_of_a_damaged_chunk_all_sound_files_are_there(
    client: Client, store: CountingStore, tmp_path: Path
) -> None:
    [key] = [info.key for info in store.list("datasets/pets/chunks/")]
    damaged = bytes(store.get(key)).replace(FILES["class0/7.jpg"], b"x" * 900)
    damaged = damaged.replace(FILES["class3/45.jpg"], b"x" * 900)
    store.delete(key)
    store.create(key, [damaged])
    extraction, failed = extracted(client, tmp_path / "out")
    hit = {path for path in FILES if FILES[path] in (FILES["class0/7.jpg"], FILES["class3/45.jpg"])}
    assert set(failed) == hit
    assert extraction.failed == len(hit)
    assert content(tmp_path / "out") == {path: FILES[path] for path in FILES.keys() - hit}


def test_files_that_a_purge_moves_meanwhile_are_found(
    client: Client, connected: Callable[[], Client], store: CountingStore, tmp_path: Path
) -> None:
    def copies() -> Iterator[Copy]:
        found = list(client.walk())
        with connected() as other:
            for path in list(FILES)[::2]:
                other.delete(path)
            other.purge(PurgeRequest(grace_s=0))
        for entry in found:
            if entry.kind == "directory" or entry.path in set(list(FILES)[1::2]):
                yield Copy(entry, entry.path)

    extraction, failed = extracted(client, tmp_path / "out", copies())
    assert (extraction.files, failed) == (250, [])
    assert content(tmp_path / "out") == {path: FILES[path] for path in list(FILES)[1::2]}


def test_large_and_empty_files_are_whole(connected: Callable[[], Client], tmp_path: Path) -> None:
    large = bytes(range(256)) * (9 << 12)
    files = {"a/large": large, "a/empty": b"", "a/small": b"small", "medium": large[: 3 << 20]}
    with connected() as client:
        for path, data in files.items():
            client.put(data, path)
        client.flush()
        extraction, failed = extracted(client, tmp_path / "out", jobs=2)
    assert (content(tmp_path / "out"), failed) == (files, [])
    assert (extraction.files, extraction.bytes) == (4, sum(map(len, files.values())))


def test_a_batch_is_of_one_chunk_sorted_by_folder_and_bounded() -> None:
    small = [Copy(stat_of(f"{n % 2}/{n}", 3 << 20, "a", n), f"{n % 2}/{n}") for n in range(4)]
    other = Copy(stat_of("b", 1, "b"), "b")
    large = Copy(stat_of("large", 5 << 20, "b", 1), "large")
    last = Copy(stat_of("last", 1, "b", 6 << 20), "last")
    found = [[copy.target for copy in batch] for batch in batches([*small, other, large, last])]
    assert found == [["0/0", "1/1"], ["0/2", "1/3"], ["b"], ["large"], ["last"]]
    empty = Copy(stat_of("empty", 0, "b", 6 << 20), "empty")
    assert list(batches([large, empty])) == [[large], [empty]]


def test_more_threads_write_only_where_writes_are_slow(tmp_path: Path) -> None:
    now = [0.0]
    folder = LocalFolder(tmp_path / "out")
    writers = Writers(folder, 3, clock=lambda: now[0])

    def write(seconds: float) -> None:
        with writers.turn(100):
            now[0] += seconds

    for _ in range(5):
        write(0.01)
    assert writers.count == 1
    for expected in (2, 3, 3):
        write(1.0)
        assert writers.count == expected
    folder.close()
