"""A single Redis server that goes, comes back, or comes back empty, while `dlcmd put` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.forked_dlcmd import start_dlcmd
from tests.faults.killed_calls import PAUSED, KillPoint
from tests.faults.repeated_put import NEW, OLD, RepeatedPut, folder_in_memory
from tests.services.redis_processes import RedisProcess

PHASES = 4
"""Of one commit: chunks and totals, entries, retired chunks, applied."""


@pytest.fixture
def put(own_redis_server: RedisProcess) -> Iterator[RepeatedPut]:
    with folder_in_memory() as folder:
        yield RepeatedPut(folder, own_redis_server.url)


def before_phase(phase: int) -> KillPoint:
    """Of the second commit that the put makes."""
    return KillPoint(False, PHASES + phase, PAUSED, of="put")


@fault_case(
    "the Redis of the index is SIGKILLed between two phases of a commit and started again, with its append-only file",
    promise="the put waits and goes on; nothing is lost, the index is what recovery builds",
    bound_s=30,
    check="metadata.kv.redis_server:RedisServerStore._retry=none",
)
def test_killed_and_back(
    put: RepeatedPut, own_redis_server: RedisProcess, measured: Measured
) -> None:
    running = put.start(before_phase(2))
    running.wait_for_pause()
    own_redis_server.stop()
    running.go_on()
    with measured.felt():
        own_redis_server.start()
        ended = running.end()
    assert ended.code == 0, ended
    assert "lost" not in ended.errors
    put.check_whole()
    measured.note("the put resumed")


def back_empty(check: str) -> Any:
    return fault_case(
        "the Redis of the index is SIGKILLed before a phase of a commit and comes back empty",
        promise="the put fills it again from the store and goes on; the index is what recovery builds",
        bound_s=30,
        check=check,
    )


EMPTY_BEFORE = [
    pytest.param(1, marks=back_empty("metadata.kv.redis_replication:Replication._learn=none")),
    *(
        pytest.param(phase, marks=back_empty("dieselfs.dataset.publisher:Publisher._repair=none"))
        for phase in (2, 3, 4)
    ),
]


@pytest.mark.parametrize("phase", EMPTY_BEFORE)
def test_back_empty(
    put: RepeatedPut, own_redis_server: RedisProcess, phase: int, measured: Measured
) -> None:
    running = put.start(before_phase(phase))
    running.wait_for_pause()
    own_redis_server.lose_all()
    with measured.felt():
        running.go_on()
        ended = running.end()
    assert ended.code == 0, ended
    assert "the index has lost recent records" in ended.errors
    put.check_whole()
    measured.note("the put said so and filled it again")


@fault_case(
    "the Redis of the index is SIGKILLed in the middle of a put and stays away",
    promise="the put ends with an error that says what to do; what it acknowledged is there when Redis is; the same command finishes",
    bound_s=30,
    check="dieselfs.dataset.dataset:_catches_up=true",
)
def test_gone_for_good(
    put: RepeatedPut, own_redis_server: RedisProcess, measured: Measured
) -> None:
    running = put.start(before_phase(2), patience_s=1)
    running.wait_for_pause()
    own_redis_server.stop()
    with measured.felt():
        running.go_on()
        ended = running.end()
    assert ended.code == ExitCode.TEMPORARY, ended
    assert "check the address and that Redis runs there" in ended.errors
    own_redis_server.start()
    put.check_kept(ended)
    assert put.again().code == 0
    put.check_whole()
    measured.note("exit code of a temporary failure; the next command brought the index up to date")


@fault_case(
    "the replica of a single Redis hangs (SIGSTOP)",
    promise="a warning that a fail-over may lose recent entries; the put goes on and ends",
    bound_s=30,
    check="metadata.kv.redis_replication:Replication._not_confirmed=none",
)
def test_a_late_replica(
    put: RepeatedPut, own_redis_server: RedisProcess, tmp_path: Path, measured: Measured
) -> None:
    with own_redis_server.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    with RedisProcess(tmp_path, "--replicaof", "127.0.0.1", str(own_redis_server.port)) as replica:
        with replica.client() as client:
            eventually(
                lambda: client.info("replication")["master_link_status"] == "up",
                "the replica follows",
                ignored=redis.RedisError,
            )
        replica.pause()
        with measured.felt():
            ended = put.start().end()
        replica.resume()
    assert ended.code == 0, ended
    assert ended.errors.count("a replica is late or has left") == 1
    put.check_whole()
    measured.note("one warning, the put ended")


@fault_case(
    "the Redis of the index has lost everything between two commands",
    promise="the next command fills it from the store",
    bound_s=30,
    check="dieselfs.dataset.dataset:_catches_up=true",
)
def test_empty_between_commands(
    put: RepeatedPut, own_redis_server: RedisProcess, tmp_path: Path, measured: Measured
) -> None:
    running = put.start()
    assert running.end().code == 0
    own_redis_server.lose_all()
    with measured.felt():
        listing = start_dlcmd(tmp_path, ["ls", *put.places.flags, "dl://d/a"]).end()
    assert listing.code == 0, listing
    there = {name.decode()[2:] for name in {**OLD, **NEW} if name.startswith(b"a/")}
    assert set(listing.errors.split()) == there
    put.check_whole()
    measured.note("filled again")
