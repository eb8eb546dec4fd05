"""Datasets packed and mounted once for all tests that only read; every test runs over the fronts
that its module names."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import KIND, Mount, is_alive, mounted, started
from tests.mount.packing import BASE_TIME_NS, PackedDataset, pack, random_bytes, write_file

SIZES = [
    *(0, 1, 4095, 4096, 4097, 100_000),
    *((128 << 10) - 1, 128 << 10, (128 << 10) + 1),
    *((256 << 10) - 1, 256 << 10, (256 << 10) + 1, 300 << 10),
    *(5_000_000, 20 << 20),
]
LOG_LINES = 60
FOR_ALL = ["--allow-other"] if os.geteuid() == 0 else []
"""Else the root of a mount is nobody else's, by its mode."""
ODD_NAMES = [
    b"x" * 255,
    b"new\nline",
    b"\xff\xfe not utf-8",
    "ünïcödé-日本".encode(),
    b" spaces ",
    b"-dash",
    b"back\\slash",
    b"quote\"'",
    b"star*?[]",
    b"\x01\x7f control",
    b"...",
]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of mounts with a test that fails."""
    report = yield
    if report.failed:
        for mount in started:
            log = mount.log_file
            if log.exists() and (is_alive(mount.pid) or log.stat().st_mtime >= call.start):
                lines = mount.log.splitlines()[-LOG_LINES:]
                report.sections.append((f"log of {mount.path}", "\n".join(lines)))
    return report


def make_sample(source: Path) -> None:
    for size in SIZES:
        write_file(source / "sizes" / f"{size}", random_bytes(size))
    for number, name in enumerate(ODD_NAMES):
        write_file(source / "odd" / os.fsdecode(name), random_bytes(500 + number))
    write_file(source.joinpath("deep", *(f"level{n}" for n in range(60)), "bottom"), b"deep down")
    for mode in (0o400, 0o444, 0o600, 0o640, 0o644, 0o755, 0o777, 0o000):
        write_file(source / "modes" / f"{mode:o}", b"%o" % mode, mode)
    write_file(source / "before1970", b"old", mtime_ns=-1_234_567_890_123)
    write_file(source / "nanoseconds", b"precise", mtime_ns=BASE_TIME_NS + 123_456_789)
    (source / "empty").mkdir()
    (source / "empty").chmod(0o750)
    for n in range(300):
        write_file(source / "class" / f"c{n % 7}" / f"{n:04}.bin", random_bytes(1000 + n))
    for top, _, _ in os.walk(os.fsencode(source)):
        os.utime(top, ns=(BASE_TIME_NS, BASE_TIME_NS + 42))


@pytest.fixture(scope="session", autouse=True, params=["erofs"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The front of mounts. A mount of a wider scope than one test needs this fixture.

    A module whose promises each front keeps by itself has the mark `both_fronts`.
    """
    front = request.param if os.geteuid() == 0 else "fuse"
    os.environ[KIND] = front
    yield front
    del os.environ[KIND]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """Files of many sizes, names, modes and depths."""
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder / "source")
    return pack(folder / "source", folder)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """A hundred small files and one of 3 MB, for tests that need a mount of their own."""
    folder = tmp_path_factory.mktemp("small")
    for n in range(100):
        write_file(folder / "source" / f"d{n % 5}" / f"{n}", random_bytes(2000 + n))
    write_file(folder / "source" / "large", random_bytes(3_000_000))
    return pack(folder / "source", folder)


@pytest.fixture(scope="session")
def sample_mount(
    kind: str, sample: PackedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    """`sample`, mounted for as long as the tests run; for tests that leave it as it is."""
    with mounted(sample, tmp_path_factory.mktemp("sample-mount"), *FOR_ALL) as mount:
        yield mount


@pytest.fixture(scope="session")
def small_mount_shared(
    kind: str, small: PackedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    """`small`, mounted for as long as the tests run."""
    with mounted(small, tmp_path_factory.mktemp("small-mount")) as mount:
        yield mount


@pytest.fixture
def small_mount(small: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(small, tmp_path) as mount:
        yield mount
