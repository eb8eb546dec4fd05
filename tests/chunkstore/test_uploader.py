"""No sleeps: stores and `deliver` wait at gates that the test opens."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.chunk_writer import SealedChunk
from chunkstore.errors import AlreadyExists, BadSource, StoreFull, Unavailable
from chunkstore.object_keys import chunk_key
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.retrying import RetryingStore, RetryPolicy
from chunkstore.uploader import Uploader
from tests.chunkstore.packed import StoreWrapper
from tests.eventually import PATIENCE_S as PATIENCE

NAME = "pets"
SIZE = 1000


def chunk(number: int, payload: Iterable[Buffer] | None = None, size: int = SIZE) -> SealedChunk:
    ref = ChunkRef(ChunkId(number.to_bytes(16, "big")), 4, size - 4)
    return SealedChunk(ref, b"head", [bytes(size - 4)] if payload is None else payload, 1)


def key(number: int) -> str:
    return chunk_key(NAME, chunk(number).ref.id)


class GatedStore(StoreWrapper):
    """Creates wait until the gate is open (or the key is let through), then fail if told to."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.change = threading.Condition()
        self.closed = False
        self.let_through: set[str] = set()
        self.started: set[str] = set()
        self.failures: dict[str, BaseException] = {}

    def before(self, call: str, key: str) -> None:
        if call != "create":
            return
        with self.change:
            self.started.add(key)
            self.change.notify_all()
            assert self.change.wait_for(
                lambda: not self.closed or key in self.let_through, PATIENCE
            )
            if key in self.failures:
                raise self.failures[key]

    def open(self, *keys: str) -> None:
        with self.change:
            self.let_through.update(keys)
            self.closed = self.closed and bool(keys)
            self.change.notify_all()

    def wait_started(self, count: int) -> None:
        with self.change:
            assert self.change.wait_for(lambda: len(self.started) >= count, PATIENCE)


@pytest.fixture
def store() -> Iterator[GatedStore]:
    store = GatedStore()
    yield store
    store.open()


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


class Delivered:
    def __init__(self, store: GatedStore) -> None:
        self.store = store
        self.numbers: list[int] = []
        self.threads: set[int] = set()
        self.failure: BaseException | None = None

    def __call__(self, chunk: SealedChunk) -> None:
        assert self.store.get(chunk_key(NAME, chunk.ref.id)) == b"head" + bytes(SIZE - 4), "durable"
        self.threads.add(threading.get_ident())
        if self.failure is not None:
            raise self.failure
        self.numbers.append(int.from_bytes(chunk.ref.id.value, "big"))


@pytest.fixture
def delivered(store: GatedStore) -> Delivered:
    return Delivered(store)


def test_chunks_are_stored_and_delivered_in_order(store: GatedStore, delivered: Delivered) -> None:
    with Uploader(store, NAME, delivered) as uploader:
        for number in range(200):
            uploader.submit(chunk(number))
        uploader.wait()
        assert delivered.numbers == list(range(200))
    assert len(delivered.threads) == 1


def test_the_order_does_not_depend_on_the_store(store: GatedStore, delivered: Delivered) -> None:
    store.closed = True
    with Uploader(store, NAME, delivered, threads=4) as uploader:
        for number in range(4):
            uploader.submit(chunk(number))
        store.wait_started(4)
        for number in (3, 2, 1, 0):
            assert delivered.numbers == []
            store.open(key(number))
        uploader.wait()
    assert delivered.numbers == [0, 1, 2, 3]


def test_several_are_stored_at_once(store: GatedStore, delivered: Delivered) -> None:
    store.closed = True
    with Uploader(store, NAME, delivered, threads=4) as uploader:
        for number in range(6):
            uploader.submit(chunk(number))
        store.wait_started(4)
        store.open()


def test_bytes_under_way_are_bounded(store: GatedStore, delivered: Delivered) -> None:
    store.closed = True
    with Uploader(store, NAME, delivered, max_in_flight_bytes=3 * SIZE) as uploader:
        for number in range(3):
            uploader.submit(chunk(number))
        blocked = in_thread(lambda: uploader.submit(chunk(3)))
        blocked.join(0.05)
        assert blocked.is_alive()
        store.open(key(0))
        blocked.join(PATIENCE)
        assert not blocked.is_alive()
        store.open()
        uploader.wait()
    assert delivered.numbers == [0, 1, 2, 3]


def test_a_chunk_beyond_the_bound_goes_alone(store: GatedStore, delivered: Delivered) -> None:
    with Uploader(store, NAME, delivered, max_in_flight_bytes=10) as uploader:
        for number in range(5):
            uploader.submit(chunk(number))
        uploader.wait()
    assert delivered.numbers == list(range(5))


def test_many_submitters(store: GatedStore, delivered: Delivered) -> None:
    with Uploader(store, NAME, delivered, max_in_flight_bytes=5 * SIZE) as uploader:

        def submit(submitter: int) -> None:
            for number in range(100):
                uploader.submit(chunk(submitter * 100 + number))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(submit, range(8)))
        uploader.wait()
    assert sorted(delivered.numbers) == list(range(800))
    for submitter in range(8):
        mine = [number for number in delivered.numbers if number // 100 == submitter]
        assert mine == sorted(mine)


def test_wait_and_close_with_nothing_to_do(store: GatedStore, delivered: Delivered) -> None:
    uploader = Uploader(store, NAME, delivered)
    uploader.wait()
    uploader.close()
    uploader.close()
    uploader.wait()


def test_close_finishes_what_is_under_way(store: GatedStore, delivered: Delivered) -> None:
    draw = random.Random(1)
    with Uploader(store, NAME, delivered) as uploader:
        numbers = draw.sample(range(1000), 50)
        for number in numbers:
            uploader.submit(chunk(number))
    assert delivered.numbers == numbers


def test_a_closed_one_takes_nothing(store: GatedStore, delivered: Delivered) -> None:
    uploader = Uploader(store, NAME, delivered)
    uploader.close()
    with pytest.raises(RuntimeError):
        uploader.submit(chunk(1))
    uploader.wait()
    assert list(store.list("")) == []


class TestFailure:
    def test_of_the_store(self, store: GatedStore, delivered: Delivered) -> None:
        error = store.failures[key(1)] = StoreFull("no space")
        with Uploader(store, NAME, delivered, threads=1) as uploader:
            for number in range(3):
                try:
                    uploader.submit(chunk(number))
                except StoreFull:
                    break
            for call in (uploader.wait, lambda: uploader.submit(chunk(9)), uploader.wait):
                with pytest.raises(StoreFull) as caught:
                    call()
                assert caught.value is error
        assert delivered.numbers == [0], "nothing after the one that is missing"

    def test_of_the_first_in_order_is_the_one_told(
        self, store: GatedStore, delivered: Delivered
    ) -> None:
        store.closed = True
        store.failures = {key(n): StoreFull(str(n)) for n in (1, 2)}
        with Uploader(store, NAME, delivered) as uploader:
            for number in range(3):
                uploader.submit(chunk(number))
            store.open(key(2))
            store.open()
            with pytest.raises(StoreFull, match="1"):
                uploader.wait()

    def test_of_deliver(self, store: GatedStore, delivered: Delivered) -> None:
        error = delivered.failure = StoreFull("the commit found no space")
        with Uploader(store, NAME, delivered, max_in_flight_bytes=2 * SIZE) as uploader:

            def submit() -> None:
                for number in range(100):
                    uploader.submit(chunk(number))

            with pytest.raises(StoreFull) as caught:
                submit()
            assert caught.value is error
        assert delivered.numbers == []

    def test_wakes_those_who_wait_for_room(self, store: GatedStore, delivered: Delivered) -> None:
        store.closed = True
        store.failures[key(0)] = StoreFull("no space")
        with Uploader(store, NAME, delivered, max_in_flight_bytes=SIZE) as uploader:
            uploader.submit(chunk(0))
            with ThreadPoolExecutor(2) as pool:
                outcomes = [pool.submit(uploader.submit, chunk(n)) for n in (1, 2)]
                store.open(key(0))
                for outcome in outcomes:
                    assert isinstance(outcome.exception(PATIENCE), StoreFull)

    def test_of_a_source_that_changed(self, store: GatedStore, delivered: Delivered) -> None:
        def payload() -> Iterator[bytes]:
            yield b"x"
            raise BadSource("it changed while it was packed")

        with Uploader(store, NAME, delivered) as uploader:
            uploader.submit(chunk(0, payload()))
            with pytest.raises(BadSource):
                uploader.wait()
        assert list(store.list("")) == []

    def test_a_chunk_that_is_there_already(self, store: GatedStore, delivered: Delivered) -> None:
        # Of two threads the second one may store first, and then nothing is delivered.
        with Uploader(store, NAME, delivered, threads=1) as uploader:
            uploader.submit(chunk(0))
            uploader.submit(chunk(0))
            with pytest.raises(AlreadyExists):
                uploader.wait()
        assert delivered.numbers == [0]

    def test_close_after_it(self, store: GatedStore, delivered: Delivered) -> None:
        store.failures[key(0)] = KeyboardInterrupt()
        uploader = Uploader(store, NAME, delivered)
        uploader.submit(chunk(0))
        with pytest.raises(KeyboardInterrupt):
            uploader.wait()
        uploader.close()
        uploader.close()


def test_a_bad_source_may_be_told_and_the_others_go_on() -> None:
    def changed() -> Iterator[Buffer]:
        yield b"x"
        raise BadSource("changed")

    delivered: list[SealedChunk] = []
    told: list[tuple[SealedChunk, str]] = []
    store = MemoryObjectStore()
    chunks = [chunk(1), chunk(2, changed()), chunk(3)]
    with Uploader(
        store,
        NAME,
        delivered.append,
        on_bad_source=lambda chunk, error: told.append((chunk, str(error))),
    ) as uploader:
        for each in chunks:
            uploader.submit(each)
        uploader.wait()
    assert delivered == [chunks[0], chunks[2]]
    assert told == [(chunks[1], "changed")]
    assert {info.key for info in store.list("")} == {key(1), key(3)}  # stored in any order


class ReadAnew:
    """A payload like a large file's, which is read when it is stored."""

    def __iter__(self) -> Iterator[Buffer]:
        yield bytes(SIZE - 4)


@pytest.mark.parametrize("payload", [None, ReadAnew()], ids=["in memory", "read anew"])
def test_a_store_may_try_again_to_create_a_chunk(payload: Iterable[Buffer] | None) -> None:
    """A store that retries gives up on parts that pass only once."""

    class FailsOnce(StoreWrapper):
        creates = 0

        def after(self, call: str, key: str) -> None:
            self.creates += call == "create"
            if call == "create" and self.creates == 1:
                raise Unavailable("the answer is lost")

    store = RetryingStore(FailsOnce(MemoryObjectStore()), RetryPolicy(first_pause_s=0))
    stored: list[SealedChunk] = []
    with Uploader(store, NAME, stored.append) as uploader:
        uploader.submit(chunk(1, payload))
        uploader.wait()
    assert [one.ref for one in stored] == [chunk(1).ref]
    assert store.get(key(1)) == b"head" + bytes(SIZE - 4)
