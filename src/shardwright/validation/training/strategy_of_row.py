"""Strategy of a row of a training table: degrees, layers of stages, schedule and recompute."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.validation.tables.skipped_rows import SkipReason, UnusableRowError
from shardwright.validation.training import (
    parse_sharding_recompute_schedule_format_cells as table_spellings,
)
from shardwright.validation.training.training_table_columns import TrainingMeasurement


@dataclass(frozen=True, slots=True)
class Degrees:
    """Tensor, context, pipeline and data parallel degrees."""

    tp: int
    cp: int
    pp: int
    dp: int


def degrees_of_row(row: TrainingMeasurement) -> Degrees:
    """tp, cp, pp and dp of a row; an empty dp is the number of devices over the other degrees."""
    tp, cp, pp, count = row.tp or 1, row.cp or 1, row.pp or 1, row.gpu_count or 0
    dp = row.dp or count // (tp * cp * pp)
    if dp < 1 or tp * cp * pp * dp != count:
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"tp {tp} x cp {cp} x pp {pp} x dp {dp} is not {count} devices",
        )
    return Degrees(tp, cp, pp, dp)


def grid_of_row(
    row: TrainingMeasurement,
    *,
    degrees: Degrees,
    node: int,
    runtime: str,
    offload_percent: int,
    assumptions: list[str],
) -> Grid:
    """Grid of a row's strategy cells; `node`: devices of a node; defaults go to `assumptions`.

    Without a schedule cell it is 1F1B, interleaved with several chunks.
    """
    zero, shard = table_spellings.sharding(row.zero_stage_or_fsdp, node=node)
    replicas = degrees.dp * degrees.cp
    if (row.optimizer_instances or 1) > 1:
        shard = replicas // (row.optimizer_instances or 1)
    schedule = _schedule(row, pp=degrees.pp, assumptions=assumptions)
    recompute, recompute_layers = _recompute(row, runtime=runtime, assumptions=assumptions)
    vpp = row.vpp or (grid_schedule(schedule).chunks if schedule else 1)
    if not schedule and row.vpp is None and degrees.pp > 1:
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
        zero=zero if replicas > 1 and shard != 1 else 0,
        shard=shard if 1 < shard < replicas and zero else 0,
        host=row.host_layers or 0,
        offload=offload_percent,
        recompute=recompute,
        recompute_layers=recompute_layers,
        schedule=schedule or ("interleaved-1f1b" if vpp > 1 else "1f1b"),
        first=first,
        last=last,
        layers=layers,
    )


def _expert_split(
    row: TrainingMeasurement, *, tp: int, runtime: str, assumptions: list[str]
) -> int:
    """Expert tensor parallel degree of the row; 1 if tp or ep is 1, else the runtime's default."""
    if row.etp or tp == 1 or (row.ep or 1) == 1:
        return row.etp or 1
    etp = tp if load_runtime(runtime).experts_split_as_layers else 1
    assumptions.append(f"etp {etp}: default of {runtime}")
    return etp


def _recompute(
    row: TrainingMeasurement, *, runtime: str, assumptions: list[str]
) -> tuple[Recompute, int]:
    """(recompute mode, layers of each chunk; 0 = all) of the row, else the runtime's default."""
    recompute = table_spellings.recompute(row.recompute)
    if recompute is not None:
        return recompute
    default = load_runtime(runtime).default_recompute
    assumptions.append(f"recompute {default}: default of {runtime}")
    return Recompute(default), 0


def _schedule(row: TrainingMeasurement, *, pp: int, assumptions: list[str]) -> str:
    """Schedule's name; empty for 1F1B, interleaved (error without `vpp`) or unknown (assumed)."""
    schedule = table_spellings.schedule(row.schedule) if pp > 1 else ""
    if pp > 1 and row.schedule and not schedule:
        assumptions.append(f"schedule 1f1b: {row.schedule[:40]!r} is none that is known here")
    if schedule == "interleaved-1f1b" and not row.vpp:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "vpp")
    return "" if schedule in ("1f1b", "interleaved-1f1b") else schedule


def _stage_layers(
    row: TrainingMeasurement, *, pp: int, vpp: int
) -> tuple[int, int, tuple[int, ...]]:
    """(first stage's layers, last stage's, every stage's or chunk's); (0, 0, ()) = an even split.

    Zeros and nothing for an even partition; every stage only where inner stages differ.
    """
    counts = row.stage_layers
    if not counts or pp == 1 or len(set(counts)) == 1:
        return 0, 0, ()
    if vpp > 1 and len(counts) == pp * vpp:
        return 0, 0, counts
    if len(counts) != pp or not all(counts):
        raise UnusableRowError(SkipReason.UNSUPPORTED_STRATEGY, f"layers of stages {counts}")
    if len(set(counts[1:-1])) > 1:
        return 0, 0, counts
    return counts[0], counts[-1], ()
