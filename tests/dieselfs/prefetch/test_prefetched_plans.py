import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import PlanTooLarge, UsageError
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, open_plan, write_plan
from dieselfs.prefetch.plans import AnnouncedPlan, ListedPlan
from dieselfs.prefetch.prefetcher import Prefetcher
from dieselfs.prefetch.progress_tracker import ClientProgress, ProgressTracker
from dieselfs.prefetch.requirement import MemoryNeed
from dieselfs.prefetch.window import PlannedOrder
from dieselfs.shuffle.order import ShuffleParameters, shuffle_order
from dieselfs.shuffle.shuffle_lists import ListedOrder
from metadata.snapshot import Snapshot
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.dieselfs.prefetch.scripted_memory import MovedReaders, ScriptedMemory
from tests.eventually import PATIENCE_S, eventually

SNAPSHOT = MadeSnapshot.even(chunks=20, files=5, file_bytes=100)
CHUNK_BYTES = 500


class Node:
    def __init__(
        self,
        folder: Path,
        budget_chunks: int,
        make_tracker: Callable[[Snapshot], ProgressTracker] = lambda snapshot: ClientProgress(),
    ) -> None:
        self.folder = folder
        self.memory = ScriptedMemory()
        self.budget_bytes = budget_chunks * CHUNK_BYTES
        self.prefetcher = Prefetcher(self.memory, lambda: self.budget_bytes, make_tracker)

    @property
    def read_now(self) -> list[str]:
        """The ids of the plans that are read, as the node knows them."""
        return [plan.id for plan in self.prefetcher.plans]

    def write(
        self, epoch: int, *, rank: int = 0, world: int = 1, after: str = "", position: int = 0
    ) -> PlanFile:
        order = shuffle_order(SNAPSHOT.chunk_first_inode, 1, epoch, 4, rank, world)
        plan = ReadingPlan(SNAPSHOT.id, order.inodes, order.group_start)
        return write_plan(self.folder, plan, position=position, after=after)

    def follow(self, epoch: int, **options: object) -> PlanFile:
        plan = self.write(epoch, **options)  # type: ignore[arg-type]
        self.follow_file(plan.path)
        return plan

    def follow_file(self, path: Path) -> None:
        plan = AnnouncedPlan(open_plan(path), SNAPSHOT.as_snapshot())
        self.prefetcher.follow(plan, PATIENCE_S)


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
        node.prefetcher.close()
    eventually(lambda: set(threading.enumerate()) <= threads, "threads are left")


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
        following = node.follow(epoch, after=plan.id)
        eventually(
            lambda plan=plan, mark=mark: (
                set(node.memory.begun[mark:]) == set(range(20))
                or move(plan, node.memory.begun[mark:])
            )
        )
        mark = next_mark
        read(plan)
        plan.remove()
        eventually(lambda following=following: node.read_now == [following.id])
        plan = following
    read(plan)
    eventually(lambda: node.prefetcher.statistics().position == 100)
    eventually(lambda: not node.memory.still_expected())
    eventually(lambda: node.prefetcher.statistics().fetched >= 2 * 20)


def move(plan: PlanFile, begun: list[int]) -> bool:
    """On by a file, to make room. The reader waits for its chunk: one that it passes is not fetched
    any more."""
    at = plan.position
    if at < len(plan.plan) and SNAPSHOT.columns.chunk[plan.plan.inodes[at]] in begun:
        plan.position = at + 1
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
        node.follow_file(path)
        eventually(lambda: len(node.memory.ended) == 18)
        reader.kill()
    eventually(lambda: node.memory.expected[-1] == [])
    assert path.exists()
    plan = node.follow(0)
    eventually(lambda: node.memory.expected[-1] == chunks_of(plan))
    assert node.prefetcher.statistics().files == 100


def test_two_ranks_are_followed_as_one_and_go_on_together(node_of: Make) -> None:
    node = node_of(16)
    plans = [node.follow(0, rank=rank, world=2) for rank in range(2)]
    eventually(lambda: node.prefetcher.statistics().files == 100)
    eventually(lambda: set(node.memory.expected[-1]) == set(range(20)))
    for plan in plans:
        read(plan, 20)
    eventually(lambda: node.prefetcher.statistics().position == 40)
    after = [node.follow(1, rank=rank, world=2, after=plan.id) for rank, plan in enumerate(plans)]
    eventually(lambda: len(node.memory.still_expected()) > 20)
    read(plans[0])
    plans[0].remove()
    eventually(lambda: node.read_now == [plan.id for plan in after])
    read(after[0], 7)
    read(plans[1])
    plans[1].remove()
    read(after[1], 9)
    eventually(lambda: node.prefetcher.statistics().position == 14)
    assert node.prefetcher.statistics().files == 100
    assert node.read_now == [plan.id for plan in after]


def test_a_rank_whose_next_plan_is_late_is_taken_along(node_of: Make) -> None:
    node = node_of(20)
    plans = [node.follow(0, rank=rank, world=2) for rank in range(2)]
    first = node.follow(1, rank=0, world=2, after=plans[0].id)
    read(plans[0])
    read(plans[1], 30)
    plans[0].remove()
    eventually(lambda: node.read_now == [first.id, plans[1].id])
    eventually(lambda: node.prefetcher.statistics().files == 50 + 20)
    second = node.follow(1, rank=1, world=2, after=plans[1].id)
    read(first, 5)
    read(plans[1])
    plans[1].remove()
    eventually(lambda: node.read_now == [first.id, second.id])
    eventually(lambda: node.prefetcher.statistics().files == 45 + 50)
    read(second, 10)
    read(first, 15)
    eventually(lambda: node.prefetcher.statistics().position == 20)


def test_a_plan_that_is_too_large_leaves_the_others_alone(node_of: Make) -> None:
    node = node_of(6)
    plan = node.follow(0)
    eventually(lambda: len(node.memory.ended) == 6)
    large = ReadingPlan(SNAPSHOT.id, np.arange(100, dtype=np.uint32), np.array([0, 100]))
    beside = write_plan(node.folder, large)
    after = write_plan(node.folder, large, after=plan.id)
    for file in (beside, after):
        with pytest.raises(PlanTooLarge, match="the budget is 0 MiB"):
            node.follow_file(file.path)
    expected = len(node.memory.expected)
    read(plan, 20)
    eventually(lambda: node.prefetcher.statistics().position == 20)
    eventually(lambda: len(node.memory.begun) > 6)
    assert len(node.memory.expected) == expected
    assert node.prefetcher.statistics().files == 100


def test_a_second_rank_must_fit_beside_the_first(node_of: Make) -> None:
    node = node_of(11)
    node_plan = node.follow(0, rank=0, world=2)
    with pytest.raises(PlanTooLarge, match="for 2 readers"):
        node.follow(0, rank=1, world=2)
    assert node.prefetcher.statistics().files == 50
    assert node_plan.is_read
    node.budget_bytes = 12 * CHUNK_BYTES
    other = node.follow(0, rank=1, world=2)
    assert node.prefetcher.statistics().files == 100
    assert other.is_read


def test_plans_of_files_that_are_not_there_are_refused(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0)
    beyond = ReadingPlan(SNAPSHOT.id, np.array([99, 100], np.uint32), np.array([0, 2]))
    with pytest.raises(UsageError, match="does not have"):
        node.follow_file(write_plan(node.folder, beyond).path)
    with pytest.raises(FileNotFoundError):
        node.follow_file(node.folder / "plans" / "0123456789abcdef")
    assert node.prefetcher.statistics().files == 100
    assert plan.is_read


def test_to_name_a_plan_twice_changes_nothing(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0)
    after = node.follow(1, after=plan.id)
    eventually(lambda: len(node.memory.expected) >= 1 and len(node.memory.expected[-1]) == 40)
    read(plan, 50)
    told = len(node.memory.expected)
    node.follow_file(plan.path)
    node.follow_file(after.path)
    eventually(lambda: node.prefetcher.statistics().position == 50)
    assert node.prefetcher.statistics().files == 100
    assert len(node.memory.expected) == told


def test_a_resumed_reader_has_the_rest_fetched(node_of: Make) -> None:
    node = node_of()
    plan = node.follow(0, position=60)
    rest = list(dict.fromkeys(SNAPSHOT.columns.chunk[plan.plan.inodes[60:]].tolist()))
    eventually(lambda: sorted(node.memory.ended) == sorted(rest))
    assert node.memory.expected[-1] == rest
    assert node.prefetcher.statistics().files == 40


def test_a_client_that_replaces_its_order_in_the_middle(node_of: Make) -> None:
    """As `Client.shuffle` does: the new plan names the old one, which is removed then."""
    node = node_of(8)
    plan = node.follow(0)
    eventually(lambda: len(node.memory.ended) == 8)
    for epoch in range(1, 12):
        following = node.follow(epoch, after=plan.id)
        plan.remove()
        plan = following
    eventually(lambda: node.memory.still_expected() == chunks_of(plan))
    read(plan, 40)
    eventually(lambda: node.prefetcher.statistics().position == 40)


class MountReaders(MovedReaders):
    """Readers as those of a mount, whose end is known without their help."""

    def begin(self, order: PlannedOrder) -> None:
        self.at = 0
        super().begin(order)

    def is_at_end(self) -> bool:
        return self.at == len(self.orders[-1])


def test_readers_of_a_mount_go_on_at_their_end(node_of: Make) -> None:
    made: list[MountReaders] = []

    def make(snapshot: Snapshot) -> MountReaders:
        made.append(MountReaders())
        return made[-1]

    node = node_of(make_tracker=make)
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
        assert node.read_now == [plans[epoch + 1].id]
    readers.at = 100
    eventually(lambda: node.prefetcher.statistics().position == 100)
    assert len(made) == 1
    node.prefetcher.close(PATIENCE_S)
    assert readers.closed


def test_one_tracker_serves_until_no_plan_is_left(node_of: Make) -> None:
    made: list[MountReaders] = []

    def make(snapshot: Snapshot) -> MountReaders:
        assert all(readers.closed for readers in made)
        made.append(MountReaders())
        return made[-1]

    node = node_of(make_tracker=make)
    for job in (1, 2):
        plans = [node.follow(0, rank=rank, world=4) for rank in range(4)]
        assert len(made) == job
        assert [len(order) for order in made[-1].orders] == [25, 50, 75, 100]
        assert node.prefetcher.statistics().files == 100
        assert not made[-1].closed
        for plan in plans:
            plan.remove()
        eventually(lambda: made[-1].closed)


def test_a_tracker_that_cannot_be_made_is_an_error_and_leaves_no_plan(node_of: Make) -> None:
    made: list[MountReaders] = []

    def make(snapshot: Snapshot) -> MountReaders:
        made.append(MountReaders())
        if len(made) == 1:
            raise OSError("no descriptors")
        return made[-1]

    node = node_of(make_tracker=make)
    with pytest.raises(OSError, match="no descriptors"):
        node.follow(0, rank=0, world=2)
    assert not node.prefetcher.is_running
    assert node.read_now == []
    again = node.follow(0, rank=1, world=2)
    assert node.read_now == [again.id]
    assert node.prefetcher.statistics().files == 50


def listed(epoch: int, *, rank: int = 0, world: int = 1, seed: int = 1) -> ListedPlan:
    parameters = ShuffleParameters(seed, epoch, 4, rank, world)
    return ListedPlan(ListedOrder(SNAPSHOT.as_snapshot(), parameters))


def test_readers_of_a_list_go_from_epoch_to_epoch_without_a_word(node_of: Make) -> None:
    readers = MountReaders()
    node = node_of(make_tracker=lambda snapshot: readers)
    node.prefetcher.follow(listed(0), PATIENCE_S)
    for epoch in range(3):
        eventually(lambda: len(readers.arrivals[-1]) == 20)
        eventually(lambda: len(node.memory.expected[-1]) == 40, "the next epoch is known")
        assert readers.orders[-1] == listed(epoch).order.inodes.tolist()
        readers.at = 100
        eventually(lambda epoch=epoch: len(readers.orders) == epoch + 2)
        assert node.read_now == [listed(epoch + 1).id]


def test_an_epoch_that_needs_too_much_memory_is_left_out(
    node_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    readers = MountReaders()
    node = node_of(make_tracker=lambda snapshot: readers)
    first = listed(0)
    first.next.need = MemoryNeed(1 << 40, CHUNK_BYTES)
    node.prefetcher.follow(first)
    eventually(lambda: "is not prefetched" in caplog.text)
    readers.at = 100
    eventually(lambda: node.prefetcher.statistics().position == 100)
    assert node.read_now == [first.id]
    assert len(readers.orders) == 1
    assert caplog.text.count("is not prefetched") == 1, "it is laid out once"


def test_nothing_is_followed_after_the_end(node_of: Make) -> None:
    node = node_of()
    node.prefetcher.close()
    plan = node.follow(0)
    assert plan.is_read
    assert node.memory.begun == []
    node.prefetcher.close()


def test_positions_move_while_plans_come_and_go(node_of: Make) -> None:
    """A reader that goes on without a pause, and one that follows its plans: no thread waits for
    the other for good."""
    node = node_of(8)
    ended = threading.Event()
    plan = node.follow(0)

    def run() -> None:
        current = plan
        for epoch in range(1, 40):
            following = node.follow(epoch, after=current.id)
            for at in range(0, 101, 25):
                current.position = at
            current.remove()
            current = following
        current.remove()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(PATIENCE_S)
    eventually(lambda: node.memory.expected[-1] == [])


# Under a quota


@pytest.mark.parametrize(
    ("quota_chunks", "memory_chunks"), [(None, 20), (0, 16), (8, 16), (19, 19), (99, 20)]
)
def test_plans_have_the_quota_at_most_but_their_windows(
    node_of: Callable[..., Node], quota_chunks: int | None, memory_chunks: int
) -> None:
    """Two groups have 4 chunks each, and 8 chunks are under way."""
    node = node_of()
    quota = None if quota_chunks is None else quota_chunks * CHUNK_BYTES
    node.prefetcher = Prefetcher(
        node.memory, lambda: node.budget_bytes, lambda snapshot: ClientProgress(), lambda: quota
    )
    assert node.prefetcher.memory_bytes() == min(20 * CHUNK_BYTES, (quota, 1 << 40)[quota is None])
    node.follow(0)
    assert node.prefetcher.memory_bytes() == memory_chunks * CHUNK_BYTES
    eventually(lambda: node.memory.windows == [16 * CHUNK_BYTES], "the plan's window")
