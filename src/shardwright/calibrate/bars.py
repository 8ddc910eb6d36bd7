"""What the predictions are held to: mean errors of named groups of rows, by fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np
from scipy.stats import spearmanr

from shardwright.calibrate.measurements import Measurement
from shardwright.calibrate.validate import RowResult, Validation

Selector = Callable[[Measurement], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Mean |predicted / measured - 1| of a group of rows must not exceed a limit.

    Args:
        memory: of bytes, not of seconds. limits: (fold, limit) pairs. chosen: which rows.
        peer: what the best published tool reaches on these rows.
    """

    name: str
    chosen: Selector
    limits: tuple[tuple[str, float], ...]
    memory: bool = False
    peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarResult:
    """A bar's mean error over n rows in one fold; bias with sign; worst."""

    bar: Bar
    fold: str
    n: int
    mean: float
    bias: float
    worst: float
    limit: float

    @property
    def holds(self) -> bool:
        """Enough rows, and the mean error within the limit."""
        return self.n > 0 and self.mean <= self.limit


def _source(*ids: str) -> Selector:
    return lambda row: row.source_id in ids


def _named(source_id: str, *words: str, gpu: str = "") -> Selector:
    return lambda row: row.source_id == source_id and gpu in row.gpu and any(word in row.model_name.lower() for word in words)


_NEMO: Final = _named("dgxc", "llama 3.1", "nemotron4", "nemo megatron")
_LARGE_MPT: Final = _named("mosaic", "1b", "3b", "7b")
_EXPERTS: Final = _named("mbridge", "deepseek", "qwen3")
_BRIDGE_DENSE: Final = _named("mbridge", "llama3", gpu="H100")


def _dense_hopper(row: Measurement) -> bool:
    return row.source_id == "mlm_llama" or _BRIDGE_DENSE(row)


_SIMUMAX_TIME: Final = "SimuMax -13.5..+0.1 %, fitted there"
_SIMUMAX_MEMORY: Final = (("model", 0.015), ("source", 0.02))

BARS: Final = (
    Bar(name="Korthikanti", chosen=_source("korthikanti"), limits=(("model", 0.04), ("source", 0.06)), peer="Calculon 3.65 %, in sample"),
    Bar(name="SC21 table 1", chosen=_source("mlm_sc21"), limits=(("model", 0.033), ("source", 0.07)), peer="SimuMax 6.1 %"),
    Bar(name="dgxc, NeMo", chosen=_NEMO, limits=(("model", 0.03), ("source", 0.06))),
    Bar(name="nemo2407", chosen=_source("nemo2407"), limits=(("model", 0.04), ("source", 0.06))),
    Bar(name="mbridge H100 dense, mlm_llama", chosen=_dense_hopper, limits=(("model", 0.05), ("source", 0.07))),
    Bar(name="mosaic, 1B and more", chosen=_LARGE_MPT, limits=(("model", 0.025), ("source", 0.12))),
    Bar(name="internevo 7B", chosen=_source("internevo"), limits=(("model", 0.05), ("source", 0.15))),
    Bar(name="SimuMax B200", chosen=_source("simumax_b200"), limits=(("model", 0.04), ("source", 0.12)), peer=_SIMUMAX_TIME),
    Bar(name="mbridge MoE", chosen=_EXPERTS, limits=(("model", 0.08), ("source", 0.15))),
    Bar(name="torchtitan", chosen=_source("torchtitan"), limits=(("model", 0.08), ("source", 0.20))),
    Bar(name="SimuMax B200, memory", chosen=_source("simumax_b200"), limits=_SIMUMAX_MEMORY, memory=True, peer="SimuMax 1.4 %"),
    Bar(name="torchtitan, memory", chosen=_source("torchtitan"), limits=(("model", 0.04),), memory=True),
    Bar(name="Megatron CI, memory", chosen=_source("mlm_ci"), limits=(("model", 0.05), ("source", 0.05)), memory=True),
)  # fmt: skip


def judge_bar(bar: Bar, validation: Validation) -> BarResult:
    """The bar over the rows of one validation; a run that is called infeasible counts as 100 %."""
    rows = [row for row in validation.rows if bar.chosen(row.case.measurement)]
    errors = [e for e in ((row.memory_error if bar.memory else row.error) for row in rows) if e is not None]
    return BarResult(
        bar=bar,
        fold=validation.fold,
        n=len(errors),
        mean=fmean(map(abs, errors)) if errors else 0.0,
        bias=fmean(errors) if errors else 0.0,
        worst=max(map(abs, errors), default=0.0),
        limit=dict(bar.limits).get(validation.fold, float("inf")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCorrelation:
    """Spearman's correlation of predicted and measured times over n plans, with an 80 % bootstrap interval."""

    n: int
    value: float
    low: float
    high: float


def rank_correlation(rows: Sequence[RowResult], *, generator: np.random.Generator, draws: int = 1000) -> RankCorrelation:
    """How well predictions order the plans of one sweep.

    Args:
        generator: of the bootstrap. draws: resamples.
    """
    pairs = np.array([(r.predicted_s, r.case.measured_s) for r in rows if r.predicted_s and r.case.measured_s])
    resampled = [pairs[generator.integers(0, len(pairs), len(pairs))] for _ in range(draws)]
    values = [float(spearmanr(p[:, 0], p[:, 1]).statistic) for p in resampled]
    low, high = np.quantile(values, (0.1, 0.9))
    return RankCorrelation(n=len(pairs), value=float(spearmanr(pairs[:, 0], pairs[:, 1]).statistic), low=float(low), high=float(high))


MIN_SWEEP: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Plans of one model on one cluster: how much slower the plan predicted best was measured than the plan measured best."""

    name: str
    plans: int
    regret: float


def sweeps(validation: Validation) -> tuple[Sweep, ...]:
    """Every sweep of three plans or more: same source, model, cluster, job and runtime."""
    groups: dict[tuple[object, ...], list[RowResult]] = {}
    for row in validation.rows:
        if row.predicted_s and row.case.measured_s:
            m, case = row.case.measurement, row.case
            key: tuple[object, ...] = (m.source_id, case.model.name, m.gpu, m.gpu_count, case.job, case.runtime)
            groups.setdefault(key, []).append(row)
    found = []
    for key, rows in groups.items():
        plans = len({row.case.grid for row in rows})
        if plans < MIN_SWEEP:
            continue
        chosen = min(rows, key=lambda r: r.predicted_s or 0.0).case.measured_s or 0.0
        best = min(r.case.measured_s or 0.0 for r in rows)
        found.append(Sweep(name=f"{key[0]} {key[1]} {key[3]} x {key[2]}", plans=plans, regret=chosen / best - 1))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of n rows inside their 80 % interval, and the mean half-width over the mean error."""

    n: int
    inside: float
    width: float


def coverage(rows: Sequence[RowResult]) -> Coverage:
    """How honest the intervals are over `rows` with a measured and a predicted time."""
    judged = [
        (r.interval_s, r.predicted_s, r.case.measured_s, r.error) for r in rows if r.interval_s and r.predicted_s and r.case.measured_s
    ]
    if not judged:
        return Coverage(n=0, inside=0.0, width=0.0)
    inside = fmean(float(interval[0] <= measured <= interval[1]) for interval, _, measured, _ in judged)
    half = fmean((interval[1] - interval[0]) / 2 / predicted for interval, predicted, _, _ in judged)
    return Coverage(n=len(judged), inside=inside, width=half / max(fmean(abs(error or 0.0) for *_, error in judged), 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakScaling:
    """Step time on the most devices over that on the fewest, same work a device: predicted, and as measured."""

    name: str
    fewest: int
    most: int
    predicted: float
    measured: float


def weak_scaling(validation: Validation, *, word: str, precision: str, fewest: int, most: int) -> WeakScaling | None:
    """Of the `dgxc` rows whose model name has `word`, in `precision`; None without rows at both ends."""
    at: dict[int, list[tuple[float, float]]] = {fewest: [], most: []}
    for row in validation.rows:
        m = row.case.measurement
        chosen = m.source_id == "dgxc" and word in m.model_name.lower() and "maxtext" not in m.model_name.lower()
        if chosen and precision in m.precision.lower() and m.gpu_count in at and row.predicted_s and row.case.measured_s:
            at[m.gpu_count].append((row.predicted_s, row.case.measured_s))
    if not all(at.values()):
        return None
    small, large = ((fmean(p for p, _ in pairs), fmean(q for _, q in pairs)) for pairs in (at[fewest], at[most]))
    return WeakScaling(name=f"{word} {precision}", fewest=fewest, most=most, predicted=large[0] / small[0], measured=large[1] / small[1])
