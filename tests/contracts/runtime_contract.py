"""What every `Runtime` must do. An implementation subscribes with a class that says how to make
one, and how to run a scene in it.

A scene is what one thread of that runtime does; it starts others through the runtime, and waits for
nothing but through it. Times are long enough for busy machines: what must not happen within them
would happen at once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dieselfs.cache.ports.runtime import PeerAddress, Runtime, Stream
from tests.eventually import PATIENCE_S

SOON_S = PATIENCE_S
"""For what must happen: waited for in full only if it doesn't."""
SHORT_S = 0.05
"""For what must not."""
ANYWHERE = PeerAddress("127.0.0.1", 0)


def pair(runtime: Runtime) -> tuple[Stream, Stream]:
    """Who has connected, and who has accepted."""
    listener = runtime.listen(ANYWHERE)
    try:
        client = runtime.connect(listener.address, SOON_S)
        return client, listener.accept()
    finally:
        listener.close()


def receive(stream: Stream, count: int, timeout_s: float = SOON_S) -> bytes:
    buffer = bytearray(count)
    got = stream.receive_into(memoryview(buffer), timeout_s, at_least=count)
    return bytes(buffer[:got])


def send_until_told(stream: Stream) -> None:
    """That the other side has ended is known some time after."""
    for _ in range(100):
        stream.send((bytes(1 << 16),), SOON_S)


class RuntimeContract:
    """A subscriber overrides `runtime`, and `play` if scenes can't run in the test's own thread."""

    @pytest.fixture
    def runtime(self) -> Runtime:
        raise NotImplementedError

    @pytest.fixture
    def play(self, runtime: Runtime) -> Callable[[Callable[[], None]], None]:
        """Runs a scene to its end, and raises what it raises."""
        return lambda scene: scene()

    def test_time_goes_on_while_one_sleeps(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            begin = runtime.now()
            runtime.sleep(SHORT_S)
            assert begin + SHORT_S <= runtime.now() < begin + SOON_S

        play(scene)

    def test_threads_run_beside_each_other_and_are_joined(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            lock = runtime.lock()
            changed = runtime.condition(lock)
            may_end: list[bool] = []

            def run() -> None:
                with lock:
                    while not may_end:
                        changed.wait(SOON_S)

            thread = runtime.start(run, "waits")
            assert not thread.join(SHORT_S)
            with lock:
                may_end.append(True)
                changed.notify_all()
            assert thread.join(SOON_S)
            assert thread.join(0)

        play(scene)

    def test_one_thread_at_a_time_holds_a_lock(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            lock = runtime.lock()
            inside: list[int] = []
            worst: list[int] = []

            def run() -> None:
                for _ in range(20):
                    with lock:
                        inside.append(1)
                        worst.append(len(inside))
                        runtime.sleep(0)
                        inside.pop()

            threads = [runtime.start(run, f"locks {number}") for number in range(4)]
            assert all(thread.join(SOON_S) for thread in threads)
            assert len(worst) == 80
            assert max(worst) == 1

        play(scene)

    def test_a_lock_that_is_held_is_refused_without_waiting(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            lock = runtime.lock()
            assert lock.acquire()
            assert not lock.acquire(blocking=False)
            lock.release()
            assert lock.acquire(blocking=False)
            lock.release()

        play(scene)

    def test_a_condition_wakes_all_or_ends_by_time(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            lock = runtime.lock()
            changed = runtime.condition(lock)
            told: list[bool] = []
            waiting: list[int] = []

            def run() -> None:
                with lock:
                    waiting.append(1)
                    while not told:
                        changed.wait()

            with lock:
                begin = runtime.now()
                assert not changed.wait(SHORT_S)
                assert runtime.now() >= begin + SHORT_S
            threads = [runtime.start(run, f"waits {number}") for number in range(3)]
            while len(waiting) < 3:
                runtime.sleep(0.001)
            with lock:
                told.append(True)
                changed.notify_all()
            assert all(thread.join(SOON_S) for thread in threads)

        play(scene)

    def test_bytes_arrive_in_order(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            client.send((b"one", bytearray(b"two"), memoryview(b"xthreex")[1:-1], b""), SOON_S)
            client.send((b"four",), SOON_S)
            assert receive(server, 15) == b"onetwothreefour"
            server.send((b"back",), SOON_S)
            assert receive(client, 4) == b"back"
            client.close()
            server.close()

        play(scene)

    @pytest.mark.parametrize(
        "parts",
        [[bytes(range(256)) * (12 << 10)], [b"%05d" % number for number in range(3000)]],
        ids=["3 MiB", "3000"],
    )
    def test_both_directions_at_once_and_more_than_fits(
        self, runtime: Runtime, play, parts: list[bytes]
    ) -> None:
        whole = b"".join(parts)

        def scene() -> None:
            client, server = pair(runtime)
            senders = [
                runtime.start(lambda: client.send(parts, SOON_S), "sends"),
                runtime.start(lambda: server.send(parts, SOON_S), "sends back"),
            ]
            assert receive(client, len(whole)) == whole
            assert receive(server, len(whole)) == whole
            assert all(sender.join(SOON_S) for sender in senders)
            client.close()
            server.close()

        play(scene)

    def test_receiving_takes_what_is_there(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            client.send((b"few",), SOON_S)
            buffer = bytearray(100)
            assert server.receive_into(memoryview(buffer), SOON_S) == 3
            client.send((b"more, and ",), SOON_S)
            more = runtime.start(lambda: client.send((b"the rest",), SOON_S), "sends")
            assert server.receive_into(memoryview(buffer), SOON_S, at_least=18) == 18
            assert buffer[:18] == b"more, and the rest"
            assert more.join(SOON_S)
            client.close()
            server.close()

        play(scene)

    def test_who_says_nothing_is_not_waited_for(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            begin = runtime.now()
            with pytest.raises(TimeoutError):
                receive(client, 1, SHORT_S)
            assert begin + SHORT_S <= runtime.now() < begin + SOON_S
            server.send((b"x",), SOON_S)  # nothing was lost
            assert receive(client, 1) == b"x"
            server.send((b"half",), SOON_S)
            with pytest.raises(TimeoutError):
                receive(client, 8, SHORT_S)
            client.close()
            server.close()

        play(scene)

    def test_who_drips_is_not_waited_for(self, runtime: Runtime, play) -> None:
        """All the bytes are due in that time, not the next one."""

        def scene() -> None:
            client, server = pair(runtime)
            ended: list[bool] = []

            def drip() -> None:
                while not ended:
                    server.send((b"x",), SOON_S)
                    runtime.sleep(0.05)

            dripping = runtime.start(drip, "drips")
            begin = runtime.now()
            with pytest.raises(TimeoutError):
                receive(client, 1 << 20, 0.7)
            assert runtime.now() < begin + SOON_S
            ended.append(True)
            assert dripping.join(SOON_S)
            client.close()
            server.close()

        play(scene)

    def test_who_takes_nothing_is_not_waited_for(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            with pytest.raises(TimeoutError):
                client.send((bytes(64 << 20),), SHORT_S)
            client.close()
            server.close()

        play(scene)

    def test_the_end_of_the_stream(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            client.send((b"last",), SOON_S)
            client.close()
            assert receive(server, 10) == b"last"
            assert receive(server, 10) == b""
            with pytest.raises(OSError, match=r".*"):
                send_until_told(server)
            server.close()
            server.close()
            with pytest.raises(OSError, match=r".*"):
                server.send((b"x",), SOON_S)
            with pytest.raises(OSError, match=r".*"):
                receive(server, 1)

        play(scene)

    def test_closing_wakes_who_receives(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            ended: list[str] = []

            def run() -> None:
                try:
                    ended.append(f"{receive(client, 1)!r}")
                except OSError:
                    ended.append("error")

            thread = runtime.start(run, "receives")
            runtime.sleep(SHORT_S)
            assert not ended
            client.close()
            assert thread.join(SOON_S)
            assert ended in (["error"], ["b''"])
            assert receive(server, 1) == b""
            server.close()

        play(scene)

    def test_closing_wakes_who_sends(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            client, server = pair(runtime)
            ended: list[str] = []

            def run() -> None:
                try:
                    client.send((bytes(64 << 20),), SOON_S)
                except OSError:
                    ended.append("error")

            thread = runtime.start(run, "sends")
            runtime.sleep(SHORT_S)
            assert not ended
            client.close()
            assert thread.join(SOON_S)
            assert ended == ["error"]
            server.close()

        play(scene)

    def test_a_listener_accepts_until_it_is_closed(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            listener = runtime.listen(ANYWHERE)
            address = listener.address
            assert address.port
            accepted: list[Stream] = []

            def run() -> None:
                try:
                    while True:
                        accepted.append(listener.accept())
                except OSError:
                    pass

            thread = runtime.start(run, "accepts")
            clients = [runtime.connect(address, SOON_S) for _ in range(3)]
            for client in clients:
                client.send((b"hello",), SOON_S)
            while len(accepted) < 3:
                runtime.sleep(0.001)
            assert [receive(stream, 5) for stream in accepted] == [b"hello"] * 3
            listener.close()
            listener.close()
            assert thread.join(SOON_S)
            with pytest.raises(OSError, match=r".*"):
                runtime.connect(address, SOON_S)
            again = runtime.listen(address)  # at once, though it has served connections
            assert again.address == address
            again.close()
            for stream in [*clients, *accepted]:
                stream.close()

        play(scene)

    def test_two_do_not_listen_at_one_address(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            listener = runtime.listen(ANYWHERE)
            with pytest.raises(OSError, match=r".*"):
                runtime.listen(listener.address)
            listener.close()

        play(scene)

    def test_random_bytes_do_not_repeat(self, runtime: Runtime, play) -> None:
        def scene() -> None:
            assert len({runtime.random_bytes(16) for _ in range(100)}) == 100

        play(scene)
