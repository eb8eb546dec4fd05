"""An S3 server that contradicts itself, or a proxy in front of one: faults for
`tests.services.faulty_http`, which stands before a sound server."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tests.services.faulty_http import Asked, Fault, Reply

_ENTRY = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_KEY = re.compile(rb"(?<=<Key>)[^<]*(?=</Key>)")
_END = re.compile(rb"<IsTruncated>[^<]*</IsTruncated>")
PAGE = b"<html><body>It works</body></html>"
ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>later</Message></Error>"
_STAMPS = (("ETag", '"page"'), ("Last-Modified", "Tue, 24 Nov 2026 12:00:00 GMT"))

Server = Callable[[Asked], Reply]


def is_listing(asked: Asked) -> bool:
    return asked.method == "GET" and "list-type=2" in asked.path


def listing(change: Callable[[list[bytes]], list[bytes]]) -> Fault:
    """Every listing has other entries than it should."""

    def fault(asked: Asked, server: Server) -> Reply:
        reply = server(asked)
        if not is_listing(asked) or reply.status != 200:
            return reply
        entries = _ENTRY.findall(reply.body)
        head, _, tail = _ENTRY.sub(b"\0", reply.body).partition(b"\0")
        return replace(reply, body=head + b"".join(change(entries)) + tail.replace(b"\0", b""))

    return fault


def lacking(left_out: Callable[[str], bool]) -> Fault:
    """Every listing leaves out some keys and calls itself whole."""
    return listing(lambda entries: [e for e in entries if not left_out(_key(e))])


def half(kind: str) -> Fault:
    """Every listing has every other of these keys: `/chunks/`."""
    seen: dict[str, int] = {}
    return lacking(lambda key: kind in key and bool(seen.setdefault(key, len(seen)) % 2))


doubled = listing(lambda entries: entries + entries[-1:])
unsorted = listing(lambda entries: entries[::-1])


def foreign(old: bytes, new: bytes) -> Fault:
    """Every listing has the keys of another place."""
    return listing(lambda entries: [_KEY.sub(lambda k: k[0].replace(old, new), e) for e in entries])


def looping() -> Fault:
    """Every listing that has a key goes on with the page that it began with, for ever."""
    pages: dict[str, Reply] = {}

    def fault(asked: Asked, server: Server) -> Reply:
        if not is_listing(asked):
            return server(asked)
        first = _first_page(asked)
        if asked == first or first.path not in pages:
            pages[first.path] = server(first)
        reply = pages[first.path]
        return _continued(reply) if _ENTRY.search(reply.body) else reply

    return fault


def empty_pages(asked: Asked, server: Server) -> Reply:
    """Every listing goes on for ever without a key."""
    if not is_listing(asked):
        return server(asked)
    reply = server(_first_page(asked))
    return _continued(replace(reply, body=_ENTRY.sub(b"", reply.body)))


def stale() -> Fault:
    """Every listing is as it was when it was asked for first."""
    kept: dict[str, Reply] = {}

    def fault(asked: Asked, server: Server) -> Reply:
        if not is_listing(asked):
            return server(asked)
        if asked.path not in kept:
            kept[asked.path] = server(asked)
        return kept[asked.path]

    return fault


def put_answered(reply: Reply, kind: str, first: int = 0) -> Fault:
    """Puts of such keys, from that one on, are answered with this and not stored."""
    count = 0

    def fault(asked: Asked, server: Server) -> Reply:
        nonlocal count
        if asked.method != "PUT" or kind not in asked.path:
            return server(asked)
        count += 1
        return reply if count > first else server(asked)

    return fault


def put_changed(change: Callable[[bytes], bytes], kind: str) -> Fault:
    """Puts of such keys store other bytes than were sent, and say that all is well."""
    return lambda asked, server: server(
        replace(asked, body=change(asked.body))
        if asked.method == "PUT" and kind in asked.path
        else asked
    )


def swapped(others: Mapping[str, str], times: int | None = None, *, obeys: bool = False) -> Fault:
    """GETs of these keys are answered with the bytes of another object, ranges too: a confused
    cache. `times`: for each key, only that many of its first GETs. `obeys`: the cache passes on
    what is asked for with `no-cache`."""
    left = dict.fromkeys(others, times)

    def fault(asked: Asked, server: Server) -> Reply:
        place, _, query = asked.path.partition("?")
        key = next((key for key in others if place.endswith(f"/{key}")), None)
        passed_on = obeys and asked.headers.get("cache-control") == "no-cache"
        if asked.method != "GET" or key is None or left[key] == 0 or passed_on:
            return server(asked)
        before = left[key]
        left[key] = None if before is None else before - 1
        other = f"{place.removesuffix(key)}{others[key]}"
        return server(replace(asked, path=f"{other}?{query}" if query else other))

    return fault


def no_chunk(keys: Collection[str], change: Callable[[bytes], bytes]) -> Fault:
    """GETs of these keys are answered with what `change` makes of the object's bytes, ranges of
    that too."""

    def fault(asked: Asked, server: Server) -> Reply:
        place = asked.path.partition("?")[0]
        if asked.method != "GET" or not place.endswith(tuple(f"/{key}" for key in keys)):
            return server(asked)
        whole = {name: value for name, value in asked.headers.items() if name != "range"}
        reply = server(replace(asked, headers=whole))
        return _ranged(replace(reply, body=change(reply.body)), asked.headers.get("range"))

    return fault


def page_for(keys: Collection[str]) -> Fault:
    """GETs of these keys are answered with 200 and a page, whatever range is asked for."""

    def fault(asked: Asked, server: Server) -> Reply:
        place = asked.path.partition("?")[0]
        if asked.method != "GET" or not place.endswith(tuple(f"/{key}" for key in keys)):
            return server(asked)
        return Reply(200, (("Content-Type", "text/html"), *_STAMPS), PAGE)

    return fault


def _ranged(reply: Reply, wanted: str | None) -> Reply:
    if wanted is None:
        return reply
    size = len(reply.body)
    first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
    if first >= size:
        return Reply(416, (("Content-Range", f"bytes */{size}"),))
    body = reply.body[first : last + 1]
    place = f"bytes {first}-{first + len(body) - 1}/{size}"
    return Reply(206, (*reply.headers, ("Content-Range", place)), body)


def _key(entry: bytes) -> str:
    found = _KEY.search(entry)
    assert found is not None
    return found[0].decode()


def _first_page(asked: Asked) -> Asked:
    return replace(asked, path=re.sub(r"&?continuation-token=[^&]*", "", asked.path))


def _continued(reply: Reply) -> Reply:
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    return replace(reply, body=_END.sub(more, reply.body))
