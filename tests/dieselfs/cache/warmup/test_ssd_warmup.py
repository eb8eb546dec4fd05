"""Several processes of a node warm one dataset at once, and each byte leaves the store once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.eviction import DatasetLimits
from chunkstore.ssd.limits_folder import LimitsFolder, NamedLimits
from chunkstore.ssd.tiered_store import MAX_WHOLE_BYTES, blocks_of
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers, open_tier
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up, warmth
from tests.forked_programs import start_forked

DATASET = DatasetRef("pets", b"an id 16 bytes..")
CHUNKS, CHUNK_BYTES = 12, 1_000_000
CHUNK_REFS = [
    ChunkRef(ChunkId(n.to_bytes(16, "big")), 1000, CHUNK_BYTES - 1000) for n in range(CHUNKS)
]

_WARMER = """
import sys
from pathlib import Path
from benchmarks.shared_slow_store import SharedSlowStore
from dieselfs.cache.ssd.settings import SsdSettings
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up
from tests.dieselfs.cache.warmup.test_ssd_warmup import CHUNK_REFS, DATASET
folder = Path(sys.argv[1])
settings = SsdSettings(folder / "ssd", 60 << 20)
work = ssd_warm_up(SharedSlowStore(folder), DATASET, settings, CHUNK_REFS)
print("ready", flush=True)
sys.stdin.readline()
report = work.run(lambda chunks, size: None, jobs=4)
print(report.loaded, report.cached_before, report.by_others, report.no_room)
"""


def test_each_chunk_leaves_the_store_once(tmp_path: Path) -> None:
    SharedSlowStore.make(tmp_path, seek_s=0.02)
    disk = SharedSlowStore(tmp_path)
    for chunk in CHUNK_REFS:
        disk.create(chunk_key(DATASET.name, chunk.id), [os.urandom(CHUNK_BYTES)])
    warmers = [
        start_forked([sys.executable, "-c", _WARMER, str(tmp_path)], env=os.environ)
        for _ in range(3)
    ]
    for warmer in warmers:
        assert warmer.stdout.readline() == b"ready\n"
    loaded = 0
    outputs = []
    for warmer in warmers:
        warmer.stdin.write(b"go\n")
        warmer.stdin.flush()
    for warmer in warmers:
        out, _ = warmer.communicate()
        assert warmer.returncode == 0
        outputs.append([int(number) for number in out.split()])
        loaded += outputs[-1][0]
    assert loaded == CHUNKS
    assert all(sum(counts) == CHUNKS for counts in outputs), outputs
    assert disk.state().bytes == CHUNKS * CHUNK_BYTES
    settings = SsdSettings(tmp_path / "ssd")
    assert warmth(open_tier(settings), DATASET, CHUNK_REFS).is_all
    end_tiers()


def test_a_chunk_of_several_pieces_is_one_chunk_and_a_quota_bounds(tmp_path: Path) -> None:
    SharedSlowStore.make(tmp_path)
    disk, size = SharedSlowStore(tmp_path), MAX_WHOLE_BYTES + 5000
    large = ChunkRef(ChunkId(b"L" * 16), 5000, size - 5000)
    for chunk in (large, CHUNK_REFS[0]):
        disk.create(
            chunk_key(DATASET.name, chunk.id), [bytes(chunk.head_bytes + chunk.payload_bytes)]
        )
    settings = SsdSettings(tmp_path / "ssd", 100 << 20)
    told: list[tuple[int, int]] = []
    report = ssd_warm_up(disk, DATASET, settings, [large]).run(lambda *done: told.append(done))
    assert (report.loaded, report.loaded_bytes) == (1, size)
    assert (sum(chunks for chunks, _ in told), sum(came for _, came in told)) == (1, size)
    assert len(told) == len(blocks_of(large.id, size))

    quota = DatasetLimits(quota_bytes=40 << 20)
    LimitsFolder(settings.folder).write(DATASET.id, NamedLimits(DATASET.name, quota))
    bound = ssd_warm_up(disk, DATASET, settings, [large, *CHUNK_REFS]).run(lambda *done: None)
    assert bound.cached_before == 1
    assert [of.detail for of in bound.refused if "quota" in of.detail]
    assert bound.no_room + bound.loaded + bound.failed == CHUNKS
    assert bound.no_room > 0
    end_tiers()


@pytest.mark.parametrize("size", [1, 5 << 20, MAX_WHOLE_BYTES, MAX_WHOLE_BYTES + 1, 40 << 20])
def test_pieces_cover_an_object_once(size: int) -> None:
    blocks = blocks_of(ChunkId(bytes(16)), size)
    assert [block.start for block in blocks] == [
        sum(before.length for before in blocks[:at]) for at in range(len(blocks))
    ]
    assert sum(block.length for block in blocks) == size
    assert [block.is_end for block in blocks] == [False] * (len(blocks) - 1) + [True]
