"""DeepSpeed's ZeRO-3 on one device: its parameters wait in host memory where the file says so, and
it is none where it does not."""

import json
from pathlib import Path

import pytest

from shardwright.frameworks.read_launch import read_launch
from shardwright.model.catalog.load_model_by_name import load_model


@pytest.mark.parametrize(
    ("device", "zero", "options"), [("cpu", 3, (("param_offload", "on"),)), ("none", 0, ())]
)
def test_offloaded_parameters_keep_zero3_on_one_device(
    device: str, zero: int, options: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    sharded = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": device},
    }
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": sharded,
    }
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    launch = read_launch(
        [str(path)], model=load_model("llama-2-7b"), devices=1, framework="deepspeed"
    )
    assert (launch.grid.zero, launch.grid.offload) == (zero, 100)
    assert [pair for pair in launch.grid.options if pair[0] == "param_offload"] == list(options)
