"""Listings that no store should give, and the orders that stores do give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from chunkstore.errors import Unavailable, Untrusted
from chunkstore.stores import cloud_listing
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.cloud_listing import ListingCheck, awaited
from tests.faults import misbehaving_s3
from tests.services.faulty_http import Fault, FaultyProxy


def accepts(keys: Sequence[str], *, ordered: bool = True, size_bytes: int = 1) -> bool:
    check = ListingCheck("a listing", ordered=ordered)
    try:
        for key in keys:
            check.check(key, size_bytes)
    except Untrusted:
        return False
    return True


def test_keys_ascend_by_bytes_or_folder_by_folder() -> None:
    assert accepts(["a-b/x", "a/x", "a/y", "b"])
    assert accepts(["a/x", "a/y", "a-b/x", "b"])
    assert not accepts(["a-b/x", "a/x", "a/y", "a-c/x"])  # a bit of both
    assert not accepts(["b", "a"])
    assert not accepts(["a", "b", "b"])
    assert not accepts(["a", "b", "a", "b"])


def test_a_listing_without_order_has_each_key_once() -> None:
    assert accepts(["b", "a", "c"], ordered=False)
    assert not accepts(["b", "a", "b"], ordered=False)


def test_the_markers_of_folders_keep_their_place() -> None:
    """`a/` comes after `a-b`, and obstore calls it `a`."""
    assert accepts(["", "a-b", "a"], size_bytes=0)
    assert not accepts(["a", "a", "a"], size_bytes=0)


@pytest.fixture
def store(proxied_s3_url: str) -> CloudStore:
    store = CloudStore(proxied_s3_url)
    for number in range(5):
        store.create(f"datasets/d/chunks/{number}", [b"data"])
    return store


@pytest.mark.parametrize(
    "fault",
    [misbehaving_s3.looping(), misbehaving_s3.doubled, misbehaving_s3.unsorted],
    ids=["looping", "doubled", "unsorted"],
)
def test_such_a_listing_is_refused_with_the_name_of_the_store(
    store: CloudStore, s3_proxy: FaultyProxy, fault: Fault
) -> None:
    s3_proxy.fault = fault
    with pytest.raises(Untrusted, match=f"s3://bucket-.* at {s3_proxy.endpoint} is wrong: key"):
        list(store.list("datasets/"))


def test_a_listing_without_keys_that_goes_on_for_ever_is_given_up(
    store: CloudStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_proxy.fault = misbehaving_s3.empty_pages
    with monkeypatch.context() as patched:
        patched.setattr(cloud_listing, "PAGE_TIMEOUT_S", 0.3)
        for ask in (lambda: list(store.list("datasets/")), lambda: store.folders("datasets/")):
            with pytest.raises(Unavailable, match=r"no new key in 0\.3 s"):
                ask()
    asked = len(s3_proxy.asked)
    s3_proxy.fault = None
    assert len(list(store.list("datasets/"))) == 5
    assert len(s3_proxy.asked) - asked <= 3  # the endless listings ask no more


def test_a_thread_with_an_event_loop_may_list_too(store: CloudStore) -> None:
    async def act() -> int:
        return len(list(store.list("datasets/")))

    assert asyncio.run(act()) == 5


def test_errors_come_out_of_the_thread_beside_an_event_loop() -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def act() -> None:
        with pytest.raises(KeyError):
            awaited(fails)

    asyncio.run(act())
