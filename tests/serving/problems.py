"""Small serving problems that tests share."""

from __future__ import annotations

from dataclasses import replace

from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Lengths,
    NumberFormat,
    OperatorPrecision,
    Precision,
    ServingJob,
    TokenRange,
)
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.runtime.serving_engines.engine_registry import load_engine
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.serving.deployments.serving_problem import ServingProblem

ENGINE = replace(
    load_engine("vllm-0.12"),
    token_budget=8192,
    max_sequences=256,
    prefix_cache=False,
    memory_fraction=0.9,
    captured=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
EIGHT_BITS = OperatorPrecision(weights=NumberFormat.FP8, activations=NumberFormat.FP8)
PLAIN = Precision()
JOB = ServingJob(
    arrivals=ClosedLoop(concurrency=64, requests=640),
    lengths=Lengths(
        inputs=TokenRange(low=1024, high=1024), outputs=TokenRange(low=1024, high=1024)
    ),
)


def problem(
    model: str, cluster: str, *, precision: Precision = PLAIN, engine: Engine = ENGINE
) -> ServingProblem:
    job = ServingJob(arrivals=JOB.arrivals, lengths=JOB.lengths, precision=precision)
    return ServingProblem(
        model=load_model(model), cluster=parse_cluster(cluster), job=job, engine=engine
    )
