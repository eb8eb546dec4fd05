"""Peers and masters over real sockets of a busy machine: what stalls is not silent.

How long a client bears a silent, slow or dripping peer is tested in `tests/simulation`, where
nothing stalls.
"""

from __future__ import annotations

from collections.abc import Callable

from dieselfs.cache.cluster import peers
from dieselfs.cache.task import master_process, remote_master, task_session
from dieselfs.cache.wire import frame_stream, peer_connection, peer_server, slow_peer_detector
from tests.eventually import PATIENCE_S


def be_patient(set_value: Callable[[object, str, object], None] = setattr) -> None:
    """Let no client and no server of this process give up the other for being late."""
    for name in ("SILENCE_S", "PATIENCE_S", "CONNECT_S", "HANDSHAKE_S"):
        assert hasattr(peer_connection, name)
        set_value(peer_connection, name, PATIENCE_S)
    set_value(peer_server, "HANDSHAKE_S", PATIENCE_S)
    set_value(frame_stream, "FRAME_S", PATIENCE_S)
    set_value(slow_peer_detector, "TOO_SLOW_S", PATIENCE_S)
    set_value(peers, "FIRST_LOOK_S", PATIENCE_S)


def be_patient_members(set_value: Callable[[object, str, object], None] = setattr) -> None:
    """Let no member of a task in this process give up its master, or a helper that starts, for
    being late: it would read past node memory."""
    for module, name in (
        (master_process, "_START_TIMEOUT_S"),
        (remote_master, "ANSWER_TIMEOUT_S"),
        (remote_master, "CONNECT_TIMEOUT_S"),
        (remote_master, "STATISTICS_TIMEOUT_S"),
        (task_session, "CONNECT_TIMEOUT_S"),
        (task_session, "PATIENCE_S"),
    ):
        assert hasattr(module, name)
        set_value(module, name, PATIENCE_S)
