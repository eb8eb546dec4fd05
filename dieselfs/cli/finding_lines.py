"""The findings of `fsck` and `scrub`, each on a line with advice, and the files that it affects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted, picked

if TYPE_CHECKING:
    from dieselfs.checking.findings import Finding, Verdict
    from dieselfs.cli.command_context import CommandContext

_FILES_SHOWN: Final = 10
_SNAPSHOTS_SHOWN: Final = 5


VERDICTS: Final = {
    ExitCode.OK: "clean",
    ExitCode.REPAIRED: "repaired",
    ExitCode.FOUND: "repairable",
    ExitCode.INTEGRITY: "damaged",
}
"""The verdict that each exit code stands for, from the best to the worst."""


def exit_code(verdict: Verdict) -> ExitCode:
    """Return the exit code of a verdict: each of the four has its own."""
    return next(code for code, name in VERDICTS.items() if name == verdict.value)


def files_hit(findings: Sequence[Finding]) -> int:
    """Return how many files of the present state the findings hit."""
    return len({path for finding in findings for path in finding.files})


def print_findings(
    context: CommandContext, findings: Sequence[Finding], *, all_files: bool
) -> None:
    """Print every finding with its files.

    JSON records have all files. The text for people has ten per finding, or all with `all_files`.
    """
    output = context.output
    for finding in findings:
        output.result(_record(finding), *_lines(output, finding, all_files))


def _lines(output: Output, finding: Finding, all_files: bool) -> Iterator[str]:
    hit = f" [{counted(len(finding.files), 'file')} hit]" if finding.files else ""
    line = f"{finding.kind.value} {finding.object}: {finding.what}{hit}: {finding.advice}"
    yield output.name(line)
    shown = finding.files if all_files else finding.files[:_FILES_SHOWN]
    for path in shown:
        yield f"  {output.name(_text(path))}"
    if len(shown) < len(finding.files):
        yield f"  and {len(finding.files) - len(shown):,} more (--files lists all)"
    kept = finding.snapshots if all_files else finding.snapshots[:_SNAPSHOTS_SHOWN]
    for snapshot in kept:
        yield f"  {counted(snapshot.files, 'file')} of snapshot {snapshot.snapshot_id}"
    if len(kept) < len(finding.snapshots):
        yield f"  and files of {counted(len(finding.snapshots) - len(kept), 'more snapshot')}"


def _record(finding: Finding) -> dict[str, Any]:
    return {
        "finding": finding.kind.value,
        **picked(finding, "object what advice damaged"),
        "repair": finding.repair.value if finding.repair else None,
        "files": [_text(path) for path in finding.files],
        "snapshots": [{"id": hit.snapshot_id, "files": hit.files} for hit in finding.snapshots],
    }


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
