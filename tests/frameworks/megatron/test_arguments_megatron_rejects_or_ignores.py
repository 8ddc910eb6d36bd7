"""What Megatron-LM refuses, what does nothing in a launch, and arguments of older releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.api.launches.launch_advice import advise, read_request
from shardwright.api.request_to_problem import load_cluster
from shardwright.cli.main import run
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.megatron.arguments_by_release import RELEASES, release_of, runtime_of
from shardwright.frameworks.read_launch import launch_of_files, read_launch
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.runtime.runtime_registry import is_runtime
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Recompute
from shardwright.strategy.text.grid_notation import parse_grid

SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048"
    " --micro-batch-size 1 --global-batch-size 32 --bf16"
)
PIPELINE = f"{SIZES} --tensor-model-parallel-size 1 --pipeline-model-parallel-size"


def read(arguments: str, *, model: str = "llama-2-7b", devices: int = 8) -> Launch:
    return read_launch([arguments], model=load_model(model), devices=devices)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (f"{PIPELINE} 4", ""),
        (f"{PIPELINE} 8 --num-layers-per-virtual-pipeline-stage 3", "launch.layers"),
        (f"{PIPELINE} 4 --decoder-first-pipeline-num-layers 7", "launch.layers"),
        (f"{PIPELINE} 4 --decoder-first-pipeline-num-layers 5", ""),
        (f"{PIPELINE} 4 --account-for-loss-in-pipeline-split", "launch.layers"),
        (f"{PIPELINE} 4 --pipeline-model-parallel-layout Et*9|t*7|t*9|t*7L", ""),
        (
            f"{PIPELINE} 4 --overlap-param-gather --overlap-grad-reduce",
            "launch.overlap-param-gather",
        ),
        (
            f"{PIPELINE} 4 --overlap-param-gather --use-distributed-optimizer",
            "launch.overlap-param-gather",
        ),
        (f"{PIPELINE} 4 --fp16", "launch.number-format"),
        (f"{PIPELINE} 4 --recompute-granularity full", "launch.recompute"),
        (f"{SIZES} --tensor-model-parallel-size 2 --tp-comm-overlap", "launch.tp-comm-overlap"),
        (
            (
                f"{SIZES} --recompute-granularity selective --checkpoint-activations"
                " --tensor-model-parallel-size 2"
            ),
            "launch.recompute",
        ),
    ],
)
def test_what_megatron_refuses(arguments: str, rule: str) -> None:
    assert {one.rule for one in read(arguments).refused} == ({rule} if rule else set())


def test_unequal_layers_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """30 layers on four stages, without a layout or layers that embedding and head count as."""
    model = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": 30,
        "n_embd": 1024,
        "n_head": 16,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (tmp_path / "gpt30.json").write_text(json.dumps(model))
    sizes = SIZES.replace(
        "32 --hidden-size 4096 --num-attention-heads 32",
        "30 --hidden-size 1024 --num-attention-heads 16",
    )
    sizes = sizes.replace("2048", "1024")
    script = tmp_path / "pretrain.sh"
    script.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --pipeline-model-parallel-size 4\n"
    )
    assert (
        run(["advise", str(script), str(tmp_path / "gpt30.json"), "a100-sxm-80gb:8", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["legal"], found["broken"][0]["rule"]) == (False, "launch.layers")
    assert "30 layers do not divide by 4 stages" in found["broken"][0]["message"]
    assert found["best"] is not None
    # A change of one decision with which the launch would still not start is none.
    assert found["changes"]
    grids = [parse_grid(one["strategy"]) for one in found["changes"]]
    assert all(30 % (grid.pp * grid.vpp) == 0 for grid in grids)


@pytest.mark.parametrize(
    ("more", "idle"),
    [
        (
            "--tensor-model-parallel-size 1 --sequence-parallel --tp-comm-overlap",
            {"sequence-parallel", "tp-comm-overlap"},
        ),
        (
            "--tensor-model-parallel-size 8 --overlap-grad-reduce --use-distributed-optimizer",
            {"overlap-grad-reduce", "use-distributed-optimizer"},
        ),
        ("--tensor-model-parallel-size 4 --overlap-grad-reduce", set()),
        (
            "--tensor-model-parallel-size 2 --recompute-num-layers 2 --recompute-method block",
            {"recompute-num-layers", "recompute-method"},
        ),
        ("--tensor-model-parallel-size 2 --cp-comm-type a2a", {"cp-comm-type"}),
        (
            "--tensor-model-parallel-size 2 --moe-grouped-gemm --expert-model-parallel-size 2",
            {"moe-grouped-gemm", "expert-model-parallel-size"},
        ),
        (
            "--tensor-model-parallel-size 2 --optimizer-offload-fraction 0.5",
            {"optimizer-offload-fraction"},
        ),
    ],
)
def test_settings_without_an_effect_are_told(more: str, idle: set[str]) -> None:
    found = read(f"{SIZES} {more}").of(Verdict.IDLE)
    assert {one.name for one in found} == idle
    assert all(one.means for one in found)


@pytest.mark.parametrize(
    ("arguments", "recompute", "layers", "runtime"),
    [
        (
            "--activations-checkpoint-method uniform --activations-checkpoint-num-layers 1",
            Recompute.FULL,
            0,
            "megatron-2021",
        ),
        (
            "--activations-checkpoint-method block --activations-checkpoint-num-layers 3",
            Recompute.FULL,
            3,
            "megatron-2021",
        ),
        ("--checkpoint-activations --checkpoint-num-layers 1", Recompute.FULL, 0, "megatron-2021"),
        (
            "--recompute-activations --layernorm-epsilon 1e-5",
            Recompute.SELECTIVE,
            0,
            "megatron-2022",
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            Recompute.FULL,
            0,
            "megatron-core-0.12",
        ),
        (
            "--recompute-activations --moe-token-dropping --moe-grouped-gemm",
            Recompute.SELECTIVE,
            0,
            "megatron-core-0.6",
        ),
        ("--enable-one-logger --moe-extended-tp", Recompute.NONE, 0, "megatron-core-0.7"),
    ],
)
def test_arguments_of_older_releases_are_known_by_their_release(
    arguments: str, recompute: Recompute, layers: int, runtime: str
) -> None:
    launch = read(
        f"{SIZES} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 {arguments}"
    )
    assert (launch.grid.recompute, launch.grid.recompute_layers, launch.runtime) == (
        recompute,
        layers,
        runtime,
    )
    told = [note for note in launch.notes if "read as a launch of" in note]
    assert bool(told) == (runtime != "megatron-core-0.12")


def test_a_runtime_that_is_named_stands_before_the_release() -> None:
    words = f"{SIZES} --tensor-model-parallel-size 2 --activations-checkpoint-method uniform"
    assert (
        read_launch(
            [words], model=load_model("llama-2-7b"), devices=8, runtime="megatron-core-0.12"
        ).runtime
        == "megatron-core-0.12"
    )


def test_every_release_has_a_runtime() -> None:
    for names in (
        {},
        {"recompute-modules": ""},
        {"fp4-format": ""},
        {"checkpoint-num-layers": ""},
        {"moe-token-dropping": ""},
    ):
        assert release_of(names)[0] in RELEASES
        assert is_runtime(runtime_of(names)[0])


def test_a_launch_in_32_bits_by_mistake_is_told_what_it_costs() -> None:
    """The missing --bf16 is named before any strategy, with what it gains."""
    words = (
        f"{SIZES.replace(' --bf16', '')} --tensor-model-parallel-size 2 --sequence-parallel"
        " --attention-dropout 0 --hidden-dropout 0"
    )
    request = Request(model="llama-2-7b", cluster="a100-sxm-80gb:4", seq_len=0, global_batch=0)
    launch, asked = read_request([words], request, cluster=load_cluster("a100-sxm-80gb:4"))
    advice = advise(launch, asked)
    assert asked.precision == "fp32"
    assert advice.now is not None
    cause = advice.causes[0]
    assert cause.added == (("bf16", "true"),)
    assert cause.step_time_s < advice.now.prediction.step_time_s / 8
    assert all(change.gain < cause.gain for change in advice.changes)
    again, asked = read_request(
        [f"{words} --bf16"], request, cluster=load_cluster("a100-sxm-80gb:4")
    )
    advice = advise(again, asked)
    assert advice.now is not None
    assert advice.now.prediction.step_time_s == cause.step_time_s
    assert advice.causes == ()


def test_an_overlap_with_what_is_not_there_is_told_of_other_frameworks() -> None:
    """torchtitan's asynchronous tensor parallelism without tensor parallelism."""
    text = (
        "[training]\nlocal_batch_size = 1\n[parallelism]\ntensor_parallel_degree ="
        " {}\nenable_async_tensor_parallel = true\n"
    )
    for tp, idle in ((1, True), (2, False)):
        launch = launch_of_files(
            [("a.toml", text.format(tp))], model=load_model("llama-2-7b"), devices=8
        )
        assert bool(launch.of(Verdict.IDLE)) == idle
