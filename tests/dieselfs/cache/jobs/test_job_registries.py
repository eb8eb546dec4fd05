"""The contract of the job registry, and what each kind has of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from dieselfs.cache.jobs import jobs_folder as jobs_folder_module
from dieselfs.cache.jobs.job_record import encoded
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.jobs_folder import JobsFolder, jobs_folder
from dieselfs.cache.jobs.published_order import PublishedOrder
from dieselfs.cache.jobs.redis_jobs import NAME, RedisJobs
from dieselfs.cache.jobs.registries import job_registry
from dieselfs.errors import RegistryUnavailable
from tests.dieselfs.cache.jobs.made_jobs import ORDER, READER, MemoryJobs, made_record
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import start_forked
from tests.services.redis_processes import refusing_port

OTHER = "f" * 16


@pytest.fixture(params=["memory", "folder", "redis", "redis+cluster"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobRegistry]:
    kinds = {"redis": "redis_url", "redis+cluster": "redis_cluster_url"}
    found: JobRegistry = MemoryJobs()
    if request.param == "folder":
        found = JobsFolder(tmp_path / "jobs")
    elif request.param in kinds:
        found = RedisJobs(request.getfixturevalue(kinds[request.param]))
    yield found
    found.close()


def test_records_are_seen_until_they_are_withdrawn(registry: JobRegistry) -> None:
    assert registry.records() == []
    registry.publish(made_record(), ORDER)
    assert registry.records() == [made_record()]
    later = made_record(position=2, age_s=2.0)
    registry.publish(later, ORDER)
    registry.publish(made_record(OTHER), ORDER)
    assert sorted(registry.records(), key=lambda record: record.reader) == [
        later,
        made_record(OTHER),
    ]
    registry.withdraw(READER)
    registry.withdraw(READER)
    assert registry.records() == [made_record(OTHER)]
    found = registry.order(ORDER.id)
    assert found is not None
    assert found.content == ORDER.content
    assert registry.order("0" * 32) is None


def test_a_record_of_the_greatest_size(registry: JobRegistry) -> None:
    record = made_record(job="ü" * 64, host="h" * 255, dataset="d" * 255, epoch=1 << 62)
    registry.publish(record, ORDER)
    assert registry.records() == [record]


def test_what_is_no_record_is_skipped_and_said_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = RedisJobs(redis_url)
    registry.publish(made_record(), ORDER)
    with Redis.from_url(redis_url) as client:
        now_s = int(client.time()[0])
        future = encoded(made_record(OTHER)).replace(b'"v":1', b'"v":2')
        for entry in (b"", b"\xff\0", future, b"x" * 5000):
            client.zadd(NAME, {entry: (now_s + 60) * 1000})
        client.set(f"{NAME}:{'0' * 32}", b"no order")
    assert registry.records() == [made_record()]
    assert registry.records() == [made_record()]
    assert caplog.text.count("they are skipped") == 1
    assert registry.order("0" * 32) is None
    registry.close()


def test_a_server_that_has_lost_all_gets_it_again(redis_url: str) -> None:
    registry = RedisJobs(redis_url)
    registry.publish(made_record(), ORDER)
    with Redis.from_url(redis_url) as client:
        client.flushall()
    registry.publish(made_record(position=1), ORDER)
    assert registry.records() == [made_record(position=1)]
    assert registry.order(ORDER.id) is not None
    registry.close()


def test_the_lease_of_an_order_is_renewed_now_and_then(redis_url: str) -> None:
    now = 0.0
    registry = RedisJobs(redis_url, clock=lambda: now)
    registry.publish(made_record(), ORDER)
    with Redis.from_url(redis_url) as client:
        client.delete(f"{NAME}:{ORDER.id}")
    registry.publish(made_record(position=1), ORDER)
    assert registry.order(ORDER.id) is None
    now = 30.0
    registry.publish(made_record(position=2), ORDER)
    assert registry.order(ORDER.id) is not None
    registry.close()


def test_of_a_reader_the_latest_record_counts(redis_url: str) -> None:
    """The answer to a renewal was lost, so the reader has two entries for a while."""
    former, registry = RedisJobs(redis_url), RedisJobs(redis_url)
    former.publish(made_record(position=3, age_s=4.0), ORDER)
    registry.publish(made_record(position=1, age_s=2.0), ORDER)
    assert registry.records() == [made_record(position=3, age_s=4.0)]
    for each in (former, registry):
        each.close()


def test_a_redis_that_is_away() -> None:
    with refusing_port() as port:
        registry = RedisJobs(f"redis://127.0.0.1:{port}/0")
        for call in (
            lambda: registry.publish(made_record(), ORDER),
            registry.records,
            lambda: registry.order(ORDER.id),
        ):
            with pytest.raises(RegistryUnavailable):
                call()
        registry.withdraw(READER)
        registry.close()


PUBLISHING = """
import sys
from dieselfs.cache.jobs.jobs_folder import JobsFolder
from dieselfs.cache.jobs.redis_jobs import RedisJobs
from metadata.kv import redis_slot
from tests.dieselfs.cache.jobs.made_jobs import ORDER, made_record
kind, place = sys.argv[1:]
redis_slot.TIMEOUT_S = 60.0  # a busy machine stalls
registry = RedisJobs(place, lease_s=0.5) if kind == "redis" else JobsFolder(__import__("pathlib").Path(place))
registry.publish(made_record(), ORDER)
print("published", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["redis", "folder"])
def test_the_record_of_a_process_that_is_killed_goes(
    kind: str, redis_url: str, tmp_path: Path
) -> None:
    place = redis_url if kind == "redis" else os.fspath(tmp_path / "jobs")
    registry: JobRegistry = JobsFolder(Path(place))
    if kind == "redis":  # nobody renews its lease, however long the other process takes
        registry = RedisJobs(place, lease_s=2 * PATIENCE_S)
    registry.publish(made_record(OTHER), ORDER)
    command = [sys.executable, "-c", PUBLISHING, kind, place]
    with start_forked(command, env=os.environ) as other:
        assert other.stdout.readline() == b"published\n"
        if kind == "folder":  # its lease does not end by a clock
            assert {record.reader for record in registry.records()} == {READER, OTHER}
        other.send_signal(signal.SIGKILL)
    eventually(lambda: registry.records() == [made_record(OTHER)], "the lease ends")
    registry.withdraw(OTHER)
    registry.close()


# The folder


def test_the_folder_is_of_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    registry = JobsFolder(folder)
    assert registry.records() == []
    assert not folder.exists()
    registry.publish(made_record(), ORDER)
    assert folder.stat().st_mode & 0o777 == 0o700
    registry.withdraw(READER)
    assert os.listdir(folder) == []
    folder.chmod(0o777)
    with pytest.raises(RegistryUnavailable, match="alone"):
        registry.publish(made_record(), ORDER)


def test_a_damaged_file_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = JobsFolder(tmp_path)
    registry.publish(made_record(), ORDER)
    registry.publish(made_record(OTHER), ORDER)
    with open(tmp_path / f"{READER}.job", "r+b") as file:
        file.write(b"\xff" * 40)
    os.symlink("/etc/passwd", tmp_path / f"{'1' * 16}.job")
    for name in ("2" * 16 + ".job", "2" * 32 + ".order"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    assert registry.records() == [made_record(OTHER)]
    assert caplog.text.count("they are skipped") == 1
    other = PublishedOrder.of([], np.arange(4, dtype=np.uint32))
    registry.publish(made_record(OTHER, order=other), other)
    (tmp_path / f"{ORDER.id}.order").write_bytes(b"damaged")
    assert registry.order(ORDER.id) is None
    registry.close()


def test_orders_that_nobody_names_are_deleted(tmp_path: Path) -> None:
    registry = JobsFolder(tmp_path)
    registry.publish(made_record(), ORDER)
    other = PublishedOrder.of([], np.arange(4, dtype=np.uint32))
    path = tmp_path / f"{ORDER.id}.order"
    registry.publish(made_record(order=other), other)
    assert path.exists()  # it may be named in a moment
    os.utime(path, (0, 0))
    third = PublishedOrder.of([], np.arange(5, dtype=np.uint32))
    registry.publish(made_record(order=third), third)
    assert not path.exists()
    registry.withdraw(READER)
    assert os.listdir(tmp_path) == []


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_folder_module, "MAX_RECORDS", 1)
    registry = JobsFolder(tmp_path)
    registry.publish(made_record(), ORDER)
    with pytest.raises(RegistryUnavailable, match="full"):
        registry.publish(made_record(OTHER), ORDER)
    registry.publish(made_record(position=1), ORDER)
    monkeypatch.setattr(jobs_folder_module, "MAX_ORDERS_BYTES", 1)
    other = PublishedOrder.of([], np.arange(4, dtype=np.uint32))
    with pytest.raises(RegistryUnavailable, match="no room"):
        registry.publish(made_record(order=other), other)
    registry.close()


def test_the_index_says_where_the_registry_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", os.fspath(tmp_path))
    found = job_registry("lmdb:///somewhere")
    assert isinstance(found, JobsFolder)
    assert found.folder == jobs_folder() == tmp_path / f"dieselfs-jobs-{os.geteuid()}"
    assert isinstance(job_registry("redis+cluster://h:1"), RedisJobs)
