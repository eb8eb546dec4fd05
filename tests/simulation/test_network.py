"""The simulation's network: bytes in order whatever happens, and nothing through a path that is
cut."""

from collections.abc import Callable

import pytest

from dieselfs.cache.ports.runtime import PeerAddress, Stream
from tests.simulation.network import Network
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Host, Scheduler

A, B = "10.0.0.1", "10.0.0.2"


class TwoHosts:
    def __init__(self, seed: int = 1, window: int = 4096) -> None:
        self.scheduler = Scheduler(seed, preempt=0.2)
        self.network = Network(self.scheduler, window=window)
        self.a = SimulatedRuntime(self.scheduler, self.network, Host("a"), A)
        self.b = SimulatedRuntime(self.scheduler, self.network, Host("b"), B)

    def run(self, with_pair: Callable[[Stream, Stream], None]) -> None:
        """Call it with the ends on a and on b."""

        def main() -> None:
            listener = self.b.listen(PeerAddress(B, 0))
            accepted = list[Stream]()
            thread = self.b.start(lambda: accepted.append(listener.accept()), "accept")
            near = self.a.connect(listener.address, 1.0)
            assert thread.join(1.0)
            with_pair(near, accepted[0])
            near.close()
            accepted[0].close()
            listener.close()
            assert not self.network.left()

        self.scheduler.run(main, self.a.host)
        self.scheduler.bury()


def received(stream: Stream, count: int, timeout_s: float = 5.0) -> bytes:
    target = bytearray(count)
    got = stream.receive_into(memoryview(target), timeout_s, at_least=count)
    return bytes(target[:got])


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_in_order_and_in_any_cut(seed: int) -> None:
    hosts = TwoHosts(seed)
    data = hosts.scheduler.random.randbytes(30_000)

    def check(near: Stream, far: Stream) -> None:
        sending = hosts.a.start(lambda: near.send([data[:100], data[100:]], 5.0), "send")
        target, counts, got = bytearray(1000), set[int](), b""
        while len(got) < len(data):
            count = far.receive_into(memoryview(target), 5.0)
            counts.add(count)
            got += target[:count]
        assert got == data
        assert len(counts) > 5
        assert sending.join(1.0)

    hosts.run(check)


def test_an_end_comes_after_all_bytes() -> None:
    def check(near: Stream, far: Stream) -> None:
        near.send([b"last words"], 1.0)
        near.close()
        assert received(far, 100) == b"last words"
        assert received(far, 1) == b""
        far.send([b"who is there?"], 1.0)
        hosts.b.sleep(0.1)
        with pytest.raises(ConnectionResetError):
            far.send([b"?"], 1.0)

    hosts = TwoHosts()
    hosts.run(check)


def test_a_close_wakes_who_waits_for_it() -> None:
    hosts = TwoHosts()

    def check(near: Stream, far: Stream) -> None:
        ends = list[str]()

        def receive() -> None:
            with pytest.raises(OSError, match="closed"):
                received(near, 1, 100.0)
            ends.append("received")

        def send() -> None:
            with pytest.raises(OSError, match="closed"):
                near.send([bytes(100_000)], 100.0)
            ends.append("sent")

        threads = [hosts.a.start(receive, "r"), hosts.a.start(send, "s")]
        hosts.a.sleep(1.0)
        begun = hosts.a.now()
        near.close()
        assert all(thread.join(1.0) for thread in threads)
        assert hosts.a.now() - begun < 0.01
        assert sorted(ends) == ["received", "sent"]

    hosts.run(check)


def test_nothing_passes_a_cut_path_until_it_is_whole() -> None:
    hosts = TwoHosts()

    def check(near: Stream, far: Stream) -> None:
        hosts.network.cut(A, B)
        near.send([b"held back"], 1.0)
        far.send([b"the other way"], 1.0)
        assert received(near, 13) == b"the other way"
        with pytest.raises(TimeoutError):
            received(far, 1, 30.0)
        with pytest.raises(TimeoutError):
            near.send([bytes(5000)], 10.0)
        with pytest.raises(TimeoutError):
            hosts.b.connect(PeerAddress(A, 1), 1.0)
        hosts.network.cut(A, B, is_cut=False)
        assert received(far, 9) == b"held back"

    hosts.run(check)


def test_without_the_way_back_a_sender_fills_its_window() -> None:
    hosts = TwoHosts()

    def check(near: Stream, far: Stream) -> None:
        hosts.network.cut(B, A)
        near.send([bytes(4096)], 1.0)
        assert received(far, 4096) == bytes(4096)
        with pytest.raises(TimeoutError):
            near.send([b"more"], 1.0)
        hosts.network.cut(B, A, is_cut=False)
        near.send([b"more"], 1.0)
        assert received(far, 4) == b"more"

    hosts.run(check)


def test_a_path_that_drips() -> None:
    hosts = TwoHosts()

    def check(near: Stream, far: Stream) -> None:
        hosts.network.drip(A, B)
        begun = hosts.a.now()
        near.send([b"1234567890"], 1.0)
        assert received(far, 10) == b"1234567890"
        assert 1.9 < hosts.a.now() - begun < 2.1
        near.send([b"1234567890"], 1.0)
        hosts.network.drip(A, B, drips=False)
        assert received(far, 10) == b"1234567890"
        assert hosts.a.now() - begun < 2.2

    hosts.run(check)


def test_refused_reset_and_killed() -> None:
    hosts = TwoHosts()

    def check(near: Stream, far: Stream) -> None:
        with pytest.raises(ConnectionRefusedError):
            hosts.a.connect(PeerAddress(B, 9), 1.0)
        hosts.network.reset(A, B)
        for end in (near, far):
            with pytest.raises(ConnectionResetError):
                received(end, 1)
        again = hosts.b.listen(PeerAddress(B, 700))
        third = hosts.a.connect(again.address, 1.0)
        hosts.network.kill(hosts.b.host)
        with pytest.raises(ConnectionResetError):
            received(third, 1)
        with pytest.raises(ConnectionRefusedError):
            hosts.a.connect(again.address, 1.0)
        third.close()

    hosts.run(check)
