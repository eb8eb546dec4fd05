"""The plot of lost nodes has a point for each share, and the last line for a share counts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from benchmarks.plot_node_loss import curves, draw


def test_points_of_both_contenders() -> None:
    lines = [
        {"lost": 0.0, "of_whole": {"peers": 0.5, "memcached": 0.5}},
        {"lost": 0.05, "of_whole": {"peers": 0.9, "memcached": 0.1}},
        {"lost": 0.0, "of_whole": {"peers": 1.0, "memcached": 1.0}},
        {"question": "of another bench"},
    ]
    found = curves(lines)
    assert found == {
        "peers": [(0.0, 1.0), (0.05, 0.9)],
        "memcached": [(0.0, 1.0), (0.05, 0.1)],
    }
    drawn = list(ElementTree.fromstring(draw(found)).iter())
    tags = [element.tag.rpartition("}")[2] for element in drawn]
    assert (tags.count("polyline"), tags.count("circle")) == (2, 4)
