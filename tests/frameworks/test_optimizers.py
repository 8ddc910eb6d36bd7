"""What the optimizer of a launch keeps: Adam's states are priced, others are refused by name,
whatever the framework calls them."""

from __future__ import annotations

import pytest

from shardwright.errors import DataError
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model

TITAN = (
    "[training]\nlocal_batch_size = 1\nseq_len = 4096\n[parallelism]\ndata_parallel_shard_degree ="
    " -1\n[optimizer]\n"
)
LAUNCHES = {
    "deepspeed": (
        "ds.json",
        (
            '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "optimizer":'
            ' {"type": "NAME"}}'
        ),
    ),
    "huggingface-trainer": (
        "a.json",
        (
            '{"per_device_train_batch_size": 1, "num_train_epochs": 1, "deepspeed": "true", "bf16":'
            ' true, "zero_optimization": {"stage": 1}, "optimizer": {"type": "NAME"}}'
        ),
    ),
    "megatron": (
        "run.sh",
        (
            "python pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --seq-length 4096 --bf16"
            " --optimizer NAME\n"
        ),
    ),
    "nemo": (
        "n.yaml",
        (
            "trainer: {precision: bf16}\nmodel: {micro_batch_size: 1, tensor_model_parallel_size:"
            " 1, optim: {name: NAME}}\n"
        ),
    ),
    "torchtitan": ("t.toml", f'{TITAN}name = "NAME"\n'),
    "nanotron": (
        "n.yaml",
        (
            "parallelism: {tp: 1, pp: 1, dp: 8}\ntokens: {micro_batch_size: 1, sequence_length:"
            " 4096}\noptimizer: {zero_stage: 1, optimizer_factory: {name: NAME}}\n"
        ),
    ),
    "maxtext": (
        "m.yaml",
        (
            "per_device_batch_size: 1\nici_fsdp_parallelism: 8\nmax_target_length: 4096\nopt_type:"
            " NAME\n"
        ),
    ),
    "gpt-neox": (
        "n.yml",
        (
            '{"pipe_parallel_size": 1, "model_parallel_size": 1, "train_micro_batch_size_per_gpu":'
            ' 1, "optimizer": {"type": "NAME"}, "norm": "rmsnorm"}'
        ),
    ),
    "verl": (
        "v.yaml",
        (
            "actor_rollout_ref: {actor: {ppo_mini_batch_size: 8, ppo_micro_batch_size_per_gpu: 1,"
            " optim: {optimizer: NAME}}}\nalgorithm: {adv_estimator: grpo}\n"
        ),
    ),
}
ADAM = {
    "nemo": ("distributed_fused_adam", "mcore_distributed_optim"),
    "nanotron": ("adamW",),
    "maxtext": ("adamw", "adam_pax"),
}
OTHERS = ("SGD", "Lion", "OneBitAdam", "muon", "adafactor")


def read(framework: str, name: str) -> Launch:
    file, text = LAUNCHES[framework]
    files = [(file, text.replace("NAME", name))]
    return launch_of_files(files, model=load_model("llama-3.1-8b"), devices=8, framework=framework)


@pytest.mark.parametrize("framework", LAUNCHES)
def test_an_optimizer_with_other_states_is_refused(framework: str) -> None:
    for name in ADAM.get(framework, ("adam", "AdamW")):
        found = {one.name: one for one in read(framework, name).settings if one.value == name}
        assert [one.verdict for one in found.values()] == [Verdict.UNDERSTOOD], found
    for name in OTHERS:
        with pytest.raises(DataError, match=f"{name}|{name.lower()}"):
            read(framework, name)


def test_verl_keeps_states_in_8_bits() -> None:
    assert dict(read("verl", "AdamW8bit").grid.options)["moments"] == "8bit"
