"""What a prediction has in common with no run of the fit widens its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.runtime.list_and_set_runtime_options import runtime_with_options
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.step_time_interval import (
    COEFFICIENTS,
    FILE,
    FRAMEWORK,
    OPTIONS,
    PAIR,
    shipped_runs,
)
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.row_to_training_run import to_training_run
from tests.search.problems import real_problem
from tests.validation.published import facts, rows
from tools.interval_fit import runs_of, runs_text

RAN = (("megatron-core-0.12 tp_overlap=none", "h100-sxm"), ("nemo-24.07", "a100-sxm-80gb"))


@pytest.mark.parametrize(
    ("runtime", "device", "doubted"),
    [
        ("megatron-core-0.12", "h100-sxm", set()),
        ("megatron-core-0.12 tp_overlap=none", "h100-sxm", set()),
        # An option that another framework's runs had is known.
        ("nemo-24.07 tp_overlap=none", "a100-sxm-80gb", set()),
        ("megatron-core-0.12 grad_overlap=off", "h100-sxm", {OPTIONS}),
        ("megatron-core-0.12", "b200", {PAIR}),
        ("torchtitan-0.2", "h100-sxm", {FRAMEWORK}),
        ("torchtitan-0.2 tp_overlap=async", "b200", {FRAMEWORK, OPTIONS}),
    ],
)
def test_reasons_to_doubt(runtime: str, device: str, doubted: set[str]) -> None:
    found = runs_of(RAN).doubts(load_runtime(runtime), device)
    assert {name for name, share in found.items() if share} == doubted
    assert found.keys() <= COEFFICIENTS.keys()


def test_the_shipped_runs_are_those_of_the_tables() -> None:
    cases = [
        c
        for row in rows("training.csv", "heterogeneous.csv", "megatron_ci.csv")
        if isinstance(c := to_training_run(row, facts=facts()), TrainingRun) and c.measured_s
    ]
    ran = [(case.runtime, case.cluster.node.accelerator.name) for case in cases]
    assert shipped_runs() == runs_of(ran), "python tools/shipped_runs.py"
    assert FILE.read_text(encoding="utf-8") == runs_text(ran)


def test_a_framework_that_no_run_confirms_has_a_wider_interval() -> None:
    problem = real_problem(
        "llama-3.2-1b", "h100-sxm:8", seq_len=2048, global_batch=16, runtime="deepspeed-0.16"
    )
    grid = parse_grid("dp8 mbs1 zero1 recompute=none")
    doubted = predict(problem, grid)
    known = predict(
        replace(problem, runtime=runtime_with_options(load_runtime("megatron-core-0.12"), ())), grid
    )
    assert FRAMEWORK in {doubt.name for doubt in doubted.doubts}
    assert FRAMEWORK not in {doubt.name for doubt in known.doubts}
    width = [p.interval_s[1] / p.step_time_s for p in (doubted, known)]
    assert width[0] > width[1] * (1 + 0.5 * COEFFICIENTS[FRAMEWORK])
    assert COEFFICIENTS[FRAMEWORK] > 0.02
