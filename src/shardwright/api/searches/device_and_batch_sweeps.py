"""Search one request for several numbers of devices, or for several batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shardwright.api.request_to_problem import problem_of, with_defaults
from shardwright.api.searches.find_certified_simulation import find_certified_simulation
from shardwright.errors import InfeasibleError, UsageError
from shardwright.job.critical_batch_size import (
    SOURCE,
    TOKENS_PER_PARAMETER,
    critical_batch,
    useful_share,
)
from shardwright.progress_callback import Progress
from shardwright.search.scaling_and_batch_results import Batches, ScalingTable, Trial
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.units import format_count, format_parameters

MAX_TRIALS = 64
SMALLEST, LARGEST = 1 / 32, 2.0
"""Range of tried batches by default, as shares of the critical batch."""


def powers_between(low: int, high: int) -> tuple[int, ...]:
    """`low`, its doublings that are below `high`, and `high` itself, ascending.

    Raises:
        UsageError: `high` is less than `low`.
    """
    if high < low:
        raise UsageError(
            f"a range from {low:,} to {high:,}", hint=f"the smaller number first: {high}..{low}"
        )
    numbers = [low]
    while numbers[-1] * 2 < high:
        numbers.append(numbers[-1] * 2)
    return (*numbers, high) if high > low else (low,)


def plan_device_counts(
    request: Request, *, devices: Sequence[int], progress: Progress | None = None
) -> ScalingTable:
    """Plan one batch on several device counts; the knee has most (tokens/s) squared / devices.

    The knee is where efficiency over step time is highest (Eager, Zahorjan and Lazowska 1989,
    Speedup versus efficiency in parallel systems, section 2): beyond it, the devices that are added
    lose more efficiency than they save time. With X tokens a second on n devices that is the
    highest X^2 / n.

    Raises:
        UsageError: no number is given, or the cluster has fewer devices than the most.
        ShardwrightError: as `plan`; a number on which nothing fits is a trial without a plan.
    """
    if not devices:
        raise UsageError("no number of devices", hint="name at least one: devices=(8, 16)")
    size = problem_of(request).cluster.num_devices
    if max(devices) > size:
        raise UsageError(
            f"--devices up to {max(devices):,} on a cluster of {size:,}",
            hint="name the largest cluster: h100-sxm:512",
        )
    all_trials = tuple(
        _plan_trials((replace(request, max_devices=count) for count in devices), progress)
    )
    # Whole nodes: several numbers may mean the same.
    trials = tuple({trial.devices: trial for trial in all_trials}.values())
    feasible = [trial for trial in trials if trial.simulation is not None]
    if not feasible:
        raise InfeasibleError(
            f"on up to {max(devices):,} devices: {trials[-1].why}",
            hint="more devices; `plan` says more",
        )
    return ScalingTable(
        trials=trials,
        knee=max(feasible, key=lambda trial: trial.tokens_per_s**2 / trial.devices).devices,
    )


def plan_batches(
    request: Request,
    *,
    sizes: Sequence[int] = (),
    critical: float = 0.0,
    tokens: float = 0.0,
    progress: Progress | None = None,
) -> Batches:
    """Plan several global batches, and choose the batch with the most useful tokens a second.

    Args:
        request: its batch is ignored.
        sizes: sequences a step; () = powers of two around the critical batch.
        critical: tokens a step; 0 = by the rule.
        tokens: tokens of the training run; 0 = `TOKENS_PER_PARAMETER` for each parameter that a
            token
            uses.

    Raises:
        ShardwrightError: as `plan`; InfeasibleError if nothing fits with any batch.
    """
    source = "as given (--critical-batch)"
    if not critical:
        active = problem_of(replace(request, global_batch=1)).model.num_active_parameters
        trained = tokens or TOKENS_PER_PARAMETER * active
        critical = critical_batch(parameters=active, tokens=trained)
        token_text = format_count(trained) + (
            "" if tokens else f", {TOKENS_PER_PARAMETER:g} a parameter"
        )
        source = f"{SOURCE}; {format_parameters(active)} parameters a token, {token_text} tokens"
    batch_sizes = sizes or _batches_near(critical / request.seq_len)
    trials = tuple(
        _plan_trials((replace(request, global_batch=size) for size in batch_sizes), progress)
    )
    if not any(trial.simulation is not None for trial in trials):
        raise InfeasibleError(
            f"with no batch from {min(batch_sizes):,} to {max(batch_sizes):,} sequences:"
            f" {trials[0].why}",
            hint="more devices",
        )
    return Batches(
        trials=trials,
        seq_len=request.seq_len,
        critical=critical,
        source=source,
        chosen=max(
            trials,
            key=lambda trial: progress_rate(trial, seq_len=request.seq_len, critical=critical),
        ).global_batch,
    )


def progress_rate(trial: Trial, *, seq_len: int, critical: float) -> float:
    """Useful tokens a second: throughput / (1 + tokens of the batch / `critical` tokens)."""
    return trial.tokens_per_s * useful_share(batch=trial.global_batch * seq_len, critical=critical)


def _batches_near(critical: float) -> tuple[int, ...]:
    """Powers of two from SMALLEST to LARGEST times `critical`, in sequences; (1,) if none."""
    powers = [1 << exponent for exponent in range(40)]
    return tuple(size for size in powers if SMALLEST * critical <= size <= LARGEST * critical) or (
        1,
    )


def _plan_trials(requests: Iterable[Request], progress: Progress | None) -> Iterator[Trial]:
    """Plan each request in order and yield the result; UsageError for too many requests."""
    all_requests = list(requests)
    if len(all_requests) > MAX_TRIALS:
        raise UsageError(
            f"{len(all_requests):,} searches in one call",
            hint=f"at most {MAX_TRIALS}: a smaller range",
        )
    for number, request in enumerate(all_requests, start=1):
        yield _plan_trial(request)
        if progress is not None:
            progress("search", number, len(all_requests))


def _plan_trial(request: Request) -> Trial:
    """Search one request's best plan; the trial has the reason instead if nothing fits."""
    request = with_defaults(request)
    devices = problem_of(request).cluster.num_devices
    try:
        best = simulate_best_plan(request)
    except InfeasibleError as error:
        return Trial(
            devices=devices, global_batch=request.global_batch, simulation=None, why=error.message
        )
    return Trial(devices=devices, global_batch=request.global_batch, simulation=best)


def simulate_best_plan(request: Request, *, progress: Progress | None = None) -> Simulation:
    """Search the best plan of a request, without sensitivity and goodput; returns its simulation.

    Raises:
        InfeasibleError: nothing fits.
        UsageError: the request's space has general plans.
        ShardwrightError: as `problem_of`.
    """
    return find_certified_simulation(request, progress=progress).simulation
