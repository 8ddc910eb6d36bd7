"""Facts beside tables: what a rule may say, errors that name file and place, tables of anybody
without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import validate
from shardwright.cli.main import run
from shardwright.errors import DataError, RuntimeModelError, ShardwrightError
from shardwright.units import GIB
from shardwright.validation.tables.csv_rows import read_table
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.tables.table_facts_from_toml import TableFacts, parse_facts
from shardwright.validation.training.measured_training_run import MeasuredKind, TrainingRun
from shardwright.validation.training.row_to_training_run import to_training_run, with_facts
from shardwright.validation.training.training_table_columns import (
    TRAINING_TABLE,
    MemoryKind,
    TrainingMeasurement,
    TrainingMetric,
)
from shardwright.validation.training.training_table_reader_and_json import TRAINING
from tests.tiers import examples
from tests.validation.published import FOLDER, facts, rows

HEADER = (
    "source_id,table_or_row,model_name,gpu,gpu_count,seq_len,global_batch,micro_batch,precision,"
    "tp,pp,measured_iter_time_s"
)
LINE = "mine,run 7,llama-3.1-8b,H100,16,8192,128,1,bf16,2,1,11.5"
ROW = TrainingMeasurement(
    line=2,
    source_id="lab",
    table_or_row="Table 1",
    model_name="m",
    gpu="H100",
    gpu_count=8,
    pp=4,
    notes="parts=[0, 7, 14, 30]",
)


def _facts(text: str) -> TableFacts:
    return parse_facts(text.encode(), name="lab.toml", form=TRAINING_TABLE)


def _completed(text: str, row: TrainingMeasurement = ROW) -> TrainingMeasurement:
    return with_facts(row, facts=_facts(text))[0]


def _table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_rules_fill_replace_and_read_and_the_first_wins() -> None:
    facts = _facts("""
        where = { source_id = '^LAB$' }
        rules = [
          { where = { gpu = ['A100', 'h100'], pp = { at_least = 2 } },\
 fill = { tp = 2, pp = 8, dropout = true }, because = "its script" },
          { where = { pp = 1 }, fill = { cp = 9 } },
          { fill = { tp = 4, cp = 3 }, replace = { gpu_count = 16 } },
          { read = { stage_layers = { column = "notes", pattern = 'parts=.([0-9, ]+)',\
 cuts = true, before = 3, after = 3 } } },
          { read = { ulysses = { column = "pp" } } },
        ]
        """)
    row, found = with_facts(ROW, facts=facts)
    assert (row.tp, row.pp, row.cp, row.gpu_count, row.dropout, row.ulysses) == (2, 4, 3, 16, 1, 4)
    assert row.stage_layers == (4, 7, 13)
    assert found.assumptions == ("tp 2, dropout 1: its script",)
    kept = _completed(
        "rules = [{ fill = { recompute = 'full', sp = 1 } }]", replace(ROW, recompute="none", sp=0)
    )
    assert (kept.recompute, kept.sp) == ("none", 0)
    assert _completed("where = { source_id = 'other' }\nrules = [{ fill = { tp = 2 } }]") == ROW


def test_a_list_of_stages_counts_modules_around_the_layers() -> None:
    read = (
        "rules = [{ read = { stage_layers = { column = 'notes', pattern = 'parts=(.+)', before = 1,"
        " after = 1 } } }]"
    )
    assert _completed(read, replace(ROW, notes="parts=7, 9,9, 9")).stage_layers == (6, 9, 9, 8)
    wrong = to_training_run(replace(ROW, notes="parts=7,x"), facts=_facts(read))
    assert isinstance(wrong, SkippedRow)
    assert (wrong.reason, wrong.detail[:21]) == (
        SkipReason.INCONSISTENT_CONFIGURATION,
        "stage_layers in notes",
    )


def test_a_rule_says_why_rows_are_not_judged() -> None:
    found = to_training_run(
        ROW,
        facts=_facts(
            "rules = [{ where = { table_or_row = '1$' }, skip = 'no-measurement', because = 'a"
            " misprint' }]"
        ),
    )
    assert found == SkippedRow(
        measurement=ROW, reason=SkipReason.NO_MEASUREMENT, detail="a misprint"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules = [", "lab.toml: not TOML"),
        ("colour = 1", "lab.toml: colour: Unexpected keyword argument"),
        ("where = { gpus = 'x' }", "lab.toml: where: there is no column 'gpus': did you mean gpu"),
        (
            "rules = [{}, { where = { gpus = 'x' } }]",
            "lab.toml: rules.2.where: there is no column 'gpus': did you mean gpu",
        ),
        (
            "rules = [{ where = { gpu = '(' } }]",
            "rules.1.where: gpu: '(' is not a regular expression",
        ),
        ("rules = [{ where = { gpu = [] } }]", "rules.1.where: gpu: a condition is a pattern"),
        (
            "rules = [{ where = { pp = { least = 2 } } }]",
            "rules.1.where: pp: a condition is a pattern",
        ),
        ("rules = [{ fill = { tp = 'two' } }]", "rules.1.fill: tp: 'two' is not a whole number"),
        (
            "rules = [{ fill = { memory_kind = 'most' } }]",
            "rules.1.fill: memory_kind: 'most' is not one of allocated-first-stage",
        ),
        ("rules = [{ fills = { tp = 2 } }]", "rules.1.fills: Unexpected keyword argument"),
        ("rules = [{ skip = 'tired' }]", "rules.1.skip: Input should be 'low-quality'"),
        (
            "rules = [{ read = { tq = { column = 'notes' } } }]",
            "rules.1.read: there is no column 'tq'",
        ),
        (
            "rules = [{ read = { tp = { column = 'nots' } } }]",
            "rules.1.read.tp.column: there is no column 'nots': did you mean notes",
        ),
        ("rules = [{ read = { tp = { column = 'notes', pattern = 'tp' } } }]", "'tp' has 0 groups"),
        ("remarks = [{ where = { zero = 1 } }]", "remarks.1.sentence"),
        (
            "bars = [{ name = 'x', where = [{ zeros = 1 }] }]",
            "bars.1.where.1: there is no column 'zeros': did you mean zero",
        ),
        (
            "bars = [{ name = 'x', where = [{}], metric = 'tpot' }]",
            "bars.1.metric: not one of time, memory",
        ),
        (
            "bars = [{ name = 'x', where = [{}], limits = { model = { middle = 1 } } }]",
            "bars.1.limits: 'middle' is not one of mean, median, worst",
        ),
    ],
)
def test_malformed_facts_name_the_place(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        _facts(text)
    assert message in str(caught.value)


@examples(100, 1000)
@given(
    st.binary(max_size=200)
    | st.sampled_from(["rules", "where", "remarks", "bars", "networks"]).map(
        lambda k: f"{k} = [[1]]".encode()
    )
)
def test_any_bytes_are_facts_or_an_error_of_ours(content: bytes) -> None:
    try:
        parse_facts(content, name="fuzz.toml", form=TRAINING_TABLE)
    except ShardwrightError as error:
        message = str(error)
    else:
        return
    assert len(message.splitlines()) == 1


def test_a_bare_table_of_anybody_is_predicted(tmp_path: Path) -> None:
    path = _table(
        tmp_path, LINE + ",torchtitan-0.2,FSDP", header=HEADER + ",runtime,zero_stage_or_fsdp"
    )
    (row,) = validate(path).rows
    assert row.run.runtime == "torchtitan-0.2"
    assert (row.run.grid.dp, row.run.grid.tp, row.run.grid.zero) == (8, 2, 3)
    assert (row.run.model.num_parameters, row.run.laboratory) == (8_030_261_248, "mine")
    assert (row.run.measured_s, row.run.measured_kind) == (11.5, MeasuredKind.ITERATION_TIME)
    assert row.error(TrainingMetric.TIME) is not None


def test_a_runtime_may_be_given_for_the_whole_table(tmp_path: Path) -> None:
    path = _table(tmp_path, LINE)
    (usual,) = validate(path).rows
    assert usual.run.runtime == "megatron-core-0.12"
    assert any("nothing says which" in line for line in usual.run.assumptions)
    (row,) = validate(path, runtime="nemo tp_overlap=none").rows
    assert row.run.runtime == "nemo-24.11 tp_overlap=none"
    assert not any("nothing says which" in line for line in row.run.assumptions)
    with pytest.raises(RuntimeModelError, match="megatorn"):
        validate(path, runtime="megatorn")


def test_a_table_gives_its_own_decoder_and_memory(tmp_path: Path) -> None:
    header = (
        HEADER
        + ",runtime,architecture,layers,hidden,heads,vocab,ffn_hidden,peak_mem_gb,memory_kind"
    )
    path = _table(
        tmp_path,
        LINE.replace("llama-3.1-8b", "ours")
        + ",nemo-24.11,llama,4,1024,8,32000,4096,3.5,allocated-worst",
        header=header,
    )
    (case,) = TRAINING.runs(path, facts=TableFacts())
    assert isinstance(case, TrainingRun)
    assert (case.model.architecture, case.model.hidden, case.model.vocab) == ("llama", 1024, 32000)
    assert (case.memory_kind, case.memory_bytes) == (MemoryKind.ALLOCATED_WORST, round(3.5 * GIB))


def test_facts_are_found_beside_a_table_or_given(tmp_path: Path) -> None:
    path = _table(tmp_path, LINE)
    rule = "rules = [{ where = { source_id = 'mine' }, fill = { runtime = 'nemo-24.11', sp = 1 } }]"
    for folder in ("facts", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "elsewhere" / "a.toml").write_text(rule, encoding="utf-8")
    assert validate(path).rows[0].run.runtime == "megatron-core-0.12"
    assert validate(path, facts=tmp_path / "elsewhere").rows[0].run.grid.sp
    (tmp_path / "facts" / "a.toml").write_text(rule, encoding="utf-8")
    assert validate(path).rows[0].run.runtime == "nemo-24.11"
    with pytest.raises(DataError, match="no such folder"):
        TRAINING.facts(path, folder=tmp_path / "nowhere")


def test_the_verb_takes_facts_a_runtime_and_stored_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = _table(tmp_path, LINE), tmp_path / "page.md"
    assert (
        run(
            [
                "validate",
                str(path),
                "--runtime",
                "nemo-24.11",
                "--folds",
                str(FOLDER / "folds.json"),
                "-o",
                str(page),
                "--quiet",
            ]
        )
        == 0
    )
    assert "| mine | 1 |" in page.read_text(encoding="utf-8")
    assert "## Bars" not in page.read_text(encoding="utf-8")
    assert run(["validate", str(path), "--facts", str(tmp_path / "nowhere")]) == 7
    assert "no such folder" in capsys.readouterr().err
    assert run(["validate", str(path), "--folds", str(path), "--save-folds", str(page)]) == 2


def test_every_rule_of_the_project_is_used_by_some_row() -> None:
    """A rule that no row of the tables needs says nothing that was checked; layouts of one recipe
    file are listed together."""
    cells = [
        cells_of(row)
        for row in (*rows(), *read_table(FOLDER / "predicted" / "rows.csv", form=TRAINING_TABLE))
    ]
    unused = [
        rule for rule in facts().rules if not any(rule.where.matches(found) for found in cells)
    ]
    assert [rule.where for rule in unused if "layout_map" not in rule.because] == []


def test_the_wheel_holds_no_facts_of_a_table() -> None:
    source = FOLDER.parents[1] / "src" / "shardwright" / "validation"
    text = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert [
        name
        for name in {row.source_id for row in rows()}
        if f'"{name}"' in text or f"'{name}'" in text
    ] == []


def test_rows_of_a_source_without_facts_say_what_they_lack() -> None:
    skip = to_training_run(
        next(r for r in rows("training.csv") if r.source_id == "internevo"), facts=TableFacts()
    )
    assert isinstance(skip, SkippedRow)
    assert (skip.reason, skip.detail) == (
        SkipReason.UNSUPPORTED_MODEL,
        "no model is called 'InternLM-7B'",
    )
