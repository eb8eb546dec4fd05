"""The counts of reads: each read is published once, whenever the counts are published."""

from __future__ import annotations

from dataclasses import replace

from chunkstore.ssd.read_counts import ReadCount, ReadCounts

DATASET, OTHER = b"d" * 16, b"o" * 16


def test_only_what_is_new_is_published() -> None:
    counts = ReadCounts()
    assert counts.take() == {}
    counts.hit(DATASET, 100)
    counts.miss(OTHER)
    assert counts.take() == {DATASET: ReadCount(1, 100), OTHER: ReadCount(misses=1)}
    counts.hit(DATASET, 20)
    assert counts.take() == {DATASET: ReadCount(1, 20)}
    assert counts.take() == {}


def test_a_read_that_is_counted_while_the_counts_are_published_is_not_lost() -> None:
    published: list[ReadCount] = []

    def publish() -> None:
        published.extend(replace(count) for count in counts.take().values())

    class PublishedMeanwhile(dict[bytes, ReadCount]):
        """Rows whose counts are published after a reader has got a row and before it adds to it."""

        def get(self, dataset: bytes) -> ReadCount | None:  # type: ignore[override]
            row = super().get(dataset)
            publish()
            return row

    counts = ReadCounts()
    counts.hit(DATASET, 100)
    counts._of = PublishedMeanwhile(counts._of)
    for _ in range(2):
        counts.hit(DATASET, 100)
        counts.miss(DATASET)
    publish()
    sums = [(count.hits, count.hit_bytes, count.misses) for count in published]
    assert tuple(map(sum, zip(*sums, strict=True))) == (3, 300, 2)
