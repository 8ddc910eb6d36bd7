"""What names mean, and what the cells of a row imply of those that are empty: each fill told, and
none where two values would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.predict_run import predict_run
from shardwright.validation.training.row_to_training_run import to_training_run
from tests.validation.published import FOLDER, facts, rows
from tests.validation.test_anyones_table import EXPERTS, case, read

SIZES = {"layers": "24", "hidden": "2048", "heads": "16", "ffn_hidden": "8192", "vocab": "50304"}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Llama3.1 8B BF16", "llama-3.1-8b"),
        ("LLAMA-3.1-8B pretraining (FP8) 25.02", "llama-3.1-8b"),
        ("Mixtral 8x7B H100 bf16", "mixtral-8x7b"),
        ("moonlight 16B bf16", "moonlight-16b-a3b"),
        ("DeepSeek V3 671B pretrain", "deepseek-v3"),
    ],
)
def test_words_of_a_run_are_no_part_of_a_name(said: str, meant: str) -> None:
    cells = {**EXPERTS, "etp": "1", "tp": "1"} if meant != "llama-3.1-8b" else {}
    found = case(**{**cells, "model_name": said})
    assert (found.model.hidden, found.model.vocab) == (
        load_model(meant).hidden,
        load_model(meant).vocab,
    )
    assert any(f"architecture {meant}: what {said!r} means" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("GPT-2 XL", "gpt2-xl"),
        ("GPT-3 13B", "gpt3-13b"),
        ("OPT 66B", "opt-66b"),
        ("Yi-34B-Chat", "yi-34b"),
        ("Qwen1.5 110B", "qwen1.5-110b"),
    ],
)
def test_models_however_they_are_spelled(said: str, meant: str) -> None:
    found = case(model_name=said, tp="1", measured_iter_time_s="900")
    assert found.model.num_parameters == load_model(meant).num_parameters


@pytest.mark.parametrize("name", ["llama-3.1-9.5b", "llama-3.1", "somebody's 8B"])
def test_a_size_that_is_not_the_models_or_no_name_means_nothing(name: str) -> None:
    found = read(model_name=name)
    assert isinstance(found, SkippedRow)
    assert found.reason in (SkipReason.UNSUPPORTED_MODEL, SkipReason.INCOMPLETE_CONFIGURATION)


@pytest.mark.parametrize(
    ("name", "cells", "form"),
    [
        ("ours", {}, "gpt"),
        ("ours", {"ffn_hidden": "5504"}, "llama"),
        ("ours", {"kv_heads": "4"}, "llama"),
        ("our-llama", {}, "llama"),
        ("our-bloom", {"ffn_hidden": ""}, "gpt"),
        ("our-nemotron", {}, "nemotron"),
        ("ours", {"experts": "8", "topk": "2", "ffn_hidden": "4096"}, "mixture"),
    ],
)
def test_sizes_of_a_row_are_a_decoder_of_its_familys_form(
    name: str, cells: dict[str, str], form: str
) -> None:
    found = case(**{"model_name": name, **SIZES, **cells})
    assert any(f"architecture {form}: sizes of the row" in line for line in found.assumptions)
    assert (found.model.hidden, found.model.vocab) == (2048, 50304)


def test_sizes_without_a_vocabulary_are_no_model() -> None:
    assert isinstance(read(model_name="ours", **{**SIZES, "vocab": ""}), SkippedRow)
    padded = case(
        model_name="our-gpt",
        **{**SIZES, "vocab": ""},
        architecture="gpt",
        tokenizer_words="50257",
        tp="4",
    )
    assert padded.model.vocab == 50688  # a multiple of 512


@pytest.mark.parametrize(
    ("cells", "tp", "dp", "mbs"),
    [
        ({"tp": "", "pp": "", "dp": "16"}, 1, 16, 1),
        ({"pp": "", "dp": "8"}, 2, 8, 1),
        ({"tp": "", "pp": "", "zero_stage_or_fsdp": "FSDP", "runtime": "torchtitan"}, 1, 16, 1),
        ({"vpp": "4"}, 2, 8, 1),
        ({"micro_batch": "", "gradient_accumulation": "4"}, 2, 8, 2),
        ({"micro_batch": "", "global_batch": "8"}, 2, 8, 1),
    ],
)
def test_what_other_cells_leave_one_value_for(
    cells: dict[str, str], tp: int, dp: int, mbs: int
) -> None:
    found = case(**cells).grid
    assert (found.tp, found.pp, found.vpp, found.dp, found.microbatch) == (tp, 1, 1, dp, mbs)


@pytest.mark.parametrize(
    "cells",
    [
        {"tp": "", "pp": ""},
        {"tp": "", "dp": "4", "pp": ""},
        {"tp": "", "zero_stage_or_fsdp": "ZeRO-1"},
        {"micro_batch": ""},
        {"micro_batch": "", "gradient_accumulation": "3"},
    ],
)
def test_nothing_is_filled_where_two_values_would_do(cells: dict[str, str]) -> None:
    found = read(**cells)
    assert isinstance(found, SkippedRow)
    assert found.reason is SkipReason.INCOMPLETE_CONFIGURATION


def test_recompute_as_megatron_core_lists_it() -> None:
    cells = {**EXPERTS, "runtime": "megatron-bridge"}
    listed = case(**cells, recompute="selective[core_attn+moe_act]")
    assert "recompute=selective" in print_grid(listed.grid)
    assert "recompute_moe_act=on" in listed.runtime
    only = case(**cells, recompute="selective[layernorm, moe_act]")
    assert "recompute=selective" not in print_grid(only.grid)
    assert isinstance(read(**cells, recompute="selective[everything]"), SkippedRow)


def test_fine_tuning_needs_what_it_trains() -> None:
    whole = case(table_or_row="SFT of ours")
    assert whole.model.num_parameters == case().model.num_parameters
    assert any("SFT" in line for line in whole.assumptions)
    low = read(table_or_row="LoRA of ours")
    assert isinstance(low, SkippedRow)
    assert low.reason is SkipReason.FINE_TUNING
    adapted = case(table_or_row="LoRA of ours", train="lora:r16:qkv")
    assert adapted.model.num_parameters > whole.model.num_parameters


@pytest.mark.parametrize(
    ("words", "percent", "parameters"),
    [
        ("none", 0, False),
        ("opt", 100, False),
        ("CPU", 100, False),
        ("opt+param", 100, True),
        ("full-cpu", 100, True),
        ("param", 0, True),
    ],
)
def test_offload_as_people_write_it(words: str, percent: int, parameters: bool) -> None:
    found = case(offload=words, runtime="deepspeed", zero_stage_or_fsdp="ZeRO-3", tp="1")
    assert found.grid.offload == percent
    assert ("param_offload=on" in found.runtime) is parameters


def test_offload_that_is_not_understood_or_not_there_is_told() -> None:
    for cells, said in (
        ({"offload": "disk"}, "offload disk"),
        ({"offload": "param"}, "has no option param_offload"),
    ):
        skip = read(**cells)
        assert isinstance(skip, SkippedRow)
        assert skip.reason is SkipReason.UNSUPPORTED_STRATEGY
        assert said in skip.detail


def test_rows_that_are_predicted_and_not_judged() -> None:
    found = [to_training_run(row, facts=facts()) for row in rows("predicted/rows.csv")]
    assert len(found) == 104
    assert [case for case in found if not isinstance(case, TrainingRun)] == []
    assert (FOLDER / "predicted").is_dir()


def test_runs_whose_checkpoints_waited_in_host_memory_fit() -> None:
    """52B over 16 replicas of four V100 with 48 samples each: their inputs alone are more than a
    device has."""
    row = next(r for r in rows("predicted/rows.csv") if "ZeRO (old branch) L371" in r.table_or_row)
    ran = to_training_run(row, facts=facts())
    assert isinstance(ran, TrainingRun)
    assert predict_run(ran).fits
    assert not predict_run(
        replace(ran, runtime=ran.runtime.replace(" cpu_checkpoints=on", ""))
    ).fits
