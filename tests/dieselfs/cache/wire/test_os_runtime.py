from __future__ import annotations

import os
import signal

import pytest

from dieselfs.cache.ports.runtime import PeerAddress, Runtime
from dieselfs.cache.wire.os_runtime import OperatingSystem
from tests.contracts.runtime_contract import ANYWHERE, SOON_S, RuntimeContract, pair, receive
from tests.open_descriptors import open_descriptors


def sockets() -> set[str]:
    """Of this process; a socket has the same name in a forked child."""
    return {name for _, name in open_descriptors() if name.startswith("socket:")}


class TestOperatingSystem(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return OperatingSystem()

    def test_an_interrupted_call_goes_on(self, runtime: Runtime) -> None:
        client, server = pair(runtime)
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:

            def answer() -> None:
                runtime.sleep(0.2)
                server.send((b"first",), SOON_S)
                runtime.sleep(0.1)
                server.send((b"second",), SOON_S)

            thread = runtime.start(answer, "answers")
            assert receive(client, 11) == b"firstsecond"
            assert thread.join(SOON_S)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        client.close()
        server.close()

    def test_what_is_no_name_of_a_host_is_an_error_of_the_system(self, runtime: Runtime) -> None:
        for host in ("a..b", "x" * 70):  # `getaddrinfo` raises UnicodeError
            with pytest.raises(OSError, match="not a host name"):
                runtime.connect(PeerAddress(host, 1), SOON_S)

    def test_a_forked_child_keeps_no_descriptor_and_ends_nothing(self, runtime: Runtime) -> None:
        before = sockets()
        listener = runtime.listen(ANYWHERE)
        client = runtime.connect(listener.address, SOON_S)
        server = listener.accept()
        made = sockets() - before
        assert len(made) >= 3
        child = os.fork()
        if not child:
            status = 1
            try:
                client.close()
                with pytest.raises(OSError, match=r".*"):
                    receive(server, 1)
                status = 2 if sockets() & made else 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        client.send((b"still there",), SOON_S)
        assert receive(server, 11) == b"still there"
        for stream in (client, server):
            stream.close()
        listener.close()
        assert not sockets() & made
