"""The Redis of the index evicts keys, or has something that is no map at a key of the index."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from dieselfs.cli.rendering.exit_codes import ExitCode
from metadata import keys
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.damaged_index import FILES, IndexedDataset, check_refused, indexed_dataset
from tests.faults.killed_calls import PAUSED, KillPoint
from tests.services.redis_processes import RedisProcess

ROUNDS = 100 if os.environ.get("DIESELFS_LONG_FAULTS") else 5
POLICY = "maxmemory-policy"


@pytest.fixture
def server(own_redis_server: RedisProcess) -> Iterator[redis.Redis]:
    with own_redis_server.client() as client:
        yield client


@pytest.fixture
def index(own_redis_server: RedisProcess) -> Iterator[IndexedDataset]:
    with indexed_dataset(own_redis_server.url) as found:
        yield found


def evict_one(server: redis.Redis, candidates: list[bytes]) -> bytes:
    """Let the server evict until one of these keys is gone, and bring back all others that are."""
    kept = {key: server.dump(key) for key in server.keys("*")}
    server.config_set("maxmemory", server.info("memory")["used_memory"] + 50_000)
    for number in range(3000):
        server.set(f"other-{number}", bytes(10_000))
        if server.exists(*candidates) < len(candidates):
            break
    server.config_set("maxmemory", 0)
    gone = next(key for key in candidates if not server.exists(key))
    for key, value in kept.items():
        if key != gone and not server.exists(key):
            server.restore(key, 0, value)
    return gone


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
@fault_case(
    "the Redis of the index may evict any key (maxmemory-policy allkeys-*)",
    promise="it is read with a warning, and not written: an error says what to set",
    bound_s=30,
    check="metadata.kv.redis_server:warn=none",
)
def test_a_policy_that_evicts(
    index: IndexedDataset, server: redis.Redis, policy: str, measured: Measured
) -> None:
    server.config_set(POLICY, policy)
    new = index.folder / "new"
    new.write_bytes(b"new")
    with measured.felt():
        ended = index.dlcmd("ls", "-r", "dl://d")
    assert ended.code == 0
    assert index.check_listing(ended)
    assert f"may evict its records (maxmemory-policy {policy})" in ended.errors
    with measured.felt():
        ended = index.dlcmd("put", "-j", "1", f"{new}", "dl://d/new")
    assert ended.code == ExitCode.FAILURE, ended
    assert "set maxmemory-policy noeviction there" in ended.errors
    server.config_set(POLICY, "volatile-lru")
    with measured.felt():
        ended = index.dlcmd("put", "-j", "1", f"{new}", "dl://d/new")
    assert ended.code == 0, ended
    assert POLICY not in ended.errors
    measured.note(f"{policy}: warned, refused to write")


@fault_case(
    "a Redis with maxmemory-policy allkeys-random has evicted a directory of the index",
    promise="whatever reads names is refused and told of `dlcmd recover`: of one directory, of one "
    "path, of everything; with noeviction `recover` puts it right",
    bound_s=30,
    check="dieselfs.client.lookup:check_complete=none",
)
def test_an_evicted_directory(
    index: IndexedDataset, server: redis.Redis, tmp_path: Path, measured: Measured
) -> None:
    with index.places.opened() as dataset:
        directories = [keys.files_of(dataset.ref.id, b"%d" % n) for n in range(7)]
    server.config_set(POLICY, "allkeys-random")
    gone = directories.index(evict_one(server, directories))
    path = next(os.fsdecode(path) for path in FILES if path.startswith(b"%d/" % gone))
    for command in (
        ["ls", "-r", "dl://d"],
        ["ls", f"dl://d/{gone}"],
        ["stat", f"dl://d/{path}"],
        ["cat", f"dl://d/{path}"],
        ["du", "dl://d"],
        ["get", "dl://d", f"{tmp_path}/got"],
    ):
        with measured.felt():
            check_refused(index.dlcmd(*command))
    assert "rebuilt this snapshot from the store" in index.dlcmd("snapshot", "create", "d").errors
    server.config_set(POLICY, "noeviction")
    with measured.felt():
        assert index.dlcmd("recover", "d").code == 0
    index.check_whole()
    measured.note("refused; recovered with noeviction")


@fault_case(
    "a Redis begins to evict keys while `dlcmd recover` fills it",
    promise="the recovery ends with an error that says that the index is not held",
    bound_s=30,
    check="dieselfs.recovery.recovery:check_kept=none",
)
def test_recover_into_a_server_that_begins_to_evict(
    index: IndexedDataset, server: redis.Redis, measured: Measured
) -> None:
    server.flushall()
    running = index.start("recover", "d", point=KillPoint(False, 3, PAUSED, of="put"))
    running.wait_for_pause()
    assert server.dbsize() > 0
    server.config_set(POLICY, "allkeys-random")
    server.config_set("maxmemory", 1)
    eventually(lambda: server.dbsize() == 0, "the eviction of what was put")
    server.config_set("maxmemory", 0)
    running.go_on()
    with measured.felt():
        ended = running.end()
    assert ended.code == ExitCode.FAILURE, ended
    assert "does not hold what was put" in ended.errors
    server.config_set(POLICY, "noeviction")
    assert index.dlcmd("recover", "d").code == 0
    index.check_whole()
    measured.note("refused; recovered with noeviction")


MAPS: dict[str, Callable[[bytes], bytes]] = {
    "the files of a directory": lambda dataset_id: keys.files_of(dataset_id, b"3"),
    "the sub-directories of the root": lambda dataset_id: keys.directories_of(dataset_id, b""),
    "the chunks": keys.chunks_of,
    "the state": keys.state_of,
    "the names of all datasets": lambda dataset_id: keys.DATASETS,
}


@pytest.mark.parametrize("place", MAPS)
@fault_case(
    "another program has put a value of another type at a key of the index",
    promise="who needs it is refused and told of `dlcmd recover`, which replaces it",
    bound_s=30,
    check="metadata.kv.redis_maps:RedisMaps._perhaps_split_among=none",
)
def test_a_key_of_another_type(
    index: IndexedDataset, server: redis.Redis, place: str, measured: Measured
) -> None:
    with index.places.opened() as dataset:
        key = MAPS[place](dataset.ref.id)
    server.delete(key)
    server.set(key, b"what another program put")
    with measured.felt():
        check_refused(
            index.dlcmd(
                *(
                    ["cat", "dl://d/3/name-0003"]
                    if place == "the chunks"
                    else ["ls", "-r", "dl://d"]
                )
            )
        )
    with measured.felt():
        checked = index.dlcmd("recover", "d", "--check")
    assert checked.code == ExitCode.FOUND, checked
    assert server.type(key) == b"string"
    with measured.felt():
        recovered = index.dlcmd("recover", "d")
    assert recovered.code == 0, recovered
    index.check_whole()
    measured.note(f"{place}: refused, replaced")


@pytest.mark.timeout(240 + 10 * ROUNDS)
@fault_case(
    "keys of the index in Redis are damaged at random: deleted, of another type, fields lost or "
    "changed",
    promise="every command answers right, or is refused and names `dlcmd recover`, which puts it "
    "right",
    bound_s=30,
    why="records have checksums, totals count, types are told by Redis",
)
@pytest.mark.long
def test_damaged_at_random(index: IndexedDataset, server: redis.Redis, measured: Measured) -> None:
    rng = random.Random(20)
    refused = asked = 0
    for number in range(ROUNDS):
        how = damage_at_random(server, rng)
        try:
            for command in (
                ["stat", "dl://d/4/name-0004"],
                ["cat", "dl://d/5/name-0005"],
                ["du", "dl://d"],
                ["fsck", "d"],
            ):
                with measured.felt():
                    ended = index.dlcmd(*command)
                if command[0] == "fsck":
                    assert ended.code in (ExitCode.OK, ExitCode.FOUND, ExitCode.INTEGRITY), ended
                elif ended.code:
                    check_refused(ended)
                refused, asked = refused + (ended.code != 0), asked + 1
            with measured.felt():
                refused += not index.check_listing(index.dlcmd("ls", "-r", "dl://d"))
            with measured.felt():
                recovered = index.dlcmd("recover", "d")
            assert recovered.code == 0, recovered
            index.check_whole()
        except BaseException as error:
            error.add_note(f"round {number}: {how}")
            raise
    measured.note(f"{ROUNDS} times: {refused} of {asked + ROUNDS} commands refused, all recovered")


def damage_at_random(server: redis.Redis, rng: random.Random) -> str:
    key = rng.choice(sorted(server.keys("*")))
    fields = sorted(server.hkeys(key))
    match rng.choice(["deleted", "string", "list", "fields", "values"]):
        case "deleted":
            server.delete(key)
        case "string":
            server.set(key, rng.randbytes(100))
        case "list":
            server.delete(key)
            server.rpush(key, *fields)
        case "fields":
            server.hdel(key, *rng.sample(fields, rng.randrange(1, len(fields) + 1)))
        case "values":
            for field in rng.sample(fields, rng.randrange(1, len(fields) + 1)):
                value = bytearray(server.hget(key, field))
                value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
                server.hset(key, field, bytes(value))
    return f"{key!r} of {len(fields)} fields"
