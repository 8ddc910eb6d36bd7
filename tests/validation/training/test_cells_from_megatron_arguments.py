"""Cells and options of a row from the arguments that its run was launched with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.parse_launch_arguments import options_from_arguments, parse_arguments
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.training_table_columns import TrainingMeasurement
from tests.tiers import examples

DENSE = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32\
 --group-query-attention --num-query-groups 8
 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --seq-length 8192\
 --micro-batch-size 1 --global-batch-size 128
 --vocab-size 128256 --bf16 --attention-dropout 0 --hidden-dropout 0.0 --lr 3e-4 --save /ckpt"""
SPLIT = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"
    " --use-distributed-optimizer"
)
LATENT = """--num-layers 15 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 32\
 --swiglu --seq-length 4096
 --micro-batch-size 1 --global-batch-size 32 --vocab-size 50257 --bf16 --num-experts 32\
 --moe-router-topk 4 --moe-ffn-hidden-size 1024
 --moe-shared-expert-intermediate-size 1024 --moe-layer-freq ([0]*3+[1]*12)\
 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512
 --mtp-num-layers 1 --untie-embeddings-and-output-weights"""


def row(launch: str, **cells: object) -> TrainingMeasurement:
    given = {
        "gpu": "H100",
        "gpu_count": 16,
        "measured_iter_time_s": 9.0,
        "runtime": "megatron-core",
        **cells,
    }
    return TrainingMeasurement(
        line=2, source_id="mine", table_or_row="1", model_name="our own", launch=launch, **given
    )  # type: ignore[arg-type]


def case(launch: str, **cells: object) -> TrainingRun:
    found = to_training_run(row(launch, **cells), facts=TableFacts())
    assert isinstance(found, TrainingRun), found
    return found


@pytest.mark.parametrize(
    "text",
    [
        "--a-b 2 --c --d x y",
        "--a_b=2 --c --d 'x y'",
        "--a-b: 2 --c: true --d: 'x y'",
        "a_b=2 c=true d='x y'",
    ],
)
def test_arguments_however_they_are_written(text: str) -> None:
    assert parse_arguments(text) == {"a-b": "2", "c": "true", "d": "x y"}
    assert parse_arguments(f"{text} --c=false") == {"a-b": "2", "d": "x y"}


def test_a_row_is_its_launch() -> None:
    """Every cell that the launch says; what is not among its arguments is Megatron's default:
    nothing overlaps, states are whole."""
    found = case(f"{DENSE} {SPLIT}")
    assert print_grid(found.grid).startswith(
        "tp2 sp pp2 dp4 mbs1 zero1 recompute=none schedule=1f1b"
    )
    assert (
        found.job.global_batch,
        found.job.sequence_length,
        found.job.dropout,
        found.job.compute.value,
    ) == (128, 8192, False, "bf16")
    assert found.model.num_parameters == pytest.approx(8.03e9, rel=1e-2)
    options = dict(load_runtime(found.runtime).options)
    assert options == {
        "tp_overlap": "dgrad",
        "grad_overlap": "off",
        "param_overlap": "off",
        "dispatcher": "allgather",
    }
    assert any("tp 2" in line and line.endswith("its launch") for line in found.assumptions)


def test_cells_and_options_of_the_row_come_before_its_launch() -> None:
    said = case(f"{DENSE} {SPLIT} --overlap-grad-reduce", tp=4, options="grad_overlap=off loss=te")
    assert said.grid.tp == 4
    options = dict(load_runtime(said.runtime).options)
    assert (options["grad_overlap"], options["loss"]) == ("off", "te")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--num-layers-per-virtual-pipeline-stage 4", "vpp4"),
        ("--num-virtual-stages-per-pipeline-rank 8", "vpp8"),
        ("--decoder-first-pipeline-num-layers 15", "first=15"),
        ("--pipeline-model-parallel-layout 'Et*15|t*17L'", "first=15"),
        ("--pipeline-model-parallel-layout 'Et*7|(t*9|)*2t*7L'", "layers=7,9,9,7"),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "recompute=full",
        ),
        ("--recompute-granularity selective", "recompute=selective"),
        ("--recompute-granularity selective --recompute-modules layernorm mlp", "recompute=none"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero2"),
    ],
)
def test_what_arguments_mean(more: str, words: str) -> None:
    split = SPLIT if "fsdp" not in more else ""
    assert words in print_grid(case(f"{DENSE} {split} {more}").grid).split()


def test_options_by_their_flags() -> None:
    base = load_runtime("megatron-core")
    said = (
        "--tp-comm-overlap --overlap-grad-reduce --cross-entropy-loss-fusion"
        " --cross-entropy-fusion-impl te --fp8-recipe mxfp8"
    )
    found = dict(options_from_arguments(base, parse_arguments(said)))
    wanted = {
        "tp_overlap": "userbuffers",
        "grad_overlap": "on",
        "param_overlap": "off",
        "loss": "te",
        "fp8": "mx",
    }
    assert found.items() >= wanted.items()
    # Nothing among them says how tokens travel.
    assert "dispatcher" not in found


def test_experts_are_split_over_tp_where_the_launch_does_not_say() -> None:
    experts = (
        LATENT
        + " --tensor-model-parallel-size 2 --expert-model-parallel-size 4 --sequence-parallel"
    )
    assert case(experts).grid.etp == 2
    assert case(f"{experts} --expert-tensor-parallel-size 1").grid.etp == 1


def test_latent_attention_dense_layers_and_further_tokens() -> None:
    """3 dense layers, 12 with experts, and one that predicts a further token."""
    model = case(f"{LATENT} --expert-model-parallel-size 4").model
    assert (
        sum(
            any(o.experts for o in block.operators)
            for run in model.runs
            for block in [model.blocks[run.block]] * run.count
        )
        == 13
    )


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (f"{DENSE} --num-layers many", "layers 'many' is not a whole number"),
        (f"{DENSE} {SPLIT} --pipeline-model-parallel-layout t*31x|tL", "is not known here"),
        (f"{DENSE} {SPLIT} --pipeline-model-parallel-layout t|t|t", "3 chunks for pp 2"),
        (f"{DENSE} --multi-latent-attention", "latent attention"),
        (f"{DENSE} --mtp-num-layers 1", "further tokens"),
        (f"{DENSE} --save 'unfinished", "cannot be read"),
        ("--bf16 " * 4000, "characters"),
    ],
)
def test_what_cannot_be_read_is_told(launch: str, said: str) -> None:
    skip = to_training_run(row(launch), facts=TableFacts())
    assert isinstance(skip, SkippedRow)
    assert (skip.reason, said in skip.detail) == (
        SkipReason.UNSUPPORTED_STRATEGY,
        True,
    ), skip.detail


WORDS = st.sampled_from([*f"{DENSE} {SPLIT} {LATENT}".split(), "--x", "=", "|", "'", "-1", "1e9"])


@examples(100, 1000)
@given(st.text(max_size=200) | st.lists(WORDS).map(" ".join))
def test_any_text_is_a_case_or_a_skip(text: str) -> None:
    assert isinstance(
        to_training_run(
            row(text, seq_len=128, micro_batch=1, precision="bf16"), facts=TableFacts()
        ),
        TrainingRun | SkippedRow,
    )
