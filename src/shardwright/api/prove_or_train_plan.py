"""Execute a plan on PyTorch: a proof against the unsplit model, or training on a token file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardwright.api.plan_and_problem_from_file import PlanOfProblem, stored_plan
from shardwright.api.raise_first_broken_strategy_rule import check_plan
from shardwright.api.request_to_problem import problem_of
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, DataError, UsageError
from shardwright.execute.launch.check_options_before_start import require_runnable
from shardwright.execute.launch.run_options_and_report import (
    RunEvaluation,
    RunMemory,
    RunOptions,
    RunReport,
    RunStep,
)
from shardwright.execute.proof.proof_result import PlanProof
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.files.profile_file import read_profile
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.stage_segments import plan_stages, working_devices
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.plan import Plan


def prove_execution(saved: StoredSimulation, *, progress: Progress | None = None) -> PlanProof:
    """Run a small model under a plan; DataError if loss or gradients differ from the unsplit model.

    The model has the same structure; devices are virtual.

    Raises:
        UsageError: PyTorch is not installed.
        StrategyError: the plan has a feature that is not executed.
        DataError: loss or a gradient differs.
    """
    try:
        from shardwright.execute.proof.prove_plan import prove_plan  # PyTorch is an extra
    except ImportError as error:
        raise UsageError(
            "--execute needs PyTorch", hint="pip install 'shardwright[run]'"
        ) from error
    stored = stored_plan(saved)
    proof = prove_plan(stored.problem.model, stored.problem.job, stored.plan, progress=progress)
    if not proof.equal:
        name, difference = proof.worst
        raise DataError(
            f"under the plan the loss differs by {proof.loss_difference:.1e} and the gradient of"
            f" {name} by {difference:.1e}",
            hint="this is an error of Shardwright: report it with the plan",
        )
    return proof


def num_ranks(stored: PlanOfProblem) -> int:
    """Number of ranks that run a plan: one for each device on which some stage runs."""
    return len(working_devices(Same(plan_stages(stored.plan, model=stored.problem.model))))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """A prediction to compare a run with: seconds a step, and memory of each class of devices.

    `cluster` is the cluster that both were predicted for.
    """

    step_time_s: float
    memory: tuple[RunMemory, ...]
    cluster: str


def predict_on_own_cluster(stored: PlanOfProblem) -> PredictedRun:
    """The prediction of a stored plan on the cluster that it was made for."""
    return PredictedRun(
        step_time_s=stored.step_time_s,
        memory=predicted_memory(stored.problem, stored.plan),
        cluster=stored.cluster,
    )


def predict_on_profile(saved: StoredSimulation, profile: Path, *, formats: str) -> PredictedRun:
    """Predict a stored plan's run on a profile's accelerator, in the job's formats or in fp32.

    Args:
        profile: file of `shardwright calibrate`.
        formats: as for `run`: ``fp64`` is predicted as ``fp32``, which is faster.

    Raises:
        DataError, ClusterError: the profile cannot be read, is of no known device, or was not
            measured in the formats.
    """
    stored, measured_profile = stored_plan(saved), read_profile(profile)
    cluster = f"{measured_profile.accelerator}:{stored.plan.devices}"
    compute = stored.problem.job.compute if formats == "job" else Dtype.FP32
    if find_accelerator(measured_profile.accelerator) is None and compute not in {
        rates.dtype for rates in measured_profile.gemm
    }:
        command = f"shardwright calibrate --dtype {compute.value}"
        raise ClusterError(
            f"{profile}: nothing was measured in {compute.value}",
            hint=f"--formats fp32, or {command} for another profile",
        )
    precision = saved.request.precision if formats == "job" else "fp32"
    measured_request = replace(
        saved.request,
        cluster=cluster,
        profile=str(profile),
        precision=precision,
        runtime="shardwright",
        scenarios="",
    )
    problem = problem_of(measured_request)
    simulated = simulate_plan(problem, stored.plan)
    return PredictedRun(
        step_time_s=simulated.step_time_s,
        memory=predicted_memory(problem, stored.plan),
        cluster=cluster,
    )


def run(
    stored: PlanOfProblem,
    options: RunOptions,
    *,
    predicted: PredictedRun | None = None,
    watch: Callable[[RunStep | RunEvaluation], None] | None = None,
    begun: Callable[[], None] | None = None,
) -> RunReport:
    """Train under a plan as this process's rank, or alone for one device; returns a report.

    Args:
        predicted: prediction to compare the run with; None = on the plan's own cluster.
        watch: called with every step and evaluation; on rank 0 only.
        begun: called after all checks.

    Raises:
        UsageError: PyTorch is not installed; others of
            `execute.launch.run_training_of_this_rank.run_plan`.
        `execute.launch.run_training_of_this_rank.run_plan`.
    """
    require_runnable(stored.problem, options)
    try:
        from shardwright.execute.launch.run_training_of_this_rank import (
            run_plan,  # PyTorch is an extra
        )
    except ImportError as error:
        raise UsageError("run needs PyTorch", hint="pip install 'shardwright[run]'") from error
    check_plan(stored.problem, stored.plan)
    prediction = predicted or predict_on_own_cluster(stored)
    return run_plan(
        stored.problem,
        stored.plan,
        options,
        name=stored.name,
        predicted_s=prediction.step_time_s,
        memory=prediction.memory,
        watch=watch,
        begun=begun,
    )


def predicted_memory(problem: Problem, plan: Plan) -> tuple[RunMemory, ...]:
    """Simulate a plan: predicted peak bytes of each class of devices."""
    simulated = simulate_plan(problem, plan)
    return tuple(
        RunMemory(
            devices=tuple(klass.devices),
            holds=memory.layers,
            predicted=memory.allocated,
            measured=0,
        )
        for klass, memory in zip(simulated.program.classes, simulated.memory, strict=True)
    )


def tokenise(texts: tuple[Path, ...], tokens: Path) -> tuple[int, int]:
    """Write text files, or a sample text, as a token file; returns (tokens, vocabulary size).

    Raises:
        UsageError: PyTorch is not installed.
        DataError: see `execute.training.byte_tokenizer.tokenise`.
    """
    try:
        from shardwright.execute.training import (
            byte_tokenizer as tokenizer,  # its module of files needs PyTorch, an extra
        )
    except ImportError as error:
        raise UsageError("tokenise needs PyTorch", hint="pip install 'shardwright[run]'") from error
    count = tokenizer.tokenise(texts, tokens) if texts else tokenizer.tokenise_shipped(tokens)
    return count, tokenizer.VOCABULARY
