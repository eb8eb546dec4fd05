"""The index held against what commits and heads say it should be (`metadata.rebuild`), as far as it has come.

Writers may be at work: what differs while the index moves on is compared again. Where heads or commits are lost, a difference proves
nothing; then only damaged records count, and nothing is mended, since the index may be the last that knows what was there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from dieselfs.checking.findings import Finding, Kind, Repair
from dieselfs.checking.head_checks import HeadChecks
from dieselfs.checking.store_check import StoredDataset
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
"""Differences that are listed by path; all are counted."""
_NAMED: Final = 3
_PLURALS: Final = {
    MapKind.FILES: "files",
    MapKind.DIRECTORIES: "directories",
    MapKind.CHUNKS: "chunks",
    MapKind.STATE: "the dataset's state",
}
_MEANINGS: Final = {
    Fault.MISSING: "missing",
    Fault.EXTRA: "of which nothing in the store says anything",
    Fault.DIFFERENT: "not what the store says",
    Fault.DAMAGED: "damaged",
}
_MEND: Final = "`dlcmd fsck --repair` mends the index from the store"
_FIRST: Final = "put the store right first: the index can't be rebuilt from it as it is"


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What the comparison came to."""

    findings: tuple[Finding, ...]
    generation: int
    """How far the index is; 0: it does not know the dataset, or not how far."""
    held: bool = False
    """The index is of one point in time, and stays there."""

    def shows(self, newest: int) -> bool:
        """Whether the index can be asked for the present state: it has come so far, and every record can be read."""
        return (self.generation == newest or self.held) and not self.findings


def check_index(index: KeyValueStore, stored: StoredDataset, heads: HeadChecks) -> IndexCheck:
    """One rebuild from heads, read through `heads`, and one scan of every map; both again if writers came between."""
    try:
        known = indexed_dataset(index, stored.dataset.name)
    except RecordCorrupt as error:
        finding = _index_finding("the record of the dataset's name is damaged", str(error), stored)
        known, findings = stored.dataset, [finding]
    else:
        findings = []
    held = _held(index, stored.dataset)
    for _ in range(_TRIES):
        before = _progress(index, stored.dataset)
        applied, totals = before
        if (not applied and not totals) or known != stored.dataset:
            what = f"the index does not know this dataset, which is at generation {stored.newest}"
            return IndexCheck((*findings, _behind(what)), 0)
        found: list[IndexDifference] = []
        sound = not stored.broken and (applied or 0) <= stored.newest
        if applied == totals or None in before:
            end = held if held is not None else min(applied or stored.newest, stored.newest)
            compared = ComparedIndex(index, listed=_LISTED)
            rebuild(stored.dataset, stored.history(end), heads.read, compared)
            sound = sound and not heads.headless
            found = [d for d in compared.differences if sound or d.fault is Fault.DAMAGED]
        if (not found and applied == totals) or _progress(index, stored.dataset) == before:
            break
    findings += _grouped(found, sound)
    if held is None:
        findings += _extent_findings(applied, totals, stored)
    return IndexCheck(tuple(findings), applied or 0, held is not None)


def _progress(index: KeyValueStore, dataset: DatasetRef) -> tuple[int | None, int | None]:
    """The generations of `applied` and `totals`; None: the record is damaged."""

    def generation(field: bytes) -> int | None:
        try:
            return read_state(index, dataset.id, field).generation
        except RecordCorrupt:
            return None

    return generation(keys.APPLIED), generation(keys.TOTALS)


def _held(index: KeyValueStore, dataset: DatasetRef) -> int | None:
    try:
        return Namespace(index, dataset).held()
    except RecordCorrupt:
        return None


def _extent_findings(
    applied: int | None, totals: int | None, stored: StoredDataset
) -> list[Finding]:
    if applied is None or totals is None:  # has been found damaged
        return []
    if applied > stored.newest:
        what = (
            f"the index has applied generation {applied}, but the store ends at {stored.newest}: "
            "commits are lost, and what they said is known to the index alone"
        )
        advice = "restore the commits from a copy of the store; do not mend or drop this index"
        return [Finding(Kind.INDEX_AHEAD, "index", what, advice, damaged=True)]
    if applied != totals:
        return [_behind(f"generation {totals} is half applied; the rest was not compared")]
    if applied < stored.newest:
        return [_behind(f"the index is at generation {applied}, the store at {stored.newest}")]
    return []


def _behind(what: str) -> Finding:
    advice = f"the next command about the dataset brings it up to the store, or {_MEND}"
    return Finding(
        Kind.INDEX_BEHIND, "index", what, advice, damaged=False, repair=Repair.MEND_INDEX
    )


def _grouped(differences: Sequence[IndexDifference], sound: bool) -> list[Finding]:
    """A finding for each kind of fault in each kind of record."""
    groups: defaultdict[tuple[MapKind, Fault], list[bytes]] = defaultdict(list)
    for difference in differences:
        groups[difference.kind, difference.fault].append(difference.path)
    return [
        _record_finding(kind, fault, sorted(set(groups[kind, fault])), sound)
        for kind in MapKind
        for fault in Fault
        if (kind, fault) in groups
    ]


def _record_finding(kind: MapKind, fault: Fault, paths: list[bytes], sound: bool) -> Finding:
    first = ", ".join(repr(path.decode(errors="backslashreplace")) for path in paths[:_NAMED])
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    what = f"records of {_PLURALS[kind]} are {_MEANINGS[fault]}: {first}{more}"
    files = tuple(paths) if kind is MapKind.FILES else ()
    return Finding(
        Kind.INDEX_RECORD,
        "index",
        what,
        _MEND if sound else _FIRST,
        damaged=not sound,
        repair=Repair.MEND_INDEX if sound else None,
        files=files,
    )


def _index_finding(what: str, detail: str, stored: StoredDataset) -> Finding:
    sound = not stored.broken
    return Finding(
        Kind.INDEX_RECORD,
        "index",
        f"{what}: {detail}",
        _MEND if sound else _FIRST,
        damaged=not sound,
        repair=Repair.MEND_INDEX if sound else None,
    )


def drop_name(index: KeyValueStore, dataset: DatasetRef) -> None:
    """Remove the record of a dataset's name if it is damaged: opening the dataset puts it again."""
    try:
        indexed_dataset(index, dataset.name)
    except RecordCorrupt:
        index.remove([MapFields(keys.DATASETS, [dataset.name.encode()])])
