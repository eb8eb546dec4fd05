"""Requests to cache nodes whose fetches are paid for from the byte budget of the reader's job.

A cache node never waits for a budget: its turns at the store are for all jobs. The reader waits
instead, before it lets the node fetch:

1. If the budget is open, it takes the size of the chunk, and the node may fetch.
2. Otherwise the node may send what it caches, which is free.
3. If the node does not cache it, the reader waits for its budget, and asks again.

The answer says what was fetched for it, and the budget is corrected by that. A node of an earlier
version does not say it, so what such a node fetches is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.byte_rate import BURST_S
from chunkstore.stores.read_turn import Payer, current_turn
from dieselfs.cache.ports.members import Member
from dieselfs.cache.wire.messages import FETCHES_VERSION, Answer, Data, NotCached, Request
from dieselfs.cache.wire.peer_client import PeerClient


@dataclass(frozen=True, slots=True)
class PaidRequests:
    """The requests of one process to cache nodes. Thread-safe."""

    client: PeerClient
    payer: Payer | None
    """It pays for reads whose turn names no other payer; None: they are free."""

    def ask(self, peer: Member, request: Callable[[bool], Request], size_bytes: int) -> Answer:
        """Return the answer to a request that may fetch, and pay for what was fetched.

        `request` builds it, given whether it may fetch; `size_bytes` are those of its chunk.
        Raises what `PeerClient.ask` does, and gives back nothing then: the node may have fetched.
        """
        budget = self.limit(peer)
        if budget is None:
            return self.paid(self.client.ask(peer, request(True)))
        if not budget.take_now(size_bytes):
            found = self.paid(self.client.ask(peer, request(False)))
            if not isinstance(found, NotCached):
                return found
            return self.fetch(peer, request(True), size_bytes)
        return self.paid(self.client.ask(peer, request(True)), budget, size_bytes)

    def fetch(self, peer: Member, request: Request, size_bytes: int) -> Answer:
        """Wait for the budget, and return the answer to a request for what must be fetched."""
        budget = self.limit(peer)
        if budget is None:
            return self.paid(self.client.ask(peer, request))
        payer = budget.take(size_bytes)
        answer = self.client.ask(peer, request)
        return answer if payer is None else self.paid(answer, payer, size_bytes)

    def passes(self, peer: Member, size_bytes: int) -> bool:
        """Return whether so much may be fetched now, and paid for afterwards."""
        budget = self.limit(peer)
        if budget is None:
            return True
        rate = budget.bytes_per_s or math.inf
        return size_bytes <= BURST_S * rate and budget.take_now(0)

    def limit(self, peer: Member) -> ByteBudget | None:
        """Return the budget that limits what a peer fetches for this thread, if there is one."""
        budget = self._budget()
        if budget is None or budget.bytes_per_s is None:
            return None
        is_known = self.client.version(peer) in (0, *range(FETCHES_VERSION, 256))
        return budget if is_known else None

    def paid(self, answer: Answer, payer: ByteBudget | None = None, taken_bytes: int = 0) -> Answer:
        """Correct the budget, of which so much was taken, by what was fetched for an answer.

        Without `payer` it is the budget of this thread's turn.
        """
        fetched = answer.fetched_bytes if isinstance(answer, Data | NotCached) else 0
        if fetched != taken_bytes:
            budget = payer or self._budget()
            if budget is not None:
                budget.charge(fetched - taken_bytes)
        return answer

    def _budget(self) -> ByteBudget | None:
        payer = current_turn().payer or self.payer
        return None if payer is None else payer()
