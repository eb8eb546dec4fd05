"""No sleeps: the store and `publish` tell by events how far the committing thread is, and a delay
is either 0 or an hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import LATE_S, Commit, CommitLog, create_dataset
from chunkstore.errors import NotFound, StoreFull
from chunkstore.group_commit import DurableChunk, GroupCommit
from chunkstore.object_keys import chunk_key
from chunkstore.stores.memory import MemoryObjectStore
from tests.chunkstore.packed import StoreWrapper
from tests.eventually import PATIENCE_S as PATIENCE

HOUR = 3600.0
NOW_S = int(time.time())

Open = Callable[..., GroupCommit]


def chunk(number: int, size: int = 1000, age_s: int = 0) -> DurableChunk:
    seconds = (NOW_S - age_s).to_bytes(4, "big")
    chunk_id = ChunkId(seconds + number.to_bytes(12, "big"))
    return DurableChunk(ChunkRef(chunk_id, 100, size), b"%d" % number)


class Index:
    """What `publish` was told."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.heads: list[list[bytes]] = []
        self.called = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: BaseException | None = None

    def publish(self, commit: Commit, heads: Sequence[bytes]) -> None:
        self.called.set()
        assert self.gate.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        self.commits.append(commit)
        self.heads.append(list(heads))

    def numbers(self) -> list[int]:
        return [int(head) for group in self.heads for head in group]


class FailingStore(StoreWrapper):
    failure: BaseException | None = None

    def before(self, call: str, key: str) -> None:
        if call == "create" and self.failure is not None:
            raise self.failure


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(MemoryObjectStore())


@pytest.fixture
def log(store: FailingStore) -> CommitLog:
    return CommitLog(store, create_dataset(store, "pets")[0])


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def group(log: CommitLog, index: Index) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_group(**options: object) -> GroupCommit:
            options = {"group_bytes": 1 << 30, "group_delay_s": HOUR} | options
            made = GroupCommit(log, 1, index.publish, **options)  # type: ignore[arg-type]
            return stack.enter_context(made)

        yield open_group
        index.gate.set()


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


class TestGroups:
    def test_many_chunks_share_a_commit(self, group: Open, log: CommitLog, index: Index) -> None:
        commits = group()
        for number in range(10):
            commits.add(chunk(number))
        assert commits.flush() == commits.generation == 2
        assert index.commits == list(log.since(1))
        assert [ref.id for ref in index.commits[0].added] == [chunk(n).ref.id for n in range(10)]
        assert index.numbers() == list(range(10))

    def test_a_flush_of_nothing(self, group: Open, log: CommitLog) -> None:
        commits = group()
        assert commits.flush() == 1
        commits.add(chunk(1))
        assert commits.flush() == commits.flush() == 2
        assert len(list(log.since(1))) == 1

    def test_closed_by_bytes(self, group: Open, index: Index) -> None:
        commits = group(group_bytes=3000)
        commits.add(chunk(1))
        commits.add(chunk(2))
        assert not index.called.is_set()
        commits.add(chunk(3))
        assert index.called.wait(PATIENCE)

    def test_closed_by_time(self, group: Open, index: Index) -> None:
        commits = group(group_delay_s=0.0)
        commits.add(chunk(1))
        assert index.called.wait(PATIENCE)

    def test_a_chunk_that_waited_for_more_than_a_day_is_looked_for(
        self, group: Open, log: CommitLog, store: FailingStore
    ) -> None:
        late = chunk(1, age_s=LATE_S + 3600)
        commits = group()
        commits.add(late)
        with pytest.raises(NotFound, match="`dlcmd gc` has deleted it"):
            commits.flush()
        assert list(log.since(1)) == []
        store.create(chunk_key("pets", late.ref.id), [b"there"])
        commits = group()
        commits.add(late)
        commits.add(chunk(2))  # a young one is not looked for: this store does not have it
        assert commits.flush() == 2

    def test_beside_another_writer(self, group: Open, log: CommitLog, index: Index) -> None:
        commits = group()
        log.append(1, [chunk(100).ref])
        commits.add(chunk(1))
        assert commits.flush() == 3
        assert [commit.generation for commit in index.commits] == [3]

    def test_of_many_adders_every_chunk_lands_once(
        self, group: Open, log: CommitLog, index: Index
    ) -> None:
        commits = group(group_bytes=5000)

        def add(adder: int) -> None:
            for number in range(200):
                commits.add(chunk(adder * 200 + number))
                if number % 50 == 49:
                    commits.flush()
                    # All of mine are there.
                    assert {adder * 200 + n for n in range(number + 1)} <= set(index.numbers())

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(8)))
        assert sorted(index.numbers()) == list(range(1600))
        assert list(log.since(1)) == index.commits
        for adder in range(8):  # each one's in the order of its adds
            mine = [number for number in index.numbers() if number // 200 == adder]
            assert mine == sorted(mine)

    def test_adding_waits_while_four_groups_are_waiting(self, group: Open, index: Index) -> None:
        index.gate.clear()
        commits = group(group_bytes=1000)
        commits.add(chunk(0))
        assert index.called.wait(PATIENCE)  # the first is with publish, and what follows waits
        for number in range(1, 5):
            commits.add(chunk(number))
        blocked = in_thread(lambda: commits.add(chunk(5)))
        blocked.join(0.05)
        assert blocked.is_alive()
        index.gate.set()
        blocked.join(PATIENCE)
        assert not blocked.is_alive()
        commits.flush()
        assert index.numbers() == list(range(6))

    def test_a_flush_waits_for_what_was_added_before_it_alone(
        self, group: Open, log: CommitLog
    ) -> None:
        """Of writers that never pause, each is acknowledged all the same."""
        commits = group(group_bytes=1)
        stop = threading.Event()

        def add() -> None:
            number = 100
            while not stop.is_set():
                commits.add(chunk(number))
                number += 1

        adders = [in_thread(add) for _ in range(2)]
        try:
            for number in range(3):
                commits.add(chunk(number))
                commits.flush()
                found = {ref.id for commit in log.since(1) for ref in commit.added}
                assert chunk(number).ref.id in found
        finally:
            stop.set()
            for adder in adders:
                adder.join()


class TestHold:
    def test_nothing_is_committed_before_the_release(
        self, group: Open, log: CommitLog, index: Index
    ) -> None:
        commits = group(hold=True, group_bytes=100, group_delay_s=0.0)
        for number in range(50):  # far more than four groups: a held one takes all
            commits.add(chunk(number))
        assert list(log.since(1)) == []
        assert not index.called.is_set()
        commits.release()
        commits.flush()
        assert index.numbers() == list(range(50))

    def test_a_flush_waits_for_the_release(self, group: Open, index: Index) -> None:
        commits = group(hold=True)
        commits.add(chunk(1))
        flush = in_thread(commits.flush)
        flush.join(0.05)
        assert flush.is_alive()
        commits.release()
        flush.join(PATIENCE)
        assert index.numbers() == [1]

    def test_a_flush_of_nothing_held(self, group: Open) -> None:
        assert group(hold=True).flush() == 1

    def test_closed_while_held_nothing_becomes_visible(self, group: Open, log: CommitLog) -> None:
        commits = group(hold=True)
        commits.add(chunk(1))
        commits.close()
        commits.release()
        assert list(log.since(1)) == []
        with pytest.raises(RuntimeError, match="closed"):
            commits.flush()


class TestFailure:
    """It surfaces at the next call, whichever that is, and nobody waits for ever."""

    @pytest.fixture(params=["store", "publish"])
    def broken(
        self, request: pytest.FixtureRequest, store: FailingStore, index: Index
    ) -> StoreFull:
        error = StoreFull("no space")
        if request.param == "store":
            store.failure = error
        else:
            index.failure = error
        return error

    def test_at_flush(self, group: Open, broken: StoreFull, index: Index) -> None:
        commits = group()
        commits.add(chunk(1))
        for _ in range(2):
            with pytest.raises(StoreFull) as caught:
                commits.flush()
            assert caught.value is broken
        assert index.numbers() == []

    def test_at_add(self, group: Open, broken: StoreFull) -> None:
        commits = group()
        commits.add(chunk(1))
        with pytest.raises(StoreFull):
            commits.flush()
        with pytest.raises(StoreFull):
            commits.add(chunk(2))
        commits.close()
        with pytest.raises(StoreFull):
            commits.flush()

    def test_at_adders_that_wait(self, group: Open, broken: StoreFull, index: Index) -> None:
        commits = group(group_bytes=1000)

        def add() -> None:
            for number in range(100):
                commits.add(chunk(number))

        with ThreadPoolExecutor(4) as pool:
            outcomes = [pool.submit(add) for _ in range(4)]
            for outcome in outcomes:
                assert outcome.exception(PATIENCE) is broken

    def test_of_what_was_committed_before_it(
        self, group: Open, log: CommitLog, store: FailingStore
    ) -> None:
        commits = group()
        commits.add(chunk(1))
        commits.flush()
        store.failure = StoreFull("no space")
        commits.add(chunk(2))
        with pytest.raises(StoreFull):
            commits.flush()
        store.failure = None
        with pytest.raises(StoreFull):
            commits.flush()
        assert [commit.generation for commit in log.since(1)] == [2]
        assert commits.generation == 2

    def test_close_after_it(self, group: Open, broken: StoreFull) -> None:
        commits = group(group_delay_s=0.0)
        commits.add(chunk(1))
        with pytest.raises(StoreFull):
            commits.flush()
        commits.close()
        commits.close()

    def test_an_exit_of_the_thread_is_a_failure_too(self, group: Open, index: Index) -> None:
        index.failure = SystemExit("from publish")
        commits = group()
        commits.add(chunk(1))
        with pytest.raises(SystemExit):
            commits.flush()


class TestClose:
    def test_what_was_not_flushed_stays_invisible(self, group: Open, log: CommitLog) -> None:
        commits = group()
        commits.add(chunk(1))
        commits.close()
        assert list(log.since(1)) == []

    def test_a_commit_under_way_is_finished(
        self, group: Open, log: CommitLog, index: Index
    ) -> None:
        index.gate.clear()
        commits = group(group_bytes=1)
        commits.add(chunk(1))
        assert index.called.wait(PATIENCE)
        closing = in_thread(commits.close)
        index.gate.set()
        closing.join(PATIENCE)
        assert index.commits == list(log.since(1))

    def test_nobody_waits_for_a_closed_one(self, group: Open) -> None:
        commits = group()
        commits.close()
        commits.close()
        assert commits.flush() == 1
        with pytest.raises(RuntimeError, match="closed"):
            commits.add(chunk(1))
        assert commits.flush() == 1

    def test_waiting_calls_are_woken(self, group: Open, index: Index) -> None:
        index.gate.clear()
        commits = group(group_bytes=1000)
        commits.add(chunk(0))
        assert index.called.wait(PATIENCE)
        for number in range(1, 5):
            commits.add(chunk(number))
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(commits.add, chunk(9)), pool.submit(commits.flush)]
            closing = pool.submit(commits.close)
            for outcome in waiting:
                assert isinstance(outcome.exception(PATIENCE), RuntimeError)
            index.gate.set()
            closing.result(PATIENCE)


def test_what_was_held_is_committed_in_groups_of_the_usual_size(log: CommitLog) -> None:
    index = Index()
    with GroupCommit(
        log, 1, index.publish, group_bytes=3000, group_delay_s=HOUR, hold=True
    ) as group:
        for number in range(8):
            group.add(chunk(number))
        group.release()
        group.flush()
    assert [[int(head) for head in heads] for heads in index.heads] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]
