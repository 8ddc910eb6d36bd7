"""Certificate of a plan for several states of a cluster, and the tail mean that judges the plan."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """Results of a robust search in one state of the cluster.

    Args:
        share: fraction of the time in this state.
        step_time_s: step seconds of the chosen plan in this state.
        best_s, strategy: step seconds and text of the fastest plan tried in this state.
        lower_bound_s: seconds that no plan of the space can beat in this state.
    """

    name: str
    share: float
    step_time_s: float
    best_s: float
    strategy: str
    lower_bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A plan that was simulated in every state, with its seconds in each and its tail mean."""

    strategy: str
    tail_s: float
    steps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenariosPart:
    """The part of a certificate that a search over several states adds.

    Args:
        level: level of the tail (`tail_mean`).
        outcomes: results by state.
        ranked: number of plans that each state's own search ranked. Of these, `tried` were
            simulated in every state, and `ruled_out` were not, since their bound was too large.
        next_best: the best tried plans after the answer.
    """

    level: float
    outcomes: tuple[ScenarioOutcome, ...]
    ranked: int
    tried: int
    ruled_out: int
    next_best: tuple[Tried, ...]


def tail_mean(seconds: Sequence[float], shares: Sequence[float], *, level: float) -> float:
    """Mean seconds over the slowest 1 - `level` of the time: conditional value at risk.

    CVaR_a = min over c of c + sum_s share_s max(t_s - c, 0) / (1 - a), which is the mean of t over
    the slowest 1 - a of the shares. It never falls when some t_s rises. With 1 s for 90 % of the
    time and 3 s for 10 %: 1.2 at level 0, 2 at 0.8, 3 from 0.9 on.

    Args:
        seconds: step seconds in each state.
        shares: fraction of the time in each state; they add up to one.
        level: a, from 0 (the mean) to 1 (the slowest state).

    Source: Rockafellar and Uryasev 2000, Optimization of conditional value-at-risk, theorem 1.
    """
    slowest_first = sorted(zip(seconds, shares, strict=True), key=lambda pair: -pair[0])
    tail, total, taken = 1.0 - level, 0.0, 0.0
    if tail <= 0.0:
        return slowest_first[0][0]
    for value, share in slowest_first:
        part = min(share, tail - taken)
        if part <= 0.0:
            break
        total, taken = total + part * value, taken + part
    return total / taken


def judged_by(level: float) -> str:
    """Text of the mean by which plans for several scenarios are judged."""
    if level <= 0.0:
        return "the mean step over the scenarios"
    return (
        "the step of the slowest scenario"
        if level >= 1.0
        else f"the mean step of the slowest {1.0 - level:.4g} of the time"
    )
