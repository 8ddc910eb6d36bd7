"""The answers of searches: the best strategy, what it is worth, and the proof that none is better;
of a search of grids also the next best ones.
"""

from __future__ import annotations

from dataclasses import field
from typing import Generic, TypeVar

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.answer_summary import Line, summary, text_of
from shardwright.search.certificate import Certificate, claim
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid

Detail = TypeVar("Detail")
"""A strategy in the terms of the search that found it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A next best strategy, certified in rank.

    Args:
        changes: (part of the breakdown, seconds more than the best, or less where negative), the
            largest first, whichever way.
        indistinguishable: within the prediction's interval of the best.
    """

    grid: Grid
    step_time_s: float
    allocated_bytes: int
    changes: tuple[tuple[str, float], ...]
    indistinguishable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Effect of a change of the cluster: seconds of a step of the same plan, and of the plan
    that is best then.
    """

    change: str
    same_plan_s: float
    best_s: float
    best_grid: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearby:
    """A number of devices or a batch near the request's whose best plan leaves no device idle.

    Args:
        devices, global_batch: of it.
        step_time_s: seconds of its best plan.
        gain: tokens a second and device of the cluster, idle ones too, over the answer's, less one.
    """

    devices: int
    global_batch: int
    step_time_s: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Useful share of the time under failures.

    Args:
        failures_per_day: of the whole cluster.
        checkpoint_interval_s: the interval that loses least (Young 1974, Daly 2006).
        goodput: useful seconds over elapsed seconds.
        assumptions: one line each.
    """

    failures_per_day: float
    checkpoint_interval_s: float
    goodput: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """The best strategy with another value of one option of the runtime: seconds of its step, and
    the share of the step that it saves.
    """

    option: str
    value: str
    step_time_s: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsearched:
    """Options that a search kept at one value although they change no numerics.

    Args:
        fixed: (option, value) of each such option of the runtime.
        best: the change of one of them that gains most; None where none saves 0.1 % of the step.
    """

    fixed: Options
    best: OptionChange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a search of grids: the best grid, its prediction and proof, and the next best
    ones.

    Args:
        grid: the best strategy.
        plan: the same as a whole plan.
        request: what was asked.
        nearby: what would do much better.
        waited: the limit cut in before there was a plan (`search.limit.Limit`).
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
        """The request, the best grid and the claim of the certificate, in a few lines."""
        c = self.certificate
        return text_of(
            [*answer_lines(self), ("", claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s))]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralAnswer(Generic[Detail]):
    """The best strategy that a search of general plans found, and the proof.

    Args:
        strategy: a grid where no other plan is better.
        certificate: its `best_s` is the step of the strategy.
        detail: the strategy in the terms of its search.
        waited: the limit cut in before there was a plan (`search.limit.Limit`).
        simulation: of the strategy, as a plan file holds it; None as long as no request is known.
    """

    strategy: Grid | Plan
    certificate: Certificate
    detail: Detail
    search_time_s: float = field(default=0.0, compare=False)
    waited: bool = field(default=False, compare=False)
    simulation: Simulation | None = field(default=None, compare=False)

    @property
    def plan(self) -> Plan | None:
        """The strategy where it is a general plan; None where it is a grid."""
        return None if isinstance(self.strategy, Grid) else self.strategy

    @property
    def step_time_s(self) -> float:
        """Seconds of a step of the strategy; over several scenarios the mean of the slow tail."""
        return self.certificate.best_s

    def __str__(self) -> str:
        """The request, the strategy and the claim of the certificate, in a few lines."""
        c = self.certificate
        proof = claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s)
        return f"{self.simulation or ''}\n{proof}".strip()


def answer_lines(answer: Answer) -> list[Line]:
    """Lines (label, text) of the request, the best grid, and the devices or batches near it that
    would do much better.
    """
    better = [
        f"{n.global_batch:,} sequences a step on {n.devices:,} devices: {n.step_time_s:.4g} s,"
        f" {n.gain:+.0%} tokens/s/device"
        for n in answer.nearby
    ]
    lines = summary(
        answer.request, answer.prediction, strategy=print_grid(answer.grid), searched=True
    )
    return [*lines, *(("Better", text) for text in better)]
