"""Three nodes read below real mounts; one of them dies in mid-epoch, with its mount, and is started
again."""

from __future__ import annotations

import os

import pytest

from tests.eventually import eventually, scaled_by_load
from tests.peers.task_nodes import TaskNodes, make_dataset
from tests.services.network_nodes import network_nodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are made by root")

FILES, SIZE_BYTES, CHUNK_BYTES = 256, 16 << 10, 128 << 10
MEMORY_BYTES = FILES * SIZE_BYTES * 65 // 100
BOUND_S = 8.0


def test_a_node_is_killed_in_mid_epoch_and_started_again() -> None:
    with network_nodes(3) as network, network.redis() as server:
        dataset = make_dataset(network.folder, FILES, SIZE_BYTES, CHUNK_BYTES)
        nodes = TaskNodes(network, dataset, server.url)
        lost = network.nodes[-1]
        with nodes.mounts(MEMORY_BYTES, nodes=network.nodes[:-1]) as readers:
            with nodes.mounts(MEMORY_BYTES, nodes=[lost]) as [reader]:
                everybody = [*readers, reader]
                for each in everybody:
                    each.read(seed=1)
                before = [len(each.hear()) for each in everybody]
                for seed, each in enumerate(everybody):
                    each.tell(read="files", seed=seed, epochs=4)
                eventually(lambda: reader.files() > FILES * 5 // 4, "the middle of an epoch")
                lost.end_processes()
                for each, said in zip(readers, before, strict=False):
                    ended = each.end_of_read(said)
                    assert ended["files"] == 4 * FILES
                    assert ended["longest_s"] < scaled_by_load(BOUND_S)
            sent = lost.sent_bytes()
            with nodes.mounts(MEMORY_BYTES, nodes=[lost]) as [reader]:
                assert reader.read(seed=3)["files"] == FILES

                def serves_again() -> bool:
                    for each in readers:
                        each.read(seed=4)
                    return lost.sent_bytes() - sent > 20 * SIZE_BYTES

                eventually(serves_again, "service by the node that was started again")
