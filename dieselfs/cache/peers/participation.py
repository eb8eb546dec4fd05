"""The parts that a node has while it takes part in its task's peer cache.

They are a server, connections, an entry in the membership registry, and a view.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.membership.registries import members_to_keep, open_registry, own_id, own_member
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.cached_files import CachedFiles
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.runtime import PeerAddress, Runtime
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer

LEAVE_S: Final = 0.5
"""The part of the time to end that leaving the registry may take.

A registry that does not answer must not keep the server from closing its connections.
"""


@dataclass(frozen=True, slots=True)
class Participation:
    """A node's taking part in a task, from `begin` to `end`."""

    me: Member
    server: PeerServer
    client: PeerClient
    membership: TaskMembership
    breakers: Breakers

    @classmethod
    def begin(
        cls,
        settings: PeerSettings,
        folder: TaskFolder,
        runtime: Runtime,
        cached: CachedFiles,
        source: PeerSource,
        memory_bytes: int,
    ) -> Participation:
        """Serve this node's chunks, and let `source` ask peers.

        Raises `OSError` if the node can't listen, or a `DieselFSError`; nothing is left running
        then.
        """
        listen = settings.listen
        if not listen.port:
            listen = _free(runtime, listen)  # a name may depend on the port
        id = own_id(settings, listen)
        member_list = members_to_keep(settings, runtime.now)
        server = PeerServer(
            runtime, settings.secret, settings.task, id, listen, cached, member_list
        )
        client = None
        try:
            me = own_member(settings, server.address, memory_bytes, socket.gethostname())
            client = PeerClient(runtime, settings.secret, settings.task, id)
            registry = open_registry(settings, client, member_list)
            board = ViewFile(folder.path)
            board.write_secret(settings.secret)
            breakers = Breakers(runtime.now)
            membership = TaskMembership(runtime, registry, client, me, board, breakers)
            source.attach(runtime, client, board, breakers)
            membership.start()
        except BaseException:
            if client is not None:
                client.close()
            server.close(0.0)
            raise
        return cls(me, server, client, membership, breakers)

    def end(self, runtime: Runtime, timeout_s: float) -> None:
        """End the parts in the reverse order.

        Threads that do not end in time are left to end by themselves.
        """
        deadline = runtime.now() + timeout_s
        self.membership.close(min(LEAVE_S, timeout_s))
        self.client.close()
        self.server.close(max(0.0, deadline - runtime.now()))


def _free(runtime: Runtime, address: PeerAddress) -> PeerAddress:
    """Return the address with a port on which nobody listens just now."""
    listener = runtime.listen(address)
    try:
        return listener.address
    finally:
        listener.close()
