"""Over the simulated runtime: the time is virtual, and each case runs with several orders of
threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.membership.placement import reachable
from dieselfs.cache.membership.registry import LEASE_S
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member, MemberId, View
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.messages import Answer, Ping, Pong, Request
from dieselfs.errors import PeerFailed, PeerRefused, RegistryUnavailable
from tests.simulation.network import Network
from tests.simulation.runtime import SimulatedRunning, SimulatedRuntime
from tests.simulation.scheduler import Host, Scheduler

A, B, C = (
    Member(id, PeerAddress(f"10.0.0.{n}", 7000), 100, f"host {id}") for n, id in enumerate("abc")
)
ANSWER_S = 0.002


class ListedMembers:
    """A `MembershipRegistry` that says what a test puts there."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.runtime = runtime
        self.others = list[Member]()
        self.is_out = False
        self.left = 0

    def announce(self, me: Member) -> Sequence[Member]:
        self.runtime.sleep(2.0 if self.is_out else ANSWER_S)
        if self.is_out:
            raise RegistryUnavailable("Redis is out", "start it")
        return [me, *self.others]

    def leave(self, me: Member) -> None:
        self.left += 1


class Peers:
    """In place of a `PeerClient`: the peers at these addresses answer, or say what they have to
    say."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.runtime = runtime
        self.up = dict[PeerAddress, PeerFailed | None]()
        self.asked = list[tuple[MemberId, float]]()

    def ask(self, member: Member, request: Request) -> Answer:
        assert request == Ping()
        self.asked.append((member.id, self.runtime.now()))
        if member.address not in self.up:
            self.runtime.sleep(1.0)
            raise PeerFailed("no answer within a second")
        self.runtime.sleep(ANSWER_S)
        trouble = self.up[member.address]
        if trouble is not None:
            raise trouble
        return Pong(NodeStatus(budget_bytes=member.weight))


class Board:
    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.runtime = runtime
        self.published = list[tuple[float, View]]()
        self.withdrawn = 0
        self.is_full = False

    def publish(self, view: View) -> None:
        assert not self.withdrawn
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.published.append((self.runtime.now(), view))

    def withdraw(self) -> None:
        self.withdrawn += 1

    def current(self) -> View | None:
        return self.published[-1][1] if self.published and not self.withdrawn else None


class Node:
    """The membership of A, with everything around it under the test's control."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed, preempt=0.3 if seed else 0.0)
        self.host = Host("a")
        self.runtime = SimulatedRuntime(
            self.scheduler, Network(self.scheduler), self.host, A.address.host
        )
        self.registry = ListedMembers(self.runtime)
        self.peers = Peers(self.runtime)
        self.board = Board(self.runtime)
        self.breakers = Breakers(self.runtime.now)
        self.membership = TaskMembership(
            self.runtime,
            self.registry,
            self.peers,  # type: ignore[arg-type]
            A,
            self.board,
            self.breakers,
        )

    def run(self, case: Callable[[], None]) -> None:
        """The case, and the end: no thread is left."""

        def main() -> None:
            self.membership.start()
            case()
            self.membership.close(5.0)
            assert self.board.withdrawn == 1
            assert self.registry.left == 1
            assert [task.name for task in self.scheduler.tasks] == ["main"]

        self.scheduler.run(main, self.host)

    def meet(self, *members: Member) -> None:
        """These are there and answer."""
        self.registry.others = list(members)
        for member in members:
            self.peers.up[member.address] = None

    def wait(self, condition: Callable[[], object], within_s: float = 3.0) -> None:
        deadline = self.runtime.now() + within_s
        while not condition():
            assert self.runtime.now() < deadline, f"not within {within_s} s"
            self.runtime.sleep(0.01)

    def sees(self, *members: Member) -> bool:
        """As published: those that may be asked, and this node."""
        view = self.board.current()
        return view is not None and reachable(view) == (A, *members)


@pytest.fixture(params=range(4))
def node(request: pytest.FixtureRequest) -> Node:
    return Node(request.param)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]


def test_the_first_view_comes_with_the_directorys_first_answer(node: Node) -> None:
    def case() -> None:
        assert node.board.current() is None
        node.wait(lambda: node.board.current() == View(A, (A,)), within_s=0.1)
        assert node.membership.view == View(A, (A,))

    node.run(case)


def test_peers_are_asked_once_they_have_answered(node: Node) -> None:
    node.meet(B)
    node.registry.others.append(C)

    def case() -> None:
        node.wait(lambda: node.sees(B), within_s=0.1)
        view = node.board.current()
        assert view is not None
        assert view.members == (A, B, C)
        node.wait(lambda: node.membership.view.silent == {"c"})
        node.peers.up[C.address] = None
        node.wait(lambda: node.sees(B, C))
        assert node.membership.statuses() == {
            "b": NodeStatus(budget_bytes=100),
            "c": NodeStatus(budget_bytes=100),
        }

    node.run(case)


def test_a_peer_for_which_there_is_no_thread_is_pinged_after_the_next_heartbeat(
    node: Node, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    node.meet(B, C)
    start, failures = node.runtime.start, [RuntimeError("can't start new thread")]

    def start_or_fail(run: Callable[[], None], name: str) -> SimulatedRunning:
        if name == "peer-ping-b" and failures:
            raise failures.pop()
        return start(run, name)

    monkeypatch.setattr(node.runtime, "start", start_or_fail)

    def case() -> None:
        node.wait(lambda: node.sees(C), within_s=0.1)
        node.wait(lambda: node.sees(B, C))

    node.run(case)
    assert warnings() == ["cannot ping b before the next heartbeat: can't start new thread"]


def test_a_view_says_when_the_answered_pings_began_and_comes_every_second(node: Node) -> None:
    node.meet(B)

    def case() -> None:
        node.runtime.sleep(10.0)
        times = [at for at, _ in node.board.published]
        assert max(later - earlier for earlier, later in pairwise(times)) < 1.2
        began = [at for _, at in node.peers.asked]
        told = [view.answered["b"] for at, view in node.board.published if "b" in view.answered]
        assert len(set(told)) >= 8
        assert all(any(one <= at < one + 1e-3 for at in began) for one in told)
        assert node.runtime.now() - told[-1] < 2.5

    node.run(case)


def test_who_is_asked_in_vain_is_silent_at_once_until_its_breaker_closes(node: Node) -> None:
    node.meet(B, C)

    def case() -> None:
        node.wait(lambda: node.sees(B, C))
        for hold_s in (1.0, 2.0):
            asked = [peer for peer, _ in node.peers.asked].count("b")
            node.breakers.failed("b")
            failed = node.runtime.now()
            node.wait(lambda: node.sees(C), within_s=0.1)
            node.wait(
                lambda asked=asked: [peer for peer, _ in node.peers.asked].count("b") > asked,
                within_s=0.1,
            )
            node.wait(lambda: node.sees(B, C), within_s=hold_s + 1.5)
            assert node.runtime.now() - failed >= hold_s

    node.run(case)


def test_a_silent_peer_leaves_the_view_and_comes_back(node: Node) -> None:
    node.meet(B, C)

    def case() -> None:
        node.wait(lambda: node.sees(B, C))
        del node.peers.up[B.address]
        node.wait(lambda: node.sees(C), within_s=2.2)
        assert node.board.current() is not None
        assert B in node.membership.view.members
        node.peers.up[B.address] = None
        node.wait(lambda: node.sees(B, C), within_s=2.2)

    node.run(case)


def test_who_has_left_is_pinged_no_more(node: Node) -> None:
    node.meet(B, C)

    def case() -> None:
        node.wait(lambda: node.sees(B, C))
        node.registry.others.remove(B)
        del node.peers.up[B.address]
        node.wait(lambda: node.membership.view.members == (A, C))
        asked = [id for id, _ in node.peers.asked].count("b")
        node.runtime.sleep(5.0)
        assert [id for id, _ in node.peers.asked].count("b") == asked
        assert "b" not in node.membership.statuses()
        node.meet(B, C)
        node.wait(lambda: node.sees(B, C))

    node.run(case)


def test_a_directory_that_is_out_changes_nothing(
    node: Node, warnings: Callable[[], list[str]]
) -> None:
    node.meet(B, C)

    def case() -> None:
        node.wait(lambda: node.sees(B, C))
        node.registry.is_out = True
        node.runtime.sleep(60.0)
        assert node.sees(B, C)
        assert node.runtime.now() - node.board.published[-1][0] < 1.2
        assert warnings() == [
            "the membership registry does not answer, so the known members stay: Redis is out (start it)"
        ]
        del node.peers.up[C.address]
        node.wait(lambda: node.sees(B))
        node.registry.is_out = False
        node.wait(lambda: len(warnings()) == 2, within_s=5)
        assert warnings()[1] == "the membership registry answers again"

    node.run(case)


def test_a_directory_that_is_late_is_warned_of_when_it_is_late(
    node: Node, warnings: Callable[[], list[str]]
) -> None:
    node.registry.is_out = True

    def case() -> None:
        node.runtime.sleep(8.0)
        assert not warnings()
        node.wait(warnings, within_s=6)
        assert node.board.current() is None
        assert not node.membership.settled(1, 0.5)
        node.registry.is_out = False
        node.wait(lambda: node.sees(), within_s=5)
        assert len(warnings()) == 2

    node.run(case)


def test_who_answers_stays_while_a_directory_that_forgot_fills_again(node: Node) -> None:
    node.meet(B, C)

    def case() -> None:
        node.wait(lambda: node.sees(B, C))
        node.registry.others = []
        node.runtime.sleep(LEASE_S - 2)
        assert node.sees(B, C)
        node.registry.others = [B]
        node.wait(lambda: node.sees(B), within_s=4)
        node.runtime.sleep(LEASE_S)
        assert node.sees(B)

    node.run(case)


def test_who_answers_stays_when_a_directory_is_back_that_was_out_for_longer_than_a_lease(
    node: Node,
) -> None:
    node.meet(B, C)

    def case() -> None:
        node.wait(lambda: node.sees(B, C))
        node.registry.is_out = True
        node.runtime.sleep(20.0)
        del node.peers.up[C.address]
        node.wait(lambda: node.sees(B))
        node.registry.is_out, node.registry.others = False, []  # the first to announce itself
        before = len(node.board.published)
        node.runtime.sleep(LEASE_S)
        assert all(B in reachable(view) for _, view in node.board.published[before:])
        assert node.membership.view.members == (A, B)
        node.wait(lambda: node.sees(), within_s=3)

    node.run(case)


def test_a_restarted_peer_is_asked_where_it_is_now(node: Node) -> None:
    moved = replace(B, address=PeerAddress("10.0.0.9", 7777))
    node.meet(B)

    def case() -> None:
        node.wait(lambda: node.sees(B))
        node.registry.others = [moved]
        node.wait(lambda: node.membership.view.members == (A, moved), within_s=1.2)
        node.wait(lambda: node.sees(), within_s=0.1)
        assert node.membership.view.answered == {}
        node.peers.up = {moved.address: None}
        node.wait(lambda: node.sees(moved))

    node.run(case)


def test_a_weight_that_changes_is_seen_at_once(node: Node) -> None:
    node.meet(B)

    def case() -> None:
        node.wait(lambda: node.sees(B))
        node.registry.others = [replace(B, weight=7)]
        node.wait(lambda: node.sees(replace(B, weight=7)), within_s=1.2)

    node.run(case)


def test_what_it_left_when_it_was_killed_is_no_namesake(
    node: Node, warnings: Callable[[], list[str]]
) -> None:
    node.registry.others = [replace(A, address=PeerAddress("10.0.0.1", 6000))]

    def case() -> None:
        node.wait(lambda: node.sees(), within_s=0.1)
        node.registry.others = []
        node.runtime.sleep(3.0)
        assert not warnings()

    node.run(case)


def test_a_namesake_is_warned_of_once_and_everything_goes_on(
    node: Node, warnings: Callable[[], list[str]]
) -> None:
    node.meet(B)

    def case() -> None:
        node.wait(lambda: node.sees(B))
        node.registry.others.append(replace(A, address=PeerAddress("10.9.9.9", 7000), node="twin"))
        node.runtime.sleep(5.0)
        assert node.sees(B)
        [warning] = warnings()
        assert "10.9.9.9:7000 (twin)" in warning
        assert "--peer-name" in warning

    node.run(case)


def test_a_peer_that_refuses_is_warned_of_once_with_what_to_do(
    node: Node, warnings: Callable[[], list[str]]
) -> None:
    node.meet(B, C)
    node.peers.up[B.address] = PeerRefused("it does not know the secret", "give all the same")

    def case() -> None:
        node.wait(lambda: node.sees(C))
        node.runtime.sleep(5.0)
        assert warnings() == ["b at 10.0.0.1:7000: it does not know the secret (give all the same)"]
        node.peers.up[B.address] = None
        node.wait(lambda: node.sees(B, C))

    node.run(case)


def test_settled_when_all_that_are_expected_answer(node: Node) -> None:
    node.meet(B)

    def case() -> None:
        assert node.membership.settled(2, 1.0)
        assert not node.membership.settled(3, 1.0)
        node.registry.others = [B, C]
        assert not node.membership.settled(3, 3.0)  # it is there, but does not answer
        node.peers.up[C.address] = None
        begun = node.runtime.now()
        assert node.membership.settled(3, 60.0)
        assert node.runtime.now() - begun < 2.2

    node.run(case)


def test_settled_when_nothing_changes_any_more(node: Node) -> None:
    def case() -> None:
        begun = node.runtime.now()
        node.runtime.start(come, "comes")
        assert node.membership.settled(None, 60.0)
        assert node.membership.view.members == (A, B, C)
        assert 3.4 <= node.runtime.now() - begun < 5.0
        assert node.membership.settled(None, 0.0)

    def come() -> None:
        for member in (B, C):
            node.runtime.sleep(0.7)
            node.meet(*node.registry.others, member)

    node.run(case)


def test_the_end_is_no_settlement(node: Node) -> None:
    found = list[bool]()

    def case() -> None:
        waiting = node.runtime.start(
            lambda: found.append(node.membership.settled(5, 3600.0)), "waits"
        )
        node.runtime.sleep(1.0)
        node.membership.close(5.0)
        assert waiting.join(1.0)
        assert found == [False]

    node.run(case)


def test_it_ends_while_nothing_answers(node: Node) -> None:
    """Each thread waits for somebody at most once more; the view goes at once."""
    node.registry.others = [B, C]

    def case() -> None:
        node.runtime.sleep(0.5)
        node.registry.is_out = True
        node.runtime.sleep(1.0)
        begun = node.runtime.now()
        node.membership.close(0.1)
        assert node.board.withdrawn == 1
        assert node.runtime.now() - begun < 0.2

    node.run(case)


def test_a_board_that_is_full_for_a_while(node: Node, warnings: Callable[[], list[str]]) -> None:
    node.meet(B)
    node.board.is_full = True

    def case() -> None:
        node.runtime.sleep(5.0)
        assert [text for text in warnings() if "No space left" in text] == warnings()
        assert len(warnings()) == 1
        node.board.is_full = False
        node.wait(lambda: node.sees(B))

    node.run(case)
