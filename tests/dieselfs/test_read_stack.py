"""The read stack over a real cache node: who answers which read, and that damage ends at the
store."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.object_keys import chunk_key
from chunkstore.ssd import policy_runner
from chunkstore.ssd.policies.eligibility import Eligibility
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_events import Observed, PolicyRequest
from chunkstore.ssd.reader_tags import OneBucket, ReaderTags, dataset_tags
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.node_settings import CacheNodeSettings
from dieselfs.cache.cluster.peers import CacheClusterPeers, request_tags
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.store import CacheClusterStore
from dieselfs.cache.ports.peer_settings import StaticPeers
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.read_stack import ReadStack
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers, shared_tier
from dieselfs.cache.warmup.ssd_warmup import warmth
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET
from tests.dieselfs.cache.patience import be_patient
from tests.eventually import PATIENCE_S, eventually
from tests.peers.task_nodes import PeerDataset, make_dataset
from tests.services.redis_processes import free_port

MIB = 1 << 20


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    """20 chunks of some 100 KB and more, of two files each."""
    return make_dataset(tmp_path_factory.mktemp("dataset"), 40, 50_000, 100_000)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no late node make a client read from the store, and no busy policy refuse a chunk."""
    be_patient(monkeypatch.setattr)
    monkeypatch.setattr(policy_runner, "WAIT_S", PATIENCE_S)


@pytest.fixture
def snapshot(dataset: PeerDataset) -> Iterator[Snapshot]:
    with Snapshot.open(dataset.snapshot) as found:
        yield found


@pytest.fixture
def node(dataset: PeerDataset, tmp_path: Path) -> Iterator[CacheNode]:
    settings = CacheNodeSettings(
        "r",
        TaskSecret(SECRET.encode()),
        SsdSettings(tmp_path / "node", 128 * MIB, choice=PolicyChoice(shadow="historic")),
        PeerAddress("127.0.0.1", free_port()),
    )
    with CacheNode(settings, SharedSlowStore(dataset.disk)) as found:
        yield found
    end_tiers()


def stack_of(
    dataset: PeerDataset,
    snapshot: Snapshot,
    node: CacheNode,
    ssd: Path | None,
    tags: ReaderTags | None = None,
    cached_datasets: str = "*",
    warmup: bool = False,
) -> ReadStack:
    settings = ReadSettings(
        cached_datasets=Eligibility.parse(cached_datasets),
        ssd=None if ssd is None else SsdSettings(ssd, 64 * MIB, warmup=warmup),
        cache_cluster=CacheClusterSettings(
            "r", TaskSecret(SECRET.encode()), StaticPeers((node._settings.listen,))
        ),
    )
    if settings.ssd is not None:
        assert shared_tier(settings.ssd).wait_until_open(60)
    disk = SharedSlowStore(dataset.disk)
    return ReadStack(snapshot.dataset, disk, settings, ExpectedFiles(snapshot), tags)


def files_of(snapshot: Snapshot) -> list[int]:
    return [
        inode
        for number in range(snapshot.chunk_count)
        for inode in snapshot.files_in_chunk(number)
        if snapshot.size(inode)
    ]


@pytest.mark.parametrize("with_ssd", [True, False])
def test_files_and_chunks_come_through_the_cluster_and_not_from_the_store(
    dataset: PeerDataset, snapshot: Snapshot, node: CacheNode, tmp_path: Path, with_ssd: bool
) -> None:
    stack = stack_of(dataset, snapshot, node, tmp_path / "own" if with_ssd else None)
    for inode in files_of(snapshot):
        file = snapshot.extent(inode)
        assert len(stack.source.read(file, 0, file.length)) == file.length
    cluster = stack.cache_cluster_statistics()
    assert cluster is not None
    assert cluster.bytes_from_store == 0
    assert cluster.bytes_from_nodes >= dataset.bytes


@pytest.mark.parametrize("with_ssd", [True, False])
def test_nodes_learn_for_whom_a_process_reads(
    dataset: PeerDataset, snapshot: Snapshot, node: CacheNode, tmp_path: Path, with_ssd: bool
) -> None:
    assert node.tier.runner is not None
    observed: list[Observed] = []
    node.tier.runner.observe = observed.append
    tags = ReaderTags(OneBucket(Bucket("train")), "resnet")
    stack = stack_of(dataset, snapshot, node, tmp_path / "own" if with_ssd else None, tags)
    for number in range(2):
        tags.epoch = number
        stack.source.payload(snapshot.chunk(number))
    requests = [one for one in observed if isinstance(one, PolicyRequest)]
    assert [(one.job, one.epoch, one.bucket) for one in requests] == [
        ("resnet", 0, "train"),
        ("resnet", 1, "train"),
    ]
    tags.may_keep = False
    stack.source.payload(snapshot.chunk(2))
    assert len([one for one in observed if isinstance(one, PolicyRequest)]) == 2
    assert node.tier.wait_until_written(60)
    sizes = [ref.head_bytes + ref.payload_bytes for ref in map(snapshot.chunk, range(2))]
    assert node.tier.statistics().written_bytes == sum(sizes)
    rows = node.tier.runner.counts.all().items()
    assert {row.job for row, counts in rows if counts.miss_bytes} == {"resnet"}


@pytest.mark.parametrize("with_ssd", [True, False])
def test_no_ssd_keeps_a_dataset_that_is_not_eligible(
    dataset: PeerDataset, snapshot: Snapshot, node: CacheNode, tmp_path: Path, with_ssd: bool
) -> None:
    stack = stack_of(
        *(dataset, snapshot, node, tmp_path / "own" if with_ssd else None),
        cached_datasets=f"!{snapshot.dataset.name}",
        warmup=True,
    )
    stack.warm_up(snapshot)
    chunk = snapshot.chunk(0)
    assert len(stack.source.payload(chunk)) == chunk.payload_bytes
    file = snapshot.extent(snapshot.files_in_chunk(1)[0])
    assert len(stack.source.read(file, 0, file.length)) == file.length
    tiers = [node.tier, shared_tier(SsdSettings(tmp_path / "own"))] if with_ssd else [node.tier]
    for tier in tiers:
        assert tier.wait_until_written(60)
        statistics = tier.statistics()
        assert (statistics.written_bytes, statistics.not_admitted > 0) == (0, True)
    found = stack.whereabouts(file)
    assert found.not_eligible
    assert "left out by the pattern" in found.not_eligible
    ssd = stack.ssd_statistics()
    assert ssd is None or ssd.warmup is None


def test_tags_that_say_nothing_cost_nothing(snapshot: Snapshot) -> None:
    dataset = snapshot.dataset
    assert request_tags(dataset_tags(dataset), dataset) is None
    tags_of = request_tags(dataset_tags(dataset, "resnet"), dataset)
    assert tags_of is not None
    assert tags_of(snapshot.chunk(0).id) == RequestTags("resnet", 0, dataset.name)


def test_tags_travel_to_other_processes(dataset: PeerDataset, snapshot: Snapshot) -> None:
    cluster = CacheClusterSettings("r", TaskSecret(SECRET.encode()), StaticPeers(()))
    tags = ReaderTags(OneBucket(Bucket("train")), "resnet", 3)
    peers = CacheClusterPeers(cluster, snapshot.dataset, tags)
    *_, sent, _ = pickle.loads(pickle.dumps(peers))._arguments
    assert sent == tags


def test_a_read_of_one_file_brings_its_chunk_to_the_own_ssd(
    dataset: PeerDataset, snapshot: Snapshot, node: CacheNode, tmp_path: Path
) -> None:
    stack = stack_of(dataset, snapshot, node, tmp_path / "own")
    chunk = snapshot.chunk(0)
    file = snapshot.extent(snapshot.files_in_chunk(0)[0])
    stack.source.read(file, 0, file.length)
    tier = shared_tier(SsdSettings(tmp_path / "own"))
    eventually(lambda: warmth(tier, snapshot.dataset, [chunk]).is_all, "the chunk is on the SSD")
    cluster = stack.cache_cluster_statistics()
    assert cluster is not None
    before = cluster.bytes_from_nodes
    stack.source.payload(chunk)
    cluster = stack.cache_cluster_statistics()
    assert cluster is not None
    assert cluster.bytes_from_nodes == before


def test_what_a_node_sends_wrong_is_read_from_the_store_and_not_kept(
    dataset: PeerDataset, snapshot: Snapshot, node: CacheNode, tmp_path: Path
) -> None:
    through = stack_of(dataset, snapshot, node, None)
    file = snapshot.extent(snapshot.files_in_chunk(0)[0])
    key, start = (
        chunk_key(snapshot.dataset.name, file.chunk.id),
        file.chunk.head_bytes + file.offset,
    )
    expected = bytes(through.source.payload(file.chunk))[file.offset : file.offset + file.length]
    whole = node._parts.memory.whole(file.chunk.id.value)
    assert whole is not None
    wrong = bytearray(whole.payload)
    wrong[file.offset] ^= 1
    object.__setattr__(whole, "payload", memoryview(wrong))

    below = CacheClusterStore(
        SharedSlowStore(dataset.disk),
        snapshot.dataset,
        ExpectedFiles(snapshot),
        through._settings.cache_cluster,  # type: ignore[arg-type]
    )
    assert bytes(below.get_range(key, start, file.length)) != expected
    assert below.forget(key)
    assert bytes(below.get_range(key, start, file.length)) == expected
    assert not below.forget(key)
    below.close()

    own = stack_of(dataset, snapshot, node, tmp_path / "other")
    assert bytes(own.source.read(file, 0, file.length)) == expected


def test_the_source_is_pickled_for_the_task_s_helper(
    dataset: PeerDataset, snapshot: Snapshot, node: CacheNode, tmp_path: Path
) -> None:
    for ssd in (tmp_path / "own", None):
        source = pickle.loads(pickle.dumps(stack_of(dataset, snapshot, node, ssd).source))
        chunk = snapshot.chunk(1)
        assert len(source.payload(chunk)) == chunk.payload_bytes
        if ssd is not None:
            source._store._tier.close()  # the helper's own, which ends with it
