"""Commands to one Redis server over a pooled connection: sent together, answered in order.

Errors are answers too. Everything that touches redis-py's untyped objects is in this module. Its
own retries are switched off: the caller knows what may be repeated, and for how long.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, TypeAlias, cast

import hiredis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry

from metadata.errors import IndexDenied, IndexUnavailable
from metadata.url_secrets import without_secrets

SOCKET_TIMEOUT_S: Final = 5.0
"""The bound of a connect, and of each wait for bytes of an answer."""
_MAX_CONNECTIONS: Final = 4096
_DENIED: Final = (exceptions.AuthenticationError, exceptions.NoPermissionError)

Argument: TypeAlias = bytes | str
Reply: TypeAlias = Any
"""The answer of the server, or the `RedisError` that came instead."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The host and port of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Script:
    """A Lua script of this package, called by its hash. The first files may have its functions."""

    def __init__(self, *names: str) -> None:
        folder = files(__package__)
        self.text = "".join(folder.joinpath(name).read_text() for name in names)
        self.sha1 = hashlib.sha1(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RedisCommand:
    """One command about one key, or, if it is a script, about several of a slot."""

    key: bytes
    arguments: Sequence[Argument]
    """The words of the command, its name first; for a script, the arguments after the key."""
    script: Script | None = None
    by_text: bool = False
    """True if the server does not know the script yet."""
    writes: bool = False
    """True if a replica should have the write before anything that depends on it is put."""
    asking: RedisAddress | None = field(default=None)
    """The server that the key is moving to: it is asked this once."""
    more_keys: Sequence[bytes] = ()
    """Further keys of a script, in the slot of the first one."""

    def words(self) -> Sequence[Argument]:
        """Return the words to send."""
        if self.script is None:
            return self.arguments
        keys: tuple[Argument, ...] = (str(1 + len(self.more_keys)), self.key, *self.more_keys)
        if self.by_text:
            return ("EVAL", self.script.text, *keys, *self.arguments)
        return ("EVALSHA", self.script.sha1, *keys, *self.arguments)

    def size_bytes(self) -> int:
        """Return the size of the arguments."""
        return sum(map(len, self.arguments))


def _packed(words: Sequence[Argument]) -> bytes:
    """Return the encoded command; redis-py would look at each word in Python first."""
    return cast(bytes, hiredis.pack_command(cast(Any, tuple(words))))


@dataclass(frozen=True, slots=True)
class Greeting:
    """The commands to send over a new connection before anything else.

    `heed` gets the answers, and may raise.
    """

    commands: Sequence[RedisCommand] = ()
    heed: Callable[[list[Reply]], None] = lambda replies: None


NO_GREETING: Final = Greeting()


class Pipeline:
    """Commands on their way to one server.

    `send` and `receive` are separate calls, so that several servers work at a time.
    """

    def __init__(
        self, pool: Any, commands: Sequence[RedisCommand], greeting: Greeting = NO_GREETING
    ) -> None:
        self._pool = pool
        self._commands = commands
        self._greeting = greeting
        self._connection: Any = None
        self._failure: exceptions.RedisError | None = None

    def send(self) -> None:
        """Send the commands; on a new connection, send the greeting first."""
        packed: list[bytes] = []
        for command in self._commands:
            if command.asking:
                packed.append(_packed(("ASKING",)))
            packed.append(_packed(command.words()))
        try:
            self._connection = self._pool.get_connection()
            if self._greeting.commands and self._connection.is_new:
                self._greet()
            self._connection.send_packed_command(packed)
        except exceptions.RedisError as error:
            self._failure = error
        except BaseException:
            self.abandon()
            raise

    def _greet(self) -> None:
        commands = self._greeting.commands
        self._connection.send_packed_command([_packed(command.words()) for command in commands])
        replies = [self._read() for _ in commands]
        if self._failure is not None:
            raise self._failure
        self._greeting.heed(replies)
        self._connection.is_new = False

    def receive(self, deadline: float) -> list[Reply]:
        """Return the answers; the first one must begin to arrive before `deadline` (monotonic)."""
        replies: list[Reply] = []
        try:
            self._await_first(deadline)
            for command in self._commands:
                if command.asking:
                    self._read()
                replies.append(self._read())
        except BaseException:
            self.abandon()
            raise
        self._release()
        return replies

    def abandon(self) -> None:
        """Give the connection back disconnected, since answers may still be on their way."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.disconnect()
        self._release()

    def _await_first(self, deadline: float) -> None:
        if self._failure is None:
            try:
                if not self._connection.can_read(max(0.0, deadline - time.monotonic())):
                    raise exceptions.TimeoutError("no answer")
            except exceptions.RedisError as error:
                self._connection.disconnect()
                self._failure = error

    def _read(self) -> Reply:
        if self._failure is not None:
            return self._failure
        try:
            return self._connection.read_response()
        except exceptions.ResponseError as error:
            return error
        except exceptions.RedisError as error:
            # The answers that follow on this connection can no longer be told apart.
            self._connection.disconnect()
            self._failure = error
            return error

    def _release(self) -> None:
        if self._connection is not None:
            self._pool.release(self._connection)
            self._connection = None


def exchange(pipelines: Sequence[Pipeline], timeout_s: float | None = None) -> list[list[Reply]]:
    """Return the answers of every pipeline; all pipelines are under way at the same time.

    `timeout_s` is that of their sockets; None means SOCKET_TIMEOUT_S.
    """
    try:
        for pipeline in pipelines:
            pipeline.send()
        # There is one deadline, so several hung servers take no longer than one.
        deadline = time.monotonic() + (timeout_s or SOCKET_TIMEOUT_S)
        return [pipeline.receive(deadline) for pipeline in pipelines]
    except BaseException:
        for pipeline in pipelines:
            pipeline.abandon()
        raise


class RedisUrl:
    """The address of a server and the log-in.

    The forms are `redis://[user:password@]host:port/db`, `rediss://…` (TLS) and `unix://…`. The
    string form is fit for messages: it has no user, password or query.
    """

    def __init__(self, url: str, shown: str | None = None, timeout_s: float | None = None) -> None:
        self._shown = shown or without_secrets(url)
        try:
            parse: Any = parse_url  # it has no annotations
            self._options: dict[str, Any] = parse(url)
        except ValueError:
            raise IndexUnavailable(
                f"index {self}: the address is not a Redis address; write redis://host:6379/0"
            ) from None
        self._options.update(
            decode_responses=False,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s or SOCKET_TIMEOUT_S,
            socket_connect_timeout=timeout_s or SOCKET_TIMEOUT_S,
            max_connections=_MAX_CONNECTIONS,
            redis_connect_func=_connected,
        )
        try:
            self.pool().make_connection()
        except (TypeError, ValueError, exceptions.RedisError):
            raise IndexUnavailable(
                f"index {self}: an option after the ? of the address is unknown or wrong; "
                "correct it"
            ) from None

    def __str__(self) -> str:
        return self._shown

    @property
    def address(self) -> RedisAddress:
        """The host and port, by default localhost:6379."""
        return RedisAddress(self._options.get("host", "localhost"), self._options.get("port", 6379))

    def pool(self, address: RedisAddress | None = None) -> Any:
        """Return thread-safe connections to this server, or to another with the same log-in."""
        options = dict(self._options)
        if address is not None:
            options.update(host=address.host, port=address.port)
        return ConnectionPool(**options)


def _connected(connection: Any) -> None:
    connection.on_connect()
    connection.is_new = True


class Pools:
    """The connections of one store, by server.

    They work without locks, and are new after a fork. redis-py's own pools notice a fork too, but
    then wait for a lock that a thread of the parent may have held.
    """

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._of_process: tuple[int, dict[RedisAddress | None, Any]] = (os.getpid(), {})

    def pool(self, address: RedisAddress | None = None) -> Any:
        """Return the connections to a server of this process."""
        owner, pools = self._of_process
        if owner != os.getpid():
            pools = {}
            self._of_process = (os.getpid(), pools)
        pool = pools.get(address)
        if pool is None:
            # Two threads may both create a pool: the loser's has no connection yet.
            pool = pools.setdefault(address, self._url.pool(address))
        return pool

    def close(self) -> None:
        """Close the connections of this process."""
        owner, pools = self._of_process
        if owner == os.getpid():
            for pool in list(pools.values()):
                pool.disconnect()


def unavailable(shown: object, error: Reply, timeout_s: float | None = None) -> IndexUnavailable:
    """Return the error of the index `shown`; `IndexDenied` if it refused the user."""
    kind = IndexDenied if _is_denied(error) else IndexUnavailable
    return kind(f"index {shown}: {advice(error, timeout_s)}")


def advice(error: exceptions.RedisError, timeout_s: float | None = None) -> str:
    """Return one line that says what is wrong and what to do."""
    reason = str(error).partition("\n")[0]
    match error:
        case error if _is_denied(error):
            return f"the server refused access ({reason}): check user and password"
        case exceptions.BusyLoadingError():
            return "the server is still loading its data: try again shortly"
        case exceptions.TimeoutError():
            return (
                f"no answer within {timeout_s or SOCKET_TIMEOUT_S:.2g} s: check that the "
                "server is reachable"
            )
        case exceptions.ConnectionError():
            return f"no connection ({reason}): check the address and that Redis runs there"
        case exceptions.OutOfMemoryError():
            return "the server has reached its maxmemory: give it more, or remove datasets"
        case exceptions.ReadOnlyError():
            return "the server is a read-only replica: give its master's address"
        case exceptions.MovedError() | exceptions.AskError():
            return "the server belongs to a cluster: write redis+cluster:// instead of redis://"
        case _:
            return f"the server answered {reason!r}"


def _is_denied(error: Reply) -> bool:
    """Return whether the server refused the user, for a command or for one inside a script."""
    return isinstance(error, _DENIED) or "can't run this command" in str(error)


def is_error(reply: Reply) -> bool:
    """Return whether the reply is an error."""
    return isinstance(reply, exceptions.RedisError)
