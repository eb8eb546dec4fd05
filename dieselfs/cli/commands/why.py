"""`dlcmd why`: where the bytes of a file of a mount lie now, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import for_each
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.values.durations import human_duration
from dieselfs.errors import MountError, UsageError

if TYPE_CHECKING:
    from metadata.snapshot import Snapshot

_TIMEOUT_S: Final = 10.0


@command(
    examples=[
        "dlcmd why /mnt/imagenet/train/n01440764/n01440764_10026.JPEG",
        "dlcmd why --json /mnt/imagenet/train/n01440764/n01440764_10026.JPEG | jq .ssd",
    ]
)
@click.argument("paths", nargs=-1, required=True)
def why(context: CommandContext, paths: tuple[str, ...]) -> int:
    """Show where the bytes of files in a mount lie now, and why.

    It names the parts that have the file's chunk: page cache, node memory, SSD and cache node. A
    cache policy also says what it expects of the chunk, and why it was admitted or refused.
    """
    return for_each(paths, lambda path: _show(context.output, path), as_json=context.output.json)


def _show(output: Output, path: str) -> None:
    from dieselfs.fuse.page_residency import resident_bytes
    from dieselfs.prefetch.announcement import mount_above

    root = mount_above(path)
    if root is None:
        raise UsageError(
            f"{path} is not in a DieselFS mount",
            "`dlcmd mounts` lists the mounts; `dlcmd ls --cached` shows a dataset without one",
        )
    real = Path(os.path.realpath(path))
    document = _document(root, _inode(root, real))
    _print(output, path, {"page_cache_bytes": resident_bytes(real), **document})


def _inode(root: Path, path: Path) -> int:
    from dieselfs.fuse.mounts.control_names import CONTROL_FOLDER, SNAPSHOT_NAME
    from metadata.snapshot import Snapshot

    with Snapshot.open(root / CONTROL_FOLDER / SNAPSHOT_NAME.decode()) as snapshot:
        return _file_inode(snapshot, root, path)


def _file_inode(snapshot: Snapshot, root: Path, path: Path) -> int:
    below = path.relative_to(root)
    inode = snapshot.resolve(os.fsencode(below) if below.parts else b"")
    if inode is None:
        raise MountError(f"{path} is not in the snapshot {snapshot.id} that is mounted")
    if snapshot.is_directory(inode):
        raise UsageError(f"{path} is a directory", "name a file in it")
    return inode


def _document(root: Path, inode: int) -> Mapping[str, Any]:
    from dieselfs.fuse.mounts.control_names import WHY_NAME
    from dieselfs.fuse.mounts.mount_table import read_document

    _, document = read_document(root, b"%b/%d" % (WHY_NAME, inode), _TIMEOUT_S)
    if document is None:
        raise MountError(
            f"the mount {root} does not say where its files lie",
            "a local mount has them on the SSD; a mount of a former release does after "
            f"`dlcmd mount --upgrade DATASET {quote(os.fspath(root))}`",
        )
    return document


def _print(output: Output, path: str, found: Mapping[str, Any]) -> None:
    if output.json:
        output.record({"path": path, **found})
        return
    output.line(output.name(path))
    for label, text in _lines(output, found):
        output.line(f"  {label:<12}  {text}")


def _lines(output: Output, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    size = found["file_bytes"]
    lines = [
        ("file", output.size(size)),
        ("chunk", f"{found['chunk']}, {output.size(found['chunk_bytes'])}"),
        ("page cache", _part(output, found["page_cache_bytes"], size)),
        ("node memory", _part(output, found["node_memory_bytes"], size)),
    ]
    ssd = found["ssd"]
    if ssd is not None:
        lines.append(("SSD", _ssd(output, ssd, size)))
        if ssd["policy"] is not None:
            lines += _policy(output, ssd["policy"])
    if found.get("not_eligible"):  # an older mount does not say it
        lines.append(("not eligible", f"{found['not_eligible']} (cache_datasets)"))
    if found["cache_node"] is not None:
        lines.append(("cache node", f"{found['cache_node']} owns the chunk"))
    return lines


def _policy(output: Output, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    priority = found["priority"]
    shown = "" if priority is None else f", priority {priority:.2g}"
    yield "policy", found["policy"]
    yield "bucket", output.name(found["bucket"]) + shown
    if found["is_predicted"]:
        seconds = found["next_use_s"]
        yield "next use", "no job reads it" if seconds is None else f"in {human_duration(seconds)}"
    if found["admitted"] is not None:
        yield "last miss", f"{human_duration(found['decided_ago_s'])} ago, {found['reason']}"


def _ssd(output: Output, ssd: Mapping[str, Any], size: int) -> str:
    if not ssd["in_service"]:
        return f"{ssd['folder']} is out of service"
    regions = ", ".join(map(str, ssd["regions"]))
    where = f", in region {regions} of {ssd['folder']}" if regions else f" of {ssd['folder']}"
    return _part(output, min(ssd["cached_bytes"], size), size) + where


def _part(output: Output, part: int | None, size: int) -> str:
    if part is None:
        return "not known"
    if part >= size:
        return "all"
    return f"{output.size(part)} of {output.size(size)}" if part else "none"
