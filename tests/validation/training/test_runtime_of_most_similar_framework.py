"""A framework that nobody has described is predicted under the nearest one that somebody has."""

from __future__ import annotations

import pytest

from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.fit_constants import read_folds
from shardwright.validation.training.predict_run import predict_run
from shardwright.validation.training.runtime_of_most_similar_framework import (
    nearest_runtime,
    with_nearest_runtime,
)
from shardwright.validation.training.training_table_columns import TrainingMetric
from shardwright.validation.training.training_table_reader_and_json import TRAINING
from tests.validation.published import FOLDER, case_of, rows


@pytest.mark.parametrize("name", runtime_names())
def test_it_is_of_another_framework(name: str) -> None:
    other = load_runtime(nearest_runtime(name))
    assert other.framework != load_runtime(name).framework
    assert other.base in runtime_names()
    assert other.framework != "shardwright"  # stands on torchtitan's facts


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("megatron-bridge", "nemo-24.11 loss=te fp8=current permute_fusion=on"),
        (
            "nemo-24.07",
            (
                "megatron-core-0.12 attention=flash-2 grad_dtype=bf16 grad_check=off"
                " grad_average=collective"
            ),
        ),
        ("fsdp1-llm-foundry", "torchtitan-0.2"),
        # Options that the other one has are set there.
        (
            "megatron-core-0.12 tp_overlap=none grad_overlap=off",
            (
                "megatron-bridge loss=plain tp_overlap=none grad_overlap=off grad_dtype=fp32"
                " grad_check=on grad_average=buffer fp8=delayed fp8_gather=off dispatcher=alltoall"
                " permute_fusion=off"
            ),
        ),
    ],
)
def test_the_one_that_behaves_most_alike(text: str, near: str) -> None:
    assert nearest_runtime(text) == near


def test_a_row_is_predicted_so_with_the_constants_of_others() -> None:
    case = case_of(next(row for row in rows("training.csv") if row.source_id == "nemo2407"))
    stored = read_folds(FOLDER / "folds.json")
    constants = stored["source"][case.laboratory]
    other = with_nearest_runtime(case)
    assert load_runtime(other.runtime).framework == "Megatron-Core"
    study = TRAINING.study(
        [case], facts=TableFacts(), folds=("other base", "source"), stored=stored
    )
    times = [
        study.validation(fold).rows[0].predicted(TrainingMetric.TIME)
        for fold in ("other base", "source")
    ]
    assert times == [predict_run(run, constants=constants).step_time_s for run in (other, case)]
