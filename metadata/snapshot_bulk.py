"""Look-ups of many paths at once: path → inode for a list, inode → path for an array.

They are pure numpy over a snapshot's columns. Both work in blocks whose intermediate arrays stay in
the processor's cache. Both compare or copy the names themselves, so that a damaged column yields
"absent" or an error, never another file's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.paths import MAX_PATH_BYTES
from metadata import path_index
from metadata.errors import SnapshotRefused
from metadata.snapshot_format import DIRECTORY_BASE, TAIL_BYTES, Columns, SnapshotHeader

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]

_PATHS_A_BLOCK = 8192
_WORD_BYTES = 8
_STRIDE_WORDS = 8
"""The words of a stride, the unit in which names are compared: up to 64 bytes.

So `TAIL_BYTES` keeps the last stride inside the file.
"""
assert _STRIDE_WORDS * _WORD_BYTES <= TAIL_BYTES

# _MASKS[k] covers the first k bytes of a word.
_MASKS = np.array([(1 << (8 * k)) - 1 for k in range(_WORD_BYTES + 1)], np.uint64)

_NO_PATH = b"//"
"""The stand-in for a query that holds a NUL, which no path does."""


def resolve_many(
    header: SnapshotHeader, columns: Columns, paths: Sequence[str] | Sequence[bytes]
) -> _Numbers:
    """Return the inode of each path, -1 if absent."""
    if not len(paths):
        return np.zeros(0, np.int64)
    blocks = range(0, len(paths), _PATHS_A_BLOCK)
    return np.concatenate(
        [_resolve_block(header, columns, paths[at : at + _PATHS_A_BLOCK]) for at in blocks]
    )


def _encode(paths: Sequence[str] | Sequence[bytes]) -> tuple[list[bytes], bytes]:
    """Return the paths as bytes, apart and joined by NUL.

    One encoding of all of them is several times faster than one each.
    """
    if isinstance(paths[0], str):
        text = "\0".join(paths).encode("utf-8", "surrogateescape")  # type: ignore[arg-type]
    else:
        text = b"\0".join(paths)  # type: ignore[arg-type]
    apart = text.split(b"\0")
    if len(apart) != len(paths):
        whole = [p.encode("utf-8", "surrogateescape") if isinstance(p, str) else p for p in paths]
        apart = [_NO_PATH if b"\0" in path else path for path in whole]
        text = b"\0".join(apart)
    return apart, text


def _resolve_block(
    header: SnapshotHeader, columns: Columns, paths: Sequence[str] | Sequence[bytes]
) -> _Numbers:
    apart, text = _encode(paths)
    count = len(apart)
    query = np.frombuffer(text + bytes(TAIL_BYTES), np.uint8)
    length = np.fromiter(map(len, apart), np.int64, count)
    start = np.zeros(count, np.int64)
    np.cumsum(length[:-1] + 1, out=start[1:])
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, apart), np.uint64, count)

    def are_files(rows: npt.NDArray[np.intp], inodes: _Numbers) -> npt.NDArray[np.bool_]:
        directory_at, directory_bytes = _directory_extents(columns, columns.parent[inodes])
        name_bytes = columns.name_bytes[inodes].astype(np.int64)
        hit: npt.NDArray[np.bool_] = directory_bytes + name_bytes == length[rows]
        if not hit.all():
            kept = np.flatnonzero(hit)
            rows, inodes, name_bytes = rows[kept], inodes[kept], name_bytes[kept]
            directory_at, directory_bytes = directory_at[kept], directory_bytes[kept]
        query_at = start[rows]
        name_at = columns.name_at[inodes].astype(np.int64) + columns.names_start
        same = _equal(query, query_at, columns.file, directory_at, directory_bytes)
        same &= _equal(query, query_at + directory_bytes, columns.file, name_at, name_bytes)
        hit[hit] = same
        return hit

    def are_directories(rows: npt.NDArray[np.intp], numbers: _Numbers) -> npt.NDArray[np.bool_]:
        at, ended_bytes = _directory_extents(columns, numbers)
        # without the final `/`, which only the root lacks
        path_bytes = np.maximum(ended_bytes - 1, 0)
        hit: npt.NDArray[np.bool_] = path_bytes == length[rows]
        hit[hit] = _equal(query, start[rows][hit], columns.file, at[hit], path_bytes[hit])
        return hit

    slots = path_index.slot_count(header.files)
    found = path_index.search(columns.file_index, slots, header.file_index_reach, hashes, are_files)
    rest = np.flatnonzero(found < 0)
    if len(rest):
        slots = path_index.slot_count(header.directories)
        reach = header.directory_index_reach
        number = path_index.search(
            columns.directory_index,
            slots,
            reach,
            hashes[rest],
            lambda rows, numbers: are_directories(rest[rows], numbers),
        )
        number[(length[rest] == 1) & (query[start[rest]] == ord("/"))] = 0
        found[rest] = np.where(number < 0, -1, number + DIRECTORY_BASE)
    return found


def _directory_extents(
    columns: Columns, numbers: npt.NDArray[np.integer]
) -> tuple[_Numbers, _Numbers]:
    """Return where in the file the paths of directories start, and their lengths, `/` included."""
    wide = numbers.astype(np.int64)
    start = columns.directory_path_at[wide].astype(np.int64)
    length = columns.directory_path_at[wide + 1].astype(np.int64) - start
    if length.size and not 0 <= int(length.min()) <= int(length.max()) <= MAX_PATH_BYTES + 1:
        raise SnapshotRefused(
            "the snapshot is damaged: a directory's path has an impossible length"
        )
    return start + columns.directory_paths_start, length


def _equal(
    left: _Bytes, left_at: _Numbers, right: _Bytes, right_at: _Numbers, length: _Numbers
) -> npt.NDArray[np.bool_]:
    """Return which `left[left_at : left_at + length]` equal the bytes of `right` at `right_at`.

    The comparison goes in strides of words. Both buffers are readable for a stride beyond the end
    of each string. A position outside of them raises `IndexError`.
    """
    equal = np.ones(len(length), bool)
    rows: npt.NDArray[np.intp] = np.arange(len(length))
    done = 0
    while len(rows):
        words = min(_STRIDE_WORDS, -(-(int(length.max()) - done) // _WORD_BYTES))
        if words <= 0:
            break
        left_words = _words_at(left, left_at + done, words)
        right_words = _words_at(right, right_at + done, words)
        difference = np.zeros(len(rows), np.uint64)
        for word in range(words):
            covered = np.clip(length - (done + word * _WORD_BYTES), 0, _WORD_BYTES)
            difference |= (left_words[:, word] ^ right_words[:, word]) & _MASKS[covered]
        same = difference == 0
        equal[rows] = same
        done += words * _WORD_BYTES
        longer = np.flatnonzero(same & (length > done))
        rows, length = rows[longer], length[longer]
        left_at, right_at = left_at[longer], right_at[longer]
    return equal


def _words_at(buffer: _Bytes, at: _Numbers, words: int) -> npt.NDArray[np.uint64]:
    """Return rows of `words` words, from any byte positions.

    They are gathered from a bounded, overlapping view (4 ns a row).
    """
    width = words * _WORD_BYTES
    windows: npt.NDArray[np.void] = np.ndarray(
        (max(0, len(buffer) - width + 1),), f"V{width}", buffer, 0, (1,)
    )
    return windows[at].view("<u8").reshape(-1, words)


def paths_text(columns: Columns, inodes: npt.NDArray[np.integer], separator: bytes) -> bytes:
    """Return the paths of files, each ended by `separator`.

    Raises `ValueError` if a path holds the separator itself.
    """
    if len(separator) != 1 or separator == b"/":
        raise ValueError(
            f"the separator of paths must be one byte other than '/', not {separator!r}"
        )
    return b"".join(_text_blocks(columns, np.asarray(inodes), separator))


def _text_blocks(
    columns: Columns, inodes: npt.NDArray[np.integer], separator: bytes
) -> Iterator[bytes]:
    if inodes.size and (inodes.min() < 0 or inodes.max() >= len(columns.parent)):
        raise IndexError("cannot list the path of an inode that is not a file's")
    for at in range(0, len(inodes), _PATHS_A_BLOCK):
        block = inodes[at : at + _PATHS_A_BLOCK].astype(np.int64)
        # A line consists of two ranges of the file: the directory's path, and the name with its
        # final NUL.
        source = np.empty((len(block), 2), np.int64)
        length = np.empty((len(block), 2), np.int64)
        source[:, 0], length[:, 0] = _directory_extents(columns, columns.parent[block])
        source[:, 1] = columns.name_at[block].astype(np.int64) + columns.names_start
        length[:, 1] = columns.name_bytes[block].astype(np.int64) + 1
        end = np.cumsum(length.ravel())
        shift = source.ravel() - (end - length.ravel())
        text = columns.file.take(np.repeat(shift, length.ravel()) + np.arange(end[-1]))
        ends = end[1::2] - 1
        if text[ends].any() or np.count_nonzero(text == 0) != len(block):
            raise SnapshotRefused("the snapshot is damaged: a name does not end where it should")
        if separator != b"\0":
            clash = np.flatnonzero(text == ord(separator))
            if len(clash):
                line = int(np.searchsorted(ends, clash[0]))
                path = bytes(text[ends[line - 1] + 1 if line else 0 : ends[line]])
                raise ValueError(
                    f"the path {path!r} contains the separator {separator!r}: ask for paths "
                    "separated by NUL"
                )
            text[ends] = ord(separator)
        yield text.tobytes()
