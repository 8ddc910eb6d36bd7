"""Check of a stored plan, joint plan or simulation by repeating it and comparing every field."""

from __future__ import annotations

from shardwright.api.general import check_general
from shardwright.api.grids import check_stored
from shardwright.api.simulations import verify
from shardwright.files.stored import StoredPlan, StoredSimulation
from shardwright.progress import Progress
from shardwright.search.engine.protocol import Engine
from shardwright.search.grid.recheck import Recheck
from shardwright.search.simulation import Verified


def check_file(
    stored: StoredSimulation, *, engine: Engine | None = None, progress: Progress | None = None
) -> Recheck | Verified:
    """Result of repeating whatever a file stores; a field that differs is an error.

    The digest holds the request, which cannot be repeated.

    Args:
        engine: runs the parts of joint and mixed searches.

    Raises:
        DataError: a field differs, or a certificate does not hold.
        StrategyError, InfeasibleError: the strategy is not legal for the problem.
    """
    if not isinstance(stored, StoredPlan):
        return verify(stored)
    return (
        check_stored(stored, progress=progress)
        if stored.answer is not None
        else check_general(stored, engine=engine, progress=progress)
    )
