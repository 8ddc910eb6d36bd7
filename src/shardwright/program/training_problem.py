"""A problem: the model, cluster, job and runtime that a plan is made for."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, Constants
from shardwright.hardware.cluster import Cluster
from shardwright.job.training_job import Optimizer, TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.identity_cache_keys import Same
from shardwright.runtime.framework_description import Options, Runtime
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A training problem: a model to train on a cluster, as a job, by a runtime.

    Args:
        constants: fitted constants of the predictions; the shipped ones except in fits.
        free_parts: parts of the step, by their names in a prediction's breakdown, that take no
            time; empty except for the question what a part would be worth
            (`program.problem_where_step_part_takes_no_time`).
    """

    model: Model
    cluster: Cluster
    job: TrainingJob
    runtime: Runtime
    constants: Constants = SHIPPED
    free_parts: frozenset[str] = frozenset()

    @property
    def optimizer(self) -> Optimizer:
        """The job's optimizer, its states in the runtime's dtype of moments if that sets one."""
        optimizer, moments = self.job.optimizer, self.runtime.moments
        return (
            optimizer
            if moments is None
            else replace(optimizer, states=(moments,) * len(optimizer.states))
        )


def under(problem: Problem, options: Options) -> Problem:
    """`problem` with the runtime options that a strategy set (cached).

    The same object for the same options, as values cached for problems are cached by identity.

    Raises:
        RuntimeModelError: the runtime has no such option, or not at that value.
    """
    return _under(Same(problem), options) if options else problem


@lru_cache(maxsize=64)
def _under(problem: Same[Problem], options: Options) -> Problem:
    """`problem` with the runtime options that a strategy set, one object for equal arguments."""
    runtime = runtime_with_options(problem.value.runtime, options)
    return (
        problem.value
        if runtime is problem.value.runtime
        else replace(problem.value, runtime=runtime)
    )
