"""Verify a stored plan or simulation by repeating it and comparing every field."""

from __future__ import annotations

from shardwright.api.searches.general_plan_file_content_and_verification import check_general
from shardwright.api.searches.grid_search import check_stored
from shardwright.api.simulate_strategy_and_verify_stored import verify
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.progress_callback import Progress
from shardwright.search.grid.verify_certificate import Recheck
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.simulated_strategy import Verified


def check_file(
    stored: StoredSimulation, *, engine: Engine | None = None, progress: Progress | None = None
) -> Recheck | Verified:
    """Repeat the search or simulation of a file and compare every field; raises on a difference.

    The digest is not compared, because it contains the request.

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
