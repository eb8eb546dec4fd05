"""What is said comes back as it was; what is not understood is refused before anything is made of
it."""

from __future__ import annotations

import dataclasses
import json
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire import frames
from dieselfs.cache.wire.fields import MAX_HEAD_BYTES
from dieselfs.cache.wire.frame_header import (
    LEAD,
    MAX_BULK_BYTES,
    MAX_HEADER_BYTES,
    MAX_MEMBERS_HEADER_BYTES,
    PREFIX_BYTES,
    BadFrame,
    decode_lead,
    decode_prefix,
)
from dieselfs.cache.wire.frames import (
    decode_request,
    encode_answer,
    encode_request,
)
from dieselfs.cache.wire.messages import (
    MAX_MEMBERS,
    MAX_RANGES,
    MAX_RANGES_BYTES,
    MAX_TAGS,
    Answer,
    AskCached,
    ClientMessage,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NameTags,
    Ping,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
)
from tests.dieselfs.cache.wire.golden_frames import (
    ANSWERS,
    BLOCK,
    BULK,
    CHUNK,
    FETCHED,
    NODE,
    NUMBER,
    RANGES,
    REPORT,
    REQUESTS,
    TAGGED,
    TAGS,
    golden_frames,
    golden_frames_of_version_2,
    golden_frames_of_version_3,
)

GOLDEN = Path(__file__).parents[3] / "golden"
PROTOCOL = Path(__file__).parents[4] / "docs" / "peer-protocol.md"
WHOLE = ChunkRef(ChunkId(b"w" * 16), MAX_HEAD_BYTES, MAX_WHOLE_BYTES)
U64 = (1 << 64) - 1


def plain(message: object) -> object:
    """`ReadRanges` as what compares."""
    if not isinstance(message, ReadRanges):
        return message
    columns = (message.which, message.start, message.length)
    assert [column.dtype.name for column in columns] == ["uint16", "uint32", "uint32"]
    return message.chunks, *(column.tolist() for column in columns), message.may_fetch, message.tags


def heard(frame: bytes) -> tuple[int, ClientMessage]:
    header_bytes, bulk_bytes, checksum = decode_prefix(frame, of_request=True)
    assert (header_bytes, bulk_bytes) == (len(frame) - PREFIX_BYTES, 0)
    return decode_request(memoryview(frame)[PREFIX_BYTES:], checksum)


def heard_answer(frame: bytes, bulk: bytes = b"") -> tuple[int, Answer]:
    header_bytes, bulk_bytes, checksum = decode_prefix(frame)
    header = memoryview(frame)[PREFIX_BYTES:]
    assert (header_bytes, bulk_bytes) == (len(header), len(bulk))
    return decode_answer(header, checksum, memoryview(bulk))


def decode_answer(
    header: bytes | memoryview, checksum: int, bulk: memoryview
) -> tuple[int, Answer]:
    lead, number = decode_lead(header, checksum, len(bulk))
    return number, frames.decode_answer(lead, header, bulk)


def sealed(header: bytes) -> tuple[bytes, int]:
    """A header as somebody sends who knows the layout: its checksum is right."""
    return header, xxhash.xxh3_64_intdigest(header)


def said(kind: int, *fields: object, number: int = NUMBER) -> tuple[bytes, int]:
    lead = bytes((0x90 | (len(fields) + 2), kind, 0xCF))
    return sealed(LEAD.pack(lead, number) + b"".join(map(msgpack.packb, fields)))


def row(chunk: ChunkRef = CHUNK) -> bytes:
    return (
        chunk.id.value
        + chunk.head_bytes.to_bytes(4, "big")
        + chunk.payload_bytes.to_bytes(4, "big")
    )


GOLDEN_FRAMES = golden_frames(), golden_frames_of_version_2(), golden_frames_of_version_3()


def test_golden_bytes() -> None:
    """Changed? Then nodes of two releases do not understand each other: raise PROTOCOL_VERSION."""
    for version, made in enumerate(GOLDEN_FRAMES, start=1):
        golden = json.loads((GOLDEN / f"peer-frames-v{version}.json").read_text())
        assert {name: frame.hex() for name, frame in made.items()} == golden


def test_the_law_shows_every_golden_frame() -> None:
    shown = "".join(PROTOCOL.read_text().split())
    for frames_of_version in GOLDEN_FRAMES:
        assert [n for n, frame in frames_of_version.items() if frame.hex() not in shown] == []


ALL_FRAMES = golden_frames_of_version_3() | golden_frames_of_version_2() | golden_frames()
MESSAGES: dict[str, ClientMessage] = {**REQUESTS, **TAGGED, "AskCached": AskCached()}
ALL_ANSWERS = {**ANSWERS, **FETCHED}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_request_is_heard_as_it_was_said(name: str) -> None:
    number, request = heard(encode_request(NUMBER, MESSAGES[name]))
    assert (number, plain(request)) == (NUMBER, plain(MESSAGES[name]))


@pytest.mark.parametrize("name", ALL_ANSWERS)
def test_an_answer_is_heard_as_it_was_said(name: str) -> None:
    answer, bulk = ALL_ANSWERS[name]
    assert heard_answer(encode_answer(NUMBER, answer, len(bulk)), bulk) == (NUMBER, answer)


def test_a_report_of_a_policy_is_heard_as_it_was_said() -> None:
    assert heard_answer(encode_answer(NUMBER, REPORT)) == (NUMBER, REPORT)


def test_bulk_is_not_copied() -> None:
    bulk = memoryview(bytearray(BULK))
    frame = encode_answer(1, Data(bulk), len(bulk))
    _, answer = decode_answer(frame[PREFIX_BYTES:], decode_prefix(frame)[2], bulk)
    assert isinstance(answer, Data)
    assert answer.bulk is bulk


@given(st.integers(0, U64), st.data())
def test_any_range_of_a_chunk_is_heard(number: int, data: st.DataObject) -> None:
    payload = data.draw(st.integers(0, MAX_WHOLE_BYTES))
    start = data.draw(st.integers(0, payload))
    chunk = ChunkRef(ChunkId(data.draw(st.binary(min_size=16, max_size=16))), 64, payload)
    request = ReadFile(chunk, start, data.draw(st.integers(0, payload - start)), True)
    assert heard(encode_request(number, request)) == (number, request)


@pytest.mark.parametrize("name", ALL_FRAMES)
def test_headers_are_one_flat_msgpack_array(name: str) -> None:
    frame = ALL_FRAMES[name]
    header = frame[PREFIX_BYTES : PREFIX_BYTES + decode_prefix(frame)[0]]
    kind, number, *fields = msgpack.unpackb(header)
    assert kind == header[1]
    assert number in (0, NUMBER)
    assert not any(isinstance(field, list | dict) for field in fields)


@pytest.mark.parametrize("name", [*MESSAGES, *ALL_ANSWERS])
def test_any_flipped_bit_of_a_header_is_found(name: str) -> None:
    frame = ALL_FRAMES[name]
    header_bytes, _, checksum = decode_prefix(frame)
    header = frame[PREFIX_BYTES : PREFIX_BYTES + header_bytes]
    bulk = memoryview(frame)[PREFIX_BYTES + header_bytes :]
    for bit in range(8 * header_bytes):
        damaged = bytearray(header)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BadFrame, match="checksum"):
            decode_request(memoryview(damaged), checksum)
        with pytest.raises(BadFrame, match="checksum"):
            decode_answer(memoryview(damaged), checksum, bulk)


def test_a_damaged_length_of_the_bulk_is_found() -> None:
    """Else a stream would be read from a wrong place on."""
    frame = encode_answer(NUMBER, Data(memoryview(BULK)), len(BULK))
    checksum = decode_prefix(frame)[2]
    for wrong in (0, len(BULK) - 1, len(BULK) + 1, MAX_BULK_BYTES):
        with pytest.raises(BadFrame, match="checksum"):
            decode_lead(frame[PREFIX_BYTES:], checksum, wrong)


class TestPrefix:
    @pytest.mark.parametrize(
        ("header_bytes", "bulk_bytes"),
        [
            (0, 0),
            (LEAD.size - 1, 0),
            (MAX_MEMBERS_HEADER_BYTES + 1, 0),
            (LEAD.size, MAX_BULK_BYTES + 1),
            ((1 << 32) - 1, (1 << 32) - 1),
        ],
    )
    def test_lengths_are_bounded_before_anything_is_read(
        self, header_bytes: int, bulk_bytes: int
    ) -> None:
        prefix = struct.pack("<IIQ", header_bytes, bulk_bytes, 0)
        with pytest.raises(BadFrame, match="out of bounds"):
            decode_prefix(prefix)

    def test_of_a_request_they_are_smaller(self) -> None:
        for header_bytes, bulk_bytes in ((MAX_HEADER_BYTES + 1, 0), (LEAD.size, 1)):
            prefix = struct.pack("<IIQ", header_bytes, bulk_bytes, 0)
            decode_prefix(prefix)
            with pytest.raises(BadFrame, match="out of bounds"):
                decode_prefix(prefix, of_request=True)

    def test_it_is_there_whole(self) -> None:
        frame = encode_request(1, Ping())
        for length in range(PREFIX_BYTES):
            with pytest.raises(BadFrame):
                decode_prefix(frame[:length])


def bad_reads() -> dict[str, tuple[bytes, int]]:
    """`ReadFile`'s header has a fixed layout; each of these has the right checksum."""
    good = encode_request(NUMBER, REQUESTS["ReadFile"])[PREFIX_BYTES:]
    tagged = encode_request(NUMBER, TAGGED["ReadFile with tags"])[PREFIX_BYTES:]

    def changed(at: int, to: bytes) -> tuple[bytes, int]:
        return sealed(good[:at] + to + good[at + len(to) :])

    limit = CHUNK.payload_bytes
    return {
        "an array of another length": changed(0, b"\x95"),
        "number of another width": changed(2, b"\xce"),
        "chunk as text": changed(11, b"\xd9\x18"),
        "chunk of another length": changed(12, b"\x17"),
        "start of another width": changed(37, b"\xd2"),
        "length as a float": changed(42, b"\xca"),
        "flag 1": changed(47, b"\x01"),
        "flag nil": changed(47, b"\xc0"),
        "a byte more": sealed(good + b"\0"),
        "a byte less": sealed(good[:-1]),
        "one byte too far": changed(38, (limit - 109_999).to_bytes(4, "big")),
        "start at the end of the world": changed(38, b"\xff" * 4),
        "length without an end": changed(43, b"\xff" * 4),
        "a chunk above 16 MiB": changed(33, (MAX_WHOLE_BYTES + 1).to_bytes(4, "big")),
        "a head that no chunk has": changed(29, (MAX_HEAD_BYTES + 1).to_bytes(4, "big")),
        "a tag that it does not announce": sealed(good[:1] + tagged[1:]),
        "a tag of another width": sealed(tagged[:48] + b"\xcc\0\0"),
        "a tag that is cut": sealed(tagged[:-1]),
        "a tag and a byte": sealed(tagged + b"\0"),
        "a tag that no connection has": sealed(tagged[:49] + MAX_TAGS.to_bytes(2, "big")),
        "a tag behind a bad range": sealed(tagged[:38] + b"\xff" * 4 + tagged[42:]),
    }


@pytest.mark.parametrize("name", bad_reads())
def test_a_read_that_is_out_of_bounds_is_refused(name: str) -> None:
    with pytest.raises(BadFrame):
        decode_request(*bad_reads()[name])


def test_the_largest_read_is_heard() -> None:
    request = ReadFile(WHOLE, 0, MAX_WHOLE_BYTES, False)
    assert heard(encode_request(U64, request)) == (U64, request)
    chunk = ReadChunk(WHOLE, True)
    assert heard(encode_request(0, chunk)) == (0, chunk)
    assert WHOLE.head_bytes + WHOLE.payload_bytes <= MAX_BULK_BYTES


def columns(
    which: Sequence[int] = (0,),
    start: Sequence[int] = (0,),
    length: Sequence[int] = (1,),
    chunks: bytes | None = None,
    may_fetch: object = True,
) -> tuple[object, ...]:
    raw = ((which, "<u2"), (start, "<u4"), (length, "<u4"))
    packed = [np.array(column, dtype).tobytes() for column, dtype in raw]
    return row() if chunks is None else chunks, *packed, may_fetch


BAD_RANGES: dict[str, tuple[object, ...]] = {
    "none": columns((), (), ()),
    "no chunks": columns(chunks=b""),
    "too many": columns(*[[0] * (MAX_RANGES + 1)] * 3),
    "too many chunks": columns(chunks=row() * (MAX_RANGES + 1)),
    "a part of a chunk": columns(chunks=row() + b"x"),
    "a chunk that is too large": columns(chunks=row(ChunkRef(CHUNK.id, 64, MAX_WHOLE_BYTES + 1))),
    "fewer starts": columns((0, 0), (0,), (1, 1)),
    "more lengths": columns((0,), (0,), (1, 1)),
    "half a start": (row(), b"\0\0", b"\0\0", b"\0\0\0\0", True),
    "an odd column": (row(), b"\0\0\0", b"\0\0\0\0", b"\0\0\0\0", True),
    "of a chunk that is not named": columns((1,)),
    "over the end": columns((0,), (CHUNK.payload_bytes,), (1,)),
    "sum over 2^32": columns((0,), ((1 << 32) - 1,), ((1 << 32) - 1,)),
    "sum over 2^32 that looks small": columns((0,), ((1 << 32) - 4,), (8,)),
    "two of too many bytes": columns((0, 0), (0, 0), (1 << 23, 1), chunks=row(WHOLE)),
    "too many bytes": columns((0, 0, 0), (0, 0, 0), (1 << 22, 1 << 22, 1)),
    "a column as text": (row(), "\0\0", bytes(4), b"\1\0\0\0", True),
    "a column as an array": (row(), [0], bytes(4), b"\1\0\0\0", True),
    "a flag that is a number": columns(may_fetch=1),
    "tags of no chunk": (*columns(), b""),
    "tags of two chunks": (*columns(), bytes(4)),
    "half a tag": (*columns(), b"\0"),
    "tags as text": (*columns(), "\0\0"),
    "tags and more": (*columns(), b"\0\0", 0),
}


@pytest.mark.parametrize("name", BAD_RANGES)
def test_ranges_that_are_out_of_bounds_are_refused(name: str) -> None:
    with pytest.raises(BadFrame):
        decode_request(*said(1, *BAD_RANGES[name]))


def test_ranges_within_their_bounds_are_heard() -> None:
    decode_request(*said(1, *columns()))
    decode_request(*said(1, *columns((0, 0), (0, 0), (1 << 22, 1 << 22))))
    assert MAX_RANGES_BYTES == 2 << 22
    single = ReadRanges(
        (WHOLE,), *(np.array([n], t) for n, t in ((0, "u2"), (0, "u4"), (1 << 24, "u4"))), True
    )
    assert plain(heard(encode_request(1, single))[1]) == plain(single)


def test_the_longest_request_fits_into_its_header() -> None:
    chunks = tuple(ChunkRef(ChunkId(n.to_bytes(16, "big")), 64, 1 << 22) for n in range(MAX_RANGES))
    which = np.arange(MAX_RANGES, dtype=np.uint16)
    size = np.full(MAX_RANGES, 1 << 14, np.uint32)
    tags = tuple(range(MAX_TAGS - MAX_RANGES, MAX_TAGS))
    frame = encode_request(U64, ReadRanges(chunks, which, size, size, True, tags))
    assert len(frame) - PREFIX_BYTES <= MAX_HEADER_BYTES
    assert plain(heard(frame)[1]) == (chunks, which.tolist(), *[size.tolist()] * 2, True, tags)


def test_wider_columns_are_not_cut_in_silence() -> None:
    with pytest.raises(TypeError):
        encode_request(1, dataclasses.replace(RANGES, start=np.array([1 << 32] * 3)))


LARGE = [b"\xff" * 16, 1 << 20, 1 << 40, 1 << 30, 1 << 24, 0x0102030405060708, 3, True]
MEMBER = ["node-1", "10.0.0.1", 7000, 16384, "gpu 1"]
NAMED = [7, *TAGS]


def changed(fields: list[object], **at: object) -> list[object]:
    return [at.get(f"_{place}", field) for place, field in enumerate(fields)]


BAD_REQUESTS: dict[str, tuple[bytes, int]] = {
    "nothing": sealed(b""),
    "a lead that is cut": sealed(encode_request(1, Ping())[PREFIX_BYTES:-1]),
    "not an array": sealed(b"\x82" + encode_request(1, Ping())[PREFIX_BYTES + 1 :]),
    "no kind of ours": said(99),
    "an answer": said(17),
    "a ping with a field": said(4, 1),
    "a ping with bytes behind it": sealed(encode_request(1, Ping())[PREFIX_BYTES:] + b"\xc0"),
    "a chunk without its flag": said(2, row()),
    "a short chunk": said(2, row()[:-1], True),
    "a chunk as text": said(2, "x" * 24, True),
    "a chunk with a number for a flag": said(2, row(), 1),
    "fewer fields than it says": sealed(LEAD.pack(b"\x94\2\xcf", 1) + msgpack.packb(row())),
    "a piece with a short id": said(3, *changed(LARGE, _0=b"x" * 15)),
    "a piece with a flag for a number": said(3, *changed(LARGE, _6=True)),
    "a piece before its chunk": said(3, *changed(LARGE, _3=-1)),
    "a piece outside of its chunk": said(3, *changed(LARGE, _3=(1 << 40) - (1 << 24) + 1)),
    "a piece outside of its file": said(3, *changed(LARGE, _6=4)),
    "a piece of a file without length": said(3, *changed(LARGE, _4=0, _6=0)),
    "a piece of a small chunk": said(3, *changed(LARGE, _2=MAX_WHOLE_BYTES, _3=0, _4=9, _6=0)),
    "a piece of a chunk without an end": said(3, *changed(LARGE, _2=U64)),
    "a piece with a large head": said(3, *changed(LARGE, _1=MAX_HEAD_BYTES + 1)),
    "a piece with a float": said(3, *changed(LARGE, _4=1.0)),
    "a member without an id": said(5, *changed(MEMBER, _0="")),
    "a member with a blank": said(5, *changed(MEMBER, _0="node 1")),
    "a member with a newline": said(5, *changed(MEMBER, _0="node-1\n")),
    "a member with a long id": said(5, *changed(MEMBER, _0="x" * 65)),
    "a member with bytes for an id": said(5, *changed(MEMBER, _0=b"node-1")),
    "a member without a host": said(5, *changed(MEMBER, _1="")),
    "a member with a long host": said(5, *changed(MEMBER, _1="x" * 256)),
    "a member at port 0": said(5, *changed(MEMBER, _2=0)),
    "a member at port 65536": said(5, *changed(MEMBER, _2=65536)),
    "a member at port true": said(5, *changed(MEMBER, _2=True)),
    "a member that is too heavy": said(5, *changed(MEMBER, _3=(1 << 40) + 1)),
    "a member of negative weight": said(5, *changed(MEMBER, _3=-1)),
    "a member with weight true": said(5, *changed(MEMBER, _3=True)),
    "a member with a long node": said(5, *changed(MEMBER, _4="ü" * 128)),
    "a member with a line for a log": said(5, *changed(MEMBER, _4="x\nroot logged in")),
    "a member with no node": said(5, *changed(MEMBER, _4=None)),
    "nobody leaves": said(6, ""),
    "a number leaves": said(6, 1),
    "text that is no UTF-8": sealed(LEAD.pack(b"\x93\6\xcf", 1) + b"\xa1\xff"),
    "a length bomb": sealed(LEAD.pack(b"\x93\6\xcf", 1) + b"\xdb\xff\xff\xff\xff"),
    "a map": said(6, {"a": 1}),
    "nested arrays": said(6, [[["x"]]]),
    "an extension": said(6, msgpack.ExtType(5, b"x")),
    "a date": said(6, msgpack.Timestamp(1)),
    "a header that is too long": said(6, "x" * MAX_HEADER_BYTES),
    "a chunk with a tag below zero": said(2, row(), True, -1),
    "a chunk with too great a tag": said(2, row(), True, MAX_TAGS),
    "a chunk with two tags": said(2, row(), True, 0, 0),
    "a chunk with a flag for a tag": said(2, row(), True, True),
    "a piece with too great a tag": said(3, *LARGE, MAX_TAGS),
    "tags with a number of no connection": said(7, *changed(NAMED, _0=MAX_TAGS)),
    "tags with a number below zero": said(7, *changed(NAMED, _0=-1)),
    "tags with a long job": said(7, *changed(NAMED, _1="ü" * 128)),
    "tags with a line for a log": said(7, *changed(NAMED, _1="x\nroot logged in")),
    "tags with bytes for a job": said(7, *changed(NAMED, _1=b"job")),
    "tags of an epoch below zero": said(7, *changed(NAMED, _2=-1)),
    "tags of an epoch without an end": said(7, *changed(NAMED, _2=1 << 63)),
    "tags with a long bucket": said(7, *changed(NAMED, _3="x" * 1025)),
    "tags with a bucket of two lines": said(7, *changed(NAMED, _3="a\nb")),
    "tags with a number for a flag": said(7, *changed(NAMED, _4=1)),
    "tags without a flag": said(7, *NAMED[:-1]),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_request_that_is_not_in_order_is_refused(name: str) -> None:
    with pytest.raises(BadFrame):
        decode_request(*BAD_REQUESTS[name])


def test_what_those_were_made_of_is_in_order() -> None:
    assert decode_request(*said(3, *LARGE))[1] == ReadBlock(BLOCK, True)
    assert decode_request(*said(5, *MEMBER))[1] == Join(NODE)
    assert decode_request(*said(6, "x" * 64))[1] == Leave("x" * 64)
    assert decode_request(*said(7, *NAMED))[1] == NameTags(7, TAGS)
    assert decode_request(*said(2, row(), True, 2047))[1] == ReadChunk(CHUNK, True, (2047,))


def test_names_that_cannot_be_sent_become_empty() -> None:
    for bad in ("x" * 1025, "a\nb", "\udcff"):
        made = NameTags.of(3, RequestTags(bad, 2, bad, False))
        assert heard(encode_request(0, made))[1] == NameTags(3, RequestTags("", 2, "", False))
    longest = RequestTags("j" * 255, (1 << 63) - 1, "ü" * 512)
    assert heard(encode_request(0, NameTags.of(0, longest)))[1] == NameTags(0, longest)


MANY = ["\n".join(["a"] * 1025), "\n".join(["h"] * 1025), "\n" * 1024]
BAD_ANSWERS: dict[str, tuple[bytes, int]] = {
    "a request": said(4),
    "data with a text": said(16, "1"),
    "data with two fields": said(16, 1, 1),
    "nothing cached, with a negative number": said(17, -1),
    "data with bytes behind its lead": sealed(LEAD.pack(b"\x92\x10\xcf", 1) + b"\xc0"),
    "no reason": said(18, None),
    "a long reason": said(18, "x" * 8193),
    "a pong of too few": said(20, *[0] * 8),
    "a pong of flags": said(20, *[True] * 9),
    "a pong below zero": said(20, *[0] * 8, -1),
    "a pong above all": said(20, *[0] * 8, 1 << 63),
    "a policy with a long name": said(22, "x" * 65, "", *[0] * 10),
    "a policy of two lines": said(22, "a\nb", "", *[0] * 10),
    "a policy without a name": said(22, None, "", *[0] * 10),
    "a policy of too few counts": said(22, "lru", "", *[0] * 9),
    "a policy below zero": said(22, "lru", "", *[0] * 9, -1),
    "a policy with a float": said(22, "lru", "", *[0] * 9, 0.5),
    "texts of no members": said(21, "a", "", "", b"", b""),
    "fewer ids": said(21, "a", "h\nh", "\n", b"\1\0" * 2, b"\1" * 16),
    "fewer weights": said(21, "a\nb", "h\nh", "\n", b"\1\0" * 2, b"\1" * 8),
    "more members": said(21, *MANY, b"\1\0" * 1025, bytes(8 * 1025)),
    "half a port": said(21, "a", "h", "", b"\1\0\1", bytes(8)),
    "ports as text": said(21, "a", "h", "", "\1\0", bytes(8)),
    "one without an id": said(21, "a\n", "h\nh", "\n", b"\1\0" * 2, bytes(16)),
    "a long text": said(21, "a" * 257, "h", "", b"\1\0", bytes(8)),
    "an array of members": said(21, [], [], [], [], []),
    "a long header that is not of members": said(18, "x" * (MAX_HEADER_BYTES + 1)),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_an_answer_that_is_not_in_order_is_refused(name: str) -> None:
    header, checksum = BAD_ANSWERS[name]
    with pytest.raises(BadFrame):
        decode_answer(header, checksum, memoryview(b""))


def test_bulk_belongs_to_data_alone() -> None:
    header = encode_answer(1, ANSWERS["NotCached"][0])[PREFIX_BYTES:]
    checksum = xxhash.xxh3_64_intdigest(header, len(BULK))
    with pytest.raises(BadFrame, match="bulk"):
        decode_answer(header, checksum, memoryview(BULK))


def test_the_longest_list_of_members_fits() -> None:
    longest = tuple(
        Member(f"{n:064}", PeerAddress("h" * 255, 65535), 1 << 40, "ü" * 127 + "x")
        for n in range(MAX_MEMBERS)
    )
    frame = encode_answer(U64, Members(longest))
    assert heard_answer(frame) == (U64, Members(longest))
    assert MAX_HEADER_BYTES < len(frame) - PREFIX_BYTES <= MAX_MEMBERS_HEADER_BYTES
    with pytest.raises(BadFrame):
        encode_answer(1, Members((*longest, NODE)))
    thousand = [*(text[:-2] for text in MANY[:2]), MANY[2][:-1], b"\1\0" * 1024, bytes(8 * 1024)]
    _, found = decode_answer(*said(21, *thousand), memoryview(b""))
    assert found == Members((Member("a", PeerAddress("h", 1), 0),) * MAX_MEMBERS)


def test_what_failed_is_cut_at_a_character() -> None:
    for what in ("ü" * 5000, "x" + "ü" * 5000, "\udcff" * 9000):
        _, answer = heard_answer(encode_answer(1, Failed(what)))
        assert isinstance(answer, Failed)
        assert 8190 <= len(answer.what.encode()) <= 8192


def test_a_reason_is_bounded_in_bytes() -> None:
    """docs/peer-protocol.md: 8 KiB, however many characters that is."""
    for what, is_right in (("ü" * 4096, True), ("ü" * 4096 + "x", False), ("x" * 8193, False)):
        if is_right:
            assert decode_answer(*said(18, what), memoryview(b""))[1] == Failed(what)
            continue
        with pytest.raises(BadFrame):
            decode_answer(*said(18, what), memoryview(b""))


@pytest.mark.parametrize(
    "request_",
    [  # each of them is this node's own mistake
        Join(dataclasses.replace(NODE, id="two words")),
        Join(dataclasses.replace(NODE, node="a\nb")),
        Join(dataclasses.replace(NODE, address=PeerAddress("10.0.0.1", 0))),
        Leave(""),
        ReadBlock(CacheBlock(CHUNK), True),
    ],
    ids=repr,
)
def test_what_would_be_refused_is_not_sent(request_: Request) -> None:
    with pytest.raises(BadFrame):
        encode_request(1, request_)


@given(st.binary(max_size=200), st.booleans())
def test_bytes_are_a_frame_or_refused(data: bytes, is_right: bool) -> None:
    header, checksum = sealed(data) if is_right else (data, 0)
    for decode in (
        lambda: decode_prefix(data),
        lambda: decode_request(header, checksum),
        lambda: decode_answer(header, checksum, memoryview(b"")),
    ):
        try:
            decode()
        except BadFrame:
            pass


@pytest.mark.parametrize("kind", [1, 5, 18, 21])
@pytest.mark.parametrize("element", [b"\x90", b"\xc0", b"\x91" * 400 + b"\xc0", b"\xa1a"])
def test_a_header_becomes_no_more_than_some_multiple_of_itself(kind: int, element: bytes) -> None:
    """1 MB of empty arrays becomes 65 MB where arrays may be nested."""
    limit = MAX_MEMBERS_HEADER_BYTES if kind == 21 else MAX_HEADER_BYTES
    count = (limit - 20) // len(element)
    fields = b"\xdd" + count.to_bytes(4, "big") + element * count
    lead = bytes((0x93 if kind == 18 else 0x97, kind, 0xCF))
    header, checksum = sealed(LEAD.pack(lead, 1) + fields)
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            _ = (
                decode_request(header, checksum)
                if kind < 16
                else decode_answer(header, checksum, memoryview(b""))
            )
        assert tracemalloc.get_traced_memory()[1] < 4 * len(header)
    finally:
        tracemalloc.stop()
