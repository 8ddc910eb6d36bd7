"""What people write: sharding, recompute, schedules, number formats and devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.parallelism_grid import Recompute
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.training import (
    parse_sharding_recompute_schedule_format_cells as table_spellings,
)
from tests.tiers import examples
from tests.validation.test_anyones_table import case, read


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *[(text, (0, 0)) for text in ("", "-", "n/a", "none", "DDP", "NO_SHARD", "0")],
        *[
            (text, (1, 0))
            for text in (
                "ZeRO-1",
                "zero stage 1",
                "1",
                "Z1",
                "distributed-optimizer",
                "DistOpt",
                "optimizer sharding",
                "optim",
            )
        ],
        *[(text, (2, 0)) for text in ("zero2", "stage 2", "SHARD_GRAD_OP", "optim_grads", "os+g")],
        *[
            (text, (3, 0))
            for text in ("FSDP", "FSDP2", "FULL_SHARD", "Z3", "fully sharded", "optim_grads_params")
        ],
        *[
            (text, (3, 64))
            for text in (
                "FSDP=64",
                "FSDP 64",
                "shard group 64, FSDP",
                "HSDP 64",
                "ZeRO-3 within 64",
                "ZeRO-3 (shard 64)",
            )
        ],
        *[(text, (3, 8)) for text in ("HSDP", "HYBRID_SHARD")],
        ("_HYBRID_SHARD_ZERO2", (2, 8)),
        ("DDP+distributed optimizer (FSDP=0)", (1, 0)),
    ],
)
def test_sharding(said: str, meant: tuple[int, int]) -> None:
    assert table_spellings.sharding(said, node=8) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *[(text, None) for text in ("", "-", "N/A", "?")],
        *[
            (text, (Recompute.NONE, 0))
            for text in (
                "none",
                "no recompute",
                "Disabled",
                "activation checkpointing: false",
                "0",
                "off",
            )
        ],
        *[
            (text, (Recompute.SELECTIVE, 0))
            for text in (
                "selective",
                "selective (per-op)",
                "core_attn",
                "selective AC",
                "attention",
            )
        ],
        *[
            (text, (Recompute.FULL, 0))
            for text in (
                "full",
                "yes",
                "1",
                "AC",
                "gradient checkpointing",
                "full (uniform)",
                "uniform 1",
                "full remat",
                "every layer",
            )
        ],
        *[
            (text, (Recompute.FULL, 10))
            for text in ("full:10", "full 10 layers", "block 10", "10 layers")
        ],
    ],
)
def test_recompute(said: str, meant: tuple[Recompute, int] | None) -> None:
    assert table_spellings.recompute(said) == meant


@pytest.mark.parametrize(
    "said",
    [
        "selective 2",
        "custom",
        "remat:qkv_proj_offloaded",
        "block",
        "full 3 of 4",
        "selective[all]",
        "some",
    ],
)
def test_recompute_that_is_not_understood_is_refused(said: str) -> None:
    with pytest.raises(StrategyError, match="recompute"):
        table_spellings.recompute(said)


@pytest.mark.parametrize(
    ("said", "recipe", "scale"),
    [
        ("bfloat16", "bf16", ""),
        ("half", "fp16", ""),
        ("FP32", "fp32", ""),
        ("BF16 + FP8", "fp8", ""),
        ("MXFP8", "fp8", "mx"),
        ("FP8-CS", "fp8", "current"),
        ("fp8 (delayed scaling)", "fp8", "delayed"),
        ("FP8-subchannel", "fp8", "blockwise"),
        ("float8 rowwise", "fp8", "rowwise"),
        ("NVFP4", "fp4", ""),
        ("mixed", "", ""),
        ("fp32 accumulate", "", ""),
    ],
)
def test_number_formats(said: str, recipe: str, scale: str) -> None:
    assert (table_spellings.number_format(said), table_spellings.scaling(said)) == (recipe, scale)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1F1B (DeepSpeed)", "1f1b"),
        ("1f1b-interleaved-vpp2", "interleaved-1f1b"),
        ("GPipe", "gpipe"),
        ("all forward all backward", "gpipe"),
        ("ZB H1", "zb-h1"),
        ("Zero Bubble", "zb-h1"),
        ("DualPipe-V", "dualpipe-v"),
        ("DualPipe", "dualpipe"),
        ("grad_accum=3", ""),
    ],
)
def test_schedules(said: str, meant: str) -> None:
    assert table_spellings.schedule(said) == meant
    assert not meant or meant in GRID_SCHEDULES


def test_a_row_says_its_schedule() -> None:
    pipeline = {"pp": "2", "tp": "1", "zero_stage_or_fsdp": "none"}
    assert "schedule=gpipe" in print_grid(case(**pipeline, schedule="GPipe").grid)
    interleaved = read(**pipeline, schedule="interleaved")
    assert isinstance(interleaved, SkippedRow)
    assert (interleaved.reason, interleaved.detail) == (SkipReason.INCOMPLETE_CONFIGURATION, "vpp")
    assert "schedule=interleaved-1f1b" in print_grid(
        case(**pipeline, schedule="interleaved", vpp="2").grid
    )
    unknown = case(**pipeline, schedule="our own")
    assert "schedule 1f1b: 'our own' is none that is known here" in unknown.assumptions


def test_scaling_of_the_precision_is_an_option_where_nothing_else_says_it() -> None:
    assert case(precision="MXFP8").runtime == "megatron-core-0.12 fp8=mx"
    assert (
        case(precision="MXFP8", options="fp8=current").runtime == "megatron-core-0.12 fp8=current"
    )
    assert case(precision="MXFP8", runtime="deepspeed").runtime == "deepspeed-0.16"


@pytest.mark.parametrize(
    ("said", "meant"),
    [("8xA100-40G", "a100-sxm-40gb"), ("16 x H100", "h100-sxm"), ("A100 80G", "a100-sxm-80gb")],
)
def test_devices_with_how_many_or_short_of_how_much(said: str, meant: str) -> None:
    assert case(gpu=said, measured_iter_time_s="30").cluster.node.accelerator.name == meant


def test_a_device_without_units_is_told() -> None:
    skip = read(gpu="V100-32GB")
    assert isinstance(skip, SkippedRow)
    assert (skip.reason, skip.detail) == (
        SkipReason.INCONSISTENT_CONFIGURATION,
        "v100-sxm-32gb has no units for bf16",
    )


@examples(150, 1500)
@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(["full", "no", "3", "selective", "shard", "=", "zero", "block", "-"])
    ).map(" ".join)
)
def test_any_words_mean_something_or_are_refused(said: str) -> None:
    for read_words in (
        table_spellings.recompute,
        lambda text: table_spellings.sharding(text, node=8),
    ):
        try:
            read_words(said)
        except StrategyError as error:
            assert error.hint  # noqa: PT017 - whatever is refused has one
    assert table_spellings.schedule(said) in ("", *GRID_SCHEDULES)
    table_spellings.number_format(said)
