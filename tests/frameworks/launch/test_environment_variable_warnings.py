"""Variables of a script that slow a step, and those that a framework needs."""

from __future__ import annotations

import pytest

from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model

COMMAND = (
    "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096"
    " --num-attention-heads 32 --bf16 --seq-length 2048 --micro-batch-size 1 --global-batch-size"
    " 16\n"
)


def read(*lines: str, command: str = COMMAND) -> Launch:
    return launch_of_files(
        [("run.sh", "\n".join((*lines, command)))], model=load_model("llama-2-7b"), devices=8
    )


@pytest.mark.parametrize(
    ("line", "slows"),
    [
        ("export NCCL_P2P_DISABLE=1", True),
        ("export NCCL_P2P_DISABLE=0", False),
        ("export NCCL_IB_DISABLE=1", True),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", True),
        ("export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0", True),
        ("export NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0", False),
        ("export NCCL_DEBUG=INFO", False),
    ],
)
def test_what_slows_a_step_is_told(line: str, slows: bool) -> None:
    found = [one for one in read(line).of(Verdict.UNKNOWN) if "slows the step" in one.means]
    assert bool(found) == slows


def test_a_variable_before_the_command_is_of_the_script() -> None:
    assert [
        one.name for one in read(command=f"NCCL_P2P_DISABLE=1 {COMMAND}").of(Verdict.UNKNOWN)
    ] == ["NCCL_P2P_DISABLE"]


@pytest.mark.parametrize(
    ("framework", "counted"), [("megatron", False), ("megatron-deepspeed", True)]
)
def test_blocking_launches_are_an_option_or_are_told(framework: str, counted: bool) -> None:
    """Where the runtime prices them they are not among what is not counted."""
    command = (
        COMMAND
        if framework == "megatron"
        else COMMAND.replace("--bf16", "--bf16 --deepspeed --zero-stage 1")
    )
    launch = read("export CUDA_LAUNCH_BLOCKING=1", command=command)
    assert launch.framework == framework
    assert (("launch_blocking", "on") in launch.grid.options) == counted
    assert (
        "CUDA_LAUNCH_BLOCKING" not in {one.name for one in launch.of(Verdict.UNKNOWN)}
    ) == counted


def test_a_variable_that_megatron_needs_is_told() -> None:
    told = [
        any("CUDA_DEVICE_MAX_CONNECTIONS" in note for note in read(*lines).notes)
        for lines in ((), ("export CUDA_DEVICE_MAX_CONNECTIONS=1",))
    ]
    assert told == [True, False]
    alone = COMMAND.replace("parallel-size 2", "parallel-size 1")
    assert not any("CUDA_DEVICE_MAX_CONNECTIONS" in note for note in read(command=alone).notes)


def test_megatron_fsdp_needs_another_value() -> None:
    command = COMMAND.replace(
        "--bf16", "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
    )
    told = [
        any("Megatron-FSDP stops" in note for note in read(*lines, command=command).notes)
        for lines in ((), ("export CUDA_DEVICE_MAX_CONNECTIONS=1",))
    ]
    assert told == [False, True]
