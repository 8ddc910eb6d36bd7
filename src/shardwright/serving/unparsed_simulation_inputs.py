"""Inputs of a serving simulation as the user wrote them, before parsing."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRequest:
    """Inputs of `serve-simulate`, as texts and numbers.

    Args:
        model, cluster: names or files, as in other verbs.
        deployment: ``tp8``, ``agg 4x(tp2 seqs256)`` or ``prefill 3x(tp4) decode 2x(dpa8 ep8)``;
            empty = one worker whose tp is all devices.
        engine: name with options; empty = the newest vLLM.
        isl, osl: tokens of prompts and answers, or ranges of tokens.
        concurrency: requests in flight.
        arrivals: a stream of arrivals, in place of `concurrency`.
        trace: a file of requests, in place of lengths and arrivals.
        requests: number of requests; 0 = 10 a request in flight, or 1,000.
        precision: see `parse_traffic_and_latency_targets.read_precision`; empty = the formats of
            the model's checkpoint.
        prefix: prefixes that prompts share.
        slo: latency targets.
        acceptance: probability that a draft token is accepted.
        expert_skew, seed: fields of `ServingJob`.
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
