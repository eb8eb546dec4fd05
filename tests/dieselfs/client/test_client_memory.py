"""Reading through the client from the node's memory."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import xxhash

from chunkstore.chunk_format import decode_head, encode_head
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Corrupt
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.readers.job_progress_meter import stored_bytes
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.task import master_process
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client, ClientStatistics
from dieselfs.errors import PlanTooLarge, UsageError
from dieselfs.prefetch.plan_file import open_plan
from metadata.errors import PathConflict, PathNotFound
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.snapshot import Snapshot
from tests.contracts.key_value_store_contract import fork
from tests.dieselfs.cache.patience import be_patient_members
from tests.eventually import PATIENCE_S, eventually

DEADLINE_S = PATIENCE_S


class Packed:
    """A dataset in a local folder, which a helper process can read too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = LmdbFileStore(folder / "index")
        draw = random.Random(1)
        sizes = (0, 1, 300, 900)
        self.files = {f"{n % 7}/{n}": draw.randbytes(draw.choice(sizes)) for n in range(300)}
        with self.client() as client:
            for path, data in self.files.items():
                client.put(data, path)
            self.snapshot = client.save_meta()

    def client(self) -> Client:
        return Client.connect(
            "pets", store=LocalDirectory(self.folder / "store"), index=self.index,
            snapshot_folder=self.folder, create=True, target_bytes=8192, open_chunks=4,
        )  # fmt: skip

    def with_snapshot(self) -> Client:
        client = self.client()
        client.load_meta(self.snapshot)
        return client

    def with_memory(self) -> Client:
        client = self.with_snapshot()
        client.open_memory()
        return client


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packed]:
    open_lingering = NodeMemory.open
    monkeypatch.setattr(NodeMemory, "open", functools.partial(open_lingering, linger_s=0.1))
    be_patient_members(monkeypatch.setattr)  # on a busy machine a helper that is late is not gone
    packed = Packed(tmp_path)
    yield packed
    packed.index.close()


def statistics_of(client: Client) -> MemoryStatistics:
    memory = client.statistics().memory
    assert memory is not None
    return memory.node or MemoryStatistics()


def node_of(client: Client) -> object:
    memory = client.statistics().memory
    assert memory is not None
    assert memory.node is not None
    return memory.node


@pytest.mark.parametrize("way", ["client", "with_snapshot", "with_memory"])
def test_get_and_get_many(packed: Packed, way: str) -> None:
    with getattr(packed, way)() as client:
        paths = random.Random(2).sample(sorted(packed.files), len(packed.files))
        contents = [packed.files[path] for path in paths]
        assert [client.get(path) for path in paths] == contents
        assert client.get_many(paths) == contents
        assert client.get_many([f"/{path}/".encode() for path in paths]) == contents
        assert client.get_many([]) == []
        for read in (client.get, lambda path: client.get_many([paths[0], path])):
            with pytest.raises(PathNotFound, match="none"):
                read("none")
            with pytest.raises(PathConflict):
                read("3")
        if way == "client":
            with pytest.raises(UsageError, match="snapshot"):
                client.get_many([1, 2])
            return
        inodes = [client.inode(path) for path in paths]
        assert client.get_many(inodes) == contents
        assert client.get_many(np.array(inodes)) == contents
        with pytest.raises(IndexError):
            client.get_many([0, 300])


def test_samples_are_read_by_their_index(packed: Packed) -> None:
    with packed.with_snapshot() as client:
        with pytest.raises(UsageError, match="memory"):
            _ = client.samples
        client.open_memory()
        for path, data in packed.files.items():
            assert client.samples.read(client.inode(path)) == data
    with pytest.raises(UsageError):
        packed.client().inode("3/3")


def test_clients_of_a_node_share_its_memory(packed: Packed) -> None:
    with packed.with_memory() as one, packed.with_memory() as other:
        paths = sorted(packed.files)
        assert one.get_many(paths) == other.get_many(paths)
        chunks = one.dataset.namespace.state().chunks
        # A chunk fetched ahead can be read before it is counted.
        eventually(lambda: node_of(other).fetches == chunks)  # type: ignore[attr-defined]

        def child() -> None:
            assert other.get_many(paths) == list(map(packed.files.get, paths))
            other.close()

        assert os.waitpid(fork(child), 0)[1] == 0
        assert node_of(one).fetches == chunks  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["paths", "chunks", "printed chunks"])
def test_what_is_prefetched_need_not_be_waited_for(packed: Packed, by: str) -> None:
    with packed.with_snapshot() as client:
        filled = [path for path, data in packed.files.items() if data]
        chunk_of = {path: client.stat(path).chunk for path in filled}
        printed = [chunk for chunk in dict.fromkeys(chunk_of.values()) if chunk is not None]
        if by == "paths":
            client.prefetch(filled)
        else:
            ids = [ChunkId.parse(chunk) for chunk in printed]
            client.prefetch(chunks=ids if by == "chunks" else printed)
        eventually(lambda: node_of(client).blocks == len(printed), "chunk in memory")  # type: ignore[attr-defined]
        assert client.get_many(filled) == [packed.files[path] for path in filled]
        memory = client.statistics().memory
        assert memory is not None
        assert memory.misses == 0


def test_what_cannot_be_prefetched_is_told(packed: Packed) -> None:
    with packed.with_memory() as client:
        with pytest.raises(PathNotFound):
            client.prefetch(["none"])
        with pytest.raises(UsageError, match="has no chunk"):
            client.prefetch(chunks=[ChunkId(bytes(16))])


def plans_of(client: Client) -> list[Path]:
    assert client._reading is not None
    return list(client._reading.memory.folder.plans.iterdir())


def test_a_shuffle_writes_a_plan_and_reading_moves_it(packed: Packed) -> None:
    with packed.with_snapshot() as client:
        assert client.statistics() == ClientStatistics()
        order = client.shuffle(seed=1, group_size=2)
        [path] = plans_of(client)
        plan = open_plan(path)
        assert plan.plan.snapshot_path == str(packed.snapshot)
        assert client.get_many(plan.plan.inodes) == [packed.files[path] for path in order]
        assert plan.position == len(order)
        client.get(order[-1])
        assert client.statistics().files_on_plan == len(order) + 1

        next_order = client.shuffle(seed=1, epoch=1, group_size=2)
        [path] = plans_of(client)
        prefetcher = open_plan(path)
        assert prefetcher.after == plan.id != prefetcher.id
        for read, name in enumerate(next_order[:200], 1):
            assert client.get(name) == packed.files[name]
            assert read - 64 < prefetcher.position <= read
        assert client.statistics().files_on_plan == 200
        folder = path.parent
    with suppress(FileNotFoundError):  # the helper removes the folder when it ends
        assert os.listdir(folder) == []


def test_the_master_fetches_ahead_within_the_memory(packed: Packed) -> None:
    with packed.with_snapshot() as client:
        order = client.shuffle(seed=1, group_size=2, memory_bytes=6 * 8192, task="ahead")
        node = functools.partial(statistics_of, client)
        eventually(lambda: node().prefetched > 2, "chunk before anybody reads")

        def is_ahead() -> bool:
            found = node()
            assert found.cached_bytes <= 6 * 8192
            return 0 < found.window_bytes <= found.cached_bytes

        # A chunk is in the window before the thread that fetches it has reserved its room.
        eventually(is_ahead, "room for the whole window")
        assert [client.get(path) for path in order] == [packed.files[path] for path in order]
        eventually(lambda: node().prefetched_used > 2, "chunks that were used")


def test_large_files_are_fetched_ahead_within_the_memory(packed: Packed) -> None:
    """Files above 16 MiB are a chunk each, and fetched in blocks; here there is room for three."""
    files = {f"{number}": random.Random(number).randbytes(17 << 20) for number in range(5)}
    budget = 3 * (17 << 20)
    with Client.connect(
        "large",
        store=LocalDirectory(packed.folder / "store"),
        index=packed.index,
        snapshot_folder=packed.folder,
        create=True,
    ) as client:
        for path, data in files.items():
            client.put(data, path)
        client.load_meta(client.save_meta())
        order = client.shuffle(seed=1, group_size=1, memory_bytes=budget, task="large")
        eventually(lambda: statistics_of(client).prefetched == 3 * 5, "all blocks of three files")
        for path in order:
            assert client.get(path) == files[path]
            # The blocks of this file may have been evicted just when they were mapped.
            assert statistics_of(client).cached_bytes <= budget + (17 << 20)
        # The helper may not have read yet which blocks this process maps.
        eventually(lambda: statistics_of(client).prefetched_used >= 3 * 5, "blocks that were used")


def test_too_little_memory_for_a_plan_is_refused_with_what_fits(packed: Packed) -> None:
    with packed.with_snapshot() as client:
        with pytest.raises(PlanTooLarge, match="this order needs") as refused:
            client.shuffle(seed=1, group_size=8, memory_bytes=6 * 8192, task="too-little")
        assert "a group size of" in str(refused.value.hint)
        assert plans_of(client) == []
        assert len(client.shuffle(seed=1, group_size=8, memory_bytes=1 << 20)) == 300
        with pytest.raises(UsageError, match="memory of task too-little, not of other"):
            client.shuffle(task="other")


def test_a_child_that_closes_leaves_its_parents_plan(packed: Packed) -> None:
    with packed.with_snapshot() as client:
        client.shuffle()
        before = plans_of(client)
        assert len(before) == 1
        assert os.waitpid(fork(client.close), 0)[1] == 0
        assert plans_of(client) == before


def test_a_plan_that_is_refused_leaves_the_one_before(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with packed.with_snapshot() as client:
        client.shuffle(seed=1)
        before = plans_of(client)

        def refuse(plan: Path) -> None:
            raise PlanTooLarge("not enough memory")

        monkeypatch.setattr(client._reading.memory, "follow", refuse)
        with pytest.raises(PlanTooLarge):
            client.shuffle(seed=2)
        assert plans_of(client) == before


def test_another_snapshot_is_read_by_another_reader(packed: Packed) -> None:
    with packed.with_memory() as client:
        client.shuffle()
        assert client.get("3/3") == packed.files["3/3"]
        with packed.client() as writer:
            writer.put(b"newer", "3/3")
            newer = writer.save_meta()
        client.load_meta(newer)
        assert client.get("3/3") == b"newer"
        assert plans_of(client) == []  # its inodes were of the older one


def test_memory_may_be_open_without_a_snapshot(packed: Packed) -> None:
    with packed.client() as client:
        client.open_memory()
        assert client.get("3/3") == packed.files["3/3"]
        assert client.get_many(["3/3", "4/4"]) == [packed.files["3/3"], packed.files["4/4"]]
        memory = client.statistics().memory
        assert memory is not None
        assert memory.mapped_blocks > 0


def replace_by_other_content(packed: Packed, snapshot: Path, path: str) -> None:
    """Another chunk of the same id and lengths, sound in itself, in which this file has other
    bytes."""
    with Snapshot.open(snapshot) as opened:
        inode = opened.resolve(path.encode())
        assert inode is not None
        extent = opened.extent(inode)
    file = Path(LocalDirectory(packed.folder / "store")._path(chunk_key("pets", extent.chunk.id)))
    data = bytearray(file.read_bytes())
    head = decode_head(bytes(data))
    begin = head.head_bytes + extent.offset
    data[begin] ^= 0xFF
    hashes = head.entries.hash.copy()
    content = bytes(data[begin : begin + extent.length])
    hashes[head.entries.paths.index(path.encode())] = xxhash.xxh3_64_intdigest(content)
    entries = dataclasses.replace(head.entries, hash=hashes)
    forged = encode_head(head.chunk_id, head.dataset, head.payload_bytes, entries)
    file.write_bytes(forged + data[head.head_bytes :])


@pytest.fixture
def no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes lead themselves, as with a store that can't be pickled."""

    def refuse(*arguments: object) -> None:
        raise master_process.SourceNotPortable("of this process alone")

    monkeypatch.setattr(master_process, "start", refuse)


@pytest.mark.parametrize("order", ["snapshot, memory", "memory, snapshot", "shuffle"])
@pytest.mark.parametrize("leader", ["helper", "no_helper"])
def test_a_chunk_of_other_content_is_not_believed(
    packed: Packed, order: str, leader: str, request: pytest.FixtureRequest
) -> None:
    if leader == "no_helper":
        request.getfixturevalue(leader)
    path = next(path for path, data in packed.files.items() if len(data) == 900)
    replace_by_other_content(packed, packed.snapshot, path)
    with packed.client() as client:
        if order == "memory, snapshot":
            client.open_memory()
        client.load_meta(packed.snapshot)
        if order == "shuffle":
            client.shuffle()
        client.open_memory()
        with pytest.raises(Corrupt):
            client.get(path)
        others = [other for other in packed.files if other != path]
        assert client.get_many(others) == [packed.files[other] for other in others]
        memory = client.statistics().memory
        assert memory is not None
        assert memory.node is not None, "it is not for want of memory"
        assert memory.fallbacks > 0


def test_what_is_expected_grows_with_each_snapshot(packed: Packed, no_helper: None) -> None:
    with packed.client() as writer:
        writer.put(b"n" * 900, "new")
        newer = writer.save_meta(packed.folder / "newer")
    replace_by_other_content(packed, newer, "new")
    path = next(path for path, data in packed.files.items() if len(data) == 900)
    replace_by_other_content(packed, packed.snapshot, path)
    with packed.client() as client:
        client.load_meta(packed.snapshot, check_fresh=False)
        client.open_memory()
        client.load_meta(newer)
        for replaced in ("new", path):
            with pytest.raises(Corrupt):
                client.get(replaced)
        assert client.get_many(["3/3", "3/10"]) == [packed.files["3/3"], packed.files["3/10"]]


def test_clients_of_several_jobs_share_a_helper_and_each_pays(
    packed: Packed, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(short_folder))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    directory = FolderDirectory(short_folder / f"dieselfs-allocations-{os.geteuid()}")
    directory.allocate_remote_io("one", 5e6, origin="hand")
    directory.allocate_remote_io("two", 7e6, origin="hand")
    paths = sorted(packed.files)

    def leases() -> dict[str, tuple[float, bool]]:
        """What each job's reader may use, and whether the helper is that reader."""
        return {
            lease.job: (lease.allowed_bytes_per_s, lease.pid != os.getpid())
            for lease in directory.leases()
        }

    with packed.with_memory() as free:  # it has no job, and starts the helper
        assert free.get(paths[0]) == packed.files[paths[0]]
        assert leases() == {}
        monkeypatch.setenv("DIESELFS_JOB", "one")
        with packed.with_memory() as one:
            assert one.get_many(paths[:100]) == [packed.files[path] for path in paths[:100]]
            eventually(lambda: leases() == {"one": (5e6, True)}, "the budget of one")
            monkeypatch.setenv("DIESELFS_JOB", "two")
            with packed.with_memory() as two:
                assert two.get_many(paths) == list(map(packed.files.get, paths))
                eventually(
                    lambda: leases() == {"one": (5e6, True), "two": (7e6, True)}, "both budgets"
                )
        eventually(lambda: leases() == {}, "the end of the jobs")


def test_a_helper_keeps_its_datasets_quota(
    packed: Packed, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(short_folder))
    monkeypatch.setenv("DIESELFS_JOB", "one")
    directory = FolderDirectory(short_folder / f"dieselfs-allocations-{os.geteuid()}")
    paths = sorted(packed.files)
    with packed.with_memory() as client:
        id = client.dataset.ref.id.hex()
        assert client.get_many(paths) == list(map(packed.files.get, paths))  # all chunks are mapped
        assert statistics_of(client).cached_bytes > 20_000
        directory.allocate_cache_size("pets", id, 20_000, origin="hand")

        def is_kept() -> bool:
            assert client.get_many(paths) == list(map(packed.files.get, paths))
            return 0 < statistics_of(client).cached_bytes <= 20_000

        eventually(is_kept, "the quota")
        eventually(
            lambda: (
                {lease.held_bytes for lease in directory.leases()}
                == {statistics_of(client).cached_bytes}
            ),
            "what is held",
        )
        assert client.snapshot is not None
        size = stored_bytes(client.snapshot)
        assert {lease.dataset_bytes for lease in directory.leases()} == {size}
        assert client.get_many(paths) == list(map(packed.files.get, paths))
