"""Chunk objects damaged in a store: a mount gives EIO for the files that are hit and for no others,
and serves them when the object is back."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chunkstore.chunk_format import BLOCK_BYTES, PREAMBLE_BYTES, decode_head, encode_head
from metadata.snapshot import Snapshot
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.served import Place, Served, errno_of, paths_in_chunk

BOUND_S = 10.0
HEADER_HASH = "chunkstore.chunk_format:_verify_header=none"
PREAMBLE_HASH = "chunkstore.chunk_format:_verify_preamble=none"
LOST = "chunkstore.chunk_damage:KnownDamage.check=false"
DATASET = "chunkstore.chunk_reader:ChunkReader._checked=first"
LARGE_BYTES = 300_000
"""More than a block: its blocks' hashes are in the header."""
FILES = {
    f"c{number // 7:02}/f{number:03}": random.Random(number).randbytes(
        LARGE_BYTES if number % 7 == 3 else 4_000
    )
    for number in range(7 * 40)
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One that nobody has read yet."""

    number: int
    file: Path
    paths: list[str]
    head_bytes: int
    payload_bytes: int
    id: str


def is_large(path: str) -> bool:
    return len(FILES[path]) > BLOCK_BYTES


@dataclass(slots=True)
class Bench:
    place: Place
    snapshot: Snapshot
    mount: Served
    used: set[int] = field(default_factory=lambda: {0})
    """The chunks that tests have had. The mount looks for the first one."""

    def chunk(self, *, has_large: bool = False) -> Chunk:
        """One that no test has had, with a large file if the test needs one."""
        for number in range(self.snapshot.chunk_count):
            paths = paths_in_chunk(self.snapshot, number)
            if number not in self.used and (not has_large or any(map(is_large, paths))):
                break
        else:
            raise AssertionError("more chunks are needed")
        self.used.add(number)
        ref = self.snapshot.chunk(number)
        file = self.place.chunk_file(self.snapshot, number)
        return Chunk(number, file, paths, ref.head_bytes, ref.payload_bytes, str(ref.id))

    def extent(self, path: str) -> tuple[int, int]:
        inode = self.snapshot.resolve(path)
        assert inode is not None
        extent = self.snapshot.extent(inode)
        return extent.offset, extent.offset + extent.length

    def touching(self, chunk: Chunk, start: int, end: int) -> set[str]:
        """Files with bytes in [start, end) of the object."""
        at = [(path, *self.extent(path)) for path in chunk.paths]
        start, end = start - chunk.head_bytes, end - chunk.head_bytes
        return {path for path, first, last in at if first < end and start < last}

    def large(self, chunk: Chunk) -> set[str]:
        return set(filter(is_large, chunk.paths))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("damaged")
    place = Place(folder / "place")
    snapshot = place.make(FILES, target_bytes=LARGE_BYTES + 20_000)
    # Before EROFS the kernel reads ahead into the neighbours in the blob, so that what is damaged
    # later was read before: `test_blob_law`.
    options = ("--prefill", "0", "--front", "fuse")
    with place.mounted(folder / "mnt", *options) as mount:
        yield Bench(place, snapshot, mount)
    snapshot.close()


def check(
    bench: Bench,
    chunk: Chunk,
    measured: Measured,
    damage: Callable[[Path], None],
    hit: set[str],
) -> None:
    """Damage the object: exactly the files `hit` fail, the log says why; then put it back: all are
    read again, the files `hit` as soon as the damage is not known any more."""
    kept = chunk.file.with_name("kept")
    shutil.copy(chunk.file, kept)
    said = len(bench.mount.log)
    damage(chunk.file)
    sizes = {path: (bench.mount.path / path).stat().st_size for path in chunk.paths}
    failed = set()
    for path in chunk.paths:
        data = measured.call((bench.mount.path / path).read_bytes)
        if isinstance(data, OSError):
            assert data.errno == errno.EIO
            failed.add(path)
        else:
            assert data == FILES[path], f"wrong bytes of {path}"
    assert failed == hit
    assert sizes == {path: len(FILES[path]) for path in chunk.paths}
    assert chunk.id in bench.mount.log[said:]
    os.replace(kept, chunk.file)
    for path in chunk.paths:
        with measured.felt():
            if path in hit:
                eventually(lambda path=path: errno_of(bench.mount.path / path) is None, path)
            assert (bench.mount.path / path).read_bytes() == FILES[path]
    measured.note(f"EIO for {len(hit)} of {len(chunk.paths)} files")


def flipped(at: int) -> Callable[[Path], None]:
    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        replace(file, bytes(data))

    return flip


def replace(file: Path, data: bytes) -> None:
    """A new file: what has been read of the old one may be kept by anybody."""
    new = file.with_name("new")
    new.write_bytes(data)
    os.replace(new, file)


@pytest.mark.parametrize("length", ["nothing", "in the preamble", "in the header", "in the payload", "a byte less"])  # fmt: skip
@fault_case(
    "a chunk object cut off",
    promise="EIO for the files that lie behind the cut, the others are served",
    bound_s=BOUND_S,
    check=f"{LOST} + chunkstore.chunk_reader:_check_range=none"
    " + chunkstore.chunk_reader:verified_file=first + dieselfs.fuse.requests.file_reader:_require_all=none",
)
def test_truncated(bench: Bench, measured: Measured, length: str) -> None:
    chunk = bench.chunk()
    whole = chunk.head_bytes + chunk.payload_bytes
    kept = {
        "nothing": 0,
        "in the preamble": 30,
        "in the header": PREAMBLE_BYTES + 100,
        "in the payload": chunk.head_bytes + chunk.payload_bytes // 3,
        "a byte less": whole - 1,
    }[length]
    hit = bench.touching(chunk, kept, whole)
    check(bench, chunk, measured, lambda file: os.truncate(file, kept), hit)


HEADER_COLUMNS = ("dataset id", "count", "offset", "length", "hash", "mtime", "block hash", "path end", "mode", "kind", "name", "paths")  # fmt: skip


def header_at(chunk: Chunk, region: str) -> int:
    """A byte of the header's column: docs/chunk-format.md."""
    entries = decode_head(chunk.file.read_bytes()).entries
    n, blocks = len(entries), len(entries.block_hash)
    columns = 40 + 32 * n
    return (
        PREAMBLE_BYTES
        + {
            "dataset id": 3,
            "count": 16,
            "offset": 40 + 1,
            "length": 40 + 8 * n,
            "hash": 40 + 16 * n,
            "mtime": 40 + 24 * n,
            "block hash": columns,
            "path end": columns + 8 * blocks,
            "mode": columns + 8 * blocks + 4 * n,
            "kind": columns + 8 * blocks + 6 * n,
            "name": columns + 8 * blocks + 7 * n,
            "paths": columns + 8 * blocks + 7 * n + 1 + 2,
        }[region]
    )


@pytest.mark.parametrize("region", HEADER_COLUMNS)
@fault_case(
    "a bit flipped in a chunk's header",
    promise="files up to 256 KiB are served by what the snapshot says of them; EIO for larger ones, whose blocks' hashes are in the header",
    bound_s=BOUND_S,
    check={
        **dict.fromkeys(set(HEADER_COLUMNS) - {"count"}, HEADER_HASH),
        **dict.fromkeys(("dataset id", "name"), f"{HEADER_HASH} + {DATASET}"),
        "kind": f"{HEADER_HASH} + chunkstore.chunk_format:_check_entries=none",
    },
    why="the header's hash; with another count, the columns do not fit together",
)
def test_flipped_in_the_header(bench: Bench, measured: Measured, region: str) -> None:
    chunk = bench.chunk(has_large=True)
    check(bench, chunk, measured, flipped(header_at(chunk, region)), bench.large(chunk))


@pytest.mark.parametrize("at", [0, 8, 13, 20, 33, 41, 60])
@fault_case(
    "a bit flipped in a chunk's preamble",
    promise="as with a header",
    bound_s=BOUND_S,
    check={
        "0": f"{PREAMBLE_HASH} + chunkstore.chunk_format:_check_magic=none",
        "8": f"{PREAMBLE_HASH} + chunkstore.chunk_format:_check_version=none",
        "20": f"{PREAMBLE_HASH} + chunkstore.chunk_format:_check_id=none",
        "33": PREAMBLE_HASH,
        "41": f"{PREAMBLE_HASH} + {HEADER_HASH}",
        "60": PREAMBLE_HASH,
    },
    why="the preamble's own hash; with another length, columns of the header do not fit together",
)
def test_flipped_in_the_preamble(bench: Bench, measured: Measured, at: int) -> None:
    chunk = bench.chunk(has_large=True)
    check(bench, chunk, measured, flipped(at), bench.large(chunk))


@fault_case(
    "a bit flipped in a small file of a chunk",
    promise="EIO for that file, the others are served",
    bound_s=BOUND_S,
    check=f"{LOST} + chunkstore.chunk_reader:verified_file=first",
)
def test_flipped_in_a_file(bench: Bench, measured: Measured) -> None:
    chunk = bench.chunk()
    path = next(path for path in chunk.paths if path not in bench.large(chunk))
    at = chunk.head_bytes + bench.extent(path)[0] + 17
    check(bench, chunk, measured, flipped(at), {path})


@fault_case(
    "a bit flipped in a chunk's payload, the whole chunk being fetched",
    promise="what node memory keeps, and all readers get from there, is verified",
    bound_s=BOUND_S,
    check="chunkstore.chunk_reader:verify_files=none",
)
def test_flipped_in_a_fetched_chunk(bench: Bench, measured: Measured) -> None:
    chunk = bench.chunk()
    path = chunk.paths[-1]
    at = chunk.head_bytes + bench.extent(path)[1] - 1
    check(bench, chunk, measured, flipped(at), {path})


@pytest.mark.parametrize("block", [0, 1])
@fault_case(
    "a bit flipped in one block of a large file",
    promise="EIO for that file, the others are served",
    bound_s=BOUND_S,
    check="chunkstore.chunk_reader:verify_blocks=none",
)
def test_flipped_in_a_block(bench: Bench, measured: Measured, block: int) -> None:
    chunk = bench.chunk(has_large=True)
    path = min(bench.large(chunk))
    at = chunk.head_bytes + bench.extent(path)[0] + block * BLOCK_BYTES + 5
    check(bench, chunk, measured, flipped(at), {path})


@fault_case(
    "a chunk object missing",
    promise="EIO for its files, the log says which chunk; served when it is back",
    bound_s=BOUND_S,
    check="dieselfs.cache.node.damaged_blocks:DamagedBlocks.note=none"
    " + dieselfs.fuse.requests.read_failures:log_failure=none",
)
def test_missing(bench: Bench, measured: Measured) -> None:
    chunk = bench.chunk()
    check(bench, chunk, measured, os.unlink, set(chunk.paths))


@fault_case(
    "a chunk object replaced by another chunk of the same dataset",
    promise="EIO for its files",
    bound_s=BOUND_S,
    check=f"{LOST} + chunkstore.chunk_reader:verified_file=first",
)
def test_another_chunk(bench: Bench, measured: Measured) -> None:
    chunk, other = bench.chunk(), bench.chunk()
    data = other.file.read_bytes()
    check(bench, chunk, measured, lambda file: replace(file, data), set(chunk.paths))


@fault_case(
    "a chunk object replaced by one of another dataset that holds the very same files",
    promise="its files are served, since each is what the snapshot says; EIO for large ones, which the header must vouch for",
    bound_s=BOUND_S,
    check=DATASET,
)
def test_a_chunk_of_another_dataset(bench: Bench, measured: Measured) -> None:
    chunk = bench.chunk()
    data = chunk.file.read_bytes()
    head = decode_head(data)
    dataset = type(head.dataset)(head.dataset.name, bytes(16))
    forged = encode_head(head.chunk_id, dataset, head.payload_bytes, head.entries)
    foreign = forged + data[head.head_bytes :]
    check(bench, chunk, measured, lambda file: replace(file, foreign), bench.large(chunk))


@fault_case(
    "a chunk object replaced by one of the same id and lengths with other content, sound in itself",
    promise="EIO for the files that are not what the snapshot says, the others are served",
    bound_s=BOUND_S,
    check="chunkstore.chunk_reader:verify_expected=none",
)
def test_other_content(bench: Bench, measured: Measured) -> None:
    import dataclasses

    import xxhash

    chunk = bench.chunk()
    path = next(path for path in chunk.paths if path not in bench.large(chunk))
    data = bytearray(chunk.file.read_bytes())
    head = decode_head(bytes(data))
    first, last = bench.extent(path)
    data[head.head_bytes + first] ^= 0xFF
    hashes = head.entries.hash.copy()
    at = head.entries.paths.index(path.encode())
    content = data[head.head_bytes + first : head.head_bytes + last]
    hashes[at] = xxhash.xxh3_64_intdigest(content)
    entries = dataclasses.replace(head.entries, hash=hashes)
    forged = encode_head(head.chunk_id, head.dataset, head.payload_bytes, entries)
    assert len(forged) == head.head_bytes
    other = forged + bytes(data[head.head_bytes :])
    check(bench, chunk, measured, lambda file: replace(file, other), {path})


@fault_case(
    "a chunk object damaged while node memory and the page cache have it",
    promise="what was verified goes on being served",
    bound_s=BOUND_S,
    why="nobody asks the store again",
)
def test_damaged_behind_memory(bench: Bench, measured: Measured) -> None:
    chunk = bench.chunk()
    assert all((bench.mount.path / path).read_bytes() == FILES[path] for path in chunk.paths[:2])
    data = chunk.file.read_bytes()
    replace(chunk.file, b"")
    for path in chunk.paths:
        with measured.felt():
            assert (bench.mount.path / path).read_bytes() == FILES[path]
    replace(chunk.file, data)
    assert errno_of(bench.mount.path / chunk.paths[0]) is None
    measured.note("all served")
