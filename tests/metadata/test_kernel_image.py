"""A kernel image holds what its snapshot holds, as our reader, fsck.erofs and the kernel itself see
it."""

import errno
import io
import logging
import os
import platform
import random
import resource
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata import kernel_image_directories, kernel_image_file, kernel_image_inodes
from metadata.blob_layout import BLOCK_BYTES, DEVICE_BLOCKS, BlobLayout
from metadata.erofs_format import TYPE_DIRECTORY, TYPE_FIFO, TYPE_LINK, TYPE_REGULAR
from metadata.errors import KernelImageUnwritable
from metadata.kernel_image import CONTROL_NAME, write_kernel_image
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import ImageOwner
from metadata.kernel_image_name import image_name_parts
from metadata.snapshot import Snapshot
from tests.metadata import snapshot_trees
from tests.metadata.kernel_image_reader import ImageEntry, KernelImageReader, KernelImageRefused
from tests.metadata.snapshot_trees import LINKS, PETS, File, Tree, build, components, trees

GOLDEN = Path(__file__).parents[1] / "golden"
OWNER = ImageOwner(1000, 100)
ROOT_MODE, ROOT_MTIME_NS = 0o40755, 1234
"""Of a tree without a record of its root (snapshot_builder.py)."""


def image_of(
    tree: Tree,
    owner: ImageOwner = OWNER,
    control_name: bytes = CONTROL_NAME,
    device_blocks: int = DEVICE_BLOCKS,
) -> tuple[bytes, dict[bytes, tuple[int, int]]]:
    """The image, and (device, byte of the blob) of each file that has content."""
    with tempfile.TemporaryDirectory() as folder:
        with Snapshot.open(build(tree, Path(folder))) as snapshot:
            out = io.BytesIO()
            layout = BlobLayout.of(snapshot, device_blocks)
            size = write_kernel_image(
                snapshot, out, owner, layout=layout, control_name=control_name
            )
            assert size == len(out.getvalue())
            places = {
                snapshot.path_of(inode): (layout.device_of(inode), layout.start_byte(inode))
                for inode in range(snapshot.file_count)
                if snapshot.size(inode)
            }
    return out.getvalue(), places


def entries_of(image: bytes) -> dict[bytes, ImageEntry]:
    listed = list(KernelImageReader(image).entries())
    found = {entry.path: entry for entry in listed}
    assert len(found) == len(listed)
    return found


def expected_paths(tree: Tree, control_name: bytes = CONTROL_NAME) -> set[bytes]:
    below = control_name + b"/"
    known = {b"", control_name, *tree.files, *tree.directories}
    return {path for path in known if not path.startswith(below)}


def check_image(
    tree: Tree,
    image: bytes,
    places: Mapping[bytes, tuple[int, int]],
    owner: ImageOwner = OWNER,
    control_name: bytes = CONTROL_NAME,
) -> None:
    """The image says of every path what the tree does, and lists directories by the bytes of their
    names."""
    found = entries_of(image)
    expected = expected_paths(tree, control_name)
    assert set(found) == expected
    directories = {*tree.directories, b"", control_name}
    for path, entry in found.items():
        assert (entry.uid, entry.gid) == (owner.uid, owner.gid)
        if path == control_name or path not in tree.files:
            assert stat.S_ISDIR(entry.mode)
            above = path + b"/" if path else b""
            links = [p for p in expected & directories if p and p.startswith(above)]
            assert entry.nlink == 2 + sum(b"/" not in p[len(above) :] for p in links)
        else:
            file = tree.files[path]
            assert (entry.mode, entry.size) == (file.mode, file.length)
            assert (entry.mtime_ns, entry.nlink) == (file.mtime_ns, 1)
            assert (entry.device, entry.blob_offset) == places.get(path, (-1, -1))
            assert entry.type == (TYPE_LINK if stat.S_ISLNK(file.mode) else TYPE_REGULAR)
    for path in tree.directories & expected - {control_name}:
        entry = found[path]
        assert (entry.mode, entry.mtime_ns, entry.type) == (0o40750, 5, TYPE_DIRECTORY)
    root, control = found[b""], found[control_name]
    root_mode = ROOT_MODE & 0o40700 if owner.private else ROOT_MODE
    assert (root.mode, root.mtime_ns) == (root_mode, ROOT_MTIME_NS)
    assert (control.mode, control.mtime_ns) == (0o40555, ROOT_MTIME_NS)
    assert (control.type, control.nlink) == (TYPE_FIFO, 2)


@given(tree=trees(), data=st.data())
@settings(max_examples=120)
def test_equals_the_tree_it_was_made_of(tree: Tree, data: st.DataObject) -> None:
    roots = sorted({path.partition(b"/")[0] for path in [*tree.files, *tree.directories]})
    names = st.one_of(
        st.just(CONTROL_NAME), components, *([st.sampled_from(roots)] if roots else [])
    )
    control_name = data.draw(names)
    owner = ImageOwner(data.draw(st.integers(0, 2**32 - 1)), 7, data.draw(st.booleans()))
    device_blocks = data.draw(st.sampled_from([DEVICE_BLOCKS, (1 << 20) + 3]))
    image, places = image_of(tree, owner, control_name, device_blocks)
    check_image(tree, image, places, owner, control_name)


def wide_tree(name_bytes: int = 20, files: int = 2000) -> Tree:
    """A directory of many blocks that holds files and directories mixed, with odd names at both
    ends."""
    chosen = random.Random(1)
    paths = {b"wide/%0*d" % (name_bytes, number) for number in range(files)}
    paths |= {b"wide/" + chosen.randbytes(30).translate(None, b"/\0") for _ in range(200)}
    paths |= {b"wide/" + name for name in (b"!", b"-", b".-", b".a", b"...", b"\xff" * 255, b"\1")}
    places = enumerate(sorted(paths))
    tree = {path: File(n // 50, n % 50, n, n % 9000, 0, n) for n, path in places}
    directories = [b"wide/%0*d.d" % (name_bytes, number) for number in range(0, files, 7)]
    return Tree(tree, frozenset([*directories, b"wide/ ", b"wide/.!"]))


@pytest.mark.parametrize("name_bytes", [1, 20, 100, 240])
def test_directories_of_many_blocks(name_bytes: int) -> None:
    tree = wide_tree(name_bytes)
    check_image(tree, *image_of(tree))


def test_directories_that_just_fill_a_block() -> None:
    """Around the sizes at which a directory no longer fits behind its inode, and no longer fits one
    block."""
    for rest in (4096 - 64, 4096):
        for size in range(rest - 3, rest + 4):
            # `.` and `..` take 27 bytes, an entry of 100 bytes 112, the last one 13 or more.
            whole, last = divmod(size - 27 - 13, 112)
            names = [b"%0100d" % number for number in range(whole)]
            names.append(b"z" * (last + 1))
            tree = Tree({b"d/" + n: File(0, at, length=at) for at, n in enumerate(names)})
            image, places = image_of(tree)
            check_image(tree, image, places)
            assert entries_of(image)[b"d"].size == (size if size <= 4096 else 4096 + last + 13)


@pytest.fixture
def huge_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_trees, "PAYLOAD_BYTES", 1 << 45)


@pytest.mark.usefixtures("huge_chunks")
def test_extreme_values() -> None:
    tree = Tree(
        {
            b"past": File(0, 0, 0, 1, 0, -(1 << 63), 0o107777),
            b"before": File(0, 1, 0, 4096, 0, -1, 0o100000),
            b"future": File(0, 2, 0, 4097, 0, (1 << 63) - 1),
            b"none": File(0, 3, 0, 0, 0, 0),
            b"huge": File(0, 4, 0, (1 << 44) - 4096, 0, 0),
        }
    )
    image, places = image_of(tree)
    assert places[b"huge"] == (1, 0)
    check_image(tree, image, places)
    assert len(KernelImageReader(image).device_blocks) == 2


def test_an_empty_dataset() -> None:
    image, _ = image_of(Tree({}))
    assert list(entries_of(image)) == [b"", CONTROL_NAME]


@pytest.mark.parametrize("where", ["file", "directory"])
def test_a_dataset_entry_of_the_control_name_is_hidden(where: str) -> None:
    hidden = b".dieselfs" if where == "file" else b".dieselfs/inside"
    tree = Tree({hidden: File(0, 0, length=5), b"a/.dieselfs": File(0, 1, length=6)})
    image, places = image_of(tree)
    assert set(entries_of(image)) == {b"", b".dieselfs", b"a", b"a/.dieselfs"}
    check_image(tree, image, places)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0", b"x" * 256])
def test_control_names_that_are_none(name: bytes) -> None:
    with pytest.raises(ValueError, match="control directory"):
        image_of(PETS, control_name=name)


def test_the_same_snapshot_makes_the_same_bytes() -> None:
    assert image_of(PETS) == image_of(PETS)
    others = [
        image_of(PETS, owner)[0] for owner in (ImageOwner(0, 100), ImageOwner(1000, 100, True))
    ]
    assert len({image_of(PETS)[0], *others}) == 3


def test_the_bytes_do_not_depend_on_how_much_is_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = wide_tree(100, 300)
    expected = image_of(tree)
    monkeypatch.setattr(kernel_image_inodes, "_FILES_AT_ONCE", 7)
    monkeypatch.setattr(kernel_image_inodes, "_DIRECTORIES_AT_ONCE", 3)
    monkeypatch.setattr(kernel_image_directories, "_BLOCKS_AT_ONCE", 2)
    assert image_of(tree) == expected


def golden_image(name: str = "snapshot-v1.snapshot") -> bytes:
    out = io.BytesIO()
    with Snapshot.open(GOLDEN / name) as snapshot:
        write_kernel_image(snapshot, out, OWNER)
    return out.getvalue()


def test_golden_bytes() -> None:
    """Changed? Raise WRITER_VERSION and name the file after it."""
    golden = (GOLDEN / "kernel-image-v1.erofs").read_bytes()
    assert golden_image() == golden
    assert KernelImageReader(golden).uuid == golden[1024 + 48 : 1024 + 64]
    check_image(PETS, golden, image_of(PETS)[1])


def test_golden_bytes_of_links() -> None:
    """Changed? Raise WRITER_VERSION and name the file after it."""
    golden = (GOLDEN / "kernel-image-v1-links.erofs").read_bytes()
    assert golden_image("snapshot-v2.snapshot") == golden
    check_image(LINKS, golden, image_of(LINKS)[1])


# Damage


@pytest.mark.parametrize("name", ["snapshot-v1.snapshot", "snapshot-v2.snapshot"])
def test_damaged_images_are_refused_or_read_without_a_crash(name: str) -> None:
    sound = golden_image(name)
    chosen = random.Random(1)
    refused = 0
    for number in range(1500):
        damaged = bytearray(sound)
        for _ in range(1 + number % 3):
            damaged[chosen.randrange(1024, len(sound))] ^= 1 << chosen.randrange(8)
        try:
            assert len(list(KernelImageReader(bytes(damaged)).entries())) <= 40
        except KernelImageRefused:
            refused += 1
    assert refused > 500
    for length in range(0, len(sound), 97):
        with pytest.raises(KernelImageRefused):
            list(KernelImageReader(sound[:length]).entries())


def test_a_loop_is_refused() -> None:
    """The entry of an inner directory names the root."""
    image = bytearray(image_of(Tree({b"a/b/c": File(0, 0, length=1)}))[0])
    a, b = entries_of(bytes(image))[b"a"], entries_of(bytes(image))[b"a/b"]
    at = image.index(b.nid.to_bytes(8, "little") + b"\x27\0", BLOCK_BYTES + a.nid * 32)
    image[at : at + 8] = entries_of(bytes(image))[b""].nid.to_bytes(8, "little")
    with pytest.raises(KernelImageRefused, match="two names"):
        list(KernelImageReader(bytes(image)).entries())


# The files beside the snapshots


@pytest.fixture
def pets(tmp_path: Path) -> Iterator[Snapshot]:
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        yield snapshot


def test_an_image_is_built_once_for_each_owner(pets: Snapshot, tmp_path: Path) -> None:
    path = kernel_image(pets, tmp_path, OWNER)
    written = path.stat()
    assert path.name.startswith(f"pets-{pets.id}-u1000-g100-w1-")
    assert path.read_bytes() == image_of(PETS)[0]
    assert kernel_image(pets, tmp_path, OWNER) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    private = kernel_image(pets, tmp_path, ImageOwner(1000, 100, private=True))
    assert f"-u1000-g100-private-w{1}-" in private.name
    other = kernel_image(pets, tmp_path, ImageOwner(1000, 10))
    assert len({path, private, other}) == 3
    for each in (path, private, other):
        assert image_name_parts(str(each)) == ("pets", pets.id)
        assert each.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 4096),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1"),
        lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
)
def test_a_damaged_file_is_built_again(
    pets: Snapshot,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
) -> None:
    path = kernel_image(pets, tmp_path, OWNER)
    sound = path.read_bytes()
    path.chmod(0o600)
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert kernel_image(pets, tmp_path, OWNER) == path
    assert path.read_bytes() == sound
    assert "is built again" in caplog.text


def test_images_of_snapshots_that_are_gone_are_removed(pets: Snapshot, tmp_path: Path) -> None:
    gone = tmp_path / kernel_image(pets, tmp_path, OWNER).name.replace(
        f"-{pets.generation}-", "-1-", 1
    )
    foreign = tmp_path / gone.name.replace("pets-", "other-pets-", 1)
    near = tmp_path / gone.name.replace("-w1-", "-w-", 1)
    for path in (gone, foreign, near, tmp_path / "pets.erofs"):
        path.write_bytes(b"old")
    assert image_name_parts(gone.name) == ("pets", gone.name[5:39])
    kept = kernel_image(pets, tmp_path, ImageOwner(1, 1))
    assert not gone.exists()
    assert all(p.exists() for p in (kept, foreign, near, tmp_path / "pets.erofs", pets.path))
    assert kernel_image(pets, tmp_path, OWNER).exists()


@pytest.mark.parametrize(
    "name",
    ["", "pets.erofs", "pets-7-12-u1-g1-w1-12.erofs", f"pets-7-{'0' * 32}.snapshot", "a/b"],
)
def test_names_of_no_image(name: str) -> None:
    assert image_name_parts(name) is None


def test_names_of_datasets_with_dashes() -> None:
    snapshot_id = f"12-{'a' * 32}"
    name = f"my-pets-2-{snapshot_id}-u0-g4294967295-private-w1-{'b' * 32}.erofs"
    assert image_name_parts(name) == ("my-pets-2", snapshot_id)
    assert len(name) - len("my-pets-2") + 128 <= 255


def test_a_full_disk(pets: Snapshot, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            KernelImageUnwritable, match=r"pets to .*images: File too large; .*free space"
        ):
            kernel_image(pets, folder, OWNER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(folder.iterdir()) == []
    assert kernel_image(pets, folder, OWNER).exists()


def test_no_space(pets: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kernel_image_file, "write_kernel_image", full)
    with pytest.raises(KernelImageUnwritable, match="No space left on device; it needs"):
        kernel_image(pets, tmp_path, OWNER)
    (tmp_path / "file").touch()
    with pytest.raises(KernelImageUnwritable):
        kernel_image(pets, tmp_path / "file" / "folder", OWNER)


# fsck.erofs and the kernel


def content_of(path: bytes, length: int) -> bytes:
    return random.Random(path).randbytes(length)


def write_blobs(tree: Tree, image: Path, places: Mapping[bytes, tuple[int, int]]) -> list[Path]:
    """The sparse files that the image's devices are."""
    sizes = KernelImageReader.open(image).device_blocks
    blobs = [image.with_suffix(f".blob{device}") for device in range(len(sizes))]
    for device, (blob, blocks) in enumerate(zip(blobs, sizes, strict=True)):
        with open(blob, "wb") as file:
            file.truncate(blocks * BLOCK_BYTES)
            for path, (owner, offset) in places.items():
                if owner == device:
                    os.pwrite(
                        file.fileno(),
                        content_of(path, min(tree.files[path].length, 20_000)),
                        offset,
                    )
    return blobs


REAL = Tree(
    {
        **wide_tree(20, 600).files,
        **{
            b"n%02d/%d.JPEG" % (n % 10, n): File(100 + n // 7, n % 7, 0, n * 37, 0, -n)
            for n in range(300)
        },
        b".dieselfs/hidden": File(190, 0, length=3),
        b"past": File(191, 0, 0, 4096, 0, -(1 << 63) + 1, 0o100400),
        b"future": File(191, 1, 0, 1, 0, (1 << 63) - 1, 0o100444),
        b"nothing": File(191, 2, 0, 0, 0, 1),
        b"\xff\n\\ name": File(191, 3, 0, 12_288, 0, 1_700_000_000_123_456_789, 0o100755),
    },
    wide_tree(20, 600).empty_directories | {b"empty"},
)
REAL_BLOCKS = 400
"""Of a device: REAL fills four."""


@pytest.fixture(scope="module", params=[DEVICE_BLOCKS, REAL_BLOCKS], ids=["one", "several"])
def real_image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Path]]:
    """An image and its blobs."""
    image, places = image_of(REAL, device_blocks=request.param)
    path = tmp_path_factory.mktemp("real") / "real.erofs"
    path.write_bytes(image)
    blobs = write_blobs(REAL, path, places)
    assert len(blobs) == (1 if request.param == DEVICE_BLOCKS else 4)
    return path, blobs


def fsck(image: Path, blobs: list[Path], *options: str) -> str:
    program = shutil.which("fsck.erofs")
    assert program, "fsck.erofs is not installed: apt-get install erofs-utils"
    command = [program, "-d3", *options, *(f"--device={blob}" for blob in blobs), str(image)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_fsck_finds_no_errors(real_image: tuple[Path, list[Path]], tmp_path: Path) -> None:
    image, blobs = real_image
    assert "No errors found" in fsck(image, blobs)
    extracted = tmp_path / "extracted"
    fsck(image, blobs, f"--extract={extracted}", "--no-preserve")
    for path in (b"wide/!", b"\xff\n\\ name", b"n03/293.JPEG"):
        found = Path(os.fsdecode(os.fsencode(extracted) + b"/" + path)).read_bytes()
        assert found == content_of(path, REAL.files[path].length)


def test_fsck_of_small_images(tmp_path: Path) -> None:
    for tree in (Tree({}), PETS, LINKS, wide_tree(240, 40)):
        image, places = image_of(tree)
        (tmp_path / "small.erofs").write_bytes(image)
        blobs = write_blobs(tree, tmp_path / "small.erofs", places)
        assert "No errors found" in fsck(tmp_path / "small.erofs", blobs)


def require_kernel() -> None:
    """Skip where the kernel cannot mount an image from a file; where it can, a failure to mount
    fails the test."""
    version = tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if version < (6, 12):
        pytest.skip(f"Linux {platform.release()}: file-backed EROFS mounts came with 6.12")
    if "erofs" not in Path("/proc/filesystems").read_text().split():
        pytest.skip("this kernel has no EROFS (or its module is not loaded)")


@contextmanager
def mounted(image: Path, blobs: list[Path], where: Path) -> Iterator[bytes]:
    from dieselfs.fuse.mounts import mount_syscalls  # here, so that all other tests need no product

    where.mkdir()
    options: list[tuple[str, str | None]] = [("source", str(image))]
    options += [("device", str(blob)) for blob in blobs]
    mount = mount_syscalls.new_mount("erofs", [*options, ("ro", None)])
    try:
        mount_syscalls.attach(mount, where)
    finally:
        os.close(mount)
    try:
        yield os.fsencode(where)
    finally:
        mount_syscalls.detach(where)


def check_mounted_directory(root: bytes, directory: bytes, hidden: bytes) -> None:
    """`scandir` sees what the tree holds, by the bytes of the names, and takes the types from the
    entries."""
    directories, files = REAL.children(directory)
    files = [name for name in files if directory or name != hidden]
    names = sorted([*directories, *files])
    listed = [entry for entry in os.scandir(os.path.join(root, directory)) if entry.name != hidden]
    assert [entry.name for entry in listed] == [name for name in names if name != hidden]
    for entry in listed:
        assert entry.is_dir(follow_symlinks=False) == (entry.name in directories)
        assert entry.is_file(follow_symlinks=False) == (entry.name not in directories)
        assert entry.inode() == entry.stat(follow_symlinks=False).st_ino > 1


def test_the_kernel_shows_the_tree(real_image: tuple[Path, list[Path]], tmp_path: Path) -> None:
    require_kernel()
    image, blobs = real_image
    expected = entries_of(image.read_bytes())
    with mounted(image, blobs, tmp_path / "mount") as root:
        for path, entry in expected.items():
            found = os.stat(os.path.join(root, path))
            assert found.st_mode == entry.mode
            assert found.st_mtime_ns == entry.mtime_ns
            assert (found.st_size, found.st_nlink) == (entry.size, entry.nlink)
            assert (found.st_uid, found.st_gid, found.st_ino) == (1000, 100, entry.nid)
            if stat.S_ISREG(entry.mode):
                with open(os.path.join(root, path), "rb") as file:
                    assert file.read() == content_of(path, entry.size)
            elif path != CONTROL_NAME:
                check_mounted_directory(root, path, CONTROL_NAME)
        with pytest.raises(FileNotFoundError):
            os.stat(root + b"/wide/absent")
        check_control_directory(root)
        check_statfs(root, image, blobs)


def check_control_directory(root: bytes) -> None:
    """It is a directory that a mount can cover, and walkers pass it by."""
    [entry] = [entry for entry in os.scandir(root) if entry.name == CONTROL_NAME]
    assert not entry.is_dir(follow_symlinks=False)
    assert not entry.is_file(follow_symlinks=False)
    assert os.listdir(root + b"/.dieselfs") == []
    walked = {os.path.relpath(path, root) for path, _, _ in os.walk(root)}
    assert walked == (REAL.directories - {CONTROL_NAME}) | {b"."}
    done = subprocess.run(["find", root, "-type", "f", "-print0"], capture_output=True, check=True)
    files = {path[len(root) + 1 :] for path in done.stdout.split(b"\0")[:-1]}
    assert files == set(REAL.files) - {b".dieselfs/hidden"}
    assert done.stderr == b""


def check_statfs(root: bytes, image: Path, blobs: list[Path]) -> None:
    found = os.statvfs(root)
    size = image.stat().st_size + sum(blob.stat().st_size for blob in blobs)
    assert found.f_blocks * found.f_frsize == size
    assert found.f_bfree == 0
    assert found.f_namemax == 255
    assert found.f_flag & os.ST_RDONLY
    assert found.f_flag & os.ST_NOSUID
    assert found.f_files - found.f_ffree == len(REAL.files) + len(REAL.directories) + 2


@pytest.mark.usefixtures("huge_chunks")
def test_the_kernel_reads_a_file_of_two_chunks(tmp_path: Path) -> None:
    """A chunk has at most 8 TiB: the second index says where the rest lies."""
    require_kernel()
    tree = Tree({b"a": File(0, 0, 0, 5000), b"huge": File(0, 1, 0, (9 << 40) + 123)})
    image, places = image_of(tree)
    path = tmp_path / "huge.erofs"
    path.write_bytes(image)
    blobs = write_blobs(tree, path, {b"a": places[b"a"]})
    offsets = (0, (8 << 40) - 5000, (8 << 40) - 3, 8 << 40, 9 << 40)
    with open(blobs[0], "r+b") as blob:
        for offset in offsets:
            os.pwrite(blob.fileno(), b"at %d" % offset, places[b"huge"][1] + offset)
    with mounted(path, blobs, tmp_path / "mount") as root:
        assert os.stat(root + b"/huge").st_size == (9 << 40) + 123
        with open(root + b"/huge", "rb", buffering=0) as file:
            for offset in offsets:
                expected = b"at %d" % offset
                assert os.pread(file.fileno(), len(expected), offset)[:3] == b"at "
            assert os.pread(file.fileno(), 20, 9 << 40) == (b"at %d" % (9 << 40)).ljust(20, b"\0")


def test_the_kernel_reads_and_follows_links(tmp_path: Path) -> None:
    """Their targets come from the blob, like the content of files."""
    require_kernel()
    targets = {
        b"a/up": b"../file",
        b"to": b"a",
        b"long": b"/".join([b"x" * 254] * 16) + b"/yyyyyyyyyyyyyyy",
    }
    tree = Tree(
        {
            b"file": File(0, 0, 0, 5000),
            **{
                path: File(0, at, 8192, len(target), mtime_ns=9, mode=0o120777)
                for at, (path, target) in enumerate(targets.items(), 1)
            },
        }
    )  # fmt: skip
    assert max(map(len, targets.values())) == 4095
    image, places = image_of(tree)
    path = tmp_path / "links.erofs"
    path.write_bytes(image)
    blobs = write_blobs(tree, path, {b"file": places[b"file"]})
    with open(blobs[0], "r+b") as blob:
        for name, target in targets.items():
            os.pwrite(blob.fileno(), target, places[name][1])
    assert "No errors found" in fsck(path, blobs)
    with mounted(path, blobs, tmp_path / "mount") as root:
        content = content_of(b"file", 5000)
        for name, target in targets.items():
            assert os.readlink(root + b"/" + name) == target
            found = os.lstat(root + b"/" + name)
            assert (found.st_mode, found.st_size) == (0o120777, len(target))
            assert (found.st_mtime_ns, found.st_nlink) == (9, 1)
        for name in (b"file", b"a/up", b"to/up"):
            with open(root + b"/" + name, "rb") as file:
                assert file.read() == content
        assert {e.name: e.is_symlink() for e in os.scandir(root)} == {
            CONTROL_NAME: False, b"a": False, b"file": False, b"long": True, b"to": True
        }  # fmt: skip


def test_the_kernel_shows_an_empty_dataset(tmp_path: Path) -> None:
    require_kernel()
    path = tmp_path / "empty.erofs"
    path.write_bytes(image_of(Tree({}), ImageOwner(5, 6, private=True))[0])
    with mounted(path, write_blobs(Tree({}), path, {}), tmp_path / "mount") as root:
        assert os.listdir(root) == [CONTROL_NAME]
        found = os.stat(root)
        assert (found.st_mode, found.st_uid, found.st_gid) == (0o40700, 5, 6)
