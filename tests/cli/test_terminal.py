"""What a person sees: golden screens, and the promises that they keep."""

from dataclasses import replace

import pytest

from shardwright.api.searches.grid_search import plan
from shardwright.cli.terminal.output_and_progress import WIDTH, plain
from shardwright.files.plan_and_simulation_file_contents import plan_document
from shardwright.hardware.catalog.list_prices import ListPrice
from shardwright.report.screens.alternatives_table import (
    distinct_alternatives,
    main_changes,
    strategy_difference,
)
from shardwright.report.screens.memory_by_pipeline_rank_table import equal_ranks
from shardwright.report.screens.plan_screen import (
    render_answer,
    render_explanation,
    render_simulation,
)
from shardwright.report.screens.strategy_comparison_screen import render_comparison
from shardwright.report.screens.verified_plan_file_screen import render_checked
from shardwright.search.comparison_row import Compared
from shardwright.search.grid.verify_certificate import Recheck
from shardwright.search.search_answer import Alternative
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import GIB
from tests.cli.answers import (
    ANSWER,
    BEST,
    CERTIFICATE,
    PREDICTION,
    REQUEST,
    UNSEARCHED,
    simulated,
    stage,
)
from tests.golden.files import assert_golden


def test_the_answer_is_one_screen() -> None:
    text = plain(render_answer(ANSWER))
    assert_golden("answer.txt", text)
    assert text.count("\n") <= 60
    assert max(map(len, text.splitlines())) <= WIDTH


def test_prediction() -> None:
    assert_golden("prediction.txt", plain(render_simulation(simulated())))


def test_explanation_names_every_source() -> None:
    text = plain(render_explanation(ANSWER))
    assert_golden("explanation.txt", text)
    assert all(source.origin.reference in text for source in PREDICTION.sources)


def test_comparison_is_ordered_by_time() -> None:
    slow = replace(PREDICTION, step_time_s=3.0, reserved_bytes=90 * GIB, fits=False)
    price = ListPrice(of="h100-sxm-x8", usd_per_hour=2.5, source="as given")
    one = Compared(
        simulation=simulated(), devices=64, prices=(price,), usd_per_hour=160.0, tokens=15e12
    )
    elsewhere = simulated(Grid(tp=4, dp=16), slow)
    other = replace(
        one,
        simulation=replace(elsewhere, request=replace(REQUEST, cluster="mi300x:64")),
        prices=(),
        usd_per_hour=None,
    )
    text = plain(render_comparison([other, one]))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert_golden("comparison.txt", text)
    assert text.index("tp2") < text.index("tp4")


def test_recheck() -> None:
    assert_golden(
        "recheck.txt",
        plain(render_checked(Recheck(strategies=1000, sampled=10, contenders=3, drift=1e-10))),
    )


def test_a_search_that_stopped_early_says_so() -> None:
    certificate = replace(CERTIFICATE, optimal=False, lower_bound_s=1.5, gap=0.25)
    text = plain(render_answer(replace(ANSWER, certificate=certificate)))
    assert "Not proven optimal: no strategy of the space takes less than 1.5 s." in text
    assert "Optimal: no other" not in text


def test_sensitivity_names_another_plan() -> None:
    assert ANSWER.sensitivity is not None
    other = replace(ANSWER.sensitivity, best_s=2.05, best_grid=replace(BEST, tp=4, dp=4))
    text = plain(render_answer(replace(ANSWER, sensitivity=other)))
    assert "10 % less bandwidth between nodes: +5.0%; best then tp4 dp4 (+2.5%)" in text


def test_square_brackets_are_no_markup() -> None:
    answer = (
        replace(ANSWER, request=replace(ANSWER.request, model="[bold]x[/bold]"))
        if ANSWER.request
        else ANSWER
    )
    assert "[bold]x[/bold]" in plain(render_answer(answer))


def test_equal_ranks_share_a_row_and_many_ranks_are_shortened() -> None:
    runs = equal_ranks(PREDICTION.stages)
    assert [[s.rank for s in run] for run in runs] == [[0], [1, 2], [3]]
    stages = tuple(
        stage(rank, activations=(20 if rank == 9 else 16 - rank) * GIB) for rank in range(16)
    )
    text = plain(render_simulation(simulated(prediction=replace(PREDICTION, stages=stages))))
    ranks = [
        line.split()[0] for line in text.splitlines() if line.startswith("  ") and "8 layer" in line
    ]
    assert ranks == ["0", "1", "9", "14", "15"]
    full = plain(render_explanation(replace(ANSWER, prediction=replace(PREDICTION, stages=stages))))
    assert sum("8 layer" in line for line in full.splitlines()) == 16


def test_a_full_memory_table_loses_no_number() -> None:
    names = (
        "parameters",
        "gradients",
        "optimizer",
        "workspace",
        "activations",
        "logits",
        "temporary",
    )
    layers = "embed + 3 dense layer + 12 expert layer + mtp + head"
    row = replace(
        stage(0, layers=layers),
        items=tuple((name, 123 * GIB) for name in names),
        allocated=861 * GIB,
        reserved=904 * GIB,
    )
    prediction = replace(PREDICTION, stages=(row,), capacity_bytes=1000 * GIB)
    lines = plain(render_simulation(simulated(prediction=prediction))).splitlines()
    header = next(line for line in lines if "stage" in line and "holds" in line)
    assert header.split() == [
        "stage",
        "holds",
        "params",
        "grads",
        "optim",
        "work",
        "acts",
        "logits",
        "temp",
        "allocated",
        "reserved",
        "full",
    ]
    first = lines[lines.index(header) + 1]
    assert first.split()[-10:] == ["123.00"] * 6 + ["861.00", "904.00", "90", "%"]
    assert first.split()[0] == "0"


def test_difference() -> None:
    assert strategy_difference(replace(BEST, tp=4, sp=False), best=BEST) == "tp4 -sp"
    assert strategy_difference(BEST, best=BEST) == ""


def test_next_best_strategies_that_nobody_would_choose_between_are_counted_and_not_shown() -> None:
    """Those as fast and as large as one before, and those that lie elsewhere and are neither faster
    nor smaller; ranks stay."""
    best, size = ANSWER.prediction.step_time_s, ANSWER.prediction.allocated_bytes
    swapped = replace(BEST, order=("tp", "cp", "ep", "pp", "dp"))

    def other(grid: Grid, seconds: float, allocated: int) -> Alternative:
        return replace(
            ANSWER.alternatives[0], grid=grid, step_time_s=seconds, allocated_bytes=allocated
        )

    wide = replace(BEST, tp=4)
    found = (
        other(swapped, best, size),
        other(wide, best, size // 2),
        other(replace(wide, microbatch=2), best, size // 2),
        other(replace(swapped, tp=4), best * 1.01, size // 2),
        other(replace(BEST, tp=8), best * 1.02, size),
        other(replace(swapped, tp=8), best * 1.02, size - 1),
    )
    answer = replace(ANSWER, alternatives=found)
    assert [rank for rank, _ in distinct_alternatives(answer)] == [3, 6, 7]
    screen = plain(render_answer(answer))
    assert (
        "3 other strategies take as long and as much memory as one of these or the best"
        in " ".join(screen.split())
    )
    assert plan_document(answer)["alternatives"][0]["strategy"] == print_grid(swapped)
    only = replace(ANSWER, alternatives=found[:1])
    assert "1 other strategy takes as long" in " ".join(plain(render_answer(only)).split())


def test_options_that_were_not_searched_are_named() -> None:
    screen = " ".join(plain(render_answer(ANSWER, left=UNSEARCHED)).split())
    assert (
        "loss=te would gain most: 1.96 s, 2.0 % less time. To search with it: --pin loss=te"
        in screen
    )
    assert "The runtime's own values: loss=plain grad_check=on" in screen
    none = " ".join(plain(render_answer(ANSWER, left=replace(UNSEARCHED, best=None))).split())
    assert "No other value of one of them saves 0.1 % of the step time" in none


def test_a_gain_stands_beside_what_it_costs() -> None:
    """Nearly as fast, with more attention: something else must be less, and is named although two
    losses are larger."""
    changes = (
        ("attention", 0.736),
        ("bubble", 0.2),
        ("element", 0.1),
        ("tp", -0.05),
        ("launch", -0.01),
    )
    assert main_changes(changes) == (("attention", 0.736), ("bubble", 0.2), ("tp", -0.05))
    assert main_changes((("attention", 0.736), ("tp", -0.735), ("launch", 0.1))) == (
        ("attention", 0.736),
        ("tp", -0.735),
    )
    assert main_changes((("recompute", 0.5),)) == (("recompute", 0.5),)
    assert main_changes(()) == ()


def test_changes_of_a_next_best_plan_add_up() -> None:
    asked = Request(
        model="llama-3.2-1b", cluster="h100-sxm:16", seq_len=8192, global_batch=64, top=5
    )
    answer = plan(asked)
    for other in answer.alternatives:
        slower = other.step_time_s - answer.prediction.step_time_s
        assert sum(seconds for _, seconds in other.changes) == pytest.approx(
            slower, abs=5e-4 * other.step_time_s
        )
        assert [abs(seconds) for _, seconds in other.changes] == sorted(
            (abs(s) for _, s in other.changes), reverse=True
        )
