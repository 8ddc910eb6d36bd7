"""From a row of a table to a problem and the strategy that ran, or to the reason why not.

Nothing is guessed: a cell that is empty, in the table and in the facts beside it, and that the
others do not imply (`implied`), makes the row incomplete. What filled a cell is listed in
``Case.assumptions``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import Final

from shardwright.cost.step.model_flops import LONGEST_STEP_S, seconds_at_peak
from shardwright.errors import ModelError, RuntimeModelError, StrategyError, UsageError
from shardwright.hardware.device import Accelerator
from shardwright.job.border import job_from_flags
from shardwright.job.training import TrainingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.catalog.catalog import load_model
from shardwright.model.ir.graph import Model
from shardwright.model.taught import taught
from shardwright.model.trained import trained
from shardwright.program.rule_violations import runtime_violations
from shardwright.runtime.described import described
from shardwright.runtime.options import offered_values
from shardwright.runtime.registry import default_runtime, is_runtime, load_runtime
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.grid.rules import violations
from shardwright.strategy.grid.schedules import grid_schedule
from shardwright.units import GIB, TERA
from shardwright.validation.fits.predict_run import problem_of_case
from shardwright.validation.rows import table_spellings as words
from shardwright.validation.rows.cluster_of_row import row_cluster
from shardwright.validation.rows.fill_cells import Completed, complete
from shardwright.validation.rows.implied_cells import implied, modules_of
from shardwright.validation.rows.launch_arguments import launched, launched_options, loads_teacher
from shardwright.validation.rows.model_from_sizes import row_model
from shardwright.validation.rows.offload_words import offloaded
from shardwright.validation.tables.measured_rows import Measurement, MemoryKind
from shardwright.validation.tables.measured_run import Case, MeasuredKind, Skip, SkipReason
from shardwright.validation.tables.table_facts import Facts

_TUNED: Final = re.compile(r"\b(SFT|LoRA|PEFT)\b")
_REQUIRED: Final = ("gpu_count", "seq_len", "micro_batch", "tp", "pp", "precision")


class _Unusable(Exception):  # noqa: N818 - control flow inside this file, not an error
    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _Degrees:
    tp: int
    cp: int
    pp: int
    dp: int


def to_case(row: Measurement, *, facts: Facts, runtime: str = "") -> Case | Skip:
    """The case of a row, or why it is skipped.

    Args:
        facts: what is known of its table.
        runtime: of rows for which neither they nor their facts name one.
    """
    try:
        _screen(row)
        completed = complete(row, facts=facts)
        return (
            completed
            if isinstance(completed, Skip)
            else _case(row, completed=completed, facts=facts, runtime=runtime)
        )
    except _Unusable as unusable:
        return Skip(measurement=row, reason=unusable.reason, detail=unusable.detail)
    except StrategyError as error:
        return Skip(measurement=row, reason=SkipReason.UNSUPPORTED_STRATEGY, detail=error.message)


def _screen(row: Measurement) -> None:
    """Stop at rows that no facts can make a case of."""
    if "LOW QUALITY" in row.notes:
        raise _Unusable(SkipReason.LOW_QUALITY)
    if "OOM or hang" in row.notes:
        raise _Unusable(SkipReason.AMBIGUOUS_FAILURE, "OOM or hang")


def _case(published: Measurement, *, completed: Completed, facts: Facts, runtime: str) -> Case:
    row, assumptions = completed.row, [*completed.assumptions]
    try:
        row = launched(row, assumptions=assumptions)
    except RuntimeModelError as error:
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, error.message) from None
    row, modules = modules_of(implied(row, assumptions=assumptions))
    named = bool(row.runtime or runtime)
    missing = next((name for name in _REQUIRED if not getattr(row, name)), "")
    if missing:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, missing)
    cluster = row_cluster(row, facts=facts)
    if isinstance(cluster, tuple):
        raise _Unusable(*cluster)
    runtime = _runtime(
        row, device=cluster.node.accelerator, otherwise=runtime, assumptions=assumptions
    )
    runtime = _with_options(runtime, (*(f"{module}=on" for module in modules), *offloaded(row)[1]))
    model = row_model(row, config=completed.config)
    if isinstance(model, tuple):
        raise _Unusable(*model)
    model = _trained(row, model=model, assumptions=assumptions)
    degrees = _degrees(row)
    grid = _grid(
        row,
        degrees=degrees,
        node=cluster.node.num_devices,
        runtime=runtime,
        assumptions=assumptions,
    )
    samples = row.global_batch
    if samples is None and row.gradient_accumulation and row.micro_batch:
        samples = row.micro_batch * degrees.dp * row.gradient_accumulation
    if samples is None:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "global_batch")
    job = _job(row, samples=samples)
    _require_legal(grid, model=model, job=job, num_devices=row.gpu_count or 0)
    kind, seconds = _measured(row, samples=samples)
    memory_kind = (row.memory_kind if row.peak_mem_gb else None) or MemoryKind.NONE
    ran = "OOM" not in row.notes
    if ran and seconds is None and memory_kind is MemoryKind.NONE:
        raise _Unusable(SkipReason.NO_MEASUREMENT)
    case = Case(
        measurement=published,
        model=model,
        cluster=cluster,
        job=job,
        runtime=runtime,
        grid=grid,
        measured_kind=kind,
        measured_s=seconds if ran else None,
        memory_kind=memory_kind if ran else MemoryKind.NONE,
        memory_bytes=(
            round((row.peak_mem_gb or 0.0) * GIB)
            if ran and memory_kind is not MemoryKind.NONE
            else None
        ),
        ran=ran,
        laboratory=row.laboratory or row.source_id,
    )
    _require_possible(case)
    _require_runnable(case, named=named, assumptions=assumptions)
    return replace(case, assumptions=tuple(assumptions))


def _require_runnable(case: Case, *, named: bool, assumptions: list[str]) -> None:
    """The runtime can run the strategy; one that nothing names is predicted all the same, and
    told.
    """
    for broken in runtime_violations(problem_of_case(case), case.grid):
        if named:
            raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, f"{broken.message} ({broken.hint})")
        assumptions.append(f"{broken.message}, and runs here all the same: say which runtime ran")


def _require_possible(case: Case) -> None:
    """No step is shorter than its FLOPs at the peak of its devices, as one in milliseconds would
    seem, or too long to be simulated.
    """
    least = seconds_at_peak(problem_of_case(case))
    if least == inf:
        device, format_ = case.cluster.node.accelerator.name, case.job.compute.value
        raise _Unusable(
            SkipReason.INCONSISTENT_CONFIGURATION, f"{device} has no units for {format_}"
        )
    if least > LONGEST_STEP_S:
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, f"at least {least:.3g} s at peak")
    if case.measured_s is not None and case.measured_s < least:
        raise _Unusable(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"{case.measured_s:.3g} s, less than the {least:.3g} s at peak",
        )


def _runtime(
    row: Measurement, *, device: Accelerator, otherwise: str, assumptions: list[str]
) -> str:
    """As the row or its table says, else the usual one of the device."""
    name = row.runtime or otherwise
    if not name:
        name = default_runtime(device.vendor)
        assumptions.append(f"runtime {name}: nothing says which, and it is usual on {device.name}")
    try:
        made = load_runtime(f"{_named(name, assumptions)} {row.options}").name
        return _scaled(launched_options(made, row), row.precision)
    except RuntimeModelError as error:
        raise _Unusable(SkipReason.UNSUPPORTED_RUNTIME, error.message) from None


def _named(words: str, assumptions: list[str]) -> str:
    """The runtime that a cell names, with the options behind it: by its name, else the base that is
    nearest to a framework and version.
    """
    base = " ".join(word for word in words.split() if "=" not in word)
    if is_runtime(base) or not (near := described(base)):
        return words
    assumptions.append(f"runtime {near}: the nearest to {base[:60]!r} that is described")
    return " ".join([near, *(word for word in words.split() if "=" in word)])


def _scaled(runtime: str, precision: str) -> str:
    """The runtime with the scaling that the words of the row's precision name, where it has that
    and nothing sets another.
    """
    said, made = words.scaling(precision), load_runtime(runtime)
    if not said or "fp8" in dict(made.options) or said not in offered_values(made).get("fp8", ()):
        return runtime
    return load_runtime(f"{runtime} fp8={said}").name


def _trained(row: Measurement, *, model: Model, assumptions: list[str]) -> Model:
    """The model with what of it is trained, and its teacher.

    Fine-tuning of all parameters is training on whole sequences; adapters need their rank.
    """
    tuned = _TUNED.search(f"{row.model_name} {row.table_or_row}")
    if tuned and tuned[1] != "SFT" and not row.train:
        raise _Unusable(SkipReason.FINE_TUNING, f"{tuned[1]}: train is empty")
    if tuned:
        assumptions.append(
            f"{tuned[1]}: every sequence is filled, as packed samples fill it, and attended to"
            " as one"
        )
    if not row.teacher and loads_teacher(row):
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "teacher")
    try:
        made = trained(model, row.train)
        return taught(made, load_model(row.teacher)) if row.teacher else made
    except UsageError as error:
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None
    except ModelError as error:
        raise _Unusable(SkipReason.UNSUPPORTED_MODEL, error.message) from None


def _with_options(runtime: str, options: tuple[str, ...]) -> str:
    """The runtime with what cells of the strategy set: modules that run again, parameters in host
    memory.
    """
    try:
        return load_runtime(" ".join([runtime, *options])).name
    except RuntimeModelError as error:
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, error.message) from None


def _degrees(row: Measurement) -> _Degrees:
    """tp, cp, pp as printed (cp is 1 where the column is empty); dp as printed, else what is left
    of the devices.
    """
    tp, cp, pp, count = row.tp or 1, row.cp or 1, row.pp or 1, row.gpu_count or 0
    dp = row.dp or count // (tp * cp * pp)
    if dp < 1 or tp * cp * pp * dp != count:
        raise _Unusable(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"tp {tp} x cp {cp} x pp {pp} x dp {dp} is not {count} devices",
        )
    return _Degrees(tp, cp, pp, dp)


def _grid(
    row: Measurement, *, degrees: _Degrees, node: int, runtime: str, assumptions: list[str]
) -> Grid:
    """The strategy. Its schedule is the column's where that names one other than 1F1B, else 1F1B,
    interleaved with several chunks.
    """
    zero, shard = words.sharding(row.zero_stage_or_fsdp, node=node)
    holders = degrees.dp * degrees.cp
    shard = (
        holders // (row.optimizer_instances or 1) if (row.optimizer_instances or 1) > 1 else shard
    )
    own = _schedule(row, pp=degrees.pp, assumptions=assumptions)
    recompute, recompute_layers = _recompute(row, runtime=runtime, assumptions=assumptions)
    vpp = row.vpp or (grid_schedule(own).chunks if own else 1)
    if not own and row.vpp is None and degrees.pp > 1:
        assumptions.append("vpp 1: the cell is empty, and the pipeline may have been interleaved")
    first, last, layers = _stage_layers(row, pp=degrees.pp, vpp=vpp)
    return Grid(
        tp=degrees.tp,
        sp=bool(row.sp) and degrees.tp > 1,
        cp=degrees.cp,
        ulysses=row.ulysses or 1,
        ep=row.ep or 1,
        etp=_expert_split(row, tp=degrees.tp, runtime=runtime, assumptions=assumptions),
        dp=degrees.dp,
        pp=degrees.pp,
        vpp=vpp,
        microbatch=row.micro_batch or 1,
        zero=zero if holders > 1 and shard != 1 else 0,
        shard=shard if 1 < shard < holders and zero else 0,
        host=row.host_layers or 0,
        offload=offloaded(row)[0],
        recompute=recompute,
        recompute_layers=recompute_layers,
        schedule=own or ("interleaved-1f1b" if vpp > 1 else "1f1b"),
        first=first,
        last=last,
        layers=layers,
    )


def _expert_split(row: Measurement, *, tp: int, runtime: str, assumptions: list[str]) -> int:
    """etp as printed; else what the framework does where nothing is said."""
    if row.etp or tp == 1 or (row.ep or 1) == 1:
        return row.etp or 1
    etp = tp if load_runtime(runtime).experts_split_as_layers else 1
    assumptions.append(f"etp {etp}: default of {runtime}")
    return etp


def _recompute(row: Measurement, *, runtime: str, assumptions: list[str]) -> tuple[Recompute, int]:
    said = words.recompute(row.recompute)
    if said is None:
        default = load_runtime(runtime).default_recompute
        assumptions.append(f"recompute {default}: default of {runtime}")
        return Recompute(default), 0
    return said


def _schedule(row: Measurement, *, pp: int, assumptions: list[str]) -> str:
    """The column's schedule where that names one other than 1F1B; chunks of an interleaved one must
    be said.
    """
    said = words.schedule(row.schedule) if pp > 1 else ""
    if pp > 1 and row.schedule and not said:
        assumptions.append(f"schedule 1f1b: {row.schedule[:40]!r} is none that is known here")
    if said == "interleaved-1f1b" and not row.vpp:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "vpp")
    return "" if said in ("1f1b", "interleaved-1f1b") else said


def _stage_layers(row: Measurement, *, pp: int, vpp: int) -> tuple[int, int, tuple[int, ...]]:
    """Layers of the first and last stage (0, 0 = even or not given) where the row gives a
    partition; of all, or of all chunks, where others differ too.
    """
    counts = row.stage_layers
    if not counts or pp == 1 or len(set(counts)) == 1:
        return 0, 0, ()
    if vpp > 1 and len(counts) == pp * vpp:
        return 0, 0, counts
    if len(counts) != pp or not all(counts):
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, f"layers of stages {counts}")
    if len(set(counts[1:-1])) > 1:
        return 0, 0, counts
    return counts[0], counts[-1], ()


def _job(row: Measurement, *, samples: int) -> TrainingJob:
    recipe = words.number_format(row.precision)
    if not recipe:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, f"precision {row.precision}")
    try:
        return job_from_flags(
            seq_len=row.seq_len or 0,
            global_batch=samples,
            precision=recipe,
            gradient_wire=row.gradient_wire,
            dropout=bool(row.dropout),
            expert_imbalance=row.expert_imbalance or 1.0,
        )
    except UsageError as error:
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None


def _require_legal(grid: Grid, *, model: Model, job: TrainingJob, num_devices: int) -> None:
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
        raise _Unusable(reason, broken.message)


def _measured(row: Measurement, *, samples: int) -> tuple[MeasuredKind, float | None]:
    """Seconds a step: as printed, else from samples or tokens a second, else from TFLOP/s by SC21's
    formula.
    """
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


def sc21_seconds(row: Measurement, *, samples: int) -> float | None:
    """Seconds a step behind the TFLOP/s of Narayanan et al. (SC21, equation 3): 96 B s l h^2 (1 +
    s/6h + V/16lh) / (devices x FLOP/s).

    B samples, s tokens a sample, l layers, h hidden, V vocabulary; recomputed forwards are counted.
    None if a size is missing.
    """
    s, layers, h, vocab = row.seq_len, row.layers, row.hidden, row.vocab
    if not (s and layers and h and vocab and row.tflops_per_gpu and row.gpu_count):
        return None
    flops = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return flops / (row.gpu_count * row.tflops_per_gpu * TERA)
