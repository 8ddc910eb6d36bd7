"""Rule: the checkpoint interval that loses least, from failures and the time of a checkpoint."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.hardware.failure_rate_storage_restart import job_reliability

YOUNG = "Young 1974; Daly 2006, a higher order estimate of the optimum checkpoint interval"


def advise(facts: RequestFacts) -> Advice:
    """Training formulas: seconds between failures, of a checkpoint, best interval; lost share."""
    prediction = facts.best.prediction
    devices = facts.devices if prediction is None else prediction.devices
    job = job_reliability(facts.problem.cluster, devices=devices)
    rate = job.failures_per_hour.value / devices
    if not rate:
        return Advice(notes=("No failure rate of these devices is known.",))
    problem = facts.problem
    mean = formula(
        "time between failures of the job",
        "3600 / (f * n)",
        symbol("f", "failures of a device in an hour", rate),
        symbol("n", "devices", devices),
        unit="seconds",
        source=job.failures_per_hour.origin.reference,
    )
    write = formula(
        "time of a checkpoint",
        "max(N * (w + o) / S, 1)",
        symbol("N", "trained parameters", problem.model.num_trainable_parameters),
        symbol("w", "bytes of a weight", facts.weight_bytes),
        symbol("o", "bytes of the optimizer's states", facts.state_bytes),
        symbol("S", "bytes/s that the storage takes", job.storage.value),
        unit="seconds",
        source=job.storage.origin.reference,
    )
    times = (
        symbol("c", "seconds of a checkpoint", write.value),
        symbol("M", "seconds between failures", mean.value),
    )
    interval = formula(
        "checkpoint interval", "sqrt(2 * c * M)", *times, unit="seconds", source=YOUNG
    )
    lost = formula(
        "share of the time that failures and checkpoints lose",
        "c / t + (t / 2 + R) / M",
        *times,
        symbol("t", "checkpoint interval", interval.value),
        symbol("R", "seconds of a restart", job.restart_s.value),
        unit="share",
        source=f"{YOUNG}; restart: {job.restart_s.origin.reference}",
    )
    return Advice(formulas=(mean, write, interval, lost))


RULE = GuideRule(
    name="checkpoint_interval",
    question="Failures: how often a checkpoint?",
    statement="The square root of twice the time of a checkpoint times the time between failures.",
    source=YOUNG,
    advise=advise,
)
