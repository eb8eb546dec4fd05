"""The look-up in C finds what the one in Python finds, whatever is asked, and never more than that
in a damaged snapshot."""

import gc
import mmap
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata import _path_lookup as extension
from metadata import path_lookup
from metadata._path_lookup import FileLookup
from metadata.path_lookup import EXTENSION_SECTIONS, CompiledPathLookup, PathLookup
from metadata.snapshot import Snapshot
from tests.metadata.snapshot_trees import PETS, File, Tree, build, paths, trees

CHECKOUT = Path(__file__).parents[2]
Section = npt.NDArray[np.generic]

MANY = Tree(
    {
        f"{number % 7}/{number % 3}/{number}.jpg".encode() * (1 + number % 2): File(0, number)
        for number in range(600)
    }
)
digest = xxhash.xxh3_64_intdigest


@contextmanager
def both(snapshot_path: Path) -> Iterator[tuple[CompiledPathLookup, PathLookup]]:
    with Snapshot.open(snapshot_path) as snapshot:
        assert isinstance(snapshot.paths, CompiledPathLookup)
        with open(snapshot_path, "rb") as file:
            map_ = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        yield snapshot.paths, PathLookup(snapshot.header, map_, snapshot.numbers)


def lookup_of(sections: dict[str, Section], reach: int) -> FileLookup:
    return FileLookup(reach, digest, *(sections[name] for name in EXTENSION_SECTIONS))


def sections_of(snapshot: Snapshot) -> dict[str, Section]:
    return {name: getattr(snapshot.columns, name).copy() for name in EXTENSION_SECTIONS}


@given(tree=trees(), strangers=st.lists(st.one_of(paths, st.binary(max_size=300)), max_size=10))
@settings(max_examples=100)
def test_finds_what_python_finds(tree: Tree, strangers: list[bytes]) -> None:
    asked = [*tree.files, *tree.directories, *strangers, b"", b"/"]
    asked += [path + b"/" for path in asked] + [path[1:] for path in asked]
    with tempfile.TemporaryDirectory() as folder, both(build(tree, Path(folder))) as (fast, plain):
        expected = [plain.file(path) for path in asked]
        assert [fast.file(path) for path in asked] == expected
        assert fast.files(asked) == plain.files(asked) == expected
        for path in tree.files:
            assert plain.file(path) is not None
        for path in asked:
            for inode in range(-2, len(tree.files)):
                assert fast.is_path_of(inode, path) is plain.is_path_of(inode, path)
        inodes = np.array([plain.file(path) for path in reversed(tree.files)], np.int64)
        assert fast.text(inodes) == b"".join(path + b"\0" for path in reversed(tree.files))


def test_batches_of_any_length(tmp_path: Path) -> None:
    known = random.Random(1).choices(list(MANY.files), k=300)
    with both(build(MANY, tmp_path)) as (fast, plain):
        for length in (0, 1, 2, 63, 64, 65, 127, 128, 129, 300):
            asked = known[:length]
            if length > 2:
                asked[length // 2] = b"absent"
            assert fast.files(asked) == plain.files(asked)
            assert fast.files(tuple(asked)) == plain.files(asked)


@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_text_means_its_bytes(tmp_path: Path, kind: str) -> None:
    with both(build(PETS, tmp_path)) as (fast, plain):
        lookup = fast if kind == "compiled" else plain
        for path in PETS.files:
            text = path.decode("utf-8", "surrogateescape")
            inode = lookup.file(path)
            assert inode is not None
            assert lookup.file(text) == inode
            assert lookup.files([text, path]) == [inode, inode]
            assert lookup.is_path_of(inode, text)
        with pytest.raises(UnicodeEncodeError):
            lookup.file("\ud800")
        with pytest.raises(IndexError):
            lookup.is_path_of(len(PETS.files), b"README")


def test_the_text_of_files_alone(tmp_path: Path) -> None:
    with both(build(MANY, tmp_path)) as (fast, plain):
        assert fast.text(np.zeros(0, np.int64)) == b""
        assert plain.text(np.zeros(1, np.int64)) is None
        for inode in (-1, 600, 1 << 62):
            with pytest.raises(IndexError):
                fast.text(np.array([0, inode]))
        for wrong in (np.zeros(2, np.int32), np.zeros(2), np.zeros(3, np.uint64), b"12345678"):
            with pytest.raises(ValueError, match="not an array of signed numbers"):
                fast.text(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="contiguous"):
            fast.text(np.zeros(4, np.int64)[::2])


def test_an_extension_of_a_former_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout, the sources may be newer than what was built of them."""

    class Former:
        def __init__(self, *_: object) -> None:
            self.file = self.files = self.is_path_of = lambda *_: None

    monkeypatch.setattr(extension, "FileLookup", Former)
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        assert snapshot.paths.text(np.zeros(1, np.int64)) is None
        assert snapshot.paths_text(np.zeros(1, np.int64)).endswith(b"\n")


def test_wide_columns(tmp_path: Path) -> None:
    """A heap of names beyond 4 GiB has 8 bytes a place."""
    with Snapshot.open(build(MANY, tmp_path)) as snapshot:
        sections = sections_of(snapshot)
        assert sections["name_at"].itemsize == 4
        sections["name_at"] = sections["name_at"].astype(np.uint64)
        wide = lookup_of(sections, snapshot.header.file_index_reach)
        asked = list(MANY.files)
        assert wide.files(asked) == snapshot.paths.files(asked)
        assert [wide.file(path) for path in asked] == wide.files(asked)
        every = np.arange(len(asked))
        assert wide.text(every) == snapshot.paths.text(every) is not None


def test_sections_that_do_not_fit_each_other(tmp_path: Path) -> None:
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        for name in ("parent", "name_at", "name_bytes"):
            sections = sections_of(snapshot)
            sections[name] = sections[name][:-1]
            with pytest.raises(ValueError, match="do not fit"):
                lookup_of(sections, 1)
        sections = sections_of(snapshot)
        sections["directory_path_at"] = sections["directory_path_at"][:0]
        with pytest.raises(ValueError, match="do not fit"):
            lookup_of(sections, 1)
        for reach in (-1, 1 << 64):
            with pytest.raises(OverflowError):
                lookup_of(sections_of(snapshot), reach)
    with pytest.raises(TypeError):
        FileLookup(1, digest, b"")
    with pytest.raises(TypeError):
        FileLookup(1, digest, *[b""] * len(EXTENSION_SECTIONS), path=b"")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        FileLookup(1, digest, *[b""] * (len(EXTENSION_SECTIONS) - 1), 5)  # type: ignore[arg-type]


def test_sections_of_other_numbers(tmp_path: Path) -> None:
    """Each section must be an array of unsigned numbers of its width, and aligned."""
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        sound = sections_of(snapshot)
    for name, section in sound.items():
        width = section.itemsize
        off = np.frombuffer(b"." + section.tobytes(), np.uint8)[1:].view(section.dtype)
        others = [
            section.astype(np.uint16),
            section.astype(f"i{width}"),
            section.astype(f">u{width}"),
        ]
        others += [section.astype(np.float32), np.repeat(section, 2)[::2]]
        for other in [*(others if width > 1 else others[:2]), *([off] if width > 1 else [])]:
            with pytest.raises((ValueError, BufferError)):
                lookup_of(sound | {name: other}, 1)


DAMAGE: list[tuple[str, Callable[[npt.NDArray[np.integer]], object]]] = [
    (name, spoil)
    for name in EXTENSION_SECTIONS
    for spoil in (
        lambda column: column.fill(np.iinfo(column.dtype).max),
        lambda column: column.fill(np.iinfo(column.dtype).max // 2),
        lambda column: column.fill(1),
        lambda column: column.fill(0),
        lambda column: np.add(column, np.iinfo(column.dtype).max // 3, out=column),
        lambda column: column.sort(),
        lambda column: np.copyto(column, column[::-1].copy()),
    )
]


def test_damaged_columns_find_nothing_else(tmp_path: Path) -> None:
    """One column at a time is spoilt in every place; then several in some."""
    with Snapshot.open(build(MANY, tmp_path)) as snapshot:
        sound = sections_of(snapshot)
        inode_of = {path: snapshot.paths.file(path) for path in MANY.files}
    asked = list(MANY.files)

    def ask(sections: dict[str, Section], reach: int) -> None:
        damaged = lookup_of(sections, reach)
        found = damaged.files(asked)
        assert [damaged.file(path) for path in asked] == found
        same_paths = all(
            (sections[name] == sound[name]).all()
            for name in EXTENSION_SECTIONS
            if name != "file_index"
        )
        for path, inode in zip(asked, found, strict=True):
            assert inode is None or 0 <= inode < len(asked)
            assert inode is None or damaged.is_path_of(inode, path)
            assert not same_paths or inode in (None, inode_of[path])
        for inode in range(len(asked)):
            text = damaged.text(np.array([inode]))
            assert text is None or text.index(b"\0") == len(text) - 1
            assert text is None or damaged.is_path_of(inode, text[:-1])

    for name, spoil in DAMAGE:
        sections = sound | {name: sound[name].copy()}
        spoil(sections[name])  # type: ignore[arg-type]
        for reach in (0, 1, 0xFFFFFFFF):
            ask(sections, reach)
    generator = np.random.default_rng(1)
    for _ in range(50):
        sections = {name: column.copy() for name, column in sound.items()}
        for column in sections.values():
            raw = column.view(np.uint8)
            raw[generator.integers(0, len(raw), 20)] = generator.integers(0, 256, 20)
        ask(sections, 20)


def test_an_index_that_is_too_short(tmp_path: Path) -> None:
    with Snapshot.open(build(MANY, tmp_path)) as snapshot:
        sections = sections_of(snapshot)
        for length in (0, 1, 100):
            sections["file_index"] = snapshot.columns.file_index[:length]
            short = lookup_of(sections, 0xFFFFFFFF)
            found = short.files(list(MANY.files))
            assert len([inode for inode in found if inode is not None]) <= length


def test_threads_at_once(tmp_path: Path) -> None:
    """`make sanitize` looks for races here."""
    asked = [*MANY.files, b"absent", b"long/" * 20_000]
    with both(build(MANY, tmp_path)) as (fast, plain):
        expected = plain.files(asked)

        def ask(number: int) -> bool:
            mine = asked[number:] + asked[:number]
            return fast.files(mine) == expected[number:] + expected[:number] and all(
                fast.file(path) == inode and (inode is None or fast.is_path_of(inode, path))
                for path, inode in zip(asked, expected, strict=True)
            )

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as threads:
                assert all(threads.map(ask, range(20)))
        finally:
            sys.setswitchinterval(interval)


def test_shows_no_list_with_empty_places(tmp_path: Path) -> None:
    """The digest is Python and could find the list that is being filled."""
    seen = []

    def looking(path: bytes) -> int:
        seen.extend(thing for thing in gc.get_objects() if type(thing) is list and len(thing) == 3)
        return digest(path)

    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        sections = [snapshot.numbers(name) for name in EXTENSION_SECTIONS]
        lookup = FileLookup(snapshot.header.file_index_reach, looking, *sections)
    found = lookup.files((b"README",) * 3)
    assert gc.is_tracked(found)
    assert seen
    assert not any(thing is found for thing in seen)


def test_exports_its_entry_alone() -> None:
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", extension.__file__],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert names - {"_init", "_fini"} == {"PyInit__path_lookup"}


def test_outlives_the_snapshot(tmp_path: Path) -> None:
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        file = snapshot.paths.file
        expected = file(b"README")
    assert file(b"README") == expected


def test_keeps_nothing_of_what_it_is_asked(tmp_path: Path) -> None:
    """Also where it is interrupted by an error: of a path, or of the digest."""
    path, text, wrong = b"cat/" + b"1.jpg", "cat/\xe4" + "2.jpg", object()

    def failing(path: bytes) -> int:
        if path == b"fail":
            raise RuntimeError("no digest")
        return 1 << 64 if path == b"too large" else digest(path)

    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        sections = (snapshot.numbers(name) for name in EXTENSION_SECTIONS)
        lookup = FileLookup(snapshot.header.file_index_reach, failing, *sections)
    asked, inodes = [path, text] * 40, np.ones(1, np.int64)
    before = [sys.getrefcount(kept) for kept in (path, text, wrong, lookup, inodes)]
    for _ in range(10):
        lookup.file(path), lookup.file(text), lookup.files(asked), lookup.is_path_of(0, path)
        lookup.text(inodes)
        with pytest.raises(IndexError):
            lookup.text(-inodes)
        for last, error in (
            (wrong, TypeError),
            (b"fail", RuntimeError),
            (b"too large", OverflowError),
        ):
            with pytest.raises(error):
                lookup.files([*asked, last])  # type: ignore[list-item]
            with pytest.raises(error):
                lookup.file(last)  # type: ignore[arg-type]
    after = [sys.getrefcount(kept) for kept in (path, text, wrong, lookup, inodes)]
    assert after == before


def test_without_the_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(PETS, tmp_path)
    with Snapshot.open(path) as snapshot:
        assert type(snapshot.paths) is CompiledPathLookup
    monkeypatch.setattr(path_lookup, "extension", None)
    with Snapshot.open(path) as snapshot:
        assert type(snapshot.paths) is PathLookup
        assert snapshot.paths.file(b"README") is not None


def test_says_why_the_extension_is_missing(tmp_path: Path) -> None:
    assert path_lookup.why_in_python() is None
    (tmp_path / "metadata").mkdir()
    for file in Path(path_lookup.__file__).parent.glob("*.py"):
        shutil.copy(file, tmp_path / "metadata")
    shutil.copytree(CHECKOUT / "chunkstore", tmp_path / "chunkstore")

    def why() -> str:
        asked = "from metadata.path_lookup import why_in_python; print(why_in_python())"
        found = os.pathsep.join([str(tmp_path), sysconfig.get_path("platlib")])
        environment = {**os.environ, "PYTHONPATH": found}
        done = subprocess.run(
            [sys.executable, "-S", "-c", asked],  # without the checkout in development
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        return done.stdout

    assert "it was not built" in why()
    other = tmp_path / "metadata/_path_lookup.cpython-27-x86_64-linux-gnu.so"
    other.write_bytes(b"")
    assert f"{other.name} in {other.parent} is for another Python than this 3." in why()
    other.rename(other.with_name(f"_path_lookup{EXTENSION_SUFFIXES[0]}"))
    assert "it cannot be loaded: " in why()
    assert "file too short" in why()
