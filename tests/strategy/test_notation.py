from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.strategy.grid import grid_rules
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.operator_split_tree import Split, devices_of
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.text.split_tree_notation import Cursor, print_split
from shardwright.strategy.text.stage_first_device_notation import print_bases, read_bases
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.strategies import dense_model, expert_model, plans, trees
from tests.strategy.rule_ids import PLAN_RULES
from tests.strategy.splits import parse_split
from tests.tiers import examples

ZOO = Path(__file__).parent / "zoo"
FILES = sorted(ZOO.glob("*.plan"))


@examples(25, 500)
@given(plan=plans())
def test_any_plan_round_trips(plan: Plan) -> None:
    assert parse_plan(print_plan(plan)) == plan


@examples(25, 300)
@given(plan=plans())
def test_any_plan_can_be_verified(plan: Plan) -> None:
    for model in (dense_model(), expert_model(predictors=1)):
        assert all(v.rule and v.message for v in verify(plan, model=model, global_batch=8))
        grid_of(plan, model=model)


@examples(30, 1000)
@given(tree=trees(leaves=12))
def test_any_tree_round_trips(tree: Split | None) -> None:
    assert parse_split(print_split(tree)) == tree


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (".", (0,)),
        ("b2 t2", (0, 1, 2, 3)),
        ("b2@1 t2@2", (0, 2, 1, 3)),
        ("b[2:1]{t2, .+2}", (0, 1, 2)),
        ("x2 b[1:1]{t2, s2+2}", (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_devices_of_text(text: str, devices: tuple[int, ...]) -> None:
    assert devices_of(parse_split(text)) == devices


@examples(35, 500)
@given(bases=st.lists(st.integers(0, 30), min_size=1, max_size=24))
def test_bases_round_trip(bases: list[int]) -> None:
    assert read_bases(Cursor(text=print_bases(bases))) == bases


def test_bases_are_short() -> None:
    assert print_bases([*range(0, 16, 4), *range(12, -1, -4)]) == "0..12/4, 12..0/4"
    assert print_bases([0, 1, 2, 3] * 8) == "(0..3)*8"
    assert print_bases([0, 0]) == "0, 0"


def test_open_ranges_follow_the_chunk() -> None:
    text = (
        "plan p devices 3\nlane main samples 1 in 1\n  stages embed, 3, 5+head on 0..2\n"
        "    all = .\n    recompute 1-: core\norder 1f1b(main)\n"
    )
    plan = parse_plan(text)
    assert [tuple(k.blocks for k in s.keeps) for s in plan.lanes[0].stages] == [
        (),
        ((1, 2),),
        ((1, 4),),
    ]
    assert print_plan(plan, name="p") == text


def test_comments_and_indentation_do_not_matter() -> None:
    text = (ZOO / "14-survey3.plan").read_text()
    loose = "# three devices\n\n" + "\n".join(f"\t{line}   # note" for line in text.splitlines())
    assert parse_plan(loose) == parse_plan(text)


HEADER = "plan p devices 4\n"
LANE = HEADER + "lane main samples 4 in 4\n"
ERRORS = [
    ("", "begins with its name"),
    ("plan p devices x", "cannot read"),
    ("plan p devices 0", "number from 1"),
    (HEADER + "grid samples 4 dp4", "needs the model"),
    (LANE, "no stages"),
    (LANE + "stages 1 on 0, 1", "1 chunks on 2"),
    (LANE + "stages 1 on 0..3/2", "does not divide"),
    (LANE + "stages 1*99999 on 0", "number from 1"),
    (LANE + "stages (1) on 0", "no part of a chunk"),
    (LANE + "stages 1 on 0\nall = q2", "expected a split"),
    (LANE + "stages 1 on 0\nall = b[2:1]{.}", "2 weights but 1 children"),
    (LANE + "stages 1 on 0\nall = b2 vis ring", "after a split"),
    (LANE + "stages 1 on 0\nall = s2 via rung", "did you mean ring"),
    (LANE + "stages 1 on 0\nall = b99999999999", "whole number"),
    (LANE + "stages 1 on 0\nall = b2147483648 t2", "devices"),
    (LANE + "stages 1 on 0\nrecompute x: full", "cannot read"),
    (LANE + "stages 1 on 0\nall = .\norder 1f1b(main) seed", "key=value"),
    (LANE + "stages 1 on 0\nall = .\norder table\n0: 0X0", "no action"),
    (LANE + "stages 1 on 0\nall = .\norder table\n0: down/0F0", "unknown lane"),
    (HEADER + "zero all: all/1/1 gather=often\n", "unknown cadence"),
    (HEADER + "zero all: all/1/1 gathers=use\n", "did you mean gather"),
    (HEADER + "lanes main", "did you mean lane"),
    (HEADER + "options", "line 2: cannot read 'options'"),
    (LANE + "stages 1 on 0\nall = " + "b[1]{" * 100 + "." + "}" * 100, "deeper"),
    (LANE + "stages 1 on 0\nall = " + "x1 " * 100, "deeper"),
    (LANE + "stages 1 on " + "(" * 100 + "0" + ")*1" * 100, "nested deeper"),
    (LANE + "stages 1 on ((0)*60000)*60000", "more than"),
]


@pytest.mark.parametrize(("text", "part"), ERRORS)
def test_parser_errors_name_line_and_cause(text: str, part: str) -> None:
    with pytest.raises(StrategyError, match=part):
        parse_plan(text)


OWN = ["plan p devices 4", "lane main samples 4 in 4", "stages 1 on 0", "all = b4"]
MISPLACED = [
    ("options loss=te", (2, 3, 4, 5), "it stands once, directly after the line of the plan"),
    ("zero all: 1/1/1", (2, 3, 4, 5), "these lines stand before the first lane"),
    ("grid samples 4 dp4", (2, 3, 4, 5), "it stands alone after the line of the plan"),
    ("plan q devices 4", (1, 2, 3, 4, 5), "it is the first line"),
    ("lane other samples 4 in 4", (5,), "lanes stand before the first order"),
    ("stages 1 on 0", (1, 5), "these lines stand after the line of their lane"),
    ("recompute 0-1: full", (1, 5), "these lines stand after the splits of their stages"),
    ("core = b4", (1, 5), "splits stand directly after the line of their stages"),
]


@pytest.mark.parametrize(("line", "places", "hint"), MISPLACED)
def test_a_line_in_the_wrong_place_says_where_it_belongs(
    line: str, places: tuple[int, ...], hint: str
) -> None:
    """Inserted before line number `place`, or after the order."""
    text = [*OWN, "order 1f1b(main)"]
    for place in places:
        with pytest.raises(StrategyError, match="is in the wrong place") as caught:
            parse_plan("\n".join([*text[:place], line, *text[place:]]))
        assert caught.value.hint == hint
        assert caught.value.path == f"line {place + 1}"
        assert repr(line.split()[0])[1:-1] in caught.value.message


def test_a_second_line_of_options_is_refused() -> None:
    text = "\n".join([OWN[0], "options loss=te", "options graphs=iteration", *OWN[1:]])
    with pytest.raises(StrategyError, match="line of 'options' is in the wrong place"):
        parse_plan(text)


_VOCABULARY = (
    "plan p devices 4 grid samples zero all : / 1 lane main in stages embed + , * on 0 .. ( ) all ="
    " b 2 t [ ] { } via ring recompute order table 1f1b F B | \n \n # every slices role"
)
_WORDS = st.sampled_from(_VOCABULARY.split(" "))


@examples(40, 1500)
@given(
    text=st.text(max_size=80)
    | st.lists(_WORDS, max_size=30).map(" ".join)
    | st.binary(max_size=60).map(lambda b: b.decode("latin-1"))
)
@example("plan p devices ²")
@example("plan p devices 4\nlane main samples 4 in 4\nstages 1 on 0\nall = b²")
def test_only_strategy_errors_escape_the_parser(text: str) -> None:
    for prefix in ("", HEADER, LANE, LANE + "stages 1 on 0\nall = "):
        try:
            plan = parse_plan(prefix + text)
        except StrategyError:
            continue
        assert parse_plan(print_plan(plan)) == plan


@examples(30, 1000)
@given(
    place=st.floats(0, 1),
    insert=st.text(max_size=3),
    drop=st.integers(0, 6),
    path=st.sampled_from(FILES),
)
def test_damaged_zoo_plans_raise_only_our_errors(
    place: float, insert: str, drop: int, path: Path
) -> None:
    text = path.read_text()
    at = int(place * len(text))
    try:
        plan = parse_plan(text[:at] + insert + text[at + drop :])
    except StrategyError:
        return
    verify(plan, model=dense_model(), global_batch=8)


def test_unwritable_names_are_refused() -> None:
    plan = parse_plan((ZOO / "14-survey3.plan").read_text())
    for wrong in (
        replace(plan, orders=(NamedOrder(schedule="a b", lanes=("main",)),)),
        replace(plan, orders=(NamedOrder(schedule="table", lanes=("main",)),)),
    ):
        with pytest.raises(StrategyError):
            print_plan(wrong)


DOCS = (Path(__file__).parents[2] / "docs" / "notation.md").read_text()


def test_the_documented_texts_are_canonical() -> None:
    plans_shown = re.findall(r"```plan\n(.*?)```", DOCS, flags=re.DOTALL)
    assert len(plans_shown) == 3
    for text in plans_shown:
        assert print_plan(parse_plan(text), name=text.split()[1]) == text
    (grid,) = re.findall(r"```grid\n(.*?)\n```", DOCS, flags=re.DOTALL)
    assert print_grid(parse_grid(grid)) == grid


def test_every_rule_is_documented() -> None:
    listed = set(re.findall(r"^\| `([a-z]+\.[a-z-]+)` \|", DOCS, flags=re.MULTILINE))
    in_code = {
        rule
        for path in Path(grid_rules.__file__).parent.glob("*.py")
        for rule in re.findall(r'rule="(grid\.[a-z]+)"', path.read_text())
    }
    assert listed == set(PLAN_RULES) | in_code
