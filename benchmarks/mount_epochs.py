"""Epochs through a mount: warm ones, first ones from the daemon's memory, first ones from a cold store; and how they scale.

The order of the contenders' states is the point here, so each function says what is in which cache when its clock starts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.harness import Rounds, report, run_rounds, spread
from benchmarks.mount_contenders import Dataset, Reader, read_requests, stored_ahead

SMALL_BYTES = 4096
LARGE_BYTES = 110 << 10
_SPARE_MIB = 64
_STEADY_S = 1.0
_COLD_GROUPS = 10
"""Groups in the cold epoch: memory holds two of them, a fifth of the dataset."""


def warm(files: int, size_bytes: int, rounds: int) -> None:
    """Everything is in the page cache. Random order, 1 and 2 threads."""
    with ExitStack() as stack:
        data = stack.enter_context(contenders.dataset(files, size_bytes, image=True))
        reader = stack.enter_context(contenders.reader())
        memory = _memory_for_all(data)
        roots = {
            "ext4": data.source,
            "ours": stack.enter_context(contenders.ours(data, memory_mib=memory)),
            "plain": stack.enter_context(contenders.ours(data, memory_mib=memory, plain=True)),
            "squashfuse": stack.enter_context(contenders.squashfuse(data)),
            "kernel image": stack.enter_context(contenders.kernel_image(data)),
        }
        order = contenders.in_random_order(data)
        reader.verify(list(roots.values()), order)
        for threads in (1, 2):
            before = read_requests(contenders.statistics(roots["ours"]))
            times = run_rounds(
                {
                    name: lambda root=root, threads=threads: _steady(reader, root, order, threads)
                    for name, root in roots.items()
                },
                rounds,
            )
            after = read_requests(contenders.statistics(roots["ours"]))
            report(
                f"warm epoch, random order, {data}, {_threads(threads)}",
                ratio=spread(times.ratios("ours", "ext4")),
                over_squashfuse=spread(times.ratios("ours", "squashfuse")),
                over_plain=spread(times.ratios("ours", "plain")),
                kernel_image_over_ext4=spread(times.ratios("kernel image", "ext4")),
                squashfuse_over_ext4=spread(times.ratios("squashfuse", "ext4")),
                files_per_s=_rates(files, times),
                # More than the few for stats.json: something took pages away, and the epochs were not warm.
                read_requests=after - before,
            )


def first(files: int, size_bytes: int, rounds: int, group: int | None = None) -> None:
    """A fresh mount that was listed; all chunks in the daemon's memory, no file in the page cache. Chunk-wise order, 1 thread.

    A group is half of the dataset unless it is given, so that the memory holds two. ext4 has been listed too and has no data in the page cache.
    """
    with contenders.dataset(files, size_bytes) as data, contenders.reader() as reader:
        group = group or max(-(-data.chunks // 2), 1)
        order = _order(data, group)
        seen: dict[str, _Requests] = {"ours": _Requests(files), "plain": _Requests(files)}

        def mounted(name: str) -> float:
            memory, plain = _memory_for_all(data), name == "plain"
            with contenders.ours(data, plain=plain, memory_mib=memory, preload=True) as root:
                contenders.list_all(root)
                filled = contenders.fill_node_memory(data, root)
                return seen[name].around(root, lambda: reader.seconds(root, order), filled)

        with contenders.ours(data, memory_mib=_memory_for_all(data)) as root:
            reader.verify([data.source, root], order)
        times = run_rounds(
            {
                "ours": lambda: mounted("ours"),
                "plain": lambda: mounted("plain"),
                "ext4 cold": lambda: _cold_ext4(data, reader, order),
            },
            rounds,
        )
        _report_first(
            f"first epoch, chunks in node memory, chunk-wise order (group={group} of {data.chunks} chunks), {data}, 1 thread",
            times,
            files,
            seen,
        )


def cold(files: int, size_bytes: int, rounds: int, group: int | None = None) -> None:
    """A fresh mount that was listed; nothing in the daemon's memory nor in the page cache, the store's chunks neither.

    Memory for two groups and a chunk. ext4 has been listed too and has no data in the page cache.
    """
    with contenders.dataset(files, size_bytes) as data, contenders.reader() as reader:
        group = group or max(data.chunks // _COLD_GROUPS, 1)
        memory = ((2 * group + 1) * data.chunk_bytes >> 20) + 1
        order = _order(data, group)
        seen: dict[str, _Requests] = {"ours": _Requests(files), "plain": _Requests(files)}

        def mounted(name: str) -> float:
            contenders.drop_all_caches(data.folder)
            with contenders.ours(data, plain=name == "plain", memory_mib=memory) as root:
                contenders.list_all(root)
                contenders.drop_page_cache(data.folder)
                return seen[name].around(root, lambda: reader.seconds(root, order))

        with contenders.ours(data, memory_mib=memory) as root:
            reader.verify([data.source, root], order)
        times = run_rounds(
            {
                "ours": lambda: mounted("ours"),
                "plain": lambda: mounted("plain"),
                "ext4 cold": lambda: _cold_ext4(data, reader, order),
            },
            rounds,
        )
        _report_first(
            f"first epoch, cold local store, chunk-wise order (group={group} of {data.chunks} chunks, {memory} MiB), {data}, 1 thread",
            times,
            files,
            seen,
        )


def scale(sizes: list[int], size_bytes: int, rounds: int) -> None:
    """Warm (random order) and first epochs (chunks in node memory) by the number of files; 1 thread."""
    first_rates: dict[int, float] = {}
    for files in sizes:
        folders = min(max(files // 100, 1), 1000)
        with (
            contenders.dataset(files, size_bytes, folders) as data,
            contenders.reader() as reader,
        ):
            _scale_warm(data, reader, rounds)
            order = _order(data, max(-(-data.chunks // 2), 1))
            seen = _Requests(files)

            def mounted(
                data: Dataset = data,
                reader: Reader = reader,
                order: Path = order,
                seen: _Requests = seen,
            ) -> float:
                with contenders.ours(data, memory_mib=_memory_for_all(data), preload=True) as root:
                    contenders.list_all(root)
                    filled = contenders.fill_node_memory(data, root)
                    return seen.around(root, lambda: reader.seconds(root, order), filled)

            contenders.drop_all_caches(data.folder)
            times = run_rounds({"ours": mounted}, rounds, warm_up=0)
            first_rates[files] = files / times.median("ours")
            report(
                f"scale: first epoch, chunks in node memory, {data}",
                ratio_to_smallest=first_rates[files] / first_rates[sizes[0]],
                files_per_s=_rates(files, times),
                **seen.figures(),
            )


def _scale_warm(data: Dataset, reader: Reader, rounds: int) -> None:
    with contenders.ours(data) as root:
        contenders.list_all(root)
        # In chunk-wise order first: the dataset may be larger than the daemon's memory.
        reader.seconds(root, contenders.in_chunkwise_order(data, root, 8))
        order = contenders.in_random_order(data)
        times = run_rounds(
            {
                "ext4": lambda: _steady(reader, data.source, order, 1),
                "ours": lambda: _steady(reader, root, order, 1),
            },
            rounds,
        )
    report(
        f"scale: warm epoch, random order, {data}",
        ratio=spread(times.ratios("ours", "ext4")),
        files_per_s=_rates(data.files, times),
    )


class _Requests:
    """What the kernel asked of a mount during the timed epochs, and what was stored ahead of it."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._requests_per_file: list[float] = []
        self._stored: list[float] = []
        self._never_read: list[float] = []
        self._filled: list[float] = []

    def around(self, root: Path, epoch: Callable[[], float], filled: float | None = None) -> float:
        before = contenders.statistics(root)
        seconds = epoch()
        contenders.settle(root)
        after = contenders.statistics(root)
        # Reading stats.json is a request as well: the one between the two.
        requests = max(read_requests(after) - read_requests(before) - 2, 0)
        stored = stored_ahead(after) - stored_ahead(before)
        without_request = max(self._files - requests, 0)
        self._requests_per_file.append(requests / self._files)
        self._stored.append(stored / self._files)
        self._never_read.append(max(stored - without_request, 0) / max(stored, 1))
        if filled is not None:
            self._filled.append(filled)
        return seconds

    def figures(self) -> dict[str, object]:
        return {
            "read_requests_per_file": spread(self._requests_per_file),
            "stored_ahead_of_all_files": spread(self._stored),
            "stored_ahead_never_read": spread(self._never_read),
            **({"chunks_in_memory_at_start": min(self._filled)} if self._filled else {}),
        }


def _report_first(question: str, times: Rounds, files: int, seen: dict[str, _Requests]) -> None:
    report(
        question,
        ratio=spread(times.ratios("ours", "plain")),
        over_ext4_cold=spread(times.ratios("ours", "ext4 cold")),
        plain_over_ext4_cold=spread(times.ratios("plain", "ext4 cold")),
        files_per_s=_rates(files, times),
        **seen["ours"].figures(),
        plain_read_requests_per_file=seen["plain"].figures()["read_requests_per_file"],
    )


def _cold_ext4(data: Dataset, reader: Reader, order: Path) -> float:
    contenders.drop_all_caches(data.folder)
    contenders.list_all(data.source)
    contenders.drop_page_cache(data.folder)
    return reader.seconds(data.source, order)


def _steady(reader: Reader, root: Path, order: Path, threads: int) -> float:
    """Seconds of a pass, in the mean over a second or more: a short one says more about the machine's other work."""
    passes = [reader.seconds(root, order, threads)]
    while sum(passes) < _STEADY_S:
        passes.append(reader.seconds(root, order, threads))
    return statistics.mean(passes)


def _order(data: Dataset, group: int) -> Path:
    with contenders.ours(data) as root:
        return contenders.in_chunkwise_order(data, root, group)


def _memory_for_all(data: Dataset) -> int:
    return (data.payload_bytes * 11 // 10 >> 20) + _SPARE_MIB


def _rates(files: int, times: Rounds) -> dict[str, float]:
    return {name: files / times.median(name) for name in times.seconds}


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
