"""Rows to cases: configurations, measured seconds, memory, and reasons for what is skipped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.model.catalog.load_model_by_name import catalog_entry
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Recompute
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import GIB
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.training.measured_training_run import MeasuredKind, TrainingRun
from shardwright.validation.training.row_model_from_config_catalog_or_sizes import FORMS
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.training_table_columns import MemoryKind, TrainingMeasurement
from tests.tiers import examples
from tests.validation.published import case_of as _case
from tests.validation.published import facts
from tests.validation.published import rows as _rows

PLAIN = "tp_overlap=dgrad"


def _row(source: str, words: str) -> TrainingMeasurement:
    return next(
        r
        for r in _rows("training.csv")
        if r.source_id == source and words in f"{r.model_name} {r.table_or_row}"
    )


def _skip(row: TrainingMeasurement) -> SkippedRow:
    skip = to_training_run(row, facts=facts())
    assert isinstance(skip, SkippedRow)
    return skip


def test_every_row_of_the_copy_is_a_case() -> None:
    counts = Counter(
        _case(row).measurement.source_id
        for row in _rows("training.csv", "heterogeneous.csv", "megatron_ci.csv")
    )
    assert counts["korthikanti"] == 8
    assert counts["mlm_sc21"] == 10
    assert counts["sc21_table2"] == 3
    assert counts["simumax_b200"] == 22
    assert counts["mosaic"] == 182
    assert counts["amp_homo"] == 47
    assert counts["amp_het"] == 23
    assert counts["mlm_ci"] == 165
    assert counts["bloom"] == 57
    assert counts["nanotron"] == 26
    assert sum(counts.values()) == 1077
    assert counts["tpu_recipes"] == 11


def test_korthikanti_175b_with_sequence_parallelism() -> None:
    case = _case(_row("korthikanti", "gpt3-175B selective"))
    assert print_grid(case.grid).startswith(
        "tp8 sp pp8 vpp3 dp1 mbs1 zero0 recompute=selective schedule=interleaved-1f1b"
    )
    assert (case.measured_kind, case.measured_s, case.runtime) == (
        MeasuredKind.ITERATION_TIME,
        13.75,
        "megatron-2022",
    )
    assert case.cluster.expression == "a100-sxm-80gb:64"
    assert case.cluster.num_devices == 64
    assert (case.job.compute, case.job.dropout, case.job.global_batch) == (Dtype.FP16, True, 64)
    assert case.model.num_parameters == pytest.approx(174.6e9, rel=1e-3)
    assert case.model.vocab == 51200


def test_sc21_seconds_are_the_papers_formula() -> None:
    case = _case(_row("mlm_sc21", "1T"))
    flops = (
        96 * 3072 * 2048 * 128 * 25600**2 * (1 + 2048 / (6 * 25600) + 51200 / (16 * 128 * 25600))
    )
    assert case.measured_s == pytest.approx(flops / (3072 * 163e12))
    assert case.measured_kind is MeasuredKind.TFLOPS_FORMULA
    assert case.runtime == "megatron-2021"
    assert case.grid.recompute is Recompute.FULL


def test_tokens_per_second_become_seconds() -> None:
    case = _case(_row("mlm_llama", "LLAMA3-405B"))
    assert case.measured_s == pytest.approx(512 * 8192 / (315 * 1024))
    assert case.measured_kind is MeasuredKind.TOKENS_PER_SECOND
    assert (case.grid.dp, case.grid.vpp, case.grid.sp, case.grid.zero) == (8, 8, True, 1)
    assert case.job.compute is Dtype.FP8
    assert case.model.num_parameters == pytest.approx(405.85e9, rel=1e-3)
    assert any(text.startswith("recompute none") for text in case.assumptions)


def test_sharding_words() -> None:
    full = _case(_row("mosaic", "MPT-13b"))
    assert (full.grid.zero, full.grid.shard, full.grid.recompute) == (3, 0, Recompute.FULL)
    assert _case(_row("mosaic", "MPT-3b")).grid.zero == 2
    words = {"ZeRO-1 within 8 GPUs (hybrid)": (1, 8), "ZeRO-1 over all DP": (1, 0), "FSDP": (3, 0)}
    base = next(
        r for r in _rows("training.csv") if r.source_id == "internevo" and (r.dp or 0) >= 64
    )
    for text, expected in words.items():
        grid = _case(replace(base, zero_stage_or_fsdp=text)).grid
        assert (grid.zero, grid.shard) == expected
    assert (
        _skip(replace(base, zero_stage_or_fsdp="magic")).reason is SkipReason.UNSUPPORTED_STRATEGY
    )


def test_the_column_of_precision_says_the_recipe() -> None:
    """Options of several rules join: a row's scaling beside what its launch script sets."""
    rows = [r for r in _rows("training.csv") if "rowwise" in r.precision.lower()]
    assert rows
    for case in map(_case, rows):
        assert case.job.compute is Dtype.FP8
        assert "fp8=rowwise" in case.runtime.split()
        assert any(
            "fp8=rowwise: float8.recipe_name" in assumption for assumption in case.assumptions
        )
    for precision, mx in (("MXFP8", True), ("FP8-CS", False), ("NVFP4", False)):
        row = next(
            r
            for r in _rows("training.csv")
            if r.precision == precision and r.gpu == "GB200" and r.model_name.startswith("LLAMA3")
        )
        assert ("fp8=mx" in _case(row).runtime.split()) is mx


def test_pure_mixed_precision_reduces_in_bf16() -> None:
    pure = next(r for r in _rows("training.csv") if "PURE" in r.precision)
    assert _case(pure).job.gradient_wire is Dtype.BF16
    assert _case(replace(pure, precision="amp_bf16/MP=DEFAULT")).job.gradient_wire is None


def test_memory_keeps_what_it_counts() -> None:
    first = _case(_row("simumax_b200", "llama3_70b_l12_tp1_pp2_dp4_mbc4"))
    assert (first.memory_kind, first.memory_bytes) == (
        MemoryKind.ALLOCATED_FIRST_STAGE,
        round(66.55 * GIB),
    )
    worst = _case(_row("simumax_b200", "deepseekv2_tp1_ep4_pp2_dp4_l4_mbc4"))
    assert worst.memory_kind is MemoryKind.ALLOCATED_WORST
    assert worst.model.num_parameters > 13e9
    assert _case(_row("torchtitan", "Table1 FSDP")).memory_kind is MemoryKind.RESERVED_WORST
    golden = _case(_rows("megatron_ci.csv")[0])
    assert golden.memory_kind is MemoryKind.ALLOCATED_LAST_STAGE
    assert golden.measured_s is None


def test_partitions_become_first_and_last() -> None:
    uneven = [
        c for r in _rows("training.csv") if r.source_id == "amp_homo" and (c := _case(r)).grid.first
    ]
    assert uneven
    assert {(c.grid.pp, c.grid.first, c.grid.last) for c in uneven} >= {(8, 2, 4)}
    assert all(c.cluster.node.num_devices == 4 for c in uneven)
    assert all(
        c.cluster.node.nic.bandwidth * c.cluster.node.nics == pytest.approx(6.25e9) for c in uneven
    )


def test_uneven_partitions_become_layers() -> None:
    cases = [_case(r) for r in _rows("training.csv") if r.source_id == "amp_homo"]
    listed = {c.grid.pp: c.grid for c in cases if c.grid.layers}
    assert listed[8].layers == (2, 4, 3, 3, 3, 3, 3, 3)
    assert sum(listed[16].layers) == 24
    assert {c.job.gradient_wire for c in cases} == {Dtype.FP32}


def test_context_parallelism_by_source() -> None:
    assert _case(_row("simumax_b200", "llama3_70b_l12_tp2_cp4_pp1_dp1_seq32768")).grid.ulysses == 4
    assert _case(_row("dgxc", "Llama 3.1 8b")).grid.ulysses == 1


def test_words_of_a_row_choose_the_runtime() -> None:
    runtimes = {_case(r).runtime for r in _rows("training.csv") if r.source_id == "torchtitan"}
    paper = {"torchtitan-0.1", "torchtitan-0.1 tp_overlap=async"}
    rowwise = {f"{name} fp8=rowwise" for name in paper}
    assert runtimes == paper | rowwise | {
        "torchtitan-0.2 fp8_gather=on",
        "torchtitan-0.2 kernels=eager",
    }
    assert _case(_row("torchtitan", "Table1 FSDP")).runtime == "torchtitan-0.2 kernels=eager"
    assert _case(_row("dgxc", "Maxtext Llama3 70b BF16")).runtime == "maxtext remat=save_qkv_proj"


@pytest.mark.parametrize(
    ("test", "runtime", "dropout"),
    [
        (
            "gpt/gpt3_mcore_te_tp1_pp4_vp1",
            "megatron-core-0.12 attention=unfused wgrad_fusion=off tp_overlap=dgrad",
            True,
        ),
        ("gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist", f"megatron-core-0.12 {PLAIN}", True),
        (
            "gpt/gpt3_mcore_te_tp2_pp2_cp2_calculate_per_token_loss",
            "megatron-core-0.12 tp_overlap=dgrad",
            False,
        ),
        (
            "gpt/gpt3_mcore_tp1_pp4",
            (
                "megatron-core-0.12 transformer=local attention=unfused wgrad_fusion=off"
                " tp_overlap=dgrad"
            ),
            True,
        ),
        (
            "moe/gpt3_mcore_tp2_cp2_pp2_ep2_te_4experts2parallel_dp_last",
            "megatron-core-0.12 tp_overlap=dgrad",
            True,
        ),
        (
            "gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist_cross_entropy_loss_fusion",
            "megatron-core-0.12 loss=native tp_overlap=dgrad",
            True,
        ),
    ],
)
def test_names_of_functional_tests_settle_what_they_run(
    test: str, runtime: str, dropout: bool
) -> None:
    case = _case(next(r for r in _rows("megatron_ci.csv") if r.table_or_row == test))
    assert (case.runtime, case.job.dropout) == (runtime, dropout)


@pytest.mark.parametrize(
    ("source", "place", "runtime", "vpp", "dropout"),
    [
        (
            "dgxc",
            "Maxtext LLama2 70b BF16 | Throughput on 64x",
            "maxtext remat=save_dot_except_mlpwi",
            1,
            False,
        ),
        (
            "dgxc",
            "Maxtext LLama2 70b FP8 | Throughput on 64x",
            "maxtext remat=save_dot_except_mlp",
            1,
            False,
        ),
        (
            "dgxc",
            "Maxtext Llama3 70b FP8 | Throughput on 128x",
            "maxtext remat=save_qkv_proj",
            1,
            False,
        ),
        ("dgxc", "NeMo Megatron 24.11 FP8 | 128x", "nemo-24.07 fp8_gather=on", 12, True),
        ("dgxc", "NeMo Megatron FP8 | 128x", "nemo-24.07 attention=cudnn fp8_gather=on", 6, True),
        (
            "mbridge",
            "26.04 NeMo Container/Pre-Training/Model: LLAMA3_70B L303",
            "megatron-bridge tp_overlap=dgrad",
            5,
            False,
        ),
        (
            "mbridge",
            "26.04 NeMo Container/Pre-Training/Model: LLAMA3_70B L304",
            "megatron-bridge fp8=mx",
            5,
            False,
        ),
        (
            "mbridge",
            "26.04 NeMo Container/Pre-Training/Model: LLAMA3_70B L306",
            "megatron-bridge wgrad_fusion=off",
            1,
            False,
        ),
        (
            "mbridge",
            "25.11 NeMo Container/Pre-Training/System: DGX-GB300 L552",
            "megatron-bridge graphs=iteration",
            1,
            False,
        ),
    ],
)
def test_a_release_runs_what_its_launch_script_sets(
    source: str, place: str, runtime: str, vpp: int, dropout: bool
) -> None:
    case = _case(
        next(
            r
            for r in _rows("training.csv")
            if r.source_id == source and r.table_or_row.startswith(place)
        )
    )
    assert (case.runtime, case.grid.vpp, case.job.dropout) == (runtime, vpp, dropout)


def test_functional_tests_know_their_devices_and_experts() -> None:
    rows = {r.table_or_row: r for r in _rows("megatron_ci.csv") if r.gpu == "GB200"}
    one = rows["gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files_1node"]
    two = rows["gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files"]
    assert one.gpu_count is two.gpu_count is None
    assert (_case(one).grid.dp, _case(two).grid.dp) == (4, 8)
    assert "gpu_count 8: the recipe of its test" in _case(two).assumptions
    assert (
        _case(rows["moe/gpt3_mcore_te_tp2_pp1_te_a2a_ovlp_8experts_etp1_ep4_1node"]).grid.etp == 1
    )
    shared = _case(
        rows[
            "moe/gpt3_mcore_te_tp2_pp1_resume_torch_dist_te_8experts2parallel_multi_dist_optimizer_instances"
        ]
    )
    assert (shared.grid.etp, shared.grid.zero, shared.grid.shard) == (2, 1, 2)
    assert (
        _skip(replace(two, table_or_row="gpt/gpt3_15b_8t_release")).reason
        is SkipReason.INCOMPLETE_CONFIGURATION
    )


def test_offload_that_a_table_does_not_print_is_named() -> None:
    rows = {
        r.table_or_row: r
        for r in _rows("skipped_training.csv")
        if r.source_id == "mbridge" and r.model_name == "LLAMA3_70B"
    }
    reasons = {_skip(row).reason for row in rows.values()}
    assert SkipReason.INCONSISTENT_CONFIGURATION in reasons
    assert SkipReason.UNSUPPORTED_STRATEGY not in reasons
    grids = [
        _case(r).grid
        for r in _rows("training.csv")
        if r.source_id == "mbridge" and r.model_name == "LLAMA3_70B"
    ]
    assert sorted(g.host for g in grids if g.host) == 5 * [20] + 6 * [40]
    assert all(g.zero == 3 for g in grids if g.host)


@pytest.mark.parametrize(
    "name",
    [
        "skipped_training.csv",
        "skipped_heterogeneous.csv",
        "skipped_failed.csv",
        "skipped_megatron_ci.csv",
    ],
)
def test_skipped_rows_have_a_reason(name: str) -> None:
    assert all(_skip(row).reason in SkipReason for row in _rows(name))


def test_reasons_cover_the_list() -> None:
    base = _row("korthikanti", "gpt3-175B full")
    reasons = {
        SkipReason.LOW_QUALITY: replace(base, notes="LOW QUALITY"),
        SkipReason.INCOMPLETE_CONFIGURATION: replace(base, micro_batch=None),
        SkipReason.INCONSISTENT_CONFIGURATION: replace(base, dp=2),
        SkipReason.UNKNOWN_ACCELERATOR: replace(base, gpu="abacus"),
        SkipReason.UNSUPPORTED_MODEL: replace(base, model_name="mystery"),
        SkipReason.UNSUPPORTED_RUNTIME: replace(base, source_id="elsewhere", runtime="abacus-9"),
        SkipReason.UNSUPPORTED_STRATEGY: replace(base, recompute="selective[moe]"),
        SkipReason.MIXED_CLUSTER: replace(base, gpu="mixed"),
        SkipReason.FINE_TUNING: replace(base, table_or_row="LoRA L4"),
        SkipReason.NO_MEASUREMENT: replace(base, measured_iter_time_s=None),
        SkipReason.AMBIGUOUS_FAILURE: replace(base, notes="FAILED/inf (OOM or hang)"),
    }
    assert set(reasons) == set(SkipReason) - {SkipReason.DUPLICATE}, (
        "copies are marked in tables of serving alone"
    )
    for reason, row in reasons.items():
        assert _skip(row).reason is reason


def test_what_lacks_comes_before_what_cannot_be_said() -> None:
    """A row counts as specified only where all of it is there, whatever its devices."""
    assert _skip(
        next(r for r in _rows("skipped_heterogeneous.csv") if r.gpu == "mixed" and not r.seq_len)
    ).reason is (SkipReason.INCOMPLETE_CONFIGURATION)


def test_a_run_that_did_not_fit_is_a_negative() -> None:
    case = _case(
        replace(_row("korthikanti", "gpt3-175B full"), notes="OOM", measured_iter_time_s=None)
    )
    assert not case.ran
    assert case.measured_s is None


_COUNTS = st.one_of(
    st.none(), st.integers(min_value=0, max_value=10**15), st.sampled_from([1, 2, 3, 8, 96])
)
_WORDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["none", "full", "FSDP", "ZeRO-2", "FSDP2 (full) 0", "bf16", "fp8"]),
)
_NOTES = st.sampled_from(
    [
        "OOM",
        "layer partition boundaries over 30 pseudo-layers=[0, , 30]",
        "layer partition boundaries over 30 pseudo-layers=[30, 0, 3]",
        "layers_per_stage=[1]",
        "layers_per_stage=[13,12,12,12,12,12,12,13]",
    ]
)
_FIELDS = {
    **dict.fromkeys(
        (
            "tp",
            "pp",
            "cp",
            "vpp",
            "dp",
            "ep",
            "hidden",
            "heads",
            "kv_heads",
            "ffn_hidden",
            "vocab",
            "layers",
        ),
        _COUNTS,
    ),
    **dict.fromkeys(
        ("gpus_per_node", "gpu_count", "global_batch", "micro_batch", "seq_len"), _COUNTS
    ),
    **dict.fromkeys(
        ("recompute", "zero_stage_or_fsdp", "precision", "offload", "inter_net", "gpu_mix"), _WORDS
    ),
    "notes": _NOTES,
    "model_name": st.sampled_from(
        ["DeepSeekV3", "Qwen3_30B_a3B", "LLAMA3-405B", "MPT-7b", "Nemotron4 15b"]
    ),
}


@examples(50, 1500)
@given(
    st.fixed_dictionaries({}, optional=_FIELDS),
    st.integers(min_value=1, max_value=4),
    st.integers(min_value=0, max_value=638),
)
def test_any_row_is_a_case_or_a_skip(fields: dict[str, Any], changes: int, index: int) -> None:
    row = _rows("training.csv")[index]
    assert isinstance(
        to_training_run(replace(row, **dict(list(fields.items())[:changes])), facts=facts()),
        TrainingRun | SkippedRow,
    )


def test_facts_name_runtimes_and_models_that_exist() -> None:
    given = [(rule, {**rule.fill, **rule.replace}) for rule in facts().rules]
    runtimes = {cells["runtime"] for _, cells in given if "runtime" in cells}
    assert len(runtimes) > 30
    assert all(load_runtime(name).base == name.split()[0] for name in runtimes)
    models = {cells["architecture"] for _, cells in given if "architecture" in cells}
    assert {name for name in models if name not in FORMS} == {
        catalog_entry(name).names[0] for name in models if name not in FORMS
    }
    assert all(find_accelerator(row.gpu) for row in _rows("training.csv", "megatron_ci.csv"))


@pytest.mark.parametrize("name", ["mosaic", "mlm_sc21"])
def test_parameters_agree_with_the_source(name: str) -> None:
    for row in _rows("training.csv"):
        if row.source_id == name and row.params_b and row.params_b > 4:
            assert _case(row).model.num_parameters == pytest.approx(row.params_b * 1e9, rel=5e-3)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("measured_iter_time_s", 0.01375, "less than the"), ("seq_len", 2**31, "at peak")],
)
def test_what_no_device_can_do_is_inconsistent(field: str, value: Any, said: str) -> None:
    """13.75 ms instead of s; a length whose scores take years."""
    skip = _skip(replace(_row("korthikanti", "gpt3-175B selective"), **{field: value}))
    assert (skip.reason, said in skip.detail) == (SkipReason.INCONSISTENT_CONFIGURATION, True)


TAUGHT = TrainingMeasurement(
    line=2,
    source_id="lab",
    table_or_row="distilled",
    model_name="llama-3.2-1b",
    gpu="H100 SXM",
    gpu_count=8,
    tp=1,
    pp=1,
    architecture="llama-3.2-1b",
    seq_len=2048,
    global_batch=16,
    micro_batch=1,
    precision="bf16",
    recompute="none",
    zero_stage_or_fsdp="ZeRO-1",
    runtime="megatron-core",
    measured_iter_time_s=1.0,
    teacher="llama-3.1-8b",
)


def test_a_row_beside_a_teacher_is_a_case() -> None:
    alone, beside = _case(replace(TAUGHT, teacher="")), _case(TAUGHT)
    assert (
        beside.model.num_parameters
        == alone.model.num_parameters + catalog_entry("llama-3.1-8b").parameters
    )
    assert beside.model.num_trainable_parameters == alone.model.num_parameters
    cut = _case(replace(TAUGHT, zero_stage_or_fsdp="ZeRO-3", runtime="torchtitan"))
    assert (cut.grid.zero, cut.model) == (3, beside.model)


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"teacher": "no-such"}, SkipReason.UNSUPPORTED_MODEL, "no-such"),
        ({"teacher": "gpt3-175b"}, SkipReason.UNSUPPORTED_MODEL, "words"),
        (
            {"teacher": "", "launch": "--export-kd-teacher-load /ckpt --bf16"},
            SkipReason.INCOMPLETE_CONFIGURATION,
            "teacher",
        ),
    ],
)
def test_a_teacher_that_is_not_said_is_no_case(
    changes: dict[str, Any], reason: SkipReason, detail: str
) -> None:
    skip = _skip(replace(TAUGHT, **changes))
    assert skip.reason is reason
    assert detail in skip.detail
