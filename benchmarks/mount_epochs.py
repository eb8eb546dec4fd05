"""Epochs through a mount: warm ones, first ones from the daemon's memory, first ones from a cold
store; and how they scale.

The order of the contenders' states is the point here, so each function says what is in which cache
when its clock starts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.harness import Rounds, report, run_rounds, spread
from benchmarks.mount_bars import REPORTED, Bar, Result, judge
from benchmarks.mount_contenders import EROFS, Dataset, MountKind, Reader, read_requests

SMALL_BYTES = 4096
LARGE_BYTES = 110 << 10
WARM_BARS = {SMALL_BYTES: Bar(least=1.0), LARGE_BYTES: Bar(least=0.95)}
"""Times ext4's rate."""
FIRST_BARS = {SMALL_BYTES: Bar(least=1.2), LARGE_BYTES: Bar(least=1.0)}
"""Times the rate of the version before."""
FULL_RANDOM_BARS = {SMALL_BYTES: Bar(least=8.0)}
"""Times ext4's cold rate."""
COLD_BARS = {SMALL_BYTES: Bar(least=20.0), LARGE_BYTES: Bar(least=2.0)}
"""Times ext4's cold rate in random order."""
EXT4, EXT4_COLD = "ext4", "ext4 cold"
_SPARE_MIB = 64
_STEADY_S = 1.0
_COLD_GROUPS = 10
"""Groups in the cold epoch: memory holds two of them, a fifth of the dataset."""


@contextmanager
def warm_roots(
    data: Dataset, kinds: Sequence[MountKind], squashfs: bool = False
) -> Iterator[dict[str, Path]]:
    """All contenders mounted side by side, with memory for all in every daemon."""
    with ExitStack() as stack:
        roots = {EXT4: data.source}
        for kind in kinds:
            mount = contenders.mounted(data, kind, memory_mib=memory_for_all(data))
            roots[kind.name] = stack.enter_context(mount)
        if squashfs:
            roots["squashfuse"] = stack.enter_context(contenders.squashfuse(data))
            roots["kernel squashfs"] = stack.enter_context(contenders.kernel_image(data))
        yield roots


def refill(data: Dataset, reader: Reader, roots: Mapping[str, Path], order: Path) -> None:
    """All pages are dropped and read again: where they lie in memory moves rates."""
    contenders.drop_page_cache(data.folder)
    for name, root in roots.items():
        reader.seconds(root, order)
        if _is_mount(name):
            contenders.settle(root)
            reader.seconds(root, order)  # what was filled is not read yet


def warm(
    data: Dataset,
    reader: Reader,
    rounds: int,
    kinds: Sequence[MountKind],
    squashfs: bool = False,
) -> list[Result]:
    """Everything is in the page cache. Random order, 1 and 2 threads."""
    with warm_roots(data, kinds, squashfs) as roots:
        order = contenders.in_random_order(data)
        reader.verify(list(roots.values()), order)

        def prepare(number: int) -> None:
            turns = list(roots.items())
            refill(data, reader, dict(turns[::-1] if number % 2 else turns), order)

        def steady(root: Path, threads: int) -> Callable[[], float]:
            return lambda: _steady(reader, root, order, threads)

        contenders_ = {
            _timed(name, threads): steady(root, threads)
            for threads in (1, 2)
            for name, root in roots.items()
        }
        before = page_reads(roots)
        times = run_rounds(contenders_, rounds, alternates=True, prepare=prepare)
        after = page_reads(roots)
    found = []
    for threads in (1, 2):
        rates = {name: data.files / times.median(_timed(name, threads)) for name in roots}
        for name in roots:
            if name == EXT4:
                continue
            found.append(
                judge(
                    f"warm epoch, random order, {data}, {_threads(threads)}: {name} x ext4",
                    times.ratios(_timed(name, threads), _timed(EXT4, threads)),
                    WARM_BARS.get(data.size_bytes, REPORTED) if name == EROFS.name else REPORTED,
                    files_per_s=rates,
                    # Of the whole section; beyond one or two a file and round something took pages
                    # away.
                    read_requests=after.get(name, 0) - before.get(name, 0),
                )
            )
    return found


def first(
    data: Dataset,
    reader: Reader,
    rounds: int,
    kinds: Sequence[MountKind],
    group: int | None = None,
    known: bool = True,
) -> list[Result]:
    """A fresh mount that was listed; all chunks in the daemon's memory, no file in the page cache.
    Chunk-wise order, 1 thread.

    `known`: the mount's list of this order is read at the same moment as the epoch begins, which
    tells it the order. Else it sees only READs. A group is half of the dataset unless it is given.
    ext4 has been listed too and has no data in the page cache.
    """
    group = group or max(-(-data.chunks // 2), 1)
    order = _order(data, group)
    memory = memory_for_all(data) * (
        3 if known else 1
    )  # page cache that is filled for a plan counts
    seen = {kind.name: _Requests(data.files) for kind in kinds}

    def epoch(kind: MountKind) -> float:
        with contenders.mounted(data, kind, memory_mib=memory, preload=True) as root:
            contenders.list_all(root)
            filled = contenders.fill_node_memory(data, root)

            def read() -> float:
                if known:
                    contenders.in_chunkwise_order(data, root, group)
                return reader.seconds(root, order)

            return seen[kind.name].around(root, read, filled)

    times = run_rounds(
        {
            **{kind.name: lambda kind=kind: epoch(kind) for kind in kinds},
            EXT4_COLD: lambda: cold_ext4(data, reader, order),
        },
        rounds,
        alternates=True,
    )
    how = "known order" if known else "no order known"
    question = f"first epoch from node memory, chunk-wise, {how}, {data}"
    return _judge_first(question, times, data, seen, kinds, group=group)


def first_in_random_order(
    data: Dataset, reader: Reader, rounds: int, kinds: Sequence[MountKind]
) -> list[Result]:
    """As `first`, but fully random, and the mount is told nothing."""
    order = contenders.in_random_order(data)
    seen = {kind.name: _Requests(data.files) for kind in kinds}

    def epoch(kind: MountKind) -> float:
        memory = memory_for_all(data)
        with contenders.mounted(data, kind, memory_mib=memory, preload=True) as root:
            contenders.list_all(root)
            filled = contenders.fill_node_memory(data, root)
            return seen[kind.name].around(root, lambda: reader.seconds(root, order), filled)

    times = run_rounds(
        {
            **{kind.name: lambda kind=kind: epoch(kind) for kind in kinds},
            EXT4_COLD: lambda: cold_ext4(data, reader, order),
        },
        rounds,
        alternates=True,
    )
    return _judge_cold(
        f"first epoch from node memory, full random order, no plan, {data}",
        times,
        data,
        seen,
        FULL_RANDOM_BARS.get(data.size_bytes, REPORTED),
    )


def cold(
    data: Dataset,
    reader: Reader,
    rounds: int,
    kinds: Sequence[MountKind],
    group: int | None = None,
) -> list[Result]:
    """A fresh mount that was listed; nothing in the daemon's memory nor in the page cache, the
    store's chunks neither.

    Memory for two groups and two chunks. It is told the order by the mount's list, which is read
    when the clock starts: laying out the plan counts. ext4 has been listed too, has no data in the
    page cache, and is read in random order.
    """
    group = group or max(data.chunks // _COLD_GROUPS, 1)
    memory = ((2 * group + 2) * data.chunk_bytes >> 20) + 1
    order, random_order = _order(data, group), contenders.in_random_order(data)
    seen = {kind.name: _Requests(data.files) for kind in kinds}

    def epoch(kind: MountKind) -> float:
        contenders.drop_all_caches(data.folder)
        with contenders.mounted(data, kind, memory_mib=memory) as root:
            contenders.list_all(root)
            contenders.drop_page_cache(data.folder)

            def read() -> float:
                contenders.in_chunkwise_order(data, root, group)
                return reader.seconds(root, order)

            return seen[kind.name].around(root, read)

    times = run_rounds(
        {
            **{kind.name: lambda kind=kind: epoch(kind) for kind in kinds},
            EXT4_COLD: lambda: cold_ext4(data, reader, random_order),
        },
        rounds,
        alternates=True,
    )
    return _judge_cold(
        f"first epoch, cold local store, known order (group={group} of {data.chunks} chunks, {memory} MiB), {data}",
        times,
        data,
        seen,
        COLD_BARS.get(data.size_bytes, REPORTED),
    )


def scale(sizes: list[int], size_bytes: int, rounds: int) -> None:
    """Warm (random order) and first epochs (chunks in node memory) by the number of files; 1
    thread."""
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

            def epoch(
                data: Dataset = data,
                reader: Reader = reader,
                order: Path = order,
                seen: _Requests = seen,
            ) -> float:
                memory = memory_for_all(data)
                with contenders.mounted(data, memory_mib=memory, preload=True) as root:
                    contenders.list_all(root)
                    filled = contenders.fill_node_memory(data, root)
                    return seen.around(root, lambda: reader.seconds(root, order), filled)

            contenders.drop_all_caches(data.folder)
            times = run_rounds({EROFS.name: epoch}, rounds, warm_up=0)
            first_rates[files] = files / times.median(EROFS.name)
            report(
                f"scale: first epoch, chunks in node memory, {data}",
                ratio_to_smallest=first_rates[files] / first_rates[sizes[0]],
                files_per_s=_rates(files, times),
                **seen.figures(),
            )


def _scale_warm(data: Dataset, reader: Reader, rounds: int) -> None:
    with contenders.mounted(data) as root:
        contenders.list_all(root)
        # In chunk-wise order first: the dataset may be larger than the daemon's memory.
        reader.seconds(root, contenders.in_chunkwise_order(data, root, 8))
        order = contenders.in_random_order(data)
        times = run_rounds(
            {
                EXT4: lambda: _steady(reader, data.source, order, 1),
                EROFS.name: lambda: _steady(reader, root, order, 1),
            },
            rounds,
        )
    report(
        f"scale: warm epoch, random order, {data}",
        ratio=spread(times.ratios(EROFS.name, EXT4)),
        files_per_s=_rates(data.files, times),
    )


class _Requests:
    """What the kernel asked of a mount during the timed epochs, and what was filled ahead of it."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._requests_per_file: list[float] = []
        self._filled_mib: list[float] = []
        self._in_memory: list[float] = []

    def around(
        self, root: Path, epoch: Callable[[], float], in_memory: float | None = None
    ) -> float:
        before = contenders.statistics(root)
        seconds = epoch()
        contenders.settle(root)
        after = contenders.statistics(root)
        self._requests_per_file.append((read_requests(after) - read_requests(before)) / self._files)
        filled = contenders.filled_bytes(after) - contenders.filled_bytes(before)
        self._filled_mib.append(filled / (1 << 20))
        if in_memory is not None:
            self._in_memory.append(in_memory)
        return seconds

    def figures(self) -> dict[str, object]:
        return {
            "read_requests_per_file": spread(self._requests_per_file),
            "filled_mib": spread(self._filled_mib),
            **({"in_memory_at_start": min(self._in_memory)} if self._in_memory else {}),
        }


def _judge_first(
    question: str,
    times: Rounds,
    data: Dataset,
    seen: Mapping[str, _Requests],
    kinds: Sequence[MountKind],
    **figures: object,
) -> list[Result]:
    """Against the version before if there is one, else against ext4 cold."""
    baseline = next((kind.name for kind in kinds if kind.front is None), EXT4_COLD)
    found = []
    for name in seen:
        if name == baseline:
            continue
        is_judged = name == EROFS.name and baseline != EXT4_COLD
        found.append(
            judge(
                f"{question}: {name} x {baseline}",
                times.ratios(name, baseline),
                FIRST_BARS.get(data.size_bytes, REPORTED) if is_judged else REPORTED,
                over_ext4_cold=spread(times.ratios(name, EXT4_COLD)),
                files_per_s=_rates(data.files, times),
                **seen[name].figures(),
                **figures,
            )
        )
    return found


def _judge_cold(
    question: str, times: Rounds, data: Dataset, seen: Mapping[str, _Requests], bar: Bar
) -> list[Result]:
    return [
        judge(
            f"{question}: {name} x ext4 cold",
            times.ratios(name, EXT4_COLD),
            bar if name == EROFS.name else REPORTED,
            files_per_s=_rates(data.files, times),
            **seen[name].figures(),
        )
        for name in seen
    ]


def cold_ext4(data: Dataset, reader: Reader, order: Path) -> float:
    contenders.drop_all_caches(data.folder)
    contenders.list_all(data.source)
    contenders.drop_page_cache(data.folder)
    return reader.seconds(data.source, order)


def _steady(reader: Reader, root: Path, order: Path, threads: int) -> float:
    """Seconds of a pass, in the mean over a second or more: a short one says more about the
    machine's other work."""
    passes = [reader.seconds(root, order, threads)]
    while sum(passes) < _STEADY_S:
        passes.append(reader.seconds(root, order, threads))
    return statistics.mean(passes)


def _order(data: Dataset, group: int) -> Path:
    with contenders.mounted(data) as root:
        return contenders.in_chunkwise_order(data, root, group)


def memory_for_all(data: Dataset) -> int:
    """MiB."""
    return (data.payload_bytes * 11 // 10 >> 20) + _SPARE_MIB


def _is_mount(name: str) -> bool:
    return name in contenders.FRONTS or name == "before"


def page_reads(roots: Mapping[str, Path]) -> dict[str, int]:
    """The READs that each mount's daemon has answered."""
    return {
        name: read_requests(contenders.statistics(root))
        for name, root in roots.items()
        if _is_mount(name)
    }


def _rates(files: int, times: Rounds) -> dict[str, float]:
    return {name: files / times.median(name) for name in times.seconds}


def _timed(name: str, threads: int) -> str:
    return f"{name}, {_threads(threads)}"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
