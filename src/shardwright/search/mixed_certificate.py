"""Parts of the certificate of a mixed space: frames, which are subsets that make up the space, and
the dual prices that prove the bound of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.strategy.plan.plan import Plan

GIVEN_UP = -1
"""A pool whose grids were given up before one that fits was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A subset of the plans of a mixed space, given by ranges of replicas, tensor parallel degree,
    nodes and sharding.

    Args:
        replicas: least and most in a plan.
        tp: no stage has a smaller tensor parallel degree.
        nodes: least and most that a plan fills.
        sharded: plans of which some lane shards gradients or parameters among its own replicas;
            False = those of which none does.
        alone: of these the plans of one lane; False = those of several.
        sole: classes of pools (`mixed.shared_layers`) each of which alone holds some layer of every
            replica; several hold each other layer. None = plans with any such classes.
    """

    replicas: tuple[int, int]
    tp: int
    nodes: tuple[float, float]
    sharded: bool = False
    alone: bool = False
    sole: tuple[int, ...] | None = None

    def text(self) -> str:
        """Description of the frame."""
        low, high = self.replicas
        many = f"{low}" if low == high else f"{low} to {high}"
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
            f"{many} replicas, tp from {self.tp}, {self.nodes[0]:g} to {self.nodes[1]:g}"
            f" nodes{lanes}{self._held()}"
        )

    def _held(self) -> str:
        """Description of the layers that one class of pools holds alone; empty = any."""
        if self.sole is None:
            return ""
        if not self.sole:
            return ", every layer on several kinds of device"
        kinds = " and some on kind ".join(str(one + 1) for one in self.sole)
        return f", some layers on kind {kinds} alone, the others on several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """Prices under which no replica of a shape is worth more samples than it costs; so no plan of
    the frame does more than `samples`.

    Args:
        limit_s: by which.
        devices: samples that a device of each pool is worth.
        nodes, replicas: likewise a node that is filled, a replica (negative where every plan has
            some too many).
        samples: what all devices, nodes and replicas of the frame are worth.
    """

    frame: Frame
    limit_s: float
    devices: tuple[float, ...]
    nodes: float
    replicas: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Prices under which no replica of a shape is worth more samples than it costs, what it takes a
    second among that; so no plan of the frame does the batch by the limit and takes less than
    `rate`.

    Args:
        limit_s, devices, nodes, replicas: as of `Dual`.
        money: samples that one unit a second (dollars, joules) is worth.
        rate: units a second; None = no plan of the frame ends by the limit whatever it takes.
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
    """Floors of frames that make up the space under some options of the runtime."""

    options: Options
    floors: tuple[Floor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Plans whose step takes `begin_s` to `limit_s`: none takes less than `rate` units a second, so
    none costs less than begin_s x rate.

    Args:
        rate: None = none ends by the limit whatever it takes.
        empty: there are no plans by the limit, or none within the budget.
        shown: what shows it; () = nothing is shown.
    """

    begin_s: float
    limit_s: float
    rate: float | None
    empty: bool
    shown: tuple[Floors, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A plan that no plan found beats in both: seconds and units a step, the least that any plan of
    the space by that time can take, its pipelines in words, and the plan itself.
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
        unit: of values: usd or joules.
        budget: dollars an hour that plans may rent for, 0 = any.
        value: of the plan, units a step.
        lower_bound: no plan of the space takes less; of a search for time that no plan of the space
            and the budget is faster is `MixedPart.lower_bound_s`.
        cells: of times, which show it, the longest first.
        front: the fastest first.
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
        """(value - lower bound) / value."""
        return (self.value - self.lower_bound) / self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAlone:
    """The best grid on one pool's devices alone.

    Args:
        name: of the accelerator.
        devices: of the pool.
        strategy: the grid in words, empty = none fits.
        step_time_s: of it, in the whole cluster; None = none fits.
        lower_bound_s: no grid is faster.
        stopped_at: as of `search.certificate.Certificate`, or `GIVEN_UP`.
        worth_s: seconds a step that one device more of this pool takes off the bound of several
            pipelines; None where none was shown.
        fewest: devices that a grid uses at least, where ranges of devices are searched one by one;
            0 = they are not.
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
    """Frames that are closed under some options of the runtime."""

    options: Options
    duals: tuple[Dual, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The fastest plan found of another composition than the best's: its pipelines in words,
    seconds, and the plan itself.
    """

    pipelines: str
    step_time_s: float
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPart:
    """The part of a certificate that a mixed space adds.

    Args:
        shapes: pipelines that replicas may be, under each set of options.
        alone: each pool's own.
        closed: frames and prices.
        tests: linear programs solved.
        lower_bound_s: no plan of several pipelines is faster, 0 = not shown.
        tolerance: gap that was good
        enough.
        pipelines: of the best plan, in words; empty = it is a grid of one pool.
        runners: next best of other compositions, as far
        as they were found: none is proven to be next.
        composed_stopped_at: as of the certificate, of the look for
        plans.
        valued: of a search for cost, energy or a budget.
        why_alone: why there are no pipelines in the space; empty = there are.
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
        """The pool whose own best grid is the fastest; None where nothing fits on any."""
        some = [one for one in self.alone if one.step_time_s is not None]
        return min(some, key=lambda one: one.step_time_s or 0.0, default=None)


def worth_of(closed: Iterable[Closed], node_sizes: Sequence[int]) -> tuple[float | None, ...]:
    """Seconds of a step that one device more of each pool takes off the bound, to first order; None
    where no frame does anything by it.

    Of the frame that is nearest to open: a device of a pool with nodes of n adds its price pi and
    the share sigma / n of a node's to the samples S that are done by T, and samples come at S / T a
    second, so the bound falls by (pi + sigma / n) T / S. What changes with it elsewhere (other
    frames, more replicas) is left out.

    Args:
        node_sizes: devices of a node of each pool.
    """
    tightest = max(
        (dual for one in closed for dual in one.duals if dual.samples > 0),
        key=lambda dual: dual.samples,
        default=None,
    )
    if tightest is None:
        return (None,) * len(node_sizes)
    each = tightest.limit_s / tightest.samples
    return tuple(
        (price + tightest.nodes / node) * each
        for price, node in zip(tightest.devices, node_sizes, strict=True)
    )
