"""What may be written as a plan, by whom, how much and how often; and what becomes of it."""

import errno
import stat
import struct
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dieselfs.fuse.control import foreign_plans
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.foreign_plans import ForeignPlan, ForeignPlans
from dieselfs.fuse.requests.nodes import PLAN_NODE
from dieselfs.prefetch.plan_file import POSITION_AT, WITHDRAWN, ReadingPlan, encoded_plan
from dieselfs.prefetch.plan_ioctl import MAX_ARGUMENT_BYTES
from dieselfs.shuffle.shuffle_lists import ShuffleLists

FILES = 1000
NAME, OTHER_NAME = b"0123456789abcdef.plan", b"fedcba9876543210.plan"
ALICE, BOB = 1001, 1002
PLAN = ReadingPlan(
    "7-abc", np.arange(FILES, dtype=np.uint32)[::-1].copy(), np.array([0, 400, FILES]), "/s"
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plans(clock: Clock) -> ForeignPlans:
    snapshot: Any = SimpleNamespace(id="7-abc", file_count=FILES)
    return ForeignPlans(snapshot, clock)


def encoded(plan: ReadingPlan = PLAN, position: int = 0, after: str = "") -> bytes:
    return b"".join(encoded_plan(plan, position=position, after=after))


def tell(
    plans: ForeignPlans,
    data: bytes,
    *,
    node: int = 9,
    name: bytes = NAME,
    user: int = ALICE,
    step: int = 4096,
) -> ForeignPlan | None:
    """Write a plan as the kernel would; return it as one that is followed."""
    plans.open(node, name, user)
    for start in range(0, len(data), step):
        plans.write(node, start, memoryview(data)[start : start + step])
    return plans.find(name, user)


def refusal(plans: ForeignPlans, data: bytes, **more: Any) -> int | None:
    with pytest.raises(OSError) as raised:
        tell(plans, data, **more)
    return raised.value.errno


def users_bytes(plans: ForeignPlans) -> int:
    return plans.statistics().bytes


@pytest.mark.parametrize("step", [136, 1000, MAX_ARGUMENT_BYTES - 8, 1 << 20])
def test_a_plan_in_pieces(plans: ForeignPlans, step: int) -> None:
    told = tell(plans, encoded(position=5, after="00aa"), step=step)
    assert told is not None
    assert told.plan.inodes.tolist() == PLAN.inodes.tolist()
    assert told.plan.group_start.tolist() == [0, 400, FILES]
    assert (told.id, told.after) == (f"{ALICE}:0123456789abcdef", f"{ALICE}:00aa")
    assert (told.position, told.is_read, told.is_foreign) == (5, True, True)
    assert plans.size(9) == len(encoded())


def test_its_position_moves_and_nothing_else(plans: ForeignPlans) -> None:
    told = tell(plans, encoded())
    assert told is not None
    plans.write(9, POSITION_AT, memoryview(struct.pack("=Q", 400)))
    assert told.position == 400
    for start, data in ((0, bytes(8)), (POSITION_AT, bytes(7)), (len(encoded()), bytes(8))):
        with pytest.raises(OSError, match="Invalid"):
            plans.write(9, start, memoryview(data))
    assert (told.position, told.plan.inodes.tolist()) == (400, PLAN.inodes.tolist())


def test_it_ends_with_its_last_descriptor(plans: ForeignPlans) -> None:
    told = tell(plans, encoded())
    assert told is not None
    assert users_bytes(plans) == len(encoded())
    plans.forget(9)
    assert (told.is_read, users_bytes(plans), plans.has(9)) == (False, 0, False)
    assert plans.find(NAME, ALICE) is None
    assert told.plan.inodes[0] == FILES - 1  # what follows it still has it
    with pytest.raises(OSError) as raised:
        plans.write(9, POSITION_AT, memoryview(bytes(8)))
    assert raised.value.errno == errno.ESTALE


def test_it_is_withdrawn_though_children_hold_it(plans: ForeignPlans) -> None:
    told = tell(plans, encoded())
    assert told is not None
    plans.write(9, POSITION_AT, memoryview(struct.pack("=Q", WITHDRAWN)))
    assert (told.is_read, users_bytes(plans), plans.find(NAME, ALICE)) == (False, 0, None)
    plans.forget(9)
    assert users_bytes(plans) == 0


def test_nobody_names_another_users_plan(plans: ForeignPlans) -> None:
    assert tell(plans, encoded()) is not None
    assert plans.find(NAME, BOB) is None
    after = tell(plans, encoded(after=NAME[:16].decode()), node=10, name=OTHER_NAME, user=BOB)
    assert after is not None
    assert after.after == f"{BOB}:0123456789abcdef"


def changed(**fields: object) -> bytes:
    return encoded(replace(PLAN, **fields))  # type: ignore[arg-type]


def with_word(number: int, value: int) -> bytes:
    """The plan with another number in its header: files, groups, bytes of the path."""
    data = bytearray(encoded())
    struct.pack_into("=Q", data, 8 * number, value)
    return bytes(data)


HOSTILE: dict[str, tuple[bytes, int]] = {
    "nothing": (b"\0" * 200, errno.EINVAL),
    "a part of a header": (encoded()[:100], errno.EINVAL),
    "another snapshot": (changed(snapshot_id="8-abc"), errno.ESTALE),
    "a snapshot that is no text": (
        encoded().replace(b"7-abc", b"\xff\xfe\xfd\xfc\xfb", 1),
        errno.ESTALE,
    ),
    "files that there are not": (changed(inodes=PLAN.inodes + 1), errno.EINVAL),
    "groups that fall": (changed(group_start=np.array([0, 900, 400, FILES])), errno.EINVAL),
    "groups that overflow": (
        changed(group_start=np.array([0, 1 << 62, -(1 << 63), -(1 << 62), 0, FILES])),
        errno.EINVAL,
    ),
    "groups of other files": (changed(group_start=np.array([0, 400])), errno.EINVAL),
    "more files than there are": (with_word(2, 2 * FILES + 2), errno.EINVAL),
    "files without end": (with_word(2, (1 << 64) - 1), errno.EINVAL),
    "groups without end": (with_word(3, (1 << 64) - 1), errno.EINVAL),
    "a path without end": (with_word(4, (1 << 64) - 1), errno.EFBIG),
    "too few bytes said": (with_word(2, FILES - 1), errno.EINVAL),
    "more after the end": (encoded() + b"\0" * 4096, errno.EINVAL),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_plan_is_refused(
    plans: ForeignPlans, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, number = HOSTILE[what]
    assert refusal(plans, data) == number
    assert plans.find(NAME, ALICE) is None or what == "more after the end"
    plans.forget(9)
    assert users_bytes(plans) == 0
    if what != "more after the end":  # that was one, and stays so
        assert plans.statistics().refused == 1
        assert (
            f"plan {ALICE}:0123456789abcdef is refused ({errno.errorcode[number]})" in caplog.text
        )
    assert tell(plans, encoded(), node=10) is not None


def test_a_refused_plan_gets_the_same_answer_again(plans: ForeignPlans) -> None:
    """A write of several requests tells only how much was taken, if the last one is refused."""
    data = changed(inodes=PLAN.inodes + 1)
    plans.open(9, NAME, ALICE)
    plans.write(9, 0, memoryview(data)[:4000])
    for start in (4000, 4000, 0, POSITION_AT):
        with pytest.raises(OSError, match="Invalid"):
            plans.write(9, start, memoryview(data)[start:])


def test_bytes_come_in_order(plans: ForeignPlans) -> None:
    data = memoryview(encoded())
    for second in (0, 4096, 5000):
        plans.open(9, NAME, ALICE)
        plans.write(9, 0, data[:4000])
        with pytest.raises(OSError, match="Invalid"):
            plans.write(9, second, data[second : second + 10])
        plans.forget(9)
    assert users_bytes(plans) == 0


def test_a_plan_that_is_too_large(plans: ForeignPlans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_plans, "MAX_PLAN_BYTES", len(encoded()) - 1)
    assert refusal(plans, encoded()) == errno.EFBIG


def test_a_user_has_only_so_many_plans(
    plans: ForeignPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_plans, "USER_PLANS", 3)
    for node in range(3):
        assert tell(plans, encoded(), node=node, name=b"%016x.plan" % node) is not None
    assert refusal(plans, encoded()) == errno.EDQUOT
    assert tell(plans, encoded(), node=20, user=BOB) is not None
    plans.forget(1)
    assert tell(plans, encoded(), node=21) is not None


def test_all_users_have_only_so_many_bytes(
    plans: ForeignPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_plans, "ALL_BYTES", 2 * len(encoded()))
    for user in (ALICE, BOB):
        assert tell(plans, encoded(), node=user, user=user) is not None
    assert refusal(plans, encoded(), node=3, user=3) == errno.EDQUOT
    plans.forget(ALICE)
    assert tell(plans, encoded(), node=4, user=3) is not None


def test_a_user_tells_plans_only_so_often(plans: ForeignPlans, clock: Clock) -> None:
    """The allowance is full at first: 128 MiB, and each plan costs 1 MiB beside its bytes."""

    def told_until_refused() -> Iterator[int]:
        for node in range(1000):
            try:
                assert tell(plans, encoded(), node=node) is not None
            except OSError:
                return
            finally:
                plans.forget(node)
            yield node

    assert 120 < len(list(told_until_refused())) <= 128
    assert refusal(plans, encoded()) == errno.EDQUOT
    plans.forget(9)
    clock.now += 1.0
    assert 7 <= len(list(told_until_refused())) <= 8
    assert tell(plans, encoded(), node=5000, user=BOB) is not None
    clock.now += 1e6
    assert 120 < len(list(told_until_refused())) <= 128


def test_a_plan_that_nobody_follows_is_dropped_for_another(
    plans: ForeignPlans, clock: Clock
) -> None:
    """Its writer was killed, and the kernel has not forgotten the file yet."""
    followed = tell(plans, encoded(), node=1)
    plans.open(2, OTHER_NAME, ALICE)
    plans.write(2, 0, memoryview(encoded())[:200])
    assert users_bytes(plans) == 2 * len(encoded())
    clock.now += foreign_plans.IDLE_S + 1
    assert tell(plans, encoded(), node=3, user=BOB) is not None
    assert users_bytes(plans) == 2 * len(encoded())
    assert (plans.has(1), plans.has(2)) == (True, False)
    assert followed is not None
    assert followed.is_read


def test_files_that_are_only_looked_up_are_bounded(
    plans: ForeignPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_plans, "MAX_NODES", 5)
    assert tell(plans, encoded(), node=1) is not None
    for node in range(100, 200):
        plans.open(node, OTHER_NAME, BOB)
    assert plans.has(1)
    assert [node for node in range(100, 200) if plans.has(node)] == [196, 197, 198, 199]


@pytest.mark.parametrize(
    "name", [b"0123456789abcdef", b"x.plan", b"0123456789ABCDEF.plan", b"README", b"../etc.plan"]
)
def test_names_that_are_none(name: bytes) -> None:
    assert not ForeignPlans.names(name)


class Answering:
    """The owner of a mount's plans; it counts what it is asked to follow."""

    def __init__(self) -> None:
        self.followed: list[ForeignPlan] = []

    def take(self, name: bytes) -> bytes:
        return b"taken " + name

    def follow(self, plan: ForeignPlan) -> bytes:
        self.followed.append(plan)
        return b"answer %d" % len(self.followed)

    def note_list(self, order: object) -> None:
        raise AssertionError(order)


@pytest.fixture
def answering() -> Answering:
    return Answering()


@pytest.fixture
def control(plans: ForeignPlans, answering: Answering) -> ControlDirectory:
    no_snapshot: Any = None
    return ControlDirectory({}, ShuffleLists(), no_snapshot, answering, plans)


def test_the_name_of_a_whole_plan_is_its_answer(
    control: ControlDirectory, answering: Answering
) -> None:
    """The kernel looks up a name twice that leads elsewhere now. The plan is followed once."""
    entry = control.lookup(PLAN_NODE, NAME, ALICE)
    assert (stat.S_IMODE(entry.mode), entry.valid_s) == (0o666, 0)
    assert control.lookup(PLAN_NODE, NAME, ALICE).node != entry.node
    control.write(entry.node, 0, memoryview(encoded()))
    assert control.attributes(entry.node).size == len(encoded())
    for _ in range(2):
        answer = control.lookup(PLAN_NODE, NAME, ALICE)
        assert bytes(control.read(answer.node, 0, 100)) == b"answer 1"
        with pytest.raises(OSError) as raised:
            control.write(answer.node, 0, memoryview(encoded()))
        assert raised.value.errno == errno.EROFS
    assert [plan.id for plan in answering.followed] == [f"{ALICE}:0123456789abcdef"]
    other = control.lookup(PLAN_NODE, NAME, BOB)
    assert control.is_plan(other.node)
    control.forget(entry.node, 1)
    assert not answering.followed[0].is_read
    assert control.is_plan(control.lookup(PLAN_NODE, NAME, ALICE).node)


def test_without_foreign_plans_their_names_are_refused(answering: Answering) -> None:
    no_snapshot: Any = None
    control = ControlDirectory({}, ShuffleLists(), no_snapshot, answering)
    with pytest.raises(OSError) as raised:
        control.lookup(PLAN_NODE, NAME, ALICE)
    assert raised.value.errno == errno.EACCES
    taken = control.lookup(PLAN_NODE, NAME[:16], ALICE)
    assert bytes(control.read(taken.node, 0, 100)) == b"taken 0123456789abcdef"
