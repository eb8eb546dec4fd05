"""The simulated runtime keeps the port's contract, whatever order its threads run in."""

from collections.abc import Callable, Iterator

import pytest

from tests.contracts.runtime_contract import RuntimeContract
from tests.simulation.network import Network
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Host, Scheduler


class TestSimulatedRuntime(RuntimeContract):
    @pytest.fixture(params=[0.0, 0.5], ids=["calm", "preempted"])
    def runtime(self, request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
        scheduler = Scheduler(7, preempt=request.param)
        yield SimulatedRuntime(scheduler, Network(scheduler), Host("a"), "10.0.0.1")
        scheduler.bury()

    @pytest.fixture
    def play(self, runtime: SimulatedRuntime) -> Callable[[Callable[[], None]], None]:
        return lambda scene: runtime.scheduler.run(scene, runtime.host)
