"""One node's membership of its task: it announces itself, pings its peers, and publishes its view.

There are three kinds of threads. The *heartbeat* asks the membership registry once a second. One
*prober* a peer pings that peer once a second. The *publisher* shows the view whenever something has
changed, and once a second so that readers see when pings were last answered.

A registry that does not answer changes nothing. A registry that lost its entries, or could not be
reached for longer than a lease, learns of its members again only as they announce themselves. So a
peer that is missing from its list but answers pings stays for the length of a lease, counted from
when the registry answers again.

A peer that failed another request of this node is silent at once, and is pinged at once. It stays
silent until its breaker closes. So a peer that answers only pings, or answers too slowly, has no
share in this node's view for as long as nobody here asks it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.registry import HEARTBEAT_S, LEASE_S, MembershipRegistry
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member, MemberId, View, ViewBoard
from dieselfs.cache.ports.runtime import Running, Runtime
from dieselfs.cache.wire.messages import MAX_MEMBERS, Ping, Pong
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import PeerFailed, PeerRefused, RegistryUnavailable

log = logging.getLogger(__name__)

PING_EVERY_S: Final = 1.0
"""The interval between two pings of a peer."""
PUBLISH_EVERY_S: Final = 1.0
"""The longest interval between two publications of the view."""
SETTLED_AFTER_S: Final = 2.0
"""The time without a change after which an unknown number of nodes counts as complete."""
FIRST_CONTACT_S: Final = 10.0
"""The time before a registry that was never reached is worth a warning.

The nodes of a job start in any order.
"""


@dataclass(slots=True, eq=False)
class _Peer:
    """One peer's state. Mutable, under the lock."""

    member: Member
    listed: float
    """The time at which the registry last listed the peer, or could be asked again."""
    answered: float | None = None
    silent: bool = False
    refused: bool = False
    status: NodeStatus | None = None
    is_due: bool = False
    """The prober pings it at once."""

    @property
    def answers(self) -> bool:
        return self.answered is not None and not self.silent


class TaskMembership:
    """One node's membership. Thread-safe. It begins with `start` and ends with `close`."""

    def __init__(
        self,
        runtime: Runtime,
        registry: MembershipRegistry,
        client: PeerClient,
        me: Member,
        board: ViewBoard,
        breakers: Breakers | None = None,
    ) -> None:
        """No one else uses the registry; `client` and `breakers` stay the caller's.

        The breakers report to this object which of them open from now on.
        """
        self._runtime = runtime
        self._registry = registry
        self._client = client
        self._me = me
        self._board = board
        self._breakers = breakers
        if breakers is not None:
            breakers.on_opened(self._suspect)
        self._lock = runtime.lock()
        self._news = runtime.condition(self._lock)
        """Notified when there is something to publish, or at the end."""
        self._end = runtime.condition(self._lock)
        """Notified when there is nothing more to wait for.

        The membership has ended, a peer is gone or has a new address, or a ping is due at once.
        """
        self._peers: dict[MemberId, _Peer] = {}
        self._version = 0
        """The version of the state that is published at once; 0 until the registry has answered."""
        self._membership_changed = 0.0
        self._ending = False
        self._started = 0.0
        self._threads: list[Running] = []
        self._probers: list[Running] = []
        """Used by the heartbeat alone until it has ended."""
        self._registry_is_out = False
        """The registry does not answer, and the log says so."""
        self._has_missed = False
        """The last announcement was not answered."""
        self._trouble = ""
        self._namesake: Member | None = None

    def start(self) -> None:
        """Start the threads. The first view is published when the registry has answered."""
        self._started = self._runtime.now()
        self._threads = [
            self._runtime.start(self._heartbeat, "peer-heartbeat"),
            self._runtime.start(self._publish, "peer-view"),
        ]

    @property
    def view(self) -> View:
        """The view as of now. Costs about 1 µs a member."""
        with self._lock:
            return self._current()

    def statuses(self) -> Mapping[MemberId, NodeStatus]:
        """Return the statuses in the last pongs of all peers that ever sent one."""
        with self._lock:
            return {id: peer.status for id, peer in self._peers.items() if peer.status is not None}

    def refused(self) -> Set[MemberId]:
        """Return the peers that refuse this node, or that this node refuses.

        Their secret, task or release is another one.
        """
        with self._lock:
            return {id for id, peer in self._peers.items() if peer.refused}

    @property
    def trouble(self) -> str:
        """The reason why the registry has never answered, so no member is known; else empty."""
        return "" if self._version else self._trouble

    def settled(self, nodes: int | None, timeout_s: float) -> bool:
        """Wait until that many members, this one included, are known and answer.

        With None: until the membership has not changed for 2 s and each peer was pinged. Returns
        False after `timeout_s`, or at the end.
        """
        deadline = self._runtime.now() + timeout_s
        with self._lock:
            while not self._ending:
                now = self._runtime.now()
                settled_at = self._settled_at(nodes)
                if settled_at is not None and now >= settled_at:
                    return True
                if now >= deadline:
                    return False
                until = deadline if settled_at is None else min(deadline, settled_at)
                self._news.wait(until - now)
        return False

    def close(self, timeout_s: float) -> None:
        """Withdraw the view, then leave the task. May be called again.

        Threads that do not end in time are left to end by themselves.
        """
        deadline = self._runtime.now() + timeout_s
        with self._lock:
            self._ending = True
            self._news.notify_all()
            self._end.notify_all()
        for threads in (self._threads, self._probers):
            for thread in threads:
                thread.join(max(0.0, deadline - self._runtime.now()))

    # The heartbeat.

    def _heartbeat(self) -> None:
        while not self._ending:
            began = self._runtime.now()
            try:
                listed = self._registry.announce(self._me)
            except RegistryUnavailable as error:
                self._note_registry_failure(error)
            else:
                self._note_registry_answer()
                self._start_probers(self._take(listed))
            with self._lock:
                while not self._ending and (now := self._runtime.now()) < began + HEARTBEAT_S:
                    self._end.wait(began + HEARTBEAT_S - now)
        self._registry.leave(self._me)

    def _start_probers(self, peers: Sequence[_Peer]) -> None:
        ended = [thread for thread in self._probers if thread.join(0.0)]
        self._probers = [thread for thread in self._probers if thread not in ended]
        for peer in peers:
            id = peer.member.id
            try:
                prober = self._runtime.start(partial(self._probe, peer), f"peer-ping-{id}")
            except RuntimeError as error:  # no more threads
                log.warning("cannot ping %s before the next heartbeat: %s", id, error)
                with self._lock:
                    del self._peers[id]  # it is new again when the registry lists it next
                    self._changed(self._runtime.now())
            else:
                self._probers.append(prober)

    def _take(self, listed: Sequence[Member]) -> list[_Peer]:
        """Adopt the registry's list, and return the peers that are new."""
        self._look_for_namesake(listed)
        now = self._runtime.now()
        others = sorted((member for member in listed if member.id != self._me.id), key=_by_id)
        by_id = {member.id: member for member in others[: MAX_MEMBERS - 1]}
        with self._lock:
            if self._version == 0:
                self._changed(now)
            if self._has_missed:  # the other nodes may have missed announcements, too
                self._has_missed = False
                for peer in self._peers.values():
                    peer.listed = now
            for id, peer in list(self._peers.items()):
                if id not in by_id and not (peer.answers and now < peer.listed + LEASE_S):
                    del self._peers[id]
                    self._changed(now)
                    self._end.notify_all()  # the peer's prober ends at once
                    log.info("%s has left the task", id)
            new = [_Peer(member, now) for id, member in by_id.items() if id not in self._peers]
            for id, peer in self._peers.items():
                self._renew(peer, by_id.get(id), now)
            for peer in new:
                self._peers[peer.member.id] = peer
                self._changed(now)
                log.info("%s at %s is a member of the task", peer.member.id, peer.member.address)
        return new

    def _renew(self, peer: _Peer, member: Member | None, now: float) -> None:
        if member is None:
            return
        peer.listed = now
        if member == peer.member:
            return
        if member.address != peer.member.address:
            peer.answered, peer.silent, peer.refused = None, False, False
            self._end.notify_all()  # the peer's prober pings at once
            log.info("%s has moved to %s", member.id, member.address)
        peer.member = member
        self._changed(now)

    def _look_for_namesake(self, listed: Sequence[Member]) -> None:
        """Warn if another node has this node's id.

        An entry under this id that is found before the first announcement may be left from a killed
        process of this node. A later one belongs to another node.
        """
        found = [
            member
            for member in listed
            if member.id == self._me.id and member.address != self._me.address
        ]
        namesake = found[0] if found and self._version else None
        if namesake is not None and namesake != self._namesake:
            self._namesake = namesake
            log.warning(
                "%s at %s (%s) is in the task under the name of this node, %s at %s, so both are "
                "asked for the same chunks: give each node its own name (--peer-name)",
                *(namesake.id, namesake.address, namesake.node or "unknown host"),
                *(self._me.id, self._me.address),
            )

    def _note_registry_failure(self, error: RegistryUnavailable) -> None:
        self._has_missed = True
        self._trouble = f"{error}; {error.hint}" if error.hint else str(error)
        if self._registry_is_out:
            return
        if self._version == 0 and self._runtime.now() < self._started + FIRST_CONTACT_S:
            return
        self._registry_is_out = True
        log.warning(
            "the membership registry does not answer, so the known members stay: %s%s",
            error,
            f" ({error.hint})" if error.hint else "",
        )

    def _note_registry_answer(self) -> None:
        if self._registry_is_out:
            self._registry_is_out = False
            log.warning("the membership registry answers again")

    # The probers.

    def _probe(self, peer: _Peer) -> None:
        while True:
            with self._lock:
                member = peer.member
                if not self._is_at(peer, member):
                    return
                peer.is_due = False
            began = self._runtime.now()
            try:
                answer = self._client.ask(member, Ping())
            except PeerFailed as error:
                self._not_answered(peer, member, error)
            else:
                if isinstance(answer, Pong):
                    self._answered(peer, member, began, answer.status)
                else:
                    self._not_answered(
                        peer, member, PeerFailed("its answer to a ping has a wrong type")
                    )
            with self._lock:
                while (
                    self._is_at(peer, member)
                    and not peer.is_due
                    and (now := self._runtime.now()) < began + PING_EVERY_S
                ):
                    self._end.wait(began + PING_EVERY_S - now)

    def _is_at(self, peer: _Peer, member: Member) -> bool:
        """Return whether the peer is still to be pinged, and at this address."""
        return (
            not self._ending
            and self._peers.get(peer.member.id) is peer
            and peer.member.address == member.address
        )

    def _answered(self, peer: _Peer, member: Member, began: float, status: NodeStatus) -> None:
        with self._lock:
            if peer.member.address != member.address:
                return
            answered = peer.answers
            peer.answered, peer.refused, peer.status = began, False, status
            peer.silent = not (self._breakers is None or self._breakers.allows(member.id, began))
            if peer.answers != answered:
                self._changed()
                log.info("%s at %s answers", member.id, member.address)

    def _not_answered(self, peer: _Peer, member: Member, error: PeerFailed) -> None:
        with self._lock:
            if peer.member.address != member.address:
                return
            refused = isinstance(error, PeerRefused)
            if refused and not peer.refused:
                hint = f" ({error.hint})" if error.hint else ""
                log.warning("%s at %s: %s%s", member.id, member.address, error, hint)
            elif not peer.silent:
                log.info("%s at %s does not answer: %s", member.id, member.address, error)
            if not peer.silent:
                self._changed()
            peer.silent, peer.refused = True, refused

    def _suspect(self, id: MemberId) -> None:
        """Make a peer silent: its breaker has opened."""
        with self._lock:
            peer = self._peers.get(id)
            if peer is None or peer.silent:
                return
            peer.silent = peer.is_due = True
            self._changed()
            self._end.notify_all()  # the peer's prober pings at once
        log.info("%s at %s has failed", id, peer.member.address)

    # The publisher.

    def _publish(self) -> None:
        published, due, troubled = 0, 0.0, False
        while True:
            with self._lock:
                while not self._ending and (
                    self._version == 0 or (self._version == published and self._runtime.now() < due)
                ):
                    self._news.wait(
                        None if self._version == 0 else max(0.0, due - self._runtime.now())
                    )
                if self._ending:
                    break
                published = self._version
                view = self._current()
            due = self._runtime.now() + PUBLISH_EVERY_S
            try:
                self._board.publish(view)
                troubled = False
            except OSError as error:
                if not troubled:
                    log.warning("cannot publish the members to this node's processes: %s", error)
                troubled = True
        self._board.withdraw()

    # Used by all threads, with the lock held.

    def _current(self) -> View:
        members = [self._me, *(peer.member for peer in self._peers.values())]
        return View(
            self._me,
            tuple(sorted(members, key=_by_id)),
            {id: peer.answered for id, peer in self._peers.items() if peer.answered is not None},
            frozenset(id for id, peer in self._peers.items() if peer.silent),
        )

    def _settled_at(self, nodes: int | None) -> float | None:
        """Return when the present membership counts as settled; None if it does not."""
        peers = self._peers.values()
        if self._version == 0:
            return None
        if nodes is not None:
            complete = 1 + len(peers) >= nodes and all(peer.answers for peer in peers)
            return 0.0 if complete else None
        asked = all(peer.silent or peer.answered is not None for peer in peers)
        return self._membership_changed + SETTLED_AFTER_S if asked else None

    def _changed(self, membership: float | None = None) -> None:
        """Note a change of the view.

        `membership` is the present time if the members have changed, and None if only their answers
        have.
        """
        self._version += 1
        if membership is not None:
            self._membership_changed = membership
        self._news.notify_all()


def _by_id(member: Member) -> MemberId:
    return member.id
