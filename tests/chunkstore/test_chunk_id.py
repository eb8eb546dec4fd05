from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore import chunk_id
from chunkstore.chunk_id import ChunkId, ChunkIdGenerator, machine_field, parse_id, print_id

ids = st.binary(min_size=16, max_size=16)
MACHINE = b"\x00\x16\x3e\x01\x02\x03"


def clock_of(*seconds: float) -> Callable[[], float]:
    """A clock that shows these times, then the last one for good."""
    times = itertools.chain(seconds, itertools.repeat(seconds[-1]))
    return lambda: next(times)


def test_layout() -> None:
    """DIESEL Table 1: 4 bytes of timestamp, 6 of machine, 3 of process, 3 of counter; big-endian,
    so that ids sort by time."""
    ids = ChunkIdGenerator(lambda: 0x65432101 + 0.5, MACHINE)
    first, second = ids.next().value, ids.next().value
    assert len(first) == 4 + 6 + 3 + 3
    assert first[:4] == bytes.fromhex("65432101")
    assert first[4:10] == MACHINE
    assert first[10:13] == second[10:13]
    assert (first[13:], second[13:]) == (b"\0\0\0", b"\0\0\1")
    assert ChunkId(first).seconds == 0x65432101


class TestPrinting:
    @given(ids, ids)
    def test_names_sort_as_ids_do(self, one: bytes, other: bytes) -> None:
        assert (print_id(one) < print_id(other)) == (one < other)

    def test_plain_base64_would_not_sort(self) -> None:
        one, other = bytes(16), b"\xff" + bytes(15)
        assert base64.b64encode(one) > base64.b64encode(other)

    @given(ids)
    def test_round_trip(self, value: bytes) -> None:
        text = print_id(value)
        assert len(text) == 22
        assert set(text) <= set("-_") | set(
            map(chr, [*range(48, 58), *range(65, 91), *range(97, 123)])
        )
        assert parse_id(text) == value
        assert ChunkId.parse(str(ChunkId(value))) == ChunkId(value)

    def test_known_names(self) -> None:
        assert print_id(bytes(16)) == "-" * 22
        assert print_id(b"\xff" * 16) == "z" * 21 + "k"
        assert print_id(bytes(range(16))) == "--31-kF40VR71FcA2-oD2k"

    @given(ids)
    def test_the_words_of_the_document(self, value: bytes) -> None:
        """Base64 of the 16 bytes: 22 times 6 bits, the last 4 of them 0."""
        alphabet = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
        number = int.from_bytes(value, "big") << 4
        digits = [number >> shift & 63 for shift in range(126, -1, -6)]
        assert print_id(value) == "".join(alphabet[digit] for digit in digits)

    @pytest.mark.parametrize(
        "text",
        ["", "-" * 21, "-" * 23, "-" * 21 + "0", "-" * 21 + "=", "+" * 22, "/" * 22,
         "-" * 20 + "==", "-" * 21 + "\n", "é" * 22, " " + "-" * 21, "A" * 24, "-" * 22 + "\n"],
    )  # fmt: skip
    def test_nothing_else_is_an_id(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse_id(text)

    @given(st.text("-_0AZaz+/=\n", max_size=26))
    def test_only_what_was_printed_is_parsed(self, text: str) -> None:
        try:
            value = parse_id(text)
        except ValueError:
            return
        assert print_id(value) == text

    @pytest.mark.parametrize("size", [0, 15, 17])
    def test_an_id_has_16_bytes(self, size: int) -> None:
        with pytest.raises(ValueError):
            ChunkId(bytes(size))


class TestUniqueAndIncreasing:
    @given(st.lists(st.floats(-1e9, 4e9), min_size=1, max_size=50))
    def test_whatever_the_clock_shows(self, seconds: list[float]) -> None:
        ids = ChunkIdGenerator(clock_of(*seconds), MACHINE)
        made = [ids.next() for _ in range(len(seconds) + 5)]
        assert made == sorted(set(made))

    def test_a_clock_that_steps_back_keeps_its_second(self) -> None:
        ids = ChunkIdGenerator(clock_of(100, 40, 99, 101), MACHINE)
        made = [ids.next() for _ in range(4)]
        assert [found.seconds for found in made] == [100, 100, 100, 101]
        assert made == sorted(set(made))

    def test_a_full_second_borrows_the_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chunk_id, "COUNTER_LIMIT", 3)
        ids = ChunkIdGenerator(lambda: 100, MACHINE)
        made = [ids.next() for _ in range(8)]
        assert [found.seconds for found in made] == [100] * 3 + [101] * 3 + [102] * 2
        assert made == sorted(set(made))

    def test_the_last_count_of_a_second(self) -> None:
        """2^24 counts fit three bytes, and one more does not."""
        assert chunk_id.COUNTER_LIMIT == 1 << 24
        ids = ChunkIdGenerator(lambda: 100, MACHINE)
        ids.next()
        ids._counter = (1 << 24) - 1
        last, borrowed = ids.next(), ids.next()
        assert (last.seconds, last.value[13:]) == (100, b"\xff\xff\xff")
        assert (borrowed.seconds, borrowed.value[13:]) == (101, b"\0\0\0")

    def test_threads(self) -> None:
        ids = ChunkIdGenerator()
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: [ids.next() for _ in range(2000)], range(8)))
        assert all(part == sorted(part) for part in made)
        assert len({found for part in made for found in part}) == 16_000


def test_a_forked_child_makes_other_ids() -> None:
    """Containers share process numbers, and a child its parent's memory: the process field is drawn
    again."""
    ids = ChunkIdGenerator(lambda: 100, MACHINE)
    before = ids.next()
    parts = []
    for _ in range(3):
        reader, writer = os.pipe()
        with ids._lock:  # a thread of the parent may hold it at that moment
            child = os.fork()
            if child == 0:  # pragma: no cover
                os.write(writer, ids.next().value)
                os._exit(0)
        os.close(writer)
        parts.append(os.read(reader, 16)[10:13])
        os.close(reader)
        os.waitpid(child, 0)
    assert len({*parts, before.value[10:13]}) == 4
    assert ids.next().value[10:13] == before.value[10:13]


def test_the_machine_field() -> None:
    assert machine_field() == machine_field()
    assert len(machine_field()) == 6
