"""What users do with the mount service: `python -m tests.mount.as_user_of_service UID SCENARIO …`.

Run by test_mount_service as root; becomes the user at once, so everything is imported before.
Scenarios raise where the service does not what it should.
"""

import array
import contextlib
import ctypes
import encodings.idna  # noqa: F401 # lazily imported by sockets
import errno
import fcntl
import json
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts import service_client
from dieselfs.fuse.mounts.erofs_mounts import blob_name
from dieselfs.fuse.mounts.mount_table import entry_at, mount_entries
from dieselfs.fuse.mounts.service_client import SERVICE_VARIABLE, _sealed_copy
from dieselfs.fuse.mounts.service_messages import close_all, receive, send
from dieselfs.fuse.requests.kernel_connection import Answer, KernelConnection, KernelRequest
from dieselfs.fuse.requests.kernel_protocol import (
    KEEP_CACHE,
    NO_ENTRY,
    OPEN_OUT,
    READ_IN,
    ROOT_NODE,
    Opcode,
    attributes,
    attributes_reply,
    entry,
)
from metadata.blob_layout import BlobLayout
from metadata.snapshot import Snapshot
from tests.eventually import eventually, scaled_by_load
from tests.mount.packing import random_bytes

BLOB = 2
_libc = ctypes.CDLL(None, use_errno=True)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    assert not _libc.prctl(4, 1, 0, 0, 0)  # dumpable, as a program of the user's is


def content_of(snapshot: Snapshot) -> bytes:
    """The blob of the dataset `small`, from what its files hold."""
    layout = BlobLayout.of(snapshot)
    blob = bytearray(layout.device_bytes(0))
    for name, data in expected_files().items():
        inode = snapshot.resolve(name)
        assert inode is not None
        start = layout.start_byte(inode)
        blob[start : start + len(data)] = data
    return bytes(blob)


def expected_files() -> dict[str, bytes]:
    small = {f"d{n % 5}/{n}": random_bytes(2000 + n) for n in range(100)}
    return {**small, "large": random_bytes(3_000_000)}


class OneFile:
    """A `Handler` of a directory with one file."""

    def __init__(self, name: str, content: bytes, kind: int = stat.S_IFREG) -> None:
        self._name, self._content = name.encode(), content
        uid, gid = os.getuid(), os.getgid()
        size = len(content)
        self._file = attributes(BLOB, kind | 0o400, size, 0, uid, gid)
        self._root = attributes(ROOT_NODE, stat.S_IFDIR | 0o500, 0, 0, uid, gid)

    def answer(self, request: KernelRequest) -> Answer:
        match request.opcode:
            case Opcode.LOOKUP:
                known = bytes(request.body).rstrip(b"\0") == self._name
                return [entry(BLOB, self._file) if known else NO_ENTRY]
            case Opcode.GETATTR:
                return [attributes_reply(self._root if request.node == ROOT_NODE else self._file)]
            case Opcode.OPEN:
                return [OPEN_OUT.pack(0, KEEP_CACHE, 0)]
            case Opcode.READ:
                _, start, size, *_ = READ_IN.unpack_from(request.body)
                return [self._content[start : start + size]]
            case Opcode.RELEASE:
                return []
            case 5:  # READLINK
                return [self._content]
        return errno.ENOSYS


class User:
    """A user's process with the service's client, which serves all that it mounts."""

    def __init__(self, socket_path: str, snapshot: str, folder: str) -> None:
        os.environ[SERVICE_VARIABLE] = socket_path
        self.socket_path, self.snapshot, self.folder = socket_path, Path(snapshot), Path(folder)
        self.folder.mkdir(exist_ok=True)
        with Snapshot.open(snapshot) as opened:
            self.blob = content_of(opened)
        self.connections: list[KernelConnection] = []

    def mountpoint(self, name: str = "mnt") -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def serve(self, fuse: int) -> None:
        self.serve_file(fuse, blob_name(0), self.blob)

    def serve_file(self, fuse: int, name: str, content: bytes, kind: int = stat.S_IFREG) -> None:
        connection = KernelConnection(fuse, is_tree=False)
        connection.start(OneFile(name, content, kind))
        self.connections.append(connection)

    def mount(self, path: Path, *, direct_io: bool = False) -> list[int]:
        return service_client.mount(self.snapshot, path, True, direct_io, self.serve)

    @contextmanager
    def mounted(self, name: str = "mnt") -> Iterator[Path]:
        path = self.mountpoint(name)
        self.mount(path)
        try:
            yield path
        finally:
            while is_mounted(path):
                service_client.unmount(path, lazy=True)


def is_mounted(path: Path) -> bool:
    found = entry_at(path)
    return found is not None and found.file_system_type == "erofs"


def reads_all(path: Path) -> None:
    for name, content in expected_files().items():
        assert (path / name).read_bytes() == content, name


@contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(MountError, match=words):
        yield


def mounts_reads_and_unmounts(user: User) -> None:
    path = user.mountpoint()
    for direct_io in (False, True):
        [blob] = user.mount(path, direct_io=direct_io)
        reads_all(path)
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
        assert stat.S_IMODE(found.st_mode) & 0o077 == 0
        [line] = [
            x
            for x in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
            if f" {path} " in x
        ]
        assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(","))
        assert not [entry for entry in mount_entries() if "blob" in entry.source]
        opened = os.open(f"/proc/self/fd/{blob}", os.O_RDONLY)
        os.posix_fadvise(opened, 0, 1 << 20, os.POSIX_FADV_DONTNEED)
        assert os.pread(opened, 4096, 0) == user.blob[:4096]
        os.close(opened)
        fuse = service_client.attach_control(path)
        user.serve_file(fuse, "hello", b"from the control directory")
        assert (path / ".dieselfs" / "hello").read_bytes() == b"from the control directory"
        again = service_client.attach_control(path)
        user.serve_file(again, "hello", b"from another")
        assert (path / ".dieselfs" / "hello").read_bytes() == b"from another"
        held = (path / "large").open("rb")
        with refused("in use"):
            service_client.unmount(path, lazy=False)
        assert (path / ".dieselfs" / "hello").read_bytes() == b"from another"
        held.close()
        service_client.unmount(path, lazy=False)
        assert entry_at(path) is None
        assert os.listdir(path) == []
        close_all([connection.fd for connection in user.connections] + [blob])
        user.connections.clear()


def detaches_a_mount_in_use(user: User) -> None:
    with user.mounted() as path, (path / "large").open("rb") as held:
        held.seek(1 << 20)
        service_client.unmount(path, lazy=True)
        assert entry_at(path) is None
        assert held.read() == random_bytes(3_000_000)[1 << 20 :]


def replaces_a_mount_under_readers(user: User) -> None:
    with user.mounted() as path:
        before = path.stat().st_dev
        user.serve_file(service_client.attach_control(path), "hello", b"control")
        ended = threading.Event()
        rounds, problems = [0], []

        def read() -> None:
            while not ended.is_set():
                try:
                    reads_all(path)
                    rounds[0] += 1
                except (OSError, AssertionError) as error:
                    problems.append(error)

        reader = threading.Thread(target=read)
        with (path / "large").open("rb") as held:
            reader.start()
            for _ in range(5):
                service_client.mount(user.snapshot, path, True, False, user.serve, replaces=True)
                at = rounds[0]
                eventually(lambda at=at: rounds[0] >= at + 2 or problems, "two more rounds")  # type: ignore[misc]
            ended.set()
            reader.join()
            assert not problems
            assert held.read() == random_bytes(3_000_000)
        assert path.stat().st_dev != before
        assert len([e for e in mount_entries() if e.mountpoint == path]) == 1
        with refused("no mount of yours"):
            service_client.mount(
                user.snapshot, user.mountpoint("other"), True, False, user.serve, replaces=True
            )


def may_not_mount_elsewhere(user: User) -> None:
    """Neither over what is another's, nor over what deceives programs."""
    for place, words in [
        ("/tmp", "belongs to user 0"),
        ("/usr/share", "belongs to user 0"),
        (f"/proc/{os.getpid()}", "holds no users' directories"),
        (os.environ["BUILT_BY_ANOTHER"], "in a directory of user"),
        (os.environ["OWNED_BY_ANOTHER"], "belongs to user"),
    ]:
        with refused(words):
            user.mount(Path(place))
    with user.mounted() as path:
        with refused("holds no users' directories"):
            user.mount(path)
        with refused("holds no users' directories"):
            user.mount(path / ".dieselfs")
        for wrong in (path / "d0", path / ".dieselfs", user.mountpoint("plain")):
            with refused("no mount of yours"):
                service_client.unmount(wrong, lazy=True)
            with refused("no mount of yours"):
                service_client.attach_control(wrong)
        reads_all(path)
    with _sealed_copy(user.snapshot) as snapshot, user.snapshot.open("rb") as file:
        with refused("not a directory"):
            ask(
                user,
                {"request": "mount", "private": True, "direct_io": False},
                [snapshot, file.fileno()],
            )


def ask(user: User, request: object, descriptors: list[int]) -> dict[str, object]:
    """One request, without the client's care."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(30)
        connection.connect(user.socket_path)
        if isinstance(request, bytes):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            connection.sendmsg([request], rights if descriptors else [])
        else:
            send(connection, request, descriptors)  # type: ignore[arg-type]
        answer, received = receive(connection)
        close_all(received)
        if answer["answer"] == "error":
            raise MountError(answer["what"])
        return answer


def may_not_touch_mounts_of_others(user: User) -> None:
    """Another user has mounted at `OTHERS_MOUNT`, for himself."""
    theirs = Path(os.environ["OTHERS_MOUNT"])
    with pytest.raises(PermissionError):
        os.listdir(theirs)
    for lazy in (False, True):
        with refused("no mount of yours"):
            service_client.unmount(theirs, lazy)
    with refused("no mount of yours"):
        service_client.mount(user.snapshot, theirs, True, False, user.serve, replaces=True)
    with refused("no mount of yours"):
        service_client.attach_control(theirs)
    with refused("belongs to user"):
        user.mount(theirs)


def may_not_give_bytes_of_his_own(user: User) -> None:
    """The kernel parses what the service built from a snapshot that is sound and stays so."""
    request = {"request": "mount", "private": True, "direct_io": False}
    target = os.open(user.mountpoint(), os.O_PATH)
    sound = user.snapshot.read_bytes()
    damaged = bytearray(sound)
    damaged[len(damaged) // 2] ^= 1
    for content in (
        b"",
        b"garbage" * 1000,
        bytes(damaged),
        sound[:-1],
        sound + b"x",
        bytes(1 << 20),
    ):
        made = user.folder / "made"
        made.write_bytes(content)
        with _sealed_copy(made) as descriptor, refused(""):
            ask(user, request, [descriptor, target])
    with user.snapshot.open("rb") as file, refused("sealed memory"):
        ask(user, request, [file.fileno(), target])
    writable = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(writable, sound)
    fcntl.fcntl(writable, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with refused("sealed memory"):
        ask(user, request, [writable, target])
    assert entry_at(user.mountpoint()) is None


def may_not_show_mounts_to_others(user: User) -> None:
    with refused("private mounts only"):
        service_client.mount(user.snapshot, user.mountpoint(), False, False, user.serve)


def shows_mounts_to_others_if_allowed(user: User) -> None:
    path = user.mountpoint()
    service_client.mount(user.snapshot, path, False, False, user.serve)
    user.serve_file(service_client.attach_control(path), "hello", b"control")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            reads_all(path)
            assert (path / ".dieselfs" / "hello").read_bytes() == b"control"
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    service_client.unmount(path, lazy=False)


def speaks_nonsense(user: User) -> None:
    target = os.open(user.mountpoint(), os.O_PATH)
    many = [target] * 40
    for message, descriptors in [
        (b"\xff", []),
        (b"[]", []),
        (b"{}", []),
        (b"[" * 4000, []),
        (b'{"request": "mount"}', [target]),
        (b'{"request": "mount", "private": 1, "direct_io": 0}', [target, target]),
        (b'{"request": ["mount"]}', [target, target]),
        (b'{"request": "unmount", "lazy": "yes"}', [target]),
        (b'{"request": "control"}', []),
        (b'{"request": "control"}', [0]),
        (b"x" * 100_000, []),
        (b'{"request": "control"}', many),
    ]:
        with refused(""):
            ask(user, message, descriptors)
    with user.mounted() as path:
        reads_all(path)


def is_not_kept_waiting_by_idle_connections(user: User) -> None:
    """Connections without a request are ended; until then no more are taken of this user."""
    idle = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(12)]
    for connection in idle:
        connection.connect(user.socket_path)
    path = user.mountpoint()
    with refused("busy"):
        user.mount(path)

    def is_mounted() -> bool:
        user.mount(path)
        return True

    eventually(is_mounted, "a mount", ignored=MountError)
    reads_all(path)
    service_client.unmount(path, lazy=False)
    for connection in idle:
        connection.close()


def hangs_the_service_in_vain(user: User) -> None:
    """Servers that answer nothing, or INIT alone, or take the request and sit on it."""
    path = user.mountpoint()

    def silent(fuse: int) -> None:
        pass

    def answers_init_only(fuse: int) -> None:
        class Deaf:
            def answer(self, request: KernelRequest) -> Answer:
                threading.Event().wait(3600)
                return errno.EIO

        connection = KernelConnection(fuse, is_tree=False)
        connection.start(Deaf())
        user.connections.append(connection)

    def never_opens(fuse: int) -> None:
        class NoOpen(OneFile):
            def answer(self, request: KernelRequest) -> Answer:
                if request.opcode == Opcode.OPEN:
                    threading.Event().wait(3600)
                return super().answer(request)

        connection = KernelConnection(fuse, is_tree=False)
        connection.start(NoOpen(blob_name(0), user.blob))
        user.connections.append(connection)

    for serve in (silent, answers_init_only, never_opens):
        began = time.monotonic()
        with refused("does not answer"):
            service_client.mount(user.snapshot, path, True, False, serve)
        assert time.monotonic() - began < scaled_by_load(20)
        assert entry_at(path) is None
    user.mount(path)
    reads_all(path)
    service_client.unmount(path, lazy=False)


def hangs_the_service_by_his_mountpoint_in_vain(user: User) -> None:
    """A mountpoint in a FUSE mount of the user's whose server does not answer."""
    path = user.mountpoint()
    service_client.mount(user.snapshot, path, False, False, user.serve)

    class NoAttributes(OneFile):
        def answer(self, request: KernelRequest) -> Answer:
            if request.opcode == Opcode.LOOKUP:
                directory = attributes(7, stat.S_IFDIR | 0o755, 0, 0, os.getuid(), os.getgid())
                return [entry(7, directory, valid_s=0)]
            if request.node == 7:
                threading.Event().wait(3600)
            return super().answer(request)

    connection = KernelConnection(service_client.attach_control(path), is_tree=False)
    connection.start(NoAttributes("x", b""))
    for _ in range(2):
        began = time.monotonic()
        with refused("does not answer|not connected"):
            user.mount(path / ".dieselfs" / "directory")
        assert time.monotonic() - began < scaled_by_load(10)
    reads_all(path)
    service_client.unmount(path, lazy=True)


def leads_the_service_astray_in_vain(user: User) -> None:
    """A blob that is a link to a file of root's, a directory, a device, a pipe, or not there."""
    path = user.mountpoint()
    for kind in (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO):

        def serve(fuse: int, kind: int = kind) -> None:
            user.serve_file(fuse, blob_name(0), b"/etc/shadow", kind)

        with refused("not a regular file"):
            service_client.mount(user.snapshot, path, True, False, serve)

    def serve_nothing(fuse: int) -> None:
        user.serve_file(fuse, "something else", b"")

    with refused("No such file"):
        service_client.mount(user.snapshot, path, True, False, serve_nothing)
    assert entry_at(path) is None


def reads_nothing_but_his_own_bytes(user: User) -> None:
    """A blob that is too short: the user sees zeros or an error, and no byte of another."""
    path = user.mountpoint()

    def serve(fuse: int) -> None:
        user.serve_file(fuse, blob_name(0), b"short")

    service_client.mount(user.snapshot, path, True, False, serve)
    with contextlib.suppress(OSError):
        assert set((path / "large").read_bytes()) <= set(b"short\0")
    service_client.unmount(path, lazy=False)


def has_no_more_than_his_share(user: User) -> None:
    """The service of this scenario allows 3 mounts, and images of 100 KiB."""
    paths = [user.mountpoint(f"m{n}") for n in range(4)]
    for path in paths[:3]:
        user.mount(path)
    with refused("you have 3 mounts"):
        user.mount(paths[3])
    service_client.mount(user.snapshot, paths[0], True, False, user.serve, replaces=True)
    service_client.unmount(paths[0], lazy=False)
    user.mount(paths[3])
    for path in paths[1:]:
        reads_all(path)
        service_client.unmount(path, lazy=False)


def has_no_more_space_than_his_share(user: User) -> None:
    """Images of 20 KiB only. That of a detached mount counts while a file of it is open."""
    path, others = user.mountpoint(), user.mountpoint("other")
    user.mount(path)
    held = (path / "large").open("rb")
    other_blob = bytes(1 << 20)

    def mount_other() -> None:
        def serve(fuse: int) -> None:
            user.serve_file(fuse, blob_name(0), other_blob)

        service_client.mount(Path(os.environ["OTHER_SNAPSHOT"]), others, True, False, serve)

    with refused("images of your mounts exceed"):
        mount_other()
    service_client.unmount(path, lazy=True)
    with refused("images of your mounts exceed"):
        mount_other()
    assert held.read() == random_bytes(3_000_000)
    held.close()

    def is_mounted() -> bool:
        mount_other()
        return True

    eventually(is_mounted, "a mount", ignored=MountError)
    service_client.unmount(others, lazy=False)


def may_not_mount_from_another_namespace(user: User) -> None:
    path = user.mountpoint()
    child = os.fork()
    if child == 0:  # of one thread, as a user namespace demands
        with contextlib.suppress(BaseException):
            if _libc.unshare(0x10020000) == 0:
                with refused("mount namespace of its own"):
                    user.mount(path)
                os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def dies_and_leaves_a_mount(user: User) -> None:
    """The server ends: what is cached stays, all else is EIO, and the owner can unmount."""
    path = user.mountpoint()
    child = os.fork()
    if child == 0:
        user.mount(path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(path.rglob("*"))) >= 106
    with pytest.raises(OSError, match=r"Errno 5"):
        (path / "large").read_bytes()
    service_client.unmount(path, lazy=False)
    assert entry_at(path) is None


def keeps_a_mount(user: User) -> None:
    """Mount, say so, and serve until stdin ends."""
    with user.mounted() as path:
        reads_all(path)
        print("ready", flush=True)
        sys.stdin.read()
        reads_all(path)


def main() -> None:
    uid, scenario, *arguments = sys.argv[1:]
    run: Callable[[User], None] = globals()[scenario]
    json.loads("{}")
    np.zeros(1).tolist()
    os.umask(0o022)
    become(int(uid))
    run(User(*arguments))
    print("passed", scenario)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
