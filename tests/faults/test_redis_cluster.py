"""A Redis Cluster of three masters and three replicas, a master of which is killed in the middle of
`dlcmd put`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from metadata import keys
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.killed_calls import PAUSED, KillPoint
from tests.faults.repeated_put import RepeatedPut, folder_in_memory
from tests.services.redis_processes import RedisCluster, RedisProcess

PHASES = 4
"""Of one commit, see docs/metadata-layout.md."""


@pytest.fixture
def put(own_redis_cluster: RedisCluster) -> Iterator[RepeatedPut]:
    with folder_in_memory() as folder:
        yield RepeatedPut(folder, own_redis_cluster.url)


def master_and_replica(
    cluster: RedisCluster, put: RepeatedPut
) -> tuple[RedisProcess, RedisProcess, bytes]:
    """Those that serve the state of the dataset, and a key of theirs."""
    with put.places.opened() as dataset:
        key = keys.state_of(dataset.ref.id)

    def found() -> tuple[RedisProcess, RedisProcess, bytes] | None:
        for master in cluster.masters():
            with master.client() as client:
                replica_of_it = client.info("replication").get("slave0")
                if replica_of_it is not None and key in client.keys("*"):  # of its own
                    port = replica_of_it["port"]
                    [replica] = [node for node in cluster.nodes if node.port == port]
                    return master, replica, key
        return None

    # On a busy machine nodes take each other for dead, and another one has just become master.
    return eventually(found, "a master with the key, and its replica", ignored=redis.RedisError)


@pytest.mark.parametrize("phase", [2, 4])
@fault_case(
    "a master of a Redis Cluster of 3 + 3, the one with the dataset's state, is SIGKILLed between two phases of a commit",
    promise="the put waits for the fail-over and ends; nothing is lost, the index is what recovery builds",
    bound_s=30,
    check="metadata.kv.redis_cluster:RedisClusterStore._before_retry=none",
)
def test_a_master_killed_in_a_put(
    put: RepeatedPut, own_redis_cluster: RedisCluster, phase: int, measured: Measured
) -> None:
    master, _, _ = master_and_replica(own_redis_cluster, put)
    running = put.start(KillPoint(False, PHASES + phase, PAUSED, of="put"))
    running.wait_for_pause()
    master.stop()
    with measured.felt():
        running.go_on()
        ended = running.end()
    assert ended.code == 0, ended
    assert "lost" not in ended.errors
    put.check_whole()
    measured.note("nothing forgotten")


@fault_case(
    "a replica hangs (SIGSTOP) while its master acknowledges two commits, then the master is SIGKILLed and the replica takes over",
    promise="two warnings: that the replica is late, that records were forgotten; the put brings them back and ends; the index is what recovery builds",
    bound_s=30,
    check="metadata.kv.redis_replication:Replication._learn=none",
)
def test_a_fail_over_that_forgets(
    put: RepeatedPut, own_redis_cluster: RedisCluster, measured: Measured
) -> None:
    master, replica, key = master_and_replica(own_redis_cluster, put)
    replica.pause()
    fill_the_pipe(master, key)
    running = put.start(KillPoint(False, 2 * PHASES, PAUSED, of="put"))
    running.wait_for_pause()
    master.stop()
    replica.resume()
    eventually(
        lambda: replica in own_redis_cluster.masters(),
        "the replica becomes the master",
        ignored=redis.RedisError,
    )
    with measured.felt():
        running.go_on()
        ended = running.end()
    assert ended.code == 0, ended
    assert "a replica is late or has left" in ended.errors
    assert "the index has lost recent records" in ended.errors
    put.check_whole()
    measured.note("forgotten records noticed and put again")


def fill_the_pipe(master: RedisProcess, key: bytes) -> None:
    """Write so much that what follows does not reach the buffers of the replica's socket.

    A master of a busy machine may take the other ones for dead for a moment, and refuse.
    """
    tag = key[: key.index(b"}") + 1]
    with master.client() as client:
        assert isinstance(client, redis.Redis)
        for act in (
            lambda: client.set(tag + b"filler", bytes(48 << 20)),
            lambda: client.delete(tag + b"filler"),
        ):
            eventually(act, "the master answers", ignored=redis.exceptions.ClusterDownError)
