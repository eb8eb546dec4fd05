"""`dlcmd put` as users run it: real trees, real processes, interrupted at any moment."""

from __future__ import annotations

import json
import logging
import multiprocessing.popen_fork
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chunkstore.chunk_format import KIND_FILE
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.resilient import ResilientStore
from dieselfs.cli import run_dlcmd
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.commands import (
    put as put_verb,  # loaded before a child gives up root's powers, as all below
)
from dieselfs.dataset.dataset import open_dataset
from dieselfs.packing import pack
from dieselfs.packing.worker import _LARGE_BYTES
from metadata.errors import DatasetNotFound
from metadata.kv.lmdb_file import LmdbFileStore
from tests.contracts.key_value_store_contract import fork
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.dataset_content import Node, content_of, tree_of
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import ForkedProgram, run_forked, start_forked
from tests.services.redis_processes import free_port

TIMEOUT_S = PATIENCE_S
NOBODY = 65534
LOADED = (put_verb, pack, multiprocessing.popen_fork, ResilientStore)


@dataclass(frozen=True)
class Place:
    """A store and an index in a folder, and the command that puts into them."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DIESELFS_P")}
        return kept | {
            "DIESELFS_STORE": f"file://{self.folder}/store",
            "DIESELFS_INDEX": f"lmdb://{self.folder}/index",
            "XDG_DATA_HOME": f"{self.folder}/data",
            "XDG_CONFIG_HOME": f"{self.folder}/config",
            "PYTHONPATH": str(Path(__file__).parents[4]),
        }

    def command(self, *arguments: str | Path) -> list[str]:
        jobs = [] if "-j" in arguments else ["-j", "2"]
        return [sys.executable, "-m", "dieselfs.cli", "put", *jobs, *map(str, arguments)]

    def put(
        self,
        *arguments: str | Path,
        names: bytes | None = None,
        cwd: Path | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        return run_forked(
            self.command(*arguments),
            env=self.environment | environment,
            input=names or b"",
            timeout=TIMEOUT_S,
            cwd=cwd,
        )

    def summary(self, *arguments: str | Path, names: bytes | None = None) -> dict[str, object]:
        """Of a put that must succeed."""
        done = self.put("--json", *arguments, names=names)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    def content(self, name: str = "d") -> dict[bytes, Node]:
        index = LmdbFileStore(self.folder / "index")
        try:
            return content_of(open_dataset(LocalDirectory(self.folder / "store"), index, name))
        finally:
            index.close()

    def exists(self, name: str = "d") -> bool:
        if not (self.folder / "store").exists():
            return False
        try:
            self.content(name)
        except DatasetNotFound:
            return False
        return True

    def objects(self, name: str = "d") -> list[str]:
        if not (self.folder / "store").exists():
            return []
        return sorted(
            info.key for info in LocalDirectory(self.folder / "store").list(f"datasets/{name}/")
        )

    def chunk_groups(self, name: str = "d") -> list[list[bytes]]:
        """The paths of every chunk in order, the chunks sorted: what does not depend on ids."""
        index = LmdbFileStore(self.folder / "index")
        dataset = open_dataset(LocalDirectory(self.folder / "store"), index, name)
        groups = [
            [
                path
                for path, kind in zip(head.entries.paths, head.entries.kind, strict=True)
                if kind == KIND_FILE
            ]
            for commit in dataset.log.since(0)
            for head in (dataset.reader.head(ref.id, ref.head_bytes) for ref in commit.added)
        ]
        index.close()
        return sorted(groups)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with everything that can be put."""
    top = tmp_path / "source"
    (top / "cat/deep/er").mkdir(parents=True)
    (top / "empty/inner").mkdir(parents=True)
    for number in range(40):
        (top / f"cat/{number}.jpg").write_bytes(random.Random(number).randbytes(number * 100))
    (top / "cat/deep/er/large").write_bytes(random.Random(1).randbytes(600_000))
    (top / "cat/zero").write_bytes(b"")
    (Path(os.fsdecode(bytes(top) + b"/caf\xe9\n\x1b"))).write_bytes(b"odd name")
    (top / "script").write_bytes(b"#!")
    (top / "script").chmod(0o4755)
    (top / "secret").write_bytes(b"s")
    (top / "secret").chmod(0o400)
    for at, path in enumerate(sorted(top.rglob("*"), reverse=True)):
        os.utime(path, ns=(at, 1_000_000_000_123_456_789 + at))
    (top / "cat").chmod(0o2750)
    os.utime(top / "cat", ns=(0, -5_000_000_001))
    top.chmod(0o711)
    os.utime(top, ns=(0, 1_234_567_890_987_654_321))
    return top


def only_error(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that a failed command writes, but for the notice that the store is new."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    said = done.stderr.splitlines()
    lines = [line for line in said if not line.startswith("created a new store at ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dlcmd: ")
    assert done.stdout == ""
    return lines[0]


def test_everything_comes_back(place: Place, source: Path) -> None:
    before = tree_of(source)
    done = place.put(f"{source}/", "dl://d")
    assert done.returncode == 0, done.stderr
    assert re.match(r"put 45 files, .* in \d+ chunks, .* files/s\n", done.stdout)
    assert done.stderr == f"created a new store at {place.folder}/store\n"
    assert place.content() == before == tree_of(source)
    assert before[b""].mode == stat.S_IFDIR | 0o711
    assert b"empty/inner" in before


@pytest.mark.parametrize("order", ["scatter", "path", "given"])
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_order_and_jobs_do_not_change_the_content(
    place: Place, source: Path, order: str, jobs: str
) -> None:
    found = place.summary(
        "--order", order, "-j", jobs, "--chunk-size", "64KiB", f"{source}/", "dl://d"
    )
    assert found["files"] == 45
    assert place.content() == tree_of(source)


def test_the_same_seed_packs_the_same_chunks(place: Place, source: Path) -> None:
    for name, seed in (("d", "7"), ("e", "7"), ("f", "8")):
        place.summary(
            "-j", "3", "--chunk-size", "8KiB", "--seed", seed, f"{source}/", f"dl://{name}"
        )
    assert len(place.chunk_groups("d")) > 8
    assert place.chunk_groups("d") == place.chunk_groups("e") != place.chunk_groups("f")
    assert place.content("d") == place.content("f")


def test_a_source_without_a_slash_is_put_under_its_name(place: Place, source: Path) -> None:
    place.summary(source, "dl://d/into/here")
    expected = {
        b"into/here/source" + (b"/" + path if path else b""): node
        for path, node in tree_of(source).items()
    }
    found = place.content()
    assert {
        path: node for path, node in found.items() if path.startswith(b"into/here/source")
    } == expected
    assert found.keys() - expected.keys() == {b"", b"into", b"into/here"}


def test_several_sources(place: Place, source: Path) -> None:
    place.summary(source / "cat", source / "empty", source / "script", "dl://d/x")
    found = place.content()
    assert {b"x/cat/zero", b"x/empty/inner", b"x/script"} <= found.keys()
    assert found[b"x/script"].mode == stat.S_IFREG | 0o4755


def test_one_file_to_a_name_into_a_directory_and_over_a_file(place: Place, source: Path) -> None:
    place.summary(source / "script", "dl://d/renamed")
    place.summary(source / "script", "dl://d")
    place.summary(source / "script", "dl://d/sub/")
    place.summary(source / "secret", "dl://d/sub")  # which is a directory by now
    place.summary(source / "secret", "dl://d/renamed")
    found = place.content()
    assert {path for path, node in found.items() if node.data is not None} == {
        b"renamed", b"script", b"sub/script", b"sub/secret",
    }  # fmt: skip
    assert found[b"renamed"].data == b"s"
    assert place.summary(source / "secret", "dl://d/renamed")["unchanged"] == 1


def test_links_are_followed_loops_found_and_no_follow_refuses(place: Place, tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub/f").write_bytes(b"far")
    (top / "a").mkdir(parents=True)
    (top / "a/file").symlink_to("../../outside/sub/f")
    (top / "a/folder").symlink_to(outside)
    (top / "again").symlink_to("a")
    place.summary(f"{top}/", "dl://d")
    found = place.content()
    assert found[b"a/file"].data == b"far" == found[b"again/folder/sub/f"].data
    for refused in (top / "a/file", top / "again"):
        done = place.put("--no-follow", refused, "dl://e")
        assert "symbolic link" in only_error(done, 1)
    done = place.put("--no-follow", f"{top}/", "dl://e")
    for link in ("a/file", "a/folder", "again"):
        assert f"{top}/{link} is a symbolic link (refused by --no-follow)\n" in done.stderr
    done = place.put("--no-follow", "--files-from", "-", top, "dl://e", names=b"a/file\n")
    assert "symbolic link" in only_error(done, 1)
    (top / "a/up").symlink_to("..")
    assert f"{top}/again/up leads back" in place.put(f"{top}/", "dl://e").stderr
    assert not place.exists("e")


def test_links_are_left_out_on_request(place: Place, source: Path, tmp_path: Path) -> None:
    expected = tree_of(source)
    for link, to in (("up", ".."), ("cat/nowhere", "no"), ("cat/file", "zero"), ("folder", "cat")):
        (source / link).symlink_to(to)
    for folder in (source / "cat", source):
        os.utime(
            folder, ns=(0, expected[os.fsencode(folder.name) if folder != source else b""].mtime_ns)
        )
    done = place.put("--skip-links", f"{source}/", "dl://d")
    assert done.returncode == 0
    assert "left out 4 symbolic links: " in done.stderr
    assert place.content() == expected
    (tmp_path / "latest").symlink_to(source)
    found = place.summary("--skip-links", f"{tmp_path}/latest/", tmp_path / "latest", "dl://d")
    assert (found["links"], found["unchanged"]) == (5, 45)
    names = b"script\ncat/file\ncat/nowhere\n"
    found = place.summary("--skip-links", "--files-from", "-", source, "dl://e", names=names)
    assert (found["links"], found["files"]) == (2, 1)
    assert "choose one" in only_error(place.put("--skip-links", "--no-follow", source, "dl://d"), 2)


def test_links_are_kept_on_request(place: Place, source: Path) -> None:
    links = {
        "here": "cat/zero",
        "folder": "cat",
        "cat/up": "../secret",
        "cat/deep/er/root": "../../..",
        "cat/dangling": "no/such",
        "circle": "circle",
    }
    for link, to in links.items():
        (source / link).symlink_to(to)
    os.utime(source / "here", ns=(0, 1_234_567_890_123), follow_symlinks=False)
    expected = tree_of(source, follow=False)
    dry = place.summary("-n", "--links", f"{source}/", "dl://d")
    found = place.summary("--links", f"{source}/", "dl://d")
    assert dry["files"] == found["files"] == 45 + len(links)
    assert (found["links"], found["outside"]) == (0, 0)
    assert place.content() == expected
    assert place.summary("--links", f"{source}/", "dl://d")["files"] == 0
    assert place.summary("--links", "-c", f"{source}/", "dl://d")["files"] == 0
    (source / "here").unlink()
    (source / "here").symlink_to("cat/1.jpg")
    os.utime(source / "here", ns=(0, 1_234_567_890_123), follow_symlinks=False)
    assert place.summary("-n", "--links", "-c", f"{source}/", "dl://d")["changed"] == 1
    assert place.summary("--links", f"{source}/", "dl://d")["files"] == 1
    assert place.content()[b"here"].data == b"cat/1.jpg"
    # Followed again, a link becomes what it leads to, and kept again a link.
    (source / "circle").unlink()
    (source / "folder").unlink()
    (source / "cat/deep/er/root").unlink()
    (source / "cat/dangling").unlink()
    assert place.summary(source / "here", "dl://d/")["files"] == 1
    assert place.content()[b"here"].data == (source / "cat/1.jpg").read_bytes()
    assert stat.S_ISREG(place.content()[b"here"].mode)
    assert place.summary("--links", source / "here", "dl://d/")["files"] == 1
    assert place.content()[b"here"].data == b"cat/1.jpg"
    assert "choose one" in only_error(place.put("--links", "--skip-links", source, "dl://d"), 2)
    assert "choose one" in only_error(place.put("--links", "--no-follow", source, "dl://d"), 2)


def test_links_that_may_lead_out_are_left_out_and_named(place: Place, source: Path) -> None:
    outside = {
        "absolute": "/etc/passwd",
        "above": "..",
        "cat/above": "../../x",
        "cat/deep/back": "er/../../zero",
        "inside": str(source / "secret"),
    }
    (source / "kept").symlink_to("secret")
    expected = tree_of(source, follow=False)
    for link, to in outside.items():
        (source / link).symlink_to(to)
    for folder in (b"cat/deep", b"cat", b""):
        os.utime(os.fsencode(source) + b"/" + folder, ns=(0, expected[folder].mtime_ns))
    dry = place.put("-n", "--links", f"{source}/", "dl://d")
    assert (dry.returncode, place.exists()) == (0, False)
    for done in (dry, place.put("--links", f"{source}/", "dl://d")):
        for link in outside:
            assert f"link left out: {source}/{link}: its target " in done.stderr
    assert done.returncode == 6
    assert "left out 5 symbolic links" in done.stderr
    assert place.content() == expected
    # What the dataset has in their place stays, also with --delete.
    for link in outside:
        (source / link).unlink()
        (source / link).write_bytes(b"a file for a while")
    (source / "gone").write_bytes(b"")
    place.summary(f"{source}/", "dl://d")
    for link, to in outside.items():
        (source / link).unlink()
        (source / link).symlink_to(to)
    (source / "gone").unlink()
    (source / "kept").unlink()
    assert place.put("--links", "--delete", f"{source}/", "dl://d").returncode == 6
    found = place.content()
    assert found.keys() == (expected.keys() | set(map(os.fsencode, outside))) - {b"kept"}
    for link in outside:
        assert found[os.fsencode(link)].data == b"a file for a while"


def test_a_link_that_is_named_is_put_or_led_through(place: Place, tmp_path: Path) -> None:
    (tmp_path / "run5").mkdir()
    (tmp_path / "run5/f").write_bytes(b"5")
    (tmp_path / "run5/up").symlink_to("../run5/f")
    (tmp_path / "latest").symlink_to("run5")
    (tmp_path / "far").symlink_to("../far")
    place.summary("--links", tmp_path / "latest", "dl://d")
    assert place.content()[b"latest"].data == b"run5"
    assert place.put("--links", f"{tmp_path}/latest/", "dl://d/in").returncode == 6
    assert place.content()[b"in/f"].data == b"5"
    done = place.put("--links", tmp_path / "far", "dl://d")
    assert (done.returncode, "far: its target leads out" in done.stderr) == (6, True)
    names = b"latest\nrun5/up\nrun5/f\nfar\n"
    done = place.put("--links", "--files-from", "-", tmp_path, "dl://e/t", names=names)
    assert (done.returncode, "far: its target leads out" in done.stderr) == (6, True)
    found = place.content("e")
    assert {path: node.data for path, node in found.items() if node.data is not None} == {
        b"t/latest": b"run5", b"t/run5/up": b"../run5/f", b"t/run5/f": b"5",
    }  # fmt: skip


def test_special_files_are_left_out_and_named(place: Place, source: Path) -> None:
    expected = tree_of(source)
    os.mkfifo(source / "cat/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(source)  # the path of a socket has at most 107 bytes
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        os.utime(source / "cat", ns=(0, expected[b"cat"].mtime_ns))
        os.utime(source, ns=(0, expected[b""].mtime_ns))
        done = place.put(f"{source}/", "dl://d")
        assert done.returncode == 0
        assert "left out 2 special files" in done.stderr
        assert "cat/pipe" in done.stderr
        assert place.content() == expected
        assert place.summary(f"{source}/", "dl://d")["special"] == 2
    for named in (source / "cat/pipe", "/dev/null"):
        assert "neither a file nor a directory" in only_error(place.put(named, "dl://e"), 1)
    done = place.put("--files-from", "-", source, "dl://e", names=b"script\ncat/pipe\n")
    assert "special file" in only_error(done, 1)
    assert not place.exists("e")


def test_filters(place: Place, source: Path) -> None:
    place.summary("--exclude", "*.jpg", "--exclude", "/empty", f"{source}/", "dl://d")
    found = place.content()
    assert {b"cat", b"cat/zero", b"cat/deep/er/large", b"script"} <= found.keys()
    assert not [path for path in found if path.endswith(b".jpg") or path.startswith(b"empty")]
    place.summary("--include", "1?.jpg", "--exclude", "*.jpg", f"{source}/cat/", "dl://e")
    assert sorted(path for path in place.content("e") if path.endswith(b".jpg")) == [
        b"%d.jpg" % number for number in range(10, 20)
    ]
    place.summary(
        "--exclude", "s*", "--files-from", "-", source, "dl://f", names=b"script\ncat/zero\n"
    )
    assert {path for path, node in place.content("f").items() if node.data is not None} == {
        b"cat/zero"
    }


def test_what_is_excluded_is_not_looked_at(place: Place, source: Path) -> None:
    (source / "cat/dangling").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    for no_follow in ([], ["--no-follow"]):
        for dry_run in ([], ["-n"]):
            options = [*no_follow, *dry_run, "--exclude", "dangling", "--exclude", "pipe"]
            done = place.put("-q", *options, f"{source}/", "dl://d")
            assert (done.returncode, done.stderr) == (0, "")
            named = [source / "cat/dangling", source / "pipe", source / "script"]
            done = place.put("-q", *options, *named, "dl://d/named")
            assert (done.returncode, done.stderr) == (0, "")
    assert place.content()[b"named/script"].data == b"#!"


def test_all_bad_sources_are_named(place: Place, source: Path) -> None:
    bad = [source / name for name in ("cat/dangling", "cat/deep/none", "circle")]
    bad[0].symlink_to("nowhere")
    bad[1].symlink_to("/no/where")
    bad[2].symlink_to("circle")
    for dry_run in ([], ["-n"]):
        named = place.folder / "none"
        done = place.put(*dry_run, "--no-progress", f"{source}/", named, source / "pipe", "dl://d")
        *lines, last = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (1, "")
        reasons = [f"{path}: No such file or directory" for path in (*bad[:2], named)]
        reasons += [f"{source}/pipe: No such file or directory"]
        reasons += [f"{bad[2]}: Too many levels of symbolic links"]
        assert sorted(lines) == sorted(f"dlcmd: {reason}" for reason in reasons)
        assert last.startswith("dlcmd: 5 sources cannot be packed: no file was put; ")
    done = place.put("--json", f"{source}/", "dl://d")
    records = [json.loads(line) for line in done.stderr.splitlines()]
    *each, _ = [record for record in records if "error" in record]
    assert {str(path) for path in bad} == {record["message"].partition(":")[0] for record in each}
    assert not place.exists()


def test_files_from(place: Place, source: Path) -> None:
    names = b"script\n./cat/zero\ncat//1.jpg\n"
    assert place.summary("--files-from", "-", source, "dl://d/x", names=names)["files"] == 3
    files = {path for path, node in place.content().items() if node.data is not None}
    assert files == {b"x/script", b"x/cat/zero", b"x/cat/1.jpg"}
    names = b"caf\xe9\n\x1b\0secret\0"
    assert place.summary("--files-from", "-", "-0", source, "dl://e", names=names)["files"] == 2
    assert place.content("e")[b"caf\xe9\n\x1b"].data == b"odd name"
    listed = place.folder / "names"
    listed.write_bytes(b"zero\n")
    done = place.put("--files-from", listed, "dl://f", cwd=source / "cat")
    assert done.returncode == 0
    assert b"zero" in place.content("f")


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (b"script\nnone\n", 1, "no such file"),
        (b"cat\n", 1, "is a directory"),
        (b".\n", 1, "is a directory"),
        (b"/etc/passwd\n", 2, "below SRC"),
        (b"cat/../../up\n", 2, "below SRC"),
        (b"..\n", 2, "below SRC"),
    ],
)
def test_bad_names_of_files_from(
    place: Place, source: Path, names: bytes, code: int, said: str
) -> None:
    done = place.put("--files-from", "-", source, "dl://d", names=names)
    assert said in only_error(done, code)
    assert not place.exists()


def test_a_second_put_skips_what_is_unchanged(place: Place, source: Path) -> None:
    place.summary(f"{source}/", "dl://d")
    chunks = place.objects()
    found = place.summary(f"{source}/", "dl://d")
    assert (found["files"], found["unchanged"], found["chunks"]) == (0, 45, 0)
    assert place.objects() == chunks
    # A later mtime, another size, another mode, an earlier mtime; and a directory's mode.
    os.utime(source / "cat/1.jpg", ns=(0, 1))
    (source / "cat/2.jpg").write_bytes(b"other size")
    (source / "cat/3.jpg").chmod(0o600)
    (source / "empty").chmod(0o700)
    found = place.summary(f"{source}/", "dl://d")
    assert (found["files"], found["unchanged"]) == (3, 42)
    assert place.content() == tree_of(source)


def test_checksum_compares_content(place: Place, source: Path) -> None:
    place.summary(f"{source}/", "dl://d")
    os.utime(source / "cat/1.jpg", ns=(0, 1))
    status = os.stat(source / "cat/2.jpg")
    (source / "cat/2.jpg").write_bytes(bytes(status.st_size))
    os.utime(source / "cat/2.jpg", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert place.summary(f"{source}/", "dl://d")["files"] == 1  # the touched one
    found = place.summary("--checksum", f"{source}/", "dl://d")
    assert (found["files"], found["unchanged"]) == (1, 44)
    assert place.content() == tree_of(source)


def test_delete(place: Place, source: Path) -> None:
    place.summary(f"{source}/", "dl://d")
    (source / "script").unlink()
    (source / "cat/1.jpg").unlink()
    (source / "fresh").write_bytes(b"fresh")
    done = place.put("-n", "--delete", f"{source}/", "dl://d")
    assert "1 new, 0 changed; 43 files are unchanged, 2 would be deleted; nothing" in done.stdout
    done = place.put("--delete", "--max-delete", "1", f"{source}/", "dl://d")
    assert "would delete 2 files, --max-delete allows 1" in only_error(done, 1)
    found = place.summary("--delete", f"{source}/", "dl://d")
    assert (found["files"], found["unchanged"], found["deleted"]) == (1, 43, 2)
    assert place.content() == tree_of(source)


def test_a_large_file_is_streamed_compared_and_put_again(place: Place, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(_LARGE_BYTES + 1_000_001)
        file.seek(_LARGE_BYTES - 5)
        file.write(b"in the middle")
    first = place.summary(large, "dl://d")
    assert (first["files"], first["chunks"], first["bytes"]) == (1, 1, large.stat().st_size)
    os.utime(large, ns=(0, 5))
    assert place.summary("-c", large, "dl://d")["unchanged"] == 1
    assert place.summary(large, "dl://d")["files"] == 1
    assert place.content()[b"large"].data == large.read_bytes()
    assert place.content()[b"large"].mtime_ns == 5


def test_a_dry_run_changes_nothing(place: Place, source: Path) -> None:
    done = place.put("-n", f"{source}/", "dl://d")
    assert done.returncode == 0
    assert "would put 45 files" in done.stdout
    found = place.summary("-n", "--files-from", "-", source, "dl://d", names=b"script\ncat/1.jpg\n")
    assert (found["files"], found["bytes"], found["dry_run"]) == (2, 102, True)
    place.summary("-n", source / "script", "dl://d/name")
    assert not place.exists()
    assert not (place.folder / "store").exists()
    assert "No such file" in only_error(place.put("-n", source / "none", "dl://d"), 1)
    place.summary(f"{source}/", "dl://d")
    objects = place.objects()
    (source / "script").chmod(0o600)
    (source / "fresh").write_bytes(b"fresh")
    found = place.summary("-n", f"{source}/", "dl://d")
    assert (found["new"], found["changed"], found["unchanged"]) == (1, 1, 44)
    done = place.put("-n", f"{source}/", "dl://d")
    assert "would put 2 files, 7 B, in about 1 chunk: 1 new, 1 changed; 44 files are" in done.stdout
    assert place.objects() == objects


def test_bad_sources_leave_everything_as_it_was(place: Place, source: Path, tmp_path: Path) -> None:
    assert "No such file" in only_error(place.put(source / "none", "dl://d"), 1)
    (source / "cat/dangling").symlink_to("nowhere")
    assert "dangling" in only_error(place.put(f"{source}/", "dl://d"), 1)
    assert not place.exists()
    assert place.objects() == []
    (source / "cat/dangling").unlink()
    place.summary(f"{source}/cat/deep/", "dl://d")
    before, objects = place.content(), place.objects()
    (source / "cat/dangling").symlink_to("nowhere")
    only_error(place.put(f"{source}/", "dl://d"), 1)
    assert place.content() == before
    assert [key for key in place.objects() if "/commits/" in key] == [
        key for key in objects if "/commits/" in key
    ]
    only_error(place.put(f"{source}/empty/", tmp_path / "none", "dl://e"), 1)
    assert not place.exists("e")


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become somebody who may not read a file"
)
def test_an_unreadable_file_or_folder() -> None:
    """In a forked child without root's powers; the folders of pytest and perhaps the checkout are
    closed to it."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        top, out = work / "top", work / "out"
        (top / "sub").mkdir(parents=True)
        (top / "good").write_bytes(b"g")
        (top / "sub/bad").write_bytes(b"b")
        out.write_bytes(b"")
        for path in (work, top, top / "sub", top / "good", top / "sub/bad", out):
            os.chown(path, NOBODY, NOBODY)
        place = Place(work)

        def put() -> None:
            fd = os.open(out, os.O_WRONLY | os.O_TRUNC)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
            # Another test's --debug logs to a stream that is closed.
            logging.getLogger().handlers[:] = [logging.NullHandler()]
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.environ.update(place.environment)
            code = run_dlcmd(["put", "-j", "2", f"{top}/", "dl://d"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

        def refused(path: Path, mode: int) -> None:
            before = path.stat().st_mode
            path.chmod(mode)
            assert os.waitstatus_to_exitcode(os.waitpid(fork(put), 0)[1]) == 1
            said = out.read_text()
            assert said.startswith("dlcmd: ")
            assert str(path) in said
            assert said.count("\n") == 1
            assert not place.exists()
            path.chmod(before)

        refused(top / "sub/bad", 0)
        refused(top / "sub", 0)
        refused(top / "sub", 0o600)  # may be listed but not entered
        refused(top, 0)
        assert os.waitpid(fork(put), 0)[1] == 0, out.read_text()
        assert place.content()[b"sub/bad"].data == b"b"


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "said"),
    [
        (["--order", "random", "SRC", "dl://d"], {}, 2, "scatter"),
        (["SRC", "dl://.bad"], {}, 2, "illegal dataset name"),
        (["SRC", "dl://d/a/../b"], {}, 2, "illegal path"),
        (["SRC", "dl://d@3/x"], {}, 2, "never changes"),
        (["SRC"], {}, 2, "DST is missing"),
        (["--max-delete", "1", "SRC", "dl://d"], {}, 2, "add --delete"),
        (["--delete", "--files-from", "/dev/null", "SRC", "dl://d"], {}, 2, "with directories"),
        (["--chunk-size", "1KiB", "SRC", "dl://d"], {}, 2, "chunk"),
        (["SRC", "dl://d/" + "/".join([*["long" * 60] * 16, "x" * 234])], {}, 2, "at most 4095"),
        (["SRC", "dl://d"], {"DIESELFS_STORE": "fil:///x"}, 2, "file://"),
        (["SRC", "dl://d"], {"DIESELFS_STORE": "file:///nowhere/at/all"}, 5, "/nowhere/at"),
        (["SRC", "dl://d"], {"DIESELFS_INDEX": "redis://127.0.0.1:PORT/0"}, 5, "127.0.0.1:PORT"),
    ],
)
def test_bad_requests(
    place: Place,
    source: Path,
    arguments: list[str],
    environment: dict[str, str],
    code: int,
    said: str,
) -> None:
    port = str(free_port())
    environment = {name: value.replace("PORT", port) for name, value in environment.items()}
    arguments = [f"{source}/" if word == "SRC" else word for word in arguments]
    done = place.put(*arguments, **environment)
    line = only_error(done, code)
    assert said.replace("PORT", port) in line
    assert not place.exists()


def test_a_file_where_a_directory_is_and_the_other_way_round(place: Place, tmp_path: Path) -> None:
    for name, path in (("one", "a/b"), ("two", "a")):
        (tmp_path / name / path).parent.mkdir(parents=True)
        (tmp_path / name / path).write_bytes(b"x")
    place.summary(f"{tmp_path}/one/", "dl://d")
    before = place.content()
    assert "directory" in only_error(place.put(f"{tmp_path}/two/", "dl://d"), 8)
    assert place.content() == before
    place.summary(f"{tmp_path}/two/", "dl://e")
    assert "is a file" in only_error(place.put(f"{tmp_path}/one/", "dl://e"), 8)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(60):
        (source / str(number)).write_bytes(random.Random(number).randbytes(100_000))
    with small_disk(tmp_path / "disk", "3m") as disk:
        store = {"DIESELFS_STORE": f"file://{disk}/store"}
        # No chunk has room. Of smaller ones, a put that takes a second commits the first.
        arguments = ["--chunk-size", "4MiB", f"{source}/", "dl://d"]
        line = only_error(place.put(*arguments, **store), 1)
        assert "space" in line
        index = LmdbFileStore(place.folder / "index")
        with pytest.raises(DatasetNotFound):
            open_dataset(LocalDirectory(disk / "store"), index, "d")
        index.close()


@contextmanager
def started(command: Sequence[str], place: Place) -> Iterator[ForkedProgram]:
    """In a process group of its own, which is gone at the end."""
    with start_forked(command, env=place.environment) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("many")
    for folder in range(10):
        (top / str(folder)).mkdir()
        for number in range(150):
            (top / f"{folder}/{number}").write_bytes(b"%d/%d " % (folder, number) * 200)
    return top


def check_whole_or_absent(place: Place, source: Path) -> int:
    """What is there is as in the source; how many files."""
    if not place.exists():
        return 0
    expected, found = tree_of(source), place.content()
    files = {path for path, node in found.items() if node.data is not None}
    for path in files:
        assert found[path] == expected[path]
    return len(files)


def wait_for_chunks(place: Place, count: int, process: ForkedProgram) -> None:
    """Until the store holds so many objects, or the put is over: it is always somewhere else
    then."""
    while process.poll() is None:
        folder = place.folder / "store/datasets/d"
        if sum(len(names) for _, _, names in os.walk(folder)) >= count:
            return
        time.sleep(0.001)


@pytest.mark.parametrize("whole_group", [True, False])
def test_killed_at_any_moment(place: Place, many_files: Path, whole_group: bool) -> None:
    arguments = ["--chunk-size", "16KiB", f"{many_files}/", "dl://d"]
    committed = 0
    for turn in range(5):
        with started(place.command(*arguments), place) as process:
            wait_for_chunks(place, 1 + turn * 45 + len(place.objects()), process)
            with suppress(ProcessLookupError):  # over already
                os.killpg(process.pid, signal.SIGKILL) if whole_group else process.kill()
            # The workers hold the pipes of stdout and stderr: the end of both is their end.
            process.communicate()
            assert group_is_gone(process.pid)
        now = check_whole_or_absent(place, many_files)
        assert now >= committed
        committed = now
    assert place.summary(*arguments)["failed"] == 0
    assert place.content() == tree_of(many_files)


def group_is_gone(group: int) -> bool:
    """Whether every process of the group ends soon: its pipes close a moment before it does."""
    return eventually(lambda: _is_gone(group), "the end of every process of the group")


def _is_gone(group: int) -> bool:
    """Zombies of nobody count as gone: somebody has yet to collect them."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return False
    return True


def test_what_was_counted_as_committed_is_there(place: Place, many_files: Path) -> None:
    """The counts of the progress, told one by one as they change, and SIGKILL after one of them."""
    told = """
import os, sys
from dieselfs.assembly import open_index, open_store
from dieselfs.packing import pack
from dieselfs.packing.source_tree import SourceTree
from chunkstore import group_commit
pack.GroupCommit.__init__.__kwdefaults__['group_bytes'] = 100_000
def tell(progress):
    os.write(1, b'%d\\n' % progress.files_committed)
request = pack.PackRequest([SourceTree(os.fsencode(sys.argv[1]), b'')], jobs=2, target_bytes=16384)
places = lambda: open_store(os.environ['DIESELFS_STORE']), lambda: open_index(os.environ['DIESELFS_INDEX'])
pack.pack('d', request, *places, pack.PackProgress(on_change=tell))
"""
    counts = []
    for turn in range(4):
        before = check_whole_or_absent(place, many_files)  # while nobody writes
        with started([sys.executable, "-c", told, str(many_files)], place) as process:
            wanted = 1 + turn * 120
            count = 0
            for line in process.stdout:
                count = int(line)
                if count >= wanted:
                    break
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            rest = [int(line) for line in process.stdout if line.endswith(b"\n")]
            count = max([count, *rest])
        counts.append(count)
        assert check_whole_or_absent(place, many_files) >= before + count
    assert max(counts) > 0
    place.summary(f"{many_files}/", "dl://d")
    assert place.content() == tree_of(many_files)


@pytest.mark.parametrize("to_all", [True, False])
def test_interrupted(place: Place, many_files: Path, to_all: bool) -> None:
    """Ctrl-C goes to the whole group; `kill -INT` to one process."""
    arguments = ["--chunk-size", "4KiB", f"{many_files}/", "dl://d"]
    with started(place.command(*arguments), place) as process:
        wait_for_chunks(place, 40, process)
        with suppress(ProcessLookupError):
            (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate()
        assert group_is_gone(process.pid)
    if process.returncode != 0:  # it may have been just over
        assert process.returncode == 130
        assert out == b""
        assert b"Traceback" not in err
        assert re.search(rb"interrupted: [\d,]+ files are committed", err)
        counted = int(re.findall(rb"interrupted: ([\d,]+) files", err)[0].replace(b",", b""))
        assert check_whole_or_absent(place, many_files) >= counted
        assert counted or not place.exists() or check_whole_or_absent(place, many_files)
    place.summary(*arguments)
    assert place.content() == tree_of(many_files)


def test_a_worker_that_is_killed(place: Place, many_files: Path) -> None:
    arguments = ["--chunk-size", "4KiB", f"{many_files}/", "dl://d"]
    with started(place.command(*arguments), place) as process:
        wait_for_chunks(place, 20, process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            os.kill(int(children[0]), signal.SIGKILL)
        _, err = process.communicate()
        assert group_is_gone(process.pid)
    if process.returncode:
        assert process.returncode == 5
        assert len(err.splitlines()) == 2  # the first: that the store is new
        assert b"ended early" in err
    check_whole_or_absent(place, many_files)
    place.summary(*arguments)
    assert place.content() == tree_of(many_files)


def test_two_puts_at_once(place: Place, many_files: Path, source: Path) -> None:
    with started(
        place.command("--chunk-size", "16KiB", f"{many_files}/", "dl://d/many"), place
    ) as process:
        place.summary("--chunk-size", "16KiB", f"{source}/", "dl://d/source")
        process.communicate()
        assert process.returncode == 0
    found = place.content()
    for top, tree in ((b"many", many_files), (b"source", source)):
        for path, node in tree_of(tree).items():
            assert found[top + b"/" + path if path else top] == node


@pytest.mark.parametrize("quiet", [["-q"], ["--json", "-q"]])
def test_quiet(place: Place, source: Path, quiet: list[str]) -> None:
    done = place.put(*quiet, f"{source}/", "dl://d")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "" or "--json" in quiet


def test_the_progress_bar_begins_after_the_processes_are_forked(
    place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a thread, which a fork may catch with a lock in its hands."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    events: list[str] = []
    processes, progress = pack.PackingProcesses, CommandContext.progress

    def forked(*arguments: Any) -> object:
        made = processes(*arguments)
        events.append("forked")
        return made

    def begun(context: CommandContext, action: str) -> object:
        events.append("bar")
        return progress(context, action)

    monkeypatch.setattr(pack, "PackingProcesses", forked)
    monkeypatch.setattr(CommandContext, "progress", begun)
    assert run_dlcmd(["put", "-j", "2", f"{source}/", "dl://d"]) == 0
    assert events == ["forked", "bar"]


def test_an_order_that_is_wanted_is_kept_with_any_number_of_jobs(
    place: Place, tmp_path: Path
) -> None:
    source = tmp_path / "many"
    source.mkdir()
    names = [f"{number:04}" for number in range(500)]
    for name in names:
        (source / name).write_bytes(bytes(200))
    place.summary("--order", "path", "-j", "4", "--chunk-size", "16KiB", f"{source}/", "dl://d")
    packed = [os.fsdecode(path) for group in place.chunk_groups() for path in group]
    assert packed == names


def test_a_chunk_of_directories_alone_is_told_apart(dlcmd: Dlcmd, tmp_path: Path) -> None:
    source = tmp_path / "one"
    source.mkdir()
    (source / "large").write_bytes(bytes(5 << 20))  # has a chunk to itself
    result = dlcmd("put", f"{source}/", "one", "-j", "1")
    assert "put 1 file, 5.0 MiB, in 1 chunk and 1 of directories alone" in result.lines[-1]
