"""Warm-ups go behind readers where both wait for a byte budget."""

from chunkstore.stores.read_turn import current_turn
from dieselfs.cache.warmup.load_loop import LoadLoop


def test_units_are_loaded_ahead() -> None:
    turns: list[bool] = []

    def load(unit: int, again: bool) -> bool:
        turns.append(current_turn().ahead)
        return True

    LoadLoop(range(4)).run(load, jobs=2)
    assert turns == [True] * 4
    assert not current_turn().ahead
