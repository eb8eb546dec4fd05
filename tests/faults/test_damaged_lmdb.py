"""The pages of the LMDB file are damaged: LMDB has no checksums, and ends the process by a signal.

DIESELFS_LONG_FAULTS makes the random cases many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.cli.rendering.exit_codes import ExitCode
from metadata import keys
from metadata.kv.crash_report import EXIT_CODE
from metadata.kv.key_value_store import MapFields
from tests.faults.case import Measured, fault_case
from tests.faults.damaged_index import (
    FILES,
    DamagedIndex,
    check_refused,
    damage_at_random,
    damaged_index,
)

ROUNDS = 300 if os.environ.get("DIESELFS_LONG_FAULTS") else 6
SIGNALS = {"SIGABRT, of an assertion": (12, 16), "SIGBUS, of an address": (16, 0xFFF0)}
"""What two bytes at this offset of the root page make LMDB end by: no records, one elsewhere."""


@pytest.fixture(scope="module")
def shared_index() -> Iterator[DamagedIndex]:
    with damaged_index() as index:
        yield index


@pytest.fixture
def index(shared_index: DamagedIndex) -> DamagedIndex:
    shared_index.restore()
    return shared_index


def test_the_exit_code_is_that_of_damaged_data() -> None:
    assert EXIT_CODE == ExitCode.INTEGRITY


@pytest.mark.parametrize("signal", SIGNALS)
@fault_case(
    "a page of the LMDB file is damaged so that LMDB ends the process by SIGABRT or SIGBUS",
    promise="the command ends with a line that says what to do, without a core file; later "
    "commands see the mark of the dead one and say the same; `dlcmd recover` puts it right",
    bound_s=30,
    check="metadata.kv.crash_report:CrashReport.__enter__=none",
)
def test_a_page_that_ends_lmdb(index: DamagedIndex, signal: str, measured: Measured) -> None:
    offset, value = SIGNALS[signal]
    index.damage_root(offset, value)
    for _ in range(2):
        with measured.felt():
            ended = index.dlcmd("ls", "-r", "dl://d")
        check_refused(ended)
    assert len(ended.errors.splitlines()) == 1  # LMDB itself said nothing: it was not asked
    with measured.felt():
        assert index.dlcmd("recover", "d", "--yes").code == 0
    index.check_whole()
    measured.note(f"{signal}: refused, recovered")


@fault_case(
    "a process is sent SIGABRT by another one while it is in the index, which is sound",
    promise="the next command checks the file and goes on",
    bound_s=30,
    check="metadata.kv.crash_report:CrashReport.clear=none",
)
def test_a_mark_beside_a_sound_file(index: DamagedIndex, measured: Measured) -> None:
    mark = index.data.parent / "crashed"
    mark.touch()
    with measured.felt():
        assert index.check_listing(index.dlcmd("ls", "-r", "dl://d"))
    assert not mark.exists()
    measured.note("checked and used")


@fault_case(
    "`dlcmd recover` or `dlcmd fsck` is the first to meet a page that ends LMDB by a signal",
    promise="neither opens the database: `recover` moves the file away and rebuilds it, `fsck` "
    "says what to do",
    bound_s=30,
    check="dieselfs.assembly:check_index_file=none",
)
def test_recover_opens_no_damaged_file(index: DamagedIndex, measured: Measured) -> None:
    offset, value = SIGNALS["SIGABRT, of an assertion"]
    index.damage_root(offset, value)
    with measured.felt():
        check_refused(index.dlcmd("fsck", "d"))
    assert not (index.data.parent / "crashed").exists()
    with measured.felt():
        assert index.dlcmd("recover", "d", "--yes").code == 0
    index.check_whole()
    measured.note("refused, rebuilt")


@fault_case(
    "the index has lost records of files or of a directory without a trace",
    promise="whatever lists all of the dataset compares it with the totals, and ends with an "
    "error that names `dlcmd recover`; a snapshot is made from the store",
    bound_s=30,
    check="metadata.complete_listing:_compare=none",
)
@pytest.mark.parametrize("lost", ["a file", "a directory", "all files of a directory"])
def test_records_without_a_trace(
    index: DamagedIndex, lost: str, tmp_path: Path, measured: Measured
) -> None:
    with index.places.opened() as dataset:
        files, top = keys.files_of(dataset.ref.id, b"3"), keys.directories_of(dataset.ref.id, b"")
        names = [path.removeprefix(b"3/") for path in FILES if path.startswith(b"3/")]
        removals = {
            "a file": MapFields(files, names[:1]),
            "a directory": MapFields(top, [b"3"]),
            "all files of a directory": MapFields(files, names),
        }
        dataset.index.remove([removals[lost]])
    for command in (["ls", "-r", "dl://d"], ["du", "dl://d"], ["get", "dl://d", f"{tmp_path}/got"]):
        with measured.felt():
            check_refused(index.dlcmd(*command))
    with measured.felt():
        made = index.dlcmd("snapshot", "create", "d")
    assert made.code == 0
    assert "rebuilt this snapshot from the store" in made.errors
    assert index.dlcmd("recover", "d", "--yes").code == 0
    index.check_whole()
    measured.note(f"{lost}: refused, recovered")


@fault_case(
    "a page of the LMDB file forgets one file of a directory",
    promise="a listing of this directory is refused and names `dlcmd recover`",
    bound_s=30,
    check="dieselfs.client.lookup:check_directory=none",
)
def test_a_page_that_forgets_a_file(index: DamagedIndex, measured: Measured) -> None:
    with index.places.opened() as dataset:
        dataset_id = dataset.ref.id
    number = next(
        number
        for number in range(7)
        if index.lose_a_record(keys.files_of(dataset_id, b"%d" % number))
    )
    with measured.felt():
        check_refused(index.dlcmd("ls", f"dl://d/{number}"))
    assert index.dlcmd("recover", "d", "--yes").code == 0
    index.check_whole()
    measured.note("refused, recovered")


@pytest.mark.timeout(60 + 10 * ROUNDS)
@fault_case(
    "the LMDB file is damaged at random: bits, bytes, pages, its length",
    promise="every command answers right, or is refused and names `dlcmd recover`, which puts it "
    "right; none ends by a signal, none hangs",
    bound_s=30,
    why="LMDB checks some pages, a handler meets its signals, records have checksums, totals count",
)
def test_damaged_at_random(index: DamagedIndex, measured: Measured) -> None:
    rng = random.Random(20)
    refused = asked = 0
    source = index.folder / "source"
    for path, content in FILES.items():
        file = source / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for number in range(ROUNDS):
        index.restore()
        how = damage_at_random(index, rng)
        try:
            with measured.felt():
                right = index.check_listing(index.dlcmd("ls", "-r", "dl://d"))
            for command in (
                ["stat", "dl://d/4/name-0004"],
                ["cat", "dl://d/5/name-0005"],
                ["du", "dl://d"],
                ["fsck", "d"],
                *([["put", "-j", "1", f"{source}/", "d"]] if number % 5 == 0 else []),
            ):
                with measured.felt():
                    ended = index.dlcmd(*command)
                if ended.code not in (ExitCode.OK, ExitCode.FOUND):
                    check_refused(ended)
                refused += ended.code != 0
                asked += 1
            refused += not right
            asked += 1
            with measured.felt():
                recovered = index.dlcmd("recover", "d", "--yes")
            assert recovered.code == 0, recovered
            index.check_whole()
        except BaseException as error:
            error.add_note(f"round {number}: {how}")
            raise
    measured.note(f"{ROUNDS} damaged files: {refused} of {asked} commands refused, all recovered")
