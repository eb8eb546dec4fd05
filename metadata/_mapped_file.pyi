"""The C extension behind `metadata.mapped_file`, its only user."""

from typing_extensions import Buffer

class MappedFile:
    """A file and its map, which lives as long as this does.

    If a page of the map cannot be read, all of the map becomes zeros instead of SIGBUS.
    """

    def __init__(self, content: Buffer, descriptor: int, /) -> None:
        """`content` is the whole map; `descriptor` is duplicated. Raises `OSError`."""

    def is_unchanged(self) -> bool:
        """Return False if the file was written or truncated, or its map was lost. One `fstat`.

        False too for a change that leaves the content alone, such as of its mode or its links.
        """

    def renew(self) -> bool:
        """Take the file as it is now for unchanged; False if it was truncated or its map was lost.

        The caller checks the content afterwards. Raises `OSError`.
        """

    def refuse(self) -> None:
        """Have `is_unchanged` return False from now on."""
