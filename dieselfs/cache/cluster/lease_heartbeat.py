"""The heartbeat of a cache node: once a second it renews its lease.

Nodes request nothing from each other. A node that warms datasets computes its share from the
others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from dieselfs.cache.membership.registry import HEARTBEAT_S, MembershipRegistry
from dieselfs.cache.ports.members import Member
from dieselfs.errors import RegistryUnavailable

log = logging.getLogger(__name__)


class LeaseHeartbeat:
    """The heartbeat, from its creation until `end`.

    It alone uses the membership registry.
    """

    def __init__(self, registry: MembershipRegistry, me: Member) -> None:
        self._registry, self._me = registry, me
        self.members: Sequence[Member] = ()
        """The nodes that were announced at the last heartbeat, this one among them."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster-heartbeat", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        """Give the lease back if time permits: clients then ask other nodes at once."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_out = warned_of_namesake = False
        while not self._ending.is_set():
            try:
                listed = self._registry.announce(self._me)
            except RegistryUnavailable as error:
                if not is_out:
                    log.warning(
                        "cannot register this node, so new clients of its cache cluster"
                        " do not find it: %s",
                        error,
                    )
                is_out = True
            else:
                self.members = listed
                if is_out:
                    log.warning("this node is registered in its cache cluster again")
                is_out = False
                twins = [one for one in listed if one.id == self._me.id and one != self._me]
                if twins and not warned_of_namesake:
                    warned_of_namesake = True
                    log.warning(
                        "%s also announces itself as %s:"
                        " give each node its own address (--advertise)",
                        *(twins[0].node or "another node", self._me.id),
                    )
            self._ending.wait(HEARTBEAT_S)
        self._registry.leave(self._me)
