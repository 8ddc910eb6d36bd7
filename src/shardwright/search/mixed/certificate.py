"""What a mixed answer proves: frames with their prices, and the bounds of each pool alone."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.runtime.runtime import Options
from shardwright.search.mixed.duals import Dual


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
class MixedCertificate:
    """Why no plan of the mixed space is faster.

    Args:
        space: in words. shapes: pipelines that replicas may be, under each set of options. alone: each pool's own. closed: frames and
            prices. tests: linear programs solved. compositions: tried. simulated: in full. infeasible: of them, that do not fit.
        mixed_lower_s: no plan of several pipelines is faster; lower_bound_s: nor a grid of a pool alone. gap, universal_gap, tolerance: as
            of `search.certificate.Certificate`.
    """

    space: str
    digest: str
    shapes: int
    alone: tuple[PoolAlone, ...]
    closed: tuple[Closed, ...]
    tests: int
    compositions: int
    simulated: int
    infeasible: int
    best_s: float
    mixed_lower_s: float
    lower_bound_s: float
    gap: float
    universal_gap: float
    tolerance: float
