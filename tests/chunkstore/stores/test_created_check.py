"""How a store is asked for many chunks at a time, before they are committed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from chunkstore.errors import Unavailable, Untrusted
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.cloud_location import CloudLocation
from chunkstore.stores.forked_store import ForkedStore
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore, check_created
from chunkstore.stores.resilient import ResilientStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy
from tests.faults.misbehaving_s3 import half, is_listing, lacking
from tests.services.faulty_http import Asked, Fault, FaultyProxy, Reply

SIZE = 100_000
KEYS = [f"datasets/d/chunks/k{number:02}" for number in range(20)]
SIZES = dict.fromkeys(KEYS, SIZE)
FEW = dict(list(SIZES.items())[:3])
Server = Callable[[Asked], Reply]


def create_all(store: ObjectStore, keys: Sequence[str] = KEYS) -> None:
    for key in keys:
        store.create(key, [bytes(SIZE)])


@pytest.fixture
def store(proxied_s3_url: str) -> CloudStore:
    return CloudStore(proxied_s3_url)


def methods(proxy: FaultyProxy) -> list[str]:
    """Return the requests since the fault was set, in order."""
    return ["LIST" if is_listing(asked) else asked.method for asked in proxy.asked]


def test_a_chunk_costs_one_request_and_the_check_of_many_another(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    create_all(store)
    assert methods(s3_proxy) == ["PUT"] * 20
    s3_proxy.fails(None)
    store.check_created(SIZES)
    assert methods(s3_proxy) == ["LIST"]


def test_a_few_chunks_are_asked_for_one_by_one(store: CloudStore, s3_proxy: FaultyProxy) -> None:
    create_all(store)
    s3_proxy.fails(None)
    store.check_created(FEW)
    assert methods(s3_proxy) == ["HEAD"] * 3


def test_small_chunks_and_other_objects_are_checked_at_once(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    store.create(KEYS[0], [b"small"])
    store.create("datasets/d/snapshots/s", [bytes(SIZE)])
    store.check_created({KEYS[0]: 5})
    assert methods(s3_proxy) == ["PUT", "GET", "PUT", "HEAD"]


def test_a_listing_begins_at_the_chunks_and_ends_with_them(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    create_all(store)
    s3_proxy.fails(None)
    store.check_created(dict(list(SIZES.items())[5:15]))
    [listing] = s3_proxy.asked
    assert f"start-after=some%2Fprefix%2F{KEYS[5][:-1].replace('/', '%2F')}" in listing.path


def test_what_was_listed_behind_the_chunks_of_a_commit_is_known(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    """The next commit asks only for those that came later."""
    sizes = list(SIZES.items())
    create_all(store, KEYS[:15])
    s3_proxy.fails(None)
    store.check_created(dict(sizes[:5]))
    store.check_created(dict(sizes[5:10]))
    assert methods(s3_proxy) == ["LIST"]
    s3_proxy.fails(cut)
    create_all(store, KEYS[15:])
    with pytest.raises(Untrusted, match=KEYS[-1]):
        store.check_created(dict(sizes[10:]))
    assert methods(s3_proxy) == ["PUT"] * 5 + ["LIST", "HEAD"]


def lost(count: int) -> Fault:
    """Chunks from that one on are acknowledged and not stored."""
    seen = 0

    def fault(asked: Asked, server: Server) -> Reply:
        nonlocal seen
        if asked.method != "PUT":
            return server(asked)
        seen += 1
        return server(asked) if seen < count else Reply(200, (("ETag", '"x"'),))

    return fault


def cut(asked: Asked, server: Server) -> Reply:
    """The last chunk is stored by half."""
    if asked.method == "PUT" and asked.path.endswith(KEYS[-1]):
        asked = replace(asked, body=asked.body[: SIZE // 2])
    return server(asked)


@pytest.mark.parametrize("sizes", [SIZES, FEW], ids=["many", "few"])
@pytest.mark.parametrize("first", [1, 3])
def test_chunks_that_are_not_there(
    first: int, sizes: dict[str, int], store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    s3_proxy.fails(lost(first))
    create_all(store)
    with pytest.raises(Untrusted, match=rf"{KEYS[first - 1]} \(100,000 bytes\) .* no such object"):
        store.check_created(sizes)


def test_a_chunk_that_is_cut(store: CloudStore, s3_proxy: FaultyProxy) -> None:
    s3_proxy.fails(cut)
    create_all(store)
    with pytest.raises(Untrusted, match=rf"{KEYS[-1]} .* has 50,000 bytes of it"):
        store.check_created(SIZES)


@pytest.mark.parametrize(
    ("fault", "heads"),
    [(half("/chunks/"), 10), (lacking(lambda key: True), 20)],
    ids=["half", "empty"],
)
def test_chunks_that_a_listing_lacks_are_asked_for(
    fault: Fault, heads: int, store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    """A store may list the newest objects later."""
    create_all(store)
    s3_proxy.fails(fault)
    store.check_created(SIZES)
    assert methods(s3_proxy) == ["LIST"] + ["HEAD"] * heads


def test_a_server_that_begins_its_listings_elsewhere(
    store: CloudStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing is given up, and the chunks are asked for."""

    def fault(asked: Asked, server: Server) -> Reply:
        return server(replace(asked, path=asked.path.replace("start-after", "x-unknown")))

    monkeypatch.setattr("chunkstore.stores.cloud.PAGE_ENTRIES", 10)
    create_all(store, [f"datasets/d/chunks/a{number:03}" for number in range(60)])
    last = KEYS[-4:]
    create_all(store, last)
    s3_proxy.fails(fault)
    store.check_created(dict.fromkeys(last, SIZE))
    assert methods(s3_proxy) == ["LIST"] + ["HEAD"] * 4


def test_stores_that_cannot_begin_a_listing_at_a_key(
    store: CloudStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = {"s3://b", "gs://b"}
    for address in (*can, "s3://b--x-s3", "az://b"):
        assert CloudLocation.parse(address).lists_from_a_key == (address in can)
    monkeypatch.setattr(CloudLocation, "lists_from_a_key", False)
    create_all(store, KEYS[:3])
    assert methods(s3_proxy) == ["PUT", "HEAD"] * 3
    store.check_created(SIZES)
    assert methods(s3_proxy) == ["PUT", "HEAD"] * 3


def test_the_check_is_repeated_while_the_store_is_out(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    create_all(store)
    failures = iter(range(2))

    def fault(asked: Asked, server: Server) -> Reply:
        return Reply(503) if next(failures, None) is not None else server(asked)

    s3_proxy.fails(fault)
    patient = RetryingStore(store, RetryPolicy(tries=4), sleep=lambda seconds: None)
    check_created(patient, SIZES)
    assert patient.statistics().retries == 2
    s3_proxy.fails(lambda asked, server: Reply(503))
    with pytest.raises(Unavailable):
        check_created(patient, SIZES)


def test_all_wrappers_and_a_forked_child_pass_the_check_on(
    proxied_s3_url: str, s3_proxy: FaultyProxy
) -> None:
    store = ResilientStore(ForkedStore(CloudStore(proxied_s3_url)))
    s3_proxy.fails(lost(20))
    create_all(store)
    check_created(store, FEW)
    child = os.fork()
    if child == 0:
        try:
            check_created(store, SIZES)
        except Untrusted:
            os._exit(3)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_local_store_has_checked_all() -> None:
    check_created(ResilientStore(ForkedStore(MemoryObjectStore())), SIZES)
