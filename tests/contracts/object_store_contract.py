"""What every `ObjectStore` must do. An implementation subscribes with a class that says how to open
one.

`ObjectStoreContract` is for all; `SharedObjectStoreContract` adds what several processes see.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.errors import AlreadyExists, BadSource, NotFound
from chunkstore.stores.folder_names import folder_names
from chunkstore.stores.later_keys import later_keys
from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore
from tests.eventually import PATIENCE_S

OpenStore = Callable[[], ObjectStore]
KEY = "datasets/d/chunks/one"
CREATORS = 8


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    """Sorted; every key must come once."""
    found = [info.key for info in store.list(prefix)]
    assert len(set(found)) == len(found)
    return sorted(found)


class ObjectStoreContract:
    """A subscriber overrides `open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens the store of this test, empty at first, once more."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store: OpenStore) -> ObjectStore:
        return open_store()

    @pytest.mark.parametrize(
        "parts",
        [
            [],
            [b""],
            [b"x"],
            [b"head", bytearray(b"and"), memoryview(b"payload")],
            [memoryview(b"a longer buffer")[2:8]],
            [b"%d," % number for number in range(3000)],
            [b"", b"a", b"", b"b"] * 1024,
            [bytes(range(256)) * (20 << 12)],  # 20 MiB
        ],
        ids=["no", "empty", "one", "kinds", "slice", "3000", "with empty ones", "20 MiB"],
    )
    def test_what_was_created_is_read_back(self, store: ObjectStore, parts: list[Buffer]) -> None:
        content = b"".join(parts)
        store.create(KEY, parts)
        assert store.get(KEY) == content
        assert store.stat(KEY) == ObjectInfo(KEY, len(content))
        assert list(store.list("")) == [ObjectInfo(KEY, len(content))]

    def test_parts_may_be_a_generator(self, store: ObjectStore) -> None:
        store.create(KEY, (bytes([number]) * 1000 for number in range(100)))
        assert store.get(KEY) == b"".join(bytes([number]) * 1000 for number in range(100))

    def test_a_taken_key_is_refused_and_keeps_its_content(self, store: ObjectStore) -> None:
        store.create(KEY, [b"first"])
        with pytest.raises(AlreadyExists):
            store.create(KEY, [b"second, longer"])
        assert store.get(KEY) == b"first"
        assert keys(store) == [KEY]

    def test_what_is_absent_is_not_found(self, store: ObjectStore) -> None:
        store.create("datasets/d/chunks/another", [b"x"])
        for call in (store.get, store.stat, lambda key: store.get_range(key, 0, 1)):
            with pytest.raises(NotFound):
                call(KEY)

    @pytest.mark.parametrize(
        ("offset", "length", "found"),
        [
            (0, 10, b"0123456789"),
            (0, 0, b""),
            (3, 4, b"3456"),
            (9, 1, b"9"),
            (9, 5, b"9"),
            (0, 11, b"0123456789"),
            (10, 1, b""),
            (11, 5, b""),
            (1 << 40, 1, b""),
            (0, 1 << 20, b"0123456789"),
        ],
    )
    def test_ranges_are_shorter_only_at_the_end(
        self, store: ObjectStore, offset: int, length: int, found: bytes
    ) -> None:
        store.create(KEY, [b"01234", b"56789"])
        assert store.get_range(KEY, offset, length) == found

    def test_lists_by_prefix(self, store: ObjectStore) -> None:
        # "0f" looks like what a store may name its own folders.
        names = ["top", "a/one", "a/two", "a/0f/one", "ab/one", "a/b/c/d", "0f/one", "0f/0f/one"]
        for name in names:
            store.create(name, [name.encode()])
        for prefix in ["", "a/", "a/b/", "a/0f/", "0f/", "0f/0f/", "ab/", "none/", "top/", "a/on/"]:
            assert keys(store, prefix) == sorted(name for name in names if name.startswith(prefix))
        assert all(store.get(name) == name.encode() for name in names)

    def test_names_below_a_prefix(self, store: ObjectStore) -> None:
        for name in ["a/b/one", "a/b/two", "a/c/d/e", "a/top", "a/0f/one", "ab/g/one", "0f/top"]:
            store.create(name, [b"x"])
        assert folder_names(store, "a/") == ["0f", "b", "c"]
        assert folder_names(store, "a/c/") == ["d"]
        assert folder_names(store, "a/b/") == folder_names(store, "0f/") == []
        assert folder_names(store, "none/") == []

    def test_keys_after_one(self, store: ObjectStore) -> None:
        for name in ["a/1", "a/2", "a/3", "a/30", "ab/4", "b/5"]:
            store.create(name, [b"x"])
        for after, later in [("a/1", ["a/2", "a/3", "a/30"]), ("a/25", ["a/3", "a/30"])]:
            found = later_keys(store, "a/", after)
            assert found is None or sorted(found) == later, "None: it would list all that it has"
        assert not later_keys(store, "a/", "a/30")
        assert not later_keys(store, "none/", "none/1")

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        store.create(KEY, [b"x"])
        store.delete(KEY)
        assert keys(store) == []
        assert keys(store, "datasets/d/") == []

    def test_a_deleted_key_is_free(self, store: ObjectStore) -> None:
        store.create(KEY, [b"first"])
        store.delete(KEY)
        store.delete(KEY)
        with pytest.raises(NotFound):
            store.get(KEY)
        store.create(KEY, [b"second"])
        assert store.get(KEY) == b"second"

    @pytest.mark.parametrize(
        "error", [BadSource("gone"), OSError(28, "full"), FileNotFoundError(2, "x"), KeyError("x")]
    )
    @pytest.mark.parametrize("after", [0, 3, 2500])
    def test_an_exception_of_the_parts_passes_through(
        self, store: ObjectStore, error: Exception, after: int
    ) -> None:
        def parts() -> Iterator[bytes]:
            for _ in range(after):
                yield b"some bytes"
            raise error

        with pytest.raises(type(error)) as caught:
            store.create(KEY, parts())
        assert caught.value is error
        assert keys(store) == []
        store.create(KEY, [b"the name is free"])

    def test_of_concurrent_creators_one_wins(self, store: ObjectStore) -> None:
        for turn in range(10):
            key = f"turns/{turn}"
            together = threading.Barrier(CREATORS)

            def create(
                number: int, key: str = key, together: threading.Barrier = together
            ) -> int | None:
                together.wait()
                try:
                    store.create(key, [b"%d" % number] * 2000)
                except AlreadyExists:
                    return None
                return number

            with ThreadPoolExecutor(CREATORS) as pool:
                winners = [n for n in pool.map(create, range(CREATORS)) if n is not None]
            assert len(winners) == 1
            assert store.get(key) == b"%d" % winners[0] * 2000

    def test_a_listing_is_complete_beside_creators(self, store: ObjectStore) -> None:
        before = [f"datasets/d/chunks/{number}" for number in range(100)]
        for key in before:
            store.create(key, [b"x"])
        stop = threading.Event()

        def create_and_delete() -> None:
            number = 0
            while not stop.is_set():
                store.create(f"datasets/d/chunks/new{number}", [b"y"])
                store.delete(f"datasets/d/chunks/new{number - 5}")
                number += 1

        with ThreadPoolExecutor(2) as pool:
            work = pool.submit(create_and_delete)
            try:
                for _ in range(10):
                    listed = [info.key for info in store.list("datasets/d/")]
                    assert sorted(key for key in listed if "new" not in key) == sorted(before)
                    assert all(key.startswith("datasets/d/chunks/") for key in listed)
            finally:
                stop.set()
            work.result()


class SharedObjectStoreContract(ObjectStoreContract):
    """For stores that other processes see as well."""

    def test_what_one_has_created_another_sees(self, open_store: OpenStore) -> None:
        open_store().create(KEY, [b"x"])
        assert open_store().get(KEY) == b"x"

    def test_of_concurrent_creating_processes_one_wins(self, open_store: OpenStore) -> None:
        context = multiprocessing.get_context("fork")
        together = context.Barrier(CREATORS)
        outcomes = context.SimpleQueue()

        def create(number: int) -> None:
            store = open_store()
            won = []
            for turn in range(5):
                together.wait(PATIENCE_S)
                try:
                    store.create(f"turns/{turn}", [b"%d" % number] * 2000)
                    won.append(turn)
                except AlreadyExists:
                    pass
            outcomes.put((number, won))

        children = [context.Process(target=create, args=(n,)) for n in range(CREATORS)]
        for child in children:
            child.start()
        results = dict(outcomes.get() for _ in children)
        for child in children:
            child.join()
        store = open_store()
        for turn in range(5):
            winners = [number for number, won in results.items() if turn in won]
            assert len(winners) == 1
            assert store.get(f"turns/{turn}") == b"%d" % winners[0] * 2000

    def test_a_killed_creator_leaves_nothing_to_be_seen(self, open_store: OpenStore) -> None:
        """The child is killed while the store waits for the next part, after half of them."""
        store = open_store()
        store.create("datasets/d/chunks/whole", [b"x"])
        reached, reached_by_child = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover

            def parts() -> Iterator[bytes]:
                for _ in range(3000):
                    yield bytes(1000)
                os.write(reached_by_child, b"x")
                threading.Event().wait()

            try:
                open_store().create(KEY, parts())
            finally:
                os._exit(1)
        try:
            os.read(reached, 1)
            assert keys(store) == ["datasets/d/chunks/whole"]
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(reached)
            os.close(reached_by_child)
        assert keys(store) == keys(open_store()) == ["datasets/d/chunks/whole"]
        store.create(KEY, [b"again"])
        assert store.get(KEY) == b"again"
