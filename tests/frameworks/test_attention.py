"""The kernel of attention that a launch on Megatron-Core names, or that its framework has where
nothing is said."""

from __future__ import annotations

import pytest

from shardwright.api.launches.launch_advice import read_request
from shardwright.api.request_to_problem import load_cluster
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.search_request import Request

SWIFT = (
    "megatron sft --model a/b-8B --tensor_model_parallel_size 2 --sequence_parallel true"
    " --max_length 4096{}\n"
)
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"
    " actor_rollout_ref.actor.strategy=megatron"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2{}\n"
)
MEGATRON = (
    "python pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --seq-length 4096 --bf16"
    " --use-distributed-optimizer{}\n"
)
_T = " +actor_rollout_ref.actor.megatron.override_transformer_config.attention_backend="
CASES = (
    (SWIFT, "", "flash-2"),
    (SWIFT, " --attention_backend fused", ""),
    (SWIFT, " --attention_backend flash_3", "flash-2"),
    (SWIFT, " --attention_backend unfused", "unfused"),
    (VERL, "", "flash-2"),
    (VERL, f"{_T}fused", ""),
    (VERL, f"{_T}flash", "flash-2"),
    (MEGATRON, "", ""),
    (MEGATRON, " --attention-backend flash", "flash-2"),
)


@pytest.mark.parametrize(("text", "more", "kernel"), CASES)
def test_the_kernel_of_a_launch(text: str, more: str, kernel: str) -> None:
    found = launch_of_files(
        [("run.sh", text.format(more))], model=load_model("llama-3.1-8b"), devices=8
    )
    assert dict(found.grid.options).get("attention", "") == kernel


@pytest.mark.parametrize(
    ("cluster", "kernel"),
    [("h100-sxm:8", "flash-2"), ("ascend-910b:8", ""), ("v100-sxm-32gb:8", "")],
)
def test_devices_without_the_kernel_run_their_own(tmp_path, cluster: str, kernel: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run.sh"
    path.write_text(SWIFT.format(""))
    half = "fp16" if cluster.startswith("v100") else "bf16"
    request = Request(
        model="llama-3.1-8b", cluster=cluster, seq_len=0, global_batch=0, precision=half
    )
    launch, _ = read_request([str(path)], request, cluster=load_cluster(cluster))
    assert dict(launch.grid.options).get("attention", "") == kernel
    assert any(
        "attention=flash-2 is no kernel of these devices" in note for note in launch.notes
    ) == (not kernel)
