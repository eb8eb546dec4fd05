"""Records: golden bytes, damage, and the order of stamps."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from metadata import keys
from metadata.dataset_state import (
    hold,
    indexed_dataset,
    list_datasets,
    read_held,
    read_state,
    register_dataset,
)
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.memory import MemoryStore
from metadata.records import (
    EMPTY_STATE,
    ENTRY,
    ENTRY_BYTES,
    ChunkRecord,
    DatasetState,
    decode_entries,
    encode_entries,
    is_file,
    is_tombstone,
    record_versions,
)

GOLDEN_FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = {
    kind: record
    for name in ("records_v2.json", "records_v3.json")
    for kind, record in json.loads((GOLDEN_FOLDER / name).read_text()).items()
}
DATASET = DatasetRef("pets", bytes(range(16)))
CHUNK = ChunkId(bytes(range(100, 116)))
FILES = keys.files_of(DATASET.id, b"cat")
CHUNKS, STATE = keys.chunks_of(DATASET.id), keys.state_of(DATASET.id)
RECORD = ChunkRecord(9, 1_700_000_000_000_000_001, 4096, 1 << 22, 11, 10, 2, 4242, b"\x05\x01"[:2])
TOTALS = DatasetState(9, 1_700_000_000_000_000_001, 12, 345_678, 3, 2)


def entry(generation: int = 7, deleted: bool = False, placed: int = 8) -> np.ndarray:
    row = np.zeros(1, ENTRY)
    row["version"], row["placed"] = generation << 1 | deleted, placed
    row["chunk"] = np.frombuffer(CHUNK.value, "V16")
    row["offset"], row["length"], row["hash"] = 1 << 40, 100_001, 0x0102030405060708
    row["mtime_ns"], row["position"], row["mode"] = -5, 513, 0o100640
    row["record_version"] = 2
    return row


def link() -> np.ndarray:
    row = entry()
    row["length"], row["mode"] = 6, 0o120777
    row["record_version"] = record_versions(row["mode"])
    return row


def encoded() -> dict[str, tuple[bytes, bytes, bytes]]:
    """kind -> (key, field, value)."""
    index = MemoryStore()
    register_dataset(index, DATASET, 1_700_000_000_123_456_789)
    [[name]] = index.get_many([MapFields(keys.DATASETS, [b"pets"])])
    assert name is not None
    retired = ChunkRecord(12, 5, 0, 0, 0, 0, 0, 0, b"", retired=True)
    return {
        "entry": (FILES, b"1.jpg", encode_entries(FILES, [b"1.jpg"], entry())[0]),
        "deletion": (FILES, b"\xff", encode_entries(FILES, [b"\xff"], entry(deleted=True))[0]),
        "link": (FILES, b"link", encode_entries(FILES, [b"link"], link())[0]),
        "chunk": (CHUNKS, CHUNK.value, RECORD.encode(CHUNKS, CHUNK)),
        "retired chunk": (CHUNKS, CHUNK.value, retired.encode(CHUNKS, CHUNK)),
        "totals": (STATE, keys.TOTALS, TOTALS.encode(STATE, keys.TOTALS)),
        "applied": (STATE, keys.APPLIED, TOTALS.encode(STATE, keys.APPLIED)),
        "dataset name": (keys.DATASETS, b"pets", name),
    }


def decode(kind: str, key: bytes, field: bytes, value: bytes) -> object:
    if kind in ("entry", "deletion", "link"):
        return decode_entries(key, [field], [value])[0]
    if "chunk" in kind:
        return ChunkRecord.decode(key, field, value)
    if kind == "dataset name":
        index = MemoryStore()
        index.put([[MapUpdate(key, [field], [value])]])
        return indexed_dataset(index, field.decode())
    return DatasetState.decode(key, field, value)


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_golden_bytes(kind: str) -> None:
    """Changed? Then old indexes can't be read: raise RECORD_VERSION and keep the old reader."""
    key, field, value = encoded()[kind]
    assert (key.decode(), field.hex(), value.hex()) == tuple(GOLDEN[kind])


def test_every_kind_has_golden_bytes() -> None:
    assert encoded().keys() == GOLDEN.keys()


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_any_flipped_bit_is_found(kind: str) -> None:
    key, field, value = encoded()[kind]
    decode(kind, key, field, value)
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(RecordCorrupt):
            decode(kind, key, field, bytes(damaged))


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_a_value_of_another_length_or_place_is_refused(kind: str) -> None:
    key, field, value = encoded()[kind]
    for length in [0, 1, 7, 8, 15, 16, 17, 24, 25, len(value) - 1]:
        if length < 16 and kind == "dataset name":
            continue  # not a value: it has no stamp
        with pytest.raises(RecordCorrupt):
            decode(kind, key, field, value[:length])
    with pytest.raises(RecordCorrupt):
        decode(kind, key, field, value + b"\0")
    with pytest.raises(RecordCorrupt):
        decode(kind, key, field[:-1] + b"0", value)
    if kind != "dataset name":
        with pytest.raises(RecordCorrupt):
            decode(kind, key[:-1] + b"x", field, value)


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize("kind", ["entry", "chunk", "totals"])
def test_another_version_of_a_record_is_refused(kind: str, version: int) -> None:
    key, field, value = encoded()[kind]
    at = ENTRY.fields["record_version"][1] if kind == "entry" else 16
    for size in [len(value) - 8] if kind == "entry" else [len(value) - 8, 20, len(value) + 9]:
        body = bytearray(value[:-8].ljust(size, b"\0")[:size])
        body[at] = version
        sealed = bytes(body) + xxhash.xxh3_64_digest(key + field + bytes(body))
        with pytest.raises(RecordCorrupt, match=r"version.*dlcmd recover"):
            decode(kind, key, field, sealed)


def test_the_version_of_a_record_is_that_of_its_kind() -> None:
    """Releases that know no links read the records of files and directories, and no others."""
    modes = np.array([0o100644, 0o040755, 0o120777], np.uint16)
    assert record_versions(modes).tolist() == [2, 2, 3]
    assert is_file(link()).tolist() == [True]


def test_what_is_decoded_is_what_was_encoded() -> None:
    rows = np.concatenate([entry(), entry(3, True, 4)], dtype=ENTRY)
    names = [b"a", b"b"]
    found = decode_entries(FILES, names, encode_entries(FILES, names, rows))
    assert (found == rows).all()
    assert is_tombstone(found).tolist() == [False, True]
    assert is_file(found).tolist() == [True, False]
    assert len(decode_entries(FILES, [], [])) == 0
    assert ChunkRecord.decode(CHUNKS, CHUNK.value, RECORD.encode(CHUNKS, CHUNK)) == RECORD
    assert DatasetState.decode(STATE, b"totals", TOTALS.encode(STATE, b"totals")) == TOTALS


def test_the_first_damaged_value_is_named() -> None:
    rows = np.concatenate([entry()] * 3, dtype=ENTRY)
    names = [b"a", b"b", b"c"]
    values = encode_entries(FILES, names, rows)
    values[1] = values[1][:-1] + b"?"
    with pytest.raises(RecordCorrupt, match="'b'"):
        decode_entries(FILES, names, values)


def test_stamps_are_big_endian_whatever_numpy_did() -> None:
    """np.concatenate without a dtype makes rows native: such rows are not encoded at all."""
    native = np.concatenate([entry(), entry()])
    if native.dtype != ENTRY:
        with pytest.raises(AssertionError):
            encode_entries(FILES, [b"a", b"b"], native)
    for made in (
        np.concatenate([entry(), entry()], dtype=ENTRY),
        np.repeat(entry(), 2),
        np.delete(np.repeat(entry(), 3), [0]),
        np.repeat(entry(), 2)[[0, 1]],
    ):
        for value in encode_entries(FILES, [b"a", b"b"], made):
            assert len(value) == ENTRY_BYTES
            assert struct.unpack(">QQ", value[:16]) == (7 << 1, 8)


def test_a_deletion_beats_what_it_saw_and_loses_to_what_came_later() -> None:
    def stamp(*version: int) -> bytes:
        return encode_entries(FILES, [b"a"], entry(version[0], bool(version[1]), version[2]))[0][
            :16
        ]

    assert stamp(7, 0, 7) < stamp(7, 0, 9) < stamp(7, 1, 9) < stamp(8, 0, 8) < stamp(300, 0, 300)


def test_a_retired_chunk_stays_retired() -> None:
    retired = encoded()["retired chunk"][2]
    assert ChunkRecord.decode(CHUNKS, CHUNK.value, retired).retired
    for generation, holes in (1, 0), (11, 1), (1 << 40, 65_536):
        alive = ChunkRecord(generation, 0, 1, 1, 65_536, 1, holes, 0, b"\xff" * 8192)
        assert alive.encode(CHUNKS, CHUNK)[:16] < retired[:16]


def test_of_two_records_of_a_chunk_the_one_with_more_holes_is_the_later() -> None:
    def stamp(generation: int, holes: int) -> bytes:
        return ChunkRecord(generation, 0, 1, 1, 9, 9, holes, 0, b"\0\0").encode(CHUNKS, CHUNK)[:16]

    assert stamp(9, 0) < stamp(2, 1) < stamp(1, 9)
    assert stamp(5, 3) == stamp(6, 3)


def test_the_generation_held() -> None:
    index = MemoryStore()
    assert read_held(index, DATASET.id) is None
    hold(index, DATASET.id, 7)
    hold(index, DATASET.id, 5)
    assert read_held(index, DATASET.id) == 7
    [[value]] = index.get_many([MapFields(STATE, [keys.HELD])])
    assert value is not None
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        index.drop([STATE])
        index.put([[MapUpdate(STATE, [keys.HELD], [bytes(damaged)])]])
        with pytest.raises(RecordCorrupt):
            read_held(index, DATASET.id)


def test_datasets_by_name() -> None:
    index = MemoryStore()
    assert list_datasets(index) == []
    assert indexed_dataset(index, "pets") is None
    assert read_state(index, DATASET.id, keys.APPLIED) == EMPTY_STATE
    register_dataset(index, DATASET, 2_000)
    register_dataset(index, DatasetRef("a.b-c_d", bytes(16)), 1_000)
    assert list_datasets(index) == [DatasetRef("a.b-c_d", bytes(16)), DATASET]
    later, earlier = DatasetRef("pets", b"l" * 16), DatasetRef("pets", b"e" * 16)
    register_dataset(index, later, 3_000)
    register_dataset(index, earlier, 1_000)
    assert indexed_dataset(index, "pets") == later
