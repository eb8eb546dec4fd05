from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from chunkstore.errors import AlreadyExists, Denied, NotFound, Unavailable
from chunkstore.stores import cloud, forked_store
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.cloud_location import CloudLocation
from chunkstore.stores.forked_store import ForkedStore
from tests.contracts.object_store_contract import KEY, OpenStore, SharedObjectStoreContract, keys
from tests.eventually import PATIENCE_S
from tests.services.s3_server import SECRET_KEY, S3Server


class TestS3(SharedObjectStoreContract):
    @pytest.fixture
    def open_store(self, s3_url: str) -> OpenStore:
        return lambda: ForkedStore(CloudStore(s3_url))


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small as S3 allows."""
    monkeypatch.setattr(cloud, "SINGLE_PUT_BYTES", 1 << 20)
    monkeypatch.setattr(cloud, "_PART_BYTES", 5 << 20)


@pytest.mark.usefixtures("_small_parts")
def test_a_large_object_goes_by_parts(s3_url: str) -> None:
    store = CloudStore(s3_url)
    block = random.Random(1).randbytes(1 << 20)
    store.create(KEY, (block for _ in range(13)))
    assert store.stat(KEY).size_bytes == 13 * len(block)
    assert store.get(KEY) == block * 13
    with pytest.raises(AlreadyExists):
        store.create(KEY, (b"x" * len(block) for _ in range(13)))
    assert store.get_range(KEY, 5 << 20, 1 << 20) == block


@pytest.mark.usefixtures("_small_parts")
def test_a_large_object_that_fails_half_way_is_not_there(s3_url: str) -> None:
    store = CloudStore(s3_url)
    error = ZeroDivisionError("the source")

    def parts() -> Iterator[bytes]:
        for _ in range(17):
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


def test_the_address_goes_before_the_environment() -> None:
    environment = {
        "HOME": "/nowhere",
        "AWS_ENDPOINT_URL": "http://all",
        "AWS_ENDPOINT_URL_S3": "https://s3/",
        "AWS_DEFAULT_REGION": "there",
    }
    config = CloudLocation.parse("s3://b").config(environment)
    assert (config["endpoint"], config["region"]) == ("https://s3", "there")
    address = "s3://b?region=r2&endpoint=http://e:1"
    config = CloudLocation.parse(address).config({**environment, "AWS_REGION": "x"})
    assert (config["endpoint"], config["region"]) == ("http://e:1", "r2")


def test_azure_is_configured_as_by_its_tools() -> None:
    account = {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "a2V5"}
    assert CloudLocation.parse("az://c").config(account) == {
        "account_name": "a",
        "account_key": "a2V5",
    }
    connection = (
        "DefaultEndpointsProtocol=http;AccountName=b;AccountKey=a2U=;BlobEndpoint=http://h:1/b/"
    )
    assert CloudLocation.parse("az://c").config(
        {"AZURE_STORAGE_CONNECTION_STRING": connection}
    ) == {"account_name": "b", "account_key": "a2U=", "endpoint": "http://h:1/b"}


@pytest.mark.parametrize(
    ("url", "environment", "says"),
    [
        ("s3://b?endpoint=localhost:9000", {}, "http:// or https://"),
        ("s3://b", {"AWS_ENDPOINT_URL": "minio"}, "http:// or https://"),
        ("s3://b?endpoint=http://a host", {}, "http:// or https://"),
        ("s3://b?endpoint=http://h:port", {}, "Port"),
        ("s3://a bucket", {}, "letters, digits"),
        ("s3://b?endpoint=http://AK:SK@h", {}, "must not contain a user or a password"),
        ("s3://b", {"AWS_CA_BUNDLE": "/nowhere"}, "AWS_CA_BUNDLE"),
        ("az://c", {}, "Account must be specified"),
        ("az://c?account=a", {"AZURE_STORAGE_KEY": "no base64!"}, "Invalid Access Key"),
    ],
)
def test_what_makes_no_sense_is_told(url: str, environment: dict[str, str], says: str) -> None:
    """Before anything is asked: with such an endpoint obstore would end in a panic of its own."""
    with pytest.raises(ValueError, match=says) as caught:
        CloudLocation.parse(url).open({"HOME": "/nowhere", **environment})
    assert "\n" not in str(caught.value)
    assert "SK" not in str(caught.value)


@pytest.mark.parametrize("called_by", ["the store", "the user's own code"])
def test_a_forked_child_reads_and_writes(
    called_by: str, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent's library would let it wait for ever."""
    monkeypatch.setattr(forked_store, "_used_in", None)
    store = ForkedStore(CloudStore(s3_url))
    caller = store if called_by == "the store" else CloudStore(s3_url)
    caller.create(KEY, [b"from the parent"])
    context = multiprocessing.get_context("fork")
    outcome = context.SimpleQueue()

    def child() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a child that hangs runs no handler
        signal.alarm(int(PATIENCE_S))
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
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    found, listed = outcome.get()
    assert found == [b"from the parent"] * 5 + [b"none"]
    assert sorted(listed) == ["child", KEY]
    assert store.get("child") == b"ab"
