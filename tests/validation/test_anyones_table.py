"""Tables of people who have published nothing: what they write is understood, what is assumed is
told, what lacks is named."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.tables.csv_rows import parse_table, read_table
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.tables.table_template import template_text
from shardwright.validation.training.empty_table_columns_with_examples import COLUMNS
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.predict_run import predict_run
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.training_table_columns import TRAINING_TABLE

CELLS = {
    "source_id": "mine",
    "table_or_row": "1",
    "model_name": "llama-3.1-8b",
    "gpu": "H100",
    "gpu_count": "16",
    "seq_len": "4096",
    "global_batch": "64",
    "micro_batch": "1",
    "precision": "bf16",
    "tp": "2",
    "pp": "1",
    "measured_iter_time_s": "5",
}
EXPERTS = {
    "model_name": "mixtral-8x7b",
    "gpu_count": "32",
    "tp": "4",
    "sp": "1",
    "ep": "8",
    "zero_stage_or_fsdp": "ZeRO-1",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


def table(**cells: str) -> str:
    text = StringIO()
    writer = csv.writer(text)
    whole = {**CELLS, **cells}
    writer.writerows([whole, whole.values()])
    return text.getvalue()


def read(**cells: str) -> TrainingRun | SkippedRow:
    (row,) = parse_table(table(**cells).encode(), form=TRAINING_TABLE, source="mine.csv")
    return to_training_run(row, facts=TableFacts())


def case(**cells: str) -> TrainingRun:
    found = read(**cells)
    assert isinstance(found, TrainingRun), found
    return found


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("Google TPU v5e", "tpu-v5e"),
    ],
)
def test_devices_as_their_drivers_call_them(said: str, meant: str) -> None:
    found = find_accelerator(said)
    assert found is not None
    assert found.name == meant


def test_a_row_without_a_runtime_takes_the_usual_one_and_says_so() -> None:
    found = case()
    assert found.runtime == "megatron-core-0.12"
    assert any(
        "runtime megatron-core-0.12: nothing says which" in line for line in found.assumptions
    )
    assert case(gpu="tpu-v5e", gpu_count="16", tp="1").runtime == "maxtext"
    assert case(runtime="nemo", options="tp_overlap=none").runtime == "nemo-24.11 tp_overlap=none"
    assert (
        case(runtime="nemo tp_overlap=none", options="grad_overlap=off").runtime
        == "nemo-24.11 tp_overlap=none grad_overlap=off"
    )


def test_defaults_of_empty_cells_are_told() -> None:
    assert case(**EXPERTS).grid.etp == 4
    assert "etp 4: default of megatron-core-0.12" in case(**EXPERTS).assumptions
    assert case(**EXPERTS, etp="1").grid.etp == 1
    assert case(**{**EXPERTS, "zero_stage_or_fsdp": "FSDP"}, runtime="torchtitan").grid.etp == 1
    assert any("may have been interleaved" in line for line in case(pp="2").assumptions)
    assert not any("interleaved" in line for line in case(pp="2", vpp="1").assumptions)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"recompute": "yes"}, "recompute=full"),
        ({"recompute": "off"}, "recompute=none"),
        ({"zero_stage_or_fsdp": "stage 3"}, "zero3"),
        ({"zero_stage_or_fsdp": "DDP"}, "zero0"),
        ({"zero_stage_or_fsdp": "Distributed Optimizer"}, "zero1"),
        ({"precision": "bf16-mixed"}, "tp2"),
    ],
)
def test_words_people_use(cells: dict[str, str], words: str) -> None:
    assert words in print_grid(case(**cells).grid).split()


def test_a_model_is_its_configuration(tmp_path: Path) -> None:
    inside = case(model_name="ours", config=json.dumps(CONFIG))
    assert (inside.model.name, inside.model.hidden) == ("ours", 2048)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "runs.csv").write_text(table(model_name="ours", config="models/config.json"))
    beside = to_training_run(
        read_table(tmp_path / "runs.csv", form=TRAINING_TABLE)[0], facts=TableFacts()
    )
    assert isinstance(beside, TrainingRun)
    assert beside.model.num_parameters == inside.model.num_parameters
    broken = read(model_name="ours", config='{"architectures": ["NoSuchModel"]}')
    assert isinstance(broken, SkippedRow)
    assert "NoSuchModel" in broken.detail


def test_throughput_and_batch_however_they_are_counted() -> None:
    """64 samples of 4,096 tokens in 5 s on 16 devices."""
    said = case()
    for cells in (
        {"samples_per_s": "12.8"},
        {"tokens_per_s": "52428.8"},
        {"tokens_per_s_per_gpu": "3276.8"},
        {"tokens_per_s": "52428.8", "global_batch": "", "global_batch_tokens": "262144"},
    ):
        found = case(measured_iter_time_s="", **cells)
        assert found.measured_s == pytest.approx(said.measured_s)
        assert found.job.global_batch == 64
    assert isinstance(read(global_batch="", global_batch_tokens="262145"), SkippedRow)


def test_what_the_runtime_of_a_row_cannot_run_is_told() -> None:
    """Of a named runtime it is a contradiction; one that nothing names is predicted, and
    doubted."""
    skip = read(sp="1", runtime="deepspeed")
    assert isinstance(skip, SkippedRow)
    assert (skip.reason, "deepspeed-0.16 has no sequence parallelism (sp)" in skip.detail) == (
        SkipReason.UNSUPPORTED_STRATEGY,
        True,
    )
    unnamed = case(zero_stage_or_fsdp="ZeRO-3", pp="2", tp="1")
    assert any(
        "megatron-core-0.12 has no zero3 with pp above 1, and runs here all the same" in line
        for line in unnamed.assumptions
    )


def test_adapters_on_a_sharded_base_are_predicted() -> None:
    """Under FSDP the frozen base is cut too: less memory than where each device has it whole, and a
    longer step by its gathers."""
    cells = {"train": "lora:r16", "runtime": "torchtitan", "tp": "1", "gpu_count": "8"}
    cut, whole = (case(**cells, zero_stage_or_fsdp=said) for said in ("FSDP", "ZeRO-2"))
    assert (cut.grid.zero, whole.grid.zero) == (3, 2)
    less, more = (predict_run(one) for one in (cut, whole))
    assert less.step_time_s > more.step_time_s


def test_a_cluster_of_several_kinds(tmp_path: Path) -> None:
    """Its nodes count in the order of the expression, as they do on the command line; each device
    at its own rate."""
    cells = {"gpu": "mixed", "gpu_count": "16", "tp": "1", "zero_stage_or_fsdp": "ZeRO-1"}
    nodes = "h100-sxm:8 + a100-sxm:8"
    said = case(**cells, cluster=nodes)
    assert said.cluster == parse_cluster(nodes)
    alone = [
        predict_run(case(**{**cells, "gpu": gpu})).step_time_s for gpu in ("h100", "a100-sxm-80gb")
    ]
    assert alone[0] < predict_run(said).step_time_s
    assert predict_run(said).step_time_s > 0.99 * alone[1]  # all replicas wait for the slower kind
    (tmp_path / "mine.yaml").write_text(
        "nodes:\n  - {accelerator: h100-sxm, count: 1}\n  - {accelerator: a100-sxm-80gb, count:"
        " 1}\n"
    )
    (tmp_path / "runs.csv").write_text(table(**cells, cluster="mine.yaml"))
    beside = to_training_run(
        read_table(tmp_path / "runs.csv", form=TRAINING_TABLE)[0], facts=TableFacts()
    )
    assert isinstance(beside, TrainingRun)
    assert predict_run(beside).step_time_s == predict_run(said).step_time_s


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        (
            "3 nodes x 4 V100-16GB (AWS p3.8xlarge, inter 10 Gb/s) + 1 node x 4 T4-16GB",
            [("v100-sxm-16gb", 4, 3), ("t4", 4, 1)],
        ),
        ("1x8 H100 + 1x8 A100-80G", [("h100-sxm", 8, 1), ("a100-sxm-80gb", 8, 1)]),
        ("8x H100 + 8xA100", [("h100-sxm", 8, 1), ("a100-sxm-80gb", 8, 1)]),
    ],
)
def test_a_mix_of_devices_in_words(words: str, nodes: list[tuple[str, int, int]]) -> None:
    groups = case(
        gpu="mixed", gpu_mix=words, tp="1", precision="fp16", measured_iter_time_s="90"
    ).cluster.groups
    assert [
        (group.kind.accelerator.name, group.kind.num_devices, group.count) for group in groups
    ] == nodes


@pytest.mark.parametrize(
    ("cells", "reason", "said"),
    [
        ({"gpu": "H1000"}, SkipReason.UNKNOWN_ACCELERATOR, "did you mean"),
        ({"gpu": "mixed"}, SkipReason.MIXED_CLUSTER, "in the column cluster"),
        (
            {"gpu_mix": "2x8 H100 + 1x8 A100"},
            SkipReason.INCONSISTENT_CONFIGURATION,
            "has 24 devices, not 16",
        ),
        ({"gpu_mix": "1x8 H100 + 1x8 abacus"}, SkipReason.UNKNOWN_ACCELERATOR, "abacus"),
        (
            {"cluster": "h100-sxm:8 + a100-sxm:4"},
            SkipReason.INCONSISTENT_CONFIGURATION,
            "has 12 devices, not 16",
        ),
        ({"cluster": "h1000:8"}, SkipReason.INCONSISTENT_CONFIGURATION, "unknown accelerator"),
        ({"cluster": "nowhere.yaml"}, SkipReason.INCONSISTENT_CONFIGURATION, "nowhere.yaml"),
        ({"tp": ""}, SkipReason.INCOMPLETE_CONFIGURATION, "tp"),
        ({"options": "graphs=some"}, SkipReason.UNSUPPORTED_RUNTIME, "has no option graphs"),
        ({"measured_iter_time_s": ""}, SkipReason.NO_MEASUREMENT, ""),
        ({"model_name": "our-own"}, SkipReason.UNSUPPORTED_MODEL, "our-own"),
    ],
)
def test_what_lacks_is_named(cells: dict[str, str], reason: SkipReason, said: str) -> None:
    found = read(**cells)
    assert isinstance(found, SkippedRow)
    assert found.reason is reason
    assert said in found.detail


def test_the_template_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--template"]) == 0
    text = capsys.readouterr().out
    assert text == template_text(COLUMNS)
    rows = parse_table(text.encode(), form=TRAINING_TABLE, source="template")
    cases = [to_training_run(row, facts=TableFacts()) for row in rows]
    assert [c.runtime for c in cases if isinstance(c, TrainingRun)] == [
        "megatron-core-0.12 tp_overlap=dgrad",
        "nemo-24.11",
    ]
    assert all(predict_run(c).step_time_s > 0 for c in cases if isinstance(c, TrainingRun))
    assert run(["validate", "--template", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {name for name, _, _ in COLUMNS}
    assert run(["validate"]) == 2
    assert "there is no table" in capsys.readouterr().err
    path = tmp_path / "mine.csv"
    path.write_text(table(tp=""))
    assert run(["validate", str(path)]) == 0
    assert "line 2: incomplete-configuration: tp" in capsys.readouterr().out


def test_a_runtime_as_people_call_it_is_the_nearest_that_is_described() -> None:
    found = case(runtime="Megatron-LM 0.14 tp_overlap=none")
    assert found.runtime == "megatron-core-0.12 tp_overlap=none"
    assert (
        "runtime megatron-core-0.12: the nearest to 'Megatron-LM 0.14' that is described"
        in found.assumptions
    )
    assert not any("nearest" in line for line in case(runtime="nemo").assumptions)
    unknown = read(runtime="Colossal-AI")
    assert isinstance(unknown, SkippedRow)
    assert (unknown.reason, "unknown runtime 'colossal-ai'" in unknown.detail) == (
        SkipReason.UNSUPPORTED_RUNTIME,
        True,
    )
