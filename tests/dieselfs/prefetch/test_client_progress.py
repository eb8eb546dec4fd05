import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.prefetch.client_progress import ClientProgress
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot

SNAPSHOT = MadeSnapshot.even(chunks=6, files=4, file_bytes=10)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 23), max_size=40),
    st.lists(st.integers(0, 45), max_size=10),
)
def test_a_chunk_is_released_once_its_last_file_has_been_read(
    order: list[int], looks: list[int]
) -> None:
    at = 0
    readers = ClientProgress(lambda: at)
    inodes = np.array(order, np.uint32)
    last = {inode // 4: position for position, inode in enumerate(order)}
    for _ in range(2):  # a second epoch starts over
        at = 0
        readers.begin(inodes, ChunkUses.of(SNAPSHOT.as_snapshot(), inodes))
        assert readers.position() == 0
        assert readers.released() == []
        released: list[int] = []
        leading_position = 0
        for look in looks:
            at, leading_position = look, max(leading_position, look)
            assert readers.position() == readers.leading_position() == look
            released += readers.released()
            assert sorted(released) == sorted(c for c in last if last[c] < leading_position)


def test_they_hold_nothing_themselves() -> None:
    readers = ClientProgress(lambda: 0)
    assert readers.outside_bytes() == 0
    assert list(readers.wake_fds()) == []
    readers.arrived(3)
    readers.close()
