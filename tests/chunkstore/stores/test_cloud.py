from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.errors import AlreadyExists, Denied, NotFound, Unavailable
from chunkstore.stores.cloud import SINGLE_PUT_BYTES, CloudStore
from chunkstore.stores.cloud_location import CloudLocation
from chunkstore.stores.forked_store import ForkedStore
from tests.contracts.object_store_contract import KEY, OpenStore, SharedObjectStoreContract, keys
from tests.services.s3_server import SECRET_KEY, S3Server


class TestS3(SharedObjectStoreContract):
    @pytest.fixture
    def open_store(self, s3_url: str) -> OpenStore:
        return lambda: ForkedStore(CloudStore(s3_url))


def test_a_large_object_goes_by_parts(s3_url: str) -> None:
    store = CloudStore(s3_url)
    block = random.Random(1).randbytes(1 << 20)
    count = SINGLE_PUT_BYTES // len(block) + 9
    store.create(KEY, (block for _ in range(count)))
    assert store.stat(KEY).size_bytes == count * len(block)
    assert store.get(KEY) == block * count
    with pytest.raises(AlreadyExists):
        store.create(KEY, (b"x" * len(block) for _ in range(count)))
    assert store.get_range(KEY, 5 << 20, 1 << 20) == block


def test_a_large_object_that_fails_half_way_is_not_there(s3_url: str) -> None:
    store = CloudStore(s3_url)
    error = ZeroDivisionError("the source")

    def parts() -> Iterator[bytes]:
        for _ in range(SINGLE_PUT_BYTES // (1 << 20) + 40):
            yield bytes(1 << 20)
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        store.create(KEY, parts())
    assert caught.value is error
    assert keys(store) == []


def test_two_prefixes_of_one_bucket_do_not_meet(s3_url: str) -> None:
    one, other = CloudStore(s3_url), CloudStore(s3_url.replace("some/prefix", "some"))
    one.create("a", [b"1"])
    assert keys(other) == ["prefix/a"]
    assert keys(one) == ["a"]


def test_errors_say_whose_they_are(s3_url: str, own_s3_server: S3Server) -> None:
    absent = CloudStore(s3_url.replace("bucket-", "no-such-bucket-"))
    for call in (
        lambda: absent.create(KEY, [b"x"]),
        lambda: absent.get(KEY),
        lambda: absent.delete(KEY),
    ):
        with pytest.raises(Denied, match="bucket does not exist"):
            call()
    gone = CloudStore(own_s3_server.make_bucket("bucket"))
    gone.create(KEY, [b"x"])
    own_s3_server.process.kill()
    own_s3_server.process.wait()
    with pytest.raises(Unavailable):
        gone.get(KEY)
    with pytest.raises(Unavailable):
        gone.create("other", [b"x"])


def test_an_address_holds_no_credentials_and_shows_none(s3_url: str) -> None:
    store = CloudStore(s3_url)
    assert SECRET_KEY.encode() not in pickle.dumps(store)
    assert SECRET_KEY not in repr(store._store)
    for wrong in (
        "s3://",
        "s3://AK:SK@bucket",
        "s3://bucket?secret_access_key=x",
        "s3://bucket/a//b",
        "s3://bucket/../b",
    ):
        with pytest.raises(ValueError):
            CloudLocation.parse(wrong)


def test_a_profile_gives_keys_region_and_endpoint(tmp_path: Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[team]\naws_access_key_id = A\naws_secret_access_key = B%1\n"
    )
    (folder / "config").write_text(
        "[profile team]\nregion = eu-west-9\nendpoint_url = http://h:1\n[profile role]\nrole_arn = x\n"
    )
    environment = {"HOME": str(tmp_path), "AWS_PROFILE": "team"}
    assert CloudLocation.parse("s3://b").s3_config(environment) == {
        "access_key_id": "A",
        "secret_access_key": "B%1",
        "region": "eu-west-9",
        "endpoint": "http://h:1",
    }
    chosen = CloudLocation.parse("s3://b?region=r2&endpoint=https://e").s3_config(environment)
    assert (chosen["region"], chosen["endpoint"]) == ("r2", "https://e")
    with pytest.raises(ValueError, match="no such profile"):
        CloudLocation.parse("s3://b").open({**environment, "AWS_PROFILE": "other"})
    with pytest.raises(ValueError, match="export-credentials"):
        CloudLocation.parse("s3://b").open({**environment, "AWS_PROFILE": "role"})


def test_a_forked_child_reads_and_writes(s3_url: str) -> None:
    """Its parent's library would let it wait for ever."""
    store = ForkedStore(CloudStore(s3_url))
    store.create(KEY, [b"from the parent"])
    context = multiprocessing.get_context("fork")
    outcome = context.SimpleQueue()

    def child() -> None:
        signal.alarm(60)
        found = [store.get(KEY)]
        threads = [threading.Thread(target=lambda: found.append(store.get(KEY))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.create("child", [b"a", b"b"])
        try:
            store.get("none")
        except NotFound as error:
            found.append(str(error).encode())
        outcome.put((found, [info.key for info in store.list("")]))
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    found, listed = outcome.get()
    assert found == [b"from the parent"] * 5 + [b"none"]
    assert sorted(listed) == ["child", KEY]
    assert store.get("child") == b"ab"
