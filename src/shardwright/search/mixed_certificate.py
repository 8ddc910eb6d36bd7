"""Certificate of a mixed-cluster search: subsets of the space, and dual prices that bound each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.strategy.plan.plan import Plan

GIVEN_UP = -1
"""`PoolAlone.stopped_at` of a pool whose grid search gave up before a grid that fits was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A subset of a mixed space, given by ranges of replicas, tensor parallelism, nodes, sharding.

    Args:
        replicas: least and largest number of replicas in a plan.
        tp: least tensor parallel degree of a stage.
        nodes: least and largest number of nodes that a plan fills.
        sharded: True = plans of which some lane shards gradients or parameters among its own
            replicas; False = plans without such a lane.
        alone: of the sharded plans, True = those of one lane; False = those of several lanes.
        sole: classes of pools (`mixed.stages.shared_layer_synchronisation`) each of which alone
            holds some layer of every replica; several classes hold each other layer. None = any
            plans.
    """

    replicas: tuple[int, int]
    tp: int
    nodes: tuple[float, float]
    sharded: bool = False
    alone: bool = False
    sole: tuple[int, ...] | None = None

    def text(self) -> str:
        """Text of the frame's ranges."""
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
        """Text of the layers that one class of pools holds alone; empty = any."""
        if self.sole is None:
            return ""
        if not self.sole:
            return ", every layer on several kinds of device"
        names = " and some on kind ".join(str(pool_class + 1) for pool_class in self.sole)
        return f", some layers on kind {names} alone, the others on several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """Dual prices that prove a bound: no plan of the frame processes more than `samples`.

    Under these prices, no replica of a shape processes more samples than it costs.

    Args:
        limit_s: seconds in which the samples are processed.
        devices: price, in samples, of a device of each pool.
        nodes, replicas: price of a filled node, and of a replica (negative if every plan has too
            many).
        samples: price of all devices, nodes and replicas of the frame.
    """

    frame: Frame
    limit_s: float
    devices: tuple[float, ...]
    nodes: float
    replicas: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Dual prices that prove a least cost rate: no plan of the frame has a rate below `rate`.

    Under these prices, no replica of a shape processes more samples than it costs, its own cost
    rate included. So no plan of the frame processes the batch by the limit at a lower rate.

    Args:
        limit_s, devices, nodes, replicas: see `Dual`.
        money: price, in samples, of one unit a second (dollars, joules).
        rate: units a second; None = no plan of the frame ends by the limit at any rate.
    """

    frame: Frame
    limit_s: float
    devices: tuple[float, ...]
    nodes: float
    replicas: float
    money: float
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Floors of frames that together cover the space under some runtime options."""

    options: Options
    floors: tuple[Floor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An interval of step times with a lower bound of the cost rate of its plans.

    A plan whose step takes `begin_s` to `limit_s` has at least `rate` units a second, so costs at
    least begin_s x rate.

    Args:
        rate: units a second; None = no plan ends by the limit at any rate.
        empty: True if no plan ends by the limit, or none within the budget.
        shown: floors that prove the rate; () = nothing is proven.
    """

    begin_s: float
    limit_s: float
    rate: float | None
    empty: bool
    shown: tuple[Floors, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point of the time-cost front: a plan that no found plan beats in both seconds and units.

    Args:
        lower_bound: least units of any plan of the space by that time.
        pipelines: text of the plan's pipelines.
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
        budget: dollars an hour that plans may cost, 0 = any.
        value: units a step of the plan.
        lower_bound: units a step that no plan of the space can beat. The bound of the time of plans
            within the budget is `MixedPart.lower_bound_s`.
        cells: intervals of step times that prove it, the longest first.
        front: the time-cost front, the fastest first.
    """

    objective: str
    unit: str
    budget: float
    value: float
    lower_bound: float
    cells: tuple[Cell, ...]
    front: tuple[FrontPoint, ...] = ()

    @property
    def gap(self) -> float:
        """Relative gap of the cost: (value - lower bound) / value."""
        return (self.value - self.lower_bound) / self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAlone:
    """The best grid on the devices of one pool alone.

    Args:
        name: name of the accelerator.
        devices: number of devices of the pool.
        strategy: text of the grid, empty = none fits.
        step_time_s: step seconds of the grid in the whole cluster; None = none fits.
        lower_bound_s: seconds that no grid can beat.
        stopped_at: see `search.certificate.Certificate`, or `GIVEN_UP`.
        worth_s: seconds by which one more device of this pool lowers the bound of several
            pipelines; None = nothing is proven.
        fewest: least devices of a grid, if ranges of devices are searched one by one; 0 = they are
            not.
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
class Closed:
    """Frames that are ruled out under some runtime options, with the dual prices that prove it."""

    options: Options
    duals: tuple[Dual, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The fastest plan found of another pipeline composition than the best plan's.

    Args:
        pipelines: text of its pipelines.
    """

    pipelines: str
    step_time_s: float
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPart:
    """The part of a certificate that the search of a mixed cluster adds.

    Args:
        shapes: number of pipelines that replicas may be, under each set of options.
        alone: the best grid of each pool.
        closed: frames that are ruled out, with prices.
        tests: number of linear programs solved.
        lower_bound_s: seconds that no plan of several pipelines can beat, 0 = nothing is proven.
        tolerance: gap at which the search stops.
        pipelines: text of the best plan's pipelines; empty = the plan is a grid of one pool.
        runners: next best plans of other compositions that were found; their rank is not proven.
        composed_stopped_at: `Certificate.stopped_at` of the search for plans.
        valued: part of a search for cost, energy or within a budget.
        why_alone: why the space has no pipelines over several pools; empty = it has.
    """

    shapes: int
    alone: tuple[PoolAlone, ...]
    closed: tuple[Closed, ...]
    tests: int
    lower_bound_s: float
    tolerance: float
    pipelines: str = ""
    runners: tuple[Runner, ...] = ()
    composed_stopped_at: int = 0
    valued: ValuedPart | None = None
    why_alone: str = ""

    @property
    def fastest_alone(self) -> PoolAlone | None:
        """The pool with the fastest own grid; None if nothing fits on any pool."""
        feasible = [pool for pool in self.alone if pool.step_time_s is not None]
        return min(feasible, key=lambda pool: pool.step_time_s or 0.0, default=None)


def worth_of(closed: Iterable[Closed], node_sizes: Sequence[int]) -> tuple[float | None, ...]:
    """Seconds by which one more device of each pool lowers the step's bound, to first order.

    None if no frame has a bound. Computed for the frame with the most samples: a device of a pool
    with nodes of n adds its price pi and the share sigma / n of a node's price to the samples S
    that are processed by T. Samples are processed at S / T a second, so the bound falls by (pi +
    sigma / n) T / S. Other effects (other frames, more replicas) are left out.

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
