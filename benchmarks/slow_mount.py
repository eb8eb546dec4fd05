"""A mount over a slow disk, in the foreground: what `dlcmd mount` does, but for the store, which is
a `SlowStore`.

    python -m benchmarks.slow_mount STORE_FOLDER SNAPSHOT MOUNTPOINT --memory BYTES
        [--seed N --group N] [--fast] [--requests FILE] [--front NAME] [--allow-other]

Ends with SIGTERM, and writes then what the disk has been asked for into FILE.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.slow_store import SlowStore
from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.resilient import ResilientStore
from dieselfs.cache.node.task_folder import TaskFolder, default_task
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.fuse.fronts.front_parts import MountOptions
from dieselfs.fuse.mount import NOTHING_OBSERVED, run_mount
from dieselfs.fuse.supervision.handover import Handed
from dieselfs.fuse.supervision.shutdown import Shutdown
from dieselfs.fuse.supervision.supervisor import Supervisor
from dieselfs.shuffle.order import ShuffleParameters
from metadata.snapshot import Snapshot


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", type=int, help="follow the order with this group size")
    parser.add_argument("--fast", action="store_true", help="as fast as the disk really is")
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--front", default="auto")
    parser.add_argument("--allow-other", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return Supervisor(partial(_serve, options), sys.argv).run()


def _serve(options: argparse.Namespace, handed: Handed) -> int:
    disk = SlowStore(LocalDirectory(options.store))
    store: ObjectStore = LocalDirectory(options.store) if options.fast else disk
    shuffle = ShuffleParameters(options.seed, group_size=options.group) if options.group else None
    with Snapshot.open(options.snapshot) as snapshot:
        task = TaskFolder.at(default_task(snapshot.dataset))
        mount = MountOptions(
            options.mountpoint,
            task_folder=task.path,
            memory_bytes=options.memory,
            shuffle=shuffle,
            front=options.front,
            allow_other=options.allow_other,
        )
        reader = ChunkReader(ResilientStore(store), snapshot.dataset)
        memory = NodeMemory.open(task, reader, budget_bytes=options.memory, lead=True)
        try:
            run_mount(snapshot, memory, mount, handed, NOTHING_OBSERVED, Shutdown())
        finally:
            memory.close()
    if options.requests:
        options.requests.write_text(json.dumps(asdict(disk.statistics())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
