"""Two simulated hosts, for tests of how one bears the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dieselfs.cache.peers.plain_chunks import PlainChunks
from tests.simulation.network import Network
from tests.simulation.pair import ANSWERS, ASKS, CHUNKS, Pair
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Host, Scheduler


@pytest.fixture(params=[0.0, 0.3], ids=["calm", "preempted"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    scheduler = Scheduler(11, preempt=request.param)
    network = Network(scheduler)
    runtimes = [
        SimulatedRuntime(scheduler, network, Host(ip), ip)  #
        for ip in (ASKS, ANSWERS)
    ]
    yield Pair(scheduler, network, PlainChunks(CHUNKS), *runtimes)
    scheduler.bury()
