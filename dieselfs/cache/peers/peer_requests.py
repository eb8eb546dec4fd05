"""Requests to peers for chunks, sent one after another in the order of `routing`.

Data is used once it is verified; a peer that sends something else has failed. So has a peer that
does not answer: it is not asked again before its breaker allows it (docs/decisions/0011, points 5
and 7). A chunk that its owner can't keep is not asked of the owner again for a moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import xxhash

from chunkstore.chunk_source import ChunkRef, FileExtents
from chunkstore.errors import Corrupt
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.peers.range_batches import RangeBatch, batches, by_chunk
from dieselfs.cache.peers.routing import MAX_OWNERS_ASKED, Role, owner_of
from dieselfs.cache.peers.task_peers import Peers
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, is_whole
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.wire.messages import Answer, Data, Failed, NotCached, Request
from dieselfs.cache.wire.peer_connection import SentRequest
from dieselfs.errors import PeerBusy, PeerFailed, PeerRefused

log = logging.getLogger(__name__)

T = TypeVar("T")
REASONS: Final = ("silent", "refused", "not held", "failed", "corrupt")
"""The reasons why a peer did not answer a request with the data asked for."""

NOT_CACHED_S: Final = 1.0
"""The longest time for which ranges of a chunk that its owner could not keep come from the store.

A change of the shares ends that time early.
"""
_SAME_FOR_ALL: Final = "give all nodes of the task the same secret, task name and release"
_UNDER_WAY: Final = 16
"""The number of messages whose answers are awaited at a time: 128 MiB at most."""


class PeerRequests:
    """The requests of one process, and their counts. Thread-safe; it waits for answers alone.

    A forked child needs a new one.
    """

    def __init__(self) -> None:
        # All threads count without a lock: CPython runs no other thread between the steps of such
        # an addition.
        self.fallbacks: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.cached_requests = 0
        self._refused: set[MemberId] = set()
        self._not_cached: set[bytes] = set()
        self._not_cached_until = 0.0
        self._not_cached_of: Placement | None = None

    def ask(
        self,
        peers: Peers,
        chunk: ChunkRef,
        role: Role,
        request: Callable[[bool], Request],
        verified: Callable[[memoryview], T],
    ) -> T | None:
        """Return the result of `verified` for the bytes of a peer; None if the store must be asked.

        `request` builds the request, given whether it may fetch. `verified` raises `Corrupt` for
        bytes that are not those asked for.
        """
        for step in peers.steps(chunk.id, role):
            self.cached_requests += not step.may_fetch
            answer: Answer
            try:
                if step.may_fetch and peers.payer is not None:
                    answer = peers.paid.ask(step.peer, request, _fetch_bytes(chunk))
                else:
                    answer = peers.client.ask(step.peer, request(step.may_fetch))
                if isinstance(answer, Data):
                    return verified(answer.bulk)
            except PeerBusy as error:
                answer = Failed(str(error))
            except (PeerFailed, Corrupt) as error:
                self._failed(peers, step.peer, error)
                continue
            if step.may_fetch:
                self._declined(peers, chunk, isinstance(answer, NotCached))
            return None
        return None

    def ask_many(self, peers: Peers, files: FileExtents) -> list[bytes | None]:
        """Return whole files in chunks of at most 16 MiB, as a reader.

        None stands for each file that is to be read from the store. Each peer gets one message or a
        few, and all are sent before the first answer is awaited.
        """
        found = [None if length else b"" for length in files.length]
        up = {peer.id for peer in peers.placement.members if peers.is_up(peer.id)}
        waiting = [at for at, length in enumerate(files.length) if length]
        for _ in range(MAX_OWNERS_ASKED):
            asked = self._by_owner(peers, files, waiting, up)
            sent = [
                (peer, batch)
                for peer, positions in asked.values()
                for batch in batches(files, positions, _may_fetch(peers, peer, files, positions))
            ]
            waiting = self._exchange(peers, files, sent, up, found)
            if not waiting:
                break
        return found

    def is_not_cached(self, peers: Peers, chunk: ChunkRef) -> bool:
        """Return whether the chunk's owner said a moment ago that it can't keep the chunk."""
        if not self._not_cached:
            return False
        if (
            peers.placement is not self._not_cached_of
            or peers.runtime.now() >= self._not_cached_until
        ):
            self._not_cached = set()
            return False
        return chunk.id.value in self._not_cached

    def _by_owner(
        self, peers: Peers, files: FileExtents, waiting: Sequence[int], up: set[MemberId]
    ) -> dict[MemberId, tuple[Member, list[int]]]:
        """Return the peers to ask, and the positions of their files.

        Files that are to be read from the store are left out.
        """
        asked: dict[MemberId, tuple[Member, list[int]]] = {}
        of_chunk: dict[int, list[int] | None] = {}
        me, is_up, ranked = peers.view.me.id, up.__contains__, peers.placement.ranked
        which = files.which
        for position in waiting:
            number = which[position]
            try:
                positions = of_chunk[number]
            except KeyError:
                chunk, positions = files.chunks[number], None
                owner = owner_of(ranked(chunk.id), me, is_up)
                if owner is not None and owner.id != me and not self.is_not_cached(peers, chunk):
                    positions = asked.setdefault(owner.id, (owner, []))[1]
                of_chunk[number] = positions
            if positions is not None:
                positions.append(position)
        return asked

    def _exchange(
        self,
        peers: Peers,
        files: FileExtents,
        sent: Sequence[tuple[Member, RangeBatch]],
        up: set[MemberId],
        found: list[bytes | None],
    ) -> list[int]:
        """Send the batches, and return the positions of files that another peer is to be asked for.

        A peer that fails is removed from `up`. A message is answered whole or not at all: if not at
        all, its files are asked for chunk by chunk. What may not be fetched yet is then paid for.
        """
        waiting: list[int] = []
        again: list[tuple[Member, RangeBatch]] = []
        unpaid: list[tuple[Member, RangeBatch]] = []
        for start in range(0, len(sent), _UNDER_WAY):
            part = sent[start : start + _UNDER_WAY]
            begun = [self._begin(peers, peer, batch, up) for peer, batch in part]
            for (peer, batch), pending in zip(part, begun, strict=True):
                try:
                    if isinstance(pending, PeerFailed):
                        raise pending
                    answer = pending.result()
                    if peers.payer is not None:
                        peers.paid.paid(answer)
                    if isinstance(answer, Data):
                        _take(files, batch, answer.bulk, found)
                        continue
                except PeerBusy:
                    for chunk in batch.request.chunks:
                        self._declined(peers, chunk, not_cached=False)
                    continue
                except (PeerFailed, Corrupt) as error:
                    if peer.id in up:
                        up.discard(peer.id)
                        self._failed(peers, peer, error)
                    waiting += (at for at in batch.positions if found[at] is None)
                    continue
                if len(batch.request.chunks) > 1:
                    again += ((peer, one) for one in by_chunk(batch, files))
                elif not batch.request.may_fetch and isinstance(answer, NotCached):
                    unpaid.append((peer, batch))
                else:
                    self._declined(peers, batch.request.chunks[0], isinstance(answer, NotCached))
        if again:
            waiting += self._exchange(peers, files, again, up, found)
        for peer, batch in unpaid:
            waiting += self._ask_paid(peers, files, peer, batch, up, found)
        return waiting

    def _ask_paid(
        self,
        peers: Peers,
        files: FileExtents,
        peer: Member,
        batch: RangeBatch,
        up: set[MemberId],
        found: list[bytes | None],
    ) -> Sequence[int]:
        """Ask for files of one chunk that the peer must fetch; return those to ask another for.

        One chunk after the other: each waits for the budget, and no answer waits meanwhile.
        """
        chunk = batch.request.chunks[0]
        try:
            if peer.id not in up:
                return batch.positions
            request = replace(batch.request, may_fetch=True)
            answer = peers.paid.fetch(peer, request, _fetch_bytes(chunk))
            if isinstance(answer, Data):
                _take(files, batch, answer.bulk, found)
            else:
                self._declined(peers, chunk, isinstance(answer, NotCached))
        except PeerBusy:
            self._declined(peers, chunk, not_cached=False)
        except (PeerFailed, Corrupt) as error:
            up.discard(peer.id)
            self._failed(peers, peer, error)
            return [at for at in batch.positions if found[at] is None]
        return ()

    def _begin(
        self, peers: Peers, peer: Member, batch: RangeBatch, up: set[MemberId]
    ) -> SentRequest | PeerFailed:
        if peer.id not in up:
            return PeerFailed(f"{peer.id} has just failed")
        try:
            return peers.client.begin(peer, batch.request)
        except PeerFailed as error:
            return error

    def _declined(self, peers: Peers, chunk: ChunkRef, not_cached: bool) -> None:
        """Note that a peer that was allowed to fetch the chunk did not send it."""
        self.fallbacks["not held" if not_cached else "failed"] += 1
        if not self._not_cached or peers.placement is not self._not_cached_of:
            self._not_cached_until = peers.runtime.now() + NOT_CACHED_S
            self._not_cached_of, self._not_cached = peers.placement, set()
        self._not_cached.add(chunk.id.value)

    def _failed(self, peers: Peers, peer: Member, error: PeerFailed | Corrupt) -> None:
        peers.breakers.failed(peer.id)
        if isinstance(error, PeerRefused):
            self.fallbacks["refused"] += 1
            if peer.id not in self._refused:
                self._refused.add(peer.id)
                log.warning(
                    "%s refuses this node, which reads its chunks from the store: %s; %s",
                    *(_named(peer), error, error.hint or _SAME_FOR_ALL),
                )
        elif isinstance(error, PeerFailed):
            self.fallbacks["silent"] += 1
            log.info("%s has failed: %s", _named(peer), error)
        else:
            self.fallbacks["corrupt"] += 1
            log.error("%s sent an invalid answer: %s", _named(peer), error)


def _may_fetch(peers: Peers, peer: Member, files: FileExtents, positions: Sequence[int]) -> bool:
    """Return whether a peer may fetch all chunks of the files before that is paid for."""
    if peers.payer is None:
        return True
    chunks = {files.which[position] for position in positions}
    return peers.paid.passes(peer, sum(_fetch_bytes(files.chunks[at]) for at in chunks))


def _fetch_bytes(chunk: ChunkRef) -> int:
    """Return the most bytes that a peer fetches for one request for a chunk."""
    return chunk.head_bytes + chunk.payload_bytes if is_whole(chunk) else CACHE_BLOCK_BYTES


def _named(peer: Member) -> str:
    return f"peer {peer.id} at {peer.address}"


def _take(
    files: FileExtents, batch: RangeBatch, bulk: memoryview, found: list[bytes | None]
) -> None:
    """Take the intact files of a batch's answer. Raises `Corrupt` if some are not intact."""
    at = damaged = 0
    digest, lengths, hashes = xxhash.xxh3_64_intdigest, files.length, files.hash
    for position in batch.positions:
        end = at + lengths[position]
        content = bytes(bulk[at:end])
        if digest(content) == hashes[position]:
            found[position] = content
        else:
            damaged += 1
        at = end
    if damaged:
        raise Corrupt(f"{damaged} of {len(batch.positions)} files have wrong checksums")
