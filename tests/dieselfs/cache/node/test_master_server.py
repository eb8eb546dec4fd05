"""A master, its server and members of it, over real sockets in one process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt
from dieselfs.cache.node import master_server as server_module
from dieselfs.cache.node import member_request_threads
from dieselfs.cache.node.master import Master
from dieselfs.cache.node.master_server import Server
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task import remote_master
from dieselfs.cache.task.remote_master import RemoteMaster
from dieselfs.cache.wire import packet_socket
from dieselfs.cache.wire.local_messages import (
    MAX_NAMES,
    MEMBER_ID_BYTES,
    Discard,
    JoinAsMember,
    Mapped,
    OpenRequests,
    PlanProgress,
    Unmapped,
    batches,
    encode,
)
from dieselfs.errors import CacheFull, MasterGone, NotYetSupported
from tests.dieselfs.cache.logged_source import (
    CHUNK_BYTES,
    CORRUPT,
    LoggedSource,
    chunk,
    content,
)
from tests.dieselfs.cache.processes import BUDGET_BYTES, DEADLINE_S, in_threads
from tests.eventually import eventually, scaled_by_load

pytestmark = pytest.mark.usefixtures("no_thread_is_left", "patient_members")


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    eventually(lambda: set(threading.enumerate()) <= before, "an end of all threads")


@pytest.fixture
def master(folder: TaskFolder, source: LoggedSource) -> Iterator[Master]:
    leadership = folder.try_lead()
    assert leadership is not None
    master = Master(folder, source, BUDGET_BYTES, "lru")
    yield master
    master.close()
    leadership.release(remove_folder=True)


@pytest.fixture
def server(folder: TaskFolder, master: Master) -> Iterator[Server]:
    server = Server(folder, master)
    yield server
    server.close()


@contextmanager
def joined(folder: TaskFolder, budget_bytes: int | None = None) -> Iterator[RemoteMaster]:
    member = RemoteMaster(folder.socket_path, budget_bytes)
    try:
        yield member
    finally:
        member.close()


def block(number: int) -> CacheBlock:
    return CacheBlock(chunk(number))


def heard(member: RemoteMaster, is_enough: Callable[[list[tuple[bool, str]]], bool]) -> bool:
    events: list[tuple[bool, str]] = []

    def listens() -> bool:
        events.extend(member.events())
        return is_enough(events)

    eventually(listens, "such news")
    return True


def test_what_is_fetched_is_in_the_folder(folder: TaskFolder, server: Server) -> None:
    with joined(folder) as member:
        member.fetch(block(1))
        assert (folder.chunks / block(1).name).read_bytes() == content(chunk(1))
        assert member.pid == os.getpid()


def test_pieces_are_fetched_ahead_in_any_number(
    folder: TaskFolder, server: Server, source: LoggedSource
) -> None:
    blocks = [CacheBlock(chunk(number, 64)) for number in range(600)]
    with joined(folder) as member:
        member.prefetch(blocks)

        def ended() -> tuple[int, int]:
            found = member.statistics()
            return found.blocks, found.failed_fetches

        # The thread with the corrupt one may be the last.
        eventually(lambda: ended() == (600 - 1, 1), "all but the corrupt one")
    assert source.payloads == 600


def test_threads_that_miss_one_chunk_fetch_it_once(
    folder: TaskFolder, server: Server, source: LoggedSource, tmp_path: Path
) -> None:
    source.gate = tmp_path / "gate"
    with joined(folder) as member, joined(folder) as other:
        waiting = threading.Barrier(9)

        def fetch(from_: RemoteMaster) -> bool:
            waiting.wait(DEADLINE_S)
            from_.fetch(block(1))
            return True

        done: list[bool] = []
        threads = [
            threading.Thread(
                target=lambda from_=from_: done.append(in_threads(4, lambda: fetch(from_)))
            )
            for from_ in (member, other)
        ]
        for thread in threads:
            thread.start()
        waiting.wait(DEADLINE_S)
        eventually(lambda: other.statistics().misses == 8, "eight that wait")
        source.gate.touch()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert done == [True, True]
    assert source.payloads == 1


def test_errors_of_the_source_and_of_the_master_arrive(folder: TaskFolder, server: Server) -> None:
    with joined(folder) as member:
        with pytest.raises(Corrupt, match="is corrupt"):
            member.fetch(block(CORRUPT))
        member.set_budget(CHUNK_BYTES // 2)
        with pytest.raises(CacheFull) as caught:
            member.fetch(block(1))
        assert caught.value.hint
        member.set_budget(BUDGET_BYTES)
        member.fetch(block(1))  # the connection is as good as before


def test_a_request_that_fails_in_an_unforeseen_way_is_a_master_that_failed(
    folder: TaskFolder, server: Server, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: LoggedSource, chunk: ChunkRef) -> memoryview:
        raise ZeroDivisionError("by nothing")

    with joined(folder) as member:
        with monkeypatch.context() as patched:
            patched.setattr(LoggedSource, "payload", fails)
            with pytest.raises(MasterGone, match="by nothing"):
                member.fetch(block(1))
        member.fetch(block(1))
        with pytest.raises(NotYetSupported):
            member.follow(folder.plans)


def test_a_connection_for_which_there_is_no_thread_does_not_end_the_service(
    folder: TaskFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with joined(folder) as member:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(MasterGone):
                member.fetch(block(1))
    with joined(folder) as member:
        member.fetch(block(1))
    eventually(lambda: server.members == 0, "no member")


def test_a_member_at_which_the_master_fails_does_not_end_the_service(
    folder: TaskFolder, server: Server, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(member: object, job: str | None) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(master, "add_member", no_thread)
        with pytest.raises(MasterGone):
            RemoteMaster(folder.socket_path)
    with joined(folder) as member:
        member.fetch(block(1))


def test_the_greatest_budget_that_members_wish_counts_while_they_are_there(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder, 1 << 20) as member:
        assert member.statistics().budget_bytes == 1 << 20
        with joined(folder, 2 << 20), joined(folder):
            assert member.statistics().budget_bytes == 2 << 20
        eventually(lambda: member.statistics().budget_bytes == 1 << 20, "the budget of who stays")


def test_a_quota_holds_while_a_member_that_knows_it_is_there(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder) as member:
        with joined(folder) as other:
            other.set_quota(CHUNK_BYTES, 0)
            member.fetch(block(1))
            with pytest.raises(CacheFull):
                member.fetch(block(2))
            member.set_quota(None, 2 * CHUNK_BYTES)
            member.fetch(block(2))
            member.set_quota(None, 0)
            assert member.statistics().budget_bytes == CHUNK_BYTES
        eventually(lambda: member.statistics().budget_bytes == BUDGET_BYTES, "no quota")


def test_evicted_bytes_count_until_their_member_has_unmapped_them_or_left(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder) as member:
        for number in (1, 2):
            member.fetch(block(number))
        with joined(folder) as other:
            member.send_notice(Mapped((block(1).name,)))
            other.send_notice(Mapped((block(2).name,)))
            eventually(lambda: all(each.mapped for each in server._members.values()), "both maps")
            for number in (1, 2):
                member.send_notice(Discard(block(number).name))
            eventually(lambda: member.statistics().blocks == 0, "no piece")
            assert member.statistics().cached_bytes == 2 * CHUNK_BYTES
            member.send_notice(Unmapped((block(1).name,)))
            eventually(lambda: member.statistics().cached_bytes == CHUNK_BYTES, "one less")
        eventually(lambda: member.statistics().cached_bytes == 0, "nothing held")


def test_a_member_hears_of_what_it_maps_when_that_is_evicted(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder) as member, joined(folder) as other:
        for number in (1, 2, 3):
            member.fetch(block(number))
        member.send_notice(Mapped((block(1).name,)))
        other.send_notice(Mapped((block(2).name,)))
        eventually(lambda: member.statistics().members == 2, "both")
        for number in (3, 2, 1):
            member.send_notice(Discard(block(number).name))
        assert heard(member, lambda events: set(events) == {(True, block(1).name)})
        assert heard(other, lambda events: set(events) == {(True, block(2).name)})


def test_what_was_evicted_before_it_was_said_to_be_mapped_is_heard_too(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder) as member:
        member.send_notice(Mapped((block(1).name,)))
        assert heard(member, lambda events: events == [(True, block(1).name)])


def test_news_that_a_member_does_not_take_keep_and_delay_nobody(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder) as deaf, joined(folder) as member:
        count = 40 * MAX_NAMES  # 1.4 MB: more than the socket holds
        names = [CacheBlock(chunk(number, 64)).name for number in range(count)]
        for part in batches(names):
            deaf.send_notice(Mapped(part))
        # A busy machine needs seconds for as many notices, and a greeting waits for two.
        eventually(
            lambda: sum(len(each.mapped) for each in server._members.values()) == count, "all"
        )
        member.fetch(block(2))
        for name in names:
            server.evicted(name)
        member.fetch(block(1))
        assert heard(deaf, lambda events: len(events) >= count)


class Part:
    """Implements `PeerTask`."""

    def __init__(self) -> None:
        self.suspected: list[str] = []

    def statistics(self) -> TaskStatistics:
        raise AssertionError("nobody asks")

    def suspect(self, peer: str) -> None:
        self.suspected.append(peer)


def test_peers_that_a_member_finds_failing_are_known_when_it_goes_on(
    folder: TaskFolder, master: Master
) -> None:
    part = Part()
    with closing(Server(folder, master, part)), joined(folder) as member:
        for peer in ("b", "c"):
            member.suspect(peer)
            assert part.suspected[-1] == peer
    with closing(Server(folder, master)), joined(folder) as member:
        member.suspect("b")  # there are no peers any more


def test_a_fetch_that_takes_longer_than_a_hanging_master_is_borne_goes_on(
    folder: TaskFolder, master: Master, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is out keeps it waiting, and the master says that it works."""
    borne_s = min(scaled_by_load(1.0), 10.0)
    monkeypatch.setattr(remote_master, "ANSWER_TIMEOUT_S", borne_s)
    for module in (server_module, member_request_threads):
        monkeypatch.setattr(module, "WORKING_S", 0.1)
    source.gate = Path(f"{source.log}.gate")
    with closing(Server(folder, master)), joined(folder) as member:
        opening = threading.Timer(1.5 * borne_s, source.gate.touch)
        opening.start()
        member.fetch(block(1))
        opening.join()
        assert source.payloads == 1


def test_a_look_at_a_late_master_gives_up_and_stays_a_member(
    folder: TaskFolder, server: Server, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, statistics = threading.Event(), master.statistics

    def late() -> MemoryStatistics:
        assert goes_on.wait(DEADLINE_S)
        return statistics()

    monkeypatch.setattr(master, "statistics", late)
    with joined(folder) as member:
        member.fetch(block(1))
        monkeypatch.setattr(remote_master, "STATISTICS_TIMEOUT_S", 0.1)
        with pytest.raises(MasterGone):
            member.statistics()
        assert not member.is_gone
        goes_on.set()
        monkeypatch.setattr(remote_master, "STATISTICS_TIMEOUT_S", DEADLINE_S)
        assert member.statistics().cached_bytes == CHUNK_BYTES


def test_a_notice_that_a_hanging_master_does_not_take_is_not_waited_for_for_ever(
    folder: TaskFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_master, "ANSWER_TIMEOUT_S", 0.1)
    hangs, goes_on = threading.Event(), threading.Event()

    def heed(*_: object) -> None:
        hangs.set()
        goes_on.wait(DEADLINE_S)

    monkeypatch.setattr(server, "_handle_notice", heed)
    with joined(folder) as member:
        notice = Mapped((block(1).name,) * MAX_NAMES)
        member.send_notice(notice)
        assert hangs.wait(DEADLINE_S)
        while member.send_notice(notice, wait=False):
            pass
        with pytest.raises(MasterGone):
            member.send_notice(notice)
        goes_on.set()


def test_a_plan_of_any_length_can_be_expected(
    folder: TaskFolder, server: Server, source: LoggedSource
) -> None:
    with joined(folder, 2 * CHUNK_BYTES) as member:
        names = [block(number).name for number in range(1, 3 * MAX_NAMES)]
        member.expect(names)
        for number in (2, 1, 3):  # 3 is used later than both: it does not come in
            try:
                member.fetch(block(number))
            except CacheFull:
                assert number == 3
        member.send_notice(PlanProgress(1))  # 1 is done with
        eventually(lambda: fetches(member, block(3)), "room for the next one")
        assert sorted(os.listdir(folder.chunks)) == sorted([block(2).name, block(3).name])


def fetches(member: RemoteMaster, wanted: CacheBlock) -> bool:
    try:
        member.fetch(wanted)
    except CacheFull:
        return False
    return True


def test_who_speaks_otherwise_is_cut_off_and_others_are_served(
    folder: TaskFolder, server: Server
) -> None:
    def says(*packets: bytes) -> None:
        with packet_socket.connect(folder.socket_path, DEADLINE_S) as connection:
            for packet in packets:
                connection.send(packet)
                answer = connection.recv(100)
            assert not answer

    with joined(folder) as member:
        says(b"\xc1")
        says(bytes(1 << 17))
        says(encode(OpenRequests(bytes(MEMBER_ID_BYTES))))  # of no member
        says(encode(JoinAsMember(bytes(MEMBER_ID_BYTES), None)), b"\xc1")
        member.fetch(block(1))
        eventually(lambda: server.members == 1, "one member left")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_is_not_let_in(folder: TaskFolder, server: Server, root: Path) -> None:
    for path in (root, folder.path):
        path.chmod(0o711)
    folder.socket_path.chmod(0o777)
    child = os.fork()
    if not child:
        code = 2
        try:
            os.setuid(65534)
            RemoteMaster(folder.socket_path)
        except MasterGone:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.members == 0
    for path in (root, folder.path):
        path.chmod(0o700)


def test_when_the_server_ends_every_member_knows(folder: TaskFolder, master: Master) -> None:
    server = Server(folder, master)
    with joined(folder) as member, joined(folder) as other:
        member.fetch(block(1))

        def is_told() -> bool:
            with suppress(MasterGone):
                other.events()
            return other.is_gone

        with ThreadPoolExecutor(1) as listener:
            told = listener.submit(eventually, is_told, "the end")
            assert server.close() == 2
            assert told.result()
        with pytest.raises(MasterGone):
            member.fetch(block(2))
        assert member.is_gone
        assert other.is_gone
    assert not folder.socket_path.exists()
    with pytest.raises(MasterGone), joined(folder):
        pass


def test_who_has_left_is_not_counted_at_the_end(folder: TaskFolder, master: Master) -> None:
    server = Server(folder, master)
    with joined(folder):
        pass
    assert server.close() == 0


def test_a_dead_server_s_socket_is_replaced(folder: TaskFolder, master: Master) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(folder.socket_path))
    server = Server(folder, master)
    with joined(folder) as member:
        member.fetch(block(1))
    server.close()


def test_a_server_whose_socket_was_removed_leaves_that_of_the_next_one(
    folder: TaskFolder, master: Master
) -> None:
    former = Server(folder, master)
    folder.socket_path.unlink()
    with closing(Server(folder, master)):
        former.close()
        with joined(folder) as member:
            member.fetch(block(1))
    assert not folder.socket_path.exists()


def test_it_is_deserted_some_time_after_the_last_member_has_left(
    folder: TaskFolder, server: Server
) -> None:
    with joined(folder):
        deserted = threading.Thread(target=server.wait_until_left, args=(0.05, 60.0))
        deserted.start()
        deserted.join(0.1)
        assert deserted.is_alive()
        began = time.monotonic()
    deserted.join(DEADLINE_S)
    assert time.monotonic() - began >= 0.05
    server.wait_until_left(0.0, 0.01)  # nobody ever comes: it does not wait for ever


def test_a_member_of_a_job_joins_a_master_of_a_former_release_without_it(
    folder: TaskFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greet(self: Server, connection: object) -> None:
        """Refuse what a former release does not know."""
        greeting = packet_socket.receive(connection)  # type: ignore[arg-type]
        self._selector.unregister(connection)  # type: ignore[arg-type]
        self._ungreeted.discard(connection)  # type: ignore[arg-type]
        if isinstance(greeting, JoinAsMember):
            self._join(connection, greeting)  # type: ignore[arg-type]
        else:
            connection.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(Server, "_greet", greet)
    member = RemoteMaster(folder.socket_path, job="resnet")
    assert not member.is_gone
    assert server.members == 1
    member.close()
