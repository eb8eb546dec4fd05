"""Small histories of commits, and what they must make of an index: a reference in plain Python that
knows only the commits."""

from __future__ import annotations

import random
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chunkstore.chunk_format import (
    KIND_DIRECTORY,
    KIND_FILE,
    KIND_TOMBSTONE,
    ChunkHead,
    DatasetRef,
    Entries,
    decode_head,
    encode_head,
    make_versions,
)
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit
from chunkstore.object_keys import chunk_key, commit_key
from chunkstore.stores.memory import MemoryObjectStore
from metadata import keys
from metadata.application import apply_commit
from metadata.kv.key_value_store import KeyValueStore
from metadata.namespace import Namespace
from metadata.records import DatasetState

DATASET = DatasetRef("pets", bytes(range(16)))
PATHS = [b"a", b"b", b"a/a", b"a/b", b"b/a", b"a/a/a", b"a/a/b", b"b/a/c/d", b"b/\xff"]
IMPLICIT_MODE = stat.S_IFDIR | 0o755


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a chunk. `seen` is 0 but for deletions, `carried` but for what purge has moved."""

    path: bytes
    kind: int
    directory: bool
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    seen: int = 0
    carried: int = 0

    @property
    def is_new(self) -> bool:
        return not self.seen and not self.carried


@dataclass(frozen=True, slots=True)
class History:
    """Commits, and the encoded heads of the chunks that each added."""

    commits: Sequence[Commit]
    heads: Sequence[Sequence[bytes]]
    entries: Sequence[Sequence[Sequence[Entry]]]
    """By commit, chunk and position."""

    gone: frozenset[int] = frozenset()
    """Numbers of retired chunks whose objects are deleted in the end."""

    def apply_to(
        self, index: KeyValueStore, start: int = 0, without: frozenset[int] = frozenset()
    ) -> None:
        """The commits from number `start` on, without reading some chunks."""
        for number in range(start, len(self.commits)):
            self.apply_one(index, number, without)

    def apply_one(
        self, index: KeyValueStore, number: int, without: frozenset[int] = frozenset()
    ) -> DatasetState:
        unread = {chunk_id(chunk) for chunk in without}
        commit = self.commits[number]
        added = [
            head for head in decoded(commit, self.heads[number]) if head.chunk_id not in unread
        ]
        retired = [self.head(chunk) for chunk in commit.retired if chunk not in unread]
        return apply_commit(index, DATASET.id, commit, added, retired)

    def catch_up(self, index: KeyValueStore) -> None:
        """As `Namespace.catch_up` does: from the generation applied on."""
        for number in range(Namespace(index, DATASET).state().generation, len(self.commits)):
            self.apply_one(index, number)

    def head(self, chunk: ChunkId) -> ChunkHead:
        encoded = [head for heads in self.heads for head in heads]
        return decode_head(encoded[int.from_bytes(chunk.value, "big") - 1], chunk)

    @property
    def retired(self) -> frozenset[int]:
        return frozenset(
            int.from_bytes(chunk.value, "big")
            for commit in self.commits
            for chunk in commit.retired
        )

    def until(self, generation: int) -> History:
        return History(
            self.commits[:generation], self.heads[:generation], self.entries[:generation]
        )

    @property
    def directories(self) -> set[bytes]:
        """Every directory that a map may exist for."""
        found = {b""}
        for path in (entry.path for commit in self.entries for chunk in commit for entry in chunk):
            found.add(path)
            while path:
                path = path.rpartition(b"/")[0]
                found.add(path)
        return found


def decoded(commit: Commit, heads: Sequence[bytes]) -> list[ChunkHead]:
    return [decode_head(head, ref.id) for head, ref in zip(heads, commit.added, strict=True)]


def chunk_id(number: int) -> ChunkId:
    return ChunkId(number.to_bytes(16, "big"))


def put(path: bytes, size: int = 10, mode: int = 0o644, mtime_ns: int = 5) -> Entry:
    return Entry(path, KIND_FILE, False, size, stat.S_IFREG | mode, mtime_ns)


def make_directory(path: bytes, mode: int = 0o750, mtime_ns: int = 7) -> Entry:
    return Entry(path, KIND_DIRECTORY, True, 0, stat.S_IFDIR | mode, mtime_ns)


def delete(path: bytes, seen: int, directory: bool = False) -> Entry:
    return Entry(
        path, KIND_TOMBSTONE, directory, 0, stat.S_IFDIR if directory else stat.S_IFREG, 0, seen
    )


def history(
    commits: Sequence[Sequence[Sequence[Entry]]], retired: dict[int, list[int]] | None = None
) -> History:
    """From the entries of each commit's chunks; the dataset's birth comes before them. `retired`:
    generation -> chunk numbers."""
    made = [Commit(1, DATASET.id, 1000)]
    heads: list[list[bytes]] = [[]]
    number = 0
    for generation, chunks in enumerate(commits, start=2):
        encoded = []
        refs = []
        for entries in chunks:
            number += 1
            head = encode_head(
                chunk_id(number), DATASET, sum(entry.size for entry in entries), _columns(entries)
            )
            encoded.append(head)
            refs.append(ChunkRef(chunk_id(number), len(head), sum(e.size for e in entries)))
        gone = tuple(chunk_id(chunk) for chunk in (retired or {}).get(generation, []))
        made.append(Commit(generation, DATASET.id, 1000 * generation, tuple(refs), gone))
        heads.append(encoded)
    return History(made, heads, [[], *commits])


def stored(tale: History, without: frozenset[int] = frozenset()) -> MemoryObjectStore:
    """The objects of a history, but for some chunks."""
    store = MemoryObjectStore()
    for commit, heads in zip(tale.commits, tale.heads, strict=True):
        for ref, head in zip(commit.added, heads, strict=True):
            if ref.id not in {chunk_id(number) for number in without}:
                store.create(chunk_key("pets", ref.id), [head, bytes(ref.payload_bytes)])
        store.create(commit_key("pets", commit.generation), [commit.encode()])
    return store


def random_purged_history(
    draw: random.Random, max_commits: int = 8, *, sane: bool = False
) -> History:
    """As `random_history`, with commits in between that retire chunks by the rules of
    docs/metadata-layout.md, "Retiring"."""
    commits: list[list[list[Entry]]] = []
    retired: dict[int, list[int]] = {}
    gone: set[int] = set()
    reference = Reference.of(history([]))
    for generation in range(2, 2 + draw.randint(2, max_commits)):
        if reference.chunks and draw.random() < 0.45:
            gone |= {n for numbers in retired.values() for n in numbers if draw.random() < 0.6}
            chunks = [chunk for commit in commits for chunk in commit]
            leaving = set(
                draw.sample(sorted(reference.chunks), draw.randint(1, len(reference.chunks)))
            )
            commits.append(_purged(draw, reference, chunks, leaving, gone))
            retired[generation] = sorted(leaving)
        else:
            commits.append(_random_commit(draw, generation, commits, sane=sane))
        reference = Reference.of(history(commits, retired))
    made = history(commits, retired)
    return History(made.commits, made.heads, made.entries, frozenset(gone))


def _purged(
    draw: random.Random,
    reference: Reference,
    chunks: Sequence[Sequence[Entry]],
    leaving: set[int],
    gone: set[int],
) -> list[list[Entry]]:
    """What the commit that retires `leaving` adds. `chunks[n - 1]` is the content of chunk n, of
    all there ever were.

    Half of the time it spares the directories that no retired chunk has a part in, as
    `dieselfs.housekeeping.purge` does."""
    carried: dict[tuple[bytes, bool], Entry] = {}
    concerned: set[bytes] = set()
    generations = {reference.chunks[number].generation for number in leaving}
    sparing = draw.random() < 0.5
    for number in leaving:
        for entry in chunks[number - 1]:
            if entry.seen:
                concerned.update([entry.path] if entry.directory else [])
            elif entry.is_new or not sparing:
                concerned.update(_above(entry.path))
    tombstones = []
    for is_directory, kind in (False, reference.files), (True, reference.directories):
        for path, current in kind.items():
            inside = current.place is not None and current.place[0] in leaving
            if current.deleted:
                tombstones += [current] if inside else []
            elif inside or (
                is_directory
                and path in concerned
                and not (sparing and current.place and current.version not in generations)
            ):
                carried[path, is_directory] = replace(
                    current.entry, carried=current.version, seen=0
                )
    objects = [(n, chunk) for n, chunk in enumerate(chunks, start=1) if n not in gone]
    kept: list[Entry] = []
    # Those of directories last, from below: what is kept below them they have to show the way to.
    for current in sorted(tombstones, key=lambda d: (d.entry.directory, -d.entry.path.count(b"/"))):
        after = [
            *(
                entry
                for n, chunk in objects
                for entry in chunk
                if n not in leaving or not entry.seen
            ),
            *carried.values(),
            *kept,
        ]
        stays = [*(e for n in reference.chunks if n not in leaving for e in chunks[n - 1]), *kept]
        if draw.random() < 0.2 or _hides_something(current.entry, after, stays):
            kept.append(current.entry)
    entries = [*carried.values(), *kept]
    draw.shuffle(entries)
    cut = draw.randint(0, len(entries))
    return [part for part in (entries[:cut], entries[cut:]) if part]


def _hides_something(tombstone: Entry, there: Sequence[Entry], stays: Sequence[Entry]) -> bool:
    """`there`: what objects of the store say; `stays`: what chunks say that are not retired."""
    same = [e for e in there if (e.path, e.directory) == (tombstone.path, tombstone.directory)]
    if any(not entry.seen for entry in same):
        return True
    if any((e.path, e.directory) == (tombstone.path, tombstone.directory) for e in stays if e.seen):
        return True
    below = tombstone.path + b"/"
    return tombstone.directory and (
        any(entry.path.startswith(below) for entry in there if not entry.seen)
        or any(entry.path.startswith(below) for entry in stays)
    )


def random_history(draw: random.Random, max_commits: int = 6, *, sane: bool = False) -> History:
    """Puts, overwrites and deletions of files and directories, the same path several times in a
    commit, stale sights.

    A `sane` one deletes only what was put."""
    commits: list[list[list[Entry]]] = []
    for generation in range(2, 2 + draw.randint(1, max_commits)):
        commits.append(_random_commit(draw, generation, commits, sane=sane))
    return history(commits)


def _random_commit(
    draw: random.Random, generation: int, before: Sequence[Sequence[Sequence[Entry]]], *, sane: bool
) -> list[list[Entry]]:
    chunks = [
        [_random_entry(draw, generation) for _ in range(draw.randint(1, 5))]
        for _ in range(draw.randint(1, 3))
    ]
    if sane:
        known = {
            (e.path, e.directory) for commit in before for c in commit for e in c if not e.seen
        }
        chunks = [[e for e in c if not e.seen or (e.path, e.directory) in known] for c in chunks]
    return chunks


def _random_entry(draw: random.Random, generation: int) -> Entry:
    path = draw.choice(PATHS)
    kind = draw.random()
    if kind < 0.55:
        return put(path, draw.randint(0, 99), draw.choice([0o644, 0o600]), draw.randint(-9, 9))
    if kind < 0.65:
        path = draw.choice([*PATHS, b""])
        return make_directory(path, draw.choice([0o755, 0o700]), draw.randint(-9, 9))
    return delete(path, draw.randint(1, generation - 1), directory=kind > 0.85)


def _columns(entries: Sequence[Entry]) -> Entries:
    length = np.array([entry.size for entry in entries], np.uint64)
    kind = np.array([entry.kind for entry in entries], np.uint8)
    offset = np.zeros(len(entries), np.uint64)
    np.cumsum(length[:-1], out=offset[1:])
    offset[kind != KIND_FILE] = 0
    versions = make_versions(len(entries))
    versions["generation"] = [entry.seen or entry.carried for entry in entries]
    return Entries(
        paths=[entry.path for entry in entries],
        kind=kind,
        mode=np.array([entry.mode for entry in entries], np.uint16),
        mtime_ns=np.array([entry.mtime_ns for entry in entries], np.int64),
        offset=offset,
        length=length,
        hash=np.array(
            [entry.size if entry.kind == KIND_FILE else 0 for entry in entries], np.uint64
        ),
        block_hash=np.zeros(0, np.uint64),
        versions=versions if versions["generation"].any() else None,
    )


def map_keys(wanted: History) -> list[bytes]:
    """The key of every map that the history may touch."""
    names = [keys.chunks_of(DATASET.id), keys.state_of(DATASET.id)]
    for directory in sorted(wanted.directories):
        names += [keys.files_of(DATASET.id, directory), keys.directories_of(DATASET.id, directory)]
    return names


def dump(index: KeyValueStore, wanted: History) -> dict[bytes, dict[bytes, bytes]]:
    """Every field of every map that the history may have touched, byte for byte."""
    found = {
        key: {field: value for batch in index.scan(key) for field, value in batch}
        for key in map_keys(wanted)
    }
    return {key: fields for key, fields in found.items() if fields}


@dataclass(slots=True)
class Standing:
    """What holds at a path, as the reference sees it."""

    version: int
    deleted: bool
    entry: Entry
    place: tuple[int, int] | None
    """Chunk number and position; None for a directory that nothing describes."""
    offset: int = 0


@dataclass(slots=True)
class ChunkTruth:
    entries: Sequence[Entry]
    generation: int
    holes: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Reference:
    """The state after a list of commits, computed one entry after the other."""

    files: dict[bytes, Standing] = field(default_factory=dict)
    directories: dict[bytes, Standing] = field(default_factory=dict)
    chunks: dict[int, ChunkTruth] = field(default_factory=dict)
    generation: int = 0

    @classmethod
    def of(cls, history: History) -> Reference:
        reference = cls()
        number = 0
        for commit, chunks in zip(history.commits, history.entries, strict=True):
            numbered = list(enumerate(chunks, start=number + 1))
            number += len(chunks)
            reference._commit(commit, numbered)
        return reference

    def _commit(self, commit: Commit, chunks: Sequence[tuple[int, Sequence[Entry]]]) -> None:
        self.generation = commit.generation
        before = dict(self.directories)
        touched: set[bytes] = set()
        put_directories: set[bytes] = set()
        for number, entries in chunks:
            self.chunks[number] = ChunkTruth(entries, commit.generation)
            offset = 0
            for position, entry in enumerate(entries):
                kind = self.directories if entry.directory else self.files
                version = entry.seen or entry.carried or commit.generation
                new = Standing(version, bool(entry.seen), entry, (number, position), offset)
                offset += entry.size
                old = kind.get(entry.path)
                if old is None or (new.version, new.deleted) >= (old.version, old.deleted):
                    kind[entry.path] = new
                if entry.is_new:
                    touched.update(_above(entry.path))
                    if entry.directory:
                        put_directories.add(entry.path)
        for path in sorted(touched - put_directories):
            old = before.get(path)  # what the commit itself deletes it brings back as it was
            if old is None or old.deleted:
                entry = Entry(path, KIND_DIRECTORY, True, 0, IMPLICIT_MODE, commit.time_ns)
                self.directories[path] = Standing(commit.generation, False, entry, None)
            else:
                self.directories[path] = Standing(
                    commit.generation, False, old.entry, old.place, old.offset
                )
        for chunk in commit.retired:
            del self.chunks[int.from_bytes(chunk.value, "big")]
        for kind in (self.files, self.directories):
            for path, current in list(kind.items()):
                if current.place is not None and current.place[0] not in self.chunks:
                    del kind[path]
        self._find_holes()

    def _find_holes(self) -> None:
        current = {s.place for kind in (self.files, self.directories) for s in kind.values()}
        for number, chunk in self.chunks.items():
            holes = {p for p in range(len(chunk.entries)) if (number, p) not in current}
            chunk.holes = holes

    def live(self, kind: dict[bytes, Standing]) -> dict[bytes, Standing]:
        return {path: found for path, found in kind.items() if path and not found.deleted}

    def visible_directories(self) -> set[bytes]:
        live = self.live(self.directories)
        return {path for path in live if all(above in live for above in _above(path))}

    def visible_files(self) -> dict[bytes, Standing]:
        directories = self.visible_directories()
        return {
            path: found
            for path, found in self.live(self.files).items()
            if path not in self.live(self.directories)
            and all(above in directories for above in _above(path))
        }


def _above(path: bytes) -> Iterator[bytes]:
    """The directories above `path`, without the root."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
