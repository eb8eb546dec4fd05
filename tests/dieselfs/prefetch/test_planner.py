import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dieselfs.errors import PlanTooLarge, UsageError
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, write_plan
from dieselfs.prefetch.planner import Planner
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.dieselfs.prefetch.scripted_memory import MovedReaders, ScriptedMemory
from tests.eventually import eventually

SNAPSHOT = MadeSnapshot.even(chunks=20, files=5, file_bytes=100)
CHUNK_BYTES = 500


class Node:
    def __init__(self, folder: Path, budget_chunks: int, **options: object) -> None:
        self.folder = folder
        self.memory = ScriptedMemory()
        self.budget_bytes = budget_chunks * CHUNK_BYTES
        self.over: list[str] = []
        self.snapshots = {SNAPSHOT.id: SNAPSHOT}
        self.planner = Planner(
            self.memory,
            self._snapshot_of,
            lambda: self.budget_bytes,
            over=lambda plans: self.over.extend(plan.id for plan in plans),
            **options,  # type: ignore[arg-type]
        )

    def _snapshot_of(self, plan: ReadingPlan) -> Snapshot:
        if plan.snapshot_id not in self.snapshots:
            raise UsageError(f"no snapshot {plan.snapshot_id} here")
        return self.snapshots[plan.snapshot_id].as_snapshot()

    def write(
        self, epoch: int, *, rank: int = 0, world: int = 1, after: str = "", position: int = 0
    ) -> PlanFile:
        order = shuffle_order(SNAPSHOT.chunk_first_inode, 1, epoch, 4, rank, world)
        plan = ReadingPlan(SNAPSHOT.id, order.inodes, order.group_start)
        return write_plan(self.folder, plan, position=position, after=after)

    def follow(self, epoch: int, **options: object) -> PlanFile:
        plan = self.write(epoch, **options)  # type: ignore[arg-type]
        self.planner.follow(plan.path)
        return plan


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []
    threads = set(threading.enumerate())

    def make(budget_chunks: int = 20, **options: object) -> Node:
        made.append(Node(tmp_path, budget_chunks, **options))
        return made[-1]

    yield make
    for node in made:
        node.memory.release_all()
        node.planner.close()
    eventually(lambda: set(threading.enumerate()) <= threads, "the threads end")


Make = Callable[..., Node]


def chunks_of(plan: PlanFile) -> list[int]:
    return list(dict.fromkeys(SNAPSHOT.columns.chunk[plan.plan.inodes].tolist()))


def read(plan: PlanFile, files: int | None = None) -> None:
    plan.position = len(plan.plan) if files is None else files


def test_one_reader_is_followed_over_three_epochs(node_of: Make) -> None:
    node = node_of(8)
    plan, mark = node.follow(0), 0
    for epoch in range(1, 4):
        eventually(lambda plan=plan: node.memory.still_expected()[:20] == chunks_of(plan))
        next_mark = len(node.memory.begun)
        planner = node.follow(epoch, after=plan.id)
        eventually(
            lambda plan=plan, mark=mark: (
                set(node.memory.begun[mark:]) == set(range(20)) or move(plan)
            )
        )
        mark = next_mark
        read(plan)
        plan.remove()
        eventually(lambda epoch=epoch: len(node.over) == epoch)
        assert node.over[-1] == plan.id
        plan = planner
    read(plan)
    eventually(lambda: node.planner.statistics().position == 100)
    assert not node.memory.still_expected()
    assert node.planner.statistics().fetched >= 2 * 20


def move(plan: PlanFile) -> bool:
    """On by a file, to make room."""
    plan.position = min(plan.position + 1, len(plan.plan))
    return False


def test_an_end_without_a_successor_ends_it_and_expects_nothing(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0)
    eventually(lambda: len(node.memory.ended) == 20)
    read(plan)
    plan.remove()
    eventually(lambda: node.memory.expected[-1] == [])
    eventually(lambda: not any(t.name.startswith("prefetch") for t in threading.enumerate()))
    again = node.follow(1)
    eventually(lambda: node.memory.expected[-1] == chunks_of(again))


def test_an_end_in_the_middle_ends_it_too(node_of: Make) -> None:
    node = node_of(8)
    plan = node.follow(0)
    eventually(lambda: len(node.memory.ended) == 8)
    read(plan, 3)
    plan.remove()
    eventually(lambda: node.memory.expected[-1] == [])


def test_a_killed_reader_is_not_followed_any_more(node_of: Make) -> None:
    node = node_of(8)
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from dieselfs.prefetch.plan_file import ReadingPlan, write_plan\n"
        "plan = ReadingPlan('1-made', np.arange(100, dtype='u4'), np.array([0, 20, 100]))\n"
        "file = write_plan(Path(sys.argv[1]), plan); print(file.path, flush=True); sys.stdin.read()"
    )
    node.budget_bytes = 18 * CHUNK_BYTES
    with subprocess.Popen(
        [sys.executable, "-c", code, node.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        path = Path(reader.stdout.readline().rstrip("\n"))
        node.planner.follow(path)
        eventually(lambda: len(node.memory.ended) == 18)
        reader.kill()
    eventually(lambda: node.memory.expected[-1] == [])
    assert path.exists()
    plan = node.follow(0)
    eventually(lambda: node.memory.expected[-1] == chunks_of(plan))
    assert node.planner.statistics().files == 100


def test_two_ranks_are_followed_as_one_and_go_on_together(node_of: Make) -> None:
    node = node_of(16)
    plans = [node.follow(0, rank=rank, world=2) for rank in range(2)]
    eventually(lambda: node.planner.statistics().files == 100)
    eventually(lambda: set(node.memory.expected[-1]) == set(range(20)))
    for plan in plans:
        read(plan, 20)
    eventually(lambda: node.planner.statistics().position == 40)
    after = [node.follow(1, rank=rank, world=2, after=plan.id) for rank, plan in enumerate(plans)]
    eventually(lambda: len(node.memory.still_expected()) > 20)
    read(plans[0])
    plans[0].remove()
    eventually(lambda: len(node.over) == 2)
    assert node.over == [plan.id for plan in plans]
    read(after[0], 7)
    read(plans[1])
    plans[1].remove()
    read(after[1], 9)
    eventually(lambda: node.planner.statistics().position == 14)
    assert node.planner.statistics().files == 100
    assert len(node.over) == 2


def test_a_rank_whose_next_plan_is_late_is_taken_along(node_of: Make) -> None:
    node = node_of(20)
    plans = [node.follow(0, rank=rank, world=2) for rank in range(2)]
    first = node.follow(1, rank=0, world=2, after=plans[0].id)
    read(plans[0])
    read(plans[1], 30)
    plans[0].remove()
    eventually(lambda: node.over == [plans[0].id])
    eventually(lambda: node.planner.statistics().files == 50 + 20)
    second = node.follow(1, rank=1, world=2, after=plans[1].id)
    read(first, 5)
    read(plans[1])
    plans[1].remove()
    eventually(lambda: node.over == [plans[0].id, plans[1].id])
    eventually(lambda: node.planner.statistics().files == 45 + 50)
    read(second, 10)
    read(first, 15)
    eventually(lambda: node.planner.statistics().position == 20)


def test_a_plan_that_is_too_large_leaves_the_others_alone(node_of: Make) -> None:
    node = node_of(6)
    plan = node.follow(0)
    eventually(lambda: len(node.memory.ended) == 6)
    large = ReadingPlan(SNAPSHOT.id, np.arange(100, dtype=np.uint32), np.array([0, 100]))
    beside = write_plan(node.folder, large)
    planner = write_plan(node.folder, large, after=plan.id)
    for file in (beside, planner):
        with pytest.raises(PlanTooLarge, match="the budget is 0 MiB"):
            node.planner.follow(file.path)
    expected = len(node.memory.expected)
    read(plan, 20)
    eventually(lambda: node.planner.statistics().position == 20)
    eventually(lambda: len(node.memory.begun) > 6)
    assert len(node.memory.expected) == expected
    assert node.planner.statistics().files == 100


def test_a_second_rank_must_fit_beside_the_first(node_of: Make) -> None:
    node = node_of(11)
    node_plan = node.follow(0, rank=0, world=2)
    with pytest.raises(PlanTooLarge, match="for 2 readers"):
        node.follow(0, rank=1, world=2)
    assert node.planner.statistics().files == 50
    assert node_plan.is_read
    node.budget_bytes = 12 * CHUNK_BYTES
    other = node.follow(0, rank=1, world=2)
    assert node.planner.statistics().files == 100
    assert other.is_read


def test_plans_of_no_snapshot_at_hand_are_refused(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0)
    strange = ReadingPlan("9-other", np.arange(5, dtype=np.uint32), np.array([0, 5]))
    with pytest.raises(UsageError, match="no snapshot 9-other"):
        node.planner.follow(write_plan(node.folder, strange).path)
    beyond = ReadingPlan(SNAPSHOT.id, np.array([99, 100], np.uint32), np.array([0, 2]))
    with pytest.raises(UsageError, match="does not have"):
        node.planner.follow(write_plan(node.folder, beyond).path)
    with pytest.raises(FileNotFoundError):
        node.planner.follow(node.folder / "plans" / "0123456789abcdef")
    assert node.planner.statistics().files == 100
    assert plan.is_read


def test_to_name_a_plan_twice_changes_nothing(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0)
    after = node.follow(1, after=plan.id)
    eventually(lambda: len(node.memory.expected) >= 1 and len(node.memory.expected[-1]) == 40)
    read(plan, 50)
    told = len(node.memory.expected)
    node.planner.follow(plan.path)
    node.planner.follow(after.path)
    eventually(lambda: node.planner.statistics().position == 50)
    assert node.planner.statistics().files == 100
    assert len(node.memory.expected) == told


def test_a_resumed_reader_has_the_rest_fetched(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0, position=60)
    rest = list(dict.fromkeys(SNAPSHOT.columns.chunk[plan.plan.inodes[60:]].tolist()))
    eventually(lambda: sorted(node.memory.ended) == sorted(rest))
    assert node.memory.expected[-1] == rest
    assert node.planner.statistics().files == 40


def test_a_client_that_replaces_its_order_in_the_middle(node_of: Make) -> None:
    """As `Client.shuffle` does: the new plan names the old one, which is removed then."""
    node = node_of(8)
    plan = node.follow(0)
    eventually(lambda: len(node.memory.ended) == 8)
    for epoch in range(1, 12):
        planner = node.follow(epoch, after=plan.id)
        plan.remove()
        plan = planner
    eventually(lambda: node.memory.still_expected() == chunks_of(plan))
    read(plan, 40)
    eventually(lambda: node.planner.statistics().position == 40)


class TickingReaders(MovedReaders):
    """Readers as those of a mount, who know their position themselves."""

    def __init__(self, tick: Callable[[int], None]) -> None:
        super().__init__()
        self.tick = tick

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        self.at = 0
        super().begin(order, uses)

    def position(self) -> int:
        position = super().position()
        self.tick(position)
        return position


def test_readers_of_a_mount_go_on_at_their_end(node_of: Make) -> None:
    made: list[TickingReaders] = []

    def make(snapshot: Snapshot) -> TickingReaders:
        made.append(TickingReaders(node.planner.tick))
        return made[-1]

    node = node_of(readers=make)
    plans = [node.follow(0)]
    for epoch in range(1, 4):
        plans.append(node.follow(epoch, after=plans[-1].id))
    (readers,) = made
    for epoch in range(3):
        eventually(lambda epoch=epoch: len(readers.arrivals) == epoch + 1)
        eventually(lambda: readers.arrivals and len(readers.arrivals[-1]) == 20)
        assert readers.orders[-1] == plans[epoch].plan.inodes.tolist()
        begun = len(readers.orders)
        readers.at = 100
        eventually(lambda begun=begun: len(readers.orders) > begun)
        assert node.over == [plan.id for plan in plans[: epoch + 1]]
    readers.at = 100
    eventually(lambda: node.planner.statistics().position == 100)
    assert len(made) == 1
    node.planner.close()
    assert readers.closed


def test_readers_are_closed_before_others_are_made(node_of: Make) -> None:
    made: list[TickingReaders] = []

    def make(snapshot: Snapshot) -> TickingReaders:
        assert all(readers.closed for readers in made)
        made.append(TickingReaders(node.planner.tick))
        return made[-1]

    node = node_of(readers=make)
    kept = [node.follow(0, rank=rank, world=4) for rank in range(4)]
    assert len(made) == 4
    assert [bool(readers.closed) for readers in made] == [True, True, True, False]
    assert all(plan.is_read for plan in kept)
    for plan in kept:
        plan.remove()
    eventually(lambda: made[-1].closed)


def test_readers_that_cannot_be_made_end_what_was_followed(node_of: Make) -> None:
    made: list[TickingReaders] = []

    def make(snapshot: Snapshot) -> TickingReaders:
        if len(made) == 1:
            made.append(made[0])
            raise OSError("no descriptors")
        made.append(TickingReaders(node.planner.tick))
        return made[-1]

    node = node_of(readers=make)
    kept = [node.follow(0, rank=0, world=2)]
    with pytest.raises(OSError, match="no descriptors"):
        node.follow(0, rank=1, world=2)
    kept.append(node.follow(0, rank=1, world=2))
    assert node.planner.statistics().files == 50


def test_who_is_told_that_plans_are_over_may_follow_another(node_of: Make, tmp_path: Path) -> None:
    """It is told with no lock held: a lock of its own may be held by a thread that follows."""
    told = threading.Event()
    free = threading.Event()

    def over(plans: Sequence[PlanFile]) -> None:
        told.set()
        assert free.wait(10)

    memory = ScriptedMemory()
    planner = Planner(
        memory, lambda plan: SNAPSHOT.as_snapshot(), lambda: 20 * CHUNK_BYTES, over=over
    )
    node = node_of()
    first = node.write(0)
    second = node.write(1, after=first.id)
    third = node.write(2, after=second.id)
    planner.follow(first.path)
    planner.follow(second.path)
    first.remove()
    try:
        assert told.wait(10)
        planner.follow(third.path)
    finally:
        free.set()
        planner.close()


def test_nothing_is_followed_after_the_end(node_of: Make) -> None:
    node = node_of()
    node.planner.close()
    plan = node.follow(0)
    assert plan.is_read
    assert node.memory.begun == []
    node.planner.close()


def test_positions_move_while_plans_come_and_go(node_of: Make) -> None:
    """A reader that goes on without a pause, and one that follows its plans: no thread waits for the other for good."""
    node = node_of(8)
    ended = threading.Event()
    plan = node.follow(0)

    def run() -> None:
        current = plan
        for epoch in range(1, 40):
            planner = node.follow(epoch, after=current.id)
            for at in range(0, 101, 25):
                current.position = at
            current.remove()
            current = planner
        current.remove()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(20)
    eventually(lambda: node.memory.expected[-1] == [])
