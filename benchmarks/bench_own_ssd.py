"""Does a node's own SSD answer in front of a cache cluster?

A node reads through a cache cluster of one node, and its own SSD tier is in front. After each chunk
has been read once, the own SSD has them all: reads of 110 KiB in random order that it answers, over
all reads. Bar: 99 %. Expected: all.

    python -m benchmarks.bench_own_ssd [--quick]
"""

from __future__ import annotations

import argparse
import random
import socket
from pathlib import Path

from benchmarks.bench_ssd_tier import DATASET, MIB, PATIENCE_S, Dataset, make_dataset
from benchmarks.harness import report, scratch
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.node_settings import CacheNodeSettings
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.ports.peer_settings import StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.read_stack import ReadStack
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers, shared_tier
from dieselfs.snapshots.expected_files import ExpectedFiles

SECRET = TaskSecret(b"the secret of a benchmark")


class KnownChunks(ExpectedFiles):
    """The chunks of a dataset without a snapshot."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._chunks = {chunk.id: chunk for chunk in dataset.chunks}

    def of(self, chunk: ChunkId) -> None:
        return None

    def chunk(self, chunk: ChunkId) -> ChunkRef | None:
        return self._chunks.get(chunk)

    def only_file(self, chunk: ChunkId) -> None:
        return None


def measure(folder: Path, *, quick: bool) -> None:
    dataset = make_dataset(folder / "store", 8 if quick else 50)
    listen = PeerAddress("127.0.0.1", _free_port())
    own = SsdSettings(folder / "own", 1024 * MIB)
    node = CacheNodeSettings("bench", SECRET, SsdSettings(folder / "node", 1024 * MIB), listen)
    cluster = CacheClusterSettings("bench", SECRET, StaticPeers((listen,)))
    with CacheNode(node, dataset.store):
        tier = shared_tier(own)
        if not tier.wait_until_open(PATIENCE_S):
            raise RuntimeError(f"the tier can't be opened: {tier.statistics().reason}")
        settings = ReadSettings(ssd=own, cache_cluster=cluster)
        stack = ReadStack(DATASET, dataset.store, settings, KnownChunks(dataset))
        for chunk in dataset.chunks:
            stack.source.whole(chunk)
            tier.wait_until_written(PATIENCE_S)
        before, filled = tier.statistics(), stack.cache_cluster_statistics()
        files = random.Random(1).sample(dataset.files, min(len(dataset.files), 1500))
        for file in files:
            stack.source.read(file, 0, file.length)
        after, read = tier.statistics(), stack.cache_cluster_statistics()
    end_tiers()
    hits, misses = after.hits - before.hits, after.misses - before.misses
    report(
        "reads answered by the own SSD, warm, in front of a cache cluster",
        share=hits / max(hits + misses, 1),
        reads=len(files),
        own_ssd_hits=hits,
        bytes_from_nodes=read.bytes_from_nodes - filled.bytes_from_nodes,
        filled_from_nodes=filled.bytes_from_nodes,
        filled_from_store=filled.bytes_from_store,
        bar=0.99,
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with scratch("own-ssd") as folder:
        measure(folder, quick=options.quick)


if __name__ == "__main__":
    main()
