"""The numbers that the client of a connection gives to tags, so that a request carries 3 bytes.

The client names tags once (`NameTags`), before the first request that carries their number. Both
sides keep a list, and a number is a place in it. A client that has used up all numbers starts again
at 0: naming a number forgets all greater ones, so the server's list never has more than `MAX_TAGS`
entries. A connection keeps the order of its frames, so both lists agree at each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chunkstore.chunk_id import ChunkId
from dieselfs.cache.ports.request_tags import NO_TAGS, RequestTags, TagsOf
from dieselfs.cache.wire.frame_header import BadFrame
from dieselfs.cache.wire.frames import encode_request
from dieselfs.cache.wire.messages import (
    MAX_TAGS,
    TAGS_VERSION,
    NameTags,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
)


class TagNumbers:
    """The client's side. The calling thread holds the right to send over the connection."""

    def __init__(self, tags_of: TagsOf) -> None:
        self._tags_of = tags_of
        self._numbers: dict[RequestTags, int] = {}
        self._named: list[bytes] = []
        """Frames that name tags, to be sent before the request."""

    def frames(self, number: int, request: Request) -> Sequence[bytes]:
        """Return the frames of a request, with those that name its tags first.

        For a `ReadFile` whose tags are named it takes 1 µs more than the frame without tags.
        """
        if type(request) is ReadFile:
            tag = self._numbers.get(self._tags_of(request.chunk.id))
            if tag is not None:
                return (encode_request(number, ReadFile(*request[:4], (tag,))),)
        tagged = self._tagged(request)
        named, self._named = self._named, []
        return *named, encode_request(number, tagged)

    def _tagged(self, request: Request) -> Request:
        match request:
            case ReadFile(chunk, start, length, may_fetch):
                return ReadFile(chunk, start, length, may_fetch, self._of(chunk.id))
            case ReadChunk(chunk, may_fetch):
                return ReadChunk(chunk, may_fetch, self._of(chunk.id))
            case ReadBlock(block, may_fetch):
                return ReadBlock(block, may_fetch, self._of(block.chunk.id))
            case ReadRanges(chunks):
                return replace(request, tags=self._of(*(chunk.id for chunk in chunks)))
            case _:
                return request

    def _of(self, *chunks: ChunkId) -> tuple[int, ...]:
        numbers, tags = self._numbers, [self._tags_of(chunk) for chunk in chunks]
        if len(numbers) + len(tags) > MAX_TAGS and not all(map(numbers.__contains__, tags)):
            self._numbers = {}
        return tuple([self._number(one) for one in tags])

    def _number(self, tags: RequestTags) -> int:
        number = self._numbers.get(tags)
        if number is None:
            number = len(self._numbers)
            self._named.append(encode_request(0, NameTags.of(number, tags)))
            self._numbers[tags] = number
        return number


class TagTable:
    """The server's side. One thread."""

    def __init__(self, version: int) -> None:
        """`version` is that of the connection."""
        self._most = MAX_TAGS if version >= TAGS_VERSION else 0
        self._tags: list[RequestTags] = []

    def name(self, named: NameTags) -> None:
        """Give a number to tags. Raises `BadFrame`."""
        if named.tag > len(self._tags) or named.tag >= self._most:
            raise BadFrame("tags with a number that is out of order")
        del self._tags[named.tag :]
        self._tags.append(named.tags)

    def of(self, numbers: Sequence[int], chunks: int) -> Sequence[RequestTags]:
        """Return the tags of a request, one for each of its chunks. Raises `BadFrame`."""
        if not numbers:
            return (NO_TAGS,) * chunks
        try:
            return [self._tags[number] for number in numbers]
        except IndexError:
            raise BadFrame("a request with tags that were not named") from None
