"""Pictures of plans: every stage and every device is where the plan says, whatever the form."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from shardwright.cli.terminal.output_and_progress import plain
from shardwright.errors import StrategyError
from shardwright.files.canonical_json import to_text
from shardwright.report.pictures.devices_with_equal_shares import (
    device_classes,
    device_text,
    split_paths,
)
from shardwright.report.pictures.fold_repeated_columns import folded_view
from shardwright.report.pictures.plan_picture_content import PlanPicture, plan_picture
from shardwright.report.pictures.plan_picture_to_json import picture_document
from shardwright.report.pictures.plan_svg import plan_svg
from shardwright.report.pictures.plan_text import PlanText
from shardwright.report.pictures.split_tree_nodes_and_text_lines import (
    TreeNode,
    split_tree,
    tree_lines,
)
from shardwright.strategy.plan.operator_split_tree import Split, devices_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.replace_unprintable_characters import printable
from shardwright.strategy.verify.block_coverage import operators_of, stage_pieces
from tests.golden.files import assert_golden
from tests.strategies import dense_model, trees
from tests.strategy.splits import parse_split
from tests.strategy.test_notation import FILES
from tests.strategy.zoo_plans import zoo_plan
from tests.tiers import chosen, examples

SVG = "{http://www.w3.org/2000/svg}"


def drawn(stem: str) -> tuple[Plan, PlanPicture]:
    plan = parse_plan(next(path for path in FILES if path.stem == stem).read_text())
    return plan, plan_picture(plan, model=zoo_plan(stem).model, name=stem.partition("-")[2])


zoo = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)


@zoo
def test_every_device_is_in_one_row_and_every_block_in_one_column(path: Path) -> None:
    plan, picture = drawn(path.stem)
    members = np.concatenate([row.members for row in picture.rows])
    assert sorted(members.tolist()) == list(range(plan.devices))
    assert sum(row.count for row in picture.rows) == plan.devices
    model = zoo_plan(path.stem).model
    whole = [c.blocks for c in picture.columns if not any("." in part for part in c.parts)]
    cut = {part.partition(".")[0] for c in picture.columns for part in c.parts if "." in part}
    assert sum(whole) + len(cut) == sum(run.count for run in model.runs)


@zoo
def test_cells_are_the_devices_of_each_stage(path: Path) -> None:
    """Without the picture's own walk: the trees that rule an operator of a stage, and the devices
    they list."""
    plan, picture = drawn(path.stem)
    model = zoo_plan(path.stem).model
    for number, lane in enumerate(plan.lanes):
        pieces, _ = stage_pieces(lane, model=model)
        for chunk, stage in enumerate(lane.stages):
            expected: set[int] = set()
            block = 0
            for piece in pieces[chunk]:
                for at in range(piece.count):
                    for operator in operators_of(piece, model=model):
                        chosen = [
                            p
                            for p in stage.placements
                            if (not p.select.classes or operator.klass.value in p.select.classes)
                            and (
                                p.select.blocks is None
                                or (
                                    piece.counted
                                    and p.select.blocks[0] <= block + at <= p.select.blocks[1]
                                )
                            )
                        ]
                        expected |= set(
                            devices_of(chosen[-1].split, stage.base + chosen[-1].offset)
                        )
                block += piece.count if piece.counted else 0
            cells = [c for c in picture.cells if (c.lane, c.chunk) == (number, chunk)]
            assert {d for c in cells for d in picture.rows[c.row].members.tolist()} == expected
    keys = [(c.row, c.column, c.lane) for c in picture.cells]
    assert len(keys) == len(set(keys))
    for number, lane in enumerate(plan.lanes):
        for column in range(len(picture.columns)):
            assert (
                len({c.chunk for c in picture.cells if (c.column, c.lane) == (column, number)}) == 1
            ), "one stage a block"
        assert {c.chunk for c in picture.cells if c.lane == number} == set(range(len(lane.stages)))


WIDTHS = (60, 100, 160)


@pytest.mark.parametrize(
    ("path", "width"),
    chosen(
        product(FILES, WIDTHS), {(path, WIDTHS[number % 3]) for number, path in enumerate(FILES)}
    ),
)
def test_terminal(path: Path, width: int) -> None:
    _, picture = drawn(path.stem)
    text = plain(PlanText(picture=picture), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert picture.rows[0].devices[:20] in text
    assert text == plain(PlanText(picture=drawn(path.stem)[1]), width=width)


@zoo
def test_svg(path: Path) -> None:
    _, picture = drawn(path.stem)
    text = plan_svg(picture)
    root = ET.fromstring(text)
    view = folded_view(picture, columns=40, rows=48)
    rows = {band.members[0] for band in view.rows if not band.hidden}
    columns = {band.members[0] for band in view.columns if not band.hidden}
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "cell"]
    assert len(cells) == sum(c.row in rows and c.column in columns for c in picture.cells)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("x"):
            assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width
            assert float(rect.get("y", 0)) + float(rect.get("height", 0)) <= height
    assert text == plan_svg(drawn(path.stem)[1])


def test_golden_pictures() -> None:
    assert_golden("picture-survey3.svg", plan_svg(drawn("14-survey3")[1]))
    assert_golden("picture-dualpipe.svg", plan_svg(drawn("11-dualpipe")[1]))
    assert_golden(
        "picture-llama405b.txt", plain(PlanText(picture=drawn("09-llama405b")[1]), width=160)
    )
    assert_golden("picture-afd.json", to_text(picture_document(drawn("25-afd")[1])))


def test_docs_hold_the_pictures() -> None:
    folder = Path(__file__).parents[3] / "docs" / "pictures"
    stems = {
        "survey3": "14-survey3",
        "dualpipe": "11-dualpipe",
        "llama405b": "09-llama405b",
        "vocab-spread": "17-vocab-spread",
    }
    for name, stem in stems.items():
        assert (folder / f"{name}.svg").read_text() == plan_svg(drawn(stem)[1])


def test_columns_that_repeat_are_drawn_once() -> None:
    _, picture = drawn("09-llama405b")
    view = folded_view(picture, columns=40, rows=48)
    assert len(view.columns) == 32
    assert [band.repeat for band in view.columns] == [""] + ["x7 @16"] * 16 + [""] * 15
    for band in view.columns:
        rows = [{c.row for c in picture.cells if c.column == column} for column in band.members]
        assert all(row == rows[0] for row in rows)
    assert sorted(m for band in view.columns for m in band.members) == list(range(128))


def test_what_is_left_out_is_counted() -> None:
    text = (
        "plan p devices 300\nlane main samples 300 in 300\n  stages embed, 1*298, head on 0..299\n "
        "   all = .\norder 1f1b(main)\n"
    )
    picture = plan_picture(parse_plan(text), model=dense_model(layers=298))
    view = folded_view(picture, columns=9, rows=7)
    for bands, limit in ((view.columns, 9), (view.rows, 7)):
        assert len(bands) == limit
        assert sorted(m for band in bands for m in band.members) == list(range(300))
        assert sum(band.hidden for band in bands) == 1
    assert ".. 261 more classes" in plain(PlanText(picture=picture), width=80)
    assert len(plan_svg(picture)) < 400_000


def test_unequal_shares_are_rows_of_their_own() -> None:
    _, picture = drawn("14-survey3")
    assert [(row.devices, row.count) for row in picture.rows] == [("0-1", 2), ("2", 1)]
    assert [c.degrees for c in picture.cells] == ["b2/3 t2", "b1/3"]


def test_two_lanes_in_one_cell() -> None:
    text = "plan p devices 1\nlane a samples 1 in 1\n  stages embed+8+head on 0\n    all = .\n"
    text += "lane b samples 1 in 1\n  stages embed+8+head on 0\n    all = .\norder x(a, b)\n"
    picture = plan_picture(parse_plan(text), model=dense_model())
    assert [(c.row, c.column, c.lane) for c in picture.cells] == [(0, 0, 0), (0, 0, 1)]
    assert "a/0 b/0" in plain(PlanText(picture=picture))
    cells = [
        r for r in ET.fromstring(plan_svg(picture)).iter(f"{SVG}rect") if r.get("class") == "cell"
    ]
    assert cells[0].get("x") != cells[1].get("x")


def test_hostile_names() -> None:
    plan, _ = drawn("11-dualpipe")
    bad = "</text><script>\x1b[2J&\x00[red]\ud800" + "x" * 500
    plan = replace(
        plan,
        lanes=(replace(plan.lanes[0], name=bad), plan.lanes[1]),
        orders=(replace(plan.orders[0], lanes=(bad, "up")),),
    )
    picture = plan_picture(plan, model=zoo_plan("11-dualpipe").model, name=bad)
    svg = plan_svg(picture)
    svg.encode("utf-8")
    root = ET.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    text = plain(PlanText(picture=picture), width=80)
    assert "\x1b" not in text + svg
    assert max(map(len, text.splitlines())) <= 80
    assert "[red]" in printable(bad)
    to_text(picture_document(picture)).encode("utf-8")


def test_colour_only_on_a_terminal() -> None:
    from io import StringIO

    from rich.console import Console

    _, picture = drawn("10-zb-v")
    file = StringIO()
    Console(file=file, force_terminal=True, color_system="truecolor", width=120).print(
        PlanText(picture=picture)
    )
    assert "\x1b[" in file.getvalue()
    assert "\x1b[" not in plain(PlanText(picture=picture), width=120)


@examples(25, 500)
@given(trees())
def test_ways_are_the_devices_of_a_tree(tree: Split | None) -> None:
    assert sorted(d for _, offsets in split_paths(tree) for d in offsets.tolist()) == sorted(
        devices_of(tree)
    )


@pytest.mark.parametrize(
    ("split", "lines"),
    [
        (".", ["device 4"]),
        ("b2@32 t2", ["b2", "└─ x2 @32  t2", "   └─ x2 @1  devices 4-5, 36-37"]),
        (
            "b[2:1]{t2, .+2}",
            ["b[2:1]", "├─ 2/3  t2", "│  └─ x2 @1  devices 4-5", "└─ 1/3  device 6"],
        ),
        (
            "b[1:1:2]{., .+2, t2+4}",
            ["b[1:1:2]", "├─ 1/4 x2 @2  devices 4, 6", "└─ 2/4  t2", "   └─ x2 @1  devices 8-9"],
        ),
    ],
)
def test_split_trees(split: str, lines: list[str]) -> None:
    assert tree_lines(split_tree(parse_split(split), first_device=4)) == lines


def test_wide_trees_are_cut() -> None:
    many = ", ".join(f"t{1 + i % 2}+{3 * i}" for i in range(40))
    root = split_tree(parse_split(f"b[{':'.join(['1'] * 40)}]{{{many}}}"))
    assert isinstance(root, TreeNode)
    assert len(root.children) == 13
    assert root.children[-2].label == ".. 28 more branches"


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([3], "3"),
        ([0, 1, 2], "0-2"),
        ([0, 1, 8, 9], "0-1, 8-9"),
        ([0, 1, 8, 9, 16, 17], "0-1 x3 @8"),
        ([0, 1, 5], "0-1, 5"),
        ([0, 2, 3, 9, 11, 15], "0, 2-3, .., 15"),
    ],
)
def test_device_text(devices: list[int], text: str) -> None:
    assert device_text(np.array(devices)) == text


def test_classes() -> None:
    sets = [np.array([2, 3, 4]), np.array([4, 5]), np.array([0, 1, 2, 3, 4, 5])]
    assert device_classes(sets, devices=7).tolist() == [0, 0, 1, 1, 2, 3, 4]
    with pytest.raises(StrategyError, match=r"device 7 of 7 \[plan.devices\]"):
        device_classes([np.array([7])], devices=7)


@pytest.mark.parametrize(
    ("stages", "rule"),
    [
        ("embed+7+head on 0", "stage.coverage"),
        ("embed+9+head on 0", "stage.coverage"),
        ("embd+8+head on 0", "stage.item"),
    ],
)
def test_plans_that_do_not_fit_the_model(stages: str, rule: str) -> None:
    plan = parse_plan(
        f"plan p devices 1\nlane a samples 1 in 1\n  stages {stages}\n    all = .\norder 1f1b(a)\n"
    )
    with pytest.raises(StrategyError) as raised:
        plan_picture(plan, model=dense_model())
    assert raised.value.rule == rule
