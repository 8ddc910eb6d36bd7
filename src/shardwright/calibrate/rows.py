"""From a row of a table to a problem and the strategy that ran, or to the reason why not.

Nothing is guessed: a field that is empty and has no documented default makes the row incomplete. Defaults that were used are listed in
``Case.assumptions``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from shardwright.calibrate.architectures import Family, architecture_of, model_of
from shardwright.calibrate.case import Case, MeasuredKind, MemoryKind, Skip, SkipReason
from shardwright.calibrate.measurements import Measurement
from shardwright.calibrate.megatron_ci import devices_of, expert_tensor_parallel, optimizer_instances, settings_of
from shardwright.calibrate.recipes import recipe_layers
from shardwright.calibrate.sources import ACCELERATORS, NETWORKS, Provenance, misprinted, provenance_of, runtime_of, unprinted
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, StrategyError, UsageError
from shardwright.hardware.catalog import accelerator
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.expression import fill_nodes
from shardwright.hardware.nodes import node_of, smaller_node
from shardwright.job.border import job_from_flags
from shardwright.job.training import TrainingJob
from shardwright.model.graph import Model
from shardwright.runtime.registry import load_runtime
from shardwright.strategy.grid import Grid, Recompute
from shardwright.strategy.grid_facts import grid_facts
from shardwright.strategy.grid_rules import violations
from shardwright.units import GIB, TERA

_FINE_TUNING: Final = re.compile(r"\b(LoRA|SFT|PEFT)\b")
_OTHER_FLAGS: Final = (
    "multi-latent-attention",
    "mtp-",
    "hybrid",
    "pipeline-model-parallel-layout",
    "cuda-graph",
    "fp8-format",
    "spec=",
    "defer-embedding",
    "dispatcher-type=allgather",
)
_OTHER_TESTS: Final = ("muon", "_release")
_PARTITION: Final = re.compile(r"layer partition boundaries over 30 pseudo-layers=\[([0-9]{1,6}(?:, ?[0-9]{1,6})*)\]")
_PER_STAGE: Final = re.compile(r"layers_per_stage=\[([0-9]{1,6}(?:, ?[0-9]{1,6})*)\]")
_ZERO: Final = re.compile(r"zero-?([0-3])")
_GROUP: Final = re.compile(r"shard group ([0-9]{1,6})|within ([0-9]{1,6})|fsdp=([0-9]{1,6})|fsdp2 \(full\) ([0-9]{1,6})")
# pipeline modules of Megatron-DeepSpeed before and after its 24 layers: casts, embedding, transposes; final norm, logits
_BEFORE: Final = 3
_AFTER: Final = 3
_REQUIRED: Final = ("gpu_count", "seq_len", "micro_batch", "tp", "pp")


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


def to_case(row: Measurement) -> Case | Skip:
    """The case of a row, or why it is skipped."""
    try:
        return _case(row)
    except _Unusable as unusable:
        return Skip(measurement=row, reason=unusable.reason, detail=unusable.detail)
    except StrategyError as error:
        return Skip(measurement=row, reason=SkipReason.UNSUPPORTED_STRATEGY, detail=error.message)


def _case(row: Measurement) -> Case:
    provenance = _screened(row)
    device, runtime = _device(row), runtime_of(row, provenance=provenance)
    if not runtime:
        raise _Unusable(SkipReason.UNSUPPORTED_RUNTIME, row.model_name)
    assumptions: list[str] = []
    row = _completed(row, provenance=provenance, assumptions=assumptions)
    model = _model(row)
    degrees = _degrees(row)
    grid = _grid(row, degrees=degrees, provenance=provenance, runtime=runtime, assumptions=assumptions)
    samples = row.global_batch
    if samples is None and provenance.local_batch and row.micro_batch:
        samples = row.micro_batch * degrees.dp
        assumptions.append("global batch = local batch x dp")
    if samples is None:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "global_batch")
    job = _job(row, samples=samples, provenance=provenance, assumptions=assumptions)
    _require_legal(grid, model=model, job=job, num_devices=row.gpu_count or 0)
    kind, seconds = _measured(row, samples=samples, provenance=provenance)
    memory_kind, memory = _memory(row, provenance=provenance, grid=grid)
    ran = "OOM" not in row.notes
    if ran and seconds is None and memory is None:
        raise _Unusable(SkipReason.NO_MEASUREMENT)
    return Case(
        measurement=row,
        model=model,
        cluster=_cluster(row, device=device),
        job=job,
        runtime=runtime,
        grid=grid,
        measured_kind=kind,
        measured_s=seconds if ran else None,
        memory_kind=memory_kind if ran else MemoryKind.NONE,
        memory_bytes=memory if ran else None,
        ran=ran,
        laboratory=provenance.laboratory,
        assumptions=tuple(assumptions),
    )


def _screened(row: Measurement) -> Provenance:
    """The row's source, if the row is one that can be judged at all."""
    if "LOW QUALITY" in row.notes:
        raise _Unusable(SkipReason.LOW_QUALITY)
    if row.gpu.lower() == "mixed" or " + " in row.gpu_mix:
        raise _Unusable(SkipReason.MIXED_CLUSTER, row.gpu_mix[:80])
    tuned = _FINE_TUNING.search(f"{row.model_name} {row.table_or_row}")
    if tuned:
        raise _Unusable(SkipReason.FINE_TUNING, tuned.group(0))
    if "OOM or hang" in row.notes:
        raise _Unusable(SkipReason.AMBIGUOUS_FAILURE, "OOM or hang")
    provenance = provenance_of(row)
    if provenance is None:
        raise _Unusable(SkipReason.UNSUPPORTED_RUNTIME, row.source_id)
    if misprinted(row):
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, misprinted(row))
    if unprinted(row):
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, unprinted(row))
    return provenance


def _device(row: Measurement) -> str:
    device = ACCELERATORS.get(row.gpu.lower())
    if device is None:
        raise _Unusable(SkipReason.UNKNOWN_ACCELERATOR, row.gpu)
    return device


def _completed(row: Measurement, *, provenance: Provenance, assumptions: list[str]) -> Measurement:
    """The row with a vocabulary that its source pads by rule; its required fields checked."""
    if provenance.functional_tests and not row.gpu_count and devices_of(row):
        row = replace(row, gpu_count=devices_of(row))
        assumptions.append(f"{row.gpu_count} devices: the recipe of its test")
    missing = next((name for name in _REQUIRED if not getattr(row, name)), "") or ("" if row.precision else "precision")
    if missing:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, missing)
    flag = next((word for word in _OTHER_FLAGS if word in row.notes.lower() and not provenance.timed), "")
    flag = flag or next((word for word in _OTHER_TESTS if word in row.table_or_row and provenance.functional_tests), "")
    if flag:
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, flag)
    if not row.vocab and provenance.tokenizer_words:
        quantum = 128 * (row.tp or 1)
        assumptions.append(f"vocabulary of {provenance.tokenizer_words} padded to a multiple of {quantum}")
        return replace(row, vocab=-(-provenance.tokenizer_words // quantum) * quantum)
    return row


def _model(row: Measurement) -> Model:
    architecture = architecture_of(row.model_name)
    if architecture is None or ((row.experts or 0) > 1 and architecture.family not in (Family.CONFIG, Family.EXPERTS)):
        raise _Unusable(SkipReason.UNSUPPORTED_MODEL, row.model_name)
    model = model_of(row, architecture=architecture)
    if isinstance(model, str):
        supported = architecture.family is not Family.CONFIG
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION if supported else SkipReason.UNSUPPORTED_MODEL, model)
    return model


def _degrees(row: Measurement) -> _Degrees:
    """tp, cp, pp as printed (cp is 1 where the column is empty); dp as printed, else what is left of the devices."""
    tp, cp, pp, count = row.tp or 1, row.cp or 1, row.pp or 1, row.gpu_count or 0
    dp = row.dp or count // (tp * cp * pp)
    if dp < 1 or tp * cp * pp * dp != count:
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, f"tp {tp} x cp {cp} x pp {pp} x dp {dp} is not {count} devices")
    return _Degrees(tp, cp, pp, dp)


def _grid(row: Measurement, *, degrees: _Degrees, provenance: Provenance, runtime: str, assumptions: list[str]) -> Grid:
    if row.offload.lower() not in ("", "none"):
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, f"offload {row.offload}")
    if row.sp is None and degrees.tp > 1:
        assumptions.append(f"sequence parallelism {'on' if provenance.sequence_parallel else 'off'}: {provenance.reason}")
    sequence_parallel = provenance.sequence_parallel if row.sp is None else bool(row.sp)
    zero, shard = _sharding(row, provenance=provenance, assumptions=assumptions)
    holders, etp = degrees.dp * degrees.cp, 1
    if provenance.functional_tests:
        etp = expert_tensor_parallel(row) if (row.experts or 0) > 1 else 1
        shard = holders // optimizer_instances(row) if optimizer_instances(row) > 1 else shard
        zero = 0 if shard == 1 else zero
    vpp = row.vpp or 1
    first, last, layers = _stage_layers(row, pp=degrees.pp)
    return Grid(
        tp=degrees.tp,
        sp=sequence_parallel and degrees.tp > 1,
        cp=degrees.cp,
        ulysses=degrees.cp if provenance.ulysses else 1,
        ep=row.ep or 1,
        etp=etp,
        dp=degrees.dp,
        pp=degrees.pp,
        vpp=vpp,
        microbatch=row.micro_batch or 1,
        zero=zero if holders > 1 else 0,
        shard=shard if 1 < shard < holders and zero else 0,
        recompute=_recompute(row, runtime=runtime, assumptions=assumptions),
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        first=first,
        last=last,
        layers=layers,
    )


def _sharding(row: Measurement, *, provenance: Provenance, assumptions: list[str]) -> tuple[int, int]:
    """ZeRO stage and the size of the sharding group (0 = all) by the words of the table."""
    words = row.zero_stage_or_fsdp.lower()
    group = _GROUP.search(words)
    shard = next((int(size) for size in group.groups() if size), 0) if group else 0
    if not words:
        assumptions.append(f"zero {provenance.zero}: {provenance.reason}")
        return provenance.zero, 0
    stage = _ZERO.search(words)
    if stage:
        return int(stage.group(1)), shard
    if "distributed optimizer" in words:
        return 1, 0
    if "shard_grad_op" in words or words == "optim_grads":
        return 2, shard
    if "fsdp" in words:
        return 3, shard
    raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, f"sharding {row.zero_stage_or_fsdp}")


def _recompute(row: Measurement, *, runtime: str, assumptions: list[str]) -> Recompute:
    words = row.recompute.lower()
    if not words:
        default = load_runtime(runtime).default_recompute
        assumptions.append(f"recompute {default}: default of {runtime}")
        return Recompute(default)
    if words in ("none", "full", "selective"):
        return Recompute(words)
    if words in ("selective(per-op)", "selective[core_attn]"):
        return Recompute.SELECTIVE
    raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, f"recompute {row.recompute}")


def _stage_layers(row: Measurement, *, pp: int) -> tuple[int, int, tuple[int, ...]]:
    """Layers of the first and last stage (0, 0 = even or not given) where the notes give a partition; of all where others differ too."""
    counts = _partition(row) or recipe_layers(row, pp=pp)
    if counts is None or pp == 1 or len(set(counts)) == 1:
        return 0, 0, ()
    if len(counts) != pp or not all(counts):
        raise _Unusable(SkipReason.UNSUPPORTED_STRATEGY, f"layers of stages {counts}")
    if len(set(counts[1:-1])) > 1:
        return 0, 0, tuple(counts)
    return counts[0], counts[-1], ()


def _partition(row: Measurement) -> list[int] | None:
    found = _PARTITION.search(row.notes)
    if found:
        cuts = [int(cut) for cut in found.group(1).split(",")]
        total = cuts[-1] - _AFTER
        return [min(high, total) - max(low, _BEFORE) for low, high in pairwise(cuts)]
    found = _PER_STAGE.search(row.notes)
    if found:
        counts = [int(count) for count in found.group(1).split(",")]
        counts[0] -= 1
        counts[-1] -= 1
        return counts
    return None


def _job(row: Measurement, *, samples: int, provenance: Provenance, assumptions: list[str]) -> TrainingJob:
    words = row.precision.lower()
    recipe = next((name for name in ("fp4", "fp8", "bf16", "fp16") if name in words), "")
    if not recipe:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, f"precision {row.precision}")
    if recipe == "fp8" and "rowwise" in words:
        # pytorch/ao#2410: "flat perf with respect to bfloat" with tensor parallelism; no table has this kernel
        assumptions.append("fp8 with a scale a row is priced as bf16")
        recipe = "bf16"
    wire = Dtype.BF16.value if "mp=pure" in words else provenance.gradient_wire
    dropout = settings_of(row).dropout if provenance.functional_tests else provenance.dropout
    try:
        return job_from_flags(seq_len=row.seq_len or 0, global_batch=samples, precision=recipe, gradient_wire=wire, dropout=dropout)
    except UsageError as error:
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None


def _require_legal(grid: Grid, *, model: Model, job: TrainingJob, num_devices: int) -> None:
    facts = grid_facts(model, devices=num_devices, global_batch=job.global_batch, seq_len=job.sequence_length)
    for broken in violations(grid, facts=facts):
        inconsistent = broken.rule in ("grid.devices", "grid.batch")
        reason = SkipReason.INCONSISTENT_CONFIGURATION if inconsistent else SkipReason.UNSUPPORTED_STRATEGY
        raise _Unusable(reason, broken.message)


def _cluster(row: Measurement, *, device: str) -> Cluster:
    """Nodes of the printed size with the printed network, else the catalog's node."""
    kind, count = node_of(accelerator(device)), row.gpu_count or 0
    size = row.gpus_per_node or kind.num_devices
    if size < kind.num_devices:
        kind = smaller_node(kind, num_devices=size)
    bandwidth = NETWORKS.get(row.inter_net.lower(), 0.0)
    if bandwidth:
        kind = replace(kind, nic=replace(kind.nic, bandwidth=bandwidth / kind.nics, reverse_bandwidth=0.0))
    try:
        return Cluster(expression=f"{device}:{count}", groups=(fill_nodes(kind, num_devices=count, name=device),))
    except ClusterError as error:
        raise _Unusable(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None


def _measured(row: Measurement, *, samples: int, provenance: Provenance) -> tuple[MeasuredKind, float | None]:
    """Seconds a step: as printed, else from tokens/s a device, else from TFLOP/s by SC21's formula."""
    tokens, count = samples * (row.seq_len or 0), row.gpu_count or 1
    if not provenance.timed:
        return MeasuredKind.NONE, None
    if row.measured_iter_time_s:
        return MeasuredKind.ITERATION_TIME, row.measured_iter_time_s
    if row.tokens_per_s_per_gpu:
        return MeasuredKind.TOKENS_PER_SECOND, tokens / (row.tokens_per_s_per_gpu * count)
    if row.source_id == "mlm_sc21" and row.tflops_per_gpu:
        return MeasuredKind.TFLOPS_FORMULA, sc21_seconds(row, samples=samples)
    return MeasuredKind.NONE, None


def sc21_seconds(row: Measurement, *, samples: int) -> float | None:
    """Seconds a step behind the TFLOP/s of Narayanan et al. (SC21, equation 3): 96 B s l h^2 (1 + s/6h + V/16lh) / (devices x FLOP/s).

    B samples, s tokens a sample, l layers, h hidden, V vocabulary; recomputed forwards are counted. None if a size is missing.
    """
    s, layers, h, vocab = row.seq_len, row.layers, row.hidden, row.vocab
    if not (s and layers and h and vocab and row.tflops_per_gpu and row.gpu_count):
        return None
    flops = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return flops / (row.gpu_count * row.tflops_per_gpu * TERA)


def _memory(row: Measurement, *, provenance: Provenance, grid: Grid) -> tuple[MemoryKind, int | None]:
    if not row.peak_mem_gb or provenance.memory is MemoryKind.NONE:
        return MemoryKind.NONE, None
    # SimuMax labels its mixture-of-experts rows as the first stage, but only the last one reaches them
    worst = row.source_id == "simumax_b200" and grid.ep > 1 and grid.pp > 1
    return MemoryKind.ALLOCATED_WORST if worst else provenance.memory, round(row.peak_mem_gb * GIB)
