"""What is concluded from what servers say of their histories; the servers themselves:
tests/faults/test_redis*.py."""

from __future__ import annotations

import logging

import pytest
from redis import exceptions

from metadata.errors import IndexForgot
from metadata.kv.redis_pipeline import RedisCommand
from metadata.kv.redis_replication import (
    LATE_WAIT_MS,
    PUT,
    WAIT_MS,
    Envelope,
    Position,
    Replication,
)

STAMP = bytes(7) + b"\x05" + bytes(8)
WRITE = RedisCommand(b"{k}f", ("65536", b"marker", b"name", STAMP + b"body"), PUT, writes=True)
READ = RedisCommand(b"{k}f", ("HGET", b"{k}f", b"name"))


def info(
    history: str = "a",
    offset: int = 100,
    *,
    former: str = "0",
    left_at: int = 0,
    replicas: int = 1,
    role: str = "master",
) -> bytes:
    lines = ["# Replication", f"role:{role}", f"connected_slaves:{replicas}"]
    lines += [f"slave{n}:ip=127.0.0.1,port=1,state=online,offset=1,lag=0" for n in range(replicas)]
    lines += [f"master_replid:{history * 40}", f"master_replid2:{former * 40}"]
    lines += [f"master_repl_offset:{offset}", f"second_repl_offset:{left_at + 1}"]
    return "\r\n".join(lines).encode()


def write(replication: Replication, state: bytes, confirmed: object = 1) -> Envelope:
    envelope = replication.envelope("place", [WRITE])
    answers: list[object] = [[], state, confirmed]
    replication.open(envelope, answers[: len(envelope.all())])
    return envelope


def waits(envelope: Envelope) -> list[str]:
    return [str(c.arguments[2]) for c in envelope.behind if c.arguments[0] == "WAIT"]


@pytest.mark.parametrize(
    ("later", "held"),
    [
        (info("a", 50), True),
        (info("b", 120, former="a", left_at=100), True),
        (info("b", 120, former="a", left_at=99), False),
        (info("b", 120, former="c", left_at=100), False),
        (info("b", 120), False),
    ],
    ids=["the same", "promoted with all", "promoted with less", "of others", "started again"],
)
def test_what_a_server_holds(later: bytes, held: bool) -> None:
    assert Position.parse(later).holds(Position.parse(info())) == held


def test_a_server_without_a_former_history_follows_none() -> None:
    blank = Position.parse(info("0"))
    assert not Position.parse(info("b", former="0", left_at=1000)).follows(blank)


def test_a_replica_tells_nothing() -> None:
    with pytest.raises(ValueError):
        Position.parse(info(role="slave"))


def test_a_write_waits_for_a_replica_if_there_is_one() -> None:
    replication = Replication("x")
    assert waits(write(replication, info(replicas=0), 0)) == [str(LATE_WAIT_MS)]  # not known yet
    assert replication.is_confirmed
    assert waits(write(replication, info(replicas=1))) == []
    assert waits(write(replication, info(replicas=1))) == [str(WAIT_MS)]
    assert waits(replication.envelope("place", [READ])) == []


def test_a_late_replica_is_told_once_and_waited_for_less(caplog: pytest.LogCaptureFixture) -> None:
    replication = Replication("x")
    write(replication, info())
    with caplog.at_level(logging.WARNING):
        write(replication, info(), 0)
        assert waits(write(replication, info(), 0)) == [str(LATE_WAIT_MS)]
    assert len(caplog.records) == 1
    assert "dlcmd recover --since" in caplog.text
    assert not replication.is_confirmed
    write(replication, info(), 1)
    assert replication.is_confirmed
    assert waits(write(replication, info())) == [str(WAIT_MS)]


def test_a_replica_that_is_gone_leaves_a_doubt() -> None:
    replication = Replication("x")
    write(replication, info())
    write(replication, info(replicas=0), 0)
    assert not replication.is_confirmed
    write(replication, info(replicas=1))
    write(replication, info(replicas=1))
    assert replication.is_confirmed


def test_writes_whose_confirmation_is_lost_are_not_done() -> None:
    replication = Replication("x")
    write(replication, info())
    envelope = replication.envelope("place", [WRITE, WRITE])
    gone = exceptions.ConnectionError("gone")
    assert replication.open(envelope, [[], [], info(), gone]) == [gone, gone]
    refused = exceptions.NoScriptError("which?")
    assert replication.open(envelope, [refused, [], info(), gone]) == [refused, gone]


def test_a_promoted_server_that_lacks_something() -> None:
    replication = Replication("x")
    write(replication, info(offset=100))
    write(replication, info("b", former="a", left_at=100))
    assert replication.losses == 0
    write(replication, info("c", 300, former="b", left_at=90))
    assert (replication.losses, replication.losses_without_end) == (1, 0)
    write(replication, info("c", 400, former="b", left_at=90))
    assert replication.losses == 1


def test_a_server_that_started_again_shows_what_was_put_last() -> None:
    replication = Replication("x")
    write(replication, info())
    envelope = replication.envelope("place", [WRITE])
    assert [command.arguments[0] for command in envelope.greeting] == ["INFO", "HGET"]
    replication.meet(envelope, [info("b"), STAMP + b"body"])
    replication.meet(envelope, [info("c"), bytes(7) + b"\x06" + bytes(8)])  # replaced since
    assert replication.losses == 0
    for reply in (None, bytes(16), exceptions.ResponseError("moved")):
        losses = replication.losses
        with pytest.raises(IndexForgot, match="dlcmd recover"):
            replication.meet(envelope, [info("def"[losses]), reply])
    assert replication.losses == replication.losses_without_end == 3


def test_a_server_that_does_not_tell_is_believed() -> None:
    replication = Replication("x")
    write(replication, info())
    replication.meet(replication.envelope("place", [WRITE]), [b"nothing of interest", None])
    replication.meet(
        replication.envelope("place", [WRITE]), [exceptions.NoPermissionError("no"), None]
    )
    assert replication.losses == 0
