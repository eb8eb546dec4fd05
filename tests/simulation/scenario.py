"""What a seed stands for: a task, its readers, and what happens to it. Pure: the same seed is the
same scenario for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from dieselfs.cache.ports.peer_settings import CachePolicy
from tests.simulation.dataset import SmallDataset, small_dataset
from tests.simulation.faulty_peer import VICES, Vice
from tests.simulation.node import NodePlan
from tests.simulation.registries import DirectoryKind

Kind: TypeAlias = Literal["calm", "faults", "kill"]
"""`calm`: nothing happens, and each chunk leaves the store once. `kill`: one node is, for good.
`faults`: anything, and then all is well again."""
FaultKind: TypeAlias = Literal[
    "cut",
    "cut one way",
    "isolated",
    "reset",
    "kill",
    "power off",
    "leave",
    "pause",
    "drip",
    "refuse",
    "slow host",
    "slow store",
    "vice",
    "directory",
]

DATASETS: Final = 16
WINDOWS: Final = (2 << 10, 16 << 10, 64 << 10, 1 << 20)
"""Bytes. The first, with latencies of milliseconds, is slower than a peer may be: it is for small
files, which come at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    at_s: float
    """After the readers have begun."""
    lasts_s: float
    node: int
    other: int
    vice: Vice | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    kind: Kind
    dataset: int
    nodes: tuple[NodePlan, ...]
    registry: DirectoryKind
    policy: CachePolicy
    preempt: float
    window: int
    cutting: float
    store_latency_s: float
    reads: int
    """Of each reading thread."""
    pause_s: float
    """Between them, on average."""
    settles: bool
    """Readers begin when all nodes know each other."""
    in_step: bool
    """All readers of the task read the same at the same time, as in training."""
    faults: tuple[Fault, ...] = ()

    @property
    def ample(self) -> bool:
        """Whether each node has room for the whole dataset."""
        return all(node.budget_bytes > 1 << 22 for node in self.nodes)

    @property
    def some_work_for_ever(self) -> bool:
        """Or for longer than anybody waits."""
        return any(
            fault.vice == "works for ever" or fault.kind in ("slow store", "slow host", "pause")
            for fault in self.faults
        )

    def lines(self) -> list[str]:
        """For people."""
        about = (
            f"seed {self.seed}: {self.kind}, {len(self.nodes)} nodes, dataset {self.dataset}, {self.registry}, {self.policy}, preempt {self.preempt},"
            f" window {self.window}, cutting {self.cutting}, store {self.store_latency_s * 1e3:.0f} ms, {self.reads} reads each{' in step' if self.in_step else ''}"
        )
        return [
            about,
            *(f"  {node}" for node in self.nodes),
            *(f"  {fault}" for fault in self.faults),
        ]


def scenario_of(seed: int) -> Scenario:
    draw = random.Random(f"scenario {seed}")
    kind: Kind = draw.choices(["calm", "faults", "kill"], [3, 8, 2])[0]
    count = draw.choices([2, 3, 4, 5], [4, 4, 2, 1])[0]
    number = draw.randrange(DATASETS)
    dataset = small_dataset(number)
    ample = kind == "kill" or draw.random() < 0.7
    nodes = [_node(draw, dataset, ample) for _ in range(count)]
    if not any(node.weight for node in nodes):
        nodes[0] = replace(nodes[0], weight=100)
    drawn = Scenario(
        seed,
        kind,
        number,
        tuple(nodes),
        draw.choice(["leases", "leases", "static", "rank zero"]),
        draw.choice(["on-demand", "on-demand", "oneshot"]),
        preempt=draw.choice([0.0, 0.05, 0.3]),
        window=draw.choice(WINDOWS[dataset.has_large_file :]),
        cutting=draw.choice([0.0, 0.3, 0.8]),
        store_latency_s=draw.choice([0.002, 0.02, 0.1, 0.5]),
        reads=draw.randint(5, 25),
        pause_s=draw.choice([0.0, 0.02, 0.2]) if kind != "faults" else draw.choice([0.1, 0.5, 0.5]),
        settles=kind != "faults" or draw.random() < 0.8,
        in_step=draw.random() < 0.3,
    )
    if kind == "faults":
        faults = [_fault(draw, count) for _ in range(draw.randint(1, 4))]
        return replace(drawn, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))
    if kind == "kill":
        # Rank 0 keeps the list, so another one is killed.
        killed = draw.randrange(1, count)
        return replace(drawn, faults=(Fault("kill", draw.uniform(0.0, 3.0), 1e9, killed, 0),))
    return drawn


def _node(draw: random.Random, dataset: SmallDataset, ample: bool) -> NodePlan:
    whole = sum(chunk.head_bytes + chunk.payload_bytes for chunk in dataset.chunks)
    return NodePlan(
        weight=draw.choices([0, 50, 100, 200], [1, 1, 6, 1])[0],
        budget_bytes=1 << 30 if ample else int(whole * draw.uniform(0.3, 1.0)),
        processes=draw.choice([1, 1, 2]),
        readers=draw.choice([1, 1, 2, 3]),
        starts_after_s=draw.choice([0.0, 0.0, draw.uniform(0.0, 2.0)]),
    )


def _fault(draw: random.Random, nodes: int) -> Fault:
    kind: FaultKind = draw.choices(get_args(FaultKind), [3, 3, 2, 2, 3, 1, 2, 3, 2, 1, 2, 1, 5, 2])[
        0
    ]
    node, other = draw.sample(range(nodes), 2)
    lasts_s = draw.choice([draw.uniform(0.05, 1.0), draw.uniform(1.0, 8.0)])
    vice = draw.choice(VICES) if kind == "vice" else None
    return Fault(kind, draw.uniform(0.0, 8.0), lasts_s, node, other, vice)
