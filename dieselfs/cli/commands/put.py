"""`dlcmd put`: pack files into a dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from dieselfs.cli.arguments.listed_names import listed_names
from dieselfs.cli.command import (
    command,
    delete_limit_option,
    dry_run_option,
    filter_options,
    jobs_option,
    publish_option,
    recursive_option,
    size_option,
)
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.commands.put_report import (
    SHOWN_FAILURES,
    ShownProgress,
    name_left_out,
    show_summary,
)
from dieselfs.cli.rendering.exit_codes import ExitCode, Failure, report
from dieselfs.cli.rendering.output import counted, picked, printable
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.dataset.path_filter import PathFilter
from dieselfs.errors import PartialFailure, UsageError

if TYPE_CHECKING:
    from chunkstore.keep_together import KeepTogether
    from chunkstore.packing_settings import Order
    from dieselfs.packing.put_request import FileList, PackProgress, PackRequest
    from dieselfs.packing.source_tree import LinkRule, SourceTree

_MIN_CHUNK_BYTES = 4 << 10
_MAX_CHUNK_BYTES = 1 << 30


@command(
    examples=[
        "dlcmd put photos/ dl://photos             # the contents of photos",
        "dlcmd put train val dl://imagenet         # as imagenet/train and imagenet/val",
        "dlcmd put --delete --max-delete 100 photos/ dl://photos",
        "dlcmd put -n --exclude '*.tmp' data/ dl://data",
        "find . -name '*.jpg' | dlcmd put --files-from - . dl://pictures",
    ]
)
@click.argument("places", nargs=-1, required=True, metavar="SRC... DST")
@click.option(
    "--order",
    type=click.Choice(["scatter", "path", "given"]),
    help="How files share chunks: scatter mixes classes (best for shuffled training); path "
    "and given keep that order, and pack with one process, whatever -j says (default: what the "
    "dataset was created with; scatter for a new one).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the scatter order.")
@size_option(
    "--chunk-size",
    help_text="Target size of a chunk, 4 KiB to 1 GiB; a larger file has a chunk of its own "
    "(default: what the dataset was created with; 4MiB for a new one).",
)
@click.option(
    "--keep-together",
    type=click.Choice(["none", "sample", "directory"]),
    help="Files that share a chunk: those of a sample (0001.jpg and 0001.json) or of a directory "
    "(default: what the dataset was created with; none for a new one).",
)
@click.option(
    "-c",
    "--checksum",
    is_flag=True,
    help="Compare content, not size and mtime, to find unchanged files. The stored content is read "
    "too, and files whose stored content is damaged are put again.",
)
@click.option(
    "--paranoid",
    is_flag=True,
    help="Read each stored object back and compare it, before it is committed. Always checked is "
    "that cloud stores have all of its bytes.",
)
@click.option(
    "--files-from",
    type=click.File("rb"),
    metavar="FILE",
    help="File with the names to put, one a line, below SRC ('-': standard input).",
)
@click.option("-0", "--null", is_flag=True, help="Names of --files-from end with NUL.")
@click.option("--no-follow", is_flag=True, help="Refuse symbolic links instead of following them.")
@click.option("--skip-links", is_flag=True, help="Leave out symbolic links, and count them.")
@click.option(
    "--links",
    "keep_links",
    is_flag=True,
    help="Put symbolic links as links. Those that may lead out of SRC are left out and named.",
)
@click.option(
    "--delete",
    is_flag=True,
    help="Delete below DST what directories named as SRC do not have, once all is put. Excluded "
    "paths stay.",
)
@delete_limit_option("Put and delete nothing if --delete would delete more than N files.")
@publish_option
@click.option(
    "--no-wait",
    is_flag=True,
    help="Fail if another put into the same paths is under way, instead of waiting for its end.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Go on beside another put into the same paths. Files of both are stored twice.",
)
@jobs_option()
@recursive_option()
@filter_options
@dry_run_option
def put(
    context: CommandContext,
    places: Sequence[str],
    order: Order | None,
    seed: int,
    chunk_size: int | None,
    keep_together: KeepTogether | None,
    checksum: bool,
    paranoid: bool,
    files_from: BinaryIO | None,
    null: bool,
    no_follow: bool,
    skip_links: bool,
    keep_links: bool,
    delete: bool,
    max_delete: int | None,
    publish: bool,
    no_wait: bool,
    anyway: bool,
    jobs: int | None,
    recursive: bool,
    filters: PathFilter,
    dry_run: bool,
) -> int:
    """Pack files and directories into a dataset, which is created if needed.

    A SRC with a trailing slash means its contents; one without is put under its own name. Files
    that the dataset has already (same size, mode and mtime) are skipped, so the same command
    finishes an interrupted put. Nothing becomes visible until all sources have been found readable.
    After that, whole files become visible as they are committed. At the end the command publishes a
    snapshot of the dataset, which replaces those of earlier puts.
    """
    from dieselfs.packing.preflight import BadSources
    from dieselfs.packing.put_request import Beside, PackProgress, PackRequest

    if len(places) < 2 and files_from is None:
        raise UsageError("SRC or DST is missing", "write dlcmd put SRC dl://DATASET")
    if chunk_size is not None and not _MIN_CHUNK_BYTES <= chunk_size <= _MAX_CHUNK_BYTES:
        raise UsageError(
            f"--chunk-size {human_size(chunk_size)}: a chunk has 4 KiB to 1 GiB", "4MiB suits most"
        )
    if no_follow + skip_links + keep_links > 1:
        raise UsageError(
            "--no-follow refuses symbolic links, --skip-links leaves them out, and --links puts "
            "them as links",
            "choose one of them",
        )
    if no_wait and anyway:
        raise UsageError(
            "--no-wait fails beside another put, and --anyway goes on", "choose one of the two"
        )
    links: LinkRule = (
        "refuse" if no_follow else "skip" if skip_links else "keep" if keep_links else "follow"
    )
    if max_delete is not None and not delete:
        raise UsageError("--max-delete limits --delete", "add --delete, or leave both out")
    if null and files_from is None:
        raise UsageError("--null is about the names of --files-from", "add --files-from FILE")
    if delete and files_from is not None:
        raise UsageError(
            "--delete goes with directories, not with --files-from", "name the directory as SRC"
        )
    address = parse_address(places[-1])
    if address.snapshot:
        raise UsageError(
            f"{address} is a snapshot, which never changes",
            f"write {DatasetAddress(address.dataset, address.path)}",
        )
    sources: list[SourceTree | FileList] = []
    if files_from is not None:
        names = listed_names(files_from, null=null)
        sources.append(_listed(places[:-1], address, names, filters, links))
    else:
        rules = {"filters": filters, "links": links}
        sources.extend(_different(_trees(context, places[:-1], address, rules)))
    request = PackRequest(
        sources,
        jobs=jobs or min(os.cpu_count() or 1, 8),
        order=order,
        seed=seed,
        target_bytes=chunk_size,
        keep_together=keep_together,
        checksum=checksum,
        paranoid=paranoid,
        delete=delete,
        max_delete=max_delete,
        snapshot_folder=context.snapshot_folder if publish else None,
        beside=Beside.ANYWAY if anyway else Beside.REFUSE if no_wait else Beside.WAIT,
    )
    try:
        if dry_run:
            return _dry_run(context, request, address)
        return _put(context, request, address, PackProgress())
    except BadSources as error:
        _name_all(error.reasons, as_json=context.output.json)
        raise


def _name_all(reasons: Sequence[str], *, as_json: bool) -> None:
    """Report each of several sources on a line of its own; the error names a single one."""
    for reason in reasons if len(reasons) > 1 else ():
        report(Failure(ExitCode.FAILURE, printable(reason), "", "BadSource"), as_json=as_json)


def _trees(
    context: CommandContext,
    sources: Sequence[str],
    address: DatasetAddress,
    rules: Mapping[str, Any],
) -> Iterator[SourceTree]:
    from dieselfs.packing.source_tree import SourceTree

    for source in sources:
        target = address.path
        name = os.path.basename(source.rstrip("/"))
        exact = (
            os.path.isfile(source) and len(sources) == 1 and address.path and not address.contents
        )
        if exact:
            exact = not _is_directory(context, address)
        if source.endswith("/") and os.path.isfile(source.rstrip("/")):
            raise UsageError(f"{source} is a file", "leave out the slash at the end")
        if not exact and not source.endswith("/") and name not in ("", ".", ".."):
            target = f"{target}/{name}" if target else name
        if source.endswith("/") and rules["links"] in ("keep", "skip"):
            source = os.path.realpath(source)  # the slash asks for what the link leads to
        disk_path = os.fsencode(source.rstrip("/") or "/")
        yield SourceTree(disk_path, os.fsencode(target), **rules)


def _different(sources: Iterable[SourceTree]) -> Iterator[SourceTree]:
    """Yield the sources; raise `UsageError` for one that is named twice."""
    taken: set[tuple[bytes, bytes]] = set()
    for source in sources:
        placed = source.target, os.path.abspath(source.disk_path)
        if placed in taken:
            shown = os.fsdecode(source.disk_path)
            raise UsageError(f"{shown} is named twice", "name each SRC once")
        taken.add(placed)
        yield source


def _is_directory(context: CommandContext, address: DatasetAddress) -> bool:
    """Return True if the destination is a directory: a file then goes into it, not over it."""
    from chunkstore.errors import Unavailable
    from metadata.errors import DatasetNotFound, PathNotFound

    try:
        with context.client(address) as client:
            return client.stat(address.path).kind == "directory"
    # The put itself finds out that a store does not answer.
    except (DatasetNotFound, PathNotFound, Unavailable):
        return False


def _listed(
    sources: Sequence[str],
    address: DatasetAddress,
    names: Iterable[bytes],
    filters: PathFilter,
    links: LinkRule,
) -> FileList:
    from dieselfs.packing.put_request import FileList

    if len(sources) > 1:
        raise UsageError("--files-from goes with one SRC at most, below which the names lie")
    paths = list(dict.fromkeys(os.path.normpath(name) for name in names if name))
    for path in paths:
        if path == b".." or path.startswith((b"/", b"../")):
            raise UsageError(
                f"{os.fsdecode(path)}: names of --files-from lie below SRC",
                "write them relative to it",
            )
    wanted = [path for path in paths if filters.takes(os.fsdecode(path))]
    base = os.fsencode(sources[0]) if sources else b"."
    return FileList(base, os.fsencode(address.path), wanted, links)


def _dry_run(context: CommandContext, request: PackRequest, address: DatasetAddress) -> int:
    from chunkstore.errors import NoStoreYet
    from dieselfs.dataset.dataset import open_dataset
    from dieselfs.packing.forecast import forecast
    from dieselfs.packing.source_tree import SourceTree
    from metadata.errors import DatasetNotFound

    with ExitStack() as stack:
        try:
            store, index = stack.enter_context(context.places())
            dataset = open_dataset(store, index, address.dataset)
        except (DatasetNotFound, NoStoreYet):
            dataset = None
        found = forecast(request, dataset)
    name_left_out(context.output, found.outside)
    context.output.result(
        {
            "dry_run": True,
            **picked(found, "files bytes chunks new changed damaged unchanged deleted"),
            "outside": len(found.outside),
            "target": str(address),
        },
        *(
            f"{os.fsdecode(source.disk_path)} -> {address.at(os.fsdecode(source.target))}"
            for source in request.sources
            if isinstance(source, SourceTree)
        ),
        f"would put {counted(found.files, 'file')}, {human_size(found.bytes)}, in about "
        f"{counted(found.chunks, 'chunk')}: {found.new:,} new, {found.changed:,} changed"
        f"{f', {found.damaged:,} damaged in the store' if found.damaged else ''}; "
        f"{counted(found.unchanged, 'file', 'are')} unchanged"
        f"{f', {found.deleted:,} would be deleted' if request.delete else ''}; nothing was put",
    )
    return ExitCode.OK


def _put(
    context: CommandContext, request: PackRequest, address: DatasetAddress, progress: PackProgress
) -> int:
    from dieselfs.assembly import open_configured_store, open_places
    from dieselfs.packing.pack import pack

    began = time.monotonic()
    with ExitStack() as shown:
        progress.on_change = ShownProgress(
            lambda: shown.enter_context(context.progress("put")), context.output.note
        )
        progress.on_note = context.output.note
        try:
            pack(
                address.dataset,
                request,
                lambda: open_configured_store(context.config, create=True),
                lambda: open_places(context.config, create=True)[1],
                progress,
            )
        except KeyboardInterrupt:
            context.output.note(
                f"interrupted: {counted(progress.files_committed, 'file', 'are')} committed; the "
                "same command again puts the rest"
            )
            raise
    show_summary(context, address, progress, time.monotonic() - began)
    if progress.unpublished:
        context.output.note(
            f"the files are put, but no snapshot was published: {printable(progress.unpublished)}; "
            f"mounts without an index show the older one: run `dlcmd snapshot create "
            f"{address.dataset}`"
        )
    if progress.packing.order == "path" and not context.output.json:
        context.output.note(
            f"packed by path: if folders are classes, see `dlcmd shuffle {address.dataset} "
            "--report` before training"
        )
    name_left_out(context.output, progress.outside)
    if progress.failed:
        for reason in progress.failed[:SHOWN_FAILURES]:
            context.output.note(f"not put: {printable(reason)}")
        deleted = ", so nothing that is gone was deleted" if request.delete else ""
        raise PartialFailure(
            f"{counted(len(progress.failed), 'file')} could not be put{deleted}",
            "correct them, then run the same command again",
        )
    if progress.outside:
        raise PartialFailure(
            f"left out {counted(len(progress.outside), 'symbolic link')} that may lead out of the "
            "source",
            "make them lead below it, or leave them out with --exclude",
        )
    return ExitCode.OK
