"""Losses that take the head's product with them, by what launches of each framework say."""

from __future__ import annotations

import pytest

from shardwright.api.launches.launch_advice import read_request
from shardwright.api.request_to_problem import load_cluster, problem_of
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid

HF = "per_device_train_batch_size: 4\nnum_train_epochs: 1\nbf16: true\nblock_size: 4096\n"
TRL = "dataset_name: a/b\nmax_length: 4096\nper_device_train_batch_size: 4\npacking_strategy: bfd\n"
FACTORY = "finetuning_type: full\ncutoff_len: 4096\nper_device_train_batch_size: 4\nbf16: true\n"
AXOLOTL = (
    "base_model: a/b\nsequence_len: 4096\nsample_packing: true\nmicro_batch_size: 4\nbf16: true\n"
)
LIGER = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
CUT = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
TUNE = """model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
optimizer: {_component_: torch.optim.AdamW}
batch_size: 4
"""
SAID = (
    (f"{HF}use_liger_kernel: true\n", "liger"),
    (f"{HF}use_liger_kernel: false\n", ""),
    (
        f"{HF}use_liger_kernel: true\nliger_kernel_config: {{fused_linear_cross_entropy: false}}\n",
        "",
    ),
    (f"{TRL}use_liger_kernel: true\n", "liger"),
    (f"{FACTORY}enable_liger_kernel: true\n", "liger"),
    (FACTORY, ""),
    (f"{AXOLOTL}{LIGER}liger_fused_linear_cross_entropy: true\n", "liger"),
    (f"{AXOLOTL}{LIGER}liger_rms_norm: true\n", ""),
    (f"{AXOLOTL}{CUT}cut_cross_entropy: true\n", "cut"),
    (f"{AXOLOTL}{CUT}", "cut"),
    (f"{AXOLOTL}{CUT}cut_cross_entropy: false\n", ""),
    (f"{AXOLOTL}cut_cross_entropy: true\n", ""),
    (f"{TUNE}loss: {{_component_: torchtune.modules.loss.LinearCrossEntropyLoss}}\n", "chunked"),
    (
        (
            f"{TUNE}loss: {{_component_: torchtune.modules.loss.LinearCrossEntropyLoss,"
            " num_output_chunks: 4}\n"
        ),
        "",
    ),
    (f"{TUNE}loss: {{_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}}\n", ""),
    (f"{TUNE}loss: {{_component_: torchtune.modules.loss.LigerFusedCrossEntropyLoss}}\n", "liger"),
)


def read(text: str) -> Launch:
    return launch_of_files([("a.yaml", text)], model=load_model("llama-3.1-8b"), devices=8)


@pytest.mark.parametrize(("text", "loss"), SAID)
def test_the_loss_of_a_launch(text: str, loss: str) -> None:
    found = read(text)
    assert dict(found.grid.options).get("linear_loss", "") == loss
    assert any("not counted" in note for note in found.notes) == any(
        word in text for word in ("use_liger_kernel: true", "enable_liger", "chunks: 4", "Chunked")
    )


REGISTRY = """
def tiny():
    spec = model_registry("8B")
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(){}),
        model_spec=spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096,\
 max_context_length=4096, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
"""


@pytest.mark.parametrize(
    ("more", "loss"), [("", "parts"), (", num_chunks=8", "parts"), (", num_chunks=4", "")]
)
def test_the_loss_of_torchtitan_in_parts(more: str, loss: str) -> None:
    found = launch_of_files(
        [("config_registry.py", REGISTRY.format(more))], model=load_model("llama-3.1-8b"), devices=8
    )
    assert (found.framework, dict(found.grid.options).get("linear_loss", "")) == (
        "torchtitan",
        loss,
    )
    assert any("the loss in 4 parts" in note for note in found.notes) == (not loss)


def test_a_loss_without_its_plugin_is_told() -> None:
    assert any(
        "without its plugin CutCrossEntropyPlugin" in note
        for note in read(f"{AXOLOTL}cut_cross_entropy: true\n").notes
    )


def test_settings_of_the_loss_are_understood() -> None:
    for text, _ in SAID:
        unknown = {one.name for one in read(text).of(Verdict.UNKNOWN)}
        assert unknown <= {"liger-rms-norm"}, unknown


def test_advice_keeps_the_loss(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The logits of the launch are those of a part, in memory and in what is searched."""
    path = tmp_path / "a.yaml"
    path.write_text(f"{FACTORY}enable_liger_kernel: true\n")
    request = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=0, global_batch=0)
    launch, request = read_request([str(path)], request, cluster=load_cluster("h100-sxm:8"))
    logits = {
        dict(stage.items)["logits"]
        for stage in simulate_grid(problem_of(request), launch.grid).memory
    }
    # 16,384 tokens over ceil(128,256 / 4,096) = 32 parts of 512, in 16 bits.
    assert logits == {512 * 128_256 * 2}
