"""Data of the report's first view: step time, throughput, cost, memory and proof of a strategy."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunCost:
    """Tokens of a training run, and its days and dollars without failures and checkpoints.

    Args:
        usd: None where a node in use has no price.
    """

    tokens: float
    days: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The claim of a search's certificate, and the strategies that it accounts for.

    Args:
        claim: one sentence.
        gap: (best - lower bound) / best, a fraction.
        strategies: distinct legal strategies of the space.
        infeasible: strategies that do not fit in memory.
        bounded: strategies that a lower bound of their time rules out.
        simulated: strategies that were simulated.
    """

    claim: str
    optimal: bool
    lower_bound_s: float
    gap: float
    strategies: int
    infeasible: int
    bounded: int
    simulated: int
    space: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCard:
    """The predicted step of one strategy, with its cost and proof.

    Args:
        model: name of the model.
        parameters: all stored parameters.
        cluster: expression or path, as requested.
        runtime: framework and version; it, strategy, sequences and sequence_tokens are None where
            only the prediction is known.
        strategy: grid notation, or the name and sizes of a general plan.
        devices: devices that the strategy uses.
        sequences: global batch size in sequences.
        sequence_tokens: tokens of a sequence.
        step_s: predicted seconds of a step.
        interval_s: low and high end of the prediction interval.
        interval_share: fraction of comparable runs that are expected inside the interval.
        mfu: model FLOPs utilization, attention counted under the causal mask.
        usd_per_million_tokens: None where a node in use has no price.
        reserved_bytes: memory of the fullest device.
        capacity_bytes: memory that a program can allocate on that device.
        memory_share: the former divided by the latter.
        run: cost of the training run, if its tokens were given.
        proof: None where no search found the strategy.
    """

    model: str
    parameters: int
    cluster: str
    runtime: str | None
    strategy: str | None
    devices: int
    sequences: int | None
    sequence_tokens: int | None
    step_s: float
    interval_s: tuple[float, float]
    interval_share: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    usd_per_million_tokens: float | None
    reserved_bytes: int
    capacity_bytes: int
    memory_share: float
    fits: bool
    run: TrainingRunCost | None
    proof: Proof | None
