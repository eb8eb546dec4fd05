"""Records that are published for others: nothing of what is read is trusted.

A record may be damaged, foreign or of a later release. It is skipped then, and the log says so
once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

log = logging.getLogger(__name__)

Record = TypeVar("Record")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class RecordReader:
    """Decodes what a registry holds; says once that it holds something else."""

    def __init__(self, shown: str, what: str) -> None:
        """`shown` names the registry in the log, and `what` its records."""
        self._shown, self._what, self._is_strange = shown, what, False

    def decoded(self, contents: Iterable[bytes], decode: Callable[[bytes], Record]) -> list[Record]:
        """Return the records among `contents`. `decode` raises `ValueError` for what is none."""
        found: list[Record] = []
        skipped, reason = 0, ""
        for content in contents:
            try:
                found.append(decode(content))
            except ValueError as error:
                skipped, reason = skipped + 1, str(error)
        if skipped and not self._is_strange:
            log.warning(
                "%s has %d entries that are no %s of this release; they are skipped: %s",
                *(self._shown, skipped, self._what, reason),
            )
        self._is_strange = skipped > 0
        return found


class RecordFormat(Generic[Record]):
    """One kind of record as JSON."""

    def __init__(self, kind: type[Record], max_bytes: int, *shown: str) -> None:
        """`kind` checks its values itself. `shown` names the texts that are printed for people."""
        self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kind)
        self._max_bytes, self._shown = max_bytes, shown

    def encoded(self, record: Record) -> bytes:
        """Return the record as JSON. Raises `ValueError` if it is out of bounds."""
        found = self._encoder.encode(record)
        self.decoded(found)
        return found

    def decoded(self, content: bytes) -> Record:
        """Return the record.

        Raises `ValueError` if it is damaged, foreign or of a later version, or if one of its texts
        would damage a terminal.
        """
        if len(content) > self._max_bytes:
            raise ValueError("the record is too long")
        try:
            record = self._decoder.decode(content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        for text in (getattr(record, name) for name in self._shown):
            if _CONTROL.search(text) or not text.isprintable():
                raise ValueError("the record has text that cannot be printed")
        return record
