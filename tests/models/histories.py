"""Random histories of one dataset: several writers, crashes at any call of store or index, losses,
recoveries, purges, snapshots.

Each is a function of its seed. After every few steps what an observer sees must be what the model
says, byte for byte, and the index what recovery would build.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chunkstore.commit_log import newest_generation
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.client import Client
from dieselfs.dataset.dataset import open_dataset
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from dieselfs.recovery import RecoveryOptions, recover
from dieselfs.snapshots import lifecycle
from metadata import keys
from metadata.errors import PathNotFound
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.namespace import Namespace
from metadata.snapshot import Snapshot
from tests.chunkstore.packed import StoreWrapper
from tests.faults.kept_dataset import files_of, index_differences, links_of
from tests.metadata.stepped_index import Piecewise, Stopped
from tests.models.dataset_model import Change, DatasetModel, Put, Tombstone

NAME = "d"
DIRECTORIES = [b"", b"x", b"x/y", b"z"]
PATHS = [b"/".join(filter(None, (d, b"f%d" % n))) for d in DIRECTORIES for n in range(3)]
STEPS = 14


class Process:
    """Ends, once it has made so many calls, for good: every later call of its threads ends them
    too."""

    def __init__(self, calls: int | None) -> None:
        self._left = calls
        self.is_dead = False

    def step(self) -> None:
        if self.is_dead or self._left == 0:
            self.is_dead = True
            raise Stopped
        if self._left is not None:
            self._left -= 1


class SteppedStore(StoreWrapper):
    """The process may end before a call, or when it has taken effect."""

    def __init__(self, inner: MemoryObjectStore, process: Process) -> None:
        super().__init__(inner)
        self._process = process

    def before(self, call: str, key: str) -> None:
        self._process.step()

    def after(self, call: str, key: str) -> None:
        self._process.step()


@dataclass(slots=True)
class Writer:
    client: Client
    process: Process
    pending: list[Change] = field(default_factory=list)


class World:
    """One dataset, its writers, and what must be true of it."""

    def __init__(self, seed: int, index: KeyValueStore, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.store = MemoryObjectStore()
        self.index = index
        self.folder = folder
        self.model = DatasetModel()
        self.writers: list[Writer] = []
        self.tale: list[str] = []
        self._count = 0
        self.dataset = open_dataset(self.store, self.index, NAME, create=True).ref

    def run(self) -> None:
        """All of the history; `tale` says what happened, for whoever looks for a mistake."""
        actions: dict[Callable[[], None], int] = {
            self.put: 10,
            self.put_link: 4,
            self.flush: 5,
            self.delete: 4,
            self.delete_tree: 1,
            self.put_directory: 1,
            self.open_writer: 3,
            self.leave: 1,
            self.purge: 2,
            self.lose_all: 1,
            self.lose_some: 1,
            self.recover: 1,
            self.check: 3,
        }
        try:
            for action in self.draw.choices(list(actions), list(actions.values()), k=STEPS):
                self.tale.append(action.__name__)
                action()
            for writer in list(self.writers):
                self._flush(writer)
            self.check()
        except BaseException as error:
            error.add_note(" ".join(self.tale))
            raise
        finally:
            for writer in self.writers:
                writer.client._changes().stop()

    # What a writer does

    def open_writer(self) -> None:
        if len(self.writers) < 2:
            process = self._process()
            try:
                client = Client.connect(
                    NAME,
                    store=SteppedStore(self.store, process),
                    index=self._stepped(process),
                    snapshot_folder=self.folder,
                    target_bytes=4096,
                    open_chunks=self.draw.choice([1, 4]),
                )
            except Stopped:
                return
            self.writers.append(Writer(client, process))

    def put(self) -> None:
        if (writer := self._writer()) is not None:
            self._count += 1
            path = self.draw.choice(PATHS)
            change = Put(path, b"%d " % self._count * self.draw.choice([0, 3, 600]))
            if self._alive(writer, lambda: writer.client.put(change.data, path)):
                writer.pending.append(change)

    def put_link(self) -> None:
        """New, in the place of a file, or of another link."""
        if (writer := self._writer()) is not None:
            path, name = self.draw.choice(PATHS), b"f%d" % self.draw.randrange(3)
            change = Put(path, b"../" * self.draw.randrange(path.count(b"/") + 1) + name, True)
            if self._alive(writer, lambda: writer.client.put_link(change.data, path)):
                writer.pending.append(change)

    def put_directory(self) -> None:
        if (writer := self._writer()) is not None:
            path, mode = self.draw.choice(DIRECTORIES), self.draw.choice([0o700, 0o750])
            self._alive(
                writer, lambda: writer.client._changes().writer().put_directory(path, mode, 1000)
            )

    def flush(self) -> None:
        if (writer := self._writer()) is not None:
            self._flush(writer)

    def delete(self) -> None:
        """What the index shows, be it the newest or not: a deletion hides what was seen."""
        writer = self._writer()
        if writer is None or not self._flush(writer):
            return
        path = self.draw.choice(PATHS)
        try:
            seen = self._namespace().stat(path).generation
        except PathNotFound:
            return
        if self._alive(writer, lambda: writer.client.delete(path)):
            writer.pending.append(Tombstone(path, seen))

    def delete_tree(self) -> None:
        writer = self._writer()
        if writer is None or not self._flush(writer):
            return
        top = self.draw.choice(DIRECTORIES[1:])
        seen: list[Change] = []
        try:
            for listing in self._namespace().walk(top):
                for name, row in zip(listing.file_names, listing.files, strict=True):
                    seen.append(Tombstone(listing.path + b"/" + name, int(row["version"]) >> 1))
        except PathNotFound:
            return
        if self._alive(writer, lambda: writer.client.delete_tree(top)):
            writer.pending += seen

    def leave(self) -> None:
        """Without a flush: what was not acknowledged is gone."""
        if (writer := self._writer()) is not None:
            self._end(writer)

    # What happens to the dataset

    def purge(self) -> None:
        process = self._process()
        request = PurgeRequest(leave=0, grace_s=0, round_bytes=self.draw.choice([100, 1 << 30]))
        try:
            store, index = SteppedStore(self.store, process), self._stepped(process)
            purge(open_dataset(store, index, NAME), request)
        except Stopped:
            self.tale.append("(ended)")

    def lose_all(self) -> None:
        dataset = open_dataset(self.store, self.index, NAME)
        dataset.namespace.forget()
        open_dataset(self.store, self.index, NAME)

    def lose_some(self) -> None:
        """Any of its records, whoever may need them; then recovery."""
        dataset = open_dataset(self.store, self.index, NAME)
        maps = [keys.chunks_of(dataset.ref.id), keys.state_of(dataset.ref.id)]
        for directory in DIRECTORIES:
            maps += [
                key_of(dataset.ref.id, directory) for key_of in (keys.files_of, keys.directories_of)
            ]
        for key in maps:
            fields = sorted(field for batch in self.index.scan(key) for field, _ in batch)
            self.index.remove(
                [MapFields(key, [field for field in fields if self.draw.random() < 0.4])]
            )
        recover(self.store, self.index, NAME, RecoveryOptions())

    def recover(self) -> None:
        process = self._process()
        try:
            store, index = SteppedStore(self.store, process), self._stepped(process)
            recover(store, index, NAME, RecoveryOptions())
        except Stopped:
            self.tale.append("(ended)")
            recover(self.store, self.index, NAME, RecoveryOptions())

    def check(self) -> None:
        """As a newcomer sees it."""
        dataset = open_dataset(self.store, self.index, NAME)
        assert files_of(dataset) == self.model.content
        assert links_of(dataset) == self.model.links
        assert index_differences(dataset) == []
        if self.draw.random() < 0.3:
            self._check_snapshot()

    def _check_snapshot(self) -> None:
        dataset = open_dataset(self.store, self.index, NAME)
        snapshot = Snapshot.open(lifecycle.build(dataset, self.folder))
        assert snapshot.header.files == len(self.model.files)
        assert snapshot.header.total_bytes == sum(map(len, self.model.content.values()))
        found = {inode for inode in range(snapshot.file_count) if snapshot.is_link(inode)}
        assert {snapshot.path_of(inode) for inode in found} == self.model.links
        Snapshot.verify(snapshot.path)
        snapshot.close()

    # How it is done

    def _flush(self, writer: Writer) -> bool:
        """Whether the writer lives on. If not, its commit may have come about or not."""
        newest = newest_generation(self.store, NAME)
        after = self.model.after(writer.pending, newest + 1)
        lives = self._alive(writer, writer.client.flush)
        if lives or newest_generation(self.store, NAME) > newest:
            self.model = after
        writer.pending.clear()
        return lives

    def _alive(self, writer: Writer, act: Callable[[], object]) -> bool:
        try:
            act()
        except Stopped:
            self.tale.append("(ended)")
            self._end(writer)
            return False
        return True

    def _end(self, writer: Writer) -> None:
        writer.process.is_dead = True
        writer.client._changes().stop()
        self.writers.remove(writer)

    def _writer(self) -> Writer | None:
        if not self.writers:
            self.open_writer()
        return self.draw.choice(self.writers) if self.writers else None

    def _process(self) -> Process:
        return Process(self.draw.randint(0, 120) if self.draw.random() < 0.8 else None)

    def _stepped(self, process: Process) -> Piecewise:
        return Piecewise(self.index, process.step, random.Random(self.draw.random()))

    def _namespace(self) -> Namespace:
        """As it is, without bringing it up to the store."""
        return Namespace(self.index, self.dataset)
