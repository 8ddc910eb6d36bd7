"""A reader claims a file by what only its framework has; files of others are refused by their
framework's name."""

from __future__ import annotations

from itertools import combinations

import pytest

from shardwright.errors import DataError
from shardwright.frameworks.export.nest_dotted_settings import nested_sections
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.launch.framework_detection import included_frameworks
from shardwright.frameworks.launch.unsupported_frameworks import NOT_READ
from shardwright.frameworks.launch_files_to_setting_documents import ARGUMENTS, documents_of
from shardwright.frameworks.read_launch import LEAST_UNDERSTOOD, launch_of_files
from shardwright.frameworks.registry import claimants
from shardwright.model.catalog.load_model_by_name import load_model

LLAMA = "llama-3.1-8b"
NEOX = """pipe_parallel_size: 4
model_parallel_size: 2
num_layers: 32
hidden_size: 4096
train_micro_batch_size_per_gpu: 4
gradient_accumulation_steps: 8
zero_optimization: {stage: 1, overlap_comm: true}
fp16: {enabled: true}
no_weight_tying: true
"""
TUNE = """model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
batch_size: 2
gradient_accumulation_steps: 8
dtype: bf16
enable_activation_checkpointing: true
"""
FACTORY = """stage: sft
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
deepspeed: ds_z3.json
bf16: true
"""
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
bf16: auto
"""
SWIFT = (
    "megatron sft --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 4 --micro_batch_size 1"
    " --global_batch_size 16 --bf16 true\n"
)
TRAINER = (
    '{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "bf16": true,'
    ' "num_train_epochs": 3}'
)
ZERO = (
    '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled":'
    " true}}"
)
OTHERS = {
    "gpt-neox": ("neox.yml", NEOX),
    "torchtune": ("8b_full.yaml", TUNE),
    "llama-factory": ("sft.yaml", FACTORY),
    "axolotl": ("axolotl.yml", AXOLOTL),
    "ms-swift": ("run.sh", SWIFT),
    "huggingface-trainer": ("arguments.json", TRAINER),
}
MEGATRON = (
    "--tensor-model-parallel-size 2 --num-layers 32 --micro-batch-size 1 --global-batch-size 16"
    " --seq-length 4096 --bf16"
)


def refused(*files: tuple[str, str], framework: str = "") -> DataError:
    with pytest.raises(DataError) as raised:
        launch_of_files(files, model=load_model(LLAMA), devices=16, framework=framework)
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize("framework", sorted(NOT_READ))
def test_files_of_frameworks_that_are_not_read_are_refused_by_name(framework: str) -> None:
    """A YAML file of settings that only this framework has."""
    names = [name for name in NOT_READ[framework].signature.own if "*" not in name]
    assert len(names) >= 3
    text = yaml_text(nested_sections((name.replace("-", "_"), 1) for name in names), comments=())
    assert f"files of {framework} (" in refused(("launch.yaml", text)).message


@pytest.mark.parametrize("framework", sorted(OTHERS))
def test_no_other_reader_takes_a_file_that_is_named_for_it(framework: str) -> None:
    """Neither is it one of the ten frameworks that share keys with it, where the user says
    nothing."""
    mine = OTHERS[framework]
    claims = {
        name: one
        for name, one in claimants().items()
        if name not in included_frameworks(framework, claimants())
    }
    for document in documents_of(mine[1], mine[0], {}):
        assert not [
            name
            for name, one in claims.items()
            if one.claims(document).programs or one.claims(document).own
        ]


def test_settings_of_one_framework_are_of_no_other() -> None:
    """But of those whose files are part of its launches, as DeepSpeed's of Accelerate's."""
    signatures = {name: one.signature for name, one in claimants().items()}  # type: ignore[attr-defined]
    for one, other in combinations(sorted(signatures), 2):
        if one in included_frameworks(other, claimants()) or other in included_frameworks(
            one, claimants()
        ):
            continue
        both = signatures[one].own & signatures[other].own
        kinds = signatures[one].kinds & signatures[other].kinds
        assert not (both and kinds), (one, other, both)


def test_what_two_frameworks_have_alike_is_refused_with_both_names() -> None:
    error = refused(
        ("recipe.yaml", "model: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2}\n")
    )
    assert {"nemo", "megatron-bridge"} <= set(error.message.replace(";", "").split())
    assert "--from" in error.hint


def test_files_of_two_frameworks_are_no_launch() -> None:
    assert (
        "nanotron's"
        in refused(
            (ARGUMENTS, MEGATRON), ("a.yaml", "parallelism: {tp: 2, pp_engine: 1f1b}\n")
        ).message
    )


def test_a_named_framework_has_to_have_something_in_the_file() -> None:
    assert (
        "no setting that is nanotron's" in refused(("ds.json", ZERO), framework="nanotron").message
    )


def test_a_file_that_is_mostly_not_understood_is_refused_with_what_is_not() -> None:
    """At the stated share it is read, and with one setting more it is not."""
    known = 4
    most = int(known / LEAST_UNDERSTOOD - known)
    keys = (
        '"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16":'
        ' {"enabled": true}, "train_batch_size": 16'
    )
    for number in (most, most + 1):
        text = "{" + keys + "".join(f', "custom_{n}": {n}' for n in range(number)) + "}"
        if number == most:
            assert (
                launch_of_files([("ds.json", text)], model=load_model(LLAMA), devices=16).framework
                == "deepspeed"
            )
        else:
            error = refused(("ds.json", text))
            assert f"4 of {4 + number} settings" in error.message
            assert "custom-0" in error.message


def test_parts_of_a_launch_are_claimed_with_it() -> None:
    files = [
        ("ds.sh", f"deepspeed pretrain_gpt.py {MEGATRON} --deepspeed --deepspeed_config ds.json\n"),
        ("ds.json", ZERO),
    ]
    launch = launch_of_files(files, model=load_model(LLAMA), devices=16)
    assert (launch.framework, launch.grid.zero, launch.grid.tp) == ("megatron-deepspeed", 2, 2)


def test_a_launch_that_says_nothing_is_refused_with_the_variables_that_would() -> None:
    error = refused(("run.sh", "srun pretrain_gpt.py ${MEGATRON_PARAMS}\n"))
    assert "no settings of megatron but those of $MEGATRON_PARAMS" in error.message
    assert error.hint == "--set MEGATRON_PARAMS=VALUE"


def test_the_hint_shortens_a_long_variable() -> None:
    error = refused(("run.sh", f"srun pretrain_gpt.py ${{{'A' * 150}}}\n"))
    assert error.hint == f"--set {'A' * 40}=VALUE"


def test_sequence_parallelism_of_megatron_deepspeed_trades_heads() -> None:
    words = f"{MEGATRON} --deepspeed --zero-stage 1 --ds-sequence-parallel-size 4"
    grid = launch_of_files([(ARGUMENTS, words)], model=load_model("llama-2-7b"), devices=16).grid
    assert (grid.tp, grid.cp, grid.ulysses, grid.dp) == (2, 4, 4, 2)
