"""One commit after the other, case by case; test_namespace_model does the same at random."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from metadata.application import apply_commit
from metadata.errors import PathNotFound
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.records import NO_CHUNK
from tests.metadata.commit_histories import (
    DATASET,
    Entry,
    History,
    chunk_id,
    decoded,
    delete,
    dump,
    history,
    make_directory,
    put,
)


def applied(*commits: list[list[Entry]], retired: dict[int, list[int]] | None = None) -> Namespace:
    index = MemoryStore()
    history(commits, retired).apply_to(index)
    return Namespace(index, DATASET)


def names(namespace: Namespace, directory: bytes = b"") -> tuple[list[bytes], list[bytes]]:
    listing = namespace.list(directory)
    return list(listing.directory_names), list(listing.file_names)


def holes(namespace: Namespace, chunk: int) -> list[int]:
    record = namespace.chunk(chunk_id(chunk).value)
    bits = np.unpackbits(np.frombuffer(record.deleted, np.uint8), bitorder="little")
    assert record.deleted_count == bits.sum()
    return np.flatnonzero(bits).tolist()


def test_a_birth_is_an_empty_dataset() -> None:
    namespace = applied()
    state = namespace.state()
    assert (state.generation, state.updated_ns, state.files, state.chunks) == (1, 1000, 0, 0)
    assert names(namespace) == ([], [])


def test_a_file_makes_the_directories_above_it() -> None:
    namespace = applied([[put(b"a/b/c")]])
    assert [listing.path for listing in namespace.walk()] == [b"", b"a", b"a/b"]
    entry = namespace.stat(b"a/b")
    assert (int(entry.row["mode"]), int(entry.row["mtime_ns"])) == (0o40755, 2000)
    assert bytes(entry.row["chunk"]) == NO_CHUNK
    assert namespace.state().directories == 2


def test_a_directory_keeps_its_attributes_when_something_comes_into_it() -> None:
    namespace = applied([[make_directory(b"a", 0o700, 99), put(b"a/x")]], [[put(b"a/y")]])
    entry = namespace.stat(b"a")
    assert (int(entry.row["mode"]), int(entry.row["mtime_ns"])) == (0o40700, 99)
    assert entry.generation == 3
    assert holes(namespace, 1) == []


def test_explicit_attributes_after_the_fact() -> None:
    namespace = applied(
        [[put(b"a/x")]], [[make_directory(b"a", 0o711)]], [[make_directory(b"a", 0o710)]]
    )
    assert int(namespace.stat(b"a").row["mode"]) == 0o40710
    assert holes(namespace, 2) == [0]
    assert namespace.state().directories == 1


def test_of_a_path_put_twice_the_later_place_stands() -> None:
    namespace = applied([[put(b"a", 1), put(b"a", 2)], [put(b"b"), put(b"a", 3)]])
    row = namespace.stat(b"a").row
    assert (int(row["length"]), int(row["position"])) == (3, 1)
    assert bytes(row["chunk"]) == chunk_id(2).value
    assert (holes(namespace, 1), holes(namespace, 2)) == ([0, 1], [])
    assert namespace.state().files == 2
    assert namespace.chunk(chunk_id(1).value).deleted_bytes == 3


def test_chunks_are_taken_by_their_ids_not_by_their_place_in_the_commit() -> None:
    tale = history([[[put(b"a", 1)], [put(b"a", 2)]]])
    index = MemoryStore()
    apply_commit(index, DATASET.id, tale.commits[0], [])
    heads = decoded(tale.commits[1], tale.heads[1])
    apply_commit(index, DATASET.id, tale.commits[1], heads[::-1])
    assert int(Namespace(index, DATASET).stat(b"a").row["length"]) == 2


def test_overwriting_makes_a_hole() -> None:
    namespace = applied([[put(b"a", 1), put(b"b", 2)]], [[put(b"a", 5)]])
    assert holes(namespace, 1) == [0]
    state = namespace.state()
    assert (state.files, state.bytes, state.chunks) == (2, 7, 2)
    assert namespace.chunk(chunk_id(1).value).generation == 2


def test_a_deletion_hides_what_it_saw_and_itself_becomes_a_hole_later() -> None:
    namespace = applied([[put(b"a")]], [[delete(b"a", 2)]])
    with pytest.raises(PathNotFound):
        namespace.stat(b"a")
    assert (holes(namespace, 1), holes(namespace, 2)) == ([0], [])
    assert (namespace.state().files, namespace.state().bytes) == (0, 0)
    namespace = applied([[put(b"a")]], [[delete(b"a", 2)]], [[put(b"a", 4)]])
    assert int(namespace.stat(b"a").row["length"]) == 4
    assert (holes(namespace, 1), holes(namespace, 2)) == ([0], [0])


def test_a_deletion_does_not_hide_what_it_did_not_see() -> None:
    namespace = applied([[put(b"a")]], [[put(b"a", 2)]], [[delete(b"a", 2)]])
    assert int(namespace.stat(b"a").row["length"]) == 2
    assert holes(namespace, 3) == [0]


def test_a_tree_deleted_while_another_writer_adds_to_it() -> None:
    sight = [delete(b"a/x", 2), delete(b"a", 2, directory=True)]
    for first, second in ([put(b"a/new")], sight), (sight, [put(b"a/new")]):
        namespace = applied([[make_directory(b"a", 0o700), put(b"a/x")]], [first], [second])
        assert names(namespace, b"a") == ([], [b"new"])
        assert namespace.state().files == 1


def test_a_deleted_directory_comes_back_without_its_attributes() -> None:
    gone = [delete(b"a/x", 2), delete(b"a", 2, directory=True)]
    namespace = applied([[make_directory(b"a", 0o700), put(b"a/x")]], [gone])
    assert names(namespace) == ([], [])
    assert namespace.state().directories == 0
    namespace = applied([[make_directory(b"a", 0o700), put(b"a/x")]], [gone], [[put(b"a/y")]])
    assert int(namespace.stat(b"a").row["mode"]) == 0o40755
    assert names(namespace, b"a") == ([], [b"y"])


def test_a_directory_hides_a_file_of_its_name_and_its_removal_shows_it() -> None:
    tale = [[put(b"a", 7)]], [[put(b"a/x", 5)]]
    namespace = applied(*tale)
    assert namespace.stat(b"a").is_directory
    listing = namespace.list(b"")
    assert (list(listing.directory_names), list(listing.file_names)) == ([b"a"], [])
    assert (listing.hidden_files, listing.hidden_bytes) == (1, 7)
    assert (namespace.state().files, namespace.state().bytes) == (2, 12)
    namespace = applied(*tale, [[delete(b"a/x", 3), delete(b"a", 3, directory=True)]])
    assert not namespace.stat(b"a").is_directory
    assert namespace.state().files == 1


def test_the_root_has_attributes_of_its_own() -> None:
    namespace = applied([[put(b"a")]])
    assert (int(namespace.root()["mode"]), int(namespace.root()["mtime_ns"])) == (0o40755, 2000)
    namespace = applied([[make_directory(b"", 0o1777, 3)]], [[put(b"a")]])
    assert (int(namespace.root()["mode"]), int(namespace.root()["mtime_ns"])) == (0o41777, 3)
    assert namespace.stat(b"").is_directory
    assert namespace.state().directories == 0
    assert names(namespace) == ([], [b"a"])


def test_a_retired_chunk_is_gone() -> None:
    namespace = applied([[put(b"a")]], [[put(b"a")]], [[put(b"b")]], retired={4: [1]})
    assert namespace.chunks().keys() == {chunk_id(2).value, chunk_id(3).value}
    assert namespace.state().chunks == 2


def test_an_old_commit_changes_nothing_and_tells_the_present_state() -> None:
    tale = history([[[put(b"a")]], [[put(b"a", 2), put(b"c/d")]], [[delete(b"c/d", 3)]]])
    index = MemoryStore()
    tale.apply_to(index)
    before, state = dump(index, tale), Namespace(index, DATASET).state()
    for number in (1, 0, 2, 3):
        commit = tale.commits[number]
        assert apply_commit(index, DATASET.id, commit, decoded(commit, tale.heads[number])) == state
    assert dump(index, tale) == before


def test_datasets_in_one_index_do_not_meet() -> None:
    index = MemoryStore()
    tale = history([[[put(b"a/b")]]])
    tale.apply_to(index)
    before = dump(index, tale)
    other = bytes(16)
    for commit, heads in zip(tale.commits, tale.heads, strict=True):
        apply_commit(index, other, commit, decoded(commit, heads))
    apply_commit(index, other, history([[], [[delete(b"a/b", 2)]]]).commits[2], [])
    assert dump(index, tale) == before


def test_the_cost_grows_with_the_number_of_directories_and_not_with_its_square() -> None:
    """60,000 classes in one directory, each put with its attributes: seconds, where a search a name
    took minutes."""
    count = 60_000
    chunk = [e for n in range(count // 2) for e in (make_directory(b"%d" % n), put(b"%d/x" % n))]
    tale: History = history([[chunk]])
    index = MemoryStore()
    began = time.process_time()
    tale.apply_to(index)
    assert time.process_time() - began < 10
    assert Namespace(index, DATASET).state().directories == count // 2


def test_holes_of_many_chunks_at_once() -> None:
    draw = random.Random(1)
    first = [
        [put(b"%d/%d" % (chunk, n), draw.randint(0, 9)) for n in range(17)] for chunk in range(9)
    ]
    second = [put(e.path, 1) for chunk in first for e in chunk if draw.random() < 0.5]
    namespace = applied(first, [second])
    rewritten = {entry.path for entry in second}
    for number, chunk in enumerate(first, start=1):
        assert holes(namespace, number) == [n for n, e in enumerate(chunk) if e.path in rewritten]
