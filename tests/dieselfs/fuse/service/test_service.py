"""Parts of the mount service that need no mount, and its command."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dieselfs.errors import LocalFileError, MountError
from dieselfs.fuse.mounts import service_client
from dieselfs.fuse.mounts.service_messages import (
    MAX_DESCRIPTORS,
    BadServiceMessage,
    close_all,
    receive,
    send,
)
from dieselfs.fuse.service.service import listening_socket, prepare_folder
from dieselfs.fuse.service.user_limits import FuseConnections, is_in_use, make_room, users_folder
from tests.eventually import PATIENCE_S, eventually
from tests.open_descriptors import open_descriptors

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


def test_a_message_carries_descriptors(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    send(pair[0], {"a": 1}, [descriptor, descriptor])
    message, received = receive(pair[1])
    assert message == {"a": 1}
    assert all(os.path.sameopenfile(descriptor, one) for one in received)
    assert not any(os.get_inheritable(one) for one in received)
    close_all([descriptor, *received])


@pytest.mark.parametrize("data", [b"x", b"[]", b'"' + b"x" * 5000 + b'"', b"[" * 3000])
def test_a_bad_message_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].send(data)
    with pytest.raises(BadServiceMessage):
        receive(pair[1])


def test_too_many_descriptors_are_closed(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    before = open_descriptors()
    socket.send_fds(pair[0], [b"{}"], [descriptor] * (MAX_DESCRIPTORS + 20))
    with pytest.raises(BadServiceMessage, match="too long"):
        receive(pair[1])
    assert open_descriptors() <= before
    os.close(descriptor)


def test_a_closed_connection_is_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(BadServiceMessage, match="closed the connection"):
        receive(pair[1])


def test_a_missing_service_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(service_client.SERVICE_VARIABLE, str(tmp_path / "mountd.sock"))
    with pytest.raises(MountError, match=r"mountd\.sock does not answer: No such file"):
        service_client.unmount(tmp_path, lazy=False)


def test_a_socket_left_behind_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "mountd.sock"
    listening_socket(path).close()
    with listening_socket(path):
        assert path.stat().st_mode & 0o777 == 0o666
        with pytest.raises(LocalFileError, match="in use"):
            listening_socket(path)


@needs_root
def test_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "images")
    assert (tmp_path / "images").stat().st_mode & 0o777 == 0o700
    (tmp_path / "images").chmod(0o777)
    with pytest.raises(LocalFileError, match="images can be changed"):
        prepare_folder(tmp_path / "images")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 61001, 61001)
    with pytest.raises(LocalFileError, match="theirs can be changed"):
        prepare_folder(tmp_path / "theirs" / "images")


def test_a_file_in_use_is_known(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"x")
    assert not is_in_use(path)
    with path.open("rb"):
        assert is_in_use(path)
    assert not is_in_use(path)


def test_unused_images_make_room_for_new_ones(tmp_path: Path) -> None:
    images = [tmp_path / f"snapshot{n}" / "image" for n in range(4)]
    for number, image in enumerate(images):
        image.parent.mkdir()
        image.write_bytes(bytes(1000))
        os.utime(image, (number, number))
    with images[0].open("rb"):
        make_room(tmp_path, images[3], 3000)
        assert [image.exists() for image in images] == [True, False, True, True]
        assert not images[1].parent.exists()
        make_room(tmp_path, images[3], 2000)
        with pytest.raises(MountError, match="exceed"):
            make_room(tmp_path, images[3], 1500)
    assert [image.exists() for image in images] == [True, False, False, False]


def test_one_request_of_a_user_at_a_time_changes_the_folder(tmp_path: Path) -> None:
    has_changed = threading.Event()

    def change_too() -> None:
        with users_folder(tmp_path, 7):
            has_changed.set()

    other = threading.Thread(target=change_too)
    with users_folder(tmp_path, 7) as folder, users_folder(tmp_path, 8):
        assert folder == tmp_path / "7"
        other.start()
        assert not has_changed.wait(0.2)
    other.join()
    assert has_changed.is_set()


@needs_root
def test_connections_are_counted_by_user() -> None:
    connections = FuseConnections()
    connections.check(61003, 1)
    connections.abort(999_999, 0)
    with pytest.raises(MountError, match="0 FUSE connections"):
        connections.check(61003, 0)
    connections.close()


@contextmanager
def mountd(*arguments: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "dieselfs.cli", "mountd", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], word: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"no line with {word}")


def is_answered(path: Path) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(service_client.SERVICE_VARIABLE, str(path))
        with pytest.raises(MountError) as error:
            service_client.unmount(path.parent, lazy=False)
    return "no mount of yours" in str(error.value)


@needs_root
def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    path = tmp_path / "mountd.sock"
    with mountd("--socket", str(path), "--folder", str(tmp_path / "images")) as process:
        wait_for_line(process, "ready at")
        assert is_answered(path)
        assert is_answered(path)
        process.send_signal(signal.SIGTERM)
        assert wait_for_line(process, "ended")
        assert process.wait(60) == 0


@needs_root
def test_the_command_serves_a_group(tmp_path: Path) -> None:
    path = tmp_path / "mountd.sock"
    group = subprocess.run(["id", "-gn"], capture_output=True, text=True).stdout.strip()
    folder = ["--folder", str(tmp_path / "images")]
    with mountd("--socket", str(path), *folder, "--group", group) as process:
        wait_for_line(process, "ready at")
        assert path.stat().st_mode & 0o777 == 0o660
        assert is_answered(path)


@needs_root
@pytest.mark.parametrize("idle", [False, True])
def test_the_command_takes_the_socket_of_systemd_and_ends_when_idle(
    tmp_path: Path, idle: bool
) -> None:
    path = tmp_path / "activated.sock"
    script = (
        "import os, socket, sys\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'dieselfs.cli', 'mountd', *sys.argv[2:]])\n"
    )
    with listening_socket(path) as listener, ThreadPoolExecutor(1) as asking:
        command = [sys.executable, "-c", script, str(listener.fileno())]
        command += ["--folder", str(tmp_path / "images"), *(["--idle", "1"] if idle else [])]
        # The question waits for the service, which would not wait long for a late one.
        question = asking.submit(is_answered, path)
        eventually(lambda: select.select([listener], [], [], 0)[0], "the question")
        began = time.monotonic()
        with subprocess.Popen(
            command,
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert question.result(PATIENCE_S)
                assert str(path) in wait_for_line(process, "ready at")
                if not idle:
                    process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
                assert not idle or time.monotonic() - began > 1
            finally:
                process.kill()
    assert path.exists()


def test_the_command_needs_root_and_a_group_that_exists(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        with mountd() as process:
            assert process.wait(60) == 2
        return
    folder = ["--folder", str(tmp_path / "images"), "--socket", str(tmp_path / "sock")]
    with mountd(*folder, "--group", "no-such-group") as process:
        assert process.wait(60) == 2
