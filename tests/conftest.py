"""What holds for every test: nothing outlives the run, no mount and no process."""

import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import settings

from chunkstore.ssd import index_environment, region_locks, ssd_service, tier
from chunkstore.stores import forked_store
from dieselfs.cache.ssd.settings import end_tiers
from tests.eventually import eventually
from tests.forked_programs import SSD_DEADLINE_S, daemons_are_forked
from tests.huge_pages import use_huge_pages
from tests.rewritten_asserts import rewrite_share

pytest_plugins = [
    "tests.emptied_folders",
    "tests.services.redis_fixtures",
    "tests.services.s3_fixtures",
]

GRACE_S = 60.0  # a daemon that was told to end may need a moment to be gone
MARK = "DIESELFS_TEST_RUN"
PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python keeps for as long as the run itself."""

_LONG_WAITS = (
    *("tests/peers/", "tests/faults/", "tests/dieselfs/cli/", "tests/mount/"),
    *("tests/metadata/kv/", "tests/dieselfs/cache/cluster/"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Let programs of the tests be interrupted, though a shell's background job ignores such
    signals."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    # A draw that takes long says that the machine is busy.
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")
    rewrite_share(config)
    ssd_service.DEADLINE_S = SSD_DEADLINE_S
    late = pytest.MonkeyPatch()  # a write to it, and the start of a store's process, may be too
    late.setattr(tier, "_WRITE_TIMEOUT_S", 60.0)
    # A forked child has no index if a transaction is under way for longer than this.
    late.setattr(index_environment, "_END_S", 60.0)
    late.setattr(forked_store, "_START_TIMEOUT_S", 60.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files first whose tests wait longest: begun last, they would leave workers idle."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG_WAITS))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the thousands of tests: a quarter of the CPU time of their
    collection, and later a tenth of their own. Forked children share them unchanged, and copy the
    tables of few pages."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        use_huge_pages()


@pytest.fixture(scope="session", autouse=True)
def node_memory_of_the_tests() -> Iterator[Path]:
    """Tasks of the tests have a tmpfs folder of their own: what is swept there, or left by those
    that are killed, is nobody else's."""
    folder = Path(tempfile.mkdtemp(prefix="dieselfs-test-", dir="/dev/shm"))
    os.environ["DIESELFS_MEMORY_FOLDER"] = os.fspath(folder)
    yield folder
    del os.environ["DIESELFS_MEMORY_FOLDER"]
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(
    tmp_path_factory: pytest.TempPathFactory,
    node_memory_of_the_tests: Path,  # removed when no process uses it any more
) -> Iterator[None]:
    # Every program started from here inherits the mark, however often it forks and whoever its
    # parent becomes; and only this run's, so that two runs on a machine do not blame each other.
    mark = f"{MARK}={uuid.uuid4().hex}"
    os.environ[MARK] = mark.partition("=")[2]
    yield
    base = tmp_path_factory.getbasetemp().resolve()
    with suppress(AssertionError):
        eventually(lambda: not (mounts_below(base) or processes_with(mark)), timeout_s=GRACE_S)
    left = mounts_below(base) + processes_with(mark)
    assert not left, "left behind by the tests:\n  " + "\n  ".join(left)


@pytest.fixture(scope="session", autouse=True)
def forked_daemons(nothing_is_left_behind: None) -> Iterator[None]:
    """Daemons of mounts that tests start in this process are forked: hundreds of starts of Python
    would take a quarter of the tests' time."""
    with daemons_are_forked():
        yield


@pytest.fixture(scope="session", autouse=True)
def logs_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Mounts and warm-ups of the tests log below their temporary folder, and nowhere else."""
    base = tmp_path_factory.getbasetemp()
    os.environ["DIESELFS_LOG_FOLDER"] = os.fspath(base / "logs")
    yield
    del os.environ["DIESELFS_LOG_FOLDER"]
    ours = quote(os.fspath(base.resolve()), safe="").replace("%2F", "-")
    left = [log for log in Path("/var/log/dieselfs").glob("*.log") if ours in log.name]
    assert not left, f"logs of the tests outside of their folder: {left}"


@pytest.fixture(scope="module", autouse=True)
def tiers_of_each_file() -> Iterator[None]:
    """Clients and programs in this process leave their SSD tiers open for the next ones. The tiers
    have threads, which open and close files, so they end with each file of tests. A process never
    closes a tier's lock file; those of twenty rounds of the tests would be hundreds, so those of
    removed tiers are closed here."""
    yield
    end_tiers()
    eventually(
        lambda: all(thread.name != "ssd-tier" for thread in threading.enumerate()),
        "the SSD tiers of the tests end",
        GRACE_S,
    )
    for key, locks in list(region_locks._open.items()):
        if not os.fstat(locks._fd).st_nlink:
            del region_locks._open[key]
            os.close(locks._fd)


@pytest.fixture(autouse=True)
def logging_of_each_test() -> Iterator[None]:
    """A program that a test runs in this process sets up logging for good: its level and its
    handlers, whose streams end with the test, are nobody else's."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        # pytest's own handlers, which come and go with the phases of a test, are subclasses.
        if handler not in handlers and type(handler) in (
            logging.StreamHandler,
            logging.NullHandler,
        ):
            root.removeHandler(handler)


def mounts_below(folder: Path) -> list[str]:
    """The file systems mounted at or below `folder`."""
    # ... mount id, parent, device, root, mountpoint, options, - , type: proc(5)
    lines = [
        line.split()
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    ]
    points = [fields[4].encode().decode("unicode_escape") for fields in lines]
    return [f"mount {point}" for point in points if Path(point).is_relative_to(folder)]


def processes_with(mark: str) -> list[str]:
    """The running processes that have `mark` in their environment, but this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (
                (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:  # ended meanwhile, or somebody else's
            continue
        if mark.encode() in environment and not any(own in command for own in PYTHONS_OWN):
            found.append(f"process {process.name}: {command}")
    return [entry for entry in found if not entry.startswith(f"process {os.getpid()}:")]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder in shared memory, whose path is short enough for a socket in a task."""
    folder = Path(tempfile.mkdtemp(prefix="dieselfs-test-", dir="/dev/shm"))
    yield folder

    def is_removed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    eventually(is_removed, f"{folder} is removed: a helper that ends removes its files, too")
