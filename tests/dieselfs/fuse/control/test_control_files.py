"""Control files by look-up and forget: content fixed, memory given back, numbers never used
again."""

import errno
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from dieselfs.fuse.control import control_files
from dieselfs.fuse.control.control_documents import timestamp
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.requests.nodes import (
    CONTROL_NODE,
    DATASET_NODES,
    PLAN_NODE,
    SHUFFLE_NODE,
    WHY_NODE,
    first_control_file,
    is_control,
)
from dieselfs.shuffle.shuffle_lists import ListedOrder, ShuffleLists
from tests.dieselfs.shuffle.test_shuffle_lists import Counting


@pytest.fixture
def control() -> ControlDirectory:
    serial: Iterator[int] = count()
    documents = {
        b"stats.json": lambda: b"%d" % next(serial) * 100,
        b"nothing": lambda: b"",
    }
    snapshot: Any = Counting()
    return ControlDirectory(documents, ShuffleLists(), snapshot)


def looked_up(control: ControlDirectory, name: bytes, parent: int = CONTROL_NODE) -> int:
    return (control.lookup(parent, name)).node


def errno_of_attributes(control: ControlDirectory, node: int) -> int:
    with pytest.raises(OSError) as raised:
        control.attributes(node)
    assert raised.value.errno is not None
    return raised.value.errno


def test_each_look_up_fixes_a_content_under_a_new_node(control: ControlDirectory) -> None:
    first, second = [looked_up(control, b"stats.json") for _ in range(2)]
    assert first != second
    assert is_control(first)
    assert bytes(control.read(second, 0, 1000)) == b"1" * 100
    assert bytes(control.read(first, 0, 1000)) == b"0" * 100
    assert bytes(control.read(first, 90, 1000)) == b"0" * 10
    assert control.attributes(first).size == 100


def test_attributes_are_asked_for_again_each_time(control: ControlDirectory) -> None:
    entry = control.lookup(CONTROL_NODE, b"stats.json")
    assert entry.valid_s == 0
    assert entry.mode == stat.S_IFREG | 0o444
    assert control.attributes(CONTROL_NODE).valid_s > 0


def test_an_empty_document_reads_as_empty(control: ControlDirectory) -> None:
    node = looked_up(control, b"nothing")
    assert control.attributes(node).size == 0
    assert bytes(control.read(node, 0, 100)) == b""


def test_what_the_kernel_forgets_is_dropped_and_its_number_not_used_again(
    control: ControlDirectory,
) -> None:
    node = looked_up(control, b"stats.json")
    control.forget(node, 1)
    assert errno_of_attributes(control, node) == errno.ESTALE
    assert looked_up(control, b"stats.json") > node
    control.forget(node, 1)  # harmless


def test_a_list_is_kept_until_every_look_up_is_forgotten(control: ControlDirectory) -> None:
    first = looked_up(control, b"seed=1", SHUFFLE_NODE)
    assert looked_up(control, b"seed=1,epoch=0", SHUFFLE_NODE) == first
    control.forget(first, 1)
    assert looked_up(control, b"seed=1", SHUFFLE_NODE) == first
    control.forget(first, 2)
    assert errno_of_attributes(control, first) == errno.ESTALE
    assert looked_up(control, b"seed=1", SHUFFLE_NODE) > first


def test_documents_that_are_never_forgotten_are_bounded(
    control: ControlDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_files, "MAX_FILES", 10)
    nodes = [looked_up(control, b"stats.json") for _ in range(25)]
    assert errno_of_attributes(control, nodes[14]) == errno.ESTALE
    assert control.attributes(nodes[15]).size == 200


@pytest.mark.parametrize(
    ("parent", "name", "number"),
    [
        (CONTROL_NODE, b"other", errno.ENOENT),
        (CONTROL_NODE, b"seed=1", errno.ENOENT),
        (SHUFFLE_NODE, b"stats.json", errno.ENOENT),
        (SHUFFLE_NODE, b"seed=", errno.EINVAL),
        (SHUFFLE_NODE, b"seed=\xff", errno.EINVAL),
        (SHUFFLE_NODE, b"rank=1,world=1", errno.EINVAL),
        (12345, b"x", errno.ENOENT),
    ],
)
def test_other_names(control: ControlDirectory, parent: int, name: bytes, number: int) -> None:
    with pytest.raises(OSError) as raised:
        control.lookup(parent, name)
    assert raised.value.errno == number


def test_directories_are_listed_with_their_folders_last(control: ControlDirectory) -> None:
    assert control.names(CONTROL_NODE) == [b"nothing", b"stats.json", b"shuffle", b"plan", b"why"]
    assert control.names(SHUFFLE_NODE) == control.names(PLAN_NODE) == [b"README"]
    assert control.is_folder(CONTROL_NODE, b"plan")
    assert not control.is_folder(SHUFFLE_NODE, b"README")
    document = looked_up(control, b"stats.json")
    with pytest.raises(OSError) as raised:
        control.names(document)
    assert raised.value.errno == errno.ENOTDIR
    with pytest.raises(OSError) as raised:
        control.read(CONTROL_NODE, 0, 10)
    assert raised.value.errno == errno.EISDIR


def test_many_threads_get_numbers_of_their_own(control: ControlDirectory) -> None:
    def look_up_and_forget(round_: int) -> list[int]:
        nodes = [looked_up(control, b"stats.json") for _ in range(200)]
        lists = [looked_up(control, b"seed=1", SHUFFLE_NODE) for _ in range(20)]
        for node in [*nodes, *lists]:
            control.forget(node, 1)
        return nodes

    with ThreadPoolExecutor(8) as threads:
        nodes = [node for some in threads.map(look_up_and_forget, range(8)) for node in some]
    assert len(set(nodes)) == 1600
    assert control._files == control._list_nodes == {}


def test_a_plan_is_taken_and_a_list_noted() -> None:
    class Plans:
        def take(self, name: bytes) -> bytes:
            return b"taken " + name

        def note_list(self, order: ListedOrder) -> None:
            noted.append(order.parameters.seed)

    noted: list[int] = []
    snapshot: Any = Counting()
    control = ControlDirectory({}, ShuffleLists(), snapshot, Plans())
    plan = looked_up(control, b"12ab", PLAN_NODE)
    assert bytes(control.read(plan, 0, 100)) == b"taken 12ab"
    listing = looked_up(control, b"seed=3", SHUFFLE_NODE)
    control.read(listing, 0, 10)
    control.read(listing, 10, 10)
    assert noted == [3]
    assert control.reads == 3


def test_a_later_server_uses_other_numbers() -> None:
    day_ns = 86_400 * 10**9
    now_ns = 1_800_000_000 * 10**9
    first, second = first_control_file(now_ns), first_control_file(now_ns + day_ns)
    assert second - first > 86_400 * 15_000
    for years in range(30):
        first = first_control_file(now_ns + years * 365 * day_ns)
        assert is_control(first)
        assert DATASET_NODES - first >= 1 << 38


def test_times_are_shown_in_utc() -> None:
    assert timestamp(1_600_000_000_999_999_999) == "2020-09-13T12:26:40+00:00"


def test_a_file_of_the_snapshot_is_explained_anew_at_each_look_up() -> None:
    asked: list[int] = []

    class ThreeFiles(Counting):
        file_count = 3

    def explain(inode: int) -> bytes:
        asked.append(inode)
        return b"%d" % len(asked)

    snapshot: Any = ThreeFiles()
    control = ControlDirectory({}, ShuffleLists(), snapshot, explain=explain)
    for answer in (b"1", b"2"):
        assert bytes(control.read(looked_up(control, b"2", WHY_NODE), 0, 10)) == answer
    assert asked == [2, 2]
    for name in (b"3", b"-1", b"9" * 250, b"x", b"1.0"):
        with pytest.raises(OSError) as raised:
            control.lookup(WHY_NODE, name)
        assert raised.value.errno == errno.ENOENT
    assert asked == [2, 2]
