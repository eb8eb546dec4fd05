"""The progress of a long operation, as a caller that shows it receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

Advance: TypeAlias = Callable[[int, int], None]
"""A callback that counts further items, such as files or chunks, and bytes."""


class Progress(Protocol):
    """A receiver of progress: thread-safe, and cheap enough to be called for every file."""

    def advance(self, files: int, size_bytes: int) -> None:
        """Count further files, or other items, and bytes."""
        ...

    def expect(self, files: int, size_bytes: int) -> None:
        """Set the totals, once they are known or when they have grown."""
        ...


class NoProgress:
    """A receiver that ignores progress."""

    def advance(self, files: int, size_bytes: int) -> None:
        pass

    def expect(self, files: int, size_bytes: int) -> None:
        pass


NO_PROGRESS: Final[Progress] = NoProgress()
