"""Adopted blocks that several threads need at the same moment."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

from dieselfs.cache.node.adopted_blocks import AdoptedBlocks
from tests.eventually import PATIENCE_S


class HandedOver(dict[str, Future[None]]):
    """The blocks under way; the thread with a new one waits before it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def __setitem__(self, name: str, result: Future[None]) -> None:
        self.reached.set()
        assert self.goes_on.wait(PATIENCE_S)
        super().__setitem__(name, result)


def test_a_block_that_another_thread_begins_to_verify_is_waited_for() -> None:
    verified = []
    blocks = SimpleNamespace(
        names=lambda: ["only"],
        files=SimpleNamespace(is_adopted_sound=lambda name: True),
        note_verified=lambda name, is_sound: verified.append((name, is_sound)),
    )
    adopted = AdoptedBlocks(blocks)  # type: ignore[arg-type]
    adopted._under_way = handed_over = HandedOver()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(adopted.verify, "only")
        assert handed_over.reached.wait(PATIENCE_S)

        def verify_and_look() -> list[tuple[str, bool]]:
            looks.set()
            adopted.verify("only")
            return list(verified)

        looks = threading.Event()
        second = pool.submit(verify_and_look)
        assert looks.wait(PATIENCE_S)
        handed_over.goes_on.set()
        assert second.result(PATIENCE_S) == [("only", True)]
        first.result(PATIENCE_S)
    assert adopted.count == 0
