from __future__ import annotations

import multiprocessing
import random
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import (
    BIRTH_GENERATION,
    Commit,
    CommitLog,
    create_dataset,
    find_dataset,
    newest_generation,
)
from chunkstore.errors import AlreadyExists, Corrupt, NotFound, Unavailable
from chunkstore.object_keys import commit_key, commit_prefix
from chunkstore.packing_settings import PackingSettings
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from tests.chunkstore.packed import StoreWrapper

GOLDEN = Path(__file__).parent.parent / "golden"
WRITERS, COMMITS = 8, 15

u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
chunk_ids = st.binary(min_size=16, max_size=16).map(ChunkId)
refs = st.builds(ChunkRef, chunk_ids, u32, u64)
times = st.integers(-(1 << 63), (1 << 63) - 1)
commits = st.builds(
    Commit,
    u64,
    st.binary(min_size=16, max_size=16),
    times,
    st.lists(refs, max_size=4).map(tuple),
    st.lists(chunk_ids, max_size=4).map(tuple),
    st.booleans(),
    u32,
)


def ref(number: int) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), 100 + number, 1000 + number)


def born(store: ObjectStore, name: str = "pets") -> CommitLog:
    return CommitLog(store, create_dataset(store, name)[0])


def golden_commit() -> Commit:
    added = (
        ChunkRef(ChunkId(bytes(range(16))), 740, 262_173),
        ChunkRef(ChunkId(b"\xff" * 16), 64 + 40, 1 << 40),
    )
    retired = (ChunkId(bytes(range(50, 66))),)
    return Commit(7, b"dataset id 16 by", 1_700_000_000_123_456_789, added, retired, True)


def golden_by_hand() -> bytes:
    """From docs/chunk-format.md alone."""
    body = struct.pack("<8sHHIII", b"DIESELCM", 1, 1, 2, 1, 0)
    body += struct.pack("<Qq16s", 7, 1_700_000_000_123_456_789, b"dataset id 16 by")
    body += struct.pack("<16sIIQ", bytes(range(16)), 740, 0, 262_173)
    body += struct.pack("<16sIIQ", b"\xff" * 16, 104, 0, 1 << 40)
    body += bytes(range(50, 66))
    assert len(body) == 56 + 32 * 2 + 16 * 1
    return body + struct.pack(">Q", xxhash.xxh3_64_intdigest(body))


class TestFormat:
    def test_golden_bytes(self) -> None:
        """Changed? Then bump FORMAT_VERSION, keep reading version 1, and add golden bytes of the
        new one."""
        golden = (GOLDEN / "commit_v1.commit").read_bytes()
        assert golden == golden_by_hand() == golden_commit().encode()
        assert Commit.decode(golden, 7) == golden_commit()

    def test_golden_bytes_of_a_birth_that_remembers_how_it_is_packed(self) -> None:
        """From docs/chunk-format.md alone: version 1, order path, samples, chunks of 1 MiB."""
        record = 1 | 1 << 4 | 1 << 6 | ((1 << 20) // 64 - 1) << 8
        body = struct.pack("<8sHHIII", b"DIESELCM", 1, 0, 0, 0, record)
        body += struct.pack("<Qq16s", 1, 1_700_000_000_123_456_789, b"dataset id 16 by")
        by_hand = body + struct.pack(">Q", xxhash.xxh3_64_intdigest(body))
        golden = (GOLDEN / "commit_v1_birth.commit").read_bytes()
        packing = PackingSettings(1 << 20, "path", "sample").encode()
        birth = Commit(1, b"dataset id 16 by", 1_700_000_000_123_456_789, packing=packing)
        assert golden == by_hand == birth.encode()
        assert Commit.decode(golden, 1) == birth

    @given(commits)
    def test_round_trip(self, commit: Commit) -> None:
        assert Commit.decode(commit.encode(), commit.generation) == commit

    def test_every_flipped_bit_is_found(self) -> None:
        golden = golden_by_hand()
        for at in range(len(golden) * 8):
            damaged = bytearray(golden)
            damaged[at >> 3] ^= 1 << (at & 7)
            with pytest.raises(Corrupt):
                Commit.decode(bytes(damaged), 7)

    def test_every_other_length_is_found(self) -> None:
        golden = golden_by_hand()
        for length in range(len(golden)):
            with pytest.raises(Corrupt):
                Commit.decode(golden[:length], 7)
        with pytest.raises(Corrupt):
            Commit.decode(golden + b"x", 7)

    @pytest.mark.parametrize(
        ("offset", "field"),
        [
            (0, b"DIESELCX"),
            (8, b"\2\0"),
            (10, b"\2\0"),
            (10, b"\3\0"),
            (12, b"\3\0\0\0"),
            (12, b"\0\0\0\0"),
            (12, b"\xff" * 4),
            (16, b"\0\0\0\0"),
            (16, b"\xff" * 4),
            (12, b"\xff" * 8),
            (24, b"\6" + bytes(7)),
        ],
    )
    def test_wrong_content_with_a_right_checksum(self, offset: int, field: bytes) -> None:
        body = bytearray(golden_by_hand()[:-8])
        body[offset : offset + len(field)] = field
        with pytest.raises(Corrupt):
            Commit.decode(bytes(body) + xxhash.xxh3_64_digest(body), 7)

    def test_random_changes_with_right_checksums(self) -> None:
        draw = random.Random(1)
        for _ in range(5000):
            body = bytearray(golden_by_hand()[:-8])
            for _ in range(draw.randrange(1, 4)):
                body[draw.randrange(len(body))] = draw.randrange(256)
            del body[draw.choice([len(body), draw.randrange(len(body))]) :]
            try:
                Commit.decode(bytes(body) + xxhash.xxh3_64_digest(body), 7)
            except Corrupt:
                pass


class TestLog:
    def test_generations_follow_each_other(self) -> None:
        log = born(MemoryObjectStore())
        made = [log.append(BIRTH_GENERATION, [ref(n)], [ref(n + 100).id]) for n in range(5)]
        assert [commit.generation for commit in made] == [2, 3, 4, 5, 6]
        assert list(log.since(BIRTH_GENERATION)) == made
        assert list(log.since(4)) == made[3:]
        assert list(log.since(6)) == list(log.since(100)) == []
        assert log.read(3) == made[1]
        with pytest.raises(NotFound):
            log.read(7)

    def test_threads_append_each_commit_once_without_gaps(self) -> None:
        log = born(MemoryObjectStore())
        together = threading.Barrier(WRITERS)

        def write(writer: int) -> None:
            together.wait()
            after = BIRTH_GENERATION
            for number in range(COMMITS):
                after = log.append(after, [ref(writer * COMMITS + number)]).generation

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        check_all_landed(log)

    def test_processes_append_each_commit_once_without_gaps(self, tmp_path: Path) -> None:
        log = born(LocalDirectory(tmp_path / "store"))
        context = multiprocessing.get_context("fork")
        together = context.Barrier(WRITERS)

        def write(writer: int) -> None:
            mine = CommitLog(LocalDirectory(tmp_path / "store"), log.dataset)
            together.wait(30)
            after = BIRTH_GENERATION
            for number in range(COMMITS):
                after = mine.append(after, [ref(writer * COMMITS + number)]).generation

        children = [context.Process(target=write, args=(n,)) for n in range(WRITERS)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * WRITERS
        check_all_landed(log)

    @pytest.mark.parametrize("others_since", [0, 3])
    def test_a_repeated_append_commits_once(self, others_since: int) -> None:
        """The store did create the commit, but its answer was lost; the caller tries again."""
        inner = MemoryObjectStore()
        log = born(inner)
        log.append(BIRTH_GENERATION, [ref(1)])
        lossy = CommitLog(LosesAnswer(inner), log.dataset)
        with pytest.raises(Unavailable):
            lossy.append(BIRTH_GENERATION, [ref(2), ref(3)], [ref(1).id])
        for number in range(others_since):
            log.append(2, [ref(10 + number)])
        again = lossy.append(BIRTH_GENERATION, [ref(2), ref(3)], [ref(1).id])
        assert again.generation == 3
        found = [commit.added for commit in log.since(BIRTH_GENERATION)]
        assert found.count((ref(2), ref(3))) == 1
        assert len(found) == 2 + others_since

    def test_a_retry_inside_the_store_commits_once(self) -> None:
        inner = MemoryObjectStore()
        log = born(inner)

        class CreatesTwice(StoreWrapper):
            def create(self, key: str, parts: object) -> None:
                try:
                    LosesAnswer(inner).create(key, parts)
                except Unavailable:
                    super().create(key, parts)

        commit = CommitLog(CreatesTwice(inner), log.dataset).append(1, [ref(1)])
        assert list(log.since(1)) == [commit]

    def test_nothing_follows_a_removal(self) -> None:
        """A writer that comes late must not make a removed dataset live again."""
        log = born(MemoryObjectStore())
        log.append(1, [ref(1)])
        end = log.append(2, [], removed=True)
        with pytest.raises(NotFound, match="removed"):
            log.append(1, [ref(2)])
        assert log.append(1, [], removed=True) == end
        assert list(log.since(2)) == [end]

    def test_another_life_of_the_name(self) -> None:
        store = MemoryObjectStore()
        log = born(store)
        log.append(1, [ref(1)])
        stranger = CommitLog(store, DatasetRef("pets", bytes(16)))
        with pytest.raises(Corrupt, match="removed dataset"):
            stranger.read(2)
        with pytest.raises(Corrupt):
            list(stranger.since(1))
        for after in (1, 2):  # a generation that is taken, and a free one
            with pytest.raises(NotFound, match="has been removed"):
                stranger.append(after, [ref(2)])
            with pytest.raises(NotFound, match="has been removed"):
                stranger.append_exactly(after + 1, [ref(2)])
        assert list(log.since(0)) == [log.read(1), log.read(2)]

    def test_a_commit_under_another_name(self) -> None:
        store = MemoryObjectStore()
        log = born(store)
        store.create(commit_key("pets", 2), [replace(log.read(1), generation=3).encode()])
        with pytest.raises(Corrupt):
            log.read(2)

    def test_a_damaged_commit_is_not_the_end(self) -> None:
        store = MemoryObjectStore()
        log = born(store)
        store.create(commit_key("pets", 2), [b"damaged"])
        with pytest.raises(Corrupt):
            list(log.since(1))
        with pytest.raises(Corrupt):
            log.append(1, [ref(1)])

    def test_strange_files_beside_the_commits(self) -> None:
        store = MemoryObjectStore()
        born(store).append(1, [ref(1)])
        prefix = "datasets/pets/commits/"
        for name in (".nfs0001", "0000000000000009~", "99", "0_00000000000009", "+000000000000009"):
            store.create(prefix + name, [b""])
        assert newest_generation(store, "pets") == 2


class LosesAnswer(StoreWrapper):
    """The first create happens, and its caller is told that the store did not answer."""

    lost = False

    def after(self, call: str, key: str) -> None:
        if call == "create" and not self.lost:
            self.lost = True
            raise Unavailable("connection lost")


def check_all_landed(log: CommitLog) -> None:
    found = list(log.since(BIRTH_GENERATION))
    total = WRITERS * COMMITS
    assert [commit.generation for commit in found] == list(range(2, total + 2))
    added = sorted((ref for commit in found for ref in commit.added), key=lambda ref: ref.id)
    assert added == [ref(number) for number in range(total)]


def check_one_birth(outcomes: list[tuple[DatasetRef, bool]]) -> None:
    assert len({found for found, _ in outcomes}) == 1
    assert sum(was_born for _, was_born in outcomes) == 1


class TestDatasets:
    def test_birth(self) -> None:
        store = MemoryObjectStore()
        assert find_dataset(store, "pets") is None
        assert newest_generation(store, "pets") == 0
        made, was_born = create_dataset(store, "pets")
        assert was_born
        assert len(made.id) == 16
        assert create_dataset(store, "pets") == (made, False)
        assert find_dataset(store, "pets") == made
        assert newest_generation(store, "pets") == 1
        assert find_dataset(store, "pet") is None
        assert create_dataset(store, "other")[0].id != made.id

    def test_all_creators_get_the_same_one(self) -> None:
        for _ in range(10):
            store = MemoryObjectStore()
            together = threading.Barrier(WRITERS)

            def create(
                _: int, store: ObjectStore = store, together: threading.Barrier = together
            ) -> tuple[DatasetRef, bool]:
                together.wait()
                return create_dataset(store, "pets")

            with ThreadPoolExecutor(WRITERS) as pool:
                check_one_birth(list(pool.map(create, range(WRITERS))))

    def test_a_lost_answer_and_another_try(self) -> None:
        store = LosesAnswer(MemoryObjectStore())
        with pytest.raises(Unavailable):
            create_dataset(store, "pets")
        made, _ = create_dataset(store, "pets")
        assert find_dataset(store, "pets") == made

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "a/b", "-a", "_a", "ä", "a b", "x" * 129, "a\n"]
    )
    def test_illegal_names(self, name: str) -> None:
        for call in (create_dataset, find_dataset):
            with pytest.raises(ValueError, match="illegal dataset name"):
                call(MemoryObjectStore(), name)


def test_exactly_this_generation_or_none() -> None:
    log = born(MemoryObjectStore())
    log.append(1, [ref(1)])
    with pytest.raises(AlreadyExists):
        log.append_exactly(2, [ref(2)])
    exact = log.append_exactly(3, [ref(2)], [ref(1).id])
    assert exact == log.read(3)
    assert (exact.added, exact.retired) == ((ref(2),), (ref(1).id,))
    with pytest.raises(AlreadyExists):
        log.append_exactly(3, [ref(3)], [ref(1).id])


def test_an_exact_commit_is_repeated_after_an_answer_that_was_lost() -> None:
    class Unanswered(StoreWrapper):
        def after(self, call: str, key: str) -> None:
            if call == "create" and key == commit_key("pets", 2):
                raise Unavailable("connection lost")

    log = born(Unanswered(MemoryObjectStore()))
    with pytest.raises(Unavailable):
        log.append_exactly(2, [ref(1)], [ref(9).id])
    assert log.append_exactly(2, [ref(1)], [ref(9).id]) == log.read(2)


def test_a_chunk_is_not_committed_twice() -> None:
    """Somebody adopts what a put is about to commit, or the put was faster: the second would bring
    old holes to life."""
    log = born(MemoryObjectStore())
    log.append(BIRTH_GENERATION, [ref(1), ref(2)])
    with pytest.raises(AlreadyExists, match="generation 2"):
        log.append(BIRTH_GENERATION, [ref(2), ref(3)])
    assert [commit.generation for commit in log.since(BIRTH_GENERATION)] == [2]


@pytest.mark.parametrize("lost", [1, 2, 3, 5])
def test_lost_commits_are_not_taken_for_the_end(lost: int) -> None:
    store = MemoryObjectStore()
    log = born(store)
    for number in range(6):
        log.append(BIRTH_GENERATION, [ref(number)])
    for generation in range(3 - lost // 5, 7)[:lost]:
        store.delete(commit_key("pets", generation))
    with pytest.raises(Corrupt, match="is missing, and a later one is there"):
        list(log.since(BIRTH_GENERATION))


def test_what_is_no_later_commit_of_the_dataset_does_not_count() -> None:
    store = MemoryObjectStore()
    log = born(store)
    made = log.append(BIRTH_GENERATION, [ref(1)])
    for key in (commit_key("pets", 5) + ".damaged", commit_prefix("pets") + "plan"):
        store.create(key, [b"x"])
    late = Commit(9, bytes(16), 5, (ref(2),))
    store.create(commit_key("pets", 9), [late.encode()])
    assert list(log.since(BIRTH_GENERATION)) == [made]
    store.create(commit_key("pets", 8), [b"damaged"])
    with pytest.raises(Corrupt, match="commit 3 of dataset pets is missing"):
        list(log.since(BIRTH_GENERATION))


def test_commits_that_come_while_the_end_is_looked_for() -> None:
    class Busy(StoreWrapper):
        def before(self, call: str, key: str) -> None:
            if call == "list" and newest_generation(self.inner, "pets") == 2:
                for number in (2, 3):
                    log.append(2, [ref(number)])

    store = MemoryObjectStore()
    log = born(store)
    log.append(BIRTH_GENERATION, [ref(1)])
    found = CommitLog(Busy(store), log.dataset).since(BIRTH_GENERATION)
    assert [commit.generation for commit in found] == [2, 3, 4]


class ListsAll(StoreWrapper):
    """A store that can list keys only with all others."""

    def later_keys(self, prefix: str, after: str) -> None:
        return None


def test_a_store_that_cannot_list_some_keys_is_asked_for_the_next_commit() -> None:
    store = ListsAll(MemoryObjectStore())
    log = born(store)
    made = [log.append(BIRTH_GENERATION, [ref(number)]) for number in range(3)]
    assert list(log.since(BIRTH_GENERATION)) == made
    store.delete(commit_key("pets", 3))
    with pytest.raises(Corrupt, match="commit 3 of dataset pets is missing"):
        list(log.since(BIRTH_GENERATION))
