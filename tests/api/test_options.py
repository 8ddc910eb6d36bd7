"""Options of the runtime in a strategy: simulated as the runtime that they name, searched under one
certificate, checked, asked why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.api.searches.grid_search import check_stored, plan
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.errors import RuntimeModelError, StrategyError, UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, plan_document
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.search_request import Request
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import changed_grid, parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from tests.files.saved import NARROW, REQUEST

OPTIONS = (("tp_overlap", ("none", "userbuffers")), ("grad_overlap", ("off", "on")))
SEARCHED = replace(NARROW, pins=(*NARROW.pins, *OPTIONS))
GRID = "tp2 sp pp2 dp4 mbs1 zero1 recompute=none schedule=1f1b order=tp-cp-ep-dp-pp"


def alone(words: tuple[str, ...]) -> Request:
    """The same search under one row of options, said behind the runtime."""
    return replace(NARROW, runtime=" ".join([NARROW.runtime, *words]))


def test_a_search_over_options_is_the_best_of_all_rows() -> None:
    answer = plan(SEARCHED)
    rows = [
        plan(alone((f"tp_overlap={t}", f"grad_overlap={g}")))
        for t in OPTIONS[0][1]
        for g in OPTIONS[1][1]
    ]
    best = min(rows, key=lambda row: row.prediction.step_time_s)
    assert answer.prediction.step_time_s == best.prediction.step_time_s
    assert replace(answer.grid, options=()) == best.grid
    assert dict(answer.grid.options).keys() == {"tp_overlap", "grad_overlap"}
    counts = answer.certificate
    assert counts.optimal
    assert counts.enumerated == sum(row.certificate.enumerated for row in rows)
    fates = ("illegal", "duplicates", "infeasible", "bounded_b0", "bounded_b1", "simulated")
    assert sum(getattr(counts, fate) for fate in fates) == counts.enumerated
    assert "; tp_overlap {none, userbuffers}; grad_overlap {off, on}" in counts.space
    ranked = [
        one
        for row in rows
        for one in (
            (row.grid, row.prediction.step_time_s),
            *((a.grid, a.step_time_s) for a in row.alternatives),
        )
    ]
    # Plans without tp are the same ones under both values of tp_overlap.
    same = [grid.tp == 1 and place >= len(ranked) // 2 for place, (grid, _) in enumerate(ranked)]
    times = sorted(seconds for (_, seconds), twice in zip(ranked, same, strict=True) if not twice)
    assert [a.step_time_s for a in answer.alternatives] == times[1 : 1 + len(answer.alternatives)]


def test_its_file_is_checked_with_the_options(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(to_text(plan_document(plan(SEARCHED))))
    saved = read_saved(path)
    assert isinstance(saved, StoredPlan)
    assert saved.grid is not None
    assert saved.grid.options
    assert check_stored(saved).leaves > 100


@pytest.mark.parametrize("words", ["tp_overlap=none", "tp_overlap=dgrad loss=te grad_check=off"])
def test_options_of_a_strategy_are_those_of_a_runtime(words: str) -> None:
    said = simulation(REQUEST, strategy=f"{GRID} {words}")
    named = simulation(replace(REQUEST, runtime=f"{REQUEST.runtime} {words}"), strategy=GRID)
    other = simulation(REQUEST, strategy=GRID)
    assert (
        said.prediction.step_time_s == named.prediction.step_time_s != other.prediction.step_time_s
    )
    assert said.prediction.stages == named.prediction.stages


def test_a_strategy_overrides_its_runtime() -> None:
    once = simulation(
        replace(REQUEST, runtime=f"{REQUEST.runtime} tp_overlap=none"),
        strategy=f"{GRID} tp_overlap=userbuffers",
    )
    assert once.prediction.step_time_s == simulation(REQUEST, strategy=GRID).prediction.step_time_s


def test_options_are_written_and_read() -> None:
    grid = parse_grid(f"graphs=iteration {GRID} dispatcher=flex")
    assert grid.options == (("dispatcher", "flex"), ("graphs", "iteration"))
    assert print_grid(grid) == f"{GRID} dispatcher=flex graphs=iteration"
    assert parse_grid(print_grid(grid)) == grid
    assert changed_grid(grid, "graphs=none loss=te").options == (
        ("loss", "te"),
        ("dispatcher", "flex"),
        ("graphs", "none"),
    )
    model = load_model("llama-3.2-1b")
    whole = plan_of(grid, model=model, global_batch=32)
    assert parse_plan(print_plan(whole, model=model), model=model) == whole
    lowered = print_plan(whole)
    assert "options dispatcher=flex graphs=iteration\n" in lowered
    assert parse_plan(lowered) == whole


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("graphs=some", "graphs=some is not known", "none or router"),
        ("graph=none", "unknown word 'graph=none'", "graphs="),
        ("graphs=none graphs=router", "'graphs' is said twice", "keep one"),
    ],
)
def test_words_that_say_no_option(word: str, message: str, hint: str) -> None:
    with pytest.raises(StrategyError, match=message) as caught:
        parse_grid(f"{GRID} {word}")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "line", ["options graphs=some", "options tp=8", "options loss=te loss=te", "options loss"]
)
def test_lines_that_say_no_options(line: str) -> None:
    with pytest.raises(StrategyError):
        parse_plan(
            f"plan p devices 1\n{line}\nlane main samples 1 in 1\n  stages embed on 0\norder"
            " 1f1b(main)\n"
        )


def test_what_a_runtime_lacks_is_refused() -> None:
    with pytest.raises(RuntimeModelError, match=r"megatron-core-0\.12 has no option graphs"):
        simulation(REQUEST, strategy=f"{GRID} graphs=none")
    with pytest.raises(RuntimeModelError, match="cannot have tp_overlap=async"):
        plan(replace(NARROW, pins=(*NARROW.pins, ("tp_overlap", ("async",)))))
    with pytest.raises(UsageError, match="graphs=some is not known"):
        plan(replace(NARROW, pins=(*NARROW.pins, ("graphs", ("some",)))))
