"""The simulation's threads, locks and clock."""

import pytest

from tests.simulation.network import Network
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Host, Scheduler, SimulationFailed


def runtime(seed: int, preempt: float = 0.0, **limits: float) -> SimulatedRuntime:
    scheduler = Scheduler(seed, preempt=preempt, **limits)  # type: ignore[arg-type]
    return SimulatedRuntime(scheduler, Network(scheduler), Host("a"), "10.0.0.1")


def order_of_three(seed: int) -> list[int]:
    here, done = runtime(seed), list[int]()

    def main() -> None:
        threads = [here.start(lambda n=n: done.append(n), f"t{n}") for n in range(3)]
        assert all(thread.join(1.0) for thread in threads)

    here.scheduler.run(main, here.host)
    return done


def test_a_seed_decides_who_runs_next() -> None:
    assert len({tuple(order_of_three(seed)) for seed in range(60)}) == 6
    assert all(order_of_three(seed) == order_of_three(seed) for seed in range(5))


def test_time_passes_only_while_all_wait() -> None:
    here = runtime(1)

    def main() -> None:
        begun = here.now()
        others = [here.start(lambda: here.sleep(7200), "sleeper") for _ in range(2)]
        here.sleep(3000)
        assert 3000 <= here.now() - begun < 3000.01
        assert not others[0].join(0.5)
        assert others[0].join(7200)

    here.scheduler = Scheduler(1, max_time_s=10_000)
    here.scheduler.run(main, here.host)


@pytest.mark.parametrize("preempt", [0.0, 0.7])
def test_a_lock_keeps_others_out_and_a_condition_lets_them_in(preempt: float) -> None:
    here = runtime(3, preempt)
    lock = here.lock()
    changed = here.condition(lock)
    inside, produced, seen = 0, list[int](), list[int]()

    def consume() -> None:
        nonlocal inside
        for _ in range(20):
            with lock:
                while not produced:
                    changed.wait(10)
                inside += 1
                here.sleep(0.001)
                assert inside == 1
                seen.append(produced.pop())
                inside -= 1

    def main() -> None:
        threads = [here.start(consume, f"consumer {n}") for n in range(3)]
        for number in range(60):
            with lock:
                produced.append(number)
                changed.notify_all()
            here.sleep(0.0005)
        assert all(thread.join(10) for thread in threads)

    here.scheduler.run(main, here.host)
    assert sorted(seen) == list(range(60))


def test_a_deadlock_is_reported_with_who_waits_where() -> None:
    here = runtime(1)
    one, two = here.lock(), here.lock()

    def take(first: object, second: object) -> None:
        with first:  # type: ignore[attr-defined]
            here.sleep(0.1)
            with second:  # type: ignore[attr-defined]
                pass

    def main() -> None:
        here.start(lambda: take(one, two), "left")
        take(two, one)

    with pytest.raises(
        SimulationFailed, match=r"nobody can run(.|\n)*a/left#2 waits for lock held by a/main"
    ):
        here.scheduler.run(main, here.host)
    here.scheduler.bury()


def test_who_never_stops_or_never_ends_is_stopped() -> None:
    here = runtime(1, max_steps=1000)

    def spin() -> None:
        while True:
            here.sleep(0)

    with pytest.raises(SimulationFailed, match="more than 1000 steps"):
        here.scheduler.run(spin, here.host)
    here.scheduler.bury()
    here = runtime(1, max_time_s=50.0)
    with pytest.raises(SimulationFailed, match="virtual time is over"):
        here.scheduler.run(lambda: here.sleep(60), here.host)
    here.scheduler.bury()


def test_what_a_thread_raises_fails_the_run() -> None:
    here = runtime(1)

    def main() -> None:
        here.start(lambda: print(1 / 0), "divider")
        here.sleep(5)

    with pytest.raises(SimulationFailed, match=r"a/divider#2 raised(.|\n)*ZeroDivisionError"):
        here.scheduler.run(main, here.host)
    here.scheduler.bury()


def test_killed_threads_vanish_and_paused_ones_go_on_later() -> None:
    here = runtime(5)
    other = SimulatedRuntime(here.scheduler, here.network, Host("b"), "10.0.0.2")
    beats, unwound = list[float](), list[str]()

    def beat() -> None:
        try:
            while True:
                other.sleep(1.0)
                beats.append(other.now())
        finally:
            unwound.append("b")

    def main() -> None:
        other.start(beat, "heart")
        here.sleep(3.5)
        here.scheduler.pause(other.host)
        here.sleep(10)
        assert len(beats) == 3
        here.scheduler.resume(other.host)
        here.sleep(2.5)
        assert len(beats) == 6
        here.scheduler.kill(other.host)
        here.sleep(5)
        assert len(beats) == 6
        assert not unwound
        assert here.scheduler.left() == ["a/main#1 waits for sleep"]

    here.scheduler.run(main, here.host)
    here.scheduler.bury()
    assert unwound == ["b"]
