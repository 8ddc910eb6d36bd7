"""What the certificate of a mixed space keeps: frames that make up the space, and the prices that close each."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.runtime.runtime import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A part of a mixed space.

    Args:
        replicas: least and most in a plan. tp: no stage has a smaller tensor parallel degree. nodes: least and most that a plan fills.
    """

    replicas: tuple[int, int]
    tp: int
    nodes: tuple[float, float]

    def text(self) -> str:
        """The frame in words."""
        low, high = self.replicas
        many = f"{low}" if low == high else f"{low} to {high}"
        return f"{many} replicas, tp from {self.tp}, {self.nodes[0]:g} to {self.nodes[1]:g} nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """Prices under which no replica of a shape is worth more samples than it costs; so no plan of the frame does more than `samples`.

    Args:
        limit_s: by which. devices: samples that a device of each pool is worth. nodes, replicas: likewise a node that is filled, a replica
            (negative where every plan has some too many). samples: what all devices, nodes and replicas of the frame are worth.
    """

    frame: Frame
    limit_s: float
    devices: tuple[float, ...]
    nodes: float
    replicas: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAlone:
    """The best grid on one pool's devices alone.

    Args:
        name: of the accelerator. devices: of the pool. strategy: the grid in words, empty = none fits. step_time_s: of it, in the whole
            cluster; None = none fits. lower_bound_s: no grid is faster. stopped_at: as of `search.certificate.Certificate`.
    """

    name: str
    devices: int
    strategy: str
    step_time_s: float | None
    lower_bound_s: float | None
    stopped_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Frames that are closed under some options of the runtime."""

    options: Options
    duals: tuple[Dual, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPart:
    """What the certificate of a mixed space has more.

    Args:
        shapes: pipelines that replicas may be, under each set of options. alone: each pool's own. closed: frames and prices.
        tests: linear programs solved. lower_bound_s: no plan of several pipelines is faster. tolerance: gap that was good enough.
    """

    shapes: int
    alone: tuple[PoolAlone, ...]
    closed: tuple[Closed, ...]
    tests: int
    lower_bound_s: float
    tolerance: float

    @property
    def fastest_alone(self) -> PoolAlone | None:
        """The pool whose own best grid is the fastest; None where nothing fits on any."""
        some = [one for one in self.alone if one.step_time_s is not None]
        return min(some, key=lambda one: one.step_time_s or 0.0, default=None)
