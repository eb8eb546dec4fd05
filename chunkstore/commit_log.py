"""The commit log: the ordered commits of a dataset, as objects that are only ever created.

Generation 1 is the dataset's birth and holds its random id and its packing settings. Each later
generation names the chunks that it adds and retires. The writer that creates `commits/<generation>`
owns that generation; a writer that loses the race takes the next number. So writers need no lock
and the log has no gaps. docs/chunk-format.md defines the bytes.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import AlreadyExists, Corrupt, NotFound
from chunkstore.object_keys import check_dataset_name, chunk_key, commit_key, commit_prefix
from chunkstore.sealed_object import sealed, unsealed
from chunkstore.stores.later_keys import later_keys
from chunkstore.stores.object_store import Buffer, ObjectStore, check_created

MAGIC: Final = b"DIESELCM"
FORMAT_VERSION: Final = 1
BIRTH_GENERATION: Final = 1
LATE_S: Final = 24 * 3600
"""The age in seconds above which a chunk is checked for existence before its commit.

`dlcmd gc` deletes chunks that are still uncommitted after a week.
"""
_REMOVED: Final = 1
_GENERATION = re.compile(r"[0-9]{16}")  # a folder on a disk may contain foreign files
_FIXED = struct.Struct(
    "<8sHHIIIQq16s"
)  # magic, version, flags, added, retired, packing, generation, time, dataset id
_ADDED: Final = np.dtype(
    [("id", "V16"), ("head_bytes", "<u4"), ("reserved", "<u4"), ("payload_bytes", "<u8")]
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One generation of a dataset."""

    generation: int
    dataset_id: bytes
    time_ns: int
    """The time of the commit by the writer's clock.

    It does not order commits. The grace period of a retired chunk begins at the time of the commit
    that retires it (`dieselfs.housekeeping.retention`).
    """
    added: tuple[ChunkRef, ...] = ()
    retired: tuple[ChunkId, ...] = ()
    removed: bool = False
    """True if the dataset ends with this commit; all its remaining objects are garbage."""
    packing: int = 0
    """The encoded `PackingSettings` of the dataset, in its birth; 0 without them."""

    def encode(self) -> bytes:
        """Return the bytes of the commit object."""
        added = np.zeros(len(self.added), _ADDED)
        if self.added:
            added["id"] = np.frombuffer(b"".join(ref.id.value for ref in self.added), "V16")
            added["head_bytes"] = [ref.head_bytes for ref in self.added]
            added["payload_bytes"] = [ref.payload_bytes for ref in self.added]
        fixed = _FIXED.pack(
            MAGIC,
            FORMAT_VERSION,
            _REMOVED if self.removed else 0,
            len(self.added),
            len(self.retired),
            self.packing,
            self.generation,
            self.time_ns,
            self.dataset_id,
        )
        body = b"".join([fixed, added.tobytes(), *(chunk_id.value for chunk_id in self.retired)])
        return sealed(body)

    @classmethod
    def decode(cls, data: Buffer, generation: int) -> Commit:
        """Return the commit in `data`.

        Raise `Corrupt` unless `data` is a valid commit object of `generation`.
        """
        what = f"commit {generation}"
        body, fields = unsealed(bytes(data), _FIXED, MAGIC, FORMAT_VERSION, what, "a commit")
        flags, added, retired, packing, found, time_ns, dataset_id = fields
        if flags & ~_REMOVED:
            raise Corrupt(f"{what} has flags {flags:#x}, which this release does not know")
        if found != generation:
            raise Corrupt(f"the object of commit {generation} contains commit {found}")
        if len(body) != _FIXED.size + added * _ADDED.itemsize + retired * 16:
            raise Corrupt(f"the length of commit {generation} is wrong")
        columns = np.frombuffer(body, _ADDED, added, _FIXED.size)
        refs = zip(
            columns["id"].tolist(),
            columns["head_bytes"].tolist(),
            columns["payload_bytes"].tolist(),
            strict=True,
        )
        rest = body[_FIXED.size + added * _ADDED.itemsize :]
        return cls(
            generation,
            dataset_id,
            time_ns,
            tuple(ChunkRef(ChunkId(chunk_id), head, payload) for chunk_id, head, payload in refs),
            tuple(ChunkId(rest[at : at + 16]) for at in range(0, len(rest), 16)),
            bool(flags & _REMOVED),
            packing,
        )


class CommitLog:
    """The commits of one dataset. It is as thread-safe as its store."""

    def __init__(self, store: ObjectStore, dataset: DatasetRef) -> None:
        self.dataset = dataset
        self._store = store

    def append(
        self,
        after: int,
        added: Sequence[ChunkRef],
        retired: Sequence[ChunkId] = (),
        removed: bool = False,
    ) -> Commit:
        """Make one commit durable and return it; `after` is any generation known to exist.

        The call may be repeated with the same arguments after an error: if the earlier try
        succeeded after all, its commit is returned and nothing is committed twice. Raises
        `NotFound` if the dataset has been removed, because no commit follows a removal; a commit
        that came too late is deleted again, so that it is in no next dataset's way. Raises
        `AlreadyExists` if another process has committed one of these chunks since `after` (`recover
        --adopt` beside a put): a second commit would give the chunk's files a new version, but its
        holes would stay, and purge takes no file out of a hole.

        Cost: one create and a get, two requests more for the first commit, and a create and a get
        for each generation that others appended since `after`. A store that defers checks is asked
        for the chunks first (`DefersChecks`), and raises `Untrusted` if it has not what it
        acknowledged.
        """
        self._check_created(added)
        draft = Commit(
            after + 1, self.dataset.id, time.time_ns(), tuple(added), tuple(retired), removed
        )
        while True:
            found, is_ours = self._offered(draft)
            if is_ours:
                self._check_in_time(found, after)
                return found
            if found.removed:
                raise self._removed()
            if twice := {ref.id for ref in found.added} & {ref.id for ref in added}:
                raise AlreadyExists(
                    f"cannot commit chunk {min(twice)}: another process has committed it "
                    f"as generation {found.generation}; run the same command again"
                )
            draft = replace(draft, generation=draft.generation + 1)

    def append_exactly(
        self,
        generation: int,
        added: Sequence[ChunkRef] = (),
        retired: Sequence[ChunkId] = (),
        removed: bool = False,
    ) -> Commit:
        """Make one commit durable as `generation` and no other, and return it.

        The method is for commits that are valid only if nobody else has committed since. Raises
        `AlreadyExists` if another commit has that generation, and `NotFound` if the dataset has
        been removed. The call may be repeated with the same arguments after an error: if the
        earlier try succeeded after all, its commit is returned. Added chunks are checked as by
        `append`.
        """
        self._check_created(added)
        draft = Commit(
            generation, self.dataset.id, time.time_ns(), tuple(added), tuple(retired), removed
        )
        found, is_ours = self._offered(draft)
        if not is_ours:
            raise AlreadyExists(commit_key(self.dataset.name, generation))
        self._check_in_time(found, generation - 1)
        return found

    def _offered(self, draft: Commit) -> tuple[Commit, bool]:
        """Create a commit; return the commit that has its generation, and whether it is this one.

        An equal commit is an earlier try of this call whose answer was lost. Returning it adds and
        retires no chunk twice.
        """
        key = commit_key(self.dataset.name, draft.generation)
        try:
            self._store.create(key, [draft.encode()])
        except AlreadyExists:
            try:
                found = self.read(draft.generation)
            except (NotFound, Corrupt):
                if not self.is_born():
                    raise self._removed() from None
                raise
            return found, replace(found, time_ns=draft.time_ns) == draft
        return draft, True

    def _check_in_time(self, commit: Commit, after: int) -> None:
        """Delete the commit and raise `NotFound` if it was made after the dataset's removal.

        A removal deletes the commits in order, the birth and the end last. So while `after` is
        there, no generation behind it has become free again; of the birth this is not true.
        """
        if not commit.removed and after > BIRTH_GENERATION and self._has(after):
            return
        if (not commit.removed and self._has_ended()) or not self.is_born():
            self.withdraw(commit.generation)
            raise self._removed()

    def _has_ended(self) -> bool:
        with suppress(NotFound, Corrupt):
            return self.read(newest_generation(self._store, self.dataset.name)).removed
        return False

    def _has(self, generation: int) -> bool:
        with suppress(NotFound, Corrupt):
            return self.read(generation).generation == generation
        return False

    def _removed(self) -> NotFound:
        return NotFound(f"dataset {self.dataset.name} has been removed")

    def _check_created(self, added: Iterable[ChunkRef]) -> None:
        name = self.dataset.name
        check_created(self._store, {chunk_key(name, ref.id): ref.object_bytes for ref in added})

    def check_late(self, chunks: Iterable[ChunkRef]) -> None:
        """Raise `NotFound` if the store has lost one of `chunks` that is older than `LATE_S`.

        Call it before a commit. Cost: one stat for each such chunk.
        """
        late_s = time.time() - LATE_S
        for ref in chunks:
            if ref.id.seconds >= late_s:
                continue
            try:
                self._store.stat(chunk_key(self.dataset.name, ref.id))
            except NotFound as error:
                raise NotFound(
                    f"cannot commit chunk {ref.id}: `dlcmd gc` has deleted it, "
                    "since its commit came late; run the same command again"
                ) from error

    def is_born(self) -> bool:
        """Return whether the dataset's birth is in the store, and not that of another one."""
        return find_dataset(self._store, self.dataset.name) == self.dataset

    def withdraw(self, generation: int) -> None:
        """Delete the commit of that generation if it is of this dataset, which is removed."""
        with suppress(NotFound, Corrupt):
            self.read(generation)
            self._store.delete(commit_key(self.dataset.name, generation))

    def read(self, generation: int) -> Commit:
        """Return one commit.

        Raise `NotFound` beyond the newest generation, and `Corrupt` if the commit belongs to
        another dataset that had the same name.
        """
        commit = Commit.decode(
            self._store.get(commit_key(self.dataset.name, generation)), generation
        )
        if commit.dataset_id != self.dataset.id:
            raise Corrupt(
                f"commit {generation} of dataset {self.dataset.name} belongs to a removed dataset "
                f"of that name: see `dlcmd recover {self.dataset.name} --without-commits -n`"
            )
        return commit

    def since(self, generation: int) -> Iterator[Commit]:
        """Yield the commits after `generation`, in order, up to the newest.

        Raises `Corrupt` if commits are missing and a later one is there. A late commit of a removed
        dataset of that name does not count. Cost: one get for each commit, and two requests to find
        the end.
        """
        while True:
            generation += 1
            try:
                commit = self.read(generation)
            except NotFound:
                found = self._unless_end(generation)
                if found is None:
                    return
                commit = found
            except Corrupt:
                if not self._is_late(generation):
                    raise
                return
            yield commit

    def _unless_end(self, generation: int) -> Commit | None:
        """Return the commit that was missing a moment ago, or the dataset's end; None at the log's.

        The commits of a dataset are deleted when it is removed, the end last.
        """
        if not self._is_followed(generation):
            return None
        try:
            return self.read(generation)
        except NotFound:
            newest = newest_generation(self._store, self.dataset.name)
        try:
            last = self.read(newest)
        except (NotFound, Corrupt):
            last = None
        if last is not None and last.removed:
            return last
        name = self.dataset.name
        raise Corrupt(
            f"commit {generation} of dataset {name} is missing, and a later one is there: restore "
            f"it from a copy of the store, or see `dlcmd recover {name} --without-commits -n`"
        )

    def _is_followed(self, generation: int) -> bool:
        """Return whether the store has a later commit of this dataset.

        In a store that cannot list keys after one, only the next commit is looked for.
        """
        prefix = commit_prefix(self.dataset.name)
        keys = later_keys(self._store, prefix, commit_key(self.dataset.name, generation))
        if keys is None:
            return not self._is_foreign(generation + 1)
        numbers = sorted(filter(_GENERATION.fullmatch, (key.removeprefix(prefix) for key in keys)))
        return not all(self._is_foreign(int(number)) for number in numbers)

    def _is_late(self, generation: int) -> bool:
        """Return whether a commit is of a removed dataset of that name, at the end of the log."""
        is_foreign = self._is_foreign(generation) and self.is_born()
        return is_foreign and not self._is_followed(generation)

    def _is_foreign(self, generation: int) -> bool:
        """Return whether a commit is absent, or of another dataset that had the name."""
        try:
            data = self._store.get(commit_key(self.dataset.name, generation))
            return Commit.decode(data, generation).dataset_id != self.dataset.id
        except NotFound:
            return True
        except Corrupt:
            return False


def listed_generations(store: ObjectStore, name: str) -> Iterator[int]:
    """Yield the generations whose commits are in the store, in no particular order. One listing."""
    names = (info.key.rpartition("/")[2] for info in store.list(commit_prefix(name)))
    return (int(text) for text in names if _GENERATION.fullmatch(text))


def newest_generation(store: ObjectStore, name: str) -> int:
    """Return the greatest generation in the store, or 0 without a dataset. One listing."""
    return max(listed_generations(store, name), default=0)


def find_dataset(store: ObjectStore, name: str) -> DatasetRef | None:
    """Return the dataset of that name, or None if there is none. One get.

    There is none if it was never created or is wholly removed.
    """
    check_dataset_name(name)
    try:
        birth = Commit.decode(store.get(commit_key(name, BIRTH_GENERATION)), BIRTH_GENERATION)
    except NotFound:
        return None
    return DatasetRef(name, birth.dataset_id)


def create_dataset(store: ObjectStore, name: str, packing: int = 0) -> tuple[DatasetRef, bool]:
    """Return the dataset of that name, and whether this call created it.

    All concurrent creators get the same dataset, which remembers the `packing` of the first one.
    """
    check_dataset_name(name)
    birth = Commit(BIRTH_GENERATION, os.urandom(16), time.time_ns(), packing=packing)
    try:
        store.create(commit_key(name, BIRTH_GENERATION), [birth.encode()])
        return DatasetRef(name, birth.dataset_id), True
    except AlreadyExists:
        found = find_dataset(store, name)
        if found is None:
            raise NotFound(
                f"cannot open dataset {name}: it was removed meanwhile; try again"
            ) from None
        return found, False
