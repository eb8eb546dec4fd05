"""A dataset made by several writers at random, each with a clock of its own, and what must be in
it: a dictionary."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.stores.object_store import ObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from metadata import keys
from metadata.kv.key_value_store import KeyValueStore
from metadata.namespace import PathEntry

NAMES = [b"a", b"b", b"c/a", b"c/b", b"c/d/a", b"e/f/g/h"]
Maps = dict[bytes, dict[bytes, bytes]]


@dataclass
class Writer:
    """A process: chunk ids by its clock, and the files that it alone puts below its own directory
    or among all."""

    dataset: Dataset
    ids: ChunkIdGenerator
    own: bytes
    draw: random.Random
    files: dict[bytes, bytes]
    pending: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def work(self, shared: bool) -> None:
        """One flush: some files put, put again or deleted, now and then a whole tree."""
        with DatasetWriter(
            self.dataset, target_bytes=4096, open_chunks=self.draw.choice([1, 2, 4])
        ) as writer:
            writer._packer._ids = self.ids
            if self.draw.random() < 0.15:
                self._remove_tree(writer)
                return
            put: set[bytes] = set()
            for _ in range(self.draw.randrange(1, 6)):
                path = self._path(shared)
                if path in self.files and path not in put and self.draw.random() < 0.4:
                    writer.delete(self.dataset.namespace.stat(path))
                    del self.files[path]
                    writer.flush()
                else:
                    data = self.draw.randbytes(self.draw.randrange(1, 3000))
                    writer.put(path, data, 0o600 | self.draw.randrange(64), self.draw.randrange(99))
                    self.files[path] = data
                    put.add(path)

    def _path(self, shared: bool) -> bytes:
        if self.draw.random() < 0.3 and self.files:
            # Anybody deletes anything, but puts again only what is its own.
            path = self.draw.choice(sorted(self.files))
            if shared or path.startswith(self.own):
                return path
        return (b"" if shared else self.own) + self.draw.choice(NAMES)

    def _remove_tree(self, writer: DatasetWriter) -> None:
        top = self.own.rstrip(b"/") if self.draw.random() < 0.5 else self.own + b"c"
        namespace = self.dataset.namespace
        applied = namespace.state().generation
        try:
            entry = namespace.stat(top)
        except Exception:
            return
        for listing in namespace.walk(top):
            prefix = listing.path + b"/" if listing.path else b""
            for name, row in zip(listing.file_names, listing.files, strict=True):
                writer.delete(PathEntry(prefix + name, row))
                del self.files[prefix + name]
            for name, row in zip(listing.directory_names, listing.directories, strict=True):
                writer.delete(PathEntry(prefix + name, row), applied)
        writer.delete(entry, applied)


def make_dataset(
    store: ObjectStore,
    index: KeyValueStore,
    seed: int,
    *,
    rounds: int = 12,
    skews_s: Sequence[int] = (0,),
    shared: bool = True,
    purges: float = 0,
) -> tuple[Dataset, dict[bytes, bytes]]:
    """The dataset `pets` and what is in it. A writer for each of `skews_s`, by how much its clock
    goes wrong; `shared`: they put the same names. After a round, with the chance `purges`, chunks
    with holes are merged, and half of the time deleted at once."""
    draw = random.Random(seed)
    dataset = open_dataset(store, index, "pets", create=True)
    seconds = itertools.count(1_700_000_000)
    now = [next(seconds)]
    files: dict[bytes, bytes] = {}
    writers = [
        Writer(
            dataset,
            ChunkIdGenerator(lambda skew=skew: now[0] + skew, bytes([number] * 6)),  # type: ignore[misc]
            b"own%d/" % number,
            draw,
            files,
        )
        for number, skew in enumerate(skews_s)
    ]
    for _ in range(rounds):
        now[0] = next(seconds)
        draw.choice(writers).work(shared)
        if draw.random() < purges:
            grace_s = draw.choice([0, 1e9])
            purge(dataset, PurgeRequest(leave=0, grace_s=grace_s, target_bytes=4096))
    return dataset, files


def contents(dataset: Dataset) -> dict[bytes, bytes]:
    """Every visible file of the dataset, read and verified."""
    from dieselfs.client import Client

    found = {}
    namespace, client = dataset.namespace, Client(dataset, None)  # type: ignore[arg-type]
    for listing in namespace.walk():
        prefix = listing.path + b"/" if listing.path else b""
        for name in listing.file_names:
            found[prefix + name] = client.get(prefix + name)
    return found


def all_maps(index: KeyValueStore, dataset: Dataset, known: Iterable[bytes] = ()) -> Maps:
    """Every map of the dataset that is found from the root, or `known`, by key: field -> value."""
    wanted = {*known, keys.state_of(dataset.ref.id), keys.chunks_of(dataset.ref.id), keys.DATASETS}
    pending = [b""]
    while pending:
        directory = pending.pop()
        below = keys.directories_of(dataset.ref.id, directory)
        wanted |= {below, keys.files_of(dataset.ref.id, directory)}
        prefix = directory + b"/" if directory else b""
        pending += [prefix + name for batch in index.scan(below) for name, _ in batch if name]
    found = {key: dict(pair for batch in index.scan(key) for pair in batch) for key in wanted}
    return {key: fields for key, fields in found.items() if fields}


def copied(index: KeyValueStore, maps: Mapping[bytes, Mapping[bytes, bytes]]) -> None:
    """Put all of `maps` into an empty index."""
    from metadata.kv.key_value_store import MapUpdate

    index.put([[MapUpdate(key, list(f), list(f.values())) for key, f in maps.items()]])
