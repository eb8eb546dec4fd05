"""The cost that a cache policy adds to a read of the live tier: its policy runner, and the calls.

A chunk of 4 MiB is read whole, or by parts of 110 KiB (the mean file of ImageNet). Each read tells
`TierPolicies` of a request, and asks about admission after a miss, as `SsdTier` does. Expectation:
without a policy 0.3 µs, for two calls that find none; a read of a whole chunk costs what the policy
takes (`policy_costs.py`), and 2 µs for the lock, the counts and the last decision; a part after the
first one costs 1 µs, and no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import report
from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import AdmitAll
from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import LRU, PolicyChoice
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.reader_tags import dataset_tags, decided_key
from chunkstore.ssd.tier_policies import TierPolicies

_DATASET = DatasetRef("imagenet", bytes(16))
_TAGS = dataset_tags(_DATASET, "job0")
_CHUNK_BYTES = 4 << 20
_PART_BYTES = 110 << 10
_PARTS = -(-_CHUNK_BYTES // _PART_BYTES)
_TURNS = 5


def runner_costs(chunks: int) -> None:
    """Report the costs of reads by policy, with one and four plans of `chunks` chunks.

    `lru` with a runner is what a tier without a policy costs while its requests are recorded.
    """
    _costs(LRU, 0, chunks, has_runner=False)
    for name, plans in ((LRU, 0), ("future", 1), ("future", 4), ("next-use", 1), ("next-use", 4)):
        _costs(name, plans, chunks)


def _costs(name: str, plans: int, chunks: int, *, has_runner: bool = True) -> None:
    random = np.random.default_rng(1)
    ids = [random.bytes(16) for _ in range(chunks)]
    policies = TierPolicies(Path(), AdmitAll(), PolicyChoice())
    policies.renew()
    runner, order = _runner(name, plans, ids, random)
    policies.runner = runner if has_runner else None
    # The reader goes on along the first plan, whose other half is read by parts.
    size, few = len(order) // (3 * _TURNS), max(1, len(order) // (3 * _TURNS * _PARTS))
    wholes = [order[at : at + size] for at in range(0, 2 * _TURNS * size, size)]
    rest = order[2 * _TURNS * size :]
    parts = [rest[at : at + few] for at in range(0, 2 * _TURNS * few, few)]
    report(
        "runner costs",
        policy=name,
        has_runner=has_runner,
        plans=plans,
        chunks=chunks,
        whole_hit_us=_microseconds(lambda ids: _read(policies, ids, [0], True), wholes[:_TURNS]),
        whole_miss_us=_microseconds(lambda ids: _read(policies, ids, [0], False), wholes[_TURNS:]),
        part_hit_us=_microseconds(lambda ids: _read(policies, ids, _STARTS, True), parts[:_TURNS])
        / _PARTS,
        part_miss_us=_microseconds(lambda ids: _read(policies, ids, _STARTS, False), parts[_TURNS:])
        / _PARTS,
    )


_STARTS = range(0, _CHUNK_BYTES, _PART_BYTES)


def _runner(
    name: str, plans: int, ids: Sequence[bytes], random: np.random.Generator
) -> tuple[PolicyRunner, list[bytes]]:
    """Return a runner whose policy admits half of the chunks, and the order of the first plan."""
    made: list[CachePolicy] = []

    def make(settings: PolicySettings, history: RequestHistory | None = None) -> CachePolicy:
        made.append(policy_of(settings, history))
        return made[-1]

    names = {_DATASET.id: _DATASET.name}
    runner = PolicyRunner(PolicyChoice(name), AdmitAll(), names=names, policies=make)
    keys = np.array([decided_key(of, 0) for of in ids], np.uint64)
    orders = [random.permutation(len(ids)) for _ in range(max(1, plans))]
    for number, order in enumerate(orders[:plans]):
        reads = PlannedReads(f"plan{number}", keys[order].astype(np.uint32), 0, 100.0)
        buckets = (Bucket(_DATASET.name),)
        runner.publish(JobSpecification(f"job{number}", _DATASET.name, buckets, plan=reads))
    runner.tend()
    soonest = made[-1].next_uses(keys.tolist()) if made else None
    if soonest is not None:
        made[-1].evicts_next(float(np.median(soonest)))
    return runner, [ids[at] for at in orders[0].tolist()]


def _read(policies: TierPolicies, ids: Sequence[bytes], starts: Sequence[int], hit: bool) -> None:
    dataset, size = _DATASET.id, _CHUNK_BYTES
    length = _CHUNK_BYTES if len(starts) == 1 else _PART_BYTES
    for chunk in ids:
        for start in starts:
            policies.read(dataset, chunk, start, length, _TAGS, size, hit=hit, told=False)
            if not hit:
                policies.admits(dataset, chunk, start, _TAGS, size)


def _microseconds(read: Callable[[Sequence[bytes]], object], turns: Sequence[list[bytes]]) -> float:
    """Return the time of one chunk: the least of all turns."""
    seconds = []
    for ids in turns:
        begin = time.process_time()
        read(ids)
        seconds.append((time.process_time() - begin) / len(ids))
    return min(seconds) * 1e6
