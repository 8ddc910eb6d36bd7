"""A question about serving as it was asked: words and numbers, nothing read yet."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRequest:
    """What `serve-simulate` is asked.

    Args:
        model, cluster: as of other verbs.
        deployment: ``tp8``, ``agg 4x(tp2 seqs256)`` or ``prefill 3x(tp4) decode 2x(dpa8 ep8)``;
            empty = one worker whose tp is all devices.
        engine: name with options; empty = the newest vLLM.
        isl, osl: tokens of prompts and answers, or ranges of them.
        concurrency: requests in flight.
        arrivals: a stream instead;
        trace: a file of requests instead.
        requests: in all; 0 = 10 a request in flight, or 1,000.
        precision: see `words.read_precision`; empty = the formats of the model's checkpoint.
        prefix: shared beginnings.
        slo: what is promised.
        acceptance: of guesses.
        expert_skew, seed: as of `ServingJob`.
    """

    model: str
    cluster: str
    deployment: str = ""
    engine: str = ""
    isl: str = ""
    osl: str = ""
    concurrency: int = 0
    arrivals: str = ""
    trace: str = ""
    requests: int = 0
    precision: str = ""
    prefix: str = ""
    slo: str = ""
    acceptance: str = ""
    expert_skew: float = 1.0
    seed: int = 0
