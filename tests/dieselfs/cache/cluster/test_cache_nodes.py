"""A cache cluster of real processes: each chunk leaves the store once, and whatever happens to a
node costs reads of the store and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.node_settings import CacheNodeSettings
from dieselfs.cache.cluster.status import cluster_nodes
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ssd.settings import SsdSettings
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, NodeProcess, RingClient, ring_of
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import PATIENT, run_forked
from tests.heap_arenas import arenas
from tests.peers.task_nodes import DLCMD, PeerDataset, make_dataset
from tests.services.redis_processes import free_port

MOST_S = 20.0
"""No read takes longer, whatever happens: two owners are given up after a second each, and machines
that run tests stall."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    """About 30 chunks of 1 MiB."""
    return make_dataset(tmp_path_factory.mktemp("dataset"), 300, 100_000)


@pytest.fixture(scope="module")
def three(
    dataset: PeerDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[NodeProcess]]:
    with ring_of(tmp_path_factory.mktemp("three") / "cache_cluster", dataset, 3) as nodes:
        yield nodes


@pytest.fixture
def client_of(dataset: PeerDataset) -> Iterator[Callable[..., RingClient]]:
    made = []

    def make(nodes: list[NodeProcess], **options: str) -> RingClient:
        made.append(RingClient(dataset, [node.address for node in nodes], **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def read_all(client: RingClient, seed: int = 0) -> float:
    """Every file of every chunk, each compared; in which the slowest read took how many seconds."""
    files = client.files
    random.Random(seed).shuffle(files)
    slowest = 0.0
    for file in files:
        began = time.monotonic()
        content = client.source.read(file, 0, file.length)
        slowest = max(slowest, time.monotonic() - began)
        assert content == client.reader.read(file, 0, file.length)
    return slowest


def warm(client: RingClient) -> None:
    for chunk in client.chunks:
        client.source.whole(chunk)


def from_store(dataset: PeerDataset, read: Callable[[], object]) -> int:
    before = dataset.from_store_bytes()
    read()
    return dataset.from_store_bytes() - before


def have_stalled(nodes: list[NodeProcess]) -> bool:
    """Whether an SSD did not answer in time, as on machines that run tests."""
    return any("out of service" in node.log for node in nodes)


def costs(
    dataset: PeerDataset, nodes: list[NodeProcess], read: Callable[[], object], wanted: int
) -> bool:
    """Whether so many bytes are read of the store; more, where an SSD did not answer in time."""
    found = from_store(dataset, read)
    return found == wanted or (found > wanted and have_stalled(nodes))


@pytest.mark.usefixtures("patience")
def test_each_chunk_leaves_the_store_once_however_many_read(
    dataset: PeerDataset, three: list[NodeProcess], client_of: Callable[..., RingClient]
) -> None:
    clients = [client_of(three) for _ in range(3)]
    reads: list[Callable[[], object]] = [
        lambda: warm(clients[0]),
        lambda: [clients[1].source.read(file, 0, file.length) for file in clients[1].files],
        lambda: clients[2].source.read_many(clients[2].files),
    ]

    def all_at_once() -> None:
        with ThreadPoolExecutor(len(reads)) as threads:
            for done in [threads.submit(read) for read in reads]:
                done.result()

    assert costs(dataset, three, all_at_once, clients[0].object_bytes)
    by_clients = sum(client.source.statistics().bytes_from_store for client in clients)
    assert not by_clients or have_stalled(three)
    assert read_all(clients[1]) < MOST_S
    shown = cluster_nodes(clients[0].settings)
    by_nodes = sum(node.status.from_store_bytes for node in shown if node.status)
    assert by_nodes >= clients[0].object_bytes
    assert all(node.status and node.status.served_bytes for node in shown)
    assert [arenas(node.process.pid) for node in three if node.process] == [0, 0, 0]


@pytest.mark.usefixtures("patience")
def test_parts_of_files(
    dataset: PeerDataset, three: list[NodeProcess], client_of: Callable[..., RingClient]
) -> None:
    client = client_of(three)
    for file in random.Random(3).sample(client.files, 20):
        part = client.source.read(file, 1000, 5000)
        assert part == client.reader.read(file, 1000, 5000)
    assert client.source.statistics().bytes_from_store == 0


@pytest.mark.usefixtures("patience")
def test_a_forked_child_and_a_pickled_copy_read_through_the_ring(
    dataset: PeerDataset, three: list[NodeProcess], client_of: Callable[..., RingClient]
) -> None:
    client = client_of(three)
    warm(client)
    file = client.files[5]

    def reads(source: PeerSource) -> bool:
        before = source.statistics().bytes_from_peers
        found = source.read(file, 0, file.length)
        return found == client.reader.read(file, 0, file.length) and (
            source.statistics().bytes_from_peers == before + file.length
        )

    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if reads(client.source) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    copy = pickle.loads(pickle.dumps(client.source))
    try:
        assert copy.nodes() == {}, "it asks nobody before it reads"
        assert reads(copy)
        assert set(copy.nodes().values()) == {True}
    finally:
        copy._peers.close()


def test_a_client_with_another_secret_is_refused_and_reads_the_store(
    dataset: PeerDataset, three: list[NodeProcess], client_of: Callable[..., RingClient]
) -> None:
    stranger = client_of(three, secret="not the secret of the cache cluster")
    assert read_all(stranger) < MOST_S
    read = stranger.source.statistics()
    assert read.bytes_from_peers == 0
    assert read.bytes_from_store == sum(file.length for file in stranger.files)


def test_a_client_of_another_ring_is_refused_though_it_has_the_secret(
    dataset: PeerDataset, three: list[NodeProcess], client_of: Callable[..., RingClient]
) -> None:
    stranger = client_of(three, name="another")
    assert read_all(stranger) < MOST_S
    assert stranger.source.statistics().bytes_from_peers == 0


def test_what_the_ring_shows_of_itself(
    dataset: PeerDataset, three: list[NodeProcess], tmp_path: Path
) -> None:
    command = [
        *(sys.executable, str(DLCMD), "cluster", "--json"),
        "r@" + ",".join(str(node.address) for node in three),
    ]
    environment = {
        **os.environ,
        "DIESELFS_CACHE_CLUSTER_SECRET": SECRET,
        "XDG_DATA_HOME": str(tmp_path),
        PATIENT: "1",
    }
    nodes: list[dict[str, Any]] = []

    def are_in_service() -> bool:
        shown = run_forked(command, env=environment, timeout=PATIENCE_S)
        shown.check_returncode()
        nodes[:] = map(json.loads, shown.stdout.splitlines())
        return all(node["ssd_in_service"] for node in nodes)

    eventually(are_in_service, "all SSDs are in service")
    assert [node["node"] for node in nodes] == sorted(str(node.address) for node in three)
    assert all(node["share"] == pytest.approx(1 / 3, abs=0.001) for node in nodes)
    assert {node["ssd_bytes"] for node in nodes} == {256 << 20}
    assert {node["policy"]["name"] for node in nodes} == {"lru"}


def test_a_node_that_stops_or_dies_costs_reads_of_the_store(
    dataset: PeerDataset, tmp_path: Path, client_of: Callable[..., RingClient]
) -> None:
    with ring_of(tmp_path / "cache_cluster", dataset, 2) as nodes:
        client = client_of(nodes)
        warm(client)
        slowest: list[float] = []

        def read_while(fault: Callable[[], object]) -> None:
            """The fault comes in the middle of it."""
            has_begun = threading.Event()

            def read() -> None:
                client.source.read(client.files[0], 0, client.files[0].length)
                has_begun.set()
                slowest.append(read_all(client, len(slowest)))

            reader = threading.Thread(target=read)
            reader.start()
            assert has_begun.wait(PATIENCE_S)
            fault()
            reader.join(PATIENCE_S)

        read_while(lambda: nodes[0].send(signal.SIGSTOP))
        # The other node takes the share over: who comes now reads the store once, and the next one
        # not at all, unless that node was late too.
        later = client_of(nodes)
        warm(later)
        eventually(lambda: costs(dataset, nodes, lambda: warm(later), 0), "the store is not read")
        read_while(lambda: nodes[1].end(signal.SIGKILL))
        read_while(lambda: nodes[0].send(signal.SIGCONT))
        assert len(slowest) == 3, "no read fails"
        assert max(slowest) < MOST_S
        assert client.source.statistics().fallbacks["corrupt"] == 0

        def is_back() -> bool:
            known = client.source.nodes()
            return known[str(nodes[0].address)] and not known[str(nodes[1].address)]

        eventually(is_back, "the node that was stopped is asked again")
        before = client.source.statistics().bytes_from_peers

        def is_asked() -> bool:
            warm(client)
            return client.source.statistics().bytes_from_peers > before

        eventually(is_asked, "the node sends chunks")  # it may be late once more


@pytest.mark.usefixtures("patience")
def test_a_node_that_joins_takes_its_share_and_no_more(
    dataset: PeerDataset,
    tmp_path: Path,
    client_of: Callable[..., RingClient],
    redis_url: str,
) -> None:
    name = f"joined-{os.getpid()}"
    with ring_of(tmp_path / "cache_cluster", dataset, 2, name, index=redis_url) as nodes:
        client = client_of(nodes, name=name, redis=redis_url)

        def placement() -> Placement:
            peers = client.source._current()
            assert peers is not None
            return peers.placement

        def nodes_seen() -> int:
            return sum(member.weight > 0 for member in placement().members)

        eventually(lambda: nodes_seen() == 2, "both nodes answer")
        assert costs(dataset, nodes, lambda: warm(client), client.object_bytes)
        before = placement()

        joined = NodeProcess(tmp_path / "cache_cluster/joined", dataset.disk, name, index=redis_url)
        nodes.append(joined)
        joined.start()
        joined.wait_until_ready()
        eventually(lambda: nodes_seen() == 3, "the node that has joined answers")
        owned = [
            chunk
            for chunk in client.chunks
            if placement().ranked(chunk.id)[0].id == str(joined.address)
        ]
        assert 0 < len(owned) < len(client.chunks) * 2 // 3
        for chunk in client.chunks:
            if chunk not in owned:
                assert placement().ranked(chunk.id)[0] == before.ranked(chunk.id)[0]
        moved = sum(chunk.head_bytes + chunk.payload_bytes for chunk in owned)
        assert costs(dataset, nodes, lambda: warm(client), moved)

        # It leaves in order: its chunks go back to who has them still.
        assert joined.end() == 0
        eventually(lambda: nodes_seen() == 2, "the node that has left is forgotten")
        assert costs(dataset, nodes, lambda: warm(client), 0)


@pytest.mark.usefixtures("patience")
def test_a_node_that_starts_again_has_what_its_ssd_holds(
    dataset: PeerDataset, tmp_path: Path, client_of: Callable[..., RingClient]
) -> None:
    with ring_of(tmp_path / "cache_cluster", dataset, 1) as [node]:
        client = client_of([node])
        warm(client)

        def written() -> bool:
            [shown] = cluster_nodes(client.settings)
            # Its cached bytes are whole regions, in which something may still be missing.
            return shown.policy is not None and shown.policy.written_bytes >= client.object_bytes

        eventually(written, "all of it is on the SSD")
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
        node.start()
        node.wait_until_ready()
        again = client_of([node])
        assert costs(dataset, [node], lambda: warm(again), 0)
        [shown] = cluster_nodes(client.settings)
        assert shown.status is not None
        of_both = shown.status.from_peers_bytes + shown.status.from_store_bytes
        assert of_both == client.object_bytes
        assert shown.status.from_peers_bytes > 0, "from its SSD"
        assert node.process is not None
        while node.process.poll() is None:  # however often it is told to
            node.process.send_signal(signal.SIGTERM)
            # Without a pause CPython calls handlers inside of handlers, until there is no stack
            # left.
            time.sleep(0.001)
        assert node.process.returncode == 0, node.log
        assert node.log.rstrip().endswith("ended")


@pytest.mark.usefixtures("patience")
def test_large_files_leave_the_store_once(tmp_path: Path) -> None:
    large = make_dataset(tmp_path, 1, 18 << 20)
    settings = CacheNodeSettings(
        "r",
        TaskSecret(SECRET.encode()),
        SsdSettings(tmp_path / "ssd", 128 << 20),
        PeerAddress("127.0.0.1", free_port()),
    )
    with CacheNode(settings, SharedSlowStore(large.disk)) as node:
        clients = [RingClient(large, [settings.address]) for _ in range(2)]
        try:
            [file] = clients[0].files
            wanted = clients[0].reader.read(file, 0, file.length)
            head = file.chunk.head_bytes

            def read() -> None:
                for client in clients:
                    assert client.source.read(file, 0, file.length) == wanted

            # The head, with the hashes of its blocks, once by each client and by the node.
            object_bytes = head + file.chunk.payload_bytes
            assert from_store(large, read) <= object_bytes + 3 * head
            assert all(client.source.statistics().bytes_from_store == 0 for client in clients)
            assert node.statistics().from_store_bytes <= object_bytes + head
        finally:
            for client in clients:
                client.close()
