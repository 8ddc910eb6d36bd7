"""The answers of searches: the best strategy, its certificate, and the next best strategies."""

from __future__ import annotations

from dataclasses import field
from typing import Generic, TypeVar

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.search.answer_summary_text import Line, summary, text_of
from shardwright.search.optimality_certificate import Certificate, claim
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid

Detail = TypeVar("Detail")
"""Type of the search-specific description of a strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A next best strategy, certified in rank.

    Args:
        changes: (part of the step breakdown, seconds more than the best), the largest absolute
            difference first.
        indistinguishable: True if within the prediction interval of the best.
    """

    grid: Grid
    step_time_s: float
    allocated_bytes: int
    changes: tuple[tuple[str, float], ...]
    indistinguishable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Effect of a changed cluster: step seconds of the same plan, and of the new best plan."""

    change: str
    same_plan_s: float
    best_s: float
    best_grid: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearby:
    """A device count or batch near the request's, whose best plan leaves no device idle.

    Args:
        devices, global_batch: the changed numbers.
        step_time_s: step seconds of the best plan there.
        gain: tokens a second per device of the cluster, idle ones too, relative to the answer, less
            one.
    """

    devices: int
    global_batch: int
    step_time_s: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Useful fraction of the time under failures and checkpoints.

    Args:
        failures_per_day: failures of the whole cluster.
        checkpoint_interval_s: interval that loses the least time (Young 1974, Daly 2006).
        goodput: useful seconds over elapsed seconds.
        assumptions: one line each.
    """

    failures_per_day: float
    checkpoint_interval_s: float
    goodput: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """The best strategy with another value of one runtime option: step seconds, fraction saved."""

    option: str
    value: str
    step_time_s: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsearched:
    """Runtime options that a search kept fixed although they change no numerics.

    Args:
        fixed: (option, value) of each such option of the runtime.
        best: the change of one option that gains most; None if none saves 0.1 % of the step.
    """

    fixed: Options
    best: OptionChange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a search of grids: the best grid, prediction, certificate, next best grids.

    Args:
        grid: the best strategy.
        plan: the best strategy as a general plan.
        request: the user's request.
        nearby: device counts or batches near the request that would do much better.
        waited: True if the limit passed before there was a plan (`search.search_time_limit.Limit`).
    """

    grid: Grid
    prediction: Prediction
    certificate: Certificate
    alternatives: tuple[Alternative, ...]
    search_time_s: float
    sensitivity: Sensitivity | None = None
    goodput: Goodput | None = None
    nearby: tuple[Nearby, ...] = ()
    plan: Plan | None = None
    request: Request | None = None
    waited: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Text of the request, the best grid and the claim of the certificate."""
        c = self.certificate
        return text_of(
            [*answer_lines(self), ("", claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s))]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralAnswer(Generic[Detail]):
    """The best strategy that a search of general plans found, with its certificate.

    Args:
        strategy: a grid if no other plan is better.
        certificate: certificate whose `best_s` is the strategy's step seconds.
        detail: search-specific description of the strategy.
        waited: True if the limit passed before there was a plan (`search.search_time_limit.Limit`).
        simulation: simulation of the strategy, as a plan file holds it; None if no request is
            known.
    """

    strategy: Grid | Plan
    certificate: Certificate
    detail: Detail
    search_time_s: float = field(default=0.0, compare=False)
    waited: bool = field(default=False, compare=False)
    simulation: Simulation | None = field(default=None, compare=False)

    @property
    def plan(self) -> Plan | None:
        """The strategy if it is a general plan; None if it is a grid."""
        return None if isinstance(self.strategy, Grid) else self.strategy

    @property
    def step_time_s(self) -> float:
        """Step seconds of the strategy; over several scenarios the mean of the slow tail."""
        return self.certificate.best_s

    def __str__(self) -> str:
        """Text of the simulation, if any, and the claim of the certificate."""
        c = self.certificate
        proof = claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s)
        return f"{self.simulation or ''}\n{proof}".strip()


def answer_lines(answer: Answer) -> list[Line]:
    """Lines (label, text) of the request, the best grid, and better nearby sizes or batches."""
    better = [
        f"{n.global_batch:,} sequences a step on {n.devices:,} devices: {n.step_time_s:.4g} s,"
        f" {n.gain:+.0%} tokens/s/device"
        for n in answer.nearby
    ]
    lines = summary(
        answer.request, answer.prediction, strategy=print_grid(answer.grid), searched=True
    )
    return [*lines, *(("Better", text) for text in better)]
