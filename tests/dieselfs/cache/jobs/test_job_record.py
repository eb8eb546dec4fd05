"""Records and orders as bytes: golden, and whatever else may lie there."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dieselfs.cache.jobs import published_order
from dieselfs.cache.jobs.job_record import MAX_RECORD_BYTES, decoded, encoded
from dieselfs.cache.jobs.published_order import PublishedOrder, decoded_order
from tests.dieselfs.cache.jobs.made_jobs import ORDER, READER, made_record

GOLDEN = (
    b'{"v":1,"reader":"00112233445566aa","job":"resnet","host":"node1","pid":7,"dataset":"made",'
    b'"dataset_id":"00000000000000000000000000000000","epoch":2,'
    b'"order":"4011af2a58c8a475d193479386d68506","length":3,"position":1,"keys_per_s":0.5,'
    b'"finished":1,"repeats":true,"age_s":3.0}'
)
"""Changed? Then it is another version of the record."""
GOLDEN_ORDER = b'dslordr1\x13\0\0\0\x03\0\0\0["made:a","made:b"]\x07\0\0\0\x01\0\0\0\0\0\0\x80'
RECORD = made_record(epoch=2, position=1, keys_per_s=0.5, finished=1, age_s=3.0)


def test_golden_bytes() -> None:
    assert encoded(RECORD) == GOLDEN
    assert decoded(GOLDEN) == RECORD
    assert ORDER.content == GOLDEN_ORDER
    found = decoded_order(GOLDEN_ORDER, ORDER.id)
    assert found.buckets == ("made:a", "made:b")
    assert found.keys.tolist() == [7, 1, 1 << 31]


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": None},
        {"reader": "x"},
        {"job": "a\nb"},
        {"job": "a" * 129},
        {"dataset": ""},
        {"dataset_id": "0"},
        {"order": "../../../etc/passwd"},
        {"length": published_order.MAX_KEYS + 1},
        {"position": -1},
        {"position": 1e400},
        {"keys_per_s": -1.0},
        {"keys_per_s": 1e300},
        {"pid": "7"},
        {"host": "\u2028"},
    ],
)
def test_records_out_of_bounds_are_refused(change: dict[str, object]) -> None:
    fields = json.loads(GOLDEN) | change
    with pytest.raises(ValueError, match=r"."):
        decoded(json.dumps(fields).encode())


def test_what_is_no_record_is_refused() -> None:
    for end in range(len(GOLDEN)):
        with pytest.raises(ValueError, match=r"."):
            decoded(GOLDEN[:end])
    for content in (b"[]", b"null", b"\xff", b"[" * 100_000, b" " * MAX_RECORD_BYTES + GOLDEN):
        with pytest.raises(ValueError, match=r"."):
            decoded(content)


def test_fields_of_a_later_release_are_left_out() -> None:
    fields = {**json.loads(GOLDEN), "io_bytes_per_s": 1}
    assert decoded(json.dumps(fields).encode()) == RECORD


def test_orders_that_are_not_their_ids_are_refused() -> None:
    for content in (b"", GOLDEN_ORDER[:-4], GOLDEN_ORDER[:-1] + b"\0", GOLDEN_ORDER + b"\0"):
        with pytest.raises(ValueError, match="not those of its id"):
            decoded_order(content, ORDER.id)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        GOLDEN_ORDER.replace(b"dslordr1", b"dslordr2"),
        GOLDEN_ORDER[:-4],
        GOLDEN_ORDER.replace(b"\x13\0\0\0", b"\xff\xff\xff\xff"),
        GOLDEN_ORDER.replace(b"made:a", b"ma\\uXX"),
        GOLDEN_ORDER.replace(b'"made:a"', b"12345678"),
    ],
)
def test_orders_of_another_form_are_refused(content: bytes) -> None:
    import xxhash

    with pytest.raises(ValueError, match=r"."):
        decoded_order(content, xxhash.xxh3_128_hexdigest(content))


def test_a_long_order_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_order, "MAX_KEYS", 2)
    assert PublishedOrder.of([], ORDER.keys).keys.tolist() == [7, 1]


def test_a_specification_for_policies() -> None:
    found = RECORD.specification(ORDER)
    assert (found.job, found.dataset, found.reader) == ("resnet", "made", READER)
    assert found.buckets == ORDER.buckets
    assert found.finished == frozenset()  # the next epoch reads it again
    assert found.is_reading
    assert found.plan is not None
    assert (found.plan.id, found.plan.position, found.plan.keys_per_s) == (ORDER.id, 1, 0.5)
    once = made_record(finished=1, repeats=False, position=9).specification(ORDER)
    assert once.finished == {"made:a"}
    assert once.plan is not None
    assert once.plan.position == 3
    unplanned = PublishedOrder.of(["made"], np.empty(0, np.uint32))
    assert made_record(order=unplanned).specification(unplanned).plan is None


def test_a_reader_without_a_job_is_a_job_of_its_own() -> None:
    assert made_record(job="").specification(ORDER).job == READER
