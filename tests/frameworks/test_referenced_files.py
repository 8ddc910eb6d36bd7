"""A file that a launch names is read where it is, and named with what is not known where it is
not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.errors import DataError
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import launch_of_files, read_launch
from shardwright.model.catalog.load_model_by_name import load_model

SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048"
    " --micro-batch-size 1 --global-batch-size 16 --fp16"
)
MEGATRON = f"pretrain_gpt.py --tensor-model-parallel-size 2 {SIZES}"
DEEPSPEED = f"deepspeed --hostfile hosts {MEGATRON} --deepspeed --deepspeed_config ds.json\n"
ACCELERATE = (
    "srun bash -c 'accelerate launch --config_file fsdp.yaml --num_machines 2 train.py --lr 1'\n"
)
TITAN = (
    "CONFIG_FILE=${CONFIG_FILE:-llama.toml}\ntorchrun -m torchtitan.train --job.config_file"
    " ${CONFIG_FILE}\n"
)
TITAN_PYTHON = "ParallelismConfig(tensor_parallel_degree=2)\nTrainingConfig(local_batch_size=1)\n"
CASES = {
    "megatron-deepspeed": (
        "ds.sh",
        DEEPSPEED,
        "ds.json",
        '{"zero_optimization": {"stage": 2}}',
        "the stage of ZeRO",
    ),
    "deepspeed": (
        "ds.sh",
        "deepspeed train.py --deepspeed ds.json",
        "ds.json",
        '{"zero_optimization": {"stage": 2}}',
        "the stage of ZeRO",
    ),
    "accelerate": (
        "acc.sh",
        ACCELERATE,
        "fsdp.yaml",
        "distributed_type: FSDP\nmixed_precision: bf16\n",
        "how the model is sharded",
    ),
    "torchtitan": (
        "run.sh",
        TITAN,
        "llama.toml",
        "[parallelism]\ntensor_parallel_degree = 2\n",
        "the strategy",
    ),
    "torchtitan 0.3": (
        "run.sh",
        "torchrun -m torchtitan.train --module plan --config f",
        "plan.py",
        TITAN_PYTHON,
        "the strategy",
    ),
    "nanotron": (
        "run.sh",
        "torchrun run_train.py --config-file a.yaml",
        "a.yaml",
        "parallelism: {tp: 2}\n",
        "the strategy",
    ),
    "maxtext": (
        "run.sh",
        "python -m MaxText.train configs/mine.yml steps=1",
        "mine.yml",
        "ici_fsdp_parallelism: -1\n",
        "the strategy",
    ),
}


def read(*files: tuple[str, str]) -> Launch:
    return launch_of_files(files, model=load_model("llama-2-7b"), devices=16)


@pytest.mark.parametrize("framework", CASES)
def test_a_file_that_is_not_there_is_named_with_what_it_holds(framework: str) -> None:
    name, text, named, _, holds = CASES[framework]
    with pytest.raises(DataError) as raised:
        read((name, text))
    assert named in raised.value.message
    assert f"without it {holds}" in raised.value.message
    assert "before MODEL" in raised.value.hint


@pytest.mark.parametrize("framework", CASES)
def test_a_file_that_is_given_or_lies_beside_the_script_is_read(
    framework: str, tmp_path: Path
) -> None:
    name, text, named, body, _ = CASES[framework]
    given = read((name, text), (named, body))
    (tmp_path / name).write_text(text)
    (tmp_path / named).write_text(body)
    beside = read_launch([str(tmp_path / name)], model=load_model("llama-2-7b"), devices=16)
    assert given.framework == beside.framework == framework.partition(" ")[0]
    assert given.grid == beside.grid


def test_what_the_command_says_stands_before_its_file() -> None:
    command = "accelerate launch --config_file fsdp.yaml --mixed_precision fp16 train.py --lr 1\n"
    launch = read(
        ("a.sh", command), ("fsdp.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n")
    )
    assert (launch.precision, launch.grid.zero) == ("fp16", 3)


def test_a_missing_file_whose_settings_are_said_elsewhere_is_a_note() -> None:
    launch = read(("ds.sh", DEEPSPEED.replace("--deepspeed ", "--deepspeed --zero-stage 1 ")))
    assert launch.grid.zero == 1
    assert any("ds.json was not given" in note for note in launch.notes)
    assert any("hosts" in note and "CLUSTER" in note for note in launch.notes)


def test_a_file_that_a_command_writes_is_named_with_the_command() -> None:
    with pytest.raises(DataError, match=r"ds.json, which was not given \(sed writes it"):
        read(("ds.sh", f"sed s/A/1/ template.json > ds.json\n{DEEPSPEED}"))


def test_accelerate_without_a_file_reads_the_machines_own() -> None:
    with pytest.raises(DataError, match=r"default_config\.yaml of the machine"):
        read(("a.sh", "accelerate launch --mixed_precision bf16 train.py --lr 1\n"))
    with pytest.raises(DataError, match=r"default_config\.yaml of the machine"):
        read(("a.sh", "accelerate launch train.py --lr 1\n"))
    assert (
        read(
            ("a.sh", "accelerate launch --use_fsdp --mixed_precision bf16 train.py --lr 1\n")
        ).grid.zero
        == 3
    )


def test_a_sourced_script_is_followed_or_told(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("TP=4\n")
    (tmp_path / "run.sh").write_text(
        f"source env.sh\nsource /etc/other.sh\ntorchrun {MEGATRON} --tensor-model-parallel-size"
        " $TP\n"
    )
    launch = read_launch([str(tmp_path / "run.sh")], model=load_model("llama-2-7b"), devices=16)
    assert launch.grid.tp == 4
    assert any("other.sh is not here" in note for note in launch.notes)


def test_processes_that_are_not_the_clusters_are_told() -> None:
    launch = read(("run.sh", f"torchrun --nnodes 4 --nproc_per_node 8 {MEGATRON}"))
    assert "torchrun starts 32 processes, CLUSTER has 16 devices" in launch.notes


def test_the_verb_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "acc.sh").write_text(ACCELERATE)
    assert (
        run(
            [
                "advise",
                str(tmp_path / "acc.sh"),
                "llama-2-7b",
                "h100-sxm:16",
                "--seq-len",
                "2048",
                "--global-batch",
                "16",
            ]
        )
        == 7
    )
    assert "fsdp.yaml, which was not given" in capsys.readouterr().err


def test_a_variable_that_the_script_does_not_say_is_asked_for_by_its_name() -> None:
    for name, what in (
        ("10", "an argument that the script is called with"),
        ("TP", "a variable of a script"),
    ):
        with pytest.raises(DataError) as raised:
            read(("run.sh", f"torchrun {MEGATRON} --tensor-model-parallel-size ${{{name}}}"))
        assert raised.value.hint == f"--set {name}=VALUE gives {what} a value"


def test_the_hint_shortens_a_long_variable() -> None:
    with pytest.raises(DataError) as raised:
        read(("run.sh", f"torchrun {MEGATRON} --tensor-model-parallel-size ${{{'A' * 150}}}"))
    assert raised.value.hint == f"--set {'A' * 40}=VALUE gives a variable of a script a value"
