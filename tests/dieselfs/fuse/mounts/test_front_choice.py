"""Which front is chosen, by facts alone."""

from dataclasses import replace

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.front_choice import (
    Front,
    FrontFacts,
    after_failure,
    choose,
    kernel_version,
    mounts_files,
    probe,
    use_direct_io,
)

ROOT = FrontFacts((6, 18, 44), True, True, True, True, False)
USER = FrontFacts((6, 18, 44), False, False, True, True, False)


@pytest.mark.parametrize(
    ("facts", "front", "via_service"),
    [
        (ROOT, Front.FILE, False),
        (replace(ROOT, has_service=True), Front.FILE, False),
        (replace(ROOT, kernel=(7, 0, 0)), Front.FILE, False),
        (replace(ROOT, kernel=(6, 12, 0)), Front.LOOP, False),
        (replace(ROOT, kernel=(6, 11, 11)), Front.LOOP, False),
        (replace(ROOT, kernel=(5, 14, 0)), Front.LOOP, False),
        (replace(ROOT, kernel=(5, 7, 19)), Front.FUSE, False),
        (replace(ROOT, kernel=(6, 1, 0), has_loop_control=False), Front.FUSE, False),
        (replace(ROOT, has_erofs=False), Front.FUSE, False),
        (replace(ROOT, may_mount=False), Front.FUSE, False),
        (replace(ROOT, may_mount=False, has_service=True), Front.FILE, True),
        (USER, Front.FUSE, False),
        (replace(USER, has_service=True), Front.FILE, True),
        (replace(USER, has_service=True, has_erofs=False), Front.FILE, True),
        (replace(USER, has_service=True, kernel=(6, 11, 0)), Front.FUSE, False),
    ],
)
def test_the_best_front_is_chosen(facts: FrontFacts, front: Front, via_service: bool) -> None:
    choice = choose("auto", facts)
    assert (choice.front, choice.via_service) == (front, via_service)
    assert "\n" not in choice.reason
    assert choice.more or front is Front.FILE


def test_fuse_is_taken_where_it_is_demanded() -> None:
    assert choose("fuse", ROOT).front is Front.FUSE


def test_erofs_where_it_is_impossible_says_what_to_do() -> None:
    assert choose("erofs", ROOT).front is Front.FILE
    for facts in (USER, replace(ROOT, may_mount=False), replace(ROOT, has_erofs=False)):
        with pytest.raises(MountError, match="EROFS cannot be mounted") as error:
            choose("erofs", facts)
        assert error.value.hint


def test_a_refused_mount_falls_back_step_by_step() -> None:
    first = choose("auto", ROOT)
    second = after_failure("auto", first, ROOT, "Block device required")
    assert second.front is Front.LOOP
    assert "Block device required" in second.reason
    assert after_failure("auto", second, ROOT, "no").front is Front.FUSE
    with pytest.raises(MountError, match="no"):
        after_failure("erofs", second, ROOT, "no")
    served = replace(USER, has_service=True)
    assert after_failure("auto", choose("auto", served), served, "no").front is Front.FUSE


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.18.44-fc-v595", (6, 18, 44)),
        ("6.12.0-55.el10.x86_64", (6, 12, 0)),
        ("7.0-rc1", (7, 0, 0)),
        ("6.8.0-41-generic", (6, 8, 0)),
        ("strange", (0, 0, 0)),
    ],
)
def test_a_kernel_release_is_read(release: str, version: tuple[int, int, int]) -> None:
    assert kernel_version(release) == version


@pytest.mark.parametrize(
    ("release", "safe"),
    [
        *(("7.0.0", True), ("7.1.3", True), ("6.18.21", True), ("6.18.44", True)),
        *(("6.18.20", False), ("6.19.1", False), ("6.12.0-55.el10", False), ("6.6.99", False)),
    ],
)
def test_files_are_mounted_where_a_killed_reader_leaves_no_zeros(release: str, safe: bool) -> None:
    assert mounts_files(kernel_version(release)) is safe


@pytest.mark.parametrize("kernel", [(6, 12, 90), (6, 18, 20), (6, 19, 4)])
def test_other_kernels_get_loop_devices_and_users_fuse(kernel: tuple[int, int, int]) -> None:
    root, user = replace(ROOT, kernel=kernel), replace(USER, kernel=kernel, has_service=True)
    assert choose("auto", root).front is Front.LOOP
    assert choose("erofs", root).front is Front.LOOP
    assert "6.18.21" in (choose("auto", root).more or "")
    assert choose("auto", user).front is Front.FUSE


def test_direct_io_is_for_files_that_are_not_filled() -> None:
    assert use_direct_io(512 << 10, "auto")
    assert not use_direct_io((512 << 10) - 1, "auto")
    assert not use_direct_io(1 << 20, "buffered")
    assert use_direct_io(1, "direct")


def test_this_machine_can_be_probed() -> None:
    facts = probe()
    assert facts.kernel > (3, 0, 0)
    assert choose("auto", facts).reason
