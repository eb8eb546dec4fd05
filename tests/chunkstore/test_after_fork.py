from __future__ import annotations

import gc
import os
import threading
import weakref

from chunkstore.after_fork import renew_now_and_after_fork
from tests.contracts.key_value_store_contract import fork


class Counter:
    def __init__(self) -> None:
        renew_now_and_after_fork(self)
        self.count = 1

    def renew(self) -> None:
        self.lock = threading.Lock()
        self.count = 0


def test_a_child_has_its_own_and_the_parent_keeps_what_it_had() -> None:
    counter = Counter()

    def child() -> None:
        assert counter.count == 0
        assert counter.lock.acquire(timeout=0)

    with counter.lock:
        assert os.waitpid(fork(child), 0)[1] == 0
    assert counter.count == 1


class Failing(Counter):
    def __init__(self) -> None:
        self.fails = False
        super().__init__()
        self.fails = True

    def renew(self) -> None:
        super().renew()
        if self.fails:
            raise ValueError


def test_one_that_fails_keeps_no_other_from_its_own() -> None:
    failing = [Failing() for _ in range(9)]
    counters = [Counter() for _ in range(9)]  # a set has no order: some come after one that fails
    assert os.waitpid(fork(lambda: check([*failing, *counters])), 0)[1] == 0


def check(counters: list[Counter]) -> None:
    assert [counter.count for counter in counters] == [0] * len(counters)


def test_nothing_is_kept_alive() -> None:
    gone = weakref.ref(Counter())
    gc.collect()
    assert gone() is None
