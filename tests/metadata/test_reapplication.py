"""An index loses any of its recent records, each by itself, or has damaged ones: commits put again
make it what it was."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
import xxhash

from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import CommitLog
from chunkstore.errors import AlreadyExists
from chunkstore.stores.memory import MemoryObjectStore
from metadata import keys
from metadata.errors import DatasetNotFound, IndexBehind, RecordCorrupt
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.records import ENTRY, DatasetState
from tests.metadata.commit_histories import (
    DATASET,
    History,
    delete,
    dump,
    history,
    make_directory,
    put,
    random_purged_history,
    stored,
)
from tests.metadata.stepped_index import Piecewise

Content = dict[bytes, dict[bytes, bytes]]

TALE = history(
    [
        [[make_directory(b"a", 0o700), put(b"a/x", 5)], [put(b"b/y", 7)]],
        [[put(b"a/x", 6), delete(b"b/y", 2)]],
        [[put(b"c/z"), delete(b"a/x", 3)], [put(b"b/new")]],
    ]
)


def parts(store: MemoryObjectStore) -> tuple[CommitLog, ChunkReader]:
    return CommitLog(store, DATASET), ChunkReader(store, DATASET)


def states(tale: History) -> list[Content]:
    """What an index holds after each commit; of generation g at g."""
    index = MemoryStore()
    found: list[Content] = [{}]
    for number in range(len(tale.commits)):
        tale.apply_one(index, number)
        found.append(dump(index, tale))
    return found


def filled(content: Content) -> MemoryStore:
    index = MemoryStore()
    index.put([[MapUpdate(key, list(m), list(m.values())) for key, m in content.items()]])
    return index


def fields_of(contents: list[Content]) -> Iterator[tuple[bytes, bytes]]:
    yield from sorted(
        {(key, name) for c in contents for key, fields in c.items() for name in fields}
    )


def forgetful(draw: random.Random, later: list[Content]) -> Content:
    """Each record as it was after any of these commits, or not there if it was not."""
    found: Content = {}
    for key, name in fields_of(later):
        value = draw.choice(later).get(key, {}).get(name)
        if value is not None:
            found.setdefault(key, {})[name] = value
    return found


def damage(draw: random.Random, content: Content) -> None:
    for key, name in fields_of([content]):
        if draw.random() < 0.15:
            value = bytearray(content[key][name])
            value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
            content[key][name] = bytes(value[: draw.choice([len(value), len(value), 16, 40])])


def test_records_of_another_version_are_made_again(caplog: pytest.LogCaptureFixture) -> None:
    known = states(TALE)
    content = {
        key: {name: _of_version_1(key, name, value) for name, value in fields.items()}
        for key, fields in known[3].items()
    }
    index = filled(content)
    with pytest.raises(RecordCorrupt, match="dlcmd recover"):
        Namespace(index, DATASET).catch_up(*parts(stored(TALE)))
    Namespace(index, DATASET).reapply(*parts(stored(TALE)), 3)
    assert dump(index, TALE) == known[4]
    assert "compared with the whole store" in caplog.text


def _of_version_1(key: bytes, name: bytes, value: bytes) -> bytes:
    at = 16 if key.endswith((b"c", b"s")) else ENTRY.fields["record_version"][1]
    body = value[:at] + b"\1" + value[at + 1 : -8]
    return body + xxhash.xxh3_64_digest(key + name + body)


@pytest.mark.parametrize("damaged", [False, True])
def test_any_recent_records_lost(damaged: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for seed in range(50):
        draw = random.Random(seed)
        tale = random_purged_history(draw, sane=True)
        known = states(tale)
        after = draw.randint(1, len(tale.commits))
        content = forgetful(draw, known[after:])
        if damaged:
            damage(draw, content)
        index = filled(content)
        without = tale.gone if draw.random() < 0.5 else frozenset()
        Namespace(index, DATASET).reapply(*parts(stored(tale, without)), after)
        assert dump(index, tale) == known[-1], (seed, after, without)


def test_nothing_at_all_left() -> None:
    for seed in range(20):
        tale = random_purged_history(random.Random(seed), sane=True)
        index = MemoryStore()
        state = Namespace(index, DATASET).reapply(*parts(stored(tale, tale.retired)), 0)
        assert dump(index, tale) == states(tale)[-1], seed
        assert state == Namespace(index, DATASET).state()


def test_stopped_at_any_step_and_begun_again() -> None:
    draw = random.Random(5)
    known = states(TALE)
    for calls in range(200):
        index = filled(forgetful(draw, known[2:]))
        failing = Piecewise.failing_after(index, calls, seed=calls)

        def work(failing: Piecewise = failing) -> None:
            Namespace(failing, DATASET).reapply(*parts(stored(TALE)), 2)

        done = not failing.stopped(work)
        Namespace(index, DATASET).reapply(*parts(stored(TALE)), 2)
        assert dump(index, TALE) == known[-1], calls
        if done:
            assert calls > 15
            return
    raise AssertionError("it never came to its end")


def test_only_later_chunks_are_read_and_older_ones_for_new_holes() -> None:
    known = states(TALE)
    content = {key: dict(fields) for key, fields in known[4].items()}
    del content[keys.files_of(DATASET.id, b"c")]
    index = filled(content)
    # Without the chunks of generation 2: chunk 1 had its hole at generation 3, as the index knows.
    state = Namespace(index, DATASET).reapply(*parts(stored(TALE, frozenset({1, 2}))), 3)
    assert dump(index, TALE) == known[4]
    assert state.files == 2


def test_a_wrong_sum_of_the_right_generation_is_replaced() -> None:
    known = states(TALE)
    index = filled(known[4])
    state_key = keys.state_of(DATASET.id)
    index.remove([MapFields(state_key, [keys.TOTALS])])
    wrong = DatasetState(4, 4000, 99, 99, 99, 99)
    index.put([[MapUpdate(state_key, [keys.TOTALS], [wrong.encode(state_key, keys.TOTALS)])]])
    Namespace(index, DATASET).reapply(*parts(stored(TALE)), 4)
    assert dump(index, TALE) == known[4]


def test_a_dataset_that_is_gone_and_one_that_never_rests() -> None:
    with pytest.raises(DatasetNotFound):
        Namespace(MemoryStore(), DATASET).reapply(*parts(MemoryObjectStore()), 0)
    early = TALE.until(3)
    index = MemoryStore()
    TALE.apply_to(index)
    # Somebody has applied a commit that the store does not show yet: an index can't be counted
    # between two generations.
    with pytest.raises(IndexBehind, match="ahead of the store"):
        Namespace(index, DATASET).reapply(*parts(stored(early)), 2)


@pytest.mark.parametrize("scans", range(1, 9))
def test_what_a_writer_applies_meanwhile_is_never_taken_away(scans: int) -> None:
    """The log has been read when a writer commits and applies one more. Whoever puts again is
    killed at any step."""
    known = states(TALE)
    calls, done = 0, False
    while not done:
        index, store = filled(known[3]), stored(TALE.until(3))

        class Joined(Piecewise):
            """The writer comes with one of the scans."""

            left = scans

            def scan(
                self,
                key: bytes,
                index: MemoryStore = index,
                store: MemoryObjectStore = store,
            ) -> Iterator[list[tuple[bytes, bytes]]]:
                self.left -= 1
                if not self.left:
                    later = stored(TALE)
                    for info in later.list(""):
                        with suppress(AlreadyExists):
                            store.create(info.key, [later.get(info.key)])
                    TALE.apply_one(index, 3)
                return super().scan(key)

        failing = Joined.failing_after(index, calls)
        done = not failing.stopped(partial(Namespace(failing, DATASET).reapply, *parts(store), 0))
        Namespace(index, DATASET).catch_up(*parts(stored(TALE)))
        assert dump(index, TALE) == known[4], calls
        calls += 1
    assert calls > 15
