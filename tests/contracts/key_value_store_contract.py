"""What every `KeyValueStore` must do. An implementation subscribes with a class that says how to
open one.

`KeyValueStoreContract` is for all; `SharedKeyValueStoreContract` adds what several processes see.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from tests.eventually import PATIENCE_S, eventually

CHILD_TIMEOUT_S = PATIENCE_S

OpenStore = Callable[[], KeyValueStore]


def value(high: int, low: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">QQ", high, low) + body


def put_one(store: KeyValueStore, key: bytes, field: bytes, stamped: bytes) -> None:
    store.put([[MapUpdate(key, [field], [stamped])]])


def get_one(store: KeyValueStore, key: bytes, field: bytes) -> bytes | None:
    [[found]] = store.get_many([MapFields(key, [field])])
    return found


def content(store: KeyValueStore, key: bytes) -> dict[bytes, bytes]:
    """Of a map that nobody changes: every field must come once."""
    pairs = [pair for batch in store.scan(key) for pair in batch]
    assert len({field for field, _ in pairs}) == len(pairs)
    return dict(pairs)


class KeyValueStoreContract:
    """A subscriber overrides `open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens the database of this test, empty at first, once more."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[KeyValueStore]:
        store = open_store()
        yield store
        store.close()

    @pytest.fixture
    def key(self) -> bytes:
        return new_key()

    def test_put_and_get(self, store: KeyValueStore, key: bytes) -> None:
        other = new_key()
        store.put(
            [
                [
                    MapUpdate(key, [b"a", b"b"], [value(1, 0, b"A"), value(1, 0, b"B")]),
                    MapUpdate(other, [b"a"], [value(2)]),
                ]
            ]
        )
        assert store.get_many(
            [
                MapFields(key, [b"b", b"none", b"a"]),
                MapFields(b"{nowhere}f", [b"a"]),
                MapFields(other, [b"a"]),
                MapFields(key, []),
            ]
        ) == [[value(1, 0, b"B"), None, value(1, 0, b"A")], [None], [value(2)], []]

    def test_nothing_asked_is_nothing_done(self, store: KeyValueStore, key: bytes) -> None:
        store.put([])
        store.put([[], []])
        store.put([[MapUpdate(key, [], [])]])
        store.remove([])
        store.remove([MapFields(key, [])])
        store.drop([])
        assert store.get_many([]) == []
        assert content(store, key) == {}

    @pytest.mark.parametrize(
        ("present", "later", "wins"),
        [
            ((1, 0), (2, 0), True),
            ((2, 0), (1, 0), False),
            ((5, 1), (5, 2), True),
            ((5, 2), (5, 1), False),
            ((5, 2), (5, 2), False),
            ((1, 9), (2, 0), True),
            ((0x7F, 0), (0x80, 0), True),  # signed bytes
            ((0xFF, 0), (0x100, 0), True),  # little-endian
            ((0x61, 0), (0x42, 0), False),  # a collation that ignores case: "a" before "B"
            ((0x42, 0), (0x61, 0), True),
            ((0x100, 0), (0x0A00, 0), True),  # NUL, newline
            ((2**31 - 1, 0), (2**31, 0), True),
            ((2**32 - 1, 5), (2**32, 0), True),
            ((2**53 - 2, 0), (2**53 - 1, 0), True),
            ((2**53 - 1, 2**53 - 2), (2**53 - 1, 2**53 - 1), True),
            ((0, 0), (0, 1), True),
        ],
    )
    def test_the_greater_stamp_wins(
        self,
        store: KeyValueStore,
        key: bytes,
        present: tuple[int, int],
        later: tuple[int, int],
        wins: bool,
    ) -> None:
        put_one(store, key, b"field", value(*present, b"present"))
        put_one(store, key, b"field", value(*later, b"later"))
        assert get_one(store, key, b"field") == (
            value(*later, b"later") if wins else value(*present, b"present")
        )

    def test_a_put_decides_for_every_field(self, store: KeyValueStore, key: bytes) -> None:
        names = [b"%d" % i for i in range(300)]
        store.put([[MapUpdate(key, names, [value(i % 7, 0, b"old") for i in range(300)])]])
        store.put([[MapUpdate(key, names, [value(3, 0, b"new") for _ in range(300)])]])
        [found] = store.get_many([MapFields(key, names)])
        assert found == [
            value(3, 0, b"new") if i % 7 < 3 else value(i % 7, 0, b"old") for i in range(300)
        ]

    def test_phases_of_one_put_compare_too(self, store: KeyValueStore, key: bytes) -> None:
        store.put(
            [
                [MapUpdate(key, [b"up", b"down"], [value(1), value(9)])],
                [MapUpdate(key, [b"up", b"down"], [value(2), value(8)])],
            ]
        )
        assert content(store, key) == {b"up": value(2), b"down": value(9)}

    def test_any_field_is_a_field(self, store: KeyValueStore, key: bytes) -> None:
        noise = random.Random(0)
        names = [b"", b"\0", b"\0\0", b"a\nb", b"\xff", b"\xff" * 255, b"\0" * 255, b"\r\n", b"{x}"]
        names += [bytes([i]) for i in range(1, 256) if bytes([i]) not in names]
        names += [noise.randbytes(255) for _ in range(20)]
        expected = {name: value(1, i, name) for i, name in enumerate(names)}
        store.put([[MapUpdate(key, list(expected), list(expected.values()))]])
        [found] = store.get_many([MapFields(key, names)])
        assert found == list(expected.values())
        assert content(store, key) == expected
        store.remove([MapFields(key, names)])
        assert content(store, key) == {}

    def test_neighbouring_keys_do_not_mix(self, store: KeyValueStore) -> None:
        tag = uuid.uuid4().hex[:22].encode()
        keys = [b"{%b}d" % tag, b"{%b}f" % tag, b"{%b\x7e}f" % tag[:-1], b"~" * 64, b"plain" + tag]
        for number, key in enumerate(keys):
            put_one(store, key, b"x", value(number + 1))
            put_one(store, key, b"", value(number + 1))
        for number, key in enumerate(keys):
            assert content(store, key) == {b"x": value(number + 1), b"": value(number + 1)}
        store.drop([keys[1]])
        assert [len(content(store, key)) for key in keys] == [2, 0, 2, 2, 2]
        store.drop(keys)

    def test_values_stay_as_they_are(self, store: KeyValueStore, key: bytes) -> None:
        noise = random.Random(1)
        values = [value(1, 0, noise.randbytes(size)) for size in (0, 1, 64, 5_000, 300_000)]
        names = [b"%d" % i for i in range(len(values))]
        store.put([[MapUpdate(key, names, values)]])
        [found] = store.get_many([MapFields(key, names)])
        assert found == values
        assert all(type(stored) is bytes for stored in found)
        for field, stored in content(store, key).items():
            assert type(field) is bytes
            assert type(stored) is bytes

    def test_many_fields(self, store: KeyValueStore, key: bytes) -> None:
        expected = {b"%06d.JPEG" % i: value(1, i, bytes(64)) for i in range(10_000)}
        names = list(expected)
        random.Random(2).shuffle(names)
        store.put([[MapUpdate(key, names, [expected[name] for name in names])]])
        batches = list(store.scan(key))
        assert max(map(len, batches)) < 10_000
        assert content(store, key) == expected
        [found] = store.get_many([MapFields(key, names)])
        assert found == [expected[name] for name in names]
        store.remove([MapFields(key, names[:9_000])])
        assert content(store, key) == {name: expected[name] for name in names[9_000:]}
        store.drop([key])
        assert content(store, key) == {}
        assert store.get_many([MapFields(key, names)]) == [[None] * 10_000]

    def test_many_maps_in_one_put(self, store: KeyValueStore) -> None:
        keys = [new_key() for _ in range(300)]
        store.put([[MapUpdate(key, [b"x", b"y"], [value(1), value(2)]) for key in keys]])
        found = store.get_many([MapFields(key, [b"y", b"z", b"x"]) for key in keys])
        assert found == [[value(2), None, value(1)]] * 300

    def test_remove_takes_what_is_named(self, store: KeyValueStore, key: bytes) -> None:
        store.put([[MapUpdate(key, [b"a", b"b"], [value(9), value(9)])]])
        store.remove([MapFields(key, [b"a", b"missing"]), MapFields(b"{nowhere}f", [b"a"])])
        assert content(store, key) == {b"b": value(9)}
        # Nothing remembers the stamp of what was removed.
        put_one(store, key, b"a", value(1))
        assert content(store, key) == {b"a": value(1), b"b": value(9)}

    def test_remove_exactly_takes_only_what_was_seen(
        self, store: KeyValueStore, key: bytes
    ) -> None:
        names = [b"%d" % i for i in range(5_000)]
        store.put([[MapUpdate(key, names, [value(1)] * len(names))]])
        put_one(store, key, b"7", value(2))
        gone = {key: [b"7", b"8", b"4999", b"missing"], b"{nowhere}f": [b"a"]}
        store.remove_exactly(
            [MapUpdate(at, fields, [value(1)] * len(fields)) for at, fields in gone.items()]
        )
        expected = dict.fromkeys(names, value(1)) | {b"7": value(2)}
        del expected[b"8"], expected[b"4999"]
        assert content(store, key) == expected
        store.remove_exactly([])
        store.remove_exactly([MapUpdate(key, [], [])])
        store.remove_exactly([MapUpdate(key, list(expected), list(expected.values()))])
        assert content(store, key) == {}

    def test_drop_takes_whole_maps(self, store: KeyValueStore, key: bytes) -> None:
        other = new_key()
        put_one(store, key, b"a", value(9))
        put_one(store, other, b"a", value(9))
        store.drop([key, b"{nowhere}f"])
        assert content(store, key) == {}
        assert content(store, other) == {b"a": value(9)}
        put_one(store, key, b"a", value(1))
        assert content(store, key) == {b"a": value(1)}

    @pytest.mark.long
    @settings(
        max_examples=25,
        # The store is one for all examples (each has keys of its own), and every subscriber runs
        # this.
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(data=st.data())
    def test_puts_in_any_order_give_the_same(
        self, store: KeyValueStore, data: st.DataObject
    ) -> None:
        field = st.sampled_from([b"", b"a", b"b", b"\xff\0", b"\n"])
        stamp = st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 0x80, 2**40]))
        update = st.dictionaries(field, stamp, max_size=5)
        put = st.lists(update, min_size=1, max_size=3)
        puts = data.draw(st.lists(put, max_size=5))
        order = data.draw(st.permutations(range(len(puts))))
        again = data.draw(st.lists(st.sampled_from(order), max_size=3)) if order else []

        def fill(numbers: list[int]) -> list[dict[bytes, bytes]]:
            keys = [new_key(), new_key()]
            for number in numbers:
                store.put(
                    [
                        [
                            MapUpdate(
                                keys[phase % 2],
                                list(fields),
                                # Who has equal stamps has equal values: they are the same commit.
                                [value(*stamp, b"%d" % stamp[1]) for stamp in fields.values()],
                            )
                        ]
                        for phase, fields in enumerate(puts[number])
                    ]
                )
            return [content(store, key) for key in keys]

        assert fill(list(range(len(puts)))) == fill([*order, *again])

    def test_scan_sees_what_stays(self, store: KeyValueStore, key: bytes) -> None:
        lasting = {b"lasting %d" % i: value(1, i, bytes(64)) for i in range(6_000)}
        store.put([[MapUpdate(key, list(lasting), list(lasting.values()))]])
        done = threading.Event()
        failures: list[BaseException] = []

        def churn() -> None:
            try:
                for turn in range(1_000):
                    names = [b"passing %d %d" % (turn, i) for i in range(500)]
                    store.put([[MapUpdate(key, names, [value(1, 0, bytes(64))] * 500)]])
                    if turn % 2:
                        store.remove([MapFields(key, names)])
                    if done.is_set():
                        return
            except BaseException as error:
                failures.append(error)

        writer = threading.Thread(target=churn)
        writer.start()
        try:
            for _ in range(3):
                seen = {pair for batch in store.scan(key) for pair in batch}
                assert seen.issuperset(lasting.items())
        finally:
            done.set()
            writer.join()
        assert not failures

    def test_a_scan_may_be_left(self, store: KeyValueStore, key: bytes) -> None:
        names = [b"%d" % i for i in range(9_000)]
        store.put([[MapUpdate(key, names, [value(1)] * 9_000)]])
        for _ in range(200):
            next(store.scan(key))
        half_way = store.scan(key)
        next(half_way)
        store.drop([key])
        assert len(list(half_way)) <= 2

    def test_threads_race_on_the_same_fields(self, store: KeyValueStore, key: bytes) -> None:
        best = run_racers(
            [
                lambda seed=seed: race(store, key, seed)  # type: ignore[misc]
                for seed in range(4)
            ]
        )
        assert content(store, key) == best

    def test_close_twice(self, open_store: OpenStore) -> None:
        store = open_store()
        store.close()
        store.close()


class SharedKeyValueStoreContract(KeyValueStoreContract):
    """For databases that outlive a process and serve several. All processes here are forked."""

    def test_two_stores_share_one_database(
        self, store: KeyValueStore, open_store: OpenStore, key: bytes
    ) -> None:
        other = open_store()
        put_one(store, key, b"a", value(1))
        assert get_one(other, key, b"a") == value(1)
        put_one(other, key, b"a", value(2))
        other.close()
        assert get_one(store, key, b"a") == value(2)

    def test_what_was_put_is_there_when_opened_again(
        self, open_store: OpenStore, key: bytes
    ) -> None:
        first = open_store()
        put_one(first, key, b"a", value(1))
        first.close()
        second = open_store()
        assert content(second, key) == {b"a": value(1)}
        second.close()

    def test_a_store_works_on_both_sides_of_a_fork(self, store: KeyValueStore, key: bytes) -> None:
        put_one(store, key, b"before", value(1))

        def child() -> None:
            assert get_one(store, key, b"before") == value(1)
            for i in range(50):
                put_one(store, key, b"child %d" % i, value(1))
            store.close()

        with running([child, child]):
            for i in range(50):
                put_one(store, key, b"parent %d" % i, value(1))
        assert len(content(store, key)) == 101

    def test_a_fork_while_threads_work(self, store: KeyValueStore, key: bytes) -> None:
        done = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while not done.is_set():
                    store.put([[MapUpdate(key, [b"x", b"y"], [value(1), value(2)])]])
                    assert get_one(store, key, b"y") == value(2)
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        try:
            for number in range(6):
                with running([lambda n=number: put_one(store, key, b"%d" % n, value(1))]):  # type: ignore[misc]
                    pass
        finally:
            done.set()
            for worker in workers:
                worker.join()
        assert not failures
        assert len(content(store, key)) == 8

    def test_processes_race_on_the_same_fields(
        self, store: KeyValueStore, open_store: OpenStore, key: bytes
    ) -> None:
        def racer(seed: int) -> Callable[[], None]:
            def run() -> None:
                own = open_store()
                race(own, key, seed)
                own.close()

            return run

        with running([racer(seed) for seed in range(3)]):
            pass
        assert content(store, key) == winners(range(3))

    @pytest.mark.long
    def test_a_killed_writer_leaves_phases_in_order(
        self, store: KeyValueStore, open_store: OpenStore
    ) -> None:
        chance = random.Random(int.from_bytes(os.urandom(4), "big"))
        for _ in range(5):
            phases = [[new_key() for _ in range(5)] for _ in range(3)]

            def write(phases: list[list[bytes]] = phases) -> None:
                own = open_store()
                for turn in range(1_000_000):
                    names = [b"%d %d" % (turn, i) for i in range(40)]
                    own.put(
                        [
                            [MapUpdate(key, names, [value(1, 0, bytes(64))] * 40) for key in keys]
                            for keys in phases
                        ]
                    )

            child = fork(write)
            first = phases[0][0]
            eventually(lambda first=first: content(store, first), "a first write")  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            # The last phase is read first: a server may still be at work on what it was sent.
            found = [[set(content(store, key)) for key in keys] for keys in reversed(phases)][::-1]
            for earlier, later in pairwise(found):
                assert set.union(*later) <= set.intersection(*earlier)
            # and nothing is locked or torn: the next writer goes on.
            put_one(store, first, b"next", value(1))
            store.drop([key for keys in phases for key in keys])


RACED = [b"%d" % i for i in range(20)]


def _stamps(seed: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    chance = random.Random(seed)
    for _ in range(60):
        fields = chance.sample(RACED, 12)
        yield fields, [value(chance.randrange(1000), seed, b"%d" % seed) for _ in fields]


def race(store: KeyValueStore, key: bytes, seed: int) -> None:
    for fields, values in _stamps(seed):
        store.put([[MapUpdate(key, fields, values)]])


def winners(seeds: range) -> dict[bytes, bytes]:
    best: dict[bytes, bytes] = {}
    for seed in seeds:
        for fields, values in _stamps(seed):
            for field, stamped in zip(fields, values, strict=True):
                best[field] = max(best.get(field, b""), stamped)
    return best


def run_racers(racers: list[Callable[[], None]]) -> dict[bytes, bytes]:
    threads = [threading.Thread(target=racer) for racer in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners(range(len(racers)))


def new_key() -> bytes:
    """Of no other test: the database may be a shared server. As long as the index's own."""
    return b"{%b}f" % uuid.uuid4().hex[:22].encode()


def fork(run: Callable[[], None]) -> int:
    """The process id of a child that runs this and ends with 0, or 1 if it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the point here
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(
            signal.ITIMER_REAL, CHILD_TIMEOUT_S
        )  # whatever becomes of the test, no child stays
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@contextmanager
def running(children: list[Callable[[], None]]) -> Iterator[None]:
    """Run these in forked processes, beside the body; all must succeed."""
    processes = [fork(child) for child in children]
    try:
        yield
    finally:
        statuses = [os.waitpid(process, 0)[1] for process in processes]
    assert statuses == [0] * len(children)
