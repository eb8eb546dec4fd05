from hypothesis import given
from hypothesis import strategies as st

from dieselfs.prefetch.planner import Reader
from dieselfs.prefetch.progress_tracker import ClientProgress
from dieselfs.prefetch.window import PlannedOrder
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.dieselfs.prefetch.scripted_memory import MadePlan

SNAPSHOT = MadeSnapshot.even(chunks=50, files=4, file_bytes=10)


@given(
    st.lists(st.integers(0, 23), max_size=40),
    st.lists(st.integers(0, 45), max_size=10),
)
def test_a_chunk_is_released_once_its_last_file_has_been_read(
    order: list[int], looks: list[int]
) -> None:
    readers = ClientProgress()
    last = {inode // 4: position for position, inode in enumerate(order)}
    for _ in range(2):  # a second epoch starts over
        plan = MadePlan(SNAPSHOT, order)
        readers.begin(PlannedOrder.of((Reader(plan),)))
        assert readers.position() == 0
        assert readers.released() == []
        released: list[int] = []
        leading_position = 0
        for look in looks:
            plan.at = min(look, len(order))
            leading_position = max(leading_position, plan.at)
            assert readers.position() == readers.leading_position() == plan.at
            released += readers.released()
            assert sorted(released) == sorted(c for c in last if last[c] < leading_position)


class Two:
    """Readers of plans that are read in turn."""

    def __init__(self, files: int = 10, others: int = 10, start: int = 0) -> None:
        self.one = MadePlan(SNAPSHOT, range(files))
        self.other = MadePlan(SNAPSHOT, range(100, 100 + others))
        self.readers = ClientProgress()
        order = PlannedOrder.of((Reader(self.one, start), Reader(self.other)))
        self.order: list[int] = order.inodes.tolist()
        self.readers.begin(order)

    def position(self, at: int, other: int) -> int:
        self.one.at, self.other.at = at, other
        return self.readers.position()


def test_the_slowest_of_several_counts() -> None:
    two = Two()
    assert two.position(7, 0) == 0
    assert two.position(7, 5) == 10
    assert two.position(7, 10) == 14
    assert two.position(10, 10) == 20


def test_what_was_read_before_an_order_began_does_not_count() -> None:
    two = Two(start=3)
    assert two.order[:4] == [3, 100, 4, 101]
    assert two.position(3, 5) == 0
    assert two.position(5, 5) == 4


def test_a_reader_that_was_killed_does_not_hold_up_the_others() -> None:
    two = Two()
    assert two.position(2, 6) == 4
    two.one.is_read = False
    assert two.position(2, 6) == 12


def test_of_orders_of_unequal_length_none_is_taken_for_read_that_is_not() -> None:
    two = Two(2, 6)
    for short in range(3):
        for long in range(7):
            read = [*range(short), *range(100, 100 + long)]
            position = two.position(short, long)
            assert set(two.order[:position]) <= set(read)
            assert (position == 8) == (len(read) == 8)
            prefix = next((at for at in range(8) if two.order[at] not in read), 8)
            assert prefix - 1 <= position <= prefix


def test_a_client_at_its_end_may_still_map_chunks() -> None:
    two = Two()
    assert two.position(10, 10) == 20
    assert not two.readers.is_at_end()


def test_they_hold_nothing_themselves() -> None:
    readers = ClientProgress()
    assert readers.outside_bytes() == 0
    assert list(readers.wake_fds()) == []
    readers.arrived(3)
    readers.close()
    readers.end()
