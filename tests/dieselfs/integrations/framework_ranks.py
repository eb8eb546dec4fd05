"""Ranks of a training framework: forked processes with the environment that `torchrun` gives.

Each rank records every batch that it trained under the number of the step. A rank may kill itself
at a step, as a machine that fails does, and the record stays.
"""

import json
import multiprocessing
import os
import signal
import socket
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from tests.dieselfs.integrations.conftest import PATHS, content
from tests.eventually import eventually

TRAIN = [path for path in PATHS if path.startswith("train/")]


class Numbers(Dataset[int]):
    """The files below `train` of a mount: a sample is the number of a file, read from the file."""

    def __init__(self, root: Path) -> None:
        self.samples = [(f"{root}/{path}", 0) for path in TRAIN]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        data = Path(self.samples[index][0]).read_bytes()
        assert data == content(TRAIN[index])
        return index


@dataclass(frozen=True)
class Record:
    """The trained batches of a rank, a line each."""

    file: Path
    kill_at: int | None = None

    def trained(self, step: int, epoch: int, batch: list[int]) -> None:
        """Note a batch; kill the rank and its workers instead if it is the one to be killed at."""
        if step == self.kill_at:
            os.killpg(0, signal.SIGKILL)
        with open(self.file, "a") as lines:
            lines.write(json.dumps([step, epoch, batch]) + "\n")

    def steps(self) -> dict[int, tuple[int, list[int]]]:
        """Return epoch and batch of each step; a step that was trained again had the same."""
        found: dict[int, tuple[int, list[int]]] = {}
        for line in self.file.read_text().splitlines():
            step, epoch, batch = json.loads(line)
            assert found.setdefault(step, (epoch, batch)) == (epoch, batch)
        assert list(found) == list(range(len(found)))
        return found


Train = Callable[[Path, Record], None]
"""A training over a mount, with a folder for checkpoints. The rank is in the environment."""


def run(
    train: Callable[..., Any],
    mount: Path,
    folder: Path,
    kill_at: int | None = None,
    world_size: int = 2,
    **options: Any,
) -> list[dict[int, tuple[int, list[int]]]]:
    """Train with several ranks, and return the record of each."""
    folder.mkdir(exist_ok=True)
    fork = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    records = [Record(folder / f"rank{rank}", kill_at) for rank in range(world_size)]
    for record in records:
        record.file.touch()
    ranks = [
        fork.Process(
            target=_rank,
            args=(train, mount, folder, records[rank], rank, world_size, port, options),
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    codes = [process.exitcode for process in ranks]
    if kill_at is None:
        assert codes == [0] * world_size, _errors(folder)
    else:
        assert codes == [-signal.SIGKILL] * world_size, _errors(folder)
    return [record.steps() for record in records]


def check_plan(mount: Path) -> None:
    """Wait until the mount says that chunks were read that it fetched ahead for a plan."""

    def is_followed() -> bool:
        statistics = json.loads((mount / ".dieselfs" / "stats.json").read_text())
        return bool(statistics["cache"]["node"]["prefetched_used"])

    eventually(is_followed, "chunks that were fetched for a plan")


def check_epochs(ranks: list[dict[int, tuple[int, list[int]]]], epochs: int) -> None:
    """Each epoch has every file once, in an order of its own."""
    orders = []
    for epoch in range(epochs):
        order = [
            sample
            for steps in ranks
            for of_epoch, batch in steps.values()
            if of_epoch == epoch
            for sample in batch
        ]
        assert Counter(order) == Counter(range(len(TRAIN)))
        orders.append(order)
    assert len({tuple(order) for order in orders}) == epochs


def _rank(
    train: Callable[..., Any],
    mount: Path,
    folder: Path,
    record: Record,
    rank: int,
    world_size: int,
    port: int,
    options: dict[str, Any],
) -> None:
    # Workers notice the death of their process after 5 s, and their rank is waited for until then.
    os.setsid()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "tests",
        "ACCELERATE_USE_CPU": "true",
    }
    warnings.simplefilter("ignore")  # the frameworks' own are not ours to mend
    torch.set_num_threads(1)
    errors = folder / f"error{rank}"
    errors.unlink(missing_ok=True)
    try:
        train(mount, folder, record, **options)
    except BaseException:
        errors.write_text(traceback.format_exc())
        os._exit(1)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _errors(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.glob("error*")))
