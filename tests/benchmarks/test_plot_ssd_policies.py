"""The plots of cache policies have a bar for each policy, and the optimum over each workload."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from benchmarks.plot_ssd_policies import Group, draw, figure_8, figure_9


def test_figure_8_has_the_workloads_of_one_order() -> None:
    line = {"question": "table 3", "order": "own", "workload": "pipelined", "optimum_share": 0.5}
    lines = [
        {**line, "policy": "lru", "absorbed_share": 0.1},
        {**line, "policy": "next-use", "absorbed_share": 0.4},
        {**line, "policy": "lru", "absorbed_share": 0.3, "order": "same"},
        {"question": "costs"},
    ]
    assert figure_8(lines, "own") == [Group("pipelined", {"lru": 0.1, "next-use": 0.4}, 0.5)]


def test_figure_9_leaves_out_what_writes_far_more_than_the_budget() -> None:
    lines = [
        {
            "question": "figure 9",
            "order": "own",
            "policy": policy,
            "over_dynamic": 2.0,
            "written_over_budget": written,
            "fills_over_dynamic": 0.1,
        }
        for policy, written in (("future", 1.0), ("all", 47.0))
    ]
    found = figure_9(lines, "own")
    assert [list(group.bars.items()) for group in found] == [
        [("future", 2.0)],
        [("future", 1.0)],
        [("future", 0.1)],
    ]
    assert figure_9(lines, "same") == []


def test_each_bar_and_ceiling_is_drawn_within_the_picture() -> None:
    svg = ElementTree.fromstring(draw([Group("w", {"lru": 0.2, "next-use": 0.4}, 0.5)], "a < b"))
    bars = [each for each in svg.iter() if each.tag.endswith("rect") and "y" in each.attrib]
    heights = [float(each.attrib["height"]) for each in bars if each.attrib["height"] != "10"]
    assert heights == [96.0, 192.0]  # of 240 for the optimum
    assert sum("stroke-dasharray" in each.attrib for each in svg.iter()) == 1
    assert all(float(each.attrib["y"]) >= 0 for each in bars)
