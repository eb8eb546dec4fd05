"""`dlcmd put` is killed at a call of store or index, in its own process or in one of its packing
processes.

The suite tries some of the calls; DIESELFS_LONG_FAULTS=1 every one of them, and 200 points drawn at
random.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import pytest
import redis

from tests.faults.case import Measured, fault_case
from tests.faults.forked_dlcmd import Ended
from tests.faults.killed_calls import WHEN, KillPoint
from tests.faults.repeated_put import NEW, RepeatedPut, folder_in_memory

LONG = bool(os.environ.get("DIESELFS_LONG_FAULTS"))


def random_points(draw: random.Random, undisturbed: Ended) -> Iterator[KillPoint]:
    """Most of them in the put's own process, which makes most of the calls."""
    while True:
        packing = draw.random() < 0.3
        calls = undisturbed.packing_calls if packing else undisturbed.put_calls
        yield KillPoint(packing, draw.randint(1, calls), draw.choice(WHEN))


def every_point(undisturbed: Ended) -> list[KillPoint]:
    return [
        KillPoint(packing, call, when)
        for packing, calls in ((False, undisturbed.put_calls), (True, undisturbed.packing_calls))
        for call in range(1, calls + 1)
        for when in WHEN
    ]


@fault_case(
    "`dlcmd put` or one of its packing processes is SIGKILLed at a call of store or index: before it, half-way, after it took effect",
    promise="no acknowledged file is lost, none is half visible; the same command finishes; the index is what recovery builds; a snapshot can be made",
    bound_s=30,
    check="dieselfs.dataset.dataset:_catches_up=true",
)
@pytest.mark.timeout(1800 if LONG else 300)
@pytest.mark.parametrize("index", ["lmdb", "redis"])
def test_a_put_killed_at_a_call(
    index: str, request: pytest.FixtureRequest, measured: Measured
) -> None:
    with folder_in_memory() as folder, ExitStack() as stack:
        if index == "redis":
            url = request.getfixturevalue("redis_url")
            client = stack.enter_context(redis.Redis.from_url(url))
            puts = RepeatedPut(folder, url, client.flushall)
        else:
            puts = RepeatedPut(folder)
        puts.start().end()  # the first one is slower, commits more often, and so makes more calls
        undisturbed = puts.start().end()
        assert (undisturbed.code, undisturbed.acknowledged) == (0, len(NEW)), undisturbed
        points = every_point(undisturbed) if LONG else []
        killed = sum(check(puts, point, measured) for point in points)
        drawn = 200 if LONG else 8
        wanted = killed + drawn
        # On a busy machine each put makes another number of calls, and may end before its point.
        for point in islice(random_points(random.Random(5), undisturbed), 4 * drawn):
            killed += check(puts, point, measured)
            if killed == wanted:
                break
        else:
            pytest.fail(f"only {killed} of {wanted} puts came to the call they were to die at")
    measured.note(f"{killed} kills, 0 acknowledged files lost, 0 partial files visible")


def check(puts: RepeatedPut, point: KillPoint, measured: Measured) -> bool:
    """Kill one put, look at what it left, and let the same command finish; whether it was killed at
    all."""
    try:
        with measured.felt():
            ended = puts.start(point).end()
        if point.in_packing_process and ended.code:
            assert "run the same command again" in ended.errors
        puts.check_kept(ended)
        with measured.felt():
            assert puts.again().code == 0
        puts.check_whole()
    except AssertionError as error:
        raise AssertionError(f"killed at {point}") from error
    return ended.code != 0
