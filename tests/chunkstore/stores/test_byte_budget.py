"""The budget of a job: the rate is kept, readers go first, and forked children share it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S, BudgetStatistics, ByteBudget
from chunkstore.stores.forked_lock import ForkedLock
from chunkstore.stores.paused_time import working_time
from chunkstore.stores.read_turn import ReadTurn, current_turn, in_this_turn, reading
from tests.chunkstore.stores.budget_clocks import SteppedClock, Takers, WaitingClock
from tests.contracts.key_value_store_contract import fork
from tests.eventually import PATIENCE_S, eventually


def ended(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0


def budget_of(rate: float | None, clock: WaitingClock | SteppedClock) -> ByteBudget:
    return ByteBudget(rate, clock=clock, wait=clock.wait)


def taking(
    budget: ByteBudget, size: int, turn: ReadTurn, paid: list[ByteBudget | None] | None = None
) -> Callable[[], None]:
    def take() -> None:
        with reading(turn):
            payer = budget.take(size)
        if paid is not None:
            paid.append(payer)

    return take


class TestTheRate:
    @pytest.mark.parametrize("size", [50, 1000, 5000])
    def test_it_is_kept_whatever_the_size_of_reads(self, size: int) -> None:
        clock = WaitingClock()
        budget = budget_of(1000, clock)
        for _ in range(100_000 // size):
            budget.take(size)
        assert 100 - size / 1000 - 0.3 <= clock.now <= 100
        assert budget.statistics().used_bytes == 100_000

    def test_how_long_a_read_would_wait(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        assert budget.wait_s(500) == 0
        budget.take(3000)
        assert budget.wait_s(500) == 3
        takers.start("one", taking(budget, 500, ReadTurn()))
        eventually(lambda: budget.statistics().waiting == 1)
        assert budget.wait_s(500) == 3.5
        clock.move_to(3.0)
        takers.join()
        budget.set_rate(None)
        assert budget.wait_s(1 << 40) == 0

    def test_the_burst_is_a_quarter_of_a_second_and_one_chunk(self) -> None:
        clock = WaitingClock()
        budget = budget_of(1000, clock)
        clock.now = 3600.0
        passed = 0
        while True:
            budget.take(10)
            if clock.now > 3600:
                break
            passed += 10
        assert passed == pytest.approx(250 + 10, abs=10)

    def test_a_large_read_passes_and_is_paid_afterwards(self) -> None:
        clock = WaitingClock()
        budget = budget_of(1000, clock)
        budget.take(5000)
        assert clock.now == 0
        budget.take(1)
        assert clock.now == pytest.approx(5)

    def test_what_is_charged_is_paid_by_the_next(self) -> None:
        clock = WaitingClock()
        budget = budget_of(1000, clock)
        budget.charge(5000)
        budget.charge(-3000)
        assert clock.now == 0
        budget.take(1)
        assert clock.now == pytest.approx(2)
        assert budget.statistics().used_bytes == 2001

    def test_0_means_the_floor(self) -> None:
        assert ByteBudget(0).bytes_per_s == FLOOR_BYTES_PER_S
        budget = ByteBudget()
        assert budget.bytes_per_s is None
        budget.set_rate(0)
        assert budget.bytes_per_s == FLOOR_BYTES_PER_S

    @pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
    def test_no_other_rate_than_a_number(self, rate: float) -> None:
        with pytest.raises(ValueError, match="0 bytes a second or more"):
            ByteBudget(rate)

    def test_without_a_rate_nobody_waits(self) -> None:
        clock = WaitingClock()
        budget = budget_of(None, clock)
        budget.take(1 << 50)
        budget.charge(1)
        assert clock.now == 0
        assert budget.statistics() == BudgetStatistics(used_bytes=(1 << 50) + 1)

    def test_debts_end_with_the_limit(self) -> None:
        clock = WaitingClock()
        budget = budget_of(1, clock)
        budget.take(1000)
        budget.set_rate(None)
        budget.take(1000)
        budget.set_rate(1)
        budget.take(1)
        assert clock.now == 0


class TestARateThatChanges:
    def test_a_waiting_thread_goes_by_the_new_one_at_once(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        budget.take(10_000)
        takers.start("a", partial(budget.take, 1))
        eventually(lambda: budget.statistics().waiting == 1)
        budget.set_rate(10_000)  # the debt of 10,000 bytes takes a second now
        clock.move_to(0.99)
        assert not takers.passed
        clock.move_to(1.0)
        takers.have_passed("a")

    def test_a_waiting_thread_is_woken(self) -> None:
        """By the change alone: no clock moves, and nobody looks by himself."""
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1, clock)
        budget.take(1 << 40)
        for name in "abc":
            takers.start(name, partial(budget.take, 1))
        eventually(lambda: budget.statistics().waiting == 3)
        budget.set_rate(None)
        takers.join()

    def test_what_is_given_back_wakes_too(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1, clock)
        budget.take(1 << 40)
        takers.start("a", partial(budget.take, 1))
        eventually(lambda: budget.statistics().waiting == 1)
        budget.charge(-(1 << 40))
        takers.have_passed("a")


class TestLines:
    def line_of(self, budget: ByteBudget, takers: Takers, turns: dict[str, ReadTurn]) -> None:
        for number, (name, turn) in enumerate(turns.items()):
            takers.start(name, taking(budget, 1000, turn))
            eventually(lambda number=number: budget.statistics().waiting == number + 1)  # type: ignore[misc]

    def test_readers_pass_before_reads_ahead_in_their_order(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        budget.take(1000)
        ahead = ReadTurn(ahead=True)
        turns = {"ahead": ahead, "x": ReadTurn(), "ahead too": ahead, "y": ReadTurn()}
        self.line_of(budget, takers, turns)
        for second, expected in enumerate(["x", "y", "ahead", "ahead too"]):
            clock.move_to(second + 1.0)
            eventually(lambda number=second: len(takers.passed) == number + 1)  # type: ignore[misc]
            assert takers.passed[-1] == expected
        takers.join()

    def test_a_hurried_read_changes_its_line(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        budget.take(1000)
        first, hurried = ReadTurn(ahead=True), ReadTurn(ahead=True)
        self.line_of(budget, takers, {"first": first, "hurried": hurried})
        hurried.hurry()
        clock.move_to(1.0)
        takers.have_passed("hurried")
        clock.move_to(2.0)
        takers.have_passed("hurried", "first")
        takers.join()

    def test_a_hurried_read_is_woken_when_it_becomes_the_first(self) -> None:
        """The budget is paid, but the thread that would see it is not the first any more."""
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        budget.take(1000)
        first, hurried = ReadTurn(ahead=True), ReadTurn(ahead=True)
        self.line_of(budget, takers, {"first": first, "hurried": hurried})
        eventually(lambda: clock.asleep == 2)
        clock.now = 1.0  # nobody looks
        hurried.hurry()
        takers.have_passed("hurried")
        clock.move_to(2.0)
        takers.join()

    def test_a_thread_has_its_turn_for_a_block(self) -> None:
        turn = ReadTurn(ahead=True)
        assert not current_turn().ahead
        with reading(turn):
            assert current_turn() is turn
            with reading(ReadTurn()):
                assert not current_turn().ahead
            assert current_turn() is turn
        assert not current_turn().ahead


class TestTwoJobsThatWaitForOneRead:
    """The first budget that lets it pass pays, and the other one pays nothing."""

    def two(self, clock: SteppedClock) -> tuple[ByteBudget, ByteBudget]:
        poor, rich = budget_of(1000, clock), budget_of(100_000, clock)
        poor.take(100_000)  # 100 s
        rich.take(100_000)  # 1 s
        return poor, rich

    def test_a_richer_job_pays(self) -> None:
        clock, takers = SteppedClock(), Takers()
        poor, rich = self.two(clock)
        turn, paid = ReadTurn(), list[ByteBudget | None]()
        takers.start("a", taking(poor, 1000, turn, paid))
        eventually(lambda: poor.statistics().waiting == 1)
        turn.join(rich, ahead=False)
        eventually(lambda: rich.statistics().waiting == 1)
        clock.move_to(0.99)
        assert not takers.passed
        clock.move_to(1.0)
        takers.have_passed("a")
        takers.join()
        assert paid == [rich]
        used = [each.statistics().used_bytes for each in (poor, rich)]
        assert used == [100_000, 101_000]
        assert poor.statistics().waiting == rich.statistics().waiting == 0

    def test_a_poorer_one_does_not(self) -> None:
        clock, takers = SteppedClock(), Takers()
        poor, rich = self.two(clock)
        turn, paid = ReadTurn(), list[ByteBudget | None]()
        turn.join(poor, ahead=False)  # before it waits
        takers.start("a", taking(rich, 1000, turn, paid))
        eventually(lambda: poor.statistics().waiting == 1)
        clock.move_to(1.0)
        takers.have_passed("a")
        takers.join()
        assert paid == [rich]
        assert poor.statistics().used_bytes == 100_000

    def test_a_job_that_pays_nothing_lets_it_pass_at_once(self) -> None:
        clock, takers = SteppedClock(), Takers()
        poor, _ = self.two(clock)
        turn, paid = ReadTurn(), list[ByteBudget | None]()
        takers.start("a", taking(poor, 1000, turn, paid))
        eventually(lambda: poor.statistics().waiting == 1)
        turn.join(None, ahead=True)
        takers.join()
        assert paid == [None]
        assert poor.statistics().used_bytes == 100_000

    def test_a_reader_of_the_same_job_hurries_it(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        budget.take(1000)
        first, second = ReadTurn(ahead=True), ReadTurn(ahead=True)
        takers.start("first", taking(budget, 1000, first))
        eventually(lambda: budget.statistics().waiting == 1)
        takers.start("second", taking(budget, 1000, second))
        eventually(lambda: budget.statistics().waiting == 2)
        second.join(budget, ahead=False)
        eventually(lambda: not second.ahead)
        clock.move_to(1.0)
        takers.have_passed("second")
        clock.move_to(2.0)
        takers.join()

    def test_a_job_that_fetches_ahead_waits_behind_its_own_readers(self) -> None:
        clock, takers = SteppedClock(), Takers()
        poor, rich = self.two(clock)
        turn, paid = ReadTurn(), list[ByteBudget | None]()
        takers.start("a", taking(poor, 1000, turn, paid))
        turn.join(rich, ahead=True)
        eventually(lambda: rich.statistics().waiting == 1)
        takers.start("reader", taking(rich, 100_000, ReadTurn(), paid))
        eventually(lambda: rich.statistics().waiting == 2)
        clock.move_to(1.0)
        takers.have_passed("reader")
        turn.join(rich, ahead=False)
        turn.join(rich, ahead=True)  # it stays a reader's
        clock.move_to(2.0)
        takers.have_passed("reader", "a")
        takers.join()

    @pytest.mark.parametrize("is_reader_first", [True, False])
    def test_threads_that_join_at_the_same_moment_share_a_reader_s_turn(
        self, is_reader_first: bool
    ) -> None:
        budget = ByteBudget()

        class Overtaken(dict[ByteBudget, ReadTurn]):
            """Turns in which another thread puts its own after a thread has found none."""

            def get(self, budget: ByteBudget) -> ReadTurn | None:  # type: ignore[override]
                found = super().get(budget)
                if found is None and not threads:
                    threads.append(thread)
                    thread.start()
                    thread.join()
                    waited_for.append(self[budget])
                return found

        turn, threads, waited_for = ReadTurn(ahead=True), list[threading.Thread](), list[ReadTurn]()
        thread = threading.Thread(target=lambda: turn.join(budget, ahead=not is_reader_first))
        turn.others = Overtaken()
        turn.join(budget, ahead=is_reader_first)
        assert [turn.others[budget]] == waited_for, "the read may be in line with it already"
        assert not waited_for[0].ahead

    def test_threads_of_a_read_have_its_turn(self) -> None:
        turn, seen = ReadTurn(ahead=True), list[ReadTurn]()

        def look() -> None:
            seen.append(current_turn())

        assert in_this_turn(look) is look
        with reading(turn):
            turned = in_this_turn(look)
        turned()
        assert seen == [turn]
        assert current_turn() is not turn


class TestStatistics:
    def test_seconds_of_readers_and_of_reads_ahead(self) -> None:
        clock, takers = SteppedClock(), Takers()
        budget = budget_of(1000, clock)
        budget.take(10_000)
        for number, turn in enumerate([ReadTurn(), ReadTurn(), ReadTurn(ahead=True)]):
            takers.start(str(number), taking(budget, 0, turn))
            eventually(lambda number=number: budget.statistics().waiting == number + 1)  # type: ignore[misc]
        clock.now = 3.0
        assert budget.statistics() == BudgetStatistics(10_000, 6.0, 3.0, 3, 3.0)
        clock.move_to(10.0)
        takers.join()
        clock.now = 50.0
        assert budget.statistics() == BudgetStatistics(10_000, 20.0, 10.0, 0, 10.0)

    def test_a_pause_is_no_working_time(self) -> None:
        clock = WaitingClock()
        budget = budget_of(1000, clock)
        budget.take(1_000_000)
        began = working_time()
        budget.take(1)
        assert -1000 <= working_time() - began < -900  # this clock's seconds take no time


class TestTheEnd:
    def test_closing_lets_all_through(self) -> None:
        budget, takers = ByteBudget(1), Takers()
        budget.take(1 << 40)
        for name in "abc":
            takers.start(name, taking(budget, 1 << 40, ReadTurn(ahead=name == "b")))
        eventually(lambda: budget.statistics().waiting == 3)
        budget.close()
        takers.join()
        budget.take(1 << 40)


class TestForked:
    def test_a_child_has_no_second_budget(self) -> None:
        budget = ByteBudget(1 << 20)
        began = budget._clock()

        def child() -> None:
            for _ in range(4):
                budget.take(1 << 16)

        children = [fork(child) for _ in range(4)]
        for each in children:
            ended(each)
        # 1 MiB in all, less the burst and the last ones that passed.
        assert budget._clock() - began > 1 - 0.25 - 4 / 16
        assert budget.statistics().used_bytes == 1 << 20

    def test_the_parent_changes_the_rate_under_a_waiting_child(self) -> None:
        budget = ByteBudget(1)
        budget.take(1 << 40)
        child = fork(taking(budget, 1, ReadTurn()))
        eventually(lambda: budget.statistics().bound_s > 0)
        assert budget.statistics().waiting == 0  # of this process
        budget.set_rate(None)
        ended(child)
        assert budget.statistics().waited_s > 0

    def test_what_a_child_counts_without_a_limit_is_told(self) -> None:
        budget = ByteBudget()
        ended(fork(taking(budget, 1000, ReadTurn())))
        budget.take(1)
        assert budget.statistics().used_bytes == 1001

    def test_a_child_begins_with_empty_lines(self) -> None:
        budget, takers = ByteBudget(1), Takers()
        budget.take(1 << 40)
        takers.start("a", partial(budget.take, 1))
        eventually(lambda: budget.statistics().waiting == 1)

        def child() -> None:
            assert budget.statistics().waiting == 0
            budget.close()  # of the child alone
            budget.take(1 << 40)

        ended(fork(child))
        assert not takers.passed
        budget.close()
        takers.join()

    def test_a_killed_child_leaves_the_lock_free(self) -> None:
        budget = ByteBudget(1000)
        has_it, told = os.pipe()

        def child() -> None:
            with budget._guard:
                os.write(told, b"x")
                signal.pause()

        pid = fork(child)
        os.read(has_it, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        budget.take(1)
        os.close(has_it)
        os.close(told)


class TestTheLock:
    def test_a_circle_that_the_kernel_only_supposes_is_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []

        def lockf(file: int, what: int) -> None:
            calls.append(what)
            if len(calls) < 3:
                raise OSError(errno.EDEADLK, "deadlock")

        monkeypatch.setattr(fcntl, "lockf", lockf)
        lock = ForkedLock()
        with lock:
            assert not calls  # nobody has forked it
        lock.share()
        with lock:
            pass
        assert calls == [fcntl.LOCK_EX] * 3 + [fcntl.LOCK_UN]

    def test_threads_exclude_each_other(self) -> None:
        lock, inside, entered = ForkedLock(), threading.Event(), threading.Event()

        def enter() -> None:
            inside.set()
            with lock:
                entered.set()

        with lock:
            thread = threading.Thread(target=enter)
            thread.start()
            assert inside.wait(PATIENCE_S)
            assert not entered.wait(0.01)
        thread.join(PATIENCE_S)
        assert entered.is_set()
