"""Maps as Redis hashes: the part of the port that a single server and a cluster have in common.

A put is one script call a map, which compares stamps on the server. A large map is split: once its
hash (the base) holds `split_above` fields it gets a marker, a field longer than any real one. From
then on a new field goes to one of 256 bucket hashes, chosen by the field's hash, whose keys spread
over a cluster. A field that is in the base stays there. So a field has one place: the base if it is
there, else its bucket. The marker is removed only with the whole map.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import xxhash
from redis import exceptions

from metadata.errors import IndexUnavailable, MapOfWrongType
from metadata.kv import redis_eviction
from metadata.kv.evictions import NOTHING_EVICTED, Evictions
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.lost_writes import LostWrites
from metadata.kv.redis_pipeline import (
    Pools,
    RedisAddress,
    RedisCommand,
    RedisUrl,
    Reply,
    Script,
    exchange,
    is_error,
    unavailable,
)
from metadata.kv.redis_replication import PUT, Place, Replication

SPLIT_ABOVE: Final = 65_536
BUCKETS: Final = 256
MARKER: Final = b"split".ljust(256, b".")
"""The field that marks a split map; real fields have at most 255 bytes."""
_SLICE_FIELDS: Final = 2_000
"""The fields of a command.

Two values for each are still below what Lua's unpack takes (about 8,000).
"""
_PIPELINE_BYTES: Final = 8 << 20
_SCAN_BATCH: Final = 4096
_SCAN_RESTARTS: Final = 10
_RETRY_PAUSE_S: Final = 0.1
PATIENCE_S: Final = 15.0
"""The time for which commands are repeated.

It bridges a restart with a large database to load (docs/decisions/0010), and a fail-over, which
takes 3-4 s with a node timeout of 2 s. A call takes at most this and a few socket timeouts (two on
a single server, four in a cluster), unless servers answer.
"""
_FINAL: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""Subclasses of `ConnectionError` that repeating does not change."""

_WRONG_TYPE: Final = "WRONGTYPE"
"""The word in Redis's error for a command to a key of another type, also from inside a script."""

_REMOVE = Script("remove_equal.lua")
_SCAN = Script("scan_batch.lua")


class RedisMaps(ABC):
    """A `KeyValueStore` without the transport of commands to their servers."""

    _transient: tuple[type[exceptions.RedisError], ...] = (
        exceptions.ConnectionError,
        exceptions.TimeoutError,
    )
    """The errors after which a command is repeated."""

    def __init__(self, where: RedisUrl, split_above: int, patience_s: float) -> None:
        """`patience_s`: the time for which a command is repeated after its server failed.

        Every command here may be repeated.
        """
        self._shown = str(where)
        self._pools = Pools(where)
        self._split_above = split_above
        self._patience_s = patience_s
        self._replication = Replication(self._shown)
        self._evictions = NOTHING_EVICTED
        self._is_open = True

    def evictions(self, *, now: bool = False) -> Evictions:
        """Return what the servers say of evictions; with `now`, ask them again: one round."""
        if now:
            self._evictions = self._ask_for_evictions()
        return self._evictions

    @abstractmethod
    def _ask_for_evictions(self) -> Evictions:
        """Ask each server that has records. What one does not answer counts as nothing."""

    def lost_writes(self) -> LostWrites:
        """Return the losses that the store has seen."""
        known = self._replication
        return LostWrites(known.losses, known.losses_without_end, known.is_confirmed)

    @abstractmethod
    def _round(self, commands: Sequence[RedisCommand]) -> list[Reply]:
        """Send each command to the server of its key and wait for all the replies.

        The commands of one key are sent in order.
        """

    def _exchange(
        self, groups: Iterable[tuple[Place, RedisAddress | None, Sequence[RedisCommand]]]
    ) -> list[list[Reply]]:
        """Return the replies to groups of commands; each goes to the server at its place."""
        servers = [
            (self._pools.pool(address), self._replication.envelope(place, commands))
            for place, address, commands in groups
        ]
        answers = exchange([self._replication.pipeline(*server) for server in servers])
        return [
            self._replication.open(envelope, replies)
            for (_, envelope), replies in zip(servers, answers, strict=True)
        ]

    def _retry(self, command: RedisCommand, error: exceptions.RedisError) -> RedisCommand | None:
        """Return the command to send after this one failed with `error`.

        The result is None if repeating is useless.
        """
        if isinstance(error, self._transient) and not isinstance(error, _FINAL):
            return replace(command, asking=None, by_text=False)
        return None

    def _before_retry(self) -> None:  # noqa: B027 - a server that stays where it is needs nothing
        """Find out where servers are now."""

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        """Return the values; a second round reads the buckets of split maps."""
        found: list[list[bytes | None]] = [[None] * len(fields) for _, fields in lookups]
        slices = [
            (at, start, key, fields[start : start + _SLICE_FIELDS])
            for at, (key, fields) in enumerate(lookups)
            for start in range(0, len(fields), _SLICE_FIELDS)
        ]
        replies = self._execute(
            RedisCommand(key, ("HMGET", key, MARKER, *fields)) for _, _, key, fields in slices
        )
        # Fields that a split map lacks in its base are requested from the buckets.
        missing: dict[bytes, list[tuple[int, int, bytes]]] = defaultdict(list)
        for (at, start, key, fields), (marker, *values) in zip(slices, replies, strict=True):
            found[at][start : start + len(values)] = values
            if marker is not None:
                for i, (field, value) in enumerate(zip(fields, values, strict=True)):
                    if value is None:
                        missing[bucket_key(key, field)].append((at, start + i, field))
        if missing:
            buckets = list(missing.items())
            replies = self._execute(
                RedisCommand(key, ("HMGET", key, *(field for _, _, field in places)))
                for key, places in buckets
            )
            for (_, places), values in zip(buckets, replies, strict=True):
                for (at, i, _), value in zip(places, values, strict=True):
                    found[at][i] = value
        return found

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the pairs of the base, then those of the buckets if the map is split.

        If the server changes, the scan of a hash restarts, up to 10 times.
        """
        for batch in self._scan_hash(key):
            if real := [pair for pair in batch if pair[0] != MARKER]:
                yield real
        # This is asked last, so that a map that was split meanwhile shows as much as possible.
        if self._split_among([key]):
            for bucket in bucket_keys(key):
                yield from self._scan_hash(bucket)

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        """Put the phases one after the other; a second round puts what belongs into buckets.

        Raises `IndexForgot` if a loss was seen, before the phases that follow. Raises `IndexEvicts`
        if the servers may evict records.
        """
        if self._evictions.policy is not None:
            raise redis_eviction.refusal(self._evictions, self._shown)
        losses = self._replication.losses
        for updates in phases:
            elsewhere = self._put(updates, self._split_above)
            self._put(elsewhere, 0)
            self._replication.check(losses)

    def remove(self, removals: Sequence[MapFields]) -> None:
        """Remove fields from the bases, then from the buckets of split maps."""
        slices = [
            MapFields(key, fields[start : start + _SLICE_FIELDS])
            for key, fields in removals
            for start in range(0, len(fields), _SLICE_FIELDS)
        ]
        self._execute(
            RedisCommand(key, ("HDEL", key, *fields), writes=True) for key, fields in slices
        )
        split = self._split_among([key for key, _ in slices])
        buckets: dict[bytes, list[bytes]] = defaultdict(list)
        for key, fields in slices:
            if key in split:
                for field in fields:
                    buckets[bucket_key(key, field)].append(field)
        self._execute(
            RedisCommand(key, ("HDEL", key, *fields), writes=True)
            for key, fields in buckets.items()
        )

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        """Remove the fields with these values from the bases and the buckets of split maps."""
        slices = _sliced(removals)
        self._remove_equal(slices)
        split = self._split_among([key for key, _, _ in slices])
        buckets: dict[bytes, tuple[list[bytes], list[bytes]]] = defaultdict(lambda: ([], []))
        for key, fields, values in slices:
            if key in split:
                for field, value in zip(fields, values, strict=True):
                    bucket_fields, bucket_values = buckets[bucket_key(key, field)]
                    bucket_fields.append(field)
                    bucket_values.append(value)
        self._remove_equal([MapUpdate(key, *content) for key, content in buckets.items()])

    def drop(self, keys: Sequence[bytes]) -> None:
        """Remove whole maps, the buckets of split ones first."""
        # The base with its marker goes last: after a crash in the middle, the rest is still found.
        for key in self._perhaps_split_among(keys):
            self._execute(
                RedisCommand(bucket, ("UNLINK", bucket), writes=True) for bucket in bucket_keys(key)
            )
        self._execute(RedisCommand(key, ("UNLINK", key), writes=True) for key in keys)

    def close(self) -> None:
        """Refuse further commands and close the connections."""
        self._is_open = False
        self._pools.close()

    def _put(self, updates: Sequence[MapUpdate], split_above: int) -> list[MapUpdate]:
        """Put what belongs into these hashes; return what belongs into their buckets."""
        slices = _sliced(updates)
        replies = self._execute(
            RedisCommand(key, (str(split_above), MARKER, *fields, *values), PUT, writes=True)
            for key, fields, values in slices
        )
        buckets: dict[bytes, tuple[list[bytes], list[bytes]]] = defaultdict(lambda: ([], []))
        for (key, fields, values), positions in zip(slices, replies, strict=True):
            for at in positions:
                bucket_fields, bucket_values = buckets[bucket_key(key, fields[at])]
                bucket_fields.append(fields[at])
                bucket_values.append(values[at])
        return [MapUpdate(key, *content) for key, content in buckets.items()]

    def _remove_equal(self, removals: Sequence[MapUpdate]) -> None:
        self._execute(
            RedisCommand(key, (*fields, *values), _REMOVE, writes=True)
            for key, fields, values in removals
        )

    def _split_among(self, keys: Sequence[bytes]) -> set[bytes]:
        replies = self._execute(RedisCommand(key, ("HEXISTS", key, MARKER)) for key in keys)
        return {key for key, reply in zip(keys, replies, strict=True) if reply}

    def _perhaps_split_among(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return the keys of split maps, and those with something else that may have replaced one.

        Costs a round trip a key if there is such a key.
        """
        try:
            return self._split_among(keys)
        except MapOfWrongType:
            if len(keys) == 1:
                return set(keys)
        return set().union(*(self._perhaps_split_among([key]) for key in keys))

    def _scan_hash(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        cursor, server, restarts = b"0", None, 0
        while True:
            [(run_id, cursor, flat)] = self._execute(
                [RedisCommand(key, (cursor, str(_SCAN_BATCH)), _SCAN)]
            )
            if server not in (None, run_id):
                # This is another server, or the same one restarted: its hash has another order.
                restarts += 1
                if restarts > _SCAN_RESTARTS:
                    raise IndexUnavailable(
                        f"index {self._shown}: cannot scan it, "
                        "since another server answers each time: try again"
                    )
                server, cursor = None, b"0"
                continue
            server = run_id
            if flat:
                yield list(zip(flat[::2], flat[1::2], strict=True))
            if cursor == b"0":
                return

    def _execute(self, commands: Iterable[RedisCommand]) -> list[Reply]:
        """Return the replies to all commands, which go in pipelines of bounded size.

        Raises `IndexUnavailable` unless all succeed.
        """
        if not self._is_open:
            raise IndexUnavailable(f"index {self._shown}: this connection is closed")
        replies: list[Reply] = []
        pipeline: list[RedisCommand] = []
        size = 0
        for command in commands:
            pipeline.append(command)
            size += command.size_bytes()
            if size >= _PIPELINE_BYTES:
                replies += self._insist(pipeline)
                pipeline, size = [], 0
        if pipeline:
            replies += self._insist(pipeline)
        return replies

    def _insist(self, commands: Sequence[RedisCommand]) -> list[Reply]:
        replies = self._round(commands)
        pending = {at: commands[at] for at, reply in enumerate(replies) if is_error(reply)}
        deadline = time.monotonic() + self._patience_s
        while pending:
            pending = {at: self._next_try(pending[at], replies[at], deadline) for at in pending}
            if not all(command.by_text or command.asking for command in pending.values()):
                time.sleep(_RETRY_PAUSE_S)
                self._before_retry()
            for at, reply in zip(pending, self._round(list(pending.values())), strict=True):
                replies[at] = reply
            pending = {at: command for at, command in pending.items() if is_error(replies[at])}
        return replies

    def _next_try(
        self, command: RedisCommand, error: exceptions.RedisError, deadline: float
    ) -> RedisCommand:
        if isinstance(error, exceptions.NoScriptError) and not command.by_text:
            return replace(command, by_text=True)
        if _WRONG_TYPE in str(error):
            raise MapOfWrongType(
                f"index {self._shown}: at key {command.key!r} it has something that is no map: "
                "`dlcmd recover DATASET` replaces it",
                command.key,
            ) from error
        again = self._retry(command, error)
        if again is None or time.monotonic() > deadline:
            raise unavailable(self._shown, error) from error
        return again


def _sliced(updates: Sequence[MapUpdate]) -> list[MapUpdate]:
    """Return the same updates in parts that fit into one command each."""
    return [
        MapUpdate(key, fields[start:end], values[start:end])
        for key, fields, values in updates
        for start in range(0, len(fields), _SLICE_FIELDS)
        for end in [start + _SLICE_FIELDS]
    ]


def bucket_key(key: bytes, field: bytes) -> bytes:
    """Return the key of the bucket for a field of a split map that its base lacks."""
    return _bucket(*_halves(key), xxhash.xxh3_64_intdigest(field) % BUCKETS)


def bucket_keys(key: bytes) -> list[bytes]:
    """Return the keys of all buckets of a map."""
    halves = _halves(key)
    return [_bucket(*halves, number) for number in range(BUCKETS)]


def _halves(key: bytes) -> tuple[bytes, bytes]:
    """Return a map's key, cut at the end of its hash tag; without a tag all of it counts as one."""
    opening = key.find(b"{")
    closing = key.find(b"}", opening)
    if opening == -1 or closing <= opening + 1:
        return b"{" + key, b"}"
    return key[:closing], key[closing:]


def _bucket(head: bytes, tail: bytes, number: int) -> bytes:
    """Return the key of a bucket.

    A longer hash tag is another slot; the unprintable byte is in no map's key.
    """
    return b"%b\x01%02x%b" % (head, number, tail)
