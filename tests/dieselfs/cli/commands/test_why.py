"""`dlcmd why` with a real mount."""

from pathlib import Path

import pytest

from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.fuse.page_residency import resident_bytes
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import eventually

needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")


def wait_for_ssd(dlcmd: Dlcmd, path: Path) -> None:
    """A mount opens its SSD in the background: what is read before bypasses it."""

    def is_in_service() -> bool:
        [found] = dlcmd("why", path, "--json").records
        return bool(found["ssd"]["in_service"])

    eventually(is_in_service, "the SSD is in service")


@needs_fuse
@pytest.mark.parametrize("front", ["fuse", "auto"])
def test_where_a_file_lies(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path, front: str
) -> None:
    ssd = tmp_path / "ssd"
    options = ("--front", front, "--prefill", "0", "--ssd", ssd, "--ssd-size", "64MiB")
    options += ("--ssd-policy", "historic", "--ssd-shadow-policy", "future")
    assert dlcmd("mount", "pets", mountpoint, *options).code == ExitCode.OK
    path = mountpoint / "cat/1.jpg"
    wait_for_ssd(dlcmd, path)
    [found] = dlcmd("why", path, "--json").records
    assert (found["node_memory_bytes"], found["ssd"]["cached_bytes"]) == (0, 0)
    assert found["cache_node"] is None
    assert found["ssd"]["policy"]["admitted"] is None
    size = len(path.read_bytes())

    [found] = dlcmd("why", path, "--json").records
    assert found["node_memory_bytes"] == size
    assert found["ssd"]["policy"]["bucket"] == "pets"
    assert found["ssd"]["policy"]["admitted"] is False
    shown = dlcmd("why", path).lines
    assert shown[0] == str(path)
    assert any(line.split() == ["node", "memory", "all"] for line in shown)
    assert any("ago, refused: its bucket has no priority" in line for line in shown)
    assert dlcmd("why", mountpoint / "cat").code == ExitCode.USAGE
    assert dlcmd("why", tmp_path).code == ExitCode.USAGE
    assert dlcmd("umount", mountpoint).code == ExitCode.OK


@needs_fuse
def test_a_dataset_that_no_ssd_keeps(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    ssd = ("--ssd", tmp_path / "ssd", "--ssd-size", "64MiB", "--prefill", "0")
    refused = dlcmd("mount", "pets", mountpoint, *ssd, "--cache-datasets", "a,,b")
    assert refused.code == ExitCode.USAGE
    assert "--cache-datasets: an empty pattern in 'a,,b'" in refused.err
    # A plus sign is a comma in -o.
    mounted = dlcmd("mount", "pets", mountpoint, *ssd, "-o", "cache_datasets=pe*+!*ts")
    assert mounted.code == ExitCode.OK
    assert "dataset pets is left out by the pattern !*ts" in mounted.err
    path = mountpoint / "cat/1.jpg"
    wait_for_ssd(dlcmd, path)
    path.read_bytes()
    shown = dlcmd("why", path).lines
    assert "  not eligible  dataset pets is left out by the pattern !*ts (cache_datasets)" in shown
    assert dlcmd("stats", mountpoint, "--json").records[0]["ssd"]["not_admitted"] > 0
    assert dlcmd("umount", mountpoint).code == ExitCode.OK


def test_resident_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    assert resident_bytes(path) == 10_000
    path.write_bytes(b"")
    assert resident_bytes(path) == 0


@needs_fuse
def test_the_region_of_a_file_on_the_ssd(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    options = ("--prefill", "0", "--ssd", tmp_path / "ssd", "--ssd-size", "64MiB")
    assert dlcmd("mount", "pets", mountpoint, *options).code == ExitCode.OK
    path = mountpoint / "cat/1.jpg"
    wait_for_ssd(dlcmd, path)
    size = len(path.read_bytes())

    def is_on_ssd() -> bool:
        [now] = dlcmd("why", path, "--json").records
        return now["ssd"]["cached_bytes"] >= size and len(now["ssd"]["regions"]) == 1

    eventually(is_on_ssd)
    shown = dlcmd("why", path).lines
    assert any(line.startswith("  SSD") and "all, in region" in line for line in shown)
    assert not any("policy" in line for line in shown)
    assert dlcmd("umount", mountpoint).code == ExitCode.OK
