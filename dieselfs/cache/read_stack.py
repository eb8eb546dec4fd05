"""All that lies between the reads of one process and the object store.

    page cache → node memory → the task's peers → own SSD → cache cluster → store

Each part answers what it has cached and asks the next one for the rest. `ReadSettings` says which
parts there are, and `ReadStack` builds them. The page cache is the kernel's: a mount fills it
(`dieselfs.fuse.pages`).

The order is that of Meta's tiers: what is nearer is asked first. So a node's own SSD is in front of
the cluster, and what the cluster sends is offered to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import FileExtent
from chunkstore.ssd.allocated_quotas import AllocatedQuotas
from chunkstore.ssd.reader_tags import ReaderTags, dataset_tags
from chunkstore.stores.budgeted import BudgetedStore
from chunkstore.stores.object_store import ObjectReader, ObjectStore
from dieselfs.cache.cached_datasets import cached_datasets
from dieselfs.cache.cluster.options import configured_cluster
from dieselfs.cache.cluster.peers import CacheClusterPeers
from dieselfs.cache.cluster.statistics import CacheClusterStatistics, cache_cluster_statistics
from dieselfs.cache.cluster.store import CacheClusterStore
from dieselfs.cache.jobs.job_name import job_name
from dieselfs.cache.membership.peer_options import from_environment
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.peers.task_totals import TaskTotals, task_totals
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.verified_source import VerifiedSource
from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.ssd.settings import SsdChoice, SsdSettings, chosen_tier, shared_tier, size_of
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.cache.warmup.wanted_chunks import wanted_chunks
from dieselfs.config import TASK_VARIABLE, Config, load_config
from dieselfs.errors import UsageError
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from chunkstore.stores.read_turn import Payer
    from dieselfs.allocation.readers.allocation_settings import AllocationSettings
    from dieselfs.allocation.readers.job_allocations import JobAllocations
    from dieselfs.cache.advice.recorder import Recorder, TraceSettings
    from dieselfs.cache.advice.recording_store import RecordingStore
    from dieselfs.cache.warmup.background_warmup import BackgroundWarmUp, SsdTierStatistics
    from dieselfs.cache.whereabouts import SsdPlace, Whereabouts

log = logging.getLogger(__name__)

_CLOSE_S: Final = 0.2
"""The time at the end for the warm-up, and for what is still to be recorded."""


def client_settings(
    *,
    memory_bytes: int | None = None,
    task: str | None = None,
    peers: PeerSettings | None = None,
    ssd: SsdChoice = "configured",
    config: Config | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ReadSettings:
    """Return the settings of a process that reads without a mount.

    The configuration and the environment give those that the caller omits, so that a job's script
    decides and training code needs no change. Without `config` it is that of the environment.
    Raises `UsageError` for settings that contradict each other, and `ConfigError` for variables
    that make no sense.
    """
    config = config or load_config(environment=environment)
    if peers is None:
        peers = from_environment(environment, task, config.index)
    elif task not in (None, peers.task):
        raise UsageError(
            f"task {task} differs from the task of the peers, {peers.task}",
            "give both the same name",
        )
    return ReadSettings(
        task=(task if peers is None else peers.task) or environment.get(TASK_VARIABLE) or None,
        memory_bytes=memory_bytes or size_of(config.memory),
        peers=peers,
        ssd=chosen_tier(ssd, config),
        cache_cluster=configured_cluster(config, environment),
        cached_datasets=cached_datasets(None, config),
        allocation=client_allocation(config, task if peers is None else peers.task, environment),
    )


def client_allocation(
    config: Config, task: str | None, environment: Mapping[str, str]
) -> AllocationSettings:
    """Return the settings of a client. Without a job it takes what it gets."""
    from dieselfs.allocation.readers.allocation_settings import AllocationSettings

    job = job_name(None, config.job, task or environment.get(TASK_VARIABLE), environment)
    return AllocationSettings(job, config.index.value, asks_unnamed=False)


class ReadStack:
    """The parts of one process for one dataset. Close it after the node memory that it opened."""

    def __init__(
        self,
        dataset: DatasetRef,
        store: ObjectStore,
        settings: ReadSettings,
        expected: ExpectedFiles,
        tags: ReaderTags | None = None,
    ) -> None:
        """Build the parts below node memory; chunks are verified against `expected`.

        Costs no request. Snapshots may be added to `expected` later. `tags` tell cache policies, of
        the SSD tier and of cache nodes, for which job this process reads. If the dataset is not one
        of `cached_datasets`, the tags say from now on that no SSD keeps what is read.
        """
        self._refusal = settings.cached_datasets.refusal(dataset.name)
        """Why no SSD keeps what is read; empty if they may."""
        if self._refusal:
            tags = tags or dataset_tags(dataset)
            tags.may_keep = False
            log.info("no SSD keeps what is read here: %s (cache_datasets)", self._refusal)
        self._dataset, self._settings, self._tags = dataset, settings, tags
        self.folder = settings.folder(dataset)
        self._recorder = None if settings.trace is None else _recorder(settings.trace)
        self.recording: RecordingStore | None = None
        """The store that records without an SSD tier, if anything does."""
        self.allocations = _allocations(dataset, settings)
        """The allocations of the jobs for which this process fetches; None: all take what they get.
        """
        self._payer = None if self.allocations is None else self.allocations.payer
        if self._payer is not None:
            store = BudgetedStore(store, self._payer, expected.object_bytes)
        self._below_ssd = below_ssd(store, dataset, settings, expected, tags, self._payer)
        self.source, self._cluster_source = self._make_source(expected)
        self._warm_up: BackgroundWarmUp | None = None

    def _make_source(self, expected: ExpectedFiles) -> tuple[VerifiedSource, PeerSource | None]:
        """Return the source below node memory, and the part of it that asks a cache cluster."""
        dataset, store, tags = self._dataset, self._below_ssd, self._tags
        ssd, cluster = self._settings.ssd, self._settings.cache_cluster
        if ssd is not None:
            from chunkstore.ssd.tiered_store import TieredStore

            store_of_cluster = None
            if isinstance(store, CacheClusterStore):
                store_of_cluster = store.source
                self._report_cached(store.cached_bytes)
            tiered = TieredStore(store, dataset, shared_tier(ssd), expected.object_bytes, tags)
            if self._recorder is not None:
                shared_tier(ssd).policies.observe(self._recorder)
            return ChunkReader(tiered, dataset, expected), store_of_cluster
        reader = ChunkReader(self._recorded(store, expected), dataset, expected)
        if cluster is None:
            return reader, None
        # Without an SSD in front, a cluster is asked for many files by one message a node.
        peers = CacheClusterPeers(cluster, dataset, tags, self._payer)
        self._report_cached(peers.cached_bytes)
        source = PeerSource(reader, peers)
        return source, source

    def _report_cached(self, of_cluster: Callable[[], int]) -> None:
        """Report what the cluster caches, or an SSD tier in front of it, if that has more."""
        ssd, id = self._settings.ssd, self._dataset.id
        if self.allocations is None:
            return
        from dieselfs.allocation.readers.observed import CachedDataset

        own = None if ssd is None else shared_tier(ssd)
        self.allocations.caches(
            CachedDataset(lambda: max(of_cluster(), 0 if own is None else own.held_bytes(id)))
        )

    def _recorded(self, store: ObjectStore, expected: ExpectedFiles) -> ObjectReader:
        """Return the store, with a recorder in front of it if requests are recorded."""
        if self._recorder is None:
            return store
        from dieselfs.cache.advice.recording_store import RecordingStore

        self.recording = RecordingStore(
            store, self._dataset, self._recorder, expected.object_bytes, self._tags
        )
        return self.recording

    def open_memory(self, *, lead: bool = False, join: bool = True) -> NodeMemory:
        """Join the task's memory, or create it; the caller closes it. See `NodeMemory.open`.

        The process that creates the task sets its peers; later processes use that setting.
        """
        settings, allocations = self._settings, self.allocations
        if lead and settings.ssd is not None:
            shared_tier(settings.ssd).start()
        memory = NodeMemory.open(
            self.folder,
            PeerSource(self.source, self.folder),
            budget_bytes=settings.memory_bytes,
            policy=settings.eviction,
            lead=lead,
            join=join,
            peers=settings.peers,
            job=None if settings.allocation is None else settings.allocation.member_job,
            payers=allocations,
        )
        if lead and settings.peers is not None and memory.task_statistics() is None:
            log.warning(
                "no peers: the master of task %s is another process, which has no peers",
                self.folder.path.name,
            )
        if allocations is not None and settings.cache_cluster is None:
            allocations.keeps_memory(memory.set_quota, memory.cached_bytes)
        return memory

    def read_by_requests(self, snapshot: Snapshot) -> None:
        """Note that this process reads a snapshot, and shows what it reads by its fetches alone.

        An allocator learns the dataset's size from this. A helper learns it if `open_memory`
        starts it afterwards. The SSD is warmed up, as `warm_up` says.
        """
        if self.allocations is not None:
            from dieselfs.allocation.readers.job_progress_meter import stored_bytes

            self.allocations.reads(stored_bytes(snapshot))
            self.allocations.measures_fetches()
        self.warm_up(snapshot)

    def warm_up(self, snapshot: Snapshot) -> None:
        """Load a snapshot's chunks onto the SSD in the background, if the settings ask for it."""
        ssd = self._settings.ssd
        if ssd is None or not ssd.warmup or self._refusal:
            return
        from dieselfs.cache.warmup.background_warmup import BackgroundWarmUp, OwnTier

        if self._warm_up is None:
            own = OwnTier(self._below_ssd, self._dataset, ssd)
            self._warm_up = BackgroundWarmUp(own, self._dataset)
        self._warm_up.load(wanted_chunks(snapshot))

    def whereabouts(self, file: FileExtent) -> Whereabouts:
        """Return where a file's bytes lie now. For people: it asks each part."""
        from dieselfs.cache.whereabouts import Whereabouts, in_node_memory

        ssd, cluster = self._settings.ssd, self._cluster_source
        return Whereabouts(
            str(file.chunk.id),
            file.chunk.object_bytes,
            file.length,
            in_node_memory(self.folder, file),
            None if ssd is None else self._on_ssd(ssd, file),
            None if cluster is None else cluster.owner(file.chunk.id),
            self._refusal or None,
        )

    def _on_ssd(self, ssd: SsdSettings, file: FileExtent) -> SsdPlace:
        from dieselfs.cache.whereabouts import on_ssd

        folder = os.fspath(ssd.folder)
        return on_ssd(shared_tier(ssd), folder, self._dataset, file, self._tags)

    def ssd_statistics(self) -> SsdTierStatistics | None:
        """Return the statistics of the SSD tier and its warm-up; None without a tier."""
        if self._settings.ssd is None:
            return None
        from dieselfs.cache.warmup.background_warmup import ssd_tier_statistics

        return ssd_tier_statistics(self._settings.ssd, self._warm_up)

    def cache_cluster_statistics(self) -> CacheClusterStatistics | None:
        """Return the statistics of the cache cluster; None without one."""
        source = self._cluster_source
        return None if source is None else cache_cluster_statistics(source)

    def close(self, left_s: Callable[[float], float] = lambda seconds: seconds) -> None:
        """Stop the warm-up. `left_s` bounds the time that is given to it."""
        if self._warm_up is not None:
            self._warm_up.close(left_s(_CLOSE_S))
            self._warm_up = None
        if self._recorder is not None:
            self._recorder.close(left_s(_CLOSE_S))
        if self.allocations is not None:
            self.allocations.close(left_s(_CLOSE_S))


def _allocations(dataset: DatasetRef, settings: ReadSettings) -> JobAllocations | None:
    """Return what is allocated to readers of the dataset, which keep the quotas of their SSD."""
    if settings.allocation is None:
        return None
    from dieselfs.allocation.readers.job_allocations import JobAllocations
    from dieselfs.allocation.readers.observed import CachedDataset

    found = JobAllocations(settings.allocation, dataset, has_tier=settings.ssd is not None)
    if settings.ssd is not None and settings.cache_cluster is None:
        tier = shared_tier(settings.ssd)
        found.caches(
            CachedDataset(
                lambda: tier.held_bytes(dataset.id),
                lambda held_bytes: tier.taken_bytes(dataset.id),
                tier.needed_bytes,
                lambda: tier.region_bytes,
            )
        )
        found.keeps(AllocatedQuotas(settings.ssd.folder).write)
    return found


def _recorder(settings: TraceSettings) -> Recorder:
    from dieselfs.cache.advice.recorder import Recorder

    return Recorder(settings)


def peer_statistics(memory: NodeMemory) -> TaskTotals | None:
    """Return the totals of the task's peer cache; None without peers."""
    found = memory.task_statistics()
    return None if found is None else task_totals(found)


def below_ssd(
    store: ObjectStore,
    dataset: DatasetRef,
    settings: ReadSettings,
    known: ExpectedFiles,
    tags: ReaderTags | None = None,
    payer: Payer | None = None,
) -> ObjectStore:
    """Return the store from which an SSD tier is filled: the store, through a cluster if any.

    Without an SSD tier this is the store itself.
    """
    if settings.ssd is None or settings.cache_cluster is None:
        return store
    return CacheClusterStore(store, dataset, known, settings.cache_cluster, tags, payer)
