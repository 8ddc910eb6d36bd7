"""Convert a row of a training table to a run to predict, or to the reason why the row is skipped.

Nothing is guessed. A cell that is empty, both in the table and in the facts beside it, and that the
other cells do not imply (`fill_empty_cells_others_imply`), makes the row incomplete. Cells that
were filled are listed in ``TrainingRun.assumptions``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import Final

from shardwright.cost.step.model_flops import LONGEST_STEP_S, seconds_at_peak
from shardwright.errors import ModelError, RuntimeModelError, StrategyError, UsageError
from shardwright.hardware.accelerator import Accelerator
from shardwright.job.training_job import TrainingJob
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.program.strategy_rule_violations import runtime_violations
from shardwright.runtime.framework_name_matching import nearest_runtime_name
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.runtime_registry import default_runtime, is_runtime, load_runtime
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.units import GIB, TERA
from shardwright.validation.tables.apply_facts_to_row import (
    RowFacts,
    facts_of_row,
    options_of_text,
    text_of_options,
)
from shardwright.validation.tables.skipped_rows import (
    SkippedRow,
    SkipReason,
    UnusableRowError,
    skip_of,
)
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training import (
    parse_sharding_recompute_schedule_format_cells as table_spellings,
)
from shardwright.validation.training.cells_from_megatron_arguments import (
    loads_teacher,
    with_launch_cells,
    with_launch_options,
)
from shardwright.validation.training.cluster_of_row import row_cluster
from shardwright.validation.training.fill_empty_cells_others_imply import (
    recomputed_modules,
    with_implied_cells,
)
from shardwright.validation.training.measured_training_run import MeasuredKind, TrainingRun
from shardwright.validation.training.predict_run import problem_of_run
from shardwright.validation.training.row_model_from_config_catalog_or_sizes import row_model
from shardwright.validation.training.strategy_of_row import degrees_of_row, grid_of_row
from shardwright.validation.training.training_table_columns import (
    TRAINING_TABLE,
    MemoryKind,
    TrainingMeasurement,
)

_TUNED: Final = re.compile(r"\b(SFT|LoRA|PEFT)\b")
_REQUIRED: Final = ("gpu_count", "seq_len", "micro_batch", "tp", "pp", "precision")


def to_training_run(
    row: TrainingMeasurement, *, facts: TableFacts, default: str = ""
) -> TrainingRun | SkippedRow:
    """Convert a row to a run to predict, or to a skipped row with its reason.

    Args:
        default: runtime for rows if neither the row nor the facts name a runtime.
    """
    try:
        return _usable_run(row, facts=facts, default=default)
    except (UnusableRowError, StrategyError) as error:
        return skip_of(row, error)


def with_facts(
    row: TrainingMeasurement, *, facts: TableFacts
) -> tuple[TrainingMeasurement, RowFacts]:
    """(row with cells and runtime options that facts add, the facts that apply to the row).

    Raises:
        UnusableRowError: the facts skip the row.
    """
    row_facts = facts_of_row(row, facts=facts, columns=TRAINING_TABLE.columns)
    cells = dict(row_facts.cells)
    if "runtime" in cells:
        base, *named = cells["runtime"].split()
        options = {**row_facts.options, **options_of_text(" ".join(named))}
        cells["runtime"] = f"{base} {text_of_options(options)}".strip()
    return replace(row, **cells), row_facts


def _usable_run(published: TrainingMeasurement, *, facts: TableFacts, default: str) -> TrainingRun:
    """Convert a row to a run to predict; raises UnusableRowError for a row that must be skipped."""
    if "LOW QUALITY" in published.notes:
        raise UnusableRowError(SkipReason.LOW_QUALITY)
    if "OOM or hang" in published.notes:
        raise UnusableRowError(SkipReason.AMBIGUOUS_FAILURE, "OOM or hang")
    row, row_facts = with_facts(published, facts=facts)
    assumptions = [*row_facts.assumptions]
    try:
        row = with_launch_cells(row, assumptions=assumptions)
    except RuntimeModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_STRATEGY, error.message) from None
    row, modules = recomputed_modules(with_implied_cells(row, assumptions=assumptions))
    missing = next((name for name in _REQUIRED if not getattr(row, name)), "")
    if missing:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, missing)
    cluster = row_cluster(row, facts=facts)
    runtime = _runtime(
        row, device=cluster.node.accelerator, default=default, assumptions=assumptions
    )
    offload_percent, offload_options = table_spellings.offload(row.offload)
    runtime = _with_options(runtime, (*(f"{module}=on" for module in modules), *offload_options))
    model = row_model(row, config=row_facts.config)
    model = _trained(row, model=model, assumptions=assumptions)
    degrees = degrees_of_row(row)
    grid = grid_of_row(
        row,
        degrees=degrees,
        node=cluster.node.num_devices,
        runtime=runtime,
        offload_percent=offload_percent,
        assumptions=assumptions,
    )
    samples = row.global_batch
    if samples is None and row.gradient_accumulation and row.micro_batch:
        samples = row.micro_batch * degrees.dp * row.gradient_accumulation
    if samples is None:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "global_batch")
    job = _job(row, samples=samples)
    _require_legal(grid, model=model, job=job, num_devices=row.gpu_count or 0)
    kind, seconds = _measured(row, samples=samples)
    memory_kind = (row.memory_kind if row.peak_mem_gb else None) or MemoryKind.NONE
    ran = "OOM" not in row.notes
    if ran and seconds is None and memory_kind is MemoryKind.NONE:
        raise UnusableRowError(SkipReason.NO_MEASUREMENT)
    has_memory = ran and memory_kind is not MemoryKind.NONE
    run = TrainingRun(
        measurement=published,
        model=model,
        cluster=cluster,
        job=job,
        runtime=runtime,
        grid=grid,
        measured_kind=kind,
        measured_s=seconds if ran else None,
        memory_kind=memory_kind if ran else MemoryKind.NONE,
        memory_bytes=round((row.peak_mem_gb or 0.0) * GIB) if has_memory else None,
        ran=ran,
        laboratory=row.laboratory or row.source_id,
    )
    _require_possible(run)
    _require_runnable(run, named=bool(row.runtime or default), assumptions=assumptions)
    return replace(run, assumptions=tuple(assumptions))


def _require_runnable(run: TrainingRun, *, named: bool, assumptions: list[str]) -> None:
    """Raise if the named runtime cannot run the strategy; for an assumed runtime only note it."""
    for broken in runtime_violations(problem_of_run(run), run.grid):
        if named:
            raise UnusableRowError(
                SkipReason.UNSUPPORTED_STRATEGY, f"{broken.message} ({broken.hint})"
            )
        assumptions.append(f"{broken.message}, and runs here all the same: say which runtime ran")


def _require_possible(run: TrainingRun) -> None:
    """Raise if a step is shorter than its FLOPs at peak, or too long to simulate.

    A cell in milliseconds gives such a short step.
    """
    least = seconds_at_peak(problem_of_run(run))
    if least == inf:
        device, format_ = run.cluster.node.accelerator.name, run.job.compute.value
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION, f"{device} has no units for {format_}"
        )
    if least > LONGEST_STEP_S:
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION, f"at least {least:.3g} s at peak"
        )
    if run.measured_s is not None and run.measured_s < least:
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"{run.measured_s:.3g} s, less than the {least:.3g} s at peak",
        )


def _runtime(
    row: TrainingMeasurement, *, device: Accelerator, default: str, assumptions: list[str]
) -> str:
    """Runtime name with the row's options: the row's, else `default`, else usual for the vendor."""
    name = row.runtime or default
    if not name:
        name = default_runtime(device.vendor)
        assumptions.append(f"runtime {name}: nothing says which, and it is usual on {device.name}")
    try:
        named = load_runtime(f"{_nearest_base(name, assumptions)} {row.options}").name
        return _with_scaling(with_launch_options(named, row), row.precision)
    except RuntimeModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_RUNTIME, error.message) from None


def _nearest_base(cell: str, assumptions: list[str]) -> str:
    """Replace an unknown framework and version in a cell by the nearest described runtime."""
    words = cell.split()
    name = " ".join(word for word in words if "=" not in word)
    base = "" if is_runtime(name) else nearest_runtime_name(name)
    if not base:
        return cell
    assumptions.append(f"runtime {base}: the nearest to {name[:60]!r} that is described")
    return " ".join([base, *(word for word in words if "=" in word)])


def _with_scaling(name: str, precision: str) -> str:
    """Runtime name, with the fp8 scaling of cell `precision` if it is offered and none is set.

    It is unchanged if it sets another scaling or lacks this one.
    """
    scaling, runtime = table_spellings.scaling(precision), load_runtime(name)
    if "fp8" in dict(runtime.options) or scaling not in offered_values(runtime).get("fp8", ()):
        return name
    return load_runtime(f"{name} fp8={scaling}").name if scaling else name


def _trained(row: TrainingMeasurement, *, model: Model, assumptions: list[str]) -> Model:
    """Model with the frozen parts or adapters of `train` and with its teacher, or UnusableRowError.

    Fine-tuning of all parameters is training on whole sequences; adapters need their rank.
    """
    tuned = _TUNED.search(f"{row.model_name} {row.table_or_row}")
    if tuned and tuned[1] != "SFT" and not row.train:
        raise UnusableRowError(SkipReason.FINE_TUNING, f"{tuned[1]}: train is empty")
    if tuned:
        assumptions.append(
            f"{tuned[1]}: every sequence is filled, as packed samples fill it, and attended to"
            " as one"
        )
    if not row.teacher and loads_teacher(row):
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "teacher")
    try:
        model = trained(model, row.train)
        return with_teacher(model, load_model(row.teacher)) if row.teacher else model
    except UsageError as error:
        raise UnusableRowError(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None
    except ModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_MODEL, error.message) from None


def _with_options(runtime: str, options: tuple[str, ...]) -> str:
    """Name of the runtime with the options that cells of the strategy set."""
    try:
        return load_runtime(" ".join([runtime, *options])).name
    except RuntimeModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_STRATEGY, error.message) from None


def _job(row: TrainingMeasurement, *, samples: int) -> TrainingJob:
    """The training job of a row: sequence length, batch, precision, dropout."""
    number_format = table_spellings.number_format(row.precision)
    if not number_format:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, f"precision {row.precision}")
    try:
        return job_from_flags(
            seq_len=row.seq_len or 0,
            global_batch=samples,
            precision=number_format,
            gradient_wire=row.gradient_wire,
            dropout=bool(row.dropout),
            expert_imbalance=row.expert_imbalance or 1.0,
        )
    except UsageError as error:
        raise UnusableRowError(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None


def _require_legal(grid: Grid, *, model: Model, job: TrainingJob, num_devices: int) -> None:
    """Raise UnusableRowError if the strategy breaks a rule."""
    facts = grid_facts(
        model, devices=num_devices, global_batch=job.global_batch, seq_len=job.sequence_length
    )
    for broken in violations(grid, facts=facts, general=True):
        inconsistent = broken.rule in ("grid.devices", "grid.batch")
        reason = (
            SkipReason.INCONSISTENT_CONFIGURATION
            if inconsistent
            else SkipReason.UNSUPPORTED_STRATEGY
        )
        raise UnusableRowError(reason, broken.message)


def _measured(row: TrainingMeasurement, *, samples: int) -> tuple[MeasuredKind, float | None]:
    """(kind, seconds a step), published or from samples, tokens or TFLOP/s; (NONE, None) = none."""
    tokens, count = samples * (row.seq_len or 0), row.gpu_count or 1
    if row.measured_iter_time_s:
        return MeasuredKind.ITERATION_TIME, row.measured_iter_time_s
    if row.samples_per_s:
        return MeasuredKind.TOKENS_PER_SECOND, samples / row.samples_per_s
    if row.tokens_per_s:
        return MeasuredKind.TOKENS_PER_SECOND, tokens / row.tokens_per_s
    if row.tokens_per_s_per_gpu:
        return MeasuredKind.TOKENS_PER_SECOND, tokens / (row.tokens_per_s_per_gpu * count)
    if row.tflops_formula == "sc21" and row.tflops_per_gpu:
        return MeasuredKind.TFLOPS_FORMULA, sc21_seconds(row, samples=samples)
    return MeasuredKind.NONE, None


def sc21_seconds(row: TrainingMeasurement, *, samples: int) -> float | None:
    """Seconds a step from TFLOP/s by the formula of SC21, equation 3; None = a size is missing.

    FLOPs = 96 B s l h^2 (1 + s/6h + V/16lh), over devices x FLOP/s.

    B samples, s tokens a sample, l layers, h hidden, V vocabulary; recomputed forwards are counted.
    None if a size is missing.
    """
    s, layers, h, vocab = row.seq_len, row.layers, row.hidden, row.vocab
    if not (s and layers and h and vocab and row.tflops_per_gpu and row.gpu_count):
        return None
    flops = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return flops / (row.gpu_count * row.tflops_per_gpu * TERA)
