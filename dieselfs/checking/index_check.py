"""The comparison of the index with what commits and heads require (`metadata.rebuild`).

It goes as far as the index has come. Writers may be at work: differences found while the index
moves on are compared again. If heads or commits are lost, a difference proves nothing. Then only
damaged records count and nothing is repaired, since the index may be the last one that knows the
lost content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from dieselfs.checking.findings import Finding, FindingKind, Repair
from dieselfs.checking.head_checks import HeadChecks
from dieselfs.checking.store_check import ListedDataset
from metadata import keys
from metadata.dataset_state import indexed_dataset, read_state
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.namespace import Namespace
from metadata.rebuild import rebuild
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.index_difference import Fault, IndexDifference
from metadata.rebuild.map_sink import MapKind

_TRIES: Final = 3
_LISTED: Final = 1_000_000
"""The most differences that are listed by path; all are counted."""
_NAMED: Final = 3
_PLURALS: Final = {
    MapKind.FILES: "files",
    MapKind.DIRECTORIES: "directories",
    MapKind.CHUNKS: "chunks",
    MapKind.STATE: "the dataset's state",
}
_MEANINGS: Final = {
    Fault.MISSING: "missing",
    Fault.EXTRA: "not justified by the store",
    Fault.DIFFERENT: "different from the store",
    Fault.DAMAGED: "damaged",
}
_REPAIR: Final = "repair the index from the store with `dlcmd fsck --repair`"
_POINT_IN_TIME: Final = (
    "this index shows one point in time: rebuild it with `dlcmd recover --until`"
)
_NEW: Final = (
    "the index no longer knows whether it shows one point in time: name a new, empty index with "
    "--index"
)
_FIRST: Final = "repair the store first: the index cannot be rebuilt from a damaged store"


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """The result of the comparison."""

    findings: tuple[Finding, ...]
    generation: int
    """The generation of the index; 0 if it does not know the dataset, or its own generation."""

    def shows(self, newest: int) -> bool:
        """Return whether the index can be trusted for the present state.

        It can if it is up to date and every record is readable.
        """
        return self.generation == newest and not self.findings


def check_index(index: KeyValueStore, stored: ListedDataset, heads: HeadChecks) -> IndexCheck:
    """Compare the index with a rebuild from heads, which are read through `heads`.

    The cost is the rebuild and one scan of every map; both are repeated if writers committed in
    between.
    """
    try:
        known = indexed_dataset(index, stored.dataset.name)
    except RecordCorrupt as error:
        sound = not stored.broken
        finding = _record_finding(str(error), _REPAIR if sound else _FIRST, sound)
        known, findings = stored.dataset, [finding]
    else:
        findings = []
    try:
        held_at = Namespace(index, stored.dataset).held()
    except RecordCorrupt as error:
        held_at, findings = None, [*findings, _record_finding(str(error), _NEW, repairable=False)]
    for _ in range(_TRIES):
        before = _progress(index, stored.dataset)
        applied, totals = before
        if (not applied and not totals) or known != stored.dataset:
            what = f"the index does not know this dataset, which is at generation {stored.newest}"
            return IndexCheck((*findings, _behind(what)), 0)
        found: list[IndexDifference] = []
        sound = not stored.broken and (applied or 0) <= stored.newest
        if applied == totals or None in before:
            end = held_at if held_at is not None else min(applied or stored.newest, stored.newest)
            compared = ComparedIndex(index, listed=_LISTED)
            rebuild(stored.dataset, stored.history(end), heads.read, compared)
            sound = sound and not heads.headless
            found = [d for d in compared.differences if sound or d.fault is Fault.DAMAGED]
        if (not found and applied == totals) or _progress(index, stored.dataset) == before:
            break
    if held_at is not None:
        return IndexCheck(
            (*findings, *_grouped(found, _POINT_IN_TIME, repairable=False)), applied or 0
        )
    findings += _grouped(found, _REPAIR if sound else _FIRST, repairable=sound)
    findings += _extent_findings(applied, totals, stored)
    return IndexCheck(tuple(findings), applied or 0)


def _progress(index: KeyValueStore, dataset: DatasetRef) -> tuple[int | None, int | None]:
    """Return the generations of `applied` and `totals`, None for a damaged record."""

    def generation(field: bytes) -> int | None:
        try:
            return read_state(index, dataset.id, field).generation
        except RecordCorrupt:
            return None

    return generation(keys.APPLIED), generation(keys.TOTALS)


def _extent_findings(
    applied: int | None, totals: int | None, stored: ListedDataset
) -> list[Finding]:
    if applied is None or totals is None:  # a finding reports it as damaged
        return []
    if applied > stored.newest:
        what = (
            f"the index has applied generation {applied}, but the newest commit in the store is "
            f"{stored.newest}: commits are lost, and only the index knows their content"
        )
        advice = "restore the commits from a copy of the store; do not repair or delete this index"
        return [Finding(FindingKind.INDEX_AHEAD, "index", what, advice, damaged=True)]
    if applied != totals:
        return [
            _behind(f"the index has applied generation {totals} in part; the rest was not compared")
        ]
    if applied < stored.newest:
        return [_behind(f"the index is at generation {applied}, the store at {stored.newest}")]
    return []


def _behind(what: str) -> Finding:
    advice = f"the next command that opens the dataset updates the index; or {_REPAIR}"
    return Finding(
        FindingKind.INDEX_BEHIND, "index", what, advice, damaged=False, repair=Repair.REPAIR_INDEX
    )


def _grouped(
    differences: Sequence[IndexDifference], advice: str, *, repairable: bool
) -> list[Finding]:
    """Return a finding for each kind of fault in each kind of record."""
    groups: defaultdict[tuple[MapKind, Fault], list[bytes]] = defaultdict(list)
    for difference in differences:
        groups[difference.kind, difference.fault].append(difference.path)
    found = []
    for kind, fault in ((kind, fault) for kind in MapKind for fault in Fault):
        if paths := sorted(set(groups[kind, fault])):
            what = f"records of {_PLURALS[kind]} are {_MEANINGS[fault]}: {_some(paths)}"
            files = tuple(paths) if kind is MapKind.FILES else ()
            found.append(_record_finding(what, advice, repairable, files))
    return found


def _some(paths: Sequence[bytes]) -> str:
    first = ", ".join(repr(path.decode(errors="backslashreplace")) for path in paths[:_NAMED])
    return f"{first} and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else first


def _record_finding(
    what: str, advice: str, repairable: bool, files: tuple[bytes, ...] = ()
) -> Finding:
    return Finding(
        FindingKind.INDEX_RECORD,
        "index",
        what,
        advice,
        damaged=not repairable,
        repair=Repair.REPAIR_INDEX if repairable else None,
        files=files,
    )


def drop_name(index: KeyValueStore, dataset: DatasetRef) -> None:
    """Remove the record of a dataset's name if it is damaged: opening the dataset puts it again."""
    try:
        indexed_dataset(index, dataset.name)
    except RecordCorrupt:
        index.remove([MapFields(keys.DATASETS, [dataset.name.encode()])])
