"""Certificate of a mixed search: subspaces of the space, and dual prices that bound each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.strategy.plan.plan import Plan

GIVEN_UP = -1
"""Stop mark of a pool whose search ended before a grid that fits was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subspace:
    """A subset of the plans of a mixed space, a node of the branch and bound tree.

    Args:
        replicas: fewest and most pipeline replicas of a plan.
        tp: no stage has a smaller tensor parallel degree.
        nodes: fewest and most nodes that a plan fills.
        sharded: True = plans with a lane that shards gradients or parameters among its own
            replicas; False = plans without such a lane.
        alone: of the plans with such a lane, those with a single lane; False = with several lanes.
        sole: classes of pools (`stages.shared_layer_synchronisation`) each of which alone holds
            some layer of every replica; several classes hold each other layer. None = any classes.
    """

    replicas: tuple[int, int]
    tp: int
    nodes: tuple[float, float]
    sharded: bool = False
    alone: bool = False
    sole: tuple[int, ...] | None = None

    def text(self) -> str:
        """Describe the subspace in one line."""
        low, high = self.replicas
        count_text = f"{low}" if low == high else f"{low} to {high}"
        lanes = (
            (
                ", one lane, with zero2 or 3"
                if self.alone
                else ", some of several lanes with zero2 or 3"
            )
            if self.sharded
            else ""
        )
        return (
            f"{count_text} replicas, tp from {self.tp}, {self.nodes[0]:g} to {self.nodes[1]:g}"
            f" nodes{lanes}{self._sole_text()}"
        )

    def _sole_text(self) -> str:
        """Describe the pool classes that alone hold some layer, after a comma; empty = any."""
        if self.sole is None:
            return ""
        if not self.sole:
            return ", every layer on several kinds of device"
        names = " and some on kind ".join(str(pool_class + 1) for pool_class in self.sole)
        return f", some layers on kind {names} alone, the others on several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """Dual prices that bound the samples of every plan of a subspace by a step-time limit.

    No replica of a shape completes more samples by the limit than the prices of its resources add
    up to, so no plan of the subspace completes more than `samples`. Fewer than the batch prove that
    no plan ends by the limit.

    Args:
        frame: the subspace.
        limit_s: step-time limit in seconds.
        devices: price in samples of one device of each pool.
        nodes, replicas: price of one filled node, and of one replica (negative where every plan has
            more replicas than is best).
        samples: price of all devices, nodes and replicas of the subspace.
    """

    frame: Subspace
    limit_s: float
    devices: tuple[float, ...]
    nodes: float
    replicas: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Dual prices that prove a least cost rate for the plans of a subspace that end by a limit.

    No replica of a shape completes more samples by the limit than the prices of its resources, with
    its cost rate among them, add up to. So no plan of the subspace completes the batch by the limit
    for less than `rate`.

    Args:
        frame, limit_s, devices, nodes, replicas: as of `Dual`.
        money: price in samples of one unit (dollars, joules) a second.
        rate: least units a second; None = no plan of the subspace ends by the limit at any cost.
    """

    frame: Subspace
    limit_s: float
    devices: tuple[float, ...]
    nodes: float
    replicas: float
    money: float
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The floors of all subspaces of the space, under one set of runtime options."""

    options: Options
    floors: tuple[Floor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeInterval:
    """An interval of step times with a lower bound on the cost rate of its plans.

    Plans whose step takes `begin_s` to `limit_s` seconds take at least `rate` units a second, so at
    least begin_s x rate a step.

    Args:
        rate: None = no plan ends by the limit at any cost.
        empty: no plan ends by the limit, or none within the budget.
        shown: the proof; () = nothing is proven.
    """

    begin_s: float
    limit_s: float
    rate: float | None
    empty: bool
    shown: tuple[Floors, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A plan of the time-cost front: no plan found is both faster and cheaper.

    Args:
        step_time_s: seconds of a step.
        value: dollars or joules of a step.
        lower_bound: least value of every plan of the space that ends by that time.
        pipelines: the pipelines of the plan in words.
    """

    step_time_s: float
    value: float
    lower_bound: float
    pipelines: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedPart:
    """The part of a certificate that a search for cost, energy or within a budget adds.

    Args:
        objective: time, cost, energy or pareto.
        unit: unit of values: usd or joules.
        budget: upper limit in dollars an hour on a plan's rent, 0 = no limit.
        value: units a step of the plan.
        lower_bound: least value of every plan of the space. The bound of a search for time within
            the budget is `MixedPart.lower_bound_s`.
        cells: intervals of step times that prove the bound, the longest times first.
        front: plans of the front, the fastest first.
    """

    objective: str
    unit: str
    budget: float
    value: float
    lower_bound: float
    cells: tuple[TimeInterval, ...]
    front: tuple[FrontPoint, ...] = ()

    @property
    def gap(self) -> float:
        """Relative gap between the value and its lower bound: (value - lower bound) / value."""
        return (self.value - self.lower_bound) / self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAlone:
    """The best grid on the devices of one pool alone.

    Args:
        name: name of the accelerator.
        devices: number of devices of the pool.
        strategy: the grid in words, empty = no grid fits.
        step_time_s: seconds of the grid's step, simulated in the whole cluster; None = no grid
            fits.
        lower_bound_s: seconds that no grid's step is below.
        stopped_at: as of `search.optimality_certificate.Certificate`, or `GIVEN_UP`.
        worth_s: seconds a step that one device more of this pool takes off the bound of several
            pipelines; None where no bound was proven.
        fewest: fewest devices that a grid uses, where ranges of devices are searched one by one;
            0 = there are no ranges.
    """

    name: str
    devices: int
    strategy: str
    step_time_s: float | None
    lower_bound_s: float | None
    stopped_at: int
    worth_s: float | None = None
    fewest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSubspaces:
    """Subspaces that dual prices prove to hold no faster plan, under one set of runtime options."""

    options: Options
    duals: tuple[Dual, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The fastest plan found of one other composition than that of the best plan.

    Args:
        pipelines: its pipelines in words.
        step_time_s: seconds of its step.
    """

    pipelines: str
    step_time_s: float
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPart:
    """The part of a certificate that the search of a mixed cluster adds.

    Args:
        shapes: number of pipeline shapes, over all sets of options.
        alone: best grid of each pool alone.
        closed: subspaces and their dual prices.
        tests: number of linear programs solved.
        lower_bound_s: seconds that no plan of several pipelines is below, 0 = not proven.
        tolerance: relative gap at which the search stops.
        pipelines: pipelines of the best plan in words; empty = the plan is a grid of one pool.
        runners: fastest plans found of other compositions; none is proven to be the next best.
        composed_stopped_at: check of the clock that ended the composition of plans, as
            `Certificate.stopped_at`.
        valued: part of a search for cost, energy or within a budget.
        why_alone: reason for a space without pipelines; empty = the space has pipelines.
    """

    shapes: int
    alone: tuple[PoolAlone, ...]
    closed: tuple[ClosedSubspaces, ...]
    tests: int
    lower_bound_s: float
    tolerance: float
    pipelines: str = ""
    runners: tuple[RunnerUp, ...] = ()
    composed_stopped_at: int = 0
    valued: ValuedPart | None = None
    why_alone: str = ""

    @property
    def fastest_alone(self) -> PoolAlone | None:
        """Result of the pool whose own best grid is the fastest; None where no grid fits."""
        feasible = [pool for pool in self.alone if pool.step_time_s is not None]
        return min(feasible, key=lambda pool: pool.step_time_s or 0.0, default=None)


def device_worth_seconds(
    closed: Iterable[ClosedSubspaces], node_sizes: Sequence[int]
) -> tuple[float | None, ...]:
    """Step seconds that one more device of each pool takes off the bound; None = no dual price.

    None where no subspace completes any sample by its limit. The subspace that is nearest to open
    counts: a device of a pool with nodes of n adds its price pi and the share sigma / n of a node's
    price to the samples S that are completed by T. Samples come at S / T a second, so the bound
    falls by (pi + sigma / n) T / S. Changes of other subspaces and additional replicas are left
    out.

    Args:
        node_sizes: devices of a node of each pool.
    """
    tightest = max(
        (dual for frame in closed for dual in frame.duals if dual.samples > 0),
        key=lambda dual: dual.samples,
        default=None,
    )
    if tightest is None:
        return (None,) * len(node_sizes)
    seconds_per_sample = tightest.limit_s / tightest.samples
    return tuple(
        (price + tightest.nodes / node) * seconds_per_sample
        for price, node in zip(tightest.devices, node_sizes, strict=True)
    )
