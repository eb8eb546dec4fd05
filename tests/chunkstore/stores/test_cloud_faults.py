"""What reaches the caller when the server, or what lies between, misbehaves: the right bytes, or
the error that says what to do next."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from chunkstore.chunk_reader import ChunkReader
from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Corrupt,
    Denied,
    StoreFull,
    Unavailable,
)
from chunkstore.stores import cloud, cloud_location
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.retrying import RetryingStore
from tests.chunkstore.packed import DATASET, Packed
from tests.contracts.object_store_contract import KEY, keys
from tests.eventually import PATIENCE_S
from tests.faults.misbehaving_s3 import swapped
from tests.services.faulty_http import Asked, Fault, FaultyProxy, Reply
from tests.services.s3_server import SECRET_KEY, request_raw

DATA = bytes(range(256)) * 40
BLOCK = bytes(range(256)) * 4096
LARGE = [BLOCK] * 11
"""Of three parts, where these are as small as S3 allows: see `store`."""
PAGE = b"<html><body>It works</body></html>"
"""Of whatever answers at that port."""


@pytest.fixture
def store(proxied_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> CloudStore:
    monkeypatch.setattr(cloud, "SINGLE_PUT_BYTES", 1 << 20)
    monkeypatch.setattr(cloud, "_PART_BYTES", 5 << 20)
    store = CloudStore(proxied_s3_url)
    store.create(KEY, [DATA])
    return store


def refusal(status: int, code: str = "", message: str = "as they say") -> Fault:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return lambda asked, server: Reply(status, body=body.encode() if code else b"")


def changed(change: Callable[[Reply], Reply]) -> Fault:
    return lambda asked, server: change(server(asked))


def at(number: int, matches: Callable[[Asked], bool], fault: Fault) -> Fault:
    """Of those that match, the one of this number, from 0."""
    seen = itertools.count()
    return lambda asked, server: (
        fault(asked, server) if matches(asked) and next(seen) == number else server(asked)
    )


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get(KEY),
    "get_range": lambda store: store.get_range(KEY, 5, 10),
    "stat": lambda store: store.stat(KEY),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("another"),
    "create": lambda store: store.create("new", [b"x"]),
    "create large": lambda store: store.create("new", LARGE),
}


@pytest.mark.parametrize(
    ("status", "code", "error", "says"),
    [
        (403, "AccessDenied", Denied, "denies access with these credentials"),
        (403, "SignatureDoesNotMatch", Denied, "AWS_SECRET_ACCESS_KEY"),
        (403, "InvalidAccessKeyId", Denied, "rejects these credentials"),
        (403, "RequestTimeTooSkewed", Denied, "clock of this machine"),
        (400, "ExpiredToken", Denied, "have expired"),
        (400, "AuthorizationHeaderMalformed", Denied, "region="),
        (301, "PermanentRedirect", Denied, "region="),
        (404, "NoSuchBucket", Denied, "bucket does not exist"),
        (403, "QuotaExceeded", StoreFull, "QuotaExceeded"),
        (501, "NotImplemented", Denied, "does not support this request"),
        (503, "SlowDown", Unavailable, "SlowDown"),
        (500, "InternalError", Unavailable, "InternalError"),
        (400, "RequestTimeout", Unavailable, "RequestTimeout"),
    ],
)
def test_a_refusal_is_told_with_what_to_do(
    store: CloudStore,
    s3_proxy: FaultyProxy,
    status: int,
    code: str,
    error: type[ChunkStoreError],
    says: str,
) -> None:
    """Alike for each call: a listing with wrong credentials is not a store that is out, and a HEAD,
    whose answer has no reason, is followed by a GET."""
    s3_proxy.fault = refusal(status, code)
    has_reason = status not in (404, 500, 503)
    for name in ("get", "get_range", "list", "delete", "create") + ("stat",) * has_reason:
        with pytest.raises(error, match=re.escape(says)) as caught:
            CALLS[name](store)
        assert type(caught.value) is error, name
        assert SECRET_KEY not in str(caught.value)


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_without_a_body_is_told(
    store: CloudStore, s3_proxy: FaultyProxy, name: str
) -> None:
    s3_proxy.fault = refusal(403)
    with pytest.raises(Denied):
        CALLS[name](store)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_answered_is_unavailable(
    store: CloudStore, s3_proxy: FaultyProxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cloud_location._RETRIES_OF_PARTS, "max_retries", 1)
    s3_proxy.fault = changed(lambda reply: replace(reply, unanswered=True))
    with pytest.raises(Unavailable):
        CALLS[name](store)


@pytest.mark.parametrize("name", ["get", "get_range", "create", "list"])
def test_a_server_that_hangs_is_given_up(
    store: CloudStore,
    s3_proxy: FaultyProxy,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cloud_location, "REQUEST_TIMEOUT_S", 0.2)
    hasty = CloudStore(store.url)
    s3_proxy.fault = changed(lambda reply: replace(reply, body=b"", stalls=True, promised=10))
    with pytest.raises(Unavailable):
        CALLS[name](hasty)


@pytest.mark.parametrize(
    "fault",
    [
        changed(lambda reply: replace(reply, body=reply.body[:7], promised=len(reply.body))),
        changed(
            lambda reply: replace(reply, body=reply.body[:7], promised=len(reply.body), reset=True)
        ),
        changed(
            lambda reply: replace(
                reply,
                headers=tuple(
                    (name, "bytes 0-9/10240" if name.lower() == "content-range" else value)
                    for name, value in reply.headers
                ),
            )
        ),
        changed(lambda reply: replace(reply, body=reply.body + b"more")),
        changed(lambda reply: replace(reply, body=reply.body[:-1])),
    ],
    ids=["cut short", "reset", "another range", "longer", "shorter"],
)
def test_a_wrong_part_is_not_taken(store: CloudStore, s3_proxy: FaultyProxy, fault: Fault) -> None:
    s3_proxy.fault = fault
    with pytest.raises(Unavailable):
        store.get_range(KEY, 5, 10)
    s3_proxy.fault = at(0, lambda asked: True, fault)
    assert RetryingStore(store).get_range(KEY, 5, 10) == DATA[5:15]


@pytest.mark.parametrize(
    "fault",
    [
        changed(lambda reply: replace(reply, status=200)),
        lambda asked, server: Reply(200, body=PAGE),
    ],
    ids=["no range", "a page"],
)
def test_success_without_the_range_is_damage(
    store: CloudStore, s3_proxy: FaultyProxy, fault: Fault
) -> None:
    """As an outage it would be tried again for 150 s."""
    s3_proxy.fault = fault
    with pytest.raises(Corrupt, match="range"):
        RetryingStore(store).get_range(KEY, 5, 10)


def test_a_page_is_no_empty_listing(store: CloudStore, s3_proxy: FaultyProxy) -> None:
    """As when the port of a console was given for the store's: it has an answer to everything."""
    s3_proxy.fault = lambda asked, server: Reply(200, body=PAGE)
    with pytest.raises(Unavailable, match="not an object store"):
        list(store.list(""))


def test_a_listing_that_breaks_off_goes_on(store: CloudStore, s3_proxy: FaultyProxy) -> None:
    continued = [
        b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
        b"",
    ]

    def two_pages(asked: Asked, server: Callable[[Asked], Reply]) -> Reply:
        number = int("continuation-token" in asked.path)
        contents = b"".join(
            b"<Contents><Key>some/prefix/%d/%04d</Key><Size>1</Size><ETag>x</ETag>"
            b"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>" % (number, n)
            for n in range(1000)
        )
        return Reply(
            200, body=b"<ListBucketResult>%s%s</ListBucketResult>" % (continued[number], contents)
        )

    fails = at(0, lambda asked: "continuation-token" in asked.path, refusal(503, "SlowDown"))
    s3_proxy.fault = lambda asked, server: fails(asked, lambda asked: two_pages(asked, server))
    listed = [info.key for info in RetryingStore(store).list("")]
    assert sorted(listed) == sorted(f"{page}/{n:04}" for page in range(2) for n in range(1000))


def test_a_delete_that_is_refused_is_told(store: CloudStore, s3_proxy: FaultyProxy) -> None:
    """Not by S3's call for many, whose answer is a success that hides the refusal of each."""
    s3_proxy.asked.clear()
    store.delete("another")
    assert [(asked.method, asked.path.rpartition("/")[2]) for asked in s3_proxy.asked] == [
        ("DELETE", "another")
    ]


def test_a_conflict_without_a_winner_is_tried_again(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    """S3 answers so to creators at the same time, of which none may have won: the name is free
    still."""
    conflict = refusal(409, "ConditionalRequestConflict")
    s3_proxy.fault = conflict
    with pytest.raises(Unavailable):
        store.create("new", [b"x"])
    s3_proxy.fault = at(0, lambda asked: asked.method == "PUT", conflict)
    RetryingStore(store).create("new", [b"x"])
    assert store.get("new") == b"x"


def test_a_put_whose_answer_is_lost_is_its_own(store: CloudStore, s3_proxy: FaultyProxy) -> None:
    lost = changed(lambda reply: replace(reply, unanswered=True))
    s3_proxy.fault = at(0, lambda asked: asked.method == "PUT", lost)
    RetryingStore(store).create("new", [b"mine"])
    assert store.get("new") == b"mine"
    s3_proxy.fault = at(0, lambda asked: asked.method == "PUT", lost)
    with pytest.raises(AlreadyExists):
        RetryingStore(store).create("new", [b"an"])


def begins(asked: Asked) -> bool:
    return asked.method == "POST" and "?uploads" in asked.path


def is_part(asked: Asked) -> bool:
    return asked.method == "PUT" and "partNumber" in asked.path


def completes(asked: Asked) -> bool:
    return asked.method == "POST" and "uploadId" in asked.path


@pytest.mark.parametrize(
    "fault",
    [
        at(0, lambda asked: asked.method == "HEAD", refusal(503)),
        at(0, begins, refusal(503, "SlowDown")),
        at(1, is_part, changed(lambda reply: replace(reply, unanswered=True))),
        at(0, completes, refusal(200, "InternalError")),
        at(0, completes, changed(lambda reply: replace(reply, unanswered=True))),
    ],
    ids=["look", "begin", "part", "complete", "answer of all"],
)
def test_a_large_object_outlives_what_goes_wrong_once(
    store: CloudStore, s3_proxy: FaultyProxy, fault: Fault
) -> None:
    """Though its source can be read only once."""
    s3_proxy.fault = fault
    store.create("new", iter(LARGE))
    assert store.get("new") == b"".join(LARGE)


@pytest.mark.parametrize("matches", [is_part, completes])
def test_a_large_object_that_is_refused_leaves_no_parts(
    store: CloudStore,
    s3_proxy: FaultyProxy,
    matches: Callable[[Asked], bool],
) -> None:
    refuses = refusal(403, "AccessDenied")
    s3_proxy.fault = lambda asked, server: (
        refuses(asked, server) if matches(asked) else server(asked)
    )
    with pytest.raises(Denied):
        store.create("new", iter(LARGE))
    assert keys(store) == [KEY]
    assert b"<UploadId>" not in request_raw(store.url, "?uploads")


def test_a_foreign_name_that_cant_be_listed_is_told(store: CloudStore) -> None:
    request_raw(store.url, "/some/prefix/a//b", "PUT")
    with pytest.raises(Denied, match=r"invalid path.*prefix of its own"):
        list(store.list(""))


def test_the_marker_of_a_folder_is_no_object(store: CloudStore) -> None:
    """Consoles make such objects: empty, with the name of the prefix and a slash."""
    request_raw(store.url, "/some/prefix/", "PUT")
    assert keys(store) == [KEY]


def test_no_credentials_are_told_as_that(
    s3_url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is where the machine's role is asked for."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", s3_proxy.endpoint)
    s3_proxy.fault = changed(lambda reply: replace(reply, unanswered=True))
    with pytest.raises(Unavailable, match=r"no credentials are set.*AWS_PROFILE"):
        CloudStore(s3_url).get(KEY)


def test_a_page_served_once_in_place_of_a_chunk_is_not_believed(
    store: CloudStore, s3_proxy: FaultyProxy
) -> None:
    """With a status of success and its own length, it is for the checksums to find."""
    packed = Packed()
    writer = packed.writer(target_bytes=1 << 20)
    writer.add_file(b"a", DATA, 0o644, 0)
    writer.flush()
    packed.store_in(store)
    reader, chunk = ChunkReader(store, DATASET), packed.chunks[0].ref

    def page(asked: Asked, server: Callable[[Asked], Reply]) -> Reply:
        return Reply(200, body=PAGE)

    s3_proxy.fault = at(0, lambda asked: asked.method == "GET", page)
    assert bytes(reader.payload(chunk)) == DATA
    s3_proxy.fault = page
    with pytest.raises(Corrupt):
        reader.payload(chunk)


def test_an_object_is_read_past_caches_after_damage(
    store: CloudStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "PAST_CACHES_S", 10 * PATIENCE_S)
    store.get(KEY)
    assert store.forget(KEY)
    store.get(KEY)
    store.create("another", [DATA])
    s3_proxy.fails(None)
    store.get(KEY)
    store.get("another")
    found = [asked.headers.get("cache-control") for asked in s3_proxy.asked]
    assert found == ["no-cache", None]


def test_an_answer_that_the_object_ends_before_is_no_outage(store: CloudStore, s3_proxy: FaultyProxy) -> None:  # fmt: skip
    """A cache that has a shorter object under the key answers so; the size is another request."""
    store.create("short", [b"x"])
    assert store.get_range(KEY, len(DATA), 10) == b""
    s3_proxy.fault = swapped({KEY: "short"})
    with pytest.raises(Corrupt, match="ends before"):
        RetryingStore(store).get_range(KEY, 5, 10)
