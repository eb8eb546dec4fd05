"""Requests of chunks that are read by parts: where they begin and end."""

from __future__ import annotations

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.ongoing_requests import OngoingRequest, OngoingRequests
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_counts import PolicyCounts
from chunkstore.ssd.reader_tags import ChunkRead, dataset_tags

MIB = 1 << 20
TAGS = dataset_tags(DatasetRef("pictures", b"i" * 16), "train")


def read(chunk: bytes = b"c", start: int = 0, length: int = MIB, size: int = 4 * MIB) -> ChunkRead:
    return ChunkRead(TAGS, b"i" * 16, chunk, start, length, size)


def request() -> OngoingRequest:
    return OngoingRequest(Bucket("pictures"), 7, PolicyCounts())


def begun(requests: OngoingRequests, of: ChunkRead) -> OngoingRequest:
    assert requests.goes_on(of) is None
    found = request()
    assert requests.begin(of, found)
    return found


def test_a_request_ends_when_as_many_bytes_were_read_as_the_chunk_has() -> None:
    requests = OngoingRequests()
    first = begun(requests, read())
    assert requests.goes_on(read(start=MIB)) is first
    assert requests.of(read()) is first
    assert requests.goes_on(read(start=0)) is first, "bytes count, whichever they are"
    assert requests.goes_on(read(start=3 * MIB)) is first
    assert requests.of(read()) is None
    assert begun(requests, read()) is not first


def test_a_whole_chunk_ends_the_request_that_was_begun_by_a_part() -> None:
    requests = OngoingRequests()
    begun(requests, read())
    begun(requests, read(length=4 * MIB))
    assert requests.of(read()) is None


@pytest.mark.parametrize(
    ("start", "same"),
    [(1, True), (32 * MIB - 1, True), (32 * MIB, False), (36 * MIB, False)],
)
def test_a_block_beyond_32_mib_has_a_request_of_its_own(start: int, same: bool) -> None:
    requests = OngoingRequests()
    first = begun(requests, read(size=32 * MIB))
    assert (requests.of(read(start=start)) is first) == same
    assert requests.of(read(b"another")) is None


def test_threads_that_begin_at_the_same_time_share_a_request() -> None:
    requests = OngoingRequests()
    assert requests.goes_on(read()) is None
    first = begun(requests, read())
    assert not requests.begin(read(), request()), "the other thread was first"
    assert requests.of(read()) is first
    assert first.left == 2 * MIB


def test_the_first_of_too_many_requests_is_forgotten() -> None:
    requests = OngoingRequests(limit=2)
    for chunk in (b"1", b"2", b"3"):
        begun(requests, read(chunk))
    assert [requests.of(read(chunk)) is None for chunk in (b"1", b"2", b"3")] == [
        True,
        False,
        False,
    ]
