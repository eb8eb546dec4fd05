"""The output of a command: results on stdout, everything else on stderr.

Results are text for people or, with --json, one JSON object a line. File names may hold any bytes.
A pipe gets them as they are; on a terminal, the characters that it would obey are escaped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chunkstore.counted import counted as counted
from dieselfs.cli.rendering.standard_streams import say, written_to_stdout
from dieselfs.cli.values.short_ids import short_id
from dieselfs.cli.values.sizes import human_size
from dieselfs.config.former_names import with_former_keys

_LEAST_CELL: Final = 12
"""Characters to which a column is shortened at most."""


@dataclass(frozen=True, slots=True)
class Output:
    """The way in which this command writes results."""

    json: bool = False
    quiet: bool = False
    terminal: bool = False
    """True if stdout is a terminal."""
    color: bool = False
    wide: bool = False
    """Print whole ids, times and tables on a terminal too, as a pipe gets them."""

    @property
    def is_compact(self) -> bool:
        """True if tables fit the terminal, with short ids and times."""
        return self.terminal and not self.wide

    def record(self, values: Mapping[str, Any]) -> None:
        """Write one JSON object on a line of its own."""
        import json

        self.data(json.dumps(with_former_keys(values)).encode() + b"\n")

    def line(self, text: str = "") -> None:
        """Write a line of results. Surrogates become the bytes that they stand for."""
        self.data(os.fsencode(text) + b"\n")

    def data(self, data: bytes | memoryview) -> None:
        """Write bytes of results as they are. Raises `LocalFileError` for a disk that is full."""
        with written_to_stdout():
            sys.stdout.buffer.write(data)

    def note(self, text: str) -> None:
        """Print a line on stderr, unless --quiet is given; with --json, an object."""
        if not self.quiet:
            shown = text
            if self.json:
                import json

                shown = json.dumps({"event": "note", "message": text})
            say(shown)

    def name(self, path: str, directory: bool = False) -> str:
        """Return a file name as stdout shows it."""
        if not self.terminal:
            return path
        shown = printable(path)
        return f"\x1b[1;34m{shown}\x1b[0m" if directory and self.color else shown

    def size(self, size_bytes: int, human: bool | None = None) -> str:
        """Return a size with units on a terminal and in bytes in a pipe; `human` overrides this."""
        human = self.terminal if human is None else human
        return human_size(size_bytes) if human else str(size_bytes)

    def snapshot_id(self, snapshot_id: str) -> str:
        """Return a snapshot's id as a table shows it; the short form names it too."""
        return short_id(snapshot_id) if self.is_compact else snapshot_id

    def time(self, time_ns: int) -> str:
        """Return a time as a table shows it: to the second in the user's time zone, or as ISO."""
        from dieselfs.cli.rendering.times import iso_time, local_time

        return local_time(time_ns) if self.is_compact else iso_time(time_ns)

    def done(self, record: Mapping[str, Any], *notes: str) -> None:
        """Write what a command has done: the record with --json, or else the notes with text."""
        if self.json:
            self.record(record)
        for note in () if self.json else filter(None, notes):
            self.note(note)

    def result(self, record: Mapping[str, Any], *lines: str) -> None:
        """Write one result: the record with --json, or else its lines."""
        if self.json:
            self.record(record)
        for line in () if self.json else lines:
            self.line(line)

    def listing(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        records: Iterable[Mapping[str, Any]],
        expendable: Sequence[str] = (),
    ) -> None:
        """Write results of one kind: a record of each with --json, or else a table.

        The columns `expendable` are left out in this order where the terminal is too narrow.
        """
        if self.json:
            for record in records:
                self.record(record)
        else:
            self.table(headings, rows, expendable)

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        expendable: Sequence[str] = (),
    ) -> None:
        """Write aligned columns under headings, or nothing if there are no rows."""
        cells = list(rows)
        shown, lines = self.fitted(headings, cells, expendable)
        for line in lines:
            self.line(line)
        left_out = [heading for heading in headings if heading not in shown]
        if left_out and lines:
            self.note(f"columns left out: {', '.join(left_out)}; --wide shows all")
        elif lines and lines != aligned(headings, cells):
            self.note("values are shortened (…); --wide shows all")

    def fitted(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], expendable: Sequence[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return the headings of the columns that fit the terminal, and the lines of the table.

        Cells are shortened in the middle if leaving out the `expendable` columns is not enough.
        """
        columns = list(range(len(headings)))
        lines = aligned(headings, rows)
        if not (self.is_compact and lines):
            return list(headings), lines
        from shutil import get_terminal_size

        width = get_terminal_size().columns
        for heading in expendable:
            if max(map(len, lines)) <= width:
                break
            columns.remove(headings.index(heading))
            lines = aligned(
                [headings[at] for at in columns], [[row[at] for at in columns] for row in rows]
            )
        shown = [headings[at] for at in columns]
        if max(map(len, lines)) > width:
            lines = aligned(
                *_shortened(shown, [[row[at] for at in columns] for row in rows], width)
            )
        return shown, lines

    def details(self, record: Mapping[str, Any], fields: Mapping[str, str]) -> None:
        """Write one thing: its record with --json, or else `name: value` lines, aligned."""
        width = max(map(len, fields)) + 2
        self.result(record, *(f"{name + ':':<{width}}{value}" for name, value in fields.items()))


def picked(values: object, names: str) -> dict[str, Any]:
    """Return attributes as a part of a JSON record; `names` are separated by spaces."""
    return {name: getattr(values, name) for name in names.split()}


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; none if there are no rows."""
    cells = list(rows)
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    padded = (zip(line, widths, strict=True) for line in (headings, *cells))
    return ["  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded]


def _shortened(
    headings: Sequence[str], rows: Iterable[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows that fit a width, the widest columns cut first.

    No column is cut below `_LEAST_CELL`, so a table of many columns may still be wider.
    """
    cells = [list(headings), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while (excess := sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        widest = max(widths)
        if widest <= _LEAST_CELL:
            break
        widths[widths.index(widest)] = max(_LEAST_CELL, widest - excess)
    first, *others = [list(map(cut_in_the_middle, line, widths)) for line in cells]
    return first, others


def cut_in_the_middle(cell: str, width: int) -> str:
    """Return a cell without its middle, if it is wider than that and not coloured."""
    if len(cell) <= width or "\x1b" in cell:
        return cell
    head = (width - 1) // 2
    return f"{cell[:head]}…{cell[head + 1 - width :]}"


def printable(text: str) -> str:
    """Return `text` with control characters and undecodable bytes escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()
