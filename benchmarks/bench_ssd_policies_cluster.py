"""How many bytes does a cache policy that knows the jobs keep away from a slow store, in a cache
cluster, and do two policies on two of its nodes show which one is better?

Two jobs with a dataset each read through two mounts without SSDs, and these through three cache
nodes (`dlcmd serve`) over one slow store, in which a chunk of 4 MiB takes 90 ms to find and 10 ms
to read. The nodes' SSDs together have room for half of what the jobs read, and placement deals the
chunks to them at random. Each job reads its dataset three times, each time in another chunk-wise
shuffled order (`benchmarks/policy_jobs.py`).

    lru, next-use    all nodes have this policy: the bytes that the store gave in each epoch, and
                     its time. Bar: LRU reads 1.3 times as many bytes, over epochs 2 and 3
    side by side     each node has a policy of its own, `POLICY` or `POLICY+SHADOW`: what `dlcmd
                     cluster --json` shows of each node, in all epochs and in epochs 2 and 3

Nodes get different chunks, and the part of a node that owns 170 of 500 differs by 6 % by chance. So
only rates are compared:

    hit_rate           the part of the bytes asked of the SSD that it had
    absorbed_share     the part of the bytes sent that were not read from the store, with what the
                       node's memory had
    shadow_hit_rate    the part of all bytes that clients asked for which an SSD with the shadow
                       policy would have had

Expectation: as on one node (`bench_ssd_policies_live`), 0.15 of the bytes with LRU, 0.5 with
*next-use*, 1.7 times fewer. The nodes' memory is 64 MiB each, a tenth of the data; it has less than
0.01 of what is read. With `--chunks` below 100 it is too large for the SSDs to matter.

    python -m benchmarks.bench_ssd_policies_cluster [--only lru,next-use,side-by-side]
        [--chunks 250] [--nodes lru,next-use,lru+next-use]

As root.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.harness import report
from benchmarks.mount_contenders import statistics
from benchmarks.policy_jobs import (
    BAR,
    DIFFERENT,
    EPOCHS,
    Epoch,
    datasets,
    later_bytes,
    running,
    slow_dlcmd,
    total_bytes,
)
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, NodeProcess

NODES = 3
NODE_MEMORY = "64MiB"
"""The least that `dlcmd serve` accepts."""
SIDE_BY_SIDE = "side-by-side"
SYSTEMS = ("lru", "next-use", SIDE_BY_SIDE)
_COUNTED = ("served_bytes", "from_ssd_bytes", "from_store_bytes")
_COUNTED_BY_POLICY = (
    *("hit_bytes", "miss_bytes", "absorbed_bytes", "shadow_hit_bytes", "shadow_miss_bytes"),
    *("admitted_bytes", "refused_bytes", "evicted_bytes", "reinserted_bytes", "written_bytes"),
)

Looks: TypeAlias = dict[str, dict[str, Any]]
"""What `dlcmd cluster --json` says of each node at one time, by the nodes' names."""


class Cluster:
    """A cache cluster as its user sees it."""

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        secret = folder / "cluster.secret"
        secret.touch(0o600)
        secret.write_text(SECRET)
        self._folder, self._name = folder, f"policies@{','.join(addresses)}"
        self._secret = ("--cache-cluster-secret-file", str(secret))

    @property
    def options(self) -> list[str]:
        """The options of a mount without an SSD that reads through it."""
        return ["--ssd", "none", "--cache-cluster", self._name, *self._secret]

    def nodes(self) -> Looks:
        """Return what `dlcmd cluster --json` says of each node now."""
        said = slow_dlcmd(self._folder, "cluster", self._name, *self._secret, "--json")
        return {node["node"]: node for node in map(json.loads, said.splitlines())}


@contextmanager
def cluster_of(folder: Path, ssd_bytes: int, policies: Sequence[str]) -> Iterator[Cluster]:
    """Run a cache node for each policy."""
    nodes = [
        NodeProcess(
            folder / f"node-{at}",
            folder,
            "policies",
            ssd_size=str(ssd_bytes),
            memory=NODE_MEMORY,
            flags=flags_of(policy),
        )
        for at, policy in enumerate(policies, 1)
    ]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_until_ready()
        yield Cluster(folder, [str(node.address) for node in nodes])
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.end()
            shutil.rmtree(node.folder, ignore_errors=True)


def flags_of(policy: str) -> list[str]:
    """Return the flags of `dlcmd serve` for POLICY or POLICY+SHADOW."""
    acting, _, shadow = policy.partition("+")
    return ["--ssd-policy", acting, *(["--ssd-shadow-policy", shadow] if shadow else [])]


def counters(node: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a node's record, those of its policy among them."""
    policy = node["policy"]
    found = {name: node[name] for name in _COUNTED}
    return found | {name: policy[name] for name in _COUNTED_BY_POLICY}


def rates(counted: Mapping[str, int]) -> dict[str, float | None]:
    """Return the rates by which nodes are compared; None for those of which nothing is known."""

    def share(part: str, *rest: str) -> float | None:
        total = sum(counted[name] for name in rest)
        return counted[part] / total if total else None

    return {
        "hit_rate": share("hit_bytes", "hit_bytes", "miss_bytes"),
        "shadow_hit_rate": share("shadow_hit_bytes", "shadow_hit_bytes", "shadow_miss_bytes"),
        "absorbed_share": share("absorbed_bytes", "served_bytes"),
    }


@dataclass(frozen=True)
class Run:
    """The measurement of one system."""

    epochs: Sequence[Epoch]
    looks: Sequence[Looks]
    """What `dlcmd cluster` says after each epoch."""
    from_nodes_bytes: int
    """By `stats.json` of the mounts."""
    past_nodes_bytes: int
    """The bytes that mounts read from the store themselves."""


def measure(folder: Path, policies: Sequence[str], size: int) -> Run:
    """Have the jobs read through nodes with these policies."""
    epochs, looks = [], []
    with (
        cluster_of(folder, size // 2 // len(policies), policies) as cluster,
        running(folder, DIFFERENT, cluster.options) as run,
    ):
        for epoch in range(EPOCHS):
            epochs.append(run.read(epoch))
            looks.append(cluster.nodes())
        mounts = [statistics(root)["cache_cluster"] for root in run.roots]
    given = (sum(of[f"bytes_from_{source}"] for of in mounts) for source in ("nodes", "store"))
    return Run(epochs, looks, *given)


def report_nodes(case: str, looks: Sequence[Looks]) -> None:
    """Print a line for each node: what is shown at the end, and the rates of epochs 2 and 3."""
    for name, shown in looks[-1].items():
        whole, first = counters(shown), counters(looks[0][name])
        report(
            "policies of cache nodes, by node",
            case=case,
            policy=shown["policy"]["name"],
            shadow=shown["policy"]["shadow"],
            epochs_2_and_3=rates({key: whole[key] - first[key] for key in whole}),
            all_epochs=rates(whole),
            **whole,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--chunks", type=int, default=250, help="chunks of each dataset")
    parser.add_argument("--nodes", default="lru,next-use,lru+next-use", help="side by side")
    options = parser.parse_args()
    later: dict[str, int] = {}
    with datasets("policies-cluster", options.chunks) as folder:
        size = total_bytes(folder, DIFFERENT)
        for system in options.only.split(","):
            is_mixed = system == SIDE_BY_SIDE
            run = measure(folder, options.nodes.split(",") if is_mixed else [system] * NODES, size)
            later[system] = later_bytes(run.epochs)
            report(
                "policies of cache nodes",
                case=system,
                dataset_bytes=size,
                store_bytes=[epoch.store_bytes for epoch in run.epochs],
                seconds=[round(epoch.seconds, 2) for epoch in run.epochs],
                lru_over_this=later["lru"] / later[system] if "lru" in later else None,
                bar=BAR if system == "next-use" else None,
                from_nodes_bytes=run.from_nodes_bytes,
                past_nodes_bytes=run.past_nodes_bytes,
            )
            report_nodes(system, run.looks)


if __name__ == "__main__":
    main()
